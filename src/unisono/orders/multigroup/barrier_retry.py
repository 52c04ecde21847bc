"""What a member's deliveries have waited for, and when to ask for it again: less often the longer it takes."""

from __future__ import annotations

BACKOFF_DOUBLINGS_MAX = 4


class BarrierRetry:
    """The first message that cannot be delivered."""

    def __init__(self, wait_ns: int) -> None:
        self._wait_ns = wait_ns
        self._blocked_stamp: int | None = None
        self._last_attempt_at = 0
        self.attempts = 0
        """How often its barriers have been asked for."""

    def set_blocked(self, now: int, stamp: int | None) -> None:
        """This one waits now, or none."""
        if stamp != self._blocked_stamp:
            self._blocked_stamp, self._last_attempt_at, self.attempts = stamp, now, 0

    def retry_at(self) -> int | None:
        """When to ask again."""
        if self._blocked_stamp is None:
            return None
        return self._last_attempt_at + (self._wait_ns << min(self.attempts, BACKOFF_DOUBLINGS_MAX))

    def start_attempt_if_due(self, now: int) -> bool:
        """Whether to ask now; then it counts as asked."""
        at = self.retry_at()
        if at is None or now < at:
            return False
        self._last_attempt_at, self.attempts = now, self.attempts + 1
        return True
