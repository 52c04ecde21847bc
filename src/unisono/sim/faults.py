"""Faults of links, which can be combined; each counts the datagrams that it has affected.

A flight is one copy of a datagram on its way, with its delay. A fault takes the flights of one datagram and returns the
changed flights: none if the datagram is lost, two if it is duplicated. `World` has the faults of members: crashes and
pauses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, assert_never

from unisono.model.delays import RandomSource
from unisono.model.faults import Duplication, Loss, LossModel, Partition, Reordering, Span
from unisono.sim.network import Flight, SimulatedLink


class LinkFault(Protocol):
    """A fault of the links. It loses, duplicates or delays datagrams, and counts those that it has affected."""

    hits: int
    """How many datagrams this fault has affected."""

    def apply(self, link: SimulatedLink, now: int, flights: list[Flight]) -> list[Flight]:
        """Apply this fault to a datagram sent now.

        `flights` has the delay of each of its copies so far. Return the changed list: empty if the datagram is lost.
        """


class FaultSpan:
    """The time during which a fault is active, in a run that starts at a given true time."""

    __slots__ = ("_span", "_start_ns")

    def __init__(self, span: Span, start_ns: int) -> None:
        self._span = span
        self._start_ns = start_ns

    def is_active(self, now: int) -> bool:
        """Whether the fault is active at the true time `now`."""
        return self._span.contains(now - self._start_ns)


class LossFault:
    """Loses datagrams, but never more on a link than the scenario's `Loss` faults allow."""

    def __init__(self, faults: Sequence[Loss], start_ns: int, chance: RandomSource) -> None:
        self.hits = 0
        self._losses = LossModel(faults, chance)
        self._start_ns = start_ns

    def apply(self, link: SimulatedLink, now: int, flights: list[Flight]) -> list[Flight]:
        if not self._losses.is_lost(link.sender, link.receiver, now - self._start_ns):
            return flights
        self.hits += 1
        return []


class DuplicationFault:
    """Adds a second copy with its own delay, outside the link's FIFO order."""

    def __init__(self, fault: Duplication, span: FaultSpan, chance: RandomSource) -> None:
        self.hits = 0
        self._fault = fault
        self._span = span
        self._chance = chance

    def apply(self, link: SimulatedLink, now: int, flights: list[Flight]) -> list[Flight]:
        if not flights or not self._span.is_active(now) or self._chance.random() >= self._fault.probability:
            return flights
        self.hits += 1
        return [*flights, (link.draw_delay(now), True)]


class ReorderingFault:
    """Lets datagrams overtake one another."""

    def __init__(self, fault: Reordering, span: FaultSpan, chance: RandomSource, delta_ns: int) -> None:
        self.hits = 0
        self._fault = fault
        self._span = span
        self._chance = chance
        self._delta_ns = delta_ns

    def apply(self, link: SimulatedLink, now: int, flights: list[Flight]) -> list[Flight]:
        if not flights or not self._span.is_active(now) or self._chance.random() >= self._fault.probability:
            return flights
        self.hits += 1
        return [(int(self._chance.random() * (self._delta_ns + 1)), True) for _ in flights]


class PartitionFault:
    """Cuts the network between groups of members."""

    def __init__(self, fault: Partition, span: FaultSpan) -> None:
        self.hits = 0
        self._span = span
        self._side = {member: side for side, group in enumerate(fault.groups) for member in group}

    def apply(self, link: SimulatedLink, now: int, flights: list[Flight]) -> list[Flight]:
        if not flights or self._side.get(link.sender) == self._side.get(link.receiver) or not self._span.is_active(now):
            return flights
        self.hits += 1
        return []


def link_fault(
    fault: Loss | Duplication | Reordering | Partition, start_ns: int, delta_ns: int, chance: RandomSource
) -> LinkFault:
    """Make the simulator's fault from a fault of the scenario, for a run that starts at `start_ns`."""
    span = FaultSpan(fault.span, start_ns)
    match fault:
        case Loss():
            return LossFault((fault,), start_ns, chance)
        case Duplication():
            return DuplicationFault(fault, span, chance)
        case Reordering():
            return ReorderingFault(fault, span, chance, delta_ns)
        case Partition():
            return PartitionFault(fault, span)
    assert_never(fault)
