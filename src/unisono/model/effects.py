"""The effects of one step of a stack, which its driver carries out, and the records of a restarted member."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unisono.model.events import StackEvent


@dataclass(frozen=True, slots=True)
class Write:
    """Records that a driver appends to stable storage. With `replaces_all`, they replace everything stored so far.

    The driver must make every write durable, in order, before it sends any frame or reports any event that the
    automaton produced together with the write or later. A write that `may_be_lost` need not be durable: if a
    crash loses it, the restarted member only has more work.
    """

    records: tuple[bytes, ...]
    replaces_all: bool = False
    may_be_lost: bool = False


@dataclass(frozen=True, slots=True)
class StoredRecords:
    """The records that a member's earlier incarnations stored, and the id by which peers recognize its storage."""

    storage_id: int
    records: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Datagram:
    """Bytes to send, and the members to send them to."""

    destinations: tuple[int, ...]
    data: bytes
    to_group: bool = False
    """Whether the datagram goes to the whole group. Paper 000 counts such a send once, for any number of
    destinations."""
    multicast: bool = False
    """Whether one IP multicast may replace the copies to each destination."""


@dataclass(slots=True)
class Effects:
    """All effects of one step of a stack; the fields are in the order in which a driver must carry them out."""

    records: Sequence[Write]
    """Records that must be durable before the driver sends a datagram or reports an event of this step."""
    datagrams: Sequence[Datagram]
    events: Sequence[StackEvent]
    wake_at: int | None
    """The local clock reading at which to wake the stack; None if nothing is due."""
