"""Offers of orders over RMCast.

An order relies on a hard bound Δ. RMCast has no such bound: a multicast reaches all members within D with probability
r_D. So the offer uses a D with the required reliability as its Δ. Negotiation goes down and up: the deadline minus the
time that the order itself takes is the D required of RMCast; the D that RMCast guarantees replaces Δ in the order's
latency bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from unisono.model.delays import ConstantDelay
from unisono.model.offers import Ask, Offer
from unisono.model.policy import Redundancy
from unisono.model.units import duration_text
from unisono.net.rmcast.copies import RMCAST_BYTES
from unisono.qos.plan import rmcast_model as rmcast
from unisono.qos.plan.negotiation import Agreement, CounterOffer, Environment, Guarantee, Requirement, Target, negotiate
from unisono.qos.plan.rmcast_model import CrashModel, NetworkModel

OfferFunction = Callable[[Ask], Offer]
DEFAULT_RELIABILITY = 0.999
"""The reliability required of RMCast if the caller names none."""
_BELOW_ONE = 1 - 2**-53


@dataclass(frozen=True, slots=True)
class ReliabilityRequirement:
    """The requirements besides the deadline; the glossary explains R, (U, S) and agreement.

    `reliability` is R and `relative` is (U, S). `agreement` is a probability; it also needs the model `crashes`.
    """

    reliability: float = 0.0
    relative: Target | None = None
    crashes: CrashModel | None = None
    agreement: float = 0.0


@dataclass(frozen=True, slots=True)
class OrderQos:
    """An order as a layer of the negotiation.

    Each delivery depends on `hops` multicasts: it is on time if all of them are.
    """

    name: str
    offer: OfferFunction
    ask: Ask
    hops: int
    resends: bool = False

    def bound_ns(self, delta_ns: int) -> int:
        """The order's latency bound if Δ is `delta_ns`."""
        timing = replace(self.ask.timing, delta_ns=delta_ns)
        return self.offer(replace(self.ask, timing=timing)).latency_bound_ns

    def needs(self, requirement: Requirement) -> Requirement | None:
        """What RMCast must guarantee: the Δ that the deadline leaves for each multicast. None if nothing is left."""
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
        """The order's latency bound, with the time D that RMCast guarantees as its Δ."""
        if guarantee_below.latency is None:
            return guarantee_below
        within_ns = guarantee_below.latency.within_ns
        bound_ns = None if within_ns is None else self.bound_ns(within_ns)
        return replace(guarantee_below, latency=Target(guarantee_below.latency.share**self.hops, bound_ns))


def network_of(ask: Ask) -> NetworkModel:
    """The network of a request; if only Δ is known, every datagram takes that long."""
    delay = ask.delay if ask.delay is not None else ConstantDelay(ask.timing.delta_ns)
    return NetworkModel(delay, ask.loss, ask.delays_dependent)


def over_rmcast(
    order: OfferFunction, ask: Ask, reliability_requirement: ReliabilityRequirement, *, hops: int, resends: bool = False
) -> Offer:
    """An order's offer over RMCast at the cheapest setting; infeasible, with alternatives, if no setting fits."""
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
        raise AssertionError("negotiation agreed on a share of multicasts without a time within which they arrive")
    setting, cost = answer.redundancy, answer.expected_broadcasts
    left_out = ask.loss ** (setting.rho + 1)
    # After a loss, an order that retransmits is late, which r_D already counts. Other orders wait forever.
    loss = 0.0 if layer.resends else left_out
    offer = layer.offer(replace(layer.ask, timing=replace(ask.timing, delta_ns=latency.within_ns), loss=loss))
    average, burst = offer.avg_rate * cost, offer.max_burst * (2 * setting.rho + 1)
    senders = f"{setting.rho + 1} by its sender, the rest by receivers that missed a copy"
    why = (
        f"Δ = {duration_text(latency.within_ns)}, the D at which r_D reaches {latency.share:.6g}",
        f"each datagram is broadcast {cost:.3g} times, {senders}: {offer.avg_rate:g}/s × {cost:.3g} = {average:.6g}/s",
        f"burst {offer.max_burst} × (2ρ+1) = {burst}: copies from ρ earlier slots may coincide; take-overs add to this",
    )
    return replace(
        offer,
        order=_name(layer, setting),
        avg_rate=average,
        max_burst=burst,
        header_bytes=offer.header_bytes + RMCAST_BYTES,
        loss_tolerance=f"{setting.rho + 1} copies: a receiver misses {left_out:.3g} of the messages",
        reliability=min(offer.reliability, latency.share**layer.hops),
        reasons=(*offer.reasons, *why, *walk),
        redundancy=setting,
        broadcasts=cost,
        delta_ns=latency.within_ns,
    )


def _offer_from_counter_offer(layer: OrderQos, answer: CounterOffer, walk: tuple[str, ...]) -> Offer:
    """An offer that is marked as infeasible and names the nearest guarantee that is possible."""
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
