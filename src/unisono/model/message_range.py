"""Consecutive messages of one sender in one slot: what members hold, agree on and deliver finally."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from unisono.model.message_set import MessageOrigin, MessageSet

SenderSlot: TypeAlias = tuple[int, int, int]
"""(slot, sender, incarnation): where a sender's messages of one slot are."""


class MessageRange(NamedTuple):
    """`length` messages of a sender's life in one slot, from number `first` on. They sort in the order of delivery."""

    slot: int
    sender: int
    incarnation: int
    first: int
    length: int

    @property
    def sender_slot(self) -> SenderSlot:
        """The slot and whose messages they are."""
        return self[:3]

    @property
    def origin(self) -> MessageOrigin:
        """Whose messages they are."""
        return self.sender, self.incarnation

    @property
    def last(self) -> int:
        """The number of the last one."""
        return self.first + self.length - 1

    def messages(self) -> MessageSet:
        """The same as a set."""
        return MessageSet({self.origin: ((self.first, self.last),)})

    def without(self, excluded: MessageSet) -> list[MessageRange]:
        """What is left of it."""
        left = self.messages() - excluded
        return [self._replace(first=a, length=b - a + 1) for a, b in left.ranges.get(self.origin, ())]
