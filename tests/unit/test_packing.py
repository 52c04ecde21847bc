"""Packing: full frames leave at once, the rest with the end-of-slot mark; reservations cover the worst case."""

from typing import Any

import pytest

from unisono.errors import InvalidOption, MessageTooLarge, ReservationRefused
from unisono.model.events import View
from unisono.model.policy import Policy
from unisono.model.timing import Timing
from unisono.model.units import BandwidthReservation, Rate
from unisono.orders.packing import FramePayload, Packer, ReservedPacer, checked_sizes, frames_per_slot, reservation
from unisono.wire.frame import (
    FRAGMENT,
    FRAME_NUMBER_MAX,
    HEADER_BYTES,
    MORE_FRAGMENTS,
    PACKED_HEADER_BYTES,
    SIZE_ENTRY_BYTES,
    UDP_IP_BYTES,
)

MS = 1_000_000
FRAME = 300
CAPACITY = FRAME - HEADER_BYTES - PACKED_HEADER_BYTES


def policy(rate: Rate, **changes: Any) -> Policy:
    fields: dict[str, Any] = {"max_frame": FRAME, "max_message": 100}
    fields.update(changes)
    return Policy("g", 1, View((1,)), Timing(10 * MS, 2 * MS, 5 * MS), rate, **fields)


def shape(payload: FramePayload) -> str:
    if payload.packed_messages is not None:
        return f"{'uniform' if payload.packed_messages.same_size else 'mixed'} {list(payload.packed_messages.sizes())}"
    assert payload.flags & FRAGMENT
    return f"fragment {len(payload.body)}{'+' if payload.flags & MORE_FRAGMENTS else ''}"


def test_messages_that_do_not_fill_a_frame_are_held_back() -> None:
    packer = Packer(FRAME)
    assert packer.flush() is None
    assert packer.add([b"ab", b"cd"], [2, 2]) == []
    rest = packer.flush()
    assert rest is not None
    assert (shape(rest), rest.messages_completed) == ("uniform [2, 2]", 2)
    assert packer.flush() is None, "a second flush has nothing"


def test_a_frame_is_full_when_the_next_message_does_not_fit() -> None:
    packer = Packer(FRAME)
    size = CAPACITY // 2 - SIZE_ENTRY_BYTES
    assert packer.add([bytes(size)] * 2, [size] * 2) == []
    (full,) = packer.add([b""], [0])
    assert full.messages_completed == 2
    rest = packer.flush()
    assert rest is not None
    assert shape(rest) == "uniform [0]"


def test_pack_all_holds_nothing_back() -> None:
    packer = Packer(FRAME)
    messages = [bytes(CAPACITY), b"ab", b"c"]
    payloads = packer.pack_all(messages, [CAPACITY, 2, 1])
    assert [shape(payload) for payload in payloads] == [f"fragment {CAPACITY}", "mixed [2, 1]"]
    assert packer.flush() is None
    assert payloads[0].encoded() == messages[0]


def test_a_message_above_the_largest_size_is_refused() -> None:
    assert checked_sizes([b"ab", b""], 2) == [2, 0]
    with pytest.raises(MessageTooLarge):
        checked_sizes([b"ab", b"abc"], 2)


class Network:
    """Keeps the reservations, and refuses those with a larger burst than it has room for."""

    def __init__(self, room: int = 1 << 30) -> None:
        self.room = room
        self.reserved: list[BandwidthReservation] = []

    def reserve(self, asked: BandwidthReservation) -> None:
        if asked.burst_bytes_per_slot > self.room:
            raise ReservationRefused(asked.burst_bytes_per_slot, self.room, self.room)
        self.reserved.append(asked)


def bandwidth(rate: Rate) -> BandwidthReservation:
    return BandwidthReservation(int(rate.avg), rate.burst, 5 * MS)


def test_until_a_new_rate_is_in_force_the_larger_of_both_is_reserved() -> None:
    network = Network()
    pacer = ReservedPacer(policy(Rate(500, 10)), network, bandwidth)
    pacer.change_rate(Rate(1000, 5))
    pacer.enter_slot(7)
    assert [(each.avg_bytes_per_s, each.burst_bytes_per_slot) for each in network.reserved] == [
        (500, 10),
        (1000, 10),
        (1000, 5),
    ]
    assert (pacer.rate, pacer.next_rate, pacer.messages_left()) == (Rate(1000, 5), None, 5)
    pacer.enter_slot(8)
    assert len(network.reserved) == 3, "the rate has not changed again"


def test_a_refused_rate_changes_nothing() -> None:
    pacer = ReservedPacer(policy(Rate(1000, 10)), Network(room=10), bandwidth)
    with pytest.raises(ReservationRefused):
        pacer.change_rate(Rate(1000, 20))
    pacer.enter_slot(7)
    assert (pacer.rate, pacer.messages_left()) == (Rate(1000, 10), 10)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([CAPACITY - SIZE_ENTRY_BYTES], f"uniform [{CAPACITY - SIZE_ENTRY_BYTES}]"),
        ([CAPACITY - SIZE_ENTRY_BYTES + 1], f"fragment {CAPACITY - SIZE_ENTRY_BYTES + 1}"),
        ([CAPACITY + PACKED_HEADER_BYTES], f"fragment {CAPACITY + PACKED_HEADER_BYTES}"),
        ([CAPACITY + PACKED_HEADER_BYTES + 1], f"fragment {CAPACITY + PACKED_HEADER_BYTES}+, fragment 1"),
        (
            [1, CAPACITY + PACKED_HEADER_BYTES, 2],
            f"uniform [1], fragment {CAPACITY + PACKED_HEADER_BYTES}, uniform [2]",
        ),
        ([3, 3, 3], "uniform [3, 3, 3]"),
        ([3, 4], "mixed [3, 4]"),
        ([0, 0], "uniform [0, 0]"),
    ],
)
def test_messages_become_packed_frames_or_fragments(sizes: list[int], expected: str) -> None:
    packer = Packer(FRAME)
    payloads = packer.add([bytes(size) for size in sizes], sizes)
    rest = packer.flush()
    assert ", ".join(map(shape, [*payloads, *([rest] if rest else [])])) == expected


def test_a_frame_is_uniform_only_if_all_its_messages_have_one_size() -> None:
    packer = Packer(FRAME)
    packer.add([b"ab"], [2])
    packer.add([b"cd", b"ef"], [2, 2])
    rest = packer.flush()
    assert rest is not None
    assert shape(rest) == "uniform [2, 2, 2]"
    packer.add([b"ab"], [2])
    packer.add([b"c"], [1])
    packer.add([b"ef"], [2])
    rest = packer.flush()
    assert rest is not None
    assert shape(rest) == "mixed [2, 1, 2]"


def test_a_small_message_before_each_fragmented_one_needs_the_most_frames() -> None:
    """Three frames for little more than one frame's payload."""
    sizes = [1, CAPACITY + PACKED_HEADER_BYTES + 1] * 20
    packer = Packer(FRAME)
    payloads = packer.add([bytes(size) for size in sizes], sizes)
    assert len(payloads) == 60
    rate = Rate(50, len(sizes), sum(sizes))
    assert frames_per_slot(rate, max(sizes), FRAME) >= len(payloads) + 1


def test_the_reserved_average_includes_one_header_per_slot() -> None:
    """Theorem 3, in bytes: the dummy is a header per Θ."""
    slow, fast = (reservation(policy(Rate(avg, 100)), Rate(avg, 100)).avg_bytes_per_s for avg in (1, 2))
    header = HEADER_BYTES + PACKED_HEADER_BYTES + UDP_IP_BYTES
    per_message = fast - slow
    assert per_message == 100 + SIZE_ENTRY_BYTES + header
    assert slow - per_message == header * 200 + 1


def test_the_average_never_exceeds_the_peak() -> None:
    promised = reservation(policy(Rate(1e9, 1)), Rate(1e9, 1))
    assert promised.avg_bytes_per_s <= promised.needed_bytes_per_s + 1


def test_a_rate_that_needs_more_frames_per_slot_than_can_be_numbered_is_refused() -> None:
    rate = Rate(50, 2**20)
    assert frames_per_slot(rate, 100, FRAME) > FRAME_NUMBER_MAX
    with pytest.raises(InvalidOption, match=r"rate\.burst") as caught:
        reservation(policy(rate), rate)
    assert caught.value.field == "rate.burst"
