"""Durations: from text with units to integer nanoseconds and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.errors import InvalidOption
from unisono.model.units import duration_ns, duration_text, ns_to_ms


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("5ms", 5_000_000),
        ("200us", 200_000),
        ("200µs", 200_000),
        ("2s", 2_000_000_000),
        ("2min", 120_000_000_000),
        ("7ns", 7),
        (" 1.5 ms ", 1_500_000),
        ("0.1s", 100_000_000),
        ("0ms", 0),
    ],
)
def test_durations_are_exact(text: str, ns: int) -> None:
    assert duration_ns(text) == ns


@pytest.mark.parametrize("text", ["5", "ms", "", "5 m", "5d", "-5ms", "1e3ms", "5ms5ms", ".5ms", "5.ms", "5MS"])
def test_an_invalid_duration_is_refused_and_the_field_named(text: str) -> None:
    with pytest.raises(InvalidOption, match=r"^slot: ") as caught:
        duration_ns(text, "slot")
    assert caught.value.field == "slot"


@pytest.mark.parametrize("number", [60, 0, -1, 1.5])
def test_a_number_without_a_unit_is_refused_and_the_error_says_what_to_write(number: float) -> None:
    with pytest.raises(TypeError, match=rf"^deadline={number} has no unit; write '{number}ms'$"):
        duration_ns(number, "deadline")  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [True, None, b"5ms"])
def test_other_types_are_refused(value: object) -> None:
    with pytest.raises(TypeError, match=r"^slot: expected a duration with a unit, such as '5ms', got "):
        duration_ns(value, "slot")  # type: ignore[arg-type]


@given(st.integers(0, 10**14))
def test_duration_text_keeps_six_digits(ns: int) -> None:
    rounded = duration_ns(duration_text(ns))
    assert abs(rounded - ns) * 10**5 <= ns


def test_the_text_of_a_negative_duration() -> None:
    assert duration_text(-1_500_000) == "-1.5ms"
    assert duration_text(999) == "999ns"
    assert ns_to_ms(1_500_000) == 1.5
