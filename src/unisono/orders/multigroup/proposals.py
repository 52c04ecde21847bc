"""propPending (paper 003, Algorithm 1 lines 14-18): messages of the own group that have no place in its log yet.

Each sender's are taken in their order. With a window w(p) a message is proposed when the clock has passed its time
stamp by that much (Algorithm 3 lines 19-24), so that messages with earlier time stamps are there first; unlike there,
what comes later than that is proposed all the same (errata 003-6, 003-7).
"""

from __future__ import annotations

from unisono.orders.multigroup.messages import ITEM_BYTES, Cast, stamp_of
from unisono.wire.bundles import Parcel

AHEAD_MAX = 1 << 8
"""So many parcels of a sender may be here behind the first that is not settled."""


class _Flow:
    """One sender's messages."""

    __slots__ = ("casts", "life", "placed")

    def __init__(self, life: int) -> None:
        self.life = life
        self.placed = 0
        """The next one to be proposed."""
        self.casts: dict[int, Cast] = {}


class Proposals:
    """What one member could propose."""

    def __init__(self) -> None:
        self._flows: dict[int, _Flow] = {}

    def add(self, parcel: Parcel, cast: Cast, settled: int) -> bool:
        """A message of the own group has come; whether it is new. `settled` of its sender's have their places."""
        flow = self._flows.get(parcel.sender)
        if flow is None or flow.life < parcel.incarnation:
            flow = self._flows[parcel.sender] = _Flow(parcel.incarnation)
        if parcel.incarnation < flow.life or not settled <= parcel.serial < settled + AHEAD_MAX:
            return False
        flow.placed = max(flow.placed, settled)
        if parcel.serial in flow.casts:
            return False
        flow.casts[parcel.serial] = cast
        return True

    def settle(self, sender: int, life: int, settled: int) -> None:
        """These have their places: propPending minus decided."""
        flow = self._flows.get(sender)
        if flow is None or flow.life > life:
            return
        for serial in [serial for serial in flow.casts if serial < settled]:
            del flow.casts[serial]
        flow.placed = max(flow.placed, settled)

    def senders(self) -> list[tuple[int, int]]:
        """Whose messages are here, in which of their lives."""
        return [(sender, flow.life) for sender, flow in self._flows.items()]

    def again(self, sender: int, settled: int) -> None:
        """What was proposed under another leader, and is not settled, is to be proposed again."""
        self._flows[sender].placed = settled

    def due_at(self) -> int | None:
        """The time stamp of the first message that could be proposed."""
        first = self._first()
        return None if first is None else first[1].ts

    def _first(self) -> tuple[int, Cast, _Flow] | None:
        found = None
        for sender, flow in self._flows.items():
            cast = flow.casts.get(flow.placed)
            if cast is not None and (found is None or stamp_of(cast.ts, sender) < found[0]):
                found = (stamp_of(cast.ts, sender), cast, flow)
        return found

    def take(self, horizon: int, room: int) -> tuple[list[Cast], int]:
        """Messages with time stamps up to the horizon, by time stamp, as many as there is room for; the last stamp."""
        taken: list[Cast] = []
        top = 0
        while (first := self._first()) is not None and first[1].ts <= horizon:
            size = ITEM_BYTES + len(first[1].parcel)
            if taken and size > room:
                break
            stamp, cast, flow = first
            flow.placed += 1
            taken.append(cast)
            room -= size
            top = max(top, stamp)
        return taken, top
