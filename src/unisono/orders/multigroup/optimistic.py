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
from unisono.orders.multigroup.messages import checked_bundle, time_of
from unisono.orders.multigroup.unpacking import BundleUnpacker
from unisono.wire.bundles import Bundle
from unisono.wire.frame import FRAGMENT

DELAY_SAMPLES = 256
WINDOW_FACTOR_MAX = 8


class WaitWindow:
    """w(p): as declared, or the longest of the last delays and a quarter more.

    `first_ns` until there is one, and never more than some times that: a member that stood still must not hold up
    everybody for long. A delay is that of a datagram: what was sent again would show the window itself.
    """

    def __init__(self, declared_ns: int | None, initial_ns: int) -> None:
        self._declared_ns, self._initial_ns = declared_ns, initial_ns
        self._delays_ns: deque[int] = deque(maxlen=DELAY_SAMPLES)
        self._longest_ns = 0

    @property
    def ns(self) -> int:
        """The window now."""
        if self._declared_ns is not None:
            return self._declared_ns
        return (
            min(self._longest_ns + self._longest_ns // 4, WINDOW_FACTOR_MAX * self._initial_ns)
            if self._delays_ns
            else self._initial_ns
        )

    def record_delay(self, delay_ns: int) -> None:
        """A datagram took so long, as the clocks show it."""
        if self._declared_ns is not None:
            return
        gone = self._delays_ns[0] if len(self._delays_ns) == DELAY_SAMPLES else 0
        self._delays_ns.append(max(0, delay_ns))
        self._longest_ns = max(self._delays_ns) if gone == self._longest_ns else max(self._longest_ns, delay_ns)


class OptimisticDelivery:
    """optPending of one member."""

    def __init__(self, window: WaitWindow, timing: Timing) -> None:
        self._window = window
        self._unpacker = BundleUnpacker(timing, Grade.EARLY)
        self._pending: list[tuple[int, int, Bundle, bytes]] = []
        """A heap of (stamp by time, serial, parcel, its bytes)."""
        self._received_serials: dict[tuple[int, int], int] = {}
        """By sender and life, how many of its parcels have come."""
        self._final_serials: dict[tuple[int, int], int] = {}
        """By sender and life, how many of its parcels are final."""
        self._last_stamp = 0
        self.late_bundles = 0
        """How many parcels came too late to be delivered early, or in pieces."""

    def add(self, now: int, stamp: int, bundle: Bundle, data: bytes) -> None:
        """A message for this group has come from its sender."""
        who = (bundle.sender, bundle.incarnation)
        if bundle.serial < max(self._received_serials.get(who, 0), self._final_serials.get(who, 0)):
            return
        self._received_serials[who] = bundle.serial + 1
        if time_of(stamp) < now - self._window.ns or stamp <= self._last_stamp or bundle.flags & FRAGMENT:
            self.late_bundles += 1
            return
        heappush(self._pending, (stamp, bundle.serial, bundle, data))

    def mark_final(self, data: bytes) -> None:
        """A message has been delivered for good."""
        parcel = checked_bundle(data)
        self._final_serials[parcel.sender, parcel.incarnation] = parcel.serial + 1

    def pop_due(self, now: int) -> list[Batch]:
        """What is to be delivered early now, by time stamp."""
        found: list[Batch] = []
        while self._pending and time_of(self._pending[0][0]) + self._window.ns < now:
            stamp, serial, parcel, data = heappop(self._pending)
            if serial >= self._final_serials.get((parcel.sender, parcel.incarnation), 0):
                self._last_stamp = stamp
                batch = self._unpacker.batch(stamp, data)
                found += [] if batch is None else [batch]
        return found

    def due_at(self) -> int | None:
        """When the first is due."""
        return time_of(self._pending[0][0]) + self._window.ns + 1 if self._pending else None
