"""What one member has promised and accepted: the part of consensus that must survive a crash.

Every change gives a record, to be durable before anything is said that rests on it. The log is without gaps: instance k
is accepted only when something was accepted for k−1, so a new leader never finds a hole that it would have to
fill with a value that nobody proposed.
"""

from __future__ import annotations

from collections.abc import Sequence

from unisono.agreement.paxos.messages import (
    CHOSEN,
    DecisionRecord,
    PromiseRecord,
    SnapshotRecord,
    StorageIdRecord,
    ValueRecord,
    decode_record,
    encode_record,
)
from unisono.errors import StorageError
from unisono.model.stored_records import Write

RECORD_DECIDED_EVERY = 64
"""How many decisions pass between two notes of how far they have come; a note saves work after a crash, no more."""


class Acceptor:
    """Promises, accepted values, and how much of them is decided."""

    def __init__(self, retained_values: int) -> None:
        """`retain` is how many decided values are kept behind the snapshot, for members that lag."""
        self.writes: list[Write] = []
        self.promised = 0
        self.decided = 0
        self.last_accepted = 0
        """The last instance for which anything is accepted."""
        self.discarded_upto = 0
        """Values up to here are not kept any more."""
        self.snapshot_at = 0
        self.snapshot = b""
        self.log: dict[int, tuple[int, bytes]] = {}
        self._storage_ids: dict[int, int] = {}
        self._retained_values = retained_values
        self._recorded_decided = 0

    def promise(self, ballot: int) -> None:
        """Follow no lower ballot from now on."""
        self.promised = ballot
        self._record(encode_record(PromiseRecord(ballot)))

    def storage_id_matches(self, member: int, storage_id: int) -> bool:
        """Whether another member still has the memory with which it was first heard: else it has lost its promises."""
        known = self._storage_ids.get(member)
        if known is None:
            self._storage_ids[member] = known = storage_id
            self._record(encode_record(StorageIdRecord(member, storage_id)))
        return known == storage_id

    def recorded_storage_id(self, member: int) -> int:
        """The memory with which another member was first heard."""
        return self._storage_ids[member]

    def accept(self, k: int, ballot: int, value: bytes) -> None:
        """Accept a value; the caller has made sure that no higher ballot is promised, and that k ≤ last+1."""
        self.log[k] = (ballot, value)
        self.last_accepted = max(self.last_accepted, k)
        self._record(encode_record(ValueRecord(k, ballot, value)))

    def learn(self, value: bytes) -> None:
        """Take the value of the first undecided instance from somebody who knows that it was decided."""
        k = self.decided + 1
        known = self.log.get(k)
        self.log[k] = (CHOSEN, value)
        self.last_accepted = max(self.last_accepted, k)
        if known is None or known[1] != value:
            self._record(encode_record(ValueRecord(k, CHOSEN, value)))
        self.decide(k)

    def decide(self, upto: int) -> None:
        """What was accepted for all instances up to `upto` is decided."""
        self.decided = upto
        if upto - self._recorded_decided >= RECORD_DECIDED_EVERY:
            self._recorded_decided = upto
            self.writes.append(Write((encode_record(DecisionRecord(upto)),), may_be_lost=True))

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
        self._discard_upto(k - self._retained_values)
        self._rewrite_storage()

    def install_snapshot(self, k: int, state: bytes) -> bool:
        """Take another member's snapshot; False if as much is known here."""
        if k <= self.decided:
            return False
        self.snapshot_at, self.snapshot = k, state
        self.decided = self._recorded_decided = k
        self.last_accepted = max(self.last_accepted, k)
        self._discard_upto(k)
        self._rewrite_storage()
        return True

    def recover(self, records: Sequence[bytes]) -> None:
        """Become what the records of an earlier life say; raises StorageError if they contradict themselves."""
        for number, record in enumerate(records):
            note = decode_record(record)
            if note is None:
                raise StorageError(f"record {number}: not a note of this group's agreement; storage of another kind?")
            if isinstance(note, PromiseRecord):
                self.promised = max(self.promised, note.ballot)
            elif isinstance(note, ValueRecord):
                if not self.discarded_upto < note.k <= self.last_accepted + 1:
                    raise StorageError(f"record {number}: instance {note.k} follows instance {self.last_accepted}")
                self.log[note.k] = (note.ballot, note.value)
                self.last_accepted = max(self.last_accepted, note.k)
                if note.ballot == CHOSEN:  # values are learned in order, so what is before it was decided
                    self.decided = max(self.decided, note.k)
                else:
                    self.promised = max(self.promised, note.ballot)
            elif isinstance(note, DecisionRecord):
                if note.k > self.last_accepted:
                    raise StorageError(
                        f"record {number}: instance {note.k} decided, but only {self.last_accepted} are there"
                    )
                self.decided = max(self.decided, note.k)
            elif isinstance(note, StorageIdRecord):
                self._storage_ids[note.member] = note.storage_id
            else:
                self.snapshot_at, self.snapshot = note.k, note.state
                self.decided = self.discarded_upto = self.last_accepted = note.k
        self._recorded_decided = self.decided

    def _discard_upto(self, k: int) -> None:
        for old in range(self.discarded_upto + 1, k + 1):
            self.log.pop(old, None)
        self.discarded_upto = max(self.discarded_upto, k)

    def _rewrite_storage(self) -> None:
        """The snapshot, the promise and what follows the snapshot are all that storage has to hold."""
        notes: list[bytes] = [
            encode_record(SnapshotRecord(self.snapshot_at, self.snapshot)),
            encode_record(PromiseRecord(self.promised)),
        ]
        notes += [
            encode_record(StorageIdRecord(member, memory)) for member, memory in sorted(self._storage_ids.items())
        ]
        notes += [
            encode_record(ValueRecord(k, *self.log[k])) for k in range(self.snapshot_at + 1, self.last_accepted + 1)
        ]
        if self.decided > self.snapshot_at:
            notes.append(encode_record(DecisionRecord(self.decided)))
        self.writes.append(Write(tuple(notes), replaces_all=True))

    def _record(self, record: bytes) -> None:
        self.writes.append(Write((record,)))
