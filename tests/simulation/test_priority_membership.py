"""The priority order over real membership in the simulator: crashes, joins, leaves, restarts and losses."""

from dataclasses import replace
from pathlib import Path

import pytest

from unisono.check.suite import check_all
from unisono.check.verdict import Status
from unisono.model.scenario import Scenario
from unisono.model.text.scenario import parse_scenario
from unisono.sim.run import build_world, drain_ns, run, run_meta
from unisono.trace.schema import EventKind

SCENARIOS = Path(__file__).parents[2] / "scenarios"


def scenario_of(name: str, order: str) -> Scenario:
    path = SCENARIOS / name
    return replace(parse_scenario(path.read_text(encoding="utf-8"), str(path)), order=order)


def failed_checks(name: str, order: str, seed: int) -> list[str]:
    result = run(scenario_of(name, order), seed)
    verdicts = check_all(result.trace, until_ns=result.until_ns)
    assert verdicts["priority_accounting"].figures["overtakings"] > 0
    return [
        f"{name}: {verdict.witness.text if verdict.witness else verdict.reason}"
        for name, verdict in verdicts.items()
        if verdict.status is not Status.VALID
    ]


@pytest.mark.parametrize("order", ["priority", "priority_coordinator"])
def test_urgent_messages_overtake_at_consumers_of_three_speeds(order: str) -> None:
    assert failed_checks("priority_overtaking.toml", order, 1) == []


@pytest.mark.parametrize("order", ["priority", "priority_coordinator"])
def test_p1_and_p2_hold_while_members_crash_join_and_leave(order: str) -> None:
    assert failed_checks("priority_churn.toml", order, 1) == []


@pytest.mark.parametrize("order", ["priority", "priority_coordinator"])
def test_an_excluded_member_rejoins_by_itself(order: str) -> None:
    """After a pause longer than the detector's time-out, and after a partition: each member reports it and rejoins."""
    scenario = scenario_of("priority_return.toml", order)
    world, memory, bound_ns, reliable = build_world(scenario, 1)
    until_ns = world.send_until_ns + bound_ns + drain_ns(scenario)
    world.run(until_ns)
    trace = memory.trace(run_meta(scenario, 1, bound_ns, reliable))
    verdicts = check_all(trace, until_ns=until_ns)
    assert {name: verdict.status for name, verdict in verdicts.items() if verdict.status is not Status.VALID} == {}
    notices = {member: [notice.kind for notice in node.notices] for member, node in world.members.items()}
    assert notices == {1: ["rejoining"], 2: [], 3: [], 4: ["rejoining"], 5: ["rejoining"]}
    violations = {member: {violation.kind for violation in node.violations} for member, node in world.members.items()}
    assert violations == {1: {"excluded"}, 2: set(), 3: set(), 4: {"blocked", "excluded"}, 5: {"blocked", "excluded"}}
    views = trace.of_kind(EventKind.VIEW)
    last = {int(member): int(views.view[views.member == member].max()) for member in scenario.members}
    assert len(set(last.values())) == 1, "all members end in the same view"
    sent, delivered = trace.sends(), trace.deliveries()
    for member in (1, 4, 5):
        sent_again = (sent.sender == member) & (sent.sender_incarnation == 2)
        assert sent_again.any(), "the new incarnation sends"
        assert ((delivered.member == member) & (delivered.recorder_incarnation == 2)).any(), "and delivers"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("order", ["priority", "priority_coordinator"])
def test_p1_and_p2_hold_while_members_crash_join_and_leave_in_100_runs(order: str) -> None:
    for seed in range(2, 102):
        assert failed_checks("priority_churn.toml", order, seed) == [], f"seed {seed}"
