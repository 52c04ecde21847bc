"""The frames of membership: multicast and acknowledgments, the flush of a view, requests to join, state transfer.

The epoch of a frame is the number of the view that its sender is in.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from unisono.wire.door import register_control
from unisono.wire.frame import Kind

_TOP = 2**63
_MULTICAST = struct.Struct("!QB")
_COUNTS = struct.Struct("!HH")
_MEMBER_COUNT = struct.Struct("!HQ")
_INCARNATION = struct.Struct("!HI")
_FLUSH = struct.Struct("!IH")
_FLUSHED = struct.Struct("!IBH")
_LAST_MESSAGES = struct.Struct("!IH")
_HOLDER = struct.Struct("!HQH")
_MEMBERSHIP_REQUEST = struct.Struct("!BIQHI")
_MESSAGE_REQUEST = struct.Struct("!BHQQ")
_RELAYED = struct.Struct("!BHQB")
_VIEW = struct.Struct("!BQ")
_STATE_CHUNK = struct.Struct("!BQIIH")
MORE = 1
"""Flag: the message continues in the next frame."""
OVERHEAD_BYTES = 64
"""The most bytes that any frame adds to an application's body."""

Vector: TypeAlias = Mapping[int, int]
"""A number for each member: how many of its messages, unless another meaning is given."""


@dataclass(frozen=True, slots=True)
class Multicast:
    """Frame `number` that its sender multicast in this view: a message, or a part of one (flag MORE)."""

    number: int
    flags: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Acks:
    """How many multicast and unicast frames of each member the sender has received."""

    received: Vector
    unicasts_received: Vector


@dataclass(frozen=True, slots=True)
class Unicast:
    """Frame `number` that its sender sent to this receiver only in this view."""

    number: int
    flags: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Flush:
    """A coordinator asks the survivors to stop delivering and to report what they have received.

    `members` is the next view that it attempts.
    """

    attempt: int
    members: Vector
    """By member, its incarnation."""


@dataclass(frozen=True, slots=True)
class Flushed:
    """A survivor's answer: what it has received; or, if `ready`, that it has all messages up to the last ones."""

    attempt: int
    ready: bool
    received: Vector


@dataclass(frozen=True, slots=True)
class LastMessages:
    """The last message of each member to be received in this view, and a survivor that holds them up to there."""

    attempt: int
    received: Vector
    holders: Vector


@dataclass(frozen=True, slots=True)
class MembershipRequest:
    """A request to join the group, or, if `leaving`, to be left out of the view after `view_id`.

    A newcomer also requests the state: `attempt` selects the member that sends it; `view_id`, `source` and `offset` say
    how much of which state has arrived.
    """

    leaving: bool
    attempt: int
    view_id: int
    source: int
    offset: int


@dataclass(frozen=True, slots=True)
class MessageRequest:
    """A request for the frames `first` to `last` that `member` multicast."""

    member: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Relayed:
    """A frame that another member multicast."""

    member: int
    number: int
    flags: int
    body: bytes


@dataclass(frozen=True, slots=True)
class NextViewDecided:
    """The decision of the members of view `view_id`: the encoded next view."""

    view_id: int
    value: bytes


@dataclass(frozen=True, slots=True)
class StateChunk:
    """A part of the state for newcomers of view `view_id`: the view's description, then the application's state."""

    view_id: int
    total: int
    offset: int
    source: int
    part: bytes


MembershipMessage: TypeAlias = (
    Multicast
    | Acks
    | Unicast
    | Flush
    | Flushed
    | LastMessages
    | MembershipRequest
    | MessageRequest
    | Relayed
    | NextViewDecided
    | StateChunk
)


@dataclass(frozen=True, slots=True)
class NextView:
    """The value that consensus decides: the members of the next view, and the last messages of this one."""

    members: Vector
    last_messages: Vector


def encode(message: MembershipMessage) -> tuple[Kind, bytes]:
    """The kind and the body of the frame for a message."""
    match message:
        case Multicast():
            return Kind.MCAST, _MULTICAST.pack(message.number, message.flags) + message.body
        case Acks():
            counts = _COUNTS.pack(len(message.received), len(message.unicasts_received))
            return Kind.ACKS, counts + _encode_counts(message.received) + _encode_counts(message.unicasts_received)
        case Unicast():
            return Kind.UNICAST, _MULTICAST.pack(message.number, message.flags) + message.body
        case Flush():
            return Kind.FLUSH, _FLUSH.pack(message.attempt, len(message.members)) + _encode_incarnations(
                message.members
            )
        case Flushed():
            head = _FLUSHED.pack(message.attempt, message.ready, len(message.received))
            return Kind.FLUSHED, head + _encode_counts(message.received)
        case LastMessages():
            rows = [_HOLDER.pack(m, n, message.holders.get(m, m)) for m, n in sorted(message.received.items())]
            return Kind.LAST_MESSAGES, _LAST_MESSAGES.pack(message.attempt, len(rows)) + b"".join(rows)
        case MembershipRequest():
            fields = (message.leaving, message.attempt, message.view_id, message.source, message.offset)
            return Kind.MEMBERSHIP_REQUEST, _MEMBERSHIP_REQUEST.pack(*fields)
        case MessageRequest():
            return Kind.VIEW_RECOVERY, _MESSAGE_REQUEST.pack(1, message.member, message.first, message.last)
        case Relayed():
            return Kind.VIEW_RECOVERY, _RELAYED.pack(2, message.member, message.number, message.flags) + message.body
        case NextViewDecided():
            return Kind.VIEW_RECOVERY, _VIEW.pack(3, message.view_id) + message.value
        case StateChunk():
            head = _STATE_CHUNK.pack(4, message.view_id, message.total, message.offset, message.source)
            return Kind.VIEW_RECOVERY, head + message.part
    assert_never(message)


def encode_next_view(next_view: NextView) -> bytes:
    """Encode a next view as a value for consensus."""
    counts = _COUNTS.pack(len(next_view.members), len(next_view.last_messages))
    return counts + _encode_incarnations(next_view.members) + _encode_counts(next_view.last_messages)


def decode_next_view(value: bytes) -> NextView | None:
    """The next view, or None if the value is malformed."""
    if len(value) < _COUNTS.size:
        return None
    member_count, last_count = _COUNTS.unpack_from(value)
    split = _COUNTS.size + member_count * _INCARNATION.size
    if not member_count or len(value) != split + last_count * _MEMBER_COUNT.size:
        return None
    members = dict(_INCARNATION.iter_unpack(value[_COUNTS.size : split]))
    last_messages = dict(_MEMBER_COUNT.iter_unpack(value[split:]))
    if len(members) != member_count or len(last_messages) != last_count:
        return None
    return NextView(members, last_messages)


def _encode_counts(vector: Vector) -> bytes:
    return b"".join(_MEMBER_COUNT.pack(member, number) for member, number in sorted(vector.items()))


def _encode_incarnations(vector: Vector) -> bytes:
    return b"".join(_INCARNATION.pack(member, incarnation) for member, incarnation in sorted(vector.items()))


def _decode_vector(body: bytes, form: struct.Struct, count: int) -> dict[int, int] | None:
    if len(body) != count * form.size:
        return None
    found: dict[int, int] = dict(form.iter_unpack(body))
    return found if len(found) == count and max(found.values(), default=0) < _TOP else None


def _decode_multicast(body: bytes) -> Multicast | None:
    if len(body) < _MULTICAST.size:
        return None
    number, flags = _MULTICAST.unpack_from(body)
    return Multicast(number, flags, body[_MULTICAST.size :]) if 0 < number < _TOP and flags <= MORE else None


def _decode_unicast(body: bytes) -> Unicast | None:
    message = _decode_multicast(body)
    return None if message is None else Unicast(message.number, message.flags, message.body)


def _decode_acks(body: bytes) -> Acks | None:
    if len(body) < _COUNTS.size:
        return None
    multicasts, unicasts = _COUNTS.unpack_from(body)
    split = _COUNTS.size + multicasts * _MEMBER_COUNT.size
    received = _decode_vector(body[_COUNTS.size : split], _MEMBER_COUNT, multicasts)
    unicasts_received = _decode_vector(body[split:], _MEMBER_COUNT, unicasts)
    return None if received is None or unicasts_received is None else Acks(received, unicasts_received)


def _decode_flush(body: bytes) -> Flush | None:
    if len(body) < _FLUSH.size:
        return None
    attempt, count = _FLUSH.unpack_from(body)
    members = _decode_vector(body[_FLUSH.size :], _INCARNATION, count)
    return Flush(attempt, members) if members else None


def _decode_flushed(body: bytes) -> Flushed | None:
    if len(body) < _FLUSHED.size:
        return None
    attempt, ready, count = _FLUSHED.unpack_from(body)
    received = _decode_vector(body[_FLUSHED.size :], _MEMBER_COUNT, count)
    return None if received is None or ready > 1 else Flushed(attempt, bool(ready), received)


def _decode_last_messages(body: bytes) -> LastMessages | None:
    if len(body) < _LAST_MESSAGES.size:
        return None
    attempt, count = _LAST_MESSAGES.unpack_from(body)
    if len(body) != _LAST_MESSAGES.size + count * _HOLDER.size:
        return None
    rows = list(_HOLDER.iter_unpack(body[_LAST_MESSAGES.size :]))
    received = {member: number for member, number, _ in rows}
    if len(received) != count or max(received.values(), default=0) >= _TOP:
        return None
    return LastMessages(attempt, received, {member: holder for member, _, holder in rows})


def _decode_membership_request(body: bytes) -> MembershipRequest | None:
    if len(body) != _MEMBERSHIP_REQUEST.size:
        return None
    leaving, attempt, view_id, source, offset = _MEMBERSHIP_REQUEST.unpack(body)
    return (
        MembershipRequest(bool(leaving), attempt, view_id, source, offset) if leaving <= 1 and view_id < _TOP else None
    )


def _decode_view_recovery(body: bytes) -> MessageRequest | Relayed | NextViewDecided | StateChunk | None:
    kind = body[0] if body else 0
    if kind == 1 and len(body) == _MESSAGE_REQUEST.size:
        _, member, first, last = _MESSAGE_REQUEST.unpack(body)
        return MessageRequest(member, first, last) if 0 < first <= last < _TOP else None
    if kind == 2 and len(body) >= _RELAYED.size:
        _, member, number, flags = _RELAYED.unpack_from(body)
        return Relayed(member, number, flags, body[_RELAYED.size :]) if 0 < number < _TOP and flags <= MORE else None
    if kind == 3 and len(body) > _VIEW.size:
        _, view_id = _VIEW.unpack_from(body)
        return NextViewDecided(view_id, body[_VIEW.size :]) if view_id < _TOP else None
    if kind == 4 and len(body) >= _STATE_CHUNK.size:
        _, view_id, total, offset, source = _STATE_CHUNK.unpack_from(body)
        part = body[_STATE_CHUNK.size :]
        return (
            StateChunk(view_id, total, offset, source, part) if view_id < _TOP and offset + len(part) <= total else None
        )
    return None


DECODERS: dict[Kind, Callable[[bytes], MembershipMessage | None]] = {
    Kind.MCAST: _decode_multicast,
    Kind.ACKS: _decode_acks,
    Kind.UNICAST: _decode_unicast,
    Kind.FLUSH: _decode_flush,
    Kind.FLUSHED: _decode_flushed,
    Kind.LAST_MESSAGES: _decode_last_messages,
    Kind.MEMBERSHIP_REQUEST: _decode_membership_request,
    Kind.VIEW_RECOVERY: _decode_view_recovery,
}
register_control(DECODERS)
