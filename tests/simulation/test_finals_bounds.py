"""Final deliveries keep a bounded amount: without a majority submit stops, a member away for too long is excluded."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.simulation.test_finals_planted import disturbed

from unisono.check.suite import check_all
from unisono.check.verdict import Status
from unisono.model.delays import ConstantDelay
from unisono.model.faults import Crash, Loss, Partition, Span
from unisono.model.offers import Ask
from unisono.model.scenario import Network, PlannedSlotChange, Workload
from unisono.model.timing import Timing
from unisono.model.units import NS_PER_MS, NS_PER_S, Rate
from unisono.orders.final import order as final
from unisono.orders.final.bounds import background_datagrams_per_s
from unisono.qos.plan.planner import plan
from unisono.sim.run import build_world, drain_ns, run, run_meta
from unisono.sim.world import World
from unisono.stack import Stack
from unisono.trace.schema import EventKind


def order_of(world: World, member: int) -> final.FinalOrder:
    stack = world.members[member].stack
    assert isinstance(stack, Stack)
    return stack.inspect(final.FinalOrder)


def test_without_a_majority_nothing_becomes_final_and_submit_stops_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(final, "PENDING_BYTES_MAX", 600)
    scenario = disturbed(Crash(2, 150 * NS_PER_MS), Crash(3, 150 * NS_PER_MS))
    world, _, _, _ = build_world(scenario, scenario.seed)
    world.run(world.send_until_ns)
    node, order = world.members[1], order_of(world, 1)
    assert node.delivered > node.delivered_final > 0, "early deliveries continue"
    assert 600 < sum(order._pending_bytes.values()) < 1500, "until the limit is reached"
    assert node.waiting_count > 0, "the application holds the rest"
    world.run(world.send_until_ns + 2000 * NS_PER_MS)
    assert [violation.kind for violation in node.violations] == ["blocked"], "reported once"


def test_a_member_that_misses_more_than_the_others_keep_is_excluded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(final, "RETAINED_RANGES_MAX", 4)
    partition = Partition(Span(200 * NS_PER_MS, 700 * NS_PER_MS), ((1, 2), (3,)))
    scenario = replace(disturbed(partition), run_ns=900 * NS_PER_MS)
    world, memory_trace, bound_ns, reliable = build_world(scenario, scenario.seed, compare_payloads=True)
    until_ns = world.send_until_ns + bound_ns + drain_ns(scenario)
    world.run(until_ns)
    assert [violation.kind for violation in world.members[3].violations][-1] == "excluded"
    assert not world.members[3].up
    assert len(order_of(world, 1)._retained) <= 4 + len(scenario.members), "no more is kept for an excluded member"
    verdicts = check_all(memory_trace.trace(run_meta(scenario, scenario.seed, bound_ns, reliable)), until_ns=until_ns)
    checked = ("final_order", "final_agreement", "early_in_final", "integrity[final]")
    assert {name: verdicts[name].status for name in checked} == dict.fromkeys(checked, Status.VALID)


def test_slot_length_changes_and_fec_work_while_deliveries_become_final() -> None:
    scenario = replace(
        disturbed(Loss(Span(), 0.2, 1, 3)), fec=(1, 3), steps=(PlannedSlotChange(1, 300 * NS_PER_MS, 16 * NS_PER_MS),)
    )
    world, memory_trace, bound_ns, reliable = build_world(scenario, scenario.seed, compare_payloads=True)
    until_ns = world.send_until_ns + bound_ns + drain_ns(scenario)
    world.run(until_ns)
    trace = memory_trace.trace(run_meta(scenario, scenario.seed, bound_ns, reliable))
    assert len(trace.of_kind(EventKind.TIMING)) == len(scenario.members)
    verdicts = check_all(trace, until_ns=until_ns)
    assert {name for name, v in verdicts.items() if v.status is not Status.VALID} == set()


@pytest.mark.parametrize("order", ["cbr", "vbr"])
def test_the_planned_cost_of_final_deliveries_holds_if_no_member_fails(order: str) -> None:
    """Every delay is Δ: messages are final within the planned time, and traffic is at most the planned traffic."""
    timing, rate = Timing(10 * NS_PER_MS, 2 * NS_PER_MS, 5 * NS_PER_MS), Rate(40, 1)
    offers = plan(Ask(3, rate, timing, grades="both")).candidates
    (offer,) = [offer for offer in offers if offer.order == order]
    assert offer.final_latency_ns is not None
    scenario = replace(
        disturbed(),
        order=order,
        failures=False,
        timing=timing,
        rates=dict.fromkeys((1, 2, 3), rate),
        workloads=dict.fromkeys((1, 2, 3), Workload("poisson", 20, 40, rate=30.0)),
        network=Network(ConstantDelay(timing.delta_ns)),
        run_ns=2_000 * NS_PER_MS,
    )
    result = run(scenario)
    final_latency_ns = check_all(result.trace, until_ns=result.until_ns)["latency[final]"].figures["max_ns"]
    assert offer.final_latency_ns - 25 * NS_PER_MS < final_latency_ns <= offer.final_latency_ns
    seconds = (result.until_ns - scenario.epoch_ns) / NS_PER_S
    max_datagrams_per_s = max(traffic.control_frames for traffic in result.traffic.values()) / seconds
    assert max_datagrams_per_s <= background_datagrams_per_s(timing)
