"""What members have reported of the messages that they hold, and what a leader may propose from that.

A leader waits until everybody who is not suspected has delivered a slot early, so that all it delivered is counted;
and proposes only what a majority holds, so that whoever crashes, somebody who does not can give it to the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from unisono.model.message_range import Cell, Extent
from unisono.model.message_set import MessageSet, Origin, Range
from unisono.orders.final.log import FinalLog
from unisono.orders.final.messages import Holdings
from unisono.wire.frame import Frame

Ranges = tuple[Range, ...]


class Report:
    """One member's last whole report."""

    def __init__(self, life: int, upto: int = 0, known: int = 0, cells: dict[Cell, Ranges] | None = None) -> None:
        self.life = life
        self.upto = upto
        self.known = known
        self.cells: dict[Cell, Ranges] = cells or {}


class _Parts:
    """A report that is not whole yet."""

    def __init__(self, frame: Frame) -> None:
        self.life, self.sent_ns, self.total = frame.incarnation, frame.sent_ns, frame.burst
        self.parts: dict[int, Holdings] = {}


class Reports:
    """Everybody's, this member's own among them."""

    def __init__(self) -> None:
        self.of: dict[int, Report] = {}
        self._parts: dict[int, _Parts] = {}

    def hear(self, frame: Frame, holdings: Holdings) -> bool:
        """A part of a report has come; whether that report is whole now. An older one than is known is left out."""
        known = self._parts.get(frame.sender)
        if known is None or (frame.incarnation, frame.sent_ns) > (known.life, known.sent_ns):
            known = self._parts[frame.sender] = _Parts(frame)
        elif (frame.incarnation, frame.sent_ns) < (known.life, known.sent_ns):
            return False
        known.parts[frame.number] = holdings
        if len(known.parts) < known.total:
            return False
        extents = [extent for _, part in sorted(known.parts.items()) for extent in part.extents]
        self.of[frame.sender] = Report(frame.incarnation, holdings.upto, holdings.known, by_cell(extents))
        return True

    def upto(self, members: Sequence[int]) -> int:
        """The last slot of which none of these will deliver anything more early."""
        return min((self.of[member].upto if member in self.of else 0 for member in members), default=0)

    def holders(self, cell: Cell, members: Sequence[int]) -> dict[int, Ranges]:
        """By member, what these hold there."""
        return {m: self.of[m].cells[cell] for m in members if m in self.of and cell in self.of[m].cells}


def by_cell(extents: Sequence[Extent]) -> dict[Cell, Ranges]:
    """Extents that are in order, together where they belong together."""
    cells: dict[Cell, Ranges] = {}
    for extent in extents:
        cells[extent.cell] = (*cells.get(extent.cell, ()), (extent.first, extent.last))
    return cells


def segments(cell: Cell, held: Mapping[int, Ranges]) -> list[tuple[Extent, int]]:
    """What is held in a cell, cut so that each part has the same holders everywhere, and how many those are."""
    distinct = list(dict.fromkeys(held.values()))
    if len(distinct) == 1:
        return [(Extent(*cell, a, b - a + 1), len(held)) for a, b in distinct[0]]
    cuts = sorted({edge for ranges in distinct for a, b in ranges for edge in (a, b + 1)})
    parts = []
    for first, end in pairwise(cuts):
        holders = sum(any(a <= first and end - 1 <= b for a, b in ranges) for ranges in held.values())
        if holders:
            parts.append((Extent(*cell, first, end - first), holders))
    return parts


class Chooser:
    """A leader's next proposals, in one reign."""

    def __init__(self, reports: Reports, log: FinalLog, majority: int, patience_ns: int) -> None:
        """`patience_ns`: how long what follows a hole in a silent sender's messages waits for the hole to be filled."""
        self._reports = reports
        self._log = log
        self._majority = majority
        self._patience_ns = patience_ns
        self._proposed = MessageSet()
        self._entering: dict[int, int] = {}
        self._since: dict[Origin, int] = {}
        """Since when a silent sender's messages are known to have a hole."""
        self.retry_at: int | None = None
        """When a hole has been waited for long enough."""

    def entering(self, trusted: Sequence[int], leaving: int) -> dict[int, int]:
        """Who has reported and does not take part yet, by member its life; whoever is done at `leaving` goes."""
        found = {}
        for member in trusted:
            report = self._reports.of.get(member)
            if report is None or report.upto >= leaving:
                continue
            if report.life > max(self._log.entered.get(member, -1), self._entering.get(member, -1)):
                found[member] = self._entering[member] = report.life
        return found

    def extents(self, now: int, trusted: Sequence[int], most: int) -> list[Extent]:
        """What can be proposed now, in order."""
        upto = self._reports.upto(trusted)
        cells = {cell: None for m in trusted if m in self._reports.of for cell in self._reports.of[m].cells}
        found: list[Extent] = []
        self.retry_at = None
        for cell in sorted(cell for cell in cells if cell[0] <= upto):
            for segment, holders in segments(cell, self._reports.holders(cell, trusted)):
                for open_ in self._log.left(segment):
                    for extent in open_.without(self._proposed):
                        few = holders < self._majority or len(found) == most
                        if few or self._behind_hole(now, extent, trusted):
                            return found
                        self._proposed |= extent.messages()
                        found.append(extent)
        return found

    def settle(self) -> None:
        """Forget what has been decided."""
        self._proposed -= self._log.final

    def _behind_hole(self, now: int, extent: Extent, trusted: Sequence[int]) -> bool:
        """Whether an earlier message of a sender that is not heard is missing, and may still turn up."""
        report = self._reports.of.get(extent.sender)
        if extent.sender in trusted and report is not None and report.life >= extent.incarnation:
            self._since.pop(extent.origin, None)
            return False
        if extent.first <= self._next(extent.origin):
            return False
        due = self._since.setdefault(extent.origin, now) + self._patience_ns
        if now >= due:
            return False
        self.retry_at = due
        return True

    def _next(self, origin: Origin) -> int:
        settled = (self._log.final.ranges.get(origin, ()), self._proposed.ranges.get(origin, ()))
        return max((ranges[-1][1] + 1 for ranges in settled if ranges), default=0)
