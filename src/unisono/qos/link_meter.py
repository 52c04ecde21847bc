"""What one peer's datagrams tell of the link from it: loss, bursts of loss, delay, jitter, reordering, silence.

A metric collector between a layer and the network (paper 002 §2.4, §4), in constant memory. Loss is read off the
serials that every datagram to everyone carries, so it is the network's loss whatever the layers above repeat or repair.
A serial is given up for lost when REORDER later ones have come. Jitter is RFC 3550's: a running mean over 16 datagrams
of how much the transit time changes.

Serials go round after 255: a longer outage counts modulo 255, and shows as `silence`.
"""

from __future__ import annotations

from unisono.model.histogram import Histogram
from unisono.wire.frame import SERIALS

REORDER = 32
"""How many later datagrams may overtake one before it counts as lost."""
_ALL = (1 << REORDER) - 1
_HALF = SERIALS // 2


class LinkMeter:
    """The link from one peer, in one of the peer's incarnations."""

    __slots__ = (
        *("_high", "_high_sent_ns", "_in_turn", "_jitter_16", "_last_ns", "_next", "_run", "_seen", "_settled"),
        *("_transit_ns", "bursts", "delays", "doubled", "incarnation", "late", "lost", "offset_ns", "reordered"),
        "silence_ns",
    )

    def __init__(self, incarnation: int, now: int) -> None:
        self.incarnation = incarnation
        self.offset_ns = 0
        """The peer's clock minus ours, as last estimated."""
        self._high = self._next = 0
        """The newest serial; and which one is next if nothing is amiss, when `_high` is not kept up."""
        self._high_sent_ns = 0
        self._seen = 0
        self._run = 0
        self._last_ns = now
        self._transit_ns: int | None = None
        self._jitter_16 = 0
        # The first datagram finds as if those before it had come: when they settle they must not count.
        self._settled = 1 - REORDER
        self._empty()

    def _empty(self) -> None:
        self._in_turn = self.lost = self.reordered = self.late = self.doubled = self.silence_ns = 0
        self.delays, self.bursts = Histogram(), Histogram()

    def restart(self) -> None:
        """A window begins; what links the windows stays."""
        self._settled = min(self._settled + self._in_turn, 0)
        self._empty()

    def jitter_ns(self) -> int:
        """The running mean."""
        return self._jitter_16 >> 4

    def silent_until(self, now: int) -> None:
        """Nothing has come since the last arrival: a window's end must not hide a silence that goes on."""
        self.silence_ns = max(self.silence_ns, now - self._last_ns)

    def take(self, sent_ns: int, serial: int) -> None:
        """A datagram to everyone has arrived."""
        if serial == self._next:
            # All before it have come, and it is the next one: most are.
            self._in_turn += 1
            self._next = serial % SERIALS + 1
            self._high_sent_ns = sent_ns
            return
        self._slow(sent_ns, serial)
        # The next one may go the short way if nothing is missing behind it.
        self._next = self._high % SERIALS + 1 if self._seen == _ALL and not self._run else 0

    def _slow(self, sent_ns: int, serial: int) -> None:
        if self._next:
            self._high = (self._next - 2) % SERIALS + 1
        ahead = (serial - self._high) % SERIALS
        if self._high == 0:
            self._high, self._high_sent_ns, self._seen = serial, sent_ns, _ALL
        elif ahead == 0 and sent_ns <= self._high_sent_ns:
            self.doubled += 1
        elif ahead > _HALF and sent_ns <= self._high_sent_ns:
            self._overtaken(SERIALS - ahead)
        else:
            self._forward(ahead or SERIALS)
            self._high, self._high_sent_ns = serial, sent_ns

    @property
    def settled(self) -> int:
        """How many datagrams have come or are given up for lost."""
        return self._settled + self._in_turn

    def time(self, now: int, sent_ns: int) -> None:
        """How long a datagram took: of marks, which come at even intervals, and of some of the others."""
        gap = now - self._last_ns
        self.silence_ns = max(self.silence_ns, gap)
        self._last_ns = now
        transit = now - sent_ns + self.offset_ns
        self.delays.add(transit)
        if self._transit_ns is not None:
            self._jitter_16 += abs(transit - self._transit_ns) - ((self._jitter_16 + 8) >> 4)
        self._transit_ns = transit

    def _overtaken(self, behind: int) -> None:
        if behind >= REORDER:
            self.late += 1  # given up for lost already, and was not
        elif self._seen >> behind & 1:
            self.doubled += 1
        else:
            self._seen |= 1 << behind
            self.reordered += 1

    def _forward(self, steps: int) -> None:
        """The newest serial moves on: what falls out of the window of reordering is settled."""
        for age in range(REORDER - 1, REORDER - 1 - min(steps, REORDER), -1):
            self._settled += 1
            if self._seen >> age & 1:
                if self._run:
                    self.bursts.add(self._run)
                    self._run = 0
            else:
                self.lost += 1
                self._run += 1
        beyond = max(0, steps - REORDER)
        self._settled += beyond
        self.lost += beyond
        self._run += beyond
        self._seen = (self._seen << steps | 1) & _ALL
