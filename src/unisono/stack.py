"""The stack: layers with an order on top, as one machine with five verbs.

Take in (an application's messages, or a datagram), wake, say when to wake, hand out datagrams, hand out events.
The simulator and the asyncio driver use these and nothing else; no protocol decision is made outside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from unisono.errors import InvalidPolicy
from unisono.layers.contract import Layer, Order
from unisono.layers.skew import Skew
from unisono.model.events import StackEvent
from unisono.model.histogram import Histogram
from unisono.model.ids import group_key
from unisono.model.policy import Policy
from unisono.model.rates import Rate, Reserver, Unlimited
from unisono.orders.vbr import Vbr
from unisono.wire.door import Door
from unisono.wire.frame import Kind, encode

ORDERS: dict[str, Callable[[Policy, Reserver], Order]] = {"vbr": Vbr}


@dataclass(frozen=True, slots=True)
class Datagram:
    """Bytes to send: to one member, or to everyone (`to` = 0), by IP multicast if `multicast`."""

    to: int
    multicast: bool
    data: bytes


class Stack:
    """One member's machine."""

    def __init__(self, policy: Policy, order: Order, layers: Sequence[Layer], skew: Skew) -> None:
        self.policy = policy
        self.order = order
        self.skew = skew
        self.delays = Histogram()
        """One-way delays of data frames as the clocks show them, without correction for skew."""
        self._layers = tuple(layers)
        self._group = group_key(policy.group)
        self.door = Door(self._group, policy.member, policy.view.members)

    def submit(self, now: int, messages: Sequence[bytes]) -> int:
        """Take application messages; how many, from the first on. The rest is to be offered again later."""
        taken = self.order.submit(now, messages)
        self._pump(now)
        return taken

    def receive(self, now: int, data: bytes, start: int = 0, end: int | None = None, multicast: bool = False) -> None:
        """Take the datagram in data[start:end]."""
        frame = self.door.admit(data, start, len(data) if end is None else end, self.order.latest_slot(now))
        if frame is None:
            return
        if frame.kind is Kind.DATA:
            self.delays.add(now - frame.sent_ns)
        frame.multicast = multicast
        if self._layers:
            self._layers[-1].from_below(now, frame)
        else:
            self.order.from_below(now, frame)
        self._pump(now)

    def wake(self, now: int) -> None:
        """The local clock has reached `now`."""
        self.order.wake(now)
        for layer in self._layers:
            layer.wake(now)
        self._pump(now)

    def wake_at(self) -> int | None:
        """The clock reading at which to call `wake`."""
        due = [at for part in (self.order, *self._layers) if (at := part.wake_at()) is not None]
        return min(due, default=None)

    def outgoing(self) -> list[Datagram]:
        """The datagrams to send, in order; they are handed out once."""
        source = self._layers[-1].down if self._layers else self.order.down
        datagrams = [Datagram(frame.to, frame.multicast, encode(frame, self._group)) for frame in source]
        source.clear()
        return datagrams

    def events(self) -> list[StackEvent]:
        """What has happened for the application, in order; handed out once."""
        events = self.order.events[:]
        self.order.events.clear()
        return events

    def new_rate(self, now: int, rate: Rate) -> None:
        """Renegotiate this member's rate; raises ReservationRefused and changes nothing when there is no room."""
        self.order.new_rate(now, rate)
        self._pump(now)

    def leave(self, now: int) -> None:
        """Depart in order; a Left event says when it is done."""
        self.order.leave(now)
        self._pump(now)

    def _pump(self, now: int) -> None:
        """Carry frames between neighbours until there is nothing to carry."""
        layers = self._layers
        moved = bool(layers)
        while moved:
            moved = False
            above = self.order.down
            for layer in layers:
                if above:
                    frames, above[:] = above[:], []
                    for frame in frames:
                        layer.from_above(now, frame)
                    moved = True
                above = layer.down
            for position in range(len(layers) - 1, -1, -1):
                up = layers[position].up
                if up:
                    frames, up[:] = up[:], []
                    target = layers[position - 1] if position else self.order
                    for frame in frames:
                        target.from_below(now, frame)
                    moved = True


def build(policy: Policy, reserver: Reserver | None = None) -> Stack:
    """The stack that a policy asks for; raises ReservationRefused if the network has no room for its rate."""
    make = ORDERS.get(policy.order)
    if make is None:
        raise InvalidPolicy("order", f"one of {', '.join(sorted(ORDERS))} is possible, not {policy.order!r}")
    skew = Skew(policy)
    return Stack(policy, make(policy, reserver or Unlimited()), [skew], skew)
