"""Wire form of final deliveries: reports of held messages, recovery requests and replies.

Also the values of the log that the members agree on, and the snapshot that replaces a prefix of that log. The decoders
return None for malformed bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, assert_never

from unisono.model.message_set import NO_MESSAGES, MessageRange, MessageSet
from unisono.wire.codec import Reader, Unreadable, encode_set
from unisono.wire.door import register_control
from unisono.wire.frame import Kind

_LIMIT = 2**63
_HOLDINGS = struct.Struct("!QQ")
_MESSAGE_RANGE = struct.Struct("!QHIQI")
_PART = struct.Struct("!II")
_LENGTH = struct.Struct("!I")
_COUNT = struct.Struct("!H")
_INCARNATION = struct.Struct("!HI")
_STATE = struct.Struct("!QQ")
HOLDINGS_BYTES, MESSAGE_RANGE_BYTES, INCARNATION_BYTES, COUNT_BYTES = (
    _HOLDINGS.size,
    _MESSAGE_RANGE.size,
    _INCARNATION.size,
    _COUNT.size,
)
RECOVERY_REPLY_BYTES = _MESSAGE_RANGE.size + _PART.size
LENGTH_BYTES = _LENGTH.size
"""Each message in a recovery reply starts with its length."""
ALL_SLOTS_DONE = _LIMIT - 1
"""The done slot of a member whose inner order has left: it delivers nothing early any more."""


@dataclass(frozen=True, slots=True)
class Holdings:
    """One part of a member's report. The frame's number is the number of the part, its burst the number of parts."""

    done_slot: int
    """The sender will deliver nothing more early in slots up to this one."""
    delivered_instance: int
    """The sender has finally delivered the log up to this instance."""
    message_ranges: tuple[MessageRange, ...]
    """All messages that the sender holds in slots up to `done_slot` and that are not final, together with the ranges
    in the other parts."""


@dataclass(frozen=True, slots=True)
class RecoveryRequest:
    """Asks for messages that the sender lacks."""

    message_ranges: tuple[MessageRange, ...]


@dataclass(frozen=True, slots=True)
class RecoveryReply:
    """Messages, or a part of one message. With `total_bytes` 0: they were final here and are dropped."""

    message_range: MessageRange
    total_bytes: int
    offset: int
    data: bytes


FinalsMessage: TypeAlias = Holdings | RecoveryRequest | RecoveryReply


def encode(message: FinalsMessage) -> tuple[Kind, bytes]:
    """The kind and the body of the frame for a message."""
    match message:
        case Holdings():
            return Kind.FINAL_REPORT, _HOLDINGS.pack(message.done_slot, message.delivered_instance) + _encode_ranges(
                message.message_ranges
            )
        case RecoveryRequest():
            return Kind.FINAL_REQUEST, _encode_ranges(message.message_ranges)
        case RecoveryReply():
            return Kind.FINAL_ANSWER, _MESSAGE_RANGE.pack(*message.message_range) + _PART.pack(
                message.total_bytes, message.offset
            ) + message.data
        case _:
            assert_never(message)


def _encode_ranges(message_ranges: Sequence[MessageRange]) -> bytes:
    return b"".join(_MESSAGE_RANGE.pack(*message_range) for message_range in message_ranges)


def _decode_ranges(data: bytes, at: int) -> tuple[MessageRange, ...] | None:
    """The ranges from offset `at` to the end, or None if one of them is impossible."""
    if (len(data) - at) % MESSAGE_RANGE_BYTES:
        return None
    message_ranges = tuple(map(MessageRange._make, _MESSAGE_RANGE.iter_unpack(data[at:])))
    return message_ranges if all(map(_is_valid, message_ranges)) else None


def _is_valid(message_range: MessageRange) -> bool:
    return (
        message_range.slot < _LIMIT
        and message_range.length > 0
        and message_range.first + message_range.length <= _LIMIT
    )


def decode_holdings(data: bytes) -> Holdings | None:
    """A part of a report, or None if it is malformed."""
    if len(data) < HOLDINGS_BYTES:
        return None
    done_slot, delivered_instance = _HOLDINGS.unpack_from(data)
    message_ranges = _decode_ranges(data, HOLDINGS_BYTES)
    if message_ranges is None or max(done_slot, delivered_instance) >= _LIMIT:
        return None
    if any(message_range.slot > done_slot for message_range in message_ranges):
        return None
    return Holdings(done_slot, delivered_instance, message_ranges)


def decode_recovery_request(data: bytes) -> RecoveryRequest | None:
    """A recovery request, or None if it is malformed."""
    message_ranges = _decode_ranges(data, 0)
    return RecoveryRequest(message_ranges) if message_ranges else None


def decode_recovery_reply(data: bytes) -> RecoveryReply | None:
    """A recovery reply, or None if it is malformed."""
    if len(data) < RECOVERY_REPLY_BYTES:
        return None
    message_range = MessageRange._make(_MESSAGE_RANGE.unpack_from(data))
    total_bytes, offset = _PART.unpack_from(data, MESSAGE_RANGE_BYTES)
    part = data[RECOVERY_REPLY_BYTES:]
    is_whole = offset == 0 and len(part) == total_bytes
    if not _is_valid(message_range) or offset + len(part) > total_bytes or (message_range.length > 1 and not is_whole):
        return None
    if total_bytes and not part:
        return None
    return RecoveryReply(message_range, total_bytes, offset, part)


DECODERS: Mapping[Kind, Callable[[bytes], FinalsMessage | None]] = {
    Kind.FINAL_REPORT: decode_holdings,
    Kind.FINAL_REQUEST: decode_recovery_request,
    Kind.FINAL_ANSWER: decode_recovery_reply,
}
register_control(DECODERS)


def encode_messages(messages: Sequence[bytes]) -> bytes:
    """The data of a recovery reply: messages, each after its length."""
    return b"".join(part for message in messages for part in (_LENGTH.pack(len(message)), message))


def decode_messages(data: bytes, count: int) -> list[bytes] | None:
    """The messages, or None if their number is not `count`."""
    messages: list[bytes] = []
    at = 0
    while at + LENGTH_BYTES <= len(data) and len(messages) < count:
        end = at + LENGTH_BYTES + _LENGTH.unpack_from(data, at)[0]
        messages.append(data[at + LENGTH_BYTES : end])
        at = end
    return messages if at == len(data) and len(messages) == count else None


@dataclass(frozen=True, slots=True)
class FinalLogValue:
    """A value of the log: the messages that become final next, and members that take part from here on."""

    new_participants: Mapping[int, int] = field(default_factory=dict)
    """By member, its incarnation."""
    message_ranges: tuple[MessageRange, ...] = ()


def encode_value(value: FinalLogValue) -> bytes:
    """The value as bytes."""
    incarnations = b"".join(_INCARNATION.pack(*entry) for entry in sorted(value.new_participants.items()))
    return _COUNT.pack(len(value.new_participants)) + incarnations + _encode_ranges(value.message_ranges)


def decode_value(data: bytes) -> FinalLogValue | None:
    """The value, or None if it is malformed."""
    if len(data) < COUNT_BYTES:
        return None
    end = COUNT_BYTES + _COUNT.unpack_from(data)[0] * INCARNATION_BYTES
    if end > len(data):
        return None
    new_participants = dict(_INCARNATION.iter_unpack(data[COUNT_BYTES:end]))
    message_ranges = _decode_ranges(data, end)
    return None if message_ranges is None else FinalLogValue(new_participants, message_ranges)


@dataclass(frozen=True, slots=True)
class FinalLogState:
    """A snapshot that replaces a prefix of the log."""

    message_count: int = 0
    """How many messages are final."""
    slot: int = 0
    """The slot of the last final message."""
    participants: Mapping[int, int] = field(default_factory=dict)
    """By member, the incarnation in which it takes part."""
    final: MessageSet = NO_MESSAGES
    closed_incarnations: Mapping[int, int] = field(default_factory=dict)
    """By sender, its last incarnation that is too old for anything of it to become final."""


def encode_state(state: FinalLogState) -> bytes:
    """The snapshot as bytes."""
    parts = [_STATE.pack(state.message_count, state.slot)]
    for incarnations in (state.participants, state.closed_incarnations):
        parts.append(_COUNT.pack(len(incarnations)))
        parts += [_INCARNATION.pack(*entry) for entry in sorted(incarnations.items())]
    return b"".join((*parts, encode_set(state.final)))


def decode_state(data: bytes) -> FinalLogState | None:
    """The snapshot, or None if it is malformed."""
    reader = Reader(data)
    try:
        message_count, slot = reader.unpack(_STATE)
        incarnations: list[dict[int, int]] = []
        for _ in range(2):
            (count,) = reader.unpack(_COUNT)
            pairs = [reader.unpack(_INCARNATION) for _ in range(count)]
            incarnations.append({pair[0]: pair[1] for pair in pairs})
        final = reader.read_message_set()
        reader.expect_end()
    except Unreadable:
        return None
    return FinalLogState(message_count, slot, incarnations[0], final, incarnations[1])
