"""What stands for all that a member of a quasi-genuine group has decided and received: its snapshot, as bytes."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from unisono.orders.multigroup.messages import STAMP_BYTES, StampedEntry, decode_entries, encode_entry

_COUNTS = struct.Struct("!QHHHI")
_SENDER = struct.Struct("!HIQ")
_STREAM = struct.Struct("!HQQI")
_SOURCE = struct.Struct("!HQ")
_PENDING = struct.Struct("!HQI")
_FRAGMENTS = struct.Struct("!HII")
_PAIR = struct.Struct("!HH")
_TOPOLOGY = struct.Struct("!QQHHH")
_OUTGOING = struct.Struct("!HBIQQ")
_INCOMING = struct.Struct("!HI?Q")
_CONFIRM = struct.Struct("!HQ")
_LINK_STATES = 5


@dataclass(slots=True)
class StreamState:
    """A stream to another group: how many entries it has had, and those from number `first` on that are kept."""

    head: int
    first: int
    entries: tuple[StampedEntry, ...]


@dataclass(slots=True)
class TopologySnapshot:
    """Who may send to whom, as a group has agreed on it."""

    version: int = 0
    wanted_mask: int = 0
    outgoing: dict[int, tuple[int, int, int, int]] = field(default_factory=dict)
    """By receiving group, how far it is with it, how often it has begun, its entries, and since when it closes."""
    incoming: dict[int, tuple[int, bool, int, int]] = field(default_factory=dict)
    """By sending group, how often it has begun, whether it goes on, from which stamp, behind how many entries."""
    confirmed_versions: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class GroupState:
    """All that a member's log and its barriers stand for."""

    last_stamp: int = 0
    null_count: int = 0
    next_serials: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By sender of the own group, its life and its next parcel."""
    streams: dict[int, StreamState] = field(default_factory=dict)
    barriers: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By sending group, how many of its entries have come, and its barrier."""
    pending: tuple[tuple[int, int, StampedEntry], ...] = ()
    """What waits for barriers: its group, its number in that group's stream, and itself."""
    last_delivered: tuple[int, int] = (0, 0)
    """The stamp and the group of what was delivered last."""
    fragments: dict[tuple[int, int], bytes] = field(default_factory=dict)
    """By sender and life, what has come of a message in pieces."""
    topology: TopologySnapshot = field(default_factory=TopologySnapshot)


def encode_state(state: GroupState) -> bytes:
    """The state as bytes."""
    parts = [
        state.last_stamp.to_bytes(STAMP_BYTES),
        state.last_delivered[0].to_bytes(STAMP_BYTES),
        _COUNTS.pack(
            state.null_count, len(state.next_serials), len(state.streams), len(state.barriers), len(state.pending)
        ),
        _PAIR.pack(state.last_delivered[1], len(state.fragments)),
    ]
    for sender, (life, serial) in sorted(state.next_serials.items()):
        parts.append(_SENDER.pack(sender, life, serial))
    for receiver, stream in sorted(state.streams.items()):
        entries = b"".join(map(encode_entry, stream.entries))
        parts += (_STREAM.pack(receiver, stream.head, stream.first, len(entries)), entries)
    for source, (applied, barrier) in sorted(state.barriers.items()):
        parts += (_SOURCE.pack(source, applied), barrier.to_bytes(STAMP_BYTES))
    for source, number, entry in state.pending:
        body = encode_entry(entry)
        parts += (_PENDING.pack(source, number, len(body)), body)
    for (sender, life), pieces in sorted(state.fragments.items()):
        parts += (_FRAGMENTS.pack(sender, life, len(pieces)), pieces)
    return b"".join([*parts, _encode_topology(state.topology)])


def _encode_topology(topology: TopologySnapshot) -> bytes:
    counts = len(topology.outgoing), len(topology.incoming), len(topology.confirmed_versions)
    parts = [_TOPOLOGY.pack(topology.version, topology.wanted_mask, *counts)]
    for group, tied in sorted(topology.outgoing.items()):
        parts.append(_OUTGOING.pack(group, *tied))
    for group, (epoch, goes_on, stamp, head) in sorted(topology.incoming.items()):
        parts += (_INCOMING.pack(group, epoch, goes_on, head), stamp.to_bytes(STAMP_BYTES))
    for member, version in sorted(topology.confirmed_versions.items()):
        parts.append(_CONFIRM.pack(member, version))
    return b"".join(parts)


class _StateReader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def read_bytes(self, length: int) -> bytes:
        part = self.data[self.at : self.at + length]
        if len(part) != length:
            raise ValueError("the state ends early")
        self.at += length
        return part

    def read_stamp(self) -> int:
        return int.from_bytes(self.read_bytes(STAMP_BYTES))

    def read_fields(self, form: struct.Struct) -> tuple[int, ...]:
        return form.unpack(self.read_bytes(form.size))

    def read_entries(self, length: int) -> Sequence[StampedEntry]:
        entries = decode_entries(self.read_bytes(length))
        if entries is None:
            raise ValueError("an entry cannot be read")
        return entries


def decode_state(data: bytes) -> GroupState | None:
    """The state, or None if it is malformed."""
    try:
        return _read_state(_StateReader(data))
    except (ValueError, struct.error):
        return None


def _read_state(reader: _StateReader) -> GroupState:
    state = GroupState(last_stamp=reader.read_stamp())
    delivered = reader.read_stamp()
    state.null_count, senders, streams, barriers, pending = reader.read_fields(_COUNTS)
    group, pieces = reader.read_fields(_PAIR)
    state.last_delivered = (delivered, group)
    for _ in range(senders):
        sender, life, serial = reader.read_fields(_SENDER)
        state.next_serials[sender] = (life, serial)
    for _ in range(streams):
        receiver, head, first, length = reader.read_fields(_STREAM)
        state.streams[receiver] = StreamState(head, first, tuple(reader.read_entries(length)))
    for _ in range(barriers):
        source, applied = reader.read_fields(_SOURCE)
        state.barriers[source] = (applied, reader.read_stamp())
    waiting = []
    for _ in range(pending):
        source, number, length = reader.read_fields(_PENDING)
        (entry,) = reader.read_entries(length)
        waiting.append((source, number, entry))
    state.pending = tuple(waiting)
    for _ in range(pieces):
        sender, life, length = reader.read_fields(_FRAGMENTS)
        state.fragments[sender, life] = reader.read_bytes(length)
    state.topology = _read_topology(reader)
    if reader.at != len(reader.data):
        raise ValueError("there is more than a state")
    return state


def _read_topology(reader: _StateReader) -> TopologySnapshot:
    version, wanted, outgoing, incoming, confirms = reader.read_fields(_TOPOLOGY)
    relation = TopologySnapshot(version, wanted)
    for _ in range(outgoing):
        group, tie, epoch, head, since = reader.read_fields(_OUTGOING)
        if tie >= _LINK_STATES:
            raise ValueError(f"{tie} says nothing of how far it is with sending to a group")
        relation.outgoing[group] = (tie, epoch, head, since)
    for _ in range(incoming):
        group, epoch, goes_on, head = reader.read_fields(_INCOMING)
        relation.incoming[group] = (epoch, bool(goes_on), reader.read_stamp(), head)
    for _ in range(confirms):
        member, confirmed = reader.read_fields(_CONFIRM)
        relation.confirmed_versions[member] = confirmed
    return relation


_STREAM_RECORD = struct.Struct("!HQ")


def encode_stream_record(source: int, number: int, entry: StampedEntry) -> bytes:
    """A record of another group's entry."""
    return _STREAM_RECORD.pack(source, number) + encode_entry(entry)


def decode_stream_record(data: bytes) -> tuple[int, int, StampedEntry] | None:
    """The group, the number and the entry, or None if it is malformed."""
    if len(data) < _STREAM_RECORD.size:
        return None
    entries = decode_entries(data, _STREAM_RECORD.size)
    if entries is None or len(entries) != 1:
        return None
    return (*_STREAM_RECORD.unpack_from(data), entries[0])
