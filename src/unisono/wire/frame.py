"""The frame: a versioned header of 48 bytes and a body.

A frame says which group, epoch, sender and incarnation it comes from, which slot it belongs to and where in
the slot it stands. The slot number, the burst and the incarnation are in every header (errata 000-17, 000-25):
a rate change costs no message of its own, and a newcomer learns the rates from whatever arrives first.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from unisono.model.events import PackedMessages
from unisono.model.ids import EVERYONE
from unisono.wire.packed_messages import OutgoingMessages

VERSION = 2
_HEADER = struct.Struct("!BBBBHHIIIIQQQ")
HEADER_BYTES = _HEADER.size
UDP_IP_BYTES = 28
"""What UDP and IPv4 add to each datagram; reservations count it."""
FRAME_NUMBER_MAX = 0xFFFF
SERIAL_MAX = 255
"""Datagrams to everyone are numbered 1 to 255 round and round; 0 is on those that are not counted."""
KIND_AT = 1
FLAGS_AT = 2
SERIAL_AT = 3
"""Where in a datagram its kind, its flags and its serial are."""


class Kind(IntEnum):
    """What the body is."""

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
"""The last frame of its slot: the end-of-slot mark. Without a body it is the paper's dummy."""
LEAVING = 0x02
"""The sender leaves after this slot."""
FRAGMENT = 0x04
"""The body is a piece of one message, not a run."""
MORE_FRAGMENTS = 0x08
"""Further pieces of the message follow."""
FIRST_FRAGMENT = 0x10
"""The message's first piece: behind a loss, what follows is known to be whole again."""
SETTING_REQUEST = 0x20
"""The mark carries its sender's wish for another slot length or demand for other settings, and nothing else."""
KNOWN_FLAGS = END_OF_SLOT | LEAVING | FRAGMENT | MORE_FRAGMENTS | FIRST_FRAGMENT | SETTING_REQUEST


@dataclass(slots=True)
class Frame:
    """One frame, on its way down (with `run` or `body` of its own) or up (with views into `datagram`)."""

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
    """Down: may go by IP multicast. Up: came by IP multicast."""

    @property
    def is_end_of_slot(self) -> bool:
        """Whether this is the end-of-slot mark."""
        return bool(self.flags & END_OF_SLOT)


@dataclass(slots=True)
class Nested(Frame):
    """A frame around another one.

    Down: the frame `inner` of the layer above follows `body`, which is this layer's own. Up: it is
    datagram[start:end], checked when the layer opens it (`wire.door.open_nested`).
    """

    inner: Frame | None = None
    datagram: bytes = b""
    start: int = 0
    end: int = 0
    latest_slot: int = 0


def addressed_to(frame: Frame, to: int) -> Frame:
    """The same frame to one member."""
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
    )


def encode(frame: Frame, group: int, serial: int = 0) -> bytes:
    """The frame as one datagram: the single place where payloads are copied on the way out.

    `serial` numbers a sender's datagrams to everyone, so that a receiver sees what the network loses whatever order and
    layers the frames belong to.
    """
    return b"".join(encoded_parts(frame, group, serial))


def encoded_parts(frame: Frame, group: int, serial: int = 0) -> list[bytes | memoryview]:
    """The frame's bytes as buffers to be joined: its header, then its body, its run or the frame inside it."""
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
    run = frame.packed_messages
    if isinstance(run, OutgoingMessages):
        return [header, *run.parts()]
    if isinstance(frame, Nested) and frame.inner is not None:
        return [header, frame.body, *encoded_parts(frame.inner, group)]
    return [header, frame.body] if frame.body else [header]


def unpack_header(data: bytes, start: int) -> tuple[int, ...]:
    """The header's fields, unchecked, in wire order."""
    return _HEADER.unpack_from(data, start)


def sender_of(data: bytes, start: int, end: int) -> int | None:
    """Who sent a datagram, by its header, unchecked; None if it is too short for one."""
    return int.from_bytes(data[start + 4 : start + 6]) if end - start >= HEADER_BYTES else None
