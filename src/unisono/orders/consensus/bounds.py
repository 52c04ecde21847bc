"""The latency bound of total order by consensus, and its offer to the planner."""

from __future__ import annotations

from unisono.agreement.failure_detector import heartbeat_interval_ns
from unisono.model.offers import Ask, Offer
from unisono.model.timing import Timing
from unisono.model.units import NS_PER_S, duration_text
from unisono.orders.packing import BUNDLE_OVERHEAD_BYTES
from unisono.wire.frame import HEADER_BYTES, UDP_IP_BYTES


def consensus_latency_bound_ns(timing: Timing) -> int:
    """The latency bound of the order `consensus`: 6Δ while no member fails and no datagram is lost.

    The message travels to the leader (Δ). If the largest allowed number of instances is in progress, it waits there
    until one of them is decided (2Δ). Then come ACCEPT and ACCEPTED (2Δ), and the leader announces the decision (Δ).
    """
    return 6 * timing.delta_ns


def offer_consensus(ask: Ask) -> Offer:
    """What total order by consensus offers for a request to the planner: latency, rate and reasons."""
    timing, rate, n = ask.timing, ask.rate, ask.members
    bound = consensus_latency_bound_ns(timing)
    heartbeats = 2 * NS_PER_S / heartbeat_interval_ns(timing)
    against = []
    if ask.failures and 2 * ask.failures >= n:
        against.append(f"a majority must survive, but {ask.failures} of {n} members is half or more")
    if ask.failures and ask.deadline_ns is not None:
        against.append(
            "electing a new leader takes a time that depends on measured delays: no bound holds when the leader fails"
        )
    if ask.loss or ask.loss_burst or ask.fec is not None:
        against.append("a lost datagram is retransmitted, later than the bound")
    why = (
        f"latency 6Δ = 6·{duration_text(timing.delta_ns)} = {duration_text(bound)} while no member fails",
        f"average at most {3 + n}·{rate.avg:g}/s (bundle, instance, accept and accepted) + {heartbeats:g}/s heartbeats",
        "safe without any bound on delays or clocks; makes progress while a majority can communicate",
    )
    return Offer(
        "consensus",
        not against,
        bound,
        (3 + n) * rate.avg + heartbeats,
        rate.burst * n + 2,
        HEADER_BYTES + BUNDLE_OVERHEAD_BYTES + UDP_IP_BYTES,
        True,
        "lost datagrams are retransmitted, late",
        1.0,
        (*against, *why),
        outage_ns=None,
    )
