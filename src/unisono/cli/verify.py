"""`unisono verify`: run every checker over recorded traces, on Spark."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from unisono.check.verdict import Status, Verdict, overall
from unisono.cli.options import add_command, add_json, add_spark, duration, iso_time, spark_choice
from unisono.cli.output import print_json, progress_reports


def add_parser(verbs: Any) -> None:
    """Add the command `unisono verify` and its options to the command line."""
    verb = add_command(
        verbs,
        "verify",
        summary="check recorded traces of any size, on Spark",
        description="Check recorded runs: total order, integrity, FIFO, gap freedom, rates, latency. Each violated "
        "check shows a witness: the smallest part of the trace that proves it. TRACE is a folder from `demo --out` or "
        "`simulate --trace`, or a folder that contains several of them.",
        examples=(
            "unisono verify traces",
            "unisono verify traces --bound 60ms --json",
            "unisono verify traces --since 2026-11-16T10:30 --master spark://host:7077",
        ),
        notes="exit status: 0 valid, 1 violated, 2 unknown (a trace is damaged or incomplete; the reason is shown).",
    )
    verb.add_argument("trace", metavar="TRACE", type=Path, help="folder with one or more recorded runs")
    verb.add_argument(
        "--bound", type=duration, metavar="D", help="latency bound to check (default: the bound that the run promised)"
    )
    verb.add_argument("--run", dest="only_run", metavar="R", help="only this run")
    verb.add_argument("--group", dest="only_group", metavar="G", help="only this group")
    for option, selected in (("--since", "runs still active after T"), ("--until", "runs that began before T")):
        verb.add_argument(option, type=iso_time, metavar="T", help=f"only {selected}, such as 2026-11-16T10:30 (UTC)")
    add_spark(verb)
    add_json(verb)
    verb.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run `unisono verify`: check the traces and print the verdicts; return the exit status."""

    from unisono.pipeline.session import spark_session  # noqa: PLC0415 - only commands that use Spark load it
    from unisono.pipeline.verify import on_spark, select_runs, verify_selected  # noqa: PLC0415

    # Before Spark starts, which takes seconds: a wrong folder or name is refused at once.
    selected = select_runs(
        options.trace,
        run=options.only_run,
        group=options.only_group,
        since_ns=options.since,
        until_ns=options.until,
    )
    if options.master == "none":
        reports = verify_selected(selected, bound_ns=options.bound)
    else:
        with (
            progress_reports("starting Spark", quiet=options.json) as report_progress,
            spark_session(spark_choice(options)) as session,
        ):
            report_progress(f"verifying {options.trace} on Spark at {options.master}")
            reports = verify_selected(selected, partial(on_spark, session), bound_ns=options.bound)
    checks = _worst_verdicts([report.verdicts for report in reports])
    status = overall(checks)
    if options.json:
        shown: dict[str, Any] = {
            "verdict": status.value,
            "checks": {name: verdict.to_json() for name, verdict in checks.items()},
            "events": sum(report.rows for report in reports),
            "runs": [
                {"run": r.run, "group": r.group, "folder": r.folder, "verdict": r.status.value, "events": r.rows}
                for r in reports
            ],
        }
        print_json(shown)
    else:
        for report in reports:
            name = f"run {report.run} group {report.group}" if report.run else report.folder
            sys.stdout.write(f"{name}: {report.rows:,} events\n")
            sys.stdout.writelines(f"  {line}\n" for line in verdict_lines(report.verdicts))
        sys.stdout.write(f"verdict: {status.value}\n")
    return {Status.VALID: 0, Status.VIOLATED: 1, Status.UNKNOWN: 2}[status]


def verdict_lines(verdicts: dict[str, Verdict]) -> list[str]:
    """One line of text per check: its verdict, with the witness of a violation or the reason for an unknown verdict."""
    lines = []
    for name, verdict in verdicts.items():
        detail = verdict.witness.text if verdict.witness is not None else verdict.reason
        times = f" {verdict.count} times, first:" if verdict.count > 1 else ""
        lines.append(f"{name:<20} {verdict.status.value}{':' if detail else ''}{times} {detail}".rstrip())
    return lines


def _worst_verdicts(verdicts_by_run: Sequence[dict[str, Verdict]]) -> dict[str, Verdict]:
    """The worst verdict of each check over several runs: violated, then unknown, then valid."""
    rank = {Status.VIOLATED: 0, Status.UNKNOWN: 1, Status.VALID: 2}
    found: dict[str, Verdict] = {}
    for verdicts in verdicts_by_run:
        for name, verdict in verdicts.items():
            known = found.get(name)
            if known is None or rank[verdict.status] < rank[known.status]:
                found[name] = verdict
    return found
