"""What stands for all that a member of a quasi-genuine group has decided and received: its snapshot, as bytes."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from unisono.orders.multigroup.messages import STAMP_BYTES, Entry, decode_entries, encode_entry

_COUNTS = struct.Struct("!QHHHI")
_SENDER = struct.Struct("!HIQ")
_STREAM = struct.Struct("!HQQI")
_SOURCE = struct.Struct("!HQ")
_PENDING = struct.Struct("!HQI")
_PIECES = struct.Struct("!HII")
_PAIR = struct.Struct("!HH")
_RELATION = struct.Struct("!QQHHH")
_OUTGOING = struct.Struct("!HBIQQ")
_INCOMING = struct.Struct("!HI?Q")
_CONFIRM = struct.Struct("!HQ")
_TIES = 5


@dataclass(slots=True)
class StreamState:
    """A stream to another group: how many entries it has had, and those from number `first` on that are kept."""

    head: int
    first: int
    entries: tuple[Entry, ...]


@dataclass(slots=True)
class RelationState:
    """Who may send to whom, as a group has agreed on it."""

    version: int = 0
    wanted: int = 0
    outgoing: dict[int, tuple[int, int, int, int]] = field(default_factory=dict)
    """By receiving group, how far it is with it, how often it has begun, its entries, and since when it closes."""
    incoming: dict[int, tuple[int, bool, int, int]] = field(default_factory=dict)
    """By sending group, how often it has begun, whether it goes on, from which stamp, behind how many entries."""
    confirms: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class GroupState:
    """All that a member's log and its barriers stand for."""

    last: int = 0
    nulls: int = 0
    senders: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By sender of the own group, its life and its next parcel."""
    streams: dict[int, StreamState] = field(default_factory=dict)
    barriers: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By sending group, how many of its entries have come, and its barrier."""
    pending: tuple[tuple[int, int, Entry], ...] = ()
    """What waits for barriers: its group, its number in that group's stream, and itself."""
    delivered: tuple[int, int] = (0, 0)
    """The stamp and the group of what was delivered last."""
    pieces: dict[tuple[int, int], bytes] = field(default_factory=dict)
    """By sender and life, what has come of a message in pieces."""
    relation: RelationState = field(default_factory=RelationState)


def encode_state(state: GroupState) -> bytes:
    """The state as bytes."""
    parts = [
        state.last.to_bytes(STAMP_BYTES),
        state.delivered[0].to_bytes(STAMP_BYTES),
        _COUNTS.pack(state.nulls, len(state.senders), len(state.streams), len(state.barriers), len(state.pending)),
        _PAIR.pack(state.delivered[1], len(state.pieces)),
    ]
    for sender, (life, serial) in sorted(state.senders.items()):
        parts.append(_SENDER.pack(sender, life, serial))
    for receiver, stream in sorted(state.streams.items()):
        entries = b"".join(map(encode_entry, stream.entries))
        parts += (_STREAM.pack(receiver, stream.head, stream.first, len(entries)), entries)
    for source, (applied, barrier) in sorted(state.barriers.items()):
        parts += (_SOURCE.pack(source, applied), barrier.to_bytes(STAMP_BYTES))
    for source, number, entry in state.pending:
        body = encode_entry(entry)
        parts += (_PENDING.pack(source, number, len(body)), body)
    for (sender, life), pieces in sorted(state.pieces.items()):
        parts += (_PIECES.pack(sender, life, len(pieces)), pieces)
    return b"".join([*parts, _encode_relation(state.relation)])


def _encode_relation(relation: RelationState) -> bytes:
    counts = len(relation.outgoing), len(relation.incoming), len(relation.confirms)
    parts = [_RELATION.pack(relation.version, relation.wanted, *counts)]
    for group, tied in sorted(relation.outgoing.items()):
        parts.append(_OUTGOING.pack(group, *tied))
    for group, (epoch, goes_on, stamp, head) in sorted(relation.incoming.items()):
        parts += (_INCOMING.pack(group, epoch, goes_on, head), stamp.to_bytes(STAMP_BYTES))
    for member, version in sorted(relation.confirms.items()):
        parts.append(_CONFIRM.pack(member, version))
    return b"".join(parts)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, length: int) -> bytes:
        part = self.data[self.at : self.at + length]
        if len(part) != length:
            raise ValueError("the state ends early")
        self.at += length
        return part

    def stamp(self) -> int:
        return int.from_bytes(self.take(STAMP_BYTES))

    def fields(self, form: struct.Struct) -> tuple[int, ...]:
        return form.unpack(self.take(form.size))

    def entries(self, length: int) -> Sequence[Entry]:
        entries = decode_entries(self.take(length))
        if entries is None:
            raise ValueError("an entry cannot be read")
        return entries


def decode_state(data: bytes) -> GroupState | None:
    """The state, or None if it is malformed."""
    try:
        return _read(_Reader(data))
    except (ValueError, struct.error):
        return None


def _read(read: _Reader) -> GroupState:
    state = GroupState(last=read.stamp())
    delivered = read.stamp()
    state.nulls, senders, streams, barriers, pending = read.fields(_COUNTS)
    group, pieces = read.fields(_PAIR)
    state.delivered = (delivered, group)
    for _ in range(senders):
        sender, life, serial = read.fields(_SENDER)
        state.senders[sender] = (life, serial)
    for _ in range(streams):
        receiver, head, first, length = read.fields(_STREAM)
        state.streams[receiver] = StreamState(head, first, tuple(read.entries(length)))
    for _ in range(barriers):
        source, applied = read.fields(_SOURCE)
        state.barriers[source] = (applied, read.stamp())
    waiting = []
    for _ in range(pending):
        source, number, length = read.fields(_PENDING)
        (entry,) = read.entries(length)
        waiting.append((source, number, entry))
    state.pending = tuple(waiting)
    for _ in range(pieces):
        sender, life, length = read.fields(_PIECES)
        state.pieces[sender, life] = read.take(length)
    state.relation = _read_relation(read)
    if read.at != len(read.data):
        raise ValueError("there is more than a state")
    return state


def _read_relation(read: _Reader) -> RelationState:
    version, wanted, outgoing, incoming, confirms = read.fields(_RELATION)
    relation = RelationState(version, wanted)
    for _ in range(outgoing):
        group, tie, epoch, head, since = read.fields(_OUTGOING)
        if tie >= _TIES:
            raise ValueError(f"{tie} says nothing of how far it is with sending to a group")
        relation.outgoing[group] = (tie, epoch, head, since)
    for _ in range(incoming):
        group, epoch, goes_on, head = read.fields(_INCOMING)
        relation.incoming[group] = (epoch, bool(goes_on), read.stamp(), head)
    for _ in range(confirms):
        member, confirmed = read.fields(_CONFIRM)
        relation.confirms[member] = confirmed
    return relation


_FOREIGN = struct.Struct("!HQ")


def encode_foreign(source: int, number: int, entry: Entry) -> bytes:
    """A record of another group's entry."""
    return _FOREIGN.pack(source, number) + encode_entry(entry)


def decode_foreign(data: bytes) -> tuple[int, int, Entry] | None:
    """The group, the number and the entry, or None if it is malformed."""
    if len(data) < _FOREIGN.size:
        return None
    entries = decode_entries(data, _FOREIGN.size)
    if entries is None or len(entries) != 1:
        return None
    return (*_FOREIGN.unpack_from(data), entries[0])
