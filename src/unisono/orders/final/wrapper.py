"""What an order that stands over another one passes on to it, and answers in its name."""

from __future__ import annotations

from collections import Counter
from typing import TypeAlias

from unisono.model.events import StackEvent
from unisono.model.rates import Rate
from unisono.orders.cbr.order import Cbr
from unisono.orders.vbr.order import Vbr
from unisono.wire.frame import Frame

ClockBasedOrder: TypeAlias = Cbr | Vbr


class OrderWrapper:
    """Over the order `order`, whose frames go down as they are and whose events the one above makes its own."""

    def __init__(self, inner: ClockBasedOrder) -> None:
        self.inner = inner
        self.down: list[Frame] = inner.down
        self.events: list[StackEvent] = []
        self.ignored: Counter[str] = inner.ignored
        self.window_slots = inner.window_slots
        self.now = 0
        """The clock at the last input."""
        self.has_left = False

    def change_rate(self, now: int, rate: Rate) -> None:
        """Renegotiate the order's rate."""
        self.now = now
        self.inner.change_rate(now, rate)

    def leave(self, now: int) -> None:
        """Depart from the order; what else there is to end follows from that."""
        self.now = now
        self.inner.leave(now)

    def latest_slot(self, now: int) -> int:
        """The order's."""
        return self.inner.latest_slot(now)

    def bound_ns(self) -> int:
        """The order's, of early deliveries; none is promised of final ones."""
        return self.inner.bound_ns()

    def gap_free(self) -> bool:
        """Whether early deliveries are promised to be free of gaps; final ones are."""
        return self.inner.gap_free()

    def keeps_sending_to_departed(self) -> bool:
        """Whoever is silent may come back, and lacks what is final then."""
        return True

    def waiting_for(self) -> tuple[int, ...]:
        """Whom the order waits for."""
        return self.inner.waiting_for()

    def running(self) -> bool:
        """Whether early deliveries have begun; final ones begin when a majority is there."""
        return self.inner.running() and not self.has_left

    def why_not_formed(self) -> str:
        """The order's."""
        return self.inner.why_not_formed()

    def peer_rate(self, peer: int) -> Rate | None:
        """What a peer declared."""
        return self.inner.peer_rate(peer)

    def by_multicast(self) -> bool:
        """Whether data goes by IP multicast; what is said about it goes to each member."""
        return self.inner.by_multicast()
