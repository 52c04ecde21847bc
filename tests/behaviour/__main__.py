"""Compares what simulated members do with the committed baseline: datagrams, stored records and trace rows.

python -m tests.behaviour [--write] [--family NAME]... [--processes N] [--seed FAMILY SEED]

Without options it runs every family. If hashes differ, it names the families and exits with status 1. `--write`
replaces tests/behaviour/baseline.json by the present behaviour. `--seed` runs one seed and prints its hashes, to
compare two checkouts. Times and random draws use floating point, so a machine with another mathematical library may
need its own baseline: write one with the older commit first.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.behaviour import baseline
from tests.behaviour.families import FAMILIES
from tests.behaviour.parallel import hashes
from tests.behaviour.recording import played


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.behaviour", description="Compare the behaviour of seeded simulations with the baseline."
    )
    parser.add_argument("--write", action="store_true", help="replace the baseline by the present behaviour")
    parser.add_argument("--family", action="append", choices=tuple(FAMILIES), help="only this one; may be repeated")
    parser.add_argument("--processes", type=int, default=2, help="how many worker processes (default: 2)")
    parser.add_argument("--seed", nargs=2, metavar=("FAMILY", "SEED"), help="run one seed and print its hashes")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Compare or write; 1 if the behaviour differs from the baseline."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.seed:
        name, seed = options.seed
        if name not in FAMILIES or not seed.isdigit():
            parser.error(f"--seed needs a family ({', '.join(FAMILIES)}) and a number")
        recording = played(FAMILIES[name].play, int(seed))
        for stream, digest in recording.hexdigests().items():
            sys.stdout.write(f"{stream:12} {recording.counts[stream]:8} {digest}\n")
        return 0
    if options.write and options.family:
        parser.error("--write needs all families")
    names = options.family or list(FAMILIES)
    begun = time.monotonic()
    found = hashes(names, options.processes)
    runs = sum(len(family.runs) for family in found.values())
    sys.stdout.write(
        f"behaviour: {runs} runs in {len(found)} families, {time.monotonic() - begun:.0f} s, {baseline.total(found)}\n"
    )
    if options.write:
        baseline.write(found)
        sys.stdout.write(f"behaviour: wrote {baseline.PATH.name}\n")
        return 0
    expected = {name: family for name, family in baseline.read().items() if name in names or not options.family}
    lines = baseline.differences(expected, found)
    for line in lines:
        sys.stdout.write(f"behaviour differs: {line}\n")
    if not lines:
        sys.stdout.write("behaviour: equal to the baseline\n")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
