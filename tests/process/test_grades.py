"""Both grades with real processes: one is killed in the middle of its burst, and all survivors have one final order."""

from __future__ import annotations

import json
from pathlib import Path

from tests.process.test_demo import unisono

from unisono.check.suite import check_all
from unisono.trace.files import read_trace


def test_after_a_member_is_killed_final_sequences_and_replicas_are_equal(tmp_path: Path) -> None:
    trace_folder = tmp_path / "trace"
    options = ("--members", "4", "--grades", "both", "--kill", "2@1s", "--seconds", "2", "--rate", "100")
    status, out, err = unisono("demo", "--json", *options, "--out", str(trace_folder))
    assert status == 0, (out, err)
    result = json.loads(out)
    grades = result["grades"]
    assert result["verdict"] == "valid", result["checks"]
    assert set(result["delivered"]) == {"1", "3", "4"}
    assert grades["final_same"] is True
    assert grades["final_left_before"] == {}, "no member leaves before all is final at all members"
    assert grades["final_open"] == 0, "all early deliveries of a survivor are final there"
    assert grades["replicas_equal"] is True
    assert min(grades["final_delivered"].values()) > 0
    assert grades["final_latency_ms"]["p50"] >= result["latency_ms"]["p50"]
    verdicts = check_all(read_trace(trace_folder))
    assert {"final_order", "final_agreement", "early_in_final", "total_order[final]"} <= verdicts.keys()


def test_final_grade_alone_delivers_each_message_once(tmp_path: Path) -> None:
    options = ("--members", "3", "--grades", "final", "--failures", "--seconds", "1")
    status, out, err = unisono("demo", "--json", *options, "--out", str(tmp_path / "trace"))
    assert status == 0, (out, err)
    result = json.loads(out)
    assert result["checks"]["final_order"]["verdict"] == "valid"
    assert read_trace(tmp_path / "trace").delivered_grades() == ("final",)
