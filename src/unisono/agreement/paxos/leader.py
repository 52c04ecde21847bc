"""One leader's time: what it has proposed under its ballot, and what the others have accepted of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from unisono.agreement.paxos.acceptor import Acceptor
from unisono.agreement.paxos.catch_up import packed
from unisono.agreement.paxos.messages import Accept

AGAIN_AT_ONCE = 8
"""How many frames are sent again to one member at once."""


class Reign:
    """A leader's book. Everything from `base` on is proposed under `ballot`; what is before was decided before."""

    def __init__(
        self, ballot: int, acceptor: Acceptor, peers: Sequence[int], now: int, wanted: Mapping[int, bytes]
    ) -> None:
        self.ballot = ballot
        self.base = acceptor.decided + 1
        self.wanted = dict(wanted)
        """Values for instances whose turn has not come."""
        self.answered_ns = dict.fromkeys(peers, now)
        self.knows = dict.fromkeys(peers, 0)
        """How far each member knows what was decided."""
        self.beat_at = now
        self._acceptor = acceptor
        self._sent = acceptor.decided
        self._told = -1
        """How far the others know of decisions; -1 if they are to hear of us again in any case."""
        self._acked = dict.fromkeys(peers, acceptor.decided)
        self._acked_before = dict(self._acked)

    def ack(self, member: int, upto: int, decided: int, now: int) -> None:
        """A member has accepted all up to `upto`, and knows what was decided up to `decided`."""
        self.answered_ns[member] = now
        self.knows[member] = max(self.knows[member], decided)
        self._acked[member] = max(self._acked[member], min(upto, self._acceptor.last))

    def unanswered(self) -> bool:
        """Whether somebody has not accepted all that was sent."""
        return any(acked < self._sent for acked in self._acked.values())

    def beat(self, now: int, every_ns: int) -> None:
        """Show oneself, whether or not there is anything to say."""
        self.beat_at, self._told = now + every_ns, -1

    def place(self, window: int, majority: int) -> None:
        """Count what is decided, and propose values for the next instances, as far as the window goes."""
        acceptor, placed = self._acceptor, False
        self._count(majority)
        while acceptor.last < acceptor.decided + window:
            value = self.wanted.pop(acceptor.last + 1, None)
            if value is None:
                break
            acceptor.accept(acceptor.last + 1, self.ballot, value)
            placed = True
        if placed:
            self._count(majority)

    def _count(self, majority: int) -> None:
        """Decided is what a majority has accepted under this ballot; this member has accepted all."""
        counted = sorted([self._acceptor.last, *self._acked.values()], reverse=True)[majority - 1]
        if counted > self._acceptor.decided:
            self._acceptor.decide(counted)

    def news(self, room: int) -> list[tuple[Accept, int]]:
        """What everybody is to hear: new values, or how far things are decided; and 1 if an answer is wanted."""
        frames = [(accept, 1) for accept in self._values(self._sent + 1, room, len(self._acceptor.log))]
        if not frames and self._told != self._acceptor.decided:
            frames = [(Accept(self.ballot, self.base, self._acceptor.decided, 0, ()), int(self._told < 0))]
        self._sent, self._told = self._acceptor.last, self._acceptor.decided
        return frames

    def again(self, member: int, room: int) -> list[Accept]:
        """What a member has had the time to accept and has not: what is decided it fetches itself."""
        acked, before = max(self._acked[member], self._acceptor.decided), self._acked_before[member]
        self._acked_before[member] = acked
        return self._values(acked + 1, room, AGAIN_AT_ONCE) if acked == before and acked < self._sent else []

    def _values(self, first: int, room: int, most: int) -> list[Accept]:
        frames: list[Accept] = []
        while first <= self._acceptor.last and len(frames) < most:
            values = packed(self._acceptor, first, self._acceptor.last, room)
            frames.append(Accept(self.ballot, self.base, self._acceptor.decided, first, values))
            first += len(values)
        return frames
