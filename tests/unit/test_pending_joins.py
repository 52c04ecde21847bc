"""Pending joins: several incarnations of one member, each from its own slot on."""

from __future__ import annotations

from unisono.orders.vbr.failures import PendingJoins


def test_without_pending_joins_nothing_is_due() -> None:
    joins = PendingJoins()
    assert (joins.latest_incarnation(2), joins.first_slot(2), joins.incarnation_at(2, 10), joins.pop_due(10)) == (
        -1,
        None,
        None,
        {},
    )


def test_two_incarnations_of_one_member_are_pending_for_different_slots() -> None:
    joins = PendingJoins()
    joins.add(2, 10, 1)
    joins.add(2, 19, 2)
    assert [joins.incarnation_at(2, slot) for slot in (9, 10, 18, 19)] == [None, 1, 1, 2]
    assert (joins.latest_incarnation(2), joins.first_slot(2)) == (2, 10)
    assert joins.pop_due(9) == {}
    assert joins.pop_due(10) == {2: 1}
    assert (joins.latest_incarnation(2), joins.first_slot(2)) == (2, 19)
    assert joins.pop_due(30) == {2: 2}
    assert not joins.pending


def test_a_later_incarnation_replaces_pending_ones_at_the_same_or_a_later_slot() -> None:
    joins = PendingJoins()
    joins.add(2, 10, 1)
    joins.add(2, 10, 2)
    assert joins.pending == {2: [(10, 2)]}
    joins.add(2, 8, 3)
    assert joins.pending == {2: [(8, 3)]}


def test_of_incarnations_due_together_the_last_one_counts() -> None:
    joins = PendingJoins()
    joins.add(2, 10, 1)
    joins.add(2, 12, 2)
    joins.add(1, 11, 5)
    assert joins.pop_due(12) == {1: 5, 2: 2}


def test_cancelling_one_incarnation_keeps_the_others() -> None:
    joins = PendingJoins()
    joins.add(2, 10, 1)
    joins.add(2, 19, 2)
    joins.cancel(2, 1)
    assert joins.pending == {2: [(19, 2)]}
    joins.cancel(2, 2)
    joins.cancel(3, 1)
    assert not joins.pending
