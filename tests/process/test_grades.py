"""Both grades with real processes: one is killed in the middle of its burst, and what is final is the same for all."""

from __future__ import annotations

import json
from pathlib import Path

from tests.process.test_demo import unisono

from unisono.check.suite import check_all
from unisono.trace.files import read_trace


def test_a_member_is_killed_and_final_sequences_and_replicas_are_the_same(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    options = ("--members", "4", "--grades", "both", "--kill", "2@1s", "--seconds", "2", "--rate", "100")
    status, out, err = unisono("demo", "--json", *options, "--out", str(kept))
    assert status == 0, (out, err)
    result = json.loads(out)
    grades = result["grades"]
    assert result["verdict"] == "valid", result["checks"]
    assert set(result["delivered"]) == {"1", "3", "4"}
    assert grades["final_same"] is True
    assert grades["final_left_before"] == {}, "nobody goes before all is final everywhere"
    assert grades["final_open"] == 0, "all that was early at a survivor is final there"
    assert grades["replicas_equal"] is True
    assert min(grades["final_delivered"].values()) > 0
    assert grades["final_latency_ms"]["p50"] >= result["latency_ms"]["p50"]
    verdicts = check_all(read_trace(kept))
    assert {"final_order", "final_agreement", "early_in_final", "total_order[final]"} <= verdicts.keys()


def test_final_alone_delivers_each_message_once(tmp_path: Path) -> None:
    options = ("--members", "3", "--grades", "final", "--failures", "--seconds", "1")
    status, out, err = unisono("demo", "--json", *options, "--out", str(tmp_path / "kept"))
    assert status == 0, (out, err)
    result = json.loads(out)
    assert result["checks"]["final_order"]["verdict"] == "valid"
    assert read_trace(tmp_path / "kept").delivered_grades() == ("final",)
