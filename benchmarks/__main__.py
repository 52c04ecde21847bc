"""Runs the benchmarks: progress on standard error, a table or JSON on standard output, docs/benchmarks.md if asked.

python -m benchmarks [--only NAME]... [--quick] [--json] [--write]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

from benchmarks import (
    coders,
    consensus,
    failures,
    fec,
    group_size,
    groups,
    hot_spots,
    kill,
    latency,
    measurement,
    monitoring,
    priority,
    quasi_genuine,
    rmcast,
    simulator,
    single,
    sweep,
    throughput,
    verify,
    views,
)
from benchmarks.progress import done, to_stderr
from benchmarks.report import DOCUMENT, document, machine_facts, revised, tables

BENCHMARKS: dict[str, Callable[..., list[dict[str, Any]]]] = {
    "throughput": throughput.rows,
    "single": single.rows,
    "latency": latency.rows,
    "failures": failures.rows,
    "kill": kill.rows,
    "fec": fec.rows,
    "coders": coders.rows,
    "simulator": simulator.rows,
    "group_size": group_size.rows,
    "monitoring": monitoring.rows,
    "measurement": measurement.rows,
    "rmcast": rmcast.rows,
    "hot_spots": hot_spots.rows,
    "consensus": consensus.rows,
    "priority": priority.rows,
    "views": views.rows,
    "verify": verify.rows,
    "sweep": sweep.rows,
    "groups": groups.rows,
    "quasi_genuine": quasi_genuine.rows,
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Measure unisono against its references, side by side in one run."
    )
    parser.add_argument(
        "--only", action="append", choices=tuple(BENCHMARKS), help="run this one only; may be given again"
    )
    parser.add_argument("--quick", action="store_true", help="short runs: shows that it works, the figures are rough")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument(
        "--write",
        action="store_true",
        help=f"put the figures into {DOCUMENT.name}; with --only, into these sections alone",
    )
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run, print, and write if asked; 1 if a benchmark could not be measured."""
    parser = _parser()
    options = parser.parse_args(arguments)
    chosen = options.only or list(BENCHMARKS)
    if options.write and options.quick:
        parser.error("--write needs benchmarks at full length")
    facts = machine_facts()
    results: dict[str, list[dict[str, Any]]] = {}
    problems: dict[str, str] = {}
    for name in chosen:
        try:
            results[name] = BENCHMARKS[name](quick=options.quick, say=to_stderr)
        except Exception as error:  # noqa: BLE001 - one benchmark that fails must not hide the others' figures
            problems[name] = f"{type(error).__name__}: {error}"
        finally:
            done()
    if options.json:
        rows = [{"benchmark": name, **row} for name, found in results.items() for row in found]
        sys.stdout.write(json.dumps({"machine": facts, "rows": rows, "failures": problems}) + "\n")
    else:
        sys.stdout.write(tables(results))
    for name, why in problems.items():
        sys.stderr.write(f"bench: {name} could not be measured: {why}\n")
    if options.write and not problems:
        page = document(facts, results)
        if options.only:
            page = revised(DOCUMENT.read_text(encoding="utf-8"), facts, results)
        DOCUMENT.write_text(page, encoding="utf-8")
        sys.stderr.write(f"bench: wrote {DOCUMENT}\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
