"""What the application has handed in and the stack has not taken yet: by priority, first come first served within one.

This is where a priority counts in every order but the priority order: a member's own messages that wait for room go in
the order of their priorities. What has been taken is ordered as if it had none. A level waits for as long as higher
levels keep the member's slots full.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class Submission:
    """Messages that wait for room in a slot; those before `at` have been taken."""

    messages: Sequence[bytes]
    done: asyncio.Future[None]
    priority: int = 0
    accepted_count: int = 0
    groups: tuple[str, ...] | None = None
    """The destinations, where there are several groups."""


class Submissions:
    """A queue for each priority that is in use."""

    __slots__ = ("_levels", "_queues", "first")

    def __init__(self) -> None:
        self._queues: dict[int, deque[Submission]] = {}
        self._levels: list[int] = []
        """The priorities of the queues, ascending."""
        self.first: Submission | None = None
        """Whose turn it is."""

    def put(self, submission: Submission) -> bool:
        """Take one in; whether it is its turn at once."""
        queue = self._queues.get(submission.priority)
        if queue is None:
            queue = self._queues[submission.priority] = deque()
            insort(self._levels, submission.priority)
        queue.append(submission)
        self._find_first()
        return self.first is submission

    def pop(self) -> None:
        """The first is done with."""
        level = self._levels[-1]
        self._queues[level].popleft()
        if not self._queues[level]:
            del self._queues[level], self._levels[-1]
        self._find_first()

    def pop_all(self) -> list[Submission]:
        """Everything that waits; nothing does any more."""
        waiting = [submission for level in reversed(self._levels) for submission in self._queues[level]]
        self._queues.clear()
        self._levels.clear()
        self.first = None
        return waiting

    def _find_first(self) -> None:
        self.first = self._queues[self._levels[-1]][0] if self._levels else None
