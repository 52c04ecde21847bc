"""What is told once for a stretch of time in which it goes on, and not every time that it is noticed."""

from __future__ import annotations

from collections.abc import Hashable

from unisono.model.durations import NS_PER_S


class Stretches:
    """Knows of each thing when it was noticed last: a stretch is over when it has not been for `quiet_ns`."""

    def __init__(self, quiet_ns: int = NS_PER_S) -> None:
        self._quiet_ns = quiet_ns
        self._noticed: dict[Hashable, int] = {}

    def begins(self, now: int, what: Hashable) -> bool:
        """It is noticed now: whether that begins a stretch."""
        last = self._noticed.get(what)
        self._noticed[what] = now
        return last is None or now - last > self._quiet_ns
