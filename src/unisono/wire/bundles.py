"""Parcels: what members ask the leader of an agreed log to put into the log, and the log's values."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from unisono.wire.frame import FIRST_FRAGMENT, FRAGMENT, MORE_FRAGMENTS
from unisono.wire.packed_messages import read_packed_messages

_BUNDLE = struct.Struct("!HIQQB")
_SLOT = struct.Struct("!Q")
_LENGTH = struct.Struct("!I")
BUNDLE_OVERHEAD_BYTES = _SLOT.size + _LENGTH.size + _BUNDLE.size
"""What a value puts before the body of its only parcel."""
_FLAGS = FRAGMENT | MORE_FRAGMENTS | FIRST_FRAGMENT


@dataclass(frozen=True, slots=True)
class Bundle:
    """A sender's parcel number `serial`: a run of messages, or a piece of one, by the flags of a frame."""

    sender: int
    incarnation: int
    serial: int
    first_sequence: int
    flags: int
    body: bytes


def encode_bundle(bundle: Bundle) -> bytes:
    """A parcel as bytes."""
    head = _BUNDLE.pack(bundle.sender, bundle.incarnation, bundle.serial, bundle.first_sequence, bundle.flags)
    return head + bundle.body


def decode_bundle(data: bytes) -> Bundle | None:
    """The parcel, or None if it is malformed."""
    if len(data) < _BUNDLE.size:
        return None
    sender, incarnation, serial, sequence, flags = _BUNDLE.unpack_from(data)
    body = data[_BUNDLE.size :]
    if max(serial, sequence) >= 2**63 or flags & ~_FLAGS:
        return None
    if not (body if flags & FRAGMENT else not flags and read_packed_messages(body, 0, len(body)) is not None):
        return None
    return Bundle(sender, incarnation, serial, sequence, flags, body)


def encode_log_value(slot: int, bundles: Sequence[bytes]) -> bytes:
    """A value of the log: the slot in which it was proposed, and parcels."""
    parts = [_SLOT.pack(slot)]
    for parcel in bundles:
        parts += (_LENGTH.pack(len(parcel)), parcel)
    return b"".join(parts)


def decode_log_value(value: bytes) -> tuple[int, list[Bundle]] | None:
    """The slot and the parcels, or None if the value is no leader's."""
    if len(value) < _SLOT.size:
        return None
    (slot,) = _SLOT.unpack_from(value)
    parcels: list[Bundle] = []
    at = _SLOT.size
    while at < len(value):
        if at + _LENGTH.size > len(value):
            return None
        end = at + _LENGTH.size + _LENGTH.unpack_from(value, at)[0]
        parcel = decode_bundle(value[at + _LENGTH.size : end]) if end <= len(value) else None
        if parcel is None:
            return None
        parcels.append(parcel)
        at = end
    return (slot, parcels) if slot < 2**63 else None


_STATE = struct.Struct("!QQH")
_SENDER = struct.Struct("!HIQI")


@dataclass(frozen=True, slots=True)
class SenderState:
    """A sender's life, its next parcel, and what has come of a message that is still in pieces."""

    incarnation: int
    next_serial: int
    fragments: bytes


@dataclass(frozen=True, slots=True)
class LogState:
    """What stands for a prefix of the log: how many messages it had, its last slot, and where each sender is."""

    messages: int
    slot: int
    senders: dict[int, SenderState]


def encode_log_state(state: LogState) -> bytes:
    """A log's state as bytes."""
    parts = [_STATE.pack(state.messages, state.slot, len(state.senders))]
    for sender, its in sorted(state.senders.items()):
        parts += (_SENDER.pack(sender, its.incarnation, its.next_serial, len(its.fragments)), its.fragments)
    return b"".join(parts)


def decode_log_state(data: bytes) -> LogState | None:
    """The state, or None if it is malformed."""
    if len(data) < _STATE.size:
        return None
    messages, slot, count = _STATE.unpack_from(data)
    senders: dict[int, SenderState] = {}
    at = _STATE.size
    for _ in range(count):
        if at + _SENDER.size > len(data):
            return None
        sender, incarnation, serial, length = _SENDER.unpack_from(data, at)
        at += _SENDER.size
        if at + length > len(data):
            return None
        senders[sender] = SenderState(incarnation, serial, data[at : at + length])
        at += length
    return LogState(messages, slot, senders) if at == len(data) else None
