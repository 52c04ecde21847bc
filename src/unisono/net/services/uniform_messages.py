"""The bytes of a HAVE: of each member, which of its messages the sender of this has (net/services/uniform.py)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from unisono.wire.frame import HEADER_BYTES

MASK_BITS = 64
LOST_MAX = 32
"""How many messages that did not come a HAVE can name."""
_HAVE = struct.Struct("!QQ")
_COUNT = struct.Struct("!H")
_LOST = struct.Struct("!HQ")

MESSAGE, HAVE, HAVE_REQUEST = 0, 1, 2
"""The number in the header of a UNIFORM frame: a message, a HAVE, and a HAVE that wants one in return."""


@dataclass(frozen=True, slots=True)
class Have:
    """All of a member's messages below `floor` but those in `lost`, and of the next 64 those in `mask`."""

    floor: int
    mask: int
    lost: frozenset[int] = frozenset()

    def holds(self, number: int) -> bool:
        """Whether it says so of a message."""
        if number < self.floor:
            return number not in self.lost
        return number - self.floor < MASK_BITS and bool(self.mask >> (number - self.floor) & 1)


def have_bytes(members: int, lost: int) -> int:
    """How long a HAVE is, as a frame."""
    return HEADER_BYTES + members * _HAVE.size + _COUNT.size + lost * _LOST.size


def encode_haves(haves: Sequence[Have]) -> bytes:
    """One per member, in the members' order."""
    lost = [(at, number) for at, have in enumerate(haves) for number in sorted(have.lost)]
    body = b"".join(_HAVE.pack(have.floor, have.mask) for have in haves)
    return body + _COUNT.pack(len(lost)) + b"".join(_LOST.pack(*one) for one in lost)


def decode_haves(body: bytes, members: int) -> list[Have] | None:
    """One per member, or None if that is not what the bytes are."""
    at = members * _HAVE.size
    if len(body) < at + _COUNT.size:
        return None
    (count,) = _COUNT.unpack_from(body, at)
    if len(body) != at + _COUNT.size + count * _LOST.size or count > LOST_MAX:
        return None
    lost: dict[int, set[int]] = {}
    for who, number in _LOST.iter_unpack(body[at + _COUNT.size :]):
        if who >= members:
            return None
        lost.setdefault(who, set()).add(number)
    said = enumerate(_HAVE.iter_unpack(body[:at]))
    return [Have(floor, mask, frozenset(lost.get(who, ()))) for who, (floor, mask) in said]
