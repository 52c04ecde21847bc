"""Optimistic delivery (paper 003, Algorithm 3): optPending, and the window w(p) that messages wait in.

A message is delivered early when the clock has passed its time stamp by w(p), in the order of time stamps; one that
comes later than that, or behind one that was delivered early already, is late and left to its final delivery. Nothing
else is discarded (errata 003-6, 003-7). What is final before it could be early is not delivered early any more.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

from unisono.model.events import Batch
from unisono.model.grades import Grade
from unisono.model.timing import Timing
from unisono.orders.multigroup.messages import parcel_of, time_of
from unisono.orders.multigroup.unpacking import Unpacking
from unisono.wire.bundles import Parcel
from unisono.wire.frame import PIECE

SAMPLES = 256
MOST = 8


class Window:
    """w(p): as declared, or the longest of the last delays and a quarter more.

    `first_ns` until there is one, and never more than some times that: a member that stood still must not hold up
    everybody for long. A delay is that of a datagram: what was sent again would show the window itself.
    """

    def __init__(self, declared_ns: int | None, first_ns: int) -> None:
        self._declared_ns, self._first_ns = declared_ns, first_ns
        self._delays: deque[int] = deque(maxlen=SAMPLES)
        self._longest = 0

    @property
    def ns(self) -> int:
        """The window now."""
        if self._declared_ns is not None:
            return self._declared_ns
        return min(self._longest + self._longest // 4, MOST * self._first_ns) if self._delays else self._first_ns

    def note(self, delay_ns: int) -> None:
        """A datagram took so long, as the clocks show it."""
        if self._declared_ns is not None:
            return
        gone = self._delays[0] if len(self._delays) == SAMPLES else 0
        self._delays.append(max(0, delay_ns))
        self._longest = max(self._delays) if gone == self._longest else max(self._longest, delay_ns)


class Early:
    """optPending of one member."""

    def __init__(self, window: Window, timing: Timing) -> None:
        self._window = window
        self._unpacking = Unpacking(timing, Grade.EARLY)
        self._pending: list[tuple[int, int, Parcel, bytes]] = []
        """A heap of (stamp by time, serial, parcel, its bytes)."""
        self._seen: dict[tuple[int, int], int] = {}
        """By sender and life, how many of its parcels have come."""
        self._done: dict[tuple[int, int], int] = {}
        """By sender and life, how many of its parcels are final."""
        self._last = 0
        self.late = 0
        """How many parcels came too late to be delivered early, or in pieces."""

    def add(self, now: int, stamp: int, parcel: Parcel, data: bytes) -> None:
        """A message for this group has come from its sender."""
        who = (parcel.sender, parcel.incarnation)
        if parcel.serial < max(self._seen.get(who, 0), self._done.get(who, 0)):
            return
        self._seen[who] = parcel.serial + 1
        if time_of(stamp) < now - self._window.ns or stamp <= self._last or parcel.flags & PIECE:
            self.late += 1
            return
        heappush(self._pending, (stamp, parcel.serial, parcel, data))

    def final(self, data: bytes) -> None:
        """A message has been delivered for good."""
        parcel = parcel_of(data)
        self._done[parcel.sender, parcel.incarnation] = parcel.serial + 1

    def due(self, now: int) -> list[Batch]:
        """What is to be delivered early now, by time stamp."""
        found: list[Batch] = []
        while self._pending and time_of(self._pending[0][0]) + self._window.ns < now:
            stamp, serial, parcel, data = heappop(self._pending)
            if serial >= self._done.get((parcel.sender, parcel.incarnation), 0):
                self._last = stamp
                batch = self._unpacking.batch(stamp, data)
                found += [] if batch is None else [batch]
        return found

    def due_at(self) -> int | None:
        """When the first is due."""
        return time_of(self._pending[0][0]) + self._window.ns + 1 if self._pending else None
