"""Verification of recorded runs: the pipeline on Spark beside DuckDB and polars, the same files in the same run."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.planted_violations import PLANTS, plant_rate_violation
from tests.recorded_runs import record_run

from benchmarks.process_tree import Peak
from benchmarks.progress import Say, silence
from benchmarks.verify_engines import ENGINES

MEMBERS, BURST = 5, 4
DELIVERIES = (10_000_000, 50_000_000)
QUICK = (400_000,)
RANGE_SLOTS = 4096
JITTER_NS = 3_000_000
PLANTED_SLOTS = 1000
COMPARED = tuple(plant for plant in PLANTS if plant is not plant_rate_violation)
"""All checks except rates: no rates are declared, since the other engines do not check them."""


def _run(engine: str, folders: list[Path]) -> tuple[list[dict[str, Any]], int]:
    """The verdicts of an engine on each run, and the largest memory use of its processes."""
    command = [sys.executable, "-m", "benchmarks.verify_engines", engine, *map(str, folders)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process, Peak(process.pid) as peak:
        out, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"{engine} ended with status {process.returncode}")
    return [json.loads(line) for line in out.splitlines()], peak.bytes


def _planted(directory: Path) -> list[Path]:
    """A clean run, and one run per planted violation."""
    clean = record_run(directory, members=MEMBERS, slots=PLANTED_SLOTS, burst=BURST, jitter_ns=JITTER_NS, declare=False)
    folders = [clean]
    for plant in COMPARED:
        folder = directory / f"run={plant.__name__}" / "group=g"
        shutil.copytree(clean, folder)
        plant(folder)
        folders.append(folder)
    return folders


def _ask_the_same(directory: Path, say: Say) -> dict[str, int]:
    """By engine, how many of the planted violations it finds; it must find no other."""
    folders = _planted(directory)
    found = {}
    for engine in ENGINES:
        say(
            f"verify: {engine}, {len(COMPARED)} violations planted in {PLANTED_SLOTS * BURST * MEMBERS**2:,} deliveries"
        )
        clean, *answers = _run(engine, folders)[0]
        if clean["violated"]:
            raise AssertionError(f"{engine} found {clean['violated']} in a clean run")
        found[engine] = sum(bool(answer["violated"]) for answer in answers)
    return found


def rows(*, quick: bool = False, say: Say = silence) -> list[dict[str, Any]]:
    """One row for each size and engine; the ratio is of the seconds to DuckDB's."""
    with tempfile.TemporaryDirectory(prefix="unisono-bench-") as scratch:
        found = _ask_the_same(Path(scratch) / "planted", say)
        table = []
        for deliveries in QUICK if quick else DELIVERIES:
            say(f"verify: recording {deliveries:,} deliveries")
            directory = Path(scratch) / str(deliveries)
            slots = deliveries // (BURST * MEMBERS**2)
            folder = record_run(
                directory,
                members=MEMBERS,
                slots=slots,
                burst=BURST,
                range_slots=RANGE_SLOTS,
                jitter_ns=JITTER_NS,
                declare=False,
            )
            measured = {}
            for engine in ("duckdb", "polars", "spark"):
                say(f"verify: {engine}, {deliveries:,} deliveries")
                (answer,), peak = _run(engine, [folder])
                if answer["violated"]:
                    raise AssertionError(f"{engine} found {answer['violated']} in a clean run")
                measured[engine] = {**answer, "peak": peak}
            for engine, answer in measured.items():
                table.append(
                    {
                        "engine": engine,
                        "deliveries": deliveries,
                        "seconds": round(answer["seconds"], 2),
                        "ratio": round(answer["seconds"] / measured["duckdb"]["seconds"], 2),
                        "cpu_s": round(answer["cpu_s"], 2),
                        "cpu_ratio": round(answer["cpu_s"] / measured["duckdb"]["cpu_s"], 2),
                        "peak_mb": round(answer["peak"] / 2**20),
                        "planted": f"{found[engine]} of {len(COMPARED)}",
                    }
                )
            shutil.rmtree(directory)
    return table
