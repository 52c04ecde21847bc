"""Frames and stored records of consensus: all of them round-trip, and other bytes are refused or encode again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from unisono.agreement.paxos import messages as wire
from unisono.agreement.paxos.messages import (
    CHOSEN,
    Accept,
    Accepted,
    ConsensusRecord,
    DecisionRecord,
    Fetch,
    Learn,
    Prepare,
    Promise,
    PromiseRecord,
    Proposal,
    Snapshot,
    SnapshotRecord,
    StorageIdRecord,
    StorageMismatch,
    ValueRecord,
)
from unisono.wire.codec import Unreadable, decode_message, encode_message
from unisono.wire.control import Heartbeat
from unisono.wire.frame import Kind

numbers = st.integers(1, 2**63 - 1)
ballots = st.integers(1, CHOSEN - 1)
values = st.binary(max_size=40)
value_lists = st.lists(values, max_size=5).map(tuple)


@st.composite
def promises(draw: st.DrawFn) -> Promise:
    first = draw(st.integers(1, 2**62))
    entries = tuple(draw(st.lists(st.tuples(st.integers(1, CHOSEN), values), max_size=5)))
    at = first + draw(st.integers(0, 5))
    last = at + len(entries) - 1 + draw(st.integers(0, 5))
    return Promise(draw(ballots), draw(st.booleans()), draw(numbers), first, last, at, entries)


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    part = draw(values)
    offset = draw(st.integers(0, 2**31))
    return Snapshot(draw(numbers), offset + len(part) + draw(st.integers(0, 9)), offset, part)


messages = st.one_of(
    st.builds(Prepare, ballots, numbers, st.booleans()),
    promises(),
    st.builds(Accept, ballots, numbers, numbers, numbers, value_lists),
    st.builds(Accepted, numbers, numbers, numbers),
    st.builds(Fetch, numbers, numbers, st.integers(0, 2**32 - 1)),
    st.builds(Learn, numbers, numbers, st.lists(values, min_size=1, max_size=5).map(tuple)),
    st.builds(Proposal, numbers, values),
    snapshots(),
    st.builds(StorageMismatch, st.integers(0, 2**32 - 1)),
)
records = st.one_of(
    st.builds(PromiseRecord, numbers),
    st.builds(ValueRecord, numbers, numbers, values),
    st.builds(DecisionRecord, numbers),
    st.builds(SnapshotRecord, numbers, values),
    st.builds(StorageIdRecord, st.integers(1, 65535), st.integers(0, 2**32 - 1)),
)


def check_refused_or_encodes_again(kind: Kind, body: bytes) -> None:
    try:
        decoded = decode_message(kind, body)
    except Unreadable:
        return
    assert encode_message(decoded) == (kind, body)


@given(messages | st.builds(Heartbeat, numbers, numbers))
def test_messages_round_trip(message: wire.ConsensusMessage | Heartbeat) -> None:
    assert decode_message(*encode_message(message)) == message


@given(messages, st.data())
def test_a_changed_body_is_refused_or_decodes_to_another_message(
    message: wire.ConsensusMessage, data: st.DataObject
) -> None:
    kind, body = encode_message(message)
    at = data.draw(st.integers(0, len(body)))
    for changed in (body[:at], body + b"\x00", body[:at] + b"\xff" + body[at + 1 :]):
        check_refused_or_encodes_again(kind, changed)


@given(st.sampled_from(sorted(wire.SPECS)), st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_or_encode_again(kind: Kind, body: bytes) -> None:
    check_refused_or_encodes_again(kind, body)


@given(records)
def test_records_round_trip(record: ConsensusRecord) -> None:
    assert wire.RECORDS.decode(wire.RECORDS.encode(record)) == record


@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_refused_as_a_record_or_encode_again(data: bytes) -> None:
    try:
        record = wire.RECORDS.decode(data)
    except Unreadable:
        return
    assert wire.RECORDS.encode(record) == data
