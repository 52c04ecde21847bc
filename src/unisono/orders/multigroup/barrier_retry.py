"""What a member's deliveries have waited for, and when to ask for it again: less often the longer it takes."""

from __future__ import annotations

BACKOFF_MOST = 4


class HeldUp:
    """The first message that cannot be delivered."""

    def __init__(self, wait_ns: int) -> None:
        self._wait_ns = wait_ns
        self._stamp: int | None = None
        self._asked_at = 0
        self.asks = 0
        """How often its barriers have been asked for."""

    def note(self, now: int, stamp: int | None) -> None:
        """This one waits now, or none."""
        if stamp != self._stamp:
            self._stamp, self._asked_at, self.asks = stamp, now, 0

    def again_at(self) -> int | None:
        """When to ask again."""
        if self._stamp is None:
            return None
        return self._asked_at + (self._wait_ns << min(self.asks, BACKOFF_MOST))

    def due(self, now: int) -> bool:
        """Whether to ask now; then it counts as asked."""
        at = self.again_at()
        if at is None or now < at:
            return False
        self._asked_at, self.asks = now, self.asks + 1
        return True
