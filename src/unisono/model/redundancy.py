"""ρ, η, ω: how often a reliable multicast is sent, and when its receivers take over (paper 002 §3.3, appendix B)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from unisono.errors import InvalidOption
from unisono.model.delays import DelayModel
from unisono.model.durations import duration_text

Adaptive: TypeAlias = Literal["none", "exact", "heuristic", "counting"]
ADAPTIVE: tuple[str, ...] = get_args(Adaptive)
RHO_MAX = 254
"""The largest copy number that the wire has room for, less one."""


@dataclass(frozen=True, slots=True)
class RelativeRequirement:
    """What a receiver asks for: everyone else has the message within S of it, with probability U (§3.1, B.1).

    `loss` and `delay` say what one send is like. The exact adaptive time-out rests on all four.
    """

    success: float
    within_ns: int
    loss: float
    delay: DelayModel

    def __post_init__(self) -> None:
        if not 0 < self.success < 1:
            raise InvalidOption("relative.success", f"a probability between 0 and 1 is needed, not {self.success}")
        if self.within_ns < 1:
            raise InvalidOption("relative.within", f"a duration above zero is needed, not {self.within_ns} ns")
        if not 0 <= self.loss < 1:
            raise InvalidOption("relative.loss", f"a probability from 0 to below 1 is needed, not {self.loss}")

    def not_arrived_probability(self, x_ns: int) -> float:
        """h(x): the probability that one send has not arrived x after it (equation 1)."""
        return 1.0 if x_ns <= 0 else 1 - (1 - self.loss) * self.delay.cdf(x_ns)


@dataclass(frozen=True, slots=True)
class Redundancy:
    """A message is broadcast ρ+1 times, η apart; who misses the next copy for η+ω and ζ more takes over.

    `adaptive` is how a receiver lengthens ω: not at all, by (9) to (11), which needs `relative`, by the heuristic of
    B.2, or by that and counting: who knows of ρ+2 broadcasts makes none itself. `last_copy` lets a process whose first
    copy is copy ρ broadcast it once more unless somebody else does (erratum 002-3); unless told, that is so under
    uniform delivery and not otherwise.
    """

    rho: int
    eta_ns: int
    omega_ns: int = 0
    adaptive: Adaptive = "none"
    relative: RelativeRequirement | None = None
    last_copy: bool | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.rho <= RHO_MAX:
            raise InvalidOption("redundancy.rho", f"0 to {RHO_MAX} repetitions are possible, not {self.rho}")
        if not 1_000 <= self.eta_ns < 2**62:
            raise InvalidOption("redundancy.eta", f"an interval of at least 1us is needed, not {self.eta_ns} ns")
        if not 0 <= self.omega_ns < 2**62:
            raise InvalidOption("redundancy.omega", f"a duration cannot be negative, and {self.omega_ns} ns is")
        if self.adaptive not in ADAPTIVE:
            raise InvalidOption("redundancy.adaptive", f"{', '.join(ADAPTIVE)} are possible, not {self.adaptive!r}")
        if (self.relative is not None) != (self.adaptive == "exact"):
            raise InvalidOption(
                "redundancy.relative", "U, S, the loss and the delay go with adaptive = 'exact', and only with it"
            )

    def longest_wait_ns(self) -> int:
        """The longest that a process which will broadcast may wait: η, the longest finite ω, and ζ's η."""
        if self.adaptive in ("heuristic", "counting"):
            return 2 * self.eta_ns + self.omega_ns + max(self.rho, 1) * self.eta_ns
        if self.relative is not None:
            return 2 * self.eta_ns + max(self.omega_ns, self.relative.within_ns)
        return 2 * self.eta_ns + self.omega_ns

    def message_lifetime_ns(self, members: int, delta_ns: int) -> int:
        """How long after its first broadcast a message can still be on its way, if no copy takes longer than Δ.

        A process broadcasts each copy number at most once, so there are at most n(ρ+1) broadcasts. If none has been
        made for longer than the longest wait and Δ, every copy has arrived and every timer has run out: none follows.
        """
        return members * (self.rho + 1) * (self.longest_wait_ns() + delta_ns) + delta_ns

    def text(self) -> str:
        """In short, for people."""
        adaptive = {"none": "", "counting": ", counting copies"}.get(self.adaptive, f", {self.adaptive} time-outs")
        return f"ρ = {self.rho}, η = {duration_text(self.eta_ns)}, ω = {duration_text(self.omega_ns)}{adaptive}"


def eta_of_one(delay: DelayModel, alpha: float) -> int:
    """η that one send's delay stays below with probability α (§3.3, the first choice)."""
    return max(1_000, delay.quantile(_checked_alpha(alpha)))


def eta_of_all(delay: DelayModel, alpha: float, members: int) -> int:
    """η that the largest of n-1 parallel delays stays below with probability α (§3.3, the conservative choice)."""
    if members < 2:
        raise InvalidOption("members", f"a multicast has at least one destination, so 2 members, not {members}")
    return max(1_000, delay.quantile(_checked_alpha(alpha) ** (1 / (members - 1))))


def _checked_alpha(alpha: float) -> float:
    if not 0 < alpha < 1:
        raise InvalidOption("alpha", f"a probability between 0 and 1 is needed, not {alpha}")
    return alpha
