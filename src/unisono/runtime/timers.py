"""One alarm at an absolute local time, with sub-millisecond precision where the platform has it.

asyncio rounds its own timers up to epoll's millisecond. A timerfd is a file that becomes readable at the nanosecond
asked for, so on Linux the loop watches one of those.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
import sys
import time
from collections.abc import Callable

from unisono.model.histogram import Histogram
from unisono.runtime.clock import LocalClock

_NS_PER_S = 1_000_000_000
_ITIMERSPEC = struct.Struct("@4l")
"""The interval, which is none, and the time to go; seconds and nanoseconds of each."""


if sys.version_info >= (3, 13) and sys.platform == "linux":

    class _TimerFile:
        """A timerfd through the standard library."""

        def __init__(self) -> None:
            self.fd: int = os.timerfd_create(time.CLOCK_MONOTONIC, flags=os.TFD_NONBLOCK | os.TFD_CLOEXEC)

        def start(self, delay_ns: int) -> None:
            """Become readable after a while; 0 stops the timer."""
            os.timerfd_settime_ns(self.fd, initial=delay_ns)

else:

    class _TimerFile:
        """A timerfd through libc, for Pythons before 3.13."""

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
            """Become readable after a while; 0 stops the timer."""
            _ITIMERSPEC.pack_into(self._spec, 0, 0, 0, delay_ns // _NS_PER_S, delay_ns % _NS_PER_S)
            if self._settime(self.fd, 0, self._spec_address, None) < 0:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code))


class Alarm:
    """Calls back once when the local clock has reached the time set, never before it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: LocalClock,
        callback: Callable[[], None],
        *,
        precise: bool = True,
    ) -> None:
        self.lateness = Histogram()
        """How long after the time set each call came, ns."""
        self._loop = loop
        self._clock = clock
        self._callback = callback
        self._at_ns: int | None = None
        self._created_ns = self._set_at_ns = clock.now()
        self._handle: asyncio.TimerHandle | None = None
        self._timer = _open_timer(loop, self._expired) if precise else None
        self.precise = self._timer is not None
        """Whether a timerfd is watched; without one, lateness is a millisecond and more."""

    def set(self, at_ns: int | None) -> None:
        """Call back at this local time (soon, if it has passed); replaces the time set before. None: not at all."""
        before = self._at_ns
        if at_ns == before:
            return
        self._at_ns = at_ns
        if at_ns is None:
            self._start(0)
            return
        now = self._clock.now()
        if before is not None and self._created_ns < before < now:
            # It is over and nobody came: what it was for has been done just now, by something else, and late.
            self.lateness.add(now - before)
        self._set_at_ns = now
        self._start(max(at_ns - now, 1))

    def close(self) -> None:
        """Never call back again."""
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
        """The timerfd was readable; set anew since then, it has nothing to read."""
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
            # The local clock is slewing backwards against the monotonic one, or a float was rounded.
            self._start(at - now)
            return
        # A time from before this alarm existed is a way to say "at once".
        self.lateness.add(now - (at if at > self._created_ns else self._set_at_ns))
        self._at_ns = None
        self._callback()


def _open_timer(loop: asyncio.AbstractEventLoop, expired: Callable[[], None]) -> _TimerFile | None:
    if sys.platform != "linux":
        return None
    try:
        timer = _TimerFile()
    except (OSError, AttributeError):
        return None  # no such call in this kernel or libc
    try:
        loop.add_reader(timer.fd, expired)
    except (NotImplementedError, OSError):
        os.close(timer.fd)
        return None
    return timer
