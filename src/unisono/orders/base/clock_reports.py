"""What orders by the clock have in common when a clock, the network or a peer is not as declared: they say so."""

from __future__ import annotations

from unisono.model.events import StackEvent, Violation, ViolationKind
from unisono.model.throttle import Stretches
from unisono.net.clock_check import Differs
from unisono.orders.base.formation import RateExchange


class Clocked:
    """The part of an order that reports wrong clocks, and what is late, once per stretch, and whom it refused."""

    events: list[StackEvent]
    exchange: RateExchange

    def __init__(self) -> None:
        self._stretches = Stretches()

    def clock_differs(self, now: int, found: Differs) -> None:
        """A member's clock is off by more than Γ: without failures it can only be kept from the beginning."""
        violation = self.exchange.clock_differs(found.peer, found.life, found.off_ns)
        if violation is not None:
            self.events.append(violation)

    def complaint(self) -> str:
        """What peers' HELLOs were refused for."""
        return "; ".join(f"member {peer} {problem}" for peer, problem in sorted(self.exchange.complaints.items()))

    def _tell_late(self, now: int, sender: int, slot: int, what: str) -> None:
        if self._stretches.begins(now, sender):
            self.events.append(Violation(ViolationKind.LATE, f"waiting for member {sender}: {what}", sender, slot))
