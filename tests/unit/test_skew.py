"""The skew layer: the difference of two clocks from four readings, and Γ as measured."""

import random
from itertools import combinations
from typing import Any

import pytest

from unisono.model.policy import Policy
from unisono.model.rates import Rate
from unisono.model.timing import Timing
from unisono.model.views import View
from unisono.net.clock_check import QUIET_NS, ROUND_TRIPS, SAMPLES_KEPT, ClockCheck, ClockDifference, SkewSample
from unisono.wire.control import decode_echo, decode_probe, encode_echo, encode_probe
from unisono.wire.frame import END_OF_SLOT, Frame, Kind

MS = 1_000_000
T0 = 10**18


def policy(member: int, members: tuple[int, ...] = (1, 2), **changes: Any) -> Policy:
    fields: dict[str, Any] = {"probe_every_ns": 100 * MS}
    fields.update(changes)
    return Policy("g", member, View(members), Timing(10 * MS, 2 * MS, 5 * MS), Rate(50, 8), **fields)


def exchange(prober: ClockCheck, answerer: ClockCheck, now: int, offset: int, there: int, back: int) -> None:
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
    one, two = ClockCheck(policy(1)), ClockCheck(policy(2))
    exchange(one, two, T0, offset, there, back)
    sample = one.estimate(2)
    assert sample == SkewSample(offset + (there - back) // 2, (there + back + 1) // 2)
    assert abs(sample.offset_ns - offset) <= sample.error_ns, "the error bound holds"


def test_the_shortest_round_trip_of_the_last_few_counts() -> None:
    one, two = ClockCheck(policy(1)), ClockCheck(policy(2))
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
    skews = {m: ClockCheck(policy(m, members)) for m in members}
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
    skew = ClockCheck(policy(2, (1, 2, 3)))
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
    skew = ClockCheck(policy(1))
    skew.wake(T0)
    skew.wake(T0 + 10**12)
    assert len(skew.down) == 2


def test_the_shortest_period_still_lets_time_pass() -> None:
    skew = ClockCheck(policy(1, (1, 2, 3), probe_every_ns=1))
    skew.wake(T0)
    due = skew.wake_at()
    assert due is not None
    assert due > T0


@pytest.mark.parametrize("skew", [ClockCheck(policy(1, probe_every_ns=0)), ClockCheck(policy(1, (1,)))])
def test_without_a_period_or_peers_nothing_is_probed(skew: ClockCheck) -> None:
    assert skew.wake_at() is None
    skew.wake(T0)
    assert skew.down == []


def test_gamma_in_a_group_of_one_is_zero() -> None:
    assert ClockCheck(policy(1, (1,))).gamma_ns() == 0


def test_everything_else_passes_both_ways() -> None:
    skew = ClockCheck(policy(1))
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
    skew = ClockCheck(policy(1))
    skew.from_below(T0, Frame(Kind.ECHO, 2, 1, 0, 5, 0, body=encode_echo(sent, received, answered)))
    assert skew.estimate(2) is None
    assert skew.estimate(9) is None


def test_the_answer_carries_the_probe_and_its_own_clock() -> None:
    skew = ClockCheck(policy(1))
    skew.from_below(T0, Frame(Kind.PROBE, 2, 1, 0, 5, 0, body=encode_probe(77)))
    (echo,) = skew.down
    assert (echo.kind, echo.sender, echo.to, echo.slot) == (Kind.ECHO, 1, 2, 0)
    assert decode_echo(bytes(echo.body)) == (77, T0, T0)
    assert decode_probe(encode_probe(2**63 - 1)) == 2**63 - 1


# -- clocks that are off by more than Γ ------------------------------------------------------------------------------


DELTA, GAMMA = 10 * MS, 2 * MS


class Wary(ClockCheck):
    """With what it tells the order."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self.told: list[ClockDifference] = []
        self.on_clock_difference = lambda _, found: self.told.append(found)


def wary(**changes: Any) -> Wary:
    return Wary(policy(1, **({"probe_every_ns": 1000 * MS} | changes)))


def turn(skew: ClockCheck, offset: int, there: int, back: int, *, life: int = 1) -> None:
    """One probe, when it is due, and its echo: our clock shows `there` and `back` as the way takes them."""
    now = max(T0, skew.wake_at() or 0)
    skew.wake(now)
    skew.down.clear()
    seen = now + there + offset
    skew.from_below(now + there + back, Frame(Kind.ECHO, 2, life, 0, 5, 0, body=encode_echo(now, seen, seen)))


def found(skew: ClockCheck) -> list[int]:
    assert isinstance(skew, Wary)
    told, skew.told[:] = skew.told[:], []
    assert all(differs.peer == 2 for differs in told)
    return [differs.difference_ns for differs in told]


@pytest.mark.parametrize(
    ("offset", "there", "back", "least"),
    [
        (3 * MS, 0, 0, 3 * MS),
        (3 * MS, 9 * MS, 0, 3 * MS),
        (-3 * MS, 0, 9 * MS, -3 * MS),
        (GAMMA + 1, 0, 0, GAMMA + 1),
    ],
)
def test_what_arrives_before_it_was_sent_is_proof(offset: int, there: int, back: int, least: int) -> None:
    skew = wary()
    turn(skew, offset, there, back)
    assert found(skew) == [least]


@pytest.mark.parametrize(("offset", "there", "back"), [(GAMMA, 0, 0), (-GAMMA, 0, 0), (3 * MS, 1 * MS, 1 * MS)])
def test_within_gamma_or_within_the_error_nothing_is_told(offset: int, there: int, back: int) -> None:
    skew = wary()
    for _ in range(3 * ROUND_TRIPS):
        turn(skew, offset, there, back)
    assert found(skew) == []


def test_round_trips_that_all_show_more_than_delta_and_gamma_are_proof_together() -> None:
    skew = wary()
    for _ in range(ROUND_TRIPS - 1):
        turn(skew, -3 * MS, DELTA, DELTA)
        assert found(skew) == []
    turn(skew, -3 * MS, DELTA, DELTA)
    assert found(skew) == [-3 * MS]


def test_one_echo_in_time_takes_all_of_it_back() -> None:
    skew = wary()
    for _ in range(4):
        for _ in range(ROUND_TRIPS - 1):
            turn(skew, 0, 0, 15 * MS)
        turn(skew, 0, 0, 12 * MS)
    assert found(skew) == []


def test_one_mark_in_time_takes_all_of_it_back() -> None:
    skew = wary()
    for _ in range(4):
        for _ in range(ROUND_TRIPS - 1):
            turn(skew, 0, 0, 15 * MS)
        assert not skew.is_on_time(DELTA + GAMMA + 1, 2)
        assert skew.is_on_time(DELTA + GAMMA, 2)
    assert found(skew) == []


def test_a_round_trip_longer_than_two_delta_shows_a_slow_network_and_nothing_of_clocks() -> None:
    skew = wary()
    for _ in range(3 * ROUND_TRIPS):
        turn(skew, -3 * MS, DELTA, DELTA + 1)
    assert found(skew) == []


def test_another_life_is_judged_from_the_start() -> None:
    skew = wary()
    for life in (1, 2, 3):
        for _ in range(ROUND_TRIPS - 1):
            turn(skew, -3 * MS, DELTA, DELTA, life=life)
    assert found(skew) == []


def test_echoes_that_waited_together_are_one_round_trip() -> None:
    """A peer or a network that stood still hands out many at once: they show one thing, and once."""
    skew = wary()
    for moment in range(3):
        now = T0 + moment * 1000 * MS
        for late in range(13, 13 + ROUND_TRIPS):
            sent = now - late * MS
            echo = encode_echo(sent, sent, sent)
            skew.from_below(now, Frame(Kind.ECHO, 2, 1, 0, 5, 0, body=echo))
    assert found(skew) == []


def test_what_waited_for_us_is_not_held_against_its_sender() -> None:
    skew = wary()
    for _ in range(3 * ROUND_TRIPS):
        now = max(T0, skew.wake_at() or 0)
        skew.next_wake = lambda at=now: at + 12 * MS  # type: ignore[misc]
        turn(skew, 0, 0, 14 * MS)
    assert found(skew) == []
    skew.next_wake = lambda: None
    for _ in range(ROUND_TRIPS):
        turn(skew, 0, 0, 15 * MS)
    assert found(skew) == [-4 * MS]


def test_a_suspect_is_probed_more_often() -> None:
    skew = ClockCheck(policy(1, (1, 2, 3)))
    for _ in range(6):
        skew.wake(max(T0, skew.wake_at() or 0))
    skew.down.clear()
    regular = skew.wake_at()
    assert regular is not None
    now = regular - 40 * MS
    seen = now - 15 * MS
    skew.from_below(now, Frame(Kind.ECHO, 2, 1, 0, 5, 0, body=encode_echo(seen, seen, seen)))
    assert skew.wake_at() == now + 5 * MS
    skew.wake(now + 5 * MS)
    assert [probe.to for probe in skew.down] == [2]
    assert skew.wake_at() == regular


def test_a_wrong_clock_is_told_once_while_it_goes_on() -> None:
    skew = wary()
    for _ in range(300):
        turn(skew, 3 * MS, 0, 0)
    assert found(skew) == [3 * MS]
    now = (skew.wake_at() or 0) + QUIET_NS
    skew.wake(now)
    skew.down.clear()
    seen = now + 3 * MS
    skew.from_below(now, Frame(Kind.ECHO, 2, 1, 0, 5, 0, body=encode_echo(now, seen, seen)))
    assert found(skew) == [3 * MS], "and again after a while in which nothing showed it"


def marked(sent_ns: int, sender: int = 2) -> Frame:
    return Frame(Kind.DATA, sender, 1, 0, 7, 0, END_OF_SLOT, sent_ns=sent_ns)


def test_a_late_mark_is_reported_once_per_stretch_and_names_sender_and_figure() -> None:
    skew = wary(failures=True)
    (late,) = skew.report_late(T0, marked(T0 - 13 * MS))
    assert (late.kind, late.member, late.slot) == ("late", 2, 7)
    assert "a datagram of member 2 took 13ms by our clocks, more than Δ+Γ = 12ms" in late.text
    assert skew.report_late(T0 + 900 * MS, marked(T0 + 880 * MS)) == []
    assert skew.report_late(T0 + 1800 * MS, marked(T0 + 1780 * MS)) == []
    assert len(skew.report_late(T0 + 1801 * MS, marked(T0 + 1780 * MS, sender=3))) == 1
    assert len(skew.report_late(T0 + 2900 * MS, marked(T0 + 2880 * MS))) == 1, "after a second without"
    assert found(skew) == []


def test_a_mark_that_waited_for_us_is_not_reported() -> None:
    skew = wary(failures=True)
    skew.next_wake = lambda: T0 - 3000 * MS
    for waited in (2999, 1500, 13):
        assert skew.report_late(T0, marked(T0 - waited * MS)) == []
    skew.next_wake = lambda: None
    assert skew.report_late(T0 + MS, marked(T0 - 12 * MS)) == [], "read a little later"
    assert len(skew.report_late(T0 + 20 * MS, marked(T0 + 5 * MS))) == 1, "sent after we had gone on"


@pytest.mark.parametrize("seed", range(20))
def test_no_clock_within_gamma_is_convicted_by_a_busy_machine(seed: int) -> None:
    """Stalls of either side, of up to ten times Δ, half of the time; some datagrams get through in between."""
    chance = random.Random(seed)
    offset = chance.choice((-GAMMA, GAMMA, 0))
    skew = wary()
    for _ in range(400):
        there, back = (chance.choice((0, DELTA, chance.randint(0, 10 * DELTA))) for _ in range(2))
        turn(skew, offset, there, back)
        for _ in range(4):  # marks come all the time
            skew.is_on_time(chance.choice((0, DELTA, chance.randint(0, 10 * DELTA))) - offset, 2)
    assert found(skew) == []


def test_who_stood_still_did_so_since_it_was_woken_for_all_it_knows() -> None:
    """The alarm was due in the middle of the pause."""
    skew = wary(failures=True)
    skew.wake(T0)
    skew.next_wake = lambda: T0 + 5 * MS
    assert skew.report_late(T0 + 20 * MS, marked(T0 + MS)) == []
    assert skew.report_late(T0 + 20 * MS, marked(T0 - 15 * MS)) != [], "beyond that it was late"
