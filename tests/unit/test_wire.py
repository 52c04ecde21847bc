"""The wire format: the header layout, control messages, and the door that refuses and counts malformed datagrams."""

import struct
from collections.abc import Callable
from dataclasses import replace

import pytest

from unisono.model.timing import Segment
from unisono.wire.codec import Unreadable, control_frame, decode_message, encode_message
from unisono.wire.control import MARK_REQUESTS, Echo, Hello, Join, JoinStep, MarkRequests, Probe, SeenPeer
from unisono.wire.door import Door, Refusal
from unisono.wire.frame import (
    END_OF_SLOT,
    FIRST_FRAGMENT,
    FRAGMENT,
    HEADER_BYTES,
    LEAVING,
    MIXED_SIZES,
    MORE_FRAGMENTS,
    SERIAL_AT,
    SERIAL_MAX,
    SETTING_REQUEST,
    SLOTS_MAY_DIFFER,
    VERSION,
    Frame,
    IncomingMessages,
    Kind,
    OutgoingMessages,
    ReassembledMessage,
    encode,
    read_packed_messages,
)

GROUP = 0xCAFEBABE
ME, PEER, STRANGER = 1, 2, 9
LATEST = 1000
HELLO = Hello(
    5_000_000, 10_000_000, 2_000_000, 77, 50.0, 8, 800, 900, True, (SeenPeer(1, 3, True), SeenPeer(4, 5, False))
)
_, HELLO_BODY = encode_message(HELLO)


def data_frame(messages: list[bytes] | None = None, flags: int = END_OF_SLOT, slot: int = 990) -> Frame:
    packed = OutgoingMessages(messages, same_size=False) if messages else None
    return Frame(Kind.DATA, PEER, 3, 4, slot, 5, flags, 8, 60, 7_000, packed)


def fragment_frame(body: bytes, flags: int) -> Frame:
    return Frame(Kind.DATA, PEER, 3, 4, 990, 5, flags, 8, 60, 7_000, body=body)


def datagram_of(kind: Kind, body: bytes, flags: int = 0) -> bytes:
    return encode(Frame(kind, PEER, 3, 4, 990, 0, flags, body=body), GROUP)


def door() -> Door:
    return Door(GROUP, ME, (ME, PEER, 3))


def admitted(datagram: bytes) -> Frame:
    at = door()
    frame = at.admit(datagram, 0, len(datagram), LATEST)
    assert frame is not None, at.refused
    assert not at.refused
    return frame


def test_the_layout_of_version_3() -> None:
    """Golden bytes: members that run other releases read them."""
    datagram = encode(data_frame([b"ab", b"c"], END_OF_SLOT | LEAVING), GROUP)
    assert datagram.hex(" ", -4) == (
        "03010300 00020005 cafebabe 00000004 00000003 00000008"  # version kind flags serial, sender number, group ...
        " 00000000 000003de 00000000 0000003c 00000000 00001b58"  # slot, first sequence, sent
        " 0002ffff 00020001 616263"  # count MIXED, sizes, messages
    )
    assert HEADER_BYTES == 48
    uniform = Frame(Kind.DATA, PEER, 3, 4, 990, 5, packed_messages=OutgoingMessages([b"ab", b"cd"], same_size=True))
    assert encode(uniform, GROUP)[HEADER_BYTES:].hex() == "0002000261626364"
    assert encode(data_frame(), GROUP)[HEADER_BYTES:] == b"", "an empty end-of-slot mark is only a header"


def test_every_field_of_a_data_frame_survives_a_round_trip() -> None:
    frame = admitted(encode(data_frame([b"ab", b""], END_OF_SLOT), GROUP))
    assert replace(frame, packed_messages=None) == data_frame()
    assert isinstance(frame.packed_messages, IncomingMessages)
    assert frame.packed_messages.messages() == [b"ab", b""]
    assert frame.is_end_of_slot


def test_empty_marks_and_fragments_survive_a_round_trip() -> None:
    mark = admitted(encode(data_frame(flags=END_OF_SLOT | LEAVING), GROUP))
    assert mark.packed_messages is None
    assert mark.body == b""
    for flags in (
        FRAGMENT,
        FRAGMENT | FIRST_FRAGMENT | MORE_FRAGMENTS,
        FRAGMENT | END_OF_SLOT,
        FRAGMENT | FIRST_FRAGMENT | END_OF_SLOT | LEAVING,
    ):
        fragment = admitted(encode(fragment_frame(b"part", flags), GROUP))
        assert fragment.packed_messages is None
        assert bytes(fragment.body) == b"part"
        assert fragment.flags == flags


def test_an_end_of_slot_mark_can_carry_a_slot_request() -> None:
    for flags in (SETTING_REQUEST | END_OF_SLOT, SETTING_REQUEST | END_OF_SLOT | LEAVING):
        frame = admitted(slot_request(flags, 5_000_000))
        assert (frame.packed_messages, frame.flags) == (None, flags)
        assert frame.message == MarkRequests(5_000_000)


SEGMENTS = (Segment(0, 0, 5_000_000), Segment(100, 500_000_000, 10_000_000))
JOIN = Join(5_000_000, 10_000_000, 2_000_000, 990, 50.0, 8, 800, JoinStep.ANSWER, 3, 1, SEGMENTS)


def test_a_hello_carries_the_options_that_all_members_must_share() -> None:
    hello = replace(HELLO, failures=True, fec_redundant=2, fec_shares=256, loss_burst=3, slot_changes=9)
    assert decode_message(*encode_message(hello)) == hello
    assert (hello.fec, HELLO.fec) == ((2, 256), None)


@pytest.mark.parametrize(
    "segments",
    [
        (Segment(0, 0, 999),),
        (Segment(0, 0, 2**62),),
        (Segment(2**62, 0, 5_000_000),),
        (Segment(5, 5, 5_000_000), Segment(5, 6, 5_000_000)),
        (Segment(5, 5, 5_000_000), Segment(6, 5, 5_000_000)),
        (),
        (*SEGMENTS, Segment(101, 600_000_000, 5_000_000), Segment(102, 700_000_000, 5_000_000)),
    ],
    ids=str,
)
def test_a_join_with_inconsistent_slots_is_refused(segments: tuple[Segment, ...]) -> None:
    assert decode_message(*encode_message(JOIN)) == JOIN
    with pytest.raises(Unreadable):
        decode_message(*encode_message(replace(JOIN, segments=segments)))


def patched(offset: int, layout: str, value: int) -> Callable[[], bytes]:
    def make() -> bytes:
        datagram = bytearray(encode(data_frame([b"ab", b"c"]), GROUP))
        struct.pack_into(layout, datagram, offset, value)
        return bytes(datagram)

    return make


def slot_request(flags: int, theta_ns: int) -> bytes:
    return encode(replace(data_frame(flags=flags), body=MARK_REQUESTS.encode(MarkRequests(theta_ns))), GROUP)


def with_packed(body: bytes, flags: int = END_OF_SLOT) -> Callable[[], bytes]:
    return lambda: encode(data_frame(flags=flags), GROUP) + body


def with_hello(offset: int, layout: str, value: float) -> Callable[[], bytes]:
    def make() -> bytes:
        body = bytearray(HELLO_BODY)
        struct.pack_into(layout, body, offset, value)
        return datagram_of(Kind.HELLO, bytes(body))

    return make


CRAFTED: list[tuple[str, Refusal, Callable[[], bytes]]] = [
    ("an empty datagram", Refusal.TRUNCATED, lambda: b""),
    ("half a header", Refusal.TRUNCATED, lambda: encode(data_frame(), GROUP)[: HEADER_BYTES - 1]),
    ("no body and no mark", Refusal.TRUNCATED, lambda: encode(data_frame(flags=0), GROUP)),
    ("version 0", Refusal.WRONG_VERSION, patched(0, "!B", 0)),
    ("next version", Refusal.WRONG_VERSION, patched(0, "!B", VERSION + 1)),
    ("kind 0", Refusal.UNKNOWN_KIND, patched(1, "!B", 0)),
    ("kind 255", Refusal.UNKNOWN_KIND, patched(1, "!B", 255)),
    ("a new flag", Refusal.UNKNOWN_FLAGS, patched(2, "!B", END_OF_SLOT | 0x80)),
    ("a slot request without the mark", Refusal.BAD_CONTROL, lambda: slot_request(SETTING_REQUEST, 5_000_000)),
    (
        "a slot request with a fragment",
        Refusal.BAD_CONTROL,
        lambda: slot_request(SETTING_REQUEST | END_OF_SLOT | FRAGMENT, 5_000_000),
    ),
    (
        "a slot request for too short slots",
        Refusal.BAD_CONTROL,
        lambda: slot_request(SETTING_REQUEST | END_OF_SLOT, 999),
    ),
    (
        "a slot request for too long slots",
        Refusal.BAD_CONTROL,
        lambda: slot_request(SETTING_REQUEST | END_OF_SLOT, 60_000_000_001),
    ),
    (
        "a truncated slot request",
        Refusal.BAD_CONTROL,
        lambda: slot_request(SETTING_REQUEST | END_OF_SLOT, 5_000_000)[:-1],
    ),
    (
        "an empty slot request",
        Refusal.BAD_CONTROL,
        lambda: encode(data_frame(flags=SETTING_REQUEST | END_OF_SLOT), GROUP),
    ),
    ("FIRST_FRAGMENT without FRAGMENT", Refusal.UNKNOWN_FLAGS, patched(2, "!B", FIRST_FRAGMENT)),
    ("MORE_FRAGMENTS without FRAGMENT", Refusal.UNKNOWN_FLAGS, patched(2, "!B", MORE_FRAGMENTS)),
    (
        "MORE_FRAGMENTS without FRAGMENT, no body",
        Refusal.UNKNOWN_FLAGS,
        lambda: encode(data_frame(flags=MORE_FRAGMENTS), GROUP),
    ),
    ("LEAVING without END_OF_SLOT", Refusal.UNKNOWN_FLAGS, patched(2, "!B", LEAVING)),
    ("SLOTS_MAY_DIFFER without END_OF_SLOT", Refusal.UNKNOWN_FLAGS, patched(2, "!B", SLOTS_MAY_DIFFER)),
    (
        "LEAVING without END_OF_SLOT in a fragment",
        Refusal.UNKNOWN_FLAGS,
        lambda: encode(fragment_frame(b"x", FRAGMENT | LEAVING), GROUP),
    ),
    ("another group", Refusal.WRONG_GROUP, lambda: encode(data_frame([b"x"]), GROUP ^ 1)),
    ("an unknown sender", Refusal.NOT_A_MEMBER, patched(4, "!H", STRANGER)),
    ("member 0", Refusal.NOT_A_MEMBER, patched(4, "!H", 0)),
    ("the receiver itself", Refusal.OWN_DATAGRAM, patched(4, "!H", ME)),
    ("a slot ahead of time", Refusal.IMPLAUSIBLE_SLOT, patched(24, "!Q", LATEST + 1)),
    ("the largest slot number", Refusal.IMPLAUSIBLE_SLOT, patched(24, "!Q", 2**64 - 1)),
    ("a sequence out of range", Refusal.IMPLAUSIBLE_SLOT, patched(32, "!Q", 2**63)),
    ("a clock reading out of range", Refusal.IMPLAUSIBLE_SLOT, patched(40, "!Q", 2**63)),
    ("packed messages without a header", Refusal.INCONSISTENT_LENGTHS, with_packed(b"\0\1\0")),
    ("no packed messages", Refusal.INCONSISTENT_LENGTHS, with_packed(struct.pack("!HH", 0, 0))),
    ("no packed messages, mixed sizes", Refusal.INCONSISTENT_LENGTHS, with_packed(struct.pack("!HH", 0, MIXED_SIZES))),
    ("uniform, one byte short", Refusal.INCONSISTENT_LENGTHS, with_packed(struct.pack("!HH", 2, 3) + b"12345")),
    ("uniform, one byte over", Refusal.INCONSISTENT_LENGTHS, with_packed(struct.pack("!HH", 2, 3) + b"1234567")),
    ("empty messages with a byte", Refusal.INCONSISTENT_LENGTHS, with_packed(struct.pack("!HH", 2, 0) + b"1")),
    ("a truncated table of sizes", Refusal.INCONSISTENT_LENGTHS, with_packed(struct.pack("!HHH", 2, MIXED_SIZES, 0))),
    (
        "mixed, one byte short",
        Refusal.INCONSISTENT_LENGTHS,
        with_packed(struct.pack("!HHHH", 2, MIXED_SIZES, 1, 2) + b"12"),
    ),
    (
        "mixed, one byte over",
        Refusal.INCONSISTENT_LENGTHS,
        with_packed(struct.pack("!HHHH", 2, MIXED_SIZES, 1, 2) + b"1234"),
    ),
    ("an empty fragment", Refusal.BAD_FRAGMENT, lambda: encode(fragment_frame(b"", FRAGMENT), GROUP)),
    (
        "an empty last fragment",
        Refusal.BAD_FRAGMENT,
        lambda: encode(fragment_frame(b"", FRAGMENT | END_OF_SLOT), GROUP),
    ),
    (
        "a slot that ends inside a message",
        Refusal.BAD_FRAGMENT,
        lambda: encode(fragment_frame(b"x", FRAGMENT | MORE_FRAGMENTS | END_OF_SLOT), GROUP),
    ),
    ("an empty HELLO", Refusal.BAD_CONTROL, lambda: datagram_of(Kind.HELLO, b"")),
    (
        "a HELLO with flags",
        Refusal.BAD_CONTROL,
        lambda: datagram_of(Kind.HELLO, HELLO_BODY, END_OF_SLOT),
    ),
    (
        "a truncated HELLO",
        Refusal.BAD_CONTROL,
        lambda: datagram_of(Kind.HELLO, HELLO_BODY)[:-1],
    ),
    (
        "a HELLO with extra bytes",
        Refusal.BAD_CONTROL,
        lambda: datagram_of(Kind.HELLO, HELLO_BODY) + b"x",
    ),
    ("average not a number", Refusal.BAD_CONTROL, with_hello(28, "!d", float("nan"))),
    ("average infinite", Refusal.BAD_CONTROL, with_hello(28, "!d", float("inf"))),
    ("average zero", Refusal.BAD_CONTROL, with_hello(28, "!d", 0.0)),
    ("average negative", Refusal.BAD_CONTROL, with_hello(28, "!d", -1.0)),
    ("burst zero", Refusal.BAD_CONTROL, with_hello(36, "!I", 0)),
    ("no bytes per slot", Refusal.BAD_CONTROL, with_hello(40, "!Q", 0)),
    ("bytes per slot out of range", Refusal.BAD_CONTROL, with_hello(40, "!Q", 2**40)),
    ("a first slot out of range", Refusal.BAD_CONTROL, with_hello(48, "!Q", 2**63 // 5_000_000 + 1)),
    ("complete neither 0 nor 1", Refusal.BAD_CONTROL, with_hello(56, "!B", 2)),
    ("fewer peers than announced", Refusal.BAD_CONTROL, with_hello(57, "!H", 3)),
    ("more peers than announced", Refusal.BAD_CONTROL, with_hello(57, "!H", 1)),
    ("a PLAN in a stack that exchanges none", Refusal.UNKNOWN_KIND, lambda: datagram_of(Kind.PLAN, b"")),
    ("a short PROBE", Refusal.BAD_CONTROL, lambda: datagram_of(Kind.PROBE, b"1234567")),
    ("a long PROBE", Refusal.BAD_CONTROL, lambda: datagram_of(Kind.PROBE, b"123456789")),
    ("a PROBE out of range", Refusal.BAD_CONTROL, lambda: datagram_of(Kind.PROBE, b"\xff" * 8)),
    ("a short ECHO", Refusal.BAD_CONTROL, lambda: datagram_of(Kind.ECHO, bytes(23))),
    (
        "an ECHO out of range",
        Refusal.BAD_CONTROL,
        lambda: datagram_of(Kind.ECHO, bytes(16) + b"\xff" * 8),
    ),
    (
        "a PROBE with flags",
        Refusal.BAD_CONTROL,
        lambda: datagram_of(Kind.PROBE, bytes(8), END_OF_SLOT),
    ),
]


@pytest.mark.parametrize(("reason", "make"), [pytest.param(r, m, id=name) for name, r, m in CRAFTED])
def test_a_malformed_datagram_is_refused_and_counted_by_its_reason(reason: Refusal, make: Callable[[], bytes]) -> None:
    at, datagram = door(), make()
    for times in (1, 2):
        assert at.admit(datagram, 0, len(datagram), LATEST) is None
        assert at.refused == {reason: times}
    # The same inside a larger buffer: the surrounding bytes must not make it valid.
    inside = b"\x01" * 7 + datagram + b"\x00" * 60
    assert at.admit(inside, 7, 7 + len(datagram), LATEST) is None
    assert at.refused == {reason: 3}


def test_every_reason_has_a_crafted_datagram() -> None:
    elsewhere = {"bad share", "bad copy"}  # tested with their layers
    assert {reason.value for _, reason, _ in CRAFTED} == {reason.value for reason in Refusal} - elsewhere


def test_the_latest_plausible_slot_is_admitted() -> None:
    datagram = encode(data_frame([b"x"], slot=LATEST), GROUP)
    assert door().admit(datagram, 0, len(datagram), LATEST) is not None


def test_frames_are_read_in_place_from_a_larger_buffer() -> None:
    frames = [
        data_frame([b"ab", b"cde", b""]),
        data_frame(),
        fragment_frame(b"fragment", FRAGMENT),
        data_frame([b"z"] * 9),
    ]
    datagrams = [encode(frame, GROUP) for frame in frames]
    buffer, at, start = b"".join(datagrams), door(), 0
    for frame, datagram in zip(frames, datagrams, strict=True):
        got = at.admit(buffer, start, start + len(datagram), LATEST)
        start += len(datagram)
        assert got is not None
        assert (got.packed_messages.messages() if got.packed_messages else None) == (
            frame.packed_messages.messages() if frame.packed_messages else None
        )
        assert bytes(got.body) == frame.body
    assert start == len(buffer)
    assert not at.refused


def test_control_messages_survive_a_round_trip() -> None:
    for message in (HELLO, Probe(5), Echo(1, 2, 3), JOIN):
        frame = control_frame(message, PEER, 3, 4, slot=990)
        assert admitted(encode(frame, GROUP)) == frame


def test_outgoing_and_incoming_packed_messages_agree() -> None:
    for messages, uniform in (([b"ab", b"cd"], True), ([b"ab", b"c"], False), ([b"", b""], True)):
        outgoing = OutgoingMessages(messages, uniform)
        body = b"".join(outgoing.parts())
        incoming = read_packed_messages(b"..." + body + b"...", 3, 3 + len(body))
        assert incoming is not None
        for packed in (outgoing, incoming):
            assert packed.count == len(messages)
            assert list(packed.sizes()) == [len(m) for m in messages]
            assert packed.payload_bytes == sum(map(len, messages))
            assert packed.messages() == messages
    whole = ReassembledMessage([b"ab", memoryview(b"cde")])
    assert (whole.count, list(whole.sizes()), whole.payload_bytes, whole.messages()) == (1, [5], 5, [b"abcde"])


def test_the_serial_number_has_a_fixed_offset() -> None:
    frame = data_frame()
    for serial in (0, 1, SERIAL_MAX):
        datagram = b"xx" + encode(frame, GROUP, serial)
        assert datagram[2 + SERIAL_AT] == serial
        assert door().admit(datagram, 2, len(datagram), LATEST) is not None
