"""`verify` on Spark gives what it gives without."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tests.recorded import BOUND_NS, record

from unisono.check.verdict import Status
from unisono.pipeline.verify import on_spark, verify
from unisono.trace.files import read_part, write_part

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_clean_and_damaged_runs_at_once(spark: SparkSession, tmp_path: Path) -> None:
    record(tmp_path, members=3, slots=1000, burst=4, run="clean")
    folder = record(tmp_path, members=3, slots=1000, burst=4, run="late")
    part = max((folder / "member=2").glob("*.parquet"))
    rows = read_part(part)
    last = np.argmax(rows.index)
    real_ns = rows.real_ns.copy()
    real_ns[last] += BOUND_NS
    write_part(part, replace(rows, real_ns=real_ns), "late", "g")
    cut = record(tmp_path, members=2, slots=300, burst=1, run="cut")
    min((cut / "member=1").glob("*.parquet")).write_bytes(b"PAR1")
    reports = verify(tmp_path, partial(on_spark, spark))
    assert {report.run: report.status for report in reports if report.run} == {
        "clean": Status.VALID,
        "late": Status.VIOLATED,
    }
    assert reports == verify(tmp_path)
