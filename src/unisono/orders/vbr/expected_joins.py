"""Members that are to be added to the list (paper 000 §6.3): from which slot on, and in which incarnation.

A member may join, leave and be back before others have delivered the slot of its first join: they do so Δ+Γ after its
end, and slots may be short. So more than one of its lives may be waiting. Of two that name the same slot the later
counts, and slots that may be named are bounded by the clock, so few wait.
"""

from __future__ import annotations


class PendingJoins:
    """By member, the joins that wait, in the order of slots and of incarnations."""

    def __init__(self) -> None:
        self.pending: dict[int, list[tuple[int, int]]] = {}
        """(slot, incarnation)."""

    def add(self, member: int, slot: int, incarnation: int) -> None:
        """A member is to be added at this slot; lives before this one that have not begun by then never do."""
        self.pending[member] = [join for join in self.pending.get(member, ()) if join[0] < slot] + [(slot, incarnation)]

    def latest_incarnation(self, member: int) -> int:
        """The last incarnation that waits; -1 if none does."""
        return self.pending[member][-1][1] if member in self.pending else -1

    def incarnation_at(self, member: int, slot: int) -> int | None:
        """The incarnation that is to be there in a slot, if it is one that waits."""
        return next((life for first, life in reversed(self.pending.get(member, ())) if first <= slot), None)

    def first_slot(self, member: int) -> int | None:
        """The first slot at which a member is to be added."""
        return self.pending[member][0][0] if member in self.pending else None

    def pop_due(self, slot: int) -> dict[int, int]:
        """Who is to be there from this slot on, in which incarnation; these wait no longer."""
        due = {
            member: life for member in sorted(self.pending) if (life := self.incarnation_at(member, slot)) is not None
        }
        for member in due:
            self._set_pending(member, [join for join in self.pending[member] if join[0] > slot])
        return due

    def cancel(self, member: int, incarnation: int) -> None:
        """One that waits is not to be added after all."""
        self._set_pending(member, [join for join in self.pending.get(member, ()) if join[1] != incarnation])

    def _set_pending(self, member: int, joins: list[tuple[int, int]]) -> None:
        self.pending.pop(member, None)
        if joins:
            self.pending[member] = joins
