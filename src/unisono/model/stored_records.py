"""What an automaton wants on stable storage."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Write:
    """Records to append; or, with `replace`, all that is to be there from now on.

    Whoever drives the automaton makes every write durable, in order, before it sends any frame or hands out any event
    that the automaton gave together with it or later. What is `lazy` may be lost in a crash: it saves work, no more.
    """

    records: tuple[bytes, ...]
    replaces_all: bool = False
    may_be_lost: bool = False


@dataclass(frozen=True, slots=True)
class StoredRecords:
    """What stable storage holds from earlier lives, and the number by which peers know that it is the same storage."""

    storage_id: int
    records: tuple[bytes, ...] = ()
