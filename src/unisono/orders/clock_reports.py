"""Reports of orders that deliver by the clock: wrong clocks, late members, refused peers."""

from __future__ import annotations

from unisono.model.events import StackEvent, Violation, ViolationKind
from unisono.model.timing import Throttle
from unisono.net.clock_check import ClockDifference
from unisono.orders.formation import RateExchange


class ClockReports:
    """The part of an order that reports wrong clocks and late members, and tells which peers it refused."""

    events: list[StackEvent]
    exchange: RateExchange

    def __init__(self) -> None:
        self._throttle = Throttle()

    def on_clock_difference(self, now: int, difference: ClockDifference) -> None:
        """A peer's clock is off by more than Γ: without failures, only a group that has not begun can refuse it."""
        violation = self.exchange.on_clock_difference(difference.peer, difference.incarnation, difference.difference_ns)
        if violation is not None:
            self.events.append(violation)

    def why_not_formed(self) -> str:
        """Why the exchange refused peers' HELLOs; empty if it refused none."""
        return "; ".join(f"member {peer} {problem}" for peer, problem in sorted(self.exchange.problems.items()))

    def _report_late(self, now: int, sender: int, slot: int, detail: str) -> None:
        """Report a late member, once until it has been on time for a while."""
        if self._throttle.first_in_a_while(now, sender):
            self.events.append(Violation(ViolationKind.LATE, f"waiting for member {sender}: {detail}", sender, slot))
