"""The frames of Paxos (PREPARE, PROMISE, ACCEPT, ACCEPTED, …) and the records that members write to stable storage.

A ballot is a number that only one member may use: the round in its high bits, the member in the low 16. Instances are
numbered from 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from unisono.wire.codec import (
    SEQUENCE_LIMIT,
    AnySpec,
    Bytes,
    Numbers,
    Part,
    Spec,
    Tagged,
    Values,
    boolean,
    count,
    register,
    u16,
    u32,
    u63,
    u64,
)
from unisono.wire.frame import Kind

CHOSEN = SEQUENCE_LIMIT - 1
"""Used as the ballot of a value that is known to be decided. It is above every real ballot."""


@dataclass(frozen=True, slots=True)
class Prepare:
    """A candidate asks for a promise to accept no lower ballot, and for all values accepted from instance `first` on.

    A `trial` only asks whether the receiver would promise.
    """

    ballot: int
    first: int
    trial: bool


@dataclass(frozen=True, slots=True)
class Promise:
    """A part of a member's promise to accept no ballot below `ballot`.

    The promise reports all values that the member has accepted, for instances `first` to `last`. This part holds those
    from instance `at` on, as many as fit in one frame.
    """

    ballot: int
    trial: bool
    decided: int
    first: int
    last: int
    at: int
    entries: tuple[tuple[int, bytes], ...]
    """(ballot, value) of the instances `at`, `at` + 1, …"""


@dataclass(frozen=True, slots=True)
class Accept:
    """A leader's values from instance `first` on. Without values it is a heartbeat.

    The leader uses this ballot from instance `base` on. All instances up to `decided` are decided.
    """

    ballot: int
    base: int
    decided: int
    first: int
    values: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Accepted:
    """The sender has accepted all values from the leader's base to `upto` under `ballot`, its highest promised ballot.

    It knows that all instances up to `decided` are decided.
    """

    ballot: int
    upto: int
    decided: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """A request for the decided values from instance `first` on.

    If the sender has part of the snapshot that ends at instance `snapshot`, it wants the rest, from `offset` on.
    """

    first: int
    snapshot: int
    offset: int


@dataclass(frozen=True, slots=True)
class Learn:
    """Decided values from instance `first` on. The sender knows that all instances up to `decided` are decided."""

    decided: int
    first: int
    values: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Proposal:
    """A value that a member asks the leader to propose for instance k.

    With k = 0 the value goes to the program that runs the leader's automaton, which decides when to propose it.
    """

    k: int
    value: bytes


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A part of the snapshot: the state that replaces the values of all instances up to k."""

    k: int
    total: int
    offset: int
    part: bytes


@dataclass(frozen=True, slots=True)
class StorageMismatch:
    """The reply to a member that returned with another storage: the id of the storage that holds its promises."""

    recorded_storage_id: int


ConsensusMessage: TypeAlias = (
    Prepare | Promise | Accept | Accepted | Fetch | Learn | Proposal | Snapshot | StorageMismatch
)


class _Entries(Part):
    """Wire form of the entries of a promise: all their ballots, then their values."""

    _ballots = Numbers("ballots", "Q", least=1, most=CHOSEN)
    _values = Values("values")

    def encode(self, value: Sequence[tuple[int, bytes]]) -> bytes:
        return self._ballots.encode([each for each, _ in value]) + self._values.encode([each for _, each in value])

    def decode(self, body: bytes, at: int, items: int | None) -> tuple[tuple[tuple[int, bytes], ...], int]:
        ballots, at = self._ballots.decode(body, at, items)
        values, at = self._values.decode(body, at, items)
        return tuple(zip(ballots, values, strict=True)), at


_BALLOT = u63("ballot", least=1, most=CHOSEN - 1)

_PREPARE = Spec(Prepare, _BALLOT, u63("first", least=1), boolean("trial"))
_PROMISE = Spec(
    Promise,
    _BALLOT,
    boolean("trial"),
    u63("decided"),
    u63("first"),
    u63("last"),
    count("entries"),
    u63("at"),
    _Entries("entries"),
    check=lambda promise: not promise.entries or promise.first <= promise.at <= promise.last - len(promise.entries) + 1,
)
_ACCEPT = Spec(
    Accept,
    _BALLOT,
    u63("base", least=1),
    u63("decided"),
    u63("first"),
    count("values"),
    Values("values"),
    check=lambda accept: accept.first > 0 or not accept.values,
)
_LEARN = Spec(Learn, u63("decided"), u63("first", least=1), count("values", least=1), Values("values"))
_SNAPSHOT = Spec(
    Snapshot,
    u63("k", least=1),
    u32("total"),
    u32("offset"),
    Bytes("part"),
    check=lambda snapshot: snapshot.offset + len(snapshot.part) <= snapshot.total,
)
SPECS: Final[Mapping[Kind, AnySpec]] = {
    Kind.PREPARE: _PREPARE,
    Kind.PROMISE: _PROMISE,
    Kind.ACCEPT: _ACCEPT,
    Kind.ACCEPTED: Spec(Accepted, u63("ballot"), u63("upto"), u63("decided")),
    Kind.FETCH: Spec(Fetch, u63("first", least=1), u63("snapshot"), u32("offset")),
    Kind.LEARN: _LEARN,
    Kind.PROPOSAL: Spec(Proposal, u63("k"), Bytes("value")),
    Kind.SNAPSHOT: _SNAPSHOT,
    Kind.STORAGE_MISMATCH: Spec(StorageMismatch, u32("recorded_storage_id")),
}
register(SPECS)
ACCEPT_BYTES = max(_ACCEPT.size, _PROMISE.size, _LEARN.size) + 8 + 4
"""The most bytes that any consensus frame puts before its first value: the fields, a ballot and a length."""
SNAPSHOT_BYTES = _SNAPSHOT.size


# -- records -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PromiseRecord:
    """Stored record: the member promised to accept no ballot below this one."""

    ballot: int


@dataclass(frozen=True, slots=True)
class ValueRecord:
    """Stored record: the member accepted a value for instance k, or learned it as decided (ballot CHOSEN)."""

    k: int
    ballot: int
    value: bytes


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """Stored record: the recorded values of all instances up to k are decided."""

    k: int


@dataclass(frozen=True, slots=True)
class SnapshotRecord:
    """Stored record of the snapshot: `state` replaces the values of all instances up to k."""

    k: int
    state: bytes


@dataclass(frozen=True, slots=True)
class StorageIdRecord:
    """Stored record: the id of the storage that holds another member's promises."""

    member: int
    storage_id: int


ConsensusRecord: TypeAlias = PromiseRecord | ValueRecord | DecisionRecord | SnapshotRecord | StorageIdRecord


RECORDS: Tagged[ConsensusRecord] = Tagged(
    (1, Spec(PromiseRecord, u64("ballot"))),
    (2, Spec(ValueRecord, u64("k"), u64("ballot"), Bytes("value"))),
    (3, Spec(DecisionRecord, u64("k"))),
    (4, Spec(SnapshotRecord, u64("k"), Bytes("state"))),
    (5, Spec(StorageIdRecord, u16("member"), u32("storage_id"))),
)
