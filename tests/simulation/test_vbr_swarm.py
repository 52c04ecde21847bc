"""Swarms of random scenarios against the VBR order of paper 000 §5, judged by the checkers.

Within the assumptions every guarantee has to hold: total order, integrity, FIFO, no gap, the bound of Theorem 2.
Beyond them (loss, crash, partition, pause) the order may stall; what it delivers must still be one order.
A failure prints the command that replays it.
"""

from dataclasses import replace

import pytest

from unisono.check.suite import check_all
from unisono.check.verdict import Status
from unisono.model.scenario import Leave, Scenario
from unisono.model.units import NS_PER_MS
from unisono.sim import run
from unisono.sim.swarm.vbr import calm, stormy

SAFETY = ("total_order", "integrity", "fifo")
CALM_SEEDS, STORMY_SEEDS = range(160), range(1000, 1080)
SLOW_SEEDS = range(10_000, 12_000)
CHUNK = 8


def assert_all_hold(seed: int) -> None:
    result = run(calm(seed), compare_payloads=True)
    verdicts = check_all(result.trace, until_ns=result.until_ns)
    broken = {name: verdict for name, verdict in verdicts.items() if verdict.status is not Status.VALID}
    assert not broken, f"{broken}\n{replay('calm', seed)}"
    complaints = [violation for found in result.violations.values() for violation in found]
    assert not complaints, f"{complaints}\n{replay('calm', seed)}"


def assert_safe(seed: int) -> None:
    result = run(stormy(seed), compare_payloads=True)
    verdicts = check_all(result.trace, until_ns=result.until_ns)
    # A group that never formed delivers nothing: the verdict is unknown, which is safe.
    broken = {name: verdicts[name] for name in SAFETY if verdicts[name].status is Status.VIOLATED}
    assert not broken, f"{broken}\n{replay('stormy', seed)}"


def replay(kind: str, seed: int) -> str:
    return f"replay: .venv/bin/python tests/simulation/test_vbr_swarm.py {kind} {seed}"


def chunks(seeds: range) -> list[range]:
    return [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]


@pytest.mark.parametrize("seeds", chunks(CALM_SEEDS), ids=str)
def test_within_the_assumptions_every_guarantee_holds(seeds: range) -> None:
    for seed in seeds:
        assert_all_hold(seed)


@pytest.mark.parametrize("seeds", chunks(STORMY_SEEDS), ids=str)
def test_beyond_the_assumptions_deliveries_are_still_in_one_order(seeds: range) -> None:
    for seed in seeds:
        assert_safe(seed)


def leaving_early(seed: int) -> Scenario:
    """The scenario of a seed, with its last member leaving while the group forms."""
    scenario = calm(seed)
    others = tuple(step for step in scenario.steps if not isinstance(step, Leave))
    leave = Leave(scenario.members[-1], (5 + 2 * seed) * NS_PER_MS)
    return replace(scenario, steps=(*others, leave))


@pytest.mark.parametrize("seed", range(24))
def test_leaving_while_the_group_forms_blocks_no_member_silently(seed: int) -> None:
    """Either the group waits for the member and no message is sent, or it forms and the member leaves it."""
    result = run(leaving_early(seed), compare_payloads=True)
    verdicts = check_all(result.trace, until_ns=result.until_ns)
    broken = {name: verdict for name, verdict in verdicts.items() if verdict.status is Status.VIOLATED}
    assert not broken, f"{broken}\nreplay: .venv/bin/python tests/simulation/test_vbr_swarm.py leaving {seed}"


@pytest.mark.slow
@pytest.mark.parametrize("seeds", chunks(SLOW_SEEDS), ids=str)
def test_a_bigger_swarm(seeds: range) -> None:
    for seed in seeds:
        assert_all_hold(seed)
        assert_safe(seed)


if __name__ == "__main__":
    import sys

    checks = {
        "calm": assert_all_hold,
        "stormy": assert_safe,
        "leaving": test_leaving_while_the_group_forms_blocks_no_member_silently,
    }
    checks[sys.argv[1]](int(sys.argv[2]))
