"""What is said on the terminal while Spark works: on standard error, so that standard output stays the result."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console


@contextmanager
def progress_reports(first_report: str, *, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Say what is going on, with the time that it has taken; a line each where there is no terminal."""
    console = Console(stderr=True)
    if quiet:
        yield _ignore_report
        return
    if not console.is_terminal:
        began = time.monotonic()
        sys.stderr.write(f"{first_report}\n")
        yield lambda text: print(f"{time.monotonic() - began:6.1f} s  {text}", file=sys.stderr)
        return
    with console.status(first_report) as status:
        yield status.update


def _ignore_report(text: str) -> None:
    """Nobody wants to know."""
