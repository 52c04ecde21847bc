"""What members say to make deliveries final: all of it round trip, and no bytes make a decoder fail."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from unisono.model.message_range import MessageRange
from unisono.model.message_set import MessageSet
from unisono.orders.final import messages as wire
from unisono.orders.final.messages import FinalLogState, FinalLogValue, Holdings, RecoveryReply, RecoveryRequest
from unisono.wire.frame import Kind

u16, u32, u62 = st.integers(0, 0xFFFF), st.integers(0, 2**32 - 1), st.integers(0, 2**62)
extents = st.builds(MessageRange, st.integers(0, 1000), u16, u32, u62, st.integers(1, 2**32 - 1))
several = st.lists(extents, max_size=5).map(tuple)
lives = st.dictionaries(u16, u32, max_size=4)
ranges = st.builds(lambda first, more: ((first, first + more),), u62, st.integers(0, 99))
sets = st.dictionaries(st.tuples(u16, u32), ranges, max_size=4).map(MessageSet)


@st.composite
def gives(draw: st.DrawFn) -> RecoveryReply:
    part = draw(st.binary(min_size=1, max_size=30))
    extent = draw(extents)
    if extent.length > 1:
        return RecoveryReply(extent, len(part), 0, part)
    offset = draw(st.integers(0, 99))
    return RecoveryReply(extent, offset + len(part) + draw(st.integers(0, 99)), offset, part)


messages = st.one_of(
    st.builds(Holdings, st.integers(1000, 2**62), u62, several),
    st.builds(RecoveryRequest, st.lists(extents, min_size=1, max_size=5).map(tuple)),
    gives(),
    st.builds(
        lambda extent: RecoveryReply(extent, 0, 0, b"") if extent.length == 1 else RecoveryRequest((extent,)), extents
    ),
)


@given(messages)
def test_messages_round_trip(message: wire.FinalsMessage) -> None:
    kind, body = wire.encode(message)
    assert wire.DECODERS[kind](body) == message


@given(st.sampled_from([Kind.FINAL_REPORT, Kind.FINAL_REQUEST, Kind.FINAL_ANSWER]), st.binary(max_size=120))
def test_no_bytes_make_a_decoder_fail(kind: Kind, body: bytes) -> None:
    decoded = wire.DECODERS[kind](body)
    assert decoded is None or wire.encode(decoded) == (kind, body)


@given(lives, several)
def test_values_round_trip(entering: dict[int, int], held: tuple[MessageRange, ...]) -> None:
    assert wire.decode_value(wire.encode_value(FinalLogValue(entering, held))) == FinalLogValue(entering, held)


@given(st.builds(FinalLogState, u62, u62, lives, sets, lives))
def test_states_round_trip(state: FinalLogState) -> None:
    assert wire.decode_state(wire.encode_state(state)) == state


@given(st.binary(max_size=80))
def test_no_bytes_make_a_value_or_a_state_fail(data: bytes) -> None:
    value, state = wire.decode_value(data), wire.decode_state(data)
    assert value is None or len(wire.encode_value(value)) <= len(data)
    assert state is None or wire.decode_state(wire.encode_state(state)) == state


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=5))
def test_given_messages_round_trip(given_messages: list[bytes]) -> None:
    data = wire.encode_messages(given_messages)
    assert wire.decode_messages(data, len(given_messages)) == given_messages
    assert wire.decode_messages(data, len(given_messages) + 1) is None
