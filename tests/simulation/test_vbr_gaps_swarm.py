"""Swarms of random scenarios against the VBR order with failures (paper 000 §6 and §7), judged by the checkers.

Members crash, come back, join, leave and stand still; the network divides, duplicates, lets overtake, and loses within
the declared bound. First safety: one order, integrity, FIFO, and the bound of Theorem 5 unless a member stood still.
Then, when the trouble is over, liveness: all who are up have each other in their lists.
A failure prints the command that replays it.
"""

import sys

import pytest

from unisono.check.suite import check_all
from unisono.check.verdict import Status
from unisono.model.faults import Partition, Pause
from unisono.model.scenario import Scenario
from unisono.orders.vbr.failures import VbrGaps
from unisono.sim.run import build_world
from unisono.sim.swarm.vbr import churning
from unisono.sim.world import World
from unisono.stack import Stack
from unisono.trace.schema import RunMeta

SEEDS, SLOW_SEEDS = range(72), range(10_000, 30_000)
CHUNK = 12


def replay(seed: int) -> str:
    return f"replay: .venv/bin/python tests/simulation/test_vbr_gaps_swarm.py {seed}"


def problems(seed: int) -> list[str]:
    """The problems of one run; empty if there are none."""
    scenario = churning(seed)
    world, memory, bound_ns, reliable = build_world(scenario, seed, compare_payloads=True)
    world.run(world.send_until_ns + bound_ns)
    timing = scenario.timing
    meta = RunMeta(
        run=f"churning-{seed}",
        group=scenario.group,
        order=scenario.order,
        members=scenario.members,
        delta_ns=timing.delta_ns,
        gamma_ns=timing.gamma_ns,
        theta_ns=timing.theta_ns,
        bound_ns=bound_ns,
        reliable=reliable,
        source="sim",
    )
    stood_still = any(isinstance(fault, Pause) for fault in scenario.faults)
    divided = any(isinstance(fault, Partition) for fault in scenario.faults)
    found = [
        f"{name}: {verdict.witness.text if verdict.witness else verdict.reason}"
        for name, verdict in check_all(memory.trace(meta), until_ns=world.now).items()
        if verdict.status is Status.VIOLATED and not (name == "latency" and stood_still)
    ]
    if not stood_still and not divided:
        found += [f"member {m}: {v.kind}: {v.text}" for m, node in world.members.items() for v in node.violations]
    return found + not_whole(scenario, world)


def not_whole(scenario: Scenario, world: World) -> list[str]:
    """Members whose view, after the faults, differs from the set of members that are up."""
    up = tuple(sorted(member for member, node in world.members.items() if node.up))
    found = []
    for member in up:
        stack = world.members[member].stack
        assert isinstance(stack, Stack)
        assert isinstance(stack.order, VbrGaps)
        if stack.order.view.members != up:
            found.append(f"member {member} has {stack.order.view.members} in its list, and {up} are up")
    return found


def assert_holds(seeds: range) -> None:
    for seed in seeds:
        found = problems(seed)
        assert not found, f"{found}\n{replay(seed)}"


def chunks(seeds: range, size: int) -> list[range]:
    return [seeds[at : at + size] for at in range(0, len(seeds), size)]


@pytest.mark.parametrize("seeds", chunks(SEEDS, CHUNK), ids=str)
def test_through_crashes_joins_leaves_pauses_partitions_and_loss_there_is_one_order_in_time(seeds: range) -> None:
    assert_holds(seeds)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seeds", chunks(SLOW_SEEDS, 500), ids=str)
def test_in_20000_runs_there_is_no_violation(seeds: range) -> None:
    assert_holds(seeds)


def test_the_swarm_has_every_kind_of_fault() -> None:
    """Each kind of fault occurs, alone and with others."""
    scenarios = [churning(seed) for seed in range(100)]
    happened = [
        {type(part).__name__ for part in (*scenario.faults, *scenario.steps)} | {f"x={scenario.loss_burst}"}
        for scenario in scenarios
    ]
    kinds = ("Crash", "Pause", "Partition", "Loss", "Duplication", "Reordering", "Start", "Leave", "Restart")
    for kind in (*kinds, "PlannedRateChange", "x=0", "x=1", "x=2", "x=3"):
        assert sum(kind in parts for parts in happened) >= 8, kind
    assert {scenario.clocks.kind for scenario in scenarios} == {"perfect", "fixed", "drifting", "adversarial"}


def test_the_same_seed_gives_the_same_scenario() -> None:
    assert churning(7) == churning(7) != churning(8)


if __name__ == "__main__":
    for number in map(int, sys.argv[1:]):
        sys.stdout.write(f"{churning(number)}\n" + "".join(f"  {line}\n" for line in problems(number) or ["valid"]))
