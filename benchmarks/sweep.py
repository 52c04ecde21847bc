"""Experiments on Spark beside the same work without: what Spark adds, and whether every core is busy.

In one process; then in as many plain processes as there are cores, which take one task after the other; then on Spark.
The overhead of Spark is measured within one run: the processor time of all its processes, minus the time of the
simulator's runs in its workers. Comparing different runs would be less exact: the same work takes up to a fifth more or
less processor time from run to run, and on many machines each core is slower while the others are busy.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

from benchmarks.process_tree import cpu_s
from benchmarks.progress import Say, silence
from unisono.experiments.catalogue import find_experiment, run_task
from unisono.experiments.experiment import Row, result_rows, split_into_tasks
from unisono.pipeline.experiments import run_experiment
from unisono.pipeline.session import parallelism, spark_session

EXPERIMENT = "tapas-fig23"
RUNS, QUICK_RUNS = 1000, 40
TIMES = 7
"""By turns: a run takes 3 s, and single ones scatter by half on a machine that others use."""


def rows(*, quick: bool = False, say: Say = silence) -> list[dict[str, Any]]:
    """One row per way of running; their tables must be equal."""
    experiment = find_experiment(EXPERIMENT)
    work = split_into_tasks(experiment, QUICK_RUNS if quick else RUNS)
    worked: list[float] = []

    def on_spark() -> list[Row]:
        worked_s: list[float] = []
        table = result_rows(
            experiment, run_experiment(session, experiment, work, None, lambda *progress: worked_s.append(progress[2]))
        )
        worked.append(worked_s[-1])
        return table

    with spark_session() as session, multiprocessing.get_context("spawn").Pool(cores := parallelism(session)) as pool:
        systems: dict[str, Callable[[], list[Row]]] = {
            "one process": lambda: result_rows(experiment, map(run_task, work)),
            f"{cores} processes": lambda: result_rows(experiment, pool.map(run_task, work, chunksize=1)),
            f"Spark, {cores} cores": on_spark,
        }
        for run in systems.values():
            run()  # afterwards all workers have imported everything, and the JVM has compiled its code
        worked.clear()
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in systems}
        for number in range(1 if quick else TIMES):
            say(f"sweep: {len(experiment.points)} points of {EXPERIMENT} in three ways ({number + 1})")
            tables = [_timed(run, taken[name]) for name, run in systems.items()]
            if any(table != tables[0] for table in tables):
                raise AssertionError("the tables differ")
    common = {"points": len(experiment.points), "runs": work[0].runs * len(work) // len(experiment.points)}
    one, plain, spark = taken.values()
    overheads = [cpu / runs - 1 for (_, cpu), runs in zip(spark, worked, strict=True)]
    compared: dict[str, Any] = {
        "speedup": _ratio(one, spark, 0),
        "overhead": f"{median(overheads):.1%}",
        "overhead_range": f"{min(overheads):.1%} to {max(overheads):.1%}",
        "beside_plain": f"{_ratio(spark, plain, 1) - 1:.1%}",
    }
    beside: dict[str, dict[str, Any]] = {
        f"Spark, {cores} cores": compared,
        f"{cores} processes": {"speedup": _ratio(one, plain, 0)},
    }
    return [{"system": name, **common, **_figures(runs), **beside.get(name, {})} for name, runs in taken.items()]


def _timed(run: Callable[[], list[Row]], taken: list[tuple[float, float]]) -> list[Row]:
    began, used = time.perf_counter(), cpu_s(os.getpid())
    table = run()
    taken.append((time.perf_counter() - began, cpu_s(os.getpid()) - used))
    return table


def _ratio(these: Iterable[tuple[float, float]], those: Iterable[tuple[float, float]], which: int) -> float:
    return round(median(a[which] / b[which] for a, b in zip(these, those, strict=True)), 3)


def _figures(runs: list[tuple[float, float]]) -> dict[str, Any]:
    seconds, used = (median(figures) for figures in zip(*runs, strict=True))
    busy = median(cpu / wall for wall, cpu in runs)
    return {"seconds": round(seconds, 1), "cpu_s": round(used, 1), "cores_busy": round(busy, 2)}
