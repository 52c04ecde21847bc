"""barPending and the barriers (paper 003, Algorithm 1 lines 8-13 and 28-31, as erratum 003-12 has them).

A decided message waits here until its group's and every sending group's stamps have come as far as its own. Entries of
another group are applied in that group's numbering, the first copy of each; its barrier is what it has promised behind
as many entries as have been applied. Then the smallest (stamp, group) is delivered.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush

from unisono.orders.multigroup.messages import StampedEntry
from unisono.orders.multigroup.stored_state import GroupState
from unisono.orders.multigroup.topology_state import IncomingLink

OUT_OF_ORDER_MAX = 1 << 10
"""So many entries that came before their turn are kept."""
PROMISES_MAX = 16
PENDING_MAX = 1 << 16
"""With so many messages waiting, no more are taken from groups that nothing waits for."""


class SourceGroup:
    """Another group, as far as it has been heard."""

    __slots__ = ("applied", "barrier", "ends_after", "epoch", "out_of_order", "promised_barriers")

    def __init__(self, epoch: int = 1) -> None:
        self.epoch = epoch
        self.ends_after: int | None = None
        """After so many entries nothing comes any more."""
        self.applied = 0
        self.barrier = 0
        self.out_of_order: dict[int, StampedEntry] = {}
        self.promised_barriers: dict[int, int] = {}
        """By number of entries, the barrier that whoever has them has."""

    def blocks(self, stamp: int) -> bool:
        """Whether something with an earlier stamp may come."""
        return self.barrier < stamp and (self.ends_after is None or self.applied < self.ends_after)


class BarrierQueue:
    """What one member's deliveries wait for."""

    def __init__(self, own_group: int, senders: tuple[int, ...]) -> None:
        self.own_group = own_group
        self.sources = {source: SourceGroup() for source in senders if source != own_group}
        self.pending: list[tuple[int, int, int, StampedEntry]] = []
        """A heap of (stamp, group, number, entry)."""
        self.last_delivered = (0, 0)
        self.largest_stamp = 0
        """The largest stamp that has waited here."""
        self.awaiting_admission: dict[int, list[tuple[int, StampedEntry]]] = {}
        """Entries of an earlier life, whose groups have not been admitted yet in this one."""

    def update_sources(self, incoming: Mapping[int, IncomingLink]) -> None:
        """These groups send here, or have until now; whoever begins has no smaller stamps than were used up here."""
        for source, came in incoming.items():
            its = self.sources.get(source)
            if its is None:
                its = self.sources[source] = SourceGroup(0)
            if its.epoch != came.epoch:
                its.epoch = came.epoch
                for number, entry in self.awaiting_admission.pop(source, ()):
                    self.restore_entry(source, number, entry)
                self.promise(source, came.head, came.stamp)
            its.ends_after = None if came.open else came.head

    def add_own(self, entry: StampedEntry) -> None:
        """A message of the own group has been decided."""
        heappush(self.pending, (entry.stamp, self.own_group, 0, entry))
        self.largest_stamp = max(self.largest_stamp, entry.stamp)

    def receive(self, source: int, first: int, entries: tuple[StampedEntry, ...]) -> list[tuple[int, StampedEntry]]:
        """Entries of another group's stream, from number `first` on: those that are new and in turn, with numbers."""
        its = self.sources[source]
        if len(self.pending) >= PENDING_MAX and its.barrier >= self.pending[0][0]:
            return []
        for number, entry in enumerate(entries, first):
            if its.applied < number <= its.applied + OUT_OF_ORDER_MAX:
                its.out_of_order[number] = entry
        fresh: list[tuple[int, StampedEntry]] = []
        while (following := its.out_of_order.pop(its.applied + 1, None)) is not None:
            its.applied += 1
            fresh.append((its.applied, following))
            self._apply(source, its, its.applied, following)
        self._raise_barrier(its)
        return fresh

    def _apply(self, source: int, source_group: SourceGroup, number: int, entry: StampedEntry) -> None:
        source_group.barrier = max(source_group.barrier, entry.stamp)
        if (entry.stamp, source) > self.last_delivered:
            heappush(self.pending, (entry.stamp, source, number, entry))
            self.largest_stamp = max(self.largest_stamp, entry.stamp)

    def promise(self, source: int, head: int, last_stamp: int) -> None:
        """Of what this group stamps up to `last` there are `head` entries."""
        its = self.sources[source]
        if head > its.applied and len(its.promised_barriers) >= PROMISES_MAX:
            del its.promised_barriers[min(its.promised_barriers)]
        its.promised_barriers[head] = max(last_stamp, its.promised_barriers.get(head, 0))
        self._raise_barrier(its)

    def _raise_barrier(self, source_group: SourceGroup) -> None:
        for head in [head for head in source_group.promised_barriers if head <= source_group.applied]:
            source_group.barrier = max(source_group.barrier, source_group.promised_barriers.pop(head))

    def restore_entry(self, source: int, number: int, entry: StampedEntry) -> None:
        """An entry that was applied in an earlier life."""
        its = self.sources.get(source)
        if its is None:
            self.awaiting_admission.setdefault(source, []).append((number, entry))
        elif number == its.applied + 1:
            its.applied = number
            self._apply(source, its, number, entry)

    def pop_deliverable(self, own_last_stamp: int) -> list[tuple[int, StampedEntry]]:
        """What can be delivered now, in order, with the groups that it comes from."""
        if not self.pending:
            return []
        limit = own_last_stamp
        for its in self.sources.values():
            if its.blocks(limit):
                limit = its.barrier
        out: list[tuple[int, StampedEntry]] = []
        pending = self.pending
        while pending and pending[0][0] <= limit:
            stamp, source, _, entry = heappop(pending)
            self.last_delivered = (stamp, source)
            out.append((source, entry))
        return out

    def blockers(self) -> list[int]:
        """The groups whose barrier the first message waits for."""
        if not self.pending:
            return []
        stamp = self.pending[0][0]
        return [source for source, its in self.sources.items() if its.blocks(stamp)]

    def save(self, state: GroupState) -> None:
        """Put what has been heard and not delivered into a state."""
        state.barriers = {source: (its.applied, its.barrier) for source, its in self.sources.items()}
        state.pending = tuple((source, number, entry) for _, source, number, entry in sorted(self.pending))
        state.last_delivered = self.last_delivered

    def restore(self, state: GroupState) -> bool:
        """Go on from another state, and from what was heard here beyond it; whether deliveries are left out."""
        kept = [
            waiting
            for waiting in self.pending
            if waiting[1] != self.own_group and waiting[2] > state.barriers.get(waiting[1], (0, 0))[0]
        ]
        behind = state.last_delivered > self.last_delivered
        for source, entry_number, entry in state.pending:
            if (entry.stamp, source) > self.last_delivered:
                kept.append((entry.stamp, source, entry_number, entry))
        self.last_delivered = max(self.last_delivered, state.last_delivered)
        self.pending = [waiting for waiting in kept if waiting[:2] > self.last_delivered]
        heapify(self.pending)
        self.largest_stamp = max([self.largest_stamp, *(waiting[0] for waiting in self.pending)])
        for source, (applied, barrier) in state.barriers.items():
            its = self.sources.get(source)
            if its is not None:
                its.applied, its.barrier = max(its.applied, applied), max(its.barrier, barrier)
                its.out_of_order = {number: entry for number, entry in its.out_of_order.items() if number > its.applied}
                self._raise_barrier(its)
        return behind
