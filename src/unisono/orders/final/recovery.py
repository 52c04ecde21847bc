"""Recovering messages that somebody else holds: asking for them, giving them, and putting parts together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from unisono.agreement.membership.from_policy import retry_interval_ns
from unisono.model.events import PackedMessages
from unisono.model.message_range import MessageRange, SenderSlot
from unisono.model.message_set import MessageSet, SequenceRange
from unisono.model.policy import Policy
from unisono.model.remaining import RemainingMessages
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
from unisono.wire.frame import HEADER_BYTES

REPLY_FRAMES_MAX = 64
"""So many frames answer one request, beyond the last message's."""
REQUESTED_MAX = 256
"""So much is asked for at a time."""
PARTIAL_MAX = 64
"""So many long messages may be under way to this member in parts."""

SendFunction = Callable[[int, FinalsMessage, int], None]


class Recovery:
    """One member's side of it."""

    def __init__(self, policy: Policy, store: MessageStore, log: FinalLog, send: SendFunction) -> None:
        self._me = policy.member
        self._store = store
        self._log = log
        self._send = send
        self._retry_ns = retry_interval_ns(policy.timing)
        self._max_body_bytes = policy.max_frame - HEADER_BYTES
        self._requested: dict[MessageRange, tuple[int, int]] = {}
        """What was asked for: when, and whom."""
        self._partial: dict[tuple[int, int, int, int], dict[int, bytes]] = {}
        """By giver and message, what has come of it."""
        self._dropped_by: dict[SenderSlot, dict[int, None]] = {}
        """Who has said that it keeps a cell's messages no longer."""

    def retry_at(self) -> int | None:
        """When to ask again."""
        return min((at for at, _ in self._requested.values()), default=None)

    def overdue(self, now: int) -> bool:
        """Whether somebody has not answered."""
        due = self.retry_at()
        return due is not None and now >= due

    def is_unrecoverable(self, message_range: MessageRange, majority: int) -> bool:
        """Whether a majority had this and keeps it no longer."""
        return len(self._dropped_by.get(message_range.sender_slot, {})) >= majority

    # -- asking ------------------------------------------------------------------------------------------------

    def request_missing(
        self, now: int, agreed: Iterable[AgreedRange], reports: MemberReports, peers: Sequence[int], done_slot: int
    ) -> None:
        """Request what is missing here: of what has its place, and of what a peer holds in a slot that is over."""
        missing: dict[MessageRange, list[int]] = {}
        for one in agreed:
            if len(missing) >= REQUESTED_MAX:
                break
            for extent in self._missing_here(one.message_range):
                holders = list(reports.holders(extent.sender_slot, peers))
                missing[extent] = holders or [extent.sender] * (extent.sender in peers) + [
                    peer for peer in peers if peer != extent.sender
                ]
        for peer in peers:
            report = reports.by_member.get(peer)
            for cell, ranges in report.held_ranges.items() if report is not None else ():
                if len(missing) >= REQUESTED_MAX or cell[0] > done_slot:
                    break
                if self._store.ranges(cell) != ranges:
                    for extent in self._missing_and_not_final(cell, ranges):
                        missing.setdefault(extent, []).append(peer)
        wants: dict[int, list[MessageRange]] = {}
        asked, self._requested = self._requested, {}
        for extent, holders in missing.items():
            due, whom = asked.get(extent, (0, 0))
            if now >= due and holders:
                whom = holders[(holders.index(whom) + 1) % len(holders)] if whom in holders else holders[0]
                due = now + self._retry_ns
                wants.setdefault(whom, []).append(extent)
            if holders:
                self._requested[extent] = (due, whom)
        at_once = self._max_body_bytes // MESSAGE_RANGE_BYTES
        for whom, extents in sorted(wants.items()):
            for at in range(0, len(extents), at_once):
                self._send(now, RecoveryRequest(tuple(extents[at : at + at_once])), whom)

    def _missing_and_not_final(self, sender_slot: SenderSlot, ranges: Sequence[SequenceRange]) -> list[MessageRange]:
        """What of these is missing here and not final."""
        there = [MessageRange(*sender_slot, first, last - first + 1) for first, last in ranges]
        return [
            extent for one in there for lacked in self._missing_here(one) for extent in self._log.not_yet_final(lacked)
        ]

    def _missing_here(self, message_range: MessageRange) -> list[MessageRange]:
        held = self._store.ranges(message_range.sender_slot)
        return message_range.without(MessageSet({message_range.origin: held})) if held else [message_range]

    # -- giving ------------------------------------------------------------------------------------------------

    def answer(self, now: int, to: int, request: RecoveryRequest, was_dropped: Callable[[MessageRange], bool]) -> None:
        """Somebody lacks messages: as much of them as is here, or the word that they are forgotten."""
        frames = 0
        for extent in request.message_ranges:
            held = self._store.ranges(extent.sender_slot)
            if not held and was_dropped(extent):
                self._send(now, RecoveryReply(extent, 0, 0, b""), to)
                continue
            for first, last in held:
                start, end = max(first, extent.first), min(last, extent.last)
                runs = (
                    self._store.packed_messages(MessageRange(*extent.sender_slot, start, end - start + 1))
                    if start <= end
                    else None
                )
                if runs is None:
                    continue
                for give in self._replies(extent.sender_slot, start, [m for run in runs for m in run.messages()]):
                    if frames >= REPLY_FRAMES_MAX and give.offset == 0:
                        return
                    frames += 1
                    self._send(now, give, to)

    def _replies(self, sender_slot: SenderSlot, first: int, messages: list[bytes]) -> Iterator[RecoveryReply]:
        """As many messages to a frame as fit; one that does not fit goes in parts."""
        room, at = self._max_body_bytes - RECOVERY_REPLY_BYTES, 0
        while at < len(messages):
            end, size = at, 0
            while end < len(messages) and size + LENGTH_BYTES + len(messages[end]) <= room:
                size += LENGTH_BYTES + len(messages[end])
                end += 1
            if end == at:
                data = encode_messages(messages[at : at + 1])
                for offset in range(0, len(data), room):
                    yield RecoveryReply(
                        MessageRange(*sender_slot, first + at, 1), len(data), offset, data[offset : offset + room]
                    )
                at += 1
            else:
                data = encode_messages(messages[at:end])
                yield RecoveryReply(MessageRange(*sender_slot, first + at, end - at), len(data), 0, data)
                at = end

    def receive(self, sender: int, reply: RecoveryReply) -> list[tuple[SenderSlot, int, PackedMessages]]:
        """Messages have come, or a part of one; what is whole now."""
        extent = reply.message_range
        if reply.total_bytes == 0:
            self._dropped_by.setdefault(extent.sender_slot, {})[sender] = None
            return []
        self._dropped_by.pop(extent.sender_slot, None)
        data = reply.data
        if len(data) < reply.total_bytes:
            name = (sender, extent.sender, extent.incarnation, extent.first)
            if name not in self._partial and len(self._partial) >= PARTIAL_MAX:
                self._partial.pop(next(iter(self._partial)))
            parts = self._partial.setdefault(name, {})
            parts[reply.offset] = reply.data
            if sum(map(len, parts.values())) < reply.total_bytes:
                return []
            data = b"".join(parts[offset] for offset in sorted(self._partial.pop(name)))
        messages = decode_messages(data, extent.length)
        return [] if messages is None else [(extent.sender_slot, extent.first, RemainingMessages(messages))]
