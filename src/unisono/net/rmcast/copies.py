"""Wire form of reliable multicast (paper 002 §3.3, figure 12).

A copy is a frame of kind RMCAST. In its header, the sender is m.broadcaster, the number m.copy, and the sequence
m.sequenceNo. The body is the same in every copy of a message: m.originator and its incarnation, ρ, η, and the multicast
frame. So a process that takes over sends the body that it received behind a header of its own.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from unisono.model.policy import RHO_MAX
from unisono.wire.door import Door, Header, Refusal, register_layer
from unisono.wire.frame import HEADER_BYTES, Frame, Kind, Nested, encoded_parts

_FIELDS = struct.Struct("!HBBIQ")
FIELDS_BYTES = _FIELDS.size
RMCAST_BYTES = HEADER_BYTES + FIELDS_BYTES
"""The bytes of a copy in addition to the frame that is multicast."""


@dataclass(slots=True)
class RmcastCopy(Nested):
    """A received copy of a message of reliable multicast: its fields, and where in it the multicast frame lies."""

    originator: int = 0
    originator_incarnation: int = 0
    """The incarnation of the originator, which numbers its messages from 0 in each incarnation."""
    rho: int = 0
    eta_ns: int = 0


def pack_message(frame: Frame, rho: int, eta_ns: int, group: int) -> bytes:
    """The body of every copy of a message. The frame's sender is the originator."""
    return b"".join((_FIELDS.pack(frame.sender, rho, 0, frame.incarnation, eta_ns), *encoded_parts(frame, group)))


def read_copy_fields(copy: RmcastCopy, data: bytes, start: int, end: int) -> bool:
    """Fill in the fields of a copy and the position of its frame; False if they are invalid."""
    if end - start < FIELDS_BYTES + HEADER_BYTES:
        return False
    copy.originator, copy.rho, zero, copy.originator_incarnation, copy.eta_ns = _FIELDS.unpack_from(data, start)
    copy.body = memoryview(data)[start:end]
    copy.datagram, copy.start, copy.end = data, start + FIELDS_BYTES, end
    return not zero and copy.number <= copy.rho <= RHO_MAX and 1_000 <= copy.eta_ns < 2**62


def read_copy(door: Door, header: Header, data: bytes, start: int, end: int) -> RmcastCopy | Refusal:
    """Decode the copy in data[start:end]. The frame inside is checked when the layer opens it."""
    copy = RmcastCopy(*header)
    if copy.flags or not read_copy_fields(copy, data, start, end):
        return Refusal.BAD_COPY
    return copy if copy.originator in door.members else Refusal.NOT_A_MEMBER


register_layer(Kind.RMCAST, read_copy)
