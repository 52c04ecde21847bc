"""Checks the safety of every delivery at run time, before the application gets it.

The check needs a few comparisons of integers per batch, so it is always on. It sees one member only: that all members
deliver the same is for the checkers of traces.
"""

from __future__ import annotations

from collections.abc import Sequence

from unisono.errors import InvariantViolated
from unisono.model.events import Batch, Rejoining, StackEvent
from unisono.model.grades import Grade


class DeliveryCheck:
    """The deliveries of one member in a keyed order, and where the next one may be."""

    __slots__ = ("_final", "_first", "_member", "_sender_order")

    def __init__(self, member: int, *, sender_order: bool) -> None:
        """`sender_order` says whether each sender's messages keep their order; with priorities they do not."""
        self._member = member
        self._sender_order = sender_order
        self._first = _Reached()
        """How far deliveries have come: early ones, or all where each message is delivered once."""
        self._final = _Reached()
        """How far final deliveries have come."""

    def check(self, events: Sequence[StackEvent]) -> None:
        """Raise InvariantViolated if a delivery among these events may not follow the earlier ones."""
        for event in events:
            if isinstance(event, Batch):
                reached = self._final if event.grade is Grade.FINAL else self._first
                slot, position, index, count = event.slot, event.first_position, event.first_index, event.count
                if slot <= reached.slot and (slot < reached.slot or position < reached.next_position):
                    raise self._wrong_key(event, reached)
                if index != reached.next_index and reached.next_index is not None:
                    raise self._wrong_index(event, reached)
                if self._sender_order:
                    origin, first = (event.sender, event.incarnation), event.first_sequence
                    if first < reached.next_of_sender.get(origin, 0):
                        raise self._duplicate(event, reached)
                    reached.next_of_sender[origin] = first + count
                reached.slot, reached.next_position, reached.next_index = slot, position + count, index + count
            elif isinstance(event, Rejoining):  # the member goes on from the state of another member
                self._first, self._final = _Reached(), _Reached()

    def _wrong_key(self, batch: Batch, reached: _Reached) -> InvariantViolated:
        text = f"the order goes back: slot {batch.slot}, position {batch.first_position} comes after a later key"
        return InvariantViolated(
            "order",
            self._member,
            text,
            f"at least {(reached.slot, reached.next_position)}",
            str((batch.slot, batch.first_position)),
        )

    def _wrong_index(self, batch: Batch, reached: _Reached) -> InvariantViolated:
        text = "the index of a delivery skips or repeats a number"
        return InvariantViolated("index", self._member, text, str(reached.next_index), str(batch.first_index))

    def _duplicate(self, batch: Batch, reached: _Reached) -> InvariantViolated:
        first, due = batch.first_sequence, reached.next_of_sender[batch.sender, batch.incarnation]
        text = f"message {first} of member {batch.sender} is delivered twice or after a later one"
        return InvariantViolated("duplicate", self._member, text, f"at least {due}", str(first))


class _Reached:
    """How far the deliveries of one grade have come."""

    __slots__ = ("next_index", "next_of_sender", "next_position", "slot")

    def __init__(self) -> None:
        self.slot = -1
        """The slot of the last message."""
        self.next_position = 0
        """The lowest position that the next message in this slot may have."""
        self.next_index: int | None = None
        """The index of the next message; None before the first, as a late member starts with any index."""
        self.next_of_sender: dict[tuple[int, int], int] = {}
        """By sender and incarnation: the lowest sequence number that is not delivered yet."""
