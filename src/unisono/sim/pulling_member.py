"""A member whose application pulls (paper 004): it takes a message when it is done with the last one."""

from __future__ import annotations

from collections.abc import Sequence

from unisono.model.events import Rejoining, StackEvent
from unisono.model.timing import Timing
from unisono.model.workloads import Offers
from unisono.sim.clocks import Clock
from unisono.sim.member import Agenda, Machine, Node
from unisono.stack import Stack
from unisono.trace.kinds import EventKind
from unisono.trace.recorder import Recorder


class PullingNode(Node):
    """`consume_ns` is what the application takes over a message; messages have the priorities of `levels` in turn."""

    __slots__ = ("_busy", "_consume_ns", "_levels", "_puller")

    def __init__(
        self,
        agenda: Agenda,
        member: int,
        stack: Stack,
        clock: Clock,
        *,
        timing: Timing,
        offers: Offers | None = None,
        recorder: Recorder | None = None,
        life: int = 1,
        consume_ns: int = 0,
        levels: Sequence[int] = (0,),
    ) -> None:
        super().__init__(agenda, member, stack, clock, timing=timing, offers=offers, recorder=recorder, life=life)
        self._puller = stack
        self._consume_ns, self._levels, self._busy = consume_ns, levels, False

    def arrive(self, now: int, data: bytes) -> None:
        """A datagram arrives, and may bring something to consume."""
        super().arrive(now, data)
        self._plan(now)

    def _settle(self, now: int, local: int, floor: int) -> None:
        super()._settle(now, local, floor)
        self._plan(now)

    def _plan(self, now: int) -> None:
        if not self._busy and self.up and self._puller.consumable():
            self._busy = True
            self._agenda.later(now + self._consume_ns, self.consume, None)

    def consume(self, now: int, _: object) -> None:
        """The application is done with the last message and takes the next."""
        if self._shut(now, self.consume, None):
            return
        self._busy, local = False, self.clock.local(now)
        batch = self._puller.consume(local)
        if batch is not None:
            self._note_batch(now, local, batch)
        self._settle(now, local, 0)

    def _submit(self, now: int, local: int) -> None:
        """One by one, each with its priority; what is not taken waits for the stack's next wake."""
        while self._waiting and now < self._agenda.send_until:
            level = self._levels[self.accepted % len(self._levels)]
            if not self._puller.submit(local, (self._waiting[0],), level):
                return
            self._note_sent(now, local, [self._waiting.popleft()], level)

    def _note(self, now: int, local: int, event: StackEvent) -> None:
        """A member that comes back by itself begins another life, whose messages are counted from 0."""
        super()._note(now, local, event)
        if isinstance(event, Rejoining):
            self._row(EventKind.LEAVE, now, local, event.final_slot + 1)
            self.life, self.accepted = event.incarnation, 0
            if self.recorder is not None and self.recorder.again is not None:
                self.recorder = self.recorder.again(self.life)

    def reborn(self, stack: Machine, recorder: Recorder | None) -> Node:
        """The member as it comes back after a crash."""
        if not isinstance(stack, Stack):
            raise TypeError(f"a stack is needed that is pulled, not {stack!r}")
        return PullingNode(
            self._agenda,
            self.member,
            stack,
            self.clock,
            timing=self.timing,
            offers=self._offers,
            recorder=recorder,
            life=self.life + 1,
            consume_ns=self._consume_ns,
            levels=self._levels,
        )
