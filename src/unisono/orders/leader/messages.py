"""What members of a led group say to one another: the ordered stream, heartbeats, and the election of a leader.

A reign is the time of one leader; reigns are numbered, and everything here says which reign it belongs to.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from unisono.wire.door import Door, Refusal, read_messages, register_body, register_control
from unisono.wire.frame import WISH, Frame, Kind

_BEAT = struct.Struct("!IQQQB")
_ASK = struct.Struct("!I")
_VOTE = struct.Struct("!IQI")
_NEED = struct.Struct("!IBQHH")
_REQUEST = struct.Struct("!QQI")
_ORDERED = struct.Struct("!IQIIBHIQIQ")
ORDERED_BYTES = _ORDERED.size
_COUNT = struct.Struct("!H")
_CUT = struct.Struct("!HQH")
_TOP = 2**63
ALL = _TOP - 1


class What(IntEnum):
    """What an entry of the ordered stream is."""

    RELAY = 1
    """A member's frame, whole."""
    ROLL = 2
    """Who is in the group from here on."""
    GRANT = 3
    """Stamps for one request."""
    COPY = 4
    """Not an entry: a member's frame sent again by somebody else."""


class Lack(IntEnum):
    """What is asked for again."""

    ENTRIES = 0
    FRAMES = 1


@dataclass(frozen=True, slots=True)
class Beat:
    """A sign of life. The leader's: the last position ordered, and the one that all have; a member's: its own last
    position, and the clock of the leader's last beat. `answer` asks for one at once."""

    reign: int
    position: int
    stable: int
    echo_ns: int
    answer: bool


@dataclass(frozen=True, slots=True)
class Vote:
    """A promise to follow nobody of an earlier reign, with what its sender has of the order."""

    reign: int
    position: int
    last_reign: int


@dataclass(frozen=True, slots=True)
class Need:
    """A request for entries from `first` on, or for a member's frames of request `first` from `number` on."""

    reign: int
    lack: Lack
    first: int
    origin: int
    number: int


@dataclass(frozen=True, slots=True)
class Request:
    """A request for `count` stamps; `previous` is the sender's request before this one.

    `since` is the position at which its sender was last admitted: what it asked for before that is void.
    """

    previous: int
    since: int
    count: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where an entry stands in the order, and whose it is."""

    reign: int
    """Of who sends it now."""
    position: int
    entry_reign: int
    """In which it was ordered."""
    previous_reign: int
    """In which the entry before it was ordered."""
    what: What
    origin: int
    incarnation: int
    ordinal: int
    """The number of its first message, or stamp, in the whole order."""
    count: int
    request: int


@dataclass(frozen=True, slots=True)
class Cut:
    """Of a member that is gone: its frames count up to request `request`, there those below `number`.

    With the request ALL, all of them: it left in order.
    """

    member: int
    request: int
    number: int


@dataclass(frozen=True, slots=True)
class Roll:
    """The members from here on, and how far the frames of those that are gone count."""

    members: tuple[int, ...]
    cuts: tuple[Cut, ...] = ()


def encode_beat(beat: Beat) -> bytes:
    """The body of a BEAT."""
    return _BEAT.pack(beat.reign, beat.position, beat.stable, beat.echo_ns, beat.answer)


def decode_beat(body: bytes) -> Beat | None:
    """The beat, or None if it is malformed."""
    if len(body) != _BEAT.size:
        return None
    reign, position, stable, echo, answer = _BEAT.unpack(body)
    if max(position, stable, echo) >= _TOP or answer > 1:
        return None
    return Beat(reign, position, stable, echo, bool(answer))


def encode_ask(reign: int) -> bytes:
    """The body of an ASK: the reign that its sender wants to begin."""
    return _ASK.pack(reign)


def decode_ask(body: bytes) -> int | None:
    """The reign, or None."""
    return int(_ASK.unpack(body)[0]) if len(body) == _ASK.size else None


def encode_vote(vote: Vote) -> bytes:
    """The body of a VOTE."""
    return _VOTE.pack(vote.reign, vote.position, vote.last_reign)


def decode_vote(body: bytes) -> Vote | None:
    """The vote, or None."""
    if len(body) != _VOTE.size:
        return None
    vote = Vote(*_VOTE.unpack(body))
    return vote if vote.position < _TOP and vote.last_reign < vote.reign else None


def encode_need(need: Need) -> bytes:
    """The body of a NEED."""
    return _NEED.pack(need.reign, need.lack, need.first, need.origin, need.number)


def decode_need(body: bytes) -> Need | None:
    """What is needed, or None."""
    if len(body) != _NEED.size:
        return None
    reign, lack, first, origin, number = _NEED.unpack(body)
    return Need(reign, Lack(lack), first, origin, number) if lack in _LACKS and first < _TOP else None


def encode_request(request: Request) -> bytes:
    """The body of a REQUEST."""
    return _REQUEST.pack(request.previous, request.since, request.count)


def decode_request(body: bytes) -> Request | None:
    """The request, or None."""
    if len(body) != _REQUEST.size:
        return None
    request = Request(*_REQUEST.unpack(body))
    return request if max(request.previous, request.since) < _TOP and request.count else None


def encode_place(place: Place) -> bytes:
    """What the body of an ORDERED frame begins with."""
    return _ORDERED.pack(
        place.reign,
        place.position,
        place.entry_reign,
        place.previous_reign,
        place.what,
        place.origin,
        place.incarnation,
        place.ordinal,
        place.count,
        place.request,
    )


def decode_place(body: bytes | memoryview) -> Place | None:
    """The place, or None if it contradicts itself."""
    if len(body) < _ORDERED.size:
        return None
    reign, position, own, previous, what, origin, incarnation, ordinal, count, request = _ORDERED.unpack_from(body)
    if what not in _WHATS or max(position, ordinal, request) >= _TOP or not previous <= own <= reign:
        return None
    if (position == 0) != (what == What.COPY) or (what == What.GRANT) != (count > 0):
        return None
    return Place(reign, position, own, previous, What(what), origin, incarnation, ordinal, count, request)


def encode_roll(roll: Roll) -> bytes:
    """The payload of a ROLL entry."""
    members = struct.pack(f"!{len(roll.members)}H", *roll.members)
    cuts = b"".join(_CUT.pack(cut.member, cut.request, cut.number) for cut in roll.cuts)
    return _COUNT.pack(len(roll.members)) + members + cuts


def decode_roll(payload: bytes | memoryview) -> Roll | None:
    """The roll, or None: members ascend, and there is at least one."""
    if len(payload) < _COUNT.size:
        return None
    (count,) = _COUNT.unpack_from(payload)
    rest = len(payload) - _COUNT.size - 2 * count
    if not count or rest < 0 or rest % _CUT.size:
        return None
    members = struct.unpack_from(f"!{count}H", payload, _COUNT.size)
    if list(members) != sorted(set(members)) or not members[0]:
        return None
    cuts = tuple(Cut(*fields) for fields in _CUT.iter_unpack(payload[len(payload) - rest :]))
    return Roll(members, cuts) if all(cut.request < _TOP for cut in cuts) else None


_LACKS = frozenset(Lack)
_WHATS = frozenset(What)


def read_ordered(door: Door, frame: Frame, data: bytes, start: int, end: int) -> Frame | Refusal:
    """An entry of a leader's stream: its place, then another member's frame, a roll of members, or nothing."""
    body = memoryview(data)[start:end]
    place = decode_place(body)
    if place is None or frame.flags & WISH:
        return Refusal.BAD_CONTROL
    payload = body[ORDERED_BYTES:]
    if place.what is What.ROLL:
        roll = decode_roll(payload)
        if frame.flags or roll is None or not door.members.issuperset(roll.members):
            return Refusal.BAD_CONTROL
    elif place.origin not in door.members:
        return Refusal.STRANGER
    elif place.what is What.GRANT:
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
        Kind.BEAT: decode_beat,
        Kind.ASK: decode_ask,
        Kind.VOTE: decode_vote,
        Kind.NEED: decode_need,
        Kind.REQUEST: decode_request,
    }
)
register_body(Kind.ORDERED, read_ordered)
