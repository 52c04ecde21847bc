"""The plan of one group: the order and the slot length that `join` uses for what the application needs.

`order="auto"` follows `gaps`: "never" takes `consensus`, "repaired" takes `vbr` with failures and both grades, and
"allowed" takes `vbr` with failures. Without a slot length, an order by slots gets the longest slot that keeps the
deadline, because longer slots cost fewer datagrams.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, log
from typing import Final, Literal

from unisono.errors import Infeasible, InvalidOption
from unisono.model.capabilities import CAPABILITIES
from unisono.model.options import Cbr, Consensus, OrderName, OrderOptions, Vbr, order_options
from unisono.model.policy import Gaps, PlanInputs
from unisono.model.timing import SLOT_DEFAULT, Timing
from unisono.model.units import NS_PER_S, Rate, duration_ns, duration_text
from unisono.orders.consensus.bounds import consensus_latency_bound_ns

MAX_SLOT_NS: Final = 50_000_000
"""The longest slot that is chosen for a deadline. A longer one would save few datagrams."""
MIN_SLOT_NS: Final = 500_000
"""The shortest slot that is chosen for a deadline. Timers of ordinary machines do not keep shorter ones."""

AUTO: Final[dict[Gaps, OrderOptions]] = {
    "never": Consensus(),
    "repaired": Vbr(failures=True, grades="both", loss_burst=2),
    "allowed": Vbr(failures=True, loss_burst=2),
}
"""The order that `order="auto"` takes, by the need for gaps.

Two consecutive losses of a sender are gaps and no more. Without `loss_burst`, one lost datagram would exclude a member.
"""
_AUTO_REASONS: Final[dict[Gaps, str]] = {
    "never": "no member may miss a message, and a majority agrees on every one",
    "repaired": "early deliveries are on time, and final ones have no gaps",
    "allowed": "deliveries are on time, and a crash or a loss may leave a gap",
}


@dataclass(frozen=True, slots=True)
class Needs:
    """What an application needs from its group, and the network that the group runs on."""

    order: OrderName | Literal["auto"] | OrderOptions
    gaps: Gaps | None
    deadline_ns: int | None
    delta_ns: int
    gamma_ns: int
    loss: float = 0.0
    """The share of datagrams that the network is expected to lose."""
    rate: Rate | None = None
    """The rate of this member, if it is known."""

    @property
    def plan_inputs(self) -> PlanInputs:
        """The options that the members compare with each other, next to the plan itself."""
        slot_is_given = isinstance(self.order, OrderOptions) and self.order.slot is not None
        return PlanInputs(self.gaps or "never", self.deadline_ns, self.order != "auto", slot_is_given)


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """The order that a group uses, with its slot length and bound, and the reasons for the choice."""

    order: OrderOptions
    timing: Timing
    why: tuple[str, ...]
    bound_ns: int = 0
    """The latency that no delivery exceeds while the assumptions of the order hold; 0 before the stack is built."""

    def text(self) -> str:
        """The plan in one line."""
        slot, bound = duration_text(self.timing.theta_ns), duration_text(self.bound_ns)
        return f"order {self.order.name}, slots of {slot}, every delivery within {bound}: {'; '.join(self.why)}"


def choose(needs: Needs) -> GroupPlan:
    """Choose the order and the slot length; raises Infeasible if no slot length keeps the deadline.

    The bound of the result is still 0.
    """
    gaps = needs.gaps or "never"
    if needs.order == "auto":
        _check_auto_deadline(needs, gaps)
        order, why = _auto_order(gaps, needs.loss), f"gaps={gaps!r}: {_AUTO_REASONS[gaps]}"
    else:
        order = order_options(needs.order) if isinstance(needs.order, str) else needs.order
        why = "the order was given"
        if needs.gaps is not None:
            _check_gaps(order, needs.gaps)
    if needs.loss:
        _check_loss(order)
    slot_ns, slot_why = _slot(order, needs)
    return GroupPlan(order, Timing(needs.delta_ns, needs.gamma_ns, slot_ns), (why, slot_why))


def _auto_order(gaps: Gaps, loss: float) -> OrderOptions:
    """The order for `gaps`. On a network that loses much, it tolerates more losses in a row: all but one in a million.

    A longer row of losses excludes a member for a while.
    """
    order = AUTO[gaps]
    if isinstance(order, Vbr) and loss:
        order = replace(order, loss_burst=max(order.loss_burst, ceil(log(1e-6) / log(loss)) - 1))
    return order


def smallest_deadline_ns(gaps: Gaps, delta_ns: int, gamma_ns: int) -> int:
    """The smallest deadline that the order for `gaps` can keep on this network."""
    if gaps == "never":
        return consensus_latency_bound_ns(Timing(delta_ns, gamma_ns, MIN_SLOT_NS))
    return delta_ns + 2 * gamma_ns + MIN_SLOT_NS


def _check_auto_deadline(needs: Needs, gaps: Gaps) -> None:
    """Raise Infeasible, with the smallest deadline and the other values of `gaps` that would fit."""
    if needs.deadline_ns is None:
        return
    least = {each: smallest_deadline_ns(each, needs.delta_ns, needs.gamma_ns) for each in AUTO}
    if needs.deadline_ns >= least[gaps]:
        return
    fitting = [each for each, bound_ns in least.items() if bound_ns <= needs.deadline_ns]
    formula = "6Δ" if gaps == "never" else "Δ+2Γ+Θ"
    arithmetic = (
        f"gaps={gaps!r} takes {formula} = {duration_text(least[gaps])} with Δ = {duration_text(needs.delta_ns)}"
    )
    alternative = f"a deadline of {duration_text(least[gaps])}"
    if fitting:
        alternative += f", or this deadline with gaps={' or '.join(map(repr, fitting))}"
    raise Infeasible(needs.deadline_ns, least[gaps], arithmetic, alternative)


def _check_gaps(order: OrderOptions, gaps: Gaps) -> None:
    """Raise InvalidOption if an order that was given by name does not keep the promise of `gaps`."""
    only_final = isinstance(order, Vbr) and order.grades == "final"
    repaired = isinstance(order, Vbr) and order.grades != "early"
    has_gaps = (isinstance(order, Vbr) and order.failures) or not CAPABILITIES[order.name].total_order
    if (gaps == "never" and has_gaps and not only_final) or (gaps == "repaired" and has_gaps and not repaired):
        better = "order='auto'" if gaps == "never" or not isinstance(order, Vbr) else "grades='both'"
        raise InvalidOption("gaps", f"the order {order} may leave gaps, but gaps={gaps!r} rules them out; use {better}")


def _check_loss(order: OrderOptions) -> None:
    """Raise InvalidOption if one lost datagram would stop the order for ever."""
    repairs = getattr(order, "reliable", None) is not None or getattr(order, "fec", None) is not None
    if isinstance(order, Vbr | Cbr) and not repairs and not (isinstance(order, Vbr) and order.failures):
        remedies = "Vbr(failures=True), Vbr(fec=…)" if isinstance(order, Vbr) else f"{type(order).__name__}(reliable=…)"
        text = f"the order {order.name} waits for a lost datagram for ever; use order='auto' or {remedies}"
        raise InvalidOption("network.loss", text)


def _slot(order: OrderOptions, needs: Needs) -> tuple[int, str]:
    """The slot length of an order, and the reason for it."""
    if order.slot is not None:
        return duration_ns(order.slot, "slot"), "the slot length was given"
    if needs.deadline_ns is None or not isinstance(order, Vbr):
        return duration_ns(SLOT_DEFAULT), "the default slot length"
    skew_ns = 2 * needs.gamma_ns if order.failures else needs.gamma_ns
    theta_ns = min(needs.deadline_ns - needs.delta_ns - skew_ns, MAX_SLOT_NS)
    if theta_ns >= MIN_SLOT_NS and needs.rate is not None and needs.rate.average_excess(theta_ns):
        carried_ns = int(needs.rate.burst * NS_PER_S / needs.rate.avg)
        if carried_ns >= MIN_SLOT_NS:
            return carried_ns, "the longest slots in which the declared rate fits"
    if theta_ns < MIN_SLOT_NS:
        terms, word = (needs.delta_ns, skew_ns, MIN_SLOT_NS), "2Γ" if order.failures else "Γ"
        formula = f"Δ+{word}+Θ = {' + '.join(map(duration_text, terms))}"
        raise Infeasible(needs.deadline_ns, sum(terms), formula)
    return theta_ns, f"the longest slots that keep the deadline of {duration_text(needs.deadline_ns)}"
