"""Recovery of missing messages: requesting them from members that hold them, answering, and reassembling long ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from unisono.agreement.failure_detector import retry_interval_ns
from unisono.model.events import PackedMessages, RemainingMessages
from unisono.model.message_set import MessageRange, MessageSet, SenderSlot, SequenceRange
from unisono.model.policy import Policy
from unisono.orders.final.agreement import AgreedRange, FinalLog, MemberReports, MessageStore
from unisono.orders.final.messages import (
    LENGTH_BYTES,
    MESSAGE_RANGE_BYTES,
    RECOVERY_REPLY_BYTES,
    FinalsMessage,
    RecoveryReply,
    RecoveryRequest,
    decode_messages,
    encode_messages,
)
from unisono.wire.codec import Unreadable
from unisono.wire.frame import HEADER_BYTES

REPLY_FRAMES_MAX = 64
"""Answer one request with at most this many frames, and the rest of the last message."""
REQUESTED_MAX = 256
"""Request at most this many message ranges at a time."""
PARTIAL_MAX = 64
"""Keep at most this many incomplete long messages."""

SendFunction = Callable[[int, FinalsMessage, int], None]


class Recovery:
    """One member's requests for missing messages, and its replies to the requests of others."""

    def __init__(self, policy: Policy, store: MessageStore, log: FinalLog, send: SendFunction) -> None:
        self._me = policy.member
        self._store = store
        self._log = log
        self._send = send
        self._retry_ns = retry_interval_ns(policy.timing)
        self._max_body_bytes = policy.max_frame - HEADER_BYTES
        self._requested: dict[MessageRange, tuple[int, int]] = {}
        """By requested range: when to ask again, and the member that was asked last."""
        self._partial: dict[tuple[int, int, int, int], dict[int, bytes]] = {}
        """By (replying member, sender, incarnation, number), the parts of a long message by offset."""
        self._dropped_by: dict[SenderSlot, dict[int, None]] = {}
        """By sender slot, the members that replied that they have dropped its messages."""

    def retry_at(self) -> int | None:
        """When the first recovery request has to be repeated; None if no request is open."""
        return min((at for at, _ in self._requested.values()), default=None)

    def overdue(self, now: int) -> bool:
        """Whether a recovery request has not been answered in time."""
        due = self.retry_at()
        return due is not None and now >= due

    def is_unrecoverable(self, message_range: MessageRange, majority: int) -> bool:
        """Whether a majority has replied that it dropped these messages."""
        return len(self._dropped_by.get(message_range.sender_slot, {})) >= majority

    # -- requesting ------------------------------------------------------------------------------------------

    def request_missing(
        self, now: int, agreed: Iterable[AgreedRange], reports: MemberReports, peers: Sequence[int], done_slot: int
    ) -> None:
        """Request the missing messages of agreed ranges, and those that a peer holds in a slot that is done here.

        Each range is requested from one holder, and after the retry time from the next one.
        """
        missing: dict[MessageRange, list[int]] = {}
        for one in agreed:
            if len(missing) >= REQUESTED_MAX:
                break
            for message_range in self._missing_here(one.message_range):
                holders = list(reports.holders(message_range.sender_slot, peers))
                # Without a known holder, try the sender first and then all others.
                missing[message_range] = holders or sorted(peers, key=lambda peer: peer != message_range.sender)
        for peer in peers:
            report = reports.by_member.get(peer)
            for sender_slot, ranges in report.held_ranges.items() if report is not None else ():
                if len(missing) >= REQUESTED_MAX or sender_slot[0] > done_slot:
                    break
                if self._store.ranges(sender_slot) != ranges:
                    for message_range in self._missing_and_not_final(sender_slot, ranges):
                        missing.setdefault(message_range, []).append(peer)
        self._request(now, missing)

    def _request(self, now: int, missing: dict[MessageRange, list[int]]) -> None:
        """Request each missing range from one of its holders, unless an earlier request may still be answered."""
        requests: dict[int, list[MessageRange]] = {}
        previous, self._requested = self._requested, {}
        for message_range, holders in missing.items():
            due, holder = previous.get(message_range, (0, 0))
            if now >= due and holders:
                holder = holders[(holders.index(holder) + 1) % len(holders)] if holder in holders else holders[0]
                due = now + self._retry_ns
                requests.setdefault(holder, []).append(message_range)
            if holders:
                self._requested[message_range] = (due, holder)
        ranges_per_frame = self._max_body_bytes // MESSAGE_RANGE_BYTES
        for holder, message_ranges in sorted(requests.items()):
            for at in range(0, len(message_ranges), ranges_per_frame):
                self._send(now, RecoveryRequest(tuple(message_ranges[at : at + ranges_per_frame])), holder)

    def _missing_and_not_final(self, sender_slot: SenderSlot, ranges: Sequence[SequenceRange]) -> list[MessageRange]:
        """The parts of these ranges that are missing here and not final."""
        held_by_peer = [MessageRange(*sender_slot, first, last - first + 1) for first, last in ranges]
        return [
            open_range
            for held_range in held_by_peer
            for missing in self._missing_here(held_range)
            for open_range in self._log.not_yet_final(missing)
        ]

    def _missing_here(self, message_range: MessageRange) -> list[MessageRange]:
        held = self._store.ranges(message_range.sender_slot)
        return message_range.without(MessageSet({message_range.origin: held})) if held else [message_range]

    # -- answering -------------------------------------------------------------------------------------------

    def answer(self, now: int, to: int, request: RecoveryRequest, was_dropped: Callable[[MessageRange], bool]) -> None:
        """Send the requested messages that are held here, or reply that they were dropped."""
        frames = 0
        for requested in request.message_ranges:
            held = self._store.ranges(requested.sender_slot)
            if not held and was_dropped(requested):
                self._send(now, RecoveryReply(requested, 0, 0, b""), to)
                continue
            for first, last in held:
                start, end = max(first, requested.first), min(last, requested.last)
                if start > end:
                    continue
                packed = self._store.packed_messages(MessageRange(*requested.sender_slot, start, end - start + 1))
                if packed is None:
                    continue
                messages = [message for part in packed for message in part.messages()]
                for reply in self._replies(requested.sender_slot, start, messages):
                    if frames >= REPLY_FRAMES_MAX and reply.offset == 0:
                        return
                    frames += 1
                    self._send(now, reply, to)

    def _replies(self, sender_slot: SenderSlot, first: int, messages: list[bytes]) -> Iterator[RecoveryReply]:
        """Put as many messages into a reply as fit; a message that is too long is sent in parts."""
        max_bytes, at = self._max_body_bytes - RECOVERY_REPLY_BYTES, 0
        while at < len(messages):
            end, size = at, 0
            while end < len(messages) and size + LENGTH_BYTES + len(messages[end]) <= max_bytes:
                size += LENGTH_BYTES + len(messages[end])
                end += 1
            if end == at:
                data = encode_messages(messages[at : at + 1])
                for offset in range(0, len(data), max_bytes):
                    yield RecoveryReply(
                        MessageRange(*sender_slot, first + at, 1), len(data), offset, data[offset : offset + max_bytes]
                    )
                at += 1
            else:
                data = encode_messages(messages[at:end])
                yield RecoveryReply(MessageRange(*sender_slot, first + at, end - at), len(data), 0, data)
                at = end

    def receive(self, sender: int, reply: RecoveryReply) -> list[tuple[SenderSlot, int, PackedMessages]]:
        """Receive a reply. Returns the messages that are complete now, as (sender slot, first number, messages)."""
        message_range = reply.message_range
        if reply.total_bytes == 0:
            self._dropped_by.setdefault(message_range.sender_slot, {})[sender] = None
            return []
        self._dropped_by.pop(message_range.sender_slot, None)
        data = reply.data
        if len(data) < reply.total_bytes:
            key = (sender, message_range.sender, message_range.incarnation, message_range.first)
            if key not in self._partial and len(self._partial) >= PARTIAL_MAX:
                self._partial.pop(next(iter(self._partial)))
            parts = self._partial.setdefault(key, {})
            parts[reply.offset] = reply.data
            if sum(map(len, parts.values())) < reply.total_bytes:
                return []
            data = b"".join(parts[offset] for offset in sorted(self._partial.pop(key)))
        try:
            messages = decode_messages(data, message_range.length)
        except Unreadable:
            return []
        return [(message_range.sender_slot, message_range.first, RemainingMessages(messages))]
