"""What a service under the VBR order leaves of the network's loss: frames of the order that did not come.

Every slot of every member has frames numbered from 0 and ends with a mark, so the marks say how many frames there were,
and the slots' numbers how many marks. Of a slot whose mark is lost at least the mark is missing. A slot is counted when
LAG later ones have begun, by when a reliable service has repaired what it can.
"""

from __future__ import annotations

from unisono.wire.frame import LAST, Frame

LAG = 16


class FrameMeter:
    """The frames of one sender that reach the order."""

    __slots__ = ("_due", "_incarnation", "_missing", "_newest", "_open", "_settled")

    def __init__(self) -> None:
        self._incarnation = -1
        self._newest = self._settled = -1
        self._open: dict[int, tuple[int, int]] = {}
        """By slot: frames that came, and how many there are if the mark came, else how many there are at least."""
        self._due = self._missing = 0

    def take(self, frame: Frame) -> None:
        """A frame came up."""
        if frame.incarnation != self._incarnation:
            if frame.incarnation < self._incarnation:
                return
            self._incarnation = frame.incarnation
            self._newest = self._settled = frame.slot - 1
            self._open.clear()
        slot = frame.slot
        if slot <= self._settled:
            return
        came, due = self._open.get(slot, (0, 1))
        # Behind a frame that is no mark there is at least one more.
        self._open[slot] = came + 1, max(due, frame.number + (1 if frame.flags & LAST else 2))
        if slot > self._newest:
            self._newest = slot
            self._settle(slot - LAG)

    def _settle(self, until: int) -> None:
        slots = until - self._settled
        if slots <= 0:
            return
        found = 0
        for slot in sorted(slot for slot in self._open if slot <= until):
            came, due = self._open.pop(slot)
            found += 1
            self._due += due
            self._missing += max(0, due - came)
        self._due += slots - found
        self._missing += slots - found
        self._settled = until

    def window(self) -> tuple[int, int]:
        """Frames that were due since the last call, and how many of them did not come; begins anew."""
        counted = self._due, self._missing
        self._due = self._missing = 0
        return counted
