"""Turns one member's metric collectors on and off while its group runs, and counts what it did in between."""

from __future__ import annotations

import time
from typing import Any

import unisono

PHASE_S = 0.25
"""Members switch at multiples of this on the machine's clock, so all are on or all are off."""


class Switch:
    """Even phases run without collectors, odd ones with them."""

    def __init__(self, group: unisono.Group) -> None:
        self.phases: list[dict[str, Any]] = []
        """Those that were counted from beginning to end."""
        self._driver, self._observer = group._driver, group._driver.qos_observer
        self._number = -1
        self._whole = False
        self._messages = 0
        self._begin = self._cpu = 0.0
        self._datagrams = 0

    def counted(self, now: float, messages: int) -> None:
        """The member has counted messages of others."""
        number = int(time.time() / PHASE_S)
        if number != self._number:
            self._turn(now, number)
        self._messages += messages

    def _turn(self, now: float, number: int) -> None:
        cpu, datagrams = time.process_time(), self._driver.transport.received.datagrams
        # A phase in which this member did not get to run at its edges says nothing.
        if self._whole and number == self._number + 1:
            self.phases.append(
                {
                    "number": self._number,
                    "seconds": now - self._begin,
                    "cpu_s": cpu - self._cpu,
                    "messages": self._messages,
                    "datagrams": datagrams - self._datagrams,
                }
            )
        self._whole = self._number >= 0
        self._number, self._messages, self._datagrams = number, 0, datagrams
        self._begin, self._cpu = now, cpu
        watched = self._observer if number % 2 else None
        if watched is not None:
            # Collectors match messages and datagrams by consecutive numbers, which advanced while they were off. Only
            # this benchmark switches collectors on and off, so it resets them itself.
            watched.monitor._awaited.clear()
            watched.monitor._sequence = self._driver.sent
            watched.monitor._links.clear()
        self._driver.stack.observer = watched
