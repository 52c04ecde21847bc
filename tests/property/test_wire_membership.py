"""Frames of membership: all of them round-trip, and no bytes make a decoder raise."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from unisono.agreement.membership import messages as wire
from unisono.agreement.membership.messages import (
    Acks,
    Flush,
    Flushed,
    LastMessages,
    MembershipRequest,
    MessageRequest,
    Multicast,
    NextView,
    NextViewDecided,
    Relayed,
    StateChunk,
    Unicast,
    decode_next_view,
    encode_next_view,
)
from unisono.wire.frame import Kind

members = st.integers(1, 0xFFFF)
numbers = st.integers(1, 2**63 - 1)
vectors = st.dictionaries(members, st.integers(0, 2**63 - 1), max_size=5)
incarnations = st.dictionaries(members, st.integers(0, 2**32 - 1), min_size=1, max_size=5)
bodies = st.binary(max_size=40)
counts = st.integers(0, 2**32 - 1)


@st.composite
def last_messages(draw: st.DrawFn) -> LastMessages:
    received = draw(vectors)
    return LastMessages(draw(counts), received, {member: draw(members) for member in received})


@st.composite
def message_requests(draw: st.DrawFn) -> MessageRequest:
    first = draw(st.integers(1, 2**62))
    return MessageRequest(draw(members), first, first + draw(st.integers(0, 9)))


@st.composite
def state_chunks(draw: st.DrawFn) -> StateChunk:
    part, offset = draw(bodies), draw(st.integers(0, 2**31))
    return StateChunk(draw(numbers), offset + len(part) + draw(st.integers(0, 9)), offset, draw(members), part)


messages = st.one_of(
    st.builds(Multicast, numbers, st.integers(0, 1), bodies),
    st.builds(Unicast, numbers, st.integers(0, 1), bodies),
    st.builds(Acks, vectors, vectors),
    st.builds(Flush, counts, incarnations),
    st.builds(Flushed, counts, st.booleans(), vectors),
    last_messages(),
    st.builds(MembershipRequest, st.booleans(), counts, numbers, members, counts),
    message_requests(),
    st.builds(Relayed, members, numbers, st.integers(0, 1), bodies),
    st.builds(NextViewDecided, numbers, st.binary(min_size=1, max_size=40)),
    state_chunks(),
)


@given(messages)
def test_messages_round_trip(message: wire.MembershipMessage) -> None:
    kind, body = wire.encode(message)
    assert wire.DECODERS[kind](body) == message


@given(messages, st.data())
def test_a_changed_body_does_not_make_a_decoder_raise(message: wire.MembershipMessage, data: st.DataObject) -> None:
    kind, body = wire.encode(message)
    at = data.draw(st.integers(0, len(body)))
    for changed in (body[:at], body + b"\x00", body[:at] + b"\xff" + body[at + 1 :]):
        decoded = wire.DECODERS[kind](changed)
        assert decoded is None or wire.DECODERS[kind](wire.encode(decoded)[1]) == decoded


@given(st.sampled_from(sorted(wire.DECODERS)), st.binary(max_size=120))
def test_no_bytes_make_a_decoder_raise(kind: Kind, body: bytes) -> None:
    decoded = wire.DECODERS[kind](body)
    assert decoded is None or wire.DECODERS[kind](wire.encode(decoded)[1]) == decoded


@given(st.builds(NextView, incarnations, vectors), bodies)
def test_next_views_round_trip(next_view: NextView, junk: bytes) -> None:
    assert decode_next_view(encode_next_view(next_view)) == next_view
    decoded = decode_next_view(junk)
    assert decoded is None or decode_next_view(encode_next_view(decoded)) == decoded
