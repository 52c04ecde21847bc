"""The frames of Paxos (PREPARE, PROMISE, ACCEPT, ACCEPTED, …) and the records that members write to stable storage.

A ballot is a number that only one member may use: the round in its high bits, the member in the low 16. Instances are
numbered from 1.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import accumulate, pairwise
from typing import TypeAlias, assert_never

from unisono.model.units import MEMBER_MAX
from unisono.wire.door import register_control
from unisono.wire.frame import Kind

_TOP = 2**63
CHOSEN = _TOP - 1
"""Used as the ballot of a value that is known to be decided. It is above every real ballot."""
_PREPARE = struct.Struct("!QQB")
_PROMISE = struct.Struct("!QBQQQHQ")
_ACCEPT = struct.Struct("!QQQQH")
_ACCEPTED = struct.Struct("!QQQ")
_FETCH = struct.Struct("!QQI")
_LEARN = struct.Struct("!QQH")
_PROPOSAL = struct.Struct("!Q")
_SNAPSHOT = struct.Struct("!QII")
_STORAGE_MISMATCH = struct.Struct("!I")
_LENGTH = 4
_BALLOT = 8
ACCEPT_BYTES = max(_ACCEPT.size, _PROMISE.size, _LEARN.size) + _BALLOT + _LENGTH
"""The most bytes that any frame puts before its first value."""
SNAPSHOT_BYTES = _SNAPSHOT.size


def ballot_after(ballot: int, member: int) -> int:
    """The lowest ballot of a member that is above another ballot."""
    return ((ballot >> 16) + 1) << 16 | member


def owner_of(ballot: int) -> int:
    """The member that may use a ballot; 0 for ballot 0, which belongs to no member."""
    return ballot & MEMBER_MAX


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
    """A part of the promise for `ballot`: of the values accepted for `first` to `last`, those from `at` on that fit."""

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
    """A value for instance k; with k = 0, a value for the owner of the leader's automaton."""

    k: int
    value: bytes


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A part of the snapshot that replaces all instances up to k."""

    k: int
    total: int
    offset: int
    part: bytes


@dataclass(frozen=True, slots=True)
class StorageMismatch:
    """The reply to a member that returned with another storage: the storage id that holds its promises."""

    recorded_storage_id: int


def _pack_values(values: Sequence[bytes]) -> bytes:
    return b"".join((struct.pack(f"!{len(values)}I", *map(len, values)), *values))


def _unpack_values(body: bytes, at: int, count: int) -> tuple[bytes, ...] | None:
    """`count` values: a table of lengths at `at`, then the values up to the end of the body. None if malformed."""
    start = at + _LENGTH * count
    if start > len(body):
        return None
    ends = list(accumulate(struct.unpack_from(f"!{count}I", body, at), initial=start))
    return tuple(body[a:b] for a, b in pairwise(ends)) if ends[-1] == len(body) else None


def encode_prepare(prepare: Prepare) -> bytes:
    """The body of a PREPARE."""
    return _PREPARE.pack(prepare.ballot, prepare.first, prepare.trial)


def decode_prepare(body: bytes) -> Prepare | None:
    """The PREPARE, or None if it is malformed."""
    if len(body) != _PREPARE.size:
        return None
    ballot, first, trial = _PREPARE.unpack(body)
    if not 0 < ballot < CHOSEN or not 0 < first < _TOP or trial > 1:
        return None
    return Prepare(ballot, first, bool(trial))


def encode_promise(promise: Promise) -> bytes:
    """The body of a PROMISE."""
    ballots = [ballot for ballot, _ in promise.entries]
    values = [value for _, value in promise.entries]
    head = _PROMISE.pack(
        promise.ballot, promise.trial, promise.decided, promise.first, promise.last, len(values), promise.at
    )
    return head + struct.pack(f"!{len(ballots)}Q", *ballots) + _pack_values(values)


def decode_promise(body: bytes) -> Promise | None:
    """The PROMISE, or None if it is malformed or inconsistent."""
    if len(body) < _PROMISE.size:
        return None
    ballot, trial, decided, first, last, count, at = _PROMISE.unpack_from(body)
    start = _PROMISE.size + _BALLOT * count
    if start > len(body) or max(decided, first, last, at) >= _TOP or trial > 1 or not 0 < ballot < CHOSEN:
        return None
    values = _unpack_values(body, start, count)
    ballots = struct.unpack_from(f"!{count}Q", body, _PROMISE.size)
    if values is None or any(not 0 < b <= CHOSEN for b in ballots) or (count and not first <= at <= last - count + 1):
        return None
    return Promise(ballot, bool(trial), decided, first, last, at, tuple(zip(ballots, values, strict=True)))


def encode_accept(accept: Accept) -> bytes:
    """The body of an ACCEPT."""
    head = _ACCEPT.pack(accept.ballot, accept.base, accept.decided, accept.first, len(accept.values))
    return head + _pack_values(accept.values)


def decode_accept(body: bytes) -> Accept | None:
    """The ACCEPT, or None if it is malformed."""
    if len(body) < _ACCEPT.size:
        return None
    ballot, base, decided, first, count = _ACCEPT.unpack_from(body)
    values = _unpack_values(body, _ACCEPT.size, count)
    if values is None or not 0 < ballot < CHOSEN or max(base, decided, first) >= _TOP or not base:
        return None
    return Accept(ballot, base, decided, first, values) if first or not count else None


def encode_accepted(accepted: Accepted) -> bytes:
    """The body of an ACCEPTED."""
    return _ACCEPTED.pack(accepted.ballot, accepted.upto, accepted.decided)


def decode_accepted(body: bytes) -> Accepted | None:
    """The ACCEPTED, or None if it is malformed."""
    if len(body) != _ACCEPTED.size:
        return None
    ballot, upto, decided = _ACCEPTED.unpack(body)
    return Accepted(ballot, upto, decided) if max(ballot, upto, decided) < _TOP else None


def encode_fetch(fetch: Fetch) -> bytes:
    """The body of a FETCH."""
    return _FETCH.pack(fetch.first, fetch.snapshot, fetch.offset)


def decode_fetch(body: bytes) -> Fetch | None:
    """The FETCH, or None if it is malformed."""
    if len(body) != _FETCH.size:
        return None
    first, snapshot, offset = _FETCH.unpack(body)
    return Fetch(first, snapshot, offset) if 0 < first < _TOP and snapshot < _TOP else None


def encode_learn(learn: Learn) -> bytes:
    """The body of a LEARN."""
    return _LEARN.pack(learn.decided, learn.first, len(learn.values)) + _pack_values(learn.values)


def decode_learn(body: bytes) -> Learn | None:
    """The LEARN, or None if it is malformed."""
    if len(body) < _LEARN.size:
        return None
    decided, first, count = _LEARN.unpack_from(body)
    values = _unpack_values(body, _LEARN.size, count)
    if values is None or decided >= _TOP or not 0 < first < _TOP or not count:
        return None
    return Learn(decided, first, values)


def encode_proposal(proposal: Proposal) -> bytes:
    """The body of a PROPOSAL."""
    return _PROPOSAL.pack(proposal.k) + proposal.value


def decode_proposal(body: bytes) -> Proposal | None:
    """The PROPOSAL, or None if it is malformed."""
    if len(body) < _PROPOSAL.size:
        return None
    (k,) = _PROPOSAL.unpack_from(body)
    return Proposal(k, body[_PROPOSAL.size :]) if k < _TOP else None


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """The body of a SNAPSHOT."""
    return _SNAPSHOT.pack(snapshot.k, snapshot.total, snapshot.offset) + snapshot.part


def decode_snapshot(body: bytes) -> Snapshot | None:
    """The SNAPSHOT, or None if it is malformed."""
    if len(body) < _SNAPSHOT.size:
        return None
    k, total, offset = _SNAPSHOT.unpack_from(body)
    part = body[_SNAPSHOT.size :]
    return Snapshot(k, total, offset, part) if 0 < k < _TOP and offset + len(part) <= total else None


def encode_storage_mismatch(mismatch: StorageMismatch) -> bytes:
    """The body of a STORAGE_MISMATCH."""
    return _STORAGE_MISMATCH.pack(mismatch.recorded_storage_id)


def decode_storage_mismatch(body: bytes) -> StorageMismatch | None:
    """The STORAGE_MISMATCH, or None if it is malformed."""
    return StorageMismatch(*_STORAGE_MISMATCH.unpack(body)) if len(body) == _STORAGE_MISMATCH.size else None


ConsensusMessage: TypeAlias = (
    Prepare | Promise | Accept | Accepted | Fetch | Learn | Proposal | Snapshot | StorageMismatch
)

DECODERS: dict[Kind, Callable[[bytes], ConsensusMessage | None]] = {
    Kind.PREPARE: decode_prepare,
    Kind.PROMISE: decode_promise,
    Kind.ACCEPT: decode_accept,
    Kind.ACCEPTED: decode_accepted,
    Kind.FETCH: decode_fetch,
    Kind.LEARN: decode_learn,
    Kind.PROPOSAL: decode_proposal,
    Kind.SNAPSHOT: decode_snapshot,
    Kind.STORAGE_MISMATCH: decode_storage_mismatch,
}
register_control(DECODERS)


def encode(message: ConsensusMessage) -> tuple[Kind, bytes]:
    """The kind and the body of a frame that carries a message."""
    match message:
        case Prepare():
            return Kind.PREPARE, encode_prepare(message)
        case Promise():
            return Kind.PROMISE, encode_promise(message)
        case Accept():
            return Kind.ACCEPT, encode_accept(message)
        case Accepted():
            return Kind.ACCEPTED, encode_accepted(message)
        case Fetch():
            return Kind.FETCH, encode_fetch(message)
        case Learn():
            return Kind.LEARN, encode_learn(message)
        case Proposal():
            return Kind.PROPOSAL, encode_proposal(message)
        case Snapshot():
            return Kind.SNAPSHOT, encode_snapshot(message)
        case StorageMismatch():
            return Kind.STORAGE_MISMATCH, encode_storage_mismatch(message)
    assert_never(message)


class _RecordKind(IntEnum):
    PROMISED = 1
    ACCEPTED = 2
    DECIDED = 3
    SNAPSHOT = 4
    STORAGE_ID = 5


_NUMBER = struct.Struct("!BQ")
_VALUE = struct.Struct("!BQQ")
_STORAGE_ID = struct.Struct("!BHI")


@dataclass(frozen=True, slots=True)
class PromiseRecord:
    """The member promised a ballot."""

    ballot: int


@dataclass(frozen=True, slots=True)
class ValueRecord:
    """The member accepted a value for instance k, or learned it as decided (ballot CHOSEN)."""

    k: int
    ballot: int
    value: bytes


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """The recorded values of all instances up to k are decided."""

    k: int


@dataclass(frozen=True, slots=True)
class SnapshotRecord:
    """`state` replaces all instances up to k."""

    k: int
    state: bytes


@dataclass(frozen=True, slots=True)
class StorageIdRecord:
    """The id of the storage that holds another member's promises."""

    member: int
    storage_id: int


ConsensusRecord: TypeAlias = PromiseRecord | ValueRecord | DecisionRecord | SnapshotRecord | StorageIdRecord


def encode_record(record: ConsensusRecord) -> bytes:
    """The bytes of a record for stable storage."""
    if isinstance(record, PromiseRecord):
        return _NUMBER.pack(_RecordKind.PROMISED, record.ballot)
    if isinstance(record, ValueRecord):
        return _VALUE.pack(_RecordKind.ACCEPTED, record.k, record.ballot) + record.value
    if isinstance(record, DecisionRecord):
        return _NUMBER.pack(_RecordKind.DECIDED, record.k)
    if isinstance(record, StorageIdRecord):
        return _STORAGE_ID.pack(_RecordKind.STORAGE_ID, record.member, record.storage_id)
    return _NUMBER.pack(_RecordKind.SNAPSHOT, record.k) + record.state


def decode_record(record: bytes) -> ConsensusRecord | None:
    """The record, or None if it is malformed."""
    kind = record[0] if record else 0
    if kind == _RecordKind.ACCEPTED and len(record) >= _VALUE.size:
        _, k, ballot = _VALUE.unpack_from(record)
        return ValueRecord(k, ballot, record[_VALUE.size :])
    if kind == _RecordKind.STORAGE_ID and len(record) == _STORAGE_ID.size:
        return StorageIdRecord(*_STORAGE_ID.unpack(record)[1:])
    if kind not in {_RecordKind.PROMISED, _RecordKind.DECIDED, _RecordKind.SNAPSHOT} or len(record) < _NUMBER.size:
        return None
    _, number = _NUMBER.unpack_from(record)
    if kind == _RecordKind.SNAPSHOT:
        return SnapshotRecord(number, record[_NUMBER.size :])
    if len(record) != _NUMBER.size:
        return None
    return PromiseRecord(number) if kind == _RecordKind.PROMISED else DecisionRecord(number)
