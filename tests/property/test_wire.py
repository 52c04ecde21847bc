"""The wire format under Hypothesis: frames survive a round trip; a mutated datagram is refused or still consistent."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.stepping import events, outgoing, wake_at

from unisono.model.events import Batch, View
from unisono.model.policy import Policy
from unisono.model.timing import Timing
from unisono.model.units import Rate, group_key, members_key
from unisono.orders.contract import Mode
from unisono.orders.vbr.order import VbrOrder
from unisono.stack import Stack, build
from unisono.wire.codec import Unreadable, control_frame, decode_message, encode_message
from unisono.wire.control import Echo, Hello, Probe, SeenPeer
from unisono.wire.door import Door
from unisono.wire.frame import (
    END_OF_SLOT,
    FIRST_FRAGMENT,
    FRAGMENT,
    HEADER_BYTES,
    LEAVING,
    MORE_FRAGMENTS,
    Frame,
    Kind,
    OutgoingMessages,
    encode,
)

MS = 1_000_000
TIMING = Timing(10 * MS, 2 * MS, 5 * MS)
T0 = 10**18
GROUP = group_key("g")
MEMBERS = (1, 2, 3)
ME = 1

CONTROL_KINDS = (Kind.HEARTBEAT, Kind.HELLO, Kind.JOIN, Kind.PROBE, Kind.ECHO, Kind.NEW_RATE, Kind.RESERVED, Kind.PLAN)

messages = st.lists(st.binary(max_size=40), min_size=1, max_size=30)
uniform_messages = st.integers(0, 40).flatmap(
    lambda n: st.lists(st.binary(min_size=n, max_size=n), min_size=1, max_size=30)
)
u16, u32, u63 = st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**63 - 1)


@st.composite
def data_frames(draw: st.DrawFn) -> Frame:
    frame = Frame(Kind.DATA, draw(st.sampled_from(MEMBERS[1:])), draw(u32), draw(u32), draw(u63), draw(u16))
    frame.burst, frame.first_sequence, frame.sent_ns = draw(u32), draw(u63), draw(u63)
    last = draw(st.sampled_from([END_OF_SLOT, END_OF_SLOT | LEAVING]))
    shape = draw(st.sampled_from(["mixed", "uniform", "fragment", "empty mark"]))
    if shape == "empty mark":
        frame.flags = last
    elif shape == "fragment":
        frame.flags = (
            FRAGMENT | draw(st.sampled_from([0, FIRST_FRAGMENT])) | draw(st.sampled_from([0, MORE_FRAGMENTS, last]))
        )
        frame.body = draw(st.binary(min_size=1, max_size=60))
    else:
        frame.flags = draw(st.sampled_from([0, last]))
        frame.packed_messages = (
            OutgoingMessages(draw(messages), False)
            if shape == "mixed"
            else OutgoingMessages(draw(uniform_messages), True)
        )
    return frame


def fields(frame: Frame) -> tuple[Any, ...]:
    return (
        frame.kind,
        frame.sender,
        frame.incarnation,
        frame.epoch,
        frame.slot,
        frame.number,
        frame.flags,
        frame.burst,
        frame.first_sequence,
        frame.sent_ns,
        frame.packed_messages.messages() if frame.packed_messages else None,
        bytes(frame.body),
    )


@given(data_frames(), st.binary(max_size=20), st.binary(max_size=20))
def test_a_data_frame_survives_a_round_trip_at_any_offset(frame: Frame, before: bytes, behind: bytes) -> None:
    datagram = encode(frame, GROUP)
    door = Door(GROUP, ME, MEMBERS)
    got = door.admit(before + datagram + behind, len(before), len(before) + len(datagram), 2**63)
    assert got is not None, door.refused
    assert fields(got) == fields(frame)


hellos = st.builds(
    Hello,
    st.integers(0, 2**32),
    u63,
    u63,
    u32,
    st.floats(1e-300, 1e11),
    st.integers(1, 2**32 - 1),
    st.integers(1, 2**40 - 1),
    st.integers(0, 2**30),
    st.booleans(),
    st.lists(st.builds(SeenPeer, u16, u32, st.booleans()), max_size=10).map(tuple),
)


@given(hellos)
def test_a_hello_survives_a_round_trip(hello: Hello) -> None:
    assert decode_message(*encode_message(hello)) == hello


@given(u63, u63, u63)
def test_probes_and_echoes_survive_a_round_trip(a: int, b: int, c: int) -> None:
    for message in (Probe(a), Echo(a, b, c)):
        assert decode_message(*encode_message(message)) == message


@settings(max_examples=300)
@given(st.sampled_from(CONTROL_KINDS), st.binary(max_size=120))
def test_random_bytes_are_refused_or_decode_to_a_control_message_that_encodes_again(kind: Kind, body: bytes) -> None:
    try:
        message = decode_message(kind, body)
    except Unreadable:
        return
    assert encode_message(message) == (kind, body)
    if isinstance(message, Hello):
        Rate(message.avg, message.burst, message.burst_bytes)


# -- mutated datagrams ---------------------------------------------------------------------------------------------


def corpus(slot: int, incarnation: int = 1) -> list[bytes]:
    """Valid datagrams from members 2 and 3, of every kind."""
    found = []
    for sender in (2, 3):
        for number, (flags, packed, body) in enumerate(
            [
                (0, OutgoingMessages([b"a" * 20] * 5, True), b""),
                (FRAGMENT | FIRST_FRAGMENT | MORE_FRAGMENTS, None, b"first part"),
                (FRAGMENT, None, b"second part"),
                (0, OutgoingMessages([b"", b"x", b"yy" * 30], False), b""),
                (END_OF_SLOT, OutgoingMessages([b"end"], False), b""),
            ]
        ):
            for s in (slot, slot + 1):
                frame = Frame(Kind.DATA, sender, incarnation, 0, s, number, flags, 8, number, T0, packed, body)
                found.append(encode(frame, GROUP))
        marks = (Frame(Kind.DATA, sender, incarnation, 0, s, 0, END_OF_SLOT, 8, 0, T0) for s in range(slot, slot + 3))
        found.extend(encode(mark, GROUP) for mark in marks)
        hello = Hello(5 * MS, 10 * MS, 2 * MS, members_key(MEMBERS), 50.0, 8, 800, slot, True, (SeenPeer(1, 1, True),))
        found.extend(
            encode(control_frame(message, sender, incarnation, 0, slot=slot, sent_ns=T0), GROUP)
            for message in (hello, Probe(T0), Echo(T0, T0 + 5, T0 + 6))
        )
    return found


def mutated(chance: random.Random, valid: list[bytes]) -> bytes:
    datagram = bytearray(chance.choice(valid))
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        mutation = chance.randrange(7)
        at = chance.randrange(len(datagram)) if datagram else 0
        if mutation == 0 and datagram:
            datagram[at] ^= 1 << chance.randrange(8)
        elif mutation == 1 and datagram:
            datagram[at] = chance.choice([0, 1, 0x7F, 0x80, 0xFF])
        elif mutation == 2:
            del datagram[at:]
        elif mutation == 3:
            datagram += chance.randbytes(chance.randint(1, 40))
        elif mutation == 4:
            other = chance.choice(valid)
            datagram[at:] = other[chance.randrange(len(other)) :]
        elif mutation == 5:
            datagram[at:at] = chance.randbytes(chance.randint(1, 3))
        elif len(datagram) > HEADER_BYTES:
            at = chance.randrange(HEADER_BYTES, len(datagram))
            datagram[at] = chance.randrange(256)
    return bytes(datagram)


def check_consistent(frame: Frame, datagram: bytes) -> None:
    """An admitted frame can be unpacked, and consists of the datagram's own bytes."""
    if frame.packed_messages is None:
        assert bytes(frame.body) == datagram[HEADER_BYTES:]
        return
    parts, sizes = frame.packed_messages.messages(), frame.packed_messages.sizes()
    assert frame.packed_messages.count == len(parts) == len(sizes) > 0
    assert [len(part) for part in parts] == list(sizes)
    assert sum(sizes) == frame.packed_messages.payload_bytes
    assert b"".join(parts) == datagram[len(datagram) - sum(sizes) :]
    assert len(datagram) - sum(sizes) >= HEADER_BYTES + 4


@pytest.mark.parametrize("seed", range(10))
def test_a_mutated_datagram_is_refused_and_counted_or_still_consistent(seed: int) -> None:
    chance = random.Random(seed)
    valid = corpus(1000)
    door, admitted = Door(GROUP, ME, MEMBERS), 0
    for case in range(3000):
        datagram = mutated(chance, valid) if chance.random() < 0.9 else chance.randbytes(chance.randint(0, 200))
        before = chance.randbytes(chance.randint(0, 9))
        refused = door.refused.total()
        frame = door.admit(before + datagram + b"\xff" * 60, len(before), len(before) + len(datagram), 2000)
        assert (frame is None) == (door.refused.total() == refused + 1), f"case {case}: {datagram.hex()}"
        if frame is not None:
            admitted += 1
            check_consistent(frame, datagram)
    assert 300 < admitted < 2700, "the mutations are neither all harmless nor all fatal"
    assert len(door.refused) >= 9


def stack_in(mode: Mode) -> tuple[Stack, int]:
    """A stack of member 1 in a mode, and the first slot that it delivers or would deliver."""
    stack = build(Policy("g", ME, View(MEMBERS), TIMING, Rate(1000, 8), max_message=100, probe_every_ns=50 * MS))
    first = TIMING.smax(T0)
    if mode is not Mode.GET_RATE:
        stack.wake(T0)
    if mode in {Mode.DELIVER_MESSAGES, Mode.LEFT}:
        for sender in (2, 3):
            hello = Hello(5 * MS, 10 * MS, 2 * MS, members_key(MEMBERS), 50.0, 8, 800, first, True, ())
            stack.receive(T0, encode(control_frame(hello, sender, 1, 0), GROUP))
    if mode is Mode.LEFT:
        now = TIMING.start_of(first)
        stack.leave(now)
        for sender in (2, 3):
            stack.receive(now, encode(Frame(Kind.DATA, sender, 1, 0, first, 0, END_OF_SLOT, 8), GROUP))
    assert isinstance(stack.order, VbrOrder)
    assert stack.order.mode is mode
    outgoing(stack)
    events(stack)
    return stack, first


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("seed", range(25))
def test_no_datagram_makes_a_stack_raise(mode: Mode, seed: int) -> None:
    chance = random.Random(f"{mode} {seed}")
    stack, first = stack_in(mode)
    valid = corpus(first)
    now, index = TIMING.start_of(first), 0
    for _ in range(160):
        datagram = mutated(chance, valid) if chance.random() < 0.8 else chance.choice(valid)
        refused = stack.door.refused.total()
        stack.receive(now, datagram, multicast=chance.random() < 0.5)
        assert stack.door.refused.total() in {refused, refused + 1}
        if chance.random() < 0.1:
            now += chance.choice([1, MS, 5 * MS])
            stack.wake(now)
            due = wake_at(stack)
            assert due is None or due > now, "a wake makes progress"
        if chance.random() < 0.1:
            stack.submit(now, [b"own"])
        for event in events(stack):
            if isinstance(event, Batch):
                assert [len(m) for m in event.messages] == event.sizes()
                assert event.count == len(event.messages)
                assert event.first_index == index, "every delivery has the next index"
                index += event.count
        for out in outgoing(stack):
            peer = Door(GROUP, 2, MEMBERS)
            got = peer.admit(out.data, 0, len(out.data), 2**63)
            assert got is not None, "a stack sends only well-formed datagrams"
