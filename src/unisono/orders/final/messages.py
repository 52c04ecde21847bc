"""What members say to one another so that deliveries become final: what each holds, what it lacks, what it gives.

And the values of the log that they agree on, with the state that stands for a prefix of it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, assert_never

from unisono.model.message_range import Extent
from unisono.model.message_set import NO_MESSAGES, MessageSet
from unisono.orders.priority.messages import Reader, Unreadable, encode_set
from unisono.wire.door import register_control
from unisono.wire.frame import Kind

_TOP = 2**63
_HOLDINGS = struct.Struct("!QQ")
_EXTENT = struct.Struct("!QHIQI")
_PART = struct.Struct("!II")
_LENGTH = struct.Struct("!I")
_COUNT = struct.Struct("!H")
_LIFE = struct.Struct("!HI")
_STATE = struct.Struct("!QQ")
HOLDINGS_BYTES, EXTENT_BYTES, LIFE_BYTES, COUNT_BYTES = _HOLDINGS.size, _EXTENT.size, _LIFE.size, _COUNT.size
GIVE_BYTES = _EXTENT.size + _PART.size
LENGTH_BYTES = _LENGTH.size
"""What a given message has before it."""
GONE = _TOP - 1
"""Done up to here is who delivers nothing early any more."""


@dataclass(frozen=True, slots=True)
class Holdings:
    """Of slots up to `upto` its sender will deliver nothing more early, and of what is not final in them it holds
    exactly these messages, and those in the other parts of the report. It has finally delivered the log up to `known`.

    The frame's number says which part this is, its burst of how many.
    """

    upto: int
    known: int
    extents: tuple[Extent, ...]


@dataclass(frozen=True, slots=True)
class Want:
    """Its sender lacks these."""

    extents: tuple[Extent, ...]


@dataclass(frozen=True, slots=True)
class Give:
    """Messages, or a part of one message; `total` 0 says that they were final and are not kept any more."""

    extent: Extent
    total: int
    offset: int
    part: bytes


Message: TypeAlias = Holdings | Want | Give


def encode(message: Message) -> tuple[Kind, bytes]:
    """A frame's kind and body."""
    match message:
        case Holdings():
            return Kind.HOLDINGS, _HOLDINGS.pack(message.upto, message.known) + _pack(message.extents)
        case Want():
            return Kind.WANT, _pack(message.extents)
        case Give():
            return Kind.GIVE, _EXTENT.pack(*message.extent) + _PART.pack(message.total, message.offset) + message.part
        case _:
            assert_never(message)


def _pack(extents: Sequence[Extent]) -> bytes:
    return b"".join(_EXTENT.pack(*extent) for extent in extents)


def _unpack(data: bytes, at: int) -> tuple[Extent, ...] | None:
    """All that follows, if each is possible."""
    if (len(data) - at) % EXTENT_BYTES:
        return None
    extents = tuple(map(Extent._make, _EXTENT.iter_unpack(data[at:])))
    return extents if all(map(_possible, extents)) else None


def _possible(extent: Extent) -> bool:
    return extent.slot < _TOP and extent.length > 0 and extent.first + extent.length <= _TOP


def decode_holdings(data: bytes) -> Holdings | None:
    """What a member holds, or None if it is malformed."""
    if len(data) < HOLDINGS_BYTES:
        return None
    upto, known = _HOLDINGS.unpack_from(data)
    extents = _unpack(data, HOLDINGS_BYTES)
    if extents is None or max(upto, known) >= _TOP or any(extent.slot > upto for extent in extents):
        return None
    return Holdings(upto, known, extents)


def decode_want(data: bytes) -> Want | None:
    """What a member lacks, or None if it is malformed."""
    extents = _unpack(data, 0)
    return Want(extents) if extents else None


def decode_give(data: bytes) -> Give | None:
    """What a member gives, or None if it is malformed."""
    if len(data) < GIVE_BYTES:
        return None
    extent = Extent._make(_EXTENT.unpack_from(data))
    total, offset = _PART.unpack_from(data, EXTENT_BYTES)
    part = data[GIVE_BYTES:]
    whole = offset == 0 and len(part) == total
    if not _possible(extent) or offset + len(part) > total or (extent.length > 1 and not whole):
        return None
    if total and not part:
        return None
    return Give(extent, total, offset, part)


DECODERS: Mapping[Kind, Callable[[bytes], Message | None]] = {
    Kind.HOLDINGS: decode_holdings,
    Kind.WANT: decode_want,
    Kind.GIVE: decode_give,
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
class Value:
    """A value of the log: who takes part from here on, by member its life, and what is final next."""

    entering: Mapping[int, int] = field(default_factory=dict)
    extents: tuple[Extent, ...] = ()


def encode_value(value: Value) -> bytes:
    """A value of the log as bytes."""
    lives = b"".join(_LIFE.pack(*entry) for entry in sorted(value.entering.items()))
    return _COUNT.pack(len(value.entering)) + lives + _pack(value.extents)


def decode_value(data: bytes) -> Value | None:
    """The value, or None if it is not one of this log."""
    if len(data) < COUNT_BYTES:
        return None
    end = COUNT_BYTES + _COUNT.unpack_from(data)[0] * LIFE_BYTES
    if end > len(data):
        return None
    entering = dict(_LIFE.iter_unpack(data[COUNT_BYTES:end]))
    extents = _unpack(data, end)
    return None if extents is None else Value(entering, extents)


@dataclass(frozen=True, slots=True)
class State:
    """What stands for a prefix of the log: how many messages are final, in which slot it is, who takes part in which
    life, what is final, and up to which life of each sender everything counts as if it were."""

    messages: int = 0
    slot: int = 0
    entered: Mapping[int, int] = field(default_factory=dict)
    final: MessageSet = NO_MESSAGES
    closed: Mapping[int, int] = field(default_factory=dict)


def encode_state(state: State) -> bytes:
    """A log's state as bytes."""
    parts = [_STATE.pack(state.messages, state.slot)]
    for lives in (state.entered, state.closed):
        parts.append(_COUNT.pack(len(lives)))
        parts += [_LIFE.pack(*entry) for entry in sorted(lives.items())]
    return b"".join((*parts, encode_set(state.final)))


def decode_state(data: bytes) -> State | None:
    """The state, or None if it is malformed."""
    reader = Reader(data)
    try:
        messages, slot = reader.unpack(_STATE)
        maps: list[dict[int, int]] = []
        for _ in range(2):
            (count,) = reader.unpack(_COUNT)
            pairs = [reader.unpack(_LIFE) for _ in range(count)]
            maps.append({pair[0]: pair[1] for pair in pairs})
        final = reader.message_set()
        reader.end()
    except Unreadable:
        return None
    return State(messages, slot, maps[0], final, maps[1])
