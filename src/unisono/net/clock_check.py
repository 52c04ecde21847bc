"""Measures the difference between members' clocks from in-band exchanges, tells Γ as measured, and finds wrong clocks.

Each member probes its peers in turn; the echo brings back four clock readings, from which the difference follows
with an error of at most half the round trip. Of the last few samples of a peer the one with the shortest round
trip counts.

That a clock is off by more than Γ follows in two ways. No datagram arrives before it was sent: one that seems to,
by more than Γ, is proof. And where no datagram takes longer than Δ, one that seems to have taken longer than Δ+Γ is
proof as well. But on a busy machine some do, so that one of them is reported and convicts nobody. That takes so many
round trips in a row, each of at most 2Δ and begun when the one before it was over, that all show the same, without a
single datagram of the peer's in time meanwhile; and what this member was late itself is not held against the peer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from unisono.model.durations import NS_PER_S, duration_text
from unisono.model.events import Violation, ViolationKind
from unisono.model.policy import Policy
from unisono.model.throttle import Throttle
from unisono.wire.control import decode_echo, decode_probe, encode_echo, encode_probe
from unisono.wire.frame import Frame, Kind

SAMPLES_KEPT = 8
ROUND_TRIPS = 8
"""How many round trips in a row have to show what could be a busy machine as well."""
QUIET_NS = 10 * NS_PER_S
"""A wrong clock is reported again when nothing has shown it for so long."""


@dataclass(frozen=True, slots=True)
class SkewSample:
    """A peer's clock minus ours, and how far off that may be."""

    offset_ns: int
    error_ns: int


@dataclass(frozen=True, slots=True)
class ClockDifference:
    """A peer's clock is off by more than Γ: by `off_ns` or more, ahead of ours or (negative) behind."""

    peer: int
    incarnation: int
    difference_ns: int


@dataclass(slots=True)
class _RoundTrips:
    """Round trips in a row that show a peer's datagrams later than Δ+Γ."""

    incarnation: int
    least_transit_ns: int
    after_ns: int = 0
    """Only a round trip that began after this is another one."""
    count: int = 0


class ClockCheck:
    """The layer: answers probes and sends its own."""

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
        self._gamma_ns = policy.timing.gamma_ns
        self._max_transit_ns = policy.timing.delta_ns + policy.timing.gamma_ns
        """The longest that a datagram may seem to take."""
        self._late_round_trips: dict[int, _RoundTrips] = {}
        self._extra_probes: dict[int, int] = {}
        """Peers that are probed out of turn, and when."""
        self._own_late_wakes: deque[tuple[int, int]] = deque()
        """When this member was late itself, and by how much: only what was not outdone since."""
        self._woken_at = 0
        self._wrong_clock_reports, self._late_reports = Throttle(QUIET_NS), Throttle()
        self.on_clock_difference: Callable[[int, ClockDifference], None] | None = None
        """Who is to know of wrong clocks, and when by ours: the order, if it goes by the clock."""
        self.next_wake: Callable[[], int | None] = lambda: None
        """When this member has to be woken next; the stack knows."""

    def from_above(self, now: int, frame: Frame) -> None:
        self.down.append(frame)

    def from_below(self, now: int, frame: Frame) -> None:
        if frame.kind is Kind.PROBE:
            sent = decode_probe(bytes(frame.body))
            if sent is not None:
                self.down.append(self._frame(Kind.ECHO, frame.sender, now, encode_echo(sent, now, now)))
        elif frame.kind is Kind.ECHO:
            echo = decode_echo(bytes(frame.body))
            if echo is not None:
                self._sample(frame, now, *echo)
        else:
            self.up.append(frame)

    def _sample(self, frame: Frame, now: int, sent: int, peer_received: int, peer_sent: int) -> None:
        round_trip = (now - sent) - (peer_sent - peer_received)
        if round_trip < 0 or sent > now:
            return
        offset = ((peer_received - sent) + (peer_sent - now)) // 2
        self._samples[frame.sender].append(SkewSample(offset, (round_trip + 1) // 2))
        if peer_received - sent < -self._gamma_ns:
            self._report(now, frame, peer_received - sent)
        elif now - peer_sent < -self._gamma_ns:
            self._report(now, frame, peer_sent - now)
        self.record_own_lateness(now)
        self._check_round_trip(now, frame, sent, now - peer_sent, round_trip)

    # -- clocks that are off by more than Γ --------------------------------------------------------------------

    def _check_round_trip(self, now: int, frame: Frame, sent: int, transit_ns: int, round_trip: int) -> None:
        peer, row = frame.sender, self._late_round_trips.get(frame.sender)
        if transit_ns <= self._max_transit_ns:
            self._late_round_trips.pop(peer, None)
            return
        if row is None or row.incarnation != frame.incarnation:
            row = self._late_round_trips[peer] = _RoundTrips(frame.incarnation, transit_ns)
        at_least = transit_ns - self._own_lateness(sent)
        delta_ns = self._policy.timing.delta_ns
        if at_least > self._max_transit_ns and round_trip <= 2 * delta_ns and sent >= row.after_ns:
            row.count, row.after_ns, row.least_transit_ns = row.count + 1, now, min(row.least_transit_ns, at_least)
        if row.count >= ROUND_TRIPS:
            self._report(now, frame, delta_ns - row.least_transit_ns)
        self._extra_probes[peer] = now + max(1, self._policy.probe_every_ns // 20)

    def is_on_time(self, transit_ns: int, sender: int) -> bool:
        """Whether a datagram of this sender took as long, by our clocks, as one may; where it matters."""
        if transit_ns > self._max_transit_ns:
            return self.on_clock_difference is None
        if self._late_round_trips:
            self._late_round_trips.pop(sender, None)
        return transit_ns >= -self._gamma_ns or self.on_clock_difference is None

    def report_late(self, now: int, frame: Frame) -> list[Violation]:
        """A mark was not in time; what the application is to be told of that, if anything."""
        took_ns = now - frame.sent_ns
        if took_ns < 0:
            self._report(now, frame, -took_ns)
            return []
        if not self._policy.failures or self._policy.reliable is not None:
            return []  # the order without failures knows itself what it waits for; copies may be late
        self.record_own_lateness(now)
        took_ns -= self._own_lateness(frame.sent_ns - self._gamma_ns)
        if took_ns <= self._max_transit_ns or not self._late_reports.first_in_a_while(
            now, (frame.sender, frame.incarnation)
        ):
            return []
        took, most = duration_text(took_ns), duration_text(self._max_transit_ns)
        text = f"what member {frame.sender} sent took {took} by our clocks, more than Δ+Γ = {most}"
        why = "the network is slower than Δ, or a clock off by more than Γ"
        return [Violation(ViolationKind.LATE, f"{text}: {why}", frame.sender, frame.slot)]

    def record_own_lateness(self, now: int) -> None:
        """If this member is late to be woken, what it reads now may have waited for it."""
        due = self.next_wake() if self.on_clock_difference is not None else None
        if due is None or now <= due:
            return
        overdue, late = self._own_late_wakes, now - due
        if late > self._gamma_ns:
            late = now - self._woken_at  # it stands still since then, for all we know
        while overdue and overdue[-1][1] <= late:
            overdue.pop()
        overdue.append((now, late))
        while overdue[0][0] < now - 4 * self._max_transit_ns:
            overdue.popleft()

    def _own_lateness(self, since_ns: int) -> int:
        return next((late for at, late in self._own_late_wakes if at > since_ns), 0)

    def _report(self, now: int, frame: Frame, difference_ns: int) -> None:
        peer, life = frame.sender, frame.incarnation
        if self.on_clock_difference is not None and self._wrong_clock_reports.first_in_a_while(now, (peer, life)):
            self.on_clock_difference(now, ClockDifference(peer, life, difference_ns))

    # -- probing -----------------------------------------------------------------------------------------------

    def wake(self, now: int) -> None:
        self._woken_at = now
        for peer in [peer for peer, at in self._extra_probes.items() if at <= now]:
            del self._extra_probes[peer]
            self.down.append(self._frame(Kind.PROBE, peer, now, encode_probe(now)))
        if self._next_probe is None or now < self._next_probe:
            return
        peer = self._peers[self._probes_sent % len(self._peers)]
        # The first rounds go quickly, so that a young group has an estimate; then each peer once per period.
        quick = self._probes_sent < 3 * len(self._peers)
        self._probes_sent += 1
        period = self._policy.probe_every_ns // len(self._peers)
        self._next_probe = now + max(1, period // 20 if quick else period)
        self.down.append(self._frame(Kind.PROBE, peer, now, encode_probe(now)))

    def wake_at(self) -> int | None:
        if self._next_probe is None or not self._extra_probes:
            return self._next_probe
        return min(self._next_probe, *self._extra_probes.values())

    def _frame(self, kind: Kind, to: int, now: int, body: bytes) -> Frame:
        policy = self._policy
        return Frame(
            kind,
            policy.member,
            policy.incarnation,
            policy.epoch,
            0,
            0,
            sent_ns=now,
            body=body,
            to=to,
        )

    def change_incarnation(self, policy: Policy) -> None:
        """This member is in another life, and says so."""
        self._policy = policy

    # -- questions ---------------------------------------------------------------------------------------------

    def estimate(self, peer: int) -> SkewSample | None:
        """The best recent sample of a peer's clock against ours."""
        samples = self._samples.get(peer)
        return min(samples, key=lambda s: s.error_ns) if samples else None

    def gamma_ns(self) -> int | None:
        """Γ as seen from here: the largest difference between any two clocks, errors included.

        None until every peer has answered.
        """
        low = high = 0
        for peer in self._peers:
            sample = self.estimate(peer)
            if sample is None:
                return None
            low = min(low, sample.offset_ns - sample.error_ns)
            high = max(high, sample.offset_ns + sample.error_ns)
        return high - low
