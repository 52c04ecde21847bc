"""When a run with final deliveries has nothing left to do: everything is final at everybody, and everybody knows.

Members go on beating for as long as they are up: seconds of that show nothing.
"""

from __future__ import annotations

from unisono.errors import UnisonoError
from unisono.model.scenario import Scenario
from unisono.orders.final.bounds import report_every_ns
from unisono.orders.final.order import FinalOrder
from unisono.sim.member import SimulatedMember
from unisono.sim.swarm.multigroup_at_rest import faults_end_ns
from unisono.sim.world import World
from unisono.stack import Stack


class FinalOrderQuiescent:
    """Asked of a scenario's world, again and again: whether its trouble is over and nothing is left to become final."""

    def __init__(self, scenario: Scenario) -> None:
        self._faults_end_ns = faults_end_ns(scenario) + 2 * report_every_ns(scenario.timing)

    def __call__(self, world: World) -> bool:
        if world.now <= world.start_ns + self._faults_end_ns:
            return False
        orders = {node.member: _final_order(node) for node in world.members.values() if node.up}
        if any(world.now <= world.start_ns + self._faults_end_ns + order.bound_ns() for order in orders.values()):
            return False  # early deliveries may be to come
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
    """Whether a peer has told this member that it holds nothing that is not final, and has delivered all that is."""
    report = order.reports.by_member.get(peer)
    return report is not None and not report.held_ranges and report.delivered_instance == order.log.k
