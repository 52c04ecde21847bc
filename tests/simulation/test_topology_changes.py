"""Groups stop sending somewhere while a member is gone, or only seems to be: nobody is waited for for ever."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from unisono.check.multigroup import genuineness_over_time
from unisono.check.suite import check_all
from unisono.check.verdict import Status, Verdict
from unisono.model.durations import NS_PER_MS
from unisono.model.events import NoticeKind
from unisono.model.faults import Crash, Fault, Partition, Span
from unisono.model.scenario import Expectation, PlannedTopologyChange, Scenario, Send, Workload
from unisono.model.text.scenario import parse_scenario
from unisono.orders.multigroup import topology_exchange as bonding
from unisono.sim.result import Result
from unisono.sim.run import run

GONE_MS = 300
"""So long a member is waited for here."""


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bonding, "SKIP_SUSPECTED_AFTER_NS", GONE_MS * NS_PER_MS)


def stopping(fault: Fault, sends: dict[int, tuple[Send, ...]]) -> Scenario:
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


def told(result: Result, member: int) -> list[str]:
    """What a member has been told of the topology, in order."""
    rows = result.trace
    mine = rows.select(rows.with_token(NoticeKind.TOPOLOGY) & (rows.member == member))
    return [mine.notes[note] for note in mine.note.tolist()]


def at(*times_ms: int) -> tuple[Send, ...]:
    return tuple(Send(ms * NS_PER_MS, (50,)) for ms in times_ms)


def test_a_member_that_has_crashed_for_good_is_not_waited_for() -> None:
    sends = {2: at(50, 120), 3: at(150, 190), 5: at(60, 210, 400, 1_200)}
    result = run(stopping(Crash(1, 100 * NS_PER_MS), sends), compare_payloads=True)
    assert {verdict.status for verdict in verdicts(result).values()} == {Status.VALID}
    for member in (4, 5, 6):
        assert told(result, member)[-1].startswith("sends to floor, market; receives from floor;")
    assert told(result, 3)[-1] == "sends to market; receives from floor, market; exchanges datagrams with floor, market"


def test_a_member_that_only_seemed_to_be_gone_is_told_what_is_delivered_nowhere() -> None:
    """Member 3 is cut off, accepts two messages for a group that its own stops sending to, and comes back."""
    sends = {2: at(50, 120), 3: at(60, 400, 450), 5: at(70, 210, 1_200)}
    apart = Partition(Span(100 * NS_PER_MS, 1_000 * NS_PER_MS), ((3,),))
    result = run(stopping(apart, sends), compare_payloads=True)
    said = [violation.text for violation in result.violations[3] if violation.kind == "not_related"]
    assert said == [
        f"message {number} of member 3 is delivered nowhere: its group sends to floor no longer" for number in (1, 2)
    ]
    found = verdicts(result)
    assert {name for name, verdict in found.items() if verdict.status is not Status.VALID} == {"validity"}
    assert found["validity"].count == 2
    assert [kind for member in (1, 2) for kind in result.violations[member] if kind.kind == "not_related"] == []
