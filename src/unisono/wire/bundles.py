"""Bundles: messages that a member forwards to the leader of an agreed log, and the values of that log."""

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
"""The bytes before the body of the only bundle of a log value."""
_FLAGS = FRAGMENT | MORE_FRAGMENTS | FIRST_FRAGMENT


@dataclass(frozen=True, slots=True)
class Bundle:
    """A sender's bundle number `serial`: packed messages, or a fragment of one message, as the frame flags say."""

    sender: int
    incarnation: int
    serial: int
    first_sequence: int
    flags: int
    body: bytes


def encode_bundle(bundle: Bundle) -> bytes:
    """Encode a bundle."""
    head = _BUNDLE.pack(bundle.sender, bundle.incarnation, bundle.serial, bundle.first_sequence, bundle.flags)
    return head + bundle.body


def decode_bundle(data: bytes) -> Bundle | None:
    """Decode a bundle; None if it is malformed."""
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
    """Encode a log value: the slot in which it was proposed, and its bundles."""
    parts = [_SLOT.pack(slot)]
    for bundle in bundles:
        parts += (_LENGTH.pack(len(bundle)), bundle)
    return b"".join(parts)


def decode_log_value(value: bytes) -> tuple[int, list[Bundle]] | None:
    """Decode a log value into its slot and bundles; None if it is malformed."""
    if len(value) < _SLOT.size:
        return None
    (slot,) = _SLOT.unpack_from(value)
    bundles: list[Bundle] = []
    at = _SLOT.size
    while at < len(value):
        if at + _LENGTH.size > len(value):
            return None
        end = at + _LENGTH.size + _LENGTH.unpack_from(value, at)[0]
        bundle = decode_bundle(value[at + _LENGTH.size : end]) if end <= len(value) else None
        if bundle is None:
            return None
        bundles.append(bundle)
        at = end
    return (slot, bundles) if slot < 2**63 else None


_STATE = struct.Struct("!QQH")
_SENDER = struct.Struct("!HIQI")


@dataclass(frozen=True, slots=True)
class SenderState:
    """A sender's incarnation, its next bundle, and the fragments so far of an incomplete message."""

    incarnation: int
    next_serial: int
    fragments: bytes


@dataclass(frozen=True, slots=True)
class LogState:
    """Replaces a prefix of the log: its number of messages, its last slot, and the state of each sender."""

    messages: int
    slot: int
    senders: dict[int, SenderState]


def encode_log_state(state: LogState) -> bytes:
    """Encode a log state."""
    parts = [_STATE.pack(state.messages, state.slot, len(state.senders))]
    for member, sender in sorted(state.senders.items()):
        head = _SENDER.pack(member, sender.incarnation, sender.next_serial, len(sender.fragments))
        parts += (head, sender.fragments)
    return b"".join(parts)


def decode_log_state(data: bytes) -> LogState | None:
    """Decode a log state; None if it is malformed."""
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
