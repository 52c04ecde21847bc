"""Progress on standard error, so that standard output has the figures alone."""

from __future__ import annotations

import sys
from collections.abc import Callable

Say = Callable[[str], None]


def silence(_: str) -> None:
    """Say nothing."""


def to_stderr(text: str) -> None:
    """One line: over the last one on a terminal, below it elsewhere."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text[:110]}")
    else:
        sys.stderr.write(f"bench: {text}\n")
    sys.stderr.flush()


def done() -> None:
    """Leave the terminal's line empty."""
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()
