"""The report on a run of real processes: it judges the declared bound, and tells late machines from broken promises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from unisono.check.verdict import Status
from unisono.cli.main import ExitStatus, main
from unisono.cluster.report import ClusterReport, check_cluster_run
from unisono.model.scenario import Scenario
from unisono.model.text.scenario import parse_scenario
from unisono.trace.files import ParquetWriter, read_trace
from unisono.trace.schema import EventKind

MS = 1_000_000
SENT_NS = 1_790_000_000_000 * MS
SLOT_NS = 5 * MS


def scenario(rest: str = "") -> Scenario:
    """Two members whose declared bound is Δ+Γ+Θ = 27 ms."""
    return parse_scenario(
        '[group]\nname = "table"\nmembers = 2\nslot = "5ms"\ndelta = "20ms"\ngamma = "2ms"\n'
        f"[rate]\navg = 200\nburst = 4\n[run]\nseconds = 2\n{rest}",
        "the test",
    )


def record(folder: Path, latency_ms: int) -> None:
    """Record a run in which member 1 sends one message, and both members deliver it after this time."""
    slot = SENT_NS // SLOT_NS
    for member in (1, 2):
        with ParquetWriter(folder, "r", "table", member, incarnation=1) as writer:
            recorder = writer.recorder()
            at: dict[str, Any] = {"real_ns": SENT_NS, "local_ns": SENT_NS}
            recorder.event(EventKind.START, slot=slot, **at)
            message: dict[str, Any] = {"first_sequence": 0, "count": 1, "sizes": [9], "slot": slot, "first_place": 0}
            if member == 1:
                recorder.sent(**message, **at)
            then = SENT_NS + latency_ms * MS
            late: dict[str, Any] = {"real_ns": then, "local_ns": then, "first_index": 0}
            recorder.delivered(sender=1, sender_incarnation=1, **message, **late)
            recorder.event(EventKind.LEAVE, slot=slot + 1, real_ns=then, local_ns=then)


def final(delay_ms: int, lateness_ms: int, gamma_ms: int = 1) -> dict[str, Any]:
    """What a member reports at its end about delays, timers and clocks."""
    measured = {"delays": [], "delay_max_ns": delay_ms * MS, "lateness_max_ns": lateness_ms * MS}
    counts: dict[str, Any] = {"delivered": 1, "refused": {}, "injected": {}, "qos": [], "violations": []}
    return {**measured, "gamma_ns": gamma_ms * MS, "longest_gap_ns": 0, "in_order": True, **counts}


def report_on(folder: Path, stated: Scenario, latency_ms: int, measured: dict[str, Any]) -> ClusterReport:
    record(folder, latency_ms)
    return check_cluster_run(stated, "r", folder, {1: measured, 2: measured})


def test_a_delivery_within_the_declared_bound_is_valid(tmp_path: Path) -> None:
    report = report_on(tmp_path, scenario(), 27, final(delay_ms=5, lateness_ms=2))
    result = report.to_json()
    assert (result["verdict"], result["bound_ms"], result["late"]) == ("valid", 27, 0)
    assert result["doubtful_assumptions"] == []
    assert (result["declared_bound_ms"], result["late_declared"]) == (27, 0)


def test_the_trace_stores_the_declared_bound_although_the_machine_was_slower(tmp_path: Path) -> None:
    """The bound that fits the measurements would make every late delivery valid."""
    report = report_on(tmp_path, scenario(), 900, final(delay_ms=950, lateness_ms=1000))
    meta, result = read_trace(tmp_path).meta, report.to_json()
    assert (meta.bound_ns, meta.declared_bound_ns, meta.delta_ns, meta.gamma_ns) == (27 * MS, 27 * MS, 20 * MS, 2 * MS)
    assert report.verdicts["latency"].status is Status.VIOLATED
    assert (result["bound_ms"], result["late"]) == (27, 2)
    assert result["measured_bound_ms"] > 900
    assert result["late_measured"] == 0
    assert result["verdict"] == "valid", "the order is right, and the machine broke Δ"
    assert "more than Δ = 20ms" in result["doubtful_assumptions"][0]
    assert main(["verify", str(tmp_path), "--master", "none"]) == ExitStatus.VIOLATED


@pytest.mark.parametrize(
    ("rest", "measured", "assumption"),
    [
        ("", final(delay_ms=15, lateness_ms=6), "more than Δ = 20ms"),
        ("", final(delay_ms=5, lateness_ms=2, gamma_ms=3), "more than Γ = 2ms"),
        ("", final(delay_ms=0, lateness_ms=2), "no member measured delays"),
        ('[[fault]]\nkind = "pause"\nmember = 1\nfrom = "1s"\nto = "2s"\n', final(5, 2), "the fault pause"),
    ],
)
def test_late_deliveries_are_reported_with_the_doubtful_assumption(
    rest: str, measured: dict[str, Any], assumption: str, tmp_path: Path
) -> None:
    report = report_on(tmp_path, scenario(rest), 28, measured)
    assert (report.verdict, report.to_json()["late"]) == (Status.VALID, 2)
    assert [text for text in report.doubtful_assumptions if assumption in text]


def test_late_deliveries_violate_the_promise_if_the_machine_kept_its_assumptions(tmp_path: Path) -> None:
    report = report_on(tmp_path, scenario(), 28, final(delay_ms=15, lateness_ms=5))
    assert report.doubtful_assumptions == ()
    assert report.verdict is Status.VIOLATED


def test_a_bound_that_the_scenario_states_replaces_that_of_the_order(tmp_path: Path) -> None:
    report = report_on(tmp_path, scenario('[expect]\nbound = "90ms"\n'), 80, final(delay_ms=5, lateness_ms=2))
    assert (report.bound_ns, read_trace(tmp_path).meta.bound_ns) == (90 * MS, 90 * MS)
    assert report.verdict is Status.VALID
