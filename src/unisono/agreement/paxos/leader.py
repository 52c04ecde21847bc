"""One leader's time: what it has proposed under its ballot, and what the others have accepted of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from unisono.agreement.paxos.acceptor import Acceptor
from unisono.agreement.paxos.catch_up import values_that_fit
from unisono.agreement.paxos.messages import Accept

RETRANSMIT_FRAMES_MAX = 8
"""How many frames are sent again to one member at once."""


class LeaderState:
    """A leader's book. Everything from `base` on is proposed under `ballot`; what is before was decided before."""

    def __init__(
        self, ballot: int, acceptor: Acceptor, peers: Sequence[int], now: int, pending_values: Mapping[int, bytes]
    ) -> None:
        self.ballot = ballot
        self.base = acceptor.decided + 1
        self.pending_values = dict(pending_values)
        """Values for instances whose turn has not come."""
        self.last_answer_ns = dict.fromkeys(peers, now)
        self.known_decided = dict.fromkeys(peers, 0)
        """How far each member knows what was decided."""
        self.heartbeat_at = now
        self._acceptor = acceptor
        self._sent_upto = acceptor.decided
        self._announced_decided = -1
        """How far the others know of decisions; -1 if they are to hear of us again in any case."""
        self._accepted_upto = dict.fromkeys(peers, acceptor.decided)
        self._accepted_upto_before = dict(self._accepted_upto)

    def on_accepted(self, member: int, upto: int, decided: int, now: int) -> None:
        """A member has accepted all up to `upto`, and knows what was decided up to `decided`."""
        self.last_answer_ns[member] = now
        self.known_decided[member] = max(self.known_decided[member], decided)
        self._accepted_upto[member] = max(self._accepted_upto[member], min(upto, self._acceptor.last_accepted))

    def has_unanswered(self) -> bool:
        """Whether somebody has not accepted all that was sent."""
        return any(acked < self._sent_upto for acked in self._accepted_upto.values())

    def heartbeat(self, now: int, interval_ns: int) -> None:
        """Show oneself, whether or not there is anything to say."""
        self.heartbeat_at, self._announced_decided = now + interval_ns, -1

    def propose_pending(self, window: int, majority: int) -> None:
        """Count what is decided, and propose values for the next instances, as far as the window goes."""
        acceptor, placed = self._acceptor, False
        self._count_decided(majority)
        while acceptor.last_accepted < acceptor.decided + window:
            value = self.pending_values.pop(acceptor.last_accepted + 1, None)
            if value is None:
                break
            acceptor.accept(acceptor.last_accepted + 1, self.ballot, value)
            placed = True
        if placed:
            self._count_decided(majority)

    def _count_decided(self, majority: int) -> None:
        """Decided is what a majority has accepted under this ballot; this member has accepted all."""
        counted = sorted([self._acceptor.last_accepted, *self._accepted_upto.values()], reverse=True)[majority - 1]
        if counted > self._acceptor.decided:
            self._acceptor.decide(counted)

    def accepts_to_broadcast(self, max_bytes: int) -> list[tuple[Accept, int]]:
        """What everybody is to hear: new values, or how far things are decided; and 1 if an answer is wanted."""
        frames = [(accept, 1) for accept in self._accepts_from(self._sent_upto + 1, max_bytes, len(self._acceptor.log))]
        if not frames and self._announced_decided != self._acceptor.decided:
            frames = [(Accept(self.ballot, self.base, self._acceptor.decided, 0, ()), int(self._announced_decided < 0))]
        self._sent_upto, self._announced_decided = self._acceptor.last_accepted, self._acceptor.decided
        return frames

    def accepts_to_retransmit(self, member: int, max_bytes: int) -> list[Accept]:
        """What a member has had the time to accept and has not: what is decided it fetches itself."""
        acked, before = max(self._accepted_upto[member], self._acceptor.decided), self._accepted_upto_before[member]
        self._accepted_upto_before[member] = acked
        return (
            self._accepts_from(acked + 1, max_bytes, RETRANSMIT_FRAMES_MAX)
            if acked == before and acked < self._sent_upto
            else []
        )

    def _accepts_from(self, first: int, max_bytes: int, max_frames: int) -> list[Accept]:
        frames: list[Accept] = []
        while first <= self._acceptor.last_accepted and len(frames) < max_frames:
            values = values_that_fit(self._acceptor, first, self._acceptor.last_accepted, max_bytes)
            frames.append(Accept(self.ballot, self.base, self._acceptor.decided, first, values))
            first += len(values)
        return frames
