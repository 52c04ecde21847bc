"""Clock check: measures how much the members' clocks differ (Γ as measured), and finds wrong clocks.

Measuring: each member probes its peers in turn. The echo brings back four clock readings, which give the difference
with an error of at most half the round-trip time. Of a peer's last SAMPLES_KEPT samples, the one with the shortest
round trip counts.

A clock is wrong if it differs from ours by more than Γ. Two observations show that:
- A datagram seems to arrive more than Γ before it was sent. A single one is proof, since none can arrive early.
- A datagram seems to take longer than Δ+Γ. That is no proof by itself: on a busy machine datagrams may be late. It
  becomes proof after ROUND_TRIPS consecutive round trips that all show it. Each must take at most 2Δ and start after
  the previous one ended, and no datagram of the peer may be on time in between. If this member was late to wake, its
  own delay is subtracted first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from unisono.model.events import Violation, ViolationKind
from unisono.model.policy import Policy
from unisono.model.timing import Throttle
from unisono.model.units import NS_PER_S, duration_text
from unisono.wire.codec import control_frame
from unisono.wire.control import Echo, Probe
from unisono.wire.frame import Frame, Kind

SAMPLES_KEPT = 8
"""How many samples of each peer this member keeps."""
ROUND_TRIPS = 8
"""How many consecutive late round trips prove that a clock is wrong, and not only that a machine is busy."""
QUIET_NS = 10 * NS_PER_S
"""A wrong clock is reported again only after it was not found wrong for this long."""


@dataclass(frozen=True, slots=True)
class SkewSample:
    """A peer's clock minus ours, and the largest possible error of this difference."""

    offset_ns: int
    error_ns: int


@dataclass(frozen=True, slots=True)
class ClockDifference:
    """A peer's clock is wrong: it is at least `difference_ns` ahead of ours, or behind it if negative."""

    peer: int
    incarnation: int
    difference_ns: int


@dataclass(slots=True)
class _RoundTrips:
    """Consecutive round trips in which a peer's datagrams took longer than Δ+Γ."""

    incarnation: int
    least_transit_ns: int
    after_ns: int = 0
    """A round trip counts only if it started after this time."""
    count: int = 0


class ClockCheck:
    """The layer that checks clocks: it answers the probes of its peers and sends its own."""

    name: ClassVar[str] = "skew"
    wraps: frozenset[Kind] = frozenset()
    opens = frozenset({Kind.PROBE, Kind.ECHO})

    def __init__(self, policy: Policy) -> None:
        self.down: list[Frame] = []
        self.up: list[Frame] = []
        self._policy = policy
        self._peers = policy.neighbours
        self._probes_sent = 0
        self._next_probe: int | None = 0 if policy.probe_every_ns and self._peers else None
        self._samples: dict[int, deque[SkewSample]] = {m: deque(maxlen=SAMPLES_KEPT) for m in self._peers}
        self.longest_delay_ns: int | None = None
        """Half of the longest round trip of a probe; None before the first answer."""
        self._gamma_ns = policy.timing.gamma_ns
        self._max_transit_ns = policy.timing.delta_ns + policy.timing.gamma_ns
        """The longest time that a datagram may seem to take, by clocks that differ by at most Γ."""
        self._late_round_trips: dict[int, _RoundTrips] = {}
        self._extra_probes: dict[int, int] = {}
        """When to probe a peer out of turn, by peer."""
        self._own_late_wakes: deque[tuple[int, int]] = deque()
        """(time, delay) of this member's own late wakes. A later wake with a delay at least as long replaces it."""
        self._woken_at = 0
        self._wrong_clock_reports, self._late_reports = Throttle(QUIET_NS), Throttle()
        self.on_clock_difference: Callable[[int, ClockDifference], None] | None = None
        """Called with our clock reading for each wrong clock. The stack sets it if the order relies on clocks."""
        self.next_wake: Callable[[], int | None] = lambda: None
        """Returns when this member has to be woken next. The stack sets it."""

    def from_above(self, now: int, frame: Frame) -> None:
        """Pass the frame down unchanged: this layer wraps no frames."""
        self.down.append(frame)

    def from_below(self, now: int, frame: Frame) -> None:
        """Answer a peer's PROBE, or measure the peer's clock from the ECHO that answers our own probe."""
        match frame.message:
            case Probe(sent_ns):
                self._send(now, Echo(sent_ns, now, now), frame.sender)
            case Echo(probe_sent_ns, received_ns, sent_ns):
                self._sample(frame, now, probe_sent_ns, received_ns, sent_ns)
            case _:
                self.up.append(frame)

    def _sample(self, frame: Frame, now: int, sent: int, peer_received: int, peer_sent: int) -> None:
        round_trip = (now - sent) - (peer_sent - peer_received)
        if round_trip < 0 or sent > now:
            return
        offset = ((peer_received - sent) + (peer_sent - now)) // 2
        self._samples[frame.sender].append(SkewSample(offset, (round_trip + 1) // 2))
        self.longest_delay_ns = max(self.longest_delay_ns or 0, (round_trip + 1) // 2)
        if peer_received - sent < -self._gamma_ns:
            self._report(now, frame, peer_received - sent)
        elif now - peer_sent < -self._gamma_ns:
            self._report(now, frame, peer_sent - now)
        self.record_own_lateness(now)
        self._check_round_trip(now, frame, sent, now - peer_sent, round_trip)

    # -- wrong clocks ------------------------------------------------------------------------------------------

    def _check_round_trip(self, now: int, frame: Frame, sent: int, transit_ns: int, round_trip: int) -> None:
        """Count a late round trip, report the peer's clock after ROUND_TRIPS of them, and probe the peer again soon."""
        peer, late = frame.sender, self._late_round_trips.get(frame.sender)
        if transit_ns <= self._max_transit_ns:
            self._late_round_trips.pop(peer, None)
            return
        if late is None or late.incarnation != frame.incarnation:
            late = self._late_round_trips[peer] = _RoundTrips(frame.incarnation, transit_ns)
        at_least = transit_ns - self._own_lateness(sent)
        delta_ns = self._policy.timing.delta_ns
        if at_least > self._max_transit_ns and round_trip <= 2 * delta_ns and sent >= late.after_ns:
            late.count, late.after_ns, late.least_transit_ns = late.count + 1, now, min(late.least_transit_ns, at_least)
        if late.count >= ROUND_TRIPS:
            self._report(now, frame, delta_ns - late.least_transit_ns)
        self._extra_probes[peer] = now + max(1, self._policy.probe_every_ns // 20)

    def is_on_time(self, transit_ns: int, sender: int) -> bool:
        """Whether a datagram of this sender seems to have taken between -Γ and Δ+Γ.

        Always True if the order does not rely on clocks.
        """
        if transit_ns > self._max_transit_ns:
            return self.on_clock_difference is None
        if self._late_round_trips:
            self._late_round_trips.pop(sender, None)
        return transit_ns >= -self._gamma_ns or self.on_clock_difference is None

    def report_late(self, now: int, frame: Frame) -> list[Violation]:
        """Handle an end-of-slot mark that was not on time. Returns the violation to report, if any."""
        took_ns = now - frame.sent_ns
        if took_ns < 0:
            self._report(now, frame, -took_ns)
            return []
        if not self._policy.failures or self._policy.reliable is not None:
            return []  # Orders without failures report late marks themselves; copies of reliable multicast may be late.
        self.record_own_lateness(now)
        took_ns -= self._own_lateness(frame.sent_ns - self._gamma_ns)
        if took_ns <= self._max_transit_ns or not self._late_reports.first_in_a_while(
            now, (frame.sender, frame.incarnation)
        ):
            return []
        took, most = duration_text(took_ns), duration_text(self._max_transit_ns)
        text = f"a datagram of member {frame.sender} took {took} by the members' clocks, more than Δ+Γ = {most}"
        why = "the network is slower than Δ, or a clock is off by more than Γ"
        return [Violation(ViolationKind.LATE, f"{text}: {why}", frame.sender, frame.slot)]

    def record_own_lateness(self, now: int) -> None:
        """Record if this member wakes late: the datagrams that it reads now may have waited for it."""
        due = self.next_wake() if self.on_clock_difference is not None else None
        if due is None or now <= due:
            return
        late_wakes, delay = self._own_late_wakes, now - due
        if delay > self._gamma_ns:
            delay = now - self._woken_at  # The process may have been paused ever since its last wake.
        while late_wakes and late_wakes[-1][1] <= delay:
            late_wakes.pop()
        late_wakes.append((now, delay))
        while late_wakes[0][0] < now - 4 * self._max_transit_ns:
            late_wakes.popleft()

    def _own_lateness(self, since_ns: int) -> int:
        """The longest delay of this member's own wakes since the time `since_ns`."""
        return next((delay for at, delay in self._own_late_wakes if at > since_ns), 0)

    def _report(self, now: int, frame: Frame, difference_ns: int) -> None:
        peer, incarnation = frame.sender, frame.incarnation
        if self.on_clock_difference is None:
            return
        if self._wrong_clock_reports.first_in_a_while(now, (peer, incarnation)):
            self.on_clock_difference(now, ClockDifference(peer, incarnation, difference_ns))

    # -- probing -----------------------------------------------------------------------------------------------

    def wake(self, now: int) -> None:
        """Send the probes that are due."""
        self._woken_at = now
        for peer in [peer for peer, at in self._extra_probes.items() if at <= now]:
            del self._extra_probes[peer]
            self._send(now, Probe(now), peer)
        if self._next_probe is None or now < self._next_probe:
            return
        peer = self._peers[self._probes_sent % len(self._peers)]
        # The first three rounds are quick, so that a new group soon has estimates; then each peer once per period.
        quick = self._probes_sent < 3 * len(self._peers)
        self._probes_sent += 1
        period = self._policy.probe_every_ns // len(self._peers)
        self._next_probe = now + max(1, period // 20 if quick else period)
        self._send(now, Probe(now), peer)

    def wake_at(self) -> int | None:
        """When the next probe is due, or None if no probe is planned."""
        if self._next_probe is None or not self._extra_probes:
            return self._next_probe
        return min(self._next_probe, *self._extra_probes.values())

    def _send(self, now: int, message: Probe | Echo, to: int) -> None:
        policy = self._policy
        self.down.append(control_frame(message, policy.member, policy.incarnation, policy.epoch, sent_ns=now, to=to))

    def change_incarnation(self, policy: Policy) -> None:
        """Use a new incarnation of this member in all later frames."""
        self._policy = policy

    # -- questions ---------------------------------------------------------------------------------------------

    def estimate(self, peer: int) -> SkewSample | None:
        """The recent sample of a peer's clock with the smallest error, or None if the peer has answered no probe."""
        samples = self._samples.get(peer)
        return min(samples, key=lambda sample: sample.error_ns) if samples else None

    def gamma_ns(self) -> int | None:
        """Γ as measured here: the largest difference between any two clocks, errors included.

        None until every peer has answered a probe.
        """
        low = high = 0
        for peer in self._peers:
            sample = self.estimate(peer)
            if sample is None:
                return None
            low = min(low, sample.offset_ns - sample.error_ns)
            high = max(high, sample.offset_ns + sample.error_ns)
        return high - low

    def counters(self) -> Mapping[str, int]:
        """The clock check has no counters: it reports differences and late marks as they occur."""
        return {}
