"""The messages of the priority order as bytes (paper 004, Figure 4 and §5), and the state that a newcomer receives.

The bodies here travel inside view-synchronous multicasts and unicasts, which carry the sender and its incarnation.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TypeAlias

from unisono.model.message_set import MessageOrigin, MessageRef, MessageSet
from unisono.model.policy import PRIORITY_MAX
from unisono.wire.codec import SEQUENCE_LIMIT, Reader, Unreadable, encode_ref, encode_set

_MESSAGE, _ACK, _DECISION, _PROGRESS, _FINAL = 1, 2, 3, 4, 5
_NUMBERS = struct.Struct("!BQHQQ")
_VIEW = struct.Struct("!Q")


@dataclass(frozen=True, slots=True)
class MessageBody:
    """A message of the application: its sequence number, its priority and the sender's logical clock.

    `previous_sequence` is the sender's previous message of this priority; the message itself, if it is the first.
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
    """Reports the sender's consumed history when no acknowledgment is due that would report it.

    `final`: the sender is leaving and consumes nothing more.
    """

    history: MessageSet
    final: bool = False


PriorityBody: TypeAlias = MessageBody | Ack | InsertionDecision | Progress


def encode_body(body: PriorityBody) -> bytes:
    """Encode one body."""
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
    """Decode one body; raises Unreadable."""
    if data[:1] == bytes((_MESSAGE,)):
        if len(data) < _NUMBERS.size:
            raise Unreadable(f"a message of {len(data)} bytes; its header alone takes {_NUMBERS.size}")
        _, sequence, priority, stamp, previous = _NUMBERS.unpack_from(data)
        if priority > PRIORITY_MAX or max(sequence, stamp) >= SEQUENCE_LIMIT or previous > sequence:
            raise Unreadable(
                f"a field is out of range: priority {priority}, sequence {sequence}, stamp {stamp}, "
                f"previous sequence {previous}"
            )
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
        raise Unreadable(f"unknown body type {kind}; expected 1 to 5")
    reader.expect_end()
    return body


# -- state transfer (erratum 004-10) ----------------------------------------------------------------------------

_STATE_VERSION = 2
_STATE_HEAD = struct.Struct("!BQQ")
_STATE_COUNT = struct.Struct("!I")
_STATE_ORIGIN = struct.Struct("!HI")
_STATE_NEXT = struct.Struct("!HIQ")


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """A message with its origin. If it is in the queue, `locks` are the messages that lock it."""

    message: MessageBody
    origin: MessageOrigin
    locks: tuple[MessageRef, ...]


@dataclass(frozen=True, slots=True)
class PriorityState:
    """The state of one member of the order, as a newcomer takes it over."""

    position: int
    """The number of messages of the agreed order that precede the queue."""
    clock: int
    next_sequences: tuple[tuple[MessageOrigin, int], ...]
    queue: tuple[QueueEntry, ...]
    tail_locks: tuple[MessageRef, ...]
    waiting: tuple[QueueEntry, ...]
    """Messages received and not inserted yet."""
    acks: tuple[tuple[MessageOrigin, Ack], ...]
    """Acknowledgments of the waiting messages, each with the member that sent it."""
    history: MessageSet
    consumed_by: tuple[tuple[MessageOrigin, MessageSet], ...]
    consumed_by_all: MessageSet
    fixed_prefix: MessageSet
    """Messages that at least one member is known to have consumed: no message may be put before them."""


def encode_state(state: PriorityState) -> bytes:
    """Encode the order's state."""
    parts = [_STATE_HEAD.pack(_STATE_VERSION, state.position, state.clock)]
    parts += _encode_list([_STATE_NEXT.pack(*origin, sequence) for origin, sequence in state.next_sequences])
    parts += _encode_list([_encode_entry(entry) for entry in state.queue])
    parts += _encode_list([encode_ref(ref) for ref in state.tail_locks])
    parts += _encode_list([_encode_entry(entry) for entry in state.waiting])
    parts += _encode_list([_STATE_ORIGIN.pack(*origin) + _encode_sized(encode_body(ack)) for origin, ack in state.acks])
    parts.append(encode_set(state.history))
    parts += _encode_list(
        [_STATE_ORIGIN.pack(*origin) + encode_set(consumed) for origin, consumed in state.consumed_by]
    )
    parts.append(encode_set(state.consumed_by_all))
    parts.append(encode_set(state.fixed_prefix))
    return b"".join(parts)


def decode_state(data: bytes) -> PriorityState:
    """Decode the order's state; raises Unreadable, also if a lock or an acknowledgment names no waiting message."""
    reader = Reader(data)
    version, position, clock = reader.unpack(_STATE_HEAD)
    if version != _STATE_VERSION:
        raise Unreadable(f"the state has version {version}; this release reads version {_STATE_VERSION}")
    next_sequences = [reader.unpack(_STATE_NEXT) for _ in range(_read_count(reader))]
    queue = tuple(_read_entry(reader) for _ in range(_read_count(reader)))
    tail_locks = tuple(reader.read_ref() for _ in range(_read_count(reader)))
    waiting = tuple(_read_entry(reader) for _ in range(_read_count(reader)))
    acks: list[tuple[MessageOrigin, Ack]] = []
    for _ in range(_read_count(reader)):
        origin, ack = _read_origin(reader), decode_body(_read_sized(reader))
        if not isinstance(ack, Ack):
            raise Unreadable(f"expected an acknowledgment, found {type(ack).__name__}")
        acks.append((origin, ack))
    history = reader.read_message_set()
    consumed_by = tuple((_read_origin(reader), reader.read_message_set()) for _ in range(_read_count(reader)))
    consumed_by_all = reader.read_message_set()
    fixed_prefix = reader.read_message_set()
    reader.expect_end()
    waiting_refs = {MessageRef(*entry.origin, entry.message.sequence) for entry in waiting}
    named = {*tail_locks, *(ref for entry in queue for ref in entry.locks)}
    named |= {ack.ref for _, ack in acks}
    if not named <= waiting_refs:
        raise Unreadable(f"{min(named - waiting_refs)} holds a lock or has an acknowledgment, but is not waiting")
    return PriorityState(
        position,
        clock,
        tuple(((sender, incarnation), sequence) for sender, incarnation, sequence in next_sequences),
        queue,
        tail_locks,
        waiting,
        tuple(acks),
        history,
        consumed_by,
        consumed_by_all,
        fixed_prefix,
    )


def encode_handover(state: PriorityState, application: bytes) -> bytes:
    """Encode everything that a newcomer receives: the order's state, then the application's."""
    return _encode_sized(encode_state(state)) + application


def decode_handover(data: bytes) -> tuple[PriorityState, bytes]:
    """Decode the order's state and the application's; raises Unreadable."""
    state = _read_sized(Reader(data))
    return decode_state(state), data[_STATE_COUNT.size + len(state) :]


def _encode_list(items: list[bytes]) -> list[bytes]:
    return [_STATE_COUNT.pack(len(items)), *items]


def _encode_sized(data: bytes) -> bytes:
    return _STATE_COUNT.pack(len(data)) + data


def _encode_entry(entry: QueueEntry) -> bytes:
    locks = _encode_list([encode_ref(ref) for ref in entry.locks])
    return b"".join((_STATE_ORIGIN.pack(*entry.origin), _encode_sized(encode_body(entry.message)), *locks))


def _read_count(reader: Reader) -> int:
    return reader.unpack(_STATE_COUNT)[0]


def _read_origin(reader: Reader) -> MessageOrigin:
    sender, incarnation = reader.unpack(_STATE_ORIGIN)
    return sender, incarnation


def _read_sized(reader: Reader) -> bytes:
    return reader.read_bytes(_read_count(reader))


def _read_entry(reader: Reader) -> QueueEntry:
    origin, message = _read_origin(reader), decode_body(_read_sized(reader))
    if not isinstance(message, MessageBody):
        raise Unreadable(f"expected a message, found {type(message).__name__}")
    return QueueEntry(message, origin, tuple(reader.read_ref() for _ in range(_read_count(reader))))
