"""Porder and Update (paper 000 figure 5) for any rates: both ways to compute Porder agree, and no turn is lost."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from unisono.orders.cbr.turns import (
    RATE_MAX,
    cycle_and_turn,
    due_ns,
    initial_porder,
    porder_by_sorting,
    turn_number,
    update_porder,
)

MEMBERS = st.integers(1, 0xFFFF)
RATES = st.dictionaries(MEMBERS, st.integers(1, 40), min_size=1, max_size=6)


@given(RATES)
def test_the_initial_porder_equals_sorting(rates: dict[int, int]) -> None:
    assert initial_porder(rates) == porder_by_sorting(rates)


@given(RATES, st.lists(st.tuples(MEMBERS, st.integers(0, 40)), max_size=12))
def test_any_history_of_changes_equals_sorting(rates: dict[int, int], changes: list[tuple[int, int]]) -> None:
    """Joins, new rates and departures, one after the other."""
    rates, order = dict(rates), initial_porder(rates)
    for member, rate in changes:
        order, _ = update_porder(order, 0, rates, member, rate)
        rates.pop(member, None)
        if rate:
            rates[member] = rate
    assert order == (porder_by_sorting(rates) if rates else ())


@given(RATES, st.data())
def test_a_change_in_mid_cycle_keeps_exactly_the_processed_turns(rates: dict[int, int], data: st.DataObject) -> None:
    order = porder_by_sorting(rates)
    current = data.draw(st.integers(0, len(order) - 1))
    member = data.draw(st.sampled_from(sorted(rates)))
    rate = data.draw(st.integers(0, 40))
    built, at = update_porder(order, current, rates, member, rate)
    after = {i: r for i, r in {**rates, member: rate}.items() if r}
    assert built == (porder_by_sorting(after) if after else ())
    next_member = order[current]
    now = (Fraction(order[:current].count(next_member), rates[next_member]), next_member)
    for i, r in after.items():
        processed = sum((Fraction(q, r), i) < now for q in range(r)) if current else 0
        assert built[:at].count(i) == processed
        if i != member:
            assert processed == order[:current].count(i)


@given(RATES)
def test_exact_and_rounded_due_times_increase_along_porder(rates: dict[int, int]) -> None:
    turns = dict.fromkeys(rates, 0)
    exact, rounded = [], []
    for i in porder_by_sorting(rates):
        exact.append((Fraction(turns[i], rates[i]), i))
        rounded.append(due_ns(3, turns[i], rates[i]))
        turns[i] += 1
    assert exact == sorted(exact)
    assert rounded == sorted(rounded)
    assert turns == rates


@given(st.integers(0, 2**40), st.integers(0, RATE_MAX - 1), st.integers(0, 2**40), st.integers(0, RATE_MAX - 1))
def test_turn_numbers_compare_like_cycle_and_turn(cycle: int, turn: int, cycle_2: int, turn_2: int) -> None:
    one, two = turn_number(cycle, turn), turn_number(cycle_2, turn_2)
    assert (one < two) == ((cycle, turn) < (cycle_2, turn_2))
    assert cycle_and_turn(one) == (cycle, turn)
