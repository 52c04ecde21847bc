"""The stack: layers with an order on top, as one machine with five verbs.

Take in (an application's messages, or a datagram), wake, say when to wake, hand out datagrams, hand out events.
The simulator and the asyncio driver use these and nothing else; no protocol decision is made outside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from unisono.errors import InvalidPolicy
from unisono.layers.contract import Layer, Order
from unisono.layers.fec import Fec, order_policy
from unisono.layers.skew import Skew
from unisono.model.events import StackEvent
from unisono.model.histogram import Histogram
from unisono.model.ids import group_key
from unisono.model.policy import Policy
from unisono.model.rates import Rate, Reserver, Unlimited
from unisono.orders.cbr import Cbr
from unisono.orders.leader import Leader
from unisono.orders.timestamp import Timestamp
from unisono.orders.vbr import Vbr
from unisono.orders.vbr_gaps import VbrGaps
from unisono.wire.door import Door
from unisono.wire.frame import LAST, Frame, Kind, encode


def _vbr(policy: Policy, reserver: Reserver) -> Order:
    return (VbrGaps if policy.failures else Vbr)(policy, reserver)


ORDERS: dict[str, Callable[[Policy, Reserver], Order]] = {
    "cbr": Cbr,
    "leader": Leader,
    "timestamp": Timestamp,
    "vbr": _vbr,
}


HONOURS: dict[str, frozenset[str]] = {
    "cbr": frozenset({"reservation"}),
    "leader": frozenset({"processing_ns", "failures"}),
    "timestamp": frozenset({"processing_ns", "failures"}),
    "vbr": frozenset({"failures", "loss_burst", "fec"}),
}
"""What each order does about the policies that not every order knows; what it does not honour is refused.

The leader orders outlive crashes with and without `failures`. Forward error correction needs the VBR order's marks.
"""
_UNASKED = {"failures": False, "loss_burst": 0, "fec": None, "processing_ns": 0, "reservation": "sender"}


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
        """One-way delays of end-of-slot marks, which deliveries wait for, as the clocks show them, skew and all."""
        self._layers = tuple(layers)
        """From the order down to the network."""
        self._out: list[Frame] = []
        self._takers = {kind: self._taker(kind, len(self._layers)) for kind in Kind}
        self._group = group_key(policy.group)
        self.door = Door(self._group, policy.member, policy.view.members, fec=policy.fec is not None)

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
        if frame.flags & LAST:
            self.delays.add(now - frame.sent_ns)
        frame.multicast = multicast
        taker = self._takers[frame.kind]
        taker.from_below(now, frame)
        if taker is not self.order or self.order.down:
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
        if not self._out:
            return []
        datagrams = [Datagram(frame.to, frame.multicast, encode(frame, self._group)) for frame in self._out]
        self._out.clear()
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
        """Carry frames on, past layers that have no business with them, until there is nothing to carry."""
        order, layers = self.order, self._layers
        moved = True
        while moved:
            moved = False
            if order.down:
                frames, order.down[:] = order.down[:], []
                self._lower(now, frames, 0)
            for position, layer in enumerate(layers):
                if layer.down:
                    frames, layer.down[:] = layer.down[:], []
                    self._lower(now, frames, position + 1)
                if layer.up:
                    moved = True
                    frames, layer.up[:] = layer.up[:], []
                    for frame in frames:
                        self._taker(frame.kind, position).from_below(now, frame)

    def _lower(self, now: int, frames: list[Frame], position: int) -> None:
        """Frames on their way down, to the first layer from `position` on that takes them, or out."""
        below = self._layers[position:]
        for frame in frames:
            for layer in below:
                if frame.kind in layer.wraps:
                    layer.from_above(now, frame)
                    break
            else:
                self._out.append(frame)

    def _taker(self, kind: Kind, position: int) -> Layer | Order:
        """Who takes a frame of this kind that comes up from `position`: a layer above it, or the order."""
        for layer in reversed(self._layers[:position]):
            if kind in layer.opens:
                return layer
        return self.order


def build(policy: Policy, reserver: Reserver | None = None) -> Stack:
    """The stack that a policy asks for; raises ReservationRefused if the network has no room for its rate."""
    make = ORDERS.get(policy.order)
    if make is None:
        raise InvalidPolicy("order", f"one of {', '.join(sorted(ORDERS))} is possible, not {policy.order!r}")
    for field, unasked in _UNASKED.items():
        if getattr(policy, field) != unasked and field not in HONOURS[policy.order]:
            others = [order for order, honoured in HONOURS.items() if field in honoured]
            raise InvalidPolicy(field, f"the order {policy.order} does not do that; {' and '.join(others)} can")
    if policy.loss_burst and not policy.failures:
        raise InvalidPolicy("loss_burst", "what is lost is a gap, which needs failures to be allowed for")
    skew = Skew(policy)
    if policy.fec is None:
        return Stack(policy, make(policy, reserver or Unlimited()), [skew], skew)
    return Stack(policy, make(order_policy(policy), reserver or Unlimited()), [Fec(policy), skew], skew)
