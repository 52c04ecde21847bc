"""The wire form of final deliveries: every message round trips, and malformed bytes are refused."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.model.message_set import MessageRange, MessageSet
from unisono.orders.final import messages as wire
from unisono.orders.final.messages import FinalLogState, FinalLogValue, Holdings, RecoveryReply, RecoveryRequest
from unisono.wire.codec import Unreadable, decode_message, encode_message
from unisono.wire.frame import Kind

u16, u32, u62 = st.integers(0, 0xFFFF), st.integers(0, 2**32 - 1), st.integers(0, 2**62)
message_ranges = st.builds(MessageRange, st.integers(0, 1000), u16, u32, u62, st.integers(1, 2**32 - 1))
several_ranges = st.lists(message_ranges, max_size=5).map(tuple)
incarnations = st.dictionaries(u16, u32, max_size=4)
ranges = st.builds(lambda first, more: ((first, first + more),), u62, st.integers(0, 99))
sets = st.dictionaries(st.tuples(u16, u32), ranges, max_size=4).map(MessageSet)


@st.composite
def replies(draw: st.DrawFn) -> RecoveryReply:
    part = draw(st.binary(min_size=1, max_size=30))
    message_range = draw(message_ranges)
    if message_range.length > 1:
        return RecoveryReply(message_range, len(part), 0, part)
    offset = draw(st.integers(0, 99))
    return RecoveryReply(message_range, offset + len(part) + draw(st.integers(0, 99)), offset, part)


messages = st.one_of(
    st.builds(Holdings, st.integers(1000, 2**62), u62, several_ranges),
    st.builds(RecoveryRequest, st.lists(message_ranges, min_size=1, max_size=5).map(tuple)),
    replies(),
    st.builds(
        lambda one: RecoveryReply(one, 0, 0, b"") if one.length == 1 else RecoveryRequest((one,)), message_ranges
    ),
)


@given(messages)
def test_messages_round_trip(message: wire.FinalsMessage) -> None:
    assert decode_message(*encode_message(message)) == message


@given(st.sampled_from([Kind.FINAL_REPORT, Kind.FINAL_REQUEST, Kind.FINAL_ANSWER]), st.binary(max_size=120))
def test_any_bytes_are_refused_or_are_the_encoding_of_a_message(kind: Kind, body: bytes) -> None:
    with suppress(Unreadable):
        assert encode_message(decode_message(kind, body)) == (kind, body)


@pytest.mark.parametrize(
    "message",
    [
        Holdings(7, 0, (MessageRange(8, 1, 1, 0, 1),)),
        Holdings(7, 0, (MessageRange(7, 1, 1, 0, 0),)),
        Holdings(7, 0, (MessageRange(7, 1, 1, 2**63 - 1, 2),)),
        Holdings(2**63, 0, ()),
        RecoveryRequest(()),
        RecoveryReply(MessageRange(7, 1, 1, 0, 1), 3, 1, b"abc"),
        RecoveryReply(MessageRange(7, 1, 1, 0, 1), 3, 1, b""),
        RecoveryReply(MessageRange(7, 1, 1, 0, 2), 5, 0, b"abc"),
        RecoveryReply(MessageRange(7, 1, 1, 0, 0), 0, 0, b""),
    ],
)
def test_contradictory_messages_are_refused(message: wire.FinalsMessage) -> None:
    with pytest.raises(Unreadable):
        decode_message(*encode_message(message))


@given(incarnations, several_ranges)
def test_values_round_trip(participants: dict[int, int], held: tuple[MessageRange, ...]) -> None:
    value = FinalLogValue(participants, held)
    assert wire.decode_value(wire.encode_value(value)) == value


@given(st.builds(FinalLogState, u62, u62, incarnations, sets, incarnations))
def test_states_round_trip(state: FinalLogState) -> None:
    data = wire.encode_state(state)
    assert wire.decode_state(data) == state
    for malformed in (data[:-1], data + b"\0"):
        with pytest.raises(Unreadable):
            wire.decode_state(malformed)


@given(st.binary(max_size=80))
def test_any_bytes_are_refused_or_are_a_value_or_a_state(data: bytes) -> None:
    with suppress(Unreadable):
        value = wire.decode_value(data)
        assert wire.decode_value(wire.encode_value(value)) == value
        assert len(wire.encode_value(value)) == len(data)
    with suppress(Unreadable):
        state = wire.decode_state(data)
        assert wire.decode_state(wire.encode_state(state)) == state
        assert len(wire.encode_state(state)) == len(data)


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=5))
def test_recovered_messages_round_trip(recovered: list[bytes]) -> None:
    data = wire.encode_messages(recovered)
    assert wire.decode_messages(data, len(recovered)) == recovered
    with pytest.raises(Unreadable):
        wire.decode_messages(data, len(recovered) + 1)
