"""One member's attempt to lead: the promises that it collects, and what they oblige it to propose."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

from unisono.agreement.paxos.acceptor import Acceptor
from unisono.agreement.paxos.catch_up import values_that_fit
from unisono.agreement.paxos.messages import CHOSEN, Prepare, Promise

STAGGER_RETRIES = 3
"""Candidates of following ranks wait so many retries longer each, so that the first has the time to succeed."""
CANDIDACY_RETRIES = 8
"""A candidacy is given up after so many retries."""


class Role(StrEnum):
    """What a member does."""

    FOLLOWER = "following"
    TRIAL = "trying"
    PREPARING = "preparing"
    LEADER = "leading"


class Candidacy:
    """Promises for one ballot, from `first` on; a promise may come in several frames, in any order."""

    def __init__(self, ballot: int, first: int, ends_at: int) -> None:
        self.ballot = ballot
        self.first = first
        self.ends_at = ends_at
        self.would_promise: set[int] = set()
        """Who would promise."""
        self._last_accepted: dict[int, int] = {}
        self._entries: dict[int, dict[int, tuple[int, bytes]]] = {}

    def add_promise_part(self, member: int, promise: Promise) -> None:
        """A part of a member's promise."""
        if promise.first != self.first:
            return
        # Whoever gave it accepts nothing below this ballot, but may learn what is decided, and say more the next time.
        self._last_accepted[member] = max(promise.last, self._last_accepted.get(member, 0))
        entries = self._entries.setdefault(member, {})
        entries.update(enumerate(promise.entries, promise.at))

    def complete_promises(self) -> int:
        """How many promises are whole."""
        return sum(len(self._entries[member]) >= last - self.first + 1 for member, last in self._last_accepted.items())

    def values_to_propose(self) -> list[tuple[int, bytes]]:
        """By instance from `first` on, the value accepted under the highest ballot, and that ballot.

        Whatever may have been decided is among them (one of any majority has accepted it), under a ballot that no
        other value has exceeded. Who knows that an instance is decided knows it of all before it, though the part of
        its promise that tells of those may be from an earlier answer, in which it did not yet: their ballot is CHOSEN.
        """
        whole = [
            self._entries[member]
            for member, last in self._last_accepted.items()
            if len(self._entries[member]) >= last - self.first + 1
        ]
        highest = [
            max((entries[k] for entries in whole if k in entries), key=lambda entry: entry[0])
            for k in range(self.first, self.first + max(map(len, whole), default=0))
        ]
        chosen = max((at for at, (ballot, _) in enumerate(highest, 1) if ballot == CHOSEN), default=0)
        return [(CHOSEN, value) for _, value in highest[:chosen]] + highest[chosen:]


def promise_parts(acceptor: Acceptor, prepare: Prepare, max_bytes: int) -> Iterator[Promise]:
    """What a member that has promised says to the candidate, in as many frames as it takes."""
    at, last = prepare.first, acceptor.last_accepted
    while at <= last or at == prepare.first:
        values = values_that_fit(acceptor, at, last, max_bytes)
        entries = tuple((acceptor.entry(k)[0], value) for k, value in enumerate(values, at))
        yield Promise(prepare.ballot, False, acceptor.decided, prepare.first, last, at, entries)
        at += max(1, len(values))
