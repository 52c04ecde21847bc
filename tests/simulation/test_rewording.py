"""Text is not an interface: verdicts do not depend on the wording of messages, notes and reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.planted_violations import parts_of
from tests.recorded_runs import record_run

from unisono.check.columns import excused_members
from unisono.check.final import accountable_runs
from unisono.check.latency import latency_in_force
from unisono.check.multigroup import genuineness_over_time
from unisono.check.suite import check_all
from unisono.check.verdict import Doubt, Reason, Status, Verdict, Witness
from unisono.model.events import (
    Blocked,
    ClockViolation,
    Notice,
    Rejoining,
    SlaCleared,
    SlaViolation,
    TopologyChange,
    Violation,
    ViolationKind,
)
from unisono.model.scenario import Scenario
from unisono.model.text.scenario import parse_scenario
from unisono.pipeline.verify import verify
from unisono.sim import run
from unisono.sim.swarm.final import cbr_finals, finals
from unisono.sim.swarm.multigroup import groups_scenario
from unisono.sim.swarm.orders import any_order
from unisono.sim.swarm.vbr import churning, renegotiated, stormy
from unisono.trace.files import read_part, write_part, write_trace
from unisono.trace.schema import EventKind
from unisono.trace.table import Trace, concatenated

SCENARIOS = Path(__file__).parents[2] / "scenarios"
EVENTS = (Violation, ClockViolation, Blocked, SlaViolation, Notice, Rejoining, SlaCleared, TopologyChange)
REWORDED = "reworded"
FAMILIES: dict[str, Callable[[], Scenario]] = {
    "vbr": lambda: stormy(3),
    "vbr with failures": lambda: churning(5),
    "slot lengths": lambda: renegotiated(4),
    "finals": lambda: finals(2),
    "cbr finals": lambda: cbr_finals(1),
    "groups": lambda: groups_scenario(3),
    **{f"order {seed}": lambda seed=seed: any_order(seed) for seed in range(9)},  # type: ignore[misc]
    **{
        name: lambda name=name: parse_scenario((SCENARIOS / f"{name}.toml").read_text(), name)  # type: ignore[misc]
        for name in (
            *("vbr_failures_pause", "vbr_grades", "cbr_renegotiation", "leader_dies", "timestamp_overtaken"),
            *("consensus_dies", "priority_churn", "priority_return", "rmcast_causal", "quasi_genuine_topology_change"),
        )
    },
}
"""A run of every family of orders, together with violations that these orders report."""


@pytest.fixture
def reworded() -> Iterator[pytest.MonkeyPatch]:
    """A patch for `reword`, undone after the test."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def reword(patch: pytest.MonkeyPatch) -> None:
    """Replace every text of events, doubts, reasons and witnesses by a different one when it is created."""
    number = count()
    fields: dict[type, str] = {**dict.fromkeys((*EVENTS, Doubt, Witness), "text"), Verdict: "reason"}
    for made, field in fields.items():
        original: Any = vars(made)["__init__"]

        def init(self: Any, *given: Any, _original: Any = original, _field: str = field, **named: Any) -> None:
            _original(self, *given, **named)
            if getattr(self, _field):
                object.__setattr__(self, _field, f"{REWORDED} {next(number) * 7919 % 10007}")

        patch.setattr(made, "__init__", init)


def facts(verdicts: dict[str, Verdict]) -> dict[str, object]:
    """Verdicts without their texts."""
    return {
        key: (
            *(verdict.name, verdict.status, verdict.count, verdict.token, dict(verdict.figures)),
            None if (seen := verdict.witness) is None else (seen.messages, seen.members, seen.positions),
        )
        for key, verdict in verdicts.items()
    }


def found(scenario: Scenario, folder: Path) -> tuple[Trace, list[dict[str, object]]]:
    """A run's trace, and the facts of the verdicts of all checkers."""
    result = run(scenario)
    trace = result.trace
    checked = [check_all(trace, until_ns=result.until_ns), {"in force": latency_in_force(trace)}]
    if scenario.multigroup is not None and result.send_times:
        checked.append({"over time": genuineness_over_time(scenario.multigroup.topology, trace, result.send_times)})
    write_trace(folder, trace, range_slots=64)
    checked += [verify(folder, max_whole_rows=rows)[0].verdicts for rows in (10**9, 0)]
    return trace, [facts(verdicts) for verdicts in checked]


@pytest.mark.parametrize("family", FAMILIES)
def test_no_text_changes_a_verdict(family: str, tmp_path: Path, reworded: pytest.MonkeyPatch) -> None:
    scenario = FAMILIES[family]()
    trace, verdicts = found(scenario, tmp_path / "before")
    reword(reworded)
    other, again = found(scenario, tmp_path / "after")
    assert again == verdicts
    assert other.digest() == trace.digest()
    assert len(other.notes) >= len(trace.notes)
    assert all(note.startswith(REWORDED) for note in other.notes)


def without_token(trace: Trace, kind: ViolationKind) -> Trace:
    """The trace without the rows that have this token."""
    return trace.select(~((trace.kind == EventKind.VIOLATION.code) & trace.with_token(kind)))


def of_scenario(name: str) -> Trace:
    return run(parse_scenario((SCENARIOS / f"{name}.toml").read_text(), name)).trace


def test_a_pause_is_recognized_with_any_text(reworded: pytest.MonkeyPatch) -> None:
    reword(reworded)
    trace = run(churning(4)).trace
    found = check_all(trace)["gaps_explained"]
    assert found.status is Status.VALID
    failed = check_all(without_token(trace, ViolationKind.PAUSED))["gaps_explained"].figures["failed"]
    assert found.figures["failed"] > failed, "the pause explains messages that a member did not send in time"


def test_an_exclusion_is_recognized_with_any_text(reworded: pytest.MonkeyPatch) -> None:
    reword(reworded)
    trace = of_scenario("priority_return")
    assert {member for member, _ in excused_members(trace)} == {1, 4, 5}
    assert excused_members(without_token(trace, ViolationKind.EXCLUDED)) == set()


@pytest.mark.parametrize("kind", [ViolationKind.EXCLUDED, ViolationKind.UNSETTLED, ViolationKind.NUMBER_TAKEN])
def test_a_token_excuses_a_member_from_final_deliveries(kind: ViolationKind) -> None:
    trace = of_scenario("vbr_grades")
    accountable = {(each.member, each.incarnation) for each in accountable_runs(trace)}
    assert (3, 1) in accountable
    row = int(np.flatnonzero((trace.kind == EventKind.START.code) & (trace.member == 3))[0])
    for token, text, excused in ((kind.value, "any words", True), (ViolationKind.LATE.value, f"{kind}: words", False)):
        reported = replace(
            trace.select(np.array([row])),
            kind=np.array([EventKind.VIOLATION.code], dtype=np.int8),
            token=np.zeros(1, dtype=np.int32),
            tokens=(token,),
            note=np.zeros(1, dtype=np.int32),
            notes=(text,),
        )
        rows = Trace.from_rows(concatenated([trace, reported]), trace.meta, trace.logs)
        assert {(each.member, each.incarnation) for each in accountable_runs(rows)} == accountable - (
            {(3, 1)} if excused else set()
        )


def test_two_deliveries_with_one_index_are_recognized_with_any_reason_text(
    tmp_path: Path, reworded: pytest.MonkeyPatch
) -> None:
    folder = record_run(tmp_path, members=3, slots=300, burst=2, range_slots=32)
    part = parts_of(folder, 2)[0]
    rows = read_part(part)
    first, second = np.flatnonzero(rows.kind == EventKind.DELIVER.code)[10:12].tolist()
    index, place = rows.index.copy(), rows.place.copy()
    index[second] = index[first]
    place[[first, second]] = place[[second, first]]
    write_part(part, replace(rows, index=index, place=place), "r", "g")
    before = [verify(folder, max_whole_rows=rows)[0].verdicts for rows in (10**9, 0)]
    assert [verdicts["total_order"].token for verdicts in before] == [Reason.INDEX_TWICE] * 2
    reword(reworded)
    again = [verify(folder, max_whole_rows=rows)[0].verdicts for rows in (10**9, 0)]
    assert [facts(verdicts) for verdicts in again] == [facts(verdicts) for verdicts in before]
