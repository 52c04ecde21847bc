"""Wire form of the leader orders: the ordered stream, heartbeats, votes, retransmission and stamp requests.

A term is the time of one leader. Terms are numbered, and every message states the term that it belongs to.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from unisono.wire.codec import (
    SEQUENCE_LIMIT,
    Items,
    Numbers,
    Spec,
    Unreadable,
    boolean,
    choice,
    count,
    register,
    u16,
    u32,
    u63,
)
from unisono.wire.door import Door, Refusal, read_messages, register_body
from unisono.wire.frame import SETTING_REQUEST, Frame, Kind

ALL_REQUESTS = SEQUENCE_LIMIT - 1
"""The value of `LastFrames.request` if the member left in an orderly way: all its frames count."""
ALL_FRAMES = (1 << 16) - 1
"""The value of `RetransmitRequest.count` for all frames from the first missing one on."""


class EntryType(IntEnum):
    """Says what an ORDERED frame contains."""

    RELAY = 1
    """A complete frame of a member (leader broadcast)."""
    MEMBER_LIST = 2
    """The members of the group from this position on."""
    GRANT = 3
    """The stamps that the leader grants for one request (timestamp leader)."""
    COPY = 4
    """Not an entry of the stream: a member's frame, retransmitted by another member."""


class MissingKind(IntEnum):
    """Says what a member asks another one to retransmit: entries of the stream, or frames."""

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
    retained_from: int
    """From the leader: the first position that it can retransmit."""
    echo_ns: int
    """From a follower: `sent_ns` of the last heartbeat of the leader that it received."""
    wants_answer: bool
    """The leader asks for an immediate heartbeat."""
    has_majority: bool
    """From the leader: whether a majority follows it. Without one it orders nothing. From a follower: False."""


@dataclass(frozen=True, slots=True)
class VoteRequest:
    """A candidate asks for votes for the term that it wants to start."""

    term: int


@dataclass(frozen=True, slots=True)
class Vote:
    """A promise to accept nothing more of an earlier term, with the end of the voter's stream."""

    term: int
    position: int
    last_term: int


@dataclass(frozen=True, slots=True)
class RetransmitRequest:
    """Asks for `count` entries of the stream from position `first` on, or for `count` frames of member `origin`.

    For frames, `number` is the first missing one. With the timestamp leader, `first` is the request that the frames
    belong to. With leader broadcast it is 0.
    """

    term: int
    missing: MissingKind
    first: int
    origin: int
    number: int
    count: int


@dataclass(frozen=True, slots=True)
class StampRequest:
    """Asks the leader for `count` stamps. `previous` is the number of the sender's request before this one.

    `admitted_at` is the position at which the sender was last admitted; its requests from before that are void.
    """

    previous: int
    admitted_at: int
    count: int


class EntryHeader(NamedTuple):
    """The position of an entry in the stream, and the member that it comes from. The fields are in wire order."""

    term: int
    """The term in which this frame is sent; a retransmission may belong to a later term than the entry."""
    position: int
    entry_term: int
    """The term in which the entry was ordered."""
    previous_term: int
    """The term in which the previous entry of the stream was ordered."""
    entry_type: EntryType
    origin: int
    incarnation: int
    ordinal: int
    """The number, in the total order, of the first message or stamp of this entry."""
    stamps: int
    """In a GRANT: the number of stamps. Otherwise 0."""
    request: int


@dataclass(frozen=True, slots=True)
class LastFrames:
    """Which frames of a removed member count: all of earlier requests, and of `request` those below `number`.

    If `request` is ALL_REQUESTS, all frames of the member count: it left normally.
    """

    member: int
    request: int
    number: int


@dataclass(frozen=True, slots=True)
class MemberList:
    """The members from this position on, and the last frames of the removed members that count."""

    members: tuple[int, ...]
    last_frames: tuple[LastFrames, ...] = ()


class Ordered(NamedTuple):
    """The message of an ORDERED frame. The rest of the body, after the header, is a member's frame or a member list."""

    header: EntryHeader
    member_list: MemberList | None = None
    """The content of a MEMBER_LIST entry; None for other types."""


ElectionMessage: TypeAlias = StreamHeartbeat | VoteRequest | Vote | RetransmitRequest
"""The control messages of the election and of the stream."""


TERM_MAX = 2**31 - 1
"""The highest term that a member accepts.

The field has room for later terms, so a member can still count up after a forged message with the highest term.
"""
_TERM = u32("term", most=TERM_MAX)
register(
    {
        Kind.STREAM_HEARTBEAT: Spec(
            StreamHeartbeat,
            _TERM,
            u63("position"),
            u63("stable"),
            u63("retained_from"),
            u63("echo_ns"),
            boolean("wants_answer"),
            boolean("has_majority"),
        ),
        Kind.VOTE_REQUEST: Spec(VoteRequest, _TERM),
        Kind.VOTE: Spec(Vote, _TERM, u63("position"), u32("last_term"), check=lambda vote: vote.last_term < vote.term),
        Kind.RETRANSMIT_REQUEST: Spec(
            RetransmitRequest,
            _TERM,
            choice("missing", MissingKind),
            u63("first"),
            u16("origin"),
            u16("number"),
            u16("count", least=1),
        ),
        Kind.STAMP_REQUEST: Spec(StampRequest, u63("previous"), u63("admitted_at"), u32("count", least=1)),
    }
)
MEMBER_LIST = Spec(
    MemberList,
    count("members", least=1),
    Numbers("members", "H", least=1),
    Items("last_frames", Spec(LastFrames, u16("member"), u63("request"), u16("number"))),
    check=lambda member_list: list(member_list.members) == sorted(set(member_list.members)),
)
"""The content of a MEMBER_LIST entry, after the header. Members are in ascending order."""


# -- ORDERED frames ------------------------------------------------------------------------------------------

_ENTRY_HEADER = struct.Struct("!IQIIBHIQIQ")
ORDERED_BYTES = _ENTRY_HEADER.size
_ENTRY_TYPES = {each.value: each for each in EntryType}


def encode_entry_header(header: EntryHeader) -> bytes:
    """The first ORDERED_BYTES of the body of an ORDERED frame.

    This function and `decode_entry_header` are hand-tuned: leader broadcast sends an ORDERED frame for each frame of a
    member. A `Spec` takes about four times as long.
    """
    return _ENTRY_HEADER.pack(*header)


def decode_entry_header(data: bytes, start: int, end: int) -> EntryHeader:
    """The header at the beginning of data[start:end]; raises Unreadable if it is malformed."""
    if end - start < ORDERED_BYTES:
        raise Unreadable(f"an ORDERED frame needs a header of {ORDERED_BYTES} bytes, but only {end - start} are there")
    term, position, entry_term, previous_term, code, origin, incarnation, ordinal, stamps, request = (
        _ENTRY_HEADER.unpack_from(data, start)
    )
    entry_type = _ENTRY_TYPES.get(code)
    if entry_type is None:
        raise Unreadable(f"field entry_type: expected one of {sorted(_ENTRY_TYPES)}, found {code}")
    header = EntryHeader(
        term, position, entry_term, previous_term, entry_type, origin, incarnation, ordinal, stamps, request
    )
    if term > TERM_MAX:
        raise Unreadable(f"field term: expected at most {TERM_MAX}, found {term}")
    if position >= SEQUENCE_LIMIT or ordinal >= SEQUENCE_LIMIT or request >= SEQUENCE_LIMIT:
        raise Unreadable(f"position, ordinal and request must each be less than 2**63, but found {header}")
    if (
        not previous_term <= entry_term <= term
        or (position == 0) != (entry_type is EntryType.COPY)
        or (stamps > 0) != (entry_type is EntryType.GRANT)
    ):
        raise Unreadable(
            "the header of an ORDERED frame needs previous_term <= entry_term <= term, position 0 only in a COPY, and "
            f"stamps only in a GRANT; found {header}"
        )
    return header


def read_ordered(door: Door, frame: Frame, data: bytes, start: int, end: int) -> Frame | Refusal:
    """Read an ORDERED frame: its header, and then a member's frame, a member list, or nothing (a grant)."""
    content = start + ORDERED_BYTES
    try:
        header = decode_entry_header(data, start, end)
        is_list = header.entry_type is EntryType.MEMBER_LIST
        member_list = MEMBER_LIST.decode(data[content:end]) if is_list else None
    except Unreadable:
        return Refusal.BAD_CONTROL
    if frame.flags & SETTING_REQUEST:
        return Refusal.BAD_CONTROL
    if member_list is not None:
        if frame.flags or not door.members.issuperset(member_list.members):
            return Refusal.BAD_CONTROL
    elif header.origin not in door.members:
        return Refusal.NOT_A_MEMBER
    elif header.entry_type is EntryType.GRANT:
        if frame.flags or content != end:
            return Refusal.BAD_CONTROL
    else:
        refusal = read_messages(frame, data, content, end)
        if isinstance(refusal, Refusal):
            return refusal
    frame.message = Ordered(header, member_list)
    frame.body = memoryview(data)[start:end]
    return frame


register_body(Kind.ORDERED, read_ordered)
