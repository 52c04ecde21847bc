"""A simulated disk: a crash loses some of the records that were not synced."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from unisono.model.effects import StoredRecords, Write
from unisono.sim.random_streams import random_below


class SimDisk:
    """Simulated stable storage of one member.

    `loses_synced_records` plants a defect: a crash also loses synced records.
    """

    def __init__(self, chance: Random, *, loses_synced_records: bool = False) -> None:
        self._chance = chance
        self._loses_synced_records = loses_synced_records
        self._synced_records: list[bytes] = []
        self._unsynced: list[bytes] = []
        self.sync_count = 0
        """How many times writes were synced."""

    def apply(self, writes: Iterable[Write]) -> None:
        """Carry out the writes in order, and sync unless all of them may be lost. Replacing all records is atomic."""
        must_sync = False
        for write in writes:
            if write.replaces_all:
                self._synced_records, self._unsynced = [], []
            self._unsynced += write.records
            must_sync = must_sync or not write.may_be_lost
        if must_sync:
            self.sync_count += 1
            self._synced_records += self._unsynced
            self._unsynced = []

    def crash(self) -> None:
        """Keep a random number of the first unsynced records, and lose the others. A torn record counts as lost."""
        self._synced_records += self._unsynced[: random_below(self._chance, len(self._unsynced) + 1)]
        self._unsynced = []
        if self._loses_synced_records:
            del self._synced_records[random_below(self._chance, len(self._synced_records) + 1) :]

    def records(self) -> list[bytes]:
        """The records that a new incarnation finds."""
        return [*self._synced_records, *self._unsynced]

    def stored_records(self, storage_id: int) -> StoredRecords:
        """The records for the stack of a new incarnation."""
        return StoredRecords(storage_id, tuple(self.records()))
