"""Random runs of the priority order of paper 004 in ideal groups, verified by the checkers.

Up to eight members and five priorities, concurrent senders, consumers of different speeds. Members crash, leave, join
and return at any step, and a crash may lose any suffix of the member's multicasts. P1 and P2 and FIFO within a priority
hold, and no message is lost or stuck. A failure prints the command that replays it. To run a range of seeds:
    .venv/bin/python tests/simulation/test_priority_swarm.py 10000..29999
"""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # to run as a script
from tests.paper.ideal_exploration import p1_and_p2
from tests.simulation.seed_ranges import run_ranges
from tests.worlds.ideal_swarm import finish_required, random_group, run_randomly
from tests.worlds.ideal_trace import ideal_trace

from unisono.check.suite import check_all
from unisono.check.verdict import Status
from unisono.sim.random_streams import RandomStreams

SEEDS, SLOW_SEEDS = range(120), range(10_000, 30_000)
CHUNK = 20


def problems(seed: int) -> list[str]:
    """The problems of one run."""
    chance = RandomStreams(seed).stream("priority swarm")
    group = random_group(chance)
    run_randomly(group, chance)
    finish_required(group)
    found = [
        f"{name}: {verdict.witness.text if verdict.witness else verdict.reason}"
        for name, verdict in check_all(ideal_trace(group)).items()
        if verdict.status is not Status.VALID
    ]
    direct = p1_and_p2(group)
    return [*found, direct] if direct else found


def check_seeds(seeds: range) -> None:
    for seed in seeds:
        found = problems(seed)
        command = f"replay: .venv/bin/python tests/simulation/test_priority_swarm.py {seed}"
        assert not found, f"seed {seed}: {found}\n{command}"


@pytest.mark.parametrize("first", SEEDS[::CHUNK])
def test_p1_and_p2_hold_in_random_runs(first: int) -> None:
    check_seeds(range(first, first + CHUNK))


@pytest.mark.parametrize("seed", [13548, 14601])
def test_a_departed_members_history_counts_for_every_message_alike(seed: int) -> None:
    """Past failures: the history counted for some messages only, or a message waited for itself."""
    check_seeds(range(seed, seed + 1))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", SLOW_SEEDS[::1000])
def test_p1_and_p2_hold_in_20_000_random_runs(first: int) -> None:
    check_seeds(range(first, first + 1000))


if __name__ == "__main__":
    sys.exit(run_ranges(sys.argv[1:], problems))
