"""A disk that does what disks do in a crash: what was not synced is lost, in part, and the last record may be torn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random

from unisono.model.events import StackEvent
from unisono.model.slot_schedule import SlotGrid
from unisono.model.stored_records import StoredRecords, Write
from unisono.sim.random_streams import random_below
from unisono.stack import Datagram, Stack


class SimDisk:
    """One member's stable storage. `forgets` plants the defect that synced records are lost too."""

    def __init__(self, chance: Random, *, loses_synced_records: bool = False) -> None:
        self._chance = chance
        self._loses_synced_records = loses_synced_records
        self._synced_records: list[bytes] = []
        self._unsynced: list[bytes] = []
        self.sync_count = 0
        """How often a write was made durable."""

    def apply(self, writes: Iterable[Write]) -> None:
        """Write, in order; return when all that is not lazy is durable. A replacement is made whole or not at all."""
        due = False
        for write in writes:
            if write.replaces_all:
                self._synced_records, self._unsynced = [], []
            self._unsynced += write.records
            due = due or not write.may_be_lost
        if due:
            self.sync_count += 1
            self._synced_records += self._unsynced
            self._unsynced = []

    def crash(self) -> None:
        """Of what was not synced some of the first records are there; one that is torn is found out and cut off."""
        self._synced_records += self._unsynced[: random_below(self._chance, len(self._unsynced) + 1)]
        self._unsynced = []
        if self._loses_synced_records:
            del self._synced_records[random_below(self._chance, len(self._synced_records) + 1) :]

    def records(self) -> list[bytes]:
        """What a new life finds."""
        return [*self._synced_records, *self._unsynced]

    def stored_records(self, storage_id: int) -> StoredRecords:
        """What a new life is given."""
        return StoredRecords(storage_id, tuple(self.records()))


class DurableStack:
    """A stack with a disk: what it wants to be durable is, before what it says goes out."""

    def __init__(self, stack: Stack, disk: SimDisk) -> None:
        self.stack = stack
        self._disk = disk
        self.submit, self.receive, self.wake = stack.submit, stack.receive, stack.wake
        self.wake_at, self.change_rate, self.leave = stack.wake_at, stack.change_rate, stack.leave
        self.submit_to, self.destinations = stack.submit_to, stack.destinations
        self.change_topology = stack.change_topology

    @property
    def grid(self) -> SlotGrid:
        """The slots as the stack knows them."""
        return self.stack.grid

    def change_slot(self, now: int, theta_ns: int) -> None:
        """Ask the group for slots of another length."""
        self.stack.change_slot(now, theta_ns)

    def outgoing(self) -> Sequence[Datagram]:
        """The datagrams to send, behind what they rest on."""
        self._disk.apply(self.stack.writes())
        return self.stack.outgoing()

    def events(self) -> Sequence[StackEvent]:
        """What has happened, behind what it rests on."""
        self._disk.apply(self.stack.writes())
        return self.stack.events()
