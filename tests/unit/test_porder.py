"""Porder and Update of paper 000 figure 5: as printed, with a counterexample for each erratum, and as implemented."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import product

import pytest

from unisono.orders.cbr.turns import (
    CYCLE_NS,
    RATE_MAX,
    cycle_and_turn,
    due_ns,
    initial_porder,
    period_ns,
    porder_by_sorting,
    turn_number,
    update_porder,
)


def printed(
    order: Sequence[int],
    current: int,
    rates: Mapping[int, int],
    j: int,
    *,
    with_else: bool = True,
    zero_at_start: bool = True,
    placed_at_end: bool = True,
) -> tuple[list[int], int]:
    """Figure 5 as printed, with the corrections of 000-1, 000-2 and 000-3 unless they are switched off.

    `rates` contains the new rate of j.
    """
    delivered, before = list(order[:current]).count(j), list(order).count(j)
    done = Fraction(0) if before == 0 and zero_at_start else Fraction(delivered, before)
    current -= delivered
    others = [i for i in order if i != j]
    new: list[int] = []
    count = dict.fromkeys(rates, 0)
    old = 0
    for _ in range(sum(rates.values())):
        exhausted = placed_at_end and old >= len(others)
        i = j if exhausted else others[old]
        if exhausted or Fraction(count[j], rates[j]) < Fraction(count[i], rates[i]):
            new.append(j)
            count[j] += 1
            if Fraction(count[j], rates[j]) <= done:
                current += 1
            if with_else:
                continue
            new.pop()
        new.append(i)
        count[i] += 1
        old += 1
    return new, current


def own_turns(rates: Mapping[int, int], j: int) -> Iterator[tuple[tuple[int, ...], int]]:
    """Every turn of j in a cycle: the positions at which a new rate of j can be processed."""
    order = porder_by_sorting(rates)
    yield from ((order, current) for current, i in enumerate(order) if i == j)


def defects(order: Sequence[int], current: int, new: Sequence[int], now_at: int, j: int) -> list[int]:
    """The other processes that have a skipped or repeated turn."""
    return [i for i in set(order) - {j} if list(order[:current]).count(i) != list(new[:now_at]).count(i)]


def renegotiations(members: int, rates: range, new_rates: range) -> Iterator[tuple[dict[int, int], int, int]]:
    """Tuples of (rates, the member that changes, its new rate)."""
    for combination in product(rates, repeat=members):
        for j, new_rate in product(range(1, members + 1), new_rates):
            yield dict(enumerate(combination, 1)), j, new_rate


# -- the definition ------------------------------------------------------------------------------------------------


def test_porder_is_the_turns_of_one_second_in_the_order_of_k_over_rate() -> None:
    assert porder_by_sorting({1: 1, 2: 2}) == (1, 2, 2)
    assert porder_by_sorting({1: 3, 2: 2}) == (1, 2, 1, 2, 1)
    assert porder_by_sorting({7: 1, 3: 1}) == (3, 7)
    order = porder_by_sorting({1: 10, 2: 100})
    assert order[:13] == (1, *[2] * 10, 1, 2), "one message from process 1 for every ten of process 2 (§4.1)"


@pytest.mark.parametrize("rates", [{1: 1}, {1: 5, 2: 5}, {1: 7, 4: 3, 9: 11}, {1: 333, 2: 1000, 3: 1}])
def test_merging_members_one_by_one_at_start_up_equals_sorting(rates: dict[int, int]) -> None:
    assert initial_porder(rates) == porder_by_sorting(rates)


# -- errata --------------------------------------------------------------------------------------------------------


def test_erratum_000_1_without_an_else_the_index_runs_off_the_vector() -> None:
    with pytest.raises(IndexError):
        printed([1, 2, 1, 2], 1, {1: 2, 2: 3}, 2, with_else=False, placed_at_end=False)
    assert update_porder((1, 2, 1, 2), 1, {1: 2, 2: 2}, 2, 3) == ((1, 2, 2, 1, 2), 1)


def test_erratum_000_2_at_start_up_j_does_not_occur_in_the_vector() -> None:
    with pytest.raises(ZeroDivisionError):
        printed([1, 1], 0, {1: 2, 2: 2}, 2, zero_at_start=False)
    assert update_porder((1, 1), 0, {1: 2}, 2, 2) == ((1, 2, 1, 2), 0)


def test_erratum_000_3_j_has_turns_left_after_the_last_other_turn() -> None:
    with pytest.raises(IndexError):
        printed([1, 2], 0, {1: 1, 2: 3}, 2, placed_at_end=False)
    assert update_porder((1, 2), 0, {1: 1, 2: 1}, 2, 3) == ((1, 2, 2, 2), 0)


def test_erratum_000_4_the_smallest_counterexample() -> None:
    """Process 1 has had two turns; as printed, its second turn would be processed again."""
    assert printed([1, 2, 1, 2], 3, {1: 2, 2: 1}, 2) == ([1, 2, 1], 2)
    assert update_porder((1, 2, 1, 2), 3, {1: 2, 2: 2}, 2, 1) == ((1, 2, 1), 3)


def test_erratum_000_4_as_printed_54_of_400_renegotiations_are_defective_and_as_built_none() -> None:
    tried = as_printed = as_built = 0
    for rates, j, new_rate in renegotiations(2, range(1, 5), range(1, 6)):
        for order, current in own_turns(rates, j):
            tried += 1
            new, now_at = printed(order, current, {**rates, j: new_rate}, j)
            as_printed += bool(defects(order, current, new, now_at, j))
            built, built_at = update_porder(order, current, rates, j, new_rate)
            as_built += bool(defects(order, current, built, built_at, j))
    assert (tried, as_printed, as_built) == (400, 54, 0)


@pytest.mark.parametrize(("members", "rates"), [(2, range(1, 9)), (3, range(1, 5))])
def test_erratum_000_4_no_turn_of_another_process_is_skipped_or_repeated(members: int, rates: range) -> None:
    tried = 0
    for before, j, new_rate in renegotiations(members, rates, range(10)):
        expected = porder_by_sorting({i: r for i, r in {**before, j: new_rate}.items() if r})
        for order, current in own_turns(before, j):
            tried += 1
            built, at = update_porder(order, current, before, j, new_rate)
            assert built == expected
            assert not defects(order, current, built, at, j)
            now = Fraction(order[:current].count(j), before[j])
            processed = sum(Fraction(q, new_rate) < now for q in range(new_rate))
            assert built[:at].count(j) == processed, "a turn q of j is processed iff q/rate_new < now"
            assert at == processed + current - order[:current].count(j)
    assert tried > 4000


def test_a_change_during_a_turn_of_another_process_skips_no_turn() -> None:
    for before, j, new_rate in renegotiations(3, range(1, 4), range(5)):
        order = porder_by_sorting(before)
        for current in range(len(order)):
            built, at = update_porder(order, current, before, j, new_rate)
            assert not defects(order, current, built, at, j), (before, j, new_rate, current)


def test_erratum_000_11_ties_are_in_member_order_for_any_history() -> None:
    """With a strict < the earlier entry stays first, so the order would depend on the history of merges."""
    merged, _ = printed([2, 2], 0, {1: 2, 2: 2}, 1)
    assert merged == [2, 1, 2, 1]
    assert update_porder((2, 2), 0, {2: 2}, 1, 2) == ((1, 2, 1, 2), 0)
    rates = {1: 4, 2: 2, 3: 1}
    order = initial_porder(rates)
    for j, rate in ((1, 1), (3, 4), (2, 3), (1, 2), (2, 4), (3, 2), (1, 4)):
        order, _ = update_porder(order, 0, rates, j, rate)
        rates[j] = rate
        assert order == porder_by_sorting(rates)


def test_erratum_000_11_k_over_rate_is_compared_exactly() -> None:
    """In floating point, k · (1/rate) differs for turns that are tied; here ties are in member order."""
    assert 3 * (1 / 10) != 9 * (1 / 30)
    assert porder_by_sorting({1: 30, 2: 10})[9 + 3] == 1
    for rate in (3, 7, 49, 97, 9_999):
        assert porder_by_sorting({1: rate, 2: rate}) == (1, 2) * rate
    assert initial_porder({1: 49, 2: 98, 3: 147}) == porder_by_sorting({1: 49, 2: 98, 3: 147})


def test_a_member_with_rate_0_has_no_turns() -> None:
    assert update_porder((1, 2), 0, {1: 1, 2: 1, 3: 0}, 2, 2) == ((1, 2, 2), 0)


# -- the cadence ---------------------------------------------------------------------------------------------------


def test_erratum_000_7_turn_k_is_due_k_over_rate_after_the_cycle_without_drift() -> None:
    assert [due_ns(5, k, 4) - 5 * CYCLE_NS for k in range(4)] == [0, 250_000_000, 500_000_000, 750_000_000]
    assert due_ns(5, 3, 3) == due_ns(6, 0, 3), "the turn after the last is the first of the next cycle"
    for rate in (1, 3, 7, 1000, RATE_MAX):
        gaps = [due_ns(0, k + 1, rate) - due_ns(0, k, rate) for k in range(rate)]
        assert sum(gaps) == CYCLE_NS
        assert max(gaps) <= period_ns(rate) <= min(gaps) + 1


def test_due_times_increase_along_porder() -> None:
    rates = {1: 7, 2: 3, 5: 11, 6: 7}
    turns = dict.fromkeys(rates, 0)
    due_times = []
    for j in porder_by_sorting(rates):
        due_times.append(due_ns(0, turns[j], rates[j]))
        turns[j] += 1
    assert due_times == sorted(due_times)


def test_turn_numbers_contain_the_cycle_and_increase() -> None:
    assert cycle_and_turn(turn_number(1_700_000_000, RATE_MAX - 1)) == (1_700_000_000, RATE_MAX - 1)
    assert turn_number(6, 0) > turn_number(5, RATE_MAX - 1)
    assert turn_number(2**36, 0) < 2**63


@pytest.mark.parametrize("current", [-1, 4, 5])
def test_a_turn_outside_the_cycle_is_refused(current: int) -> None:
    with pytest.raises(IndexError, match="outside a cycle of 4 turns"):
        update_porder((1, 2, 1, 2), current, {1: 2, 2: 2}, 1, 1)
