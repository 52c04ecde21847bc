"""Swarms of random scenarios in which members ask for other rates and other slot lengths while the group runs.

Every other seed is a group in which members crash, come back, join, leave and stand still, and whose network divides
and loses within the declared bound; the others keep to what the order without failures assumes. All have to keep one
order, integrity and FIFO; without failures nothing may be missing, with them every gap has to be explained. Latency is
judged slot by slot, by the bound of the length that the slot has, unless a member stood still, or had missed a change
while the network was divided and had to join again. When the trouble is over, all who are up have each other in their
lists, and the same slots.
A failure prints the command that replays it.
"""

import sys

import pytest
from tests.simulation.seed_ranges import run_ranges
from tests.worlds.latency_in_force import latency_in_force

from unisono.check.suite import check_all
from unisono.check.verdict import Status
from unisono.model.faults import Partition, Pause
from unisono.model.scenario import PlannedSlotChange, Scenario
from unisono.orders.vbr.order import Vbr
from unisono.sim.run import build_world, run_meta
from unisono.sim.swarm.vbr import renegotiated
from unisono.sim.world import World
from unisono.stack import Stack
from unisono.trace.schema import EventKind

SEEDS, SLOW_SEEDS = range(120), range(10_000, 15_000)
CHUNK = 30


def replay(seed: int) -> str:
    return f"replay: .venv/bin/python tests/simulation/test_renegotiation_swarm.py {seed}"


def outcome(seed: int) -> tuple[list[str], int]:
    """What is wrong with one run, and how many changes of slots its members were told of."""
    scenario = renegotiated(seed)
    world, memory, bound_ns, reliable = build_world(scenario, seed, compare_payloads=True)
    world.run(world.send_until_ns + bound_ns)
    trace = memory.trace(run_meta(scenario, seed, bound_ns, reliable))
    stood_still = any(isinstance(fault, Pause) for fault in scenario.faults)
    divided = any(isinstance(fault, Partition) for fault in scenario.faults)
    told = [(member, violation) for member, node in world.members.items() for violation in node.violations]
    held_up = stood_still or (divided and any(violation.kind == "slots" for _, violation in told))
    verdicts = check_all(trace, until_ns=world.now) | {"latency in force": latency_in_force(trace)}
    found = [
        f"{name}: {verdict.witness.text if verdict.witness else verdict.reason}"
        for name, verdict in verdicts.items()
        if verdict.status is Status.VIOLATED and not (name.startswith("latency") and held_up)
    ]
    if not stood_still and not divided:
        found += [f"member {member}: {violation.kind}: {violation.text}" for member, violation in told]
    return found + not_whole(scenario, world), len(trace.of_kind(EventKind.TIMING))


def not_whole(scenario: Scenario, world: World) -> list[str]:
    """Members that, after the trouble, do not have those in their lists that are up, or have other slots."""
    orders = {
        member: node.stack.order
        for member, node in sorted(world.members.items())
        if node.up and isinstance(node.stack, Stack) and isinstance(node.stack.order, Vbr)
    }
    found = []
    for member, order in orders.items():
        if scenario.failures and order.view.members != tuple(orders):
            found.append(f"member {member} has {order.view.members} in its list, and {tuple(orders)} are up")
        if not all(order.grid.has_same_slots(other.grid) for other in orders.values()):
            found.append(f"member {member} has slots of its own: {order.grid.last_segment}")
    return found


def assert_holds(seeds: range) -> None:
    changes = 0
    for seed in seeds:
        found, told = outcome(seed)
        changes += told
        assert not found, f"{found}\n{replay(seed)}"
    assert changes > len(seeds), "slots do change"


def chunks(seeds: range, size: int) -> list[range]:
    return [seeds[at : at + size] for at in range(0, len(seeds), size)]


@pytest.mark.parametrize("seeds", chunks(SEEDS, CHUNK), ids=str)
def test_while_rates_and_slots_change_there_is_one_order_in_time(seeds: range) -> None:
    assert_holds(seeds)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seeds", chunks(SLOW_SEEDS, 500), ids=str)
def test_in_5000_runs_there_is_no_violation(seeds: range) -> None:
    assert_holds(seeds)


@pytest.mark.parametrize(
    ("seed", "what"),
    [
        (50877, "a newcomer agreed on a wish before it was told of an earlier one, and its slots prevailed"),
        (50411, "a newcomer took messages because of a HELLO that had been sent before it woke"),
        (50061, "a newcomer told the application of slots that were not the group's"),
        (50499, "the same, with losses"),
        (50683, "the same, and a member stood still"),
        (50589, "a newcomer made the group leave numbers out that it had only sent marks in"),
        (50787, "in numbers that were left out members had all others in their lists"),
        (50849, "the same, when halves met whose slots had changed differently"),
        (80057, "a new life began at a number that the last one had used, and was held to its messages"),
    ],
)
def test_what_went_wrong_once(seed: int, what: str) -> None:
    found, _ = outcome(seed)
    assert not found, f"{what}: {found}\n{replay(seed)}"


def test_the_swarm_is_not_tame() -> None:
    """Wishes for longer and for shorter slots, several in one run and by one member; all kinds of trouble."""
    scenarios = [renegotiated(seed) for seed in range(200)]
    wishes = [[step for step in scenario.steps if isinstance(step, PlannedSlotChange)] for scenario in scenarios]
    assert {len(asked) for asked in wishes} == {1, 2, 3, 4, 5}
    ratios = [step.theta_ns / s.timing.theta_ns for s, asked in zip(scenarios, wishes, strict=True) for step in asked]
    assert min(ratios) < 0.3
    assert max(ratios) == 4
    assert sum(len({step.member for step in asked}) < len(asked) for asked in wishes) >= 20
    happened = [{type(part).__name__ for part in (*s.faults, *s.steps)} for s in scenarios]
    for kind in (
        "Crash",
        "Pause",
        "Partition",
        "Loss",
        "Start",
        "Leave",
        "Restart",
        "PlannedRateChange",
        "Duplication",
    ):
        assert sum(kind in parts for parts in happened) >= 15, kind


def test_the_same_seed_gives_the_same_scenario() -> None:
    assert renegotiated(7) == renegotiated(7) != renegotiated(9)


if __name__ == "__main__":
    sys.exit(run_ranges(sys.argv[1:], lambda seed: outcome(seed)[0]))
