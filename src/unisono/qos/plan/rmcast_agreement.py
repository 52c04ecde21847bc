"""How likely RMCast's agreement fails because processes crash: equations (12) and (13) of paper 002, Appendix C.

f_1 = f_2 = 0 is the base (002-7). The extended form counts every number of survivors and leaves the originator out of
the next round (002-8). Neither counts losses when nobody crashes: that residue is `rmcast.reached_limit` (002-10).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import comb, expm1

from unisono.errors import InvalidOption
from unisono.model.redundancy import Redundancy


@dataclass(frozen=True, slots=True)
class CrashModel:
    """How processes fail: `mttf_ns` is their mean time to failure (1/γ); `in_broadcast` is β, per receiver served."""

    mttf_ns: int
    crash_in_broadcast: float

    def __post_init__(self) -> None:
        if self.mttf_ns <= 0:
            raise InvalidOption("mttf", f"a mean time above zero is needed, not {self.mttf_ns} ns")
        if not 0 <= self.crash_in_broadcast <= 1:
            raise InvalidOption("crash_in_broadcast", f"a probability is needed, not {self.crash_in_broadcast}")

    def before_takeover(self, redundancy: Redundancy) -> float:
        """v for the longest that a receiver may wait: η + ω, as long as ω may become, and ζ at most η."""
        return crash_within(redundancy.longest_wait_ns(), self.mttf_ns)


def crash_within(tau_ns: int, mttf_ns: int) -> float:
    """(12): v, the probability that a process fails before its time-out τ."""
    return -expm1(-tau_ns / mttf_ns)


def agreement_failure(members: int, loss: float, v: float, beta: float) -> float:
    """(13): f_n, where at most one of the j receivers survives to go on."""

    def after(j: int, n: int, f: Callable[[int], float]) -> float:
        return v**j + j * v ** (j - 1) * (1 - v) * f(n - j)

    return _recursion(members, loss, beta, after)


def agreement_failure_extended(members: int, loss: float, v: float, beta: float) -> float:
    """The extended f_n: any number m of the j receivers survives, and all m would have to fail (002-8)."""

    def after(j: int, n: int, f: Callable[[int], float]) -> float:
        survive = sum(comb(j, m) * (1 - v) ** m * v ** (j - m) * f(n - 1 - j + m) ** m for m in range(1, j + 1))
        return float(v**j + survive)

    return _recursion(members, loss, beta, after)


def _recursion(
    members: int, loss: float, beta: float, after: Callable[[int, int, Callable[[int], float]], float]
) -> float:
    """Both forms differ only in what follows once j processes have the message in a group of n."""
    known = [0.0, 0.0, 0.0]
    for n in range(3, members + 1):
        then = [after(j, n, known.__getitem__) for j in range(1, n)]
        total = 0.0
        for k in range(1, n):
            received = (comb(k, j) * (1 - loss) ** j * loss ** (k - j) * then[j - 1] for j in range(1, k + 1))
            total += (1 - beta) ** (k - 1) * beta * sum(received)
        known.append(total)
    return known[max(members, 0)]
