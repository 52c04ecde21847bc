"""What quasi-genuine groups say to one another, and what they agree on among themselves (paper 003).

A stamp is a time stamp made unique: nanoseconds, then the number of the sender. It is a whole number of 80 bits.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from unisono.orders.multigroup.topology_messages import (
    TopologyMessage,
    decode_control,
    decode_topology_message,
    encode_topology_message,
)
from unisono.wire.bundles import Bundle, decode_bundle
from unisono.wire.door import register_control
from unisono.wire.frame import Kind

STAMP_BYTES = 10
STAMP_SENDERS = 1 << 16
_CAST = struct.Struct("!QQ")
CAST_BYTES = _CAST.size
_STREAM_SEGMENT = struct.Struct("!HQQ")
STREAM_BYTES = _STREAM_SEGMENT.size + STAMP_BYTES
_ENTRY = struct.Struct("!QI")
ENTRY_BYTES = STAMP_BYTES + _ENTRY.size
_STREAM_ACK = struct.Struct("!HQ")
_BARRIER_REQUEST = struct.Struct("!Q")
_ITEM = struct.Struct("!BI")
ITEM_BYTES = _ITEM.size + CAST_BYTES
_NULL = struct.Struct("!Q")
_RECEIVED_BY_ALL = struct.Struct("!HQ")
_MESSAGE, _NULL_ITEM, _RECEIVED_BY_ALL_ITEM, _TOPOLOGY_ITEM = 1, 2, 3, 4


def stamp_of(ts: int, sender: int) -> int:
    """The stamp of a message that `sender` made at this time; senders never make two at one time."""
    return ts * STAMP_SENDERS + sender


def stamp_after(last: int, ts: int, sender: int) -> int:
    """max(ts, last+1), with the sender's number in it: no two messages of any groups ever have the same stamp."""
    return max(stamp_of(ts, sender), stamp_of(time_of(last) + (last % STAMP_SENDERS >= sender), sender))


def time_of(stamp: int) -> int:
    """The time in a stamp."""
    return stamp // STAMP_SENDERS


@dataclass(frozen=True, slots=True)
class Cast:
    """A message as its sender multicasts it: its time stamp, its destination groups, and a parcel of messages.

    What is for no group is for nobody to deliver: a control of who may send to whom.
    """

    ts: int
    destination_mask: int
    bundle: bytes


@dataclass(frozen=True, slots=True)
class Null:
    """An empty message: nothing with a stamp up to `stamp` is to come any more. Nulls of one number are equivalent."""

    number: int
    stamp: int


@dataclass(frozen=True, slots=True)
class ReceivedByAll:
    """Every member of the group `receiver` has the first `upto` entries of its stream: nobody needs them any more."""

    receiver: int
    upto: int


Item: TypeAlias = Cast | Null | ReceivedByAll | TopologyMessage


@dataclass(frozen=True, slots=True)
class StampedEntry:
    """A decided message on its way to another group: its stamp, its destination groups and its parcel."""

    stamp: int
    destination_mask: int
    bundle: bytes


@dataclass(frozen=True, slots=True)
class StreamSegment:
    """Entries of what group `source` has decided for the receiver's group, from number `first` on.

    Of what is stamped up to `last` there are `head` entries, so whoever has those has the barrier `last`.
    """

    source: int
    first: int
    head: int
    last_stamp: int
    entries: tuple[StampedEntry, ...]


@dataclass(frozen=True, slots=True)
class StreamAck:
    """`applied` entries of the stream from group `source` are here for good."""

    source: int
    applied: int


@dataclass(frozen=True, slots=True)
class BarrierRequest:
    """These groups need a barrier of at least `stamp`."""

    stamp: int
    group_mask: int


def _encode_stamp(stamp: int) -> bytes:
    return stamp.to_bytes(STAMP_BYTES)


def _read_stamp(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + STAMP_BYTES])


def encode_cast(cast: Cast) -> bytes:
    """A cast as bytes."""
    return _CAST.pack(cast.ts, cast.destination_mask) + cast.bundle


def decode_cast(data: bytes) -> Cast | None:
    """The cast, or None if it is malformed."""
    if len(data) < CAST_BYTES:
        return None
    ts, mask = _CAST.unpack_from(data)
    parcel = data[CAST_BYTES:]
    if ts >= 2**63 or (decode_bundle(parcel) if mask else decode_control(parcel)) is None:
        return None
    return Cast(ts, mask, parcel)


def checked_bundle(data: bytes) -> Bundle:
    """A parcel that was checked when it came in."""
    found = decode_bundle(data)
    if found is None:
        raise ValueError("a parcel that cannot be read was let in")
    return found


def encode_value(items: Sequence[Item]) -> bytes:
    """What a group decides at once."""
    parts: list[bytes] = []
    for item in items:
        if isinstance(item, Cast):
            tag, body = _MESSAGE, encode_cast(item)
        elif isinstance(item, Null):
            tag, body = _NULL_ITEM, _NULL.pack(item.number) + _encode_stamp(item.stamp)
        elif isinstance(item, TopologyMessage):
            tag, body = _TOPOLOGY_ITEM, encode_topology_message(item)
        else:
            tag, body = _RECEIVED_BY_ALL_ITEM, _RECEIVED_BY_ALL.pack(item.receiver, item.upto)
        parts += (_ITEM.pack(tag, len(body)), body)
    return b"".join(parts)


def decode_value(value: bytes) -> list[Item] | None:
    """The items, or None if the value is none of a group's."""
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
    if tag == _MESSAGE:
        return decode_cast(body)
    if tag == _NULL_ITEM and len(body) == _NULL.size + STAMP_BYTES:
        return Null(_NULL.unpack_from(body)[0], _read_stamp(body, _NULL.size))
    if tag == _RECEIVED_BY_ALL_ITEM and len(body) == _RECEIVED_BY_ALL.size:
        return ReceivedByAll(*_RECEIVED_BY_ALL.unpack(body))
    return decode_topology_message(body) if tag == _TOPOLOGY_ITEM else None


def encode_entry(entry: StampedEntry) -> bytes:
    """An entry as bytes."""
    return _encode_stamp(entry.stamp) + _ENTRY.pack(entry.destination_mask, len(entry.bundle)) + entry.bundle


def decode_entries(data: bytes, at: int = 0) -> list[StampedEntry] | None:
    """All entries from `at` on, or None if they are malformed."""
    entries = []
    while at < len(data):
        if at + ENTRY_BYTES > len(data):
            return None
        mask, length = _ENTRY.unpack_from(data, at + STAMP_BYTES)
        parcel = data[at + ENTRY_BYTES : at + ENTRY_BYTES + length]
        if len(parcel) != length or decode_bundle(parcel) is None:
            return None
        entries.append(StampedEntry(_read_stamp(data, at), mask, parcel))
        at += ENTRY_BYTES + length
    return entries


def encode_stream_segment(segment: StreamSegment, entries: Sequence[bytes]) -> bytes:
    """A stream's part, whose entries are encoded already."""
    head = _STREAM_SEGMENT.pack(segment.source, segment.first, segment.head) + _encode_stamp(segment.last_stamp)
    return b"".join([head, *entries])


def decode_stream_segment(data: bytes) -> StreamSegment | None:
    """The part of a stream, or None if it is malformed."""
    if len(data) < STREAM_BYTES:
        return None
    source, first, head = _STREAM_SEGMENT.unpack_from(data)
    last = _read_stamp(data, _STREAM_SEGMENT.size)
    entries = decode_entries(data, STREAM_BYTES)
    if entries is None or first < 1 or first + len(entries) - 1 > head or head >= 2**63:
        return None
    return StreamSegment(source, first, head, last, tuple(entries))


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
    """A wish for barriers as bytes."""
    return _BARRIER_REQUEST.pack(request.group_mask) + _encode_stamp(request.stamp)


def decode_barrier_request(data: bytes) -> BarrierRequest | None:
    """The wish, or None if it is malformed."""
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
