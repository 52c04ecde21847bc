"""The planner: the offers of all orders for a request, side by side, and the cheapest that fits.

Each order and layer computes its own offer. The planner combines them (an order alone, over forward error correction,
over RMCast), states every objection to each, and chooses by cost: the lowest average rate, then the lowest latency
bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from unisono.errors import InvalidOption, ReservationRefused
from unisono.model.capabilities import CAPABILITIES
from unisono.model.events import View
from unisono.model.offers import Ask, Offer
from unisono.model.options import Cbr, Consensus, Leader, OrderOptions, Priority, QuasiGenuine, Timestamp, Vbr
from unisono.model.policy import Policy, check_slots
from unisono.model.topology import multigroup_of
from unisono.model.units import UnlimitedNetwork, duration_text, exact_duration_text
from unisono.net.fec.layer import ask_above_fec, offer_through_fec
from unisono.orders.cbr import bounds as cbr_offer
from unisono.orders.consensus import bounds as consensus_offer
from unisono.orders.final.bounds import with_finals
from unisono.orders.leader import broadcast as leader
from unisono.orders.leader import timestamp
from unisono.orders.priority import bounds as priority_offer
from unisono.orders.quasi_genuine import bounds as quasi_genuine_offer
from unisono.orders.quasi_genuine.bounds import planned_multigroup
from unisono.orders.vbr import bounds as vbr_offer
from unisono.qos.plan.admission import Link
from unisono.qos.plan.over_rmcast import OfferFunction, ReliabilityRequirement, over_rmcast
from unisono.stack import build
from unisono.wire.frame import FRAME_NUMBER_MAX


@dataclass(frozen=True, slots=True)
class Candidate:
    """An order that the planner can choose: its offer, and how many multicasts a delivery depends on."""

    order: str
    offer: OfferFunction
    options: Callable[[Ask], OrderOptions]
    """The options with which `join` gives this offer."""
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


def _slot(ask: Ask) -> str:
    return exact_duration_text(ask.timing.theta_ns)


def _processing(ask: Ask) -> str:
    return exact_duration_text(ask.processing_ns)


def _vbr_with_failures(ask: Ask) -> OrderOptions:
    return Vbr(slot=_slot(ask), failures=True, loss_burst=ask.loss_burst)


CANDIDATES = (
    Candidate("cbr", cbr_offer.offer, lambda ask: Cbr(slot=_slot(ask)), lambda members: members, resends=False),
    Candidate("vbr", vbr_offer.offer, lambda ask: Vbr(slot=_slot(ask)), lambda members: members, resends=False),
    Candidate("vbr", vbr_offer.offer_with_failures, _vbr_with_failures, lambda _: 1, resends=False),
    Candidate("leader", leader.offer, lambda ask: Leader(slot=_slot(ask), processing=_processing(ask)), lambda _: 2),
    Candidate(
        "timestamp", timestamp.offer, lambda ask: Timestamp(slot=_slot(ask), processing=_processing(ask)), lambda _: 3
    ),
    Candidate("consensus", consensus_offer.offer_consensus, lambda ask: Consensus(slot=_slot(ask)), lambda _: 4),
    Candidate(
        "quasi_genuine",
        quasi_genuine_offer.offer_quasi_genuine_on_demand,
        lambda ask: QuasiGenuine(slot=_slot(ask), topology=planned_multigroup(ask, "on_demand")),
        lambda _: 4,
    ),
    Candidate(
        "quasi_genuine",
        quasi_genuine_offer.offer_quasi_genuine_periodic,
        lambda ask: QuasiGenuine(slot=_slot(ask), topology=planned_multigroup(ask, "periodic")),
        lambda _: 4,
    ),
    Candidate(
        "priority", priority_offer.offer_priority, lambda ask: Priority(slot=_slot(ask)), lambda members: members
    ),
    Candidate(
        "priority_coordinator",
        priority_offer.offer_priority_coordinator,
        lambda ask: Priority(slot=_slot(ask), coordinator=True),
        lambda members: members + 1,
    ),
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
    offers = [_without_repair(candidate, ask) for candidate in CANDIDATES]
    if ask.fec is not None:
        offers += [_over_fec(candidate, ask, ask.fec) for candidate in CANDIDATES if candidate.fec_possible]
    if ask.members > 1 and (ask.loss or ask.delay is not None):
        for candidate in (each for each in CANDIDATES if each.rmcast_possible):
            hops = candidate.hops(ask.members)
            offer = over_rmcast(candidate.offer, ask, reliability_requirement, hops=hops, resends=candidate.resends)
            options: Any = replace(candidate.options(replace(ask, loss_burst=0)), reliable=offer.redundancy)  # type: ignore[call-arg]
            offers.append(replace(offer, options=options))
    candidates = [_with_objections(offer, ask, reliability_requirement.reliability) for offer in offers]
    fitting = [offer for offer in candidates if offer.feasible and offer.by_priority == ask.priorities]
    if fitting:
        best = min(fitting, key=lambda offer: (offer.avg_rate, offer.latency_bound_ns))
        return Plan(tuple(candidates), best)
    return Plan(tuple(candidates), None, _refusal(ask, candidates))


def _without_repair(candidate: Candidate, ask: Ask) -> Offer:
    """An order directly on the network: a datagram that takes longer than Δ counts as lost."""
    offer = _with_options(candidate, candidate.offer_in_grades(replace(ask, fec=None)), ask)
    if ask.delay is None:
        return offer
    in_time = ask.delay.cdf(ask.timing.delta_ns) ** ((ask.members - 1) * candidate.hops(ask.members))
    late = f"without loss, all datagrams of a delivery arrive within Δ with probability {in_time:.6g}"
    return replace(offer, reliability=offer.reliability * in_time, reasons=(*offer.reasons, late))


def _over_fec(candidate: Candidate, ask: Ask, fec: tuple[int, int]) -> Offer:
    """An order over forward error correction."""
    coded = offer_through_fec(candidate.offer_in_grades(ask_above_fec(ask)), fec, ask.timing.theta_ns)
    coded = replace(coded, order=f"{coded.order} over fec {fec[0]}/{fec[1]}")
    return _with_options(candidate, coded, ask, fec=fec)


def _with_options(candidate: Candidate, offer: Offer, ask: Ask, **further: Any) -> Offer:
    """The offer with the options that give it: those of the candidate, in the requested grades, and `further` ones."""
    if offer.final_latency_ns is not None:
        further["grades"] = ask.grades
    return replace(offer, options=replace(candidate.options(ask), **further))


def planned_policy(ask: Ask, options: OrderOptions, delta_ns: int | None = None) -> Policy:
    """The policy of one member of the planned group. A topology has members of its own."""
    members = tuple(range(1, ask.members + 1))
    if isinstance(options, QuasiGenuine):
        multigroup = multigroup_of(options.topology)
        members = members if multigroup is None else multigroup.topology.members
    timing = ask.timing if delta_ns is None else replace(ask.timing, delta_ns=delta_ns)
    return Policy(
        "plan",
        1,
        View(members),
        timing,
        ask.rate,
        order=options.name,
        max_message=ask.max_message,
        **options.policy_fields(),
    )


def _refusal_by_join(ask: Ask, offer: Offer) -> str:
    """Why `join` would refuse the options of this offer; empty if it accepts them."""
    if offer.options is None:
        return "no options of `join` give this offer"
    try:
        policy = planned_policy(ask, offer.options, offer.delta_ns)
        capacity = ask.link_bytes_per_s
        share = UnlimitedNetwork() if capacity is None else Link(f"{capacity}B/s").share(len(policy.view.members) - 1)
        build(policy, share)
    except (InvalidOption, ReservationRefused) as error:
        return str(error)
    return ""


def _with_objections(offer: Offer, ask: Ask, reliability: float) -> Offer:
    """The offer; if it does not meet the request, marked as infeasible, with the objections as its first reasons."""
    against = []
    # With two grades, early deliveries are on time and final ones have no gaps; Theorem 4 is about both at once.
    floor = lower_bound_ns(ask) if offer.final_latency_ns is None else 0
    if ask.deadline_ns is not None and floor > ask.deadline_ns:
        against.append(_theorem_4(ask, floor))
    if ask.grades != "early" and offer.final_latency_ns is None:
        against.append("its deliveries do not become final")
    # In the priority orders this bound is only the way into the queues; their offers say that they keep no deadline.
    if ask.deadline_ns is not None and not offer.by_priority and offer.latency_bound_ns > ask.deadline_ns:
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
    if not against and offer.feasible and (refused := _refusal_by_join(ask, offer)):
        against.append(refused)
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
    if ask.deadline_ns is not None and ask.priorities:
        return "no priority order can promise a deadline: leave out the deadline or the priorities"
    bounded = [offer for offer in candidates if not offer.by_priority]
    if ask.deadline_ns is not None and all(offer.latency_bound_ns > ask.deadline_ns for offer in bounded):
        best = min(bounded, key=lambda offer: offer.latency_bound_ns)
        return f"the lowest bound is {duration_text(best.latency_bound_ns)}, by {best.order}"
    return "no order fits; each offer states why"
