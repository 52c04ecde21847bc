"""Who needs whose barrier (paper 003 §3.1.1): blockers(m), what has been asked for, and what is still owed.

On demand (Algorithm 3) the sender of m tells the groups that may hold m up, at once; only what it cannot have told them
is asked for by the destinations: a larger stamp than m's time stamp, and barriers of groups that the sender's group is
not related to. Whatever was lost is asked for again by who is held up.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Container

from unisono.model.topology import Topology
from unisono.orders.multigroup.messages import time_of

REQUESTS_MAX = 256


class BarrierRequests:
    """The book that one member keeps. Groups are their numbers."""

    def __init__(self, topology: Topology, own_group_name: str) -> None:
        self.topology = topology
        self.own_group = topology.index(own_group_name)
        number = topology.index
        self.receivers = tuple(number(name) for name in topology.receivers_from(own_group_name))
        self.senders = tuple(number(name) for name in topology.senders_to(own_group_name))
        self._related = {
            number(one): frozenset(number(other) for other in topology.neighbours(one)) for one in topology.names
        }
        self._senders_to = {number(name): tuple(map(number, topology.senders_to(name))) for name in topology.names}
        self._new_senders: frozenset[int] = frozenset()
        """Senders that began while the groups ran: others need not know that they may hold something up here."""
        self._requested_stamps: list[int] = []
        """How far the own group's stamps are to come, ascending."""
        self._pending: dict[int, list[int]] = {}
        """By receiving group, the barriers that it waits for."""
        self._announced: dict[int, int] = {}
        self._requested_from: dict[int, int] = {}
        """By sending group, the barrier that it has been asked for, by whomever."""

    def set_links(self, receivers: tuple[int, ...], senders: tuple[int, ...], new_senders: frozenset[int]) -> None:
        """From now on this group sends to those and gets from these; who else is related is as it was declared."""
        me = self.own_group
        for group in senders:
            if group not in self.senders:
                self._requested_from.pop(group, None)
        self.receivers, self.senders, self._new_senders = receivers, senders, new_senders
        related = frozenset({me, *receivers, *senders})
        for group, others in self._related.items():
            self._related[group] = others | {me} if group in related else others - {me}
            listed = [sender for sender in self._senders_to[group] if sender != me]
            self._senders_to[group] = tuple(sorted([*listed, me] if group in receivers else listed))
        self._related[me], self._senders_to[me] = related, senders
        self._pending = {group: owed for group, owed in self._pending.items() if group in receivers}

    def members_of(self, group: int) -> tuple[int, ...]:
        """Who is in a group."""
        return tuple(self.topology.groups[self.topology.names[group]])

    def groups_to_notify(self, mask: int) -> list[int]:
        """Whom a sender of this group tells of a message: its other destinations and the blockers it is related to."""
        related = self._related[self.own_group]
        wanted = {group for to in _bits(mask) for group in (to, *self._senders_to[to])}
        return sorted(group for group in wanted if group in related and group != self.own_group)

    def requested(self, source: int, stamp: int, mask: int) -> list[int]:
        """A message of group `source`, or its sender, says that these groups need barriers up to `stamp`.

        The groups to pass it on to, because the sender cannot reach them.
        """
        held_up = [group for group in self.receivers if mask >> group & 1 and group != self.own_group]
        for group in held_up:
            owed = self._pending.setdefault(group, [])
            if len(owed) >= REQUESTS_MAX:
                owed[:] = [max(owed)]
            owed.append(stamp)
        concerned = bool(mask >> self.own_group & 1)
        if held_up or concerned:
            self.request(stamp)
        if not concerned:
            return []
        unreached = []
        for group in self.senders:
            if group != self.own_group and self._requested_from.get(group, 0) < stamp:
                self._requested_from[group] = stamp
                if group not in self._related[source] or (group in self._new_senders and group != source):
                    unreached.append(group)
        return unreached

    def request(self, stamp: int) -> None:
        """The own group's stamps are to come as far as this."""
        if len(self._requested_stamps) >= REQUESTS_MAX:
            del self._requested_stamps[: REQUESTS_MAX // 2]
        if not self._requested_stamps or stamp > self._requested_stamps[-1]:
            self._requested_stamps.append(stamp)
        elif stamp not in self._requested_stamps:
            insort(self._requested_stamps, stamp)

    def largest_requested(self, last_stamp: int, covered: int, limit: int | None = None) -> int | None:
        """The largest stamp beyond `covered`, and up to `limit`, that is wanted; up to `last` all is well."""
        del self._requested_stamps[: bisect_right(self._requested_stamps, last_stamp)]
        at = len(self._requested_stamps) if limit is None else bisect_right(self._requested_stamps, limit)
        return self._requested_stamps[at - 1] if at and self._requested_stamps[at - 1] > covered else None

    def first_requested(self, covered: int) -> int | None:
        """The smallest stamp beyond `covered` that is wanted."""
        at = bisect_right(self._requested_stamps, covered)
        return self._requested_stamps[at] if at < len(self._requested_stamps) else None

    def on_own_message(self, stamp: int, mask: int) -> None:
        """A message of the own group, whose sender has told all groups that may hold it up here."""
        if mask >> self.own_group & 1:
            for group in self.senders:
                self._requested_from[group] = max(stamp, self._requested_from.get(group, 0))

    def mark_unrequested(self, blockers: list[int], stamp: int) -> list[int]:
        """Of the groups that hold something up, those that nobody has asked for this barrier: they are asked now."""
        found = [group for group in blockers if self._requested_from.get(group, 0) < stamp]
        for group in found:
            self._requested_from[group] = stamp
        return found

    def due_receivers(self, last_stamp: int, ready: Container[int]) -> list[int]:
        """The groups, of those ready for it, that are owed a barrier which this group's stamps have reached."""
        found = []
        for group, owed in self._pending.items():
            if group not in ready:
                continue
            reached = max((stamp for stamp in owed if stamp <= last_stamp), default=0)
            if reached:
                owed[:] = [stamp for stamp in owed if stamp > last_stamp]
            if self._announced.get(group, 0) < reached:
                self._announced[group] = last_stamp
                found.append(group)
        return found

    def stale_receivers(self, last_stamp: int, threshold_ns: int, ready: Container[int]) -> list[int]:
        """The groups, of those ready for it, that have not been told of the stamps for as long as the threshold."""
        due = time_of(last_stamp) - threshold_ns
        found = [group for group in self.receivers if group in ready and due >= time_of(self._announced.get(group, 0))]
        for group in found:
            self._announced[group] = last_stamp
        return found

    def reset(self) -> None:
        """A new reign: what an earlier leader told is not known."""
        self._announced.clear()


def _bits(mask: int) -> list[int]:
    return [group for group in range(mask.bit_length()) if mask >> group & 1]
