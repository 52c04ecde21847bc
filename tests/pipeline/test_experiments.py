"""Experiments on Spark: the table is the one that a single process gives, and what is finished is not run again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from unisono.experiments.catalogue import find, run_task
from unisono.experiments.experiment import rows_of, tasks
from unisono.pipeline.experiments import run_on_spark, tally_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME, RUNS = "tapas-group-1", 40


def test_a_sweep_gives_the_same_table_and_goes_on_where_it_stopped(spark: SparkSession, tmp_path: Path) -> None:
    experiment = find(NAME)
    work = tasks(experiment, RUNS)
    here = rows_of(experiment, map(run_task, work))
    told: list[tuple[int, int]] = []
    worked_s: list[float] = []

    def progress(done: int, of: int, seconds: float) -> None:
        told.append((done, of))
        worked_s.append(seconds)

    there = run_on_spark(spark, experiment, work, tmp_path, progress)
    assert rows_of(experiment, there) == here
    assert told[-1] == (len(work), len(work))
    assert worked_s == sorted(worked_s)
    assert worked_s[0] == 0 < worked_s[-1]
    tally_path(tmp_path, NAME, 0).unlink()
    told.clear()
    again = run_on_spark(spark, experiment, work, tmp_path, progress)
    assert rows_of(experiment, again) == here
    blocks = sum(task.point == 0 for task in work)
    assert told[0] == (len(work) - blocks, len(work))
    # Another number of runs is another sweep.
    more = tasks(experiment, RUNS + 1)
    told.clear()
    run_on_spark(spark, experiment, more, tmp_path, progress)
    assert told[0] == (0, len(more))
