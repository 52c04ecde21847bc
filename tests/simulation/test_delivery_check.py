"""A member whose order has a defect stops by itself: it needs no checker of traces for that."""

from __future__ import annotations

import pytest
from tests.simulation.test_orders_planted import PLANTED, Planted, plant, scenarios
from tests.simulation.test_orders_swarm import judged

from unisono.errors import InvariantViolated
from unisono.model.scenario import Scenario
from unisono.sim.member import PayloadMismatch

STOPPED = {
    "vbr: serves_the_last_member_first",
    "vbr with failures: serves_the_last_member_first",
    "leader: delivers_the_newest_first",
    "leader: collects_before_it_delivers",
}
"""The defects that one member can see by itself."""


def test_the_defects_are_among_the_planted_ones() -> None:
    assert {str(bug) for bug in PLANTED} >= STOPPED


def violation_in(scenario: Scenario, bug: Planted, member: int) -> InvariantViolated | None:
    """What stops the run of a scenario with this defect at one member, if anything does."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        plant(monkeypatch, bug, member)
        try:
            judged(scenario)
        except InvariantViolated as stopped:
            return stopped
        except PayloadMismatch:
            return None
    return None


@pytest.mark.parametrize("bug", [bug for bug in PLANTED if str(bug) in STOPPED], ids=str)
def test_a_member_stops_before_a_wrong_delivery(bug: Planted) -> None:
    for scenario in scenarios(bug.kind):
        broken = scenario.members[0 if bug.leads else -1]
        stopped = violation_in(scenario, bug, broken)
        if stopped is not None:
            assert (stopped.invariant, stopped.member) == ("order", broken)
            return
    pytest.fail(f"no run stops: {bug}")
