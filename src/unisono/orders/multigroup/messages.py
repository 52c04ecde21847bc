"""What quasi-genuine groups say to one another, and what they agree on among themselves (paper 003).

A stamp is a time stamp made unique: nanoseconds, then the number of the sender. It is a whole number of 80 bits.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from unisono.orders.multigroup.topology_messages import Bond, control_of, decode_bond, encode_bond
from unisono.wire.bundles import Parcel, decode_parcel
from unisono.wire.door import register_control
from unisono.wire.frame import Kind

STAMP_BYTES = 10
STAMP_SENDERS = 1 << 16
_CAST = struct.Struct("!QQ")
CAST_BYTES = _CAST.size
_STREAM = struct.Struct("!HQQ")
STREAM_BYTES = _STREAM.size + STAMP_BYTES
_ENTRY = struct.Struct("!QI")
ENTRY_BYTES = STAMP_BYTES + _ENTRY.size
_ACK = struct.Struct("!HQ")
_WANT = struct.Struct("!Q")
_ITEM = struct.Struct("!BI")
ITEM_BYTES = _ITEM.size + CAST_BYTES
_NULL = struct.Struct("!Q")
_HEARD = struct.Struct("!HQ")
_MESSAGE, _NULL_ITEM, _HEARD_ITEM, _BOND_ITEM = 1, 2, 3, 4


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
    mask: int
    parcel: bytes


@dataclass(frozen=True, slots=True)
class Null:
    """An empty message: nothing with a stamp up to `stamp` is to come any more. Nulls of one number are equivalent."""

    number: int
    stamp: int


@dataclass(frozen=True, slots=True)
class Heard:
    """Every member of the group `receiver` has the first `upto` entries of its stream: nobody needs them any more."""

    receiver: int
    upto: int


Item: TypeAlias = Cast | Null | Heard | Bond


@dataclass(frozen=True, slots=True)
class Entry:
    """A decided message on its way to another group: its stamp, its destination groups and its parcel."""

    stamp: int
    mask: int
    parcel: bytes


@dataclass(frozen=True, slots=True)
class Stream:
    """Entries of what group `source` has decided for the receiver's group, from number `first` on.

    Of what is stamped up to `last` there are `head` entries, so whoever has those has the barrier `last`.
    """

    source: int
    first: int
    head: int
    last: int
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Ack:
    """`applied` entries of the stream from group `source` are here for good."""

    source: int
    applied: int


@dataclass(frozen=True, slots=True)
class Want:
    """These groups need a barrier of at least `stamp`."""

    stamp: int
    mask: int


def _stamp(stamp: int) -> bytes:
    return stamp.to_bytes(STAMP_BYTES)


def _read_stamp(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + STAMP_BYTES])


def encode_cast(cast: Cast) -> bytes:
    """A cast as bytes."""
    return _CAST.pack(cast.ts, cast.mask) + cast.parcel


def decode_cast(data: bytes) -> Cast | None:
    """The cast, or None if it is malformed."""
    if len(data) < CAST_BYTES:
        return None
    ts, mask = _CAST.unpack_from(data)
    parcel = data[CAST_BYTES:]
    if ts >= 2**63 or (decode_parcel(parcel) if mask else control_of(parcel)) is None:
        return None
    return Cast(ts, mask, parcel)


def parcel_of(parcel: bytes) -> Parcel:
    """A parcel that was checked when it came in."""
    found = decode_parcel(parcel)
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
            tag, body = _NULL_ITEM, _NULL.pack(item.number) + _stamp(item.stamp)
        elif isinstance(item, Bond):
            tag, body = _BOND_ITEM, encode_bond(item)
        else:
            tag, body = _HEARD_ITEM, _HEARD.pack(item.receiver, item.upto)
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
        item = _item(tag, body) if len(body) == length else None
        if item is None:
            return None
        items.append(item)
    return items


def _item(tag: int, body: bytes) -> Item | None:
    if tag == _MESSAGE:
        return decode_cast(body)
    if tag == _NULL_ITEM and len(body) == _NULL.size + STAMP_BYTES:
        return Null(_NULL.unpack_from(body)[0], _read_stamp(body, _NULL.size))
    if tag == _HEARD_ITEM and len(body) == _HEARD.size:
        return Heard(*_HEARD.unpack(body))
    return decode_bond(body) if tag == _BOND_ITEM else None


def encode_entry(entry: Entry) -> bytes:
    """An entry as bytes."""
    return _stamp(entry.stamp) + _ENTRY.pack(entry.mask, len(entry.parcel)) + entry.parcel


def decode_entries(data: bytes, at: int = 0) -> list[Entry] | None:
    """All entries from `at` on, or None if they are malformed."""
    entries = []
    while at < len(data):
        if at + ENTRY_BYTES > len(data):
            return None
        mask, length = _ENTRY.unpack_from(data, at + STAMP_BYTES)
        parcel = data[at + ENTRY_BYTES : at + ENTRY_BYTES + length]
        if len(parcel) != length or decode_parcel(parcel) is None:
            return None
        entries.append(Entry(_read_stamp(data, at), mask, parcel))
        at += ENTRY_BYTES + length
    return entries


def encode_stream(stream: Stream, entries: Sequence[bytes]) -> bytes:
    """A stream's part, whose entries are encoded already."""
    head = _STREAM.pack(stream.source, stream.first, stream.head) + _stamp(stream.last)
    return b"".join([head, *entries])


def decode_stream(data: bytes) -> Stream | None:
    """The part of a stream, or None if it is malformed."""
    if len(data) < STREAM_BYTES:
        return None
    source, first, head = _STREAM.unpack_from(data)
    last = _read_stamp(data, _STREAM.size)
    entries = decode_entries(data, STREAM_BYTES)
    if entries is None or first < 1 or first + len(entries) - 1 > head or head >= 2**63:
        return None
    return Stream(source, first, head, last, tuple(entries))


def encode_ack(ack: Ack) -> bytes:
    """An acknowledgment as bytes."""
    return _ACK.pack(ack.source, ack.applied)


def decode_ack(data: bytes) -> Ack | None:
    """The acknowledgment, or None if it is malformed."""
    if len(data) != _ACK.size:
        return None
    source, applied = _ACK.unpack(data)
    return Ack(source, applied) if applied < 2**63 else None


def encode_want(want: Want) -> bytes:
    """A wish for barriers as bytes."""
    return _WANT.pack(want.mask) + _stamp(want.stamp)


def decode_want(data: bytes) -> Want | None:
    """The wish, or None if it is malformed."""
    if len(data) != _WANT.size + STAMP_BYTES:
        return None
    return Want(_read_stamp(data, _WANT.size), _WANT.unpack_from(data)[0])


DECODERS = {
    Kind.CAST: decode_cast,
    Kind.STREAM: decode_stream,
    Kind.APPLIED: decode_ack,
    Kind.CALL: decode_want,
    Kind.BOND: decode_bond,
}
register_control(DECODERS)
