"""Δ, Γ and Θ, the slots of length Θ, and small helpers for times (paper 000 §2.2, §5).

Slots count from the Unix epoch (erratum 000-19): each slot is an interval of every member's clock. While the slot
length stays as declared, slot = clock // Θ. A change at slot S, which begins at clock reading T, adds a segment with
slot = S + (clock - T) // Θ'. Slot numbers increase across the change and never repeat, so a message's position does not
depend on when members learn of the change.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction

from unisono.errors import InvalidOption
from unisono.model.units import NS_PER_S


def earliest(times: Iterable[int | None]) -> int | None:
    """The earliest of these alarm times; None if no alarm is set.

    In `times`, None stands for an alarm that is not set.
    """
    first: int | None = None
    for at in times:
        if at is not None and (first is None or at < first):
            first = at
    return first


DELTA_DEFAULT, GAMMA_DEFAULT, SLOT_DEFAULT = "50ms", "5ms", "5ms"
"""The defaults of `join` and of every command line.

Δ allows for a scheduler that keeps a process waiting, Γ for clocks kept by a time service; Δ+Γ+Θ is 60 ms. While all
members are up, a large Δ delays nothing, because complete slots are delivered at once. A small Δ excludes slow members.
"""

SLOT_MIN_NS, SLOT_MAX_NS = 1_000, 60_000_000_000
"""The shortest slot, and the longest that a running group can change to."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Δ: the largest network delay. Γ: the largest difference between two clocks. Θ: the slot length."""

    delta_ns: int
    gamma_ns: int
    theta_ns: int

    def __post_init__(self) -> None:
        if self.theta_ns < SLOT_MIN_NS:
            raise InvalidOption("slot", f"expected a slot of at least 1us, got {self.theta_ns} ns")
        if self.delta_ns < 0:
            raise InvalidOption("delta", f"expected a delay of at least 0, got {self.delta_ns} ns")
        if self.gamma_ns < 0:
            raise InvalidOption("gamma", f"expected a clock difference of at least 0, got {self.gamma_ns} ns")

    def slot_of(self, clock_ns: int) -> int:
        """The slot at a clock reading."""
        return clock_ns // self.theta_ns

    def start_of(self, slot: int) -> int:
        """The clock reading at which a slot begins."""
        return slot * self.theta_ns

    def end_of(self, slot: int) -> int:
        """The clock reading at which a slot ends: the first instant of the next slot."""
        return (slot + 1) * self.theta_ns

    def smax(self, clock_ns: int) -> int:
        """The first slot that begins after all members have received a message sent now (paper 000 §6.3, erratum
        000-24).
        """
        return (clock_ns + self.delta_ns + self.gamma_ns) // self.theta_ns + 1


SEGMENTS_MAX = 3
"""The most segments of a slot schedule that matter at one time: an upcoming one, the current one, and that of late
frames."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment of the slot schedule: slots of length `theta_ns` from `first_slot` on, which begins at `start_ns`."""

    first_slot: int
    start_ns: int
    theta_ns: int


@dataclass(frozen=True, slots=True)
class SlotGrid:
    """The slot schedule of a group: Δ, Γ, and the segments agreed so far. `changes` counts the changes of schedule."""

    delta_ns: int
    gamma_ns: int
    segments: tuple[Segment, ...]
    changes: int = 0

    @staticmethod
    def of(timing: Timing) -> SlotGrid:
        """The slot schedule of a group that has not changed its slot length."""
        return SlotGrid(timing.delta_ns, timing.gamma_ns, (Segment(0, 0, timing.theta_ns),))

    @property
    def last_segment(self) -> Segment:
        """The latest segment of the slot schedule, which has no end yet."""
        return self.segments[-1]

    def slot_of(self, clock_ns: int) -> int:
        """The slot at a clock reading."""
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
        """The clock reading at which a slot ends: the first instant of the next slot."""
        return self.start_of(slot + 1)

    def next_slot(self, slot: int) -> int:
        """The slot after `slot`: the next number, unless a change of the schedule skipped numbers there."""
        if slot >= self.segments[-1].first_slot:
            return slot + 1
        following = next(segment for segment in self.segments if segment.first_slot > slot)
        return following.first_slot if self.start_of(slot + 1) >= following.start_ns else slot + 1

    def smax(self, clock_ns: int) -> int:
        """The first slot that begins after all members have received a message sent now (paper 000 §6.3, erratum
        000-24).
        """
        return self.next_slot(self.slot_of(clock_ns + self.delta_ns + self.gamma_ns))

    def theta_of(self, slot: int) -> int:
        """The length of a slot."""
        return self._segment_of(slot)[0].theta_ns

    def lengths_from(self, slot: int) -> tuple[int, ...]:
        """The slot lengths that the schedule has from `slot` on."""
        first = self._segment_of(slot)[0]
        return tuple(segment.theta_ns for segment in self.segments[self.segments.index(first) :])

    def timing_of(self, slot: int) -> Timing:
        """Δ, Γ and Θ in a slot."""
        return Timing(self.delta_ns, self.gamma_ns, self.theta_of(slot))

    def _segment_of(self, slot: int) -> tuple[Segment, int]:
        """The segment that contains a slot, and the clock reading at which the segment ends."""
        ends_ns = 1 << 63
        for segment in reversed(self.segments):
            if segment.first_slot <= slot:
                return segment, ends_ns
            ends_ns = segment.start_ns
        return self.segments[0], ends_ns

    def with_slot_length(self, slot: int, theta_ns: int) -> SlotGrid:
        """This slot schedule with another slot length from `slot` on."""
        return self._with_segment(Segment(slot, self.start_of(slot), theta_ns))

    def renumbered(self, slot: int, number: int) -> SlotGrid:
        """This slot schedule, but `slot` has the higher number `number`, and later slots continue from there."""
        return self._with_segment(Segment(number, self.start_of(slot), self.last_segment.theta_ns))

    def _with_segment(self, segment: Segment) -> SlotGrid:
        return replace(self, segments=(*self.segments, segment)[-SEGMENTS_MAX:], changes=self.changes + 1)

    def conflicts_with(self, other: SlotGrid) -> bool:
        """Whether this slot schedule and the other are equal up to their last change, and differ in that change."""
        if self.changes != other.changes or self.last_segment == other.last_segment or len(self.segments) < 2:
            return False
        return (
            self.segments[:-1] == other.segments[:-1]
            and self._numbers_are_contiguous()
            and other._numbers_are_contiguous()
        )

    def _numbers_are_contiguous(self) -> bool:
        """Whether the last change of the slot schedule skipped no slot numbers."""
        before, last = self.segments[-2:]
        return last.start_ns == before.start_ns + (last.first_slot - before.first_slot) * before.theta_ns

    def first_difference(self, other: SlotGrid) -> int | None:
        """The first slot whose length or number differs between the two slot schedules.

        This schedule must continue the other one with more changes, or conflict with it; else the result is None.
        """
        if self.conflicts_with(other):
            return min(self.last_segment.first_slot, other.last_segment.first_slot)
        if self.changes <= other.changes or other.last_segment not in self.segments[:-1]:
            return None
        return self.segments[self.segments.index(other.last_segment) + 1].first_slot

    def has_same_slots(self, other: SlotGrid) -> bool:
        """Whether both slot schedules have the same slots from their last changes on."""
        ours, theirs = self.last_segment, other.last_segment
        theta_ns = ours.theta_ns
        return theirs.theta_ns == theta_ns and (
            theirs.start_ns - ours.start_ns == (theirs.first_slot - ours.first_slot) * theta_ns
        )

    def prevails_over(self, other: SlotGrid, clock_ns: int) -> bool:
        """Whether this slot schedule wins over the other one when members with the two schedules meet.

        If the two conflict, the schedule with the earlier change wins: its request comes first in the order, and the
        members with the other schedule have not delivered that request. Otherwise the schedule with more changes wins.
        After equally many changes, the one with the higher slot numbers at `clock_ns` wins, so that no member has to
        wait for its numbers. If the numbers are just about to become equal, two members may decide differently; then
        they compare again at the next message.
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


class Throttle:
    """Distinguishes new conditions from continuing ones. A condition is new if it was not seen for `quiet_ns`."""

    def __init__(self, quiet_ns: int = NS_PER_S) -> None:
        self._quiet_ns = quiet_ns
        self._last_seen_ns: dict[Hashable, int] = {}

    def first_in_a_while(self, now: int, key: Hashable) -> bool:
        """Record that the condition `key` is seen now. Returns whether it is new."""
        last = self._last_seen_ns.get(key)
        self._last_seen_ns[key] = now
        return last is None or now - last > self._quiet_ns
