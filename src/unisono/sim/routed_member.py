"""A member whose messages go to groups (paper 003): to one set of groups after the other, in turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from unisono.errors import UnisonoError
from unisono.model.events import StackEvent, TopologyChange
from unisono.model.timing import Timing
from unisono.model.workloads import Offers
from unisono.sim.clocks import Clock
from unisono.sim.member import Agenda, Machine, Node
from unisono.trace.recorder import Recorder


@runtime_checkable
class Router(Machine, Protocol):
    """A machine that sends to groups."""

    def submit_to(self, now: int, messages: Sequence[bytes], groups: Sequence[str]) -> int: ...
    def destinations(self, groups: Sequence[str]) -> tuple[int, ...]: ...
    def change_topology(self, now: int, sends: Sequence[str]) -> object: ...


class RoutedNode(Node):
    """Messages have the destinations of `routes` in turn; neighbours with the same one are handed in together.

    Once the topology has changed, they go to all groups that are possible, and to each of them, in turn.
    """

    __slots__ = ("_declared", "_router", "_routes")

    def __init__(
        self,
        agenda: Agenda,
        member: int,
        stack: Machine,
        clock: Clock,
        *,
        timing: Timing,
        routes: Sequence[tuple[str, ...]],
        offers: Offers | None = None,
        recorder: Recorder | None = None,
        life: int = 1,
    ) -> None:
        super().__init__(agenda, member, stack, clock, timing=timing, offers=offers, recorder=recorder, life=life)
        if not isinstance(stack, Router):
            raise UnisonoError(f"member {member}'s machine knows no groups to send to")
        self._router, self._routes, self._declared = stack, routes, routes

    def _submit(self, now: int, local: int) -> None:
        """Each with its destinations; what is not taken waits for the stack's next wake."""
        if not self._routes:
            self._waiting.clear()  # there is nobody to send to: the application sends nothing
        while self._waiting and now < self._agenda.send_until:
            groups = self._routes[self.accepted % len(self._routes)]
            count = len(self._waiting) if len(self._routes) == 1 else 1
            messages = [self._waiting[number] for number in range(count)]
            taken = self._router.submit_to(local, messages, groups)
            if not taken:
                return
            for _ in range(taken):
                self._waiting.popleft()
            self._note_sent(now, local, messages[:taken], destinations=self._router.destinations(groups))

    def change_topology(self, now: int, sends: tuple[str, ...]) -> None:
        """The application asks for other groups to send to."""
        if self._shut(now, self.change_topology, sends):
            return
        local = self.clock.local(now)
        self._router.change_topology(local, sends)
        self._settle(now, local, 0)

    def _note(self, now: int, local: int, event: StackEvent) -> None:
        super()._note(now, local, event)
        if isinstance(event, TopologyChange):
            alone = [(name,) for name in event.sends_to]
            self._routes = [event.sends_to, *alone] if len(alone) > 1 else alone

    def reborn(self, stack: Machine, recorder: Recorder | None) -> Node:
        """The member as it comes back after a crash."""
        return RoutedNode(
            self._agenda,
            self.member,
            stack,
            self.clock,
            timing=self.timing,
            routes=self._declared,
            offers=self._offers,
            recorder=recorder,
            life=self.life + 1,
        )
