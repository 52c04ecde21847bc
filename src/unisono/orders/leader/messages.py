"""Wire form of the leader orders: the ordered stream, heartbeats, votes, retransmission and stamp requests.

A term is the time of one leader. Terms are numbered, and every message states the term that it belongs to. The decoders
return None for a malformed body; the door then refuses the datagram.
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
_LIMIT = 2**63
ALL_REQUESTS = _LIMIT - 1
"""In `LastFrames.request`: the member left in an orderly way, and all its frames count."""


class EntryType(IntEnum):
    """The content of an ORDERED frame."""

    RELAY = 1
    """A complete frame of a member (leader broadcast)."""
    MEMBER_LIST = 2
    """The members of the group from this position on."""
    GRANT = 3
    """Stamps for one request (timestamp leader)."""
    COPY = 4
    """Not an entry of the stream: a member's frame, retransmitted by another member."""


class MissingKind(IntEnum):
    """What a member asks another one to retransmit."""

    ENTRIES = 0
    FRAMES = 1


@dataclass(frozen=True, slots=True)
class StreamHeartbeat:
    """A heartbeat of the leader to all members, or of a follower to the leader."""

    term: int
    position: int
    """From the leader: the last position that it ordered. From a follower: the last position that it delivered."""
    stable: int
    """From the leader: the last position that every member has delivered."""
    echo_ns: int
    """From a follower: `sent_ns` of the last heartbeat of the leader that it received."""
    wants_answer: bool
    """The leader asks for an immediate heartbeat."""


@dataclass(frozen=True, slots=True)
class Vote:
    """A promise to accept nothing more of an earlier term, with the end of the voter's stream."""

    term: int
    position: int
    last_term: int


@dataclass(frozen=True, slots=True)
class RetransmitRequest:
    """Asks for entries of the stream from position `first` on, or for frames of member `origin`.

    For frames, `first` is the request that they belong to and `number` is the first missing frame of that request.
    """

    term: int
    missing: MissingKind
    first: int
    origin: int
    number: int


@dataclass(frozen=True, slots=True)
class StampRequest:
    """Asks the leader for `count` stamps. `previous` is the sender's request before this one.

    `admitted_at` is the position at which the sender was last admitted; its requests from before that are void.
    """

    previous: int
    admitted_at: int
    count: int


@dataclass(frozen=True, slots=True)
class EntryHeader:
    """The position of an entry in the stream, and the member that it comes from."""

    term: int
    """The term in which this frame is sent; a retransmission may belong to a later term than the entry."""
    position: int
    entry_term: int
    """The term in which the entry was ordered."""
    previous_term: int
    """The term in which the entry before it was ordered."""
    entry_type: EntryType
    origin: int
    incarnation: int
    ordinal: int
    """The number of its first message, or stamp, in the total order."""
    count: int
    """Of a GRANT: the number of stamps."""
    request: int


@dataclass(frozen=True, slots=True)
class LastFrames:
    """The last frames of a removed member that count: of request `request` those below `number`, and all before it.

    With request ALL_REQUESTS all its frames count: the member left in an orderly way.
    """

    member: int
    request: int
    number: int


@dataclass(frozen=True, slots=True)
class MemberList:
    """The members from this position on, and the last frames of the removed members that count."""

    members: tuple[int, ...]
    last_frames: tuple[LastFrames, ...] = ()


def encode_stream_heartbeat(heartbeat: StreamHeartbeat) -> bytes:
    """The body of a STREAM_HEARTBEAT."""
    return _STREAM_HEARTBEAT.pack(
        heartbeat.term, heartbeat.position, heartbeat.stable, heartbeat.echo_ns, heartbeat.wants_answer
    )


def decode_stream_heartbeat(body: bytes) -> StreamHeartbeat | None:
    """The heartbeat, or None if the body is malformed."""
    if len(body) != _STREAM_HEARTBEAT.size:
        return None
    term, position, stable, echo_ns, wants_answer = _STREAM_HEARTBEAT.unpack(body)
    if max(position, stable, echo_ns) >= _LIMIT or wants_answer > 1:
        return None
    return StreamHeartbeat(term, position, stable, echo_ns, bool(wants_answer))


def encode_vote_request(term: int) -> bytes:
    """The body of a VOTE_REQUEST: the term that the candidate wants to start."""
    return _VOTE_REQUEST.pack(term)


def decode_vote_request(body: bytes) -> int | None:
    """The term, or None if the body is malformed."""
    return int(_VOTE_REQUEST.unpack(body)[0]) if len(body) == _VOTE_REQUEST.size else None


def encode_vote(vote: Vote) -> bytes:
    """The body of a VOTE."""
    return _VOTE.pack(vote.term, vote.position, vote.last_term)


def decode_vote(body: bytes) -> Vote | None:
    """The vote, or None if the body is malformed."""
    if len(body) != _VOTE.size:
        return None
    vote = Vote(*_VOTE.unpack(body))
    return vote if vote.position < _LIMIT and vote.last_term < vote.term else None


def encode_retransmit_request(request: RetransmitRequest) -> bytes:
    """The body of a RETRANSMIT_REQUEST."""
    return _RETRANSMIT_REQUEST.pack(request.term, request.missing, request.first, request.origin, request.number)


def decode_retransmit_request(body: bytes) -> RetransmitRequest | None:
    """The request, or None if the body is malformed."""
    if len(body) != _RETRANSMIT_REQUEST.size:
        return None
    term, missing, first, origin, number = _RETRANSMIT_REQUEST.unpack(body)
    return (
        RetransmitRequest(term, MissingKind(missing), first, origin, number)
        if missing in _MISSING_KINDS and first < _LIMIT
        else None
    )


def encode_stamp_request(request: StampRequest) -> bytes:
    """The body of a STAMP_REQUEST."""
    return _STAMP_REQUEST.pack(request.previous, request.admitted_at, request.count)


def decode_stamp_request(body: bytes) -> StampRequest | None:
    """The request, or None if the body is malformed."""
    if len(body) != _STAMP_REQUEST.size:
        return None
    request = StampRequest(*_STAMP_REQUEST.unpack(body))
    return request if max(request.previous, request.admitted_at) < _LIMIT and request.count else None


def encode_entry_header(header: EntryHeader) -> bytes:
    """The first ORDERED_BYTES of the body of an ORDERED frame."""
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
    """The header, or None if the body is too short or its fields contradict each other."""
    if len(body) < _ORDERED.size:
        return None
    term, position, entry_term, previous_term, code, origin, incarnation, ordinal, count, request = (
        _ORDERED.unpack_from(body)
    )
    if code not in _ENTRY_TYPES or max(position, ordinal, request) >= _LIMIT:
        return None
    if not previous_term <= entry_term <= term:
        return None
    if (position == 0) != (code == EntryType.COPY) or (code == EntryType.GRANT) != (count > 0):
        return None
    return EntryHeader(
        term, position, entry_term, previous_term, EntryType(code), origin, incarnation, ordinal, count, request
    )


def encode_member_list(member_list: MemberList) -> bytes:
    """The payload of a MEMBER_LIST entry."""
    members = struct.pack(f"!{len(member_list.members)}H", *member_list.members)
    last_frames = b"".join(_LAST_FRAMES.pack(f.member, f.request, f.number) for f in member_list.last_frames)
    return _COUNT.pack(len(member_list.members)) + members + last_frames


def decode_member_list(payload: bytes | memoryview) -> MemberList | None:
    """The member list, or None if it is malformed, empty or not in ascending order."""
    if len(payload) < _COUNT.size:
        return None
    (count,) = _COUNT.unpack_from(payload)
    rest = len(payload) - _COUNT.size - 2 * count
    if not count or rest < 0 or rest % _LAST_FRAMES.size:
        return None
    members = struct.unpack_from(f"!{count}H", payload, _COUNT.size)
    if list(members) != sorted(set(members)) or not members[0]:
        return None
    last_frames = tuple(LastFrames(*fields) for fields in _LAST_FRAMES.iter_unpack(payload[len(payload) - rest :]))
    return MemberList(members, last_frames) if all(f.request < _LIMIT for f in last_frames) else None


_MISSING_KINDS = frozenset(MissingKind)
_ENTRY_TYPES = frozenset(EntryType)


def read_ordered(door: Door, frame: Frame, data: bytes, start: int, end: int) -> Frame | Refusal:
    """Check an ORDERED frame: its header, and then a member's frame, a member list, or nothing (a grant)."""
    body = memoryview(data)[start:end]
    header = decode_entry_header(body)
    if header is None or frame.flags & SETTING_REQUEST:
        return Refusal.BAD_CONTROL
    payload = body[ORDERED_BYTES:]
    if header.entry_type is EntryType.MEMBER_LIST:
        member_list = decode_member_list(payload)
        if frame.flags or member_list is None or not door.members.issuperset(member_list.members):
            return Refusal.BAD_CONTROL
    elif header.origin not in door.members:
        return Refusal.NOT_A_MEMBER
    elif header.entry_type is EntryType.GRANT:
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
