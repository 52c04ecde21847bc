"""Faults on purpose: what one member's sockets receive is lost, doubled or cut off, and its clock is set off.

It stands between the sockets and the stack, which cannot tell it from a bad network. Loss follows the rule that the
simulator has (`model.losses`), seeded per member.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

from unisono.model.faults import Duplication, Fault, Loss, Partition
from unisono.model.losses import Losses
from unisono.runtime.batching import Receive
from unisono.wire.frame import sender_of

INJECTED = (Loss, Duplication, Partition)
"""The faults of a scenario that happen to datagrams and can be inflicted here."""


class Injection:
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
        self._losses = Losses(losses, self._chance) if losses else None
        self._copies = tuple(fault for fault in faults if isinstance(fault, Duplication))
        self._cuts = tuple(
            (fault.span, {m: side for side, group in enumerate(fault.groups) for m in group})
            for fault in faults
            if isinstance(fault, Partition)
        )
        self._time_ns = time_ns
        self._began_ns: int | None = None

    def begin(self, at_ns: int | None = None) -> None:
        """The run begins now, or began then; until this is known all times are taken for the run's first instant."""
        self._began_ns = self._time_ns() if at_ns is None else at_ns

    def before(self, receive: Receive) -> Receive:
        """What takes datagrams in place of `receive`, and passes on what is left of them."""
        if self._losses is None and not self._copies and not self._cuts:
            return receive

        def take(data: bytes, start: int, end: int, segment: int, multicast: bool) -> None:
            for at in range(start, max(end, start + 1), segment):
                until = min(at + segment, end)
                for _ in range(self._arrivals(sender_of(data, at, until))):
                    receive(data, at, until, until - at, multicast)

        return take

    def _arrivals(self, sender: int | None) -> int:
        """How often a datagram of this sender arrives now."""
        if sender is None or sender == self._member:
            return 1
        self.datagrams += 1
        elapsed = 0 if self._began_ns is None else max(0, self._time_ns() - self._began_ns)
        cut = any(span.open(elapsed) and side.get(sender) != side.get(self._member) for span, side in self._cuts)
        if (self._losses is not None and self._losses.lost(sender, self._member, elapsed)) or cut:
            self.lost += 1
            return 0
        return 1 + sum(fault.span.open(elapsed) and self._chance.random() < fault.probability for fault in self._copies)
