"""Ids, rates, timing, views and policies: frozen values that refuse invalid fields and name them."""

from dataclasses import FrozenInstanceError
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.errors import InvalidOption
from unisono.model.events import Batch, Delivery, View
from unisono.model.policy import FRAME_MAX, FRAME_MIN, MESSAGE_MAX, Policy
from unisono.model.timing import Timing
from unisono.model.units import MEMBER_MAX, NS_PER_S, BandwidthReservation, Rate, checked_member, group_key
from unisono.wire.frame import OutgoingMessages

MS = 1_000_000
TIMING = Timing(10 * MS, 2 * MS, 5 * MS)


def policy(**changes: Any) -> Policy:
    fields: dict[str, Any] = {
        "group": "g",
        "member": 1,
        "view": View((1, 2)),
        "timing": TIMING,
        "rate": Rate(50, 8),
    }
    return Policy(**{**fields, **changes})


def test_policies_are_frozen_and_comparable() -> None:
    assert policy() == policy()
    assert hash(policy()) == hash(policy())
    with pytest.raises(FrozenInstanceError):
        policy().member = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("member", {"member": 3}),
        ("max_message", {"max_message": 0}),
        ("max_message", {"max_message": MESSAGE_MAX + 1}),
        ("max_frame", {"max_frame": FRAME_MIN - 1}),
        ("max_frame", {"max_frame": FRAME_MAX + 1}),
        ("incarnation", {"incarnation": -1}),
        ("incarnation", {"incarnation": 2**32}),
        ("epoch", {"epoch": -1}),
        ("epoch", {"epoch": 2**32}),
        ("probe_every", {"probe_every_ns": -1}),
        ("rate.burst_bytes", {"rate": Rate(50, 8, 4095), "max_message": 4096}),
    ],
)
def test_an_invalid_policy_is_refused(field: str, changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption) as caught:
        policy(**changes)
    assert caught.value.field == field


def test_the_limits_of_a_policy_are_valid() -> None:
    policy(max_frame=FRAME_MIN, max_message=1, epoch=2**32 - 1, incarnation=2**32 - 1)
    policy(max_frame=FRAME_MAX, max_message=MESSAGE_MAX, incarnation=0)
    policy(rate=Rate(50, 8, 4096), max_message=4096)


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("rate.avg", (0, 1)),
        ("rate.avg", (-1, 1)),
        ("rate.avg", (float("nan"), 1)),
        ("rate.avg", (float("inf"), 1)),
        ("rate.burst", (1, 0)),
        ("rate.burst", (1, 2**32)),
        ("rate.burst_bytes", (1, 1, 0)),
        ("rate.burst_bytes", (1, 1, 2**40)),
    ],
)
def test_an_invalid_rate_is_refused(field: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidOption) as caught:
        Rate(*arguments)
    assert caught.value.field == field


rates = st.builds(Rate, st.floats(1e-3, 1e6), st.integers(1, 2000))
thetas = st.integers(1_000, 3 * NS_PER_S)


@given(rates, thetas)
def test_the_averaging_slots_allow_one_full_burst(rate: Rate, theta_ns: int) -> None:
    slots, allowance = rate.averaging_slots(theta_ns), rate.allowance(theta_ns)
    assert slots * theta_ns >= NS_PER_S
    assert allowance >= rate.burst
    assert allowance <= Fraction(rate.avg) * slots * theta_ns / NS_PER_S < allowance + 1


def test_the_payload_of_a_slot_is_declared_or_a_burst_of_largest_messages() -> None:
    assert Rate(1, 8).bytes_per_slot(100) == 800
    assert Rate(1, 8, 500).bytes_per_slot(100) == 500


@given(st.integers(1, 2**40), st.integers(1_000, 10**10))
def test_the_peak_rate_carries_a_burst_within_its_slot(burst_bytes: int, theta_ns: int) -> None:
    peak = BandwidthReservation(1, burst_bytes, theta_ns).needed_bytes_per_s
    assert (peak - 1) * theta_ns < burst_bytes * NS_PER_S <= peak * theta_ns


@pytest.mark.parametrize(
    ("field", "arguments"), [("slot", (0, 0, 999)), ("delta", (-1, 0, 1000)), ("gamma", (0, -1, 1000))]
)
def test_an_invalid_timing_is_refused(field: str, arguments: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidOption) as caught:
        Timing(*arguments)
    assert caught.value.field == field


timings = st.builds(Timing, st.integers(0, 10**9), st.integers(0, 10**9), st.integers(1_000, 10**9))


@given(timings, st.integers(0, 2 * 10**18))
def test_slots_are_absolute_and_cover_time_without_gaps(timing: Timing, clock_ns: int) -> None:
    """Erratum 000-19."""
    slot = timing.slot_of(clock_ns)
    assert timing.start_of(slot) <= clock_ns < timing.end_of(slot) == timing.start_of(slot + 1)
    assert slot == clock_ns // timing.theta_ns


@given(timings, st.integers(0, 2 * 10**18))
def test_smax_is_the_first_slot_that_begins_after_all_members_have_the_message(timing: Timing, clock_ns: int) -> None:
    """§6.3: a message sent now arrives before any clock shows more than now + Δ + Γ."""
    latest_arrival = clock_ns + timing.delta_ns + timing.gamma_ns
    assert timing.start_of(timing.smax(clock_ns)) > latest_arrival >= timing.start_of(timing.smax(clock_ns) - 1)


@pytest.mark.parametrize("members", [(), (0,), (-1, 2), (MEMBER_MAX + 1,), (2, 1), (1, 1, 2)])
def test_a_view_refuses_unordered_repeated_and_invalid_members(members: tuple[int, ...]) -> None:
    with pytest.raises(InvalidOption):
        View(members)


def test_a_member_can_be_removed_from_a_view() -> None:
    assert View((1, 2, 5), 3).without(2, 9) == View((1, 5), 9)
    with pytest.raises(InvalidOption):
        View((1,)).without(1, 2)


def test_member_numbers() -> None:
    assert checked_member(1) == 1
    assert checked_member(MEMBER_MAX) == MEMBER_MAX
    for invalid in (0, -1, MEMBER_MAX + 1):
        with pytest.raises(InvalidOption):
            checked_member(invalid)


def test_group_keys_differ_by_name_and_never_change() -> None:
    assert len({group_key(f"table-{n}") for n in range(1000)}) == 1000
    assert all(0 <= group_key(name) < 2**32 for name in ("a", "é" * 200))
    assert group_key("table-7") == 0x0A475F9A, "the key is on the wire: it never changes"
    for invalid in ("", "x" * 201):
        with pytest.raises(InvalidOption):
            group_key(invalid)


def test_a_batch_numbers_its_messages_from_its_first_sequence() -> None:
    batch = Batch(2, 1, 7, 10, 0, 0, 3, [OutgoingMessages([b"a", b"bb"], False), OutgoingMessages([b"ccc"], True)])
    assert batch.messages == [b"a", b"bb", b"ccc"]
    assert batch.sizes() == [1, 2, 3]
    expected = [Delivery(2, 10, 7, b"a", 1), Delivery(2, 11, 7, b"bb", 1), Delivery(2, 12, 7, b"ccc", 1)]
    assert batch.deliveries() == expected
    assert [delivery.id for delivery in expected] == [(2, 1, 10), (2, 1, 11), (2, 1, 12)]
