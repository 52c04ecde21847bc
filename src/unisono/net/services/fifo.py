"""FIFO reliable multicast (paper 002 §2.2): what one member multicasts is passed up in the order in which it was sent.

A frame that overtook another waits for it. What cannot come any more is not waited for: the layer below has told of it.
"""

from __future__ import annotations

from typing import ClassVar

from unisono.model.policy import Policy
from unisono.net.services.service import Service
from unisono.wire.frame import Frame, Kind, Nested

WAITING_MAX = 1 << 14
"""How many frames of one sender may wait for an earlier one."""


class _Stream:
    """One sender's frames in one incarnation."""

    __slots__ = ("life", "next", "since", "waiting")

    def __init__(self, life: tuple[int, int]) -> None:
        self.life = life
        self.next = 0
        self.since: int | None = None
        """Since when the next one is missing although a later one is here."""
        self.waiting: dict[int, Nested] = {}


class Fifo(Service):
    """The layer."""

    name: ClassVar[str] = "fifo"
    opens = frozenset({Kind.FIFO})
    kind = Kind.FIFO

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self._streams: dict[int, _Stream] = {}
        self.skipped = 0
        """How many frames were not waited for any longer."""

    def from_below(self, now: int, frame: Frame) -> None:
        """A frame has come, in whatever order."""
        if not isinstance(frame, Nested):
            self.up.append(frame)
            return
        life = (frame.epoch, frame.incarnation)
        stream = self._streams.get(frame.sender)
        if stream is None or stream.life < life:
            stream = self._streams[frame.sender] = _Stream(life)
        number = frame.first_sequence
        if stream.life > life or number < stream.next or number in stream.waiting:
            self.ignored["duplicate, or an earlier incarnation"] += 1
            return
        stream.waiting[number] = frame
        self._pass(now, stream)
        if len(stream.waiting) > WAITING_MAX:
            self._skip(now, stream)

    def _pass(self, now: int, stream: _Stream) -> None:
        before = stream.next
        while (frame := stream.waiting.pop(stream.next, None)) is not None:
            stream.next += 1
            inner = self._opened(frame)
            if inner is not None:
                self.up.append(inner)
        if not stream.waiting:
            stream.since = None
        elif stream.since is None or stream.next > before:
            stream.since = now

    def _skip(self, now: int, stream: _Stream) -> None:
        first = min(stream.waiting)
        self.skipped += first - stream.next
        stream.next = first
        self._pass(now, stream)

    def wake(self, now: int) -> None:
        """Time has passed: what is missing for a message's life will not come."""
        for stream in self._streams.values():
            while stream.since is not None and stream.since + self._life_ns <= now:
                self._skip(now, stream)

    def wake_at(self) -> int | None:
        """The end of the longest wait."""
        waits = [stream.since for stream in self._streams.values() if stream.since is not None]
        return min(waits) + self._life_ns if waits else None
