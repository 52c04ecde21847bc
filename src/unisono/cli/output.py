"""Output that several commands share: JSON on standard output, progress on standard error."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console


def print_json(value: dict[str, Any]) -> None:
    """Print one JSON object as a line on standard output."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


@contextmanager
def progress_reports(first_report: str, *, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Provide a function that reports progress on standard error: a spinner on a terminal, else lines with the time."""
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
    """Ignore a progress report. This is the function to report with if `quiet` is set."""
