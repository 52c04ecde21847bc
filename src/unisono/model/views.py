"""Who is in the group."""

from __future__ import annotations

from dataclasses import dataclass

from unisono.errors import InvalidOption
from unisono.model.ids import checked_member


@dataclass(frozen=True, slots=True)
class View:
    """The members in the order in which a slot delivers them; `first_slot` is where the view begins."""

    members: tuple[int, ...]
    first_slot: int = 0

    def __post_init__(self) -> None:
        if not self.members:
            raise InvalidOption("members", "a view has at least one member")
        for member in self.members:
            checked_member(member)
        if list(self.members) != sorted(set(self.members)):
            raise InvalidOption("members", f"members are listed once each, in ascending order, not {self.members}")

    def without(self, member: int, first_slot: int) -> View:
        """The view after `member` has gone."""
        return View(tuple(m for m in self.members if m != member), first_slot)
