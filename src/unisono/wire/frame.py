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
from unisono.wire.run import OwnRun

VERSION = 1
_HEADER = struct.Struct("!BBBBHHIIIIQQQ")
HEADER_BYTES = _HEADER.size
UDP_IP_BYTES = 28
"""What UDP and IPv4 add to each datagram; reservations count it."""
FRAME_NUMBER_MAX = 0xFFFF


class Kind(IntEnum):
    """What the body is."""

    DATA = 1
    HELLO = 2
    PROBE = 3
    ECHO = 4
    FEC = 5
    JOIN = 6
    NEW_RATE = 16
    RESERVED = 17
    BEAT = 32
    ASK = 33
    VOTE = 34
    NEED = 35
    ORDERED = 36
    REQUEST = 37


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
KNOWN_FLAGS = LAST | FINAL | PIECE | MORE | FIRST


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


def encode(frame: Frame, group: int) -> bytes:
    """The frame as one datagram: the single place where payloads are copied on the way out."""
    header = _HEADER.pack(
        VERSION,
        frame.kind,
        frame.flags,
        0,
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
        return b"".join((header, *run.parts()))
    return b"".join((header, frame.body)) if frame.body else header


def unpack_header(data: bytes, start: int) -> tuple[int, ...]:
    """The header's fields, unchecked, in wire order."""
    return _HEADER.unpack_from(data, start)
