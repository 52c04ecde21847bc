"""The priority order over membership as it is, in the simulator: crashes, joins, leaves, restarts and losses."""

from dataclasses import replace
from pathlib import Path

import pytest

from unisono.check.suite import check_all
from unisono.check.verdict import Status
from unisono.model.scenario_text import parse_scenario
from unisono.sim.run import run

SCENARIOS = Path(__file__).parents[2] / "scenarios"


def wrong(name: str, order: str, seed: int) -> list[str]:
    path = SCENARIOS / name
    scenario = replace(parse_scenario(path.read_text(encoding="utf-8"), str(path)), order=order)
    result = run(scenario, seed)
    verdicts = check_all(result.trace, until_ns=result.until_ns)
    assert verdicts["priority_accounting"].figures["overtakings"] > 0
    return [
        f"{name}: {verdict.witness.text if verdict.witness else verdict.reason}"
        for name, verdict in verdicts.items()
        if verdict.status is not Status.VALID
    ]


@pytest.mark.parametrize("order", ["priority", "priority_coordinator"])
def test_urgent_messages_overtake_at_consumers_of_three_speeds(order: str) -> None:
    assert wrong("priority_overtaking.toml", order, 1) == []


@pytest.mark.parametrize("order", ["priority", "priority_coordinator"])
def test_p1_and_p2_hold_while_members_crash_come_and_go(order: str) -> None:
    assert wrong("priority_churn.toml", order, 1) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("order", ["priority", "priority_coordinator"])
def test_p1_and_p2_hold_while_members_crash_come_and_go_in_100_runs(order: str) -> None:
    for seed in range(2, 102):
        assert wrong("priority_churn.toml", order, seed) == [], f"seed {seed}"
