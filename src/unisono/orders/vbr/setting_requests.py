"""How members change their settings together: by demands that everybody knows in time (paper 002 §3.2).

A member says in the mark of a slot, its origin, what it needs. Whoever has heard that says it again in the marks of
its own slots, until a while after the slot S from which on it counts. So a member that has anybody in its list all that
time knows the demand by S, whatever else it has missed; and JOINs say all demands, so whoever takes somebody into its
list knows what that one knows. S depends on the origin alone:

    S = the first slot that begins 2Δ+3Γ or more after the end of slot origin + K,

with time in K for the demand to be passed on by others. Without failures K = 0, and S is also beyond any slot that a
member can be in that has not delivered the origin yet.

When a member enters a slot, the demands that count from there on are taken in the order of their origins, so all who
know the same do the same at the same slot. Who learns of one when its S is past has been cut off: it joins again, and
counts as absent until then. What a demand says is no concern of the order's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from unisono.model.slot_schedule import Grid
from unisono.orders.vbr.slot_change import change_slot
from unisono.wire.setting_requests import Demand

SAID_AGAIN = 4
"""How many marks carry a demand beside the first one where gaps are possible."""


def counts_from(grid: Grid, origin: int, more: int | None) -> int:
    """S: from where on a demand counts that was first said in a slot; `more` is None without failures."""
    ahead = -(-(grid.delta_ns + grid.gamma_ns) // grid.theta_of(origin)) + 3
    if more is None:
        return max(change_slot(grid, origin), origin + 2 * ahead + 1)
    return change_slot(grid, origin + more + ahead)


class Demands:
    """One member's part in it."""

    def __init__(self, member: int, members: Iterable[int], counts: Callable[[int], int], room: int) -> None:
        """`counts` gives S for an origin, `room` is how many demands a mark or a JOIN can carry."""
        self._me = member
        self._members = frozenset(members)
        self._counts = counts
        self._room = room
        self._asked: dict[int, bytes] = {}
        """By member, what the next mark is to say first."""
        self._kept: deque[bytes] = deque()
        """What we are to say first, each in a slot of its own."""
        self._waiting: set[Demand] = set()
        """Those that do not count yet."""
        self._said: dict[Demand, int] = {}
        """Those that our marks carry, and until which slot."""
        self._latest: dict[int, Demand] = {}
        """By member, the last one that counts."""
        self.late: list[Demand] = []
        """Those that we have learned of too late, when others went by them already."""

    def ask(self, content: bytes, member: int | None = None, *, keep: bool = False) -> None:
        """The next marks say that we need this, or that a member who is gone does.

        Of what is asked before it is said the last counts, but what is to be kept is said one after the other, first.
        """
        if keep:
            self._kept.append(content)
        else:
            self._asked[self._me if member is None else member] = content

    def said(self, slot: int) -> list[Demand]:
        """What the mark of our slot is to carry."""
        kept = bool(self._kept)
        if kept:
            self._say(slot, self._me, self._kept.popleft())
        for member, content in sorted(self._asked.items()):
            if not (kept and member == self._me):  # one of a member has its origin in a slot
                self._say(slot, member, content)
                del self._asked[member]
        if not self._said:
            return []
        self._said = {demand: until for demand, until in self._said.items() if until >= slot}
        saying = sorted(self._said)
        first = slot % len(saying) if len(saying) > self._room else 0
        return (saying[first:] + saying[:first])[: self._room]

    def _say(self, slot: int, member: int, content: bytes) -> None:
        known = max((d for d in self._waiting if d.member == member), default=self._latest.get(member))
        if known is not None and known.content == content:
            self._said[known] = slot + SAID_AGAIN
        else:
            self._note(Demand(slot, member, content))

    def hear(self, demands: Iterable[Demand], slot: int | None) -> None:
        """Somebody has said these. `slot` is the one that we are sending in; None if we are not sending."""
        for demand in demands:
            latest = self._latest.get(demand.member)
            if (
                demand.member not in self._members
                or demand in self._waiting
                or (latest is not None and demand.origin <= latest.origin)
            ):
                continue
            if slot is not None and self._counts(demand.origin) <= slot:
                self.late.append(demand)
            self._note(demand)

    def _note(self, demand: Demand) -> None:
        self._waiting.add(demand)
        # A JOIN that was sent before we knew it may take until then to be forgotten.
        self._said[demand] = 2 * self._counts(demand.origin) - demand.origin + SAID_AGAIN

    def due(self, slot: int) -> list[tuple[Demand, int]]:
        """We enter a slot: the demands that count from there on, in order, and from which slot each does."""
        if not self._waiting:
            return []
        found = [(demand, self._counts(demand.origin)) for demand in sorted(self._waiting)]
        due = [(demand, first) for demand, first in found if first <= slot]
        for demand, _ in due:
            self._waiting.discard(demand)
            self._latest[demand.member] = demand
        return due

    def known(self) -> tuple[Demand, ...]:
        """What a JOIN says: the latest of each member and those that do not count yet; of many the newest."""
        return tuple(sorted({*self._latest.values(), *self._waiting})[-self._room :])
