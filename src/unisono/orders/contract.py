"""What the orders have in common: their modes, and the base of those whose group forms by the HELLO exchange.

`unisono.net.layer.Order` is the interface that the stack uses. `OrderBase` implements the part of it that follows from
the exchange in `formation`; each order adds its inputs, its bound and its guarantees. `ACCEPTED_INPUTS` says which
inputs each mode accepts (paper 000 figure 6).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from enum import StrEnum

from unisono.model.events import LeaveComplete, StackEvent
from unisono.model.policy import Policy
from unisono.model.status import Standing
from unisono.model.units import Rate
from unisono.net.clock_check import ClockDifference
from unisono.net.layer import NO_ROOM
from unisono.orders.formation import RateExchange
from unisono.wire.frame import Frame


class Mode(StrEnum):
    """The modes of an order (paper 000, figure 6), and LEFT, which the paper omits."""

    GET_RATE = "GetRate"
    DET_RATE = "DetRate"
    DELIVER_MESSAGES = "DeliverMessages"
    LEFT = "Left"


class Input(StrEnum):
    """The inputs of the automaton that depend on its mode, by their names in the paper."""

    SUBMIT = "app-mcast"
    HELLO = "rate received"
    DATA = "net-receive"
    NEW_RATE = "new-rate"
    LEAVE = "leave"


ACCEPTED_INPUTS: dict[Mode, frozenset[Input]] = {
    Mode.GET_RATE: frozenset({Input.HELLO, Input.NEW_RATE, Input.LEAVE}),
    Mode.DET_RATE: frozenset({Input.HELLO, Input.DATA, Input.NEW_RATE, Input.LEAVE}),
    Mode.DELIVER_MESSAGES: frozenset(Input),
    Mode.LEFT: frozenset(),
}
"""The inputs that have an effect in each mode. Others are ignored; a submission is not accepted, and waits."""


class OrderBase(ABC):
    """The base of orders whose members exchange HELLOs to form a group: it runs the exchange and holds the outputs."""

    def __init__(self, policy: Policy, *, allow_restarts: bool = False, check_clocks: bool = False) -> None:
        """`allow_restarts` and `check_clocks` are explained at `RateExchange`."""
        self.down: list[Frame] = []
        """Frames to send, in order; the stack drains this list."""
        self.events: list[StackEvent] = []
        """Events for the application, in order; the stack drains this list."""
        self.ignored: Counter[str] = Counter()
        """Frames that passed the door but were not used, by reason."""
        self.exchange = RateExchange(policy, self.down, allow_restarts=allow_restarts, check_clocks=check_clocks)
        self._multicast = False
        """Whether every peer has received this member's HELLO by IP multicast."""

    def _receive_hello(self, now: int, frame: Frame) -> None:
        """Pass a received HELLO to the exchange, and report to the application a problem that the HELLO shows."""
        violation = self.exchange.from_below(now, frame)
        if violation is not None:
            self.events.append(violation)
        self._multicast = self.exchange.reaches_all_by_multicast()

    def on_clock_difference(self, now: int, difference: ClockDifference) -> None:
        """Report a peer whose clock is off by more than Γ. If the group has not started yet, refuse the peer."""
        violation = self.exchange.on_clock_difference(difference.peer, difference.incarnation, difference.difference_ns)
        if violation is not None:
            self.events.append(violation)

    def room(self, now: int) -> tuple[int, int]:
        """What `submit` accepts for certain at the same reading: nothing, if the order cannot tell beforehand."""
        return NO_ROOM

    @abstractmethod
    def running(self) -> bool:
        """Whether the order accepts and delivers messages."""

    def waiting_for(self) -> tuple[int, ...]:
        """The members whose HELLO or first slot is not known yet; empty once the order runs."""
        return () if self.running() else self.exchange.missing()

    def peer_problems(self) -> Mapping[int, str]:
        """By peer, why this member refused its HELLOs."""
        return self.exchange.problems

    def why_not_formed(self) -> str:
        """Always empty: this order only waits for HELLOs that it can accept."""
        return ""

    def peer_rate(self, peer: int) -> Rate | None:
        """The rate that a peer declared, or None if it is not known yet."""
        return self.exchange.rate(peer)

    def by_multicast(self) -> bool:
        """Whether this member's data goes by IP multicast: every peer has received its HELLO that way."""
        return self._multicast

    def standing(self, now: int) -> Standing:
        """No leader and no majority: an order without agreement needs neither, and departed members leave its view."""
        return Standing()


class VariableRateBase(OrderBase):
    """The base of VBR, the leader orders and multicast without an order: they have the modes of paper 000, figure 6."""

    def __init__(self, policy: Policy, *, allow_restarts: bool = False, check_clocks: bool = False) -> None:
        super().__init__(policy, allow_restarts=allow_restarts, check_clocks=check_clocks)
        self.mode = Mode.GET_RATE
        self.view = policy.view
        self._policy = policy

    def _form(self, now: int) -> None:
        """While HELLOs are needed: send one if it is due, and start once every member's first slot is known."""
        if self.mode is Mode.GET_RATE:
            self.mode = Mode.DET_RATE
        self.exchange.wake(now)
        self._start_deliver(now)

    @abstractmethod
    def _start_deliver(self, now: int) -> None:
        """Start delivery if the order is in DetRate and the HELLO exchange is complete (paper 000: start-deliver)."""

    def _depart(self, final_slot: int) -> None:
        """Leave the group: no HELLO is due any more, and the application learns the last slot."""
        if self.mode is not Mode.LEFT:
            self.mode = Mode.LEFT
            self.exchange.next_hello_at = None
            self.events.append(LeaveComplete(final_slot))

    def running(self) -> bool:
        """Whether the order is in DeliverMessages."""
        return self.mode is Mode.DELIVER_MESSAGES
