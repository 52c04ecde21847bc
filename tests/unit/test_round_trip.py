"""The wait for an answer follows the measured round trip (RFC 6298)."""

from __future__ import annotations

import pytest

from unisono.agreement.round_trip import WAIT_MIN_NS, RoundTrip

MS = 1_000_000
LONGEST = 200 * MS


def measured(*samples_ns: int) -> RoundTrip:
    round_trip = RoundTrip()
    for item, sample in enumerate(samples_ns):
        round_trip.sent(0, item)
        round_trip.answered(sample, item)
    return round_trip


def test_without_a_measurement_the_wait_is_the_longest() -> None:
    round_trip = RoundTrip()
    assert round_trip.wait_ns(LONGEST) == LONGEST
    round_trip.sent_again(0, 1)
    assert round_trip.wait_ns(LONGEST) == LONGEST


def test_the_wait_is_the_round_trip_and_four_deviations() -> None:
    assert measured(10 * MS).wait_ns(LONGEST) == 30 * MS
    assert 10 * MS <= measured(*[10 * MS] * 50).wait_ns(LONGEST) < 11 * MS
    assert measured(*[10_000] * 50).wait_ns(LONGEST) == WAIT_MIN_NS
    assert measured(*[10 * MS] * 50).wait_ns(7 * MS) == 7 * MS


def test_the_wait_doubles_with_each_time_out_until_an_answer() -> None:
    round_trip = measured(*[10 * MS] * 50)
    first = round_trip.wait_ns(LONGEST)
    waits = []
    for _ in range(40):
        round_trip.sent_again(0, 50)
        waits.append(round_trip.wait_ns(LONGEST))
    assert waits[:3] == [2 * first, 4 * first, 8 * first]
    assert waits[-1] == LONGEST
    round_trip.answered(10 * MS, 49)
    assert round_trip.wait_ns(LONGEST) == LONGEST, "an answer to an earlier item"
    round_trip.answered(10 * MS, 50)
    assert round_trip.wait_ns(LONGEST) == pytest.approx(2 * first), "the answer may be one to the first transmission"
    round_trip.sent(20 * MS, 51)
    round_trip.answered(30 * MS, 51)
    assert round_trip.wait_ns(LONGEST) == pytest.approx(first)


def test_losses_do_not_change_the_wait_but_a_slower_network_does() -> None:
    round_trip = measured(*[10 * MS] * 50)
    before = round_trip.wait_ns(LONGEST)
    for item in range(50, 100):  # the first transmission of each item is lost
        round_trip.sent(0, item)
        round_trip.sent_again(before, item)
        round_trip.answered(before + 10 * MS, item)
    assert round_trip.wait_ns(LONGEST) <= 2 * before
    for item in range(100, 130):  # the answer now takes 60 ms
        round_trip.sent(0, item)
        sent_at = 0
        while (sent_at := sent_at + round_trip.wait_ns(LONGEST)) < 60 * MS:
            round_trip.sent_again(sent_at, item)
        round_trip.answered(60 * MS, item)
    assert round_trip.wait_ns(LONGEST) > 60 * MS


def test_an_item_is_measured_from_its_own_sending_and_can_be_forgotten() -> None:
    round_trip = RoundTrip()
    round_trip.sent(0, 1)
    round_trip.sent(8 * MS, 2)
    round_trip.answered(10 * MS, 2)
    assert round_trip.wait_ns(LONGEST) == 30 * MS
    round_trip.sent(20 * MS, 3)
    round_trip.forget_item()
    round_trip.answered(900 * MS, 3)
    assert round_trip.wait_ns(LONGEST) == 30 * MS
