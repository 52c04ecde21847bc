"""What a member of the priority order hands to a newcomer (erratum 004-10), and its bytes."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from unisono.model.message_set import MessageSet, Origin, Ref
from unisono.orders.priority.messages import (
    Ack,
    Message,
    Reader,
    Unreadable,
    decode_body,
    encode_body,
    encode_ref,
    encode_set,
)

_VERSION = 2
_HEAD = struct.Struct("!BQQ")
_COUNT = struct.Struct("!I")
_ORIGIN = struct.Struct("!HI")
_NEXT = struct.Struct("!HIQ")


@dataclass(frozen=True, slots=True)
class Entry:
    """A message with its origin; in the queue, with the messages that lock it."""

    message: Message
    origin: Origin
    locks: tuple[Ref, ...]


@dataclass(frozen=True, slots=True)
class State:
    """The member's place in the agreed order, its queue with all locks, what waits and what was said about it, its
    history, what it knows of the others' histories, and what has left them all."""

    position: int
    clock: int
    next_sequences: tuple[tuple[Origin, int], ...]
    queue: tuple[Entry, ...]
    tail_locks: tuple[Ref, ...]
    waiting: tuple[Entry, ...]
    acks: tuple[tuple[Origin, Ack], ...]
    history: MessageSet
    known: tuple[tuple[Origin, MessageSet], ...]
    collected: MessageSet
    binding: MessageSet
    """What somebody is known to have consumed: nothing is put before it any more."""


def encode_state(state: State) -> bytes:
    """The state as bytes."""
    parts = [_HEAD.pack(_VERSION, state.position, state.clock)]
    parts += _list([_NEXT.pack(*origin, sequence) for origin, sequence in state.next_sequences])
    parts += _list([_entry(entry) for entry in state.queue])
    parts += _list([encode_ref(ref) for ref in state.tail_locks])
    parts += _list([_entry(entry) for entry in state.waiting])
    parts += _list([_ORIGIN.pack(*origin) + _sized(encode_body(ack)) for origin, ack in state.acks])
    parts.append(encode_set(state.history))
    parts += _list([_ORIGIN.pack(*origin) + encode_set(consumed) for origin, consumed in state.known])
    parts.append(encode_set(state.collected))
    parts.append(encode_set(state.binding))
    return b"".join(parts)


def encode_handover(state: State, application: bytes) -> bytes:
    """All that a newcomer is given: the order's state, and the application's."""
    return _sized(encode_state(state)) + application


def decode_handover(data: bytes) -> tuple[State, bytes]:
    """The order's state and the application's, or Unreadable."""
    state = _read_sized(Reader(data))
    return decode_state(state), data[_COUNT.size + len(state) :]


def decode_state(data: bytes) -> State:
    """The state, or Unreadable: nothing may lock or be acknowledged that does not wait."""
    reader = Reader(data)
    version, position, clock = reader.unpack(_HEAD)
    if version != _VERSION:
        raise Unreadable(f"state of version {version}; this release reads version {_VERSION}")
    nexts = [reader.unpack(_NEXT) for _ in range(_count(reader))]
    queue = tuple(_read_entry(reader) for _ in range(_count(reader)))
    tail_locks = tuple(reader.ref() for _ in range(_count(reader)))
    waiting = tuple(_read_entry(reader) for _ in range(_count(reader)))
    acks: list[tuple[Origin, Ack]] = []
    for _ in range(_count(reader)):
        origin, ack = _read_origin(reader), decode_body(_read_sized(reader))
        if not isinstance(ack, Ack):
            raise Unreadable("an acknowledgment was expected")
        acks.append((origin, ack))
    history = reader.message_set()
    known = tuple((_read_origin(reader), reader.message_set()) for _ in range(_count(reader)))
    collected = reader.message_set()
    binding = reader.message_set()
    reader.end()
    pending = {Ref(*entry.origin, entry.message.sequence) for entry in waiting}
    named = {*tail_locks, *(ref for entry in queue for ref in entry.locks)}
    named |= {ack.ref for _, ack in acks}
    if not named <= pending:
        raise Unreadable(f"{min(named - pending)} is spoken of and does not wait")
    return State(
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


def _list(items: list[bytes]) -> list[bytes]:
    return [_COUNT.pack(len(items)), *items]


def _sized(data: bytes) -> bytes:
    return _COUNT.pack(len(data)) + data


def _entry(entry: Entry) -> bytes:
    locks = _list([encode_ref(ref) for ref in entry.locks])
    return b"".join((_ORIGIN.pack(*entry.origin), _sized(encode_body(entry.message)), *locks))


def _count(reader: Reader) -> int:
    return reader.unpack(_COUNT)[0]


def _read_origin(reader: Reader) -> Origin:
    sender, incarnation = reader.unpack(_ORIGIN)
    return sender, incarnation


def _read_sized(reader: Reader) -> bytes:
    return reader.bytes(_count(reader))


def _read_entry(reader: Reader) -> Entry:
    origin, message = _read_origin(reader), decode_body(_read_sized(reader))
    if not isinstance(message, Message):
        raise Unreadable("a message was expected")
    return Entry(message, origin, tuple(reader.ref() for _ in range(_count(reader))))
