"""PLACEHOLDER."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from unisono.agreement.paxos.decisions import RestoredState
from unisono.errors import StorageError
from unisono.model.events import PackedMessages
from unisono.model.message_range import MessageRange, SenderSlot
from unisono.model.message_set import NO_MESSAGES, MessageOrigin, MessageSet, SequenceRange
from unisono.model.remaining import RemainingMessages
from unisono.orders.final.messages import FinalLogState, Holdings, decode_state, decode_value, encode_state
from unisono.wire.frame import Frame

INCARNATIONS_KEPT = 16
"""Of so many lives of a sender it is remembered what was final; of older ones nothing becomes final any more."""

Ranges = tuple[SequenceRange, ...]


class MessageStore:
    """Runs of messages. What came together stays together: a run is taken apart only where it has to be cut."""

    def __init__(self) -> None:
        self.payload_bytes = 0
        self._held: dict[SenderSlot, list[tuple[int, PackedMessages]]] = {}
        """By cell, (first number, run), ascending and without overlap."""

    def put(self, sender_slot: SenderSlot, first: int, messages: PackedMessages) -> bool:
        """Keep messages; those that are there already stay as they are. Whether any are new."""
        pieces = self._held.setdefault(sender_slot, [])
        if not pieces or first >= pieces[-1][0] + pieces[-1][1].count:  # the usual case
            pieces.append((first, messages))
            self.payload_bytes += messages.payload_bytes
            return True
        fresh = [(first, messages)]
        for start, held in pieces:
            fresh = [part for one in fresh for part in _without_range(one, start, start + held.count)]
        pieces.extend(fresh)
        pieces.sort(key=lambda piece: piece[0])
        self.payload_bytes += sum(part.payload_bytes for _, part in fresh)
        return bool(fresh)

    def ranges(self, sender_slot: SenderSlot) -> tuple[SequenceRange, ...]:
        """Which numbers are held there, those that touch made one."""
        made: list[SequenceRange] = []
        for first, run in self._held.get(sender_slot, ()):
            last = first + run.count - 1
            if made and made[-1][1] + 1 == first:
                made[-1] = (made[-1][0], last)
            else:
                made.append((first, last))
        return tuple(made)

    def packed_messages(self, message_range: MessageRange) -> list[PackedMessages] | None:
        """The messages of an extent, or None if one of them is missing."""
        found: list[PackedMessages] = []
        at, end = message_range.first, message_range.first + message_range.length
        for first, run in self._held.get(message_range.sender_slot, ()):
            if first + run.count <= at:
                continue
            if first > at or at == end:
                break
            upto = min(end, first + run.count)
            whole = first == at and first + run.count == upto
            found.append(run if whole else RemainingMessages(run.messages()[at - first : upto - first]))
            at = upto
        return found if at == end else None

    def drop(self, message_range: MessageRange) -> None:
        """Keep these no longer."""
        pieces = self._held.pop(message_range.sender_slot, [])
        first, end = message_range.first, message_range.first + message_range.length
        left = [part for piece in pieces for part in _without_range(piece, first, end)]
        self.payload_bytes -= sum(run.payload_bytes for _, run in pieces) - sum(run.payload_bytes for _, run in left)
        if left:
            self._held[message_range.sender_slot] = left


def _without_range(held: tuple[int, PackedMessages], first: int, end: int) -> list[tuple[int, PackedMessages]]:
    """What of a piece has numbers below `first`, and from `end` on."""
    start, run = held
    stop = start + run.count
    if stop <= first or end <= start:
        return [held]
    messages = run.messages()
    parts: list[tuple[int, PackedMessages]] = []
    if start < first:
        parts.append((start, RemainingMessages(messages[: first - start])))
    if end < stop:
        parts.append((end, RemainingMessages(messages[end - start :])))
    return parts


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


@dataclass(frozen=True, slots=True)
class AgreedRange:
    """Messages that have their place in the final order."""

    k: int
    """The instance that decided it."""
    slot: int
    """The slot under which they are final: their own, or that of what is before them, if that is later."""
    position: int
    """How many messages are final before them."""
    message_range: MessageRange


class FinalLog:
    """One member's reading of the log; the same at every member."""

    def __init__(self) -> None:
        self.k = 0
        """The last instance that was read."""
        self.message_count = self.slot = 0
        self.participants: dict[int, int] = {}
        """By member, the life in which it takes part."""
        self.final: MessageSet = NO_MESSAGES
        self._closed_incarnations: dict[int, int] = {}

    def apply(self, k: int, value: bytes) -> list[AgreedRange] | None:
        """The log's next value; what becomes final by it, or None if it is no value of this log."""
        read = decode_value(value)
        if read is None:
            return None
        self.k = k
        for member, life in read.new_participants.items():
            self.participants[member] = max(life, self.participants.get(member, 0))
        return [agreed for extent in read.message_ranges for agreed in self._finalize(k, extent)]

    def not_yet_final(self, message_range: MessageRange) -> list[MessageRange]:
        """What of an extent could still become final."""
        if message_range.incarnation <= self._closed_incarnations.get(message_range.sender, -1):
            return []
        return message_range.without(self.final)

    def _finalize(self, k: int, message_range: MessageRange) -> list[AgreedRange]:
        self.slot = max(self.slot, message_range.slot)
        counted = []
        for part in self.not_yet_final(message_range):
            counted.append(AgreedRange(k, self.slot, self.message_count, part))
            self.message_count += part.length
        if counted:
            if message_range.origin not in self.final.ranges:
                self._close_oldest_incarnation(message_range.sender)
            self.final |= message_range.messages()
        return counted

    def _close_oldest_incarnation(self, sender: int) -> None:
        lives = sorted(life for member, life in self.final.ranges if member == sender)
        if len(lives) >= INCARNATIONS_KEPT:
            self._closed_incarnations[sender] = lives[0]
            ranges = self.final.ranges
            self.final = MessageSet({origin: ranges[origin] for origin in ranges if origin != (sender, lives[0])})

    def state(self) -> bytes:
        """What stands for all that was read."""
        return encode_state(
            FinalLogState(self.message_count, self.slot, self.participants, self.final, self._closed_incarnations)
        )

    def restore(self, restored: RestoredState) -> None:
        """Go on from what stands for a prefix of the log."""
        state = decode_state(restored.state)
        if state is None:
            raise StorageError(f"the state that stands for the final order up to {restored.k} cannot be read")
        self.k, self.message_count, self.slot, self.final = restored.k, state.message_count, state.slot, state.final
        self.participants, self._closed_incarnations = dict(state.participants), dict(state.closed_incarnations)
