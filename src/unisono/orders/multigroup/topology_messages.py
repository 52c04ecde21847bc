"""What quasi-genuine groups say about who may send to whom, when that changes while they run.

A wish travels inside the sending group as a message to nobody: its parcel holds one of the two controls. Bonds pass
between two groups, and each is an item that the other group agrees on; the last kind stays inside its group.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from unisono.wire.bundles import Parcel, decode_parcel
from unisono.wire.packed_messages import OwnRun, read_run

_STAMP_BYTES = 10
_BOND = struct.Struct("!BHIQ")
BOND_BYTES = _BOND.size + _STAMP_BYTES
_CONTROL = struct.Struct("!cQ")
_RELATE, _CONFIRM = b"r", b"c"


class What(IntEnum):
    """What one group asks of another, or answers."""

    ADMIT = 1
    """I am going to send to you, from entry `head` + 1 on: wait for my barriers."""
    ADMITTED = 2
    """We do, from `stamp` on: everything that you send has to have a larger one."""
    RELEASE = 3
    """After entry `head` nothing comes any more: wait for me no longer."""
    RELEASED = 4
    """We do not."""
    WITHOUT = 5
    """Said inside a group: member `head` is gone, and is not waited for in version `epoch` of the relation."""


@dataclass(frozen=True, slots=True)
class Bond:
    """Said by `group`; `epoch` counts how often one of the two has begun to send to the other."""

    what: What
    group: int
    epoch: int
    head: int = 0
    stamp: int = 0


@dataclass(frozen=True, slots=True)
class Relate:
    """The own group is to send to these groups, and no others."""

    mask: int


@dataclass(frozen=True, slots=True)
class Confirm:
    """Behind this, its sender hands in nothing that the relation of this version does not allow."""

    version: int


Control: TypeAlias = Relate | Confirm


def encode_bond(bond: Bond) -> bytes:
    """A bond as bytes."""
    return _BOND.pack(bond.what, bond.group, bond.epoch, bond.head) + bond.stamp.to_bytes(_STAMP_BYTES)


def decode_bond(data: bytes) -> Bond | None:
    """The bond, or None if it is malformed."""
    if len(data) != BOND_BYTES:
        return None
    what, group, epoch, head = _BOND.unpack_from(data)
    if what not in _WHATS or head >= 2**63:
        return None
    return Bond(What(what), group, epoch, head, int.from_bytes(data[_BOND.size :]))


_WHATS = frozenset(What)


def control_body(control: Control) -> bytes:
    """The body of the parcel that a control travels in."""
    if isinstance(control, Relate):
        message = _CONTROL.pack(_RELATE, control.mask)
    else:
        message = _CONTROL.pack(_CONFIRM, control.version)
    return b"".join(OwnRun([message], uniform=True).parts())


def control_of(parcel: bytes) -> Control | None:
    """The control in a parcel, or None if it is none."""
    found = decode_parcel(parcel)
    return None if found is None else control_in(found)


def control_in(parcel: Parcel) -> Control | None:
    """The control in a parcel that has been read, or None if it is none."""
    run = None if parcel.flags else read_run(parcel.body, 0, len(parcel.body))
    messages = [] if run is None else run.messages()
    if len(messages) != 1 or len(messages[0]) != _CONTROL.size:
        return None
    tag, number = _CONTROL.unpack(messages[0])
    if tag == _RELATE:
        return Relate(number)
    return Confirm(number) if tag == _CONFIRM else None
