"""The failure detector: its time-out follows what is measured, and its mistakes keep to the stated rate."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from random import Random

import pytest

from unisono.agreement.failure_detector import GENERATION_SAMPLES, FailureDetector, HeartbeatIntervals
from unisono.errors import InvalidOption
from unisono.wire.frame import Frame, Kind
from unisono.wire.heartbeat import Heartbeat, encode_heartbeat

MS = 1_000_000
EVERY = 10 * MS


def beat(sender: int, serial: int, incarnation: int = 1) -> Frame:
    body = encode_heartbeat(Heartbeat(serial, EVERY))
    return Frame(Kind.HEARTBEAT, sender, incarnation, 0, 0, 0, body=body)


def detector(mistakes_per_s: float = 1 / 3600) -> FailureDetector:
    made = FailureDetector(1, (1, 2), every_ns=EVERY, mistakes_per_s=mistakes_per_s)
    made.wake(0)
    return made


def hear(
    watching: FailureDetector, until: int, jitter: Callable[[], int], serial: int = 0, start: int = 0
) -> tuple[int, int]:
    """Heartbeats of member 2 until then, each late by some jitter; (when the last came, its serial)."""
    at = start
    while at < until:
        serial += 1
        at = start + serial * EVERY + jitter()
        while (due := watching.wake_at()) is not None and due < at:
            watching.wake(due)
        watching.from_below(at, beat(2, serial))
    return at, serial


def test_a_silent_peer_is_suspected_at_its_timeout_and_not_before() -> None:
    watching = detector()
    at, _ = hear(watching, 500 * MS, lambda: 0)
    timeout = watching.timeout_ns(2)
    while (due := watching.wake_at() or 0) < at + timeout:
        watching.wake(due)
    watching.wake(at + timeout)
    assert not watching.suspected(2)
    watching.wake(at + timeout + 1)
    assert watching.suspected(2)
    (change,) = watching.changes
    assert (change.peer, change.suspected, change.unresponsive_ns, change.timeout_ns) == (2, True, timeout + 1, timeout)


def test_the_level_reaches_the_threshold_where_the_timeout_is() -> None:
    watching, chance = detector(), Random(1)
    at, _ = hear(watching, 2000 * MS, lambda: chance.randrange(3 * MS))
    timeout = watching.timeout_ns(2)
    levels = [watching.suspicion_level(2, at + silent) for silent in range(0, 3 * timeout, timeout // 50)]
    assert levels == sorted(levels)
    assert watching.suspicion_level(2, at + timeout) == pytest.approx(watching.threshold, abs=0.01)
    assert watching.suspicion_level(2, at) == 0


def test_a_smaller_mistake_rate_costs_a_longer_timeout() -> None:
    timeouts = []
    for rate in (1.0, 1 / 60, 1 / 3600, 1 / 86400):
        watching, chance = detector(rate), Random(2)
        hear(watching, 3000 * MS, lambda chance=chance: chance.randrange(3 * MS))  # type: ignore[misc]
        timeouts.append(watching.timeout_ns(2))
    assert timeouts == sorted(timeouts)
    assert timeouts[0] < timeouts[-1]


def test_the_timeout_follows_the_network_while_it_runs() -> None:
    watching, chance = detector(), Random(3)
    at, serial = hear(watching, 12_000 * MS, lambda: chance.randrange(MS))
    calm = watching.timeout_ns(2)
    at, serial = hear(watching, 24_000 * MS, lambda: chance.randrange(40 * MS), serial)
    rough = watching.timeout_ns(2)
    assert rough > 1.5 * calm
    hear(watching, at + 3 * GENERATION_SAMPLES * EVERY, lambda: chance.randrange(MS), serial)
    assert watching.timeout_ns(2) == pytest.approx(calm, rel=0.3)


def gaps(chance: Random, jitter: Callable[[], float], loss: float, count: int) -> list[int]:
    """Times between arrivals of heartbeats that are each late by some jitter, or lost."""
    arrivals = [i * EVERY + jitter() for i in range(count) if chance.random() >= loss]
    arrivals = sorted(arrivals)
    return [int(later - earlier) for earlier, later in itertools.pairwise(arrivals)]


@pytest.mark.parametrize("loss", [0.0, 0.01, 0.1])
@pytest.mark.parametrize("kind", ["constant", "uniform", "exponential", "lognormal"])
def test_mistakes_keep_to_the_stated_rate(kind: str, loss: float) -> None:
    """At one mistake per 1000 heartbeats, which a run of 20,000 can show; twice that is within chance."""
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


def test_a_paused_peer_is_suspected_and_trusted_again_when_it_comes_back() -> None:
    watching = detector()
    at, serial = hear(watching, 500 * MS, lambda: 0)
    before = watching.timeout_ns(2)
    while not watching.suspected(2):
        watching.wake(watching.wake_at() or 0)
    watching.from_below(at + 5000 * MS, beat(2, serial + 1))
    assert not watching.suspected(2)
    assert [change.suspected for change in watching.changes] == [True, False]
    assert watching.timeout_ns(2) <= 5 * before, "one long pause must not blind the detector"


def test_an_overtaken_or_repeated_heartbeat_says_nothing() -> None:
    watching = detector()
    watching.from_below(10 * MS, beat(2, 5))
    watching.from_below(20 * MS, beat(2, 5))
    watching.from_below(30 * MS, beat(2, 4))
    assert watching.suspicion_level(2, 40 * MS) == watching.suspicion_level(2, 40 * MS)
    assert watching._peer_states[2] is not None
    assert watching._peer_states[2].last_received_ns == 10 * MS


def test_a_new_incarnation_begins_anew_and_an_old_one_is_not_heard() -> None:
    watching = detector()
    hear(watching, 500 * MS, lambda: 0)
    watching.from_below(600 * MS, beat(2, 1, incarnation=2))
    watching.from_below(900 * MS, beat(2, 99, incarnation=1))
    assert watching._peer_states[2] is not None
    assert watching._peer_states[2].last_received_ns == 600 * MS


def test_who_was_asleep_itself_does_not_blame_the_others() -> None:
    watching = detector()
    at, serial = hear(watching, 500 * MS, lambda: 0)
    watching.wake(at + 3000 * MS)
    assert not watching.suspected(2)
    watching.from_below(at + 3001 * MS, beat(2, serial + 1))
    assert not watching.suspected(2)


def test_strangers_are_suspected_and_watching_can_change() -> None:
    watching = detector()
    assert watching.suspected(7)
    watching.set_peers(MS, (2, 7))
    assert not watching.suspected(7)
    watching.set_peers(MS, (7,))
    assert watching.suspected(2)


@pytest.mark.parametrize(
    ("every", "rate", "field"), [(0, 1.0, "every"), (EVERY, 0.0, "mistakes"), (EVERY, 101, "mist")]
)
def test_senseless_figures_are_refused(every: int, rate: float, field: str) -> None:
    with pytest.raises(InvalidOption, match=field):
        FailureDetector(1, (1, 2), every_ns=every, mistakes_per_s=rate)
