"""The meter of one link, compared with the real losses, delays and reordering."""

from __future__ import annotations

import itertools
import random
from unittest.mock import Mock

import pytest

from unisono.model.sla import Side
from unisono.qos.watch.meters import REORDER_WINDOW, TIMED_BUFFER, LinkMeter, MetricWindow, Monitor
from unisono.wire.frame import SERIAL_MAX

MS = 1_000_000


def serial(number: int) -> int:
    return number % SERIAL_MAX + 1


def fed(arrivals: list[tuple[int, int, int]]) -> LinkMeter:
    """A meter after these datagrams: (arrival time, send time, number)."""
    meter = LinkMeter(1, arrivals[0][0])
    for at, sent, number in arrivals:
        meter.on_datagram(sent, serial(number))
        meter.record_timing(at, sent)
    return meter


def runs_of_loss(kept: list[bool]) -> list[int]:
    runs, run = [], 0
    for came in [*kept, True]:
        if came and run:
            runs.append(run)
        run = 0 if came else run + 1
    return runs


@pytest.mark.parametrize("loss", [0.0, 0.01, 0.2, 0.6])
def test_measured_loss_and_bursts_equal_the_planted_ones(loss: float) -> None:
    chance = random.Random(7)
    kept = [True, *(chance.random() >= loss for _ in range(4000)), *[True] * (2 * REORDER_WINDOW)]
    meter = fed([(n * MS + 300, n * MS, n) for n, came in enumerate(kept) if came])
    lost = kept.count(False)
    assert meter.lost == lost
    assert meter.counted == len(kept) - REORDER_WINDOW
    runs = runs_of_loss(kept)
    assert meter.bursts.total == len(runs)
    assert meter.bursts.largest == max(runs, default=0)
    assert sum(min(run, 31) for run in runs if run < 32) == sum(b * times for b, times in meter.bursts.to_pairs())


@pytest.mark.parametrize("gap", [1, REORDER_WINDOW - 1, REORDER_WINDOW, REORDER_WINDOW + 1, 127, 128, 200, 254])
def test_an_outage_of_up_to_254_datagrams_is_counted_exactly(gap: int) -> None:
    numbers = [*range(100), *range(100 + gap, 300 + gap)]
    meter = fed([(n * MS, n * MS - 300, n) for n in numbers])
    assert (meter.lost, meter.bursts.total, meter.bursts.largest, meter.late) == (gap, 1, gap, 0)
    assert meter.silence_ns == (gap + 1) * MS


def test_a_datagram_overtaken_within_the_window_is_not_lost() -> None:
    chance = random.Random(3)
    # No datagram is overtaken by more than 20 later ones.
    arrivals = sorted((n * MS + chance.randrange(20 * MS), n * MS, n) for n in range(2000))
    meter = fed([*arrivals, *[(n * MS, n * MS, n) for n in range(2020, 2100)]])
    assert meter.reordered > 500
    assert meter.lost == 20, "the twenty between the two parts"
    assert meter.late == 0


def test_a_datagram_beyond_the_window_counts_as_lost_until_it_arrives_late() -> None:
    numbers = [*range(100), *range(101, 101 + REORDER_WINDOW), 100, *range(101 + REORDER_WINDOW, 300)]
    meter = fed([(at * MS, n * MS, n) for at, n in enumerate(numbers)])
    assert (meter.lost, meter.late, meter.reordered) == (1, 1, 0)
    window = MetricWindow(0, 250 * MS)
    Monitor._link_rows(Mock(), window, ("vbr", Side.BELOW, 2), meter)
    assert [row.value for row in window.rows if row.metric == "loss"] == [0.0]


def test_a_duplicate_does_not_change_the_loss() -> None:
    once = [(n * MS, n * MS, n) for n in range(500)]
    meter = fed([arrival for arrival in once for _ in range(2)])
    assert (meter.lost, meter.reordered, meter.counted, meter.duplicated) == (0, 0, 500 - REORDER_WINDOW, 500)


def test_jitter_is_the_running_mean_of_rfc_3550() -> None:
    chance = random.Random(5)
    transits = [MS + chance.randrange(MS) for _ in range(400)]
    meter = fed([(n * 10 * MS + transit, n * 10 * MS, n) for n, transit in enumerate(transits)])
    expected = 0.0
    for before, after in itertools.pairwise(transits):
        expected += (abs(after - before) - expected) / 16
    assert meter.jitter_ns() == pytest.approx(expected, abs=3)
    assert fed([(n * MS + 500, n * MS, n) for n in range(100)]).jitter_ns() == 0
    assert fed([(0, 0, 0), (MS + 1600, MS, 1)]).jitter_ns() == 100, "also from a delay of nothing"


def test_delay_is_corrected_by_the_clock_difference() -> None:
    meter = LinkMeter(1, 0)
    meter.set_clock_offset(
        5 * MS
    )  # the peer's clock is ahead of ours: what took 1 ms seems to arrive 4 ms before it left
    for n in range(100):
        meter.record_timing(n * MS + MS - 5 * MS, n * MS)
    assert meter.delays.quantile(0.5) == pytest.approx(MS, rel=1 / 32)


def test_windows_add_up_and_do_not_hide_silence() -> None:
    meter = LinkMeter(1, 0)
    lost = settled = 0
    for n in range(3000):
        if n % 10:
            meter.on_datagram(n * MS, serial(n))
            meter.record_timing(n * MS, n * MS)
        if n % 50 == 49:
            lost, settled = lost + meter.lost, settled + max(0, meter.counted)
            meter.start_window()
    assert (lost, settled) == (settled // 10, 3000 - REORDER_WINDOW - 1), "the first one, number 0, was never seen"
    meter.extend_silence(3500 * MS)
    assert meter.silence_ns == 501 * MS


def test_timings_use_constant_memory_and_all_count() -> None:
    chance = random.Random(9)
    arrivals = [(n * MS + chance.randrange(MS), n * MS, n) for n in range(3 * TIMED_BUFFER + 7)]
    meter, looked_at = fed(arrivals), LinkMeter(1, arrivals[0][0])
    for at, sent, number in arrivals:
        looked_at.on_datagram(sent, serial(number))
        looked_at.record_timing(at, sent)
        assert looked_at.delays.total == number + 1
    assert len(meter._timed) < TIMED_BUFFER
    assert meter.delays == looked_at.delays
    assert (meter.jitter_ns(), meter.silence_ns) == (looked_at.jitter_ns(), looked_at.silence_ns)
