"""The time between two views in which nothing is handed out: measured, and complained about when it does not end."""

from __future__ import annotations

from unisono.agreement.failure_detector import FailureDetector
from unisono.agreement.membership.messages import Vector
from unisono.model.durations import NS_PER_MS
from unisono.model.events import Blocked, ViolationKind
from unisono.model.histogram import Histogram

REPORT_AFTER_TIMEOUTS = 3
"""Whoever stands still for so many failure-detection times says so."""


class BlockedTime:
    """One member's standing still."""

    def __init__(self) -> None:
        self.durations = Histogram()
        """How long each lasted, in nanoseconds."""
        self.last_ns = 0
        self._since: int | None = None
        self._reported = False

    def begin(self, now: int) -> None:
        """A view is coming to its end."""
        self._since = now if self._since is None else self._since

    def end(self, now: int) -> int:
        """The next view begins; gives how long this lasted."""
        lasted = 0
        if self._since is not None:
            lasted = self.last_ns = now - self._since
            self.durations.add(lasted)
        self._since, self._reported = None, False
        return lasted

    def overdue_violation(
        self, now: int, me: int, view_id: int, incarnations: Vector, detector: FailureDetector
    ) -> Blocked | None:
        """Once, when a view cannot be agreed on in time."""
        if self._since is None or self._reported:
            return None
        longest = max((detector.timeout_ns(peer) for peer in incarnations if peer != me), default=0)
        if now - self._since <= REPORT_AFTER_TIMEOUTS * longest:
            return None
        self._reported = True
        heard = tuple(detector.trusted(tuple(incarnations)))
        text = (
            f"view {view_id} ended {(now - self._since) / NS_PER_MS:.0f} ms ago, and no other is agreed on: of its "
            f"members {tuple(incarnations)}, {heard} are heard; a majority is needed"
        )
        return Blocked(ViolationKind.BLOCKED, text, me, view_id=view_id, reachable=heard)
