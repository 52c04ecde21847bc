"""What an order that stands over another one passes on to it, and answers in its name."""

from __future__ import annotations

from collections import Counter
from typing import TypeAlias

from unisono.model.events import StackEvent
from unisono.model.rates import Rate
from unisono.orders.cbr.order import Cbr
from unisono.orders.vbr.order import Vbr
from unisono.wire.frame import Frame

SlotOrder: TypeAlias = Cbr | Vbr


class OverOrder:
    """Over the order `order`, whose frames go down as they are and whose events the one above makes its own."""

    def __init__(self, order: SlotOrder) -> None:
        self.order = order
        self.down: list[Frame] = order.down
        self.events: list[StackEvent] = []
        self.ignored: Counter[str] = order.ignored
        self.window_slots = order.window_slots
        self.now = 0
        """The clock at the last input."""
        self.gone = False

    def new_rate(self, now: int, rate: Rate) -> None:
        """Renegotiate the order's rate."""
        self.now = now
        self.order.new_rate(now, rate)

    def leave(self, now: int) -> None:
        """Depart from the order; what else there is to end follows from that."""
        self.now = now
        self.order.leave(now)

    def latest_slot(self, now: int) -> int:
        """The order's."""
        return self.order.latest_slot(now)

    def bound_ns(self) -> int:
        """The order's, of early deliveries; none is promised of final ones."""
        return self.order.bound_ns()

    def reliable(self) -> bool:
        """Whether early deliveries are promised to be free of gaps; final ones are."""
        return self.order.reliable()

    def returning(self) -> bool:
        """Whoever is silent may come back, and lacks what is final then."""
        return True

    def waiting_for(self) -> tuple[int, ...]:
        """Whom the order waits for."""
        return self.order.waiting_for()

    def running(self) -> bool:
        """Whether early deliveries have begun; final ones begin when a majority is there."""
        return self.order.running() and not self.gone

    def complaint(self) -> str:
        """The order's."""
        return self.order.complaint()

    def peer_rate(self, peer: int) -> Rate | None:
        """What a peer declared."""
        return self.order.peer_rate(peer)

    def by_multicast(self) -> bool:
        """Whether data goes by IP multicast; what is said about it goes to each member."""
        return self.order.by_multicast()
