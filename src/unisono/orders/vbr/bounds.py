"""What the VBR order offers, without and with failures: its arithmetic for the planner (paper 000 §5.3, §6.5, §7.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from unisono.model.durations import NS_PER_S, duration_text
from unisono.model.offers import Ask, Offer
from unisono.orders.vbr import failures as vbr_gaps
from unisono.orders.vbr import order as vbr
from unisono.wire.frame import HEADER_BYTES, UDP_IP_BYTES
from unisono.wire.packed_messages import PACKED_HEADER_BYTES


def offer(ask: Ask) -> Offer:
    """What the order gives where nobody fails and nothing is lost (Theorems 2 and 3)."""
    against = []
    if ask.failures:
        against.append("a crashed member would be waited for for ever")
    rate = ask.rate.avg + NS_PER_S / ask.timing.theta_ns
    through = ask.probability_nothing_lost(rate)
    if through < 0.5 or ask.loss_burst or ask.fec:
        against.append("a lost datagram would be waited for for ever")
    offered = _slot_offer("vbr", ask, vbr.latency_bound_ns(ask.timing), "Δ+Γ+Θ", gap_free=True, objections=against)
    if not ask.loss:
        return offered
    session = duration_text(ask.session_ns)
    waits = f"what is lost is waited for for ever: {session} pass without with probability {through:.6g}"
    return replace(offered, reliability=through, reasons=(*offered.reasons, waits))


def offer_with_failures(ask: Ask) -> Offer:
    """What the order gives where members crash, come and go, and datagrams may be lost (Theorem 5, §7)."""
    against = []
    if ask.reliable and ask.failures:
        against.append("a member that crashes may leave gaps: some have its last messages, some have not")
    if ask.reliable and ask.loss:
        against.append("what is lost is a gap")
    return _slot_offer(
        "vbr with failures", ask, vbr_gaps.latency_bound_ns(ask.timing), "Δ+2Γ+Θ", gap_free=False, objections=against
    )


def _slot_offer(
    order: str, ask: Ask, bound_ns: int, formula: str, *, gap_free: bool, objections: Sequence[str]
) -> Offer:
    """What an order gives that ends each slot with a mark; in datagrams of one message, as Theorem 3 counts."""
    timing, rate = ask.timing, ask.rate
    marks = NS_PER_S / timing.theta_ns
    numbers = {"Δ": timing.delta_ns, "Γ": timing.gamma_ns, "2Γ": 2 * timing.gamma_ns, "Θ": timing.theta_ns}
    sums = " + ".join(duration_text(numbers[term]) for term in formula.split("+"))
    why = [
        f"latency {formula} = {sums} = {duration_text(bound_ns)}, whatever the number of members",
        f"average {rate.avg:g}/s + 1/Θ = {rate.avg:g} + {marks:g} = {rate.avg + marks:g} datagrams/s (fewer packed)",
        f"burst {rate.burst} per slot: a slot that is full needs no mark of its own",
    ]
    arrives = ask.probability_reaches_all()
    if ask.loss and not gap_free:
        why.append(f"a message reaches all {ask.members - 1} others with probability {arrives:.6g}; the rest are gaps")
    if ask.loss_burst and not gap_free:
        x, copies = ask.loss_burst, ask.loss_burst + 1
        later = duration_text(x * timing.theta_ns)
        why.append(f"x = {x} lost in a row: rates and joins are sent x+1 = {copies} times, what else is lost is a gap")
        why.append(f"who dies is removed after x+1 = {copies} silent slots, xΘ = {later} later; the bound stays (§7.2)")
    tolerance = "none" if gap_free else f"gaps; removal after {ask.loss_burst + 1} silent slots"
    return Offer(
        order,
        not objections,
        bound_ns,
        rate.avg + marks,
        rate.burst,
        HEADER_BYTES + PACKED_HEADER_BYTES + UDP_IP_BYTES,
        gap_free,
        tolerance,
        arrives,
        tuple(objections) + tuple(why),
    )
