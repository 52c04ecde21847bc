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
from unisono.runtime.discovery import BeaconDiscovery, DiscoveredGroup, DnsDiscovery, discover
from unisono.runtime.fault_injection import FaultInjection
from unisono.runtime.socket_setup import ReceiveCallback, resolve_all_async
from unisono.runtime.timers import Alarm, LocalClock, WallClock, new_incarnation
from unisono.runtime.udp import Traffic, UdpTransport


class Transport(Protocol):
    """Datagrams to and from the other members. `UdpTransport` documents each method."""

    errors: Counter[str]
    """Failed sends and receives, by the name of the error."""

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
        """Why multicast does not work, if it was requested."""

    @property
    def receive_buffer_granted(self) -> int:
        """How many bytes of arrived datagrams the buffer can hold."""

    def attach(
        self, loop: asyncio.AbstractEventLoop, receive: ReceiveCallback, on_batch_done: Callable[[], None]
    ) -> None:
        """Start to pass arrived datagrams to `receive`, and call `on_batch_done` after each batch of them."""

    def send(self, datagrams: Sequence[Datagram]) -> None:
        """Send, or keep until there is room. Never blocks."""

    def writable(self) -> bool:
        """Whether no datagram waits for room."""

    def drain(self) -> int:
        """Pass on all datagrams that have arrived, without calling `on_batch_done`; returns their number."""

    def pause_reading(self) -> None:
        """Leave arriving datagrams in the buffer."""

    def resume_reading(self) -> None:
        """Read again."""

    def dropped(self) -> int:
        """How many datagrams arrived while the buffer was full."""

    def max_frame(self) -> int:
        """The largest datagram that reaches every peer in one piece."""

    def close(self) -> None:
        """Send no more and receive no more."""


class MemberAlarm(Protocol):
    """One alarm at a reading of the member's clock. `Alarm` documents each method."""

    @property
    def lateness(self) -> Histogram:
        """How long after the time set each call came, in nanoseconds."""

    def set(self, at_ns: int | None) -> None:
        """Call back at this local time. Replaces the time set before; None cancels it."""

    def close(self) -> None:
        """Never call back again."""


@dataclass(frozen=True, slots=True)
class TransportOptions:
    """The options of a member's transport."""

    member: int
    addresses: Mapping[int, tuple[str, int]]
    """The address of every member; a host may be a name."""
    multicast: tuple[str, int] | None
    """The IP multicast group to use, if any."""
    injection: FaultInjection | None
    bound_socket: socket.socket | None
    """The socket with which discovery found the group, if it did."""
    timeout_s: float
    """How long names may take to resolve."""


class Environment(Protocol):
    """Opens everything that a joining member needs from the outside world."""

    def new_incarnation(self) -> int:
        """An incarnation number larger than any that an earlier call returned."""

    async def discover(
        self, search: BeaconDiscovery | DnsDiscovery, incarnation: int, timeout_s: float
    ) -> DiscoveredGroup:
        """Find the other members."""

    def open_clock(self, member: int, offset_ns: int) -> LocalClock:
        """The clock of a member, ahead of the real one by `offset_ns`."""

    async def open_transport(self, options: TransportOptions) -> Transport:
        """The transport of a member."""

    def open_alarm(self, member: int, clock: LocalClock, callback: Callable[[], None]) -> MemberAlarm:
        """The alarm of a member."""

    def on_joined(self, member: int, abort: Callable[[], None]) -> None:
        """A member has joined. `abort` stops it at once, without notifying any peer."""


class UdpEnvironment:
    """The real machine."""

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
            multicast=options.multicast,
            injection=options.injection,
            bound_socket=options.bound_socket,
        )

    def open_alarm(self, member: int, clock: LocalClock, callback: Callable[[], None]) -> MemberAlarm:
        return Alarm(asyncio.get_running_loop(), clock, callback)

    def on_joined(self, member: int, abort: Callable[[], None]) -> None:
        """Do nothing: to stop a real member, kill its process."""


_UDP = UdpEnvironment()
_current: ContextVar[Environment] = ContextVar("unisono environment")


def current_environment() -> Environment:
    """The environment that `join` uses in this context."""
    return _current.get(_UDP)


class EnvironmentScope:
    """Makes an environment the current one inside a `with` block, and in the tasks that the block starts."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    def __enter__(self) -> None:
        self._token = _current.set(self._environment)

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)
