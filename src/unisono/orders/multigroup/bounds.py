"""What the quasi-genuine order offers: its bound and what it costs, in both ways of liveness."""

from __future__ import annotations

from unisono.agreement.failure_detector import heartbeat_interval_ns
from unisono.model.durations import NS_PER_S, duration_text
from unisono.model.offers import Ask, Offer
from unisono.model.timing import Timing
from unisono.model.topology import Liveness, Multigroup, Topology
from unisono.orders.multigroup.messages import ENTRY_BYTES, STREAM_BYTES
from unisono.wire.bundles import BUNDLE_OVERHEAD_BYTES
from unisono.wire.frame import HEADER_BYTES, UDP_IP_BYTES

BARRIER_THRESHOLD_NS = 20_000_000


def quasi_genuine_latency_bound_ns(timing: Timing, multigroup: Multigroup) -> int:
    """While nobody fails and nothing is lost.

    To the leader, two ways of votes and on to the other groups are 4Δ, in groups of three one less. A message that was
    decided behind one with a larger time stamp needs barriers that nobody has asked for: on demand another 4Δ, to ask,
    agree and answer; periodically the threshold, and what clocks differ, and 3Δ. A window comes on top, and what
    clocks differ.
    """
    window_ns = timing.delta_ns if multigroup.window_ns is None else multigroup.window_ns
    held_ns = window_ns + timing.gamma_ns if window_ns or multigroup.optimistic else 0
    if multigroup.liveness == "on_demand":
        return held_ns + 8 * timing.delta_ns
    return held_ns + 8 * timing.delta_ns + multigroup.barrier_threshold_ns + 2 * timing.gamma_ns


def offer_quasi_genuine_on_demand(ask: Ask) -> Offer:
    """Barriers as they are needed: nothing is sent while nobody sends, and each multicast calls for barriers."""
    return _quasi_genuine_offer(ask, "on_demand")


def offer_quasi_genuine_periodic(ask: Ask) -> Offer:
    """A null for each threshold: the same cost whatever is sent, and a wait for the next null."""
    return _quasi_genuine_offer(ask, "periodic")


def _quasi_genuine_offer(ask: Ask, liveness: Liveness) -> Offer:
    """For two groups of so many members that send to each other; every message goes to both."""
    timing, rate, n = ask.timing, ask.rate, ask.members
    pair = Topology({"a": range(1, n + 1), "b": range(n + 1, 2 * n + 1)}, {"a": ("a", "b"), "b": ("a", "b")})
    bound = quasi_genuine_latency_bound_ns(timing, Multigroup(pair, liveness, BARRIER_THRESHOLD_NS))
    beats = 2 * NS_PER_S / heartbeat_interval_ns(timing)
    # A leader's datagrams for a message of anybody's: two ways of votes at n-1 mates, and entries for n receivers,
    # which in groups of three are its herald's.
    agreed = 2 * (n - 1) + n
    called = agreed if liveness == "on_demand" else 0
    nulls = 0.0 if liveness == "on_demand" else agreed * NS_PER_S / BARRIER_THRESHOLD_NS
    against = []
    if ask.failures and 2 * ask.failures >= n:
        against.append(f"a majority of each group must survive, and {ask.failures} of {n} is half or more")
    if ask.failures and ask.deadline_ns is not None:
        against.append("how long a new leader takes follows from what is measured: no bound is promised when one dies")
    if ask.loss or ask.loss_burst or ask.fec is not None:
        against.append("a lost datagram is sent again, later than the bound")
    extra = f" + threshold {duration_text(BARRIER_THRESHOLD_NS)} + 2Γ" if nulls else ""
    alone = "" if nulls else f"; {3 if n <= 3 else 4}Δ where nothing contends"
    why = (
        f"latency 8Δ{extra} = {duration_text(bound)} while nobody fails{alone}",
        f"two groups of {n}: a leader sends {agreed + called} datagrams per multicast"
        + (", its barriers included" if called else f" and {nulls:g}/s for nulls"),
        "members in several groups, messages to any of them; only related groups talk",
    )
    return Offer(
        f"quasi_genuine ({'on demand' if liveness == 'on_demand' else 'periodic'})",
        not against,
        bound,
        (agreed + called) * rate.avg + nulls + beats,
        (agreed + called) * rate.burst + 2,
        HEADER_BYTES + STREAM_BYTES + ENTRY_BYTES + BUNDLE_OVERHEAD_BYTES + UDP_IP_BYTES,
        True,
        "what is lost is sent again, late",
        1.0,
        (*against, *why),
        outage_ns=None,
    )
