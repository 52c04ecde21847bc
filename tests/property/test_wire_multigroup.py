"""Messages of quasi-genuine groups: encoding and decoding round trips; damaged bytes are refused."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.orders.packing import Bundle
from unisono.orders.quasi_genuine.messages import (
    STREAM_BYTES,
    BarrierRequest,
    Cast,
    ConfirmTopology,
    GroupState,
    IncomingLinkState,
    LogItem,
    NextBundle,
    Null,
    NumberedEntry,
    OutgoingLinkState,
    ReceivedByAll,
    SetReceivers,
    SourceBarrier,
    StampedEntry,
    StreamAck,
    StreamSegment,
    StreamState,
    TopologyControl,
    TopologyMessage,
    TopologySnapshot,
    TopologyStep,
    control_in_bundle,
    decode_state,
    decode_stream_record,
    decode_value,
    encode_control,
    encode_state,
    encode_stream_record,
    encode_value,
    stamp_after,
    stamp_of,
    time_of,
)
from unisono.wire.codec import Unreadable, decode_message, encode_message
from unisono.wire.frame import FRAGMENT, Kind, OutgoingMessages

numbers = st.integers(0, 2**40)
members = st.integers(1, 65_535)
stamps = st.integers(0, 2**79)
masks = st.integers(1, 2**64 - 1)
bundles = st.builds(
    lambda sender, incarnation, serial, body: Bundle(
        sender, incarnation, serial, serial, 0, b"".join(OutgoingMessages([body], same_size=True).parts())
    ),
    members,
    st.integers(0, 2**32 - 1),
    numbers,
    st.binary(max_size=60),
)
casts = st.builds(Cast, numbers, masks, bundles)
entries = st.builds(StampedEntry, stamps, masks, bundles)
topology_messages = st.builds(
    TopologyMessage,
    st.sampled_from(TopologyStep),
    st.integers(0, 63),
    st.integers(0, 2**32 - 1),
    numbers,
    st.integers(0, 2**79),
)
controls = st.one_of(st.builds(SetReceivers, st.integers(0, 2**64 - 1)), st.builds(ConfirmTopology, numbers))
items: st.SearchStrategy[LogItem] = st.one_of(
    casts, st.builds(Null, numbers, stamps), st.builds(ReceivedByAll, st.integers(0, 63), numbers), topology_messages
)
topologies = st.builds(
    TopologySnapshot,
    numbers,
    st.integers(0, 2**64 - 1),
    st.dictionaries(
        st.integers(0, 63),
        st.builds(OutgoingLinkState, st.integers(0, 4), st.integers(0, 2**32 - 1), numbers, numbers),
        max_size=3,
    ),
    st.dictionaries(
        st.integers(0, 63),
        st.builds(IncomingLinkState, st.integers(0, 2**32 - 1), st.booleans(), stamps, numbers),
        max_size=3,
    ),
    st.dictionaries(members, numbers, max_size=3),
)
states = st.builds(
    GroupState,
    stamps,
    numbers,
    st.dictionaries(members, st.builds(NextBundle, st.integers(0, 2**32 - 1), numbers), max_size=3),
    st.dictionaries(
        st.integers(0, 63),
        st.builds(StreamState, numbers, numbers, st.lists(entries, max_size=3).map(tuple)),
        max_size=2,
    ),
    st.dictionaries(st.integers(0, 63), st.builds(SourceBarrier, numbers, stamps), max_size=3),
    st.lists(st.builds(NumberedEntry, st.integers(0, 63), numbers, entries), max_size=3).map(tuple),
    stamps,
    st.integers(0, 63),
    st.dictionaries(st.tuples(members, st.integers(0, 2**32 - 1)), st.binary(max_size=20), max_size=2),
    topologies,
)


streams = st.builds(
    lambda source, first, carried, more, last_stamp: StreamSegment(
        source, first, first + len(carried) - 1 + more, last_stamp, tuple(carried)
    ),
    st.integers(0, 63),
    st.integers(1, 2**40),
    st.lists(entries, max_size=4),
    numbers,
    stamps,
)
messages = st.one_of(
    casts,
    streams,
    st.builds(StreamAck, st.integers(0, 63), numbers),
    st.builds(BarrierRequest, stamps, masks),
    topology_messages,
)
KINDS = [Kind.GROUP_CAST, Kind.GROUP_STREAM, Kind.GROUP_STREAM_ACK, Kind.BARRIER_REQUEST, Kind.TOPOLOGY]


@given(messages)
def test_messages(message: object) -> None:
    kind, body = encode_message(message)
    assert decode_message(kind, body) == message
    if kind is not Kind.GROUP_STREAM or len(body) > STREAM_BYTES:
        with pytest.raises(Unreadable):
            decode_message(kind, body[:-1])


@given(messages, st.integers(min_value=0), st.integers(1, 255))
def test_a_changed_byte_is_refused_or_gives_the_encoding_of_another_message(
    message: object, at: int, change: int
) -> None:
    kind, body = encode_message(message)
    damaged = bytearray(body)
    damaged[at % len(body)] ^= change
    with suppress(Unreadable):
        assert encode_message(decode_message(kind, bytes(damaged))) == (kind, bytes(damaged))


@given(controls, members, numbers)
def test_controls_travel_as_casts_without_destinations(control: TopologyControl, sender: int, ts: int) -> None:
    cast = Cast(ts, 0, Bundle(sender, 1, 0, 0, 0, encode_control(control)))
    assert decode_message(*encode_message(cast)) == cast
    assert control_in_bundle(cast.bundle) == control


@given(bundles)
def test_any_other_cast_without_destinations_is_refused(bundle: Bundle) -> None:
    if control_in_bundle(bundle) is None:
        with pytest.raises(Unreadable):
            decode_message(*encode_message(Cast(1, 0, bundle)))


PACKED = b"".join(OutgoingMessages([b"m"], same_size=True).parts())
BUNDLE = Bundle(1, 1, 0, 0, 0, PACKED)


@pytest.mark.parametrize(
    "message",
    [
        Cast(2**63, 1, BUNDLE),
        Cast(1, 1, BUNDLE._replace(serial=2**63)),
        Cast(1, 1, BUNDLE._replace(first_sequence=2**63)),
        Cast(1, 1, BUNDLE._replace(flags=0x80)),
        Cast(1, 1, BUNDLE._replace(body=PACKED + b"x")),
        Cast(1, 1, BUNDLE._replace(flags=FRAGMENT, body=b"")),
        StreamSegment(1, 0, 5, 1, ()),
        StreamSegment(1, 5, 5, 1, (StampedEntry(1, 1, BUNDLE),) * 2),
        StreamSegment(1, 5, 2**63, 1, ()),
        StreamSegment(1, 5, 5, 1, (StampedEntry(1, 1, BUNDLE._replace(body=b"")),)),
        StreamAck(1, 2**63),
        TopologyMessage(TopologyStep.ADMIT, 1, 1, 2**63, 1),
    ],
)
def test_a_field_out_of_its_bounds_is_refused(message: object) -> None:
    with pytest.raises(Unreadable):
        decode_message(*encode_message(message))


@given(st.lists(items, max_size=5))
def test_values(value: list[LogItem]) -> None:
    assert decode_value(encode_value(value)) == value


@given(states, st.integers(min_value=0))
def test_states(state: GroupState, length: int) -> None:
    data = encode_state(state)
    assert decode_state(data) == state
    with pytest.raises(Unreadable):
        decode_state(data[: length % len(data)])
    with pytest.raises(Unreadable):
        decode_state(data + b"\0")


def test_a_state_that_names_a_sender_twice_is_refused() -> None:
    data = encode_state(GroupState(next_serials={1: NextBundle(7, 8), 2: NextBundle(7, 8)}))
    first, second = bytes.fromhex("0001 00000007"), bytes.fromhex("0002 00000007")
    assert data.count(second) == 1
    with pytest.raises(Unreadable, match="occurs twice"):
        decode_state(data.replace(second, first))


@given(st.builds(NumberedEntry, st.integers(0, 63), numbers, entries))
def test_stream_records(entry: NumberedEntry) -> None:
    assert decode_stream_record(encode_stream_record(entry)) == entry
    with pytest.raises(Unreadable):
        decode_stream_record(encode_stream_record(entry)[:-1])


@given(st.sampled_from(KINDS), st.binary(max_size=200))
def test_any_bytes_are_refused_or_the_encoding_of_a_message(kind: Kind, data: bytes) -> None:
    with suppress(Unreadable):
        assert encode_message(decode_message(kind, data)) == (kind, data)
    with suppress(Unreadable):
        assert encode_value(decode_value(data)) == data
    with suppress(Unreadable):
        state = decode_state(data)
        assert decode_state(encode_state(state)) == state
    with suppress(Unreadable):
        assert encode_stream_record(decode_stream_record(data)) == data


@given(stamps, numbers, members)
def test_a_stamp_is_after_the_last_one_and_not_before_its_timestamp(last: int, ts: int, sender: int) -> None:
    """Erratum 003-12: max(ts, last+1), unique because it contains the sender's number."""
    stamp = stamp_after(last, ts, sender)
    assert stamp > last
    assert stamp >= stamp_of(ts, sender)
    assert stamp % (1 << 16) == sender
    assert time_of(stamp) <= max(ts, time_of(last) + 1)
