"""Rqueue(j): frames wait by slot and number, in whatever order they arrive."""

from itertools import permutations

import pytest

from unisono.orders.packing import Rqueue
from unisono.wire.frame import END_OF_SLOT, Frame, Kind


def frame(slot: int, number: int, flags: int = 0) -> Frame:
    return Frame(Kind.DATA, 2, 1, 0, slot, number, flags)


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_frames_may_arrive_in_any_order(order: tuple[int, ...]) -> None:
    queue = Rqueue()
    arrived: set[int] = set()
    for number in order:
        assert queue.add(frame(7, number, END_OF_SLOT if number == 3 else 0))
        arrived.add(number)
        top = 3 if 3 in arrived else max(arrived)
        assert queue.slots[7].missing() == [n for n in range(top + 1) if n not in arrived]
    assert sorted(queue.slots[7].waiting) == [0, 1, 2, 3]
    assert not queue.slots[7].ended(), "a slot has ended when its frames are delivered, not when they have arrived"


def test_a_duplicate_is_recognized_before_and_after_delivery() -> None:
    queue = Rqueue()
    assert queue.add(frame(7, 0))
    assert not queue.add(frame(7, 0))
    slot = queue.slots[7]
    slot.waiting.pop(0)
    slot.next_number = 1
    assert not queue.add(frame(7, 0))
    assert queue.add(frame(7, 1, END_OF_SLOT))
    slot.waiting.pop(1)
    slot.next_number = 2
    assert slot.ended()
    assert slot.missing() == []
    assert not queue.add(frame(7, 1, END_OF_SLOT))


def test_frames_that_contradict_the_end_of_slot_mark_are_refused() -> None:
    queue = Rqueue()
    assert queue.add(frame(7, 2, END_OF_SLOT))
    assert not queue.add(frame(7, 3)), "beyond the end"
    assert not queue.add(frame(7, 1, END_OF_SLOT)), "a second end"
    assert queue.add(frame(7, 1))
    assert queue.add(frame(8, 3))
    assert not queue.add(frame(8, 2, END_OF_SLOT)), "an end before a frame that has arrived"
    assert queue.slots[8].last_number is None


def test_forget_before_drops_older_slots() -> None:
    queue = Rqueue()
    for slot in (5, 6, 7):
        queue.add(frame(slot, 0))
    queue.forget_before(6)
    assert sorted(queue.slots) == [6, 7]
