"""`unisono compact`: copy a trace into few files, in the layout that `verify` reads without a shuffle."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from unisono.cli.options import add_command, add_json, add_spark, make_writable_folder, spark_choice
from unisono.cli.output import print_json, progress_reports
from unisono.errors import InvalidOption
from unisono.trace.files import RANGE_SLOTS, find_groups


def add_parser(verbs: Any) -> None:
    """Add the command `unisono compact` and its options to the command line."""
    verb = add_command(
        verbs,
        "compact",
        summary="copy recorded traces into few large files, on Spark",
        description="Copy recorded runs into the layout that `verify` reads without a shuffle: one file per member and "
        "range of slots. TRACE may have many small files, or any Parquet files with the columns of a trace beside a "
        "meta.json. The source is not changed.",
        examples=("unisono compact traces --out compacted", "unisono verify compacted"),
    )
    verb.add_argument("trace", metavar="TRACE", type=Path, help="folder with one or more recorded runs")
    verb.add_argument("--out", metavar="DIR", type=Path, required=True, help="folder to write to")
    verb.add_argument(
        "--range-slots", type=int, default=RANGE_SLOTS, metavar="N", help=f"slots per file (default {RANGE_SLOTS})"
    )
    verb.add_argument(
        "--closed",
        action="store_true",
        help="treat recordings without an end record (end.INCARNATION.json) as complete; for files of other programs",
    )
    add_spark(verb, works_without=False)
    add_json(verb)
    verb.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run `unisono compact`: copy every run of the trace; return the exit status."""
    from unisono.pipeline.relayout import relayout  # noqa: PLC0415 - only commands that use Spark load it
    from unisono.pipeline.session import spark_session  # noqa: PLC0415

    if options.master == "none":
        raise InvalidOption("--master", "compact needs Spark: give local[*] or a cluster, not none")
    if options.range_slots < 1:
        raise InvalidOption("--range-slots", f"expected at least 1, not {options.range_slots}")
    folders = find_groups(options.trace)
    make_writable_folder("--out", options.out)
    with (
        progress_reports("starting Spark", quiet=options.json) as report_progress,
        spark_session(spark_choice(options)) as session,
    ):
        done = []
        for folder in folders:
            report_progress(f"compacting {folder}")
            done.append(relayout(session, folder, options.out, range_slots=options.range_slots, closed=options.closed))
    if options.json:
        runs = [
            {"folder": one.folder, "events": one.rows, "files_before": one.files_before, "files": one.files}
            for one in done
        ]
        print_json({"runs": runs, "out": str(options.out)})
    else:
        for one in done:
            sys.stdout.write(
                f"{one.folder}: {one.rows:,} events, {one.files_before:,} files before, {one.files:,} now\n"
            )
    return 0
