"""The numbers that stand for groups and members on the wire."""

from __future__ import annotations

import hashlib

from unisono.errors import InvalidOption

MEMBER_MAX = 0xFFFF
EVERYONE = 0
"""The destination of a multicast; member numbers start at 1."""


def group_key(name: str) -> int:
    """The 32-bit key that frames carry for the group of this name."""
    if not name or len(name) > 200:
        raise InvalidOption("group", f"expected a name of 1 to 200 characters, got {name!r}")
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest())


def checked_member(member: int) -> int:
    """`member`, if it is a valid member number; else raise InvalidOption."""
    if not 1 <= member <= MEMBER_MAX:
        raise InvalidOption("member", f"expected a member number from 1 to {MEMBER_MAX}, got {member}")
    return member
