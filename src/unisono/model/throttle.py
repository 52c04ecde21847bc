"""Reports a recurring condition once, until it has been quiet."""

from __future__ import annotations

from collections.abc import Hashable

from unisono.model.durations import NS_PER_S


class Throttle:
    """Stores when each condition was last seen. A condition counts as new after it was not seen for `quiet_ns`."""

    def __init__(self, quiet_ns: int = NS_PER_S) -> None:
        self._quiet_ns = quiet_ns
        self._last_seen_ns: dict[Hashable, int] = {}

    def first_in_a_while(self, now: int, key: Hashable) -> bool:
        """Record that a condition is seen now. Returns whether it is new."""
        last = self._last_seen_ns.get(key)
        self._last_seen_ns[key] = now
        return last is None or now - last > self._quiet_ns
