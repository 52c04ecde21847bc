"""Beacons: how processes of a group find each other before they have numbers (paper 002 §4.2, the group manager).

A beacon says who its sender is, whom it knows, for which table of members it has voted, and whether that is settled.
Whatever comes from the network and is not exactly that is refused.
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
    """A process that wants to be a member: first come, first in the table."""

    incarnation: int
    host: str
    port: int
    nonce: int
    """Drawn at random when the process began to look for the others: no two have the same."""
    requested_member: int = 0
    """The member number that it insists on; 0 if any will do."""


@dataclass(frozen=True, slots=True)
class Beacon:
    """What one process says."""

    group: int
    members: int
    """How many the group is to have."""
    sender: int
    """The sender's nonce."""
    proposal: int
    """The table that it would vote for, or has voted for; 0 if it does not know enough."""
    voted: bool
    decided: bool
    known: tuple[Applicant, ...]
    """Everybody that it has heard of; once it has voted, the table."""


def table_key(table: tuple[Applicant, ...]) -> int:
    """A key that two tables share only if they are the same in every detail; never 0."""
    digest = hashlib.blake2b(repr(sorted(table)).encode(), digest_size=8).digest()
    return int.from_bytes(digest) or 1


def encode_beacon(beacon: Beacon) -> bytes:
    """The datagram."""
    flags = (_DECIDED if beacon.decided else 0) | (2 if beacon.voted else 0)
    head = _HEAD.pack(
        MAGIC, VERSION, flags, beacon.group, beacon.members, beacon.sender, beacon.proposal, len(beacon.known)
    )
    parts = [head]
    for who in beacon.known:
        host = who.host.encode()
        parts += [_APPLICANT.pack(who.nonce, who.incarnation, who.requested_member, who.port, len(host)), host]
    return b"".join(parts)


def decode_beacon(data: bytes) -> Beacon | None:
    """The beacon, or None if this is none."""
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
        nonce, incarnation, wanted, port, size = _APPLICANT.unpack_from(data, at)
        at += _APPLICANT.size
        host = data[at : at + size]
        at += size
        if len(host) != size or not size or not port or not nonce or not host.isascii():
            return None
        known.append(Applicant(incarnation, host.decode("ascii"), port, nonce, wanted))
    if at != len(data) or len({who.nonce for who in known}) != len(known):
        return None
    return Beacon(group, members, sender, proposal, bool(flags & 2), bool(flags & _DECIDED), tuple(known))
