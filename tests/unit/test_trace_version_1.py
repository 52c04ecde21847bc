"""Traces that releases of schema version 1 wrote give the verdicts that those releases gave.

tests/data/trace_v1 was written by such a release: five short simulated runs, and `verdicts.json` with its verdicts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from unisono.check.latency import latency_in_force
from unisono.check.multigroup import genuineness_over_time
from unisono.check.suite import check_all
from unisono.check.verdict import Verdict
from unisono.model.topology import Topology
from unisono.pipeline.verify import verify
from unisono.trace.files import read_trace, write_trace
from unisono.trace.schema import META_NAME, EventKind, read_json, read_meta
from unisono.trace.table import Trace

FOLDER = Path(__file__).parents[1] / "data" / "trace_v1"
RUNS: dict[str, dict[str, Any]] = json.loads((FOLDER / "verdicts.json").read_text(encoding="utf-8"))


def said(verdict: Verdict) -> dict[str, Any]:
    """A verdict as version 1 wrote it down: tokens came later."""
    told: dict[str, Any] = json.loads(json.dumps(verdict.to_json()))
    del told["token"]
    return told


def recorded(name: str) -> Trace:
    return read_trace(FOLDER / RUNS[name]["folder"])


@pytest.mark.parametrize("name", RUNS)
def test_the_files_are_of_version_1(name: str) -> None:
    folder = FOLDER / RUNS[name]["folder"]
    assert read_json(folder / META_NAME)["schema_version"] == 1
    for path in folder.glob("member=*/*.parquet"):
        schema = pq.read_schema(path)
        assert {"life", "incarnation", "note"} <= set(schema.names)
        assert "token" not in schema.names


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("whole_rows", [10**9, 0], ids=["whole", "in ranges"])
def test_verdicts_are_those_of_version_1(name: str, whole_rows: int) -> None:
    before = RUNS[name]["verdicts"]
    assert {key: said(verdict) for key, verdict in check_all(recorded(name)).items()} == before
    (report,) = verify(FOLDER / RUNS[name]["folder"], max_whole_rows=whole_rows)
    statuses = {key: verdict.status.value for key, verdict in report.verdicts.items()}
    assert statuses == {key: verdict["verdict"] for key, verdict in before.items()}


def test_notes_become_columns() -> None:
    assert recorded("vbr_failures_pause").tokens == ("paused",)
    priority = recorded("priority_return")
    assert priority.tokens == ("blocked", "excluded", "rejoining")
    assert priority.of_kind(EventKind.VIEW).listed_runs(0) == ((1, 1), (2, 1), (3, 1), (4, 1), (5, 1))
    assert "(0,0)" in priority.message_texts
    assert recorded("quasi_genuine_topology_change").tokens == ("leader_lost", "topology")
    timings = recorded("vbr_slot_change").of_kind(EventKind.TIMING)
    assert set(timings.theta_ns.tolist()) == {10_000_000, 4_000_000, 2_000_000}
    assert set(timings.bound_ns.tolist()) == {32_000_000, 26_000_000, 24_000_000}
    for name in RUNS:
        trace = recorded(name)
        of_columns = trace.of_kind(EventKind.VIEW, EventKind.TIMING, EventKind.RECEIVE, EventKind.QUEUE)
        assert (of_columns.note == -1).all(), "what is left is free text"
        assert not any(note.startswith(("members ", "topology: ", "paused: ")) for note in trace.notes)


def test_slot_lengths_and_topologies_are_checked_as_before() -> None:
    slots = RUNS["vbr_slot_change"]
    assert said(latency_in_force(recorded("vbr_slot_change"))) == slots["latency_in_force"]
    groups = RUNS["quasi_genuine_topology_change"]
    topology = Topology(
        {name: tuple(members) for name, members in groups["groups"].items()},
        {name: tuple(sends) for name, sends in groups["sends"].items()},
    )
    contacts = {(int(pair.split("-")[0]), int(pair.split("-")[1])): at for pair, at in groups["contacts"].items()}
    trace = recorded("quasi_genuine_topology_change")
    assert said(genuineness_over_time(topology, trace, contacts)) == groups["genuineness"]
    silent = trace.select(trace.kind != EventKind.NOTICE.code)
    status = genuineness_over_time(topology, silent, contacts).status.value
    assert status == groups["genuineness_without_notices"] == "violated"


@pytest.mark.parametrize("name", RUNS)
def test_written_again_it_is_of_the_present_version(name: str, tmp_path: Path) -> None:
    trace = recorded(name)
    folder = write_trace(tmp_path, trace)
    assert read_json(folder / META_NAME)["schema_version"] == 2
    assert read_meta(folder / META_NAME) == trace.meta
    again = read_trace(folder)
    assert again.digest() == trace.digest()
    assert again.notes == trace.notes
