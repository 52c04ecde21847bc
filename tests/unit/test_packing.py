"""Packing: full frames leave at once, the rest waits for the mark; the reservation covers the worst load."""

from typing import Any

import pytest

from unisono.errors import InvalidOption
from unisono.model.policy import Policy
from unisono.model.rates import Rate
from unisono.model.timing import Timing
from unisono.model.views import View
from unisono.orders.packing import FramePayload, Packer, frames_per_slot, reservation
from unisono.wire.frame import FRAME_NUMBER_MAX, HEADER_BYTES, UDP_IP_BYTES
from unisono.wire.packed_messages import PACKED_HEADER_BYTES, SIZE_ENTRY_BYTES

MS = 1_000_000
FRAME = 300
ROOM = FRAME - HEADER_BYTES - PACKED_HEADER_BYTES


def policy(rate: Rate, **changes: Any) -> Policy:
    fields: dict[str, Any] = {"max_frame": FRAME, "max_message": 100}
    fields.update(changes)
    return Policy("g", 1, View((1,)), Timing(10 * MS, 2 * MS, 5 * MS), rate, **fields)


def shape(load: FramePayload) -> str:
    if load.packed_messages is not None:
        return f"{'uniform' if load.packed_messages.same_size else 'mixed'} {list(load.packed_messages.sizes())}"
    assert load.fragment is not None
    return f"piece {len(load.fragment)}{'+' if load.has_more_fragments else ''}"


def test_what_does_not_fill_a_frame_is_held_back() -> None:
    packer = Packer(FRAME)
    assert packer.flush() is None
    assert packer.add([b"ab", b"cd"], [2, 2]) == []
    rest = packer.flush()
    assert rest is not None
    assert (shape(rest), rest.messages_completed) == ("uniform [2, 2]", 2)
    assert packer.flush() is None, "it is handed out once"


def test_a_frame_is_full_when_the_next_message_does_not_fit() -> None:
    packer = Packer(FRAME)
    size = ROOM // 2 - SIZE_ENTRY_BYTES
    assert packer.add([bytes(size)] * 2, [size] * 2) == []
    (full,) = packer.add([b""], [0])
    assert full.messages_completed == 2
    rest = packer.flush()
    assert rest is not None
    assert shape(rest) == "uniform [0]"


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([ROOM - SIZE_ENTRY_BYTES], f"uniform [{ROOM - SIZE_ENTRY_BYTES}]"),
        ([ROOM - SIZE_ENTRY_BYTES + 1], f"piece {ROOM - SIZE_ENTRY_BYTES + 1}"),
        ([ROOM + PACKED_HEADER_BYTES], f"piece {ROOM + PACKED_HEADER_BYTES}"),
        ([ROOM + PACKED_HEADER_BYTES + 1], f"piece {ROOM + PACKED_HEADER_BYTES}+, piece 1"),
        ([1, ROOM + PACKED_HEADER_BYTES, 2], f"uniform [1], piece {ROOM + PACKED_HEADER_BYTES}, uniform [2]"),
        ([3, 3, 3], "uniform [3, 3, 3]"),
        ([3, 4], "mixed [3, 4]"),
        ([0, 0], "uniform [0, 0]"),
    ],
)
def test_messages_become_runs_or_pieces(sizes: list[int], expected: str) -> None:
    packer = Packer(FRAME)
    loads = packer.add([bytes(size) for size in sizes], sizes)
    rest = packer.flush()
    assert ", ".join(map(shape, [*loads, *([rest] if rest else [])])) == expected


def test_calls_of_one_size_make_a_uniform_run_and_of_two_a_mixed_one() -> None:
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


def test_a_small_message_before_each_message_in_pieces_is_the_worst_load() -> None:
    """Three frames for little more than one frame's payload."""
    sizes = [1, ROOM + PACKED_HEADER_BYTES + 1] * 20
    packer = Packer(FRAME)
    loads = packer.add([bytes(size) for size in sizes], sizes)
    assert len(loads) == 60
    rate = Rate(50, len(sizes), sum(sizes))
    assert frames_per_slot(rate, max(sizes), FRAME) >= len(loads) + 1


def test_the_reservation_adds_one_frame_per_slot_to_the_average() -> None:
    """Theorem 3, in bytes: the dummy is a header per Θ."""
    slow, fast = (reservation(policy(Rate(avg, 100)), Rate(avg, 100)).avg_bytes_per_s for avg in (1, 2))
    header = HEADER_BYTES + PACKED_HEADER_BYTES + UDP_IP_BYTES
    per_message = fast - slow
    assert per_message == 100 + SIZE_ENTRY_BYTES + header
    assert slow - per_message == header * 200 + 1


def test_the_average_never_exceeds_the_peak() -> None:
    promised = reservation(policy(Rate(1e9, 1)), Rate(1e9, 1))
    assert promised.avg_bytes_per_s <= promised.peak_bytes_per_s + 1


def test_a_slot_that_would_need_more_frames_than_have_numbers_is_refused() -> None:
    rate = Rate(50, 2**20)
    assert frames_per_slot(rate, 100, FRAME) > FRAME_NUMBER_MAX
    with pytest.raises(InvalidOption, match=r"rate\.burst") as caught:
        reservation(policy(rate), rate)
    assert caught.value.field == "rate.burst"
