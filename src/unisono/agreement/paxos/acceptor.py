"""The log of one member: what it has promised and accepted, which instances are decided, and how it catches up.

`Acceptor` is the part of Paxos that must survive a crash. Every change creates a record, which must be durable before
any frame that rests on it is sent. The log has no gaps: a member accepts a value for instance k only if it has accepted
one for k−1. So a new leader never finds a gap that it would have to fill with a value that no member proposed.

`CatchUp` brings a member that lags up to date. It fetches decided values in FETCH and LEARN frames. If the other member
has discarded those values, it answers with its snapshot, the state that replaces them, and the values that follow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from unisono.agreement.paxos.messages import (
    CHOSEN,
    RECORDS,
    SNAPSHOT_BYTES,
    ConsensusMessage,
    ConsensusRecord,
    DecisionRecord,
    Fetch,
    Learn,
    PromiseRecord,
    Snapshot,
    SnapshotRecord,
    StorageIdRecord,
    ValueRecord,
)
from unisono.agreement.round_trip import RoundTrip
from unisono.errors import InvariantViolated, StorageError
from unisono.model.effects import Write
from unisono.wire.codec import Unreadable

RETAINED_BYTES = 8 << 20
"""Keep fewer of the values that the snapshot replaces if they have more bytes than this."""
RECORD_DECIDED_EVERY = 64
"""Record the last decision once per this many decisions. The record only saves work after a crash."""
ANSWER_BYTES = 128 << 10
"""Answer one FETCH with no further frame once its frames have this many bytes, so that they fit a receive buffer."""
_ENTRY_BYTES = 12
"""Bytes that a frame needs for each value besides the value itself: its ballot and its length."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision: consensus has decided this value for instance k (paper 003, Decide(k, value))."""

    k: int
    value: bytes


@dataclass(frozen=True, slots=True)
class RestoredState:
    """An installed snapshot: `state` replaces all decisions up to instance k, which are not reported one by one."""

    k: int
    state: bytes


@dataclass(frozen=True, slots=True)
class ForwardedValue:
    """A value that a member forwarded to the leader. The leader's owner decides when to propose it."""

    sender: int
    incarnation: int
    value: bytes


ConsensusOutput: TypeAlias = Decision | RestoredState


class Acceptor:
    """The Paxos acceptor of one member: its promises, its accepted values, and how far these are decided."""

    def __init__(self, member: int, retained_values: int) -> None:
        """`retained_values` is how many values that the snapshot replaces are kept for members that lag."""
        self.writes: list[Write] = []
        self.promised = 0
        self.decided = 0
        self.last_accepted = 0
        """The last instance for which a value is accepted."""
        self.discarded_upto = 0
        """The values of all instances up to this number are discarded."""
        self.snapshot_at = 0
        self.snapshot = b""
        self.log: dict[int, tuple[int, bytes]] = {}
        """The accepted (ballot, value) of each instance."""
        self._member = member
        self._storage_ids: dict[int, int] = {}
        self._retained_values = retained_values
        self._recorded_decided = 0

    # -- changes, each with its record -----------------------------------------------------------------------

    def promise(self, ballot: int) -> None:
        """Promise to accept no ballot lower than `ballot` from now on."""
        self.check_promise(ballot)
        self.promised = ballot
        self._record(PromiseRecord(ballot))

    def accept(self, k: int, ballot: int, value: bytes) -> None:
        """Accept a value for instance k under a ballot. Raises InvariantViolated if `check_accept` forbids it."""
        self.check_accept(k, ballot)
        self.log[k] = (ballot, value)
        self.last_accepted = max(self.last_accepted, k)
        self._record(ValueRecord(k, ballot, value))

    def learn(self, value: bytes) -> None:
        """Store the value of the first undecided instance, which another member knows to be decided."""
        k = self.decided + 1
        known = self.log.get(k)
        self.log[k] = (CHOSEN, value)
        self.last_accepted = max(self.last_accepted, k)
        if known is None or known[1] != value:
            self._record(ValueRecord(k, CHOSEN, value))
        self.decide(k)

    def decide(self, upto: int) -> None:
        """Record that the accepted values of all instances up to `upto` are decided."""
        self.check_decide(upto)
        self.decided = upto
        if upto - self._recorded_decided >= RECORD_DECIDED_EVERY:
            self._recorded_decided = upto
            self.writes.append(Write((RECORDS.encode(DecisionRecord(upto)),), may_be_lost=True))

    def storage_id_matches(self, member: int, storage_id: int) -> bool:
        """Whether a member still uses the storage that its first frame named. If not, it has lost its promises."""
        known = self._storage_ids.get(member)
        if known is None:
            self._storage_ids[member] = known = storage_id
            self._record(StorageIdRecord(member, storage_id))
        return known == storage_id

    def recorded_storage_id(self, member: int) -> int:
        """The storage id that was in the first frame of a member."""
        return self._storage_ids[member]

    # -- invariants, checked before each change --------------------------------------------------------------

    def check_promise(self, ballot: int) -> None:
        """Raise InvariantViolated if the ballot is lower than the promised one: a promise is never taken back."""
        if ballot < self.promised:
            text = "the acceptor takes a promise back"
            raise InvariantViolated("promise", self._member, text, f"ballot {self.promised} or more", str(ballot))

    def check_accept(self, k: int, ballot: int) -> None:
        """Raise InvariantViolated if the value would break a promise, leave a gap, or replace a decided value."""
        if ballot < self.promised:
            text = f"the acceptor accepts a value for instance {k} against its promise"
            raise InvariantViolated("accept", self._member, text, f"ballot {self.promised} or more", str(ballot))
        if not self.decided < k <= self.last_accepted + 1:
            text = "the acceptor accepts a value for an instance that is decided or leaves a gap before it"
            expected = f"instance {self.decided + 1} to {self.last_accepted + 1}"
            raise InvariantViolated("accept", self._member, text, expected, str(k))

    def check_decide(self, upto: int) -> None:
        """Raise InvariantViolated if `upto` would take decisions back or decide values that are not accepted."""
        if not self.decided < upto <= self.last_accepted:
            text = "the acceptor takes decisions back, or decides an instance for which it has accepted no value"
            expected = f"instance {self.decided + 1} to {self.last_accepted}"
            raise InvariantViolated("decide", self._member, text, expected, str(upto))

    # -- reading ---------------------------------------------------------------------------------------------

    def entry(self, k: int) -> tuple[int, bytes]:
        """The (ballot, value) that is accepted for instance k. The ballot is CHOSEN if the instance is decided."""
        ballot, value = self.log[k]
        return (CHOSEN if k <= self.decided else ballot), value

    def value(self, k: int) -> bytes:
        """The value that is accepted for instance k."""
        return self.log[k][1]

    def values_that_fit(self, first: int, last: int, max_bytes: int) -> tuple[bytes, ...]:
        """The values of instances `first` to `last`, as many as fit in one frame, but at least one."""
        values: list[bytes] = []
        for k in range(first, last + 1):
            value = self.value(k)
            max_bytes -= len(value) + _ENTRY_BYTES
            if max_bytes < 0 and values:
                break
            values.append(value)
        return tuple(values)

    def first_within(self, first: int, last: int, max_bytes: int) -> int:
        """The first instance from `first` on such that the values from it to `last` have at most `max_bytes`."""
        for k in range(last, first - 1, -1):
            max_bytes -= len(self.log[k][1])
            if max_bytes < 0:
                return k + 1
        return first

    # -- snapshots and recovery ------------------------------------------------------------------------------

    def compact(self, k: int, state: bytes) -> None:
        """Make `state` the snapshot, which replaces the decided instances up to k."""
        if not self.snapshot_at < k <= self.decided:
            return
        self.snapshot_at, self.snapshot = k, state
        first = max(self.discarded_upto, k - self._retained_values) + 1
        self._discard_upto(self.first_within(first, k, RETAINED_BYTES) - 1)
        self._rewrite_storage()

    def install_snapshot(self, k: int, state: bytes) -> None:
        """Install another member's snapshot, unless as much is decided here already."""
        if k <= self.decided:
            return
        self.snapshot_at, self.snapshot = k, state
        self.decided = self._recorded_decided = k
        self.last_accepted = max(self.last_accepted, k)
        self._discard_upto(k)
        self._rewrite_storage()

    def recover(self, records: Sequence[bytes]) -> None:
        """Restore the state of an earlier incarnation. Raises StorageError if the records contradict each other."""
        for number, data in enumerate(records):
            try:
                record = RECORDS.decode(data)
            except Unreadable as error:
                raise StorageError(
                    f"record {number} is not a consensus record ({error}); check that the file is the storage of this "
                    "group"
                ) from error
            self._recover_record(number, record)
        self._recorded_decided = self.decided

    def _recover_record(self, number: int, record: ConsensusRecord) -> None:
        if isinstance(record, PromiseRecord):
            self.promised = max(self.promised, record.ballot)
        elif isinstance(record, ValueRecord):
            if not self.discarded_upto < record.k <= self.last_accepted + 1:
                raise StorageError(
                    f"record {number} holds instance {record.k}, but the records before it end at instance "
                    f"{self.last_accepted}: the storage is damaged"
                )
            self.log[record.k] = (record.ballot, record.value)
            self.last_accepted = max(self.last_accepted, record.k)
            if record.ballot == CHOSEN:  # values are learned in order, so all instances before it are decided
                self.decided = max(self.decided, record.k)
            else:
                self.promised = max(self.promised, record.ballot)
        elif isinstance(record, DecisionRecord):
            if record.k > self.last_accepted:
                raise StorageError(
                    f"record {number} says that instance {record.k} is decided, but the records before it end at "
                    f"instance {self.last_accepted}: the storage is damaged"
                )
            self.decided = max(self.decided, record.k)
        elif isinstance(record, StorageIdRecord):
            self._storage_ids[record.member] = record.storage_id
        else:
            self.snapshot_at, self.snapshot = record.k, record.state
            self.decided = self.discarded_upto = self.last_accepted = record.k

    def _discard_upto(self, k: int) -> None:
        for old in [instance for instance in self.log if instance <= k]:  # k may come from the network, so no range
            del self.log[old]
        self.discarded_upto = max(self.discarded_upto, k)

    def _rewrite_storage(self) -> None:
        """Replace all records by the snapshot, the promise, the storage ids and the values after the snapshot."""
        records: list[ConsensusRecord] = [
            SnapshotRecord(self.snapshot_at, self.snapshot),
            PromiseRecord(self.promised),
            *(StorageIdRecord(member, storage_id) for member, storage_id in sorted(self._storage_ids.items())),
            *(ValueRecord(k, *self.log[k]) for k in range(self.snapshot_at + 1, self.last_accepted + 1)),
        ]
        if self.decided > self.snapshot_at:
            records.append(DecisionRecord(self.decided))
        self.writes.append(Write(tuple(map(RECORDS.encode, records)), replaces_all=True))

    def _record(self, record: ConsensusRecord) -> None:
        self.writes.append(Write((RECORDS.encode(record),)))


SendPart = Callable[[int, ConsensusMessage, int, int], None]
"""Sends a frame of an answer. Called with (now, message, receiver, number of further frames of the same answer)."""


CheckState = Callable[[bytes], object]
"""Called with the state of a snapshot from another member. Raises Unreadable if the owner of the log cannot read it."""


class CatchUp:
    """Fetches decisions that other members know, and answers members that fetch.

    It fetches as soon as it learns of decisions that are missing here, and again as soon as an answer is complete. If
    neither a decision nor a part of a snapshot arrives for about a round trip, it fetches again. It also fetches if its
    leader does not announce a decision in that time, because the announcement may be lost.
    """

    def __init__(
        self,
        acceptor: Acceptor,
        send: SendPart,
        max_bytes: int,
        round_trips: Mapping[int, RoundTrip],
        *,
        longest_ns: int,
        check_state: CheckState,
    ) -> None:
        """`max_bytes` is the space in one frame for values and their lengths; `longest_ns` the longest round trip."""
        self._acceptor = acceptor
        self._check_state = check_state
        self.unreadable_snapshots = 0
        """How many snapshots of other members this member could not read, and dropped."""
        self._send = send
        self._max_bytes = max_bytes
        self._round_trips = round_trips
        self._longest_ns = longest_ns
        self._known_decided = 0
        """The last instance that another member (`_source`) is known to have decided."""
        self._source = 0
        self._awaited, self._awaited_from = 0, 0
        """The last instance whose decision the leader, `_awaited_from`, is expected to announce."""
        self._fetching = False
        """Whether an answer is outstanding."""
        self._wait_from = 0
        """When the last fetch was sent or the last progress was made."""
        self._partial_snapshot_k = 0
        self._partial_snapshot = bytearray()

    # -- fetching --------------------------------------------------------------------------------------------

    def on_decided_upto(self, now: int, member: int, decided: int) -> None:
        """Record a member's announcement that instances up to `decided` are decided, and fetch missing decisions."""
        if decided > self._acceptor.decided and decided >= self._known_decided:
            self._known_decided, self._source = decided, member
        if self.is_behind() and not self._fetching:
            self._fetch(now)

    def await_decisions(self, now: int, leader: int, upto: int) -> None:
        """Expect that the leader announces the decisions up to `upto`, about a round trip from now."""
        if upto > self._acceptor.decided:
            if self._awaited <= self._acceptor.decided and not self._fetching:
                self._wait_from = now
            self._awaited, self._awaited_from = upto, leader
            self._round_trips[leader].sent(now, upto)

    def stop_awaiting(self) -> None:
        """Expect no announcements any more: this member follows no leader."""
        self._awaited = 0

    def on_progress(self, now: int) -> None:
        """Record that further instances are decided here."""
        for member in (self._source, self._awaited_from):
            if member in self._round_trips:  # 0 before the first fetch or the first leader
                self._round_trips[member].answered(now, self._acceptor.decided)
        self._wait_from = now
        if not self.is_behind():
            self._fetching = False

    def is_behind(self) -> bool:
        """Whether another member knows more decisions."""
        return self._known_decided > self._acceptor.decided

    def retry_at(self) -> int | None:
        """When to fetch if nothing arrives; None if nothing is expected."""
        peer = self._overdue_from()
        return None if peer is None else self._wait_from + self._round_trips[peer].wait_ns(self._longest_ns)

    def wake(self, now: int) -> None:
        """Fetch if an answer or a decision is overdue."""
        due, peer = self.retry_at(), self._overdue_from()
        if due is not None and peer is not None and now >= due:
            self._round_trips[peer].sent_again(now, self._acceptor.decided + 1)
            self._send_fetch(now, peer)

    def _overdue_from(self) -> int | None:
        """The member from which an answer or a decision is expected; None if nothing is expected."""
        if self.is_behind() and self._fetching:
            return self._source
        return self._awaited_from if self._awaited > self._acceptor.decided else None

    def _fetch(self, now: int) -> None:
        self._fetching = True
        round_trip = self._round_trips[self._source]
        round_trip.forget_item()
        round_trip.sent(now, self._acceptor.decided + 1)
        self._send_fetch(now, self._source)

    def _send_fetch(self, now: int, to: int) -> None:
        self._wait_from = now
        fetch = Fetch(self._acceptor.decided + 1, self._partial_snapshot_k, len(self._partial_snapshot))
        self._send(now, fetch, to, 0)

    def receive_values(self, now: int, sender: int, learn: Learn, more_frames: int) -> None:
        """Learn decided values. Values that do not follow the last decision here are skipped."""
        acceptor = self._acceptor
        before = acceptor.decided
        for k, value in enumerate(learn.values, learn.first):
            if k == acceptor.decided + 1:
                acceptor.learn(value)
        if acceptor.decided > before:
            self.on_progress(now)
        self._fetch_if_behind(now, sender, learn.decided, more_frames)

    def receive_snapshot(self, now: int, sender: int, snapshot: Snapshot, more_frames: int) -> RestoredState | None:
        """Add a part of a snapshot. If it is complete now and the owner can read it, install and return it.

        Otherwise return None.
        """
        if snapshot.k <= self._acceptor.decided:
            return None
        self._source = self._source or sender
        if snapshot.k != self._partial_snapshot_k:
            self._partial_snapshot_k, self._partial_snapshot = snapshot.k, bytearray()
        if snapshot.part and snapshot.offset == len(self._partial_snapshot):
            self._partial_snapshot += snapshot.part
            self._wait_from = now
        if len(self._partial_snapshot) < snapshot.total:
            if more_frames == 0:
                self._fetch(now)
            return None
        state = bytes(self._partial_snapshot)
        self._partial_snapshot_k, self._partial_snapshot = 0, bytearray()
        try:
            self._check_state(state)
        except Unreadable:
            self.unreadable_snapshots += 1
            return None
        self._acceptor.install_snapshot(snapshot.k, state)
        self.on_progress(now)
        self._fetch_if_behind(now, sender, snapshot.k, 0)
        return RestoredState(snapshot.k, state)

    def _fetch_if_behind(self, now: int, sender: int, decided: int, more_frames: int) -> None:
        if decided >= self._known_decided:
            self._known_decided, self._source = decided, sender
        if more_frames == 0 and self.is_behind():
            self._fetch(now)

    # -- answering -------------------------------------------------------------------------------------------

    def answer_fetch(self, now: int, to: int, fetch: Fetch) -> None:
        """Send the decided values that a member requests, or the snapshot if the values are discarded."""
        acceptor = self._acceptor
        if fetch.first > acceptor.decided:
            return
        if fetch.first <= acceptor.discarded_upto:
            self._send_snapshot(now, to, fetch)
            return
        learns: list[Learn] = []
        first, bytes_left = fetch.first, ANSWER_BYTES
        while first <= acceptor.decided and bytes_left > 0:
            values = acceptor.values_that_fit(first, acceptor.decided, self._max_bytes)
            learns.append(Learn(acceptor.decided, first, values))
            first += len(values)
            bytes_left -= sum(map(len, values)) + _ENTRY_BYTES * len(values)
        for number, learn in enumerate(learns, 1):
            self._send(now, learn, to, len(learns) - number)

    def _send_snapshot(self, now: int, to: int, fetch: Fetch) -> None:
        """Send the next parts of the snapshot. A member that has a part of this snapshot gets the rest of it."""
        k, state = self._acceptor.snapshot_at, self._acceptor.snapshot
        step = self._max_bytes - SNAPSHOT_BYTES
        start = fetch.offset if fetch.snapshot == k and fetch.offset <= len(state) else 0
        offsets = range(start, max(len(state), start + 1), step)[: -(-ANSWER_BYTES // step)]
        for number, offset in enumerate(offsets, 1):
            part = Snapshot(k, len(state), offset, state[offset : offset + step])
            self._send(now, part, to, len(offsets) - number)
