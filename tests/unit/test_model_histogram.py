"""The histogram: a quantile is an upper bound of the true one, and at most 1/32 above it."""

from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from unisono.model.delays import Histogram

values = st.lists(st.integers(-10, 2**40) | st.integers(0, 70), min_size=1, max_size=60)
# Shares that a float represents exactly, so that the rank is exact.
shares = st.integers(0, 64).map(lambda n: n / 64)


def histogram(counted: list[int]) -> Histogram:
    result = Histogram()
    for value in counted:
        result.add(value)
    return result


@given(values, shares)
def test_a_quantile_is_at_most_a_32nd_above_the_true_one(counted: list[int], q: float) -> None:
    true = sorted(max(value, 0) for value in counted)[max(1, ceil(q * len(counted))) - 1]
    quantile = histogram(counted).quantile(q)
    assert true <= quantile <= true + true // 32
    assert quantile <= max(0, *counted, 0)
    assert quantile == true or true >= 64, "small values are counted exactly"


@given(values, values, shares)
def test_a_merged_histogram_equals_one_of_all_values(first: list[int], second: list[int], q: float) -> None:
    merged = histogram(first)
    merged.merge(histogram(second))
    together = histogram(first + second)
    assert merged == together
    assert merged.quantile(q) == together.quantile(q)


@given(values)
def test_a_histogram_survives_a_round_trip_as_pairs(counted: list[int]) -> None:
    sent = histogram(counted)
    assert Histogram.of_pairs(sent.to_pairs(), sent.largest) == sent


@given(st.integers(0, 2**40), st.integers(1, 1000))
def test_adding_a_value_many_times_equals_adding_it_each_time(value: int, times: int) -> None:
    at_once, one_by_one = Histogram(), Histogram()
    at_once.add(value, times)
    for _ in range(times):
        one_by_one.add(value)
    assert at_once == one_by_one


def test_an_empty_histogram_has_quantile_zero() -> None:
    assert Histogram().quantile(0.5) == 0


def test_the_number_of_buckets_is_bounded() -> None:
    full = Histogram()
    for value in range(1, 200_000, 7):
        full.add(value)
    assert len(full.counts) <= 32 * 18
