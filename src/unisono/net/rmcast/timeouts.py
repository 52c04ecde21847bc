"""How a receiver of a reliable multicast chooses ω (paper 002 appendix B; errata 002-4, -6, -16).

A fixed ω needs no rule. The exact rule takes the largest ω that still meets the required relative latency ((9) to
(11)). The heuristic of B.2 lengthens ω by multiples of η. Both depend only on the copies that this process received.
"""

from __future__ import annotations

from math import prod
from typing import Protocol

from unisono.model.policy import Redundancy, RelativeRequirement

FOREVER = 2**62
"""ω = ∞: this process never takes over."""
_STEPS = 1024
"""The table of results divides the time S into this many steps. The time left is rounded down, which is safe."""


class OmegaRule(Protocol):
    """A rule that chooses ω, the extra wait for the next copy, each time a copy arrives."""

    def first_omega(self, k: int) -> int:
        """The ω to use if the first copy of a message that arrives is copy k."""

    def next_omega(self, omega: int, first: int, k: int, elapsed_ns: int, on_time: bool) -> int:
        """The ω for the time-out that starts when copy k arrives.

        The previous ω was `omega`. The first copy was copy `first` and arrived `elapsed_ns` ago. `on_time` is True if
        copy k arrived before the time-out, and False if it arrived during ζ.
        """


class HeuristicOmega:
    """Paper 002, B.2: lengthen ω by k·η if the first copy is copy k, and by η if copy 1 follows copy 0 on time.

    On time means before the time-out η+ω, as the paper's text says, and not during ζ (002-16).
    """

    def __init__(self, redundancy: Redundancy) -> None:
        self._omega = redundancy.omega_ns
        self._eta = redundancy.eta_ns

    def first_omega(self, k: int) -> int:
        return self._omega + k * self._eta

    def next_omega(self, omega: int, first: int, k: int, elapsed_ns: int, on_time: bool) -> int:
        if first == 0 and k == 1 and on_time and omega == self._omega:
            return omega + self._eta
        return omega


class ExactOmega:
    """Choose the largest ω with which all others still get the message within the time S (paper 002, (9) to (11))."""

    def __init__(self, redundancy: Redundancy, relative: RelativeRequirement, members: int) -> None:
        self._redundancy = redundancy
        self._relative = relative
        self._others = max(members - 2, 0)
        self._step_ns = -(-relative.within_ns // _STEPS)
        self._results: dict[tuple[int, int], int] = {}

    def first_omega(self, k: int) -> int:
        return self.largest_omega(k, self._relative.within_ns)

    def next_omega(self, omega: int, first: int, k: int, elapsed_ns: int, on_time: bool) -> int:
        return self.largest_omega(k, self._relative.within_ns - elapsed_ns)

    def largest_omega(self, k: int, left_ns: int) -> int:
        """The largest possible ω after copy k, with `left_ns` left of S: at least the negotiated ω.

        It is FOREVER if condition (9) of paper 002 holds, and otherwise follows from (11). Once S is over, it is the
        negotiated ω.
        """
        if left_ns <= 0:
            return self._redundancy.omega_ns
        key = k, left_ns // self._step_ns
        found = self._results.get(key)
        if found is None:
            found = self._results[key] = self._search(k, key[1] * self._step_ns)
        return found

    def _search(self, k: int, left_ns: int) -> int:
        negotiated = self._redundancy.omega_ns
        direct = self.missed_from_originator(k, left_ns)
        if self._meets_target(direct):
            return FOREVER
        # u_k decreases as ω grows; with ω = S no copy of this process could arrive in time.
        if not self._meets_target(direct * self.missed_from_this_process(k, left_ns, negotiated)):
            return negotiated
        low, high = negotiated, max(negotiated + 1, left_ns)
        while high - low > 1:
            middle = (low + high) // 2
            if self._meets_target(direct * self.missed_from_this_process(k, left_ns, middle)):
                low = middle
            else:
                high = middle
        return low

    def _meets_target(self, missed: float) -> bool:
        return (1 - missed) ** self._others >= self._relative.success

    def missed_from_originator(self, k: int, left_ns: int) -> float:
        """The probability that a given process receives none of copies 0 to k in time: g_k(S), paper 002, (5)."""
        eta, not_arrived = self._redundancy.eta_ns, self._relative.not_arrived_probability
        return prod(not_arrived(left_ns + m * eta) for m in range(k + 1))

    def missed_from_this_process(self, k: int, left_ns: int, omega: int) -> float:
        """The probability that a given process receives none of this process's copies k to ρ in time.

        This is g̃_k(S), paper 002, (6); it is 1 at k = ρ by definition (erratum 002-4).
        """
        rho, eta, not_arrived = self._redundancy.rho, self._redundancy.eta_ns, self._relative.not_arrived_probability
        if k >= rho:
            return 1.0
        return prod(not_arrived(left_ns - (m + 1) * eta - omega) for m in range(1, rho - k + 2))


def omega_rule_of(redundancy: Redundancy, members: int) -> OmegaRule | None:
    """The rule that chooses ω for a redundancy; None if ω is fixed."""
    if redundancy.relative is not None:
        return ExactOmega(redundancy, redundancy.relative, members)
    return HeuristicOmega(redundancy) if redundancy.adaptive in ("heuristic", "counting") else None
