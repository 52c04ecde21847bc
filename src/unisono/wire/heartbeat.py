"""The heartbeat that failure detectors measure."""

from __future__ import annotations

import struct
from dataclasses import dataclass

_HEARTBEAT = struct.Struct("!QQ")


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Heartbeat number `serial` of the sender's incarnation, which sends one every `every_ns`."""

    serial: int
    every_ns: int


def encode_heartbeat(heartbeat: Heartbeat) -> bytes:
    """Encode the body of a HEARTBEAT."""
    return _HEARTBEAT.pack(heartbeat.serial, heartbeat.every_ns)


def decode_heartbeat(body: bytes) -> Heartbeat | None:
    """Decode a heartbeat; None if it is malformed."""
    if len(body) != _HEARTBEAT.size:
        return None
    serial, every = _HEARTBEAT.unpack(body)
    return Heartbeat(serial, every) if max(serial, every) < 2**63 and every else None
