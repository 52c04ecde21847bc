"""What an order offers over RMCast: the order's own arithmetic with Δ = the D at which r_D reaches what is asked.

An order rests on a hard Δ. Over RMCast it is a quantile: a multicast has reached everybody within D with probability
r_D. So a deadline, less what the order itself takes, is the D that RMCast is asked for, with the asked reliability as
R; and the D that RMCast can give, put in place of Δ, is the order's bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from unisono.model.delays import ConstantDelay
from unisono.model.durations import duration_text
from unisono.model.offers import Ask, Offer
from unisono.model.redundancy import Redundancy
from unisono.net.rmcast.copies import RMCAST_BYTES
from unisono.qos.plan import rmcast_model as rmcast
from unisono.qos.plan.negotiation import Agreement, CounterOffer, Environment, Guarantee, Requirement, Target, negotiate
from unisono.qos.plan.rmcast_model import CrashModel, NetworkModel

OfferFunction = Callable[[Ask], Offer]
DEFAULT_RELIABILITY = 0.999
"""What RMCast is asked for where no reliability is."""
_BELOW_ONE = 1 - 2**-53


@dataclass(frozen=True, slots=True)
class ReliabilityRequirement:
    """What is asked beyond the deadline: R, (U, S), and agreement where it is known how processes crash."""

    reliability: float = 0.0
    relative: Target | None = None
    crashes: CrashModel | None = None
    agreement: float = 0.0


@dataclass(frozen=True, slots=True)
class OrderQos:
    """An order as a layer of the negotiation: `hops` multicasts have to be in time for a message to be."""

    name: str
    offer: OfferFunction
    ask: Ask
    hops: int
    resends: bool = False

    def bound_ns(self, delta_ns: int) -> int:
        """The order's latency bound, were this Δ."""
        timing = replace(self.ask.timing, delta_ns=delta_ns)
        return self.offer(replace(self.ask, timing=timing)).latency_bound_ns

    def needs(self, requirement: Requirement) -> Requirement | None:
        """The Δ that is left of the deadline, for each multicast on the way."""
        if requirement.latency is None:
            return requirement
        share, within_ns = requirement.latency.share ** (1 / self.hops), requirement.latency.within_ns
        if within_ns is not None:
            limit_ns = within_ns
            within_ns = rmcast.largest_where(lambda delta_ns: self.bound_ns(delta_ns) <= limit_ns, limit_ns)
            if within_ns is None:
                return None
        return replace(requirement, latency=Target(min(share, _BELOW_ONE), within_ns))

    def guarantee(self, guarantee_below: Guarantee) -> Guarantee:
        """The bound with that D for Δ."""
        if guarantee_below.latency is None:
            return guarantee_below
        within_ns = guarantee_below.latency.within_ns
        bound_ns = None if within_ns is None else self.bound_ns(within_ns)
        return replace(guarantee_below, latency=Target(guarantee_below.latency.share**self.hops, bound_ns))


def network_of(ask: Ask) -> NetworkModel:
    """The network that is asked about; where only Δ is known, every datagram takes that long."""
    delay = ask.delay if ask.delay is not None else ConstantDelay(ask.timing.delta_ns)
    return NetworkModel(delay, ask.loss, ask.delays_dependent)


def over_rmcast(
    order: OfferFunction, ask: Ask, reliability_requirement: ReliabilityRequirement, *, hops: int, resends: bool = False
) -> Offer:
    """An order's offer with RMCast under it, at the cheapest setting; where none fits, what could be had instead."""
    above = replace(ask, loss=0.0, loss_burst=0, fec=None)
    name = order(above).order
    share = reliability_requirement.reliability or DEFAULT_RELIABILITY
    required = Requirement(
        Target(share, ask.deadline_ns), reliability_requirement.relative, reliability_requirement.agreement
    )
    layer = OrderQos(name, order, above, hops, resends)
    answer = negotiate(required, Environment(ask.members, network_of(ask), reliability_requirement.crashes), (layer,))
    walk = tuple(f"{'↓' if step.direction == 'down' else '↑'} {step.layer} {step.text}" for step in answer.steps)
    if isinstance(answer, CounterOffer):
        return _offer_from_counter_offer(layer, answer, walk)
    return _offer_from_agreement(layer, ask, answer, walk)


def _offer_from_agreement(layer: OrderQos, ask: Ask, answer: Agreement, walk: tuple[str, ...]) -> Offer:
    latency = answer.rmcast_guarantee.latency
    if latency is None or latency.within_ns is None:
        raise AssertionError("a share was asked for, and the time at which it is reached is part of the answer")
    setting, cost = answer.redundancy, answer.expected_broadcasts
    left_out = ask.loss ** (setting.rho + 1)
    # An order that sends again what is lost is late then, which r_D already counts; one that waits never gets over it.
    loss = 0.0 if layer.resends else left_out
    offer = layer.offer(replace(layer.ask, timing=replace(ask.timing, delta_ns=latency.within_ns), loss=loss))
    average, burst = offer.avg_rate * cost, offer.max_burst * (2 * setting.rho + 1)
    others = f"{setting.rho + 1} by its sender, the rest by receivers that missed a copy"
    why = (
        f"Δ = {duration_text(latency.within_ns)}, the D at which r_D reaches {latency.share:.6g}",
        f"each datagram is broadcast {cost:.3g} times, {others}: {offer.avg_rate:g}/s × {cost:.3g} = {average:.6g}/s",
        f"burst {offer.max_burst} × (2ρ+1) = {burst}: copies of ρ slots before may meet; takeovers come on top",
    )
    return replace(
        offer,
        order=_name(layer, setting),
        avg_rate=average,
        max_burst=burst,
        header_bytes=offer.header_bytes + RMCAST_BYTES,
        loss_tolerance=f"{setting.rho + 1} copies: {left_out:.3g} of what is sent stays lost to one receiver",
        reliability=min(offer.reliability, latency.share**layer.hops),
        reasons=(*offer.reasons, *why, *walk),
        redundancy=setting,
        broadcasts=cost,
    )


def _offer_from_counter_offer(layer: OrderQos, answer: CounterOffer, walk: tuple[str, ...]) -> Offer:
    """The nearest that could be had, marked as not enough."""
    instead = [offer.latency for offer in answer.alternatives if offer.latency and offer.latency.within_ns is not None]
    nearest = instead[-1] if instead else None
    offer = layer.offer(layer.ask)
    against = [answer.reason]
    if nearest is not None:
        against.append("instead: " + "; or ".join(target.text() for target in instead))
    return replace(
        offer,
        order=_name(layer, None),
        feasible=False,
        latency_bound_ns=nearest.within_ns if nearest and nearest.within_ns is not None else offer.latency_bound_ns,
        reliability=nearest.share if nearest else 0.0,
        reasons=(*against, *walk),
    )


def _name(layer: OrderQos, setting: Redundancy | None) -> str:
    return f"{layer.name} over rmcast" + (f" ρ={setting.rho}" if setting else "")
