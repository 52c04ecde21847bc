"""Barriers between groups (paper 003, §3.1.1 and Algorithm 1 lines 8-13 and 28-31, as corrected by erratum 003-12).

The barrier of a group is a stamp: every message of that group with a smaller or equal stamp is already here.

- `BarrierQueue` is the paper's barPending. A decided message waits here until the stamps of its own group and the
  barriers of all sending groups have reached its stamp. Then messages are delivered by (stamp, group).
- `BarrierRequests` records which groups wait for which barriers. With barriers on demand (Algorithm 3), the sender of a
  message asks its blockers for their barriers at once. A destination group asks only for barriers that the sender could
  not ask for: those up to a stamp larger than the message's timestamp, and those of groups that are not linked to the
  sender's group.
- `BarrierRetry` repeats requests while a message is blocked, because requests and barriers may be lost.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Container, Mapping
from heapq import heapify, heappop, heappush

from unisono.model.topology import Topology
from unisono.orders.quasi_genuine.messages import GroupState, NumberedEntry, SourceBarrier, StampedEntry, time_of
from unisono.orders.quasi_genuine.topology_change import IncomingLink

OUT_OF_ORDER_MAX = 1 << 10
"""Keep entries of a stream that arrive out of order up to this many numbers ahead."""
PROMISES_MAX = 16
PENDING_MAX = 1 << 16
"""While this many messages wait for barriers, accept more only from groups that block the first of them."""
REQUESTS_MAX = 256
BACKOFF_DOUBLINGS_MAX = 4


class SourceGroup:
    """What this member has received of another group's stream of messages, and the barrier of that group."""

    __slots__ = ("applied", "barrier", "ends_after", "epoch", "out_of_order", "promised_barriers")

    def __init__(self, epoch: int = 1) -> None:
        self.epoch = epoch
        self.ends_after: int | None = None
        """The number of the last entry of the stream; None while the group still sends."""
        self.applied = 0
        """The number of entries received without a gap."""
        self.barrier = 0
        self.out_of_order: dict[int, StampedEntry] = {}
        self.promised_barriers: dict[int, int] = {}
        """By number of entries, the barrier that holds once that many entries have arrived."""

    def blocks(self, stamp: int) -> bool:
        """Whether this group may still send a message with a stamp up to `stamp`."""
        return self.barrier < stamp and (self.ends_after is None or self.applied < self.ends_after)


class BarrierQueue:
    """One member's decided messages that wait for barriers (the paper's barPending).

    It takes the entries of another group's stream in the order of their numbers, and ignores duplicates. Each barrier
    is announced with a number of entries, and holds as soon as that many have arrived (erratum 003-9).
    """

    def __init__(self, own_group: int, senders: tuple[int, ...]) -> None:
        self.own_group = own_group
        self.sources = {source: SourceGroup() for source in senders if source != own_group}
        self.pending: list[tuple[int, int, int, StampedEntry]] = []
        """A heap of (stamp, group, number, entry)."""
        self.last_delivered = (0, 0)
        """The (stamp, group) of the last delivered message."""
        self.largest_stamp = 0
        """The largest stamp that has ever waited here."""
        self.awaiting_admission: dict[int, list[tuple[int, StampedEntry]]] = {}
        """Stored entries of an earlier incarnation whose groups this one has not admitted yet."""

    # -- receiving -------------------------------------------------------------------------------------------

    def add_own(self, entry: StampedEntry) -> None:
        """Add a message that the own group has decided."""
        heappush(self.pending, (entry.stamp, self.own_group, 0, entry))
        self.largest_stamp = max(self.largest_stamp, entry.stamp)

    def receive(self, source: int, first: int, entries: tuple[StampedEntry, ...]) -> list[tuple[int, StampedEntry]]:
        """Receive entries of another group's stream, from number `first` on.

        Returns the entries that are applied now, with their numbers: they are new and leave no gap.
        """
        group = self.sources[source]
        if len(self.pending) >= PENDING_MAX and group.barrier >= self.pending[0][0]:
            return []
        for number, entry in enumerate(entries, first):
            if group.applied < number <= group.applied + OUT_OF_ORDER_MAX:
                group.out_of_order[number] = entry
        fresh: list[tuple[int, StampedEntry]] = []
        while (following := group.out_of_order.pop(group.applied + 1, None)) is not None:
            group.applied += 1
            fresh.append((group.applied, following))
            self._apply(source, group, group.applied, following)
        self._raise_barrier(group)
        return fresh

    def _apply(self, source: int, group: SourceGroup, number: int, entry: StampedEntry) -> None:
        group.barrier = max(group.barrier, entry.stamp)
        if (entry.stamp, source) > self.last_delivered:
            heappush(self.pending, (entry.stamp, source, number, entry))
            self.largest_stamp = max(self.largest_stamp, entry.stamp)

    def promise(self, source: int, head: int, last_stamp: int) -> None:
        """Record a group's promise: only the first `head` entries of its stream have stamps up to `last_stamp`."""
        group = self.sources[source]
        if head > group.applied and len(group.promised_barriers) >= PROMISES_MAX:
            del group.promised_barriers[min(group.promised_barriers)]
        group.promised_barriers[head] = max(last_stamp, group.promised_barriers.get(head, 0))
        self._raise_barrier(group)

    def _raise_barrier(self, group: SourceGroup) -> None:
        for head in [head for head in group.promised_barriers if head <= group.applied]:
            group.barrier = max(group.barrier, group.promised_barriers.pop(head))

    # -- delivering ------------------------------------------------------------------------------------------

    def pop_deliverable(self, own_last_stamp: int) -> list[tuple[int, StampedEntry]]:
        """Remove and return the messages that can be delivered now, in order, with their source groups."""
        if not self.pending:
            return []
        limit = own_last_stamp
        for group in self.sources.values():
            if group.blocks(limit):
                limit = group.barrier
        deliverable: list[tuple[int, StampedEntry]] = []
        pending = self.pending
        while pending and pending[0][0] <= limit:
            stamp, source, _, entry = heappop(pending)
            self.last_delivered = (stamp, source)
            deliverable.append((source, entry))
        return deliverable

    def blockers(self) -> list[int]:
        """The groups whose barrier the first pending message waits for."""
        if not self.pending:
            return []
        stamp = self.pending[0][0]
        return [source for source, group in self.sources.items() if group.blocks(stamp)]

    # -- topology changes and snapshots ----------------------------------------------------------------------

    def update_sources(self, incoming: Mapping[int, IncomingLink]) -> None:
        """Set the groups that send here or have sent here.

        The barrier of a new one is at first the own group's last stamp when the link opened.
        """
        for source, link in incoming.items():
            group = self.sources.get(source)
            if group is None:
                group = self.sources[source] = SourceGroup(0)
            if group.epoch != link.epoch:
                group.epoch = link.epoch
                for number, entry in self.awaiting_admission.pop(source, ()):
                    self.restore_entry(source, number, entry)
                self.promise(source, link.head, link.stamp)
            group.ends_after = None if link.open else link.head

    def restore_entry(self, source: int, number: int, entry: StampedEntry) -> None:
        """Apply an entry that an earlier incarnation stored."""
        group = self.sources.get(source)
        if group is None:
            self.awaiting_admission.setdefault(source, []).append((number, entry))
        elif number == group.applied + 1:
            group.applied = number
            self._apply(source, group, number, entry)

    def save(self, state: GroupState) -> None:
        """Write received and undelivered messages into a snapshot."""
        state.barriers = {source: SourceBarrier(group.applied, group.barrier) for source, group in self.sources.items()}
        state.pending = tuple(NumberedEntry(*waiting[1:]) for waiting in sorted(self.pending))
        state.delivered_stamp, state.delivered_source = self.last_delivered

    def restore(self, state: GroupState) -> bool:
        """Continue from a snapshot, plus the messages received here beyond it.

        Returns whether the snapshot skips messages that are not delivered here.
        """
        pending = [
            waiting
            for waiting in self.pending
            if waiting[1] != self.own_group and waiting[2] > state.barriers.get(waiting[1], (0, 0))[0]
        ]
        last_delivered = (state.delivered_stamp, state.delivered_source)
        skips_messages = last_delivered > self.last_delivered
        for source, number, entry in state.pending:
            if (entry.stamp, source) > self.last_delivered:
                pending.append((entry.stamp, source, number, entry))
        self.last_delivered = max(self.last_delivered, last_delivered)
        self.pending = [waiting for waiting in pending if waiting[:2] > self.last_delivered]
        heapify(self.pending)
        self.largest_stamp = max([self.largest_stamp, *(waiting[0] for waiting in self.pending)])
        for source, (applied, barrier) in state.barriers.items():
            group = self.sources.get(source)
            if group is not None:
                group.applied, group.barrier = max(group.applied, applied), max(group.barrier, barrier)
                group.out_of_order = {
                    number: entry for number, entry in group.out_of_order.items() if number > group.applied
                }
                self._raise_barrier(group)
        return skips_messages


class BarrierRequests:
    """Which groups wait for which barriers, and which requests are open, as one member knows it."""

    def __init__(self, topology: Topology, own_group_name: str) -> None:
        index = topology.index
        self.own_group = index(own_group_name)
        self.receivers = tuple(map(index, topology.receivers_from(own_group_name)))
        self.senders = tuple(map(index, topology.senders_to(own_group_name)))
        self._linked_groups = {index(name): frozenset(map(index, topology.neighbours(name))) for name in topology.names}
        self._senders_to = {index(name): tuple(map(index, topology.senders_to(name))) for name in topology.names}
        self._new_senders: frozenset[int] = frozenset()
        """Senders admitted while the groups run: other groups may not know that these can block messages here."""
        self._requested_stamps: list[int] = []
        """The stamps that other groups asked the own group to reach, ascending."""
        self._pending: dict[int, list[int]] = {}
        """By receiving group, the barriers that it waits for."""
        self._announced: dict[int, int] = {}
        """By receiving group, the last barrier that this group announced to it."""
        self._requested_from: dict[int, int] = {}
        """By sending group, the largest barrier that any member has requested from it."""

    def set_links(self, receivers: tuple[int, ...], senders: tuple[int, ...], new_senders: frozenset[int]) -> None:
        """Change the groups that the own group sends to and receives from; other links stay as declared."""
        own_group = self.own_group
        for group in senders:
            if group not in self.senders:
                self._requested_from.pop(group, None)
        self.receivers, self.senders, self._new_senders = receivers, senders, new_senders
        linked = frozenset({own_group, *receivers, *senders})
        for group, others in self._linked_groups.items():
            self._linked_groups[group] = others | {own_group} if group in linked else others - {own_group}
            other_senders = [sender for sender in self._senders_to[group] if sender != own_group]
            self._senders_to[group] = tuple(
                sorted([*other_senders, own_group] if group in receivers else other_senders)
            )
        self._linked_groups[own_group], self._senders_to[own_group] = linked, senders
        self._pending = {group: stamps for group, stamps in self._pending.items() if group in receivers}

    # -- requests for this group's barrier -------------------------------------------------------------------

    def groups_to_notify(self, mask: int) -> list[int]:
        """The groups to notify of a message to these destinations: destinations and blockers that we are linked to."""
        linked = self._linked_groups[self.own_group]
        concerned = {group for receiver in _bits(mask) for group in (receiver, *self._senders_to[receiver])}
        return sorted(group for group in concerned if group in linked and group != self.own_group)

    def requested(self, source: int, stamp: int, mask: int) -> list[int]:
        """Record an announcement of group `source`: the groups in `mask` need barriers up to `stamp`.

        Returns the groups to forward the announcement to, because `source` is not linked to them.
        """
        waiting_groups = [group for group in self.receivers if mask >> group & 1 and group != self.own_group]
        for group in waiting_groups:
            stamps = self._pending.setdefault(group, [])
            if len(stamps) >= REQUESTS_MAX:
                stamps[:] = [max(stamps)]
            stamps.append(stamp)
        is_destination = bool(mask >> self.own_group & 1)
        if waiting_groups or is_destination:
            self.request(stamp)
        if not is_destination:
            return []
        unreached = []
        for group in self.senders:
            if group != self.own_group and self._requested_from.get(group, 0) < stamp:
                self._requested_from[group] = stamp
                if group not in self._linked_groups[source] or (group in self._new_senders and group != source):
                    unreached.append(group)
        return unreached

    def request(self, stamp: int) -> None:
        """Record a request that the last stamp of the own group reaches `stamp`."""
        if len(self._requested_stamps) >= REQUESTS_MAX:
            del self._requested_stamps[: REQUESTS_MAX // 2]
        if not self._requested_stamps or stamp > self._requested_stamps[-1]:
            self._requested_stamps.append(stamp)
        elif stamp not in self._requested_stamps:
            insort(self._requested_stamps, stamp)

    def largest_requested(self, last_stamp: int, covered: int, limit: int | None = None) -> int | None:
        """The largest requested stamp beyond `covered` and up to `limit`; None if there is none.

        Forgets the requests up to `last_stamp`, which are fulfilled.
        """
        del self._requested_stamps[: bisect_right(self._requested_stamps, last_stamp)]
        end = len(self._requested_stamps) if limit is None else bisect_right(self._requested_stamps, limit)
        return self._requested_stamps[end - 1] if end and self._requested_stamps[end - 1] > covered else None

    def first_requested(self, covered: int) -> int | None:
        """The smallest requested stamp beyond `covered`; None if there is none."""
        at = bisect_right(self._requested_stamps, covered)
        return self._requested_stamps[at] if at < len(self._requested_stamps) else None

    def due_receivers(self, last_stamp: int, ready: Container[int]) -> list[int]:
        """With barriers on demand: the groups in `ready` that wait for a barrier that this group has reached."""
        due = []
        for group, stamps in self._pending.items():
            if group not in ready:
                continue
            reached = max((stamp for stamp in stamps if stamp <= last_stamp), default=0)
            if reached:
                stamps[:] = [stamp for stamp in stamps if stamp > last_stamp]
            if self._announced.get(group, 0) < reached:
                self._announced[group] = last_stamp
                due.append(group)
        return due

    def stale_receivers(self, last_stamp: int, threshold_ns: int, ready: Container[int]) -> list[int]:
        """With periodic barriers: the groups in `ready` whose last announced barrier is older than the threshold."""
        oldest = time_of(last_stamp) - threshold_ns
        stale = [
            group for group in self.receivers if group in ready and oldest >= time_of(self._announced.get(group, 0))
        ]
        for group in stale:
            self._announced[group] = last_stamp
        return stale

    def reset(self) -> None:
        """After a change of leader, forget which barriers were announced: leaders do not share this knowledge."""
        self._announced.clear()

    # -- requests for the barriers of other groups -----------------------------------------------------------

    def on_own_message(self, stamp: int, mask: int) -> None:
        """Record that the barriers for a message of the own group are requested: its sender has asked for them."""
        if mask >> self.own_group & 1:
            for group in self.senders:
                self._requested_from[group] = max(stamp, self._requested_from.get(group, 0))

    def mark_unrequested(self, blockers: list[int], stamp: int) -> list[int]:
        """Return the blockers from which this barrier is not requested yet, and record it as requested from them."""
        unrequested = [group for group in blockers if self._requested_from.get(group, 0) < stamp]
        for group in unrequested:
            self._requested_from[group] = stamp
        return unrequested


def _bits(mask: int) -> list[int]:
    return [group for group in range(mask.bit_length()) if mask >> group & 1]


class BarrierRetry:
    """Says when to repeat, with exponential backoff, the requests for barriers that the first pending message needs."""

    def __init__(self, wait_ns: int) -> None:
        self._wait_ns = wait_ns
        self._blocked_stamp: int | None = None
        self._last_attempt_at = 0
        self.attempts = 0
        """How many times the barriers for this message have been requested again."""

    def set_blocked(self, now: int, stamp: int | None) -> None:
        """Record the stamp of the message that waits for barriers now; None if no message waits."""
        if stamp != self._blocked_stamp:
            self._blocked_stamp, self._last_attempt_at, self.attempts = stamp, now, 0

    def retry_at(self) -> int | None:
        """When to request the barriers again; None if no message waits."""
        if self._blocked_stamp is None:
            return None
        return self._last_attempt_at + (self._wait_ns << min(self.attempts, BACKOFF_DOUBLINGS_MAX))

    def start_attempt_if_due(self, now: int) -> bool:
        """Returns whether the barriers are to be requested again now; if so, counts the attempt."""
        at = self.retry_at()
        if at is None or now < at:
            return False
        self._last_attempt_at, self.attempts = now, self.attempts + 1
        return True
