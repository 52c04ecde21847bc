"""The interface of a state machine, which a user implements: the objects that a command uses, and its effect on them.

`apply` must be deterministic: the same command on the same objects gives the same objects at every member, every time
it runs. Objects are immutable values: a command replaces an object and never modifies one that it has read. So a
rollback only has to drop objects.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

from unisono.errors import UnisonoError

Key = Hashable
"""The key of an object in a replicated state."""


class UndeclaredObject(UnisonoError, KeyError):
    """A command read or wrote an object that `touches` had not returned for it.

    Replicas could not roll such a command back correctly.
    """

    def __init__(self, key: Key) -> None:
        super().__init__(f"the command used {key!r}, which its machine's touches() did not return; add it there")
        self.key = key

    def __str__(self) -> str:
        return str(self.args[0])


class ObjectView:
    """The objects that a running command may read and write: only those that `touches` returned for it."""

    __slots__ = ("_declared", "_read", "written")

    def __init__(self, declared: Sequence[Key], read: Callable[[Key], Any]) -> None:
        self._declared = frozenset(declared)
        self._read = read
        self.written: dict[Key, Any] = {}

    def __getitem__(self, key: Key) -> Any:
        """The value of the object with this key; None if the object does not exist."""
        if key in self.written:
            return self.written[key]
        if key not in self._declared:
            raise UndeclaredObject(key)
        return self._read(key)

    def __setitem__(self, key: Key, value: Any) -> None:
        """Set the value of the object with this key; None removes the object."""
        if key not in self._declared:
            raise UndeclaredObject(key)
        self.written[key] = value


class StateMachine(Protocol):
    """The interface of a deterministic state machine, whose commands read and write objects by key."""

    def touches(self, command: bytes) -> Sequence[Key]:
        """The keys of all objects that the command may read or write (obj(C) in paper 003 §3.2).

        Raises ValueError if the bytes are not a command; `execute` does not send them then.
        """

    def apply(self, view: ObjectView, command: bytes) -> Any:
        """Run the command on the objects in `view`. The result goes only to the local caller of `execute`."""

    def dump(self, state: dict[Key, Any]) -> bytes:
        """Encode all objects, to transfer them to a newcomer."""

    def load(self, data: bytes) -> dict[Key, Any]:
        """Decode the objects that `dump` encoded; raises ValueError if the data is malformed."""
