"""The membership of a group from one slot on."""

from __future__ import annotations

from dataclasses import dataclass

from unisono.errors import InvalidOption
from unisono.model.ids import checked_member


@dataclass(frozen=True, slots=True)
class View:
    """The members, in the order in which a slot delivers their messages. The view begins at `first_slot`."""

    members: tuple[int, ...]
    first_slot: int = 0

    def __post_init__(self) -> None:
        if not self.members:
            raise InvalidOption("members", "expected at least one member, got none")
        for member in self.members:
            checked_member(member)
        if list(self.members) != sorted(set(self.members)):
            raise InvalidOption("members", f"expected ascending member numbers, each once, got {self.members}")

    def without(self, member: int, first_slot: int) -> View:
        """The view after `member` has departed."""
        return View(tuple(m for m in self.members if m != member), first_slot)
