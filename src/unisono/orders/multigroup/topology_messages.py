"""What quasi-genuine groups say about who may send to whom, when that changes while they run.

A wish travels inside the sending group as a message to nobody: its parcel holds one of the two controls. Bonds pass
between two groups, and each is an item that the other group agrees on; the last kind stays inside its group.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from unisono.wire.bundles import Bundle, decode_bundle
from unisono.wire.packed_messages import OutgoingMessages, read_packed_messages

_STAMP_BYTES = 10
_TOPOLOGY_MESSAGE = struct.Struct("!BHIQ")
TOPOLOGY_MESSAGE_BYTES = _TOPOLOGY_MESSAGE.size + _STAMP_BYTES
_CONTROL = struct.Struct("!cQ")
_SET_RECEIVERS_TAG, _CONFIRM_TAG = b"r", b"c"


class TopologyStep(IntEnum):
    """What one group asks of another, or answers."""

    ADMIT = 1
    """I am going to send to you, from entry `head` + 1 on: wait for my barriers."""
    ADMITTED = 2
    """We do, from `stamp` on: everything that you send has to have a larger one."""
    RELEASE = 3
    """After entry `head` nothing comes any more: wait for me no longer."""
    RELEASED = 4
    """We do not."""
    SKIP_MEMBER = 5
    """Said inside a group: member `head` is gone, and is not waited for in version `epoch` of the relation."""


@dataclass(frozen=True, slots=True)
class TopologyMessage:
    """Said by `group`; `epoch` counts how often one of the two has begun to send to the other."""

    step: TopologyStep
    group: int
    epoch: int
    head: int = 0
    stamp: int = 0


@dataclass(frozen=True, slots=True)
class SetReceivers:
    """The own group is to send to these groups, and no others."""

    receiver_mask: int


@dataclass(frozen=True, slots=True)
class ConfirmTopology:
    """Behind this, its sender hands in nothing that the relation of this version does not allow."""

    version: int


TopologyControl: TypeAlias = SetReceivers | ConfirmTopology


def encode_topology_message(message: TopologyMessage) -> bytes:
    """A bond as bytes."""
    return _TOPOLOGY_MESSAGE.pack(message.step, message.group, message.epoch, message.head) + message.stamp.to_bytes(
        _STAMP_BYTES
    )


def decode_topology_message(data: bytes) -> TopologyMessage | None:
    """The bond, or None if it is malformed."""
    if len(data) != TOPOLOGY_MESSAGE_BYTES:
        return None
    what, group, epoch, head = _TOPOLOGY_MESSAGE.unpack_from(data)
    if what not in _STEPS or head >= 2**63:
        return None
    return TopologyMessage(TopologyStep(what), group, epoch, head, int.from_bytes(data[_TOPOLOGY_MESSAGE.size :]))


_STEPS = frozenset(TopologyStep)


def encode_control(control: TopologyControl) -> bytes:
    """The body of the parcel that a control travels in."""
    if isinstance(control, SetReceivers):
        message = _CONTROL.pack(_SET_RECEIVERS_TAG, control.receiver_mask)
    else:
        message = _CONTROL.pack(_CONFIRM_TAG, control.version)
    return b"".join(OutgoingMessages([message], same_size=True).parts())


def decode_control(data: bytes) -> TopologyControl | None:
    """The control in a parcel, or None if it is none."""
    found = decode_bundle(data)
    return None if found is None else control_in_bundle(found)


def control_in_bundle(bundle: Bundle) -> TopologyControl | None:
    """The control in a parcel that has been read, or None if it is none."""
    run = None if bundle.flags else read_packed_messages(bundle.body, 0, len(bundle.body))
    messages = [] if run is None else run.messages()
    if len(messages) != 1 or len(messages[0]) != _CONTROL.size:
        return None
    tag, number = _CONTROL.unpack(messages[0])
    if tag == _SET_RECEIVERS_TAG:
        return SetReceivers(number)
    return ConfirmTopology(number) if tag == _CONFIRM_TAG else None
