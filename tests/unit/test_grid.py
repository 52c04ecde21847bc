"""Slots whose length changes: numbers go on, every clock reading is in one slot, and two that differ are told apart."""

from dataclasses import replace

import pytest

from unisono.model.slot_schedule import KEPT, Grid, Segment
from unisono.model.timing import Timing
from unisono.orders.vbr.slot_change import SlotChange, change_slot
from unisono.wire.control import decode_wish

MS = 1_000_000
TIMING = Timing(10 * MS, 2 * MS, 5 * MS)
GRID = Grid.of(TIMING)


def walked(grid: Grid, from_ns: int, to_ns: int) -> list[tuple[int, int]]:
    """Slots and their starts, one after the other."""
    slot, found = grid.slot_of(from_ns), []
    while grid.start_of(slot) < to_ns:
        found.append((slot, grid.start_of(slot)))
        slot = grid.after(slot)
    return found


def test_without_a_change_slots_are_the_clock_by_theta() -> None:
    for clock in (0, 1, 5 * MS - 1, 5 * MS, 1_700_000_000 * 1_000 * MS + 7):
        assert GRID.slot_of(clock) == TIMING.slot_of(clock)
        assert GRID.smax(clock) == TIMING.smax(clock)
    for slot in (0, 1, 77):
        assert (GRID.start_of(slot), GRID.end_of(slot)) == (TIMING.start_of(slot), TIMING.end_of(slot))
        assert GRID.after(slot) == slot + 1


@pytest.mark.parametrize("lengths", [(10,), (2,), (10, 2), (2, 10, 1), (7, 3, 11, 5)], ids=str)
def test_numbers_go_on_across_changes_and_every_instant_is_in_one_slot(lengths: tuple[int, ...]) -> None:
    grid, slot = GRID, 100
    for length in lengths:
        before = grid.start_of(slot)
        grid = grid.changed(slot, length * MS)
        assert (grid.start_of(slot), grid.theta_of(slot), grid.end_of(slot)) == (
            before,
            length * MS,
            before + length * MS,
        )
        slot += 9
    assert grid.changes == len(lengths)
    first = grid.segments[0].start_ns
    found = walked(grid, first, grid.last.start_ns + 50 * MS)
    assert [number for number, _ in found] == list(range(found[0][0], found[-1][0] + 1))
    for number, start in found:
        assert grid.slot_of(start) == number
        assert grid.slot_of(grid.end_of(number) - 1) == number
        assert grid.end_of(number) - start == grid.theta_of(number)


def test_only_what_matters_is_kept() -> None:
    grid = GRID
    for slot in range(100, 200, 10):
        grid = grid.changed(slot, (slot % 7 + 1) * MS)
    assert (len(grid.segments), grid.changes) == (KEPT, 10)


def test_numbers_that_are_left_out_take_no_time() -> None:
    grid = GRID.changed(100, 10 * MS).renumbered(110, 5000)
    assert grid.start_of(5000) == grid.end_of(109) == 600 * MS
    assert grid.after(109) == 5000
    assert grid.slot_of(600 * MS) == 5000
    assert grid.slot_of(600 * MS - 1) == 109
    assert grid.start_of(3000) == 600 * MS, "what lies between begins and ends there"
    assert walked(grid, 580 * MS, 620 * MS) == [(108, 580 * MS), (109, 590 * MS), (5000, 600 * MS), (5001, 610 * MS)]


def test_smax_looks_across_a_change() -> None:
    grid = GRID.changed(100, 2 * MS)
    assert grid.smax(499 * MS) == 100 + 6, "499 + 12 ms is in the sixth slot of 2 ms"
    assert grid.smax(480 * MS) == 99


def test_the_more_often_changed_slots_prevail_then_the_higher_numbers_then_the_shorter_ones() -> None:
    once, twice = GRID.changed(100, 2 * MS), GRID.changed(100, 20 * MS).changed(110, 20 * MS)
    now = 2_000 * MS
    assert once.slot_of(now) > twice.slot_of(now)
    assert twice.prevails(once, now)
    assert not once.prevails(twice, now)
    slow, quick = GRID.changed(100, 10 * MS), GRID.changed(100, 3 * MS)
    for clock in (490 * MS, 500 * MS, now):
        assert quick.prevails(slow, clock), "before the change as after it"
        assert not slow.prevails(quick, clock)
    assert not quick.prevails(quick, now)


def test_slots_agree_when_they_are_the_same_from_the_last_change_on() -> None:
    changed = GRID.changed(100, 10 * MS)
    forgetful = replace(changed, segments=changed.segments[-1:])
    later = replace(changed, segments=(Segment(105, 550 * MS, 10 * MS),))
    assert changed.agrees(forgetful)
    assert changed.agrees(later)
    assert not changed.agrees(GRID)
    assert not changed.agrees(GRID.changed(101, 10 * MS))
    assert changed.same_until(GRID) == changed.changed(120, 2 * MS).same_until(GRID) == 100
    assert GRID.same_until(changed) is None
    assert changed.same_until(changed.changed(120, 2 * MS).changed(130, MS)) is None


def test_of_two_changes_of_the_same_slots_the_first_prevails_and_takes_the_other_s_place() -> None:
    """The wish for it came first in the order: who agreed on the other one had not delivered it."""
    first, second = GRID.changed(100, 10 * MS), GRID.changed(101, 2 * MS)
    for clock in (490 * MS, 502 * MS, 2_000 * MS):
        assert first.prevails(second, clock)
        assert not second.prevails(first, clock)
    assert first.same_until(second) == second.same_until(first) == 100
    other = GRID.changed(90, 5 * MS).changed(101, 2 * MS)
    assert other.same_until(first.changed(120, 2 * MS)) is None, "these have parted before"
    ahead = GRID.renumbered(100, 5000)
    assert ahead.prevails(first, 490 * MS), "numbers that were left out are not used again"


def test_who_was_granted_slots_that_others_took_the_place_of_asks_again() -> None:
    change = SlotChange()
    change.asked = 2 * MS
    granted, asked = GRID.changed(101, 2 * MS), []
    for grid in (granted, GRID.changed(100, 10 * MS), granted):
        change.agreed(grid)
        asked.append(change.asked)
        assert change.wish(99, grid) is None, "not before the change is in effect"
    assert asked == [None, 2 * MS, None]
    assert change.wish(101, granted) is None
    change.agreed(granted.changed(110, 10 * MS).changed(120, 5 * MS).changed(130, 10 * MS))
    assert change.asked is None, "it was in effect"


@pytest.mark.parametrize("timing", [TIMING, Timing(0, 0, 5 * MS), Timing(10 * MS, 0, 5 * MS), Timing(1, 1, 7 * MS)])
def test_a_change_takes_effect_at_the_first_slot_that_everybody_is_told_before(timing: Timing) -> None:
    grid = Grid.of(timing)
    for slot in (0, 1, 40):
        told_ns = grid.end_of(slot) + 2 * timing.delta_ns + 3 * timing.gamma_ns
        effect = change_slot(grid, slot)
        assert grid.start_of(effect) >= told_ns > grid.start_of(effect - 1)


def test_of_several_wishes_the_first_member_s_holds_and_the_others_wish_again() -> None:
    first, second = SlotChange(), SlotChange()
    first.asked, second.asked = 10 * MS, 2 * MS
    bodies = {member: change.wish(50, GRID) for member, change in ((3, first), (8, second))}
    assert [decode_wish(body or b"") for body in bodies.values()] == [10 * MS, 2 * MS]
    grids = []
    for change in (first, second):
        for member in (3, 8):
            change.heard(member, decode_wish(bodies[member] or b"") or 0)
        grid = change.decide(50, GRID)
        assert grid is not None
        change.agreed(grid)
        grids.append(grid)
    assert grids[0] == grids[1]
    (changed, _) = grids
    assert changed.last.theta_ns == 10 * MS
    assert [change.asked for change in (first, second)] == [None, 2 * MS]
    for slot in range(51, changed.last.first_slot):
        assert second.wish(slot, changed) is None, "not before the change is in effect"
    assert decode_wish(second.wish(changed.last.first_slot, changed) or b"") == 2 * MS
    assert second.wish(changed.last.first_slot + 1, changed) is None, "once"


def test_a_wish_of_a_slot_before_a_change_in_waiting_is_void() -> None:
    change = SlotChange()
    waiting = GRID.changed(100, 10 * MS)
    change.heard(4, 2 * MS)
    assert change.decide(99, waiting) is None
    change.heard(4, 2 * MS)
    assert change.decide(100, waiting) is not None
