"""The frame: a versioned header of 48 bytes and a body, which is often several packed messages.

The header names the group, epoch, sender and incarnation, the slot, and the frame's position in the slot. Every header
carries the slot number, the burst and the incarnation (errata 000-17, 000-25). So a rate change needs no message of its
own, and a newcomer learns the rates from the first frames that arrive.

Packed messages are joined once by the sender and sliced once at delivery. They start with the number of messages and
their common size. If sizes differ, the size field is `MIXED_SIZES` and a table of sizes follows.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from itertools import accumulate, pairwise

from unisono.model.events import PackedMessages
from unisono.model.units import EVERYONE

_HEAD = struct.Struct("!HH")
PACKED_HEADER_BYTES = _HEAD.size
MIXED_SIZES = 0xFFFF
SIZE_ENTRY_BYTES = 2
"""The bytes of each message's size in the table of sizes before packed messages."""


_SLICED_AT_ONCE = 64
"""Slice at most this many messages by one `Struct`, so that the cache of them stays small."""


@lru_cache(maxsize=512)
def _slicer(size: int, count: int) -> struct.Struct:
    """Slices `count` messages of `size` bytes in one call, several times as fast as slicing each in Python."""
    return struct.Struct(f"{size}s" * count)


def slice_messages(data: bytes, start: int, size: int, count: int) -> list[bytes]:
    """The `count` messages of `size` bytes that follow each other in `data` from `start` on."""
    if count <= _SLICED_AT_ONCE:
        return list(_slicer(size, count).unpack_from(data, start))
    messages: list[bytes] = []
    full, rest = divmod(count, _SLICED_AT_ONCE)
    unpack = _slicer(size, _SLICED_AT_ONCE).unpack_from
    step = size * _SLICED_AT_ONCE
    for at in range(start, start + full * step, step):
        messages += unpack(data, at)
    if rest:
        messages += _slicer(size, rest).unpack_from(data, start + full * step)
    return messages


class OutgoingMessages:
    """Messages that a sender is about to pack."""

    __slots__ = ("_messages", "same_size")

    def __init__(self, messages: list[bytes], same_size: bool) -> None:
        self._messages = messages
        self.same_size = same_size

    @property
    def count(self) -> int:
        return len(self._messages)

    @property
    def payload_bytes(self) -> int:
        messages = self._messages
        return len(messages) * len(messages[0]) if self.same_size else sum(map(len, messages))

    def messages(self) -> list[bytes]:
        return self._messages

    def sizes(self) -> Sequence[int]:
        return list(map(len, self._messages))

    def parts(self) -> list[bytes]:
        """The packed messages as buffers, which the caller joins after a frame header."""
        messages = self._messages
        count = len(messages)
        if self.same_size:
            return [_HEAD.pack(count, len(messages[0])), *messages]
        return [_HEAD.pack(count, MIXED_SIZES), struct.pack(f"!{count}H", *map(len, messages)), *messages]


class IncomingMessages:
    """Packed messages inside a received datagram. The door has checked their lengths."""

    __slots__ = ("_count", "_data", "_end", "_size", "_start")

    def __init__(self, data: bytes, start: int, end: int, count: int, size: int) -> None:
        self._data = data
        self._start = start
        self._end = end
        self._count = count
        self._size = size

    @property
    def count(self) -> int:
        return self._count

    @property
    def payload_bytes(self) -> int:
        table = SIZE_ENTRY_BYTES * self._count if self._size == MIXED_SIZES else 0
        return self._end - self._start - PACKED_HEADER_BYTES - table

    def messages(self) -> list[bytes]:
        data, size = self._data, self._size
        if size == 0:
            return [b""] * self._count
        if size != MIXED_SIZES:
            return slice_messages(data, self._start + PACKED_HEADER_BYTES, size, self._count)
        sizes = self.sizes()
        body = self._start + PACKED_HEADER_BYTES + SIZE_ENTRY_BYTES * self._count
        return [data[a:b] for a, b in pairwise(accumulate(sizes, initial=body))]

    def sizes(self) -> Sequence[int]:
        if self._size != MIXED_SIZES:
            return [self._size] * self._count
        return struct.unpack_from(f"!{self._count}H", self._data, self._start + PACKED_HEADER_BYTES)

    def parts(self) -> list[bytes | memoryview]:
        """The packed messages as buffers, as received, which the caller can forward after another frame header."""
        return [memoryview(self._data)[self._start : self._end]]


class ReassembledMessage:
    """One message that arrived as fragments in several frames."""

    __slots__ = ("_fragments",)
    count = 1

    def __init__(self, fragments: Sequence[bytes | memoryview]) -> None:
        self._fragments = fragments

    @property
    def payload_bytes(self) -> int:
        return sum(map(len, self._fragments))

    def messages(self) -> list[bytes]:
        return [b"".join(self._fragments)]

    def sizes(self) -> Sequence[int]:
        return [self.payload_bytes]


def read_packed_messages(data: bytes, start: int, end: int) -> IncomingMessages | None:
    """The packed messages in data[start:end]; None if their lengths are inconsistent."""
    if end - start < PACKED_HEADER_BYTES:
        return None
    count, size = _HEAD.unpack_from(data, start)
    if count == 0:
        return None
    body = start + PACKED_HEADER_BYTES
    if size != MIXED_SIZES:
        if body + count * size != end:
            return None
    else:
        table = SIZE_ENTRY_BYTES * count
        if body + table > end or body + table + sum(struct.unpack_from(f"!{count}H", data, body)) != end:
            return None
    return IncomingMessages(data, start, end, count, size)


VERSION = 3
_HEADER = struct.Struct("!BBBBHHIIIIQQQ")
HEADER_BYTES = _HEADER.size
UDP_IP_BYTES = 28
"""The bytes that UDP and IPv4 add to each datagram; reservations count them."""
FRAME_NUMBER_MAX = 0xFFFF
SERIAL_MAX = 255
"""Datagrams to all members are numbered from 1 to 255 and then from 1 again. Other datagrams have the number 0."""
KIND_AT = 1
FLAGS_AT = 2
SERIAL_AT = 3
"""The offsets, in a datagram, of the frame's kind, its flags and the datagram's serial number."""


class Kind(IntEnum):
    """The kind of a frame, which says how to read its body."""

    DATA = 1
    HELLO = 2
    PROBE = 3
    ECHO = 4
    FEC = 5
    JOIN = 6
    RMCAST = 7
    FIFO = 8
    CAUSAL = 9
    UNIFORM = 10
    PLAN = 11
    NEW_RATE = 16
    RESERVED = 17
    STREAM_HEARTBEAT = 32
    VOTE_REQUEST = 33
    VOTE = 34
    RETRANSMIT_REQUEST = 35
    ORDERED = 36
    STAMP_REQUEST = 37
    HEARTBEAT = 40
    STORAGE_MISMATCH = 47
    PREPARE = 48
    PROMISE = 49
    ACCEPT = 50
    ACCEPTED = 51
    FETCH = 52
    LEARN = 53
    PROPOSAL = 54
    SNAPSHOT = 55
    MCAST = 56
    ACKS = 57
    UNICAST = 58
    FLUSH = 59
    FLUSHED = 60
    LAST_MESSAGES = 61
    MEMBERSHIP_REQUEST = 62
    VIEW_RECOVERY = 63
    FINAL_REPORT = 72
    FINAL_REQUEST = 73
    FINAL_ANSWER = 74
    GROUP_CAST = 80
    GROUP_STREAM = 81
    GROUP_STREAM_ACK = 82
    BARRIER_REQUEST = 83
    TOPOLOGY = 84


END_OF_SLOT = 0x01
"""Flag of the sender's last frame in a slot: the end-of-slot mark. Without a body, it is the dummy of paper 000."""
LEAVING = 0x02
"""Flag: the sender leaves the group after this slot."""
FRAGMENT = 0x04
"""Flag: the body is a fragment of one message instead of packed messages."""
MORE_FRAGMENTS = 0x08
"""Flag: more fragments of the same message follow this one."""
FIRST_FRAGMENT = 0x10
"""Flag: the body is the first fragment of a message. After a loss, a receiver can resume here."""
SETTING_REQUEST = 0x20
"""Flag: the end-of-slot mark carries a slot request or setting requests, and no messages."""
SLOTS_MAY_DIFFER = 0x40
"""Flag: the sender of the end-of-slot mark cannot confirm that the group has its declared slots and settings.

It knows a change of the slot length or of settings, or it joined too recently to know of every change.
"""
KNOWN_FLAGS = END_OF_SLOT | LEAVING | FRAGMENT | MORE_FRAGMENTS | FIRST_FRAGMENT | SETTING_REQUEST | SLOTS_MAY_DIFFER


@dataclass(slots=True)
class Frame:
    """One frame: the header fields, and packed messages or a body.

    In an incoming frame these are views of the received datagram.
    """

    kind: Kind
    sender: int
    incarnation: int
    epoch: int
    slot: int
    number: int
    flags: int = 0
    burst: int = 0
    first_sequence: int = 0
    sent_ns: int = 0
    packed_messages: PackedMessages | None = None
    body: bytes | memoryview = b""
    to: int = EVERYONE
    multicast: bool = False
    """Outgoing: may be sent by IP multicast. Incoming: arrived by IP multicast."""
    message: object = field(default=None, kw_only=True)
    """The control message that the body encodes. Incoming: the door has decoded it, so no layer decodes it again."""

    @property
    def payload_bytes(self) -> int:
        """The size of the messages, or of the body if the frame carries no packed messages."""
        return len(self.body) if self.packed_messages is None else self.packed_messages.payload_bytes

    @property
    def is_end_of_slot(self) -> bool:
        """Whether this frame has the end-of-slot mark: it is its sender's last one in the slot."""
        return bool(self.flags & END_OF_SLOT)


@dataclass(slots=True)
class Nested(Frame):
    """A frame that contains another one.

    Outgoing: `body` belongs to this layer, and the frame `inner` of the layer above follows it. Incoming: the inner
    frame is datagram[start:end]. It is checked when the layer opens it (`Door.open_nested`).
    """

    inner: Frame | None = None
    datagram: bytes = b""
    start: int = 0
    end: int = 0
    latest_slot: int = 0


def addressed_to(frame: Frame, to: int) -> Frame:
    """A copy of the frame addressed to one member."""
    return Frame(
        frame.kind,
        frame.sender,
        frame.incarnation,
        frame.epoch,
        frame.slot,
        frame.number,
        frame.flags,
        frame.burst,
        frame.first_sequence,
        frame.sent_ns,
        frame.packed_messages,
        frame.body,
        to,
        frame.multicast,
        message=frame.message,
    )


def encode(frame: Frame, group: int, serial: int = 0) -> bytes:
    """Encode the frame as one datagram. This is the only place that copies outgoing payloads.

    `serial` numbers a sender's datagrams to all members. With it a receiver counts losses, whichever order and layers
    the frames belong to.
    """
    return b"".join(encoded_parts(frame, group, serial))


def encoded_parts(frame: Frame, group: int, serial: int = 0) -> list[bytes | memoryview]:
    """The frame as buffers that together are one datagram: header, then body, packed messages or nested frame."""
    header = _HEADER.pack(
        VERSION,
        frame.kind,
        frame.flags,
        serial,
        frame.sender,
        frame.number,
        group,
        frame.epoch,
        frame.incarnation,
        frame.burst,
        frame.slot,
        frame.first_sequence,
        frame.sent_ns,
    )
    packed = frame.packed_messages
    if isinstance(packed, OutgoingMessages):
        return [header, *packed.parts()]
    if isinstance(frame, Nested) and frame.inner is not None:
        return [header, frame.body, *encoded_parts(frame.inner, group)]
    return [header, frame.body] if frame.body else [header]


def unpack_header(data: bytes, start: int) -> tuple[int, ...]:
    """The fields of a frame's header in the order on the wire, without checking them."""
    return _HEADER.unpack_from(data, start)


def sender_of(data: bytes, start: int, end: int) -> int | None:
    """The sender that a datagram's header names, without checking it; None if the datagram is too short."""
    return int.from_bytes(data[start + 4 : start + 6]) if end - start >= HEADER_BYTES else None
