"""An adaptive failure detector: it suspects a peer whose next heartbeat is later than its heartbeats usually are.

Paper 002 §2.2 bases group membership on a realistic view of which members have crashed. There is no fixed time-out.
The caller states how often the detector may suspect a live peer by mistake (`mistakes_per_s`). The detector measures
the times between the heartbeats of each peer, and derives the time-out from both.

With a heartbeat every η there are 1/η occasions per second for a mistake. So the detector may make one at each
heartbeat with probability p = mistakes_per_s · η. A peer is suspected when the probability that its next heartbeat
comes even later than now falls to p. Losses, jitter and load show in the measured times, so the time-out follows them
while the group runs.

A few hundred samples say little about rare events. For times longer than the samples, the detector assumes that the
probability falls exponentially. It fits this tail to the 1, 2, 4, … longest times, and uses the most pessimistic fit.
Each fit also counts one imagined time in which a heartbeat is lost.

Sending: `wake` sends a heartbeat when it is due. Receiving: `from_below` records heartbeats. `wake` also checks for
unresponsive peers; changes are in `changes`, and `suspected` answers for one peer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import log

from unisono.errors import InvalidOption
from unisono.model.delays import Histogram, bucket_middle
from unisono.model.timing import Timing
from unisono.model.units import NS_PER_MS, NS_PER_S
from unisono.wire.codec import control_frame, message_in
from unisono.wire.control import Heartbeat
from unisono.wire.frame import Frame, Kind

GENERATION_SAMPLES = 500
"""Number of samples in a generation. Only the last two generations count, so that old samples are forgotten."""
FIT_EVERY_SAMPLES = 8
"""Fit the tail of the heartbeat times again after this many samples."""
CHANGES_KEPT = 256
"""Keep this many of the latest suspicion changes."""
HEARTBEAT_INTERVAL_MIN_NS = 20 * NS_PER_MS
"""Members send heartbeats at least this far apart."""
MISTAKES_PER_S = 1 / 3600
"""The default: one wrong suspicion of each peer per hour."""


def heartbeat_interval_ns(timing: Timing) -> int:
    """The time between two heartbeats: the slot length, Δ or 20 ms, whichever is longest."""
    return max(timing.theta_ns, timing.delta_ns, HEARTBEAT_INTERVAL_MIN_NS)


def retry_interval_ns(timing: Timing) -> int:
    """How long to wait for an answer: a round trip, plus the difference that two clocks can make."""
    return 2 * timing.delta_ns + 2 * timing.gamma_ns + NS_PER_MS


@dataclass(frozen=True, slots=True)
class SuspicionChange:
    """A peer is suspected, or trusted again. `unresponsive_ns` is how long no heartbeat had arrived from it."""

    peer: int
    suspected: bool
    at_ns: int
    unresponsive_ns: int
    timeout_ns: int


class HeartbeatIntervals:
    """The times between one peer's heartbeats, and the time-out that follows from them."""

    def __init__(self, every_ns: int, mistake_probability: float) -> None:
        """`mistake_probability`: a heartbeat may come later than the time-out with this probability."""
        self._every_ns = every_ns
        self._mistake_probability = mistake_probability
        self._generations = (Histogram(), Histogram())
        self._until_fit = 0
        self.timeout_ns = 0
        self._fit()

    def add(self, gap_ns: int) -> None:
        """Record that a heartbeat has arrived `gap_ns` after the previous one."""
        older, newer = self._generations
        if newer.total >= GENERATION_SAMPLES:
            older, newer = newer, Histogram()
            self._generations = older, newer
        newer.add(gap_ns)
        self._until_fit -= 1
        # A gap beyond the time-out is used at once. Ordinary gaps wait, because a fit takes some work.
        if self._until_fit <= 0 or gap_ns >= self.timeout_ns:
            self._fit()

    def _fit(self) -> None:
        self._until_fit = FIT_EVERY_SAMPLES
        every = float(self._every_ns)
        total = sum(generation.total for generation in self._generations)
        # Before the first gaps are known, there is only the announced interval.
        fits = [(every, 1 / (total + 1), every)] if total < 2 else []
        if total:
            fits += self._tails(total)
        self.timeout_ns = int(max(u + excess * max(0.0, log(p / self._mistake_probability)) for u, p, excess in fits))

    def _tails(self, total: int) -> list[tuple[float, float, float]]:
        """Fit an exponential tail to the 1, 2, 4, … longest times between heartbeats, up to about half of all.

        Each fit is (u, P(time > u), mean excess over u), where u is the threshold above which these times lie.
        """
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
        if not fits:  # all gaps are equal: the tail begins there
            fits.append((before, 1.0 / (total + 1), self._every_ns / 2))
        return fits


class _PeerState:
    """What the detector knows about one peer: its heartbeat times, its last heartbeat, and whether it is suspected."""

    __slots__ = ("incarnation", "intervals", "last_received_ns", "serial", "suspected")

    def __init__(self, intervals: HeartbeatIntervals, now: int) -> None:
        self.intervals = intervals
        self.last_received_ns = now
        self.incarnation = self.serial = -1
        self.suspected = False


class FailureDetector:
    """Sends heartbeats, and suspects peers whose heartbeats stop."""

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
            raise InvalidOption("detector.every", f"the heartbeat interval must be at least 1 ns, not {every_ns} ns")
        if not 0 < self._mistake_probability < 1:
            raise InvalidOption(
                "detector.mistakes_per_s",
                f"expected more than 0 and less than one mistake per heartbeat ({NS_PER_S / every_ns:g}/s), "
                f"not {mistakes_per_s:g}/s",
            )
        self.me = me
        self.down: list[Frame] = []
        self.changes: deque[SuspicionChange] = deque(maxlen=CHANGES_KEPT)
        self._every_ns = every_ns
        self._incarnation = incarnation
        self._epoch = epoch
        self._serial = 0
        self._next_heartbeat_ns: int | None = None
        self._now = 0
        self._peer_states: dict[int, _PeerState | None] = dict.fromkeys(sorted({*peers} - {me}))
        """The state of each peer; None until this detector has started or a heartbeat of the peer has arrived."""

    def set_peers(self, now: int, peers: Iterable[int]) -> None:
        """Watch these peers from now on, and no others."""
        self._peer_states = {
            peer: self._peer_states.get(peer) or _PeerState(self._new_intervals(self._every_ns), now)
            for peer in sorted({*peers} - {self.me})
        }

    def from_below(self, now: int, frame: Frame) -> None:
        """Record a heartbeat that has arrived. Ignore it if it is a duplicate, or if a newer one arrived before it."""
        heartbeat = message_in(frame, Heartbeat)
        state = self._peer_state(frame.sender, now)
        if state is None or frame.incarnation < state.incarnation:
            return
        if frame.incarnation > state.incarnation:
            state.intervals, state.incarnation = self._new_intervals(heartbeat.every_ns), frame.incarnation
        elif heartbeat.serial <= state.serial:
            return
        else:
            # A wrong suspicion makes the time-out longer. A pause of minutes must not count for more than that.
            state.intervals.add(min(now - state.last_received_ns, state.intervals.timeout_ns))
        silent, state.last_received_ns, state.serial = now - state.last_received_ns, now, heartbeat.serial
        if state.suspected:
            state.suspected = False
            self.changes.append(SuspicionChange(frame.sender, False, now, silent, state.intervals.timeout_ns))

    def wake(self, now: int) -> None:
        """Send a heartbeat if it is due, and suspect peers whose heartbeats are overdue."""
        slept, self._now = now - self._now, now
        if self._next_heartbeat_ns is None:
            self._next_heartbeat_ns = now
            self.set_peers(now, self._peer_states)
        elif slept > max(self._every_ns, min(map(self.timeout_ns, self._peer_states), default=0)):
            # This member itself was paused: heartbeats that arrived meanwhile are still to be read.
            for state in self._peer_states.values():
                if state is not None and not state.suspected:
                    state.last_received_ns = now
        if now >= self._next_heartbeat_ns:
            self._next_heartbeat_ns = now + self._every_ns
            self._send_heartbeat(now)
        for peer, state in self._peer_states.items():
            if state is None or state.suspected:
                continue
            silent, timeout = now - state.last_received_ns, state.intervals.timeout_ns
            if silent > timeout:
                state.suspected = True
                self.changes.append(SuspicionChange(peer, True, now, silent, timeout))

    def wake_at(self) -> int:
        """The time to call `wake`: the earlier of the next heartbeat and the first possible suspicion."""
        if self._next_heartbeat_ns is None:
            return 0
        first = self._next_heartbeat_ns
        for state in self._peer_states.values():
            if state is not None and not state.suspected:
                at = state.last_received_ns + state.intervals.timeout_ns + 1
                first = min(first, at)
        return first

    def _send_heartbeat(self, now: int) -> None:
        self._serial += 1
        heartbeat = Heartbeat(self._serial, self._every_ns)
        self.down.append(control_frame(heartbeat, self.me, self._incarnation, self._epoch, sent_ns=now))

    def _new_intervals(self, every_ns: int) -> HeartbeatIntervals:
        return HeartbeatIntervals(every_ns, self._mistake_probability)

    def _peer_state(self, peer: int, now: int) -> _PeerState | None:
        if peer in self._peer_states and self._peer_states[peer] is None:
            self._peer_states[peer] = _PeerState(self._new_intervals(self._every_ns), now)
        return self._peer_states.get(peer)

    # -- questions -------------------------------------------------------------------------------------------

    def suspects_any(self) -> bool:
        """Whether any peer is suspected."""
        return any(state is not None and state.suspected for state in self._peer_states.values())

    def suspected(self, peer: int) -> bool:
        """Whether a peer is suspected. A member that this detector does not watch counts as suspected."""
        state = self._peer_states.get(peer, None) if peer in self._peer_states else None
        return peer != self.me and (peer not in self._peer_states or (state is not None and state.suspected))

    def has_received_from(self, peer: int) -> bool:
        """Whether a heartbeat of a peer has ever arrived."""
        state = self._peer_states.get(peer)
        return state is not None and state.incarnation >= 0

    def trusted(self, peers: Sequence[int]) -> list[int]:
        """The peers among `peers` that are not suspected."""
        return [peer for peer in peers if not self.suspected(peer)]

    def timeout_ns(self, peer: int) -> int:
        """How long after its last heartbeat a peer is suspected, at present."""
        state = self._peer_states.get(peer)
        return self._new_intervals(self._every_ns).timeout_ns if state is None else state.intervals.timeout_ns

    def response_time_ns(self) -> int:
        """A rough estimate of how fast peers answer. It grows when processes or the network are overloaded."""
        return max((self.timeout_ns(peer) for peer in self._peer_states if not self.suspected(peer)), default=0) // 8
