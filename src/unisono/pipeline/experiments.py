"""Experiments on Spark: each task runs the simulator with its own seed stream; what is finished is kept, also without.

    OUT/tallies/experiment=NAME/point=N/tally.parquet     what the runs of one point have counted

A point is written when all its blocks are there. A sweep that was broken off, or is asked for again with the same seed,
as many runs and, if it is one of scenarios, the same, reads those points and runs the others.
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
"""A task of Spark costs some 30 ms of processor time, and so runs blocks for about as long as this."""
_WAVE_S = 12
"""How long a wave keeps every core busy, about: as much is lost when a sweep is broken off, or goes on in silence."""

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
"""Told how many tasks of how many are done, and how many processor seconds those that were run now have worked."""


def run_experiment(
    session: SparkSession, experiment: Experiment, tasks: Sequence[ExperimentTask], out: Path | None, progress: Progress
) -> list[FinishedTask]:
    """Every task's tally, from an earlier sweep in `out` or run now."""
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
    """Whole points, taken from those that wait: as many as keep every core busy for a while."""
    wave: list[ExperimentTask] = []
    while pending and _run_count(wave) * run_s < _WAVE_S * cores:
        wave += pending.pop(0)
    return wave


def split_into_batches(wave: Sequence[ExperimentTask], run_s: float, cores: int) -> list[Sequence[ExperimentTask]]:
    """Enough hands for every core, and no more than it takes to give each enough to do."""
    count = min(len(wave), max(cores, ceil(_run_count(wave) * run_s / _BATCH_S)))
    return [wave[first::count] for first in range(count)]


def _run_count(tasks: Iterable[ExperimentTask]) -> int:
    """How many runs these are; what is computed without runs counts as one."""
    return sum(task.runs or 1 for task in tasks)


def _timed_task(task: ExperimentTask) -> tuple[FinishedTask, float]:
    began = time.process_time()
    return run_task(task), time.process_time() - began


# -- what is kept --------------------------------------------------------------------------------------------


def stored_and_pending(
    out: Path | None, experiment: Experiment, tasks: Iterable[ExperimentTask]
) -> tuple[list[FinishedTask], list[list[ExperimentTask]]]:
    """What an earlier sweep has left in `out`, and the tasks of each point that have to be run."""
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
    """Where the tally of one point is."""
    return out / "tallies" / f"experiment={experiment}" / f"point={point}" / "tally.parquet"


def write_tally(out: Path, experiment: Experiment, finished: Sequence[FinishedTask]) -> None:
    """Write one point, under a temporary name first."""
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
    """The tallies of these tasks of one point if all of them are kept, else None."""
    path = tally_path(out, experiment.name, wanted[0].point)
    if not path.exists():
        return None
    try:
        table = pq.read_table(path, partitioning=None)
    except (pa.ArrowException, OSError) as error:
        raise TraceDamaged(path, f"is no readable Parquet file ({error}); remove it to run the point again") from error
    version = (table.schema.metadata or {}).get(_VERSION_KEY)
    if version != str(TALLY_VERSION).encode():
        said = "none" if version is None else version.decode(errors="replace")
        what = f"tally version {said} is unknown, this release reads {TALLY_VERSION}"
        raise TraceDamaged(path, f"{what}; name another --out, or remove it to run the point again")
    missing = [name for name in TALLY_SCHEMA.names if name not in table.schema.names]
    if missing:
        raise TraceDamaged(path, f"lacks the column {', '.join(missing)}; remove it to run the point again")
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
    """What was run: the point's parameters and, of a sweep, the scenario that they change."""
    parameters: dict[str, Any] = dict(experiment.points[point])
    if experiment.scenario_hash:
        parameters["scenario"] = experiment.scenario_hash
    return json.dumps(parameters, sort_keys=True)
