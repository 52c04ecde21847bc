"""What members of a view say to one another: messages and acknowledgments, the flush of a view, joins and states.

The frame's epoch is the number of the view that its sender is in.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from unisono.wire.door import register_control
from unisono.wire.frame import Kind

_TOP = 2**63
_SENT = struct.Struct("!QB")
_COUNTS = struct.Struct("!HH")
_MARK = struct.Struct("!HQ")
_LIFE = struct.Struct("!HI")
_FLUSH = struct.Struct("!IH")
_FLUSHED = struct.Struct("!IBH")
_CUT = struct.Struct("!IH")
_HOLDER = struct.Struct("!HQH")
_ENTER = struct.Struct("!BIQHI")
_NEED = struct.Struct("!BHQQ")
_PASSED = struct.Struct("!BHQB")
_VIEW = struct.Struct("!BQ")
_STATE = struct.Struct("!BQIIH")
MORE = 1
"""The body goes on in the next one."""
OVERHEAD_BYTES = 64
"""No frame here puts more than this around a body of the application's, a next view aside."""

Vector: TypeAlias = Mapping[int, int]
"""By member, how many of its messages."""


@dataclass(frozen=True, slots=True)
class Sent:
    """Message `number` of its sender in this view, or a part of one."""

    number: int
    flags: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Acks:
    """What the sender has of everybody's messages, and of what each told it."""

    received: Vector
    told: Vector


@dataclass(frozen=True, slots=True)
class Said:
    """The same for one member alone."""

    number: int
    flags: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Flush:
    """A coordinator's attempt: stop, and say what you have; these are to be in the next view."""

    attempt: int
    members: Vector
    """By member, its incarnation."""


@dataclass(frozen=True, slots=True)
class Flushed:
    """The answer: what its sender has; or, when `ready`, that it has all of the cut."""

    attempt: int
    ready: bool
    received: Vector


@dataclass(frozen=True, slots=True)
class Cut:
    """How many messages of each member are received in this view, and who has them all."""

    attempt: int
    received: Vector
    holders: Vector


@dataclass(frozen=True, slots=True)
class Enter:
    """A wish to be in the view, or, when `leaving`, not to be in it any more.

    `turn` says who is asked for the state; `view_id`, `giver` and `offset` how much of one has come.
    """

    leaving: bool
    turn: int
    view_id: int
    giver: int
    offset: int


@dataclass(frozen=True, slots=True)
class Need:
    """A request for a member's messages."""

    member: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Passed:
    """Another member's message."""

    member: int
    number: int
    flags: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Went:
    """What the members of view `view_id` agreed on: the next view."""

    view_id: int
    value: bytes


@dataclass(frozen=True, slots=True)
class State:
    """A part of the state for newcomers of view `view_id`; behind the state comes the view's own description."""

    view_id: int
    total: int
    offset: int
    giver: int
    part: bytes


Message: TypeAlias = Sent | Acks | Said | Flush | Flushed | Cut | Enter | Need | Passed | Went | State


@dataclass(frozen=True, slots=True)
class NextView:
    """A value of the agreement: who is in the next view, and the cut that ends this one."""

    members: Vector
    cut: Vector


def encode(message: Message) -> tuple[Kind, bytes]:
    """The kind and the body of the frame that carries a message."""
    match message:
        case Sent():
            return Kind.MCAST, _SENT.pack(message.number, message.flags) + message.body
        case Acks():
            counts = _COUNTS.pack(len(message.received), len(message.told))
            return Kind.ACKS, counts + _marks(message.received) + _marks(message.told)
        case Said():
            return Kind.TELL, _SENT.pack(message.number, message.flags) + message.body
        case Flush():
            return Kind.FLUSH, _FLUSH.pack(message.attempt, len(message.members)) + _lives(message.members)
        case Flushed():
            head = _FLUSHED.pack(message.attempt, message.ready, len(message.received))
            return Kind.FLUSHED, head + _marks(message.received)
        case Cut():
            rows = [_HOLDER.pack(m, n, message.holders.get(m, m)) for m, n in sorted(message.received.items())]
            return Kind.CUT, _CUT.pack(message.attempt, len(rows)) + b"".join(rows)
        case Enter():
            fields = (message.leaving, message.turn, message.view_id, message.giver, message.offset)
            return Kind.ENTER, _ENTER.pack(*fields)
        case Need():
            return Kind.PAST, _NEED.pack(1, message.member, message.first, message.last)
        case Passed():
            return Kind.PAST, _PASSED.pack(2, message.member, message.number, message.flags) + message.body
        case Went():
            return Kind.PAST, _VIEW.pack(3, message.view_id) + message.value
        case State():
            head = _STATE.pack(4, message.view_id, message.total, message.offset, message.giver)
            return Kind.PAST, head + message.part
    assert_never(message)


def encode_next_view(following: NextView) -> bytes:
    """A next view as a value for the agreement."""
    counts = _COUNTS.pack(len(following.members), len(following.cut))
    return counts + _lives(following.members) + _marks(following.cut)


def decode_next_view(value: bytes) -> NextView | None:
    """The next view, or None if the value is none."""
    if len(value) < _COUNTS.size:
        return None
    members, cut = _COUNTS.unpack_from(value)
    split = _COUNTS.size + members * _LIFE.size
    if not members or len(value) != split + cut * _MARK.size:
        return None
    lives = dict(_LIFE.iter_unpack(value[_COUNTS.size : split]))
    marks = dict(_MARK.iter_unpack(value[split:]))
    return NextView(lives, marks) if len(lives) == members and len(marks) == cut else None


def _marks(vector: Vector) -> bytes:
    return b"".join(_MARK.pack(member, number) for member, number in sorted(vector.items()))


def _lives(vector: Vector) -> bytes:
    return b"".join(_LIFE.pack(member, life) for member, life in sorted(vector.items()))


def _vector(body: bytes, form: struct.Struct, count: int) -> dict[int, int] | None:
    if len(body) != count * form.size:
        return None
    found: dict[int, int] = dict(form.iter_unpack(body))
    return found if len(found) == count and max(found.values(), default=0) < _TOP else None


def _decode_sent(body: bytes) -> Sent | None:
    if len(body) < _SENT.size:
        return None
    number, flags = _SENT.unpack_from(body)
    return Sent(number, flags, body[_SENT.size :]) if 0 < number < _TOP and flags <= MORE else None


def _decode_said(body: bytes) -> Said | None:
    sent = _decode_sent(body)
    return None if sent is None else Said(sent.number, sent.flags, sent.body)


def _decode_acks(body: bytes) -> Acks | None:
    if len(body) < _COUNTS.size:
        return None
    received, told = _COUNTS.unpack_from(body)
    split = _COUNTS.size + received * _MARK.size
    first, second = _vector(body[_COUNTS.size : split], _MARK, received), _vector(body[split:], _MARK, told)
    return None if first is None or second is None else Acks(first, second)


def _decode_flush(body: bytes) -> Flush | None:
    if len(body) < _FLUSH.size:
        return None
    attempt, count = _FLUSH.unpack_from(body)
    members = _vector(body[_FLUSH.size :], _LIFE, count)
    return Flush(attempt, members) if members else None


def _decode_flushed(body: bytes) -> Flushed | None:
    if len(body) < _FLUSHED.size:
        return None
    attempt, ready, count = _FLUSHED.unpack_from(body)
    received = _vector(body[_FLUSHED.size :], _MARK, count)
    return None if received is None or ready > 1 else Flushed(attempt, bool(ready), received)


def _decode_cut(body: bytes) -> Cut | None:
    if len(body) < _CUT.size:
        return None
    attempt, count = _CUT.unpack_from(body)
    if len(body) != _CUT.size + count * _HOLDER.size:
        return None
    rows = list(_HOLDER.iter_unpack(body[_CUT.size :]))
    received = {member: number for member, number, _ in rows}
    if len(received) != count or max(received.values(), default=0) >= _TOP:
        return None
    return Cut(attempt, received, {member: holder for member, _, holder in rows})


def _decode_enter(body: bytes) -> Enter | None:
    if len(body) != _ENTER.size:
        return None
    leaving, turn, view_id, giver, offset = _ENTER.unpack(body)
    return Enter(bool(leaving), turn, view_id, giver, offset) if leaving <= 1 and view_id < _TOP else None


def _decode_past(body: bytes) -> Need | Passed | Went | State | None:
    kind = body[0] if body else 0
    if kind == 1 and len(body) == _NEED.size:
        _, member, first, last = _NEED.unpack(body)
        return Need(member, first, last) if 0 < first <= last < _TOP else None
    if kind == 2 and len(body) >= _PASSED.size:
        _, member, number, flags = _PASSED.unpack_from(body)
        return Passed(member, number, flags, body[_PASSED.size :]) if 0 < number < _TOP and flags <= MORE else None
    if kind == 3 and len(body) > _VIEW.size:
        _, view_id = _VIEW.unpack_from(body)
        return Went(view_id, body[_VIEW.size :]) if view_id < _TOP else None
    if kind == 4 and len(body) >= _STATE.size:
        _, view_id, total, offset, giver = _STATE.unpack_from(body)
        part = body[_STATE.size :]
        return State(view_id, total, offset, giver, part) if view_id < _TOP and offset + len(part) <= total else None
    return None


DECODERS: dict[Kind, Callable[[bytes], Message | None]] = {
    Kind.MCAST: _decode_sent,
    Kind.ACKS: _decode_acks,
    Kind.TELL: _decode_said,
    Kind.FLUSH: _decode_flush,
    Kind.FLUSHED: _decode_flushed,
    Kind.CUT: _decode_cut,
    Kind.ENTER: _decode_enter,
    Kind.PAST: _decode_past,
}
register_control(DECODERS)
