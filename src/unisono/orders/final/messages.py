"""What members say to one another so that deliveries become final: what each holds, what it lacks, what it gives.

And the values of the log that they agree on, with the state that stands for a prefix of it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, assert_never

from unisono.model.message_range import MessageRange
from unisono.model.message_set import NO_MESSAGES, MessageSet
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
"""What a given message has before it."""
ALL_SLOTS_DONE = _LIMIT - 1
"""Done up to here is who delivers nothing early any more."""


@dataclass(frozen=True, slots=True)
class Holdings:
    """Of slots up to `upto` its sender will deliver nothing more early, and of what is not final in them it holds
    exactly these messages, and those in the other parts of the report. It has finally delivered the log up to `known`.

    The frame's number says which part this is, its burst of how many.
    """

    done_slot: int
    delivered_instance: int
    message_ranges: tuple[MessageRange, ...]


@dataclass(frozen=True, slots=True)
class RecoveryRequest:
    """Its sender lacks these."""

    message_ranges: tuple[MessageRange, ...]


@dataclass(frozen=True, slots=True)
class RecoveryReply:
    """Messages, or a part of one message; `total` 0 says that they were final and are not kept any more."""

    message_range: MessageRange
    total_bytes: int
    offset: int
    data: bytes


FinalsMessage: TypeAlias = Holdings | RecoveryRequest | RecoveryReply


def encode(message: FinalsMessage) -> tuple[Kind, bytes]:
    """A frame's kind and body."""
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
    return b"".join(_MESSAGE_RANGE.pack(*extent) for extent in message_ranges)


def _decode_ranges(data: bytes, at: int) -> tuple[MessageRange, ...] | None:
    """All that follows, if each is possible."""
    if (len(data) - at) % MESSAGE_RANGE_BYTES:
        return None
    extents = tuple(map(MessageRange._make, _MESSAGE_RANGE.iter_unpack(data[at:])))
    return extents if all(map(_is_valid, extents)) else None


def _is_valid(message_range: MessageRange) -> bool:
    return (
        message_range.slot < _LIMIT
        and message_range.length > 0
        and message_range.first + message_range.length <= _LIMIT
    )


def decode_holdings(data: bytes) -> Holdings | None:
    """What a member holds, or None if it is malformed."""
    if len(data) < HOLDINGS_BYTES:
        return None
    upto, known = _HOLDINGS.unpack_from(data)
    extents = _decode_ranges(data, HOLDINGS_BYTES)
    if extents is None or max(upto, known) >= _LIMIT or any(extent.slot > upto for extent in extents):
        return None
    return Holdings(upto, known, extents)


def decode_recovery_request(data: bytes) -> RecoveryRequest | None:
    """What a member lacks, or None if it is malformed."""
    extents = _decode_ranges(data, 0)
    return RecoveryRequest(extents) if extents else None


def decode_recovery_reply(data: bytes) -> RecoveryReply | None:
    """What a member gives, or None if it is malformed."""
    if len(data) < RECOVERY_REPLY_BYTES:
        return None
    extent = MessageRange._make(_MESSAGE_RANGE.unpack_from(data))
    total, offset = _PART.unpack_from(data, MESSAGE_RANGE_BYTES)
    part = data[RECOVERY_REPLY_BYTES:]
    whole = offset == 0 and len(part) == total
    if not _is_valid(extent) or offset + len(part) > total or (extent.length > 1 and not whole):
        return None
    if total and not part:
        return None
    return RecoveryReply(extent, total, offset, part)


DECODERS: Mapping[Kind, Callable[[bytes], FinalsMessage | None]] = {
    Kind.FINAL_REPORT: decode_holdings,
    Kind.FINAL_REQUEST: decode_recovery_request,
    Kind.FINAL_ANSWER: decode_recovery_reply,
}
register_control(DECODERS)


def encode_messages(messages: Sequence[bytes]) -> bytes:
    """What a Give carries: messages, each with its length before it."""
    return b"".join(piece for message in messages for piece in (_LENGTH.pack(len(message)), message))


def decode_messages(data: bytes, count: int) -> list[bytes] | None:
    """The messages, or None if there are not so many."""
    messages: list[bytes] = []
    at = 0
    while at + LENGTH_BYTES <= len(data) and len(messages) < count:
        end = at + LENGTH_BYTES + _LENGTH.unpack_from(data, at)[0]
        messages.append(data[at + LENGTH_BYTES : end])
        at = end
    return messages if at == len(data) and len(messages) == count else None


@dataclass(frozen=True, slots=True)
class FinalLogValue:
    """A value of the log: who takes part from here on, by member its life, and what is final next."""

    new_participants: Mapping[int, int] = field(default_factory=dict)
    message_ranges: tuple[MessageRange, ...] = ()


def encode_value(value: FinalLogValue) -> bytes:
    """A value of the log as bytes."""
    lives = b"".join(_INCARNATION.pack(*entry) for entry in sorted(value.new_participants.items()))
    return _COUNT.pack(len(value.new_participants)) + lives + _encode_ranges(value.message_ranges)


def decode_value(data: bytes) -> FinalLogValue | None:
    """The value, or None if it is not one of this log."""
    if len(data) < COUNT_BYTES:
        return None
    end = COUNT_BYTES + _COUNT.unpack_from(data)[0] * INCARNATION_BYTES
    if end > len(data):
        return None
    entering = dict(_INCARNATION.iter_unpack(data[COUNT_BYTES:end]))
    extents = _decode_ranges(data, end)
    return None if extents is None else FinalLogValue(entering, extents)


@dataclass(frozen=True, slots=True)
class FinalLogState:
    """What stands for a prefix of the log: how many messages are final, in which slot it is, who takes part in which
    life, what is final, and up to which life of each sender everything counts as if it were."""

    message_count: int = 0
    slot: int = 0
    participants: Mapping[int, int] = field(default_factory=dict)
    final: MessageSet = NO_MESSAGES
    closed_incarnations: Mapping[int, int] = field(default_factory=dict)


def encode_state(state: FinalLogState) -> bytes:
    """A log's state as bytes."""
    parts = [_STATE.pack(state.message_count, state.slot)]
    for lives in (state.participants, state.closed_incarnations):
        parts.append(_COUNT.pack(len(lives)))
        parts += [_INCARNATION.pack(*entry) for entry in sorted(lives.items())]
    return b"".join((*parts, encode_set(state.final)))


def decode_state(data: bytes) -> FinalLogState | None:
    """The state, or None if it is malformed."""
    reader = Reader(data)
    try:
        messages, slot = reader.unpack(_STATE)
        maps: list[dict[int, int]] = []
        for _ in range(2):
            (count,) = reader.unpack(_COUNT)
            pairs = [reader.unpack(_INCARNATION) for _ in range(count)]
            maps.append({pair[0]: pair[1] for pair in pairs})
        final = reader.read_message_set()
        reader.expect_end()
    except Unreadable:
        return None
    return FinalLogState(messages, slot, maps[0], final, maps[1])
