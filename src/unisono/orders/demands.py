"""How members let each other know, at one place in the order, which settings they need (paper 002 §3.2).

A demand rides on end-of-slot marks like a wish for another slot length does (`slot_change`), on as many as it takes for
one to arrive, and is delivered with the last of those slots: at the same place at every member. What it says is no
concern of the order's.
"""

from __future__ import annotations

from collections import deque

from unisono.wire.control import encode_demand


class Demands:
    """One member's part in it."""

    def __init__(self, lost_in_a_row: int) -> None:
        self._lost = lost_in_a_row
        self._asked: bytes | None = None
        self._kept = False
        """Whether what is said now is to be said to the end, whatever is asked."""
        self._next: deque[tuple[bytes, bool]] = deque()
        self._origin: int | None = None
        self._heard: dict[tuple[int, int], bytes] = {}
        """By origin and member, what is not delivered yet."""

    def ask(self, demand: bytes, keep: bool = False) -> None:
        """The next marks carry this, in place of what they may carry now.

        What is to be kept is carried nevertheless, one after the other, and this after it.
        """
        self._next = deque(waiting for waiting in self._next if waiting[1])
        self._next.append((demand, keep))
        if not self._kept:
            self._asked = None

    def said(self, slot: int) -> bytes | None:
        """What the mark of this member's slot is to carry, if anything."""
        if self._asked is None or self._origin is None or slot > self._origin + self._lost:
            self._asked, self._kept = self._next.popleft() if self._next else (None, False)
            self._origin = slot
        return None if self._asked is None else encode_demand(self._origin, self._asked)

    def heard(self, sender: int, origin: int, demand: bytes) -> None:
        """A mark with a demand is being delivered."""
        self._heard[origin, sender] = demand

    def decide(self, slot: int) -> list[tuple[int, bytes, int]]:
        """A slot has been delivered: whose demands are known to all now, and the last slot in which each was sent."""
        if not self._heard:
            return []
        due = sorted(key for key in self._heard if key[0] + self._lost <= slot)
        return [(key[1], self._heard.pop(key), key[0] + self._lost) for key in due]
