"""Runs ranges of seeds from the command line; prints progress, the problems of failing seeds, and the time per seed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

PROGRESS_EVERY = 100


def run_ranges(words: list[str], problems: Callable[[int], list[str]]) -> int:
    """Run ranges A..B, both ends included, or single seeds; return the exit status."""
    wrong = 0
    for word in words:
        first, _, last = word.partition("..")
        seeds = range(int(first), int(last or first) + 1)
        begun, begun_cpu = time.monotonic(), time.process_time()
        for done, seed in enumerate(seeds, 1):
            found = problems(seed)
            wrong += bool(found)
            if found or len(seeds) == 1:
                sys.stdout.write(f"seed {seed}: {found or 'nothing wrong'}\n")
            if done % PROGRESS_EVERY == 0 or done == len(seeds):
                each_ms = (time.process_time() - begun_cpu) * 1000 / done
                passed = time.monotonic() - begun
                sys.stdout.write(
                    f"{done} of {len(seeds)} runs, {wrong} wrong, {passed:.0f} s, {each_ms:.0f} ms of processor each\n"
                )
                sys.stdout.flush()
    return 1 if wrong else 0
