"""Which numbers of one sender's messages have come: a contiguous run, a few beyond it, and when to stop waiting."""

from __future__ import annotations

from collections import deque

WINDOW = 1 << 15
"""How many messages of one sender may be told apart behind one that is missing."""


class SequenceWindow:
    """What has come of one sender in one incarnation.

    A number that is missing counts as lost `patience` after a later one came, or when WINDOW later ones have.
    """

    __slots__ = ("_counted_from", "_holes", "floor", "highest", "seen")

    def __init__(self, first: int = 0, *, may_start_midstream: bool = False) -> None:
        """`first` is what comes first: with `may_join` maybe the middle of a stream, and what was before it no loss."""
        self.floor = max(0, first - WINDOW + 1)
        """All numbers below have come, or are lost."""
        self.highest = self.floor - 1
        self.seen: set[int] = set()
        """Numbers that have come beyond the floor."""
        self._counted_from = first if may_start_midstream else 0
        self._holes: deque[tuple[int, int]] = deque()
        """(when, number): what is before this number and has not come by then is lost."""

    def is_known(self, number: int) -> bool:
        """Whether a number has come before, or is given up."""
        return number < self.floor or number in self.seen

    def add(self, number: int, lost_at: int) -> list[int]:
        """A number has come that was not known; what is lost for want of room. Holes before it are lost at `until`."""
        if number > self.highest + 1:
            self._holes.append((lost_at, number))
        self.highest = max(self.highest, number)
        lost = self._mark_lost_before(number - WINDOW + 1)
        self.seen.add(number)
        self._advance_floor()
        return lost

    def next_loss_at(self) -> int | None:
        """When something will be lost, unless it comes."""
        holes = self._holes
        while holes and holes[0][1] <= self.floor:
            holes.popleft()
        return holes[0][0] if holes else None

    def expire(self, now: int) -> list[int]:
        """What is lost by now; of a stretch longer than WINDOW only the end."""
        lost: list[int] = []
        while (due := self.next_loss_at()) is not None and due <= now:
            lost += self._mark_lost_before(self._holes.popleft()[1])
        return lost

    def _mark_lost_before(self, before: int) -> list[int]:
        if before <= self.floor:
            return []
        first = max(self.floor, self._counted_from, before - WINDOW)
        lost = [number for number in range(first, before) if number not in self.seen]
        self.seen = {number for number in self.seen if number >= before}
        self.floor = before
        self._advance_floor()
        return lost

    def _advance_floor(self) -> None:
        while self.floor in self.seen:
            self.seen.remove(self.floor)
            self.floor += 1
