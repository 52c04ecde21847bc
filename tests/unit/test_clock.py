"""The local clock with a fake time source: monotone, without jumps, and at last equal to the system's clock."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from unisono.runtime.timers import SLEW_PPM, STEP_THRESHOLD_NS, WallClock

SECOND = 1_000_000_000
EPOCH = 1_700_000_000 * SECOND


@dataclass
class Times:
    """A monotonic clock, and a system clock that can be set; each read of either takes `cost`."""

    mono: int = 5 * SECOND
    ahead: int = EPOCH
    cost: int = 0

    def monotonic(self) -> int:
        self.mono += self.cost
        return self.mono

    def system(self) -> int:
        self.mono += self.cost
        return self.mono + self.ahead

    def clock(self, step_ns: int = STEP_THRESHOLD_NS) -> WallClock:
        return WallClock(monotonic=self.monotonic, system=self.system, step_threshold_ns=step_ns)


def test_the_clock_starts_at_the_system_clock() -> None:
    times = Times()
    clock = times.clock()
    assert clock.now() == times.system()
    times.mono += 123
    assert clock.now() == times.system()


def test_the_fastest_read_counts() -> None:
    times = Times()
    interruptions = iter([9_000_000, 7_000, 200, 8_000_000])

    def system() -> int:
        now = times.mono + times.ahead
        times.mono += next(interruptions, 5_000)  # the process is interrupted after the read
        return now

    clock = WallClock(monotonic=times.monotonic, system=system)
    assert clock.uncertainty_ns == 200
    assert abs(clock.now() - (times.mono + times.ahead)) <= 200


def test_a_system_clock_set_back_slews_without_a_jump() -> None:
    times = Times()
    clock = times.clock()
    times.ahead -= 1_000_000
    before = clock.now()
    assert clock.slew_toward_system() == 0  # a millisecond is not a step
    assert clock.behind_ns == -1_000_000
    assert clock.now() == before
    times.mono += SECOND
    assert clock.now() == before + SECOND - 500_000
    times.mono += SECOND
    assert clock.now() == before + 2 * SECOND - 1_000_000 == times.system()
    times.mono += SECOND
    assert clock.now() == times.system()


def test_a_step_is_reported_until_the_clocks_agree_again() -> None:
    times = Times()
    clock = times.clock(step_ns=10_000_000)
    times.ahead += 12_000_000
    before = clock.now()
    assert clock.slew_toward_system() == 12_000_000
    assert clock.now() == before
    reports = []
    for _ in range(30):
        times.mono += SECOND
        reports.append(clock.slew_toward_system())
    assert reports[0] == 11_500_000
    assert reports[4:] == [0] * 26
    assert clock.now() == times.system()


def test_a_difference_within_the_reading_error_is_ignored() -> None:
    times = Times(cost=40)
    clock = times.clock()
    times.ahead += 60
    assert clock.slew_toward_system() == 0
    assert clock.behind_ns == 60
    times.mono += SECOND
    assert clock.now() == times.mono + times.ahead - 60


moves = st.tuples(
    st.integers(0, 3 * SECOND),  # time that passes
    st.one_of(st.just(0), st.integers(-SECOND, SECOND)),  # by how much the system's clock is set
    st.booleans(),  # whether slew_toward_system is called
)


@given(st.lists(moves, max_size=40), st.integers(0, 50))
def test_the_clock_is_always_monotone_and_within_the_slew_rate(script: list[tuple[int, int, bool]], cost: int) -> None:
    times = Times(cost=cost)
    clock = times.clock()
    last, last_mono = clock.now(), times.mono
    for passed, set_by, follow in script:
        times.mono += passed
        times.ahead += set_by
        if follow:
            clock.slew_toward_system()
        now = clock.now()
        elapsed = times.mono - last_mono
        assert now >= last
        assert abs((now - last) - elapsed) <= elapsed * SLEW_PPM // 1_000_000 + 2
        last, last_mono = now, times.mono


def test_on_the_real_clocks() -> None:
    clock = WallClock()
    readings = [clock.now() for _ in range(1000)]
    assert readings == sorted(readings)
    assert clock.slew_toward_system() == 0
    assert abs(clock.behind_ns) < SECOND
