"""Writes to stable storage, and the records read from it at a restart."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Write:
    """Records to append. With `replaces_all`, they replace everything stored so far.

    The driver must make every write durable, in order, before it sends any frame or reports any event that the
    automaton produced together with the write or later. A write that `may_be_lost` in a crash only saves work.
    """

    records: tuple[bytes, ...]
    replaces_all: bool = False
    may_be_lost: bool = False


@dataclass(frozen=True, slots=True)
class StoredRecords:
    """The records of earlier incarnations, and the id by which peers recognize the same storage."""

    storage_id: int
    records: tuple[bytes, ...] = ()
