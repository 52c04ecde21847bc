"""A group stops sending to another while one of its members is dead or suspected: the change still completes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from unisono.check.multigroup import genuineness_over_time
from unisono.check.suite import check_all
from unisono.check.verdict import Status, Verdict
from unisono.model.events import NoticeKind
from unisono.model.faults import Crash, Fault, Partition, Span
from unisono.model.scenario import Expectation, PlannedTopologyChange, Scenario, Send, Workload
from unisono.model.text.scenario import parse_scenario
from unisono.model.units import NS_PER_MS
from unisono.orders.quasi_genuine import topology_change
from unisono.sim.result import Result
from unisono.sim.run import run

SKIP_AFTER_MS = 300
"""In these tests a member suspected for this long no longer blocks a change."""


@pytest.fixture(autouse=True)
def _skip_suspected_members_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology_change, "SKIP_SUSPECTED_AFTER_NS", SKIP_AFTER_MS * NS_PER_MS)


def market_stops_sending(fault: Fault, sends: dict[int, tuple[Send, ...]]) -> Scenario:
    """At 200 ms the market stops sending to the floor."""
    path = Path(__file__).parents[2] / "scenarios" / "quasi_genuine_topology_change.toml"
    return replace(
        parse_scenario(path.read_text("utf-8"), path.name),
        workloads={member: Workload("script", sends=sends.get(member, ())) for member in range(1, 10)},
        routes={member: (("market", "floor"),) if member <= 3 else (("floor",),) for member in range(1, 10)},
        faults=(fault,),
        steps=(PlannedTopologyChange(2, 200 * NS_PER_MS, ("market",)),),
        run_ns=1_500 * NS_PER_MS,
        expect=Expectation(bound_ns=1_000 * NS_PER_MS),
    )


def verdicts(result: Result) -> dict[str, Verdict]:
    assert result.scenario.multigroup is not None
    found = check_all(result.trace, until_ns=result.until_ns)
    return found | {
        "genuineness": genuineness_over_time(result.scenario.multigroup.topology, result.trace, result.send_times)
    }


def topology_notices(result: Result, member: int) -> list[str]:
    """The topology notices that a member has received, in order."""
    rows = result.trace
    mine = rows.select(rows.with_token(NoticeKind.TOPOLOGY) & (rows.member == member))
    return [mine.notes[note] for note in mine.note.tolist()]


def sends_at(*times_ms: int) -> tuple[Send, ...]:
    return tuple(Send(ms * NS_PER_MS, (50,)) for ms in times_ms)


def test_a_crashed_member_does_not_block_the_change() -> None:
    sends = {2: sends_at(50, 120), 3: sends_at(150, 190), 5: sends_at(60, 210, 400, 1_200)}
    result = run(market_stops_sending(Crash(1, 100 * NS_PER_MS), sends), compare_payloads=True)
    assert {verdict.status for verdict in verdicts(result).values()} == {Status.VALID}
    for member in (4, 5, 6):
        assert topology_notices(result, member)[-1].startswith("sends to floor, market; receives from floor;")
    assert (
        topology_notices(result, 3)[-1]
        == "sends to market; receives from floor, market; exchanges datagrams with floor, market"
    )


def test_a_suspected_member_that_is_alive_learns_of_its_refused_messages() -> None:
    """Member 3 is cut off, accepts two messages for a group that its own group stops sending to, and reconnects."""
    sends = {2: sends_at(50, 120), 3: sends_at(60, 400, 450), 5: sends_at(70, 210, 1_200)}
    partition = Partition(Span(100 * NS_PER_MS, 1_000 * NS_PER_MS), ((3,),))
    result = run(market_stops_sending(partition, sends), compare_payloads=True)
    texts = [violation.text for violation in result.violations[3] if violation.kind == "not_related"]
    assert texts == [
        f"message {number} of member 3 is not delivered anywhere: its group no longer sends to floor"
        for number in (1, 2)
    ]
    found = verdicts(result)
    assert {name for name, verdict in found.items() if verdict.status is not Status.VALID} == {"validity"}
    assert found["validity"].count == 2
    assert [kind for member in (1, 2) for kind in result.violations[member] if kind.kind == "not_related"] == []
