"""`unisono compact`: a trace in few files, in the layout that verification reads without moving a row."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from unisono.cli.options import add_json, add_spark, make_writable_folder, print_json, progress_reports, spark_choice
from unisono.errors import InvalidOption
from unisono.trace.files import RANGE_SLOTS, find_groups


def add_parser(verbs: Any) -> None:
    """The verb and its options."""
    verb = verbs.add_parser(
        "compact",
        help="write a recorded trace in few files, or one in another layout in ours, on Spark",
        description="Copy recorded runs into the layout that `verify` reads without a shuffle: one file for each "
        "member and range of slots. TRACE may have many small files, or Parquet files of the trace's columns in any "
        "layout beside a meta.json. The source stays as it is.",
    )
    verb.add_argument("trace", metavar="TRACE", type=Path, help="folder with one or more runs")
    verb.add_argument("--out", metavar="DIR", type=Path, required=True, help="where to write them")
    verb.add_argument(
        "--range-slots", type=int, default=RANGE_SLOTS, metavar="N", help=f"slots per file (default {RANGE_SLOTS})"
    )
    verb.add_argument(
        "--closed",
        action="store_true",
        help="the rows are all there, though no end.LIFE.json says so (foreign layouts)",
    )
    add_spark(verb)
    add_json(verb)
    verb.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Copy every run."""
    from unisono.pipeline.relayout import relayout  # noqa: PLC0415 - only the verbs that use Spark pay for it
    from unisono.pipeline.session import spark_session  # noqa: PLC0415

    if options.master == "none":
        raise InvalidOption("--master", "compact needs Spark: local[*], or a cluster")
    if options.range_slots < 1:
        raise InvalidOption("--range-slots", f"at least one slot is needed, not {options.range_slots}")
    folders = find_groups(options.trace)
    make_writable_folder("--out", options.out)
    with (
        progress_reports("starting Spark", quiet=options.json) as tell,
        spark_session(spark_choice(options)) as session,
    ):
        done = []
        for folder in folders:
            tell(f"compacting {folder}")
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
