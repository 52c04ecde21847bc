"""The local clock of a member, and an alarm at a local time.

`WallClock` shows nanoseconds since the Unix epoch. It never steps back and never jumps.

`Alarm` calls back at a local time, with sub-millisecond precision on Linux. asyncio rounds its own timers up to
milliseconds, because epoll does. A timerfd is a file that becomes readable at the requested nanosecond; the event loop
watches one.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
import sys
import time
from collections.abc import Callable
from typing import Protocol

from unisono.model.delays import Histogram

SLEW_PPM = 500
"""The clock gains or loses at most 500 µs per second: the limit of NTP daemons, and little compared with any slot."""
STEP_THRESHOLD_NS = 10_000_000
"""If the system's clock and the local clock differ by more than this, the system's clock was set."""
INCARNATION_EPOCH_NS = 1_735_689_600 * 1_000_000_000
_OFFSET_READS = 9
_MILLION = 1_000_000


class LocalClock(Protocol):
    """The interface of a member's clock."""

    def now(self) -> int:
        """The local time in nanoseconds since the Unix epoch."""

    def system_ns(self, local_ns: int) -> int:
        """What the machine's clock shows when this clock shows `local_ns`."""

    def slew_toward_system(self) -> int:
        """Move this clock gradually toward the machine's clock.

        If the machine's clock was set, return how many nanoseconds it is ahead of this one; else return 0.
        """


class WallClock:
    """The local clock of a real member: the monotonic clock plus an offset, which follows the system's clock slowly.

    The kernel runs both clocks at the same rate. They diverge only when the system's clock is set, at a leap second, or
    when the machine was suspended. The group must not see that as a jump in time.
    """

    def __init__(
        self,
        *,
        monotonic: Callable[[], int] = time.monotonic_ns,
        system: Callable[[], int] = time.time_ns,
        step_threshold_ns: int = STEP_THRESHOLD_NS,
        ahead_ns: int = 0,
    ) -> None:
        """`ahead_ns` makes this clock wrong on purpose: it runs this far ahead of the system's clock."""
        self._monotonic = monotonic
        self._system = system
        self._ahead_ns = ahead_ns
        self._step_threshold_ns = step_threshold_ns
        self.behind_ns = 0
        """The system's clock minus this clock, in ns, as `slew_toward_system` last measured it."""
        _, self._offset, self.uncertainty_ns = self._read_offset()
        # During a slew, the offset moves from `_offset - _slew` at its start to `_offset` at its end.
        self._slew = 0
        self._slew_start = self._slew_end = 0

    def now(self) -> int:
        """The local time in nanoseconds since the Unix epoch."""
        monotonic = self._monotonic()
        if monotonic < self._slew_end:
            return monotonic + self._slewing_offset(monotonic)
        return monotonic + self._offset

    def system_ns(self, local_ns: int) -> int:
        """What the system's clock shows when this clock shows `local_ns`."""
        return local_ns - self._ahead_ns

    def slew_toward_system(self) -> int:
        """Read the system's clock and start to move gradually toward it; call this about once a second.

        If the difference is so large that the system's clock must have been set, return how far it is ahead of this
        clock; else return 0. This clock moves by only 500 µs per second, so it may take long until the two agree again.
        """
        monotonic, wanted, self.uncertainty_ns = self._read_offset()
        current = self._slewing_offset(monotonic) if monotonic < self._slew_end else self._offset
        self.behind_ns = behind = wanted - current
        if abs(behind) <= self.uncertainty_ns:
            wanted, behind = current, 0
        self._offset, self._slew = wanted, behind
        self._slew_start = monotonic
        self._slew_end = monotonic + abs(behind) * (_MILLION // SLEW_PPM)
        return self.behind_ns if abs(self.behind_ns) > self._step_threshold_ns else 0

    def _slewing_offset(self, monotonic: int) -> int:
        # `done` grows by at most one per nanosecond, so a slew backwards at worst stops the clock.
        done = (monotonic - self._slew_start) * SLEW_PPM // _MILLION
        return self._offset - self._slew + (done if self._slew > 0 else -done)

    def _read_offset(self) -> tuple[int, int, int]:
        """Return the monotonic time, the system's clock minus that time, and the possible error of the difference.

        Of several reads, the fastest one counts: the process was not interrupted during it.
        """
        reads: list[tuple[int, int, int]] = []
        for _ in range(_OFFSET_READS):
            before = self._monotonic()
            system = self._system() + self._ahead_ns
            after = self._monotonic()
            reads.append((after, system - (before + after) // 2, after - before))
        latest, offset, width = min(reads, key=lambda read: read[2])
        return max(latest, reads[-1][0]), offset, width


def new_incarnation() -> int:
    """A new incarnation number. It grows with time, so a restarted member gets a larger one even without storage.

    It counts eighths of a second since 2025 and wraps around in 2042.
    """
    return (WallClock().now() - INCARNATION_EPOCH_NS) // 125_000_000 % 2**32


_NS_PER_S = 1_000_000_000
_ITIMERSPEC = struct.Struct("@4l")
"""The kernel's `itimerspec`: the interval, which is 0, and the remaining time; each in seconds and nanoseconds."""


if sys.version_info >= (3, 13) and sys.platform == "linux":

    class _TimerFile:
        """A timerfd (a kernel timer that is a file), through the standard library."""

        def __init__(self) -> None:
            self.fd: int = os.timerfd_create(time.CLOCK_MONOTONIC, flags=os.TFD_NONBLOCK | os.TFD_CLOEXEC)

        def start(self, delay_ns: int) -> None:
            """Let the timer's file become readable after this delay; 0 stops the timer."""
            os.timerfd_settime_ns(self.fd, initial=delay_ns)

else:

    class _TimerFile:
        """A timerfd (a kernel timer that is a file), through libc, for Pythons before 3.13."""

        def __init__(self) -> None:
            libc = ctypes.CDLL(None, use_errno=True)
            # The flags TFD_NONBLOCK and TFD_CLOEXEC are defined as the flags of open().
            self.fd: int = libc.timerfd_create(
                ctypes.c_int(time.CLOCK_MONOTONIC), ctypes.c_int(os.O_NONBLOCK | os.O_CLOEXEC)
            )
            if self.fd < 0:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code))
            self._settime = libc.timerfd_settime
            self._settime.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
            self._spec = bytearray(_ITIMERSPEC.size)
            self._spec_address = ctypes.addressof(ctypes.c_char.from_buffer(self._spec))

        def start(self, delay_ns: int) -> None:
            """Let the timer's file become readable after this delay; 0 stops the timer."""
            _ITIMERSPEC.pack_into(self._spec, 0, 0, 0, delay_ns // _NS_PER_S, delay_ns % _NS_PER_S)
            if self._settime(self.fd, 0, self._spec_address, None) < 0:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code))


class Alarm:
    """Calls back once when the local clock has reached the set time, never earlier."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: LocalClock,
        callback: Callable[[], None],
        *,
        precise: bool = True,
    ) -> None:
        self.lateness = Histogram()
        """How many nanoseconds after its set time each callback came."""
        self._loop = loop
        self._clock = clock
        self._callback = callback
        self._at_ns: int | None = None
        self._created_ns = self._set_at_ns = clock.now()
        self._handle: asyncio.TimerHandle | None = None
        self._timer = _open_timer(loop, self._expired) if precise else None

    def set(self, at_ns: int | None) -> None:
        """Call back at this local time, or soon if it has passed.

        This replaces the time set before; None cancels the alarm.
        """
        before = self._at_ns
        if at_ns == before:
            return
        self._at_ns = at_ns
        if at_ns is None:
            self._start(0)
            return
        now = self._clock.now()
        if before is not None and self._created_ns < before < now:
            # The alarm was overdue, and another input has just done the work that was due: that counts as late, too.
            self.lateness.add(now - before)
        self._set_at_ns = now
        self._start(max(at_ns - now, 1))

    def close(self) -> None:
        """Cancel the alarm and release its timer. It never calls back again."""
        self._at_ns = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if self._timer is not None:
            self._loop.remove_reader(self._timer.fd)
            os.close(self._timer.fd)
            self._timer = None

    def _start(self, delay_ns: int) -> None:
        if self._timer is not None:
            self._timer.start(delay_ns)
            return
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if delay_ns:
            self._handle = self._loop.call_at(self._loop.time() + delay_ns / _NS_PER_S, self._fire)

    def _expired(self) -> None:
        """Handle a readable timerfd. If the alarm has been set again since then, there is nothing to read."""
        if self._timer is None:
            return
        try:
            os.read(self._timer.fd, 8)
        except BlockingIOError:
            return
        self._fire()

    def _fire(self) -> None:
        at = self._at_ns
        if at is None:
            return
        now = self._clock.now()
        if now < at:
            # The local clock is slower than the monotonic one during a slew, or a float was rounded.
            self._start(at - now)
            return
        # A time before the creation of this alarm means "at once".
        self.lateness.add(now - (at if at > self._created_ns else self._set_at_ns))
        self._at_ns = None
        self._callback()


def _open_timer(loop: asyncio.AbstractEventLoop, expired: Callable[[], None]) -> _TimerFile | None:
    if sys.platform != "linux":
        return None
    try:
        timer = _TimerFile()
    except (OSError, AttributeError):
        return None  # this kernel or libc has no timerfd
    try:
        loop.add_reader(timer.fd, expired)
    except (NotImplementedError, OSError):
        os.close(timer.fd)
        return None
    return timer
