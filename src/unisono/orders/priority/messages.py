"""What the priority order multicasts (paper 004, Figure 4 and §5): messages, acknowledgments, decisions, progress.

These are bodies of view-synchronous multicasts: who sent them, and in which incarnation, comes with them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TypeAlias

from unisono.model.message_set import MessageOrigin, MessageRef, MessageSet, SequenceRange
from unisono.model.priorities import PRIORITY_MAX

_MESSAGE, _ACK, _DECISION, _PROGRESS, _FINAL = 1, 2, 3, 4, 5
_NUMBERS = struct.Struct("!BQHQQ")
_REF = struct.Struct("!HIQ")
_VIEW = struct.Struct("!Q")
_COUNT = struct.Struct("!H")
_ORIGIN = struct.Struct("!HIH")
_RANGE = struct.Struct("!QI")
_SEQUENCE_MAX = 2**63


@dataclass(frozen=True, slots=True)
class MessageBody:
    """An application's message: its number at its sender, its priority, the sender's logical clock.

    `previous` is the number of the sender's message of this priority before it; its own, if it is the first.
    """

    sequence: int
    priority: int
    stamp: int
    previous_sequence: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Ack:
    """The target tail and the consumed history of the member that says it, when it received the message."""

    ref: MessageRef
    target_tail: MessageSet
    history: MessageSet


@dataclass(frozen=True, slots=True)
class InsertionDecision:
    """What every member does with a message: it goes before the first of the common set, behind the history set.

    It counts in the view in which it was made: in the next one everything that is still to be inserted is decided anew.
    """

    ref: MessageRef
    view_id: int
    common: MessageSet
    history: MessageSet


@dataclass(frozen=True, slots=True)
class Progress:
    """What the member that says it has consumed, for when no acknowledgment would say so soon.

    `final`: it leaves and consumes nothing more.
    """

    history: MessageSet
    final: bool = False


PriorityBody: TypeAlias = MessageBody | Ack | InsertionDecision | Progress


class Unreadable(ValueError):
    """Bytes that are not what they should be."""


def encode_body(body: PriorityBody) -> bytes:
    """The body as bytes."""
    match body:
        case MessageBody():
            return (
                _NUMBERS.pack(_MESSAGE, body.sequence, body.priority, body.stamp, body.previous_sequence) + body.payload
            )
        case Ack():
            return b"".join(
                (bytes((_ACK,)), encode_ref(body.ref), encode_set(body.target_tail), encode_set(body.history))
            )
        case InsertionDecision():
            return b"".join(
                (
                    bytes((_DECISION,)),
                    encode_ref(body.ref),
                    _VIEW.pack(body.view_id),
                    encode_set(body.common),
                    encode_set(body.history),
                )
            )
        case Progress():
            return bytes((_FINAL if body.final else _PROGRESS,)) + encode_set(body.history)


def decode_body(data: bytes) -> PriorityBody:
    """The body, or Unreadable."""
    if data[:1] == bytes((_MESSAGE,)):
        if len(data) < _NUMBERS.size:
            raise Unreadable("a message without its numbers")
        _, sequence, priority, stamp, previous = _NUMBERS.unpack_from(data)
        if priority > PRIORITY_MAX or max(sequence, stamp) >= _SEQUENCE_MAX or previous > sequence:
            raise Unreadable(f"priority {priority}, sequence {sequence}, stamp {stamp} or {previous} is too large")
        return MessageBody(sequence, priority, stamp, previous, data[_NUMBERS.size :])
    reader = Reader(data)
    kind = reader.read_byte()
    body: PriorityBody
    if kind == _ACK:
        body = Ack(reader.read_ref(), reader.read_message_set(), reader.read_message_set())
    elif kind == _DECISION:
        body = InsertionDecision(
            reader.read_ref(), reader.unpack(_VIEW)[0], reader.read_message_set(), reader.read_message_set()
        )
    elif kind in {_PROGRESS, _FINAL}:
        body = Progress(reader.read_message_set(), kind == _FINAL)
    else:
        raise Unreadable(f"no body begins with {kind}")
    reader.expect_end()
    return body


def encode_ref(ref: MessageRef) -> bytes:
    """A message's name."""
    return _REF.pack(*ref)


def encode_set(messages: MessageSet) -> bytes:
    """A set, range by range."""
    parts = [_COUNT.pack(len(messages.ranges))]
    for origin, ranges in sorted(messages.ranges.items()):
        parts.append(_ORIGIN.pack(*origin, len(ranges)))
        parts += [_RANGE.pack(first, last - first) for first, last in ranges]
    return b"".join(parts)


class Reader:
    """Takes bytes apart from the front; every lack is Unreadable."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def unpack(self, form: struct.Struct) -> tuple[int, ...]:
        """The next fields."""
        at = self._at
        if at + form.size > len(self._data):
            raise Unreadable(f"{form.size} bytes were expected at {at}, {len(self._data) - at} are left")
        self._at = at + form.size
        return form.unpack_from(self._data, at)

    def read_byte(self) -> int:
        """The next byte."""
        return self.unpack(_BYTE)[0]

    def read_bytes(self, length: int) -> bytes:
        """The next so many bytes."""
        at = self._at
        if at + length > len(self._data):
            raise Unreadable(f"{length} bytes were expected at {at}, {len(self._data) - at} are left")
        self._at = at + length
        return self._data[at : at + length]

    def read_ref(self) -> MessageRef:
        """A message's name."""
        sender, incarnation, sequence = self.unpack(_REF)
        if sequence >= _SEQUENCE_MAX:
            raise Unreadable(f"the sequence {sequence} is too large")
        return MessageRef(sender, incarnation, sequence)

    def read_message_set(self) -> MessageSet:
        """A set; its ranges must be ascending and apart, or two sets could be equal and differ in bytes."""
        ranges: dict[MessageOrigin, tuple[SequenceRange, ...]] = {}
        for _ in range(self.unpack(_COUNT)[0]):
            sender, incarnation, count = self.unpack(_ORIGIN)
            if (sender, incarnation) in ranges or count == 0:
                raise Unreadable("a set names an origin twice, or for nothing")
            read: list[SequenceRange] = []
            for _ in range(count):
                first, more = self.unpack(_RANGE)
                if first >= _SEQUENCE_MAX or (read and first <= read[-1][1] + 1):
                    raise Unreadable("the ranges of a set are out of order")
                read.append((first, first + more))
            ranges[sender, incarnation] = tuple(read)
        return MessageSet(ranges)

    def expect_end(self) -> None:
        """Nothing may follow."""
        if self._at != len(self._data):
            raise Unreadable(f"{len(self._data) - self._at} bytes follow the end")


_BYTE = struct.Struct("!B")
