"""`verify` on Spark gives what it gives without."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.parquet as pq
from tests.recorded_priority_runs import plant_priority_violation, record_priority
from tests.recorded_runs import BOUND_NS, record_run

from unisono.check.verdict import Status
from unisono.pipeline.verify import on_spark, verify
from unisono.trace.arrow import VERSION_KEY
from unisono.trace.files import read_part, write_part

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_clean_and_damaged_runs_at_once(spark: SparkSession, tmp_path: Path) -> None:
    record_run(tmp_path, members=3, slots=1000, burst=4, run="clean")
    folder = record_run(tmp_path, members=3, slots=1000, burst=4, run="late")
    part = max((folder / "member=2").glob("*.parquet"))
    rows = read_part(part)
    last = np.argmax(rows.index)
    real_ns = rows.real_ns.copy()
    real_ns[last] += BOUND_NS
    write_part(part, replace(rows, real_ns=real_ns), "late", "g")
    cut = record_run(tmp_path, members=2, slots=300, burst=1, run="cut")
    min((cut / "member=1").glob("*.parquet")).write_bytes(b"PAR1")
    # What only the rows show is found by a worker: a column that is missing, another version, bytes that are no data.
    for run in ("column", "version", "bytes"):
        bad = record_run(tmp_path, members=2, slots=300, burst=1, run=run)
        path = min((bad / "member=1").glob("*.parquet"))
        table = pq.read_table(path, partitioning=None)
        if run == "column":
            pq.write_table(table.drop_columns(["place"]), path)
        elif run == "version":
            pq.write_table(table.replace_schema_metadata({VERSION_KEY: b"7"}), path)
        else:
            content = bytearray(path.read_bytes())
            footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
            content[4:footer] = bytes(footer - 4)
            path.write_bytes(bytes(content))
    reports = verify(tmp_path, partial(on_spark, spark))
    reasons = {report.run: report.verdicts["trace"].reason for report in reports if report.status is Status.UNKNOWN}
    assert "lacks the columns place" in reasons.pop("column")
    assert "version 7 is unknown" in reasons.pop("version")
    assert "is not a readable Parquet file" in reasons.pop("bytes")
    reports = [report for report in reports if report.run not in {"column", "version", "bytes"}]
    assert {report.run: report.status for report in reports if report.run} == {
        "clean": Status.VALID,
        "late": Status.VIOLATED,
    }
    here = verify(tmp_path)
    assert reports == [report for report in here if report.run not in {"column", "version", "bytes"}]
    assert [report.status for report in here if report.run in {"column", "version", "bytes"}] == [Status.UNKNOWN] * 3


def test_a_long_run_of_the_priority_order(spark: SparkSession, tmp_path: Path) -> None:
    record_priority(tmp_path, members=3, messages=500, range_slots=64, run="clean")
    planted = plant_priority_violation(
        record_priority(tmp_path, members=3, messages=500, range_slots=64, run="outpaced"), 0.8
    )
    clean, broken = verify(tmp_path, partial(on_spark, spark), max_whole_rows=0)
    assert clean.status is Status.VALID
    planted.assert_found(broken.verdicts)
    assert [clean, broken] == verify(tmp_path, max_whole_rows=0)
