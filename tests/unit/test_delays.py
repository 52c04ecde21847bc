"""Delay models: text form, quantiles against the distribution, samples against quantiles, truncation at Δ."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.errors import InvalidOption
from unisono.model.delays import (
    ConstantDelay,
    DelayModel,
    EmpiricalDelay,
    ExponentialDelay,
    Histogram,
    LognormalDelay,
    ScaledDelay,
    TruncatedDelay,
    UniformDelay,
    parse_delay,
    truncated_to,
)

MS = 1_000_000
BY_TEXT = {
    "constant:2ms": ConstantDelay(2 * MS),
    "uniform:1ms..5ms": UniformDelay(MS, 5 * MS),
    "exponential:1ms": ExponentialDelay(MS),
    "lognormal:2ms,0.5": LognormalDelay(2 * MS, 0.5),
    "empirical:1ms,2ms,2ms,9ms": EmpiricalDelay((MS, 2 * MS, 9 * MS), (1, 2, 1)),
}
MODELS = list(BY_TEXT.values())


@pytest.mark.parametrize(("text", "model"), BY_TEXT.items())
def test_a_model_survives_a_round_trip_through_text(text: str, model: DelayModel) -> None:
    assert parse_delay(text) == model
    assert parse_delay(model.text()) == model


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("2ms", "kinds: constant, uniform"),
        ("gamma:2ms", "kinds: constant, uniform"),
        ("constant:2", "a duration with a unit"),
        ("uniform:1ms", "SHORTEST..LONGEST"),
        ("uniform:5ms..1ms", "from the shortest delay to the longest, got 5ms..1ms"),
        ("exponential:0ms", "above zero"),
        ("lognormal:2ms", "no number for sigma"),
        ("lognormal:2ms,-1", "sigma above 0 and at most 10"),
        ("lognormal:2ms,nan", "sigma above 0 and at most 10"),
        ("empirical:", "a duration with a unit"),
    ],
)
def test_an_error_names_the_field_and_the_problem(text: str, part: str) -> None:
    with pytest.raises(InvalidOption, match=r"^network\.delay: ") as raised:
        parse_delay(text, "network.delay")
    assert part in str(raised.value)


@pytest.mark.parametrize("model", MODELS)
@given(q=st.floats(0, 0.999_999))
def test_a_quantile_is_the_shortest_delay_that_covers_its_share(model: DelayModel, q: float) -> None:
    at = model.quantile(q)
    assert model.cdf(at) >= q - 1e-9
    assert at == 0 or model.cdf(at - 2) <= q + 1e-9


@pytest.mark.parametrize("model", MODELS)
def test_samples_follow_the_distribution(model: DelayModel) -> None:
    chance = Random(7)
    drawn = [model.sample(chance) for _ in range(4000)]
    for q in (0.1, 0.5, 0.9, 0.99):
        at = model.quantile(q)
        assert sum(delay <= at for delay in drawn) / len(drawn) == pytest.approx(model.cdf(at), abs=0.03)


@pytest.mark.parametrize("model", [ExponentialDelay(MS), LognormalDelay(MS, 1.0)])
def test_an_unbounded_delay_has_no_quantile_at_1(model: DelayModel) -> None:
    with pytest.raises(InvalidOption, match="no longest delay"):
        model.quantile(1.0)


@pytest.mark.parametrize("model", MODELS)
def test_shares_lie_between_0_and_1(model: DelayModel) -> None:
    with pytest.raises(InvalidOption, match="from 0 to 1"):
        model.quantile(1.5)


@pytest.mark.parametrize("limit", [MS // 100, MS, 3 * MS])
@pytest.mark.parametrize("model", [ExponentialDelay(MS), LognormalDelay(MS, 1.0), UniformDelay(0, 9 * MS)])
def test_truncation_keeps_the_shape_below_the_limit(model: DelayModel, limit: int) -> None:
    truncated = truncated_to(model, limit)
    assert isinstance(truncated, TruncatedDelay)
    chance = Random(3)
    drawn = [truncated.sample(chance) for _ in range(3000)]
    assert max(drawn) <= limit
    assert truncated.cdf(limit) == 1.0
    assert truncated.quantile(1.0) == limit
    middle = truncated.quantile(0.5)
    assert model.cdf(middle) == pytest.approx(0.5 * model.cdf(limit), rel=0.02)
    assert sum(delay <= middle for delay in drawn) / len(drawn) == pytest.approx(0.5, abs=0.05)


def test_a_delay_that_never_exceeds_the_limit_is_not_truncated() -> None:
    assert truncated_to(UniformDelay(0, MS), MS) == UniformDelay(0, MS)


def test_a_delay_that_is_never_within_the_limit_is_refused() -> None:
    with pytest.raises(InvalidOption, match="at most Δ = 1ms, but all delays of"):
        truncated_to(ConstantDelay(2 * MS), MS)


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=200))
def test_an_empirical_delay_has_the_quantiles_of_its_histogram(values: list[int]) -> None:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    model = EmpiricalDelay.of_histogram(histogram)
    assert sum(model.counts) == len(values)
    for q in (0.25, 0.5, 0.9, 1.0):
        assert model.quantile(q) == histogram.quantile(q)


def test_many_measurements_are_summarized_in_one_line() -> None:
    model = EmpiricalDelay((MS, 2 * MS, 9 * MS), (600_000_000, 399_999_999, 1))
    assert model.text() == "1,000,000,000 measured delays (half within 1ms, 99 % within 2ms, all within 9ms)"


def test_an_empirical_delay_needs_samples() -> None:
    with pytest.raises(InvalidOption, match="at least one sample"):
        EmpiricalDelay((), ())
    with pytest.raises(InvalidOption, match="ascending"):
        EmpiricalDelay((2, 1), (1, 1))


@given(st.sampled_from(MODELS), st.floats(0, exclude_min=True, allow_infinity=False), st.integers(0, 2**62))
def test_a_scaled_delay_has_a_distribution_for_every_factor(model: DelayModel, factor: float, ns: int) -> None:
    scaled = ScaledDelay(model, factor)
    assert 0 <= scaled.cdf(ns) <= 1
    assert scaled.sample(Random(1)) >= 0


def test_a_delay_that_is_scaled_down_to_nothing_is_within_one_nanosecond() -> None:
    assert [ScaledDelay(ConstantDelay(MS), 5e-324).cdf(ns) for ns in (-1, 0, 1)] == [0, 0, 1]
