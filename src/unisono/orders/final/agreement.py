"""What the members of a group with final deliveries agree on: reports, the leader's proposals, and the agreed log.

Each member reports the messages that it holds (`MemberReports`). The leader proposes message ranges (`FinalProposer`):
- It waits until every trusted member has delivered a slot early, so that all early deliveries of these members count.
- It proposes only messages that a majority holds, so that one holder survives and can send them to the others.

The decided values form a log, and the final order is a function of the log (`FinalLog`). A range may be in the log
twice, through two leaders. Messages of an old slot may follow messages of later slots, if only a member that was cut
off held them. The first occurrence counts.

`MessageStore` keeps the messages themselves until they are final at all members.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from unisono.agreement.paxos.acceptor import RestoredState
from unisono.errors import StorageError
from unisono.model.events import PackedMessages, RemainingMessages
from unisono.model.message_set import NO_MESSAGES, MessageOrigin, MessageRange, MessageSet, SenderSlot, SequenceRange
from unisono.orders.final.messages import FinalLogState, Holdings, decode_state, decode_value, encode_state
from unisono.wire.codec import Unreadable
from unisono.wire.frame import Frame

INCARNATIONS_KEPT = 16
"""The log keeps the final messages of this many incarnations of a sender. Nothing of an older one becomes final."""

Ranges = tuple[SequenceRange, ...]


# -- reports ---------------------------------------------------------------------------------------------------------


class MemberReport:
    """The last complete report of one member about the messages that it holds."""

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
    """A report of which not all parts have arrived."""

    def __init__(self, frame: Frame) -> None:
        self.incarnation, self.sent_ns, self.total = frame.incarnation, frame.sent_ns, frame.burst
        self.parts: dict[int, Holdings] = {}


class MemberReports:
    """The reports of all members, this one included."""

    def __init__(self) -> None:
        self.by_member: dict[int, MemberReport] = {}
        self._partial: dict[int, _PartialReport] = {}

    def receive(self, frame: Frame, holdings: Holdings) -> bool:
        """Receive a part of a report; parts of older reports are ignored. True if the report is complete now."""
        latest = self._partial.get(frame.sender)
        if latest is None or (frame.incarnation, frame.sent_ns) > (latest.incarnation, latest.sent_ns):
            latest = self._partial[frame.sender] = _PartialReport(frame)
        elif (frame.incarnation, frame.sent_ns) < (latest.incarnation, latest.sent_ns):
            return False
        latest.parts[frame.number] = holdings
        if len(latest.parts) < latest.total:
            return False
        message_ranges = [held for _, part in sorted(latest.parts.items()) for held in part.message_ranges]
        self.by_member[frame.sender] = MemberReport(
            frame.incarnation, holdings.done_slot, holdings.delivered_instance, ranges_by_sender_slot(message_ranges)
        )
        return True

    def done_slot(self, members: Sequence[int]) -> int:
        """The last slot up to which all these members have finished their early deliveries, by their reports."""
        return min(
            (self.by_member[member].done_slot if member in self.by_member else 0 for member in members), default=0
        )

    def holders(self, sender_slot: SenderSlot, members: Sequence[int]) -> dict[int, Ranges]:
        """By member, the message ranges that it holds of one sender's messages in one slot."""
        return {
            m: self.by_member[m].held_ranges[sender_slot]
            for m in members
            if m in self.by_member and sender_slot in self.by_member[m].held_ranges
        }


def ranges_by_sender_slot(message_ranges: Sequence[MessageRange]) -> dict[SenderSlot, Ranges]:
    """Group ascending message ranges by sender slot."""
    grouped: dict[SenderSlot, Ranges] = {}
    for message_range in message_ranges:
        sender_slot = message_range.sender_slot
        grouped[sender_slot] = (*grouped.get(sender_slot, ()), (message_range.first, message_range.last))
    return grouped


def segments(sender_slot: SenderSlot, held: Mapping[int, Ranges]) -> list[tuple[MessageRange, int]]:
    """Split the held messages of a sender slot so that all messages of a segment have the same holders.

    Returns each segment with the number of its holders.
    """
    distinct = list(dict.fromkeys(held.values()))
    if len(distinct) == 1:
        return [(MessageRange(*sender_slot, a, b - a + 1), len(held)) for a, b in distinct[0]]
    edges = sorted({edge for ranges in distinct for a, b in ranges for edge in (a, b + 1)})
    found = []
    for first, end in pairwise(edges):
        holders = sum(any(a <= first and end - 1 <= b for a, b in ranges) for ranges in held.values())
        if holders:
            found.append((MessageRange(*sender_slot, first, end - first), holders))
    return found


# -- proposals -------------------------------------------------------------------------------------------------------


class FinalProposer:
    """Chooses the next proposals of a leader, during one term."""

    def __init__(self, reports: MemberReports, log: FinalLog, majority: int, hole_timeout_ns: int) -> None:
        """`hole_timeout_ns` is how long later messages of an unresponsive sender wait for its missing ones."""
        self._reports = reports
        self._log = log
        self._majority = majority
        self._hole_timeout_ns = hole_timeout_ns
        self._proposed = MessageSet()
        self._proposed_participants: dict[int, int] = {}
        self._hole_since: dict[MessageOrigin, int] = {}
        """By incarnation of an unresponsive sender: since when messages of it are known to be missing."""
        self.retry_at: int | None = None
        """When the wait for missing messages of an unresponsive sender ends; None if no message waits."""

    def new_participants(self, trusted: Sequence[int], all_slots_done: int) -> dict[int, int]:
        """Members that have reported and do not take part yet, with their incarnations.

        A leaving member is not included: it reports `all_slots_done` as its last finished slot.
        """
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
        """The message ranges that can be proposed now, in order."""
        done_slot = self._reports.done_slot(trusted)
        sender_slots = {
            sender_slot: None
            for m in trusted
            if m in self._reports.by_member
            for sender_slot in self._reports.by_member[m].held_ranges
        }
        found: list[MessageRange] = []
        self.retry_at = None
        for sender_slot in sorted(held for held in sender_slots if held[0] <= done_slot):
            for segment, holders in segments(sender_slot, self._reports.holders(sender_slot, trusted)):
                for not_final in self._log.not_yet_final(segment):
                    for not_proposed in not_final.without(self._proposed):
                        must_wait = holders < self._majority or len(found) == max_ranges
                        if must_wait or self._behind_hole(now, not_proposed, trusted):
                            return found
                        self._proposed |= not_proposed.messages()
                        found.append(not_proposed)
        return found

    def forget_decided(self) -> None:
        """Forget proposals that have been decided."""
        self._proposed -= self._log.final

    def _behind_hole(self, now: int, message_range: MessageRange, trusted: Sequence[int]) -> bool:
        """Whether an earlier message of an unresponsive sender is missing and another member may still report it."""
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
        """The number after the last final or proposed message of a sender's incarnation."""
        final, proposed = self._log.final.ranges.get(origin, ()), self._proposed.ranges.get(origin, ())
        return max((ranges[-1][1] + 1 for ranges in (final, proposed) if ranges), default=0)


# -- the agreed log --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AgreedRange:
    """Messages that have their position in the final order."""

    k: int
    """The instance of consensus that decided these messages."""
    slot: int
    """The slot under which they are delivered: their own, or that of the messages before them if it is later."""
    position: int
    """The number of final messages before these in the final order."""
    message_range: MessageRange
    late: bool
    """Whether messages of a later slot come before these in the final order."""


class FinalLog:
    """The final order, computed from the decided values; the same at every member."""

    def __init__(self) -> None:
        self.k = 0
        """The last instance of consensus that was applied to this log."""
        self.message_count = self.slot = 0
        self.participants: dict[int, int] = {}
        """By member, the incarnation in which it takes part."""
        self.final: MessageSet = NO_MESSAGES
        self._closed_incarnations: dict[int, int] = {}

    def apply(self, k: int, value: bytes) -> list[AgreedRange]:
        """Apply the next decided value. Returns the messages that it makes final; raises Unreadable if malformed."""
        decoded = decode_value(value)
        self.k = k
        for member, incarnation in decoded.new_participants.items():
            self.participants[member] = max(incarnation, self.participants.get(member, 0))
        return [agreed for message_range in decoded.message_ranges for agreed in self._finalize(k, message_range)]

    def not_yet_final(self, message_range: MessageRange) -> list[MessageRange]:
        """The parts of a message range that are not final and can still become final."""
        if message_range.incarnation <= self._closed_incarnations.get(message_range.sender, -1):
            return []
        return message_range.without(self.final)

    def _finalize(self, k: int, message_range: MessageRange) -> list[AgreedRange]:
        late = message_range.slot < self.slot
        self.slot = max(self.slot, message_range.slot)
        agreed = []
        for part in self.not_yet_final(message_range):
            agreed.append(AgreedRange(k, self.slot, self.message_count, part, late))
            self.message_count += part.length
        if agreed:
            if message_range.origin not in self.final.ranges:
                self._close_oldest_incarnation(message_range.sender)
            self.final |= message_range.messages()
        return agreed

    def _close_oldest_incarnation(self, sender: int) -> None:
        """Drop the oldest incarnation of a sender to make room for a new one: nothing of it becomes final any more."""
        incarnations = sorted(incarnation for member, incarnation in self.final.ranges if member == sender)
        if len(incarnations) >= INCARNATIONS_KEPT:
            oldest = incarnations[0]
            self._closed_incarnations[sender] = oldest
            ranges = self.final.ranges
            self.final = MessageSet({origin: ranges[origin] for origin in ranges if origin != (sender, oldest)})

    def state(self) -> bytes:
        """A snapshot of everything applied so far."""
        return encode_state(
            FinalLogState(self.message_count, self.slot, self.participants, self.final, self._closed_incarnations)
        )

    def restore(self, restored: RestoredState) -> None:
        """Replace the state of this log by a snapshot, and continue from there."""
        try:
            state = decode_state(restored.state)
        except Unreadable as error:
            raise StorageError(
                f"the snapshot of the final order up to instance {restored.k} cannot be read: {error}. Check that all "
                "members use the same release of unisono, and that it wrote this member's storage file. Do not restore "
                "an older copy of the file: it lacks promises that this member made later"
            ) from error
        self.k, self.message_count, self.slot, self.final = restored.k, state.message_count, state.slot, state.final
        self.participants, self._closed_incarnations = dict(state.participants), dict(state.closed_incarnations)


# -- stored messages -------------------------------------------------------------------------------------------------


class MessageStore:
    """The messages that a member keeps, by slot and sender.

    Messages that arrived together stay packed; they are unpacked only if a range boundary falls between them.
    """

    def __init__(self) -> None:
        self.payload_bytes = 0
        self._held: dict[SenderSlot, list[tuple[int, PackedMessages]]] = {}
        """By sender slot: pairs of the first message's number and the messages, ascending and without overlap."""

    def put(self, sender_slot: SenderSlot, first: int, messages: PackedMessages) -> bool:
        """Store messages that are not stored already. True if any are new."""
        held = self._held.setdefault(sender_slot, [])
        if not held or first >= held[-1][0] + held[-1][1].count:  # the usual case
            held.append((first, messages))
            self.payload_bytes += messages.payload_bytes
            return True
        new = [(first, messages)]
        for start, stored in held:
            new = [rest for part in new for rest in _without_range(part, start, start + stored.count)]
        held.extend(new)
        held.sort(key=lambda part: part[0])
        self.payload_bytes += sum(part.payload_bytes for _, part in new)
        return bool(new)

    def ranges(self, sender_slot: SenderSlot) -> tuple[SequenceRange, ...]:
        """The numbers of the stored messages of a sender slot, as ranges; adjacent ranges are joined."""
        joined: list[SequenceRange] = []
        for first, messages in self._held.get(sender_slot, ()):
            last = first + messages.count - 1
            if joined and joined[-1][1] + 1 == first:
                joined[-1] = (joined[-1][0], last)
            else:
                joined.append((first, last))
        return tuple(joined)

    def packed_messages(self, message_range: MessageRange) -> list[PackedMessages] | None:
        """The messages of a range, or None if one of them is missing."""
        found: list[PackedMessages] = []
        at, end = message_range.first, message_range.first + message_range.length
        for first, messages in self._held.get(message_range.sender_slot, ()):
            stop = first + messages.count
            if stop <= at:
                continue
            if first > at or at == end:
                break
            part_end = min(end, stop)
            is_whole = first == at and stop == part_end
            found.append(
                messages if is_whole else RemainingMessages(messages.messages()[at - first : part_end - first])
            )
            at = part_end
        return found if at == end else None

    def drop(self, message_range: MessageRange) -> None:
        """Remove the stored messages of a message range."""
        held = self._held.pop(message_range.sender_slot, [])
        first, end = message_range.first, message_range.first + message_range.length
        kept = [rest for part in held for rest in _without_range(part, first, end)]
        self.payload_bytes -= sum(part.payload_bytes for _, part in held) - sum(part.payload_bytes for _, part in kept)
        if kept:
            self._held[message_range.sender_slot] = kept


def _without_range(held: tuple[int, PackedMessages], first: int, end: int) -> list[tuple[int, PackedMessages]]:
    """The held messages with numbers below `first` and those from `end` on."""
    start, packed = held
    stop = start + packed.count
    if stop <= first or end <= start:
        return [held]
    messages = packed.messages()
    parts: list[tuple[int, PackedMessages]] = []
    if start < first:
        parts.append((start, RemainingMessages(messages[: first - start])))
    if end < stop:
        parts.append((end, RemainingMessages(messages[end - start :])))
    return parts
