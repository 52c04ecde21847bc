"""How a member that lags comes by what was decided without it: value by value, or by a snapshot and what follows."""

from __future__ import annotations

from collections.abc import Callable

from unisono.agreement.paxos.acceptor import Acceptor
from unisono.agreement.paxos.messages import SNAPSHOT_BYTES, ConsensusMessage, Fetch, Learn, Snapshot

FRAMES_PER_ANSWER = 16
"""How many frames answer one request."""

SendPart = Callable[[int, ConsensusMessage, int, int], None]
"""(now, message, to, how many more frames follow)."""


class CatchUp:
    """Asks for what is decided elsewhere, and answers others who ask."""

    def __init__(self, acceptor: Acceptor, send: SendPart, max_bytes: int, retry_ns: int) -> None:
        """`room` is for values and what goes with each of them, in one frame."""
        self._acceptor = acceptor
        self._send = send
        self._max_bytes = max_bytes
        self._retry_ns = retry_ns
        self._known_decided = 0
        """How far somebody is known to know."""
        self._source = 0
        self._asked_at: int | None = None
        self._partial_snapshot_k = 0
        self._partial_snapshot = bytearray()

    def on_decided_upto(self, now: int, member: int, decided: int) -> None:
        """A member knows what was decided up to `decided`."""
        if decided > self._acceptor.decided and decided >= self._known_decided:
            self._known_decided, self._source = decided, member
        if self.is_behind() and (self._asked_at is None or now >= self._asked_at + self._retry_ns):
            self._fetch(now)

    def is_behind(self) -> bool:
        """Whether anything is missing here."""
        return self._known_decided > self._acceptor.decided

    def retry_at(self) -> int | None:
        """When to ask again."""
        return self._asked_at + self._retry_ns if self.is_behind() and self._asked_at is not None else None

    def wake(self, now: int) -> None:
        """Ask again if there was no answer."""
        due = self.retry_at()
        if due is not None and now >= due:
            self._fetch(now)

    def _fetch(self, now: int) -> None:
        self._asked_at = now
        fetch = Fetch(self._acceptor.decided + 1, self._partial_snapshot_k, len(self._partial_snapshot))
        self._send(now, fetch, self._source, 0)

    def receive_values(self, now: int, sender: int, learn: Learn, more: int) -> None:
        """Decided values have come; what does not follow what is known here is of no use yet."""
        acceptor = self._acceptor
        for k, value in enumerate(learn.values, learn.first):
            if k == acceptor.decided + 1:
                acceptor.learn(value)
        self._fetch_if_behind(now, sender, learn.decided, more)

    def receive_snapshot(self, now: int, sender: int, snapshot: Snapshot, more: int) -> tuple[int, bytes] | None:
        """A part of a snapshot has come; (k, state) when it is whole."""
        if snapshot.k <= self._acceptor.decided:
            return None
        if snapshot.k != self._partial_snapshot_k:
            self._partial_snapshot_k, self._partial_snapshot = snapshot.k, bytearray()
        if snapshot.offset == len(self._partial_snapshot):
            self._partial_snapshot += snapshot.part
        if len(self._partial_snapshot) < snapshot.total:
            if more == 0:
                self._fetch(now)
            return None
        state = bytes(self._partial_snapshot)
        self._partial_snapshot_k, self._partial_snapshot = 0, bytearray()
        self._acceptor.install_snapshot(snapshot.k, state)
        self._fetch_if_behind(now, sender, snapshot.k, 0)
        return snapshot.k, state

    def _fetch_if_behind(self, now: int, sender: int, decided: int, more: int) -> None:
        if decided >= self._known_decided:
            self._known_decided, self._source = decided, sender
        if more == 0 and self.is_behind():
            self._fetch(now)

    def answer_fetch(self, now: int, to: int, fetch: Fetch) -> None:
        """Somebody asks."""
        acceptor = self._acceptor
        if fetch.first > acceptor.decided:
            return
        if fetch.first <= acceptor.discarded_upto:
            self._send_snapshot(now, to, fetch)
            return
        learns: list[Learn] = []
        first = fetch.first
        while first <= acceptor.decided and len(learns) < FRAMES_PER_ANSWER:
            values = values_that_fit(acceptor, first, acceptor.decided, self._max_bytes)
            learns.append(Learn(acceptor.decided, first, values))
            first += len(values)
        for number, learn in enumerate(learns, 1):
            self._send(now, learn, to, len(learns) - number)

    def _send_snapshot(self, now: int, to: int, fetch: Fetch) -> None:
        k, state = self._acceptor.snapshot_at, self._acceptor.snapshot
        step = self._max_bytes - SNAPSHOT_BYTES
        start = fetch.offset if fetch.snapshot == k and fetch.offset <= len(state) else 0
        offsets = range(start, max(len(state), start + 1), step)[:FRAMES_PER_ANSWER]
        for number, offset in enumerate(offsets, 1):
            part = Snapshot(k, len(state), offset, state[offset : offset + step])
            self._send(now, part, to, len(offsets) - number)


def values_that_fit(acceptor: Acceptor, first: int, last: int, max_bytes: int) -> tuple[bytes, ...]:
    """As many values from `first` on as fit, at least one."""
    values: list[bytes] = []
    for k in range(first, last + 1):
        value = acceptor.value(k)
        max_bytes -= len(value) + 12
        if max_bytes < 0 and values:
            break
        values.append(value)
    return tuple(values)
