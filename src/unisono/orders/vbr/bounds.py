"""What the VBR orders offer to the planner, without and with failures (paper 000 §5.3, §6.5, §7.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from unisono.model.offers import Ask, Offer
from unisono.model.units import NS_PER_S, duration_text
from unisono.orders.vbr import failures, order
from unisono.wire.frame import HEADER_BYTES, PACKED_HEADER_BYTES, UDP_IP_BYTES


def offer(ask: Ask) -> Offer:
    """The offer for a group whose members do not fail and that loses no datagram (paper 000, Theorems 2 and 3)."""
    objections = []
    if ask.failures:
        objections.append("delivery would wait for a crashed member forever")
    rate = ask.rate.avg + NS_PER_S / ask.timing.theta_ns
    nothing_lost = ask.probability_nothing_lost(rate)
    if nothing_lost < 0.5 or ask.loss_burst or ask.fec:
        objections.append("delivery would wait for a lost datagram forever")
    offered = _slot_offer("vbr", ask, order.latency_bound_ns(ask.timing), "Δ+Γ+Θ", gap_free=True, objections=objections)
    if not ask.loss:
        return offered
    session = duration_text(ask.session_ns)
    waits = f"a lost datagram blocks delivery forever: none is lost in {session} with probability {nothing_lost:.6g}"
    return replace(offered, reliability=nothing_lost, reasons=(*offered.reasons, waits))


def offer_with_failures(ask: Ask) -> Offer:
    """The offer for a group whose members crash, join and leave, and that loses datagrams (paper 000 §6.5, §7)."""
    objections = []
    if ask.reliable and ask.failures:
        objections.append("a crash may leave gaps: only some members may have the last messages of the crashed one")
    if ask.reliable and ask.loss:
        objections.append("a lost datagram is a gap")
    return _slot_offer(
        "vbr with failures", ask, failures.latency_bound_ns(ask.timing), "Δ+2Γ+Θ", gap_free=False, objections=objections
    )


def _slot_offer(
    name: str, ask: Ask, bound_ns: int, formula: str, *, gap_free: bool, objections: Sequence[str]
) -> Offer:
    """The offer of an order with end-of-slot marks. As in paper 000, Theorem 3, each datagram has one message."""
    timing, rate = ask.timing, ask.rate
    marks = NS_PER_S / timing.theta_ns
    numbers = {"Δ": timing.delta_ns, "Γ": timing.gamma_ns, "2Γ": 2 * timing.gamma_ns, "Θ": timing.theta_ns}
    sums = " + ".join(duration_text(numbers[term]) for term in formula.split("+"))
    reasons = [
        f"latency {formula} = {sums} = {duration_text(bound_ns)}, for any number of members",
        f"average {rate.avg:g}/s + 1/Θ = {rate.avg:g} + {marks:g} = {rate.avg + marks:g} datagrams/s (fewer if packed)",
        f"burst {rate.burst} per slot: in a full slot the last data frame is the end-of-slot mark",
    ]
    arrives = ask.probability_reaches_all()
    if ask.loss and not gap_free:
        reasons.append(
            f"a message reaches all {ask.members - 1} others with probability {arrives:.6g}; the rest are gaps"
        )
    if ask.loss_burst and not gap_free:
        x, copies = ask.loss_burst, ask.loss_burst + 1
        later = duration_text(x * timing.theta_ns)
        reasons.append(
            f"x = {x} consecutive losses: HELLOs and JOINs are sent x+1 = {copies} times; other lost datagrams are gaps"
        )
        reasons.append(
            f"a crashed member is removed after x+1 = {copies} silent slots, xΘ = {later} later; the bound holds"
        )
    tolerance = "none" if gap_free else f"gaps; removal after {ask.loss_burst + 1} silent slots"
    return Offer(
        name,
        not objections,
        bound_ns,
        rate.avg + marks,
        rate.burst,
        HEADER_BYTES + PACKED_HEADER_BYTES + UDP_IP_BYTES,
        gap_free,
        tolerance,
        arrives,
        tuple(objections) + tuple(reasons),
    )
