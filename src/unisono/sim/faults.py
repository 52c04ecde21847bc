"""Faults that datagrams meet on their way, as parts one composes; each counts what it did.

A part takes the flights of one datagram (its copies so far, each with its delay) and gives them changed: none if it
is lost, two if it is duplicated. Crashes and pauses happen to members and are the world's: see `World`.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol, assert_never

from unisono.model.delays import Chance
from unisono.model.faults import Duplication, Loss, Partition, Reordering, Span
from unisono.sim.network import Flight, Link


class LinkFault(Protocol):
    """One part."""

    hits: int
    """How many datagrams it has touched."""

    def flights(self, link: Link, now: int, flights: list[Flight]) -> list[Flight]:
        """What becomes of a datagram that is sent now."""


class Window:
    """A span of the run in true time."""

    __slots__ = ("_from", "_to")

    def __init__(self, span: Span, start_ns: int) -> None:
        self._from = start_ns + span.from_ns
        self._to = None if span.to_ns is None else start_ns + span.to_ns

    def open(self, now: int) -> bool:
        """Whether the span lasts: its end is no longer in it."""
        return now >= self._from and (self._to is None or now < self._to)


class Losing:
    """Loses datagrams, never more than the bound allows of consecutive ones on a link (paper 000 §7, 001 §3)."""

    def __init__(self, fault: Loss, window: Window, chance: Chance) -> None:
        self.hits = 0
        self._fault = fault
        self._window = window
        self._chance = chance
        self._recent: dict[tuple[int, int], deque[bool]] = {}

    def flights(self, link: Link, now: int, flights: list[Flight]) -> list[Flight]:
        fault = self._fault
        applies = (
            self._window.open(now)
            and (not fault.senders or link.sender in fault.senders)
            and (not fault.receivers or link.receiver in fault.receivers)
        )
        lost = applies and self._chance.random() < fault.probability
        if fault.at_most is not None and fault.of is not None:
            # The last of-1 fates and this one make up the `of` consecutive datagrams that the bound speaks of.
            recent = self._recent.setdefault((link.sender, link.receiver), deque(maxlen=fault.of - 1))
            lost = lost and sum(recent) < fault.at_most
            recent.append(lost)
        if not lost:
            return flights
        self.hits += 1
        return []


class Duplicating:
    """Lets a second copy arrive; it takes a delay of its own and no part in the link's order."""

    def __init__(self, fault: Duplication, window: Window, chance: Chance) -> None:
        self.hits = 0
        self._fault = fault
        self._window = window
        self._chance = chance

    def flights(self, link: Link, now: int, flights: list[Flight]) -> list[Flight]:
        if not flights or not self._window.open(now) or self._chance.random() >= self._fault.probability:
            return flights
        self.hits += 1
        return [*flights, (link.draw(now), True)]


class Reorderer:
    """Lets datagrams overtake one another."""

    def __init__(self, fault: Reordering, window: Window, chance: Chance, delta_ns: int) -> None:
        self.hits = 0
        self._fault = fault
        self._window = window
        self._chance = chance
        self._delta_ns = delta_ns

    def flights(self, link: Link, now: int, flights: list[Flight]) -> list[Flight]:
        if not flights or not self._window.open(now) or self._chance.random() >= self._fault.probability:
            return flights
        self.hits += 1
        return [(int(self._chance.random() * (self._delta_ns + 1)), True) for _ in flights]


class Dividing:
    """Cuts the network between groups of members."""

    def __init__(self, fault: Partition, window: Window) -> None:
        self.hits = 0
        self._window = window
        self._side = {member: side for side, group in enumerate(fault.groups) for member in group}

    def flights(self, link: Link, now: int, flights: list[Flight]) -> list[Flight]:
        if not flights or self._side.get(link.sender) == self._side.get(link.receiver) or not self._window.open(now):
            return flights
        self.hits += 1
        return []


def link_fault(
    fault: Loss | Duplication | Reordering | Partition, start_ns: int, delta_ns: int, chance: Chance
) -> LinkFault:
    """The part that a scenario's fault asks for, in a run that starts at `start_ns`."""
    window = Window(fault.span, start_ns)
    match fault:
        case Loss():
            return Losing(fault, window, chance)
        case Duplication():
            return Duplicating(fault, window, chance)
        case Reordering():
            return Reorderer(fault, window, chance, delta_ns)
        case Partition():
            return Dividing(fault, window)
    assert_never(fault)
