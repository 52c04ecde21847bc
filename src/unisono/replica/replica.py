"""A replica: the conservative state, the optimistic one over it, and what lies between (paper 003 §3.2).

The optimistic state is an overlay: it holds the objects that commands delivered early, and not yet finally, have
written. Going back to the conservative state of an object is dropping it from the overlay, whatever its size. After a
mistake the commands that are left are run again on the objects that it reached; objects that share no queued command
with it are not touched.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from unisono.replica.state_machine import Key, ObjectView, StateMachine

MessageName = tuple[int, int, int]
"""Sender, incarnation and sequence: names a message for ever."""
_SNAPSHOT_HEAD = struct.Struct("!QI")
_SENDER_POSITION = struct.Struct("!iqq")


@dataclass(slots=True)
class MistakeCounts:
    """Why the optimistic state had to be made again."""

    lost: int = 0
    """Finally delivered, but not early."""
    out_of_order: int = 0
    """Delivered early after a command that the final order has behind it."""
    retracted: int = 0
    """Delivered early, and finally never: its sender died, and the group agreed without it."""
    late: int = 0
    """Early after it was final: not executed twice, and no rollback; counted as lost before."""
    rollbacks: int = 0
    """How often objects were set back to their conservative state."""
    reexecuted: int = 0
    """How many commands were run again for that."""


@dataclass(slots=True, eq=False)
class _QueuedCommand:
    name: MessageName
    command: bytes
    touched: tuple[Key, ...]


class Replica:
    """One member's copy of the state."""

    def __init__(self, machine: StateMachine, *, two_grades: bool = True) -> None:
        """`two_grades`: whether what becomes final without having been early is a mistake; an early command says so."""
        self.mistakes = MistakeCounts()
        self.executed = 0
        """How many commands the conservative state has seen."""
        self._machine = machine
        self._two_grades = two_grades
        self._conservative: dict[Key, Any] = {}
        self._overlay: dict[Key, Any] = {}
        self._queues: dict[Key, deque[_QueuedCommand]] = {}
        """By object, the commands executed early and not yet finally, in the early order."""
        self._queued: dict[MessageName, _QueuedCommand] = {}
        """All of them; the order of insertion is the early order."""
        self._last_final: dict[int, tuple[int, int]] = {}
        """By sender, incarnation and sequence of its last final command: a sender's commands are final in its order."""

    # -- reading ---------------------------------------------------------------------------------------------

    def optimistic(self, key: Key) -> Any:
        """The object as all commands delivered so far leave it, early ones included; None if there is none."""
        return self._overlay[key] if key in self._overlay else self._conservative.get(key)

    def conservative(self, key: Key) -> Any:
        """The object as the group has agreed on it; None if there is none."""
        return self._conservative.get(key)

    def objects(self, *, optimistic: bool = False) -> list[Key]:
        """The objects that exist."""
        if not optimistic:
            return list(self._conservative)
        known = {**self._conservative, **self._overlay}
        return [key for key, value in known.items() if value is not None]

    @property
    def pending(self) -> int:
        """How many commands are early and not final."""
        return len(self._queued)

    def open_on(self, key: Key) -> int:
        """How many commands that touch this object are early and not final."""
        return len(self._queues.get(key, ()))

    # -- the two grades --------------------------------------------------------------------------------------

    def deliver_early(self, name: MessageName, command: bytes) -> Any:
        """A command was delivered early; what it gave back, None if it was final already."""
        if name in self._queued:
            return None
        self._two_grades = True
        if self._is_final(name):
            self.mistakes.late += 1
            return None
        queued = _QueuedCommand(name, command, tuple(dict.fromkeys(self._machine.touches(command))))
        self._queued[name] = queued
        for key in queued.touched:
            self._queues.setdefault(key, deque()).append(queued)
        return self._run_early(queued)

    def deliver_final(self, name: MessageName, command: bytes) -> Any:
        """A command was delivered finally; what it gave back."""
        queued = self._queued.pop(name, None)
        touched = queued.touched if queued is not None else tuple(dict.fromkeys(self._machine.touches(command)))
        view = ObjectView(touched, self._conservative.get)
        result = self._machine.apply(view, command)
        for key, value in view.written.items():
            if value is None:
                self._conservative.pop(key, None)
            else:
                self._conservative[key] = value
        self.executed += 1
        self._last_final[name[0]] = max(self._last_final.get(name[0], (-1, -1)), name[1:])
        if queued is not None and all(self._queues[key][0] is queued for key in touched):
            for key in touched:
                self._queues[key].popleft()
                self._drop_overlay_if_final(key)
        elif queued is not None:
            self.mistakes.out_of_order += 1
            self._dequeue(queued)
            self._roll_back(touched)
        elif self._two_grades:
            self.mistakes.lost += 1
            self._roll_back(touched)
        return result

    def retract(self, names: Iterable[MessageName]) -> None:
        """Commands that were delivered early will never be final."""
        for name in names:
            queued = self._queued.pop(name, None)
            if queued is not None:
                self.mistakes.retracted += 1
                self._dequeue(queued)
                self._roll_back(queued.touched)

    def _is_final(self, name: MessageName) -> bool:
        return name[1:] <= self._last_final.get(name[0], (-1, -1))

    def _run_early(self, queued: _QueuedCommand) -> Any:
        view = ObjectView(queued.touched, self.optimistic)
        result = self._machine.apply(view, queued.command)
        self._overlay.update(view.written)
        return result

    def _dequeue(self, queued: _QueuedCommand) -> None:
        for key in queued.touched:
            self._queues[key].remove(queued)

    def _drop_overlay_if_final(self, key: Key) -> None:
        """With no command left between the two states of an object they are one."""
        if not self._queues[key]:
            del self._queues[key]
            self._overlay.pop(key, None)

    def _roll_back(self, touched: Iterable[Key]) -> None:
        """Overwrite what the mistake reached with the conservative state, and run the commands that are left again."""
        reached: dict[Key, None] = {}
        again: dict[MessageName, _QueuedCommand] = {}
        waiting = list(touched)
        while waiting:
            key = waiting.pop()
            if key in reached:
                continue
            reached[key] = None
            for queued in self._queues.get(key, ()):
                again[queued.name] = queued
                waiting.extend(other for other in queued.touched if other not in reached)
        for key in reached:
            self._overlay.pop(key, None)
            if key in self._queues:
                self._drop_overlay_if_final(key)
        if again:
            self.mistakes.rollbacks += 1
            self.mistakes.reexecuted += len(again)
            for name, queued in self._queued.items():
                if name in again:
                    self._run_early(queued)

    # -- members that join -----------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """The conservative state and how far each sender's commands are in it."""
        marks = b"".join(_SENDER_POSITION.pack(sender, *last) for sender, last in sorted(self._last_final.items()))
        return (
            _SNAPSHOT_HEAD.pack(self.executed, len(self._last_final)) + marks + self._machine.dump(self._conservative)
        )

    def restore(self, data: bytes) -> None:
        """Begin from another member's snapshot; what was delivered early here and is not in it stays."""
        try:
            executed, count = _SNAPSHOT_HEAD.unpack_from(data)
            end = _SNAPSHOT_HEAD.size + count * _SENDER_POSITION.size
            marks = [(s, (i, n)) for s, i, n in _SENDER_POSITION.iter_unpack(data[_SNAPSHOT_HEAD.size : end])]
        except struct.error as error:
            raise ValueError(f"this is no snapshot of a replica: {error}") from None
        if len(marks) != count:
            raise ValueError(f"this is no snapshot of a replica: {count} senders named, {len(marks)} there")
        self._conservative = self._machine.load(data[end:])
        self.executed, self._last_final = executed, dict(marks)
        for name in [name for name in self._queued if self._is_final(name)]:
            self._dequeue(self._queued.pop(name))
        self._overlay.clear()
        self._queues = {key: queue for key, queue in self._queues.items() if queue}
        for queued in self._queued.values():
            self._run_early(queued)
