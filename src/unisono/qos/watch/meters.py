"""Metric collectors at both sides of each layer (paper 002 §2.4, §4: MeCo), fed by the stack.

The stack calls `Monitor` for everything that crosses a layer boundary. The layers, from top to bottom, are the
application, the order, the services below the order, and the network. `Monitor` counts in constant memory over tumbling
windows of the member's own clock. Windows start at multiples of their length, so all members' windows have the same
numbers. `close_window` returns a finished window as metric rows.

Two meters measure loss. `LinkMeter` reads the serial numbers of datagrams, so it measures the loss of the network
before any repair. `FrameMeter` reads the order's frame numbers, so it measures the loss that remains after repair.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

from unisono.model.delays import Histogram
from unisono.model.events import Batch, StackEvent
from unisono.model.policy import Policy
from unisono.model.sla import APPLICATION, EVERY_LINK, NETWORK, MetricRow, Side
from unisono.model.timing import SlotGrid
from unisono.model.units import NS_PER_S
from unisono.net.clock_check import ClockCheck
from unisono.wire.frame import END_OF_SLOT, SERIAL_MAX, Frame, Kind

WINDOW_NS = 250_000_000
TIMED_EVERY = 8
"""Measure the transit time of one in this many data datagrams that carry no end-of-slot mark."""
DELIVERIES_BUFFERED = 256
"""Deliveries of peers' messages to collect before processing them in one go."""
SUBMISSIONS_TRACKED_MAX = 4096
"""Submissions to track until delivery, to measure their latency; further ones are not measured."""

_LINK_METRICS = frozenset({"delay", "jitter", "loss", "loss_burst", "reordering", "silence", "gamma"})
_ORDER_USAGE_METRICS = frozenset({"rate", "burst", "size", "held_back"})

_IS_MARK = bytes(flags & END_OF_SLOT for flags in range(256))
"""Indexed by a datagram's flags: whether it carries an end-of-slot mark."""
REORDER_WINDOW = 32
"""A datagram counts as lost when this many later ones have arrived."""
TIMED_BUFFER = 256
"""Timed arrivals of datagrams to collect before processing them in one go."""
NO_SERIAL = -1
"""Not a serial number: no particular datagram is expected next."""
_ALL_SEEN = (1 << REORDER_WINDOW) - 1
_HALF = SERIAL_MAX // 2
_ROUNDS = bytes(range(1, SERIAL_MAX + 1)) * 3
"""Three rounds of serials: long enough to compare one read of datagrams with, from any start in the first round."""

Collector: TypeAlias = tuple[str, Side, int]
"""The collecting layer, its side, and the link that the metric is about."""


class LinkMeter:
    """Measures the link from one incarnation of a peer: loss, bursts, delay, jitter, reordering, silence.

    Loss follows from the serial numbers of datagrams to all members. Serials repeat after 255, so the losses of a
    longer outage are counted modulo 255; such an outage shows as `silence`. Jitter follows RFC 3550: a running mean
    over 16 datagrams of the change in transit time.

    Nearly all datagrams arrive in sequence: their serial is `next_serial`. To save time, the caller counts those
    itself: it sets `next_serial`, `in_sequence` and `newest_sent_ns`. It passes all other datagrams to `on_datagram`.
    """

    __slots__ = (
        "_counted",
        "_delays",
        "_jitter_16",
        "_last_ns",
        "_loss_run",
        "_newest_serial",
        "_seen_mask",
        "_silence_ns",
        "_timed",
        "_transit_ns",
        "bursts",
        "duplicated",
        "in_sequence",
        "incarnation",
        "late",
        "lost",
        "newest_sent_ns",
        "next_serial",
        "offset_ns",
        "reordered",
    )

    def __init__(self, incarnation: int, now: int) -> None:
        self.incarnation = incarnation
        self.offset_ns = 0
        """The peer's clock minus our clock, as last estimated."""
        self._newest_serial = 0
        """The newest serial that arrived. It is out of date while `next_serial` is not NO_SERIAL."""
        self.next_serial = NO_SERIAL
        """The serial expected next, or NO_SERIAL while datagrams are missing."""
        self.newest_sent_ns = 0
        """Send time of the newest datagram."""
        self._seen_mask = 0
        self._loss_run = 0
        self._last_ns = now
        self._timed: list[tuple[int, int]] = []
        """(arrival time, send time) of datagrams that are not processed yet."""
        self._transit_ns: int | None = None
        self._jitter_16 = 0
        # The first datagram marks all earlier ones as seen; these must not count when they leave the window.
        self._counted = 1 - REORDER_WINDOW
        self._reset_counters()

    def _reset_counters(self) -> None:
        self.in_sequence = self.lost = self.reordered = self.late = self.duplicated = self._silence_ns = 0
        self._delays, self.bursts = Histogram(), Histogram()

    def start_window(self) -> None:
        """Start a window: reset the counters and keep the state that spans windows."""
        self._process_timings()
        self._counted = min(self._counted + self.in_sequence, 0)
        self._reset_counters()

    def are_next(self, serials: bytes) -> bool:
        """Whether these are exactly the serials expected next."""
        at = self.next_serial - 1
        return at >= 0 and serials == _ROUNDS[at : at + len(serials)]

    def on_datagram(self, sent_ns: int, serial: int) -> None:
        """Count a datagram to all members that has arrived, in sequence or not."""
        if self.next_serial != NO_SERIAL:
            self._newest_serial = (self.next_serial - 2) % SERIAL_MAX + 1
        ahead = (serial - self._newest_serial) % SERIAL_MAX
        if self._newest_serial == 0:
            self._newest_serial, self.newest_sent_ns, self._seen_mask = serial, sent_ns, _ALL_SEEN
        elif ahead == 0 and sent_ns <= self.newest_sent_ns:
            self.duplicated += 1
        elif ahead > _HALF and sent_ns <= self.newest_sent_ns:
            self._on_overtaken(SERIAL_MAX - ahead)
        else:
            self._advance(ahead or SERIAL_MAX)
            self._newest_serial, self.newest_sent_ns = serial, sent_ns
        # With nothing missing, the caller handles the following datagrams without a call.
        self.next_serial = (
            self._newest_serial % SERIAL_MAX + 1 if self._seen_mask == _ALL_SEEN and not self._loss_run else NO_SERIAL
        )

    @property
    def counted(self) -> int:
        """How many datagrams have arrived or count as lost."""
        return self._counted + self.in_sequence

    def record_timing(self, now: int, sent_ns: int) -> None:
        """Record when a datagram was sent and when it arrived.

        The caller does this for all end-of-slot marks, which arrive at even intervals, and for some other datagrams.
        The times are processed later, in batches, which takes less than half the time.
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
        """The transit times of the datagrams given to `record_timing`."""
        self._process_timings()
        return self._delays

    @property
    def silence_ns(self) -> int:
        """The longest time between two datagrams given to `record_timing`."""
        self._process_timings()
        return self._silence_ns

    def jitter_ns(self) -> int:
        """The jitter of the link: a running mean of the change in transit time."""
        self._process_timings()
        return self._jitter_16 >> 4

    def extend_silence(self, now: int) -> None:
        """Count the time since the last arrival, so that the end of a window does not hide an ongoing silence."""
        self._process_timings()
        self._silence_ns = max(self._silence_ns, now - self._last_ns)

    def set_clock_offset(self, offset_ns: int) -> None:
        """Set the estimate of the peer's clock minus our clock."""
        self._process_timings()
        self.offset_ns = offset_ns

    def _on_overtaken(self, behind: int) -> None:
        if behind >= REORDER_WINDOW:
            self.late += 1  # it already counted as lost
        elif self._seen_mask >> behind & 1:
            self.duplicated += 1
        else:
            self._seen_mask |= 1 << behind
            self.reordered += 1

    def _advance(self, steps: int) -> None:
        """Move the newest serial forward; datagrams that leave the reordering window unseen count as lost."""
        within = min(steps, REORDER_WINDOW)
        self._counted += steps
        missing = ~self._seen_mask & _ALL_SEEN & ~(_ALL_SEEN >> within)
        if missing or self._loss_run:
            self._count_losses(missing, within)
        beyond = steps - within
        self.lost += beyond
        self._loss_run += beyond
        self._seen_mask = (self._seen_mask << steps | 1) & _ALL_SEEN

    def _count_losses(self, missing: int, positions: int) -> None:
        """Count the `missing` datagrams among the oldest positions of the reordering window as lost."""
        for age in range(REORDER_WINDOW - 1, REORDER_WINDOW - 1 - positions, -1):
            if missing >> age & 1:
                self.lost += 1
                self._loss_run += 1
            elif self._loss_run:
                self.bursts.add(self._loss_run)
                self._loss_run = 0


COUNT_LAG_SLOTS = 16


class FrameMeter:
    """Counts the frames of one sender that do not reach the layer above a service.

    A sender numbers the frames of each slot from 0, and the last one has the end-of-slot mark. So the frame with the
    mark tells how many frames the slot has. If that frame is lost, or all frames of a slot, at least the frame with the
    mark counts as missing. A slot is counted when COUNT_LAG_SLOTS later slots have begun: a reliable service has
    finished its repairs by then.
    """

    __slots__ = ("_counted_until", "_due", "_incarnation", "_missing", "_newest", "_open_slots")

    def __init__(self) -> None:
        self._incarnation = -1
        self._newest = self._counted_until = -1
        self._open_slots: dict[int, tuple[int, int]] = {}
        """By slot: how many frames arrived, and how many are due (a lower bound until the mark arrives)."""
        self._due = self._missing = 0

    def on_frame(self, frame: Frame) -> None:
        """Count a frame that has arrived."""
        if frame.incarnation != self._incarnation:
            if frame.incarnation < self._incarnation:
                return
            self._incarnation = frame.incarnation
            self._newest = self._counted_until = frame.slot - 1
            self._open_slots.clear()
        slot = frame.slot
        if slot <= self._counted_until:
            return
        arrived, due = self._open_slots.get(slot, (0, 1))
        # A frame without a mark is followed by at least one more.
        self._open_slots[slot] = arrived + 1, max(due, frame.number + (1 if frame.flags & END_OF_SLOT else 2))
        if slot > self._newest:
            self._newest = slot
            self._count_until(slot - COUNT_LAG_SLOTS)

    def _count_until(self, until: int) -> None:
        slots = until - self._counted_until
        if slots <= 0:
            return
        found = 0
        for slot in sorted(slot for slot in self._open_slots if slot <= until):
            arrived, due = self._open_slots.pop(slot)
            found += 1
            self._due += due
            self._missing += max(0, due - arrived)
        self._due += slots - found
        self._missing += slots - found
        self._counted_until = until

    def pop_window(self) -> tuple[int, int]:
        """Frames due since the last call, and how many of them are missing. Resets both counts."""
        counted = self._due, self._missing
        self._due = self._missing = 0
        return counted


class MetricWindow:
    """Builds the metric rows of one window."""

    def __init__(self, start_ns: int, length_ns: int) -> None:
        self.rows: list[MetricRow] = []
        self.seconds = length_ns / NS_PER_S
        self.end_ns = start_ns + length_ns
        self._start_and_length = start_ns, length_ns

    def level(self, collector: Collector, metric: str, count: int, value: float) -> None:
        """Add a metric row with one value: a level, or a share of `count` observations."""
        self.rows.append(MetricRow(*collector, metric, *self._start_and_length, count, value))

    def spread(self, collector: Collector, metric: str, values: Histogram) -> None:
        """Add a metric row with a distribution of values, unless it has no values."""
        if values.total:
            pairs = tuple(values.to_pairs())
            self.rows.append(
                MetricRow(
                    *collector, metric, *self._start_and_length, values.total, values.mean(), values.largest, pairs
                )
            )


class Monitor:
    """Holds the metric collectors of one member's stack; the stack reports all traffic between layers to it."""

    def __init__(
        self,
        policy: Policy,
        layers: Sequence[str],
        skew: ClockCheck,
        window_ns: int = WINDOW_NS,
        slots: Callable[[], SlotGrid] | None = None,
    ) -> None:
        """`layers` are the stack's layers from the order down to the one above the network.

        `slots` returns the current slot schedule, for groups whose slot length may change.
        """
        self.window_ns = window_ns
        self._policy = policy
        self._layers = tuple(layers)
        self._skew = skew
        self._member = policy.member
        declared = SlotGrid.of(policy.timing)
        self._slots = slots or (lambda: declared)
        self._slotted = policy.order == "vbr"
        self._start_ns: int | None = None
        self.window_end_ns = 0
        """The end of the current window of metrics."""
        self._peers = tuple(m for m in policy.view.members if m != policy.member)
        self._links: dict[int, LinkMeter] = {}
        # Copies of a reliable multicast are few and carry no end-of-slot marks, so all of them are timed.
        self._timed_every = 1 if "rmcast" in layers else TIMED_EVERY
        self._frame_meters = {layer: {peer: FrameMeter() for peer in self._peers} for layer in self._layers[:-1]}
        self._offered = self._accepted = self._sequence = 0
        self._slot_end_ns = self._slot_accepted = self._burst = 0
        self._awaited: deque[tuple[int, int]] = deque()
        """(sequence number after the submission's last message, time of the submission)."""
        self._sizes = Histogram()
        self._peer_deliveries: list[tuple[int, int, int, int]] = []
        """Unprocessed deliveries of peers' messages: time, sender, slot, count."""
        self._latencies = {member: Histogram() for member in policy.view.members}
        self._offsets = dict.fromkeys(policy.view.members, 0)
        """By peer: its clock minus our clock, as last estimated."""
        self._frames_passed_down = dict.fromkeys(self._layers[1:], 0)
        self._datagrams = self._bytes = 0

    @property
    def layer_names(self) -> tuple[str, ...]:
        """All layers from top to bottom, with the application and the network."""
        return (APPLICATION, *self._layers, NETWORK)

    def collects(self, layer: str, side: Side, metric: str) -> bool:
        """Whether this layer's collector on this side produces this metric."""
        if layer == APPLICATION:
            return side is Side.BELOW and metric == "latency"
        if side is Side.ABOVE:
            if layer == NETWORK:
                return metric == "bandwidth"
            return metric in _ORDER_USAGE_METRICS if layer == self._layers[0] else metric == "rate"
        return metric in _LINK_METRICS if layer == self._layers[-1] else metric == "loss" and self._slotted

    # -- traffic across layer boundaries ---------------------------------------------------------------------

    def submitted(self, now: int, messages: Sequence[bytes], accepted: int) -> None:
        """The application submitted messages; the order accepted the first `accepted` of them."""
        self._offered += len(messages)
        if not accepted:
            return
        self._accepted += accepted
        self._sequence += accepted
        if now >= self._slot_end_ns:
            slots = self._slots()
            self._slot_end_ns = slots.end_of(slots.slot_of(now))
            self._slot_accepted = 0
        self._slot_accepted += accepted
        self._burst = max(self._burst, self._slot_accepted)
        self._sizes.add(len(messages[0]), accepted)
        if len(self._awaited) < SUBMISSIONS_TRACKED_MAX:
            self._awaited.append((self._sequence, now))

    def delivered(self, now: int, events: Sequence[StackEvent]) -> None:
        """The order delivered these events to the application."""
        sender = slot = count = 0
        for event in events:
            if type(event) is not Batch:
                continue
            if event.sender == sender and event.slot == slot:
                count += event.count
                continue
            if count:
                self._peer_deliveries.append((now, sender, slot, count))
            if event.sender == self._member:
                self._time_own_messages(now, event)
                sender = count = 0
            else:
                sender, slot, count = event.sender, event.slot, event.count
        if count:
            self._peer_deliveries.append((now, sender, slot, count))
        if len(self._peer_deliveries) >= DELIVERIES_BUFFERED:
            self._process_deliveries()

    def _process_deliveries(self) -> None:
        """Add the latency of peers' messages, from the beginning of their slot until delivery.

        This is an upper bound, because no message is submitted before its slot begins.
        """
        if self._slotted:
            slots = self._slots()
            for now, sender, slot, count in self._peer_deliveries:
                self._latencies[sender].add(now - slots.start_of(slot) + self._offsets[sender], count)
        self._peer_deliveries.clear()

    def _time_own_messages(self, now: int, batch: Batch) -> None:
        """Add the latency of our own messages, by our own clock."""
        awaited, at = self._awaited, batch.first_sequence
        end = at + batch.count
        while awaited and awaited[0][0] <= end:
            sequence, submitted = awaited.popleft()
            if sequence > at:
                self._latencies[self._member].add(now - submitted, sequence - at)
                at = sequence

    def arrived(self, now: int, frame: Frame, serial: int) -> None:
        """A datagram arrived from the network."""
        link = self._links.get(frame.sender)
        if link is not None and link.next_serial == serial and link.incarnation == frame.incarnation:
            # Nearly all datagrams are in sequence. This is the hot path of collecting, so it makes no calls.
            link.in_sequence += 1
            link.next_serial = serial % SERIAL_MAX + 1
            link.newest_sent_ns = frame.sent_ns
        elif (link := self._on_out_of_sequence(now, frame, serial)) is None:
            return
        if frame.flags & END_OF_SLOT or serial % self._timed_every == 0:
            link.record_timing(now, frame.sent_ns)

    def arrived_in_batch(self, now: int, frames: Sequence[Frame], serials: bytes, flags: bytes) -> None:
        """Count datagrams that arrived together: in one step if all are in sequence, otherwise one by one."""
        first, last = frames[0], frames[-1]
        link = self._links.get(last.sender)
        # One socket received them one after the other, so a check of the first and the last covers all.
        if (
            link is None
            or first.sender != last.sender
            or first.incarnation != link.incarnation
            or last.incarnation != link.incarnation
            or not link.are_next(serials)
            or self._timed_every == 1
        ):
            for frame, serial in zip(frames, serials, strict=True):
                self.arrived(now, frame, serial)
            return
        link.in_sequence += len(frames)
        link.next_serial = serials[-1] % SERIAL_MAX + 1
        link.newest_sent_ns = last.sent_ns
        # All arrived at the same time, so one timing for the datagrams without a mark is enough.
        is_mark, end = flags.translate(_IS_MARK), len(frames) - 1
        at = is_mark.find(1)
        while 0 <= at < end:
            link.record_timing(now, frames[at].sent_ns)
            at = is_mark.find(1, at + 1)
        link.record_timing(now, last.sent_ns)

    def _on_out_of_sequence(self, now: int, frame: Frame, serial: int) -> LinkMeter | None:
        """Count a datagram that is out of sequence. Return its link's meter, or None if the datagram does not count."""
        if not serial or not frame.sent_ns:
            return None
        link = self._links.get(frame.sender)
        if link is None or link.incarnation != frame.incarnation:
            if link is not None and link.incarnation > frame.incarnation:
                return None
            link = self._links[frame.sender] = LinkMeter(frame.incarnation, now)
            self._update_clock_offset(frame.sender, link)
        link.on_datagram(frame.sent_ns, serial)
        return link

    def passed_up(self, layer: str, frames: Sequence[Frame]) -> None:
        """A layer passed frames up."""
        meters = self._frame_meters.get(self._layer_above(layer))
        if meters is None:
            return
        for frame in frames:
            if frame.kind is Kind.DATA and frame.sender in meters:
                meters[frame.sender].on_frame(frame)

    def passed_down(self, layer: str, frames: int) -> None:
        """The layer above `layer` passed frames down to it."""
        if layer in self._frames_passed_down:
            self._frames_passed_down[layer] += frames

    def datagrams_sent(self, datagrams: int, size: int) -> None:
        """The stack put datagrams on the network."""
        self._datagrams += datagrams
        self._bytes += size

    def _layer_above(self, layer: str) -> str:
        at = self._layers.index(layer) if layer in self._layers else 0
        return self._layers[at - 1] if at else ""

    # -- windows ---------------------------------------------------------------------------------------------

    def close_window(self, now: int) -> list[MetricRow]:
        """If the current window is over, return its rows and start the next one; else return no rows."""
        current = now // self.window_ns * self.window_ns
        if self._start_ns is None:
            self._start_ns = current
        rows: list[MetricRow] = []
        if current > self._start_ns:
            self._process_deliveries()
            rows = self._rows(MetricWindow(self._start_ns, current - self._start_ns))
            self._start_ns = current
            self._start_window()
        self.window_end_ns = self._start_ns + self.window_ns
        return rows

    def _rows(self, window: MetricWindow) -> list[MetricRow]:
        order, lowest = (self._layers[0], Side.ABOVE, EVERY_LINK), self._layers[-1]
        for sender, latencies in self._latencies.items():
            window.spread((APPLICATION, Side.BELOW, sender), "latency", latencies)
        window.level(order, "rate", self._accepted, self._accepted / window.seconds)
        window.level(order, "burst", self._accepted, self._burst)
        window.level(order, "held_back", self._offered, 1 - self._accepted / self._offered if self._offered else 0.0)
        window.spread(order, "size", self._sizes)
        for layer, frames in self._frames_passed_down.items():
            window.level((layer, Side.ABOVE, EVERY_LINK), "rate", frames, frames / window.seconds)
        for layer, meters in self._frame_meters.items():
            for peer, meter in meters.items():
                due, missing = meter.pop_window()
                if due and self._slotted:
                    window.level((layer, Side.BELOW, peer), "loss", due, missing / due)
        network = (NETWORK, Side.ABOVE, EVERY_LINK)
        window.level(network, "bandwidth", self._datagrams, self._bytes / window.seconds)
        for peer in sorted(self._links):
            self._link_rows(window, (lowest, Side.BELOW, peer), self._links[peer])
        for peer in self._peers:
            sample = self._skew.estimate(peer)
            if sample is not None:
                window.level((lowest, Side.BELOW, peer), "gamma", 1, abs(sample.offset_ns) + sample.error_ns)
        return window.rows

    def _link_rows(self, window: MetricWindow, collector: Collector, link: LinkMeter) -> None:
        link.extend_silence(window.end_ns)
        window.spread(collector, "delay", link.delays)
        if link.delays.total:
            window.level(collector, "jitter", link.delays.total, link.jitter_ns())
        if link.counted > 0:
            window.level(collector, "loss", link.counted, max(0, link.lost - link.late) / link.counted)
            window.level(collector, "reordering", link.counted, link.reordered / link.counted)
        window.spread(collector, "loss_burst", link.bursts)
        window.level(collector, "silence", link.delays.total, link.silence_ns)

    def _start_window(self) -> None:
        self._offered = self._accepted = self._burst = self._datagrams = self._bytes = 0
        self._sizes = Histogram()
        self._latencies = {member: Histogram() for member in self._latencies}
        self._frames_passed_down = dict.fromkeys(self._frames_passed_down, 0)
        for peer, link in self._links.items():
            link.start_window()
            self._update_clock_offset(peer, link)

    def _update_clock_offset(self, peer: int, link: LinkMeter) -> None:
        sample = self._skew.estimate(peer)
        if sample is not None:
            self._offsets[peer] = sample.offset_ns
            link.set_clock_offset(sample.offset_ns)
