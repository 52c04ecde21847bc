"""Wire form of final deliveries: reports of held messages, recovery requests and replies.

Also the values of the log that the members agree on, and the snapshot that replaces a prefix of that log.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from unisono.model.message_set import NO_MESSAGES, MessageRange, MessageSet
from unisono.wire.codec import (
    SEQUENCE_LIMIT,
    AnySpec,
    Bytes,
    Counted,
    Mapped,
    Messages,
    Part,
    Spec,
    Unreadable,
    count,
    raw,
    register,
    u32,
    u63,
    u64,
)
from unisono.wire.frame import Kind

_MESSAGE_RANGE = struct.Struct("!QHIQI")
_LENGTH = struct.Struct("!I")
MESSAGE_RANGE_BYTES = _MESSAGE_RANGE.size
INCARNATION_BYTES = struct.calcsize("!HI")
LENGTH_BYTES = _LENGTH.size
"""The size of the length field that stands before each message in a recovery reply."""
ALL_SLOTS_DONE = SEQUENCE_LIMIT - 1
"""The done slot of a member whose inner order has left: it delivers nothing early any more."""


@dataclass(frozen=True, slots=True)
class Holdings:
    """One part of a member's report. In its frame, `number` is the number of this part and `burst` counts all parts."""

    done_slot: int
    """The sender will deliver nothing more early in slots up to this one."""
    delivered_instance: int
    """The sender has finally delivered the log up to this instance."""
    message_ranges: tuple[MessageRange, ...]
    """All messages that the sender holds in slots up to `done_slot` and that are not final, together with the ranges
    in the other parts."""


@dataclass(frozen=True, slots=True)
class RecoveryRequest:
    """Asks a member for messages that the sender of this request lacks."""

    message_ranges: tuple[MessageRange, ...]


@dataclass(frozen=True, slots=True)
class RecoveryReply:
    """Answers a recovery request with messages, or with a part of one message.

    With `total_bytes` 0 it says that the replying member has delivered the messages finally and dropped them.
    """

    message_range: MessageRange
    total_bytes: int
    offset: int
    data: bytes


FinalsMessage: TypeAlias = Holdings | RecoveryRequest | RecoveryReply


def _is_possible(message_range: MessageRange) -> bool:
    return (
        message_range.slot < SEQUENCE_LIMIT
        and message_range.length > 0
        and message_range.first + message_range.length <= SEQUENCE_LIMIT
    )


def _impossible_text(message_range: MessageRange) -> str:
    return f"a message range needs a slot and numbers below 2**63, and at least one message; found {message_range}"


def _read_range(data: bytes) -> MessageRange:
    message_range = MessageRange._make(_MESSAGE_RANGE.unpack(data))
    if not _is_possible(message_range):
        raise Unreadable(_impossible_text(message_range))
    return message_range


class _Ranges(Part):
    """A message field that holds message ranges and takes the rest of the bytes.

    A report can hold hundreds of them, so struct reads them all in one call.
    """

    def encode(self, value: Sequence[MessageRange]) -> bytes:
        return b"".join([_MESSAGE_RANGE.pack(*message_range) for message_range in value])

    def decode(self, body: bytes, at: int, items: int | None) -> tuple[tuple[MessageRange, ...], int]:
        if (len(body) - at) % MESSAGE_RANGE_BYTES:
            raise Unreadable(
                f"field {self.name}: expected message ranges of {MESSAGE_RANGE_BYTES} bytes each, "
                f"but {len(body) - at} bytes remain, which is no multiple"
            )
        message_ranges = tuple(map(MessageRange._make, _MESSAGE_RANGE.iter_unpack(body[at:])))
        if not all(map(_is_possible, message_ranges)):
            impossible = next(each for each in message_ranges if not _is_possible(each))
            raise Unreadable(f"field {self.name}: {_impossible_text(impossible)}")
        return message_ranges, len(body)


def _reply_is_consistent(reply: RecoveryReply) -> bool:
    """Whether the data of a recovery reply lies within `total_bytes`, and fills them if it is several messages."""
    size = len(reply.data)
    if reply.message_range.length > 1:
        return reply.offset == 0 and size == reply.total_bytes
    return reply.offset + size <= reply.total_bytes and (size > 0 or not reply.total_bytes)


_HOLDINGS = Spec(
    Holdings,
    u63("done_slot"),
    u63("delivered_instance"),
    _Ranges("message_ranges"),
    check=lambda holdings: all(each.slot <= holdings.done_slot for each in holdings.message_ranges),
)
_RECOVERY_REPLY = Spec(
    RecoveryReply,
    raw("message_range", MESSAGE_RANGE_BYTES, _read_range, lambda each: _MESSAGE_RANGE.pack(*each)),
    u32("total_bytes"),
    u32("offset"),
    Bytes("data"),
    check=_reply_is_consistent,
)
SPECS: Final[Mapping[Kind, AnySpec]] = {
    Kind.FINAL_REPORT: _HOLDINGS,
    Kind.FINAL_REQUEST: Spec(
        RecoveryRequest, _Ranges("message_ranges"), check=lambda request: len(request.message_ranges) > 0
    ),
    Kind.FINAL_ANSWER: _RECOVERY_REPLY,
}
register(SPECS)
HOLDINGS_BYTES = _HOLDINGS.size
RECOVERY_REPLY_BYTES = _RECOVERY_REPLY.size


def encode_messages(messages: Sequence[bytes]) -> bytes:
    """The data of a recovery reply: messages, each after its length."""
    return b"".join(part for message in messages for part in (_LENGTH.pack(len(message)), message))


def decode_messages(data: bytes, number: int) -> list[bytes]:
    """The messages of a recovery reply; raises Unreadable if their number is not `number`."""
    messages: list[bytes] = []
    at = 0
    while at + LENGTH_BYTES <= len(data) and len(messages) < number:
        end = at + LENGTH_BYTES + _LENGTH.unpack_from(data, at)[0]
        messages.append(data[at + LENGTH_BYTES : end])
        at = end
    if at != len(data) or len(messages) != number:
        raise Unreadable(
            f"a recovery reply needs {number} messages in {len(data)} bytes, found {len(messages)} in {at} bytes"
        )
    return messages


@dataclass(frozen=True, slots=True)
class FinalLogValue:
    """A value of the log: the messages that become final next, and members that take part from here on."""

    new_participants: Mapping[int, int] = field(default_factory=dict)
    """The members that take part from here on, each with its incarnation."""
    message_ranges: tuple[MessageRange, ...] = ()


_VALUE = Spec(FinalLogValue, count("new_participants"), Mapped("new_participants", "HI"), _Ranges("message_ranges"))
COUNT_BYTES = _VALUE.size


def encode_value(value: FinalLogValue) -> bytes:
    """Encode a value of the final log as bytes."""
    return _VALUE.encode(value)


def decode_value(data: bytes) -> FinalLogValue:
    """Decode a value of the final log; raises Unreadable if it is malformed."""
    return _VALUE.decode(data)


@dataclass(frozen=True, slots=True)
class FinalLogState:
    """A snapshot that replaces the first part of the final log."""

    message_count: int = 0
    """How many messages are final."""
    slot: int = 0
    """The slot of the last final message."""
    participants: Mapping[int, int] = field(default_factory=dict)
    """By member, the incarnation in which it takes part."""
    final: MessageSet = NO_MESSAGES
    closed_incarnations: Mapping[int, int] = field(default_factory=dict)
    """By sender, its last incarnation that is too old for anything of it to become final."""


_STATE = Spec(
    FinalLogState,
    u64("message_count"),
    u64("slot"),
    Counted(Mapped("participants", "HI")),
    Counted(Mapped("closed_incarnations", "HI")),
    Messages("final"),
)


def encode_state(state: FinalLogState) -> bytes:
    """Encode a snapshot of the final log as bytes."""
    return _STATE.encode(state)


def decode_state(data: bytes) -> FinalLogState:
    """Decode a snapshot of the final log; raises Unreadable if it is malformed."""
    return _STATE.decode(data)
