"""Faults on purpose: what one member's sockets receive is lost, doubled or cut off, and its clock is set off.

It stands between the sockets and the stack, which cannot tell it from a bad network. Loss follows the rule that the
simulator has (`model.losses`), seeded per member.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

from unisono.model.faults import Duplication, Fault, Loss, Partition
from unisono.model.losses import LossModel
from unisono.runtime.batching import ReceiveCallback
from unisono.wire.frame import sender_of

INJECTABLE_FAULTS = (Loss, Duplication, Partition)
"""The faults of a scenario that happen to datagrams and can be inflicted here."""


class FaultInjection:
    """What is done to one member on purpose; other kinds of faults are none of its business."""

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
        """How far this member's clock is ahead of this machine's."""
        self.datagrams = 0
        """How many of others came."""
        self.lost = 0
        """How many of these went no further."""
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
        """The run begins now, or began then; until this is known all times are taken for the run's first instant."""
        self._started_ns = self._time_ns() if started_ns is None else started_ns

    def wrap(self, receive: ReceiveCallback) -> ReceiveCallback:
        """What takes datagrams in place of `receive`, and passes on what is left of them."""
        if self._losses is None and not self._duplications and not self._partitions:
            return receive

        def take(data: bytes, start: int, end: int, segment: int, multicast: bool) -> None:
            for at in range(start, max(end, start + 1), segment):
                until = min(at + segment, end)
                for _ in range(self._copy_count(sender_of(data, at, until))):
                    receive(data, at, until, until - at, multicast)

        return take

    def _copy_count(self, sender: int | None) -> int:
        """How often a datagram of this sender arrives now."""
        if sender is None or sender == self._member:
            return 1
        self.datagrams += 1
        elapsed = 0 if self._started_ns is None else max(0, self._time_ns() - self._started_ns)
        cut = any(
            span.contains(elapsed) and side.get(sender) != side.get(self._member) for span, side in self._partitions
        )
        if (self._losses is not None and self._losses.is_lost(sender, self._member, elapsed)) or cut:
            self.lost += 1
            return 0
        return 1 + sum(
            fault.span.contains(elapsed) and self._chance.random() < fault.probability for fault in self._duplications
        )
