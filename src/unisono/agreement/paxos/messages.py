"""What members say to one another to agree on a sequence of values, and what they write down before they say it.

A ballot is a number that one member alone may use: its round, then the member. Instances are numbered from 1.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import accumulate, pairwise
from typing import TypeAlias, assert_never

from unisono.model.ids import MEMBER_MAX
from unisono.wire.door import register_control
from unisono.wire.frame import Kind

_TOP = 2**63
CHOSEN = _TOP - 1
"""Stands for the ballot of a value that is known to be decided: no ballot is above it."""
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
"""What the longest of the frames that carry a value puts before it."""
SNAPSHOT_BYTES = _SNAPSHOT.size


def ballot_after(ballot: int, member: int) -> int:
    """The first ballot of a member above another ballot."""
    return ((ballot >> 16) + 1) << 16 | member


def owner_of(ballot: int) -> int:
    """Whose a ballot is; 0 for the ballot 0, which is nobody's."""
    return ballot & MEMBER_MAX


@dataclass(frozen=True, slots=True)
class Prepare:
    """A candidate asks for promises to follow no lower ballot, and for what was accepted from `first` on.

    A `trial` asks only whether the promise would be given.
    """

    ballot: int
    first: int
    trial: bool


@dataclass(frozen=True, slots=True)
class Promise:
    """The promise for `ballot`: of the instances `first` to `last` that its sender has accepted, some from `at` on."""

    ballot: int
    trial: bool
    decided: int
    first: int
    last: int
    at: int
    entries: tuple[tuple[int, bytes], ...]
    """(ballot, value) by instance, from `at` on."""


@dataclass(frozen=True, slots=True)
class Accept:
    """A leader's values from instance `first` on; without any, its sign of life.

    Under this ballot it proposes from `base` on; all up to `decided` is decided.
    """

    ballot: int
    base: int
    decided: int
    first: int
    values: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Accepted:
    """All from the leader's base `upto` here has been accepted under `ballot`, the highest that was promised."""

    ballot: int
    upto: int
    decided: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """A request for what was decided from `first` on; `offset` goes on with the snapshot of instance `snapshot`."""

    first: int
    snapshot: int
    offset: int


@dataclass(frozen=True, slots=True)
class Learn:
    """What was decided from `first` on; `decided` is how far the sender knows."""

    decided: int
    first: int
    values: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Proposal:
    """A value for the instance k, or, with k = 0, for the leader's caller."""

    k: int
    value: bytes


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A part of what stands for all instances up to k."""

    k: int
    total: int
    offset: int
    part: bytes


@dataclass(frozen=True, slots=True)
class StorageMismatch:
    """To a member whose frames name another memory: the one by which it is known, and which holds its promises."""

    recorded_storage_id: int


def _pack_values(values: Sequence[bytes]) -> bytes:
    return b"".join((struct.pack(f"!{len(values)}I", *map(len, values)), *values))


def _unpack_values(body: bytes, at: int, count: int) -> tuple[bytes, ...] | None:
    """`count` values whose table of lengths is at `at`, and which fill the rest of the body."""
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
    """The PROMISE, or None if it is malformed or contradicts itself."""
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
    """The ACCEPTED, or None."""
    if len(body) != _ACCEPTED.size:
        return None
    ballot, upto, decided = _ACCEPTED.unpack(body)
    return Accepted(ballot, upto, decided) if max(ballot, upto, decided) < _TOP else None


def encode_fetch(fetch: Fetch) -> bytes:
    """The body of a FETCH."""
    return _FETCH.pack(fetch.first, fetch.snapshot, fetch.offset)


def decode_fetch(body: bytes) -> Fetch | None:
    """The FETCH, or None."""
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
    """The PROPOSAL, or None."""
    if len(body) < _PROPOSAL.size:
        return None
    (k,) = _PROPOSAL.unpack_from(body)
    return Proposal(k, body[_PROPOSAL.size :]) if k < _TOP else None


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """The body of a SNAPSHOT."""
    return _SNAPSHOT.pack(snapshot.k, snapshot.total, snapshot.offset) + snapshot.part


def decode_snapshot(body: bytes) -> Snapshot | None:
    """The SNAPSHOT's part, or None if it cannot be one."""
    if len(body) < _SNAPSHOT.size:
        return None
    k, total, offset = _SNAPSHOT.unpack_from(body)
    part = body[_SNAPSHOT.size :]
    return Snapshot(k, total, offset, part) if 0 < k < _TOP and offset + len(part) <= total else None


def encode_storage_mismatch(mismatch: StorageMismatch) -> bytes:
    """The body of a REMEMBERED."""
    return _STORAGE_MISMATCH.pack(mismatch.recorded_storage_id)


def decode_storage_mismatch(body: bytes) -> StorageMismatch | None:
    """The REMEMBERED, or None."""
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
    """A ballot was promised."""

    ballot: int


@dataclass(frozen=True, slots=True)
class ValueRecord:
    """A value was accepted for the instance k, or learned (CHOSEN)."""

    k: int
    ballot: int
    value: bytes


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """All up to k is decided as it was noted."""

    k: int


@dataclass(frozen=True, slots=True)
class SnapshotRecord:
    """`state` stands for all instances up to k."""

    k: int
    state: bytes


@dataclass(frozen=True, slots=True)
class StorageIdRecord:
    """The number of the memory that another member keeps its promises in."""

    member: int
    storage_id: int


ConsensusRecord: TypeAlias = PromiseRecord | ValueRecord | DecisionRecord | SnapshotRecord | StorageIdRecord


def encode_record(record: ConsensusRecord) -> bytes:
    """A record for stable storage."""
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
    """The note in a record, or None if it is none of this kind."""
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
