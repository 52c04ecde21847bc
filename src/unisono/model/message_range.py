"""Message ranges: consecutive messages of one sender in one slot, the unit in which members agree on messages."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from unisono.model.message_set import MessageOrigin, MessageSet

SenderSlot: TypeAlias = tuple[int, int, int]
"""(slot, sender, incarnation): the messages of one sender in one slot."""


class MessageRange(NamedTuple):
    """`length` messages of a sender's incarnation in one slot, from number `first` on. Sorts in delivery order."""

    slot: int
    sender: int
    incarnation: int
    first: int
    length: int

    @property
    def sender_slot(self) -> SenderSlot:
        """The slot, sender and incarnation."""
        return self[:3]

    @property
    def origin(self) -> MessageOrigin:
        """The sender and incarnation."""
        return self.sender, self.incarnation

    @property
    def last(self) -> int:
        """The number of the last message."""
        return self.first + self.length - 1

    def messages(self) -> MessageSet:
        """The messages as a set."""
        return MessageSet({self.origin: ((self.first, self.last),)})

    def without(self, excluded: MessageSet) -> list[MessageRange]:
        """The ranges that remain after removing the excluded messages."""
        left = self.messages() - excluded
        return [self._replace(first=a, length=b - a + 1) for a, b in left.ranges.get(self.origin, ())]
