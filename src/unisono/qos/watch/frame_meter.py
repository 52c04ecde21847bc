"""What a service under the VBR order leaves of the network's loss: frames of the order that did not come.

Every slot of every member has frames numbered from 0 and ends with a mark, so the marks say how many frames there were,
and the slots' numbers how many marks. Of a slot whose mark is lost at least the mark is missing. A slot is counted when
LAG later ones have begun, by when a reliable service has repaired what it can.
"""

from __future__ import annotations

from unisono.wire.frame import END_OF_SLOT, Frame

COUNT_LAG_SLOTS = 16


class FrameMeter:
    """The frames of one sender that reach the order."""

    __slots__ = ("_counted_until", "_due", "_incarnation", "_missing", "_newest", "_open_slots")

    def __init__(self) -> None:
        self._incarnation = -1
        self._newest = self._counted_until = -1
        self._open_slots: dict[int, tuple[int, int]] = {}
        """By slot: frames that came, and how many there are if the mark came, else how many there are at least."""
        self._due = self._missing = 0

    def on_frame(self, frame: Frame) -> None:
        """A frame came up."""
        if frame.incarnation != self._incarnation:
            if frame.incarnation < self._incarnation:
                return
            self._incarnation = frame.incarnation
            self._newest = self._counted_until = frame.slot - 1
            self._open_slots.clear()
        slot = frame.slot
        if slot <= self._counted_until:
            return
        came, due = self._open_slots.get(slot, (0, 1))
        # Behind a frame that is no mark there is at least one more.
        self._open_slots[slot] = came + 1, max(due, frame.number + (1 if frame.flags & END_OF_SLOT else 2))
        if slot > self._newest:
            self._newest = slot
            self._count_until(slot - COUNT_LAG_SLOTS)

    def _count_until(self, until: int) -> None:
        slots = until - self._counted_until
        if slots <= 0:
            return
        found = 0
        for slot in sorted(slot for slot in self._open_slots if slot <= until):
            came, due = self._open_slots.pop(slot)
            found += 1
            self._due += due
            self._missing += max(0, due - came)
        self._due += slots - found
        self._missing += slots - found
        self._counted_until = until

    def pop_window(self) -> tuple[int, int]:
        """Frames that were due since the last call, and how many of them did not come; begins anew."""
        counted = self._due, self._missing
        self._due = self._missing = 0
        return counted
