"""A random stream from a seed: pure arithmetic, the same on every machine."""

from __future__ import annotations

_MASK = 2**64 - 1


class SplitMix64:
    """Vigna's SplitMix64. Spreads the timers of members; not for secrets."""

    __slots__ = ("_state",)

    def __init__(self, *seed: int) -> None:
        self._state = 0
        for part in seed:
            self._state = self._next() ^ part & _MASK

    def _next(self) -> int:
        self._state = self._state + 0x9E3779B97F4A7C15 & _MASK
        mixed = self._state
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK
        return mixed ^ mixed >> 31

    def random(self) -> float:
        """The next number in [0, 1)."""
        return (self._next() >> 11) / 2**53
