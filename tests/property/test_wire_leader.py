"""Frames of the leader orders: all of them round-trip, and changed bytes are refused or mean what they say."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from unisono.orders.leader.messages import (
    MEMBER_LIST,
    ORDERED_BYTES,
    TERM_MAX,
    EntryHeader,
    EntryType,
    LastFrames,
    MemberList,
    MissingKind,
    Ordered,
    RetransmitRequest,
    StampRequest,
    StreamHeartbeat,
    Vote,
    VoteRequest,
    encode_entry_header,
)
from unisono.wire.codec import Unreadable, decode_message, encode_message, message_in
from unisono.wire.door import Door
from unisono.wire.frame import HEADER_BYTES, Frame, Kind, OutgoingMessages, encode

GROUP = 7
MEMBERS = (1, 2, 3, 4)
terms = st.integers(0, TERM_MAX)
numbers = st.integers(0, 2**63 - 1)
frame_numbers = st.integers(0, 0xFFFF)
last_frames = st.builds(LastFrames, frame_numbers, numbers, frame_numbers)


@st.composite
def votes(draw: st.DrawFn) -> Vote:
    last_term = draw(st.integers(0, TERM_MAX - 1))
    return Vote(draw(st.integers(last_term + 1, TERM_MAX)), draw(numbers), last_term)


@st.composite
def ordered(draw: st.DrawFn) -> Ordered:
    entry_type = draw(st.sampled_from(EntryType))
    previous_term, entry_term, term = sorted(draw(st.tuples(terms, terms, terms)))
    header = EntryHeader(
        term,
        0 if entry_type is EntryType.COPY else draw(st.integers(1, 2**63 - 1)),
        entry_term,
        previous_term,
        entry_type,
        draw(st.sampled_from(MEMBERS)),
        draw(terms),
        draw(numbers),
        draw(st.integers(1, 2**32 - 1)) if entry_type is EntryType.GRANT else 0,
        draw(numbers),
    )
    if entry_type is not EntryType.MEMBER_LIST:
        return Ordered(header)
    members = draw(st.sets(st.sampled_from(MEMBERS), min_size=1))
    return Ordered(header, MemberList(tuple(sorted(members)), tuple(draw(st.lists(last_frames, max_size=3)))))


messages = st.one_of(
    st.builds(StreamHeartbeat, terms, numbers, numbers, numbers, numbers, st.booleans(), st.booleans()),
    st.builds(VoteRequest, terms),
    votes(),
    st.builds(
        RetransmitRequest,
        terms,
        st.sampled_from(MissingKind),
        numbers,
        frame_numbers,
        frame_numbers,
        st.integers(1, 2**16 - 1),
    ),
    st.builds(StampRequest, numbers, numbers, st.integers(1, 2**32 - 1)),
)


def datagram(message: Ordered) -> bytes:
    """An ORDERED frame; a relayed or copied one contains two messages."""
    content = b""
    if message.member_list is not None:
        content = MEMBER_LIST.encode(message.member_list)
    elif message.header.entry_type is not EntryType.GRANT:
        content = b"".join(OutgoingMessages([b"one", b"three"], same_size=False).parts())
    return encode(
        Frame(Kind.ORDERED, 1, 1, 0, 5, 0, sent_ns=1, body=encode_entry_header(message.header) + content), GROUP
    )


def admitted(data: bytes) -> Frame | None:
    return Door(GROUP, 3, MEMBERS).admit(data, 0, len(data), 10)


@given(messages)
def test_control_messages_round_trip(message: object) -> None:
    kind, body = encode_message(message)
    assert decode_message(kind, body) == message


@given(messages, st.data())
def test_a_changed_control_message_is_unreadable_or_encodes_to_its_bytes(message: object, data: st.DataObject) -> None:
    kind, body = encode_message(message)
    at = data.draw(st.integers(0, len(body)))
    for changed in (body[:at], body + b"\x00", body[:at] + b"\xff" + body[at + 1 :]):
        try:
            decoded = decode_message(kind, changed)
        except Unreadable:
            continue
        assert encode_message(decoded) == (kind, changed)


@given(ordered())
def test_the_door_reads_the_message_of_an_ordered_frame(message: Ordered) -> None:
    frame = admitted(datagram(message))
    assert frame is not None
    assert frame.message == message
    has_messages = message.header.entry_type in {EntryType.RELAY, EntryType.COPY}
    assert (frame.packed_messages is not None) == has_messages
    if frame.packed_messages is not None:
        assert frame.packed_messages.messages() == [b"one", b"three"]


@given(ordered(), st.data())
def test_a_changed_ordered_frame_is_refused_or_encodes_to_its_bytes(message: Ordered, data: st.DataObject) -> None:
    original = datagram(message)
    at = data.draw(st.integers(HEADER_BYTES, len(original)))
    for changed in (original[:at], original + b"\x00", original[:at] + b"\xff" + original[at + 1 :]):
        frame = admitted(changed)
        if frame is None:
            continue
        body = changed[HEADER_BYTES:]
        header, member_list = message_in(frame, Ordered)
        assert encode_entry_header(header) == body[:ORDERED_BYTES]
        if member_list is not None:
            assert MEMBER_LIST.encode(member_list) == body[ORDERED_BYTES:]
