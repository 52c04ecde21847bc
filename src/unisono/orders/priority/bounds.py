"""What the priority order offers to the planner: how long a message takes into all queues, and at what cost."""

from __future__ import annotations

from unisono.agreement.failure_detector import heartbeat_interval_ns, retry_interval_ns
from unisono.agreement.membership.messages import OVERHEAD_BYTES
from unisono.model.offers import Ask, Offer
from unisono.model.timing import Timing
from unisono.model.units import NS_PER_S, duration_text
from unisono.wire.frame import HEADER_BYTES, UDP_IP_BYTES

REPORT_EVERY_MESSAGES = 16
"""A member reports its consumed history after this many messages, unless it acknowledges a message before that."""


def queue_bound_ns(timing: Timing, *, coordinated: bool) -> int:
    """The time until a message is in the queues of all members, while no member fails and no datagram is lost.

    It is 2Δ: one Δ for the message and one for its acknowledgments. With a coordinator it is 3Δ: the decision takes
    another Δ.
    """
    return (3 if coordinated else 2) * timing.delta_ns


def offer_priority(ask: Ask) -> Offer:
    """The priority order's offer to the planner if acknowledgments go to all members (paper 004, Figure 4)."""
    return _priority_offer(ask, "priority", coordinated=False)


def offer_priority_coordinator(ask: Ask) -> Offer:
    """The priority order's offer if acknowledgments go to the message's sender, which decides alone (paper 004 §5)."""
    return _priority_offer(ask, "priority_coordinator", coordinated=True)


def _priority_offer(ask: Ask, name: str, *, coordinated: bool) -> Offer:
    timing, rate, n = ask.timing, ask.rate, ask.members
    queued = queue_bound_ns(timing, coordinated=coordinated)
    heartbeats = NS_PER_S / heartbeat_interval_ns(timing) + 4 * NS_PER_S / retry_interval_ns(timing)
    obstacles = []
    if ask.failures and 2 * ask.failures >= n:
        obstacles.append(f"a majority must survive, but {ask.failures} of {n} members may fail")
    if ask.deadline_ns is not None:
        obstacles.append("no deadline can be promised: delivery waits for the consumer, and messages may be overtaken")
    if coordinated:
        replies = f"acknowledgments to one member, {n - 1}·{rate.avg:g}/s, and decisions to all, {rate.avg:g}/s"
    else:
        replies = f"acknowledgments to all, {n}·{rate.avg:g}/s"
    steps = queued // timing.delta_ns
    why = (
        f"into all queues in {steps}Δ = {duration_text(queued)} while no member fails; then the consumers set the pace",
        f"average: messages to all, {rate.avg:g}/s, {replies}, consumed histories, heartbeats {heartbeats:g}/s",
        "urgent messages overtake queued ones at every member alike; works while a majority of the view is connected",
    )
    return Offer(
        name,
        not obstacles,
        queued,
        (1 + n + n / REPORT_EVERY_MESSAGES) * rate.avg + heartbeats,
        (1 + n) * rate.burst + 2,
        HEADER_BYTES + OVERHEAD_BYTES + UDP_IP_BYTES,
        True,
        "lost datagrams are retransmitted",
        1.0,
        (*obstacles, *why),
        outage_ns=None,
        by_priority=True,
    )
