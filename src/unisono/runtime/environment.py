"""A member's environment: its clock, transport, alarm and discovery. `join` uses `current_environment`.

The default is the real machine: UDP sockets, the system's clocks, a timerfd. `unisono.testing` supplies a network in
memory instead, and runs the same driver, stack and `Group` on it.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from unisono.model.delays import Histogram
from unisono.model.effects import Datagram
from unisono.model.status import Status
from unisono.runtime.discovery import BeaconDiscovery, DiscoveredGroup, DnsDiscovery, discover
from unisono.runtime.fault_injection import FaultInjection
from unisono.runtime.socket_setup import ReceiveCallback, resolve_all_async
from unisono.runtime.status_socket import StatusServer
from unisono.runtime.timers import Alarm, LocalClock, WallClock, new_incarnation
from unisono.runtime.udp import Traffic, UdpTransport


class Transport(Protocol):
    """Sends datagrams to the other members and receives theirs. `UdpTransport` documents each method in full."""

    errors: Counter[str]
    """How many sends and receives failed, by the name of the error, such as ECONNREFUSED."""

    def counters(self) -> Mapping[str, int]:
        """Figures about the transport for `Stats.counters`, by name."""

    @property
    def address(self) -> tuple[str, int]:
        """This member's own address."""

    @property
    def received(self) -> Traffic:
        """How many datagrams and bytes this member has read."""

    @property
    def multicast_error(self) -> str | None:
        """Why multicast does not work; None if it works or was not requested."""

    @property
    def receive_buffer_granted(self) -> int:
        """The size of the receive buffer in bytes: how much can have arrived without being read."""

    def attach(
        self, loop: asyncio.AbstractEventLoop, receive: ReceiveCallback, on_batch_done: Callable[[], None]
    ) -> None:
        """Start to pass arrived datagrams to `receive`, and call `on_batch_done` after each batch of them."""

    def send(self, datagrams: Sequence[Datagram]) -> None:
        """Send these datagrams, or keep them until there is room. Never blocks."""

    def writable(self) -> bool:
        """Whether all datagrams passed to `send` are sent, so that there is room for more."""

    def drain(self) -> int:
        """Pass all datagrams that have arrived to `receive`, without calling `on_batch_done`; return their number."""

    def pause_reading(self) -> None:
        """Leave arriving datagrams in the receive buffer until `resume_reading`."""

    def resume_reading(self) -> None:
        """Read datagrams again, after `pause_reading`."""

    def dropped(self) -> int:
        """How many datagrams were dropped because they arrived while the receive buffer was full."""

    def max_frame(self) -> int:
        """The largest datagram that reaches every peer in one piece."""

    async def unreachable(self, members: Sequence[int]) -> Mapping[int, int]:
        """Probe the addresses of these members; return the number (errno) of the network's answer, by member.

        Members that may have got the probe are not in the result.
        """

    def close(self) -> None:
        """Send no more and receive no more."""


class MemberAlarm(Protocol):
    """Calls back when the member's clock shows a set time. `Alarm` documents each method in full."""

    @property
    def lateness(self) -> Histogram:
        """How many nanoseconds after its set time each callback came."""

    def set(self, at_ns: int | None) -> None:
        """Call back at this local time. This replaces the time set before; None cancels the alarm."""

    def close(self) -> None:
        """Never call back again."""


@dataclass(frozen=True, slots=True)
class TransportOptions:
    """The options with which `Environment.open_transport` opens a member's transport."""

    member: int
    addresses: Mapping[int, tuple[str, int]]
    """The address of every member; a host may be a name."""
    multicast: tuple[str, int] | None
    """The address and port of the IP multicast group to use; None to send unicast copies."""
    multicast_ttl: int
    """The TTL of datagrams to that group."""
    bind: tuple[str, int] | None
    """The local address to listen at; None to listen at the member's own address."""
    injection: FaultInjection | None
    bound_socket: socket.socket | None
    """The socket that discovery has already bound to this member's address; None without discovery."""
    timeout_s: float
    """How many seconds the resolution of host names may take."""


class Environment(Protocol):
    """Opens everything that a joining member needs from the outside world."""

    def new_incarnation(self) -> int:
        """Return an incarnation number larger than any that an earlier call returned."""

    async def discover(
        self, search: BeaconDiscovery | DnsDiscovery, incarnation: int, timeout_s: float
    ) -> DiscoveredGroup:
        """Find the addresses of the other members; raises FormationTimeout if they do not appear in time."""

    def open_clock(self, member: int, offset_ns: int) -> LocalClock:
        """Open a member's clock, which runs `offset_ns` ahead of the real one."""

    async def open_transport(self, options: TransportOptions) -> Transport:
        """Open a member's transport with these options."""

    def open_alarm(self, member: int, clock: LocalClock, callback: Callable[[], None]) -> MemberAlarm:
        """Open a member's alarm, which calls `callback` when `clock` shows the set time."""

    async def serve_status(self, group: str, member: int, status: Callable[[], Status]) -> StatusServer | None:
        """Serve a member's status to other processes; None if this environment has no others. May raise OSError."""

    def on_joined(self, member: int, abort: Callable[[], None]) -> None:
        """`join` calls this when a member has joined. `abort` stops the member at once, without notifying any peer."""


class UdpEnvironment:
    """The environment of a real member: UDP sockets, the system's clocks and a timerfd."""

    def new_incarnation(self) -> int:
        return new_incarnation()

    async def discover(
        self, search: BeaconDiscovery | DnsDiscovery, incarnation: int, timeout_s: float
    ) -> DiscoveredGroup:
        return await discover(search, incarnation, timeout_s)

    def open_clock(self, member: int, offset_ns: int) -> LocalClock:
        return WallClock(ahead_ns=offset_ns)

    async def open_transport(self, options: TransportOptions) -> Transport:
        return UdpTransport(
            options.member,
            await resolve_all_async(options.addresses, options.timeout_s),
            bind=options.bind,
            multicast=options.multicast,
            multicast_ttl=options.multicast_ttl,
            injection=options.injection,
            bound_socket=options.bound_socket,
        )

    def open_alarm(self, member: int, clock: LocalClock, callback: Callable[[], None]) -> MemberAlarm:
        return Alarm(asyncio.get_running_loop(), clock, callback)

    async def serve_status(self, group: str, member: int, status: Callable[[], Status]) -> StatusServer | None:
        return await StatusServer.open(group, member, status)

    def on_joined(self, member: int, abort: Callable[[], None]) -> None:
        """Do nothing: to stop a real member, kill its process."""


_UDP = UdpEnvironment()
_current: ContextVar[Environment] = ContextVar("unisono environment")


def current_environment() -> Environment:
    """The environment that `join` uses here: that of the enclosing `EnvironmentScope`, or else the real machine."""
    return _current.get(_UDP)


class EnvironmentScope:
    """Makes an environment the current one inside a `with` block, and in the tasks that the block starts."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    def __enter__(self) -> None:
        self._token = _current.set(self._environment)

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)
