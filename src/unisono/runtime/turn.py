"""Turns of the event loop: how much of one turn the calls of the application may use.

A task that always finds room to send, or events to read, never waits by itself. Without a limit it would keep the event
loop to itself, and heartbeats and slot ends would be late. So the calls of the application share a limit per turn, in
time and in messages: once it is used up, the next call waits until the loop has had a turn.

`Turn` knows that limit. `Credit` is the part of the declared rate that `send` may use in this turn without asking the
stack for each message. All messages that were taken on credit go to the stack together, at the end of the turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

TURN_S: Final = 0.001
"""The calls of the application may use this much of a turn. Code between them counts, too."""
TURN_MESSAGES: Final = 512
"""A call waits for the next turn once this many messages were sent, even if the clock stands still."""


class Turn:
    """Tells whether the application has used up its share of the present turn of the event loop."""

    __slots__ = ("_loop", "_on_end", "ends_at", "messages_left")

    def __init__(self, loop: asyncio.AbstractEventLoop, on_end: Callable[[], None]) -> None:
        """`on_end` is called in the turn of the loop that follows each one in which `is_over` was asked."""
        self._loop = loop
        self._on_end = on_end
        self.ends_at: float | None = None
        """When the time of the present turn is used up, by the loop's clock; None before the first `is_over`."""
        self.messages_left = TURN_MESSAGES
        """How many more messages may be sent in the present turn. A call that sends many at once may exceed it."""

    def is_over(self) -> bool:
        """Whether the caller must wait for the next turn. The first question of a turn starts its time."""
        if self.ends_at is None:
            self.ends_at, self.messages_left = self._loop.time() + TURN_S, TURN_MESSAGES
            self._loop.call_soon(self._end)
            return False
        return self.messages_left <= 0 or self._loop.time() >= self.ends_at

    def _end(self) -> None:
        self.ends_at = None
        self._on_end()


class Credit:
    """Messages that `send` has taken in this turn, and how many more it may take. The stack has promised the room.

    There is credit only while `taken` has messages.
    """

    __slots__ = ("_bytes_left", "_ends_at", "_max_message", "_messages_left", "_time", "granted_ns", "taken")

    def __init__(self, loop: asyncio.AbstractEventLoop, max_message: int) -> None:
        self.taken: list[bytes] = []
        """The messages taken so far, in the order of the calls."""
        self.granted_ns = 0
        """The reading of the local clock for which the stack has promised the room."""
        self._time = loop.time
        self._max_message = max_message
        self._messages_left = self._bytes_left = 0
        self._ends_at = 0.0

    def grant(self, now: int, messages: int, payload_bytes: int, ends_at: float) -> None:
        """Allow messages until the turn `ends_at`. The stack accepts so much at the clock reading `now`."""
        self.granted_ns, self._ends_at = now, ends_at
        self._messages_left, self._bytes_left = messages, payload_bytes

    def take(self, message: bytes) -> bool:
        """Take a message if there is credit for it; return whether it was taken."""
        size = len(message)
        if self._messages_left <= 0 or not self._bytes_left >= size <= self._max_message:
            return False
        if self._time() >= self._ends_at:
            self._messages_left = 0
            return False
        self._messages_left -= 1
        self._bytes_left -= size
        self.taken.append(message)
        return True

    def stop(self) -> None:
        """Take no more messages in this turn."""
        self._messages_left = 0

    def settle(self) -> list[bytes]:
        """Remove and return the messages taken. There is no more credit until the next grant."""
        taken, self.taken = self.taken, []
        self._messages_left = 0
        return taken
