"""Links that take time: by a delay model held to Δ, or as an adversary chooses; FIFO unless a fault says otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from unisono.errors import InvalidPolicy
from unisono.model.delays import Chance, DelayModel, within

if TYPE_CHECKING:
    from unisono.sim.faults import LinkFault

Adversary: TypeAlias = Callable[[int, int, int, int], int]
"""(sender, receiver, time, number of the datagram on its link) -> delay in [0, Δ]."""

Draw: TypeAlias = Callable[[int], int]
"""The delay of the datagram that a link takes now."""

Flight: TypeAlias = tuple[int, bool]
"""A delay, and whether the datagram is free of the link's FIFO order."""


class Link:
    """The way from one member to another."""

    __slots__ = ("draw", "fifo", "last_arrival", "receiver", "sender")

    def __init__(self, sender: int, receiver: int, draw: Draw, fifo: bool = True) -> None:
        self.sender = sender
        self.receiver = receiver
        self.draw = draw
        self.fifo = fifo
        self.last_arrival = -1

    def arrival(self, now: int) -> int:
        """When a datagram sent now arrives: never before an earlier one of a FIFO link.

        The wait keeps to Δ, since the earlier datagram was sent earlier and keeps to Δ itself.
        """
        at = now + self.draw(now)
        if self.fifo:
            if at < self.last_arrival:
                return self.last_arrival
            self.last_arrival = at
        return at


class Network:
    """All links between some members, and the faults that datagrams pass on the way, in the order given."""

    def __init__(self, links: Sequence[Link], faults: Sequence[LinkFault] = ()) -> None:
        self._from: dict[int, tuple[Link, ...]] = {}
        for link in links:
            self._from[link.sender] = (*self._from.get(link.sender, ()), link)
        self.faults = tuple(faults)

    def links_from(self, sender: int) -> tuple[Link, ...]:
        """A member's links to everybody else."""
        return self._from.get(sender, ())

    def arrivals(self, link: Link, now: int) -> list[int]:
        """When the copies of a datagram sent now arrive: none if it is lost."""
        flights: list[Flight] = [(link.draw(now), False)]
        for fault in self.faults:
            flights = fault.flights(link, now, flights)
        times: list[int] = []
        for delay, free in flights:
            at = now + delay
            if link.fifo and not free:
                at = link.last_arrival = max(at, link.last_arrival)
            times.append(at)
        return times


def drawn(model: DelayModel, delta_ns: int, chance: Chance) -> Draw:
    """Delays drawn from a model, held to Δ."""
    sample = within(model, delta_ns).sample
    return lambda _now: sample(chance)


def chosen(adversary: Adversary, sender: int, receiver: int, delta_ns: int) -> Draw:
    """Delays that an adversary chooses for one link."""
    ordinal = -1

    def draw(now: int) -> int:
        nonlocal ordinal
        ordinal += 1
        delay = adversary(sender, receiver, now, ordinal)
        if not 0 <= delay <= delta_ns:
            raise InvalidPolicy("network.adversary", f"chose {delay} ns on {sender}→{receiver}, not 0 to {delta_ns}")
        return delay

    return draw


def mesh(members: Sequence[int], draw: Callable[[int, int], Draw], *, fifo: bool = True) -> list[Link]:
    """A link from every member to every other one."""
    return [Link(a, b, draw(a, b), fifo) for a in members for b in members if a != b]


def modelled(
    members: Sequence[int], model: DelayModel, delta_ns: int, chance: Callable[[int, int], Chance], *, fifo: bool = True
) -> Network:
    """A network in which every link has this delay model and a stream of its own."""
    return Network(mesh(members, lambda a, b: drawn(model, delta_ns, chance(a, b)), fifo=fifo))


def opposed(members: Sequence[int], adversary: Adversary, delta_ns: int, *, fifo: bool = True) -> Network:
    """A network in which an adversary chooses every delay."""
    return Network(mesh(members, lambda a, b: chosen(adversary, a, b, delta_ns), fifo=fifo))


def corners(chance: Chance, delta_ns: int) -> Adversary:
    """Nothing or Δ, by the toss of a coin."""
    return lambda *_: delta_ns if chance.random() < 0.5 else 0


def everything(delay_ns: int) -> Adversary:
    """The same delay for every datagram."""
    return lambda *_: delay_ns


def table(delays_ns: Mapping[tuple[int, int], int], otherwise_ns: int = 0) -> Adversary:
    """A delay per link, and one for all others."""
    return lambda sender, receiver, *_: delays_ns.get((sender, receiver), otherwise_ns)
