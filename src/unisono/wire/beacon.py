"""Beacons: how processes of a group find each other before they have numbers (paper 002 §4.2, the group manager).

A beacon carries its sender, the processes that the sender knows, the member table that it votes for, and whether that
table is decided. `decode_beacon` refuses everything that is not exactly a beacon.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

MAGIC = b"UNBC"
VERSION = 1
APPLICANTS_MAX = 200
_HEAD = struct.Struct("!4sBBIHQQH")
_APPLICANT = struct.Struct("!QIHHB")
_DECIDED = 1


@dataclass(frozen=True, slots=True, order=True)
class Applicant:
    """A process that wants to become a member. Member tables sort by incarnation, so the earliest process is first."""

    incarnation: int
    host: str
    port: int
    nonce: int
    """A random number that identifies the process."""
    requested_member: int = 0
    """The member number that the process requires; 0 for any."""


@dataclass(frozen=True, slots=True)
class Beacon:
    """The fields of one beacon, by which a process looks for the other processes of its group."""

    group: int
    members: int
    """The number of members that the group needs."""
    sender: int
    """The random number (nonce) of the process that sends the beacon."""
    proposal: int
    """The hash (`table_key`) of the member table that the sender proposes or has voted for.

    0 if the sender knows too few processes for a table.
    """
    voted: bool
    decided: bool
    known: tuple[Applicant, ...]
    """All processes that the sender knows; once it has voted for a table, the processes in that table."""


def table_key(table: tuple[Applicant, ...]) -> int:
    """A hash that identifies a member table; never 0."""
    digest = hashlib.blake2b(repr(sorted(table)).encode(), digest_size=8).digest()
    return int.from_bytes(digest) or 1


def encode_beacon(beacon: Beacon) -> bytes:
    """Encode a beacon as a datagram."""
    flags = (_DECIDED if beacon.decided else 0) | (2 if beacon.voted else 0)
    head = _HEAD.pack(
        MAGIC, VERSION, flags, beacon.group, beacon.members, beacon.sender, beacon.proposal, len(beacon.known)
    )
    parts = [head]
    for known in beacon.known:
        host = known.host.encode()
        parts += [_APPLICANT.pack(known.nonce, known.incarnation, known.requested_member, known.port, len(host)), host]
    return b"".join(parts)


def decode_beacon(data: bytes) -> Beacon | None:
    """Decode a datagram; None if it is not a beacon."""
    if len(data) < _HEAD.size:
        return None
    magic, version, flags, group, members, sender, proposal, count = _HEAD.unpack_from(data)
    if magic != MAGIC or version != VERSION or flags > 3 or not 1 <= members <= APPLICANTS_MAX:
        return None
    if count > APPLICANTS_MAX:
        return None
    known, at = [], _HEAD.size
    for _ in range(count):
        if at + _APPLICANT.size > len(data):
            return None
        nonce, incarnation, requested, port, size = _APPLICANT.unpack_from(data, at)
        at += _APPLICANT.size
        host = data[at : at + size]
        at += size
        if len(host) != size or not size or not port or not nonce or not host.isascii():
            return None
        known.append(Applicant(incarnation, host.decode("ascii"), port, nonce, requested))
    if at != len(data) or len({applicant.nonce for applicant in known}) != len(known):
        return None
    return Beacon(group, members, sender, proposal, bool(flags & 2), bool(flags & _DECIDED), tuple(known))
