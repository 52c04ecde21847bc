"""One member in a relation that changes: what it may send now, what it confirms, and what its application is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from unisono.agreement.failure_detector import retry_interval_ns
from unisono.errors import DestinationNotAllowed, InvalidOption
from unisono.model.events import TopologyChange, Violation, ViolationKind
from unisono.model.policy import Policy
from unisono.model.stored_records import StoredRecords
from unisono.orders.multigroup.barrier_requests import BarrierRequests
from unisono.orders.multigroup.barriers import BarrierQueue
from unisono.orders.multigroup.group_log import GroupLog
from unisono.orders.multigroup.sender import MulticastSender
from unisono.orders.multigroup.topology_exchange import TopologyExchange, UnicastFunction
from unisono.orders.multigroup.topology_messages import ConfirmTopology, SetReceivers


class TopologyChangeHandler:
    """Carries what the log has of the relation to those who go by it."""

    def __init__(
        self,
        policy: Policy,
        log: GroupLog,
        barrier_queue: BarrierQueue,
        barrier_requests: BarrierRequests,
        *,
        message_sender: MulticastSender,
        unicast: UnicastFunction,
    ) -> None:
        self._policy, self._topology = policy, barrier_requests.topology
        self._log, self._barrier_queue, self._barrier_requests, self._message_sender = (
            log,
            barrier_queue,
            barrier_requests,
            message_sender,
        )
        self.exchange = TopologyExchange(
            log.topology, barrier_requests.members_of, unicast, retry_ns=retry_interval_ns(policy.timing)
        )
        self._allowed_mask = log.topology.allowed_mask()
        self._applied_changes = self._confirmed_version = 0
        self._restarted = False

    def restore(self, stored_records: StoredRecords | None) -> list[TopologyChange | Violation]:
        """Begin; in a later life, an earlier one may have confirmed what this one has not read yet."""
        if stored_records is None or not stored_records.records:
            return []
        self._restarted = True
        self._message_sender.send_control(0, ConfirmTopology(self._log.topology.version))
        return self.apply_changes(0, leads=False)

    def catching_up(self) -> bool:
        """Whether it is not known yet how the relation is, so that nothing can be accepted."""
        return self._restarted and not self._own_next_serial()

    def _own_next_serial(self) -> int:
        return self._log.next_serial(self._policy.member, self._policy.incarnation)

    def checked_mask(self, destinations: Sequence[str]) -> int:
        """These groups as a number; DestinationNotAllowed if the own group may not send to all of them now."""
        topology = self._topology
        outside = tuple(name for name in destinations if name not in topology.groups)
        mask = 0 if outside else topology.mask(destinations)
        if not mask or mask & ~self._allowed_mask:
            outside = outside or topology.names_in_mask(mask & ~self._allowed_mask)
            raise DestinationNotAllowed(
                topology.names[self._log.own_group], outside, topology.names_in_mask(self._allowed_mask)
            )
        return mask

    def request_change(self, now: int, sends: Sequence[str]) -> Callable[[], bool]:
        """Ask the own group to send to these groups and no others; the result says whether all groups follow."""
        for name in sends:
            if name not in self._topology.groups:
                names = ", ".join(self._topology.names)
                raise InvalidOption("topology.sends", f"{name!r} is none of the groups {names}")
        serial = self._message_sender.send_control(now, SetReceivers(self._topology.mask(sends)))
        return lambda: self._own_next_serial() > serial and self._log.topology.is_settled()

    def apply_changes(self, now: int, *, leads: bool) -> list[TopologyChange | Violation]:
        """Go by the relation as the log has it; what the application is to be told."""
        relation, me, names = self._log.topology, self._policy, self._topology.names_in_mask
        told = self._report_refused()
        if relation.change_count == self._applied_changes:
            return told
        self._applied_changes, self._allowed_mask = relation.change_count, relation.allowed_mask()
        self._barrier_queue.update_sources(relation.incoming)
        own, receivers, senders = (
            relation.wanted_mask & 1 << self._log.own_group,
            relation.receivers(),
            relation.senders(),
        )
        itself = (self._log.own_group,) if own else ()
        fresh = frozenset(group for group in senders if relation.incoming[group].epoch > 1)
        self._barrier_requests.set_links((*itself, *receivers), (*itself, *senders), fresh)
        if relation.awaits_confirmation_of(me.member) and self._confirmed_version < relation.version:
            self._confirmed_version = relation.version
            self._message_sender.send_control(now, ConfirmTopology(relation.version))
        self.exchange.on_topology_changed(now, leads=leads)
        talks = {self._log.own_group, *receivers, *senders, *self._log.streams}
        from_all, with_all = own | sum(1 << group for group in senders), sum(1 << group for group in talks)
        found = (names(self._allowed_mask), names(from_all), names(with_all))
        return [*told, TopologyChange.of(me.member, *found, complete=relation.is_settled())]

    def _report_refused(self) -> list[TopologyChange | Violation]:
        told: list[TopologyChange | Violation] = []
        for sender, life, first, mask in self._log.refused:
            if (sender, life) == (self._policy.member, self._policy.incarnation):
                groups = ", ".join(self._topology.names_in_mask(mask))
                text = f"message {first} of member {sender} is delivered nowhere: its group sends to {groups} no longer"
                told.append(Violation(ViolationKind.NOT_RELATED, text, sender))
        self._log.refused.clear()
        return told
