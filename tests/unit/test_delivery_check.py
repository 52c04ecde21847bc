"""The check of deliveries at run time: what it lets through, and what it stops."""

from __future__ import annotations

import pickle

import pytest

from unisono.errors import InvariantViolated
from unisono.model.events import Batch, NoticeKind, Rejoining
from unisono.model.grades import Grade
from unisono.orders.delivery_check import DeliveryCheck


def batch(
    slot: int, position: int, index: int, count: int = 1, *, sender: int = 1, first: int = 0, grade: Grade | None = None
) -> Batch:
    return Batch(sender, 0, slot, first, position, index, count, [], grade=grade)


def check(*batches: Batch, sender_order: bool = True) -> None:
    DeliveryCheck(7, sender_order=sender_order).check(batches)


def test_slots_positions_and_indices_that_grow_are_right() -> None:
    check(batch(5, 10, 40, 3), batch(5, 13, 43, 1, sender=2, first=9), batch(8, 2, 44, 2, first=3))


@pytest.mark.parametrize(
    ("second", "invariant"),
    [
        (batch(4, 50, 43, sender=2), "order"),
        (batch(5, 12, 43, sender=2), "order"),
        (batch(6, 0, 44, sender=2), "index"),
        (batch(6, 0, 42, sender=2), "index"),
        (batch(6, 0, 43, first=2), "duplicate"),
    ],
)
def test_a_delivery_that_may_not_follow_is_stopped(second: Batch, invariant: str) -> None:
    with pytest.raises(InvariantViolated) as stopped:
        check(batch(5, 10, 40, 3), second)
    assert (stopped.value.invariant, stopped.value.member) == (invariant, 7)


def test_with_priorities_a_later_message_of_a_sender_may_come_first() -> None:
    swapped = batch(1, 0, 0, first=1), batch(2, 0, 1, first=0)
    check(*swapped, sender_order=False)
    with pytest.raises(InvariantViolated, match="delivered twice or after a later one"):
        check(*swapped)


def test_each_grade_has_its_own_sequence() -> None:
    check(batch(5, 0, 0, grade=Grade.EARLY), batch(5, 0, 0, grade=Grade.FINAL))
    with pytest.raises(InvariantViolated, match="the order goes back"):
        check(batch(5, 0, 0, grade=Grade.EARLY), batch(5, 0, 0, grade=Grade.FINAL), batch(5, 0, 1, grade=Grade.EARLY))


def test_a_member_that_rejoins_goes_on_from_the_state_of_another_one() -> None:
    checked = DeliveryCheck(7, sender_order=True)
    checked.check([batch(5, 0, 10)])
    checked.check([Rejoining(NoticeKind.REJOINING, "excluded", 7), batch(9, 0, 0)])
    with pytest.raises(InvariantViolated):
        checked.check([batch(9, 0, 1)])


def test_the_error_reaches_another_process_whole() -> None:
    error = InvariantViolated("index", 7, "the index of a delivery skips or repeats a number", "3", "5")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert (again.invariant, again.member, again.expected, again.found) == ("index", 7, "3", "5")
