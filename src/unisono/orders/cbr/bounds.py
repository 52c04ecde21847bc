"""Latency bound and offer of the CBR order (paper 000 §4.4, erratum 000-6)."""

from __future__ import annotations

from unisono.model.offers import Ask, Offer
from unisono.model.timing import Timing
from unisono.model.units import duration_text
from unisono.orders.cbr.turns import CYCLE_NS, RATE_MAX, period_ns
from unisono.wire.frame import HEADER_BYTES, PACKED_HEADER_BYTES, UDP_IP_BYTES


def turn_bound_ns(timing: Timing) -> int:
    """The latency bound from a message's turn to its delivery: Δ+Γ (paper 000, Theorem 1)."""
    return timing.delta_ns + timing.gamma_ns


def latency_bound_ns(timing: Timing, rate: int) -> int:
    """The latency bound from submission to delivery: at most 1/rate until the message's turn, and then Δ+Γ."""
    return turn_bound_ns(timing) + period_ns(rate)


def offer(ask: Ask) -> Offer:
    """The CBR order's offer for a request to the planner, with the reasons in words."""
    timing, rate = ask.timing, int(ask.rate.avg)
    why: list[str] = []
    if rate != ask.rate.avg or not 1 <= rate <= RATE_MAX:
        why.append(f"the rate must be a whole number of messages per second, 1 to {RATE_MAX:,}, not {ask.rate.avg:g}")
        rate = min(max(1, -int(-ask.rate.avg // 1)), RATE_MAX)
    if ask.failures:
        why.append(f"{ask.failures} failures: none is tolerated, a crashed member stops the order")
    through = ask.probability_nothing_lost(rate)
    if through < 0.5 or ask.loss_burst or ask.fec:
        why.append("loss: none is tolerated, a lost turn stops the order")
    wait = ask.rate.burst * period_ns(rate)
    bound = turn_bound_ns(timing) + wait
    feasible = not why
    delta, gamma, period = (duration_text(ns) for ns in (timing.delta_ns, timing.gamma_ns, period_ns(rate)))
    why += [
        f"latency from a message's turn: Δ+Γ = {delta} + {gamma} = {duration_text(turn_bound_ns(timing))}",
        f"before its turn, the last message of a burst of {ask.rate.burst} waits {ask.rate.burst} × {period} (1/rate)",
        f"a member sends exactly {rate} messages per second; dummies fill the turns without a message",
    ]
    if ask.loss:
        why.append(f"the probability of {duration_text(ask.session_ns)} without a lost turn is {through:.6g}")
    return Offer(
        "cbr",
        feasible,
        bound,
        float(rate),
        -(-timing.theta_ns * rate // CYCLE_NS),
        HEADER_BYTES + PACKED_HEADER_BYTES + UDP_IP_BYTES,
        gap_free=not ask.failures,
        loss_tolerance="none",
        reliability=through,
        reasons=tuple(why),
    )
