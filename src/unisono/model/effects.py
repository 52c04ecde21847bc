"""The effects of one step of a stack, which its driver carries out, and the records of a restarted member."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unisono.model.events import StackEvent


@dataclass(frozen=True, slots=True)
class Write:
    """Records to append. With `replaces_all`, they replace everything stored so far.

    The driver must make every write durable, in order, before it sends any frame or reports any event that the
    automaton produced together with the write or later. A write that `may_be_lost` need not be durable: if a
    crash loses it, the restarted member only has more work.
    """

    records: tuple[bytes, ...]
    replaces_all: bool = False
    may_be_lost: bool = False


@dataclass(frozen=True, slots=True)
class StoredRecords:
    """The records of earlier incarnations, and the id by which peers recognize the same storage."""

    storage_id: int
    records: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Datagram:
    """Bytes to send, and the members to send them to."""

    destinations: tuple[int, ...]
    data: bytes
    to_group: bool = False
    """Whether it goes to the whole group. The paper's net-mcast counts it once, whatever the number of destinations."""
    multicast: bool = False
    """Whether one IP multicast may replace the copies to each destination."""


@dataclass(slots=True)
class Effects:
    """All effects of one step, in the order in which a driver must carry them out."""

    records: Sequence[Write]
    """Make these durable first: datagrams and events may depend on them."""
    datagrams: Sequence[Datagram]
    events: Sequence[StackEvent]
    wake_at: int | None
    """The local clock reading at which to wake the stack; None if nothing is due."""
