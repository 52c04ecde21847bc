"""Causal reliable multicast (paper 002 §2.2): whoever delivers a message has delivered all that its sender had before.

Each frame carries a vector clock: of every member, how many frames had been passed up at its sender when it was sent.
A frame waits until as many have been passed up here, and all earlier ones of its sender. FIFO is a part of that. What
has been waited for for a message's life will not come and is not waited for any longer; the layer below tells of it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar

from unisono.model.policy import Policy
from unisono.net.services.service import Service
from unisono.wire.frame import Frame, Kind, Nested

WAITING_MAX = 1 << 14
"""How many frames may wait for others."""
_HALF, _WHOLE = 1 << 31, 1 << 32


@dataclass(slots=True)
class _WaitingFrame:
    """A frame that has come, since when it waits, and what its sender had seen."""

    frame: Nested
    waiting_since: int
    clock: dict[int, int]


class Causal(Service):
    """The layer. The group is the one that began: a member that comes back is another matter."""

    name: ClassVar[str] = "causal"
    opens = frozenset({Kind.CAUSAL})
    kind = Kind.CAUSAL
    stamp_bytes_per_member = 4

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self._members = policy.view.members
        self._vector = struct.Struct(f"!{len(self._members)}I")
        self._passed_up = dict.fromkeys(self._members, 0)
        """By member, the number of its next frame to be passed up; for this member, of its next frame to be sent."""
        self._waiting: dict[int, dict[int, _WaitingFrame]] = {member: {} for member in self._members}
        self._incarnations: dict[int, tuple[int, int]] = {}
        self._waiting_count = 0
        self.skipped_frames = 0
        """How many frames were not waited for any longer."""

    def _stamp(self) -> bytes:
        self._passed_up[self._policy.member] = self._sequence
        return self._vector.pack(*(count % _WHOLE for count in self._passed_up.values()))

    def _read_vector_clock(self, frame: Nested) -> dict[int, int] | None:
        """What the frame's sender had passed up; counts travel modulo 2³² and are read as the nearest ones to ours."""
        if len(frame.body) < self._vector.size:
            return None
        counts = self._vector.unpack_from(frame.body)
        clock = {}
        for member, count in zip(self._members, counts, strict=True):
            ours = self._passed_up[member]
            clock[member] = max(0, ours + (count - ours + _HALF) % _WHOLE - _HALF)
        return clock

    def from_below(self, now: int, frame: Frame) -> None:
        """A frame has come, in whatever order."""
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
        """Whether a frame is of its sender's present life; a later one than was known begins anew."""
        life, sender = (frame.epoch, frame.incarnation), frame.sender
        known = self._incarnations.get(sender)
        if known is None or known < life:
            self._incarnations[sender] = life
            if known is not None:
                self._passed_up[sender] = 0
                self._waiting_count -= len(self._waiting[sender])
                self._waiting[sender].clear()
        return self._incarnations[sender] == life

    def _pass_up_ready(self) -> None:
        """Pass up whatever has all that it waits for, until nothing moves."""
        moved = self._waiting_count > 0
        while moved:
            moved = False
            for member, waiting in self._waiting.items():
                while (first := waiting.get(self._passed_up[member])) is not None and self._is_ready(member, first):
                    self._pass_up(member, self._passed_up[member])
                    moved = True

    def _is_ready(self, sender: int, waiting: _WaitingFrame) -> bool:
        known = (sender, self._policy.member)  # of one's own nobody has more than there are
        return all(count <= self._passed_up[k] for k, count in waiting.clock.items() if k not in known)

    def _pass_up(self, sender: int, number: int) -> None:
        waiting = self._waiting[sender].pop(number)
        self._waiting_count -= 1
        self._passed_up[sender] = number + 1
        inner = self._open(waiting.frame, self._vector.size)
        if inner is not None:
            self.up.append(inner)

    # -- what does not come ----------------------------------------------------------------------------------

    def _sender_waiting_longest(self) -> int:
        """The sender whose first waiting frame has waited longest."""
        firsts = {member: waiting[min(waiting)].waiting_since for member, waiting in self._waiting.items() if waiting}
        return min(firsts, key=lambda member: firsts[member])

    def _force_first_waiting(self, sender: int, forcing: set[int]) -> None:
        """Pass up a sender's first waiting frame: before it what it waits for, as far as that is here."""
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
        """Time has passed: what a frame has waited for for a message's life will not come."""
        while (due := self.wake_at()) is not None and due <= now:
            self._force_first_waiting(self._sender_waiting_longest(), set())
            self._pass_up_ready()

    def wake_at(self) -> int | None:
        """The end of the longest wait."""
        if not self._waiting_count:
            return None
        return min(w[min(w)].waiting_since for w in self._waiting.values() if w) + self._message_lifetime_ns
