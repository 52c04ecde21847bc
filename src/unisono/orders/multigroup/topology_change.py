"""One member in a relation that changes: what it may send now, what it confirms, and what its application is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from unisono.agreement.membership.from_policy import retry_ns
from unisono.errors import InvalidPolicy, NotRelated
from unisono.model.events import TopologyChange, Violation, ViolationKind
from unisono.model.policy import Policy
from unisono.model.stored_records import Memory
from unisono.orders.multigroup.barrier_requests import BarrierCalls
from unisono.orders.multigroup.barriers import Gate
from unisono.orders.multigroup.group_log import GroupLog
from unisono.orders.multigroup.sender import Sending
from unisono.orders.multigroup.topology_exchange import Bonding, Say
from unisono.orders.multigroup.topology_messages import Confirm, Relate


class Relating:
    """Carries what the log has of the relation to those who go by it."""

    def __init__(
        self, policy: Policy, log: GroupLog, gate: Gate, calls: BarrierCalls, *, sending: Sending, say: Say
    ) -> None:
        self._policy, self._topology = policy, calls.topology
        self._log, self._gate, self._calls, self._sending = log, gate, calls, sending
        self.bonding = Bonding(log.relation, calls.members, say, retry_ns=retry_ns(policy.timing))
        self._allowed = log.relation.allowed()
        self._steps = self._confirmed = 0
        self._returned = False

    def come_up(self, memory: Memory | None) -> list[TopologyChange | Violation]:
        """Begin; in a later life, an earlier one may have confirmed what this one has not read yet."""
        if memory is None or not memory.records:
            return []
        self._returned = True
        self._sending.control(0, Confirm(self._log.relation.version))
        return self.follow(0, leads=False)

    def reads(self) -> bool:
        """Whether it is not known yet how the relation is, so that nothing can be accepted."""
        return self._returned and not self._settled()

    def _settled(self) -> int:
        return self._log.settled(self._policy.member, self._policy.incarnation)

    def checked(self, destinations: Sequence[str]) -> int:
        """These groups as a number; NotRelated if the own group may not send to all of them now."""
        topology = self._topology
        outside = tuple(name for name in destinations if name not in topology.groups)
        mask = 0 if outside else topology.mask(destinations)
        if not mask or mask & ~self._allowed:
            outside = outside or topology.unmasked(mask & ~self._allowed)
            raise NotRelated(topology.names[self._log.me], outside, topology.unmasked(self._allowed))
        return mask

    def change(self, now: int, sends: Sequence[str]) -> Callable[[], bool]:
        """Ask the own group to send to these groups and no others; the result says whether all groups follow."""
        for name in sends:
            if name not in self._topology.groups:
                names = ", ".join(self._topology.names)
                raise InvalidPolicy("topology.sends", f"{name!r} is none of the groups {names}")
        serial = self._sending.control(now, Relate(self._topology.mask(sends)))
        return lambda: self._settled() > serial and self._log.relation.settled()

    def follow(self, now: int, *, leads: bool) -> list[TopologyChange | Violation]:
        """Go by the relation as the log has it; what the application is to be told."""
        relation, me, names = self._log.relation, self._policy, self._topology.unmasked
        told = self._refused()
        if relation.steps == self._steps:
            return told
        self._steps, self._allowed = relation.steps, relation.allowed()
        self._gate.follow(relation.into)
        own, receivers, senders = relation.wanted & 1 << self._log.me, relation.receivers(), relation.senders()
        itself = (self._log.me,) if own else ()
        fresh = frozenset(group for group in senders if relation.into[group].epoch > 1)
        self._calls.change((*itself, *receivers), (*itself, *senders), fresh)
        if relation.unconfirmed(me.member) and self._confirmed < relation.version:
            self._confirmed = relation.version
            self._sending.control(now, Confirm(relation.version))
        self.bonding.changed(now, leads=leads)
        talks = {self._log.me, *receivers, *senders, *self._log.streams}
        from_all, with_all = own | sum(1 << group for group in senders), sum(1 << group for group in talks)
        found = (names(self._allowed), names(from_all), names(with_all))
        return [*told, TopologyChange.of(me.member, *found, settled=relation.settled())]

    def _refused(self) -> list[TopologyChange | Violation]:
        told: list[TopologyChange | Violation] = []
        for sender, life, first, mask in self._log.refused:
            if (sender, life) == (self._policy.member, self._policy.incarnation):
                groups = ", ".join(self._topology.unmasked(mask))
                text = f"message {first} of member {sender} is delivered nowhere: its group sends to {groups} no longer"
                told.append(Violation(ViolationKind.NOT_RELATED, text, sender))
        self._log.refused.clear()
        return told
