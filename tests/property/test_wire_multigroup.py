"""Messages between quasi-genuine groups: what is encoded is decoded again, and what is damaged is refused or other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from unisono.orders.multigroup.messages import (
    DECODERS,
    Ack,
    Cast,
    Entry,
    Heard,
    Item,
    Null,
    Stream,
    Want,
    decode_ack,
    decode_cast,
    decode_stream,
    decode_value,
    decode_want,
    encode_ack,
    encode_cast,
    encode_entry,
    encode_stream,
    encode_value,
    encode_want,
    stamp_after,
    stamp_of,
    time_of,
)
from unisono.orders.multigroup.stored_state import (
    GroupState,
    RelationState,
    StreamState,
    decode_foreign,
    decode_state,
    encode_foreign,
    encode_state,
)
from unisono.orders.multigroup.topology_messages import (
    Bond,
    Confirm,
    Control,
    Relate,
    What,
    control_body,
    control_of,
    decode_bond,
    encode_bond,
)
from unisono.wire.bundles import Parcel, encode_parcel
from unisono.wire.frame import Kind
from unisono.wire.packed_messages import OwnRun

numbers = st.integers(0, 2**40)
members = st.integers(1, 65_535)
stamps = st.integers(0, 2**79)
masks = st.integers(1, 2**64 - 1)
parcels = st.builds(
    lambda sender, life, serial, body: encode_parcel(
        Parcel(sender, life, serial, serial, 0, b"".join(OwnRun([body], uniform=True).parts()))
    ),
    members,
    st.integers(0, 2**32 - 1),
    numbers,
    st.binary(max_size=60),
)
casts = st.builds(Cast, numbers, masks, parcels)
entries = st.builds(Entry, stamps, masks, parcels)
bonds = st.builds(
    Bond, st.sampled_from(What), st.integers(0, 63), st.integers(0, 2**32 - 1), numbers, st.integers(0, 2**79)
)
controls = st.one_of(st.builds(Relate, st.integers(0, 2**64 - 1)), st.builds(Confirm, numbers))
items: st.SearchStrategy[Item] = st.one_of(
    casts, st.builds(Null, numbers, stamps), st.builds(Heard, st.integers(0, 63), numbers), bonds
)
relations = st.builds(
    RelationState,
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
    relations,
)


@given(casts)
def test_casts(cast: Cast) -> None:
    assert decode_cast(encode_cast(cast)) == cast


@given(controls, members, numbers)
def test_controls_travel_as_messages_to_nobody(control: Control, sender: int, ts: int) -> None:
    parcel = encode_parcel(Parcel(sender, 1, 0, 0, 0, control_body(control)))
    cast = decode_cast(encode_cast(Cast(ts, 0, parcel)))
    assert cast is not None
    assert control_of(cast.parcel) == control


@given(parcels)
def test_any_other_message_to_nobody_is_refused(parcel: bytes) -> None:
    assert (decode_cast(encode_cast(Cast(1, 0, parcel))) is None) is (control_of(parcel) is None)


@given(bonds)
def test_bonds(bond: Bond) -> None:
    assert decode_bond(encode_bond(bond)) == bond
    assert decode_bond(encode_bond(bond)[:-1]) is None


@given(st.lists(items, max_size=5))
def test_values(value: list[Item]) -> None:
    assert decode_value(encode_value(value)) == value


@given(st.integers(0, 63), st.lists(entries, max_size=4), numbers, stamps)
def test_streams(source: int, carried: list[Entry], more: int, last: int) -> None:
    stream = Stream(source, 1, len(carried) + more, last, tuple(carried))
    assert decode_stream(encode_stream(stream, list(map(encode_entry, carried)))) == stream


@given(st.builds(Ack, st.integers(0, 63), numbers), st.builds(Want, stamps, masks))
def test_acknowledgments_and_wishes(ack: Ack, want: Want) -> None:
    assert decode_ack(encode_ack(ack)) == ack
    assert decode_want(encode_want(want)) == want


@given(states)
def test_states(state: GroupState) -> None:
    assert decode_state(encode_state(state)) == state


@given(st.integers(0, 63), numbers, entries)
def test_records(source: int, number: int, entry: Entry) -> None:
    assert decode_foreign(encode_foreign(source, number, entry)) == (source, number, entry)


@given(st.sampled_from([Kind.CAST, Kind.STREAM, Kind.APPLIED, Kind.CALL, Kind.BOND]), st.binary(max_size=200))
def test_anything_is_decoded_or_refused(kind: Kind, data: bytes) -> None:
    DECODERS[kind](data)
    decode_value(data)
    decode_state(data)
    decode_foreign(data)


@given(stamps, numbers, members)
def test_a_stamp_follows_the_last_and_is_not_before_its_time(last: int, ts: int, sender: int) -> None:
    """Erratum 003-12: max(ts, last+1), and nobody else's: the sender's number is in it."""
    stamp = stamp_after(last, ts, sender)
    assert stamp > last
    assert stamp >= stamp_of(ts, sender)
    assert stamp % (1 << 16) == sender
    assert time_of(stamp) <= max(ts, time_of(last) + 1)
