"""What members of a led group say to one another: the ordered stream, heartbeats, and the election of a leader.

A reign is the time of one leader; reigns are numbered, and everything here says which reign it belongs to.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from unisono.wire.door import Door, Refusal, read_messages, register_body, register_control
from unisono.wire.frame import SETTING_REQUEST, Frame, Kind

_STREAM_HEARTBEAT = struct.Struct("!IQQQB")
_VOTE_REQUEST = struct.Struct("!I")
_VOTE = struct.Struct("!IQI")
_RETRANSMIT_REQUEST = struct.Struct("!IBQHH")
_STAMP_REQUEST = struct.Struct("!QQI")
_ORDERED = struct.Struct("!IQIIBHIQIQ")
ORDERED_BYTES = _ORDERED.size
_COUNT = struct.Struct("!H")
_LAST_FRAMES = struct.Struct("!HQH")
_TOP = 2**63
ALL_REQUESTS = _TOP - 1


class EntryType(IntEnum):
    """What an entry of the ordered stream is."""

    RELAY = 1
    """A member's frame, whole."""
    MEMBER_LIST = 2
    """Who is in the group from here on."""
    GRANT = 3
    """Stamps for one request."""
    COPY = 4
    """Not an entry: a member's frame sent again by somebody else."""


class MissingKind(IntEnum):
    """What is asked for again."""

    ENTRIES = 0
    FRAMES = 1


@dataclass(frozen=True, slots=True)
class StreamHeartbeat:
    """A sign of life. The leader's: the last position ordered, and the one that all have; a member's: its own last
    position, and the clock of the leader's last beat. `answer` asks for one at once."""

    term: int
    position: int
    stable: int
    echo_ns: int
    wants_answer: bool


@dataclass(frozen=True, slots=True)
class Vote:
    """A promise to follow nobody of an earlier reign, with what its sender has of the order."""

    term: int
    position: int
    last_term: int


@dataclass(frozen=True, slots=True)
class RetransmitRequest:
    """A request for entries from `first` on, or for a member's frames of request `first` from `number` on."""

    term: int
    missing: MissingKind
    first: int
    origin: int
    number: int


@dataclass(frozen=True, slots=True)
class StampRequest:
    """A request for `count` stamps; `previous` is the sender's request before this one.

    `since` is the position at which its sender was last admitted: what it asked for before that is void.
    """

    previous: int
    admitted_at: int
    count: int


@dataclass(frozen=True, slots=True)
class EntryHeader:
    """Where an entry stands in the order, and whose it is."""

    term: int
    """Of who sends it now."""
    position: int
    entry_term: int
    """In which it was ordered."""
    previous_term: int
    """In which the entry before it was ordered."""
    entry_type: EntryType
    origin: int
    incarnation: int
    ordinal: int
    """The number of its first message, or stamp, in the whole order."""
    count: int
    request: int


@dataclass(frozen=True, slots=True)
class LastFrames:
    """Of a member that is gone: its frames count up to request `request`, there those below `number`.

    With the request ALL, all of them: it left in order.
    """

    member: int
    request: int
    number: int


@dataclass(frozen=True, slots=True)
class MemberList:
    """The members from here on, and how far the frames of those that are gone count."""

    members: tuple[int, ...]
    last_frames: tuple[LastFrames, ...] = ()


def encode_stream_heartbeat(heartbeat: StreamHeartbeat) -> bytes:
    """The body of a BEAT."""
    return _STREAM_HEARTBEAT.pack(
        heartbeat.term, heartbeat.position, heartbeat.stable, heartbeat.echo_ns, heartbeat.wants_answer
    )


def decode_stream_heartbeat(body: bytes) -> StreamHeartbeat | None:
    """The beat, or None if it is malformed."""
    if len(body) != _STREAM_HEARTBEAT.size:
        return None
    reign, position, stable, echo, answer = _STREAM_HEARTBEAT.unpack(body)
    if max(position, stable, echo) >= _TOP or answer > 1:
        return None
    return StreamHeartbeat(reign, position, stable, echo, bool(answer))


def encode_vote_request(term: int) -> bytes:
    """The body of an ASK: the reign that its sender wants to begin."""
    return _VOTE_REQUEST.pack(term)


def decode_vote_request(body: bytes) -> int | None:
    """The reign, or None."""
    return int(_VOTE_REQUEST.unpack(body)[0]) if len(body) == _VOTE_REQUEST.size else None


def encode_vote(vote: Vote) -> bytes:
    """The body of a VOTE."""
    return _VOTE.pack(vote.term, vote.position, vote.last_term)


def decode_vote(body: bytes) -> Vote | None:
    """The vote, or None."""
    if len(body) != _VOTE.size:
        return None
    vote = Vote(*_VOTE.unpack(body))
    return vote if vote.position < _TOP and vote.last_term < vote.term else None


def encode_retransmit_request(request: RetransmitRequest) -> bytes:
    """The body of a NEED."""
    return _RETRANSMIT_REQUEST.pack(request.term, request.missing, request.first, request.origin, request.number)


def decode_retransmit_request(body: bytes) -> RetransmitRequest | None:
    """What is needed, or None."""
    if len(body) != _RETRANSMIT_REQUEST.size:
        return None
    reign, lack, first, origin, number = _RETRANSMIT_REQUEST.unpack(body)
    return (
        RetransmitRequest(reign, MissingKind(lack), first, origin, number)
        if lack in _MISSING_KINDS and first < _TOP
        else None
    )


def encode_stamp_request(request: StampRequest) -> bytes:
    """The body of a REQUEST."""
    return _STAMP_REQUEST.pack(request.previous, request.admitted_at, request.count)


def decode_stamp_request(body: bytes) -> StampRequest | None:
    """The request, or None."""
    if len(body) != _STAMP_REQUEST.size:
        return None
    request = StampRequest(*_STAMP_REQUEST.unpack(body))
    return request if max(request.previous, request.admitted_at) < _TOP and request.count else None


def encode_entry_header(header: EntryHeader) -> bytes:
    """What the body of an ORDERED frame begins with."""
    return _ORDERED.pack(
        header.term,
        header.position,
        header.entry_term,
        header.previous_term,
        header.entry_type,
        header.origin,
        header.incarnation,
        header.ordinal,
        header.count,
        header.request,
    )


def decode_entry_header(body: bytes | memoryview) -> EntryHeader | None:
    """The place, or None if it contradicts itself."""
    if len(body) < _ORDERED.size:
        return None
    reign, position, own, previous, what, origin, incarnation, ordinal, count, request = _ORDERED.unpack_from(body)
    if what not in _ENTRY_TYPES or max(position, ordinal, request) >= _TOP or not previous <= own <= reign:
        return None
    if (position == 0) != (what == EntryType.COPY) or (what == EntryType.GRANT) != (count > 0):
        return None
    return EntryHeader(reign, position, own, previous, EntryType(what), origin, incarnation, ordinal, count, request)


def encode_member_list(member_list: MemberList) -> bytes:
    """The payload of a ROLL entry."""
    members = struct.pack(f"!{len(member_list.members)}H", *member_list.members)
    cuts = b"".join(_LAST_FRAMES.pack(cut.member, cut.request, cut.number) for cut in member_list.last_frames)
    return _COUNT.pack(len(member_list.members)) + members + cuts


def decode_member_list(payload: bytes | memoryview) -> MemberList | None:
    """The roll, or None: members ascend, and there is at least one."""
    if len(payload) < _COUNT.size:
        return None
    (count,) = _COUNT.unpack_from(payload)
    rest = len(payload) - _COUNT.size - 2 * count
    if not count or rest < 0 or rest % _LAST_FRAMES.size:
        return None
    members = struct.unpack_from(f"!{count}H", payload, _COUNT.size)
    if list(members) != sorted(set(members)) or not members[0]:
        return None
    cuts = tuple(LastFrames(*fields) for fields in _LAST_FRAMES.iter_unpack(payload[len(payload) - rest :]))
    return MemberList(members, cuts) if all(cut.request < _TOP for cut in cuts) else None


_MISSING_KINDS = frozenset(MissingKind)
_ENTRY_TYPES = frozenset(EntryType)


def read_ordered(door: Door, frame: Frame, data: bytes, start: int, end: int) -> Frame | Refusal:
    """An entry of a leader's stream: its place, then another member's frame, a roll of members, or nothing."""
    body = memoryview(data)[start:end]
    place = decode_entry_header(body)
    if place is None or frame.flags & SETTING_REQUEST:
        return Refusal.BAD_CONTROL
    payload = body[ORDERED_BYTES:]
    if place.entry_type is EntryType.MEMBER_LIST:
        roll = decode_member_list(payload)
        if frame.flags or roll is None or not door.members.issuperset(roll.members):
            return Refusal.BAD_CONTROL
    elif place.origin not in door.members:
        return Refusal.NOT_A_MEMBER
    elif place.entry_type is EntryType.GRANT:
        if frame.flags or payload:
            return Refusal.BAD_CONTROL
    else:
        refusal = read_messages(frame, data, start + ORDERED_BYTES, end)
        if isinstance(refusal, Refusal):
            return refusal
    frame.body = body
    return frame


register_control(
    {
        Kind.STREAM_HEARTBEAT: decode_stream_heartbeat,
        Kind.VOTE_REQUEST: decode_vote_request,
        Kind.VOTE: decode_vote,
        Kind.RETRANSMIT_REQUEST: decode_retransmit_request,
        Kind.STAMP_REQUEST: decode_stamp_request,
    }
)
register_body(Kind.ORDERED, read_ordered)
