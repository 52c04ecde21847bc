"""A member whose messages go to groups (paper 003): to one set of groups after the other, in turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from unisono.errors import UnisonoError
from unisono.model.events import StackEvent, TopologyChange
from unisono.model.timing import Timing
from unisono.model.workloads import ScheduledSends
from unisono.sim.clocks import Clock
from unisono.sim.member import Machine, Scheduler, SimulatedMember
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

    __slots__ = ("_configured_routes", "_multigroup_stack", "_routes")

    def __init__(
        self,
        scheduler: Scheduler,
        member: int,
        stack: Machine,
        clock: Clock,
        *,
        timing: Timing,
        routes: Sequence[tuple[str, ...]],
        workload: ScheduledSends | None = None,
        recorder: Recorder | None = None,
        incarnation: int = 1,
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
        if not isinstance(stack, MultigroupStack):
            raise UnisonoError(f"member {member}'s machine knows no groups to send to")
        self._multigroup_stack, self._routes, self._configured_routes = stack, routes, routes

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

    def _record(self, now: int, local: int, event: StackEvent) -> None:
        super()._record(now, local, event)
        if isinstance(event, TopologyChange):
            alone = [(name,) for name in event.sends_to]
            self._routes = [event.sends_to, *alone] if len(alone) > 1 else alone

    def restarted(self, stack: Machine, recorder: Recorder | None) -> SimulatedMember:
        """The member as it comes back after a crash."""
        return RoutedMember(
            self._scheduler,
            self.member,
            stack,
            self.clock,
            timing=self.timing,
            routes=self._configured_routes,
            workload=self._workload,
            recorder=recorder,
            incarnation=self.incarnation + 1,
        )
