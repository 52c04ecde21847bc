"""What final deliveries cost beside the order that gives the early ones: reports, votes, signs of life; and time."""

from __future__ import annotations

from dataclasses import replace

from unisono.agreement.failure_detector import heartbeat_interval_ns
from unisono.model.durations import NS_PER_MS, NS_PER_S, duration_text
from unisono.model.offers import Ask, Offer
from unisono.model.policy import Policy
from unisono.model.rates import BandwidthReservation, Reserver
from unisono.model.timing import Timing
from unisono.orders.final.messages import HOLDINGS_BYTES, MESSAGE_RANGE_BYTES
from unisono.wire.frame import HEADER_BYTES, UDP_IP_BYTES

REPORT_INTERVAL_MIN_NS = 10 * NS_PER_MS
_VOTES_BYTES = 64


def report_every_ns(timing: Timing) -> int:
    """How often a member reports at most: once a slot, or as often as pays."""
    return max(timing.theta_ns, REPORT_INTERVAL_MIN_NS)


def final_latency_ns(timing: Timing, early_ns: int) -> int:
    """When messages are final while nobody fails and nothing is lost, if all are early within `early_ns`; no promise.

    A member reports at the end of the interval, Δ to the leader; its value goes out, votes come back, and word of the
    decision goes out: 4Δ.
    """
    return early_ns + report_every_ns(timing) + 4 * timing.delta_ns


def background_datagrams_per_s(timing: Timing) -> float:
    """A leader's: a report, a value and word of its decision for each interval, and two signs of life."""
    return 3 * NS_PER_S / report_every_ns(timing) + 2 * NS_PER_S / heartbeat_interval_ns(timing)


def with_finals(offer: Offer, ask: Ask) -> Offer:
    """What a slot order offers together with final deliveries behind it: the early ones are as they were."""
    timing, against = ask.timing, []
    # The CBR order is done with a slot when the last turn in it has come.
    settled_ns = final_latency_ns(timing, offer.latency_bound_ns + (timing.theta_ns if offer.order == "cbr" else 0))
    if 2 * ask.failures >= ask.members:
        against.append(f"final deliveries need a majority, and {ask.failures} of {ask.members} is half or more")
    if ask.grades == "final" and ask.deadline_ns is not None:
        against.append("no bound is promised of final deliveries; with both grades the early ones keep the deadline")
    more, every = background_datagrams_per_s(timing), duration_text(report_every_ns(timing))
    when = f"about {duration_text(settled_ns)} after sending while nobody fails (early, a report each {every}, 4Δ)"
    why = (
        f"final: the same everywhere and without gaps, {when}; no bound",
        f"final: a leader sends {more:g} datagrams/s more, a report, a value and its decision each {every}, and signs",
    )
    return replace(
        offer,
        feasible=offer.feasible and not against,
        avg_rate=offer.avg_rate + more,
        gap_free=True,
        reliability=offer.reliability if offer.gap_free else 1.0,
        reasons=(*against, *offer.reasons, *why),
        final_latency_ns=settled_ns,
    )


def background_bytes_per_s(policy: Policy) -> int:
    """A member's reports, each of the slots that are under way; a leader's values, of every slot once; two signs."""
    timing, members = policy.timing, len(policy.view.members)
    frame = HEADER_BYTES + UDP_IP_BYTES
    under_way = (5 * timing.delta_ns + 2 * report_every_ns(timing)) // timing.theta_ns + 2
    report = frame + HOLDINGS_BYTES + MESSAGE_RANGE_BYTES * members * under_way
    value = frame + _VOTES_BYTES + MESSAGE_RANGE_BYTES * members
    reports = report * NS_PER_S // report_every_ns(timing)
    return reports + 2 * value * NS_PER_S // timing.theta_ns + 2 * frame * NS_PER_S // heartbeat_interval_ns(timing)


class BackgroundReserver:
    """Reserves for what runs behind the order together with what the order itself needs."""

    def __init__(self, policy: Policy, reserver: Reserver) -> None:
        self._background_bytes_per_s = background_bytes_per_s(policy)
        self._reserver = reserver

    def reserve(self, reservation: BandwidthReservation) -> None:
        """The order's reservation, and the rest."""
        burst = -(-self._background_bytes_per_s * reservation.theta_ns // NS_PER_S)
        self._reserver.reserve(
            BandwidthReservation(
                reservation.avg_bytes_per_s + self._background_bytes_per_s,
                reservation.burst_bytes_per_slot + burst,
                reservation.theta_ns,
            )
        )
