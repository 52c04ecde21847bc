"""The measurement stream on Spark: it finds what is found without Spark, and goes on after it broke off anywhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.measured import SLA, append, interval, worse_between, write_run

from unisono.errors import UnisonoError
from unisono.model.sla_text import parse_slas
from unisono.pipeline.measurement import Job, Measured, Running, in_process, streaming
from unisono.trace.tails import latest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SLAS = parse_slas(SLA, "sla.toml")
LOSS = worse_between(4, 8)
MEMBERS = (1, 2, 3)
PATIENCE_S = 180


def wait_until(running: Running, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < deadline, "the stream does not get there"
        running.wait(0.2)


def ids_without_spark(directory: Path, keep: Path) -> list[str]:
    with in_process(Job(directory, SLAS, keep, trigger_ns=1_000_000), lambda _: None) as running:
        wait_until(running, lambda: running.read(latest(directory, {})))
        return [verdict.id for verdict in running.store.verdicts()]


class Breaks(Exception):
    """What is done to the job."""


def test_the_stream_goes_on_where_it_broke_off(spark: SparkSession, tmp_path: Path) -> None:
    """Stopped in order, and broken off between judging a batch and Spark's hearing that it was done."""
    trace = tmp_path / "trace"
    job = Job(trace, SLAS, tmp_path / "keep", trigger_ns=50_000_000)
    write_run(trace, 3, LOSS)
    write_run(trace, 16, LOSS, run="another")
    with streaming(job, spark, lambda _: None) as running:
        wait_until(running, lambda: running.read(latest(trace, {})))
        assert [v.run for v in running.store.verdicts()] == ["another", "another"]

    def grow(first: int, last: int) -> None:
        for number in range(first, last):
            for member in MEMBERS:
                append(trace, member, interval(member, MEMBERS, number, LOSS))

    def broken(measured: Measured) -> None:
        if measured.verdicts:
            raise Breaks

    grow(3, 9)  # the window that is broken, and one interval more
    with pytest.raises(UnisonoError, match="Breaks"), streaming(job, spark, broken) as running:
        wait_until(running, lambda: False)
    grow(9, 16)
    with streaming(job, spark, lambda _: None) as running:
        wait_until(running, lambda: running.read(latest(trace, {})))
        found = running.store.verdicts()
        assert [(v.run, v.violated) for v in found[2:]] == [("r", True), ("r", False)]
        assert running.service.late == running.service.damaged == 0
        assert running.service.rows == 2 * 16 * 3 * 11
    assert sorted(v.id for v in found) == sorted(ids_without_spark(trace, tmp_path / "other"))
