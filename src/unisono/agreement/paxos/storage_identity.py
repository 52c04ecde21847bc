"""Who still has the memory that its promises are in, and who has come back without it."""

from __future__ import annotations

from collections.abc import Callable

from unisono.agreement.paxos.acceptor import Acceptor
from unisono.agreement.paxos.messages import Message, Remembered

Say = Callable[[int, Message, int], None]
"""(now, message, to)."""


class Remembering:
    """One member's. Whoever has lost its memory is not listened to, and told so, at most once in `every_ns`."""

    def __init__(self, acceptor: Acceptor, memory: int, say: Say, every_ns: int) -> None:
        self.amnesiacs: set[int] = set()
        """Who has come back with another memory, and does not count."""
        self.refusers: set[int] = set()
        """Who knows this member by another memory, and does not listen to it."""
        self._acceptor, self._memory, self._say, self._every_ns = acceptor, memory, say, every_ns
        self._told_at: dict[int, int] = {}

    def listens(self, now: int, sender: int, memory: int) -> bool:
        """Whether what a member says from this memory counts."""
        if self._acceptor.remembers(sender, memory):
            return True
        self.amnesiacs.add(sender)
        if now >= self._told_at.get(sender, now):
            self._told_at[sender] = now + self._every_ns
            self._say(now, Remembered(self._acceptor.memory_of(sender)), sender)
        return False

    def hear(self, sender: int, remembered: Remembered) -> None:
        """A member says by which memory it knows this one; said to an earlier life, it may be the right one."""
        if remembered.memory != self._memory:
            self.refusers.add(sender)
