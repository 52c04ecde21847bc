"""The messages that a member keeps until they are final everywhere, by slot and sender."""

from __future__ import annotations

from unisono.model.events import Run
from unisono.model.message_range import Cell, Extent
from unisono.model.message_set import Range
from unisono.model.remaining import Rest


class Store:
    """Runs of messages. What came together stays together: a run is taken apart only where it has to be cut."""

    def __init__(self) -> None:
        self.bytes = 0
        self._cells: dict[Cell, list[tuple[int, Run]]] = {}
        """By cell, (first number, run), ascending and without overlap."""

    def put(self, cell: Cell, first: int, run: Run) -> bool:
        """Keep messages; those that are there already stay as they are. Whether any are new."""
        pieces = self._cells.setdefault(cell, [])
        if not pieces or first >= pieces[-1][0] + pieces[-1][1].count:  # the usual case
            pieces.append((first, run))
            self.bytes += run.payload_bytes
            return True
        fresh = [(first, run)]
        for start, held in pieces:
            fresh = [part for one in fresh for part in _outside(one, start, start + held.count)]
        pieces.extend(fresh)
        pieces.sort(key=lambda piece: piece[0])
        self.bytes += sum(part.payload_bytes for _, part in fresh)
        return bool(fresh)

    def ranges(self, cell: Cell) -> tuple[Range, ...]:
        """Which numbers are held there, those that touch made one."""
        made: list[Range] = []
        for first, run in self._cells.get(cell, ()):
            last = first + run.count - 1
            if made and made[-1][1] + 1 == first:
                made[-1] = (made[-1][0], last)
            else:
                made.append((first, last))
        return tuple(made)

    def runs(self, extent: Extent) -> list[Run] | None:
        """The messages of an extent, or None if one of them is missing."""
        found: list[Run] = []
        at, end = extent.first, extent.first + extent.length
        for first, run in self._cells.get(extent.cell, ()):
            if first + run.count <= at:
                continue
            if first > at or at == end:
                break
            upto = min(end, first + run.count)
            whole = first == at and first + run.count == upto
            found.append(run if whole else Rest(run.messages()[at - first : upto - first]))
            at = upto
        return found if at == end else None

    def drop(self, extent: Extent) -> None:
        """Keep these no longer."""
        pieces = self._cells.pop(extent.cell, [])
        first, end = extent.first, extent.first + extent.length
        left = [part for piece in pieces for part in _outside(piece, first, end)]
        self.bytes -= sum(run.payload_bytes for _, run in pieces) - sum(run.payload_bytes for _, run in left)
        if left:
            self._cells[extent.cell] = left


def _outside(piece: tuple[int, Run], first: int, end: int) -> list[tuple[int, Run]]:
    """What of a piece has numbers below `first`, and from `end` on."""
    start, run = piece
    stop = start + run.count
    if stop <= first or end <= start:
        return [piece]
    messages = run.messages()
    parts: list[tuple[int, Run]] = []
    if start < first:
        parts.append((start, Rest(messages[: first - start])))
    if end < stop:
        parts.append((end, Rest(messages[end - start :])))
    return parts
