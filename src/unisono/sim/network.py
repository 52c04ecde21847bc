"""Links with delays up to Δ, from a delay model or chosen by an adversary; FIFO unless a fault reorders datagrams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from unisono.errors import InvalidOption
from unisono.model.delays import DelayModel, RandomSource, truncated_to

if TYPE_CHECKING:
    from unisono.sim.faults import LinkFault

Adversary: TypeAlias = Callable[[int, int, int, int], int]
"""Maps (sender, receiver, time, number of the datagram on its link) to a delay in [0, Δ]."""

DelaySource: TypeAlias = Callable[[int], int]
"""Maps the time of sending to the delay of the datagram sent then."""

Flight: TypeAlias = tuple[int, bool]
"""A delay, and whether the datagram may overtake others on a FIFO link."""


class SimulatedLink:
    """The link from one member to another."""

    __slots__ = ("draw_delay", "fifo", "last_arrival_ns", "receiver", "sender")

    def __init__(self, sender: int, receiver: int, draw_delay: DelaySource, fifo: bool = True) -> None:
        self.sender = sender
        self.receiver = receiver
        self.draw_delay = draw_delay
        self.fifo = fifo
        self.last_arrival_ns = -1

    def arrival(self, now: int) -> int:
        """When a datagram sent now arrives: on a FIFO link never before a datagram that was sent earlier.

        Waiting for that datagram keeps the delay within Δ, because the earlier one arrives within Δ itself.
        """
        at = now + self.draw_delay(now)
        if self.fifo:
            if at < self.last_arrival_ns:
                return self.last_arrival_ns
            self.last_arrival_ns = at
        return at


class SimulatedNetwork:
    """All links between some members, and the faults that apply to each datagram, in the order of `faults`."""

    def __init__(self, links: Sequence[SimulatedLink], faults: Sequence[LinkFault] = ()) -> None:
        self._links_by_sender: dict[int, tuple[SimulatedLink, ...]] = {}
        for link in links:
            self._links_by_sender[link.sender] = (*self._links_by_sender.get(link.sender, ()), link)
        self.faults = tuple(faults)

    def links_from(self, sender: int) -> tuple[SimulatedLink, ...]:
        """A member's links to all other members."""
        return self._links_by_sender.get(sender, ())

    def arrival_times(self, link: SimulatedLink, now: int) -> list[int]:
        """When the copies of a datagram sent now arrive: none if it is lost."""
        flights: list[Flight] = [(link.draw_delay(now), False)]
        for fault in self.faults:
            flights = fault.apply(link, now, flights)
        times: list[int] = []
        for delay, may_overtake in flights:
            at = now + delay
            if link.fifo and not may_overtake:
                at = link.last_arrival_ns = max(at, link.last_arrival_ns)
            times.append(at)
        return times


def delays_from_model(model: DelayModel, delta_ns: int, chance: RandomSource) -> DelaySource:
    """Delays drawn from a model, truncated to Δ."""
    sample = truncated_to(model, delta_ns).sample
    return lambda _now: sample(chance)


def delays_from_adversary(adversary: Adversary, sender: int, receiver: int, delta_ns: int) -> DelaySource:
    """Delays that an adversary chooses for one link."""
    ordinal = -1

    def draw(now: int) -> int:
        nonlocal ordinal
        ordinal += 1
        delay = adversary(sender, receiver, now, ordinal)
        if not 0 <= delay <= delta_ns:
            raise InvalidOption(
                "network.adversary",
                f"expected a delay of 0 to {delta_ns} ns, got {delay} ns from member {sender} to {receiver}",
            )
        return delay

    return draw


def full_mesh(
    members: Sequence[int], delay_source: Callable[[int, int], DelaySource], *, fifo: bool = True
) -> list[SimulatedLink]:
    """A link from every member to every other one."""
    return [SimulatedLink(a, b, delay_source(a, b), fifo) for a in members for b in members if a != b]


def network_with_model(
    members: Sequence[int],
    model: DelayModel,
    delta_ns: int,
    chance: Callable[[int, int], RandomSource],
    *,
    fifo: bool = True,
) -> SimulatedNetwork:
    """A network in which every link has this delay model and its own random stream."""
    return SimulatedNetwork(
        full_mesh(members, lambda a, b: delays_from_model(model, delta_ns, chance(a, b)), fifo=fifo)
    )


def corners(chance: RandomSource, delta_ns: int) -> Adversary:
    """A delay of 0 or Δ, with probability 1/2 each."""
    return lambda *_: delta_ns if chance.random() < 0.5 else 0


def constant_delay(delay_ns: int) -> Adversary:
    """The same delay for every datagram."""
    return lambda *_: delay_ns
