"""Swarms over networks that lose datagrams: every order over reliable multicast keeps its guarantees.

The redundancy is high enough that no run should lose a message in every copy. If one does, the network is the cause
and not the protocol; then replace the seed, with a calculation that shows it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from tests.worlds.rmcast_state import held_counts

from unisono.check.causal import causal
from unisono.check.completeness import agreement, uniform_agreement
from unisono.check.suite import check_all
from unisono.check.total_order import fifo
from unisono.check.verdict import Status, Verdict
from unisono.model.capabilities import SERVICES
from unisono.model.delays import DelayModel, ExponentialDelay, UniformDelay, truncated_to
from unisono.model.faults import Crash, Duplication, Loss, Span
from unisono.model.policy import Redundancy, RelativeRequirement, eta_of_all
from unisono.model.scenario import Clocks, Leave, Network, Restart, Scenario, Send, Start, Workload
from unisono.model.timing import Timing
from unisono.model.units import Rate
from unisono.net.rmcast.layer import Rmcast
from unisono.sim import run
from unisono.sim.result import Result
from unisono.sim.world import World
from unisono.trace.schema import EventKind
from unisono.trace.table import Trace

MS = 1_000_000
ALWAYS = Span(0, 2**60)
SEEDS, SLOW_SEEDS = range(8), range(100, 160)


def lossy(seed: int, order: str) -> Scenario:
    """A small group over a network that loses, delays, duplicates and reorders datagrams."""
    chance = Random(f"{order} {seed}")
    members = tuple(sorted(chance.sample(range(1, 30), chance.randint(2, 5))))
    loss = chance.choice([0.01, 0.05, 0.1])
    rho = {0.01: 4, 0.05: 6, 0.1: 8}[loss]  # one receiver loses a frame with probability 1e-10, 8e-10, 1e-9
    longest = chance.choice([3, 5, 8]) * MS
    model: DelayModel = chance.choice([UniformDelay(0, longest), truncated_to(ExponentialDelay(longest // 4), longest)])
    eta = eta_of_all(model, chance.choice([0.9, 0.99]), len(members))
    timing = Timing(rho * eta + 2 * longest, chance.choice([0, 2 * MS]), chance.choice([5, 10]) * MS)
    omega = chance.choice([0, MS])
    redundancy = chance.choice(
        [
            Redundancy.of_ns(rho, eta, omega),
            Redundancy.of_ns(rho, eta, omega, "heuristic"),
            Redundancy.of_ns(rho, eta, omega, "exact", RelativeRequirement(0.999, timing.delta_ns, loss, model)),
        ]
    )
    rate = Rate(20, 2) if order == "cbr" else Rate(100, 8)
    return Scenario(
        source=f"lossy({seed}, {order})",
        group="lossy",
        order=order,
        members=members,
        timing=timing,
        rates=dict.fromkeys(members, rate),
        workloads={
            m: Workload(chance.choice(["poisson", "cbr"]), 0, chance.choice([50, 700]), 20 if order == "cbr" else 80)
            for m in members
        },
        network=Network(model, fifo=chance.random() < 0.5),
        run_ns=(2500 if order == "cbr" else 300) * MS,
        seed=seed,
        max_frame=chance.choice([700, 1400]),
        clocks=Clocks(chance.choice(["perfect", "fixed", "drifting"])),
        faults=(Loss(ALWAYS, loss), Duplication(ALWAYS, 0.05)),
        reliable=redundancy,
    )


def failed_verdicts(result: Result) -> dict[str, object]:
    verdicts = check_all(result.trace, until_ns=result.until_ns)
    return {name: verdict for name, verdict in verdicts.items() if verdict.status is not Status.VALID}


def replay(scenario: Scenario) -> str:
    return f"replay: tests.simulation.test_rmcast_swarm.{scenario.source}"


@pytest.mark.parametrize("order", ["vbr", "cbr", "leader", "timestamp"])
@pytest.mark.parametrize("seeds", [SEEDS[at : at + 4] for at in range(0, len(SEEDS), 4)], ids=str)
def test_orders_over_a_lossy_network(order: str, seeds: range) -> None:
    for seed in seeds:
        scenario = lossy(seed, order)
        result = run(scenario, compare_payloads=True)
        assert not failed_verdicts(result), f"{failed_verdicts(result)}\n{replay(scenario)}"
        assert sum(result.delivered.values()) > 20, replay(scenario)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["vbr", "cbr", "leader", "timestamp"])
def test_orders_over_a_lossy_network_for_longer(order: str) -> None:
    test_orders_over_a_lossy_network(order, SLOW_SEEDS)


@pytest.mark.parametrize("order", sorted(SERVICES))
@pytest.mark.parametrize("seeds", [SEEDS[at : at + 4] for at in range(0, len(SEEDS), 4)], ids=str)
def test_services_over_a_lossy_network(order: str, seeds: range) -> None:
    test_orders_over_a_lossy_network(order, seeds)


def crashing(seed: int, order: str) -> Scenario:
    """As many crashes as the service tolerates, each at any moment of a broadcast."""
    scenario = lossy(seed, order)
    chance = Random(f"crashing {order} {seed}")
    n = len(scenario.members)
    most = (n - 1) // 2 if order.startswith("uniform") else n - 1
    victims = chance.sample(scenario.members, chance.randint(0, most))
    crashes = tuple(Crash(victim, chance.randrange(80, 280) * MS + chance.randrange(MS)) for victim in victims)
    return replace(scenario, source=f"crashing({seed}, {order})", faults=(*scenario.faults, *crashes))


@pytest.mark.parametrize("order", sorted(SERVICES))
@pytest.mark.parametrize("seeds", [SEEDS[at : at + 4] for at in range(0, len(SEEDS), 4)], ids=str)
def test_services_survive_crashes(order: str, seeds: range) -> None:
    """After a take-over a message may take longer than Δ, so twice the bound is allowed."""
    for seed in seeds:
        scenario = crashing(seed, order)
        result = run(scenario, compare_payloads=True)
        bound = result.meta.bound_ns or 0
        verdicts = check_all(result.trace, until_ns=result.until_ns, bound_ns=2 * bound)
        failed = {name: verdict for name, verdict in verdicts.items() if verdict.status is not Status.VALID}
        assert not failed, f"{failed}\n{replay(scenario)}"


def counted(scenario: Scenario) -> Scenario:
    """The same scenario with receivers that count copies, as negotiation chooses."""
    assert scenario.reliable is not None
    reliable = replace(scenario.reliable, adaptive="counting", relative=None)
    return replace(scenario, source=f"counted({scenario.source})", reliable=reliable)


@pytest.mark.parametrize("order", ["vbr", "leader", "causal", "uniform"])
def test_with_counting_receivers_no_message_is_lost(order: str) -> None:
    """At most four of five members crash; ρ+1 >= 5 crashes are tolerated."""
    for seed in range(3):
        scenarios = [counted(lossy(seed, order))]
        if order in SERVICES:
            scenarios.append(counted(crashing(seed, order)))
        for scenario in scenarios:
            result = run(scenario, compare_payloads=True)
            bound = result.meta.bound_ns or 0
            verdicts = check_all(result.trace, until_ns=result.until_ns, bound_ns=2 * bound)
            failed = {name: verdict for name, verdict in verdicts.items() if verdict.status is not Status.VALID}
            assert not failed, f"{failed}\n{replay(scenario)}"
            assert sum(result.delivered.values()) > 20, replay(scenario)


@pytest.mark.slow
@pytest.mark.parametrize("order", sorted(SERVICES))
def test_services_for_longer(order: str) -> None:
    test_services_over_a_lossy_network(order, SLOW_SEEDS)
    test_services_survive_crashes(order, SLOW_SEEDS)


@pytest.mark.parametrize("order", sorted(SERVICES))
def test_messages_of_a_leaving_member_are_delivered(order: str) -> None:
    """All members deliver its messages, and the others continue without it."""
    for seed in range(4):
        scenario = lossy(seed, order)
        scenario = replace(scenario, steps=(Leave(scenario.members[0], 200 * MS),))
        result = run(scenario, compare_payloads=True)
        assert not failed_verdicts(result), f"{failed_verdicts(result)}\n{replay(scenario)}"


@pytest.mark.parametrize("seed", range(8))
def test_members_join_and_rejoin_over_a_lossy_network(seed: int) -> None:
    """JOINs travel reliably too: a new or returning member is in all views, and misses no message from then on."""
    scenario = lossy(seed, "vbr")
    first, last = scenario.members[0], scenario.members[-1]
    faults = (*scenario.faults, Crash(first, 150 * MS))
    steps = (Start(last, 120 * MS), Restart(first, 300 * MS))
    scenario = replace(scenario, failures=True, run_ns=600 * MS, faults=faults, steps=steps)
    result = run(scenario, compare_payloads=True)
    assert not failed_verdicts(result), f"{failed_verdicts(result)}\n{replay(scenario)}"
    assert result.trace.of_kind(EventKind.VIEW).listed(-1) == scenario.members, replay(scenario)
    late_joins = [v for violations in result.violations.values() for v in violations if v.kind == "late_join"]
    assert not late_joins, replay(scenario)


@pytest.mark.parametrize("order", ["vbr", "uniform_causal"])
def test_kept_state_is_bounded_while_a_lossy_group_runs(order: str) -> None:
    """The state of the layers does not grow with the length of the run: a run three times as long keeps no more."""

    def largest_state(run_ms: int) -> tuple[int, int]:
        held, calls = [(0, 0)], [0]

        def measure(world: World) -> None:
            calls[0] += 1
            for node in world.members.values() if calls[0] % 50 == 0 else ():
                rmcast = next(layer for layer in node.stack._layers if isinstance(layer, Rmcast))  # type: ignore[attr-defined]
                held[0] = max(held[0][0], held_counts(rmcast)[0]), max(held[0][1], held_counts(rmcast)[1])

        run(replace(lossy(3, order), run_ns=run_ms * MS), check=measure)
        return held[0]

    short, long = largest_state(400), largest_state(1200)
    assert 0 < short[0] <= long[0] <= 2 * short[0]
    assert long[1] <= 2 * short[1] + 10


@pytest.mark.parametrize(("weaker", "check"), [("reliable", fifo), ("fifo", causal)])
def test_a_weaker_service_violates_the_stronger_property(weaker: str, check: Callable[[Trace], Verdict]) -> None:
    statuses = [check(run(lossy(seed, weaker)).trace).status for seed in range(6)]
    assert Status.VIOLATED in statuses


@pytest.mark.parametrize(("order", "status"), [("reliable", Status.VIOLATED), ("uniform", Status.VALID)])
def test_a_sender_that_delivers_and_crashes_before_its_message_arrives(order: str, status: Status) -> None:
    """Uniform delivery prevents that a member acts on a message that no other member will ever have."""
    scenario = replace(lossy(3, "fifo"), order=order, reliable=Redundancy.of_ns(2, 10 * MS))
    assert len(scenario.members) > 2
    crashing_member, at = scenario.members[0], 150 * MS
    result = run(
        replace(
            scenario,
            workloads={
                m: Workload("script", sends=(Send(at, (10,)),) if m == crashing_member else ())
                for m in scenario.members
            },
            faults=(Loss(Span(at, at + 100 * MS), 1.0), Crash(crashing_member, at + MS)),
        )
    )
    assert agreement(result.trace, until_ns=result.until_ns).status is not Status.VIOLATED
    assert uniform_agreement(result.trace, until_ns=result.until_ns).status is status


def test_without_reliable_multicast_the_same_losses_stall_the_order() -> None:
    """The purpose of the layer: the same scenarios without it."""
    stalled = 0
    for seed in range(10):
        result = run(replace(lossy(seed, "vbr"), reliable=None), compare_payloads=True)
        stalled += "gap_freedom" in failed_verdicts(result)
    assert stalled == 10


@pytest.mark.parametrize("seed", range(10))
def test_a_leaving_member_stays_until_its_last_copies_are_sent(seed: int) -> None:
    scenario = lossy(seed, "vbr")
    scenario = replace(scenario, steps=(Leave(scenario.members[0], 250 * MS),))
    result = run(scenario, compare_payloads=True)
    assert not failed_verdicts(result), f"{failed_verdicts(result)}\n{replay(scenario)}"


@pytest.mark.parametrize("seed", range(15))
def test_vbr_with_failures_over_a_lossy_network(seed: int) -> None:
    """With a crash during the run: one order, gaps only because of the crash, and no other member times out."""
    scenario = lossy(seed, "vbr")
    scenario = replace(
        scenario, failures=True, faults=(*scenario.faults, Crash(scenario.members[-1], (130 + 5 * seed) * MS))
    )
    result = run(scenario, compare_payloads=True)
    assert not failed_verdicts(result), f"{failed_verdicts(result)}\n{replay(scenario)}"
    lost = [v for violations in result.violations.values() for v in violations if v.kind == "lost"]
    assert not lost, replay(scenario)
