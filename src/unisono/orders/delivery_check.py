"""Checks at run time that no delivery is lost or repeated between an order and the application.

Each order numbers its deliveries itself. The check needs two comparisons per batch, so it is always on. It sees one
member only: that all members deliver the same is for the checkers of traces.
"""

from __future__ import annotations

from collections.abc import Sequence

from unisono.errors import InvariantViolated
from unisono.model.events import Batch, Grade, Rejoining, StackEvent

_FINAL = Grade.FINAL  # read once: reading a member of an enumeration is slow, and this runs for every batch


class DeliveryCheck:
    """The index of the next delivery of one member, for each grade."""

    __slots__ = ("_member", "_next_final", "_next_index")

    def __init__(self, member: int) -> None:
        self._member = member
        self._next_index = 0
        """The index of the next early delivery, or of any delivery where each message is delivered once."""
        self._next_final = 0

    def check(self, events: Sequence[StackEvent]) -> None:
        """The indices of a member's deliveries are consecutive."""
        for event in events:
            if isinstance(event, Batch):
                if event.grade is _FINAL:
                    expected = self._next_final
                    self._next_final += event.count
                else:
                    expected = self._next_index
                    self._next_index += event.count
                if event.first_index != expected:
                    text = "the index of a delivery repeats or skips a number"
                    raise InvariantViolated("index", self._member, text, str(expected), str(event.first_index))
            elif isinstance(event, Rejoining):  # the member starts again from the state of another member
                self._next_index = self._next_final = 0
