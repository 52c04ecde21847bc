"""The planner: the offers of all orders for a request, side by side, and the cheapest that fits.

Each order and layer computes its own offer. The planner combines them (an order alone, over forward error correction,
over RMCast), states every objection to each, and chooses by cost: the lowest average rate, then the lowest latency
bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from unisono.model.capabilities import CAPABILITIES
from unisono.model.offers import Ask, Offer
from unisono.model.policy import check_slots
from unisono.model.units import duration_text
from unisono.net.fec.layer import ask_above_fec, offer_through_fec
from unisono.orders.cbr import bounds as cbr_offer
from unisono.orders.consensus import bounds as consensus_offer
from unisono.orders.final.bounds import with_finals
from unisono.orders.leader import broadcast as leader
from unisono.orders.leader import timestamp
from unisono.orders.priority import bounds as priority_offer
from unisono.orders.quasi_genuine import bounds as quasi_genuine_offer
from unisono.orders.vbr import bounds as vbr_offer
from unisono.qos.plan.over_rmcast import OfferFunction, ReliabilityRequirement, over_rmcast
from unisono.wire.frame import FRAME_NUMBER_MAX


@dataclass(frozen=True, slots=True)
class Candidate:
    """An order that the planner can choose: its offer, and how many multicasts a delivery depends on."""

    order: str
    offer: OfferFunction
    hops: Callable[[int], int]
    """How many multicasts a delivery depends on, as a function of the number of members.

    It is the number of members in orders that never skip a member.
    """
    resends: bool = True
    """Whether the order retransmits lost messages."""

    @property
    def fec_possible(self) -> bool:
        """Whether the order can run over forward error correction."""
        return "fec" in CAPABILITIES[self.order].options

    @property
    def rmcast_possible(self) -> bool:
        """Whether the order can run over RMCast."""
        return "reliable" in CAPABILITIES[self.order].options

    @property
    def can_be_final(self) -> bool:
        """Whether the deliveries of the order can become final."""
        return "grades" in CAPABILITIES[self.order].options

    def offer_in_grades(self, ask: Ask) -> Offer:
        """The order's offer in the requested grades, if the order supports them."""
        if ask.grades == "early" or not self.can_be_final:
            return self.offer(ask)
        return with_finals(self.offer(replace(ask, reliable=False)), ask)


CANDIDATES = (
    Candidate("cbr", cbr_offer.offer, lambda members: members, resends=False),
    Candidate("vbr", vbr_offer.offer, lambda members: members, resends=False),
    Candidate("vbr", vbr_offer.offer_with_failures, lambda _: 1, resends=False),
    Candidate("leader", leader.offer, lambda _: 2),
    Candidate("timestamp", timestamp.offer, lambda _: 3),
    Candidate("consensus", consensus_offer.offer_consensus, lambda _: 4),
    Candidate("quasi_genuine", quasi_genuine_offer.offer_quasi_genuine_on_demand, lambda _: 4),
    Candidate("quasi_genuine", quasi_genuine_offer.offer_quasi_genuine_periodic, lambda _: 4),
    Candidate("priority", priority_offer.offer_priority, lambda members: members),
    Candidate("priority_coordinator", priority_offer.offer_priority_coordinator, lambda members: members + 1),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """All offers, and the chosen one; if none fits, `refusal` says why."""

    candidates: tuple[Offer, ...]
    chosen: Offer | None
    refusal: str = ""


def lower_bound_ns(ask: Ask) -> int:
    """The lowest latency that a gap-free order can guarantee with f crashes: (f+1)Δ (paper 000, Theorem 4)."""
    return (ask.failures + 1) * ask.timing.delta_ns if ask.reliable else 0


def plan(ask: Ask, reliability: float = 0.0, reliability_requirement: ReliabilityRequirement | None = None) -> Plan:
    """The offers of all orders: on the network, over forward error correction if requested, and over RMCast.

    RMCast is considered if there is something to repair: losses, or delays that Δ does not bound.
    """
    reliability_requirement = reliability_requirement or ReliabilityRequirement(reliability)
    check_slots(ask.timing)
    candidates = [
        _with_objections(_without_repair(candidate, ask), ask, reliability_requirement.reliability)
        for candidate in CANDIDATES
    ]
    if ask.fec is not None:
        for candidate in CANDIDATES:
            if candidate.fec_possible:
                coded = offer_through_fec(candidate.offer_in_grades(ask_above_fec(ask)), ask.fec, ask.timing.theta_ns)
                coded = replace(coded, order=f"{coded.order} over fec {ask.fec[0]}/{ask.fec[1]}")
                candidates.append(_with_objections(coded, ask, reliability_requirement.reliability))
    if ask.members > 1 and (ask.loss or ask.delay is not None):
        for candidate in (each for each in CANDIDATES if each.rmcast_possible):
            hops = candidate.hops(ask.members)
            offer = over_rmcast(candidate.offer, ask, reliability_requirement, hops=hops, resends=candidate.resends)
            candidates.append(_with_objections(offer, ask, reliability_requirement.reliability))
    fitting = [offer for offer in candidates if offer.feasible and offer.by_priority == ask.priorities]
    if fitting:
        best = min(fitting, key=lambda offer: (offer.avg_rate, offer.latency_bound_ns))
        return Plan(tuple(candidates), best)
    return Plan(tuple(candidates), None, _refusal(ask, candidates))


def _without_repair(candidate: Candidate, ask: Ask) -> Offer:
    """An order directly on the network: a datagram that takes longer than Δ counts as lost."""
    offer = candidate.offer_in_grades(replace(ask, fec=None))
    if ask.delay is None:
        return offer
    in_time = ask.delay.cdf(ask.timing.delta_ns) ** ((ask.members - 1) * candidate.hops(ask.members))
    late = f"without loss, all datagrams of a delivery arrive within Δ with probability {in_time:.6g}"
    return replace(offer, reliability=offer.reliability * in_time, reasons=(*offer.reasons, late))


def _with_objections(offer: Offer, ask: Ask, reliability: float) -> Offer:
    """The offer, marked infeasible with all objections first if it does not meet the request."""
    against = []
    # With two grades, early deliveries are on time and final ones have no gaps; Theorem 4 is about both at once.
    floor = lower_bound_ns(ask) if offer.final_latency_ns is None else 0
    if ask.deadline_ns is not None and floor > ask.deadline_ns:
        against.append(_theorem_4(ask, floor))
    if ask.grades != "early" and offer.final_latency_ns is None:
        against.append("its deliveries do not become final")
    if ask.deadline_ns is not None and offer.latency_bound_ns > ask.deadline_ns:
        bound, deadline = duration_text(offer.latency_bound_ns), duration_text(ask.deadline_ns)
        against.append(f"its bound of {bound} exceeds the deadline of {deadline}")
    if ask.priorities and not offer.by_priority:
        against.append("priorities do not affect its order, only which of a sender's own messages goes first")
    excess = ask.rate.average_excess(ask.timing.theta_ns)
    if excess and not offer.order.startswith("cbr"):
        against.append(excess)
    if offer.max_burst > FRAME_NUMBER_MAX:
        against.append(f"it may need {offer.max_burst:,} datagrams per slot; at most {FRAME_NUMBER_MAX:,} are possible")
    if ask.reliable and not offer.gap_free:
        against.append("it may have gaps, and the request rules them out")
    if offer.reliability < reliability:
        against.append(
            f"a message reaches all members with probability {offer.reliability:.6g}; {reliability:g} is required"
        )
    if not against:
        return offer
    return replace(offer, feasible=False, reasons=(*against, *offer.reasons))


def _theorem_4(ask: Ask, floor: int) -> str:
    return (
        f"no gap-free order that tolerates {ask.failures} crashes can be faster than (f+1)Δ = "
        f"{ask.failures + 1} × {duration_text(ask.timing.delta_ns)} = {duration_text(floor)} (paper 000, Theorem 4)"
    )


def _refusal(ask: Ask, candidates: list[Offer]) -> str:
    floor = lower_bound_ns(ask)
    if ask.deadline_ns is not None and floor > ask.deadline_ns:
        return f"{_theorem_4(ask, floor)}; allow gaps, tolerate fewer crashes, or extend the deadline"
    if ask.deadline_ns is not None and all(c.latency_bound_ns > ask.deadline_ns for c in candidates):
        best = min(candidates, key=lambda offer: offer.latency_bound_ns)
        return f"the lowest bound is {duration_text(best.latency_bound_ns)}, by {best.order}"
    return "no order fits; each offer states why"
