"""The slots of a group whose slot length may change: stretches of equal slots, one behind the other.

A slot is a number and a span of every clock (erratum 000-19). While the length stays as declared, slot = clock // Θ.
A change at slot S, which begins at T, adds a segment: from there on slot = S + (clock - T) // Θ'. Numbers go on across
the change and never repeat, so the place of a message in the order does not depend on who has changed when.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from unisono.model.timing import Timing

SEGMENTS_MAX = 3
"""The segments that matter at once: a change in waiting, the present, and the one that late frames are of."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Slots of one length, from one slot and the clock reading at which it begins on."""

    first_slot: int
    start_ns: int
    theta_ns: int


@dataclass(frozen=True, slots=True)
class SlotGrid:
    """Δ and Γ, and the slots as they have been agreed so far; `changes` counts the agreements."""

    delta_ns: int
    gamma_ns: int
    segments: tuple[Segment, ...]
    changes: int = 0

    @staticmethod
    def of(timing: Timing) -> SlotGrid:
        """The slots as they were declared."""
        return SlotGrid(timing.delta_ns, timing.gamma_ns, (Segment(0, 0, timing.theta_ns),))

    @property
    def last_segment(self) -> Segment:
        """The segment that nothing is known to end."""
        return self.segments[-1]

    def slot_of(self, clock_ns: int) -> int:
        """The slot that a clock is in."""
        segment = self.segments[-1]
        if clock_ns < segment.start_ns:
            segment = next((s for s in reversed(self.segments) if s.start_ns <= clock_ns), self.segments[0])
        return segment.first_slot + (clock_ns - segment.start_ns) // segment.theta_ns

    def start_of(self, slot: int) -> int:
        """The clock reading at which a slot begins."""
        segment = self.segments[-1]
        if slot >= segment.first_slot:
            return segment.start_ns + (slot - segment.first_slot) * segment.theta_ns
        segment, ends_ns = self._segment_of(slot)
        return min(segment.start_ns + (slot - segment.first_slot) * segment.theta_ns, ends_ns)

    def end_of(self, slot: int) -> int:
        """The clock reading at which a slot is over: the first instant of the next one."""
        return self.start_of(slot + 1)

    def next_slot(self, slot: int) -> int:
        """The slot that follows upon one: the next number, unless numbers were left out there."""
        if slot >= self.segments[-1].first_slot:
            return slot + 1
        following = next(segment for segment in self.segments if segment.first_slot > slot)
        return following.first_slot if self.start_of(slot + 1) >= following.start_ns else slot + 1

    def smax(self, clock_ns: int) -> int:
        """The first slot before which everyone is sure to have what is sent now (§6.3, erratum 000-24)."""
        return self.next_slot(self.slot_of(clock_ns + self.delta_ns + self.gamma_ns))

    def theta_of(self, slot: int) -> int:
        """The length of a slot."""
        return self._segment_of(slot)[0].theta_ns

    def lengths_from(self, slot: int) -> tuple[int, ...]:
        """The lengths that slots from this one on have."""
        first = self._segment_of(slot)[0]
        return tuple(segment.theta_ns for segment in self.segments[self.segments.index(first) :])

    def timing_of(self, slot: int) -> Timing:
        """Δ, Γ and Θ as they are in a slot."""
        return Timing(self.delta_ns, self.gamma_ns, self.theta_of(slot))

    def _segment_of(self, slot: int) -> tuple[Segment, int]:
        """The segment that a slot is of, and when it ends."""
        ends_ns = 1 << 63
        for segment in reversed(self.segments):
            if segment.first_slot <= slot:
                return segment, ends_ns
            ends_ns = segment.start_ns
        return self.segments[0], ends_ns

    def with_slot_length(self, slot: int, theta_ns: int) -> SlotGrid:
        """With slots of another length from a slot on."""
        return self._with_segment(Segment(slot, self.start_of(slot), theta_ns))

    def renumbered(self, slot: int, number: int) -> SlotGrid:
        """With a higher number for a slot, and the numbers that follow upon it for the slots that do."""
        return self._with_segment(Segment(number, self.start_of(slot), self.last_segment.theta_ns))

    def _with_segment(self, segment: Segment) -> SlotGrid:
        return replace(self, segments=(*self.segments, segment)[-SEGMENTS_MAX:], changes=self.changes + 1)

    def conflicts_with(self, other: SlotGrid) -> bool:
        """Whether the two part where each was changed last: the same slots up to there, and another wish agreed on."""
        if self.changes != other.changes or self.last_segment == other.last_segment or len(self.segments) < 2:
            return False
        return (
            self.segments[:-1] == other.segments[:-1]
            and self._numbers_are_contiguous()
            and other._numbers_are_contiguous()
        )

    def _numbers_are_contiguous(self) -> bool:
        """Whether no numbers were left out at the last change."""
        before, last = self.segments[-2:]
        return last.start_ns == before.start_ns + (last.first_slot - before.first_slot) * before.theta_ns

    def first_difference(self, other: SlotGrid) -> int | None:
        """If the other's slots go on here as they are known there, the first that has another length or number.

        Of rivals it is the first that one of them has changed.
        """
        if self.conflicts_with(other):
            return min(self.last_segment.first_slot, other.last_segment.first_slot)
        if self.changes <= other.changes or other.last_segment not in self.segments[:-1]:
            return None
        return self.segments[self.segments.index(other.last_segment) + 1].first_slot

    def has_same_slots(self, other: SlotGrid) -> bool:
        """Whether slots are the same from now on."""
        ours, theirs = self.last_segment, other.last_segment
        theta_ns = ours.theta_ns
        return theirs.theta_ns == theta_ns and (
            theirs.start_ns - ours.start_ns == (theirs.first_slot - ours.first_slot) * theta_ns
        )

    def prevails_over(self, other: SlotGrid, clock_ns: int) -> bool:
        """Whether this is to hold where the two meet: the more often changed one.

        Of rivals it is the one that changed first: the wish for it came first in the order, and who agreed on the other
        had not delivered it. After equally many changes of other slots it is the one whose numbers are higher, so that
        nobody's have to wait. Two that cross at that moment may be told apart differently by two members; then they
        meet again.
        """
        if self.conflicts_with(other):
            return (self.last_segment.first_slot, self.last_segment.theta_ns) < (
                other.last_segment.first_slot,
                other.last_segment.theta_ns,
            )
        at_ns = max(clock_ns, self.last_segment.start_ns, other.last_segment.start_ns)
        return self._rank(at_ns) > other._rank(at_ns)

    def _rank(self, clock_ns: int) -> tuple[int, Fraction, int]:
        last = self.last_segment
        return self.changes, last.first_slot + Fraction(clock_ns - last.start_ns, last.theta_ns), -last.theta_ns
