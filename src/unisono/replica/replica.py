"""A replica: the conservative state, the optimistic state, and the queued commands between them (paper 003 §3.2).

The optimistic state is an overlay: it holds the objects written by commands that were delivered early and not yet
finally. A rollback of an object removes it from the overlay, whatever its size. After a mistake, the remaining queued
commands run again on the affected objects. Objects that share no queued command with these stay as they are.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from unisono.replica.state_machine import Key, ObjectView, StateMachine

MessageName = tuple[int, int, int]
"""The name of a message: sender, incarnation and sequence. No two messages have the same."""
_SNAPSHOT_HEAD = struct.Struct("!QI")
_SENDER_POSITION = struct.Struct("!iqq")


@dataclass(slots=True)
class MistakeCounts:
    """How often the optimistic state was wrong, by reason, and the cost of correcting it."""

    lost: int = 0
    """Commands delivered finally, but not early."""
    out_of_order: int = 0
    """Commands whose early delivery followed a command that comes later in the final order."""
    retracted: int = 0
    """Commands delivered early that never become final: the sender crashed, and the group agreed without them."""
    late: int = 0
    """Commands delivered early after they were final. They do not run twice, and already count as lost."""
    rollbacks: int = 0
    """How often objects were reset to their conservative state."""
    reexecuted: int = 0
    """Commands that ran again because of a rollback."""


@dataclass(slots=True, eq=False)
class _QueuedCommand:
    name: MessageName
    command: bytes
    touched: tuple[Key, ...]


class Replica:
    """One member's copy of the replicated state: the conservative state, and the optimistic one as an overlay."""

    def __init__(self, machine: StateMachine, *, two_grades: bool = True) -> None:
        """With `two_grades`, a command whose final delivery has no early one before it counts as a mistake.

        The first command delivered early turns `two_grades` on.
        """
        self.mistakes = MistakeCounts()
        self.executed = 0
        """How many commands have run on the conservative state."""
        self._machine = machine
        self._two_grades = two_grades
        self._conservative: dict[Key, Any] = {}
        self._overlay: dict[Key, Any] = {}
        self._queues: dict[Key, deque[_QueuedCommand]] = {}
        """By object, the commands that have run early and are not final yet, in the order of their early deliveries."""
        self._queued: dict[MessageName, _QueuedCommand] = {}
        """All commands that have run early and are not final yet, in the order of their early deliveries."""
        self._last_final: dict[int, tuple[int, int]] = {}
        """By sender, the incarnation and sequence of its last final command. A sender's commands keep their order."""

    # -- reading ---------------------------------------------------------------------------------------------

    def optimistic(self, key: Key) -> Any:
        """The object after all commands delivered so far, early ones included; None if it does not exist."""
        return self._overlay[key] if key in self._overlay else self._conservative.get(key)

    def conservative(self, key: Key) -> Any:
        """The object as agreed by the group; None if it does not exist."""
        return self._conservative.get(key)

    def objects(self, *, optimistic: bool = False) -> list[Key]:
        """The keys of all objects that exist in the conservative state, or with `optimistic` in the optimistic one."""
        if not optimistic:
            return list(self._conservative)
        known = {**self._conservative, **self._overlay}
        return [key for key, value in known.items() if value is not None]

    @property
    def pending(self) -> int:
        """The number of commands delivered early and not yet finally."""
        return len(self._queued)

    def open_on(self, key: Key) -> int:
        """The number of commands on this object that were delivered early and not yet finally."""
        return len(self._queues.get(key, ()))

    # -- the two grades --------------------------------------------------------------------------------------

    def deliver_early(self, name: MessageName, command: bytes) -> Any:
        """Run a command that was delivered early, and return its result; None if the command was already final."""
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
        """Run a command that was delivered finally, and return its result."""
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
        """Remove commands that were delivered early and will never be final."""
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
        """Drop an object from the optimistic state if all commands on it are final."""
        if not self._queues[key]:
            del self._queues[key]
            self._overlay.pop(key, None)

    def _roll_back(self, touched: Iterable[Key]) -> None:
        """Reset the affected objects to their conservative state, and run their remaining queued commands again."""
        affected: dict[Key, None] = {}
        to_rerun: dict[MessageName, _QueuedCommand] = {}
        unvisited = list(touched)
        while unvisited:
            key = unvisited.pop()
            if key in affected:
                continue
            affected[key] = None
            for queued in self._queues.get(key, ()):
                to_rerun[queued.name] = queued
                unvisited.extend(other for other in queued.touched if other not in affected)
        for key in affected:
            self._overlay.pop(key, None)
            if key in self._queues:
                self._drop_overlay_if_final(key)
        if to_rerun:
            self.mistakes.rollbacks += 1
            self.mistakes.reexecuted += len(to_rerun)
            for name, queued in self._queued.items():
                if name in to_rerun:
                    self._run_early(queued)

    # -- state transfer --------------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """Encode the conservative state, and the position of the last command of each sender that it contains."""
        last = b"".join(_SENDER_POSITION.pack(sender, *last) for sender, last in sorted(self._last_final.items()))
        return _SNAPSHOT_HEAD.pack(self.executed, len(self._last_final)) + last + self._machine.dump(self._conservative)

    def restore(self, data: bytes) -> None:
        """Replace the state by another member's snapshot; raises ValueError if the data is malformed.

        Commands that were delivered early here and are not in the snapshot stay queued.
        """
        try:
            executed, count = _SNAPSHOT_HEAD.unpack_from(data)
            end = _SNAPSHOT_HEAD.size + count * _SENDER_POSITION.size
            last = [(s, (i, n)) for s, i, n in _SENDER_POSITION.iter_unpack(data[_SNAPSHOT_HEAD.size : end])]
        except struct.error as error:
            raise ValueError(f"not a snapshot of a replica: {error}") from None
        if len(last) != count:
            raise ValueError(f"not a snapshot of a replica: expected entries of {count} senders, found {len(last)}")
        self._conservative = self._machine.load(data[end:])
        self.executed, self._last_final = executed, dict(last)
        for name in [name for name in self._queued if self._is_final(name)]:
            self._dequeue(self._queued.pop(name))
        self._overlay.clear()
        self._queues = {key: queue for key, queue in self._queues.items() if queue}
        for queued in self._queued.values():
            self._run_early(queued)
