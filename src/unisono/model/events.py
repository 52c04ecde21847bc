"""What a stack hands out to the application."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from unisono.model.views import View

PLACE_PER_SENDER = 1 << 32
"""A message's place in its slot is sender · 2³² + its number among the sender's messages of the slot."""


class Run(Protocol):
    """Messages that travelled together, taken apart only when somebody asks for them."""

    @property
    def count(self) -> int:
        """How many messages there are."""

    @property
    def payload_bytes(self) -> int:
        """How much payload they are together."""

    def messages(self) -> list[bytes]:
        """The messages, in the order in which they were sent."""

    def sizes(self) -> Sequence[int]:
        """Their sizes, without taking them apart."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message, delivered."""

    sender: int
    sequence: int
    slot: int
    payload: bytes


@dataclass(slots=True)
class Batch:
    """Consecutive deliveries from one sender in one slot: the unit in which order is decided."""

    sender: int
    incarnation: int
    slot: int
    first_sequence: int
    first_place: int
    first_index: int
    count: int
    runs: list[Run]

    @property
    def messages(self) -> list[bytes]:
        """The payloads, in order."""
        if len(self.runs) == 1:
            return self.runs[0].messages()
        return [message for run in self.runs for message in run.messages()]

    @property
    def payload_bytes(self) -> int:
        """How much payload there is."""
        return sum(run.payload_bytes for run in self.runs)

    def sizes(self) -> list[int]:
        """The payloads' sizes, in order."""
        return [size for run in self.runs for size in run.sizes()]

    def deliveries(self) -> list[Delivery]:
        """One by one."""
        first, sender, slot = self.first_sequence, self.sender, self.slot
        return [Delivery(sender, first + i, slot, payload) for i, payload in enumerate(self.messages)]


@dataclass(frozen=True, slots=True)
class ViewChange:
    """The membership from `view.first_slot` on; comes between two slots.

    Without failures that is the same place in the order at every member; with them each sees for itself who is gone.
    """

    view: View
    joined: tuple[int, ...] = ()
    left: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that the guarantees rest on did not hold; `text` says what and who."""

    kind: str
    text: str
    member: int | None = None
    slot: int | None = None


@dataclass(frozen=True, slots=True)
class Left:
    """This member's own departure is complete: all that it accepted has been sent and delivered here."""

    final_slot: int


StackEvent: TypeAlias = Batch | ViewChange | Violation | Left
