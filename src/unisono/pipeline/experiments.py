"""Runs experiments on Spark. Each task runs the simulator with random numbers of its own.

Finished points are stored, with and without Spark:

    OUT/tallies/experiment=NAME/point=N/tally.parquet     the tallies of one point

A point is written when all its blocks are done. An interrupted or repeated experiment reads the stored points and runs
the others, if the seed, the number of runs and the scenario of a sweep are the same.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from unisono.experiments.catalogue import run_task
from unisono.experiments.experiment import Experiment, ExperimentTask, Tally
from unisono.pipeline.distribute import run_on_spark
from unisono.pipeline.session import parallelism
from unisono.trace.schema import TraceDamaged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TALLY_VERSION = 1
_VERSION_KEY = b"unisono.tally.version"
_BATCH_S = 2.4
"""A Spark task runs blocks for about this many seconds, because each Spark task costs some 30 ms by itself."""
_WAVE_S = 12
"""About how many seconds one wave of tasks keeps every core busy.

This is the work that an interruption loses, and the time between two reports of progress.
"""

TALLY_SCHEMA = pa.schema(
    [
        pa.field("parameters", pa.string(), nullable=False),
        pa.field("seed", pa.int64(), nullable=False),
        pa.field("block", pa.int32(), nullable=False),
        pa.field("runs", pa.int64(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        # -1 for a sum; for hits, the place on the experiment's grid.
        pa.field("place", pa.int32(), nullable=False),
        pa.field("value", pa.float64(), nullable=False),
        pa.field("square", pa.float64(), nullable=False),
    ],
    metadata={_VERSION_KEY: str(TALLY_VERSION).encode()},
)

FinishedTask = tuple[ExperimentTask, Tally]
Progress = Callable[[int, int, float], None]
"""A function that gets the number of finished tasks, the number of all tasks, and the processor seconds used so far."""


def run_experiment(
    session: SparkSession, experiment: Experiment, tasks: Sequence[ExperimentTask], out: Path | None, progress: Progress
) -> list[FinishedTask]:
    """Run an experiment and return each task with its tally. Points that are stored in `out` do not run again."""
    done, waiting = stored_and_pending(out, experiment, tasks)
    worked_s = 0.0
    runs, run_s = 0, experiment.run_s
    progress(len(done), len(tasks), worked_s)
    cores = parallelism(session)
    while waiting:
        wave = next_wave(waiting, run_s, cores)
        timed = list(run_on_spark(session, split_into_batches(wave, run_s, cores), _timed_task))
        tallied = [pair for pair, _ in timed]
        done += tallied
        worked_s += sum(seconds for _, seconds in timed)
        runs += _run_count(wave)
        run_s = worked_s / runs
        if out is not None:
            for point in sorted({task.point for task, _ in tallied}):
                write_tally(out, experiment, [pair for pair in tallied if pair[0].point == point])
        progress(len(done), len(tasks), worked_s)
    return done


def next_wave(pending: list[list[ExperimentTask]], run_s: float, cores: int) -> list[ExperimentTask]:
    """Remove points from `pending`, as many as keep every core busy for a while, and return their tasks."""
    wave: list[ExperimentTask] = []
    while pending and _run_count(wave) * run_s < _WAVE_S * cores:
        wave += pending.pop(0)
    return wave


def split_into_batches(wave: Sequence[ExperimentTask], run_s: float, cores: int) -> list[Sequence[ExperimentTask]]:
    """Split tasks into batches: at least one per core, and more if each would otherwise take long."""
    count = min(len(wave), max(cores, ceil(_run_count(wave) * run_s / _BATCH_S)))
    return [wave[first::count] for first in range(count)]


def _run_count(tasks: Iterable[ExperimentTask]) -> int:
    """How many runs these tasks have; a task without runs counts as one."""
    return sum(task.runs or 1 for task in tasks)


def _timed_task(task: ExperimentTask) -> tuple[FinishedTask, float]:
    began = time.process_time()
    return run_task(task), time.process_time() - began


# -- what is kept --------------------------------------------------------------------------------------------


def stored_and_pending(
    out: Path | None, experiment: Experiment, tasks: Iterable[ExperimentTask]
) -> tuple[list[FinishedTask], list[list[ExperimentTask]]]:
    """Return the finished tasks stored in `out`, and for each incomplete point the tasks still to run."""
    by_point: dict[int, list[ExperimentTask]] = {}
    for task in tasks:
        by_point.setdefault(task.point, []).append(task)
    done: list[FinishedTask] = []
    waiting: list[list[ExperimentTask]] = []
    for point in sorted(by_point):
        kept = None if out is None else read_tally(out, experiment, by_point[point])
        if kept is None:
            waiting.append(by_point[point])
        else:
            done += kept
    return done, waiting


def tally_path(out: Path, experiment: str, point: int) -> Path:
    """The path of the file that stores the tallies of one point."""
    return out / "tallies" / f"experiment={experiment}" / f"point={point}" / "tally.parquet"


def write_tally(out: Path, experiment: Experiment, finished: Sequence[FinishedTask]) -> None:
    """Write the tallies of one point, atomically."""
    path = tally_path(out, experiment.name, finished[0][0].point)
    path.parent.mkdir(parents=True, exist_ok=True)
    parameters = _parameters_label(experiment, finished[0][0].point)
    rows = []
    for task, tally in sorted(finished, key=lambda pair: pair[0].block):
        common = {"parameters": parameters, "seed": task.seed, "block": task.block, "runs": tally.runs}
        for name, value in tally.sums.items():
            rows.append({**common, "name": name, "place": -1, "value": value, "square": tally.squares[name]})
        for name, counts in tally.hits.items():
            rows += [
                {**common, "name": name, "place": place, "value": float(hits), "square": 0.0}
                for place, hits in enumerate(counts)
            ]
        if not tally.sums and not tally.hits:
            rows.append({**common, "name": "", "place": -1, "value": 0.0, "square": 0.0})
    partial_path = path.with_name(f".{path.name}.{os.getpid()}.partial")
    pq.write_table(pa.Table.from_pylist(rows, schema=TALLY_SCHEMA), partial_path)
    partial_path.replace(path)


def read_tally(out: Path, experiment: Experiment, wanted: Sequence[ExperimentTask]) -> list[FinishedTask] | None:
    """The stored tallies of these tasks of one point; None unless all of them are stored."""
    path = tally_path(out, experiment.name, wanted[0].point)
    if not path.exists():
        return None
    try:
        table = pq.read_table(path, partitioning=None)
    except (pa.ArrowException, OSError) as error:
        raise TraceDamaged(path, f"is not a readable Parquet file ({error}); remove it to repeat its runs") from error
    version = (table.schema.metadata or {}).get(_VERSION_KEY)
    if version != str(TALLY_VERSION).encode():
        said = "none" if version is None else version.decode(errors="replace")
        what = f"has tally version {said}, but this release reads version {TALLY_VERSION}"
        raise TraceDamaged(path, f"{what}; give another folder with --out, or remove this file to repeat its runs")
    missing = [name for name in TALLY_SCHEMA.names if name not in table.schema.names]
    if missing:
        raise TraceDamaged(path, f"lacks the columns {', '.join(missing)}; remove this file to repeat its runs")
    tallies: dict[int, Tally] = {}
    label = _parameters_label(experiment, wanted[0].point)
    for row in table.to_pylist():
        if row["parameters"] != label or row["seed"] != wanted[0].seed:
            return None
        tally = tallies.setdefault(row["block"], Tally(row["runs"]))
        if row["place"] >= 0:
            tally.hits.setdefault(row["name"], []).append(int(row["value"]))
        elif row["name"]:
            tally.sums[row["name"]], tally.squares[row["name"]] = row["value"], row["square"]
    if any(tallies.get(task.block, Tally()).runs != task.runs for task in wanted if task.runs):
        return None
    return [(task, tallies[task.block]) for task in wanted] if set(tallies) >= {t.block for t in wanted} else None


def _parameters_label(experiment: Experiment, point: int) -> str:
    """A text that identifies what was run: the point's parameters and, for a sweep, its scenario."""
    parameters: dict[str, Any] = dict(experiment.points[point])
    if experiment.scenario_hash:
        parameters["scenario"] = experiment.scenario_hash
    return json.dumps(parameters, sort_keys=True)
