"""Durations: with units in text, as integer nanoseconds in code."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fractions import Fraction

from unisono.errors import InvalidOption

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000
_UNITS = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": NS_PER_MS, "s": NS_PER_S, "min": 60 * NS_PER_S, "h": 3600 * NS_PER_S}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ns|us|µs|ms|s|min|h)\s*")


def duration_ns(text: str | int, field: str = "duration") -> int:
    """Parse `"5ms"`, `"200us"` or `"2s"` into nanoseconds. An integer is already in nanoseconds."""
    if isinstance(text, bool) or not isinstance(text, int | str):
        raise InvalidOption(field, f"expected a duration with a unit, such as '5ms', got {text!r}")
    if isinstance(text, int):
        if text < 0:
            raise InvalidOption(field, f"expected a duration of at least 0, got {text}")
        return text
    match = _DURATION.fullmatch(text)
    if match is None:
        raise InvalidOption(field, f"expected a duration with a unit, such as '5ms', '200us' or '2s', got {text!r}")
    return int(Fraction(match[1]) * _UNITS[match[2]])


def duration_text(ns: int) -> str:
    """A short text with a unit, rounded to six digits."""
    for unit, size in (("s", NS_PER_S), ("ms", NS_PER_MS), ("us", 1_000)):
        if abs(ns) >= size:
            return f"{ns / size:.6g}{unit}"
    return f"{ns}ns"


def exact_duration_text(ns: int) -> str:
    """The exact duration in the largest unit that gives a whole number; `duration_ns` reads it back."""
    for unit, size in (("s", NS_PER_S), ("ms", NS_PER_MS), ("us", 1_000)):
        if ns >= size and ns % size == 0:
            return f"{ns // size}{unit}"
    return f"{ns}ns"


def ns_to_ms(ns: int) -> float:
    """Nanoseconds in milliseconds, the unit of JSON output."""
    return ns / NS_PER_MS


def earliest(times: Iterable[int | None]) -> int | None:
    """The earliest of these alarm times. None stands for an alarm that is not set."""
    first: int | None = None
    for at in times:
        if at is not None and (first is None or at < first):
            first = at
    return first
