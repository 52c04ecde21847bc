"""Causal reliable multicast (paper 002 §2.2): a frame goes up only after all frames that may have caused it.

Sending: every frame carries the sender's next number and its vector clock, that is, how many frames of each member
have gone up at the sender.
Receiving: a frame waits until at least as many frames of each member have gone up here, and all earlier frames of its
sender. So the order is also FIFO. When a frame has waited for a message's lifetime, the frames that it waits for are
lost. This layer then skips them, without a report: reliable multicast, the layer below, reports lost messages.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from unisono.model.policy import Policy
from unisono.model.units import EVERYONE
from unisono.net.layer import Service
from unisono.wire.frame import Frame, Kind, Nested

WAITING_MAX = 1 << 14
"""How many frames may wait for others; beyond that, this layer skips the missing ones."""
_HALF, _WHOLE = 1 << 31, 1 << 32


@dataclass(slots=True)
class _WaitingFrame:
    """A frame that has arrived, the time since which it waits, and its sender's vector clock."""

    frame: Nested
    waiting_since: int
    clock: dict[int, int]


class Causal(Service):
    """The layer that delivers in causal order. Its members are those that the group started with."""

    name: ClassVar[str] = "causal"
    opens = frozenset({Kind.CAUSAL})
    kind = Kind.CAUSAL
    stamp_bytes_per_member = 4

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self._members = policy.view.members
        self._vector = struct.Struct(f"!{len(self._members)}I")
        self._passed_up = dict.fromkeys(self._members, 0)
        """The vector clock: by member, the number of frames that have gone up; for this member, of frames sent."""
        self._waiting: dict[int, dict[int, _WaitingFrame]] = {member: {} for member in self._members}
        self._incarnations: dict[int, tuple[int, int]] = {}
        self._waiting_count = 0
        self.skipped_frames = 0
        """The number of missing frames that were skipped."""

    def from_above(self, now: int, frame: Frame) -> None:
        """Number a frame for everyone and add the vector clock; a frame for one member passes unchanged."""
        if frame.to != EVERYONE:
            self.down.append(frame)
            return
        self._passed_up[self._policy.member] = self._sequence
        clock = self._vector.pack(*(count % _WHOLE for count in self._passed_up.values()))
        self._send_numbered(now, frame, clock)

    # -- receiving -------------------------------------------------------------------------------------------

    def from_below(self, now: int, frame: Frame) -> None:
        """Pass up the frame, and those that waited for it; or let it wait for the frames before it."""
        if not isinstance(frame, Nested):
            self.up.append(frame)
            return
        sender, number = frame.sender, frame.first_sequence
        waiting = self._waiting[sender]
        if not self._is_current_incarnation(frame) or number < self._passed_up[sender] or number in waiting:
            self.ignored["duplicate, or an earlier incarnation"] += 1
            return
        clock = self._read_vector_clock(frame)
        if clock is None:
            self.ignored["no vector clock"] += 1
            return
        waiting[number] = _WaitingFrame(frame, now, clock)
        self._waiting_count += 1
        self._pass_up_ready()
        if self._waiting_count > WAITING_MAX:
            self._force_first_waiting(self._sender_waiting_longest(), set())
            self._pass_up_ready()

    def _is_current_incarnation(self, frame: Frame) -> bool:
        """Whether a frame is of its sender's current incarnation; the first frame of a later one resets the state."""
        incarnation_id, sender = (frame.epoch, frame.incarnation), frame.sender
        known = self._incarnations.get(sender)
        if known is None or known < incarnation_id:
            self._incarnations[sender] = incarnation_id
            if known is not None:
                self._passed_up[sender] = 0
                self._waiting_count -= len(self._waiting[sender])
                self._waiting[sender].clear()
        return self._incarnations[sender] == incarnation_id

    def _read_vector_clock(self, frame: Nested) -> dict[int, int] | None:
        """The vector clock of a frame. Counts travel modulo 2³² and are read as the value nearest to our own count."""
        if len(frame.body) < self._vector.size:
            return None
        counts = self._vector.unpack_from(frame.body)
        clock = {}
        for member, count in zip(self._members, counts, strict=True):
            ours = self._passed_up[member]
            clock[member] = max(0, ours + (count - ours + _HALF) % _WHOLE - _HALF)
        return clock

    def _pass_up_ready(self) -> None:
        """Pass up every frame that no longer waits for another one."""
        moved = self._waiting_count > 0
        while moved:
            moved = False
            for member, waiting in self._waiting.items():
                while (first := waiting.get(self._passed_up[member])) is not None and self._is_ready(member, first):
                    self._pass_up(member, self._passed_up[member])
                    moved = True

    def _is_ready(self, sender: int, waiting: _WaitingFrame) -> bool:
        # The sender's own frames are checked by number. No member can have more of our frames than we have sent.
        skipped = (sender, self._policy.member)
        return all(count <= self._passed_up[member] for member, count in waiting.clock.items() if member not in skipped)

    def _pass_up(self, sender: int, number: int) -> None:
        waiting = self._waiting[sender].pop(number)
        self._waiting_count -= 1
        self._passed_up[sender] = number + 1
        inner = self._open(waiting.frame, self._vector.size)
        if inner is not None:
            self.up.append(inner)

    # -- lost frames -----------------------------------------------------------------------------------------

    def _sender_waiting_longest(self) -> int:
        """The sender whose first waiting frame has been waiting longest."""
        firsts = {member: waiting[min(waiting)].waiting_since for member, waiting in self._waiting.items() if waiting}
        return min(firsts, key=lambda member: firsts[member])

    def _force_first_waiting(self, sender: int, forcing: set[int]) -> None:
        """Pass up a sender's first waiting frame now, after those frames that it waits for and that have arrived.

        `forcing` holds the senders whose frames are already being forced, which ends the recursion.
        """
        forcing = forcing | {sender}
        number = min(self._waiting[sender])
        clock = self._waiting[sender][number].clock
        for member in self._members:
            if member in (sender, self._policy.member):
                continue
            while clock[member] > self._passed_up[member]:
                here = self._waiting[member]
                if member not in forcing and here and min(here) < clock[member]:
                    self._force_first_waiting(member, forcing)
                else:
                    self._skip_to(member, clock[member])
        self._skip_to(sender, number)
        self._pass_up(sender, number)

    def _skip_to(self, member: int, number: int) -> None:
        self.skipped_frames += number - self._passed_up[member]
        self._passed_up[member] = number
        for old in [n for n in self._waiting[member] if n < number]:
            del self._waiting[member][old]
            self._waiting_count -= 1

    def wake(self, now: int) -> None:
        """Skip missing frames for which another frame has waited for a message's lifetime."""
        while (due := self.wake_at()) is not None and due <= now:
            self._force_first_waiting(self._sender_waiting_longest(), set())
            self._pass_up_ready()

    def wake_at(self) -> int | None:
        """When the longest-waiting frame goes up without the frames that it waits for, or None."""
        if not self._waiting_count:
            return None
        firsts = [waiting[min(waiting)].waiting_since for waiting in self._waiting.values() if waiting]
        return min(firsts) + self._message_lifetime_ns

    def counters(self) -> Mapping[str, int]:
        """How many frames were not used, and how many missing frames were skipped."""
        return {**super().counters(), "skipped": self.skipped_frames}
