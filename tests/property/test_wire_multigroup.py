"""Messages of quasi-genuine groups: encoding and decoding round trips; damaged bytes never raise."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from unisono.orders.multigroup.messages import (
    DECODERS,
    BarrierRequest,
    Cast,
    ConfirmTopology,
    GroupState,
    Item,
    Null,
    ReceivedByAll,
    SetReceivers,
    StampedEntry,
    StreamAck,
    StreamSegment,
    StreamState,
    TopologyControl,
    TopologyMessage,
    TopologySnapshot,
    TopologyStep,
    decode_barrier_request,
    decode_cast,
    decode_control,
    decode_state,
    decode_stream_ack,
    decode_stream_record,
    decode_stream_segment,
    decode_topology_message,
    decode_value,
    encode_barrier_request,
    encode_cast,
    encode_control,
    encode_entry,
    encode_state,
    encode_stream_ack,
    encode_stream_record,
    encode_stream_segment,
    encode_topology_message,
    encode_value,
    stamp_after,
    stamp_of,
    time_of,
)
from unisono.orders.packing import Bundle, encode_bundle
from unisono.wire.frame import Kind, OutgoingMessages

numbers = st.integers(0, 2**40)
members = st.integers(1, 65_535)
stamps = st.integers(0, 2**79)
masks = st.integers(1, 2**64 - 1)
bundles = st.builds(
    lambda sender, incarnation, serial, body: encode_bundle(
        Bundle(sender, incarnation, serial, serial, 0, b"".join(OutgoingMessages([body], same_size=True).parts()))
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
items: st.SearchStrategy[Item] = st.one_of(
    casts, st.builds(Null, numbers, stamps), st.builds(ReceivedByAll, st.integers(0, 63), numbers), topology_messages
)
topologies = st.builds(
    TopologySnapshot,
    numbers,
    st.integers(0, 2**64 - 1),
    st.dictionaries(
        st.integers(0, 63), st.tuples(st.integers(0, 4), st.integers(0, 2**32 - 1), numbers, numbers), max_size=3
    ),
    st.dictionaries(
        st.integers(0, 63), st.tuples(st.integers(0, 2**32 - 1), st.booleans(), stamps, numbers), max_size=3
    ),
    st.dictionaries(members, numbers, max_size=3),
)
states = st.builds(
    GroupState,
    stamps,
    numbers,
    st.dictionaries(members, st.tuples(st.integers(0, 2**32 - 1), numbers), max_size=3),
    st.dictionaries(
        st.integers(0, 63),
        st.builds(StreamState, numbers, numbers, st.lists(entries, max_size=3).map(tuple)),
        max_size=2,
    ),
    st.dictionaries(st.integers(0, 63), st.tuples(numbers, stamps), max_size=3),
    st.lists(st.tuples(st.integers(0, 63), numbers, entries), max_size=3).map(tuple),
    st.tuples(stamps, st.integers(0, 63)),
    st.dictionaries(st.tuples(members, st.integers(0, 2**32 - 1)), st.binary(max_size=20), max_size=2),
    topologies,
)


@given(casts)
def test_casts(cast: Cast) -> None:
    assert decode_cast(encode_cast(cast)) == cast


@given(controls, members, numbers)
def test_controls_travel_as_casts_without_destinations(control: TopologyControl, sender: int, ts: int) -> None:
    bundle = encode_bundle(Bundle(sender, 1, 0, 0, 0, encode_control(control)))
    cast = decode_cast(encode_cast(Cast(ts, 0, bundle)))
    assert cast is not None
    assert decode_control(cast.bundle) == control


@given(bundles)
def test_any_other_cast_without_destinations_is_refused(bundle: bytes) -> None:
    assert (decode_cast(encode_cast(Cast(1, 0, bundle))) is None) is (decode_control(bundle) is None)


@given(topology_messages)
def test_topology_messages(message: TopologyMessage) -> None:
    assert decode_topology_message(encode_topology_message(message)) == message
    assert decode_topology_message(encode_topology_message(message)[:-1]) is None


@given(st.lists(items, max_size=5))
def test_values(value: list[Item]) -> None:
    assert decode_value(encode_value(value)) == value


@given(st.integers(0, 63), st.lists(entries, max_size=4), numbers, stamps)
def test_stream_segments(source: int, carried: list[StampedEntry], more: int, last_stamp: int) -> None:
    segment = StreamSegment(source, 1, len(carried) + more, last_stamp, tuple(carried))
    assert decode_stream_segment(encode_stream_segment(segment, list(map(encode_entry, carried)))) == segment


@given(st.builds(StreamAck, st.integers(0, 63), numbers), st.builds(BarrierRequest, stamps, masks))
def test_acknowledgments_and_barrier_requests(ack: StreamAck, request: BarrierRequest) -> None:
    assert decode_stream_ack(encode_stream_ack(ack)) == ack
    assert decode_barrier_request(encode_barrier_request(request)) == request


@given(states)
def test_states(state: GroupState) -> None:
    assert decode_state(encode_state(state)) == state


@given(st.integers(0, 63), numbers, entries)
def test_stream_records(source: int, number: int, entry: StampedEntry) -> None:
    assert decode_stream_record(encode_stream_record(source, number, entry)) == (source, number, entry)


@given(
    st.sampled_from([Kind.GROUP_CAST, Kind.GROUP_STREAM, Kind.GROUP_STREAM_ACK, Kind.BARRIER_REQUEST, Kind.TOPOLOGY]),
    st.binary(max_size=200),
)
def test_any_bytes_are_decoded_or_refused(kind: Kind, data: bytes) -> None:
    DECODERS[kind](data)
    decode_value(data)
    decode_state(data)
    decode_stream_record(data)


@given(stamps, numbers, members)
def test_a_stamp_is_after_the_last_one_and_not_before_its_timestamp(last: int, ts: int, sender: int) -> None:
    """Erratum 003-12: max(ts, last+1), unique because it contains the sender's number."""
    stamp = stamp_after(last, ts, sender)
    assert stamp > last
    assert stamp >= stamp_of(ts, sender)
    assert stamp % (1 << 16) == sender
    assert time_of(stamp) <= max(ts, time_of(last) + 1)
