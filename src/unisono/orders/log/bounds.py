"""What total order by consensus offers, and the figures by which it runs."""

from __future__ import annotations

from unisono.agreement.failure_detector import heartbeat_interval_ns
from unisono.model.durations import NS_PER_S, duration_text
from unisono.model.offers import Ask, Offer
from unisono.model.timing import Timing
from unisono.wire.bundles import BUNDLE_OVERHEAD_BYTES
from unisono.wire.frame import HEADER_BYTES, UDP_IP_BYTES


def consensus_latency_bound_ns(timing: Timing) -> int:
    """6Δ while nobody fails and nothing is lost: to the leader, a full window before, two ways of votes, the word."""
    return 6 * timing.delta_ns


def offer_consensus(ask: Ask) -> Offer:
    """What an agreed log gives."""
    timing, rate, n = ask.timing, ask.rate, ask.members
    bound = consensus_latency_bound_ns(timing)
    beats = 2 * NS_PER_S / heartbeat_interval_ns(timing)
    against = []
    if ask.failures and 2 * ask.failures >= n:
        against.append(f"a majority must survive, and {ask.failures} of {n} is half or more")
    if ask.failures and ask.deadline_ns is not None:
        against.append("how long a new leader takes follows from what is measured: no bound is promised when one dies")
    if ask.loss or ask.loss_burst or ask.fec is not None:
        against.append("a lost datagram is sent again, later than the bound")
    why = (
        f"latency 6Δ = 6·{duration_text(timing.delta_ns)} = {duration_text(bound)} while nobody fails",
        f"average, at most: a parcel, its instance and two ways of votes, {3 + n}·{rate.avg:g}/s; signs {beats:g}/s",
        "safe without any bound on delays or clocks; lives while a majority can talk",
    )
    return Offer(
        "consensus",
        not against,
        bound,
        (3 + n) * rate.avg + beats,
        rate.burst * n + 2,
        HEADER_BYTES + BUNDLE_OVERHEAD_BYTES + UDP_IP_BYTES,
        True,
        "what is lost is sent again, late",
        1.0,
        (*against, *why),
        outage_ns=None,
    )
