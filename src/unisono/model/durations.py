"""Durations with units in text, integer nanoseconds in code."""

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
    """`"5ms"`, `"200us"`, `"2s"` as nanoseconds; an integer is taken as nanoseconds already."""
    if isinstance(text, bool) or not isinstance(text, int | str):
        raise InvalidOption(field, f"a duration with a unit is needed, such as '5ms', not {text!r}")
    if isinstance(text, int):
        if text < 0:
            raise InvalidOption(field, f"a duration cannot be negative, and {text} is")
        return text
    match = _DURATION.fullmatch(text)
    if match is None:
        raise InvalidOption(field, f"a duration with a unit is needed, such as '5ms', '200us' or '2s', not {text!r}")
    return int(Fraction(match[1]) * _UNITS[match[2]])


def duration_text(ns: int) -> str:
    """Nanoseconds as short text with a unit."""
    for unit, size in (("s", NS_PER_S), ("ms", NS_PER_MS), ("us", 1_000)):
        if abs(ns) >= size:
            return f"{ns / size:.6g}{unit}"
    return f"{ns}ns"


def exact_duration_text(ns: int) -> str:
    """Nanoseconds as text with the largest unit that makes them a whole number: `duration_ns` reads the same back."""
    for unit, size in (("s", NS_PER_S), ("ms", NS_PER_MS), ("us", 1_000)):
        if ns >= size and ns % size == 0:
            return f"{ns // size}{unit}"
    return f"{ns}ns"


def ns_to_ms(ns: int) -> float:
    """Nanoseconds as the milliseconds that JSON output carries."""
    return ns / NS_PER_MS


def earliest(times: Iterable[int | None]) -> int | None:
    """The first of these alarms; None stands for one that is not set."""
    first: int | None = None
    for at in times:
        if at is not None and (first is None or at < first):
            first = at
    return first
