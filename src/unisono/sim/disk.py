"""A disk that does what disks do in a crash: what was not synced is lost, in part, and the last record may be torn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random

from unisono.model.events import StackEvent
from unisono.model.slot_schedule import Grid
from unisono.model.stored_records import Memory, Write
from unisono.sim.random_streams import below
from unisono.stack import Datagram, Stack


class SimDisk:
    """One member's stable storage. `forgets` plants the defect that synced records are lost too."""

    def __init__(self, chance: Random, *, forgets: bool = False) -> None:
        self._chance = chance
        self._forgets = forgets
        self._safe: list[bytes] = []
        self._unsynced: list[bytes] = []
        self.synced = 0
        """How often a write was made durable."""

    def apply(self, writes: Iterable[Write]) -> None:
        """Write, in order; return when all that is not lazy is durable. A replacement is made whole or not at all."""
        due = False
        for write in writes:
            if write.replace:
                self._safe, self._unsynced = [], []
            self._unsynced += write.records
            due = due or not write.lazy
        if due:
            self.synced += 1
            self._safe += self._unsynced
            self._unsynced = []

    def crash(self) -> None:
        """Of what was not synced some of the first records are there; one that is torn is found out and cut off."""
        self._safe += self._unsynced[: below(self._chance, len(self._unsynced) + 1)]
        self._unsynced = []
        if self._forgets:
            del self._safe[below(self._chance, len(self._safe) + 1) :]

    def records(self) -> list[bytes]:
        """What a new life finds."""
        return [*self._safe, *self._unsynced]

    def memory(self, number: int) -> Memory:
        """What a new life is given."""
        return Memory(number, tuple(self.records()))


class DurableStack:
    """A stack with a disk: what it wants to be durable is, before what it says goes out."""

    def __init__(self, stack: Stack, disk: SimDisk) -> None:
        self.stack = stack
        self._disk = disk
        self.submit, self.receive, self.wake = stack.submit, stack.receive, stack.wake
        self.wake_at, self.new_rate, self.leave = stack.wake_at, stack.new_rate, stack.leave
        self.submit_to, self.destinations = stack.submit_to, stack.destinations
        self.change_topology = stack.change_topology

    @property
    def grid(self) -> Grid:
        """The slots as the stack knows them."""
        return self.stack.grid

    def new_slot(self, now: int, theta_ns: int) -> None:
        """Ask the group for slots of another length."""
        self.stack.new_slot(now, theta_ns)

    def outgoing(self) -> Sequence[Datagram]:
        """The datagrams to send, behind what they rest on."""
        self._disk.apply(self.stack.writes())
        return self.stack.outgoing()

    def events(self) -> Sequence[StackEvent]:
        """What has happened, behind what it rests on."""
        self._disk.apply(self.stack.writes())
        return self.stack.events()
