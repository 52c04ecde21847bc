"""FIFO reliable multicast (paper 002 §2.2): the frames of each sender go up in the order in which they were sent.

Sending: every frame gets the sender's next number.
Receiving: a frame that overtook earlier ones waits for them. A frame still missing after a message's lifetime is lost.
This layer then skips it, without a report: reliable multicast, the layer below, reports lost messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from unisono.model.policy import Policy
from unisono.model.units import EVERYONE
from unisono.net.layer import Service
from unisono.wire.frame import Frame, Kind, Nested

WAITING_MAX = 1 << 14
"""How many frames of one sender may wait for an earlier one; beyond that, this layer skips the missing frame."""


class _FifoStream:
    """The frames that have arrived from one incarnation of a sender."""

    __slots__ = ("incarnation_id", "next_sequence", "waiting", "waiting_since")

    def __init__(self, incarnation_id: tuple[int, int]) -> None:
        self.incarnation_id = incarnation_id
        self.next_sequence = 0
        self.waiting_since: int | None = None
        """Since when a later frame waits for the next one, or None."""
        self.waiting: dict[int, Nested] = {}


class Fifo(Service):
    """The layer that passes up each sender's frames in the order in which they were sent."""

    name: ClassVar[str] = "fifo"
    opens = frozenset({Kind.FIFO})
    kind = Kind.FIFO

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self._streams: dict[int, _FifoStream] = {}
        self.skipped_frames = 0
        """The number of missing frames that were skipped."""

    def from_above(self, now: int, frame: Frame) -> None:
        """Number a frame for everyone; a frame for one member passes unchanged."""
        if frame.to == EVERYONE:
            self._send_numbered(now, frame)
        else:
            self.down.append(frame)

    def from_below(self, now: int, frame: Frame) -> None:
        """Pass up the frame, and those that waited for it; or let it wait for earlier ones."""
        if not isinstance(frame, Nested):
            self.up.append(frame)
            return
        incarnation_id = (frame.epoch, frame.incarnation)
        stream = self._streams.get(frame.sender)
        if stream is None or stream.incarnation_id < incarnation_id:
            stream = self._streams[frame.sender] = _FifoStream(incarnation_id)
        number = frame.first_sequence
        if stream.incarnation_id > incarnation_id or number < stream.next_sequence or number in stream.waiting:
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
        """Skip the frames that have been missing for a message's lifetime."""
        for stream in self._streams.values():
            while stream.waiting_since is not None and stream.waiting_since + self._message_lifetime_ns <= now:
                self._skip_missing(now, stream)

    def wake_at(self) -> int | None:
        """When the frame that has been missing longest will be skipped, or None."""
        waits = [stream.waiting_since for stream in self._streams.values() if stream.waiting_since is not None]
        return min(waits) + self._message_lifetime_ns if waits else None

    def counters(self) -> Mapping[str, int]:
        """How many frames were not used, and how many missing frames were skipped."""
        return {**super().counters(), "skipped": self.skipped_frames}
