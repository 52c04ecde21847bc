"""The failure detector: its time-out follows measured delays, and its mistakes stay within the stated rate."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from math import log
from random import Random

import pytest

from unisono.agreement.failure_detector import GENERATION_SAMPLES, FailureDetector, HeartbeatIntervals
from unisono.errors import InvalidOption
from unisono.wire.codec import control_frame
from unisono.wire.control import Heartbeat
from unisono.wire.frame import Frame

MS = 1_000_000
EVERY = 10 * MS


def heartbeat(sender: int, serial: int, incarnation: int = 1) -> Frame:
    return control_frame(Heartbeat(serial, EVERY), sender, incarnation, 0)


def started_detector(mistakes_per_s: float = 1 / 3600) -> FailureDetector:
    detector = FailureDetector(1, (1, 2), every_ns=EVERY, mistakes_per_s=mistakes_per_s)
    detector.wake(0)
    return detector


def feed(
    detector: FailureDetector, until: int, jitter: Callable[[], int], serial: int = 0, start: int = 0
) -> tuple[int, int]:
    """Feed heartbeats of member 2 up to a time, each late by some jitter. Returns (last arrival, last serial)."""
    at = start
    while at < until:
        serial += 1
        at = start + serial * EVERY + jitter()
        while (due := detector.wake_at()) is not None and due < at:
            detector.wake(due)
        detector.from_below(at, heartbeat(2, serial))
    return at, serial


def test_a_silent_peer_is_suspected_at_its_timeout_and_not_before() -> None:
    detector = started_detector()
    at, _ = feed(detector, 500 * MS, lambda: 0)
    timeout = detector.timeout_ns(2)
    while (due := detector.wake_at() or 0) < at + timeout:
        detector.wake(due)
    detector.wake(at + timeout)
    assert not detector.suspected(2)
    detector.wake(at + timeout + 1)
    assert detector.suspected(2)
    (change,) = detector.changes
    assert (change.peer, change.suspected, change.unresponsive_ns, change.timeout_ns) == (2, True, timeout + 1, timeout)


@pytest.mark.parametrize("mistake_probability", [1e-2, 1e-3, 1e-4])
def test_the_timeout_is_the_gap_that_is_exceeded_with_the_stated_probability(mistake_probability: float) -> None:
    """Gaps beyond the interval are exponential, so the exact gap is known. The detector is somewhat pessimistic."""
    chance, intervals = Random(1), HeartbeatIntervals(EVERY, mistake_probability)
    for _ in range(GENERATION_SAMPLES):
        intervals.add(EVERY + int(chance.expovariate(1 / (2 * MS))))
    exact_ns = EVERY + 2 * MS * log(1 / mistake_probability)
    assert exact_ns <= intervals.timeout_ns <= 1.4 * exact_ns


def test_a_smaller_mistake_rate_means_a_longer_timeout() -> None:
    timeouts = []
    for rate in (1.0, 1 / 60, 1 / 3600, 1 / 86400):
        detector, chance = started_detector(rate), Random(2)
        feed(detector, 3000 * MS, lambda chance=chance: chance.randrange(3 * MS))  # type: ignore[misc]
        timeouts.append(detector.timeout_ns(2))
    assert timeouts == sorted(timeouts)
    assert timeouts[0] < timeouts[-1]


def test_the_timeout_follows_changes_of_the_network() -> None:
    detector, chance = started_detector(), Random(3)
    at, serial = feed(detector, 12_000 * MS, lambda: chance.randrange(MS))
    calm = detector.timeout_ns(2)
    at, serial = feed(detector, 24_000 * MS, lambda: chance.randrange(40 * MS), serial)
    rough = detector.timeout_ns(2)
    assert rough > 1.5 * calm
    feed(detector, at + 3 * GENERATION_SAMPLES * EVERY, lambda: chance.randrange(MS), serial)
    assert detector.timeout_ns(2) == pytest.approx(calm, rel=0.3)


def gaps(chance: Random, jitter: Callable[[], float], loss: float, count: int) -> list[int]:
    """Times between arrivals of heartbeats, each of which is late by some jitter, or lost."""
    arrivals = [i * EVERY + jitter() for i in range(count) if chance.random() >= loss]
    arrivals = sorted(arrivals)
    return [int(later - earlier) for earlier, later in itertools.pairwise(arrivals)]


@pytest.mark.parametrize("loss", [0.0, 0.01, 0.1])
@pytest.mark.parametrize("kind", ["constant", "uniform", "exponential", "lognormal"])
def test_mistakes_stay_within_the_stated_rate(kind: str, loss: float) -> None:
    """20,000 heartbeats at a stated rate of one mistake per 1000; twice the rate is within chance."""
    chance = Random(f"{kind} {loss}")
    jitters: dict[str, Callable[[], float]] = {
        "constant": lambda: 0.0,
        "uniform": lambda: chance.random() * 5 * MS,
        "exponential": lambda: chance.expovariate(1 / (2 * MS)),
        "lognormal": lambda: chance.lognormvariate(0.0, 1.0) * MS,
    }
    arrivals, mistakes = HeartbeatIntervals(EVERY, 1e-3), 0
    for gap in gaps(chance, jitters[kind], loss, 20_000):
        mistakes += gap > arrivals.timeout_ns
        arrivals.add(min(gap, arrivals.timeout_ns))
    assert mistakes <= 40


def test_a_paused_peer_is_suspected_and_trusted_again_when_it_returns() -> None:
    detector = started_detector()
    at, serial = feed(detector, 500 * MS, lambda: 0)
    before = detector.timeout_ns(2)
    while not detector.suspected(2):
        detector.wake(detector.wake_at() or 0)
    detector.from_below(at + 5000 * MS, heartbeat(2, serial + 1))
    assert not detector.suspected(2)
    assert [change.suspected for change in detector.changes] == [True, False]
    assert detector.timeout_ns(2) <= 5 * before, "one long pause must not make the time-out much longer"


def test_a_late_or_repeated_heartbeat_is_ignored() -> None:
    detector = started_detector()
    detector.from_below(10 * MS, heartbeat(2, 5))
    detector.from_below(20 * MS, heartbeat(2, 5))
    detector.from_below(30 * MS, heartbeat(2, 4))
    assert detector._peer_states[2] is not None
    assert detector._peer_states[2].last_received_ns == 10 * MS


def test_heartbeats_of_an_old_incarnation_are_ignored() -> None:
    detector = started_detector()
    feed(detector, 500 * MS, lambda: 0)
    detector.from_below(600 * MS, heartbeat(2, 1, incarnation=2))
    detector.from_below(900 * MS, heartbeat(2, 99, incarnation=1))
    assert detector._peer_states[2] is not None
    assert detector._peer_states[2].last_received_ns == 600 * MS


def test_a_detector_that_was_paused_itself_suspects_no_peer() -> None:
    detector = started_detector()
    at, serial = feed(detector, 500 * MS, lambda: 0)
    detector.wake(at + 3000 * MS)
    assert not detector.suspected(2)
    detector.from_below(at + 3001 * MS, heartbeat(2, serial + 1))
    assert not detector.suspected(2)


def test_unwatched_members_are_suspected_and_the_watched_peers_can_change() -> None:
    detector = started_detector()
    assert detector.suspected(7)
    detector.set_peers(MS, (2, 7))
    assert not detector.suspected(7)
    detector.set_peers(MS, (7,))
    assert detector.suspected(2)


@pytest.mark.parametrize(
    ("every", "rate", "field"), [(0, 1.0, "every"), (EVERY, 0.0, "mistakes"), (EVERY, 101, "mist")]
)
def test_invalid_options_are_refused(every: int, rate: float, field: str) -> None:
    with pytest.raises(InvalidOption, match=field):
        FailureDetector(1, (1, 2), every_ns=every, mistakes_per_s=rate)
