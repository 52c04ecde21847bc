"""The local clock: nanoseconds since the Unix epoch that never step back and never jump."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

SLEW_PPM = 500
"""At most 500 µs per second: what NTP daemons allow themselves, and little against any slot."""
STEP_THRESHOLD_NS = 10_000_000
INCARNATION_EPOCH_NS = 1_735_689_600 * 1_000_000_000
_OFFSET_READS = 9
_MILLION = 1_000_000


class LocalClock(Protocol):
    """A member's clock, as its driver uses it."""

    def now(self) -> int:
        """The local time."""

    def system_ns(self, local_ns: int) -> int:
        """The machine's time at which this clock shows `local_ns`."""

    def slew_toward_system(self) -> int:
        """Follow the machine's clock slowly. Returns how far that is ahead if it was set, otherwise 0."""


class WallClock:
    """The monotonic clock plus an offset, which follows the system's clock slowly.

    The kernel disciplines both clocks at one rate, so they part only when someone sets the system's clock,
    at a leap second, or when the machine was suspended. The group must not see that as a jump in time.
    """

    def __init__(
        self,
        *,
        monotonic: Callable[[], int] = time.monotonic_ns,
        system: Callable[[], int] = time.time_ns,
        step_threshold_ns: int = STEP_THRESHOLD_NS,
        ahead_ns: int = 0,
    ) -> None:
        """`ahead_ns` sets this clock off on purpose: it follows one that is so far ahead of the system's."""
        self._monotonic = monotonic
        self._system = system
        self._ahead_ns = ahead_ns
        self._step_threshold_ns = step_threshold_ns
        self.behind_ns = 0
        """The system's clock minus this one, as last seen by `follow`."""
        _, self._offset, self.uncertainty_ns = self._read_offset()
        # While a slew runs, the offset is still `_slew` short of `_offset` at its start and reaches it at its end.
        self._slew = 0
        self._slew_start = self._slew_end = 0

    def now(self) -> int:
        """The local time."""
        monotonic = self._monotonic()
        if monotonic < self._slew_end:
            return monotonic + self._slewing_offset(monotonic)
        return monotonic + self._offset

    def system_ns(self, local_ns: int) -> int:
        """This machine's time at which this clock shows this."""
        return local_ns - self._ahead_ns

    def slew_toward_system(self) -> int:
        """Look at the system's clock and begin to slew toward it; call it about once a second.

        Answers 0, or, when the system's clock is further away than a step, how far it is ahead of this one: it was
        set, and at 500 µs per second it may be long before the two agree again.
        """
        monotonic, wanted, self.uncertainty_ns = self._read_offset()
        current = self._slewing_offset(monotonic) if monotonic < self._slew_end else self._offset
        self.behind_ns = behind = wanted - current
        if abs(behind) <= self.uncertainty_ns:
            wanted, behind = current, 0
        self._offset, self._slew = wanted, behind
        self._slew_start = monotonic
        self._slew_end = monotonic + abs(behind) * (_MILLION // SLEW_PPM)
        return self.behind_ns if abs(self.behind_ns) > self._step_threshold_ns else 0

    def _slewing_offset(self, monotonic: int) -> int:
        # In each nanosecond `done` grows by one at most, so a slew backwards halts the clock at worst.
        done = (monotonic - self._slew_start) * SLEW_PPM // _MILLION
        return self._offset - self._slew + (done if self._slew > 0 else -done)

    def _read_offset(self) -> tuple[int, int, int]:
        """The monotonic time, the system's clock minus it, and by how much that may be wrong.

        Of several reads the one with the narrowest bracket counts: nobody took the processor away in it.
        """
        best: tuple[int, int, int] | None = None
        for _ in range(_OFFSET_READS):
            before = self._monotonic()
            system = self._system() + self._ahead_ns
            after = self._monotonic()
            if best is None or after - before < best[2]:
                best = after, system - (before + after) // 2, after - before
        assert best is not None
        latest, offset, width = best
        return max(latest, after), offset, width


def new_incarnation() -> int:
    """Eighths of seconds since 2025, which last until 2042: a restarted member is later without anything on disk."""
    return (WallClock().now() - INCARNATION_EPOCH_NS) // 125_000_000 % 2**32
