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

from unisono.model.slot_schedule import SlotGrid
from unisono.orders.vbr.slot_change import effective_slot
from unisono.wire.setting_requests import SettingRequest

REQUEST_REPEATS = 4
"""How many marks carry a demand beside the first one where gaps are possible."""


def effective_from(grid: SlotGrid, origin: int, extra_slots: int | None) -> int:
    """S: from where on a demand counts that was first said in a slot; `more` is None without failures."""
    ahead = -(-(grid.delta_ns + grid.gamma_ns) // grid.theta_of(origin)) + 3
    if extra_slots is None:
        return max(effective_slot(grid, origin), origin + 2 * ahead + 1)
    return effective_slot(grid, origin + extra_slots + ahead)


class SettingRequests:
    """One member's part in it."""

    def __init__(
        self, member: int, members: Iterable[int], effective_slot_of: Callable[[int], int], max_per_frame: int
    ) -> None:
        """`counts` gives S for an origin, `room` is how many demands a mark or a JOIN can carry."""
        self._member = member
        self._members = frozenset(members)
        self._effective_slot_of = effective_slot_of
        self._max_per_frame = max_per_frame
        self._unsent: dict[int, bytes] = {}
        """By member, what the next mark is to say first."""
        self._unsent_kept: deque[bytes] = deque()
        """What we are to say first, each in a slot of its own."""
        self._not_yet_effective: set[SettingRequest] = set()
        """Those that do not count yet."""
        self._repeat_until: dict[SettingRequest, int] = {}
        """Those that our marks carry, and until which slot."""
        self._latest_effective: dict[int, SettingRequest] = {}
        """By member, the last one that counts."""
        self.missed: list[SettingRequest] = []
        """Those that we have learned of too late, when others went by them already."""

    def request(self, content: bytes, member: int | None = None, *, keep: bool = False) -> None:
        """The next marks say that we need this, or that a member who is gone does.

        Of what is asked before it is said the last counts, but what is to be kept is said one after the other, first.
        """
        if keep:
            self._unsent_kept.append(content)
        else:
            self._unsent[self._member if member is None else member] = content

    def to_send(self, slot: int) -> list[SettingRequest]:
        """What the mark of our slot is to carry."""
        kept = bool(self._unsent_kept)
        if kept:
            self._originate(slot, self._member, self._unsent_kept.popleft())
        for member, content in sorted(self._unsent.items()):
            if not (kept and member == self._member):  # one of a member has its origin in a slot
                self._originate(slot, member, content)
                del self._unsent[member]
        if not self._repeat_until:
            return []
        self._repeat_until = {demand: until for demand, until in self._repeat_until.items() if until >= slot}
        saying = sorted(self._repeat_until)
        first = slot % len(saying) if len(saying) > self._max_per_frame else 0
        return (saying[first:] + saying[:first])[: self._max_per_frame]

    def _originate(self, slot: int, member: int, content: bytes) -> None:
        known = max(
            (d for d in self._not_yet_effective if d.member == member), default=self._latest_effective.get(member)
        )
        if known is not None and known.content == content:
            self._repeat_until[known] = slot + REQUEST_REPEATS
        else:
            self._record(SettingRequest(slot, member, content))

    def receive(self, requests: Iterable[SettingRequest], slot: int | None) -> None:
        """Somebody has said these. `slot` is the one that we are sending in; None if we are not sending."""
        for demand in requests:
            latest = self._latest_effective.get(demand.member)
            if (
                demand.member not in self._members
                or demand in self._not_yet_effective
                or (latest is not None and demand.origin_slot <= latest.origin_slot)
            ):
                continue
            if slot is not None and self._effective_slot_of(demand.origin_slot) <= slot:
                self.missed.append(demand)
            self._record(demand)

    def _record(self, request: SettingRequest) -> None:
        self._not_yet_effective.add(request)
        # A JOIN that was sent before we knew it may take until then to be forgotten.
        self._repeat_until[request] = (
            2 * self._effective_slot_of(request.origin_slot) - request.origin_slot + REQUEST_REPEATS
        )

    def pop_due(self, slot: int) -> list[tuple[SettingRequest, int]]:
        """We enter a slot: the demands that count from there on, in order, and from which slot each does."""
        if not self._not_yet_effective:
            return []
        found = [(demand, self._effective_slot_of(demand.origin_slot)) for demand in sorted(self._not_yet_effective)]
        due = [(demand, first) for demand, first in found if first <= slot]
        for demand, _ in due:
            self._not_yet_effective.discard(demand)
            self._latest_effective[demand.member] = demand
        return due

    def snapshot(self) -> tuple[SettingRequest, ...]:
        """What a JOIN says: the latest of each member and those that do not count yet; of many the newest."""
        return tuple(sorted({*self._latest_effective.values(), *self._not_yet_effective})[-self._max_per_frame :])
