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
            raise ValueError(f"truncated length field at offset {at}")
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if at + length > len(data):
            raise ValueError(f"expected {length} bytes at offset {at}, but only {len(data) - at} remain")
        parts.append(data[at : at + length])
        at += length
    return parts


def _parsed(command: bytes, forms: dict[bytes, int], made_by: str) -> list[bytes]:
    """The parts of a command. `forms` maps first parts to numbers of parts; raises ValueError for other commands."""
    try:
        parts = unpack(command)
    except ValueError:
        parts = []
    if not parts or forms.get(parts[0]) != len(parts):
        raise ValueError(f"expected a command made by {made_by}, got {command[:20]!r}")
    return parts


class Dict:
    """A dictionary from bytes to bytes."""

    @staticmethod
    def put(key: bytes, value: bytes) -> bytes:
        """The command that sets a key. Its result is the previous value, or None."""
        return pack(_PUT, key, value)

    @staticmethod
    def drop(key: bytes) -> bytes:
        """The command that removes a key. Its result is the previous value, or None."""
        return pack(_REMOVE, key)

    @staticmethod
    def swap(key: bytes, expected: bytes, value: bytes) -> bytes:
        """The command that sets a key only if it has the expected value. Its result says whether it did."""
        return pack(_SWAP, key, expected, value)

    def touches(self, command: bytes) -> Sequence[Key]:
        """The key of the command; raises ValueError if the bytes are not a command."""
        return (_parsed(command, {_PUT: 3, _REMOVE: 2, _SWAP: 4}, "Dict.put, Dict.drop or Dict.swap")[1],)

    def apply(self, view: ObjectView, command: bytes) -> Any:
        """Run a command."""
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
        """Encode keys and values alternately."""
        entries: list[tuple[bytes, bytes]] = sorted(state.items())  # type: ignore[arg-type]
        return pack(*(part for entry in entries for part in entry))

    def load(self, data: bytes) -> dict[Key, Any]:
        """Decode the result of `dump`."""
        parts = unpack(data)
        return dict(zip(parts[::2], parts[1::2], strict=True))


class Set:
    """A set of bytes."""

    @staticmethod
    def add(element: bytes) -> bytes:
        """The command that adds an element. Its result says whether the element is new."""
        return pack(_PUT, element)

    @staticmethod
    def discard(element: bytes) -> bytes:
        """The command that removes an element. Its result says whether the element existed."""
        return pack(_REMOVE, element)

    def touches(self, command: bytes) -> Sequence[Key]:
        """The element of the command; raises ValueError if the bytes are not a command."""
        return (_parsed(command, {_PUT: 2, _REMOVE: 2}, "Set.add or Set.discard")[1],)

    def apply(self, view: ObjectView, command: bytes) -> bool:
        """Run a command."""
        action, element = unpack(command)
        existed = view[element] is not None
        view[element] = True if action == _PUT else None
        return existed != (action == _PUT)

    def dump(self, state: dict[Key, Any]) -> bytes:
        """Encode the elements."""
        return pack(*sorted(state))  # type: ignore[type-var, arg-type]

    def load(self, data: bytes) -> dict[Key, Any]:
        """Decode the result of `dump`."""
        return dict.fromkeys(unpack(data), True)


class Counter:
    """An integer to which commands add."""

    KEY = "count"

    @staticmethod
    def add(amount: int) -> bytes:
        """The command that adds an amount. Its result is the new number."""
        return _AMOUNT.pack(amount)

    def touches(self, command: bytes) -> Sequence[Key]:
        """The only object; raises ValueError if the bytes are not a command."""
        if len(command) != _AMOUNT.size:
            raise ValueError(f"expected a command made by Counter.add, got {command[:20]!r}")
        return (self.KEY,)

    def apply(self, view: ObjectView, command: bytes) -> int:
        """Run a command."""
        total: int = (view[self.KEY] or 0) + _AMOUNT.unpack(command)[0]
        view[self.KEY] = total
        return total

    def dump(self, state: dict[Key, Any]) -> bytes:
        """Encode the number in decimal, so that its size is unlimited."""
        return str(state.get(self.KEY, 0)).encode()

    def load(self, data: bytes) -> dict[Key, Any]:
        """Decode the result of `dump`."""
        return {self.KEY: int(data)}


class Log:
    """An append-only list of bytes. The command is the entry. The object is ((previous log, entry), length)."""

    KEY = "log"

    def touches(self, command: bytes) -> Sequence[Key]:
        """The only object."""
        return (self.KEY,)

    def apply(self, view: ObjectView, command: bytes) -> int:
        """Append an entry. Returns its index."""
        entries: tuple[Any, int] | None = view[self.KEY]
        number = 0 if entries is None else entries[1]
        view[self.KEY] = ((entries, command), number + 1)
        return number

    @staticmethod
    def entries(value: Any) -> list[bytes]:
        """The entries of the log's object, from the first on."""
        found = []
        while value is not None:
            (value, entry), _ = value
            found.append(entry)
        return found[::-1]

    def dump(self, state: dict[Key, Any]) -> bytes:
        """Encode the entries."""
        return pack(*self.entries(state.get(self.KEY)))

    def load(self, data: bytes) -> dict[Key, Any]:
        """Decode the result of `dump`."""
        value: Any = None
        for number, entry in enumerate(unpack(data)):
            value = ((value, entry), number + 1)
        return {} if value is None else {self.KEY: value}
