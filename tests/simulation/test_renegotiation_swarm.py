"""Swarms of random scenarios in which members request other rates and other slot lengths while the group runs.

In every other seed, members crash, return, join, leave and pause, and the network has partitions and loses datagrams
within the declared bound. The other seeds keep the assumptions of the order without failures. All runs must keep total
order, integrity and FIFO. Without failures no message may be missing; with failures every gap must be explained.
Latency is checked slot by slot, with the bound for the length of the slot, unless a member was paused, or missed a
change during a partition and had to rejoin. After the faults stop, all members that are up have each other in their
views, and the same slots. A failure prints the command that replays it.
"""

import sys

import pytest
from tests.simulation.seed_ranges import run_ranges

from unisono.check.latency import latency_in_force
from unisono.check.suite import check_all
from unisono.check.verdict import Status
from unisono.model.faults import Partition, Pause
from unisono.model.scenario import PlannedSlotChange, Scenario
from unisono.orders.vbr.order import VbrOrder
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
    """The problems of one run, and the number of slot changes that its members reported."""
    scenario = renegotiated(seed)
    world, memory, bound_ns, reliable = build_world(scenario, seed, compare_payloads=True)
    world.run(world.send_until_ns + bound_ns)
    trace = memory.trace(run_meta(scenario, seed, bound_ns, reliable))
    paused = any(isinstance(fault, Pause) for fault in scenario.faults)
    divided = any(isinstance(fault, Partition) for fault in scenario.faults)
    violations = [(member, violation) for member, node in world.members.items() for violation in node.violations]
    delayed = paused or (divided and any(violation.kind == "slots" for _, violation in violations))
    verdicts = check_all(trace, until_ns=world.now) | {"latency in force": latency_in_force(trace)}
    problems = [
        f"{name}: {verdict.witness.text if verdict.witness else verdict.reason}"
        for name, verdict in verdicts.items()
        if verdict.status is Status.VIOLATED and not (name.startswith("latency") and delayed)
    ]
    if not paused and not divided:
        problems += [f"member {member}: {violation.kind}: {violation.text}" for member, violation in violations]
    return problems + inconsistencies(scenario, world), len(trace.of_kind(EventKind.TIMING))


def inconsistencies(scenario: Scenario, world: World) -> list[str]:
    """Members that, after the faults, have a view other than the members that are up, or other slots."""
    orders = {
        member: node.stack.order
        for member, node in sorted(world.members.items())
        if node.up and isinstance(node.stack, Stack) and isinstance(node.stack.order, VbrOrder)
    }
    problems = []
    for member, order in orders.items():
        if scenario.failures and order.view.members != tuple(orders):
            problems.append(f"member {member} has the view {order.view.members}, but {tuple(orders)} are up")
        if not all(order.grid.has_same_slots(other.grid) for other in orders.values()):
            problems.append(f"member {member} has other slots than its peers: {order.grid.last_segment}")
    return problems


def check_seeds(seeds: range) -> None:
    changes = 0
    for seed in seeds:
        problems, slot_changes = outcome(seed)
        changes += slot_changes
        assert not problems, f"{problems}\n{replay(seed)}"
    assert changes > len(seeds), "slots change in most runs"


def chunks(seeds: range, size: int) -> list[range]:
    return [seeds[at : at + size] for at in range(0, len(seeds), size)]


@pytest.mark.parametrize("seeds", chunks(SEEDS, CHUNK), ids=str)
def test_order_and_latency_hold_while_rates_and_slots_change(seeds: range) -> None:
    check_seeds(seeds)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seeds", chunks(SLOW_SEEDS, 500), ids=str)
def test_in_5000_runs_there_is_no_violation(seeds: range) -> None:
    check_seeds(seeds)


@pytest.mark.parametrize(
    ("seed", "failure"),
    [
        (50877, "a newcomer agreed on a slot request before it knew of an earlier one, and its slots prevailed"),
        (50411, "a newcomer accepted messages because of a HELLO that had been sent before it woke"),
        (50061, "a newcomer reported slots to the application that were not the group's"),
        (50499, "the same, with losses"),
        (50683, "the same, and a member was paused"),
        (50589, "a newcomer made the group skip slot numbers in which it had only sent end-of-slot marks"),
        (50787, "members had all others in their views in slot numbers that were skipped"),
        (50849, "the same, when two partitions merged whose slots had changed differently"),
        (
            80057,
            "a new incarnation started at a slot number that the last one had used, and its messages were expected",
        ),
        (7200099, "the group skipped the slot in which a paused member had to send held-back messages; they were lost"),
        (7000085, "a member reported that it had missed a slot change, then restarted, and its report was lost"),
    ],
)
def test_past_failures_stay_fixed(seed: int, failure: str) -> None:
    problems, _ = outcome(seed)
    assert not problems, f"{failure}: {problems}\n{replay(seed)}"


def test_the_swarm_contains_all_kinds_of_changes_and_faults() -> None:
    """Requests for longer and shorter slots, several per run and per member, and all kinds of faults."""
    scenarios = [renegotiated(seed) for seed in range(200)]
    requests = [[step for step in scenario.steps if isinstance(step, PlannedSlotChange)] for scenario in scenarios]
    assert {len(steps) for steps in requests} == {1, 2, 3, 4, 5}
    ratios = [step.theta_ns / s.timing.theta_ns for s, steps in zip(scenarios, requests, strict=True) for step in steps]
    assert min(ratios) < 0.3
    assert max(ratios) == 4
    assert sum(len({step.member for step in steps}) < len(steps) for steps in requests) >= 20
    kinds_per_run = [{type(part).__name__ for part in (*s.faults, *s.steps)} for s in scenarios]
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
        assert sum(kind in kinds for kinds in kinds_per_run) >= 15, kind


def test_the_same_seed_gives_the_same_scenario() -> None:
    assert renegotiated(7) == renegotiated(7) != renegotiated(9)


if __name__ == "__main__":
    sys.exit(run_ranges(sys.argv[1:], lambda seed: outcome(seed)[0]))
