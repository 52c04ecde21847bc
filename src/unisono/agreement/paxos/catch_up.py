"""How a member that lags comes by what was decided without it: value by value, or by a snapshot and what follows."""

from __future__ import annotations

from collections.abc import Callable

from unisono.agreement.paxos.acceptor import Acceptor
from unisono.agreement.paxos.messages import SNAPSHOT_BYTES, Fetch, Learn, Message, Snapshot

AT_ONCE = 16
"""How many frames answer one request."""

Say = Callable[[int, Message, int, int], None]
"""(now, message, to, how many more frames follow)."""


class CatchUp:
    """Asks for what is decided elsewhere, and answers others who ask."""

    def __init__(self, acceptor: Acceptor, say: Say, room: int, retry_ns: int) -> None:
        """`room` is for values and what goes with each of them, in one frame."""
        self._acceptor = acceptor
        self._say = say
        self._room = room
        self._retry_ns = retry_ns
        self._known = 0
        """How far somebody is known to know."""
        self._source = 0
        self._asked_at: int | None = None
        self._partial_k = 0
        self._partial = bytearray()

    def hear(self, now: int, member: int, decided: int) -> None:
        """A member knows what was decided up to `decided`."""
        if decided > self._acceptor.decided and decided >= self._known:
            self._known, self._source = decided, member
        if self.behind() and (self._asked_at is None or now >= self._asked_at + self._retry_ns):
            self._ask(now)

    def behind(self) -> bool:
        """Whether anything is missing here."""
        return self._known > self._acceptor.decided

    def due(self) -> int | None:
        """When to ask again."""
        return self._asked_at + self._retry_ns if self.behind() and self._asked_at is not None else None

    def wake(self, now: int) -> None:
        """Ask again if there was no answer."""
        due = self.due()
        if due is not None and now >= due:
            self._ask(now)

    def _ask(self, now: int) -> None:
        self._asked_at = now
        fetch = Fetch(self._acceptor.decided + 1, self._partial_k, len(self._partial))
        self._say(now, fetch, self._source, 0)

    def learn(self, now: int, sender: int, learn: Learn, more: int) -> None:
        """Decided values have come; what does not follow what is known here is of no use yet."""
        acceptor = self._acceptor
        for k, value in enumerate(learn.values, learn.first):
            if k == acceptor.decided + 1:
                acceptor.learn(value)
        self._go_on(now, sender, learn.decided, more)

    def take(self, now: int, sender: int, snapshot: Snapshot, more: int) -> tuple[int, bytes] | None:
        """A part of a snapshot has come; (k, state) when it is whole."""
        if snapshot.k <= self._acceptor.decided:
            return None
        if snapshot.k != self._partial_k:
            self._partial_k, self._partial = snapshot.k, bytearray()
        if snapshot.offset == len(self._partial):
            self._partial += snapshot.part
        if len(self._partial) < snapshot.total:
            if more == 0:
                self._ask(now)
            return None
        state = bytes(self._partial)
        self._partial_k, self._partial = 0, bytearray()
        self._acceptor.install(snapshot.k, state)
        self._go_on(now, sender, snapshot.k, 0)
        return snapshot.k, state

    def _go_on(self, now: int, sender: int, decided: int, more: int) -> None:
        if decided >= self._known:
            self._known, self._source = decided, sender
        if more == 0 and self.behind():
            self._ask(now)

    def answer(self, now: int, to: int, fetch: Fetch) -> None:
        """Somebody asks."""
        acceptor = self._acceptor
        if fetch.first > acceptor.decided:
            return
        if fetch.first <= acceptor.floor:
            self._send_snapshot(now, to, fetch)
            return
        learns: list[Learn] = []
        first = fetch.first
        while first <= acceptor.decided and len(learns) < AT_ONCE:
            values = packed(acceptor, first, acceptor.decided, self._room)
            learns.append(Learn(acceptor.decided, first, values))
            first += len(values)
        for number, learn in enumerate(learns, 1):
            self._say(now, learn, to, len(learns) - number)

    def _send_snapshot(self, now: int, to: int, fetch: Fetch) -> None:
        k, state = self._acceptor.snapshot_at, self._acceptor.snapshot
        step = self._room - SNAPSHOT_BYTES
        start = fetch.offset if fetch.snapshot == k and fetch.offset <= len(state) else 0
        offsets = range(start, max(len(state), start + 1), step)[:AT_ONCE]
        for number, offset in enumerate(offsets, 1):
            part = Snapshot(k, len(state), offset, state[offset : offset + step])
            self._say(now, part, to, len(offsets) - number)


def packed(acceptor: Acceptor, first: int, last: int, room: int) -> tuple[bytes, ...]:
    """As many values from `first` on as fit, at least one."""
    values: list[bytes] = []
    for k in range(first, last + 1):
        value = acceptor.value(k)
        room -= len(value) + 12
        if room < 0 and values:
            break
        values.append(value)
    return tuple(values)
