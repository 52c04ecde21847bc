"""What members have reported of the messages that they hold, and what a leader may propose from that.

A leader waits until everybody who is not suspected has delivered a slot early, so that all it delivered is counted;
and proposes only what a majority holds, so that whoever crashes, somebody who does not can give it to the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from unisono.model.message_range import MessageRange, SenderSlot
from unisono.model.message_set import MessageOrigin, MessageSet, SequenceRange
from unisono.orders.final.log import FinalLog
from unisono.orders.final.messages import Holdings
from unisono.wire.frame import Frame

Ranges = tuple[SequenceRange, ...]


class MemberReport:
    """One member's last whole report."""

    def __init__(
        self,
        incarnation: int,
        done_slot: int = 0,
        delivered_instance: int = 0,
        held_ranges: dict[SenderSlot, Ranges] | None = None,
    ) -> None:
        self.incarnation = incarnation
        self.done_slot = done_slot
        self.delivered_instance = delivered_instance
        self.held_ranges: dict[SenderSlot, Ranges] = held_ranges or {}


class _PartialReport:
    """A report that is not whole yet."""

    def __init__(self, frame: Frame) -> None:
        self.incarnation, self.sent_ns, self.total = frame.incarnation, frame.sent_ns, frame.burst
        self.parts: dict[int, Holdings] = {}


class MemberReports:
    """Everybody's, this member's own among them."""

    def __init__(self) -> None:
        self.by_member: dict[int, MemberReport] = {}
        self._partial: dict[int, _PartialReport] = {}

    def receive(self, frame: Frame, holdings: Holdings) -> bool:
        """A part of a report has come; whether that report is whole now. An older one than is known is left out."""
        known = self._partial.get(frame.sender)
        if known is None or (frame.incarnation, frame.sent_ns) > (known.incarnation, known.sent_ns):
            known = self._partial[frame.sender] = _PartialReport(frame)
        elif (frame.incarnation, frame.sent_ns) < (known.incarnation, known.sent_ns):
            return False
        known.parts[frame.number] = holdings
        if len(known.parts) < known.total:
            return False
        extents = [extent for _, part in sorted(known.parts.items()) for extent in part.message_ranges]
        self.by_member[frame.sender] = MemberReport(
            frame.incarnation, holdings.done_slot, holdings.delivered_instance, ranges_by_sender_slot(extents)
        )
        return True

    def done_slot(self, members: Sequence[int]) -> int:
        """The last slot of which none of these will deliver anything more early."""
        return min(
            (self.by_member[member].done_slot if member in self.by_member else 0 for member in members), default=0
        )

    def holders(self, sender_slot: SenderSlot, members: Sequence[int]) -> dict[int, Ranges]:
        """By member, what these hold there."""
        return {
            m: self.by_member[m].held_ranges[sender_slot]
            for m in members
            if m in self.by_member and sender_slot in self.by_member[m].held_ranges
        }


def ranges_by_sender_slot(message_ranges: Sequence[MessageRange]) -> dict[SenderSlot, Ranges]:
    """Extents that are in order, together where they belong together."""
    cells: dict[SenderSlot, Ranges] = {}
    for extent in message_ranges:
        cells[extent.sender_slot] = (*cells.get(extent.sender_slot, ()), (extent.first, extent.last))
    return cells


def segments(sender_slot: SenderSlot, held: Mapping[int, Ranges]) -> list[tuple[MessageRange, int]]:
    """What is held in a cell, cut so that each part has the same holders everywhere, and how many those are."""
    distinct = list(dict.fromkeys(held.values()))
    if len(distinct) == 1:
        return [(MessageRange(*sender_slot, a, b - a + 1), len(held)) for a, b in distinct[0]]
    cuts = sorted({edge for ranges in distinct for a, b in ranges for edge in (a, b + 1)})
    parts = []
    for first, end in pairwise(cuts):
        holders = sum(any(a <= first and end - 1 <= b for a, b in ranges) for ranges in held.values())
        if holders:
            parts.append((MessageRange(*sender_slot, first, end - first), holders))
    return parts


class FinalProposer:
    """A leader's next proposals, in one reign."""

    def __init__(self, reports: MemberReports, log: FinalLog, majority: int, hole_timeout_ns: int) -> None:
        """`patience_ns`: how long what follows a hole in a silent sender's messages waits for the hole to be filled."""
        self._reports = reports
        self._log = log
        self._majority = majority
        self._hole_timeout_ns = hole_timeout_ns
        self._proposed = MessageSet()
        self._proposed_participants: dict[int, int] = {}
        self._hole_since: dict[MessageOrigin, int] = {}
        """Since when a silent sender's messages are known to have a hole."""
        self.retry_at: int | None = None
        """When a hole has been waited for long enough."""

    def new_participants(self, trusted: Sequence[int], all_slots_done: int) -> dict[int, int]:
        """Who has reported and does not take part yet, by member its life; whoever is done at `leaving` goes."""
        found = {}
        for member in trusted:
            report = self._reports.by_member.get(member)
            if report is None or report.done_slot >= all_slots_done:
                continue
            if report.incarnation > max(
                self._log.participants.get(member, -1), self._proposed_participants.get(member, -1)
            ):
                found[member] = self._proposed_participants[member] = report.incarnation
        return found

    def next_ranges(self, now: int, trusted: Sequence[int], max_ranges: int) -> list[MessageRange]:
        """What can be proposed now, in order."""
        upto = self._reports.done_slot(trusted)
        cells = {
            cell: None
            for m in trusted
            if m in self._reports.by_member
            for cell in self._reports.by_member[m].held_ranges
        }
        found: list[MessageRange] = []
        self.retry_at = None
        for cell in sorted(cell for cell in cells if cell[0] <= upto):
            for segment, holders in segments(cell, self._reports.holders(cell, trusted)):
                for open_ in self._log.not_yet_final(segment):
                    for extent in open_.without(self._proposed):
                        few = holders < self._majority or len(found) == max_ranges
                        if few or self._behind_hole(now, extent, trusted):
                            return found
                        self._proposed |= extent.messages()
                        found.append(extent)
        return found

    def forget_decided(self) -> None:
        """Forget what has been decided."""
        self._proposed -= self._log.final

    def _behind_hole(self, now: int, message_range: MessageRange, trusted: Sequence[int]) -> bool:
        """Whether an earlier message of a sender that is not heard is missing, and may still turn up."""
        report = self._reports.by_member.get(message_range.sender)
        if message_range.sender in trusted and report is not None and report.incarnation >= message_range.incarnation:
            self._hole_since.pop(message_range.origin, None)
            return False
        if message_range.first <= self._next_sequence(message_range.origin):
            return False
        due = self._hole_since.setdefault(message_range.origin, now) + self._hole_timeout_ns
        if now >= due:
            return False
        self.retry_at = due
        return True

    def _next_sequence(self, origin: MessageOrigin) -> int:
        settled = (self._log.final.ranges.get(origin, ()), self._proposed.ranges.get(origin, ()))
        return max((ranges[-1][1] + 1 for ranges in settled if ranges), default=0)
