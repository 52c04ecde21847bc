"""Packing under Hypothesis: order and content are kept, and no load exceeds its reservation (Theorem 3)."""

import random
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unisono.model.events import Batch, View
from unisono.model.policy import Policy
from unisono.model.timing import Timing
from unisono.model.units import NS_PER_S, Rate, UnlimitedNetwork
from unisono.orders.packing import FramePayload, Packer, frames_per_slot, reservation
from unisono.orders.vbr.order import VbrOrder
from unisono.wire.frame import (
    END_OF_SLOT,
    FIRST_FRAGMENT,
    FRAGMENT,
    HEADER_BYTES,
    MORE_FRAGMENTS,
    PACKED_HEADER_BYTES,
    UDP_IP_BYTES,
    Frame,
    Kind,
    encode,
)

MS = 1_000_000
T0 = 10**18


def capacity_of(max_frame: int) -> int:
    return max_frame - HEADER_BYTES - PACKED_HEADER_BYTES


def sizes_near(max_frame: int) -> st.SearchStrategy[int]:
    """Message sizes around the largest one that still fits, and small ones."""
    capacity = capacity_of(max_frame)
    edges = [
        0,
        1,
        2,
        capacity // 2,
        capacity // 2 + 1,
        *range(capacity - 4, capacity + 8),
        2 * capacity + 8,
        2 * capacity + 9,
        3 * capacity,
    ]
    return st.sampled_from(edges) | st.integers(0, 30)


@st.composite
def submissions(draw: st.DrawFn) -> tuple[int, list[list[bytes]]]:
    """A frame size, and the messages of each submit call."""
    max_frame = draw(st.sampled_from([256, 300, 1400]))
    size = sizes_near(max_frame)
    uniform = st.tuples(size, st.integers(1, 30)).map(lambda pair: [pair[0]] * pair[1])
    calls = draw(st.lists(st.lists(size, min_size=1, max_size=12) | uniform, min_size=1, max_size=8))
    letter = iter(range(10**6))
    return max_frame, [[bytes([next(letter) % 251]) * n for n in call] for call in calls]


def packed(max_frame: int, calls: list[list[bytes]]) -> list[FramePayload]:
    packer, payloads = Packer(max_frame), []
    for call in calls:
        payloads += packer.add(call, [len(message) for message in call])
    rest = packer.flush()
    return [*payloads, rest] if rest is not None else payloads


def datagram_of(payload: FramePayload) -> bytes:
    packed = payload.packed_messages
    return encode(Frame(Kind.DATA, 1, 1, 0, 5, 0, payload.flags, packed_messages=packed, body=payload.body), 7)


def unpacked(payloads: list[FramePayload]) -> list[bytes]:
    found: list[bytes] = []
    fragments: list[bytes] = []
    for payload in payloads:
        if payload.packed_messages is not None:
            assert not fragments, "no other message interrupts the fragments of one"
            found += payload.packed_messages.messages()
            assert payload.messages_completed == payload.packed_messages.count
            continue
        assert payload.flags & FRAGMENT
        assert bool(payload.flags & FIRST_FRAGMENT) == (not fragments)
        fragments.append(payload.encoded())
        has_more = bool(payload.flags & MORE_FRAGMENTS)
        assert payload.messages_completed == (0 if has_more else 1)
        if not has_more:
            found.append(b"".join(fragments))
            fragments = []
    assert not fragments
    return found


@settings(max_examples=300)
@given(submissions())
def test_packing_keeps_order_and_content_in_frames_that_fit(case: tuple[int, list[list[bytes]]]) -> None:
    max_frame, calls = case
    payloads = packed(max_frame, calls)
    assert unpacked(payloads) == [message for call in calls for message in call]
    assert all(len(datagram_of(payload)) <= max_frame for payload in payloads)
    packed_frames = [payload for payload in payloads if payload.packed_messages is not None]
    assert all(payload.packed_messages is None or payload.packed_messages.count for payload in packed_frames), (
        "no empty frames"
    )


@settings(max_examples=400)
@given(submissions())
def test_no_load_needs_more_frames_or_bytes_than_were_reserved(case: tuple[int, list[list[bytes]]]) -> None:
    """Theorem 3 in frames and bytes, with a rate that allows exactly this load."""
    max_frame, calls = case
    everything = [message for call in calls for message in call]
    largest = max(1, *map(len, everything))
    rate = Rate(1, len(everything), max(largest, sum(map(len, everything))))
    policy = Policy("g", 1, View((1,)), Timing(0, 0, 5 * MS), rate, max_frame=max_frame, max_message=largest)
    payloads = packed(max_frame, calls)
    mark = payloads[-1].packed_messages is None  # messages held back carry the mark, a fragment may not
    assert len(payloads) + mark <= frames_per_slot(rate, largest, max_frame)
    on_the_wire = sum(len(datagram_of(payload)) + UDP_IP_BYTES for payload in payloads) + mark * (
        HEADER_BYTES + UDP_IP_BYTES
    )
    assert on_the_wire <= reservation(policy, rate).burst_bytes_per_slot


@pytest.mark.parametrize("seed", range(40))
def test_a_sender_at_full_load_stays_within_its_reservation(seed: int) -> None:
    """Frames per slot, bytes per slot, and bytes over the averaging window, as the automaton sends them."""
    chance = random.Random(seed)
    max_frame = chance.choice([256, 1400])
    capacity = capacity_of(max_frame)
    largest = chance.choice([10, 100, capacity - 2, capacity + 5, 3 * capacity])
    burst = chance.choice([1, 2, 3, 7, 40])
    theta = 100 * MS
    rate = Rate(chance.choice([5, 30, 1e5]), burst, chance.choice([None, largest * (burst // 2 + 1)])).reduced_to(theta)
    policy = Policy("g", 1, View((1,)), Timing(0, 0, theta), rate, max_frame=max_frame, max_message=largest)
    vbr = VbrOrder(policy, UnlimitedNetwork())
    vbr.wake(T0)
    accepted: list[bytes] = []
    slots = range(policy.timing.smax(T0), policy.timing.smax(T0) + 3 * min(20, rate.averaging_slots(theta)))
    small = chance.random() < 0.5
    for slot in slots:
        now = policy.timing.start_of(slot)
        vbr.wake(now)
        for _ in range(chance.randint(1, 6)):
            sizes = [chance.choice([0, 1, largest, chance.randint(0, largest)]) for _ in range(chance.randint(0, 20))]
            if small:
                sizes = [min(size, 3) for size in sizes]
            messages = [bytes(size) for size in sizes]
            accepted += messages[: vbr.submit(now, messages)]
    vbr.wake(policy.timing.end_of(slots[-1]))

    promised = reservation(policy, rate)
    frames: dict[int, int] = defaultdict(int)
    wire: dict[int, int] = defaultdict(int)
    marks: dict[int, int] = defaultdict(int)
    for frame in vbr.down:
        if frame.kind is Kind.DATA:
            datagram = encode(frame, 7)
            assert len(datagram) <= max_frame
            assert frame.number == frames[frame.slot]
            frames[frame.slot] += 1
            marks[frame.slot] += bool(frame.flags & END_OF_SLOT)
            wire[frame.slot] += len(datagram) + UDP_IP_BYTES
    assert set(frames) == set(slots)
    assert all(count == 1 for count in marks.values())
    assert max(frames.values()) <= frames_per_slot(rate, largest, max_frame)
    assert max(wire.values()) <= promised.burst_bytes_per_slot
    window = rate.averaging_slots(theta)
    for start in slots:
        total = sum(wire.get(slot, 0) for slot in range(start, start + window))
        assert total * NS_PER_S <= promised.avg_bytes_per_s * window * theta
    assert [m for event in vbr.events if isinstance(event, Batch) for m in event.messages] == accepted
