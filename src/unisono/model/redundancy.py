"""ρ, η, ω: how many times reliable multicast sends a message, and when receivers take over (002 §3.3, appendix B)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from unisono.errors import InvalidOption
from unisono.model.delays import DelayModel
from unisono.model.durations import duration_text

Adaptive: TypeAlias = Literal["none", "exact", "heuristic", "counting"]
ADAPTIVE: tuple[str, ...] = get_args(Adaptive)
RHO_MAX = 254
"""One less than the largest copy number that fits into a frame."""


@dataclass(frozen=True, slots=True)
class RelativeRequirement:
    """A receiver's requirement: all others receive the message at most S later, with probability U (§3.1, B.1).

    `loss` and `delay` describe one send. The exact adaptive time-out is calculated from all four.
    """

    success: float
    within_ns: int
    loss: float
    delay: DelayModel

    def __post_init__(self) -> None:
        if not 0 < self.success < 1:
            raise InvalidOption("relative.success", f"expected a probability between 0 and 1, got {self.success}")
        if self.within_ns < 1:
            raise InvalidOption("relative.within", f"expected a duration above zero, got {self.within_ns} ns")
        if not 0 <= self.loss < 1:
            raise InvalidOption("relative.loss", f"expected a probability from 0 to below 1, got {self.loss}")

    def not_arrived_probability(self, x_ns: int) -> float:
        """h(x): the probability that one send has not arrived x after it (equation 1)."""
        return 1.0 if x_ns <= 0 else 1 - (1 - self.loss) * self.delay.cdf(x_ns)


@dataclass(frozen=True, slots=True)
class Redundancy:
    """A message is broadcast ρ+1 times, η apart. A receiver that misses the next copy for η+ω+ζ takes over.

    `adaptive` says how a receiver lengthens ω: "none"; "exact", by equations (9) to (11), which needs `relative`;
    "heuristic", as in B.2; "counting", the heuristic for receivers that also broadcast nothing once they know of ρ+2
    broadcasts. With `last_copy`, a process whose first copy is copy ρ broadcasts it once more unless another process
    does (erratum 002-3). The default for `last_copy` is true with uniform delivery and false otherwise.
    """

    rho: int
    eta_ns: int
    omega_ns: int = 0
    adaptive: Adaptive = "none"
    relative: RelativeRequirement | None = None
    last_copy: bool | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.rho <= RHO_MAX:
            raise InvalidOption("redundancy.rho", f"expected 0 to {RHO_MAX} repetitions, got {self.rho}")
        if not 1_000 <= self.eta_ns < 2**62:
            raise InvalidOption("redundancy.eta", f"expected an interval of at least 1us, got {self.eta_ns} ns")
        if not 0 <= self.omega_ns < 2**62:
            raise InvalidOption("redundancy.omega", f"expected a duration of at least 0, got {self.omega_ns} ns")
        if self.adaptive not in ADAPTIVE:
            raise InvalidOption("redundancy.adaptive", f"expected one of {', '.join(ADAPTIVE)}, got {self.adaptive!r}")
        if (self.relative is not None) != (self.adaptive == "exact"):
            raise InvalidOption(
                "redundancy.relative", "expected U, S, loss and delay together with adaptive = 'exact', and only then"
            )

    def longest_wait_ns(self) -> int:
        """The longest time that a process waits before it broadcasts: η, the longest finite ω, and η for ζ."""
        if self.adaptive in ("heuristic", "counting"):
            return 2 * self.eta_ns + self.omega_ns + max(self.rho, 1) * self.eta_ns
        if self.relative is not None:
            return 2 * self.eta_ns + max(self.omega_ns, self.relative.within_ns)
        return 2 * self.eta_ns + self.omega_ns

    def message_lifetime_ns(self, members: int, delta_ns: int) -> int:
        """How long after its first broadcast a message can still be in flight, if no copy takes longer than Δ.

        A process broadcasts each copy number at most once, so there are at most n(ρ+1) broadcasts. If none has happened
        for the longest wait plus Δ, every copy has arrived and every timer has expired, so no other one follows.
        """
        return members * (self.rho + 1) * (self.longest_wait_ns() + delta_ns) + delta_ns

    def text(self) -> str:
        """A short text for the user."""
        adaptive = {"none": "", "counting": ", counting copies"}.get(self.adaptive, f", {self.adaptive} time-outs")
        return f"ρ = {self.rho}, η = {duration_text(self.eta_ns)}, ω = {duration_text(self.omega_ns)}{adaptive}"


def eta_of_one(delay: DelayModel, alpha: float) -> int:
    """The η within which one send arrives with probability α (§3.3, the first choice)."""
    return max(1_000, delay.quantile(_checked_alpha(alpha)))


def eta_of_all(delay: DelayModel, alpha: float, members: int) -> int:
    """The η within which all n-1 parallel sends arrive with probability α (§3.3, the conservative choice)."""
    if members < 2:
        raise InvalidOption("members", f"expected at least 2 members, since a multicast has a receiver; got {members}")
    return max(1_000, delay.quantile(_checked_alpha(alpha) ** (1 / (members - 1))))


def _checked_alpha(alpha: float) -> float:
    if not 0 < alpha < 1:
        raise InvalidOption("alpha", f"expected a probability between 0 and 1, got {alpha}")
    return alpha
