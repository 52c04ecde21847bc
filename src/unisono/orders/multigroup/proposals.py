"""propPending (paper 003, Algorithm 1 lines 14-18): messages of the own group that have no place in its log yet.

Each sender's are taken in their order. With a window w(p) a message is proposed when the clock has passed its time
stamp by that much (Algorithm 3 lines 19-24), so that messages with earlier time stamps are there first; unlike there,
what comes later than that is proposed all the same (errata 003-6, 003-7).
"""

from __future__ import annotations

from unisono.orders.multigroup.messages import ITEM_BYTES, Cast, stamp_of
from unisono.wire.bundles import Bundle

AHEAD_MAX = 1 << 8
"""So many parcels of a sender may be here behind the first that is not settled."""


class _SenderQueue:
    """One sender's messages."""

    __slots__ = ("casts", "incarnation", "next_to_propose")

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.next_to_propose = 0
        """The next one to be proposed."""
        self.casts: dict[int, Cast] = {}


class PendingProposals:
    """What one member could propose."""

    def __init__(self) -> None:
        self._queues: dict[int, _SenderQueue] = {}

    def add(self, bundle: Bundle, cast: Cast, next_serial: int) -> bool:
        """A message of the own group has come; whether it is new. `settled` of its sender's have their places."""
        flow = self._queues.get(bundle.sender)
        if flow is None or flow.incarnation < bundle.incarnation:
            flow = self._queues[bundle.sender] = _SenderQueue(bundle.incarnation)
        if bundle.incarnation < flow.incarnation or not next_serial <= bundle.serial < next_serial + AHEAD_MAX:
            return False
        flow.next_to_propose = max(flow.next_to_propose, next_serial)
        if bundle.serial in flow.casts:
            return False
        flow.casts[bundle.serial] = cast
        return True

    def discard_decided(self, sender: int, incarnation: int, next_serial: int) -> None:
        """These have their places: propPending minus decided."""
        flow = self._queues.get(sender)
        if flow is None or flow.incarnation > incarnation:
            return
        for serial in [serial for serial in flow.casts if serial < next_serial]:
            del flow.casts[serial]
        flow.next_to_propose = max(flow.next_to_propose, next_serial)

    def senders(self) -> list[tuple[int, int]]:
        """Whose messages are here, in which of their lives."""
        return [(sender, flow.incarnation) for sender, flow in self._queues.items()]

    def propose_again_from(self, sender: int, next_serial: int) -> None:
        """What was proposed under another leader, and is not settled, is to be proposed again."""
        self._queues[sender].next_to_propose = next_serial

    def first_timestamp(self) -> int | None:
        """The time stamp of the first message that could be proposed."""
        first = self._first()
        return None if first is None else first[1].ts

    def _first(self) -> tuple[int, Cast, _SenderQueue] | None:
        found = None
        for sender, flow in self._queues.items():
            cast = flow.casts.get(flow.next_to_propose)
            if cast is not None and (found is None or stamp_of(cast.ts, sender) < found[0]):
                found = (stamp_of(cast.ts, sender), cast, flow)
        return found

    def pop_until(self, horizon: int, max_bytes: int) -> tuple[list[Cast], int]:
        """Messages with time stamps up to the horizon, by time stamp, as many as there is room for; the last stamp."""
        taken: list[Cast] = []
        top = 0
        while (first := self._first()) is not None and first[1].ts <= horizon:
            size = ITEM_BYTES + len(first[1].bundle)
            if taken and size > max_bytes:
                break
            stamp, cast, flow = first
            flow.next_to_propose += 1
            taken.append(cast)
            max_bytes -= size
            top = max(top, stamp)
        return taken, top
