"""The same seed gives the same run, byte for byte; another seed gives another run."""

import subprocess
import sys

import pytest

from unisono.sim import run
from unisono.sim.swarm.vbr import calm, stormy

SEEDS = range(50)
DIGEST = "from unisono.sim import run; from unisono.sim.swarm.vbr import stormy; print(run(stormy({})).trace.digest())"


@pytest.mark.parametrize("first", range(0, len(SEEDS), 10))
def test_each_seed_gives_the_same_trace_twice(first: int) -> None:
    for seed in SEEDS[first : first + 10]:
        make = stormy if seed % 3 == 0 else calm
        digests = [run(make(seed)).trace.digest() for _ in range(2)]
        assert digests[0] == digests[1], f'python -c "{DIGEST.format(seed)}" differs from run to run'


def test_different_seeds_give_different_runs_of_one_scenario() -> None:
    scenario = calm(0)
    digests = [run(scenario, seed).trace.digest() for seed in range(10)]
    assert len(set(digests)) == len(digests)


def test_the_hash_seed_of_the_process_changes_nothing() -> None:
    answers = {
        subprocess.run(
            [sys.executable, "-c", DIGEST.format(12)],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(answers) == 1
