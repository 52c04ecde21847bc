"""A network in memory for tests, and the faults that a test can cause on it."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from heapq import heappop, heappush
from typing import Any

from unisono.errors import AddressInUse, GroupClosed, InvalidOption
from unisono.group import Group, join
from unisono.model.events import Delivery
from unisono.model.faults import Loss, LossModel, Span
from unisono.model.status import Status
from unisono.model.units import NS_PER_S, duration_ns
from unisono.runtime.discovery import BeaconDiscovery, DiscoveredGroup, DnsDiscovery
from unisono.runtime.environment import EnvironmentScope, MemberAlarm, Transport, TransportOptions
from unisono.runtime.status_socket import StatusServer
from unisono.runtime.timers import LocalClock
from unisono.testing.clocks import ClockControl
from unisono.testing.transport import Address, MemoryTransport

GROUP_NAME = "test"
MEMORY_HOST = "memory"


@asynccontextmanager
async def network(
    members: int | Sequence[int] = 3, *, later: Sequence[int] = (), seed: int = 1, **options: Any
) -> AsyncIterator[MemoryNetwork]:
    """A network in memory with a group on it: `async with network(members=3) as net`, then `net[1]` is a `Group`.

    `members` is a number, or the members' numbers; 0 gives a network without a group. Members in `later` belong to
    the group too, but join only when the test calls `net.join`. `seed` decides which datagrams `lose` loses.
    All further options go to `unisono.join`. Inside the block, every `unisono.join` of this task and of the tasks that
    it starts uses this network. At the end, faults stop and all members leave; if the block raises, they stop at once.
    """
    numbers = tuple(range(1, members + 1)) if isinstance(members, int) else tuple(members)
    net = MemoryNetwork((*numbers, *later), seed=seed, options=options)
    with EnvironmentScope(net):
        try:
            await asyncio.gather(*(net.join(member) for member in numbers))
            yield net
            net.heal()
            for member in net.paused:
                net.resume(member)
            await asyncio.gather(*(group.leave() for group in net.groups.values()))
        finally:
            net.abort()


async def deliveries(group: Group, count: int) -> list[Delivery]:
    """The next `count` deliveries of a group, without other events. Raises GroupClosed if the group ends before."""
    found: list[Delivery] = []
    async for event in group:
        if isinstance(event, Delivery):
            found.append(event)
        if len(found) >= count:
            return found
    raise GroupClosed(f"the group ended after {len(found)} of {count} deliveries")


class MemoryNetwork:
    """Carries datagrams between the members of one event loop. `network` opens one."""

    def __init__(self, members: Sequence[int] = (), *, seed: int = 1, options: Mapping[str, Any] | None = None) -> None:
        self.clock = ClockControl(asyncio.get_running_loop())
        """Controls the time of the test and the offset of each member's clock."""
        self.groups: dict[int, Group] = {}
        """The groups joined with `join`, by member; a crashed member is not among them."""
        self.peers: dict[int, Address] = {member: (MEMORY_HOST, member) for member in members}
        """The members' addresses, for a program that calls `unisono.join` itself."""
        self.datagrams = 0
        """How many datagrams were sent; a datagram to three members counts three times."""
        self.lost = 0
        """How many of the datagrams sent were lost, by `lose` or on a cut link."""
        self._seed, self._options = seed, dict(options or {})
        self._transports: dict[Address, MemoryTransport] = {}
        self._aborts: dict[int, list[Callable[[], None]]] = {}
        self._incarnations = 0
        self._cuts: set[tuple[int, int]] = set()
        self._losses: LossModel | None = None
        self._delay_ns = 0
        self._paused: dict[int, deque[tuple[MemoryTransport, Address, bytes, bool]]] = {}
        """The paused members, each with the datagrams that it has sent since it was paused."""
        self._in_flight: list[tuple[int, int, Address, bytes, bool]] = []
        self._last_due_ns: dict[tuple[Address, Address], int] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __getitem__(self, member: int) -> Group:
        return self.groups[member]

    async def join(self, member: int, **options: Any) -> Group:
        """Let a member join, for the first time or after a crash; `options` override those of the network."""
        with EnvironmentScope(self):
            pending = join(GROUP_NAME, member=member, peers=self.peers, **{**self._options, **options})
        group = self.groups[member] = await pending
        return group

    # -- faults ------------------------------------------------------------------------------------------------

    def lose(self, probability: float, *, at_most: int | None = None, of: int | None = None) -> None:
        """Lose each datagram with this probability, but at most `at_most` of any `of` consecutive ones of a link."""
        if not 0 <= probability <= 1:
            raise InvalidOption("probability", f"expected a number from 0 to 1, got {probability}")
        if (at_most is None) != (of is None):
            raise InvalidOption(
                "at_most", f"give at_most= and of= together, or leave both out; got at_most={at_most} and of={of}"
            )
        if at_most is not None and of is not None and (at_most < 0 or of < 1):
            text = f"expected at_most of 0 or more, and of of 1 or more, got at_most={at_most} and of={of}"
            raise InvalidOption("at_most", text)
        self._losses = LossModel((Loss(Span(), probability, at_most, of),), random.Random(f"{self._seed}/loss"))

    def cut(self, one: int | Collection[int], other: int | Collection[int], *, one_way: bool = False) -> None:
        """Cut the links between two members or sets of members; with `one_way`, only those from `one` to `other`."""
        for sender in _members(one):
            for receiver in _members(other):
                self._cuts.add((sender, receiver))
                if not one_way:
                    self._cuts.add((receiver, sender))

    def delay(self, delay: str) -> None:
        """Delay each datagram sent from now on by this much. Links stay first in, first out."""
        self._delay_ns = duration_ns(delay, "delay")

    def heal(self) -> None:
        """End all cuts, losses and delays. Paused members stay paused."""
        self._cuts.clear()
        self._losses = None
        self._delay_ns = 0

    def crash(self, member: int) -> None:
        """Stop a member at once, as if its process were killed. Its peers are not notified."""
        aborts = self._aborts.pop(member, [])
        if not aborts:
            raise InvalidOption("member", f"member {member} has not joined; only a member that has joined can crash")
        for abort in aborts:
            abort()
        self.groups.pop(member, None)
        if member in self._paused:
            self._paused[member].clear()
            self.resume(member)

    def pause(self, member: int) -> None:
        """Suspend a member: its timers do not fire, and its datagrams wait in both directions.

        The member's application is part of the test and continues to run.
        """
        if member in self._paused:
            return
        self._paused[member] = deque()
        self.clock.stop_alarms(member)
        for transport in self._transports_of(member):
            transport.stop()

    def resume(self, member: int) -> None:
        """Let a paused member continue. It reads the datagrams that have arrived meanwhile."""
        waiting = self._paused.pop(member, deque())
        for transport in self._transports_of(member):
            transport.start()
        self.clock.start_alarms(member)
        for datagram in waiting:
            self._carry(*datagram)

    @property
    def paused(self) -> tuple[int, ...]:
        """The members that are paused now."""
        return tuple(self._paused)

    def abort(self) -> None:
        """Stop all members at once, and carry no more datagrams."""
        for member in list(self._aborts):
            self.crash(member)
        self._in_flight.clear()
        if self._timer is not None:
            self._timer.cancel()

    # -- the environment that `unisono.join` uses --------------------------------------------------------------

    def new_incarnation(self) -> int:
        """Return the next incarnation number of 1, 2, 3, …"""
        self._incarnations += 1
        return self._incarnations

    async def discover(
        self, search: BeaconDiscovery | DnsDiscovery, incarnation: int, timeout_s: float
    ) -> DiscoveredGroup:
        """Raise InvalidOption: a network in memory has no multicast beacon and no DNS."""
        raise InvalidOption("peers", "a network in memory has no discovery; pass peers=net.peers")

    def open_clock(self, member: int, offset_ns: int) -> LocalClock:
        """Open a clock that the test controls through `clock`."""
        return self.clock.open_clock(member, offset_ns)

    async def open_transport(self, options: TransportOptions) -> Transport:
        """Open a transport in memory at the member's address."""
        member, address = options.member, options.addresses[options.member]
        if address in self._transports:
            raise AddressInUse(*address)
        transport = MemoryTransport(
            member,
            options.addresses,
            self._carry,
            self._forget,
            refuses=self._refuses,
            injection=options.injection,
        )
        self._transports[address] = transport
        return transport

    def open_alarm(self, member: int, clock: LocalClock, callback: Callable[[], None]) -> MemberAlarm:
        """Open an alarm that the test controls through `clock`."""
        return self.clock.open_alarm(member, clock, callback)

    async def serve_status(self, group: str, member: int, status: Callable[[], Status]) -> StatusServer | None:
        """Serve nothing: the members of this network are in the process of the test."""
        return None

    def on_joined(self, member: int, abort: Callable[[], None]) -> None:
        """Store the function `abort`, which `crash` calls to stop the member."""
        self._aborts.setdefault(member, []).append(abort)

    # -- carrying datagrams ------------------------------------------------------------------------------------

    def _carry(self, sender: MemoryTransport, address: Address, data: bytes, multicast: bool) -> None:
        waiting = self._paused.get(sender.member)
        if waiting is not None:
            waiting.append((sender, address, data, multicast))
            return
        receiver = self._transports.get(address)
        self.datagrams += 1
        if receiver is None:
            return  # no member is at this address now
        link = sender.member, receiver.member
        if link in self._cuts or (self._losses is not None and self._losses.is_lost(*link, 0)):
            self.lost += 1
            return
        path = sender.address, address
        due = max(self.clock.now_ns() + self._delay_ns, self._last_due_ns.get(path, 0))
        self._last_due_ns[path] = due
        heappush(self._in_flight, (due, self.datagrams, address, data, multicast))
        if self._in_flight[0][1] == self.datagrams:  # it is due before all others
            self._set_timer()

    def _refuses(self, sender: MemoryTransport, member: int, address: Address) -> bool:
        """Whether a datagram would come to an address without a member; on a cut link no answer comes back."""
        return address not in self._transports and (sender.member, member) not in self._cuts

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._in_flight:
            delay_ns = max(0, self._in_flight[0][0] - self.clock.now_ns())
            self._timer = self.clock.loop.call_later(delay_ns / NS_PER_S, self._deliver_due)

    def _deliver_due(self) -> None:
        now = self.clock.now_ns()
        while self._in_flight and self._in_flight[0][0] <= now:
            _, _, address, data, multicast = heappop(self._in_flight)
            receiver = self._transports.get(address)
            if receiver is not None:
                receiver.arrive(data, multicast)
        self._set_timer()

    def _transports_of(self, member: int) -> list[MemoryTransport]:
        return [transport for transport in self._transports.values() if transport.member == member]

    def _forget(self, transport: MemoryTransport) -> None:
        del self._transports[transport.address]


def _members(members: int | Collection[int]) -> Collection[int]:
    return (members,) if isinstance(members, int) else members
