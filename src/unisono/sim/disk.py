"""A disk that does what disks do in a crash: what was not synced is lost, in part, and the last record may be torn."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from unisono.model.stored_records import StoredRecords, Write
from unisono.sim.random_streams import random_below


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
