"""The skew layer: the difference of two clocks from four readings, and Γ as measured."""

import random
from itertools import combinations
from typing import Any

import pytest

from unisono.layers.skew import SAMPLES_KEPT, Skew, SkewSample
from unisono.model.policy import Policy
from unisono.model.rates import Rate
from unisono.model.timing import Timing
from unisono.model.views import View
from unisono.wire.control import decode_echo, decode_probe, encode_echo, encode_probe
from unisono.wire.frame import Frame, Kind

MS = 1_000_000
T0 = 10**18


def policy(member: int, members: tuple[int, ...] = (1, 2), **changes: Any) -> Policy:
    fields: dict[str, Any] = {"probe_every_ns": 100 * MS}
    fields.update(changes)
    return Policy("g", member, View(members), Timing(10 * MS, 2 * MS, 5 * MS), Rate(50, 8), **fields)


def exchange(prober: Skew, answerer: Skew, now: int, offset: int, there: int, back: int) -> None:
    """One probe and its echo; `now` is the prober's clock, the other's shows `offset` more."""
    prober.wake(now)
    (probe,) = prober.down
    prober.down.clear()
    answerer.from_below(now + there + offset, probe)
    (echo,) = answerer.down
    answerer.down.clear()
    prober.from_below(now + there + back, echo)


@pytest.mark.parametrize(("there", "back"), [(0, 0), (1, 0), (0, 1), (5 * MS, 0), (0, 5 * MS + 1), (3 * MS, 4 * MS)])
@pytest.mark.parametrize("offset", [0, 7, -7, 20 * MS, -20 * MS])
def test_asymmetric_delays_shift_the_estimate_by_half_their_difference(there: int, back: int, offset: int) -> None:
    one, two = Skew(policy(1)), Skew(policy(2))
    exchange(one, two, T0, offset, there, back)
    sample = one.estimate(2)
    assert sample == SkewSample(offset + (there - back) // 2, (there + back + 1) // 2)
    assert abs(sample.offset_ns - offset) <= sample.error_ns, "the error bound holds"


def test_the_shortest_round_trip_of_the_last_few_counts() -> None:
    one, two = Skew(policy(1)), Skew(policy(2))
    now = T0
    exchange(one, two, now, 50, 10, 10)
    for _ in range(SAMPLES_KEPT - 1):
        now = one.wake_at() or 0
        exchange(one, two, now, 50, 1000, 0)
    assert one.estimate(2) == SkewSample(50, 10)
    exchange(one, two, one.wake_at() or 0, 50, 1000, 0)
    assert one.estimate(2) == SkewSample(550, 500), "the good sample has grown old"


@pytest.mark.parametrize("seed", range(200))
def test_gamma_as_measured_covers_the_true_difference_of_any_two_clocks(seed: int) -> None:
    chance = random.Random(seed)
    members = tuple(range(1, chance.randint(2, 5) + 1))
    offsets = {m: chance.randint(-5 * MS, 5 * MS) for m in members}
    skews = {m: Skew(policy(m, members)) for m in members}
    me = chance.choice(members)
    prober, now = skews[me], T0
    for turn in range(chance.randint(0, 3 * len(members))):
        heard = sum(prober.estimate(m) is not None for m in members if m != me)
        assert (prober.gamma_ns() is None) == (heard < len(members) - 1), turn
        now = max(now, prober.wake_at() or 0) + chance.randint(0, MS)
        prober.wake(now)
        (probe,) = prober.down
        prober.down.clear()
        there, back = chance.choice([(0, 0), (0, 3), (MS, 0), (chance.randint(0, 10 * MS), chance.randint(0, 10 * MS))])
        skews[probe.to].from_below(now + there + offsets[probe.to] - offsets[me], probe)
        (echo,) = skews[probe.to].down
        skews[probe.to].down.clear()
        assert echo.to == me
        if chance.random() < 0.8:  # the rest is lost
            prober.from_below(now + there + back, echo)
    gamma = prober.gamma_ns()
    if gamma is not None:
        assert gamma >= max(abs(offsets[a] - offsets[b]) for a, b in combinations(members, 2))


def test_peers_are_probed_in_turn_and_quickly_at_first() -> None:
    skew = Skew(policy(2, (1, 2, 3)))
    assert skew.wake_at() == 0
    now, asked, gaps = T0, [], []
    for _ in range(8):
        skew.wake(now)
        asked.append(skew.down.pop().to)
        due = skew.wake_at()
        assert due is not None
        gaps.append(due - now)
        skew.wake(due - 1)
        assert not skew.down, "not before it is due"
        now = due
    assert asked == [1, 3] * 4
    assert gaps == [100 * MS // 2 // 20] * 6 + [100 * MS // 2] * 2


def test_a_late_wake_sends_one_probe() -> None:
    skew = Skew(policy(1))
    skew.wake(T0)
    skew.wake(T0 + 10**12)
    assert len(skew.down) == 2


def test_the_shortest_period_still_lets_time_pass() -> None:
    skew = Skew(policy(1, (1, 2, 3), probe_every_ns=1))
    skew.wake(T0)
    due = skew.wake_at()
    assert due is not None
    assert due > T0


@pytest.mark.parametrize("skew", [Skew(policy(1, probe_every_ns=0)), Skew(policy(1, (1,)))])
def test_without_a_period_or_peers_nothing_is_probed(skew: Skew) -> None:
    assert skew.wake_at() is None
    skew.wake(T0)
    assert skew.down == []


def test_gamma_in_a_group_of_one_is_zero() -> None:
    assert Skew(policy(1, (1,))).gamma_ns() == 0


def test_everything_else_passes_both_ways() -> None:
    skew = Skew(policy(1))
    for kind in (Kind.DATA, Kind.HELLO):
        frame = Frame(kind, 2, 1, 0, 5, 0)
        skew.from_below(T0, frame)
        assert skew.up.pop() is frame
        skew.from_above(T0, frame)
        assert skew.down.pop() is frame


@pytest.mark.parametrize(
    ("sent", "received", "answered"),
    [(T0 + 1, T0, T0), (T0 - 10, T0, T0 + 11)],
    ids=["an echo of the future", "a negative round trip"],
)
def test_impossible_echoes_are_no_samples(sent: int, received: int, answered: int) -> None:
    skew = Skew(policy(1))
    skew.from_below(T0, Frame(Kind.ECHO, 2, 1, 0, 5, 0, body=encode_echo(sent, received, answered)))
    assert skew.estimate(2) is None
    assert skew.estimate(9) is None


def test_the_answer_carries_the_probe_and_its_own_clock() -> None:
    skew = Skew(policy(1))
    skew.from_below(T0, Frame(Kind.PROBE, 2, 1, 0, 5, 0, body=encode_probe(77)))
    (echo,) = skew.down
    assert (echo.kind, echo.sender, echo.to, echo.slot) == (Kind.ECHO, 1, 2, 0)
    assert decode_echo(bytes(echo.body)) == (77, T0, T0)
    assert decode_probe(encode_probe(2**63 - 1)) == 2**63 - 1
