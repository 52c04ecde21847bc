"""Consensus under loss, duplication, reordering, partitions, crashes with recovery, pauses and clock steps.

To run a range of seeds:
    .venv/bin/python tests/simulation/test_consensus_swarm.py 0..49999
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # for a run as a script
from tests.simulation.consensus_world import MS, ConsensusWorld, faulty_world, recovers_after_faults
from tests.simulation.seed_ranges import run_ranges

from unisono.check.verdict import Status

CHUNK = 1000


def problems(seed: int) -> list[str]:
    """The problems found in one run."""
    world = faulty_world(seed)
    live = recovers_after_faults(world)
    verdict = world.verdict()
    found = [] if live else [f"not all values were decided after the faults ended; members {world.lagging()} lag"]
    if verdict.status is not Status.VALID:
        found.append(verdict.witness.text if verdict.witness is not None else verdict.reason)
    return found


def check(seed: int) -> None:
    found = problems(seed)
    assert not found, f"{found}\nreplay: .venv/bin/python tests/simulation/test_consensus_swarm.py {seed}"


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_always_safe_and_finally_live(first: int) -> None:
    for seed in range(first, first + 50):
        check(seed)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("first", range(0, 50_000, CHUNK))
def test_always_safe_and_finally_live_for_many_seeds(first: int) -> None:
    for seed in range(first, first + CHUNK):
        check(seed)


@pytest.mark.parametrize("seed", [99, 222, 255, 24543, 100651])
def test_seeds_that_failed_once(seed: int) -> None:
    """99: a promise with many accepted values not known to be decided. 222, 255: learned values after a restart.

    24543, 100651: a promise in parts, in which the part with the decisions came from a later answer than the others.
    """
    check(seed)


def test_a_disk_that_loses_synced_records_is_detected() -> None:
    """Safety rests on records that are durable before a promise is sent. Without that, members decide differently."""
    found = 0
    for seed in range(400):
        world = faulty_world(seed, loses_synced_records=True)
        try:
            recovers_after_faults(world)
        except (AssertionError, KeyError):  # a state that no other member has
            found += 1
            continue
        found += world.verdict().status is Status.VIOLATED
        if found >= 3:
            return
    pytest.fail(f"only {found} of 400 runs with lost records were detected")


def scripted() -> ConsensusWorld:
    """Three members start and propose values."""
    world = ConsensusWorld(11, 3)
    world.delay = (MS, MS)
    for number in world.numbers:
        world.schedule(number, world.start, number)
    for at, number in ((60, 1), (61, 2), (70, 3)):
        world.schedule(at * MS, world.propose, number, 1)
    return world


def test_a_crash_at_every_step() -> None:
    """For every write and every frame, a run in which the member crashes just before it, and restarts from its disk."""
    undisturbed = scripted()
    undisturbed.run(120 * MS)
    assert undisturbed.verdict().status is Status.VALID
    assert undisturbed.step_count > 100
    for step in range(undisturbed.step_count):
        world = scripted()
        world.crash_at_step = step
        world.run(120 * MS)
        for number in world.numbers:
            world.start(number)
        for number in world.numbers:
            world.schedule(world.now + 250 * MS, world.propose, number, 0)
        world.run(world.now + 400 * MS)
        assert world.verdict().status is Status.VALID, f"crash at step {step}: {world.verdict()}"
        assert not world.lagging(), f"crash at step {step}"
        assert max(report.instance for report in world.reported) >= 2, f"crash at step {step}"


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = faulty_world(17), faulty_world(17)
    recovers_after_faults(first)
    recovers_after_faults(second)
    assert first.reported == second.reported
    assert first.step_count == second.step_count


if __name__ == "__main__":
    sys.exit(run_ranges(sys.argv[1:], problems))
