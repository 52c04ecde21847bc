"""Injects faults into one member: received datagrams are lost, doubled, delayed or blocked, or its clock is wrong.

The injection sits between the sockets and the stack, which cannot tell it from a bad network. Losses follow the same
model as in the simulator (`model.faults`), and so do delays (`model.delays`), with a seed per member. An injected delay
comes on top of the real one.
"""

from __future__ import annotations

import asyncio
import heapq
import random
import time
from collections.abc import Callable, Mapping, Sequence

from unisono.model.delays import DelayModel
from unisono.model.faults import Duplication, Fault, Loss, LossModel, Partition, Reordering
from unisono.model.units import NS_PER_S
from unisono.runtime.socket_setup import ReceiveCallback
from unisono.wire.frame import sender_of


def _ignore() -> None:
    """Do nothing after a batch of delayed datagrams."""


class FaultInjection:
    """Injects losses, duplications, partitions and delays at one member; ignores faults of other kinds."""

    def __init__(
        self,
        member: int,
        faults: Sequence[Fault] = (),
        *,
        delays: Mapping[int, DelayModel] | None = None,
        delta_ns: int = 0,
        fifo: bool = True,
        seed: int = 1,
        clock_offset_ns: int = 0,
        time_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """`delays` is the extra delay of datagrams, by sender; the datagrams of a sender keep their order if `fifo`.

        Reordered datagrams are delayed by at most `delta_ns`.
        """
        self.clock_offset_ns = clock_offset_ns
        """How far this member's clock is ahead of the clock of this machine."""
        self.datagrams = 0
        """How many datagrams of other members arrived."""
        self.lost = 0
        """How many datagrams of other members the injection dropped."""
        self._member = member
        self._delays, self._delta_ns, self._fifo = dict(delays or {}), delta_ns, fifo
        self._chance = random.Random(f"{seed}/injection/{member}")
        losses = [fault for fault in faults if isinstance(fault, Loss)]
        self._losses = LossModel(losses, self._chance) if losses else None
        self._duplications = tuple(fault for fault in faults if isinstance(fault, Duplication))
        self._reorderings = tuple(fault for fault in faults if isinstance(fault, Reordering))
        self._partitions = tuple(
            (fault.span, {m: side for side, group in enumerate(fault.groups) for m in group})
            for fault in faults
            if isinstance(fault, Partition)
        )
        self._time_ns = time_ns
        self._started_ns: int | None = None
        self._queue = _DelayedDatagrams()

    def start_run(self, started_ns: int | None = None) -> None:
        """Set the start of the run, to which the times of faults are relative; by default now.

        Until this call, faults act as at the start of the run.
        """
        self._started_ns = self._time_ns() if started_ns is None else started_ns

    def wrap(self, receive: ReceiveCallback, on_batch_done: Callable[[], None] = _ignore) -> ReceiveCallback:
        """Return a callback for received datagrams that injects the faults and passes the rest on to `receive`.

        Delayed datagrams reach `receive` later, from a timer of the event loop, followed by `on_batch_done`.
        """
        if not (self._losses or self._duplications or self._reorderings or self._partitions or self._delays):
            return receive
        self._queue.attach(receive, on_batch_done)

        def receive_with_faults(data: bytes, start: int, end: int, segment: int, multicast: bool) -> None:
            for at in range(start, max(end, start + 1), segment):
                until = min(at + segment, end)
                sender = sender_of(data, at, until)
                for delay_ns, may_overtake in self._copies(sender):
                    if delay_ns is None:
                        receive(data, at, until, until - at, multicast)
                    else:
                        link = None if may_overtake or not self._fifo else sender
                        self._queue.put(bytes(data[at:until]), multicast, delay_ns, link)

        return receive_with_faults

    def close(self) -> None:
        """Drop the delayed datagrams, because the transport is closed."""
        self._queue.close()

    def _copies(self, sender: int | None) -> list[tuple[int | None, bool]]:
        """The copies of a datagram from this sender that reach the stack: none if it is lost, two if it is duplicated.

        For each copy: its delay, None if it arrives at once, and whether it may overtake earlier datagrams.
        """
        if sender is None or sender == self._member:
            return [(None, False)]
        self.datagrams += 1
        elapsed = 0 if self._started_ns is None else max(0, self._time_ns() - self._started_ns)
        partitioned = any(
            span.contains(elapsed) and side.get(sender) != side.get(self._member) for span, side in self._partitions
        )
        if (self._losses is not None and self._losses.is_lost(sender, self._member, elapsed)) or partitioned:
            self.lost += 1
            return []
        copies = [(self._delay_ns(sender), False)]
        copies += [
            (self._delay_ns(sender), True)
            for fault in self._duplications
            if fault.span.contains(elapsed) and self._chance.random() < fault.probability
        ]
        for fault in self._reorderings:
            if fault.span.contains(elapsed) and self._chance.random() < fault.probability:
                copies = [(int(self._chance.random() * (self._delta_ns + 1)), True) for _ in copies]
        return copies

    def _delay_ns(self, sender: int) -> int | None:
        model = self._delays.get(sender)
        return None if model is None else model.sample(self._chance)


class _DelayedDatagrams:
    """Datagrams that have arrived and reach the stack later, in the order of their times."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, bytes, bool]] = []
        """Entries (time of the event loop, number, datagram, multicast)."""
        self._number = 0
        self._last_due: dict[int, float] = {}
        """By link that keeps its order: when its latest datagram is due."""
        self._timer: asyncio.TimerHandle | None = None
        self._receive: ReceiveCallback | None = None
        self._on_batch_done: Callable[[], None] = _ignore

    def attach(self, receive: ReceiveCallback, on_batch_done: Callable[[], None]) -> None:
        """Pass datagrams to `receive` when they are due, and call `on_batch_done` after each batch of them."""
        self._receive, self._on_batch_done = receive, on_batch_done

    def put(self, datagram: bytes, multicast: bool, delay_ns: int, link: int | None) -> None:
        """Store a datagram for this delay. Datagrams of one `link` keep their order; None lets this one overtake."""
        due = asyncio.get_running_loop().time() + delay_ns / NS_PER_S
        if link is not None:
            due = self._last_due[link] = max(due, self._last_due.get(link, 0.0))
        self._number += 1
        heapq.heappush(self._heap, (due, self._number, datagram, multicast))
        self._set_timer()

    def close(self) -> None:
        """Drop all datagrams, and accept no more."""
        self._receive = None
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _set_timer(self) -> None:
        if self._receive is None or not self._heap:
            return
        due = self._heap[0][0]
        if self._timer is not None and not self._timer.cancelled():
            if self._timer.when() <= due:
                return
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(due, self._release)

    def _release(self) -> None:
        self._timer, now = None, asyncio.get_running_loop().time()
        while self._heap and self._heap[0][0] <= now and self._receive is not None:
            _, _, datagram, multicast = heapq.heappop(self._heap)
            self._receive(datagram, 0, len(datagram), max(1, len(datagram)), multicast)
        if self._receive is not None:
            self._on_batch_done()
        self._set_timer()
