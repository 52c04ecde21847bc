"""The messages of the priority order as bytes (paper 004, Figure 4 and §5), and the state that a newcomer receives.

The bodies here travel inside view-synchronous multicasts and unicasts, which carry the sender and its incarnation.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from unisono.model.message_set import MessageOrigin, MessageRef, MessageSet
from unisono.model.policy import PRIORITY_MAX
from unisono.wire.codec import (
    REF_BYTES,
    SEQUENCE_LIMIT,
    Counted,
    Items,
    Messages,
    Part,
    Sized,
    Spec,
    Tagged,
    Unreadable,
    decode_ref,
    encode_ref,
    raw,
    u64,
)


@dataclass(frozen=True, slots=True)
class MessageBody:
    """A message of the application: its sequence number, its priority and the sender's logical clock.

    `previous_sequence` is the sequence of the sender's previous message of this priority. For the first message of a
    priority, it is that message's own sequence.
    """

    sequence: int
    priority: int
    stamp: int
    previous_sequence: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Ack:
    """A member's acknowledgment of a message: its target tail and its consumed history when the message arrived."""

    ref: MessageRef
    target_tail: MessageSet
    history: MessageSet


@dataclass(frozen=True, slots=True)
class InsertionDecision:
    """Where a message goes at every member: before the first message of the common set, behind the history set.

    A decision is valid in the view in which it was made. A message that is not inserted by the end of that view is
    decided again in the next one.
    """

    ref: MessageRef
    view_id: int
    common: MessageSet
    history: MessageSet


@dataclass(frozen=True, slots=True)
class Progress:
    """Reports the sender's consumed history when no acknowledgment is due that would report it."""

    history: MessageSet


@dataclass(frozen=True, slots=True)
class FinalProgress:
    """Reports the consumed history of a member that is leaving: it consumes nothing more."""

    history: MessageSet


PriorityBody: TypeAlias = MessageBody | Ack | InsertionDecision | Progress | FinalProgress

_REF = raw("ref", REF_BYTES, decode_ref, encode_ref)
_BODIES: Tagged[Ack | InsertionDecision | Progress | FinalProgress] = Tagged(
    (2, Spec(Ack, _REF, Messages("target_tail"), Messages("history"))),
    (3, Spec(InsertionDecision, _REF, u64("view_id"), Messages("common"), Messages("history"))),
    (4, Spec(Progress, Messages("history"))),
    (5, Spec(FinalProgress, Messages("history"))),
)
_MESSAGE = 1
_NUMBERS = struct.Struct("!BQHQQ")


def encode_body(body: PriorityBody) -> bytes:
    """Encode one message of the priority order. Application messages have their own code here, for speed."""
    if isinstance(body, MessageBody):
        return _NUMBERS.pack(_MESSAGE, body.sequence, body.priority, body.stamp, body.previous_sequence) + body.payload
    return _BODIES.encode(body)


def decode_body(data: bytes) -> PriorityBody:
    """Decode one message of the priority order; raises Unreadable if it is malformed."""
    if data[:1] != bytes((_MESSAGE,)):
        return _BODIES.decode(data)
    if len(data) < _NUMBERS.size:
        raise Unreadable(f"a priority message has {len(data)} bytes, but its header alone needs {_NUMBERS.size}")
    _, sequence, priority, stamp, previous = _NUMBERS.unpack_from(data)
    if priority > PRIORITY_MAX or max(sequence, stamp) >= SEQUENCE_LIMIT or previous > sequence:
        raise Unreadable(
            f"a priority message: expected a priority up to {PRIORITY_MAX}, a sequence and a stamp below 2**63, and a "
            f"previous sequence up to the sequence, found {priority=}, {sequence=}, {stamp=}, {previous=}"
        )
    return MessageBody(sequence, priority, stamp, previous, data[_NUMBERS.size :])


# -- state transfer (erratum 004-10) ----------------------------------------------------------------------------

_STATE_VERSION = 2
_ORIGIN = struct.Struct("!HI")
_LENGTH = struct.Struct("!I")


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """A message with its origin. If it is in the queue, `locks` are the messages that lock it."""

    message: MessageBody
    origin: MessageOrigin
    locks: tuple[MessageRef, ...]


class ReceivedAck(NamedTuple):
    """An acknowledgment, and the member that sent it."""

    origin: MessageOrigin
    ack: Ack


class ConsumedHistory(NamedTuple):
    """A member, and the messages that it has consumed."""

    origin: MessageOrigin
    history: MessageSet


@dataclass(frozen=True, slots=True)
class PriorityState:
    """The state of one member of the priority order, which a newcomer takes over."""

    position: int
    """The number of messages in the agreed order before the first message of the queue."""
    clock: int
    next_messages: tuple[MessageRef, ...]
    """For each origin (a member and its incarnation), the next message to receive from it."""
    queue: tuple[QueueEntry, ...]
    tail_locks: tuple[MessageRef, ...]
    waiting: tuple[QueueEntry, ...]
    """The joining messages: received and not in the queue yet."""
    acks: tuple[ReceivedAck, ...]
    """Acknowledgments of the joining messages."""
    history: MessageSet
    consumed_by: tuple[ConsumedHistory, ...]
    consumed_by_all: MessageSet
    fixed_prefix: MessageSet
    """Messages that at least one member is known to have consumed: no message may be put before them."""


class _Body(Part):
    """A message field that holds one message body of a known type and takes the rest of the bytes."""

    def __init__(self, name: str, expected: type[PriorityBody]) -> None:
        super().__init__(name)
        self._expected = expected

    def encode(self, value: PriorityBody) -> bytes:
        return encode_body(value)

    def decode(self, body: bytes, at: int, items: int | None) -> tuple[PriorityBody, int]:
        found = decode_body(body[at:])
        if not isinstance(found, self._expected):
            raise Unreadable(f"field {self.name}: expected {self._expected.__name__}, found {type(found).__name__}")
        return found, len(body)


class _Refs(Part):
    """A message field that holds as many message references as its `count` field says."""

    def encode(self, value: Sequence[MessageRef]) -> bytes:
        return b"".join(map(encode_ref, value))

    def decode(self, body: bytes, at: int, items: int | None) -> tuple[tuple[MessageRef, ...], int]:
        end = at + (items or 0) * REF_BYTES
        if end > len(body):
            raise Unreadable(
                f"field {self.name}: {items} message references need {end - at} bytes, found {len(body) - at}"
            )
        return tuple(decode_ref(body[start : start + REF_BYTES]) for start in range(at, end, REF_BYTES)), end


_FROM = raw("origin", _ORIGIN.size, _ORIGIN.unpack, lambda origin: _ORIGIN.pack(*origin))
_ENTRY = Spec(QueueEntry, _FROM, Sized(_Body("message", MessageBody)), Counted(_Refs("locks"), "I"))
_STATE = Spec(
    PriorityState,
    u64("position"),
    u64("clock"),
    Counted(_Refs("next_messages"), "I"),
    Counted(Items("queue", _ENTRY), "I"),
    Counted(_Refs("tail_locks"), "I"),
    Counted(Items("waiting", _ENTRY), "I"),
    Counted(Items("acks", Spec(ReceivedAck, _FROM, Sized(_Body("ack", Ack)))), "I"),
    Messages("history"),
    Counted(Items("consumed_by", Spec(ConsumedHistory, _FROM, Messages("history"))), "I"),
    Messages("consumed_by_all"),
    Messages("fixed_prefix"),
)


def encode_state(state: PriorityState) -> bytes:
    """Encode the priority order's state for a newcomer."""
    return bytes((_STATE_VERSION,)) + _STATE.encode(state)


def decode_state(data: bytes) -> PriorityState:
    """Decode the priority order's state; raises Unreadable if it is malformed or contradicts itself.

    Every lock and every acknowledgment must be of a joining message.
    """
    if data[:1] != bytes((_STATE_VERSION,)):
        raise Unreadable(f"the order's state has version {data[:1].hex()}; this release reads version {_STATE_VERSION}")
    state = _STATE.decode(data[1:])
    waiting = {MessageRef(*entry.origin, entry.message.sequence) for entry in state.waiting}
    named = {*state.tail_locks, *(ref for entry in state.queue for ref in entry.locks)}
    named |= {received.ack.ref for received in state.acks}
    if not named <= waiting:
        raise Unreadable(
            f"the state is inconsistent: message {min(named - waiting)} holds a lock or has an acknowledgment, "
            "but is not a joining message"
        )
    return state


def encode_handover(state: PriorityState, application: bytes) -> bytes:
    """Encode everything that a newcomer receives: the order's state, then the application's."""
    data = encode_state(state)
    return _LENGTH.pack(len(data)) + data + application


def decode_handover(data: bytes) -> tuple[PriorityState, bytes]:
    """Decode the priority order's state and the application's state; raises Unreadable if the first is malformed."""
    if len(data) < _LENGTH.size:
        raise Unreadable(
            f"a state transfer of {len(data)} bytes is too short: its length field alone needs {_LENGTH.size}"
        )
    end = _LENGTH.size + _LENGTH.unpack_from(data)[0]
    return decode_state(data[_LENGTH.size : end]), data[end:]
