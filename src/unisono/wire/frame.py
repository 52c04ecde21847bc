"""The frame: a versioned header of 48 bytes and a body.

A frame says which group, epoch, sender and incarnation it comes from, which slot it belongs to and where in
the slot it stands. The slot number, the burst and the incarnation are in every header (errata 000-17, 000-25):
a rate change costs no message of its own, and a newcomer learns the rates from whatever arrives first.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from unisono.model.events import Run
from unisono.model.ids import EVERYONE
from unisono.wire.packed_messages import OwnRun

VERSION = 2
_HEADER = struct.Struct("!BBBBHHIIIIQQQ")
HEADER_BYTES = _HEADER.size
UDP_IP_BYTES = 28
"""What UDP and IPv4 add to each datagram; reservations count it."""
FRAME_NUMBER_MAX = 0xFFFF
SERIALS = 255
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
    BEAT = 32
    ASK = 33
    VOTE = 34
    NEED = 35
    ORDERED = 36
    REQUEST = 37
    HEARTBEAT = 40
    REMEMBERED = 47
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
    TELL = 58
    FLUSH = 59
    FLUSHED = 60
    CUT = 61
    ENTER = 62
    PAST = 63
    HOLDINGS = 72
    WANT = 73
    GIVE = 74
    CAST = 80
    STREAM = 81
    APPLIED = 82
    CALL = 83
    BOND = 84


LAST = 0x01
"""The last frame of its slot: the end-of-slot mark. Without a body it is the paper's dummy."""
FINAL = 0x02
"""The sender leaves after this slot."""
PIECE = 0x04
"""The body is a piece of one message, not a run."""
MORE = 0x08
"""Further pieces of the message follow."""
FIRST = 0x10
"""The message's first piece: behind a loss, what follows is known to be whole again."""
WISH = 0x20
"""The mark carries its sender's wish for another slot length or demand for other settings, and nothing else."""
KNOWN_FLAGS = LAST | FINAL | PIECE | MORE | FIRST | WISH


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
    run: Run | None = None
    body: bytes | memoryview = b""
    to: int = EVERYONE
    multicast: bool = False
    """Down: may go by IP multicast. Up: came by IP multicast."""

    @property
    def last(self) -> bool:
        """Whether this is the end-of-slot mark."""
        return bool(self.flags & LAST)


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


def addressed(frame: Frame, to: int) -> Frame:
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
        frame.run,
        frame.body,
        to,
        frame.multicast,
    )


def encode(frame: Frame, group: int, serial: int = 0) -> bytes:
    """The frame as one datagram: the single place where payloads are copied on the way out.

    `serial` numbers a sender's datagrams to everyone, so that a receiver sees what the network loses whatever order and
    layers the frames belong to.
    """
    return b"".join(parts_of(frame, group, serial))


def parts_of(frame: Frame, group: int, serial: int = 0) -> list[bytes | memoryview]:
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
    run = frame.run
    if isinstance(run, OwnRun):
        return [header, *run.parts()]
    if isinstance(frame, Nested) and frame.inner is not None:
        return [header, frame.body, *parts_of(frame.inner, group)]
    return [header, frame.body] if frame.body else [header]


def unpack_header(data: bytes, start: int) -> tuple[int, ...]:
    """The header's fields, unchecked, in wire order."""
    return _HEADER.unpack_from(data, start)


def sender_of(data: bytes, start: int, end: int) -> int | None:
    """Who sent a datagram, by its header, unchecked; None if it is too short for one."""
    return int.from_bytes(data[start + 4 : start + 6]) if end - start >= HEADER_BYTES else None
