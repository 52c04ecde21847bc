"""What was agreed on at the end of earlier views: for members that are in them, or were left out of the next."""

from __future__ import annotations

from unisono.agreement.membership.messages import NextView, Vector, Went, encode_next_view

KEPT = 16
"""So many decisions; who has slept through more of them is told of the present view."""


class PastViews:
    """One member's memory of them."""

    def __init__(self) -> None:
        self._decided: dict[int, bytes] = {}
        """By the view that ended, what its members agreed on."""

    def note(self, view_id: int, value: bytes) -> None:
        """The members of a view have agreed on what follows."""
        self._decided[view_id] = value
        self._decided.pop(view_id - KEPT, None)

    def of(self, view_id: int) -> Went | None:
        """What the members of a view agreed on, if it is known here."""
        value = self._decided.get(view_id)
        return None if value is None else Went(view_id, value)

    def latest(self) -> Went | None:
        """The last decision."""
        return self.of(max(self._decided, default=-1))

    def answer(self, in_view: int, view_id: int, lives: Vector) -> Went | None:
        """To a member that is still in an earlier view.

        Nobody is in a view without having been in the one before it. So one that is behind by two has been left out,
        and needs no cut to know it: only who is in the present view.
        """
        known = self.of(in_view)
        if known is None and in_view < view_id - 1:
            return Went(view_id - 1, encode_next_view(NextView(lives, {})))
        return known
