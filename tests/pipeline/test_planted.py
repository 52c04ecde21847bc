"""Each check's violation, planted into a long run, is found with the right witness; the run without it is valid."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.planted_violations import PLANTS, PlantedViolation, allow_gaps, plant_gap
from tests.recorded_runs import record_run

from unisono.check.suite import check_all
from unisono.check.verdict import Status
from unisono.pipeline.verify import RunReport, on_spark, verify
from unisono.trace.files import read_trace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def plant_all(clean: Path, directory: Path) -> dict[str, PlantedViolation]:
    """A run for each violation, and one with gaps allowed; by the run's folder, what must be found in it."""
    found: dict[str, PlantedViolation] = {}
    for name, plant in [*((plant.__name__, plant) for plant in PLANTS), ("gap", plant_gap)]:
        folder = directory / f"run={name}" / "group=g"
        # Files are replaced, never written into, so those that stay as they are can be the same ones.
        shutil.copytree(clean, folder, copy_function=lambda a, b: Path(b).hardlink_to(a))
        if name == "gap":
            allow_gaps(folder)
        found[str(folder)] = plant(folder)
    return found


def check(spark: SparkSession, directory: Path, slots: int, range_slots: int) -> list[RunReport]:
    clean = record_run(
        directory, members=5, slots=slots, burst=4, range_slots=range_slots, jitter_ns=3_000_000, run="r"
    )
    planted = plant_all(clean, directory)
    reports = {report.folder: report for report in verify(directory, partial(on_spark, spark))}
    assert reports[str(clean)].status is Status.VALID
    assert reports[str(clean)].rows == slots * 4 * 30
    for folder, violation in planted.items():
        violation.assert_found(reports[folder].verdicts)
    return list(reports.values())


def test_every_violation_is_found_in_a_short_run(spark: SparkSession, tmp_path: Path) -> None:
    for report in check(spark, tmp_path, slots=200, range_slots=32):
        whole = check_all(read_trace(report.folder))
        assert {n: (v.status, v.witness) for n, v in report.verdicts.items()} == {
            n: (v.status, v.witness) for n, v in whole.items()
        }


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_violation_is_found_in_five_million_deliveries(spark: SparkSession, tmp_path: Path) -> None:
    check(spark, tmp_path, slots=50_000, range_slots=1024)
