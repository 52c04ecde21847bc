"""The cost of final deliveries beyond the inner order: latency, and the traffic of reports, votes and heartbeats."""

from __future__ import annotations

from dataclasses import replace

from unisono.agreement.failure_detector import heartbeat_interval_ns
from unisono.model.offers import Ask, Offer
from unisono.model.policy import Policy
from unisono.model.timing import Timing
from unisono.model.units import NS_PER_MS, NS_PER_S, BandwidthReservation, Reserver, duration_text
from unisono.orders.final.messages import HOLDINGS_BYTES, MESSAGE_RANGE_BYTES
from unisono.wire.frame import HEADER_BYTES, UDP_IP_BYTES

REPORT_INTERVAL_MIN_NS = 10 * NS_PER_MS
"""Members report at most this often; shorter intervals cost more traffic than they save time."""
_VOTES_BYTES = 64


def report_every_ns(timing: Timing) -> int:
    """The interval between two reports of a member: a slot, or longer if slots are very short."""
    return max(timing.theta_ns, REPORT_INTERVAL_MIN_NS)


def final_latency_ns(timing: Timing, early_ns: int) -> int:
    """How long a message takes to become final, if no member fails and nothing is lost.

    `early_ns` is the latency bound of its early delivery.

    A member reports at the end of its interval. The report, the leader's value, the votes and the decision take Δ each:
    4Δ. This is an estimate and not a guarantee.
    """
    return early_ns + report_every_ns(timing) + 4 * timing.delta_ns


def background_datagrams_per_s(timing: Timing) -> float:
    """The datagrams of a leader: a report, a value and a decision per report interval, and two heartbeats."""
    return 3 * NS_PER_S / report_every_ns(timing) + 2 * NS_PER_S / heartbeat_interval_ns(timing)


def with_finals(offer: Offer, ask: Ask) -> Offer:
    """The offer of a slot order, extended by final deliveries. The early deliveries stay the same."""
    timing, against = ask.timing, []
    # The CBR order has finished a slot when the last turn in it is over.
    final_ns = final_latency_ns(timing, offer.latency_bound_ns + (timing.theta_ns if offer.order == "cbr" else 0))
    if 2 * ask.failures >= ask.members:
        against.append(f"final deliveries need a majority, and {ask.failures} of {ask.members} is half or more")
    if ask.grades == "final" and ask.deadline_ns is not None:
        against.append('final deliveries have no latency bound; with grades "both", early deliveries meet the deadline')
    more, every = background_datagrams_per_s(timing), duration_text(report_every_ns(timing))
    when = f"about {duration_text(final_ns)} after sending if no member fails (early, a report each {every}, 4Δ)"
    why = (
        f"final: the same at all members and without gaps, {when}; no bound",
        f"final: a leader sends {more:g} datagrams/s more: a report, a value and a decision each {every}; heartbeats",
    )
    return replace(
        offer,
        feasible=offer.feasible and not against,
        avg_rate=offer.avg_rate + more,
        gap_free=True,
        reliability=offer.reliability if offer.gap_free else 1.0,
        reasons=(*against, *offer.reasons, *why),
        final_latency_ns=final_ns,
    )


def background_bytes_per_s(policy: Policy) -> int:
    """The traffic that final deliveries add, in bytes per second.

    It consists of reports, each about all slots that are not final yet; of the leader's values, which contain each slot
    once; and of heartbeats.
    """
    timing, members = policy.timing, len(policy.view.members)
    frame = HEADER_BYTES + UDP_IP_BYTES
    open_slots = (5 * timing.delta_ns + 2 * report_every_ns(timing)) // timing.theta_ns + 2
    report = frame + HOLDINGS_BYTES + MESSAGE_RANGE_BYTES * members * open_slots
    value = frame + _VOTES_BYTES + MESSAGE_RANGE_BYTES * members
    reports = report * NS_PER_S // report_every_ns(timing)
    return reports + 2 * value * NS_PER_S // timing.theta_ns + 2 * frame * NS_PER_S // heartbeat_interval_ns(timing)


class BackgroundReserver:
    """Adds the traffic of final deliveries to each reservation of the inner order."""

    def __init__(self, policy: Policy, reserver: Reserver) -> None:
        self._background_bytes_per_s = background_bytes_per_s(policy)
        self._reserver = reserver

    def reserve(self, reservation: BandwidthReservation) -> None:
        """Reserve for the inner order and for final deliveries together."""
        burst = -(-self._background_bytes_per_s * reservation.theta_ns // NS_PER_S)
        self._reserver.reserve(reservation.with_extra(self._background_bytes_per_s, burst))
