"""Rqueue(j): the received frames of one sender that wait for their slot to be delivered (paper 000 figure 6).

Frames are keyed by slot and by number within the slot, so datagrams may overtake each other.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from unisono.wire.frame import END_OF_SLOT, Frame


@dataclass(slots=True)
class SlotFrames:
    """One sender's frames of one slot."""

    waiting: dict[int, Frame] = field(default_factory=dict)
    next_number: int = 0
    last_number: int | None = None
    fragments: list[bytes | memoryview] = field(default_factory=list)

    def ended(self) -> bool:
        """Whether every frame of the slot has been delivered."""
        return self.last_number is not None and self.next_number > self.last_number

    def missing(self) -> list[int]:
        """The frame numbers that are missing before the last frame known."""
        top = self.last_number if self.last_number is not None else max(self.waiting, default=-1)
        return [n for n in range(self.next_number, top + 1) if n not in self.waiting]


class Rqueue:
    """The frames of one sender."""

    def __init__(self) -> None:
        self.slots: dict[int, SlotFrames] = {}

    def add(self, frame: Frame) -> bool:
        """Store a frame; False if it is a duplicate or contradicts the slot's end-of-slot mark."""
        frames = self.slots.get(frame.slot)
        if frames is None:
            frames = self.slots[frame.slot] = SlotFrames()
        number = frame.number
        if number < frames.next_number or number in frames.waiting:
            return False
        if frames.last_number is not None and (number > frames.last_number or frame.flags & END_OF_SLOT):
            return False
        if frame.flags & END_OF_SLOT:
            if frames.waiting and max(frames.waiting) > number:
                return False
            frames.last_number = number
        frames.waiting[number] = frame
        return True

    def forget_before(self, slot: int) -> None:
        """Drop the frames of slots before `slot`."""
        for old in [s for s in self.slots if s < slot]:
            del self.slots[old]
