"""Frames of membership: all of them round-trip, and other bytes are refused or decode to a valid message."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from unisono.agreement.membership import messages as wire
from unisono.agreement.membership.messages import (
    Acks,
    Flush,
    Flushed,
    LastMessage,
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
from unisono.wire.codec import Unreadable, decode_message, encode_message
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
    last = tuple(LastMessage(member, number, draw(members)) for member, number in sorted(received.items()))
    return LastMessages(draw(counts), last)


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


def check_refused_or_valid(kind: Kind, body: bytes) -> None:
    """The rows of a mapping may arrive in any order, so the message that was read may encode to other bytes."""
    try:
        decoded = decode_message(kind, body)
    except Unreadable:
        return
    assert decode_message(*encode_message(decoded)) == decoded


@given(messages)
def test_messages_round_trip(message: wire.MembershipMessage) -> None:
    assert decode_message(*encode_message(message)) == message


@given(messages, st.data())
def test_a_changed_body_is_refused_or_decodes_to_a_valid_message(
    message: wire.MembershipMessage, data: st.DataObject
) -> None:
    kind, body = encode_message(message)
    at = data.draw(st.integers(0, len(body)))
    for changed in (body[:at], body + b"\x00", body[:at] + b"\xff" + body[at + 1 :]):
        check_refused_or_valid(kind, changed)


@given(st.sampled_from(sorted(wire.SPECS)), st.binary(max_size=120))
def test_arbitrary_bytes_are_refused_or_decode_to_a_valid_message(kind: Kind, body: bytes) -> None:
    check_refused_or_valid(kind, body)


@given(st.builds(NextView, incarnations, vectors), bodies)
def test_next_views_round_trip(next_view: NextView, junk: bytes) -> None:
    assert decode_next_view(encode_next_view(next_view)) == next_view
    decoded = decode_next_view(junk)
    assert decoded is None or decode_next_view(encode_next_view(decoded)) == decoded
