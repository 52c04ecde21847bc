"""The latency bound of the quasi-genuine order, and its offer to the planner, with either kind of barriers."""

from __future__ import annotations

from unisono.agreement.failure_detector import heartbeat_interval_ns
from unisono.model.offers import Ask, Offer
from unisono.model.timing import Timing
from unisono.model.topology import Liveness, Multigroup, Topology
from unisono.model.units import NS_PER_S, duration_text
from unisono.orders.packing import BUNDLE_OVERHEAD_BYTES
from unisono.orders.quasi_genuine.messages import ENTRY_BYTES, STREAM_BYTES
from unisono.wire.frame import HEADER_BYTES, UDP_IP_BYTES

BARRIER_THRESHOLD_NS = 20_000_000


def quasi_genuine_latency_bound_ns(timing: Timing, multigroup: Multigroup) -> int:
    """The latency bound while no member fails and no datagram is lost.

    A message takes 4Δ: one Δ to the leader, two for the votes, and one to the other groups. In groups of three it takes
    one Δ less.

    A message that is decided after one with a larger timestamp needs barriers that were not requested yet. With
    barriers on demand that takes another 4Δ: to request them, to agree and to answer. With periodic barriers it takes
    the threshold, the clock difference and 3Δ. A window adds its length and the clock difference.
    """
    window_ns = timing.delta_ns if multigroup.window_ns is None else multigroup.window_ns
    held_ns = window_ns + timing.gamma_ns if window_ns or multigroup.optimistic else 0
    if multigroup.liveness == "on_demand":
        return held_ns + 8 * timing.delta_ns
    return held_ns + 8 * timing.delta_ns + multigroup.barrier_threshold_ns + 2 * timing.gamma_ns


def offer_quasi_genuine_on_demand(ask: Ask) -> Offer:
    """What the order offers with barriers on demand: an idle system sends nothing, each multicast requests barriers."""
    return _quasi_genuine_offer(ask, "on_demand")


def offer_quasi_genuine_periodic(ask: Ask) -> Offer:
    """What the order offers with periodic barriers.

    A group that sends nothing for the threshold agrees on a null, and messages wait for the next null.
    """
    return _quasi_genuine_offer(ask, "periodic")


def planned_multigroup(ask: Ask, liveness: Liveness) -> Multigroup:
    """The topology of an offer: two groups of `ask.members` members; each may send to itself and to the other."""
    n = ask.members
    pair = Topology({"a": range(1, n + 1), "b": range(n + 1, 2 * n + 1)}, {"a": ("a", "b"), "b": ("a", "b")})
    return Multigroup.of_ns(pair, liveness, BARRIER_THRESHOLD_NS)


def _quasi_genuine_offer(ask: Ask, liveness: Liveness) -> Offer:
    """What the order offers for two groups, each of `ask.members` members; every message goes to both."""
    timing, rate, n = ask.timing, ask.rate, ask.members
    bound = quasi_genuine_latency_bound_ns(timing, planned_multigroup(ask, liveness))
    heartbeats = 2 * NS_PER_S / heartbeat_interval_ns(timing)
    # The datagrams of a leader for one message: two rounds of votes with n-1 members, and entries for n receivers. In
    # groups of three the relay sends the entries.
    per_message = 2 * (n - 1) + n
    per_barrier = per_message if liveness == "on_demand" else 0
    nulls = 0.0 if liveness == "on_demand" else per_message * NS_PER_S / BARRIER_THRESHOLD_NS
    against = []
    if ask.failures and 2 * ask.failures >= n:
        against.append(
            f"a majority of each group must survive, but {ask.failures} failures of {n} members are half or more"
        )
    if ask.failures and ask.deadline_ns is not None:
        against.append("no bound holds while a crashed leader is replaced: that time depends on measured delays")
    if ask.loss or ask.loss_burst or ask.fec is not None:
        against.append("lost datagrams are retransmitted, and arrive later than the bound")
    extra = f" + threshold {duration_text(BARRIER_THRESHOLD_NS)} + 2Γ" if nulls else ""
    alone = "" if nulls else f"; {3 if n <= 3 else 4}Δ without contention"
    why = (
        f"latency 8Δ{extra} = {duration_text(bound)} while no member fails{alone}",
        f"two groups of {n}: a leader sends {per_message + per_barrier} datagrams per multicast"
        + (", its barriers included" if per_barrier else f" and {nulls:g}/s for nulls"),
        "members in several groups, messages to any of them; only linked groups exchange datagrams",
    )
    return Offer(
        f"quasi_genuine ({'on demand' if liveness == 'on_demand' else 'periodic'})",
        not against,
        bound,
        (per_message + per_barrier) * rate.avg + nulls + heartbeats,
        (per_message + per_barrier) * rate.burst + 2,
        HEADER_BYTES + STREAM_BYTES + ENTRY_BYTES + BUNDLE_OVERHEAD_BYTES + UDP_IP_BYTES,
        True,
        "lost datagrams are retransmitted, and late",
        1.0,
        (*against, *why),
        outage_ns=None,
    )
