"""Every scenario of this project, simulated and recorded: Spark judges it as the checkers judge the whole run.

One scenario file serves simulator, real processes and Spark: the evidence that they run one protocol.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from unisono.check.suite import check_all
from unisono.check.verdict import Verdict
from unisono.model.text.scenario import parse_scenario
from unisono.pipeline.verify import on_spark, verify
from unisono.sim.run import run
from unisono.trace.files import read_trace, write_trace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LONG = {"consensus_dies", "monitored", "priority_churn", "quasi_genuine_pairwise", "quasi_genuine_ring"}
"""What takes seconds to simulate."""
SCENARIOS = sorted((Path(__file__).parents[2] / "scenarios").glob("*.toml"))


def told(verdicts: dict[str, Verdict]) -> dict[str, object]:
    return {name: (verdict.status, verdict.witness, verdict.reason) for name, verdict in verdicts.items()}


@pytest.mark.parametrize(
    "scenarios",
    [
        pytest.param([path for path in SCENARIOS if path.stem not in LONG], id="short"),
        pytest.param([path for path in SCENARIOS if path.stem in LONG], id="long", marks=pytest.mark.slow),
    ],
)
def test_spark_judges_every_scenario_as_the_checkers_do(
    scenarios: list[Path], spark: SparkSession, tmp_path: Path
) -> None:
    folders = {}
    for path in scenarios:
        trace = run(parse_scenario(path.read_text(encoding="utf-8"), path.name)).trace
        # Short ranges, so that much of what happens reaches over an edge.
        folders[str(write_trace(tmp_path, trace, range_slots=64 if len(trace) > 1000 else 4))] = path.stem
    assert len(folders) == len(scenarios), "each has a group of its own name"
    reports = verify(tmp_path, partial(on_spark, spark))
    assert {report.folder for report in reports} == set(folders)
    for report in reports:
        assert told(report.verdicts) == told(check_all(read_trace(report.folder))), folders[report.folder]


@pytest.mark.parametrize("name", ["quasi_genuine_crash", "rmcast_causal", "cbr_grades"])
def test_long_runs_without_one_sequence_of_keys_are_judged_in_parts_as_they_are_whole(
    name: str, spark: SparkSession, tmp_path: Path
) -> None:
    path = next(path for path in SCENARIOS if path.stem == name)
    trace = run(parse_scenario(path.read_text(encoding="utf-8"), path.name)).trace
    folder = write_trace(tmp_path, trace, range_slots=48)
    (report,) = verify(tmp_path, partial(on_spark, spark), max_whole_rows=0)
    assert told(report.verdicts) == told(check_all(read_trace(folder)))
