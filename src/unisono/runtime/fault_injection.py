"""Injects faults into one member: it loses or duplicates received datagrams, is partitioned, or has a wrong clock.

The injection sits between the sockets and the stack, which cannot tell it from a bad network. Losses follow the same
model as in the simulator (`model.faults`), with a seed per member.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

from unisono.model.faults import Duplication, Fault, Loss, LossModel, Partition
from unisono.runtime.socket_setup import ReceiveCallback
from unisono.wire.frame import sender_of


class FaultInjection:
    """Injects the losses, duplications and partitions of one member; ignores other faults."""

    def __init__(
        self,
        member: int,
        faults: Sequence[Fault] = (),
        *,
        seed: int = 1,
        clock_offset_ns: int = 0,
        time_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.clock_offset_ns = clock_offset_ns
        """How far this member's clock is ahead of the clock of this machine."""
        self.datagrams = 0
        """How many datagrams of other members arrived."""
        self.lost = 0
        """How many datagrams of other members the injection dropped."""
        self._member = member
        self._chance = random.Random(f"{seed}/injection/{member}")
        losses = [fault for fault in faults if isinstance(fault, Loss)]
        self._losses = LossModel(losses, self._chance) if losses else None
        self._duplications = tuple(fault for fault in faults if isinstance(fault, Duplication))
        self._partitions = tuple(
            (fault.span, {m: side for side, group in enumerate(fault.groups) for m in group})
            for fault in faults
            if isinstance(fault, Partition)
        )
        self._time_ns = time_ns
        self._started_ns: int | None = None

    def start_run(self, started_ns: int | None = None) -> None:
        """Set the start of the run, to which the times of faults are relative; by default now.

        Until this call, faults act as at the start of the run.
        """
        self._started_ns = self._time_ns() if started_ns is None else started_ns

    def wrap(self, receive: ReceiveCallback) -> ReceiveCallback:
        """Return a callback for received datagrams that injects the faults and passes the rest on to `receive`."""
        if self._losses is None and not self._duplications and not self._partitions:
            return receive

        def receive_with_faults(data: bytes, start: int, end: int, segment: int, multicast: bool) -> None:
            for at in range(start, max(end, start + 1), segment):
                until = min(at + segment, end)
                for _ in range(self._copy_count(sender_of(data, at, until))):
                    receive(data, at, until, until - at, multicast)

        return receive_with_faults

    def _copy_count(self, sender: int | None) -> int:
        """How many copies of a datagram from this sender reach the stack: 0 if it is lost, 2 if it is duplicated."""
        if sender is None or sender == self._member:
            return 1
        self.datagrams += 1
        elapsed = 0 if self._started_ns is None else max(0, self._time_ns() - self._started_ns)
        partitioned = any(
            span.contains(elapsed) and side.get(sender) != side.get(self._member) for span, side in self._partitions
        )
        if (self._losses is not None and self._losses.is_lost(sender, self._member, elapsed)) or partitioned:
            self.lost += 1
            return 0
        return 1 + sum(
            fault.span.contains(elapsed) and self._chance.random() < fault.probability for fault in self._duplications
        )
