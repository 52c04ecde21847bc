"""What was agreed on at the end of earlier views: for members that are in them, or were left out of the next."""

from __future__ import annotations

from unisono.agreement.membership.messages import NextView, NextViewDecided, Vector, encode_next_view

DECISIONS_KEPT = 16
"""So many decisions; who has slept through more of them is told of the present view."""


class PastViews:
    """One member's memory of them."""

    def __init__(self) -> None:
        self._decided: dict[int, bytes] = {}
        """By the view that ended, what its members agreed on."""

    def record(self, view_id: int, value: bytes) -> None:
        """The members of a view have agreed on what follows."""
        self._decided[view_id] = value
        self._decided.pop(view_id - DECISIONS_KEPT, None)

    def decision_after(self, view_id: int) -> NextViewDecided | None:
        """What the members of a view agreed on, if it is known here."""
        value = self._decided.get(view_id)
        return None if value is None else NextViewDecided(view_id, value)

    def latest(self) -> NextViewDecided | None:
        """The last decision."""
        return self.decision_after(max(self._decided, default=-1))

    def decision_for_member_in(self, in_view: int, view_id: int, incarnations: Vector) -> NextViewDecided | None:
        """To a member that is still in an earlier view.

        Nobody is in a view without having been in the one before it. So one that is behind by two has been left out,
        and needs no cut to know it: only who is in the present view.
        """
        known = self.decision_after(in_view)
        if known is None and in_view < view_id - 1:
            return NextViewDecided(view_id - 1, encode_next_view(NextView(incarnations, {})))
        return known
