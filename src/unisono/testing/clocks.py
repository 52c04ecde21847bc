"""The clocks and alarms of members in a test: one true time for all, and an offset for each member's clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from unisono.errors import InvalidOption
from unisono.model.delays import Histogram
from unisono.model.units import duration_ns
from unisono.runtime.timers import Alarm, LocalClock
from unisono.testing.virtual_time import VirtualTimeLoop

VIRTUAL_EPOCH_NS = 1_767_225_600 * 1_000_000_000
"""The wall-clock time at which virtual time starts: 2026-01-01."""


class ClockControl:
    """Controls the clocks and alarms of a test: the true time, and how far each member's clock is ahead of it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.is_virtual = isinstance(loop, VirtualTimeLoop)
        """Whether the event loop runs in virtual time (`unisono.testing.run`)."""
        self._alarms: dict[int, list[ControlledAlarm]] = {}
        self._offsets_ns: dict[int, int] = {}
        self._stopped: set[int] = set()
        # The system's clock may be set during a test; the test must not notice.
        self._real_epoch_ns = time.time_ns() - time.monotonic_ns()

    def now_ns(self) -> int:
        """The true time in nanoseconds since the Unix epoch."""
        if isinstance(self.loop, VirtualTimeLoop):
            return VIRTUAL_EPOCH_NS + self.loop.time_ns()
        return self._real_epoch_ns + time.monotonic_ns()

    def offset_ns(self, member: int) -> int:
        """How far a member's clock is ahead of the true time."""
        return self._offsets_ns.get(member, 0)

    def offset(self, member: int, ahead: str) -> None:
        """Set a member's clock ahead of the true time; `"-3ms"` sets it behind.

        A clock never runs backwards: after a change to an earlier time, it stands still until the true time plus the
        offset has caught up.
        """
        behind = isinstance(ahead, str) and ahead.startswith("-")
        self._offsets_ns[member] = (-1 if behind else 1) * duration_ns(ahead[1:] if behind else ahead, "offset")
        if member not in self._stopped:
            for alarm in self._alarms.get(member, ()):
                alarm.rearm()

    def open_clock(self, member: int, extra_offset_ns: int) -> LocalClock:
        """Open a clock for a member: the true time plus the member's offset."""
        return _MemberClock(self, member, extra_offset_ns)

    def open_alarm(self, member: int, clock: LocalClock, callback: Callable[[], None]) -> ControlledAlarm:
        """Open an alarm for a member. It does not call back while the member is paused."""
        if member in self._stopped:
            raise InvalidOption("member", f"member {member} is paused and cannot join; resume it first")
        alarms = self._alarms.setdefault(member, [])
        alarm = ControlledAlarm(self.loop, clock, callback, precise=not self.is_virtual, on_close=alarms.remove)
        alarms.append(alarm)
        return alarm

    def stop_alarms(self, member: int) -> None:
        """Keep a member's alarms from calling back until `start_alarms`."""
        self._stopped.add(member)
        for alarm in self._alarms.get(member, ()):
            alarm.hold()

    def start_alarms(self, member: int) -> None:
        """Let a member's alarms call back again. Alarms whose time has passed call back now."""
        self._stopped.discard(member)
        for alarm in self._alarms.get(member, ()):
            alarm.rearm()


class _MemberClock:
    """A member's clock in a test: the true time plus the member's offset. It never runs backwards."""

    def __init__(self, control: ClockControl, member: int, extra_offset_ns: int) -> None:
        self._control, self._member, self._extra_offset_ns = control, member, extra_offset_ns
        self._latest_ns = 0

    def _offset_ns(self) -> int:
        return self._control.offset_ns(self._member) + self._extra_offset_ns

    def now(self) -> int:
        self._latest_ns = max(self._latest_ns, self._control.now_ns() + self._offset_ns())
        return self._latest_ns

    def system_ns(self, local_ns: int) -> int:
        return local_ns - self._offset_ns()

    def slew_toward_system(self) -> int:
        """Return 0: a clock in a test follows its offset exactly, so it never has to adjust itself."""
        return 0


class ControlledAlarm:
    """An alarm that a test can put on hold. When the offset of its clock changes, it is set again."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: LocalClock,
        callback: Callable[[], None],
        *,
        precise: bool,
        on_close: Callable[[ControlledAlarm], None],
    ) -> None:
        self._callback, self._on_close = callback, on_close
        self._at_ns: int | None = None
        self._held = self._closed = False
        self._alarm = Alarm(loop, clock, self._ring, precise=precise)

    @property
    def lateness(self) -> Histogram:
        """How many nanoseconds after its set time each callback came."""
        return self._alarm.lateness

    def set(self, at_ns: int | None) -> None:
        """Call back at this local time. An alarm on hold calls back only after `rearm`."""
        self._at_ns = at_ns
        if not self._held:
            self._alarm.set(at_ns)

    def hold(self) -> None:
        """Do not call back until `rearm`."""
        self._held = True
        self._alarm.set(None)

    def rearm(self) -> None:
        """Set the alarm again, because it was held or the clock's offset has changed."""
        self._held = False
        self._alarm.set(None)
        self._alarm.set(self._at_ns)

    def close(self) -> None:
        """Never call back again. A second call does nothing."""
        if not self._closed:
            self._closed = True
            self._alarm.close()
            self._on_close(self)

    def _ring(self) -> None:
        self._at_ns = None
        self._callback()
