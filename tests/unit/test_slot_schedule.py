"""Changes of the slot length: numbers increase, every clock reading is in one slot, and conflicts are resolved."""

from dataclasses import replace

import pytest

from unisono.model.timing import SEGMENTS_MAX, Segment, SlotGrid, Timing
from unisono.orders.vbr.slots import SlotChange, effective_slot

MS = 1_000_000
TIMING = Timing(10 * MS, 2 * MS, 5 * MS)
GRID = SlotGrid.of(TIMING)


def walked(grid: SlotGrid, from_ns: int, to_ns: int) -> list[tuple[int, int]]:
    """Consecutive slots and their starts."""
    slot, found = grid.slot_of(from_ns), []
    while grid.start_of(slot) < to_ns:
        found.append((slot, grid.start_of(slot)))
        slot = grid.next_slot(slot)
    return found


def test_without_a_change_a_slot_is_the_clock_divided_by_theta() -> None:
    for clock in (0, 1, 5 * MS - 1, 5 * MS, 1_700_000_000 * 1_000 * MS + 7):
        assert GRID.slot_of(clock) == TIMING.slot_of(clock)
        assert GRID.smax(clock) == TIMING.smax(clock)
    for slot in (0, 1, 77):
        assert (GRID.start_of(slot), GRID.end_of(slot)) == (TIMING.start_of(slot), TIMING.end_of(slot))
        assert GRID.next_slot(slot) == slot + 1


@pytest.mark.parametrize("lengths", [(10,), (2,), (10, 2), (2, 10, 1), (7, 3, 11, 5)], ids=str)
def test_numbers_continue_across_changes_and_every_instant_is_in_one_slot(lengths: tuple[int, ...]) -> None:
    grid, slot = GRID, 100
    for length in lengths:
        before = grid.start_of(slot)
        grid = grid.with_slot_length(slot, length * MS)
        assert (grid.start_of(slot), grid.theta_of(slot), grid.end_of(slot)) == (
            before,
            length * MS,
            before + length * MS,
        )
        slot += 9
    assert grid.changes == len(lengths)
    first = grid.segments[0].start_ns
    found = walked(grid, first, grid.last_segment.start_ns + 50 * MS)
    assert [number for number, _ in found] == list(range(found[0][0], found[-1][0] + 1))
    for number, start in found:
        assert grid.slot_of(start) == number
        assert grid.slot_of(grid.end_of(number) - 1) == number
        assert grid.end_of(number) - start == grid.theta_of(number)


def test_only_the_latest_segments_are_kept() -> None:
    grid = GRID
    for slot in range(100, 200, 10):
        grid = grid.with_slot_length(slot, (slot % 7 + 1) * MS)
    assert (len(grid.segments), grid.changes) == (SEGMENTS_MAX, 10)


def test_skipped_numbers_take_no_time() -> None:
    grid = GRID.with_slot_length(100, 10 * MS).renumbered(110, 5000)
    assert grid.start_of(5000) == grid.end_of(109) == 600 * MS
    assert grid.next_slot(109) == 5000
    assert grid.slot_of(600 * MS) == 5000
    assert grid.slot_of(600 * MS - 1) == 109
    assert grid.start_of(3000) == 600 * MS, "skipped slots begin and end there"
    assert walked(grid, 580 * MS, 620 * MS) == [(108, 580 * MS), (109, 590 * MS), (5000, 600 * MS), (5001, 610 * MS)]


def test_smax_takes_a_change_into_account() -> None:
    grid = GRID.with_slot_length(100, 2 * MS)
    assert grid.smax(499 * MS) == 100 + 6, "499 + 12 ms is in the sixth slot of 2 ms"
    assert grid.smax(480 * MS) == 99


def test_more_changes_prevail_then_higher_numbers_then_shorter_slots() -> None:
    once, twice = GRID.with_slot_length(100, 2 * MS), GRID.with_slot_length(100, 20 * MS).with_slot_length(110, 20 * MS)
    now = 2_000 * MS
    assert once.slot_of(now) > twice.slot_of(now)
    assert twice.prevails_over(once, now)
    assert not once.prevails_over(twice, now)
    slow, quick = GRID.with_slot_length(100, 10 * MS), GRID.with_slot_length(100, 3 * MS)
    for clock in (490 * MS, 500 * MS, now):
        assert quick.prevails_over(slow, clock), "before the change as after it"
        assert not slow.prevails_over(quick, clock)
    assert not quick.prevails_over(quick, now)


def test_schedules_are_equal_if_their_slots_are_equal_from_the_last_change_on() -> None:
    changed = GRID.with_slot_length(100, 10 * MS)
    without_past = replace(changed, segments=changed.segments[-1:])
    later = replace(changed, segments=(Segment(105, 550 * MS, 10 * MS),))
    assert changed.has_same_slots(without_past)
    assert changed.has_same_slots(later)
    assert not changed.has_same_slots(GRID)
    assert not changed.has_same_slots(GRID.with_slot_length(101, 10 * MS))
    assert changed.first_difference(GRID) == changed.with_slot_length(120, 2 * MS).first_difference(GRID) == 100
    assert GRID.first_difference(changed) is None
    assert changed.first_difference(changed.with_slot_length(120, 2 * MS).with_slot_length(130, MS)) is None


def test_the_earlier_of_two_conflicting_changes_prevails() -> None:
    """Its request comes first in the order; the members that agreed on the other one had not delivered it."""
    first, second = GRID.with_slot_length(100, 10 * MS), GRID.with_slot_length(101, 2 * MS)
    for clock in (490 * MS, 502 * MS, 2_000 * MS):
        assert first.prevails_over(second, clock)
        assert not second.prevails_over(first, clock)
    assert first.first_difference(second) == second.first_difference(first) == 100
    other = GRID.with_slot_length(90, 5 * MS).with_slot_length(101, 2 * MS)
    assert other.first_difference(first.with_slot_length(120, 2 * MS)) is None, "these differ before their last change"
    ahead = GRID.renumbered(100, 5000)
    assert ahead.prevails_over(first, 490 * MS), "skipped numbers are not used again"


def test_a_member_requests_its_slot_length_again_if_another_change_replaced_it() -> None:
    change = SlotChange()
    change.requested_theta_ns = 2 * MS
    granted, requested = GRID.with_slot_length(101, 2 * MS), []
    for grid in (granted, GRID.with_slot_length(100, 10 * MS), granted):
        change.on_agreed(grid)
        requested.append(change.requested_theta_ns)
        assert change.next_request(99, grid) is None, "not before the change is in effect"
    assert requested == [None, 2 * MS, None]
    assert change.next_request(101, granted) is None
    change.on_agreed(
        granted.with_slot_length(110, 10 * MS).with_slot_length(120, 5 * MS).with_slot_length(130, 10 * MS)
    )
    assert change.requested_theta_ns is None, "it was in effect"


@pytest.mark.parametrize("timing", [TIMING, Timing(0, 0, 5 * MS), Timing(10 * MS, 0, 5 * MS), Timing(1, 1, 7 * MS)])
def test_a_change_takes_effect_at_the_first_slot_after_all_members_and_joiners_know_it(timing: Timing) -> None:
    grid = SlotGrid.of(timing)
    for slot in (0, 1, 40):
        known_to_all_ns = grid.end_of(slot) + 3 * timing.delta_ns + 3 * timing.gamma_ns
        effect = effective_slot(grid, slot)
        assert grid.start_of(effect) >= known_to_all_ns > grid.start_of(effect - 1)


def test_the_first_members_request_is_granted_and_the_others_request_again() -> None:
    first, second = SlotChange(), SlotChange()
    first.requested_theta_ns, second.requested_theta_ns = 10 * MS, 2 * MS
    requests = {member: change.next_request(50, GRID) for member, change in ((3, first), (8, second))}
    assert requests == {3: 10 * MS, 8: 2 * MS}
    grids = []
    for change in (first, second):
        for member in (3, 8):
            change.on_request(member, requests[member] or 0)
        grid = change.decide(50, GRID)
        assert grid is not None
        change.on_agreed(grid)
        grids.append(grid)
    assert grids[0] == grids[1]
    (changed, _) = grids
    assert changed.last_segment.theta_ns == 10 * MS
    assert [change.requested_theta_ns for change in (first, second)] == [None, 2 * MS]
    for slot in range(51, changed.last_segment.first_slot):
        assert second.next_request(slot, changed) is None, "not before the change is in effect"
    assert second.next_request(changed.last_segment.first_slot, changed) == 2 * MS
    assert second.next_request(changed.last_segment.first_slot + 1, changed) is None, "once"


def test_a_request_before_a_pending_change_is_ignored() -> None:
    change = SlotChange()
    waiting = GRID.with_slot_length(100, 10 * MS)
    change.on_request(4, 2 * MS)
    assert change.decide(99, waiting) is None
    change.on_request(4, 2 * MS)
    assert change.decide(100, waiting) is not None
