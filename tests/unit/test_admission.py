"""Admission control: how much a link grants, which group has it, and what a refusal says."""

import pytest

from unisono.errors import InvalidOption, ReservationRefused
from unisono.model.units import BandwidthReservation
from unisono.qos.plan.admission import Link, capacity_bytes_per_s

THETA_NS = 10_000_000


def asking(burst_bytes: int) -> BandwidthReservation:
    """A reservation whose peak is 100 times its burst, per second."""
    return BandwidthReservation(1, burst_bytes, THETA_NS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("100Mbit/s", 12_500_000),
        ("12MB/s", 12_000_000),
        (" 1.5 Gbit/s ", 187_500_000),
        ("8bit/s", 1),
        ("2kB/s", 2000),
    ],
)
def test_a_capacity_has_a_unit(text: str, expected: int) -> None:
    assert capacity_bytes_per_s(text) == expected


@pytest.mark.parametrize("text", ["100", "fast", "1Tbit/s", "-1MB/s", "100 mbit/s", "1bit/s"])
def test_an_invalid_capacity_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match=r"^capacity: "):
        Link(text)


def test_a_capacity_without_a_unit_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^capacity=125000 has no unit; write '125000B/s'$"):
        Link(125_000)  # type: ignore[arg-type]


def test_reservations_are_granted_until_the_link_is_full() -> None:
    link = Link("1MB/s")
    first, second = link.share(copies=2), link.share(copies=1)
    first.reserve(asking(3_000))
    assert link.free_bytes_per_s == 400_000
    with pytest.raises(
        ReservationRefused, match=r"requested 500,000 B/s, but the link has 400,000 B/s free of .* 1,000,000 B/s"
    ) as caught:
        second.reserve(asking(5_000))
    assert (caught.value.asked_bytes_per_s, caught.value.free_bytes_per_s) == (500_000, 400_000)
    assert caught.value.capacity_bytes_per_s == 1_000_000
    second.reserve(asking(4_000))
    assert link.free_bytes_per_s == 0
    first.release()
    first.release()
    assert link.free_bytes_per_s == 600_000


def test_a_new_reservation_replaces_the_old_one() -> None:
    link = Link("1MB/s")
    share = link.share(copies=1)
    share.reserve(asking(8_000))
    share.reserve(asking(9_000))
    assert link.free_bytes_per_s == 100_000
    with pytest.raises(ReservationRefused) as caught:
        share.reserve(asking(10_001))
    assert caught.value.free_bytes_per_s == 1_000_000, "its own reservation counts as free for itself"
    assert link.free_bytes_per_s == 100_000, "a refusal changes nothing"


def test_a_group_that_falls_back_to_unicast_reserves_more() -> None:
    link = Link("1MB/s")
    share = link.share(copies=1)
    share.reserve(asking(3_000))
    share.set_copies(3)
    assert link.free_bytes_per_s == 100_000
    with pytest.raises(ReservationRefused):
        share.set_copies(4)
    share.reserve(asking(2_000))
    assert link.free_bytes_per_s == 400_000
