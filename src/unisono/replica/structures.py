"""Ready-made state machines with commands as bytes: a dict, a set, a counter and a log.

Each key of a dict and each element of a set is its own object, so a mistake on one of them does not affect the others.
A counter is one object. A log is one object, too: a linked list from the last entry to the first. An append costs the
same at any length, and a rollback drops the last links.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from unisono.replica.state_machine import Key, ObjectView

_LENGTH = struct.Struct("!I")
_AMOUNT = struct.Struct("!q")
_PUT, _REMOVE, _SWAP = b"+", b"-", b"?"


def pack(*parts: bytes) -> bytes:
    """Join byte strings, each preceded by its length."""
    return b"".join(chunk for part in parts for chunk in (_LENGTH.pack(len(part)), part))


def unpack(data: bytes) -> list[bytes]:
    """Split the result of `pack`; raises ValueError if the data is malformed."""
    parts, at = [], 0
    while at < len(data):
        if at + _LENGTH.size > len(data):
            raise ValueError(f"the length field at offset {at} is truncated")
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if at + length > len(data):
            raise ValueError(f"expected {length} bytes at offset {at}, but only {len(data) - at} remain")
        parts.append(data[at : at + length])
        at += length
    return parts


def _parsed(command: bytes, forms: dict[bytes, int], made_by: str) -> list[bytes]:
    """Split a command into its parts.

    The first part is the name of the operation. `forms` maps each known name to the number of parts; any other command
    raises ValueError.
    """
    try:
        parts = unpack(command)
    except ValueError:
        parts = []
    if not parts or forms.get(parts[0]) != len(parts):
        raise ValueError(f"expected a command made by {made_by}, got {command[:20]!r}")
    return parts


class Dict:
    """A state machine that holds a dictionary from bytes to bytes."""

    @staticmethod
    def put(key: bytes, value: bytes) -> bytes:
        """Make the command that sets a key. Its result is the key's previous value, or None."""
        return pack(_PUT, key, value)

    @staticmethod
    def drop(key: bytes) -> bytes:
        """Make the command that removes a key. Its result is the key's previous value, or None."""
        return pack(_REMOVE, key)

    @staticmethod
    def swap(key: bytes, expected: bytes, value: bytes) -> bytes:
        """Make the command that sets a key only if it has the expected value. Its result says whether it was set."""
        return pack(_SWAP, key, expected, value)

    def touches(self, command: bytes) -> Sequence[Key]:
        """The dictionary key that the command uses; raises ValueError if the bytes are not a command."""
        return (_parsed(command, {_PUT: 3, _REMOVE: 2, _SWAP: 4}, "Dict.put, Dict.drop or Dict.swap")[1],)

    def apply(self, view: ObjectView, command: bytes) -> Any:
        """Run a command and return its result."""
        action, key, *values = unpack(command)
        before = view[key]
        if action == _SWAP:
            if before != values[0]:
                return False
            view[key] = values[1]
            return True
        view[key] = values[0] if action == _PUT else None
        return before

    def dump(self, state: dict[Key, Any]) -> bytes:
        """Encode all keys and values alternately."""
        entries: list[tuple[bytes, bytes]] = sorted(state.items())  # type: ignore[arg-type]
        return pack(*(part for entry in entries for part in entry))

    def load(self, data: bytes) -> dict[Key, Any]:
        """Decode a state that `dump` encoded."""
        parts = unpack(data)
        return dict(zip(parts[::2], parts[1::2], strict=True))


class Set:
    """A state machine that holds a set of byte strings."""

    @staticmethod
    def add(element: bytes) -> bytes:
        """Make the command that adds an element. Its result says whether the element is new."""
        return pack(_PUT, element)

    @staticmethod
    def discard(element: bytes) -> bytes:
        """Make the command that removes an element. Its result says whether the element existed."""
        return pack(_REMOVE, element)

    def touches(self, command: bytes) -> Sequence[Key]:
        """The element that the command uses; raises ValueError if the bytes are not a command."""
        return (_parsed(command, {_PUT: 2, _REMOVE: 2}, "Set.add or Set.discard")[1],)

    def apply(self, view: ObjectView, command: bytes) -> bool:
        """Run a command and return its result."""
        action, element = unpack(command)
        existed = view[element] is not None
        view[element] = True if action == _PUT else None
        return existed != (action == _PUT)

    def dump(self, state: dict[Key, Any]) -> bytes:
        """Encode all elements of the set."""
        return pack(*sorted(state))  # type: ignore[type-var, arg-type]

    def load(self, data: bytes) -> dict[Key, Any]:
        """Decode a state that `dump` encoded."""
        return dict.fromkeys(unpack(data), True)


class Counter:
    """A state machine that holds one integer, to which commands add."""

    KEY = "count"

    @staticmethod
    def add(amount: int) -> bytes:
        """Make the command that adds an amount. Its result is the new number."""
        return _AMOUNT.pack(amount)

    def touches(self, command: bytes) -> Sequence[Key]:
        """The key of the counter's only object; raises ValueError if the bytes are not a command."""
        if len(command) != _AMOUNT.size:
            raise ValueError(f"expected a command made by Counter.add, got {command[:20]!r}")
        return (self.KEY,)

    def apply(self, view: ObjectView, command: bytes) -> int:
        """Run a command and return its result."""
        total: int = (view[self.KEY] or 0) + _AMOUNT.unpack(command)[0]
        view[self.KEY] = total
        return total

    def dump(self, state: dict[Key, Any]) -> bytes:
        """Encode the number in decimal, so that its size is unlimited."""
        return str(state.get(self.KEY, 0)).encode()

    def load(self, data: bytes) -> dict[Key, Any]:
        """Decode a state that `dump` encoded."""
        return {self.KEY: int(data)}


class Log:
    """A state machine that holds an append-only list of byte strings. A command is the entry to append.

    The only object is the tuple ((previous entries, last entry), length).
    """

    KEY = "log"

    def touches(self, command: bytes) -> Sequence[Key]:
        """The key of the log's only object."""
        return (self.KEY,)

    def apply(self, view: ObjectView, command: bytes) -> int:
        """Append the command to the log as an entry, and return the index of that entry."""
        entries: tuple[Any, int] | None = view[self.KEY]
        number = 0 if entries is None else entries[1]
        view[self.KEY] = ((entries, command), number + 1)
        return number

    @staticmethod
    def entries(value: Any) -> list[bytes]:
        """All entries, from the first on, of the object that `optimistic` or `conservative` returned."""
        found = []
        while value is not None:
            (value, entry), _ = value
            found.append(entry)
        return found[::-1]

    def dump(self, state: dict[Key, Any]) -> bytes:
        """Encode all entries of the log."""
        return pack(*self.entries(state.get(self.KEY)))

    def load(self, data: bytes) -> dict[Key, Any]:
        """Decode a state that `dump` encoded."""
        value: Any = None
        for number, entry in enumerate(unpack(data)):
            value = ((value, entry), number + 1)
        return {} if value is None else {self.KEY: value}
