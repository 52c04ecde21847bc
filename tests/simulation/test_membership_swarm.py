"""Membership under crashes, restarts, joins, leaves, pauses, partitions, loss and duplication.

Every run is checked for view atomicity (paper 004 §3.2), FIFO and the states of newcomers. All running members must end
up in one view if a majority of the last view is left. To run a range of seeds:
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
    """The problems found in one run, and whether the group could recover."""
    world = faulty_world(seed)
    live = recovers_after_faults(world)
    found = world.problems() if live else [*world.problems(), "not all running members are in one view"]
    return found, not world.cannot_recover()


def check(seed: int) -> bool:
    found, can_recover = outcome(seed)
    assert not found, f"{found}\nreplay: .venv/bin/python tests/simulation/test_membership_swarm.py {seed}"
    return can_recover


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_always_view_atomic_and_finally_in_one_view(first: int) -> None:
    assert sum(check(seed) for seed in range(first, first + 20)) >= 8, "too few of these runs can recover to say much"


@pytest.mark.parametrize("seed", [406, 607, 4091])
def test_seeds_that_failed_once(seed: int) -> None:
    """406: one of three newcomers has the state when its source crashes; it has to pass the state on to the other two.

    607: a request to leave is lost; the member must repeat it although it has messages to multicast by then, otherwise
    no member coordinates.

    4091: the only member that knew the decision crashes when two newcomers are in the new view; a member of both views
    can get the decision only from the newcomers.
    """
    assert check(seed), "this run can recover"


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("first", range(0, 5000, CHUNK))
def test_always_view_atomic_and_finally_in_one_view_for_many_seeds(first: int) -> None:
    for seed in range(first, first + CHUNK):
        check(seed)


def test_delivering_during_a_view_change_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members that keep delivering while the next view is decided do not receive the same messages in the old one."""

    def deliver_all(self: ViewMulticast, last_messages: Vector | None = None) -> None:
        frozen, self.frozen = self.frozen, False
        if last_messages is not None:
            last_messages = {m: max(n, self._delivered[m]) for m, n in last_messages.items()}
        original(self, last_messages)
        self.frozen = frozen

    original = ViewMulticast._deliver
    monkeypatch.setattr(ViewMulticast, "_deliver", deliver_all)
    found = 0
    for seed in range(300):
        world = faulty_world(seed)
        recovers_after_faults(world)
        found += bool(world.problems())
        if found:
            return
    pytest.fail("no problem was found in 300 runs")


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = faulty_world(5), faulty_world(5)
    recovers_after_faults(first)
    recovers_after_faults(second)
    assert [member.views for member in first.members.values()] == [member.views for member in second.members.values()]


if __name__ == "__main__":
    sys.exit(run_ranges(sys.argv[1:], lambda seed: outcome(seed)[0]))
