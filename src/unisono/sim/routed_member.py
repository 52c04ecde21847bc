"""A member whose messages go to groups (paper 003): to one set of groups after the other, in turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from unisono.errors import UnisonoError
from unisono.model.events import StackEvent, TopologyChange
from unisono.sim.clocks import Clock
from unisono.sim.member import Machine, MemberSetup, Scheduler, SimulatedMember
from unisono.trace.recorder import Recorder


@runtime_checkable
class MultigroupStack(Machine, Protocol):
    """A machine that sends to groups."""

    def submit_to(self, now: int, messages: Sequence[bytes], groups: Sequence[str]) -> int: ...
    def destinations(self, groups: Sequence[str]) -> tuple[int, ...]: ...
    def change_topology(self, now: int, sends: Sequence[str]) -> object: ...


class RoutedMember(SimulatedMember):
    """Messages have the destinations of `routes` in turn; neighbours with the same one are handed in together.

    Once the topology has changed, they go to all groups that are possible, and to each of them, in turn.
    """

    __slots__ = ("_multigroup_stack", "_routes")

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
        if not isinstance(stack, MultigroupStack):
            raise UnisonoError(f"member {member}'s machine knows no groups to send to")
        self._multigroup_stack, self._routes = stack, setup.routes

    def _submit_waiting(self, now: int, local: int) -> None:
        """Each with its destinations; what is not taken waits for the stack's next wake."""
        if not self._routes:
            self._waiting.clear()  # there is nobody to send to: the application sends nothing
        while self._waiting and now < self._scheduler.send_until_ns:
            groups = self._routes[self.accepted % len(self._routes)]
            count = len(self._waiting) if len(self._routes) == 1 else 1
            messages = [self._waiting[number] for number in range(count)]
            taken = self._multigroup_stack.submit_to(local, messages, groups)
            if not taken:
                return
            for _ in range(taken):
                self._waiting.popleft()
            self._record_sent(now, local, messages[:taken], destinations=self._multigroup_stack.destinations(groups))

    def change_topology(self, now: int, sends: tuple[str, ...]) -> None:
        """The application asks for other groups to send to."""
        if self._defer_if_inactive(now, self.change_topology, sends):
            return
        local = self.clock.local(now)
        self._multigroup_stack.change_topology(local, sends)
        self._flush(now, local, 0)

    def on_event(self, event: StackEvent) -> None:
        """After a topology change, send to all groups that are possible now, and to each of them, in turn."""
        super().on_event(event)
        if isinstance(event, TopologyChange):
            alone = [(name,) for name in event.sends_to]
            self._routes = [event.sends_to, *alone] if len(alone) > 1 else alone
