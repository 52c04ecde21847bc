"""What a user writes: the objects that a command touches, and what it does to them.

`apply` must be deterministic: the same command on the same objects gives the same objects at every member, however
often it runs. Objects are values: a command puts a new one in its place and never changes one that it read, which is
what makes a rollback cost nothing but forgetting.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

from unisono.errors import UnisonoError

Key = Hashable
"""The name of an object."""


class UndeclaredObject(UnisonoError, KeyError):
    """A command read or wrote an object that it had not declared; replicas could then not roll back rightly."""

    def __init__(self, key: Key) -> None:
        super().__init__(f"the command touched {key!r}, which its machine's touches() did not name")
        self.key = key

    def __str__(self) -> str:
        return str(self.args[0])


class ObjectView:
    """The objects of one command while it runs: those that it declared, and no others."""

    __slots__ = ("_declared", "_read", "written")

    def __init__(self, declared: Sequence[Key], read: Callable[[Key], Any]) -> None:
        self._declared = frozenset(declared)
        self._read = read
        self.written: dict[Key, Any] = {}

    def __getitem__(self, key: Key) -> Any:
        """The object's value, None if it does not exist."""
        if key in self.written:
            return self.written[key]
        if key not in self._declared:
            raise UndeclaredObject(key)
        return self._read(key)

    def __setitem__(self, key: Key, value: Any) -> None:
        """Put a value in the object's place; None ends its existence."""
        if key not in self._declared:
            raise UndeclaredObject(key)
        self.written[key] = value


class StateMachine(Protocol):
    """A deterministic state machine over named objects."""

    def touches(self, command: bytes) -> Sequence[Key]:
        """obj(C): every object that the command may read or write, known before it runs.

        ValueError if this is no command: then it is not sent.
        """

    def apply(self, view: ObjectView, command: bytes) -> Any:
        """Run the command; what it gives back is for whoever waits for it, and is not replicated."""

    def dump(self, state: dict[Key, Any]) -> bytes:
        """All objects, for a member that joins."""

    def load(self, data: bytes) -> dict[Key, Any]:
        """The objects of a dump; raises ValueError if it is none."""
