"""Experiments on Spark: the table is the one that a single process gives, and what is finished is not run again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from unisono.experiments.catalogue import find_experiment, run_task
from unisono.experiments.experiment import ExperimentTask, Tally, result_rows, split_into_tasks
from unisono.pipeline import experiments
from unisono.pipeline.experiments import next_wave, run_experiment, split_into_batches, tally_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME, RUNS = "tapas-group-1", 40


def test_a_sweep_gives_the_same_table_and_goes_on_where_it_stopped(spark: SparkSession, tmp_path: Path) -> None:
    experiment = find_experiment(NAME)
    work = split_into_tasks(experiment, RUNS)
    here = result_rows(experiment, map(run_task, work))
    told: list[tuple[int, int]] = []
    worked_s: list[float] = []

    def progress(done: int, of: int, seconds: float) -> None:
        told.append((done, of))
        worked_s.append(seconds)

    there = run_experiment(spark, experiment, work, tmp_path, progress)
    assert result_rows(experiment, there) == here
    assert told[-1] == (len(work), len(work))
    assert worked_s == sorted(worked_s)
    assert worked_s[0] == 0 < worked_s[-1]
    tally_path(tmp_path, NAME, 0).unlink()
    told.clear()
    again = run_experiment(spark, experiment, work, tmp_path, progress)
    assert result_rows(experiment, again) == here
    blocks = sum(task.point == 0 for task in work)
    assert told[0] == (len(work) - blocks, len(work))
    # Another number of runs is another sweep.
    more = split_into_tasks(experiment, RUNS + 1)
    told.clear()
    run_experiment(spark, experiment, more, tmp_path, progress)
    assert told[0] == (0, len(more))


def _blocks(points: int, each: int, runs: int) -> list[list[ExperimentTask]]:
    return [[ExperimentTask(NAME, point, block, runs, 1) for block in range(each)] for point in range(points)]


def test_waves_are_whole_points_that_last_a_while() -> None:
    waiting = _blocks(30, 4, 5)
    # A run takes 0.3 s, a point 6 s: four points keep two cores busy for 12 s.
    waves = [next_wave(waiting, 0.3, 2) for _ in range(7)]
    assert [sorted({task.point for task in wave}) for wave in waves] == [list(range(n, n + 4)) for n in range(0, 28, 4)]
    assert all(len(wave) == 16 for wave in waves)
    assert [task.point for task in next_wave(waiting, 0.3, 2)] == [28] * 4 + [29] * 4
    assert not waiting
    slow = _blocks(3, 1, 5)
    assert len(next_wave(slow, 100.0, 2)) == 1  # one point at least
    assert len(next_wave(slow, 0.0, 2)) == 2  # all there is, if it costs nothing


def test_hands_last_long_enough_to_be_worth_a_task_and_leave_no_core_idle() -> None:
    wave = [task for point in _blocks(8, 4, 5) for task in point]
    for run_s, count in [(0.0, 2), (0.0001, 2), (0.06, 4), (0.3, 20), (3.0, 32)]:
        hands = split_into_batches(wave, run_s, 2)
        assert len(hands) == count, run_s
        assert sorted((task for hand in hands for task in hand), key=wave.index) == wave
        assert max(map(len, hands)) - min(map(len, hands)) <= 1
    assert len(split_into_batches(wave[:1], 0.3, 2)) == 1
    computed = _blocks(1, 3, 0)[0]
    assert len(split_into_batches(computed, 5.0, 2)) == 3


def test_later_waves_go_by_what_runs_have_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def quick(
        _: object, hands: list[list[ExperimentTask]], __: object
    ) -> list[tuple[tuple[ExperimentTask, Tally], float]]:
        return [((task, Tally(task.runs)), 0.001) for hand in hands for task in hand]

    monkeypatch.setattr(experiments, "run_on_spark", quick)
    monkeypatch.setattr(experiments, "parallelism", lambda _: 2)
    slow = replace(find_experiment(NAME), points=tuple({"n": n} for n in range(30)), run_s=1.0)
    told: list[int] = []
    work = [task for point in _blocks(30, 1, 12) for task in point]
    run_experiment(cast("SparkSession", None), slow, work, None, lambda done, *_: told.append(done))
    # Two points of 12 s each for two cores; then all the others, since these took no time.
    assert told == [0, 2, 30]
