"""How members let each other know, at one place in the order, which settings they need (paper 002 §3.2).

A demand rides on end-of-slot marks like a wish for another slot length does (`slot_change`), on as many as it takes for
one to arrive, and is delivered with the last of those slots: at the same place at every member. What it says is no
concern of the order's.
"""

from __future__ import annotations

from unisono.wire.control import encode_demand


class Demands:
    """One member's part in it."""

    def __init__(self, lost_in_a_row: int) -> None:
        self._lost = lost_in_a_row
        self._asked: bytes | None = None
        self._origin: int | None = None
        self._heard: dict[tuple[int, int], bytes] = {}
        """By origin and member, what is not delivered yet."""

    def ask(self, demand: bytes) -> None:
        """The next marks carry this, in place of what they may carry now."""
        self._asked, self._origin = demand, None

    def said(self, slot: int) -> bytes | None:
        """What the mark of this member's slot is to carry, if anything."""
        if self._asked is None:
            return None
        if self._origin is None:
            self._origin = slot
        if slot > self._origin + self._lost:
            self._asked = None
            return None
        return encode_demand(self._origin, self._asked)

    def heard(self, sender: int, origin: int, demand: bytes) -> None:
        """A mark with a demand is being delivered."""
        self._heard[origin, sender] = demand

    def decide(self, slot: int) -> list[tuple[int, bytes, int]]:
        """A slot has been delivered: whose demands are known to all now, and the last slot in which each was sent."""
        if not self._heard:
            return []
        due = sorted(key for key in self._heard if key[0] + self._lost <= slot)
        return [(key[1], self._heard.pop(key), key[0] + self._lost) for key in due]
