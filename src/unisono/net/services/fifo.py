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


class _FifoStream:
    """One sender's frames in one incarnation."""

    __slots__ = ("incarnation_id", "next_sequence", "waiting", "waiting_since")

    def __init__(self, incarnation_id: tuple[int, int]) -> None:
        self.incarnation_id = incarnation_id
        self.next_sequence = 0
        self.waiting_since: int | None = None
        """Since when the next one is missing although a later one is here."""
        self.waiting: dict[int, Nested] = {}


class Fifo(Service):
    """The layer."""

    name: ClassVar[str] = "fifo"
    opens = frozenset({Kind.FIFO})
    kind = Kind.FIFO

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self._streams: dict[int, _FifoStream] = {}
        self.skipped_frames = 0
        """How many frames were not waited for any longer."""

    def from_below(self, now: int, frame: Frame) -> None:
        """A frame has come, in whatever order."""
        if not isinstance(frame, Nested):
            self.up.append(frame)
            return
        life = (frame.epoch, frame.incarnation)
        stream = self._streams.get(frame.sender)
        if stream is None or stream.incarnation_id < life:
            stream = self._streams[frame.sender] = _FifoStream(life)
        number = frame.first_sequence
        if stream.incarnation_id > life or number < stream.next_sequence or number in stream.waiting:
            self.ignored["duplicate, or an earlier incarnation"] += 1
            return
        stream.waiting[number] = frame
        self._pass_up_ready(now, stream)
        if len(stream.waiting) > WAITING_MAX:
            self._skip_missing(now, stream)

    def _pass_up_ready(self, now: int, stream: _FifoStream) -> None:
        before = stream.next_sequence
        while (frame := stream.waiting.pop(stream.next_sequence, None)) is not None:
            stream.next_sequence += 1
            inner = self._open(frame)
            if inner is not None:
                self.up.append(inner)
        if not stream.waiting:
            stream.waiting_since = None
        elif stream.waiting_since is None or stream.next_sequence > before:
            stream.waiting_since = now

    def _skip_missing(self, now: int, stream: _FifoStream) -> None:
        first = min(stream.waiting)
        self.skipped_frames += first - stream.next_sequence
        stream.next_sequence = first
        self._pass_up_ready(now, stream)

    def wake(self, now: int) -> None:
        """Time has passed: what is missing for a message's life will not come."""
        for stream in self._streams.values():
            while stream.waiting_since is not None and stream.waiting_since + self._message_lifetime_ns <= now:
                self._skip_missing(now, stream)

    def wake_at(self) -> int | None:
        """The end of the longest wait."""
        waits = [stream.waiting_since for stream in self._streams.values() if stream.waiting_since is not None]
        return min(waits) + self._message_lifetime_ns if waits else None
