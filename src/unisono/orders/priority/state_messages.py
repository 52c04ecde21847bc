"""What a member of the priority order hands to a newcomer (erratum 004-10), and its bytes."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from unisono.model.message_set import MessageOrigin, MessageRef, MessageSet
from unisono.orders.priority.messages import (
    Ack,
    MessageBody,
    Reader,
    Unreadable,
    decode_body,
    encode_body,
    encode_ref,
    encode_set,
)

_VERSION = 2
_HEAD = struct.Struct("!BQQ")
_STATE_COUNT = struct.Struct("!I")
_STATE_ORIGIN = struct.Struct("!HI")
_NEXT = struct.Struct("!HIQ")


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """A message with its origin; in the queue, with the messages that lock it."""

    message: MessageBody
    origin: MessageOrigin
    locks: tuple[MessageRef, ...]


@dataclass(frozen=True, slots=True)
class PriorityState:
    """The member's place in the agreed order, its queue with all locks, what waits and what was said about it, its
    history, what it knows of the others' histories, and what has left them all."""

    position: int
    clock: int
    next_sequences: tuple[tuple[MessageOrigin, int], ...]
    queue: tuple[QueueEntry, ...]
    tail_locks: tuple[MessageRef, ...]
    waiting: tuple[QueueEntry, ...]
    acks: tuple[tuple[MessageOrigin, Ack], ...]
    history: MessageSet
    consumed_by: tuple[tuple[MessageOrigin, MessageSet], ...]
    consumed_by_all: MessageSet
    fixed_prefix: MessageSet
    """What somebody is known to have consumed: nothing is put before it any more."""


def encode_state(state: PriorityState) -> bytes:
    """The state as bytes."""
    parts = [_HEAD.pack(_VERSION, state.position, state.clock)]
    parts += _encode_list([_NEXT.pack(*origin, sequence) for origin, sequence in state.next_sequences])
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


def encode_handover(state: PriorityState, application: bytes) -> bytes:
    """All that a newcomer is given: the order's state, and the application's."""
    return _encode_sized(encode_state(state)) + application


def decode_handover(data: bytes) -> tuple[PriorityState, bytes]:
    """The order's state and the application's, or Unreadable."""
    state = _read_sized(Reader(data))
    return decode_state(state), data[_STATE_COUNT.size + len(state) :]


def decode_state(data: bytes) -> PriorityState:
    """The state, or Unreadable: nothing may lock or be acknowledged that does not wait."""
    reader = Reader(data)
    version, position, clock = reader.unpack(_HEAD)
    if version != _VERSION:
        raise Unreadable(f"state of version {version}; this release reads version {_VERSION}")
    nexts = [reader.unpack(_NEXT) for _ in range(_read_count(reader))]
    queue = tuple(_read_entry(reader) for _ in range(_read_count(reader)))
    tail_locks = tuple(reader.read_ref() for _ in range(_read_count(reader)))
    waiting = tuple(_read_entry(reader) for _ in range(_read_count(reader)))
    acks: list[tuple[MessageOrigin, Ack]] = []
    for _ in range(_read_count(reader)):
        origin, ack = _read_origin(reader), decode_body(_read_sized(reader))
        if not isinstance(ack, Ack):
            raise Unreadable("an acknowledgment was expected")
        acks.append((origin, ack))
    history = reader.read_message_set()
    known = tuple((_read_origin(reader), reader.read_message_set()) for _ in range(_read_count(reader)))
    collected = reader.read_message_set()
    binding = reader.read_message_set()
    reader.expect_end()
    pending = {MessageRef(*entry.origin, entry.message.sequence) for entry in waiting}
    named = {*tail_locks, *(ref for entry in queue for ref in entry.locks)}
    named |= {ack.ref for _, ack in acks}
    if not named <= pending:
        raise Unreadable(f"{min(named - pending)} is spoken of and does not wait")
    return PriorityState(
        position,
        clock,
        tuple(((sender, incarnation), sequence) for sender, incarnation, sequence in nexts),
        queue,
        tail_locks,
        waiting,
        tuple(acks),
        history,
        known,
        collected,
        binding,
    )


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
        raise Unreadable("a message was expected")
    return QueueEntry(message, origin, tuple(reader.read_ref() for _ in range(_read_count(reader))))
