"""`unisono experiment`: run a named experiment or a sweep, with tables, confidence intervals and figures."""

from __future__ import annotations

import argparse
import csv
import json
import multiprocessing
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from pathlib import Path
from typing import TextIO

from unisono.cli.options import (
    LOCAL_MASTER,
    add_command,
    add_json,
    add_spark,
    make_writable_folder,
    read_text,
    spark_choice,
)
from unisono.cli.output import print_json, progress_reports
from unisono.errors import InvalidOption, MissingDependency
from unisono.experiments.catalogue import EXPERIMENTS, find_experiment, run_task
from unisono.experiments.drawing import save_figure
from unisono.experiments.experiment import Experiment, ExperimentTask, Row, Tally, Value, result_rows, split_into_tasks
from unisono.experiments.sweeps import read_sweep

DEFAULT_SEED = 1


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `unisono experiment` and its options to the command line."""
    verb = add_command(
        verbs,
        "experiment",
        summary="run a named experiment or a sweep, with tables and figures",
        description="Run a named experiment in the simulator, on Spark, and print its table: each simulated value "
        "with its 95 % confidence interval, beside the published value if there is one. With --out, also write the "
        "table as CSV and JSON, draw figures, and continue an interrupted experiment where it stopped.",
        examples=(
            "unisono experiment --list",
            "unisono experiment tapas-fig23 --runs 500 --out fig23",
            "unisono experiment sweep.toml --processes 4",
        ),
    )
    verb.add_argument("name", nargs="?", metavar="NAME", help="an experiment, or a TOML file that describes a sweep")
    verb.add_argument("--list", action="store_true", help="describe all experiments and exit")
    verb.add_argument("--runs", type=int, help="runs per point (default: set by the experiment)")
    verb.add_argument(
        "--seed", type=int, default=DEFAULT_SEED, help=f"the same seed gives the same table (default {DEFAULT_SEED})"
    )
    verb.add_argument("--processes", type=int, help="run without Spark, in this many processes")
    verb.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="write tables and figures to this folder; finished points are kept and not run again",
    )
    add_spark(verb)
    add_json(verb)
    verb.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run `unisono experiment`: run and print one experiment, or list all; return the exit status."""
    if options.list:
        _print_list(options.json)
        return 0
    if options.name is None:
        raise InvalidOption("NAME", f"expected one of these names: {', '.join(EXPERIMENTS)}; --list describes them")
    processes = _processes(options)
    experiment = _find_experiment(options.name)
    work = split_into_tasks(experiment, options.runs, options.seed)
    if options.out is not None:
        make_writable_folder("--out", options.out)
    if processes is not None:
        done = _run_without_spark(experiment, work, processes, options.out)
    else:
        done = _run_with_spark(experiment, work, options)
    rows = result_rows(experiment, done)
    written, lacks = _write(experiment, rows, options.out) if options.out is not None else ([], "")
    if options.json:
        out = None if options.out is None else str(options.out)
        print_json({"experiment": experiment.name, "rows": rows, "out": out, "files": [str(path) for path in written]})
    else:
        sys.stdout.write(f"{experiment.title}\n\n{experiment.description}\n\n{format_table(rows)}")
        sys.stdout.writelines(f"{path}\n" for path in written)
    if lacks:
        raise MissingDependency(lacks)
    return 0


def _processes(options: argparse.Namespace) -> int | None:
    """The number of processes to use without Spark; None to use Spark."""
    asked: int | None = options.processes
    if asked is None:
        return 1 if options.master == "none" else None
    if asked < 1:
        raise InvalidOption("--processes", f"expected at least 1, not {asked}")
    if options.master not in ("none", LOCAL_MASTER):
        raise InvalidOption(
            "--processes",
            f"cannot be used with --master {options.master}, because it runs without Spark; give only one of them",
        )
    return asked


def _find_experiment(name: str) -> Experiment:
    """The experiment with this name, or the sweep in the file of this name."""
    path = Path(name)
    return read_sweep(read_text(path), name) if path.suffix == ".toml" else find_experiment(name)


def _run_without_spark(
    experiment: Experiment, work: list[ExperimentTask], processes: int, out: Path | None
) -> list[tuple[ExperimentTask, Tally]]:
    """Run the tasks in processes on this machine. Finished points are stored in the same files as with Spark."""
    from unisono.pipeline.experiments import stored_and_pending, write_tally  # noqa: PLC0415 - as above

    done, waiting = stored_and_pending(out, experiment, work)
    results = _run_tasks([task for point in waiting for task in point], processes)
    results = _with_progress(results, len(done), len(work), sys.stderr)
    for point in waiting:
        tallied = list(islice(results, len(point)))
        if out is not None:
            write_tally(out, experiment, tallied)
        done += tallied
    return done


def _run_with_spark(
    experiment: Experiment, work: list[ExperimentTask], options: argparse.Namespace
) -> list[tuple[ExperimentTask, Tally]]:
    from unisono.pipeline.experiments import run_experiment  # noqa: PLC0415 - only commands that use Spark load it
    from unisono.pipeline.session import spark_session  # noqa: PLC0415

    with (
        progress_reports("starting Spark", quiet=options.json) as report_progress,
        spark_session(spark_choice(options)) as session,
    ):

        def progress(count: int, total: int, worked_s: float) -> None:
            where = f"{experiment.name} on Spark at {options.master}"
            report_progress(f"{where}: {count} of {total} blocks, {worked_s:.0f} s of processor time")

        return run_experiment(session, experiment, work, options.out, progress)


def _run_tasks(work: list[ExperimentTask], processes: int) -> Iterator[tuple[ExperimentTask, Tally]]:
    if processes == 1:
        yield from map(run_task, work)
        return
    # Fresh interpreters: a fork of a process that has threads may hang.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        # Only this process handles Ctrl-C. Processes that it starts while ignoring the signal ignore it too.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            results = pool.map(run_task, work)
        finally:
            signal.signal(signal.SIGINT, before)
        try:
            yield from results
        finally:
            pool.shutdown(cancel_futures=True)


def _with_progress(
    results: Iterator[tuple[ExperimentTask, Tally]], kept_count: int, total: int, stream: TextIO
) -> Iterator[tuple[ExperimentTask, Tally]]:
    """Pass the results of tasks through unchanged, and show progress on a terminal."""
    watched = stream.isatty()
    for count, result in enumerate(results, kept_count + 1):
        if watched:
            stream.write(f"\r{count} of {total} blocks{'' if count < total else chr(10)}")
            stream.flush()
        yield result


def _print_list(as_json: bool) -> None:
    if as_json:
        each = [
            {
                "name": one.name,
                "title": one.title,
                "shows": one.description,
                "points": len(one.points),
                "runs": one.runs,
            }
            for one in EXPERIMENTS.values()
        ]
        print_json({"experiments": each})
        return
    for one in EXPERIMENTS.values():
        sys.stdout.write(
            f"{one.name}\n  {one.title}\n  {one.description}\n  {len(one.points)} points, {one.runs} runs each\n\n"
        )


def _write(experiment: Experiment, rows: list[Row], out: Path) -> tuple[list[Path], str]:
    """Write the rows as CSV, JSON and figures.

    Returns the written files, and a text that says why no figure was drawn; empty if all were.
    """
    out.mkdir(parents=True, exist_ok=True)
    stem = out / experiment.name
    paths = [stem.with_suffix(".csv"), stem.with_suffix(".json")]
    with paths[0].open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, column_names(rows))
        writer.writeheader()
        writer.writerows(rows)
    paths[1].write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    if experiment.draw is None:
        return paths, ""
    try:
        return paths + save_figure(experiment.draw, rows, experiment.title, stem), ""
    except MissingDependency as error:
        return paths, str(error)


def column_names(rows: list[Row]) -> list[str]:
    """The names of the columns of all rows, in order of first occurrence."""
    return list(dict.fromkeys(name for row in rows for name in row))


def format_table(rows: list[Row]) -> str:
    """The rows as a text table.

    A mean has its confidence interval beside it. Columns with one value throughout are listed once above the table.
    """
    rows = [_with_intervals(row) for row in rows]
    names = column_names(rows)
    same = [name for name in names if len(rows) > 1 and len({str(row.get(name)) for row in rows}) == 1]
    shown = [name for name in names if name not in same]
    constant = ", ".join(f"{name} = {_cell_text(rows[0].get(name))}" for name in same if rows[0].get(name) is not None)
    cells = [shown, *([_cell_text(row.get(name)) for name in shown] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(shown))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
    return (f"{constant}\n\n" if constant else "") + "\n".join(lines) + "\n"


def _with_intervals(row: Row) -> Row:
    """The row with each mean and its confidence interval combined in one cell."""
    shown: Row = {}
    for name, value in row.items():
        stem = name.removesuffix("_mean")
        if f"{stem}_low" in row and value is not None:
            shown[stem] = f"{_cell_text(value)} ({_cell_text(row[f'{stem}_low'])}–{_cell_text(row[f'{stem}_high'])})"
        elif name.removesuffix("_low").removesuffix("_high") not in shown:
            shown[name] = value
    return shown


def _cell_text(value: Value) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
