"""A member whose application pulls (paper 004): it takes a message when it is done with the last one."""

from __future__ import annotations

from collections.abc import Sequence

from unisono.model.events import Rejoining, StackEvent
from unisono.model.timing import Timing
from unisono.model.workloads import ScheduledSends
from unisono.sim.clocks import Clock
from unisono.sim.member import Machine, Scheduler, SimulatedMember
from unisono.stack import Stack
from unisono.trace.recorder import Recorder
from unisono.trace.schema import EventKind


class PullingMember(SimulatedMember):
    """`consume_ns` is what the application takes over a message; messages have the priorities of `levels` in turn."""

    __slots__ = ("_consume_ns", "_consuming", "_priorities", "_pulled_stack")

    def __init__(
        self,
        scheduler: Scheduler,
        member: int,
        stack: Stack,
        clock: Clock,
        *,
        timing: Timing,
        workload: ScheduledSends | None = None,
        recorder: Recorder | None = None,
        incarnation: int = 1,
        consume_ns: int = 0,
        priorities: Sequence[int] = (0,),
    ) -> None:
        super().__init__(
            scheduler,
            member,
            stack,
            clock,
            timing=timing,
            workload=workload,
            recorder=recorder,
            incarnation=incarnation,
        )
        self._pulled_stack = stack
        self._consume_ns, self._priorities, self._consuming = consume_ns, priorities, False

    def arrive(self, now: int, data: bytes) -> None:
        """A datagram arrives, and may bring something to consume."""
        super().arrive(now, data)
        self._plan_consume(now)

    def _flush(self, now: int, local: int, earliest_alarm: int) -> None:
        super()._flush(now, local, earliest_alarm)
        self._plan_consume(now)

    def _plan_consume(self, now: int) -> None:
        if not self._consuming and self.up and self._pulled_stack.consumable():
            self._consuming = True
            self._scheduler.schedule(now + self._consume_ns, self.consume, None)

    def consume(self, now: int, _: object) -> None:
        """The application is done with the last message and takes the next."""
        if self._defer_if_inactive(now, self.consume, None):
            return
        self._consuming, local = False, self.clock.local(now)
        batch = self._pulled_stack.consume(local)
        if batch is not None:
            self._record_batch(now, local, batch)
        self._flush(now, local, 0)

    def _submit_waiting(self, now: int, local: int) -> None:
        """One by one, each with its priority; what is not taken waits for the stack's next wake."""
        while self._waiting and now < self._scheduler.send_until_ns:
            level = self._priorities[self.accepted % len(self._priorities)]
            if not self._pulled_stack.submit(local, (self._waiting[0],), level):
                return
            self._record_sent(now, local, [self._waiting.popleft()], level)

    def _record(self, now: int, local: int, event: StackEvent) -> None:
        """A member that comes back by itself begins another life, whose messages are counted from 0."""
        super()._record(now, local, event)
        if isinstance(event, Rejoining):
            self._record_event(EventKind.LEAVE, now, local, event.final_slot + 1)
            self.incarnation, self.accepted = event.incarnation, 0
            if self.recorder is not None and self.recorder.new_incarnation is not None:
                self.recorder = self.recorder.new_incarnation(self.incarnation)

    def restarted(self, stack: Machine, recorder: Recorder | None) -> SimulatedMember:
        """The member as it comes back after a crash."""
        if not isinstance(stack, Stack):
            raise TypeError(f"a stack is needed that is pulled, not {stack!r}")
        return PullingMember(
            self._scheduler,
            self.member,
            stack,
            self.clock,
            timing=self.timing,
            workload=self._workload,
            recorder=recorder,
            incarnation=self.incarnation + 1,
            consume_ns=self._consume_ns,
            priorities=self._priorities,
        )
