"""The event loop of the simulator: one heap of scheduled events, in true time.

At equal times datagrams arrive first (erratum 000-22: an arrival at the time-out counts). Timers, application inputs
and faults follow in the order in which they were scheduled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Any, TypeAlias

from unisono.errors import InvalidOption
from unisono.model.effects import Datagram
from unisono.model.timing import Timing
from unisono.model.units import Rate
from unisono.model.workloads import ScheduledSends, silent
from unisono.sim.clocks import Clock
from unisono.sim.disk import SimDisk
from unisono.sim.member import Machine, MemberSetup, PullingMember, RoutedMember, SimulatedMember
from unisono.sim.network import SimulatedLink, SimulatedNetwork
from unisono.sim.traffic import TrafficLedger
from unisono.stack import Stack
from unisono.trace.recorder import MemoryTrace
from unisono.trace.schema import OBSERVER

ScheduledEvent: TypeAlias = tuple[int, int, Callable[[int, Any], None], Any]
"""(true time, rank, callback, argument). Ranks are unique, so the heap never compares callbacks."""

_Route: TypeAlias = tuple[SimulatedLink, Callable[[int, bytes], None]]
"""A link, and the callback for its arrivals."""
_AFTER_ARRIVALS = 1 << 61
_LAST = 1 << 62

Check: TypeAlias = "Callable[[World], None]"


class _TimeReached(Exception):
    """Raised to stop the event loop when the world has reached the end of the requested run."""


def _stop_at(now: int, _: object) -> None:
    raise _TimeReached(now)


class World:
    """Members, the network between them, and time.

    Times are true times in nanoseconds. The world calls `check` after every event. With `compare_payloads` it compares
    every delivery with the message sent, byte for byte. From `send_until_ns` on no application sends.
    """

    def __init__(
        self,
        network: SimulatedNetwork,
        *,
        start_ns: int = 0,
        send_until_ns: int = 2**63,
        memory_trace: MemoryTrace | None = None,
        ledger: TrafficLedger | None = None,
        check: Check | None = None,
        compare_payloads: bool = False,
    ) -> None:
        self.network = network
        self.start_ns = start_ns
        self.now = start_ns
        self.send_until_ns = send_until_ns
        self.memory_trace = memory_trace
        self.ledger = ledger
        self.check = check
        self.sent_payloads: dict[tuple[int, int], list[bytes]] | None = {} if compare_payloads else None
        self.members: dict[int, SimulatedMember] = {}
        self.steps = 0
        """How many events have happened."""
        self.datagrams = 0
        """How many datagrams were put on links; one to the whole group counts once per link."""
        self._heap: list[ScheduledEvent] = []
        self._scheduled_count = 0
        self._routes: dict[int, dict[tuple[int, ...], tuple[_Route, ...]]] = {}
        """By sender and destinations, the links to use."""

    # -- building --------------------------------------------------------------------------------------------

    def add(
        self,
        member: int,
        stack: Machine,
        clock: Clock,
        timing: Timing,
        *,
        starts_at_ns: int | None = None,
        workload: ScheduledSends | None = None,
        incarnation: int = 1,
        consume_ns: int = 0,
        priorities: Sequence[int] = (0,),
        routes: Sequence[tuple[str, ...]] = (),
        bound_ns: int | None = None,
        disk: SimDisk | None = None,
    ) -> SimulatedMember:
        """Add a member, which starts at `starts_at_ns`, or when its clock first shows 0 if that is later.

        In the priority orders, its application needs `consume_ns` per message, and its messages have `priorities` in
        turn. With several groups, `routes` are the destinations of its messages, in turn. `bound_ns` is the latency
        bound that its order declares.
        """
        if member in self.members:
            raise InvalidOption("members", f"member {member} is already in the world")
        recorder = None if self.memory_trace is None else self.memory_trace.recorder(member, incarnation=incarnation)
        setup = MemberSetup(member, clock, timing, workload or silent(), bound_ns, disk, consume_ns, priorities, routes)
        kind: type[SimulatedMember] = SimulatedMember
        if isinstance(stack, Stack) and stack.application_pulls:
            kind = PullingMember
        elif routes:
            kind = RoutedMember
        added = kind(self, setup, stack, recorder, incarnation)
        self.members[member] = added
        self._routes.clear()
        starts = max(self.start_ns if starts_at_ns is None else starts_at_ns, clock.true_at(0))
        self.schedule(starts, added.start, None)
        return added

    def send(self, at: int, member: int, sizes: Sequence[int]) -> None:
        """Let a member's application submit messages of these sizes."""
        self.schedule(at, self.members[member].submit, tuple(sizes))

    def change_rate(self, at: int, member: int, rate: Rate) -> None:
        """Let a member change its rate."""
        self.schedule(at, self.members[member].change_rate, rate)

    def change_slot(self, at: int, member: int, theta_ns: int) -> None:
        """Let a member, in its incarnation at that time, ask for slots of another length."""
        self.schedule(at, lambda now, _: self.members[member].change_slot(now, theta_ns), None)

    def change_topology(self, at: int, member: int, sends: tuple[str, ...]) -> None:
        """Let a member, in its incarnation at that time, ask its group to send to these groups."""

        def change(now: int, _: object) -> None:
            simulated = self.members[member]
            if not isinstance(simulated, RoutedMember):
                raise InvalidOption("topology", f"the order of member {member} does not send to several groups")
            simulated.change_topology(now, sends)

        self.schedule(at, change, None)

    def leave(self, at: int, member: int) -> None:
        """Let a member leave."""
        self.schedule(at, self.members[member].leave, None)

    def crash(self, at: int, member: int) -> None:
        """Let a member crash."""
        observer = None if self.memory_trace is None else self.memory_trace.recorder(OBSERVER)
        self.schedule(at, self.members[member].crash, observer)

    def restart(self, at: int, member: int, build: Callable[[int], Machine]) -> None:
        """Restart a crashed member with the stack that `build` makes for its new incarnation."""
        self.schedule(at, self._restart, (member, build))

    def _restart(self, now: int, request: tuple[int, Callable[[int], Machine]]) -> None:
        member, build = request
        old = self.members[member]
        if old.up:
            return
        incarnation = old.incarnation + 1
        recorder = None if self.memory_trace is None else self.memory_trace.recorder(member, incarnation=incarnation)
        restarted = self.members[member] = old.restarted(build(incarnation), recorder)
        self._routes.clear()
        restarted.start(now, None)

    def pause(self, from_ns: int, to_ns: int, member: int) -> None:
        """Pause a member; it handles the events of that time at the end of the pause."""
        self.schedule(from_ns, self.members[member].pause, to_ns)

    def schedule(self, at: int, callback: Callable[[int, Any], None], argument: object) -> None:
        """Schedule any event but an arrival."""
        self._scheduled_count += 1
        heappush(self._heap, (at, _AFTER_ARRIVALS + self._scheduled_count, callback, argument))

    def schedule_arrival(self, at: int, callback: Callable[[int, bytes], None], data: bytes) -> None:
        """Schedule the arrival of a datagram."""
        self._scheduled_count += 1
        heappush(self._heap, (at, self._scheduled_count, callback, data))

    # -- running ---------------------------------------------------------------------------------------------

    def run(self, until: int) -> None:
        """Process all events up to and including `until`."""
        heap, check, pop = self._heap, self.check, heappop
        # An entry that ranks after all others of its time ends the loop, so the loop need not compare times.
        heappush(heap, (until, _LAST, _stop_at, None))
        steps = -1
        try:
            while True:
                now, _, callback, argument = pop(heap)
                self.now = now
                steps += 1
                callback(now, argument)
                if check is not None:
                    check(self)
        except _TimeReached:
            pass
        finally:
            self.steps += steps

    def transmit(self, now: int, sender: SimulatedMember, datagrams: Sequence[Datagram]) -> None:
        """Put a member's datagrams on its links."""
        routes = self._routes.setdefault(sender.member, {})
        if self.ledger is not None:
            self.ledger.record(sender.member, datagrams)
            if self.ledger.keeps_send_times:
                self.ledger.record_send_times(now, sender.member, datagrams)
        heap, scheduled, faulty = self._heap, self._scheduled_count, bool(self.network.faults)
        for datagram in datagrams:
            data = datagram.data
            links = routes.get(datagram.destinations)
            if links is None:
                links = routes[datagram.destinations] = self._links_to(sender.member, datagram.destinations)
            for link, arrive in links:
                self.datagrams += 1
                if faulty:
                    for at in self.network.arrival_times(link, now):
                        scheduled += 1
                        heappush(heap, (at, scheduled, arrive, data))
                    continue
                # This is SimulatedLink.arrival, inlined because it runs once per datagram and receiver.
                at = now + link.draw_delay(now)
                if link.fifo:
                    if at < link.last_arrival_ns:
                        at = link.last_arrival_ns
                    else:
                        link.last_arrival_ns = at
                scheduled += 1
                heappush(heap, (at, scheduled, arrive, data))
        self._scheduled_count = scheduled

    def _links_to(self, sender: int, destinations: tuple[int, ...]) -> tuple[_Route, ...]:
        """The links from a member to these members, in the network's order; absent members have none."""
        return tuple(
            (link, self.members[link.receiver].arrive)
            for link in self.network.links_from(sender)
            if link.receiver in destinations and link.receiver in self.members
        )
