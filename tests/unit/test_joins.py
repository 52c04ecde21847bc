"""Joins that wait: several lives of one member, each from its slot on."""

from __future__ import annotations

from unisono.orders.vbr.expected_joins import Joins


def test_nobody_waits() -> None:
    joins = Joins()
    assert (joins.latest(2), joins.first_slot(2), joins.life_at(2, 10), joins.take(10)) == (-1, None, None, {})


def test_two_lives_of_one_member_wait_for_a_slot_each() -> None:
    joins = Joins()
    joins.expect(2, 10, 1)
    joins.expect(2, 19, 2)
    assert [joins.life_at(2, slot) for slot in (9, 10, 18, 19)] == [None, 1, 1, 2]
    assert (joins.latest(2), joins.first_slot(2)) == (2, 10)
    assert joins.take(9) == {}
    assert joins.take(10) == {2: 1}
    assert (joins.latest(2), joins.first_slot(2)) == (2, 19)
    assert joins.take(30) == {2: 2}
    assert not joins.waiting


def test_of_two_lives_for_the_same_slot_or_an_earlier_one_the_later_counts() -> None:
    joins = Joins()
    joins.expect(2, 10, 1)
    joins.expect(2, 10, 2)
    assert joins.waiting == {2: [(10, 2)]}
    joins.expect(2, 8, 3)
    assert joins.waiting == {2: [(8, 3)]}


def test_lives_that_are_due_together_are_the_last_one() -> None:
    joins = Joins()
    joins.expect(2, 10, 1)
    joins.expect(2, 12, 2)
    joins.expect(1, 11, 5)
    assert joins.take(12) == {1: 5, 2: 2}


def test_a_life_that_is_cancelled_leaves_the_others() -> None:
    joins = Joins()
    joins.expect(2, 10, 1)
    joins.expect(2, 19, 2)
    joins.cancel(2, 1)
    assert joins.waiting == {2: [(19, 2)]}
    joins.cancel(2, 2)
    joins.cancel(3, 1)
    assert not joins.waiting
