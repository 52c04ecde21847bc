"""What can be turned to keep a promise over a network that changes, and what each setting is worth (paper 002 §3.2).

A remedy knows the settings of one mechanism: whether a setting keeps the promise over a network as estimated, what it
costs, which is the cheapest that does, and what can still be offered where none does. Settings are few and far apart,
so that small changes of an estimate change nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import log10
from typing import Protocol, TypeVar

from unisono.model.durations import duration_text
from unisono.model.redundancy import Redundancy
from unisono.model.timing import Timing
from unisono.net.fec.layer import residual_loss
from unisono.qos.adapt.estimate import Estimate
from unisono.qos.plan.negotiation import CounterOffer, Environment, Requirement, Target, meets, negotiate
from unisono.qos.plan.rmcast_model import FOREVER_NS, NetworkModel, reach_probability

Setting = TypeVar("Setting")

RHO_MOST = 6
DELAY_SPREAD_SHARE = 0.95
"""Delays differ as much as their quantiles at this share and at the rest of it do."""
CANDIDATE_LENGTHS_NS = tuple(int(500_000 * 2 ** (step / 2)) for step in range(18))
"""Lengths of η and of slots that are tried, 0.5 ms to about 180 ms: each is √2 times the one before."""


class Mechanism(Protocol[Setting]):
    """One mechanism with its settings."""

    def keeps_promise(self, setting: Setting, estimate: Estimate) -> bool:
        """Whether the promise holds with this setting."""

    def cost(self, setting: Setting) -> float:
        """What it takes: datagrams per datagram, or per second."""

    def settings(self, estimate: Estimate | None = None) -> Iterator[Setting]:
        """All that can be tried, the cheapest first; with an estimate, what makes sense over such a network."""

    def best(self, estimate: Estimate) -> Setting:
        """The setting that comes nearest to the promise where none keeps it."""

    def possible_guarantee(self, estimate: Estimate) -> str:
        """What can be promised instead."""

    def text(self, setting: Setting) -> str:
        """In words."""


def cheapest(mechanism: Mechanism[Setting], estimate: Estimate) -> Setting | None:
    """The first setting that keeps the promise."""
    return next(
        (setting for setting in mechanism.settings(estimate) if mechanism.keeps_promise(setting, estimate)), None
    )


@dataclass(frozen=True, slots=True)
class RedundancyMechanism:
    """ρ, η and ω of reliable multicast: everybody has a message within D with probability R."""

    members: int
    promise: Target
    omega_per_eta: float = 1.0
    """ω in η."""
    rho_most: int = RHO_MOST
    declared: Redundancy | None = None
    """Where not all of ρ and η may be changed, those that may not."""
    may_change_rho: bool = True
    may_change_eta: bool = True

    def _environment(self, estimate: Estimate) -> Environment:
        return Environment(self.members, NetworkModel(estimate.delay_model, estimate.loss), rho_most=self.rho_most)

    def keeps_promise(self, setting: Redundancy, estimate: Estimate) -> bool:
        if not self._copies_suffice(setting.rho, estimate):
            return False  # not even whenever: no need to look at delays
        return meets(Requirement(self.promise), self._environment(estimate), setting)

    def _copies_suffice(self, rho: int, estimate: Estimate) -> bool:
        """Whether so many copies are enough against losses, whenever they come (002-11)."""
        reached: float = (1 - estimate.loss ** (rho + 1)) ** (self.members - 1)
        return reached >= self.promise.share

    def cost(self, setting: Redundancy) -> float:
        return setting.rho + 1

    def settings(self, estimate: Estimate | None = None) -> Iterator[Redundancy]:
        """Fewest copies first; of those the longest η, which makes the fewest needless takeovers.

        Copies are for losses. r_D takes their delays for independent, and so would have more and quicker copies outrun
        long delays too; but copies that follow each other wait in the same queue, and make it longer. So over a network
        as estimated there are no more of them than its losses need, and receivers wait for the next one at least
        as long as delays differ: else they would take over what is only late.
        """
        fixed, most, patience_ns = self.declared, self.rho_most, 0
        if estimate is not None:
            most = next((rho for rho in range(most) if self._copies_suffice(rho, estimate)), most)
            late, soon = (
                estimate.delay_model.quantile(share) for share in (DELAY_SPREAD_SHARE, 1 - DELAY_SPREAD_SHARE)
            )
            patience_ns = late - soon
        rhos = range(most + 1) if self.may_change_rho or fixed is None else (fixed.rho,)
        longest = self.promise.within_ns or CANDIDATE_LENGTHS_NS[-1]
        etas = [eta for eta in reversed(CANDIDATE_LENGTHS_NS) if eta <= longest] or [CANDIDATE_LENGTHS_NS[0]]
        etas = [eta for eta in etas if eta * (1 + self.omega_per_eta) >= patience_ns] or etas[:1]
        if fixed is not None and not self.may_change_eta:
            etas = [fixed.eta_ns]
        for rho in rhos:
            for eta_ns in etas:
                if rho * eta_ns <= longest:
                    yield Redundancy(rho, eta_ns, int(self.omega_per_eta * eta_ns))

    def best(self, estimate: Estimate) -> Redundancy:
        """What fails least often to reach everybody in time; of what is as good to a quarter, the cheapest."""
        network, within_ns = NetworkModel(estimate.delay_model, estimate.loss), self.promise.within_ns or FOREVER_NS

        def worth(setting: Redundancy) -> float:
            return -round(10 * log10(max(1 - reach_probability(self.members, network, setting, within_ns), 1e-12)))

        return max(self.settings(estimate), key=worth)

    def possible_guarantee(self, estimate: Estimate) -> str:
        answer = negotiate(Requirement(self.promise), self._environment(estimate))
        if isinstance(answer, CounterOffer):
            return "; or ".join(offer.text() for offer in answer.alternatives)
        return answer.guarantee.text()

    def text(self, setting: Redundancy) -> str:
        return setting.text()


@dataclass(frozen=True, slots=True)
class FecMechanism:
    """The strength a of forward error correction with blocks of k originals: few enough frames stay lost."""

    originals: int
    residual_loss_max: float
    """The share of frames that may stay lost."""
    redundant_max: int = 16

    def keeps_promise(self, setting: tuple[int, int], estimate: Estimate) -> bool:
        a, b = setting
        return estimate.loss_burst <= a and residual_loss(estimate.loss, a, b) <= self.residual_loss_max

    def cost(self, setting: tuple[int, int]) -> float:
        return setting[1] / (setting[1] - setting[0])

    def settings(self, estimate: Estimate | None = None) -> Iterator[tuple[int, int]]:
        for a in range(1, self.redundant_max + 1):
            yield a, self.originals + a

    def best(self, estimate: Estimate) -> tuple[int, int]:
        return self.redundant_max, self.originals + self.redundant_max

    def possible_guarantee(self, estimate: Estimate) -> str:
        a, b = self.best(estimate)
        return f"{residual_loss(estimate.loss, a, b):.3g} of the frames lost with {a} redundant of {b}"

    def text(self, setting: tuple[int, int]) -> str:
        return f"{setting[0]} redundant of {setting[1]} shares"


@dataclass(frozen=True, slots=True)
class SlotLengthMechanism:
    """Θ: what the network's delay and the clocks leave of the latency that was promised."""

    promise: Target
    timing: Timing
    shortest_ns: int = 1_000_000
    longest_ns: int = 50_000_000
    gamma_count: int = 1
    """How often Γ counts in the order's bound."""

    def _bound_ns(self, setting: int, estimate: Estimate) -> int:
        """The order's bound with what was measured in place of Δ and Γ."""
        return estimate.delay_model.quantile(self.promise.share) + self.gamma_count * estimate.gamma_ns + setting

    def keeps_promise(self, setting: int, estimate: Estimate) -> bool:
        return self.promise.within_ns is None or self._bound_ns(setting, estimate) <= self.promise.within_ns

    def cost(self, setting: int) -> float:
        return 1e9 / setting

    def settings(self, estimate: Estimate | None = None) -> Iterator[int]:
        for theta_ns in reversed(CANDIDATE_LENGTHS_NS):
            if self.shortest_ns <= theta_ns <= self.longest_ns:
                yield theta_ns

    def best(self, estimate: Estimate) -> int:
        return min(self.settings())

    def possible_guarantee(self, estimate: Estimate) -> str:
        bound = duration_text(self._bound_ns(self.best(estimate), estimate))
        return f"{self.promise.share:.6g} within {bound} with slots of {duration_text(self.best(estimate))}"

    def text(self, setting: int) -> str:
        return f"slots of {duration_text(setting)}"
