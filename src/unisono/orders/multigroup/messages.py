"""Messages between and inside the groups of the quasi-genuine order (paper 003), and its stored records.

A stamp is a timestamp made unique: nanoseconds, then the member number of the sender. It takes 80 bits on the wire.
Groups are numbers: the index of the group in `Topology.names`. A set of groups is a mask with one bit per group.

The parts of this module, in order:

- stamps;
- items that a group agrees on: casts, nulls, entries received by all, topology messages;
- messages between groups: stream segments, acknowledgments, barrier requests;
- the snapshot of a member's state, and the records that it keeps on stable storage.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeAlias

from unisono.errors import StorageError
from unisono.model.effects import StoredRecords, Write
from unisono.orders.packing import Bundle, decode_bundle
from unisono.wire.door import register_control
from unisono.wire.frame import Kind, OutgoingMessages, read_packed_messages

# -- stamps --------------------------------------------------------------------------------------------------

STAMP_BYTES = 10
STAMP_SENDERS = 1 << 16


def stamp_of(ts: int, sender: int) -> int:
    """The stamp for a timestamp of `sender`. A sender never uses a timestamp twice."""
    return ts * STAMP_SENDERS + sender


def stamp_after(last: int, ts: int, sender: int) -> int:
    """max(ts, last+1) with the sender's number in it, so that no two messages of any groups have the same stamp."""
    return max(stamp_of(ts, sender), stamp_of(time_of(last) + (last % STAMP_SENDERS >= sender), sender))


def time_of(stamp: int) -> int:
    """The time in a stamp."""
    return stamp // STAMP_SENDERS


def _encode_stamp(stamp: int) -> bytes:
    return stamp.to_bytes(STAMP_BYTES)


def _read_stamp(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + STAMP_BYTES])


# -- topology changes ----------------------------------------------------------------------------------------

_TOPOLOGY_MESSAGE = struct.Struct("!BHIQ")
TOPOLOGY_MESSAGE_BYTES = _TOPOLOGY_MESSAGE.size + STAMP_BYTES
_CONTROL = struct.Struct("!cQ")
_SET_RECEIVERS_TAG, _CONFIRM_TAG = b"r", b"c"


class TopologyStep(IntEnum):
    """The kind of a topology message."""

    ADMIT = 1
    """Request: we are going to send to you, from entry `head` + 1 on. Wait for our barriers."""
    ADMITTED = 2
    """Answer: we wait for your barriers beyond `stamp`. Give your messages to us larger stamps."""
    RELEASE = 3
    """Request: our stream to you ends with entry `head`. Stop waiting for us."""
    RELEASED = 4
    """Answer: we no longer wait for you."""
    SKIP_MEMBER = 5
    """Inside a group: member `head` is considered dead; version `epoch` of the topology does not wait for it."""


_STEPS = frozenset(TopologyStep)


@dataclass(frozen=True, slots=True)
class TopologyMessage:
    """A request or answer of `group`; `epoch` counts how many times one of the two groups opened its link."""

    step: TopologyStep
    group: int
    epoch: int
    head: int = 0
    stamp: int = 0


@dataclass(frozen=True, slots=True)
class SetReceivers:
    """Control: the own group sends to these groups and no others."""

    receiver_mask: int


@dataclass(frozen=True, slots=True)
class ConfirmTopology:
    """Control: after this, its sender submits only messages that this version of the topology allows."""

    version: int


TopologyControl: TypeAlias = SetReceivers | ConfirmTopology
"""A message inside a group about its topology. It travels as a cast without destinations, so no member delivers it."""


def encode_topology_message(message: TopologyMessage) -> bytes:
    """A topology message as bytes."""
    fields = _TOPOLOGY_MESSAGE.pack(message.step, message.group, message.epoch, message.head)
    return fields + _encode_stamp(message.stamp)


def decode_topology_message(data: bytes) -> TopologyMessage | None:
    """The topology message, or None if it is malformed."""
    if len(data) != TOPOLOGY_MESSAGE_BYTES:
        return None
    step, group, epoch, head = _TOPOLOGY_MESSAGE.unpack_from(data)
    if step not in _STEPS or head >= 2**63:
        return None
    return TopologyMessage(TopologyStep(step), group, epoch, head, _read_stamp(data, _TOPOLOGY_MESSAGE.size))


def encode_control(control: TopologyControl) -> bytes:
    """The body of the bundle that a control travels in."""
    if isinstance(control, SetReceivers):
        message = _CONTROL.pack(_SET_RECEIVERS_TAG, control.receiver_mask)
    else:
        message = _CONTROL.pack(_CONFIRM_TAG, control.version)
    return b"".join(OutgoingMessages([message], same_size=True).parts())


def decode_control(data: bytes) -> TopologyControl | None:
    """The control in an encoded bundle, or None if the bundle holds no control."""
    bundle = decode_bundle(data)
    return None if bundle is None else control_in_bundle(bundle)


def control_in_bundle(bundle: Bundle) -> TopologyControl | None:
    """The control in a bundle, or None if it holds none."""
    packed = None if bundle.flags else read_packed_messages(bundle.body, 0, len(bundle.body))
    messages = [] if packed is None else packed.messages()
    if len(messages) != 1 or len(messages[0]) != _CONTROL.size:
        return None
    tag, number = _CONTROL.unpack(messages[0])
    if tag == _SET_RECEIVERS_TAG:
        return SetReceivers(number)
    return ConfirmTopology(number) if tag == _CONFIRM_TAG else None


# -- items that a group agrees on ----------------------------------------------------------------------------

_CAST = struct.Struct("!QQ")
CAST_BYTES = _CAST.size
_ITEM = struct.Struct("!BI")
ITEM_BYTES = _ITEM.size + CAST_BYTES
_NULL = struct.Struct("!Q")
_RECEIVED_BY_ALL = struct.Struct("!HQ")
_CAST_ITEM, _NULL_ITEM, _RECEIVED_BY_ALL_ITEM, _TOPOLOGY_ITEM = 1, 2, 3, 4


@dataclass(frozen=True, slots=True)
class Cast:
    """A multicast as its sender makes it: its timestamp, its destination groups, and a bundle of messages.

    A cast without destinations carries a `TopologyControl`.
    """

    ts: int
    destination_mask: int
    bundle: bytes


@dataclass(frozen=True, slots=True)
class Null:
    """Raises the group's last stamp to `stamp` without a message. Nulls with the same number are equivalent."""

    number: int
    stamp: int


@dataclass(frozen=True, slots=True)
class ReceivedByAll:
    """Every member of the group `receiver` has the first `upto` entries of its stream, so they can be dropped."""

    receiver: int
    upto: int


Item: TypeAlias = Cast | Null | ReceivedByAll | TopologyMessage


def encode_cast(cast: Cast) -> bytes:
    """A cast as bytes."""
    return _CAST.pack(cast.ts, cast.destination_mask) + cast.bundle


def decode_cast(data: bytes) -> Cast | None:
    """The cast, or None if it is malformed."""
    if len(data) < CAST_BYTES:
        return None
    ts, mask = _CAST.unpack_from(data)
    bundle = data[CAST_BYTES:]
    if ts >= 2**63 or (decode_bundle(bundle) if mask else decode_control(bundle)) is None:
        return None
    return Cast(ts, mask, bundle)


def checked_bundle(data: bytes) -> Bundle:
    """Decode a bundle that was checked on arrival."""
    bundle = decode_bundle(data)
    if bundle is None:
        raise ValueError("a malformed bundle passed the check of incoming frames")
    return bundle


def encode_value(items: Sequence[Item]) -> bytes:
    """Items as one value for the group's consensus."""
    parts: list[bytes] = []
    for item in items:
        if isinstance(item, Cast):
            tag, body = _CAST_ITEM, encode_cast(item)
        elif isinstance(item, Null):
            tag, body = _NULL_ITEM, _NULL.pack(item.number) + _encode_stamp(item.stamp)
        elif isinstance(item, TopologyMessage):
            tag, body = _TOPOLOGY_ITEM, encode_topology_message(item)
        else:
            tag, body = _RECEIVED_BY_ALL_ITEM, _RECEIVED_BY_ALL.pack(item.receiver, item.upto)
        parts += (_ITEM.pack(tag, len(body)), body)
    return b"".join(parts)


def decode_value(value: bytes) -> list[Item] | None:
    """The items of a decided value, or None if it is malformed."""
    items: list[Item] = []
    at = 0
    while at < len(value):
        if at + _ITEM.size > len(value):
            return None
        tag, length = _ITEM.unpack_from(value, at)
        body = value[at + _ITEM.size : at + _ITEM.size + length]
        at += _ITEM.size + length
        item = _decode_item(tag, body) if len(body) == length else None
        if item is None:
            return None
        items.append(item)
    return items


def _decode_item(tag: int, body: bytes) -> Item | None:
    if tag == _CAST_ITEM:
        return decode_cast(body)
    if tag == _NULL_ITEM and len(body) == _NULL.size + STAMP_BYTES:
        return Null(_NULL.unpack_from(body)[0], _read_stamp(body, _NULL.size))
    if tag == _RECEIVED_BY_ALL_ITEM and len(body) == _RECEIVED_BY_ALL.size:
        return ReceivedByAll(*_RECEIVED_BY_ALL.unpack(body))
    return decode_topology_message(body) if tag == _TOPOLOGY_ITEM else None


# -- messages between groups ---------------------------------------------------------------------------------

_STREAM_SEGMENT = struct.Struct("!HQQ")
STREAM_BYTES = _STREAM_SEGMENT.size + STAMP_BYTES
_ENTRY = struct.Struct("!QI")
ENTRY_BYTES = STAMP_BYTES + _ENTRY.size
_STREAM_ACK = struct.Struct("!HQ")
_BARRIER_REQUEST = struct.Struct("!Q")


@dataclass(frozen=True, slots=True)
class StampedEntry:
    """A decided message: its stamp, its destination groups and its bundle."""

    stamp: int
    destination_mask: int
    bundle: bytes


@dataclass(frozen=True, slots=True)
class StreamSegment:
    """Entries that group `source` has decided for the receiver's group, from number `first` on.

    The stream has `head` entries with stamps up to `last_stamp`. A receiver that has all of them therefore has the
    barrier `last_stamp`.
    """

    source: int
    first: int
    head: int
    last_stamp: int
    entries: tuple[StampedEntry, ...]


@dataclass(frozen=True, slots=True)
class StreamAck:
    """The sender has stored the first `applied` entries of the stream from group `source`."""

    source: int
    applied: int


@dataclass(frozen=True, slots=True)
class BarrierRequest:
    """These groups need a barrier of at least `stamp`."""

    stamp: int
    group_mask: int


def encode_entry(entry: StampedEntry) -> bytes:
    """An entry as bytes."""
    return _encode_stamp(entry.stamp) + _ENTRY.pack(entry.destination_mask, len(entry.bundle)) + entry.bundle


def decode_entries(data: bytes, at: int = 0) -> list[StampedEntry] | None:
    """All entries from offset `at` on, or None if they are malformed."""
    entries = []
    while at < len(data):
        if at + ENTRY_BYTES > len(data):
            return None
        mask, length = _ENTRY.unpack_from(data, at + STAMP_BYTES)
        bundle = data[at + ENTRY_BYTES : at + ENTRY_BYTES + length]
        if len(bundle) != length or decode_bundle(bundle) is None:
            return None
        entries.append(StampedEntry(_read_stamp(data, at), mask, bundle))
        at += ENTRY_BYTES + length
    return entries


def encode_stream_segment(segment: StreamSegment, entries: Sequence[bytes]) -> bytes:
    """A stream segment as bytes; its entries are given already encoded."""
    head = _STREAM_SEGMENT.pack(segment.source, segment.first, segment.head) + _encode_stamp(segment.last_stamp)
    return b"".join([head, *entries])


def decode_stream_segment(data: bytes) -> StreamSegment | None:
    """The stream segment, or None if it is malformed."""
    if len(data) < STREAM_BYTES:
        return None
    source, first, head = _STREAM_SEGMENT.unpack_from(data)
    last_stamp = _read_stamp(data, _STREAM_SEGMENT.size)
    entries = decode_entries(data, STREAM_BYTES)
    if entries is None or first < 1 or first + len(entries) - 1 > head or head >= 2**63:
        return None
    return StreamSegment(source, first, head, last_stamp, tuple(entries))


def encode_stream_ack(ack: StreamAck) -> bytes:
    """An acknowledgment as bytes."""
    return _STREAM_ACK.pack(ack.source, ack.applied)


def decode_stream_ack(data: bytes) -> StreamAck | None:
    """The acknowledgment, or None if it is malformed."""
    if len(data) != _STREAM_ACK.size:
        return None
    source, applied = _STREAM_ACK.unpack(data)
    return StreamAck(source, applied) if applied < 2**63 else None


def encode_barrier_request(request: BarrierRequest) -> bytes:
    """A barrier request as bytes."""
    return _BARRIER_REQUEST.pack(request.group_mask) + _encode_stamp(request.stamp)


def decode_barrier_request(data: bytes) -> BarrierRequest | None:
    """The barrier request, or None if it is malformed."""
    if len(data) != _BARRIER_REQUEST.size + STAMP_BYTES:
        return None
    return BarrierRequest(_read_stamp(data, _BARRIER_REQUEST.size), _BARRIER_REQUEST.unpack_from(data)[0])


DECODERS = {
    Kind.GROUP_CAST: decode_cast,
    Kind.GROUP_STREAM: decode_stream_segment,
    Kind.GROUP_STREAM_ACK: decode_stream_ack,
    Kind.BARRIER_REQUEST: decode_barrier_request,
    Kind.TOPOLOGY: decode_topology_message,
}
register_control(DECODERS)

# -- the snapshot of a member's state ------------------------------------------------------------------------

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
    """A stream to another group: its number of entries so far, and the entries from number `first` on."""

    head: int
    first: int
    entries: tuple[StampedEntry, ...]


@dataclass(slots=True)
class TopologySnapshot:
    """The topology as a group has agreed on it."""

    version: int = 0
    wanted_mask: int = 0
    outgoing: dict[int, tuple[int, int, int, int]] = field(default_factory=dict)
    """By receiving group: link state, epoch, number of entries, version since which the link closes."""
    incoming: dict[int, tuple[int, bool, int, int]] = field(default_factory=dict)
    """By sending group: epoch, whether the link is open, first stamp, number of entries."""
    confirmed_versions: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class GroupState:
    """The state of a member's log and of its barrier queue."""

    last_stamp: int = 0
    null_count: int = 0
    next_serials: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By sender of the own group: its incarnation and the serial of its next bundle."""
    streams: dict[int, StreamState] = field(default_factory=dict)
    barriers: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By sending group: the number of its entries received, and its barrier."""
    pending: tuple[tuple[int, int, StampedEntry], ...] = ()
    """Messages that wait for barriers: source group, number in that group's stream, entry."""
    last_delivered: tuple[int, int] = (0, 0)
    """The stamp and the source group of the last delivered message."""
    fragments: dict[tuple[int, int], bytes] = field(default_factory=dict)
    """By (sender, incarnation): the fragments received of an incomplete message."""
    topology: TopologySnapshot = field(default_factory=TopologySnapshot)


def encode_state(state: GroupState) -> bytes:
    """The state as bytes."""
    parts = [
        _encode_stamp(state.last_stamp),
        _encode_stamp(state.last_delivered[0]),
        _COUNTS.pack(
            state.null_count, len(state.next_serials), len(state.streams), len(state.barriers), len(state.pending)
        ),
        _PAIR.pack(state.last_delivered[1], len(state.fragments)),
    ]
    for sender, (incarnation, serial) in sorted(state.next_serials.items()):
        parts.append(_SENDER.pack(sender, incarnation, serial))
    for receiver, stream in sorted(state.streams.items()):
        entries = b"".join(map(encode_entry, stream.entries))
        parts += (_STREAM.pack(receiver, stream.head, stream.first, len(entries)), entries)
    for source, (applied, barrier) in sorted(state.barriers.items()):
        parts += (_SOURCE.pack(source, applied), _encode_stamp(barrier))
    for source, number, entry in state.pending:
        body = encode_entry(entry)
        parts += (_PENDING.pack(source, number, len(body)), body)
    for (sender, incarnation), fragments in sorted(state.fragments.items()):
        parts += (_FRAGMENTS.pack(sender, incarnation, len(fragments)), fragments)
    return b"".join([*parts, _encode_topology(state.topology)])


def _encode_topology(topology: TopologySnapshot) -> bytes:
    counts = len(topology.outgoing), len(topology.incoming), len(topology.confirmed_versions)
    parts = [_TOPOLOGY.pack(topology.version, topology.wanted_mask, *counts)]
    for group, link in sorted(topology.outgoing.items()):
        parts.append(_OUTGOING.pack(group, *link))
    for group, (epoch, is_open, stamp, head) in sorted(topology.incoming.items()):
        parts += (_INCOMING.pack(group, epoch, is_open, head), _encode_stamp(stamp))
    for member, version in sorted(topology.confirmed_versions.items()):
        parts.append(_CONFIRM.pack(member, version))
    return b"".join(parts)


def decode_state(data: bytes) -> GroupState | None:
    """The state, or None if it is malformed."""
    try:
        return _read_state(_StateReader(data))
    except (ValueError, struct.error):
        return None


class _StateReader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def read_bytes(self, length: int) -> bytes:
        part = self.data[self.at : self.at + length]
        if len(part) != length:
            raise ValueError("the state is truncated")
        self.at += length
        return part

    def read_stamp(self) -> int:
        return int.from_bytes(self.read_bytes(STAMP_BYTES))

    def read_fields(self, form: struct.Struct) -> tuple[int, ...]:
        return form.unpack(self.read_bytes(form.size))

    def read_entries(self, length: int) -> Sequence[StampedEntry]:
        entries = decode_entries(self.read_bytes(length))
        if entries is None:
            raise ValueError("the state holds a malformed entry")
        return entries


def _read_state(reader: _StateReader) -> GroupState:
    state = GroupState(last_stamp=reader.read_stamp())
    delivered_stamp = reader.read_stamp()
    state.null_count, sender_count, stream_count, barrier_count, pending_count = reader.read_fields(_COUNTS)
    delivered_group, fragment_count = reader.read_fields(_PAIR)
    state.last_delivered = (delivered_stamp, delivered_group)
    for _ in range(sender_count):
        sender, incarnation, serial = reader.read_fields(_SENDER)
        state.next_serials[sender] = (incarnation, serial)
    for _ in range(stream_count):
        receiver, head, first, length = reader.read_fields(_STREAM)
        state.streams[receiver] = StreamState(head, first, tuple(reader.read_entries(length)))
    for _ in range(barrier_count):
        source, applied = reader.read_fields(_SOURCE)
        state.barriers[source] = (applied, reader.read_stamp())
    pending = []
    for _ in range(pending_count):
        source, number, length = reader.read_fields(_PENDING)
        (entry,) = reader.read_entries(length)
        pending.append((source, number, entry))
    state.pending = tuple(pending)
    for _ in range(fragment_count):
        sender, incarnation, length = reader.read_fields(_FRAGMENTS)
        state.fragments[sender, incarnation] = reader.read_bytes(length)
    state.topology = _read_topology(reader)
    if reader.at != len(reader.data):
        raise ValueError("there are bytes after the end of the state")
    return state


def _read_topology(reader: _StateReader) -> TopologySnapshot:
    version, wanted_mask, outgoing_count, incoming_count, confirmed_count = reader.read_fields(_TOPOLOGY)
    topology = TopologySnapshot(version, wanted_mask)
    for _ in range(outgoing_count):
        group, link_state, epoch, head, closing_version = reader.read_fields(_OUTGOING)
        if link_state >= _LINK_STATES:
            raise ValueError(f"{link_state} is not a link state")
        topology.outgoing[group] = (link_state, epoch, head, closing_version)
    for _ in range(incoming_count):
        group, epoch, is_open, head = reader.read_fields(_INCOMING)
        topology.incoming[group] = (epoch, bool(is_open), reader.read_stamp(), head)
    for _ in range(confirmed_count):
        member, confirmed_version = reader.read_fields(_CONFIRM)
        topology.confirmed_versions[member] = confirmed_version
    return topology


# -- records on stable storage -------------------------------------------------------------------------------
# A member stores two kinds of records side by side: those of its group's consensus and entries of other groups'
# streams. An entry is durable before it is acknowledged, so the sending group may drop it then. A write that replaces
# all records holds a snapshot, which includes the entries received until then.

_CONSENSUS_TAG, _STREAM_ENTRY_TAG = b"o", b"f"
_STREAM_RECORD = struct.Struct("!HQ")


def tagged_consensus_writes(writes: Iterable[Write]) -> list[Write]:
    """The writes of the group's consensus, each record tagged as such."""
    return [
        Write(tuple(_CONSENSUS_TAG + record for record in write.records), write.replaces_all, write.may_be_lost)
        for write in writes
    ]


def stream_entries_write(source: int, entries: Sequence[tuple[int, StampedEntry]]) -> Write:
    """A write with numbered entries of another group's stream."""
    return Write(tuple(_STREAM_ENTRY_TAG + encode_stream_record(source, number, entry) for number, entry in entries))


def consensus_records(stored_records: StoredRecords | None) -> StoredRecords | None:
    """The stored records of the group's consensus, without their tags."""
    if stored_records is None:
        return None
    records = tuple(record[1:] for record in stored_records.records if record[:1] == _CONSENSUS_TAG)
    return StoredRecords(stored_records.storage_id, records)


def stored_stream_entries(stored_records: StoredRecords | None) -> Iterator[tuple[int, int, StampedEntry]]:
    """The entries of other groups' streams that were stored after the last snapshot: group, number, entry."""
    for record in () if stored_records is None else stored_records.records:
        if record[:1] == _STREAM_ENTRY_TAG:
            found = decode_stream_record(record[1:])
            if found is None:
                raise StorageError(
                    "a stored message of another group is malformed; restore this member's storage file from a copy"
                )
            yield found


def encode_stream_record(source: int, number: int, entry: StampedEntry) -> bytes:
    """An entry of another group's stream as a record."""
    return _STREAM_RECORD.pack(source, number) + encode_entry(entry)


def decode_stream_record(data: bytes) -> tuple[int, int, StampedEntry] | None:
    """The group, the number and the entry, or None if the record is malformed."""
    if len(data) < _STREAM_RECORD.size:
        return None
    entries = decode_entries(data, _STREAM_RECORD.size)
    if entries is None or len(entries) != 1:
        return None
    return (*_STREAM_RECORD.unpack_from(data), entries[0])
