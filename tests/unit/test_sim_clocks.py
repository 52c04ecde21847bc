"""Clocks of paper 000 §2.2: within Γ/2, monotone, and a timer fires at the first instant that shows its reading."""

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.errors import InvalidOption
from unisono.sim.clocks import Clock, DriftingClock, FixedClock, SteppedClock, corner_clock

BASE = 1_700_000_000_000_000_000
REACH = 50
small = st.integers(-REACH, REACH)


def assert_clock(clock: Clock, reach: int, start: int, length: int) -> None:
    shown = [clock.local(t) for t in range(start, start + length)]
    assert all(a <= b for a, b in pairwise(shown))
    assert all(abs(local - t) <= reach for t, local in enumerate(shown, start))
    for local in range(shown[0] + 1, shown[-1] + 1):
        at = clock.true_at(local)
        assert clock.local(at) >= local > clock.local(at - 1)


@given(offset=small)
def test_fixed(offset: int) -> None:
    assert_clock(FixedClock(offset), REACH, BASE, 300)


@given(reach=st.integers(0, REACH), slower=st.integers(0, 400), phase=st.integers(0, 10**6))
def test_drifting(reach: int, slower: int, phase: int) -> None:
    sweep = max(1, 2 * reach) + slower
    assert_clock(DriftingClock(reach, sweep, phase), reach, BASE, 3 * sweep)


def test_a_slow_drift_at_full_size_is_exact() -> None:
    clock = DriftingClock(1_000_000, 20_000_000_000, 7_777_777_777)
    chance = Random(1)
    for _ in range(300):
        local = BASE + int(chance.random() * 10**11)
        at = clock.true_at(local)
        assert clock.local(at) >= local > clock.local(at - 1)
        assert abs(local - at) <= 1_000_000


def test_a_drift_that_would_run_backwards_is_refused() -> None:
    with pytest.raises(
        InvalidOption, match="expected a half period of at least 200 ns for an amplitude of 100 ns, not 199 ns"
    ):
        DriftingClock(100, 199)


@given(first=small, steps=st.lists(st.tuples(st.integers(1, 120), small), max_size=8))
def test_stepped(first: int, steps: list[tuple[int, int]]) -> None:
    at, planned = BASE, []
    for gap, offset in steps:
        at += gap
        planned.append((at, offset))
    assert_clock(SteppedClock(first, planned), REACH, BASE - 10, at - BASE + 200)


def test_a_step_back_stands_still_and_a_step_forward_leaps() -> None:
    clock = SteppedClock(10, [(100, -10), (200, 10)])
    assert [clock.local(t) for t in (99, 100, 119, 120, 121)] == [109, 110, 110, 110, 111]
    assert [clock.local(t) for t in (199, 200)] == [189, 210]
    assert [clock.true_at(reading) for reading in (110, 111, 189, 190, 210, 211)] == [100, 121, 199, 200, 200, 201]


def test_steps_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(InvalidOption, match="ascending"):
        SteppedClock(0, [(5, 1), (5, 2)])


@given(seed=st.integers(0, 10**6))
def test_corner_clocks_use_both_corners_and_nothing_else(seed: int) -> None:
    clock = corner_clock(Random(seed), REACH, BASE, BASE + 5000, 100)
    assert_clock(clock, REACH, BASE, 5000)
