"""Local clocks as functions of true time, each with its inverse, in exact integers.

Paper 000 §2.2: every clock stays within Γ/2 of true time, and a timer fires at the first instant at which the clock
shows at least the requested reading. Clocks never go back; an adversarial clock may stand still or leap.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from unisono.errors import InvalidOption
from unisono.model.delays import RandomSource


class Clock(Protocol):
    """The clock of one simulated member: maps true time to the member's readings, and back."""

    def local(self, true_ns: int) -> int:
        """The reading of the clock at a true time."""

    def true_at(self, local_ns: int) -> int:
        """The first true instant at which the clock shows at least `local_ns`."""


@dataclass(frozen=True, slots=True)
class FixedClock:
    """A clock with a constant offset."""

    offset_ns: int = 0

    def local(self, true_ns: int) -> int:
        return true_ns + self.offset_ns

    def true_at(self, local_ns: int) -> int:
        return local_ns - self.offset_ns


@dataclass(frozen=True, slots=True)
class DriftingClock:
    """A clock whose offset rises evenly from −`amplitude_ns` to +`amplitude_ns` and falls back.

    Each way takes `half_period_ns`. `phase_ns` is how far into this cycle the clock is at true time 0.
    """

    amplitude_ns: int
    half_period_ns: int
    phase_ns: int = 0

    def __post_init__(self) -> None:
        # With a shorter half period, the clock would run backwards while its offset falls.
        if self.half_period_ns < max(1, 2 * self.amplitude_ns):
            raise InvalidOption(
                "clocks.sweep",
                f"expected a half period of at least {max(1, 2 * self.amplitude_ns)} ns "
                f"for an amplitude of {self.amplitude_ns} ns, not {self.half_period_ns} ns",
            )

    def local(self, true_ns: int) -> int:
        position = (true_ns + self.phase_ns) % (2 * self.half_period_ns)
        rise = position if position < self.half_period_ns else 2 * self.half_period_ns - position
        return true_ns + 2 * self.amplitude_ns * rise // self.half_period_ns - self.amplitude_ns

    def true_at(self, local_ns: int) -> int:
        # The guess assumes that the offset does not change on the way. Bracket the answer from there, then bisect.
        guess = 2 * local_ns - self.local(local_ns)
        step = 1
        if self.local(guess) >= local_ns:
            high = guess
            while self.local(high - step) >= local_ns:
                high, step = high - step, 2 * step
            low = high - step
        else:
            low = guess
            while self.local(low + step) < local_ns:
                low, step = low + step, 2 * step
            high = low + step
        while high - low > 1:
            middle = (low + high) // 2
            if self.local(middle) >= local_ns:
                high = middle
            else:
                low = middle
        return high


class SteppedClock:
    """An adversary's clock: each step gives it another offset.

    A step forward is a leap. After a step back the clock stands still until true time has caught up. So it never goes
    back, and it stays within Γ/2 if every offset is within Γ/2.
    """

    __slots__ = ("_floors", "_offsets", "_shown", "_times")

    def __init__(self, first_offset_ns: int, steps: Sequence[tuple[int, int]] = ()) -> None:
        """`steps` are pairs (true time, offset from then on), in ascending order of time."""
        self._times = [at for at, _ in steps]
        if self._times != sorted(set(self._times)):
            raise InvalidOption(
                "clocks.steps", f"expected steps at strictly ascending times, not {[at for at, _ in steps]}"
            )
        self._offsets = [first_offset_ns, *(offset for _, offset in steps)]
        self._floors: list[int] = []
        """The reading just before each step: the clock never shows less afterwards."""
        self._shown: list[int] = []
        """The reading just after each step."""
        floor = None
        for number, at in enumerate(self._times):
            before = at + self._offsets[number]
            floor = before if floor is None else max(before, floor)
            self._floors.append(floor)
            self._shown.append(max(floor, at + self._offsets[number + 1]))

    def local(self, true_ns: int) -> int:
        step = bisect_right(self._times, true_ns)
        reading = true_ns + self._offsets[step]
        return max(reading, self._floors[step - 1]) if step else reading

    def true_at(self, local_ns: int) -> int:
        # The reading is reached after the last step that leaves the clock below it, or by the leap of the next step.
        step = bisect_left(self._shown, local_ns)
        reached = local_ns - self._offsets[step]
        return min(reached, self._times[step]) if step < len(self._times) else reached


def corner_clock(
    chance: RandomSource, half_gamma_ns: int, start_ns: int, end_ns: int, mean_interval_ns: int
) -> SteppedClock:
    """A clock that steps between −Γ/2 and +Γ/2 at random times, `mean_interval_ns` apart on average."""
    offsets = (-half_gamma_ns, half_gamma_ns)
    first = offsets[int(chance.random() * 2)]
    steps: list[tuple[int, int]] = []
    at = start_ns
    while mean_interval_ns > 0:
        at += 1 + int(chance.random() * 2 * mean_interval_ns)
        if at >= end_ns:
            break
        steps.append((at, offsets[int(chance.random() * 2)]))
    return SteppedClock(first, steps)
