"""Packing under Hypothesis: order and content are kept, and no load exceeds what was reserved (Theorem 3)."""

import random
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unisono.model.durations import NS_PER_S
from unisono.model.events import Batch
from unisono.model.policy import Policy
from unisono.model.rates import Rate, UnlimitedNetwork
from unisono.model.timing import Timing
from unisono.model.views import View
from unisono.orders.packing import FramePayload, Packer, frames_per_slot, reservation
from unisono.orders.vbr.order import Vbr
from unisono.wire.frame import END_OF_SLOT, FRAGMENT, HEADER_BYTES, MORE_FRAGMENTS, UDP_IP_BYTES, Frame, Kind, encode
from unisono.wire.packed_messages import PACKED_HEADER_BYTES

MS = 1_000_000
T0 = 10**18


def room_of(max_frame: int) -> int:
    return max_frame - HEADER_BYTES - PACKED_HEADER_BYTES


def sizes_near(max_frame: int) -> st.SearchStrategy[int]:
    """Sizes at the edges where a message stops fitting, and small ones."""
    room = room_of(max_frame)
    edges = [0, 1, 2, room // 2, room // 2 + 1, *range(room - 4, room + 8), 2 * room + 8, 2 * room + 9, 3 * room]
    return st.sampled_from(edges) | st.integers(0, 30)


@st.composite
def offered(draw: st.DrawFn) -> tuple[int, list[list[bytes]]]:
    """A frame size, and what is submitted call by call."""
    max_frame = draw(st.sampled_from([256, 300, 1400]))
    size = sizes_near(max_frame)
    uniform = st.tuples(size, st.integers(1, 30)).map(lambda pair: [pair[0]] * pair[1])
    calls = draw(st.lists(st.lists(size, min_size=1, max_size=12) | uniform, min_size=1, max_size=8))
    letter = iter(range(10**6))
    return max_frame, [[bytes([next(letter) % 251]) * n for n in call] for call in calls]


def packed(max_frame: int, calls: list[list[bytes]]) -> list[FramePayload]:
    packer, loads = Packer(max_frame), []
    for call in calls:
        loads += packer.add(call, [len(message) for message in call])
    rest = packer.flush()
    return [*loads, rest] if rest is not None else loads


def datagram_of(load: FramePayload) -> bytes:
    flags = 0 if load.fragment is None else FRAGMENT | (MORE_FRAGMENTS if load.has_more_fragments else 0)
    return encode(
        Frame(Kind.DATA, 1, 1, 0, 5, 0, flags, packed_messages=load.packed_messages, body=load.fragment or b""), 7
    )


def unpacked(loads: list[FramePayload]) -> list[bytes]:
    found: list[bytes] = []
    pieces: list[bytes] = []
    for load in loads:
        if load.packed_messages is not None:
            assert not pieces, "a message in pieces is not interrupted"
            found += load.packed_messages.messages()
            assert load.messages_completed == load.packed_messages.count
            continue
        assert load.fragment is not None
        pieces.append(bytes(load.fragment))
        assert load.messages_completed == (0 if load.has_more_fragments else 1)
        if not load.has_more_fragments:
            found.append(b"".join(pieces))
            pieces = []
    assert not pieces
    return found


@settings(max_examples=300)
@given(offered())
def test_packing_keeps_order_and_content_in_frames_that_fit(case: tuple[int, list[list[bytes]]]) -> None:
    max_frame, calls = case
    loads = packed(max_frame, calls)
    assert unpacked(loads) == [message for call in calls for message in call]
    assert all(len(datagram_of(load)) <= max_frame for load in loads)
    neighbours = [load for load in loads if load.packed_messages is not None]
    assert all(load.packed_messages is None or load.packed_messages.count for load in neighbours), "no empty frames"


@settings(max_examples=400)
@given(offered())
def test_no_load_needs_more_frames_or_bytes_than_were_reserved(case: tuple[int, list[list[bytes]]]) -> None:
    """Theorem 3 in frames and bytes, with a rate that allows this load and no more."""
    max_frame, calls = case
    everything = [message for call in calls for message in call]
    largest = max(1, *map(len, everything))
    rate = Rate(1e6, len(everything), max(largest, sum(map(len, everything))))
    policy = Policy("g", 1, View((1,)), Timing(0, 0, 5 * MS), rate, max_frame=max_frame, max_message=largest)
    loads = packed(max_frame, calls)
    mark = loads[-1].packed_messages is None  # a held-back rest carries the mark, a piece may not
    assert len(loads) + mark <= frames_per_slot(rate, largest, max_frame)
    on_the_wire = sum(len(datagram_of(load)) + UDP_IP_BYTES for load in loads) + mark * (HEADER_BYTES + UDP_IP_BYTES)
    assert on_the_wire <= reservation(policy, rate).burst_bytes_per_slot


@pytest.mark.parametrize("seed", range(40))
def test_a_sender_at_full_load_stays_within_its_reservation(seed: int) -> None:
    """Frames, bytes per slot, and bytes over the averaging window, as the automaton really sends them."""
    chance = random.Random(seed)
    max_frame = chance.choice([256, 1400])
    room = room_of(max_frame)
    largest = chance.choice([10, 100, room - 2, room + 5, 3 * room])
    burst = chance.choice([1, 2, 3, 7, 40])
    rate = Rate(chance.choice([5, 30, 1e5]), burst, chance.choice([None, largest * (burst // 2 + 1)]))
    theta = 100 * MS
    policy = Policy("g", 1, View((1,)), Timing(0, 0, theta), rate, max_frame=max_frame, max_message=largest)
    vbr = Vbr(policy, UnlimitedNetwork())
    vbr.wake(T0)
    sent: list[bytes] = []
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
            sent += messages[: vbr.submit(now, messages)]
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
    assert [m for event in vbr.events if isinstance(event, Batch) for m in event.messages] == sent
