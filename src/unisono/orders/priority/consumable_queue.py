"""The consumable queue of paper 004 §4: messages in the order in which they will be consumed, with their locks.

In the paper, `target_tail` is equation (2), `lock` equation (3) and `consume` Figure 1. `insert` is the insertion phase
of §4.4: a message inherits locks (case A) and passes its locking interval (case B, equation 6).

The end of the queue, `TAIL`, can be locked too. A joining message locks `TAIL` alone if no queued message is less
urgent (erratum 004-8).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from unisono.errors import UnisonoError
from unisono.model.message_set import MessageRef

TAIL: Final = MessageRef(0, 0, 0)
"""Stands for the end of the queue. Member numbers start at 1, so no message has this reference."""

Urgency: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PriorityMessage:
    """A message with its priority and the logical clock (`stamp`) of its sender when it was sent.

    `previous_sequence` is the sequence of the sender's previous message of this priority. For the first message of a
    priority, it is that message's own sequence.
    """

    ref: MessageRef
    priority: int
    stamp: int
    previous_sequence: int
    payload: bytes

    @property
    def predecessor(self) -> MessageRef:
        """The sender's previous message of this priority, or the message itself if it is the first."""
        return self.ref._replace(sequence=self.previous_sequence)


def urgency(message: PriorityMessage) -> Urgency:
    """The key by which the queue compares messages: the priority, then the logical clock, earlier first.

    No two messages are equally urgent, so the order in which they arrive does not matter (erratum 004-3). If a sender
    has seen message a and then sends b with the same priority, b is less urgent than a.
    """
    ref = message.ref
    return message.priority, -message.stamp, -ref.sender, -ref.incarnation, -ref.sequence


@dataclass(slots=True)
class QueuedMessage:
    """A message in the consumable queue and its lock set."""

    message: PriorityMessage
    urgency: Urgency
    locks: dict[MessageRef, Urgency] = field(default_factory=dict)

    @property
    def ref(self) -> MessageRef:
        return self.message.ref


class InsertionPointMissing(UnisonoError):
    """The insertion point was consumed although every member had locked it: members no longer agree."""


class ConsumableQueue:
    """One member's queue of messages that are in order and not consumed yet, with their locks."""

    __slots__ = ("_items", "tail_locks")

    def __init__(self) -> None:
        self._items: list[QueuedMessage] = []
        self.tail_locks: dict[MessageRef, Urgency] = {}

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[QueuedMessage]:
        return iter(self._items)

    @property
    def first(self) -> QueuedMessage | None:
        """The message that is consumed next; None if the queue is empty."""
        return self._items[0] if self._items else None

    def target_tail(self, level: Urgency) -> list[QueuedMessage]:
        """The messages at the end of the queue that are less urgent than `level` (paper 004, equation 2)."""
        items = self._items
        at = len(items)
        while at and items[at - 1].urgency < level:
            at -= 1
        return items[at:]

    def lock(self, message: PriorityMessage) -> list[MessageRef]:
        """Lock the target tail of a message, and `TAIL` (paper 004, equation 3). Returns the target tail."""
        level = urgency(message)
        tail = self.target_tail(level)
        for item in tail:
            item.locks[message.ref] = level
        self.tail_locks[message.ref] = level
        return [item.ref for item in tail]

    def locked_by(self, ref: MessageRef) -> list[MessageRef]:
        """The queued messages that the joining message `ref` has locked."""
        return [item.ref for item in self._items if ref in item.locks]

    def insertion_point(self, common: Container[MessageRef], predecessor: MessageRef) -> MessageRef:
        """The provisional insertion point: the first message of the common set, or `TAIL`.

        It is always behind `predecessor`, the sender's previous message of this priority. After a crash, messages of
        the common set can stand before `predecessor`; they do not count.
        """
        found = TAIL
        for item in reversed(self._items):
            if item.ref == predecessor:
                break
            if item.ref in common:
                found = item.ref
        return found

    def insert(self, message: PriorityMessage, point: MessageRef, history: Container[MessageRef]) -> MessageRef:
        """Insert the message before the definitive insertion point, release its locks, and return that point.

        The message inherits the locks that more urgent messages hold on `point`, the provisional insertion point. From
        there it moves forward past less urgent messages, up to the first one in `history` (paper 004, equation 6).
        """
        items, level = self._items, urgency(message)
        at = len(items) if point == TAIL else self._index_of(point)
        locks = self.tail_locks if point == TAIL else items[at].locks
        inherited = {ref: holder for ref, holder in locks.items() if holder > level}
        while at and items[at - 1].urgency < level and items[at - 1].ref not in history:
            at -= 1
        definitive = items[at].ref if at < len(items) else TAIL
        items.insert(at, QueuedMessage(message, level, inherited))
        for item in items:
            item.locks.pop(message.ref, None)
        self.tail_locks.pop(message.ref, None)
        self.drop_lesser_locks(items[: at + 1], level)
        return definitive

    def _index_of(self, point: MessageRef) -> int:
        for index, item in enumerate(self._items):
            if item.ref == point:
                return index
        raise InsertionPointMissing(f"the insertion point {point} is not in the queue although it was locked")

    def drop_lesser_locks(self, items: Iterable[QueuedMessage], level: Urgency) -> None:
        """Remove from these messages the locks of messages less urgent than `level` (paper 004 §4.4, erratum 004-7)."""
        for item in items:
            if item.locks:
                item.locks = {ref: holder for ref, holder in item.locks.items() if holder >= level}

    def consume(self) -> PriorityMessage | None:
        """Remove and return the first message (paper 004, Figure 1). None if it is locked or there is none."""
        if not self._items or self._items[0].locks:
            return None
        return self._items.pop(0).message

    def restore(self, items: Iterable[QueuedMessage], tail_locks: dict[MessageRef, Urgency]) -> None:
        """Replace this queue's messages and locks by those of another member's queue."""
        self._items = list(items)
        self.tail_locks = dict(tail_locks)
