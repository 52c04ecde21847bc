"""The consumable queue of paper 004 §4: messages in the order in which they will be consumed, with their locks.

`target_tail` is equation (2), `lock` is (3), `insert` is §4.4's insertion phase with lock inheritance (case A) and the
locking interval of equation (6) (case B), `consume` is Figure 1. The tail is an element that can be locked: the target
tail of a message that nothing queued is behind is the tail alone (erratum 004-8).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from unisono.errors import UnisonoError
from unisono.model.message_set import MessageRef

TAIL: Final = MessageRef(0, 0, 0)
"""The name of the queue's tail: members are numbered from 1, so no message has it."""

Urgency: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PriorityMessage:
    """A message on its way into the queue: its priority, and the sender's logical clock when it was sent.

    `previous` is the number of the sender's message of this priority before it; its own, if it is the first.
    """

    ref: MessageRef
    priority: int
    stamp: int
    previous_sequence: int
    payload: bytes

    @property
    def predecessor(self) -> MessageRef:
        """The sender's message of this priority before it, or the message itself."""
        return self.ref._replace(sequence=self.previous_sequence)


def urgency(message: PriorityMessage) -> Urgency:
    """What the queue compares: the priority; among equals, who was sent first by the logical clock.

    No two messages are equally urgent, so nothing needs to be received in one order (erratum 004-3), and a message
    that was sent with knowledge of another of its priority is never put before it.
    """
    ref = message.ref
    return message.priority, -message.stamp, -ref.sender, -ref.incarnation, -ref.sequence


@dataclass(slots=True)
class QueuedMessage:
    """An element of the queue and its lock set."""

    message: PriorityMessage
    urgency: Urgency
    locks: dict[MessageRef, Urgency] = field(default_factory=dict)

    @property
    def ref(self) -> MessageRef:
        return self.message.ref


class InsertionPointMissing(UnisonoError):
    """A message that was locked everywhere has been consumed: members no longer agree."""


class ConsumableQueue:
    """One member's queue."""

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
        """succ(H)."""
        return self._items[0] if self._items else None

    def target_tail(self, level: Urgency) -> list[QueuedMessage]:
        """Equation (2): from the tail up to, not including, the first message that is not less urgent."""
        items = self._items
        at = len(items)
        while at and items[at - 1].urgency < level:
            at -= 1
        return items[at:]

    def lock(self, message: PriorityMessage) -> list[MessageRef]:
        """Equation (3): lock the target tail, and the tail itself; gives the messages that it contains."""
        level = urgency(message)
        tail = self.target_tail(level)
        for item in tail:
            item.locks[message.ref] = level
        self.tail_locks[message.ref] = level
        return [item.ref for item in tail]

    def locked_by(self, ref: MessageRef) -> list[MessageRef]:
        """The messages that a joining message keeps from being consumed."""
        return [item.ref for item in self._items if ref in item.locks]

    def insertion_point(self, common: Container[MessageRef], predecessor: MessageRef) -> MessageRef:
        """The first message of the common set, or the tail: the provisional insertion point.

        Of the common set, only what is behind the sender's message of the same priority before it counts: if somebody
        acknowledged that one and crashed, it may be further behind than its successor could be.
        """
        found = TAIL
        for item in reversed(self._items):
            if item.ref == predecessor:
                break
            if item.ref in common:
                found = item.ref
        return found

    def insert(self, message: PriorityMessage, point: MessageRef, history: Container[MessageRef]) -> MessageRef:
        """Put the message before the definitive insertion point, and unlock; gives that point.

        The locks of the provisional point are inherited, those of less urgent messages left out. Then every message
        before it that is less urgent and that nobody had consumed is passed (equation 6).
        """
        items, level = self._items, urgency(message)
        at = len(items) if point == TAIL else self._index_of(point)
        locks = self.tail_locks if point == TAIL else items[at].locks
        inherited = {ref: of for ref, of in locks.items() if of > level}
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
        for place, item in enumerate(self._items):
            if item.ref == point:
                return place
        raise InsertionPointMissing(f"the insertion point {point} is not in the queue, though it was locked")

    def drop_lesser_locks(self, items: Iterable[QueuedMessage], level: Urgency) -> None:
        """Step 3 of §4.4: up to the message just inserted, nothing less urgent delays any more (erratum 004-7)."""
        for item in items:
            if item.locks:
                item.locks = {ref: of for ref, of in item.locks.items() if of >= level}

    def consume(self) -> PriorityMessage | None:
        """Figure 1: the first message, unless it is locked or there is none."""
        if not self._items or self._items[0].locks:
            return None
        return self._items.pop(0).message

    def restore(self, items: Iterable[QueuedMessage], tail_locks: dict[MessageRef, Urgency]) -> None:
        """Become what another member's queue was."""
        self._items = list(items)
        self.tail_locks = dict(tail_locks)
