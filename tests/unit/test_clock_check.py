"""The clock check: the difference of two clocks from four readings, Γ as measured, and wrong clocks."""

import random
from itertools import combinations
from typing import Any

import pytest

from unisono.model.events import View
from unisono.model.policy import Policy
from unisono.model.timing import Timing
from unisono.model.units import Rate
from unisono.net.clock_check import QUIET_NS, ROUND_TRIPS, SAMPLES_KEPT, ClockCheck, ClockDifference, SkewSample
from unisono.wire.codec import control_frame
from unisono.wire.control import Echo, Probe
from unisono.wire.frame import END_OF_SLOT, Frame, Kind

MS = 1_000_000
T0 = 10**18


def policy(member: int, members: tuple[int, ...] = (1, 2), **changes: Any) -> Policy:
    fields: dict[str, Any] = {"probe_every_ns": 100 * MS}
    fields.update(changes)
    return Policy("g", member, View(members), Timing(10 * MS, 2 * MS, 5 * MS), Rate(50, 8), **fields)


def exchange(prober: ClockCheck, answerer: ClockCheck, now: int, offset: int, there: int, back: int) -> None:
    """One probe and its echo; `now` is the prober's clock, and the other clock is `offset` ahead of it."""
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


def test_the_shortest_of_the_recent_round_trips_counts() -> None:
    one, two = ClockCheck(policy(1)), ClockCheck(policy(2))
    now = T0
    exchange(one, two, now, 50, 10, 10)
    for _ in range(SAMPLES_KEPT - 1):
        now = one.wake_at() or 0
        exchange(one, two, now, 50, 1000, 0)
    assert one.estimate(2) == SkewSample(50, 10)
    exchange(one, two, one.wake_at() or 0, 50, 1000, 0)
    assert one.estimate(2) == SkewSample(550, 500), "the best sample is no longer kept"


@pytest.mark.parametrize("seed", range(200))
def test_measured_gamma_covers_the_true_difference_of_any_two_clocks(seed: int) -> None:
    chance = random.Random(seed)
    members = tuple(range(1, chance.randint(2, 5) + 1))
    offsets = {m: chance.randint(-5 * MS, 5 * MS) for m in members}
    checks = {m: ClockCheck(policy(m, members)) for m in members}
    me = chance.choice(members)
    prober, now = checks[me], T0
    for probe_number in range(chance.randint(0, 3 * len(members))):
        answered = sum(prober.estimate(m) is not None for m in members if m != me)
        assert (prober.gamma_ns() is None) == (answered < len(members) - 1), probe_number
        now = max(now, prober.wake_at() or 0) + chance.randint(0, MS)
        prober.wake(now)
        (probe,) = prober.down
        prober.down.clear()
        there, back = chance.choice([(0, 0), (0, 3), (MS, 0), (chance.randint(0, 10 * MS), chance.randint(0, 10 * MS))])
        checks[probe.to].from_below(now + there + offsets[probe.to] - offsets[me], probe)
        (echo,) = checks[probe.to].down
        checks[probe.to].down.clear()
        assert echo.to == me
        if chance.random() < 0.8:  # the other echoes are lost
            prober.from_below(now + there + back, echo)
    gamma = prober.gamma_ns()
    if gamma is not None:
        assert gamma >= max(abs(offsets[a] - offsets[b]) for a, b in combinations(members, 2))


def test_peers_are_probed_in_turn_and_quickly_at_first() -> None:
    check = ClockCheck(policy(2, (1, 2, 3)))
    assert check.wake_at() == 0
    now, probed, gaps = T0, [], []
    for _ in range(8):
        check.wake(now)
        probed.append(check.down.pop().to)
        due = check.wake_at()
        assert due is not None
        gaps.append(due - now)
        check.wake(due - 1)
        assert not check.down, "not before it is due"
        now = due
    assert probed == [1, 3] * 4
    assert gaps == [100 * MS // 2 // 20] * 6 + [100 * MS // 2] * 2


def test_a_late_wake_sends_one_probe() -> None:
    check = ClockCheck(policy(1))
    check.wake(T0)
    check.wake(T0 + 10**12)
    assert len(check.down) == 2


def test_even_the_shortest_period_lets_time_pass() -> None:
    check = ClockCheck(policy(1, (1, 2, 3), probe_every_ns=1))
    check.wake(T0)
    due = check.wake_at()
    assert due is not None
    assert due > T0


@pytest.mark.parametrize("check", [ClockCheck(policy(1, probe_every_ns=0)), ClockCheck(policy(1, (1,)))])
def test_without_a_period_or_peers_no_probe_is_sent(check: ClockCheck) -> None:
    assert check.wake_at() is None
    check.wake(T0)
    assert check.down == []


def test_gamma_in_a_group_of_one_is_zero() -> None:
    assert ClockCheck(policy(1, (1,))).gamma_ns() == 0


def test_other_frames_pass_both_ways() -> None:
    check = ClockCheck(policy(1))
    for kind in (Kind.DATA, Kind.HELLO):
        frame = Frame(kind, 2, 1, 0, 5, 0)
        check.from_below(T0, frame)
        assert check.up.pop() is frame
        check.from_above(T0, frame)
        assert check.down.pop() is frame


@pytest.mark.parametrize(
    ("sent", "received", "answered"),
    [(T0 + 1, T0, T0), (T0 - 10, T0, T0 + 11)],
    ids=["an echo of the future", "a negative round trip"],
)
def test_impossible_echoes_give_no_samples(sent: int, received: int, answered: int) -> None:
    check = ClockCheck(policy(1))
    check.from_below(T0, control_frame(Echo(sent, received, answered), 2, 1, 0, slot=5))
    assert check.estimate(2) is None
    assert check.estimate(9) is None


def test_an_echo_carries_the_probe_and_the_own_clock() -> None:
    check = ClockCheck(policy(1))
    check.from_below(T0, control_frame(Probe(77), 2, 1, 0, slot=5))
    (echo,) = check.down
    assert (echo.kind, echo.sender, echo.to, echo.slot) == (Kind.ECHO, 1, 2, 0)
    assert echo.message == Echo(77, T0, T0)


# -- wrong clocks ----------------------------------------------------------------------------------------------------


DELTA, GAMMA = 10 * MS, 2 * MS


class RecordingClockCheck(ClockCheck):
    """A clock check that records its reports to the order."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self.reported: list[ClockDifference] = []
        self.on_clock_difference = lambda _, difference: self.reported.append(difference)


def recording_clock_check(**changes: Any) -> RecordingClockCheck:
    return RecordingClockCheck(policy(1, **({"probe_every_ns": 1000 * MS} | changes)))


def probe_once(check: ClockCheck, offset: int, there: int, back: int, *, incarnation: int = 1) -> None:
    """One probe, when it is due, and its echo. `there` and `back` are the true delays of both."""
    now = max(T0, check.wake_at() or 0)
    check.wake(now)
    check.down.clear()
    seen = now + there + offset
    check.from_below(now + there + back, control_frame(Echo(now, seen, seen), 2, incarnation, 0, slot=5))


def reported_differences(check: ClockCheck) -> list[int]:
    """The differences reported since the last call."""
    assert isinstance(check, RecordingClockCheck)
    reported, check.reported[:] = check.reported[:], []
    assert all(difference.peer == 2 for difference in reported)
    return [difference.difference_ns for difference in reported]


@pytest.mark.parametrize(
    ("offset", "there", "back", "least"),
    [
        (3 * MS, 0, 0, 3 * MS),
        (3 * MS, 9 * MS, 0, 3 * MS),
        (-3 * MS, 0, 9 * MS, -3 * MS),
        (GAMMA + 1, 0, 0, GAMMA + 1),
    ],
)
def test_a_datagram_that_arrives_before_it_was_sent_is_proof(offset: int, there: int, back: int, least: int) -> None:
    check = recording_clock_check()
    probe_once(check, offset, there, back)
    assert reported_differences(check) == [least]


@pytest.mark.parametrize(("offset", "there", "back"), [(GAMMA, 0, 0), (-GAMMA, 0, 0), (3 * MS, 1 * MS, 1 * MS)])
def test_differences_within_gamma_or_the_error_are_not_reported(offset: int, there: int, back: int) -> None:
    check = recording_clock_check()
    for _ in range(3 * ROUND_TRIPS):
        probe_once(check, offset, there, back)
    assert reported_differences(check) == []


def test_enough_consecutive_late_round_trips_are_proof() -> None:
    check = recording_clock_check()
    for _ in range(ROUND_TRIPS - 1):
        probe_once(check, -3 * MS, DELTA, DELTA)
        assert reported_differences(check) == []
    probe_once(check, -3 * MS, DELTA, DELTA)
    assert reported_differences(check) == [-3 * MS]


def test_one_echo_on_time_restarts_the_count() -> None:
    check = recording_clock_check()
    for _ in range(4):
        for _ in range(ROUND_TRIPS - 1):
            probe_once(check, 0, 0, 15 * MS)
        probe_once(check, 0, 0, 12 * MS)
    assert reported_differences(check) == []


def test_one_end_of_slot_mark_on_time_restarts_the_count() -> None:
    check = recording_clock_check()
    for _ in range(4):
        for _ in range(ROUND_TRIPS - 1):
            probe_once(check, 0, 0, 15 * MS)
        assert not check.is_on_time(DELTA + GAMMA + 1, 2)
        assert check.is_on_time(DELTA + GAMMA, 2)
    assert reported_differences(check) == []


def test_a_round_trip_longer_than_two_delta_proves_nothing_about_clocks() -> None:
    check = recording_clock_check()
    for _ in range(3 * ROUND_TRIPS):
        probe_once(check, -3 * MS, DELTA, DELTA + 1)
    assert reported_differences(check) == []


def test_a_new_incarnation_restarts_the_count() -> None:
    check = recording_clock_check()
    for incarnation in (1, 2, 3):
        for _ in range(ROUND_TRIPS - 1):
            probe_once(check, -3 * MS, DELTA, DELTA, incarnation=incarnation)
    assert reported_differences(check) == []


def test_echoes_that_arrive_together_count_as_one_round_trip() -> None:
    """After a pause of a peer or of the network many echoes arrive at once, all for the same reason."""
    check = recording_clock_check()
    for moment in range(3):
        now = T0 + moment * 1000 * MS
        for late in range(13, 13 + ROUND_TRIPS):
            sent = now - late * MS
            check.from_below(now, control_frame(Echo(sent, sent, sent), 2, 1, 0, slot=5))
    assert reported_differences(check) == []


def test_own_lateness_is_not_attributed_to_the_peer() -> None:
    check = recording_clock_check()
    for _ in range(3 * ROUND_TRIPS):
        now = max(T0, check.wake_at() or 0)
        check.next_wake = lambda at=now: at + 12 * MS  # type: ignore[misc]
        probe_once(check, 0, 0, 14 * MS)
    assert reported_differences(check) == []
    check.next_wake = lambda: None
    for _ in range(ROUND_TRIPS):
        probe_once(check, 0, 0, 15 * MS)
    assert reported_differences(check) == [-4 * MS]


def test_a_suspected_clock_is_probed_more_often() -> None:
    check = ClockCheck(policy(1, (1, 2, 3)))
    for _ in range(6):
        check.wake(max(T0, check.wake_at() or 0))
    check.down.clear()
    regular = check.wake_at()
    assert regular is not None
    now = regular - 40 * MS
    seen = now - 15 * MS
    check.from_below(now, control_frame(Echo(seen, seen, seen), 2, 1, 0, slot=5))
    assert check.wake_at() == now + 5 * MS
    check.wake(now + 5 * MS)
    assert [probe.to for probe in check.down] == [2]
    assert check.wake_at() == regular


def test_a_wrong_clock_is_reported_once_until_it_has_been_quiet() -> None:
    check = recording_clock_check()
    for _ in range(300):
        probe_once(check, 3 * MS, 0, 0)
    assert reported_differences(check) == [3 * MS]
    now = (check.wake_at() or 0) + QUIET_NS
    check.wake(now)
    check.down.clear()
    seen = now + 3 * MS
    check.from_below(now, control_frame(Echo(now, seen, seen), 2, 1, 0, slot=5))
    assert reported_differences(check) == [3 * MS], "reported again after a quiet period"


def end_of_slot_mark(sent_ns: int, sender: int = 2) -> Frame:
    return Frame(Kind.DATA, sender, 1, 0, 7, 0, END_OF_SLOT, sent_ns=sent_ns)


def test_a_late_end_of_slot_mark_is_reported_once_with_sender_and_delay() -> None:
    check = recording_clock_check(failures=True)
    (late,) = check.report_late(T0, end_of_slot_mark(T0 - 13 * MS))
    assert (late.kind, late.member, late.slot) == ("late", 2, 7)
    assert "a datagram of member 2 took 13ms by the members' clocks, more than Δ+Γ = 12ms" in late.text
    assert check.report_late(T0 + 900 * MS, end_of_slot_mark(T0 + 880 * MS)) == []
    assert check.report_late(T0 + 1800 * MS, end_of_slot_mark(T0 + 1780 * MS)) == []
    assert len(check.report_late(T0 + 1801 * MS, end_of_slot_mark(T0 + 1780 * MS, sender=3))) == 1
    assert len(check.report_late(T0 + 2900 * MS, end_of_slot_mark(T0 + 2880 * MS))) == 1, (
        "reported again after a quiet second"
    )
    assert reported_differences(check) == []


def test_a_mark_that_waited_for_this_member_is_not_reported() -> None:
    check = recording_clock_check(failures=True)
    check.next_wake = lambda: T0 - 3000 * MS
    for waited in (2999, 1500, 13):
        assert check.report_late(T0, end_of_slot_mark(T0 - waited * MS)) == []
    check.next_wake = lambda: None
    assert check.report_late(T0 + MS, end_of_slot_mark(T0 - 12 * MS)) == [], "read slightly later"
    assert len(check.report_late(T0 + 20 * MS, end_of_slot_mark(T0 + 5 * MS))) == 1, (
        "sent after this member had resumed"
    )


@pytest.mark.parametrize("seed", range(20))
def test_a_busy_machine_does_not_make_a_correct_clock_look_wrong(seed: int) -> None:
    """Half of the time either side stalls for up to ten times Δ; some datagrams are on time in between."""
    chance = random.Random(seed)
    offset = chance.choice((-GAMMA, GAMMA, 0))
    check = recording_clock_check()
    for _ in range(400):
        there, back = (chance.choice((0, DELTA, chance.randint(0, 10 * DELTA))) for _ in range(2))
        probe_once(check, offset, there, back)
        for _ in range(4):  # end-of-slot marks keep arriving
            check.is_on_time(chance.choice((0, DELTA, chance.randint(0, 10 * DELTA))) - offset, 2)
    assert reported_differences(check) == []


def test_a_paused_member_counts_as_late_since_its_last_wake() -> None:
    """The alarm was due in the middle of the pause."""
    check = recording_clock_check(failures=True)
    check.wake(T0)
    check.next_wake = lambda: T0 + 5 * MS
    assert check.report_late(T0 + 20 * MS, end_of_slot_mark(T0 + MS)) == []
    assert check.report_late(T0 + 20 * MS, end_of_slot_mark(T0 - 15 * MS)) != [], (
        "sent before the last wake, so it was really late"
    )
