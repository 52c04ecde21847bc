"""What is told once for a stretch of time in which it goes on, and not every time that it is noticed."""

from __future__ import annotations

from collections.abc import Hashable

from unisono.model.durations import NS_PER_S


class Throttle:
    """Knows of each thing when it was noticed last: a stretch is over when it has not been for `quiet_ns`."""

    def __init__(self, quiet_ns: int = NS_PER_S) -> None:
        self._quiet_ns = quiet_ns
        self._last_seen_ns: dict[Hashable, int] = {}

    def first_in_a_while(self, now: int, key: Hashable) -> bool:
        """It is noticed now: whether that begins a stretch."""
        last = self._last_seen_ns.get(key)
        self._last_seen_ns[key] = now
        return last is None or now - last > self._quiet_ns
