"""Measures the difference between members' clocks from in-band exchanges, and reports Γ as measured.

Each member probes its peers in turn; the echo brings back four clock readings, from which the difference follows
with an error of at most half the round trip. Of the last few samples of a peer the one with the shortest round
trip counts.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from unisono.model.policy import Policy
from unisono.wire.control import decode_echo, decode_probe, encode_echo, encode_probe
from unisono.wire.frame import Frame, Kind

SAMPLES_KEPT = 8


@dataclass(frozen=True, slots=True)
class SkewSample:
    """A peer's clock minus ours, and how far off that may be."""

    offset_ns: int
    error_ns: int


class Skew:
    """The layer: answers probes and sends its own."""

    wraps: frozenset[Kind] = frozenset()
    opens = frozenset({Kind.PROBE, Kind.ECHO})

    def __init__(self, policy: Policy) -> None:
        self.down: list[Frame] = []
        self.up: list[Frame] = []
        self._policy = policy
        self._peers = policy.neighbours
        self._turn = 0
        self._next_probe: int | None = 0 if policy.probe_every_ns and self._peers else None
        self._samples: dict[int, deque[SkewSample]] = {m: deque(maxlen=SAMPLES_KEPT) for m in self._peers}

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
                self._sample(frame.sender, now, *echo)
        else:
            self.up.append(frame)

    def _sample(self, peer: int, now: int, sent: int, peer_received: int, peer_sent: int) -> None:
        round_trip = (now - sent) - (peer_sent - peer_received)
        if round_trip < 0 or sent > now:
            return
        offset = ((peer_received - sent) + (peer_sent - now)) // 2
        self._samples[peer].append(SkewSample(offset, (round_trip + 1) // 2))

    def wake(self, now: int) -> None:
        if self._next_probe is None or now < self._next_probe:
            return
        peer = self._peers[self._turn % len(self._peers)]
        # The first rounds go quickly, so that a young group has an estimate; then each peer once per period.
        quick = self._turn < 3 * len(self._peers)
        self._turn += 1
        period = self._policy.probe_every_ns // len(self._peers)
        self._next_probe = now + max(1, period // 20 if quick else period)
        self.down.append(self._frame(Kind.PROBE, peer, now, encode_probe(now)))

    def wake_at(self) -> int | None:
        return self._next_probe

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
