"""A swarm for final deliveries: whatever happens to a minority, one final sequence contains all early deliveries.

A failure prints the command that replays it. A range of seeds runs with
    .venv/bin/python tests/simulation/test_finals_swarm.py 0..500
and over the CBR order with the word cbr before the range. A run ends when nothing is left to do; one of FULL_EVERY runs
continues to its planned end.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # for a run as a script
from tests.simulation.seed_ranges import run_ranges

from unisono.check.suite import check_all
from unisono.check.verdict import Status, Verdict
from unisono.model.scenario import Scenario
from unisono.model.units import NS_PER_S
from unisono.sim.run import run
from unisono.sim.swarm.final import cbr_finals, finals
from unisono.sim.swarm.quiescence import FinalOrderQuiescent

SEEDS, SLOW_SEEDS = range(4), range(1000, 3000)
FULL_EVERY = 100
GRACE_NS = 3 * NS_PER_S // 2
CHECKED_EARLY = ("total_order[early]", "integrity[early]", "fifo[early]")
"""Guarantees of early deliveries that hold in every run. The others hold only within the group's fault assumptions."""


def verdicts_of(scenario: Scenario, *, whole: bool = False) -> dict[str, Verdict]:
    """Run a scenario until nothing is left to do, or the `whole` of it, and check the trace."""
    result = run(scenario, compare_payloads=True, is_quiescent=None if whole else FinalOrderQuiescent(scenario))
    return check_all(result.trace, until_ns=result.until_ns, grace_ns=GRACE_NS)


def problems(scenario: Scenario) -> list[str]:
    """The failed checks of one run."""
    return [
        f"{name}: {verdict.status.value}: {verdict.witness.text if verdict.witness else verdict.reason}"
        for name, verdict in verdicts_of(scenario, whole=scenario.seed % FULL_EVERY == 0).items()
        if verdict.status is not Status.VALID and (name in CHECKED_EARLY or not name.endswith("[early]"))
    ]


def replay(seed: int) -> str:
    return f"replay: .venv/bin/python tests/simulation/test_finals_swarm.py {seed}..{seed}"


def assert_holds(seeds: range, draw: Callable[[int], Scenario] = finals) -> None:
    for seed in seeds:
        found = problems(draw(seed))
        assert not found, f"{found}\n{draw.__name__}: {replay(seed)}"


@pytest.mark.parametrize("seeds", [SEEDS[at : at + 2] for at in range(0, len(SEEDS), 2)], ids=str)
def test_one_final_sequence_contains_all_early_deliveries(seeds: range) -> None:
    assert_holds(seeds)


def test_over_cbr_early_deliveries_become_final_although_that_order_stops() -> None:
    for seed in (5, 8):
        assert_holds(range(seed, seed + 1), cbr_finals)


def test_the_swarm_contains_every_kind_of_fault() -> None:
    kinds: Counter[str] = Counter()
    for seed in range(300):
        scenario = finals(seed)
        kinds.update({type(part).__name__ for part in (*scenario.faults, *scenario.steps)})
    assert min(kinds[kind] for kind in ("Crash", "Restart", "Leave", "Start", "Pause", "Partition", "Loss")) >= 15


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seeds", [SLOW_SEEDS[at : at + 100] for at in range(0, len(SLOW_SEEDS), 100)], ids=str)
def test_2000_runs_have_no_violation(seeds: range) -> None:
    assert_holds(seeds)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(1000, 1400, 100))
def test_400_runs_over_the_cbr_order_have_no_violation(first: int) -> None:
    assert_holds(range(first, first + 100), cbr_finals)


if __name__ == "__main__":
    words = sys.argv[1:]
    draw = cbr_finals if words[:1] == ["cbr"] else finals
    sys.exit(run_ranges(words[draw is cbr_finals :], lambda seed: problems(draw(seed))))
