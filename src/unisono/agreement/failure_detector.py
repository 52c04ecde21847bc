"""The failure detector: who is silent for longer than its heartbeats ever take, by a stated rate of mistakes.

Paper 002 §2.2 puts a realistic view of who has crashed under group membership. There is no constant time-out here.
What is stated is how often a live peer may be taken for dead (`mistakes_per_s`); what is measured, peer by peer, are
the times between its heartbeats. With a heartbeat every η there are 1/η occasions per second for a mistake, so each may
be one with probability p = mistakes_per_s · η. The suspicion level of a peer is −log10 of the probability that its next
heartbeat comes even later than now; at −log10 p the peer is suspected. Losses, jitter and load are in the measured
times, so the time-out follows them while the group runs.

Rare events cannot be read off a few hundred samples: beyond them the tail is taken to fall exponentially, by the most
pessimistic of several fits, each to the k longest times, with one heartbeat lost counted in each that was not seen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp, inf, log, log10

from unisono.errors import InvalidOption
from unisono.model.durations import NS_PER_MS, NS_PER_S
from unisono.model.histogram import Histogram, bucket_middle
from unisono.model.timing import Timing
from unisono.wire.frame import Frame, Kind
from unisono.wire.heartbeat import Heartbeat, decode_heartbeat, encode_heartbeat

GENERATION_SAMPLES = 500
"""So many times make a generation; the last two are what counts, so that old times are forgotten."""
FIT_EVERY_SAMPLES = 8
CHANGES_KEPT = 256
HEARTBEAT_INTERVAL_MIN_NS = 20 * NS_PER_MS
MISTAKES_PER_S = 1 / 3600
"""Unless told: one wrong suspicion of each peer per hour."""


def heartbeat_interval_ns(timing: Timing) -> int:
    """How often members send heartbeats: at most once per slot, per network delay and per 20 ms."""
    return max(timing.theta_ns, timing.delta_ns, HEARTBEAT_INTERVAL_MIN_NS)


def retry_interval_ns(timing: Timing) -> int:
    """How long to wait for an answer: a round trip, plus the difference that two clocks can make."""
    return 2 * timing.delta_ns + 2 * timing.gamma_ns + NS_PER_MS


@dataclass(frozen=True, slots=True)
class SuspicionChange:
    """A peer has become suspected, or is trusted again; `silent_ns` is how long nothing had come from it."""

    peer: int
    suspected: bool
    at_ns: int
    unresponsive_ns: int
    timeout_ns: int


class HeartbeatIntervals:
    """The times between one peer's heartbeats, and what they say of how long the next may take."""

    def __init__(self, every_ns: int, mistake_probability: float) -> None:
        """`mistake` is p, the probability with which a heartbeat may come later than the time-out."""
        self._every_ns = every_ns
        self._mistake_probability = mistake_probability
        self._generations = (Histogram(), Histogram())
        self._until_fit = 0
        self._fits: list[tuple[float, float, float]] = []
        """(u, P(later than u), mean excess over u), u descending to about the median."""
        self.timeout_ns = 0
        self._fit()

    def add(self, gap_ns: int) -> None:
        """A heartbeat came `gap_ns` after the one before it."""
        older, newer = self._generations
        if newer.total >= GENERATION_SAMPLES:
            older, newer = newer, Histogram()
            self._generations = older, newer
        newer.add(gap_ns)
        self._until_fit -= 1
        # A mistake is news; of ordinary times there may be some before the fit is worth its work.
        if self._until_fit <= 0 or gap_ns >= self.timeout_ns:
            self._fit()

    def probability_later_than(self, unresponsive_ns: int) -> float:
        """The probability that a heartbeat comes later than `silent_ns` after the one before it."""
        if unresponsive_ns <= self._fits[-1][0]:
            return 1.0
        return max(p * exp(-max(0.0, unresponsive_ns - u) / excess) for u, p, excess in self._fits)

    def _fit(self) -> None:
        self._until_fit = FIT_EVERY_SAMPLES
        every = float(self._every_ns)
        total = sum(generation.total for generation in self._generations)
        # Before the first heartbeat there is the interval that was announced, and nothing else.
        fits = [(every, 1 / (total + 1), every)] if total < 2 else []
        if total:
            fits += self._tails(total)
        self._fits = fits
        self.timeout_ns = int(max(u + excess * max(0.0, log(p / self._mistake_probability)) for u, p, excess in fits))

    def _tails(self, total: int) -> list[tuple[float, float, float]]:
        both = Histogram()
        for generation in self._generations:
            both.merge(generation)
        fits, wanted, count, excess_sum, before = [], 1, 0, 0.0, 0.0
        for bucket in sorted(both.counts, reverse=True):
            u = float(min(bucket_middle(bucket), both.largest))
            excess_sum += count * (before - u) if count else 0.0
            if count >= wanted:
                fits.append((u, count / total, (excess_sum + self._every_ns) / (count + 1)))
                wanted = 2 * count
            if 2 * count > total:
                break
            count, before = count + both.counts[bucket], u
        if not fits:  # all times are alike: the tail begins where they lie
            fits.append((before, 1.0 / (total + 1), self._every_ns / 2))
        return fits


class _PeerState:
    """What is known of one peer."""

    __slots__ = ("incarnation", "intervals", "last_received_ns", "serial", "suspected")

    def __init__(self, intervals: HeartbeatIntervals, now: int) -> None:
        self.intervals = intervals
        self.last_received_ns = now
        self.incarnation = self.serial = -1
        self.suspected = False


class FailureDetector:
    """Sends heartbeats, and suspects peers whose heartbeats do not come."""

    kinds = frozenset({Kind.HEARTBEAT})

    def __init__(
        self,
        me: int,
        peers: Iterable[int],
        *,
        every_ns: int,
        mistakes_per_s: float = MISTAKES_PER_S,
        incarnation: int = 1,
        epoch: int = 0,
    ) -> None:
        self._mistake_probability = mistakes_per_s * every_ns / NS_PER_S
        if every_ns < 1:
            raise InvalidOption("detector.every", f"a heartbeat needs an interval, not {every_ns} ns")
        if not 0 < self._mistake_probability < 1:
            raise InvalidOption(
                "detector.mistakes_per_s",
                f"between 0 and one per heartbeat ({NS_PER_S / every_ns:g}/s) is possible, not {mistakes_per_s:g}/s",
            )
        self.me = me
        self.down: list[Frame] = []
        self.changes: deque[SuspicionChange] = deque(maxlen=CHANGES_KEPT)
        self.threshold = -log10(self._mistake_probability)
        """The level from which on a peer is suspected."""
        self._every_ns = every_ns
        self._incarnation = incarnation
        self._epoch = epoch
        self._serial = 0
        self._next_heartbeat_ns: int | None = None
        self._now = 0
        self._peer_states: dict[int, _PeerState | None] = dict.fromkeys(sorted({*peers} - {me}))
        """None until this member itself has begun."""

    def set_peers(self, now: int, peers: Iterable[int]) -> None:
        """From now on these peers and no others."""
        self._peer_states = {
            peer: self._peer_states.get(peer) or _PeerState(self._new_intervals(self._every_ns), now)
            for peer in sorted({*peers} - {self.me})
        }

    def from_below(self, now: int, frame: Frame) -> None:
        """A heartbeat has come; one that was overtaken or repeated says nothing."""
        heartbeat = decode_heartbeat(bytes(frame.body))
        watched = self._peer_state(frame.sender, now)
        if heartbeat is None or watched is None or frame.incarnation < watched.incarnation:
            return
        if frame.incarnation > watched.incarnation:
            watched.intervals, watched.incarnation = self._new_intervals(heartbeat.every_ns), frame.incarnation
        elif heartbeat.serial <= watched.serial:
            return
        else:
            # A mistake teaches patience; a pause of minutes teaches no more than a mistake.
            watched.intervals.add(min(now - watched.last_received_ns, watched.intervals.timeout_ns))
        silent, watched.last_received_ns, watched.serial = now - watched.last_received_ns, now, heartbeat.serial
        if watched.suspected:
            watched.suspected = False
            self.changes.append(SuspicionChange(frame.sender, False, now, silent, watched.intervals.timeout_ns))

    def wake(self, now: int) -> None:
        """Send a heartbeat if it is time, and look who is silent."""
        slept, self._now = now - self._now, now
        if self._next_heartbeat_ns is None:
            self._next_heartbeat_ns = now
            self.set_peers(now, self._peer_states)
        elif slept > max(self._every_ns, min(map(self.timeout_ns, self._peer_states), default=0)):
            # It was this member that stood still: what its peers sent meanwhile is still to be read.
            for watched in self._peer_states.values():
                if watched is not None and not watched.suspected:
                    watched.last_received_ns = now
        if now >= self._next_heartbeat_ns:
            self._next_heartbeat_ns = now + self._every_ns
            self._send_heartbeat(now)
        for peer, watched in self._peer_states.items():
            if watched is None or watched.suspected:
                continue
            silent, timeout = now - watched.last_received_ns, watched.intervals.timeout_ns
            if silent > timeout:
                watched.suspected = True
                self.changes.append(SuspicionChange(peer, True, now, silent, timeout))

    def wake_at(self) -> int:
        """The next heartbeat, or the first suspicion."""
        if self._next_heartbeat_ns is None:
            return 0
        first = self._next_heartbeat_ns
        for watched in self._peer_states.values():
            if watched is not None and not watched.suspected:
                at = watched.last_received_ns + watched.intervals.timeout_ns + 1
                first = min(first, at)
        return first

    def _send_heartbeat(self, now: int) -> None:
        self._serial += 1
        body = encode_heartbeat(Heartbeat(self._serial, self._every_ns))
        self.down.append(Frame(Kind.HEARTBEAT, self.me, self._incarnation, self._epoch, 0, 0, sent_ns=now, body=body))

    def _new_intervals(self, every_ns: int) -> HeartbeatIntervals:
        return HeartbeatIntervals(every_ns, self._mistake_probability)

    def _peer_state(self, peer: int, now: int) -> _PeerState | None:
        if peer in self._peer_states and self._peer_states[peer] is None:
            self._peer_states[peer] = _PeerState(self._new_intervals(self._every_ns), now)
        return self._peer_states.get(peer)

    # -- questions -------------------------------------------------------------------------------------------

    def suspects_any(self) -> bool:
        """Whether any of the peers is taken for dead."""
        return any(watched is not None and watched.suspected for watched in self._peer_states.values())

    def suspected(self, peer: int) -> bool:
        """Whether a peer is taken for dead; a stranger is."""
        watched = self._peer_states.get(peer, None) if peer in self._peer_states else None
        return peer != self.me and (peer not in self._peer_states or (watched is not None and watched.suspected))

    def has_received_from(self, peer: int) -> bool:
        """Whether anything has come from a peer, ever."""
        watched = self._peer_states.get(peer)
        return watched is not None and watched.incarnation >= 0

    def trusted(self, peers: Sequence[int]) -> list[int]:
        """Those of these members that are not suspected."""
        return [peer for peer in peers if not self.suspected(peer)]

    def timeout_ns(self, peer: int) -> int:
        """After how long a silence a peer is suspected, as things are now."""
        watched = self._peer_states.get(peer)
        return self._new_intervals(self._every_ns).timeout_ns if watched is None else watched.intervals.timeout_ns

    def response_time_ns(self) -> int:
        """How fast this group answers, roughly: grows when its processes wait for a processor, or its network does."""
        return max((self.timeout_ns(peer) for peer in self._peer_states if not self.suspected(peer)), default=0) // 8

    def suspicion_level(self, peer: int, now: int) -> float:
        """The suspicion level: −log10 of the probability that a peer's next heartbeat comes later than now."""
        watched = self._peer_states.get(peer)
        if watched is None:
            return 0.0
        later = watched.intervals.probability_later_than(now - watched.last_received_ns)
        return -log10(later) if later else inf
