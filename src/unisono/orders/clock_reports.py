"""What orders by the clock have in common when a clock, the network or a peer is not as declared: they say so."""

from __future__ import annotations

from unisono.model.events import StackEvent, Violation, ViolationKind
from unisono.model.throttle import Throttle
from unisono.net.clock_check import ClockDifference
from unisono.orders.formation import RateExchange


class ClockReports:
    """The part of an order that reports wrong clocks, and what is late, once per stretch, and whom it refused."""

    events: list[StackEvent]
    exchange: RateExchange

    def __init__(self) -> None:
        self._throttle = Throttle()

    def on_clock_difference(self, now: int, difference: ClockDifference) -> None:
        """A member's clock is off by more than Γ: without failures it can only be kept from the beginning."""
        violation = self.exchange.on_clock_difference(difference.peer, difference.incarnation, difference.difference_ns)
        if violation is not None:
            self.events.append(violation)

    def why_not_formed(self) -> str:
        """What peers' HELLOs were refused for."""
        return "; ".join(f"member {peer} {problem}" for peer, problem in sorted(self.exchange.problems.items()))

    def _report_late(self, now: int, sender: int, slot: int, detail: str) -> None:
        if self._throttle.first_in_a_while(now, sender):
            self.events.append(Violation(ViolationKind.LATE, f"waiting for member {sender}: {detail}", sender, slot))
