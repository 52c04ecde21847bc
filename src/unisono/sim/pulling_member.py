"""A member whose application pulls (paper 004): it takes a message when it is done with the last one."""

from __future__ import annotations

from unisono.model.events import Rejoining, StackEvent
from unisono.sim.clocks import Clock
from unisono.sim.member import Machine, MemberSetup, Scheduler, SimulatedMember
from unisono.stack import Stack
from unisono.trace.recorder import Recorder


class PullingMember(SimulatedMember):
    """`consume_ns` is what the application takes over a message; messages have the priorities of `levels` in turn."""

    __slots__ = ("_consuming", "_pulled_stack")

    def __init__(
        self,
        scheduler: Scheduler,
        member: int,
        stack: Machine,
        clock: Clock,
        setup: MemberSetup,
        *,
        recorder: Recorder | None = None,
        incarnation: int = 1,
    ) -> None:
        super().__init__(scheduler, member, stack, clock, setup, recorder=recorder, incarnation=incarnation)
        if not isinstance(stack, Stack):
            raise TypeError(f"member {member} needs a stack that the application pulls from, not {stack!r}")
        self._pulled_stack, self._consuming = stack, False

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
            self._scheduler.schedule(now + self.setup.consume_ns, self.consume, None)

    def consume(self, now: int, _: object) -> None:
        """The application is done with the last message and takes the next."""
        if self._defer_if_inactive(now, self.consume, None):
            return
        self._consuming, local = False, self.clock.local(now)
        batch = self._pulled_stack.consume(local)
        if batch is not None:
            self._now, self._local_now = now, local
            self.on_event(batch)
        self._flush(now, local, 0)

    def _submit_waiting(self, now: int, local: int) -> None:
        """One by one, each with its priority; what is not taken waits for the stack's next wake."""
        while self._waiting and now < self._scheduler.send_until_ns:
            level = self.setup.priorities[self.accepted % len(self.setup.priorities)]
            if not self._pulled_stack.submit(local, (self._waiting[0],), level):
                return
            self._record_sent(now, local, [self._waiting.popleft()], level)

    def on_event(self, event: StackEvent) -> None:
        """A member that rejoins by itself begins another incarnation, which numbers its messages from 0."""
        super().on_event(event)
        if isinstance(event, Rejoining):
            self.incarnation, self.accepted = event.incarnation, 0
