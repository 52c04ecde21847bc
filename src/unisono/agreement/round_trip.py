"""How long to wait for a peer's answer before a frame is sent again: about a round trip, as measured (RFC 6298).

The wait is the smoothed round trip plus four times its mean deviation. It doubles with each time-out until the next
answer, and never exceeds the wait that the declared delays call for. Before the first measurement it is that wait.

Items are numbered, and an answer to one item answers all earlier ones. One item at a time is measured. If it was sent
again, its answer may belong to either transmission. Then the measurement counts from the last transmission, and only if
it is longer than the smoothed round trip. The wait stays doubled until an item is answered that was sent once. So
losses hardly make the wait longer, and in a slower network it grows until answers come in time.
"""

from __future__ import annotations

from unisono.model.units import NS_PER_MS

WAIT_MIN_NS = 5 * NS_PER_MS
"""Wait at least this long for an answer: processes and timers of an operating system are late by milliseconds."""

DOUBLINGS_MAX = 30
"""Keep the doubled wait a number of ordinary size; the longest wait is shorter in any case."""


class RoundTrip:
    """The measured round trip to one peer, and the wait that follows from it."""

    __slots__ = ("_deviation_ns", "_doublings", "_item", "_sent_again", "_sent_at", "_smoothed_ns")

    def __init__(self) -> None:
        self._smoothed_ns: int | None = None
        self._deviation_ns = self._doublings = self._sent_at = 0
        self._item: int | None = None
        self._sent_again = False

    def sent(self, now: int, item: int) -> None:
        """Record that an item is sent for the first time. Measure its round trip, unless another one is measured."""
        if self._item is None:
            self._item, self._sent_at, self._sent_again = item, now, False

    def answered(self, now: int, item: int) -> None:
        """Record an answer to all items up to `item`."""
        if self._item is None or item < self._item:
            return
        self._item = None
        measured = max(0, now - self._sent_at)
        if self._sent_again:
            measured = max(measured, self._smoothed_ns or 0)
        self._doublings = int(self._sent_again)
        if self._smoothed_ns is None:
            self._smoothed_ns, self._deviation_ns = measured, measured // 2
        else:
            self._deviation_ns += (abs(measured - self._smoothed_ns) - self._deviation_ns) // 4
            self._smoothed_ns += (measured - self._smoothed_ns) // 8

    def sent_again(self, now: int, item: int) -> None:
        """Record that the answer to an item is overdue and it is sent again: wait twice as long for the next answer."""
        self._item, self._sent_at, self._sent_again = item, now, True
        self._doublings = min(self._doublings + 1, DOUBLINGS_MAX)

    def forget_item(self) -> None:
        """Stop the measurement in progress: its item will not be answered."""
        self._item = None

    def wait_ns(self, longest_ns: int) -> int:
        """How long to wait for an answer: `longest_ns` at most, and as long before the first measurement."""
        if self._smoothed_ns is None:
            return longest_ns
        return min(longest_ns, max(WAIT_MIN_NS, self._smoothed_ns + 4 * self._deviation_ns) << self._doublings)
