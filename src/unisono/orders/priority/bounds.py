"""What the priority order offers, and how long a message takes into the queues."""

from __future__ import annotations

from unisono.agreement.failure_detector import heartbeat_interval_ns, retry_interval_ns
from unisono.agreement.membership.messages import OVERHEAD_BYTES
from unisono.model.durations import NS_PER_S, duration_text
from unisono.model.offers import Ask, Offer
from unisono.model.timing import Timing
from unisono.wire.frame import HEADER_BYTES, UDP_IP_BYTES

REPORT_EVERY_MESSAGES = 16
"""A member that acknowledges nothing meanwhile says after so many messages what it has consumed."""


def queue_bound_ns(timing: Timing, *, coordinated: bool) -> int:
    """Into all queues while nobody fails and nothing is lost: the message, what is said about it, the decision."""
    return (3 if coordinated else 2) * timing.delta_ns


def offer_priority(ask: Ask) -> Offer:
    """Acknowledgments to all (paper 004, Figure 4)."""
    return _priority_offer(ask, "priority", coordinated=False)


def offer_priority_coordinator(ask: Ask) -> Offer:
    """Acknowledgments to the sender, which decides (paper 004 §5)."""
    return _priority_offer(ask, "priority_coordinator", coordinated=True)


def _priority_offer(ask: Ask, name: str, *, coordinated: bool) -> Offer:
    timing, rate, n = ask.timing, ask.rate, ask.members
    queued = queue_bound_ns(timing, coordinated=coordinated)
    signs = NS_PER_S / heartbeat_interval_ns(timing) + 4 * NS_PER_S / retry_interval_ns(timing)
    against = []
    if ask.failures and 2 * ask.failures >= n:
        against.append(f"a majority must survive, and {ask.failures} of {n} is half or more")
    if ask.deadline_ns is not None:
        against.append("no deadline can be promised: a message is delivered when it is consumed, and may be overtaken")
    if coordinated:
        said = f"acknowledgments to one member, {n - 1}·{rate.avg:g}/s, and decisions to all, {rate.avg:g}/s"
    else:
        said = f"acknowledgments to all, {n}·{rate.avg:g}/s"
    ways = queued // timing.delta_ns
    why = (
        f"into all queues within {ways}Δ = {duration_text(queued)} while nobody fails; then the consumers set the pace",
        f"average: messages to all, {rate.avg:g}/s, {said}, what was consumed, signs {signs:g}/s",
        "an urgent message overtakes what is queued at every member alike; lives while a majority of the view can talk",
    )
    return Offer(
        name,
        not against,
        queued,
        (1 + n + n / REPORT_EVERY_MESSAGES) * rate.avg + signs,
        (1 + n) * rate.burst + 2,
        HEADER_BYTES + OVERHEAD_BYTES + UDP_IP_BYTES,
        True,
        "what is lost is sent again",
        1.0,
        (*against, *why),
        outage_ns=None,
        by_priority=True,
    )
