"""What members make of the log that they agree on: the final order, as a function of the log.

An extent may be in the log twice, through two leaders, and messages of an old slot may come behind those of later ones:
what only a member held that the group had gone on without. What is in the log first counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from unisono.agreement.paxos.decisions import Restored
from unisono.errors import StorageError
from unisono.model.message_range import Extent
from unisono.model.message_set import NO_MESSAGES, MessageSet
from unisono.orders.final.messages import State, decode_state, decode_value, encode_state

LIVES_KEPT = 16
"""Of so many lives of a sender it is remembered what was final; of older ones nothing becomes final any more."""


@dataclass(frozen=True, slots=True)
class Agreed:
    """Messages that have their place in the final order."""

    k: int
    """The instance that decided it."""
    slot: int
    """The slot under which they are final: their own, or that of what is before them, if that is later."""
    place: int
    """How many messages are final before them."""
    extent: Extent


class FinalLog:
    """One member's reading of the log; the same at every member."""

    def __init__(self) -> None:
        self.k = 0
        """The last instance that was read."""
        self.messages = self.slot = 0
        self.entered: dict[int, int] = {}
        """By member, the life in which it takes part."""
        self.final: MessageSet = NO_MESSAGES
        self._closed: dict[int, int] = {}

    def take(self, k: int, value: bytes) -> list[Agreed] | None:
        """The log's next value; what becomes final by it, or None if it is no value of this log."""
        read = decode_value(value)
        if read is None:
            return None
        self.k = k
        for member, life in read.entering.items():
            self.entered[member] = max(life, self.entered.get(member, 0))
        return [agreed for extent in read.extents for agreed in self._count(k, extent)]

    def left(self, extent: Extent) -> list[Extent]:
        """What of an extent could still become final."""
        if extent.incarnation <= self._closed.get(extent.sender, -1):
            return []
        return extent.without(self.final)

    def _count(self, k: int, extent: Extent) -> list[Agreed]:
        self.slot = max(self.slot, extent.slot)
        counted = []
        for part in self.left(extent):
            counted.append(Agreed(k, self.slot, self.messages, part))
            self.messages += part.length
        if counted:
            if extent.origin not in self.final.ranges:
                self._close_lives(extent.sender)
            self.final |= extent.messages()
        return counted

    def _close_lives(self, sender: int) -> None:
        lives = sorted(life for member, life in self.final.ranges if member == sender)
        if len(lives) >= LIVES_KEPT:
            self._closed[sender] = lives[0]
            ranges = self.final.ranges
            self.final = MessageSet({origin: ranges[origin] for origin in ranges if origin != (sender, lives[0])})

    def state(self) -> bytes:
        """What stands for all that was read."""
        return encode_state(State(self.messages, self.slot, self.entered, self.final, self._closed))

    def restore(self, restored: Restored) -> None:
        """Go on from what stands for a prefix of the log."""
        state = decode_state(restored.state)
        if state is None:
            raise StorageError(f"the state that stands for the final order up to {restored.k} cannot be read")
        self.k, self.messages, self.slot, self.final = restored.k, state.messages, state.slot, state.final
        self.entered, self._closed = dict(state.entered), dict(state.closed)
