"""Consensus through loss, repetition, reordering, partitions, crashes with recovery, pauses and leaps of clocks.

A range of seeds runs by
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
    """What is wrong with one run."""
    world = faulty_world(seed)
    live = recovers_after_faults(world)
    verdict = world.verdict()
    found = [] if live else [f"not everything was decided after the trouble, {world.lagging()} lag"]
    if verdict.status is not Status.VALID:
        found.append(verdict.witness.text if verdict.witness is not None else verdict.reason)
    return found


def judge(seed: int) -> None:
    found = problems(seed)
    assert not found, f"{found}\nreplay: .venv/bin/python tests/simulation/test_consensus_swarm.py {seed}"


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_safe_always_and_live_in_the_end(first: int) -> None:
    for seed in range(first, first + 50):
        judge(seed)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("first", range(0, 50_000, CHUNK))
def test_safe_always_and_live_in_the_end_at_length(first: int) -> None:
    for seed in range(first, first + CHUNK):
        judge(seed)


@pytest.mark.parametrize("seed", [99, 222, 255, 24543, 100651])
def test_past_failures(seed: int) -> None:
    """99: a promise of much that was accepted but not known to be decided; 222, 255: learned values after a restart.

    24543, 100651: of a promise in parts, the one that said what is decided came from a later answer than another.
    """
    judge(seed)


def test_a_disk_that_forgets_what_it_has_synced_is_found_out() -> None:
    """What must survive is on disk before it is promised: with that taken away, somebody decides otherwise."""
    found = 0
    for seed in range(400):
        world = faulty_world(seed, loses_synced_records=True)
        try:
            recovers_after_faults(world)
        except (AssertionError, KeyError):  # a state that nobody else has
            found += 1
            continue
        found += world.verdict().status is Status.VIOLATED
        if found >= 3:
            return
    pytest.fail(f"only {found} of 400 runs with forgetful disks were found out")


def scripted() -> ConsensusWorld:
    """A start, proposals of two members, a leader's end and the next one's beginning."""
    world = ConsensusWorld(11, 3)
    world.delay = (MS, MS)
    for number in world.numbers:
        world.schedule(number, world.start, number)
    for at, number in ((60, 1), (61, 2), (70, 3)):
        world.schedule(at * MS, world.propose, number, 1)
    return world


def test_a_crash_at_every_step() -> None:
    """Before each write and before each frame, one member crashes, and comes back with what its disk has."""
    whole = scripted()
    whole.run(120 * MS)
    assert whole.verdict().status is Status.VALID
    assert whole.step_count > 100
    for step in range(whole.step_count):
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
        assert max(told.instance for told in world.reported) >= 2, f"crash at step {step}"


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = faulty_world(17), faulty_world(17)
    recovers_after_faults(first)
    recovers_after_faults(second)
    assert first.reported == second.reported
    assert first.step_count == second.step_count


if __name__ == "__main__":
    sys.exit(run_ranges(sys.argv[1:], problems))
