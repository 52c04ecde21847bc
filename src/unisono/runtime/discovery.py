"""Finding the other members: by IP multicast beacon or by a DNS name (paper 002 §4.2: the group manager, without a
registry that can fail).

The beacon's protocol is `agreement.gathering`; here are its sockets and its time. A member that has found the others
goes on answering beacons while its group is open, so that a restarted member can learn the table from any running one.
"""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from unisono.agreement.gathering import Gathering, assign_numbers
from unisono.errors import FormationTimeout, InvalidOption, MissingDependency
from unisono.model.ids import group_key
from unisono.runtime.sockets import open_bound_socket, open_multicast_socket
from unisono.wire.beacon import APPLICANTS_MAX, Applicant, decode_beacon, encode_beacon

BEACON_DEFAULT = ("239.255.77.76", 7776)
DNS_RETRY_S = 0.5
_READS_PER_WAKE = 64

HostPort: TypeAlias = tuple[str, int]
Resolver: TypeAlias = Callable[[str, int], Awaitable[list[str]]]


@dataclass(frozen=True, slots=True)
class BeaconDiscovery:
    """Find so many members by beacon; `wanted` is the number that this one insists on, 0 for any."""

    group: str
    member_count: int
    requested_member: int = 0
    beacon: HostPort = BEACON_DEFAULT
    interface: str | None = None
    """The address of ours that the others reach; unless told, the one from which multicast leaves."""

    def __post_init__(self) -> None:
        if not 1 <= self.member_count <= APPLICANTS_MAX:
            raise InvalidOption("members", f"1 to {APPLICANTS_MAX} members find each other, not {self.member_count}")
        if not 0 <= self.requested_member <= self.member_count:
            raise InvalidOption(
                "member", f"a number from 1 to {self.member_count} is possible, not {self.requested_member}"
            )


@dataclass(frozen=True, slots=True)
class DnsDiscovery:
    """The members are at the addresses of a DNS name, all at one port, numbered in the addresses' order."""

    group: str
    name: str
    port: int
    member_count: int = 0
    """How many addresses there have to be; 0: as many as there are."""
    requested_member: int = 0


@dataclass(slots=True)
class DiscoveredGroup:
    """Everybody's address, this member's number, the socket that it is bound to, and who answers for it."""

    addresses: dict[int, HostPort]
    member: int
    bound_socket: socket.socket
    salt: str
    """Tells groups of one name with different tables apart, so that members of the one do not hear the other's."""
    responder: BeaconResponder | None = None

    def close(self) -> None:
        """Let go of what has not been handed on."""
        self.bound_socket.close()
        if self.responder is not None:
            self.responder.close()


async def discover(search: BeaconDiscovery | DnsDiscovery, incarnation: int, timeout_s: float) -> DiscoveredGroup:
    """The others, and this member's place among them; FormationTimeout if they do not come."""
    if isinstance(search, DnsDiscovery):
        return await discover_by_dns(search, timeout_s)
    return await discover_by_beacon(search, incarnation, timeout_s)


def table_salt(addresses: dict[int, HostPort]) -> str:
    """A few letters that are others for other tables."""
    return f"#{group_key(repr(sorted(addresses.items()))):08x}"


# -- by beacon -----------------------------------------------------------------------------------------------


async def discover_by_beacon(search: BeaconDiscovery, incarnation: int, timeout_s: float) -> DiscoveredGroup:
    """Beacon until the table is settled."""
    interface = search.interface or _multicast_source_address(search.beacon)
    bound = open_bound_socket(socket.AF_INET, (interface, 0))
    try:
        # A nonce is never 0, and two processes draw the same once in 2⁶⁴.
        port = int(bound.getsockname()[1])
        me = Applicant(incarnation, interface, port, secrets.randbits(63) + 1, search.requested_member)
        gathering = Gathering(group_key(search.group), me, search.member_count)
        responder = BeaconResponder(gathering, search.beacon, interface)
    except BaseException:
        bound.close()
        raise
    found = None
    try:
        async with asyncio.timeout(timeout_s):
            while gathering.table is None and gathering.table_without_me is None:
                await responder.wait_for_change()
        found = _discovered_group(search, gathering, bound, responder)
    except TimeoutError:
        raise FormationTimeout(search.group, timeout_s, (), gathering.why_incomplete()) from None
    finally:
        if found is None:
            bound.close()
            responder.close()
    return found


def _multicast_source_address(beacon: HostPort) -> str:
    """The address from which multicast leaves this machine; loopback where it does not."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(beacon)
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def _discovered_group(
    search: BeaconDiscovery, gathering: Gathering, bound_socket: socket.socket, responder: BeaconResponder
) -> DiscoveredGroup:
    if gathering.table is not None:
        table = assign_numbers(gathering.table)
        addresses = {number: (who.host, who.port) for number, who in table.items()}
        mine = next(number for number, who in table.items() if who == gathering.me)
        return DiscoveredGroup(addresses, mine, bound_socket, table_salt(addresses), responder)
    # The group runs already. Whoever restarts takes the place that the others still count on.
    table = assign_numbers(gathering.table_without_me or ())
    addresses = {number: (who.host, who.port) for number, who in table.items()}
    if search.requested_member not in addresses:
        raise MissingDependency(
            f"{gathering.why_incomplete()}; to come back as one of them say which (member=…) "
            "and let it join with failures"
        )
    responder.adopt_table(gathering.table_without_me or ())
    again = open_bound_socket(socket.AF_INET, addresses[search.requested_member])
    bound_socket.close()
    return DiscoveredGroup(addresses, search.requested_member, again, table_salt(addresses), responder)


class BeaconResponder:
    """The beacon's sockets and its time, from the first beacon until the group is left."""

    def __init__(self, gathering: Gathering, beacon: HostPort, interface: str) -> None:
        self._gathering = gathering
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._closed = False
        self._sender = open_bound_socket(socket.AF_INET, (interface, 0))
        try:
            self._receiver, self._beacon_address = open_multicast_socket(self._sender, beacon, interface)
        except OSError as error:
            self._sender.close()
            raise MissingDependency(
                f"no beacon can be heard at {beacon[0]}:{beacon[1]} on {interface} ({error}); give the members' "
                "addresses (peers=…), a DNS name (peers='dns:NAME:PORT'), or an interface with multicast"
            ) from error
        self._loop.add_reader(self._receiver.fileno(), self._read)
        self._timer = self._loop.call_soon(self._wake)

    async def wait_for_change(self) -> None:
        """Wait until something has come."""
        self._changed.clear()
        await self._changed.wait()

    def adopt_table(self, table: tuple[Applicant, ...]) -> None:
        """Answer with a table that others have settled."""
        self._gathering.table = table

    def _read(self) -> None:
        for _ in range(_READS_PER_WAKE):
            try:
                data = self._receiver.recv(65_536)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                break  # an error of an earlier send, reported here; the next beacon is due soon
            beacon = decode_beacon(data)
            if beacon is not None:
                self._gathering.on_beacon(time.monotonic_ns(), beacon)
        self._send()
        self._changed.set()

    def _wake(self) -> None:
        if self._closed:
            return
        self._gathering.wake(time.monotonic_ns())
        self._send()
        self._changed.set()
        left_ns = self._gathering.wake_at() - time.monotonic_ns()
        self._timer.cancel()
        self._timer = self._loop.call_later(max(0.001, left_ns / 1e9), self._wake)

    def _send(self) -> None:
        beacons, self._gathering.outgoing[:] = self._gathering.outgoing[:], []
        for beacon in beacons:
            try:
                self._sender.sendto(encode_beacon(beacon), self._beacon_address)
            except OSError:
                break  # no route or no room at the moment; beacons are repeated

    def close(self) -> None:
        """Say no more."""
        if self._closed:
            return
        self._closed = True
        self._timer.cancel()
        self._loop.remove_reader(self._receiver.fileno())
        self._receiver.close()
        self._sender.close()


# -- by name -------------------------------------------------------------------------------------------------


async def resolve_ipv4(name: str, port: int) -> list[str]:
    """All IPv4 addresses of a name."""
    answers = await asyncio.get_running_loop().getaddrinfo(name, port, family=socket.AF_INET, type=socket.SOCK_DGRAM)
    return [str(answer[4][0]) for answer in answers]


async def discover_by_dns(search: DnsDiscovery, timeout_s: float, resolver: Resolver = resolve_ipv4) -> DiscoveredGroup:
    """Look the name up until it has as many addresses as there are members; ours is the one that can be bound."""
    give_up = time.monotonic() + timeout_s
    problem = ""
    while True:
        try:
            hosts = sorted(set(await resolver(search.name, search.port)), key=ipaddress.ip_address)
            problem = f"{search.name} has {len(hosts)} addresses, {search.member_count} are needed: {', '.join(hosts)}"
        except OSError as error:
            hosts, problem = [], f"{search.name} cannot be resolved ({error})"
        if hosts and search.member_count in {0, len(hosts)}:
            break
        if time.monotonic() + DNS_RETRY_S > give_up:
            raise FormationTimeout(search.group, timeout_s, (), problem)
        await asyncio.sleep(DNS_RETRY_S)
    addresses = {number: (host, search.port) for number, host in enumerate(hosts, start=1)}
    member, bound = _bind_own_address(search, addresses)
    return DiscoveredGroup(addresses, member, bound, table_salt(addresses))


def _bind_own_address(search: DnsDiscovery, addresses: dict[int, HostPort]) -> tuple[int, socket.socket]:
    """Which of the addresses is ours: the first that can be bound, or the one that was asked for."""
    if search.requested_member:
        if search.requested_member not in addresses:
            raise InvalidOption(
                "member", f"{search.name} has {len(addresses)} addresses, none for {search.requested_member}"
            )
        return search.requested_member, open_bound_socket(socket.AF_INET, addresses[search.requested_member])
    problems = []
    for number, address in addresses.items():
        try:
            return number, open_bound_socket(socket.AF_INET, address)
        except MissingDependency as error:
            problems.append(str(error))
    raise MissingDependency(f"none of the addresses of {search.name} can be bound here: {'; '.join(problems)}")
