"""Compares the CPU time of the working tree with that of another commit, side by side in one run.

make compare BASE=COMMIT
python -m benchmarks.compare COMMIT [--turns N]

It exports the sources of the commit into a temporary folder and lets both versions take turns (9 each), every turn in a
fresh process: CPU time per message over loopback sockets through the public API, by `send_many` and `batches` and by
`send` and `async for`, for vbr and consensus with three members; and CPU time per simulated event, with the same seeds.
It prints the median of each side, their ratio, and the smallest and largest ratio of a pair of neighbouring turns. A
ratio above 1 says that the working tree is slower. It exits with 1 if the two sides simulate different numbers of
events, since the events of one side are then not those of the other.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.progress import done, to_stderr

ROOT: Final = Path(__file__).parents[1]
TURN: Final = ROOT / "benchmarks" / "compare_turn.py"
TURNS: Final = 9


def export(commit: str, folder: Path) -> None:
    """Put the sources and scenario files of a commit into a folder."""
    command = ["git", "-C", str(ROOT), "archive", "--format=tar", commit, "src", "scenarios"]
    archive = subprocess.run(command, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")


def turn(sources: Path, scenarios: Path) -> dict[str, Any]:
    """The figures of one side in a process of its own."""
    environment = os.environ | {"PYTHONPATH": str(sources), "PYTHONHASHSEED": "0"}
    command = [sys.executable, str(TURN), str(sources), str(scenarios)]
    output = subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE, text=True).stdout
    found: dict[str, Any] = json.loads(output)
    return found


def measure(commit: str, turns: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The turns of the commit and of the working tree; which of them begins changes from turn to turn."""
    base: list[dict[str, Any]] = []
    tree: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        export(commit, folder)
        scenarios = folder / "scenarios"
        sides = [(base, folder / "src"), (tree, ROOT / "src")]
        for number in range(turns):
            for found, sources in sides if number % 2 == 0 else sides[::-1]:
                to_stderr(f"compare: turn {number + 1} of {turns}, {'base' if found is base else 'working tree'}")
                found.append(turn(sources, scenarios))
    done()
    return base, tree


def table(base: list[dict[str, Any]], tree: list[dict[str, Any]]) -> str:
    """The medians in microseconds, their ratio and its spread, one line per figure."""
    lines = [f"{'CPU time':24} {'base us':>9} {'tree us':>9} {'ratio':>7}   {'spread of ratios'}"]
    for name in base[0]["figures"]:
        ours, theirs = ([found["figures"][name] for found in side] for side in (tree, base))
        pairs = [one / other for one, other in zip(ours, theirs, strict=True)]
        ratio = median(ours) / median(theirs)
        lines.append(
            f"{name:24} {median(theirs):9.2f} {median(ours):9.2f} {ratio:7.3f}   {min(pairs):.3f} to {max(pairs):.3f}"
        )
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; 1 if the numbers of simulated events differ."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare", description="Compare the working tree's CPU time with a commit's."
    )
    parser.add_argument("base", metavar="COMMIT", help="the commit to compare with")
    parser.add_argument("--turns", type=int, default=TURNS, help=f"turns of each side (default: {TURNS})")
    options = parser.parse_args(arguments)
    if options.turns < 1:
        parser.error("--turns needs at least 1")
    base, tree = measure(options.base, options.turns)
    sys.stdout.write(table(base, tree))
    events = [{found["events"] for found in side} for side in (base, tree)]
    if events[0] != events[1] or len(events[0]) != 1:
        sys.stdout.write(f"simulated events differ: {sorted(events[0])} and {sorted(events[1])}\n")
        return 1
    sys.stdout.write(f"{events[0].pop()} simulated events in each turn of both\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
