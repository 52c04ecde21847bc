"""Frames and stored records of consensus: all of them round-trip, and no bytes make a decoder raise."""

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
from unisono.wire.control import Heartbeat, decode_heartbeat, encode_heartbeat
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


@given(messages)
def test_messages_round_trip(message: wire.ConsensusMessage) -> None:
    kind, body = wire.encode(message)
    assert wire.DECODERS[kind](body) == message


@given(messages, st.data())
def test_a_changed_body_decodes_to_another_message_or_none(message: wire.ConsensusMessage, data: st.DataObject) -> None:
    kind, body = wire.encode(message)
    at = data.draw(st.integers(0, len(body)))
    for changed in (body[:at], body + b"\x00", body[:at] + b"\xff" + body[at + 1 :]):
        decoded = wire.DECODERS[kind](changed)
        assert decoded is None or wire.encode(decoded) == (kind, changed)


@given(st.sampled_from(sorted(wire.DECODERS)), st.binary(max_size=200))
def test_no_bytes_make_a_decoder_raise(kind: Kind, body: bytes) -> None:
    decoded = wire.DECODERS[kind](body)
    assert decoded is None or wire.encode(decoded) == (kind, body)


@given(records)
def test_records_round_trip(record: ConsensusRecord) -> None:
    assert wire.decode_record(wire.encode_record(record)) == record


@given(st.binary(max_size=60))
def test_no_bytes_make_the_record_decoder_raise(data: bytes) -> None:
    record = wire.decode_record(data)
    assert record is None or wire.encode_record(record) == data


@given(st.builds(Heartbeat, numbers, numbers))
def test_heartbeats_round_trip(heartbeat: Heartbeat) -> None:
    assert decode_heartbeat(encode_heartbeat(heartbeat)) == heartbeat
    assert decode_heartbeat(encode_heartbeat(heartbeat)[:-1]) is None
