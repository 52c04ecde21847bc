"""Experiments on Spark beside the same work in one process: what Spark adds, and whether every core is busy."""

from __future__ import annotations

import os
import time
from typing import Any

from benchmarks.process_tree import cpu_s
from benchmarks.progress import Say, silence
from unisono.experiments.catalogue import find, run_task
from unisono.experiments.experiment import rows_of, tasks
from unisono.pipeline.experiments import run_on_spark
from unisono.pipeline.session import parallelism, spark_session

EXPERIMENT = "tapas-fig23"
RUNS, QUICK_RUNS = 1000, 40


def rows(*, quick: bool = False, say: Say = silence) -> list[dict[str, Any]]:
    """A row for one process and one for Spark; the tables that both give are compared."""
    experiment = find(EXPERIMENT)
    work = tasks(experiment, QUICK_RUNS if quick else RUNS)
    say(f"sweep: {len(experiment.points)} points of {EXPERIMENT} in one process")
    began, used = time.perf_counter(), time.process_time()
    here = rows_of(experiment, map(run_task, work))
    alone_s, alone_cpu_s = time.perf_counter() - began, time.process_time() - used
    with spark_session() as session:
        say("sweep: the same on Spark")
        cores = parallelism(session)
        run_on_spark(session, experiment, tasks(experiment, 2), None, _nothing)  # the workers have imported all
        began, used = time.perf_counter(), cpu_s(os.getpid())
        there = rows_of(experiment, run_on_spark(session, experiment, work, None, _nothing))
        seconds, spark_cpu_s = time.perf_counter() - began, cpu_s(os.getpid()) - used
    if there != here:
        raise AssertionError("Spark gave another table")
    common = {"points": len(experiment.points), "runs": work[0].runs * len(work) // len(experiment.points)}
    return [
        {"system": "one process", **common, **_figures(alone_s, alone_cpu_s)},
        {
            "system": f"Spark, {cores} cores",
            **common,
            **_figures(seconds, spark_cpu_s),
            "speedup": round(alone_s / seconds, 2),
            "overhead": f"{spark_cpu_s / alone_cpu_s - 1:.1%}",
        },
    ]


def _figures(seconds: float, used: float) -> dict[str, Any]:
    return {"seconds": round(seconds, 1), "cpu_s": round(used, 1), "cores_busy": round(used / seconds, 2)}


def _nothing(_: int, __: int) -> None:
    """Nobody watches."""
