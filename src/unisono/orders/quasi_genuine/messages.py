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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeAlias

from unisono.errors import StorageError
from unisono.model.effects import StoredRecords, Write
from unisono.orders.packing import Bundle, encode_bundle, read_bundle
from unisono.wire.codec import (
    SEQUENCE_LIMIT,
    AnySpec,
    Bytes,
    Counted,
    Fixed,
    Item,
    Items,
    Keyed,
    Mapped,
    Sized,
    Spec,
    Unreadable,
    boolean,
    choice,
    count,
    raw,
    register,
    u8,
    u16,
    u32,
    u63,
    u64,
)
from unisono.wire.frame import Kind, OutgoingMessages, read_packed_messages

# -- stamps --------------------------------------------------------------------------------------------------

STAMP_BYTES = 10
STAMP_SENDERS = 1 << 16


def stamp_of(ts: int, sender: int) -> int:
    """Make a stamp from the timestamp `ts` and the member number of `sender`, which never uses a timestamp twice."""
    return ts * STAMP_SENDERS + sender


def stamp_after(last: int, ts: int, sender: int) -> int:
    """The smallest stamp of `sender` that is larger than the stamp `last` and has at least the timestamp `ts`.

    The sender's number is part of it, so no two messages of any groups have the same stamp.
    """
    return max(stamp_of(ts, sender), stamp_of(time_of(last) + (last % STAMP_SENDERS >= sender), sender))


def time_of(stamp: int) -> int:
    """The timestamp that a stamp contains, in nanoseconds."""
    return stamp // STAMP_SENDERS


def _encode_stamp(stamp: int) -> bytes:
    return stamp.to_bytes(STAMP_BYTES)


def _stamp(name: str) -> Fixed:
    """The specification of a message field that holds a stamp."""
    return raw(name, STAMP_BYTES, int.from_bytes, _encode_stamp)


# -- topology changes ----------------------------------------------------------------------------------------

_CONTROL = struct.Struct("!cQ")
_SET_RECEIVERS_TAG, _CONFIRM_TAG = b"r", b"c"


class TopologyStep(IntEnum):
    """The kinds of topology messages, by which groups open and close the links between them."""

    ADMIT = 1
    """Request: we are going to send to you, from entry `head` + 1 of our stream on. Wait for our barriers."""
    ADMITTED = 2
    """Answer: we wait for your barriers beyond `stamp`. Give your messages to us larger stamps."""
    RELEASE = 3
    """Request: our stream to you ends with entry `head`. Stop waiting for us."""
    RELEASED = 4
    """Answer: we no longer wait for you."""
    SKIP_MEMBER = 5
    """Inside a group: member `head` is considered dead; version `epoch` of the topology does not wait for it."""


@dataclass(frozen=True, slots=True)
class TopologyMessage:
    """A request or answer of `group` about a link; `epoch` counts how many times that link has been opened."""

    step: TopologyStep
    group: int
    epoch: int
    head: int = 0
    stamp: int = 0


@dataclass(frozen=True, slots=True)
class SetReceivers:
    """A control message inside a group: from now on the group sends to these groups and no others."""

    receiver_mask: int


@dataclass(frozen=True, slots=True)
class ConfirmTopology:
    """A control message inside a group: its sender now submits only messages that this topology version allows."""

    version: int


TopologyControl: TypeAlias = SetReceivers | ConfirmTopology
"""A message inside a group about its topology. It travels as a cast without destinations, so no member delivers it."""


def encode_control(control: TopologyControl) -> bytes:
    """The body of the bundle that carries a topology control message."""
    if isinstance(control, SetReceivers):
        message = _CONTROL.pack(_SET_RECEIVERS_TAG, control.receiver_mask)
    else:
        message = _CONTROL.pack(_CONFIRM_TAG, control.version)
    return b"".join(OutgoingMessages([message], same_size=True).parts())


def control_in_bundle(bundle: Bundle) -> TopologyControl | None:
    """The topology control message in a bundle, or None if the bundle holds none."""
    packed = None if bundle.flags else read_packed_messages(bundle.body, 0, len(bundle.body))
    messages = [] if packed is None else packed.messages()
    if len(messages) != 1 or len(messages[0]) != _CONTROL.size:
        return None
    tag, number = _CONTROL.unpack(messages[0])
    if tag == _SET_RECEIVERS_TAG:
        return SetReceivers(number)
    return ConfirmTopology(number) if tag == _CONFIRM_TAG else None


# -- items that a group agrees on ----------------------------------------------------------------------------


class Cast(NamedTuple):
    """A multicast as its sender makes it: its timestamp, its destination groups, and a bundle of messages.

    A cast without destinations carries a `TopologyControl`.
    """

    ts: int
    destination_mask: int
    bundle: Bundle


@dataclass(frozen=True, slots=True)
class Null:
    """Raises the group's last stamp to `stamp` without a message. Nulls with the same number are equivalent."""

    number: int
    stamp: int


@dataclass(frozen=True, slots=True)
class ReceivedByAll:
    """Every member of the group `receiver` has the first `upto` entries of the stream to it, so they can be dropped."""

    receiver: int
    upto: int


LogItem: TypeAlias = Cast | Null | ReceivedByAll | TopologyMessage


_CAST_FIELDS = struct.Struct("!QQ")


class _CastSpec(Spec[Cast]):
    """Encodes and decodes a `Cast` by hand.

    Every message passes through here several times, and a list of fields takes twice the time.
    """

    def encode(self, message: Cast) -> bytes:
        return _CAST_FIELDS.pack(message.ts, message.destination_mask) + encode_bundle(message.bundle)

    def decode_at(self, body: bytes, start: int) -> tuple[Cast, int]:
        at, end = start + CAST_BYTES, len(body)
        if at > end:
            raise Unreadable(f"a cast has {end - start} bytes, but its fields alone need {CAST_BYTES}")
        ts, mask = _CAST_FIELDS.unpack_from(body, start)
        bundle = read_bundle(body, at, end)
        if ts >= SEQUENCE_LIMIT or (not mask and control_in_bundle(bundle) is None):
            raise Unreadable(
                "a cast needs a timestamp below 2**63, and destination groups or a topology control message; "
                f"found timestamp {ts} and destination mask {mask:#x}"
            )
        return Cast(ts, mask, bundle), end


_CAST = _CastSpec(Cast)
_TOPOLOGY_MESSAGE = Spec(
    TopologyMessage, choice("step", TopologyStep), u16("group"), u32("epoch"), u63("head"), _stamp("stamp")
)
_ITEMS: Final[Mapping[int, Spec[Any]]] = {
    1: _CAST,
    2: Spec(Null, u64("number"), _stamp("stamp")),
    3: Spec(ReceivedByAll, u16("receiver"), u64("upto")),
    4: _TOPOLOGY_MESSAGE,
}
_ITEM_TAGS: Final = {spec.types[0]: tag for tag, spec in _ITEMS.items()}
_ITEM = struct.Struct("!BI")
CAST_BYTES = _CAST_FIELDS.size
ITEM_BYTES = _ITEM.size + CAST_BYTES


def encode_value(items: Sequence[LogItem]) -> bytes:
    """Encode items as one value for the group's consensus."""
    parts: list[bytes] = []
    for item in items:
        tag = _ITEM_TAGS[type(item)]
        body = _ITEMS[tag].encode(item)
        parts += (_ITEM.pack(tag, len(body)), body)
    return b"".join(parts)


def decode_value(value: bytes) -> list[LogItem]:
    """The items of a decided value; raises Unreadable if it is malformed."""
    items: list[LogItem] = []
    at = 0
    while at < len(value):
        start = at + _ITEM.size
        if start > len(value):
            raise Unreadable(
                f"a log value ends inside an item: its tag and length need {_ITEM.size} bytes, found {len(value) - at}"
            )
        tag, length = _ITEM.unpack_from(value, at)
        at = start + length
        if tag not in _ITEMS or at > len(value):
            raise Unreadable(
                f"a log value has an item with tag {tag} and {length} bytes; expected one of the tags {sorted(_ITEMS)} "
                f"and at most {len(value) - start} bytes"
            )
        items.append(_ITEMS[tag].decode(value[start:at]))
    return items


# -- messages between groups ---------------------------------------------------------------------------------


class StampedEntry(NamedTuple):
    """A decided message: its stamp, its destination groups and its bundle."""

    stamp: int
    destination_mask: int
    bundle: Bundle


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
    """Asks a group for a barrier: the groups in this message need one of at least `stamp`."""

    stamp: int
    group_mask: int


GroupMessage: TypeAlias = Cast | StreamSegment | StreamAck | BarrierRequest | TopologyMessage
"""The messages of the quasi-genuine order that travel in a frame of their own."""

_ENTRY_FIELDS = struct.Struct(f"!{STAMP_BYTES}sQI")
ENTRY_BYTES = _ENTRY_FIELDS.size
"""The number of bytes of an encoded stream entry before its bundle."""


class _EntrySpec(Spec[StampedEntry]):
    """Encodes and decodes stream entries by hand, because that takes half the time of a list of fields."""

    def encode(self, message: StampedEntry) -> bytes:
        data = encode_bundle(message.bundle)
        return _ENTRY_FIELDS.pack(_encode_stamp(message.stamp), message.destination_mask, len(data)) + data

    def decode_at(self, body: bytes, start: int) -> tuple[StampedEntry, int]:
        at = start + ENTRY_BYTES
        if at > len(body):
            raise Unreadable(f"a stream entry needs {ENTRY_BYTES} bytes at offset {start}, found {len(body) - start}")
        stamp, mask, length = _ENTRY_FIELDS.unpack_from(body, start)
        end = at + length
        return StampedEntry(int.from_bytes(stamp), mask, read_bundle(body, at, end)), end


_ENTRY = _EntrySpec(StampedEntry)
_STREAM_SEGMENT = Spec(
    StreamSegment,
    u16("source"),
    u63("first", least=1),
    u63("head"),
    _stamp("last_stamp"),
    Items("entries", _ENTRY),
    check=lambda segment: segment.first + len(segment.entries) - 1 <= segment.head,
)
STREAM_BYTES = _STREAM_SEGMENT.size
SPECS: Final[Mapping[Kind, AnySpec]] = {
    Kind.GROUP_CAST: _CAST,
    Kind.GROUP_STREAM: _STREAM_SEGMENT,
    Kind.GROUP_STREAM_ACK: Spec(StreamAck, u16("source"), u63("applied")),
    Kind.BARRIER_REQUEST: Spec(BarrierRequest, u64("group_mask"), _stamp("stamp")),
    Kind.TOPOLOGY: _TOPOLOGY_MESSAGE,
}
register(SPECS)

# -- the snapshot of a member's state ------------------------------------------------------------------------

_LINK_STATES = 5


@dataclass(slots=True)
class StreamState:
    """A stream to another group: its number of entries so far, and the entries still kept, from number `first` on."""

    head: int
    first: int
    entries: tuple[StampedEntry, ...]


class NextBundle(NamedTuple):
    """A sender's incarnation, and the serial of its next bundle."""

    incarnation: int
    serial: int


class SourceBarrier(NamedTuple):
    """How many entries of another group's stream this member has received, and the barrier of that group."""

    applied: int
    barrier: int


class NumberedEntry(NamedTuple):
    """The entry with this number in the stream of group `source`."""

    source: int
    number: int
    entry: StampedEntry


class OutgoingLinkState(NamedTuple):
    """The link to another group: its state, epoch, number of entries, and the topology version that closes it."""

    state: int
    epoch: int
    head: int
    closing_version: int


class IncomingLinkState(NamedTuple):
    """The link from another group: its epoch, whether it is open, its first stamp, and its number of entries."""

    epoch: int
    open: bool
    stamp: int
    head: int


@dataclass(slots=True)
class TopologySnapshot:
    """The topology as a group has agreed on it."""

    version: int = 0
    wanted_mask: int = 0
    outgoing: dict[int, OutgoingLinkState] = field(default_factory=dict)
    """By receiving group, the state of the link to it."""
    incoming: dict[int, IncomingLinkState] = field(default_factory=dict)
    """By sending group, the state of the link from it."""
    confirmed_versions: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class GroupState:
    """The state of a member's log and of its barrier queue."""

    last_stamp: int = 0
    null_count: int = 0
    next_serials: dict[int, NextBundle] = field(default_factory=dict)
    """By sender of this member's group: its incarnation, and the serial number of its next bundle."""
    streams: dict[int, StreamState] = field(default_factory=dict)
    barriers: dict[int, SourceBarrier] = field(default_factory=dict)
    """By sending group: the number of its entries received here, and its barrier."""
    pending: tuple[NumberedEntry, ...] = ()
    """Messages that wait for barriers."""
    delivered_stamp: int = 0
    delivered_source: int = 0
    """The stamp and the source group of the last delivered message."""
    fragments: dict[tuple[int, int], bytes] = field(default_factory=dict)
    """By (sender, incarnation): the fragments received of an incomplete message."""
    topology: TopologySnapshot = field(default_factory=TopologySnapshot)


_STREAM_STATE = Spec(StreamState, u64("head"), u64("first"), Sized(Items("entries", _ENTRY)))
_OUTGOING_LINK = Spec(
    OutgoingLinkState, u8("state", most=_LINK_STATES - 1), u32("epoch"), u64("head"), u64("closing_version")
)
_TOPOLOGY = Spec(
    TopologySnapshot,
    u64("version"),
    u64("wanted_mask"),
    count("outgoing"),
    count("incoming"),
    count("confirmed_versions"),
    Keyed("H", Item("outgoing", _OUTGOING_LINK)),
    Keyed("H", Item("incoming", Spec(IncomingLinkState, u32("epoch"), boolean("open"), u64("head"), _stamp("stamp")))),
    Mapped("confirmed_versions", "HQ"),
)
_STATE = Spec(
    GroupState,
    _stamp("last_stamp"),
    _stamp("delivered_stamp"),
    u64("null_count"),
    count("next_serials"),
    count("streams"),
    count("barriers"),
    count("pending", "I"),
    u16("delivered_source"),
    count("fragments"),
    Keyed("H", Item("next_serials", Spec(NextBundle, u32("incarnation"), u64("serial")))),
    Keyed("H", Item("streams", _STREAM_STATE)),
    Keyed("H", Item("barriers", Spec(SourceBarrier, u64("applied"), _stamp("barrier")))),
    Items("pending", Spec(NumberedEntry, u16("source"), u64("number"), Sized(Item("entry", _ENTRY)))),
    Keyed("HI", Counted(Bytes("fragments"), "I")),
    Item("topology", _TOPOLOGY),
)


def encode_state(state: GroupState) -> bytes:
    """Encode the state of a member's log and barrier queue as bytes, for a snapshot."""
    return _STATE.encode(state)


def decode_state(data: bytes) -> GroupState:
    """Decode what `encode_state` returned; raises Unreadable if it is malformed."""
    return _STATE.decode(data)


# -- records on stable storage -------------------------------------------------------------------------------
# A member stores two kinds of records side by side: those of its group's consensus and entries of other groups'
# streams. An entry is durable before it is acknowledged, so the sending group may drop it then. A write that replaces
# all records holds a snapshot, which includes the entries received until then.

_CONSENSUS_TAG, _STREAM_ENTRY_TAG = b"o", b"f"
_STREAM_RECORD = Spec(NumberedEntry, u16("source"), u64("number"), Item("entry", _ENTRY))


def tagged_consensus_writes(writes: Iterable[Write]) -> list[Write]:
    """The writes of the group's consensus, with each record tagged as one of consensus."""
    return [
        Write(tuple(_CONSENSUS_TAG + record for record in write.records), write.replaces_all, write.may_be_lost)
        for write in writes
    ]


def stream_entries_write(source: int, entries: Sequence[tuple[int, StampedEntry]]) -> Write:
    """A write to stable storage with numbered entries of another group's stream."""
    return Write(tuple(_STREAM_ENTRY_TAG + encode_stream_record(NumberedEntry(source, *each)) for each in entries))


def consensus_records(stored_records: StoredRecords | None) -> StoredRecords | None:
    """The stored records of the group's consensus, without their tags."""
    if stored_records is None:
        return None
    records = tuple(record[1:] for record in stored_records.records if record[:1] == _CONSENSUS_TAG)
    return StoredRecords(stored_records.storage_id, records)


def stored_stream_entries(stored_records: StoredRecords | None) -> Iterator[NumberedEntry]:
    """The entries of other groups' streams that were stored after the last snapshot."""
    for record in () if stored_records is None else stored_records.records:
        if record[:1] == _STREAM_ENTRY_TAG:
            try:
                yield decode_stream_record(record[1:])
            except Unreadable as error:
                raise StorageError(
                    f"this member's storage has a malformed message of another group: {error}. Start this member with "
                    "the release of unisono that wrote the file. Do not restore an older copy: it lacks promises "
                    "that this member made later"
                ) from error


def encode_stream_record(entry: NumberedEntry) -> bytes:
    """Encode an entry of another group's stream as a record for stable storage."""
    return _STREAM_RECORD.encode(entry)


def decode_stream_record(data: bytes) -> NumberedEntry:
    """Decode a stored entry of another group's stream; raises Unreadable if it is malformed."""
    return _STREAM_RECORD.decode(data)
