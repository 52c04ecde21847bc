"""What groups say to each other when who may send to whom changes: leaders ask, and whoever knows answers.

Asked is until the other group has agreed and this one has heard of it, so any of it may be lost, and a new leader goes
on where it was.
"""

from __future__ import annotations

from collections.abc import Callable

from unisono.model.durations import NS_PER_S
from unisono.orders.multigroup.topology_messages import Bond, What, encode_bond
from unisono.orders.multigroup.topology_state import Relation
from unisono.wire.frame import Kind

GONE_AFTER_NS = 2 * NS_PER_S
"""A member that is taken for dead for so long is not waited for when its group stops sending somewhere."""
Say = Callable[[int, Kind, bytes, int], None]


class Bonding:
    """The part of one member; `members` says who is in a group, `say` sends a body to one of them."""

    def __init__(
        self, relation: Relation, members: Callable[[int], tuple[int, ...]], say: Say, *, retry_ns: int
    ) -> None:
        self._relation, self._members, self._say, self._retry_ns = relation, members, say, retry_ns
        self._due_at = 0
        self._asks, self._awaited = relation.asks(), relation.awaited()
        self._silent: dict[int, int] = {}
        """By member of the own group that is waited for and taken for dead, since when."""
        self.news: dict[tuple[What, int], Bond] = {}
        """What the own group is to agree on; others ask again until it has."""
        self._answered: dict[int, Bond | None] = {group: relation.answer(group) for group in relation.into}

    def hear(self, now: int, sender: int, bond: Bond, *, leads: bool) -> None:
        """Another group asks or answers: a leader has it agreed on. What has been agreed on is answered."""
        if bond.what is What.WITHOUT:
            return
        if self._relation.news(bond):
            if leads:
                self.news[bond.what, bond.group] = bond
            return
        answer = self._relation.answer(bond.group)
        if bond.what in {What.ADMIT, What.RELEASE} and answer is not None and answer.epoch >= bond.epoch:
            self._say(now, Kind.BOND, encode_bond(answer), sender)

    def begin(self, now: int) -> None:
        """A new reign."""
        self._due_at = now
        self._silent.clear()
        self.news.clear()

    def changed(self, now: int, *, leads: bool) -> None:
        """The relation has changed: a leader tells those who wait for that, and asks what is to be asked."""
        for group in self._relation.into:
            answer = self._relation.answer(group)
            if answer is not None and answer != self._answered.get(group):
                self._answered[group] = answer
                if leads:
                    self._tell(now, group, answer)
        self._due_at, self._asks, self._awaited = now, self._relation.asks(), self._relation.awaited()

    def wake(self, now: int, gone: Callable[[int], bool]) -> None:
        """Ask, and ask again, what the other groups have not agreed on yet; wait no longer for mates that are gone."""
        if (self._asks or self._awaited) and now >= self._due_at:
            self._due_at = now + self._retry_ns
            for group, bond in self._asks:
                self._tell(now, group, bond)
            for bond in self._awaited:
                if not gone(bond.head):
                    self._silent.pop(bond.head, None)
                elif now >= self._silent.setdefault(bond.head, now) + GONE_AFTER_NS and self._relation.news(bond):
                    self.news[bond.what, bond.head] = bond

    def _tell(self, now: int, group: int, bond: Bond) -> None:
        for member in self._members(group):
            self._say(now, Kind.BOND, encode_bond(bond), member)

    def due_at(self) -> int | None:
        """When to ask again."""
        return self._due_at if self._asks or self._awaited else None
