"""barPending and the barriers (paper 003, Algorithm 1 lines 8-13 and 28-31, as erratum 003-12 has them).

A decided message waits here until its group's and every sending group's stamps have come as far as its own. Entries of
another group are applied in that group's numbering, the first copy of each; its barrier is what it has promised behind
as many entries as have been applied. Then the smallest (stamp, group) is delivered.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush

from unisono.orders.multigroup.messages import Entry
from unisono.orders.multigroup.stored_state import GroupState
from unisono.orders.multigroup.topology_state import Incoming

EARLY_MAX = 1 << 10
"""So many entries that came before their turn are kept."""
PROMISES_MAX = 16
PENDING_MAX = 1 << 16
"""With so many messages waiting, no more are taken from groups that nothing waits for."""


class Source:
    """Another group, as far as it has been heard."""

    __slots__ = ("applied", "barrier", "early", "ends", "epoch", "promises")

    def __init__(self, epoch: int = 1) -> None:
        self.epoch = epoch
        self.ends: int | None = None
        """After so many entries nothing comes any more."""
        self.applied = 0
        self.barrier = 0
        self.early: dict[int, Entry] = {}
        self.promises: dict[int, int] = {}
        """By number of entries, the barrier that whoever has them has."""

    def holds_up(self, stamp: int) -> bool:
        """Whether something with an earlier stamp may come."""
        return self.barrier < stamp and (self.ends is None or self.applied < self.ends)


class Gate:
    """What one member's deliveries wait for."""

    def __init__(self, me: int, senders: tuple[int, ...]) -> None:
        self.me = me
        self.sources = {source: Source() for source in senders if source != me}
        self.pending: list[tuple[int, int, int, Entry]] = []
        """A heap of (stamp, group, number, entry)."""
        self.delivered = (0, 0)
        self.top = 0
        """The largest stamp that has waited here."""
        self.recalled: dict[int, list[tuple[int, Entry]]] = {}
        """Entries of an earlier life, whose groups have not been admitted yet in this one."""

    def follow(self, into: Mapping[int, Incoming]) -> None:
        """These groups send here, or have until now; whoever begins has no smaller stamps than were used up here."""
        for source, came in into.items():
            its = self.sources.get(source)
            if its is None:
                its = self.sources[source] = Source(0)
            if its.epoch != came.epoch:
                its.epoch = came.epoch
                for number, entry in self.recalled.pop(source, ()):
                    self.recall(source, number, entry)
                self.promise(source, came.head, came.stamp)
            its.ends = None if came.open else came.head

    def add_own(self, entry: Entry) -> None:
        """A message of the own group has been decided."""
        heappush(self.pending, (entry.stamp, self.me, 0, entry))
        self.top = max(self.top, entry.stamp)

    def hear(self, source: int, first: int, entries: tuple[Entry, ...]) -> list[tuple[int, Entry]]:
        """Entries of another group's stream, from number `first` on: those that are new and in turn, with numbers."""
        its = self.sources[source]
        if len(self.pending) >= PENDING_MAX and its.barrier >= self.pending[0][0]:
            return []
        for number, entry in enumerate(entries, first):
            if its.applied < number <= its.applied + EARLY_MAX:
                its.early[number] = entry
        fresh: list[tuple[int, Entry]] = []
        while (following := its.early.pop(its.applied + 1, None)) is not None:
            its.applied += 1
            fresh.append((its.applied, following))
            self._apply(source, its, its.applied, following)
        self._raise(its)
        return fresh

    def _apply(self, source: int, its: Source, number: int, entry: Entry) -> None:
        its.barrier = max(its.barrier, entry.stamp)
        if (entry.stamp, source) > self.delivered:
            heappush(self.pending, (entry.stamp, source, number, entry))
            self.top = max(self.top, entry.stamp)

    def promise(self, source: int, head: int, last: int) -> None:
        """Of what this group stamps up to `last` there are `head` entries."""
        its = self.sources[source]
        if head > its.applied and len(its.promises) >= PROMISES_MAX:
            del its.promises[min(its.promises)]
        its.promises[head] = max(last, its.promises.get(head, 0))
        self._raise(its)

    def _raise(self, its: Source) -> None:
        for head in [head for head in its.promises if head <= its.applied]:
            its.barrier = max(its.barrier, its.promises.pop(head))

    def recall(self, source: int, number: int, entry: Entry) -> None:
        """An entry that was applied in an earlier life."""
        its = self.sources.get(source)
        if its is None:
            self.recalled.setdefault(source, []).append((number, entry))
        elif number == its.applied + 1:
            its.applied = number
            self._apply(source, its, number, entry)

    def open(self, own_last: int) -> list[tuple[int, Entry]]:
        """What can be delivered now, in order, with the groups that it comes from."""
        if not self.pending:
            return []
        limit = own_last
        for its in self.sources.values():
            if its.holds_up(limit):
                limit = its.barrier
        out: list[tuple[int, Entry]] = []
        pending = self.pending
        while pending and pending[0][0] <= limit:
            stamp, source, _, entry = heappop(pending)
            self.delivered = (stamp, source)
            out.append((source, entry))
        return out

    def blockers(self) -> list[int]:
        """The groups whose barrier the first message waits for."""
        if not self.pending:
            return []
        stamp = self.pending[0][0]
        return [source for source, its in self.sources.items() if its.holds_up(stamp)]

    def save(self, state: GroupState) -> None:
        """Put what has been heard and not delivered into a state."""
        state.barriers = {source: (its.applied, its.barrier) for source, its in self.sources.items()}
        state.pending = tuple((source, number, entry) for _, source, number, entry in sorted(self.pending))
        state.delivered = self.delivered

    def restore(self, state: GroupState) -> bool:
        """Go on from another state, and from what was heard here beyond it; whether deliveries are left out."""
        kept = [
            waiting
            for waiting in self.pending
            if waiting[1] != self.me and waiting[2] > state.barriers.get(waiting[1], (0, 0))[0]
        ]
        behind = state.delivered > self.delivered
        for source, entry_number, entry in state.pending:
            if (entry.stamp, source) > self.delivered:
                kept.append((entry.stamp, source, entry_number, entry))
        self.delivered = max(self.delivered, state.delivered)
        self.pending = [waiting for waiting in kept if waiting[:2] > self.delivered]
        heapify(self.pending)
        self.top = max([self.top, *(waiting[0] for waiting in self.pending)])
        for source, (applied, barrier) in state.barriers.items():
            its = self.sources.get(source)
            if its is not None:
                its.applied, its.barrier = max(its.applied, applied), max(its.barrier, barrier)
                its.early = {number: entry for number, entry in its.early.items() if number > its.applied}
                self._raise(its)
        return behind
