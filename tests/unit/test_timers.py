"""The alarm: never early, the last time set counts, and its lateness is measured. No test depends on speed."""

import asyncio
import sys
from collections.abc import Callable

import pytest

from unisono.runtime.timers import Alarm, WallClock

MS = 1_000_000
SECOND = 1000 * MS

both = pytest.mark.parametrize("precise", [True, False])


class Bench:
    """An alarm that logs its calls and lets a test wait for them."""

    def __init__(self, precise: bool, clock: WallClock | None = None) -> None:
        self.clock = clock or WallClock()
        self.calls: list[int] = []
        self._called = asyncio.Event()
        self.then: Callable[[], None] = lambda: None
        self.alarm = Alarm(asyncio.get_running_loop(), self.clock, self._ring, precise=precise)

    def _ring(self) -> None:
        self.calls.append(self.clock.now())
        self.then()
        self._called.set()

    async def rung(self, times: int) -> None:
        async with asyncio.timeout(10):
            while len(self.calls) < times:
                self._called.clear()
                await self._called.wait()


@both
def test_never_early_and_measured(precise: bool) -> None:
    async def scene() -> None:
        bench = Bench(precise)
        wanted = []
        for number in range(1, 21):
            at = bench.clock.now() + 300_000 * (number % 4)
            wanted.append(at)
            bench.alarm.set(at)
            await bench.rung(number)
        assert all(called >= at for called, at in zip(bench.calls, wanted, strict=True))
        assert bench.alarm.lateness.total == 20
        assert bench.alarm.lateness.largest < SECOND
        bench.alarm.close()

    asyncio.run(scene())


@both
def test_the_last_time_set_counts(precise: bool) -> None:
    async def scene() -> None:
        bench = Bench(precise)
        start = bench.clock.now()
        bench.alarm.set(start + 3600 * SECOND)
        bench.alarm.set(start + 1 * MS)
        bench.alarm.set(start + 5 * MS)
        bench.alarm.set(start + 5 * MS)
        await bench.rung(1)
        assert bench.calls[0] >= start + 5 * MS
        # It fires once; setting the same time again fires it again.
        bench.alarm.set(start + 5 * MS)
        await bench.rung(2)
        bench.alarm.close()

    asyncio.run(scene())


@both
def test_an_overdue_alarm_that_is_set_again_counts_as_late(precise: bool) -> None:
    """Another input did the work of the overdue alarm; that lateness counts."""

    async def scene() -> None:
        time = 0
        bench = Bench(precise, WallClock(monotonic=lambda: time, system=lambda: time))
        bench.alarm.set(10 * MS)
        time = 50 * MS
        bench.alarm.set(3600 * SECOND)
        assert (bench.alarm.lateness.total, bench.alarm.lateness.largest) == (1, 40 * MS)
        bench.alarm.set(1800 * SECOND)
        assert bench.alarm.lateness.total == 1, "one that is not over yet is only moved"
        assert not bench.calls
        bench.alarm.close()

    asyncio.run(scene())


@both
def test_a_cancelled_or_closed_alarm_does_not_fire(precise: bool) -> None:
    async def scene() -> None:
        silent, closed, witness = Bench(precise), Bench(precise), Bench(precise)
        start = witness.clock.now()
        silent.alarm.set(start + 1 * MS)
        silent.alarm.set(None)
        silent.alarm.set(None)
        closed.alarm.set(start + 1 * MS)
        closed.alarm.close()
        closed.alarm.close()
        witness.alarm.set(start + 4 * MS)
        await witness.rung(1)
        assert silent.calls == closed.calls == []
        silent.alarm.close()
        witness.alarm.close()

    asyncio.run(scene())


@both
def test_the_alarm_can_be_set_from_its_own_callback_and_to_fire_at_once(precise: bool) -> None:
    async def scene() -> None:
        bench = Bench(precise)
        bench.then = lambda: bench.alarm.set(0 if len(bench.calls) < 5 else None)
        bench.alarm.set(0)
        await bench.rung(5)
        # The lateness of "at once" is the time since it was set, not the time since the epoch.
        assert bench.alarm.lateness.largest < SECOND
        bench.alarm.close()

    asyncio.run(scene())


@both
def test_the_alarm_waits_for_a_clock_that_slews_back(precise: bool) -> None:
    """The monotonic timer expires first, but the local clock decides."""

    async def scene() -> None:
        skipped = 0
        clock = WallClock()
        real = clock.now

        def slow() -> int:
            nonlocal skipped
            skipped += 1
            return real() - (2 * MS if skipped > 2 else 0)

        clock.now = slow  # type: ignore[method-assign]
        bench = Bench(precise, clock)
        at = clock.now() + 1 * MS
        bench.alarm.set(at)
        await bench.rung(1)
        assert bench.calls[0] >= at
        bench.alarm.close()

    asyncio.run(scene())


@pytest.mark.skipif(sys.platform != "linux", reason="timerfd is Linux's")
def test_the_alarm_is_precise_on_linux() -> None:
    async def scene() -> None:
        alarm = Alarm(asyncio.get_running_loop(), WallClock(), lambda: None)
        assert alarm._timer is not None
        alarm.close()
        fallback = Alarm(asyncio.get_running_loop(), WallClock(), lambda: None, precise=False)
        assert fallback._timer is None
        fallback.close()

    asyncio.run(scene())
