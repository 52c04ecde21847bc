"""What one member has promised and accepted: the part of consensus that must survive a crash.

Every change gives a record, to be durable before anything is said that rests on it. The log is without gaps: instance k
is accepted only when something was accepted for k−1, so a new leader never finds a hole that it would have to
fill with a value that nobody proposed.
"""

from __future__ import annotations

from collections.abc import Sequence

from unisono.agreement.paxos.messages import (
    CHOSEN,
    NotedDecision,
    NotedMemory,
    NotedPromise,
    NotedSnapshot,
    NotedValue,
    decode_note,
    encode_note,
)
from unisono.errors import StorageError
from unisono.model.stored_records import Write

MARK_EVERY = 64
"""How many decisions pass between two notes of how far they have come; a note saves work after a crash, no more."""


class Acceptor:
    """Promises, accepted values, and how much of them is decided."""

    def __init__(self, retain: int) -> None:
        """`retain` is how many decided values are kept behind the snapshot, for members that lag."""
        self.writes: list[Write] = []
        self.promised = 0
        self.decided = 0
        self.last = 0
        """The last instance for which anything is accepted."""
        self.floor = 0
        """Values up to here are not kept any more."""
        self.snapshot_at = 0
        self.snapshot = b""
        self.log: dict[int, tuple[int, bytes]] = {}
        self._memories: dict[int, int] = {}
        self._retain = retain
        self._marked = 0

    def promise(self, ballot: int) -> None:
        """Follow no lower ballot from now on."""
        self.promised = ballot
        self._note(encode_note(NotedPromise(ballot)))

    def remembers(self, member: int, memory: int) -> bool:
        """Whether another member still has the memory with which it was first heard: else it has lost its promises."""
        known = self._memories.get(member)
        if known is None:
            self._memories[member] = known = memory
            self._note(encode_note(NotedMemory(member, memory)))
        return known == memory

    def memory_of(self, member: int) -> int:
        """The memory with which another member was first heard."""
        return self._memories[member]

    def accept(self, k: int, ballot: int, value: bytes) -> None:
        """Accept a value; the caller has made sure that no higher ballot is promised, and that k ≤ last+1."""
        self.log[k] = (ballot, value)
        self.last = max(self.last, k)
        self._note(encode_note(NotedValue(k, ballot, value)))

    def learn(self, value: bytes) -> None:
        """Take the value of the first undecided instance from somebody who knows that it was decided."""
        k = self.decided + 1
        known = self.log.get(k)
        self.log[k] = (CHOSEN, value)
        self.last = max(self.last, k)
        if known is None or known[1] != value:
            self._note(encode_note(NotedValue(k, CHOSEN, value)))
        self.decide(k)

    def decide(self, upto: int) -> None:
        """What was accepted for all instances up to `upto` is decided."""
        self.decided = upto
        if upto - self._marked >= MARK_EVERY:
            self._marked = upto
            self.writes.append(Write((encode_note(NotedDecision(upto)),), lazy=True))

    def entry(self, k: int) -> tuple[int, bytes]:
        """(ballot, value) of an instance; the ballot is CHOSEN if it is decided."""
        ballot, value = self.log[k]
        return (CHOSEN if k <= self.decided else ballot), value

    def value(self, k: int) -> bytes:
        """The value of an instance."""
        return self.log[k][1]

    def compact(self, k: int, state: bytes) -> None:
        """`state` stands for the decided instances up to k."""
        if not self.snapshot_at < k <= self.decided:
            return
        self.snapshot_at, self.snapshot = k, state
        self._forget(k - self._retain)
        self._rewrite()

    def install(self, k: int, state: bytes) -> bool:
        """Take another member's snapshot; False if as much is known here."""
        if k <= self.decided:
            return False
        self.snapshot_at, self.snapshot = k, state
        self.decided = self._marked = k
        self.last = max(self.last, k)
        self._forget(k)
        self._rewrite()
        return True

    def recover(self, records: Sequence[bytes]) -> None:
        """Become what the records of an earlier life say; raises StorageError if they contradict themselves."""
        for number, record in enumerate(records):
            note = decode_note(record)
            if note is None:
                raise StorageError(f"record {number}: not a note of this group's agreement; storage of another kind?")
            if isinstance(note, NotedPromise):
                self.promised = max(self.promised, note.ballot)
            elif isinstance(note, NotedValue):
                if not self.floor < note.k <= self.last + 1:
                    raise StorageError(f"record {number}: instance {note.k} follows instance {self.last}")
                self.log[note.k] = (note.ballot, note.value)
                self.last = max(self.last, note.k)
                if note.ballot == CHOSEN:  # values are learned in order, so what is before it was decided
                    self.decided = max(self.decided, note.k)
                else:
                    self.promised = max(self.promised, note.ballot)
            elif isinstance(note, NotedDecision):
                if note.k > self.last:
                    raise StorageError(f"record {number}: instance {note.k} decided, but only {self.last} are there")
                self.decided = max(self.decided, note.k)
            elif isinstance(note, NotedMemory):
                self._memories[note.member] = note.memory
            else:
                self.snapshot_at, self.snapshot = note.k, note.state
                self.decided = self.floor = self.last = note.k
        self._marked = self.decided

    def _forget(self, k: int) -> None:
        for old in range(self.floor + 1, k + 1):
            self.log.pop(old, None)
        self.floor = max(self.floor, k)

    def _rewrite(self) -> None:
        """The snapshot, the promise and what follows the snapshot are all that storage has to hold."""
        notes: list[bytes] = [
            encode_note(NotedSnapshot(self.snapshot_at, self.snapshot)),
            encode_note(NotedPromise(self.promised)),
        ]
        notes += [encode_note(NotedMemory(member, memory)) for member, memory in sorted(self._memories.items())]
        notes += [encode_note(NotedValue(k, *self.log[k])) for k in range(self.snapshot_at + 1, self.last + 1)]
        if self.decided > self.snapshot_at:
            notes.append(encode_note(NotedDecision(self.decided)))
        self.writes.append(Write(tuple(notes), replace=True))

    def _note(self, record: bytes) -> None:
        self.writes.append(Write((record,)))
