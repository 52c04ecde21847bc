"""Ready-made state: a dict, a set, a counter and a log, each a machine with its commands as bytes.

A dict's keys and a set's elements are objects of their own, so that a mistake on one of them is mended without a look
at the others. A counter is one object, and so is a log: a chain whose links point back, so that an append costs the
same at any length and a rollback forgets the links that it took back.
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
    """Byte strings as one, each with its length before it."""
    return b"".join(piece for part in parts for piece in (_LENGTH.pack(len(part)), part))


def unpack(data: bytes) -> list[bytes]:
    """The byte strings that `pack` put together; ValueError if it did not make this."""
    parts, at = [], 0
    while at < len(data):
        if at + _LENGTH.size > len(data):
            raise ValueError("a length is cut off")
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if at + length > len(data):
            raise ValueError(f"{length} bytes are announced, {len(data) - at} are there")
        parts.append(data[at : at + length])
        at += length
    return parts


def _parsed(command: bytes, forms: dict[bytes, int], made_by: str) -> list[bytes]:
    """A command's parts; ValueError if it has none of these forms, each a first part and a number of parts."""
    try:
        parts = unpack(command)
    except ValueError:
        parts = []
    if not parts or forms.get(parts[0]) != len(parts):
        raise ValueError(f"a command is made by {made_by}; {command[:20]!r} is none")
    return parts


class Dict:
    """bytes -> bytes."""

    @staticmethod
    def put(key: bytes, value: bytes) -> bytes:
        """The command that sets a key; gives back the value before it, or None."""
        return pack(_PUT, key, value)

    @staticmethod
    def drop(key: bytes) -> bytes:
        """The command that removes a key; gives back the value that it had, or None."""
        return pack(_REMOVE, key)

    @staticmethod
    def swap(key: bytes, expected: bytes, value: bytes) -> bytes:
        """The command that sets a key only if it has the expected value; gives back whether it had."""
        return pack(_SWAP, key, expected, value)

    def touches(self, command: bytes) -> Sequence[Key]:
        """The key; ValueError if this is no command."""
        return (_parsed(command, {_PUT: 3, _REMOVE: 2, _SWAP: 4}, "Dict.put, Dict.drop or Dict.swap")[1],)

    def apply(self, view: ObjectView, command: bytes) -> Any:
        """Run a command."""
        what, key, *values = unpack(command)
        before = view[key]
        if what == _SWAP:
            if before != values[0]:
                return False
            view[key] = values[1]
            return True
        view[key] = values[0] if what == _PUT else None
        return before

    def dump(self, state: dict[Key, Any]) -> bytes:
        """Keys and values by turns."""
        entries: list[tuple[bytes, bytes]] = sorted(state.items())  # type: ignore[arg-type]
        return pack(*(part for entry in entries for part in entry))

    def load(self, data: bytes) -> dict[Key, Any]:
        """What `dump` gave."""
        parts = unpack(data)
        return dict(zip(parts[::2], parts[1::2], strict=True))


class Set:
    """A set of bytes."""

    @staticmethod
    def add(element: bytes) -> bytes:
        """The command that adds an element; gives back whether it is new."""
        return pack(_PUT, element)

    @staticmethod
    def discard(element: bytes) -> bytes:
        """The command that removes an element; gives back whether it was there."""
        return pack(_REMOVE, element)

    def touches(self, command: bytes) -> Sequence[Key]:
        """The element; ValueError if this is no command."""
        return (_parsed(command, {_PUT: 2, _REMOVE: 2}, "Set.add or Set.discard")[1],)

    def apply(self, view: ObjectView, command: bytes) -> bool:
        """Run a command."""
        what, element = unpack(command)
        there = view[element] is not None
        view[element] = True if what == _PUT else None
        return there != (what == _PUT)

    def dump(self, state: dict[Key, Any]) -> bytes:
        """The elements."""
        return pack(*sorted(state))  # type: ignore[type-var, arg-type]

    def load(self, data: bytes) -> dict[Key, Any]:
        """What `dump` gave."""
        return dict.fromkeys(unpack(data), True)


class Counter:
    """A whole number, which commands add to."""

    KEY = "count"

    @staticmethod
    def add(amount: int) -> bytes:
        """The command that adds; gives back the number after it."""
        return _AMOUNT.pack(amount)

    def touches(self, command: bytes) -> Sequence[Key]:
        """The one number; ValueError if this is no command."""
        if len(command) != _AMOUNT.size:
            raise ValueError(f"a command is made by Counter.add; {command[:20]!r} is none")
        return (self.KEY,)

    def apply(self, view: ObjectView, command: bytes) -> int:
        """Run a command."""
        total: int = (view[self.KEY] or 0) + _AMOUNT.unpack(command)[0]
        view[self.KEY] = total
        return total

    def dump(self, state: dict[Key, Any]) -> bytes:
        """The number in decimal, which has no largest."""
        return str(state.get(self.KEY, 0)).encode()

    def load(self, data: bytes) -> dict[Key, Any]:
        """What `dump` gave."""
        return {self.KEY: int(data)}


class Log:
    """A list of bytes that grows; the command is the entry. The object is (the log before, entry), length."""

    KEY = "log"

    def touches(self, command: bytes) -> Sequence[Key]:
        """The one chain."""
        return (self.KEY,)

    def apply(self, view: ObjectView, command: bytes) -> int:
        """Append; gives back the entry's number."""
        entries: tuple[Any, int] | None = view[self.KEY]
        number = 0 if entries is None else entries[1]
        view[self.KEY] = ((entries, command), number + 1)
        return number

    @staticmethod
    def entries(value: Any) -> list[bytes]:
        """The entries of the log's one object, from the first on."""
        found = []
        while value is not None:
            (value, entry), _ = value
            found.append(entry)
        return found[::-1]

    def dump(self, state: dict[Key, Any]) -> bytes:
        """The entries."""
        return pack(*self.entries(state.get(self.KEY)))

    def load(self, data: bytes) -> dict[Key, Any]:
        """What `dump` gave."""
        value: Any = None
        for number, entry in enumerate(unpack(data)):
            value = ((value, entry), number + 1)
        return {} if value is None else {self.KEY: value}
