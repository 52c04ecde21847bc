"""Whether a run has nothing left to do: all faults are over, and every member has delivered every message.

Idle groups continue to send heartbeats and, where barriers are periodic, to agree on nulls. Simulating seconds of that
shows nothing new, so a run may stop early (`sim.run.run`, `is_quiescent`).
"""

from __future__ import annotations

from unisono.errors import UnisonoError
from unisono.model.faults import Crash, Pause
from unisono.model.scenario import Scenario
from unisono.orders.final.bounds import report_every_ns
from unisono.orders.final.order import FinalOrder
from unisono.orders.quasi_genuine.order import QuasiGenuineOrder
from unisono.sim.member import SimulatedMember
from unisono.sim.world import World
from unisono.stack import Stack


def faults_end_ns(scenario: Scenario) -> int:
    """When, after the start of a run, all faults are over and the last datagrams of crashed members have arrived."""
    ends = [scenario.run_ns, *(step.at_ns for step in scenario.steps)]
    for fault in scenario.faults:
        if isinstance(fault, Pause):
            ends.append(fault.to_ns)
        elif isinstance(fault, Crash):
            ends.append(fault.at_ns)
        else:
            ends.append(fault.span.to_ns or 0)
    return max(ends) + 3 * scenario.timing.delta_ns


class MultigroupQuiescent:
    """Says, when called, whether a simulated world with several groups has nothing left to do.

    It remembers earlier calls, so call the same object repeatedly during a run.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._faults_end_ns = faults_end_ns(scenario)
        self._last_proposed: dict[int, int] = {}
        """By group, the last instance that its leader had proposed when only nulls were left."""

    def __call__(self, world: World) -> bool:
        if world.now <= world.start_ns + self._faults_end_ns:
            return False
        groups: dict[int, list[QuasiGenuineOrder]] = {}
        for node in world.members.values():
            if node.up:
                order = _multigroup_order(node)
                groups.setdefault(order.own_group, []).append(order)
        if not _nothing_pending(groups):
            self._last_proposed.clear()
            return False
        if not self._last_proposed:
            self._last_proposed = {group: _last_instance(orders) for group, orders in groups.items()}
        return all(
            order.consensus.decided >= self._last_proposed[group]
            for group, orders in groups.items()
            for order in orders
        )


def _multigroup_order(node: SimulatedMember) -> QuasiGenuineOrder:
    if not isinstance(node.stack, Stack):
        raise UnisonoError(f"member {node.member} does not run the order quasi_genuine")
    return node.stack.inspect(QuasiGenuineOrder)


def _last_instance(orders: list[QuasiGenuineOrder]) -> int:
    return max(order.consensus.next_free - 1 for order in orders)


def _nothing_pending(groups: dict[int, list[QuasiGenuineOrder]]) -> bool:
    """Whether each group has one leader, and no message waits for a decision, for barriers, or for another group."""
    return all(
        sum(order.consensus.is_leader for order in orders) == 1
        and not any(
            order.message_sender.undecided
            or order.barrier_queue.pending
            or (order.consensus.is_leader and order.topology_exchange.due_at() is not None)
            or (order.consensus.is_leader and order.proposals.first_timestamp() is not None)
            or any(
                state.applied < _stream_head(groups, source, order.own_group)
                for source, state in order.barrier_queue.sources.items()
            )
            for order in orders
        )
        for orders in groups.values()
    )


def _stream_head(groups: dict[int, list[QuasiGenuineOrder]], source: int, receiver: int) -> int:
    streams = [order.log.streams.get(receiver) for order in groups.get(source, [])]
    return max((stream.head for stream in streams if stream is not None), default=0)


class FinalOrderQuiescent:
    """Says, when called, whether the faults of a scenario are over and nothing is left to become final."""

    def __init__(self, scenario: Scenario) -> None:
        self._faults_end_ns = faults_end_ns(scenario) + 2 * report_every_ns(scenario.timing)

    def __call__(self, world: World) -> bool:
        if world.now <= world.start_ns + self._faults_end_ns:
            return False
        orders = {node.member: _final_order(node) for node in world.members.values() if node.up}
        if any(world.now <= world.start_ns + self._faults_end_ns + order.bound_ns() for order in orders.values()):
            return False  # there may be more early deliveries
        ends = {order.log.k for order in orders.values()} | {order.consensus.next_free - 1 for order in orders.values()}
        return len(ends) <= 1 and all(
            order.participates() and all(_reported_all_final(order, peer) for peer in orders)
            for order in orders.values()
        )


def _final_order(node: SimulatedMember) -> FinalOrder:
    if not isinstance(node.stack, Stack):
        raise UnisonoError(f"member {node.member} has no final deliveries")
    return node.stack.inspect(FinalOrder)


def _reported_all_final(order: FinalOrder, peer: int) -> bool:
    """Whether a peer has reported that it has delivered all final messages and holds no others."""
    report = order.reports.by_member.get(peer)
    return report is not None and not report.held_ranges and report.delivered_instance == order.log.k
