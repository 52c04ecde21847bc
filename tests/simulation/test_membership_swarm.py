"""Membership through crashes, restarts, joins, leaves, pauses, partitions and a network that loses and repeats.

View atomicity (paper 004 §3.2), FIFO and the states of newcomers are judged in every run; so is that all who are up end
in one view, wherever a majority of the last one is left. A range of seeds runs by
    .venv/bin/python tests/simulation/test_membership_swarm.py 0..4999
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # for a run as a script
from tests.simulation.membership_world import faulty_world, recovers_after_faults
from tests.simulation.seed_ranges import run_ranges

from unisono.agreement.membership.messages import Vector
from unisono.agreement.membership.multicast import ViewMulticast

CHUNK = 500


def outcome(seed: int) -> tuple[list[str], bool]:
    """What is wrong with one run, and whether it could end well."""
    world = faulty_world(seed)
    live = recovers_after_faults(world)
    found = world.problems() if live else [*world.problems(), "not all who are up are in one view"]
    return found, not world.cannot_recover()


def judge(seed: int) -> bool:
    found, hopeful = outcome(seed)
    assert not found, f"{found}\nreplay: .venv/bin/python tests/simulation/test_membership_swarm.py {seed}"
    return hopeful


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_view_atomic_always_and_together_in_the_end(first: int) -> None:
    assert sum(judge(seed) for seed in range(first, first + 20)) >= 8, "too few of these runs can end well to say much"


@pytest.mark.parametrize("seed", [406, 607, 4091])
def test_what_failed_once_holds(seed: int) -> None:
    """406: of three newcomers one has the state when its giver crashes; it has to pass it on to the other two.

    607: who has said that it goes, and was not heard, says so again though it has something to multicast by then; else
    nobody coordinates.

    4091: the only one who knew what was agreed on crashes when two newcomers are in the new view; who was in the old
    one, and will be in the new one, can hear of it from them alone.
    """
    assert judge(seed), "this run can end well"


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("first", range(0, 5000, CHUNK))
def test_view_atomic_always_and_together_in_the_end_at_length(first: int) -> None:
    for seed in range(first, first + CHUNK):
        judge(seed)


def test_without_the_standstill_it_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members that go on handing out while a view is being agreed on do not receive the same messages in it."""

    def hand_out_all(self: ViewMulticast, cut: Vector | None = None) -> None:
        frozen, self.frozen = self.frozen, False
        original(self, None if cut is None else {m: max(n, self._delivered[m]) for m, n in cut.items()})
        self.frozen = frozen

    original = ViewMulticast._deliver
    monkeypatch.setattr(ViewMulticast, "_deliver", hand_out_all)
    found = 0
    for seed in range(300):
        world = faulty_world(seed)
        recovers_after_faults(world)
        found += bool(world.problems())
        if found:
            return
    pytest.fail("300 runs without the standstill, and nothing was found")


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = faulty_world(5), faulty_world(5)
    recovers_after_faults(first)
    recovers_after_faults(second)
    assert [member.views for member in first.members.values()] == [member.views for member in second.members.values()]


if __name__ == "__main__":
    sys.exit(run_ranges(sys.argv[1:], lambda seed: outcome(seed)[0]))
