"""What one peer's datagrams tell of the link from it: loss, bursts of loss, delay, jitter, reordering, silence.

A metric collector between a layer and the network (paper 002 §2.4, §4), in constant memory. Loss is read off the
serials that every datagram to everyone carries, so it is the network's loss whatever the layers above repeat or repair.
A serial is given up for lost when REORDER later ones have come. Jitter is RFC 3550's: a running mean over 16 datagrams
of how much the transit time changes.

Nearly all datagrams come in turn. Those cost whoever feeds the meter a comparison and three assignments to it, without
a call: to `next`, `in_turn` and `high_sent_ns`. All others go through `take`.

Serials go round after 255: a longer outage counts modulo 255, and shows as `silence`.
"""

from __future__ import annotations

from unisono.model.histogram import Histogram
from unisono.wire.frame import SERIAL_MAX

REORDER_WINDOW = 32
"""How many later datagrams may overtake one before it counts as lost."""
TIMED_BUFFER = 256
"""Arrivals that are kept until they are worked out."""
NO_SERIAL = -1
"""No serial: nothing is next in turn."""
_ALL = (1 << REORDER_WINDOW) - 1
_HALF = SERIAL_MAX // 2
_ROUNDS = bytes(range(1, SERIAL_MAX + 1)) * 3
"""More serials in turn than one read brings datagrams, from any of the first round on."""


class LinkMeter:
    """The link from one peer, in one of the peer's incarnations."""

    __slots__ = (
        *(
            "_delays",
            "_newest_serial",
            "_jitter_16",
            "_last_ns",
            "_loss_run",
            "_seen_mask",
            "_counted",
            "_silence_ns",
            "_timed",
        ),
        *(
            "_transit_ns",
            "bursts",
            "duplicated",
            "newest_sent_ns",
            "in_sequence",
            "incarnation",
            "late",
            "lost",
            "next_serial",
        ),
        *("offset_ns", "reordered"),
    )

    def __init__(self, incarnation: int, now: int) -> None:
        self.incarnation = incarnation
        self.offset_ns = 0
        """The peer's clock minus ours, as last estimated."""
        self._newest_serial = 0
        """The newest serial, unless `next` says it."""
        self.next_serial = NO_SERIAL
        """Where nothing is missing, the serial that is next in turn."""
        self.newest_sent_ns = 0
        """When the newest was sent."""
        self._seen_mask = 0
        self._loss_run = 0
        self._last_ns = now
        self._timed: list[tuple[int, int]] = []
        """(when it arrived, when it was sent), not worked out yet."""
        self._transit_ns: int | None = None
        self._jitter_16 = 0
        # The first datagram finds as if those before it had come: when they settle they must not count.
        self._counted = 1 - REORDER_WINDOW
        self._reset_counters()

    def _reset_counters(self) -> None:
        self.in_sequence = self.lost = self.reordered = self.late = self.duplicated = self._silence_ns = 0
        self._delays, self.bursts = Histogram(), Histogram()

    def start_window(self) -> None:
        """A window begins; what links the windows stays."""
        self._process_timings()
        self._counted = min(self._counted + self.in_sequence, 0)
        self._reset_counters()

    def are_next(self, serials: bytes) -> bool:
        """Whether these serials are the next ones, in turn."""
        at = self.next_serial - 1
        return at >= 0 and serials == _ROUNDS[at : at + len(serials)]

    def on_datagram(self, sent_ns: int, serial: int) -> None:
        """A datagram to everyone has arrived, in turn or not."""
        if self.next_serial != NO_SERIAL:
            self._newest_serial = (self.next_serial - 2) % SERIAL_MAX + 1
        ahead = (serial - self._newest_serial) % SERIAL_MAX
        if self._newest_serial == 0:
            self._newest_serial, self.newest_sent_ns, self._seen_mask = serial, sent_ns, _ALL
        elif ahead == 0 and sent_ns <= self.newest_sent_ns:
            self.duplicated += 1
        elif ahead > _HALF and sent_ns <= self.newest_sent_ns:
            self._on_overtaken(SERIAL_MAX - ahead)
        else:
            self._advance(ahead or SERIAL_MAX)
            self._newest_serial, self.newest_sent_ns = serial, sent_ns
        # The following ones need not come here if nothing is missing behind them.
        self.next_serial = (
            self._newest_serial % SERIAL_MAX + 1 if self._seen_mask == _ALL and not self._loss_run else NO_SERIAL
        )

    @property
    def counted(self) -> int:
        """How many datagrams have come or are given up for lost."""
        return self._counted + self.in_sequence

    def record_timing(self, now: int, sent_ns: int) -> None:
        """A datagram that was sent then has arrived now: of marks, which come at even intervals, and of some others.

        What that says is worked out for many at once, which costs less than half.
        """
        timed = self._timed
        timed.append((now, sent_ns))
        if len(timed) == TIMED_BUFFER:
            self._process_timings()

    def _process_timings(self) -> None:
        last_ns, transit_before, jitter_16, offset_ns = self._last_ns, self._transit_ns, self._jitter_16, self.offset_ns
        silence_ns, add = self._silence_ns, self._delays.add
        for now, sent_ns in self._timed:
            silence_ns = max(silence_ns, now - last_ns)
            last_ns = now
            transit = now - sent_ns + offset_ns
            add(transit)
            if transit_before is not None:
                jitter_16 += abs(transit - transit_before) - ((jitter_16 + 8) >> 4)
            transit_before = transit
        self._last_ns, self._transit_ns, self._jitter_16 = last_ns, transit_before, jitter_16
        self._silence_ns = silence_ns
        self._timed.clear()

    @property
    def delays(self) -> Histogram:
        """How long what was timed took."""
        self._process_timings()
        return self._delays

    @property
    def silence_ns(self) -> int:
        """The longest time between two that were timed."""
        self._process_timings()
        return self._silence_ns

    def jitter_ns(self) -> int:
        """The running mean."""
        self._process_timings()
        return self._jitter_16 >> 4

    def extend_silence(self, now: int) -> None:
        """Nothing has come since the last arrival: a window's end must not hide a silence that goes on."""
        self._process_timings()
        self._silence_ns = max(self._silence_ns, now - self._last_ns)

    def set_clock_offset(self, offset_ns: int) -> None:
        """The peer's clock minus ours, as estimated now."""
        self._process_timings()
        self.offset_ns = offset_ns

    def _on_overtaken(self, behind: int) -> None:
        if behind >= REORDER_WINDOW:
            self.late += 1  # given up for lost already, and was not
        elif self._seen_mask >> behind & 1:
            self.duplicated += 1
        else:
            self._seen_mask |= 1 << behind
            self.reordered += 1

    def _advance(self, steps: int) -> None:
        """The newest serial moves on: what falls out of the window of reordering is settled."""
        within = min(steps, REORDER_WINDOW)
        self._counted += steps
        missing = ~self._seen_mask & _ALL & ~(_ALL >> within)
        if missing or self._loss_run:
            self._count_losses(missing, within)
        beyond = steps - within
        self.lost += beyond
        self._loss_run += beyond
        self._seen_mask = (self._seen_mask << steps | 1) & _ALL

    def _count_losses(self, missing: int, positions: int) -> None:
        """Of the oldest places of the window, those that are `missing` are lost."""
        for age in range(REORDER_WINDOW - 1, REORDER_WINDOW - 1 - positions, -1):
            if missing >> age & 1:
                self.lost += 1
                self._loss_run += 1
            elif self._loss_run:
                self.bursts.add(self._loss_run)
                self._loss_run = 0
