"""Optimistic delivery: deliver a message early, by its timestamp, before its groups decide on it (paper 003)."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

from unisono.model.events import Batch, Grade
from unisono.model.timing import Timing
from unisono.orders.packing import Bundle
from unisono.orders.quasi_genuine.messages import (
    time_of,
)
from unisono.orders.quasi_genuine.unpacking import BundleUnpacker
from unisono.wire.frame import (
    FRAGMENT,
)

DELAY_SAMPLES = 256
WINDOW_FACTOR_MAX = 8
"""The measured window is at most this many times the initial one."""


class WaitWindow:
    """How long a message waits before it is proposed and delivered early: the paper's w(p).

    It is either declared, or a quarter more than the longest of the last measured delays. It starts with `initial_ns`
    and is at most `WINDOW_FACTOR_MAX` times that, so that one stalled member does not slow down the others for long.

    Only the delays of single datagrams count: the delay of a retransmitted message would include the window itself.
    """

    def __init__(self, declared_ns: int | None, initial_ns: int) -> None:
        self._declared_ns, self._initial_ns = declared_ns, initial_ns
        self._delays_ns: deque[int] = deque(maxlen=DELAY_SAMPLES)
        self._longest_ns = 0

    @property
    def ns(self) -> int:
        """The length of the current window, in nanoseconds."""
        if self._declared_ns is not None:
            return self._declared_ns
        if not self._delays_ns:
            return self._initial_ns
        return min(self._longest_ns + self._longest_ns // 4, WINDOW_FACTOR_MAX * self._initial_ns)

    def record_delay(self, delay_ns: int) -> None:
        """Record the delay of a datagram, as the clocks show it."""
        if self._declared_ns is not None:
            return
        dropped_ns = self._delays_ns[0] if len(self._delays_ns) == DELAY_SAMPLES else 0
        self._delays_ns.append(max(0, delay_ns))
        if dropped_ns == self._longest_ns:
            self._longest_ns = max(self._delays_ns)
        else:
            self._longest_ns = max(self._longest_ns, delay_ns)


class OptimisticDelivery:
    """One member's messages that wait for early delivery (optPending in paper 003, Algorithm 3).

    A message is delivered early when the clock has passed its timestamp by w(p), in timestamp order. A message is late
    if it arrives after that, or after one with a larger timestamp was delivered early. A late message is only delivered
    finally (errata 003-6, 003-7), as is a message that becomes final before its early delivery is due.
    """

    def __init__(self, window: WaitWindow, timing: Timing) -> None:
        self._window = window
        self._unpacker = BundleUnpacker(timing, Grade.EARLY)
        self._pending: list[tuple[int, int, Bundle]] = []
        """A heap of (stamp of the timestamp, serial, bundle)."""
        self._received_serials: dict[tuple[int, int], int] = {}
        """By (sender, incarnation), the number of bundles received."""
        self._final_serials: dict[tuple[int, int], int] = {}
        """By (sender, incarnation), the number of final bundles."""
        self._last_stamp = 0
        """The stamp of the last early delivery."""
        self.late_bundles = 0
        """The number of bundles that were not delivered early: they were late or held a fragment."""

    def add(self, now: int, stamp: int, bundle: Bundle) -> None:
        """Add a message for this group that has arrived directly from its sender."""
        sender_run = (bundle.sender, bundle.incarnation)
        if bundle.serial < max(self._received_serials.get(sender_run, 0), self._final_serials.get(sender_run, 0)):
            return
        self._received_serials[sender_run] = bundle.serial + 1
        if time_of(stamp) < now - self._window.ns or stamp <= self._last_stamp or bundle.flags & FRAGMENT:
            self.late_bundles += 1
            return
        heappush(self._pending, (stamp, bundle.serial, bundle))

    def mark_final(self, bundle: Bundle) -> None:
        """Record that a message was delivered finally; it is not delivered early after that."""
        self._final_serials[bundle.sender, bundle.incarnation] = bundle.serial + 1

    def pop_due(self, now: int) -> list[Batch]:
        """Remove and return the messages to deliver early now, in timestamp order."""
        batches: list[Batch] = []
        while self._pending and time_of(self._pending[0][0]) + self._window.ns < now:
            stamp, serial, bundle = heappop(self._pending)
            if serial >= self._final_serials.get((bundle.sender, bundle.incarnation), 0):
                self._last_stamp = stamp
                batch = self._unpacker.batch(stamp, bundle)
                batches += [] if batch is None else [batch]
        return batches

    def due_at(self) -> int | None:
        """When the next early delivery is due; None if no message waits for one."""
        return time_of(self._pending[0][0]) + self._window.ns + 1 if self._pending else None
