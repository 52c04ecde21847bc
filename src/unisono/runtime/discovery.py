"""Finding the other members, by IP multicast beacons or by a DNS name.

Paper 002 §4.2 has a group manager, a registry that can fail. A protocol between the members replaces it here.
`agreement.gathering` is the protocol of the beacons; this module has its sockets and timers. A member that has found
the others answers beacons as long as its group is open, so a restarted member can learn the table of addresses from any
running member.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import secrets
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from unisono.agreement.gathering import Gathering, assign_numbers
from unisono.errors import AddressInUse, FormationTimeout, InvalidOption, MissingDependency
from unisono.model.addresses import address_text, refuse_unspecified
from unisono.model.units import group_key
from unisono.runtime.socket_setup import local_address, open_bound_socket, open_multicast_socket
from unisono.wire.beacon import APPLICANTS_MAX, Applicant, decode_beacon, encode_beacon

BEACON_DEFAULT = ("239.255.77.76", 7776)
DNS_RETRY_S = 0.5
_READS_PER_WAKE = 64
_SOCKET_FULL_ERRORS = frozenset({errno.EAGAIN, errno.EWOULDBLOCK, errno.ENOBUFS})

HostPort: TypeAlias = tuple[str, int]
Resolver: TypeAlias = Callable[[str, int], Awaitable[list[str]]]


@dataclass(frozen=True, slots=True)
class BeaconDiscovery:
    """A search for `member_count` members by beacon. `requested_member` is the number this member wants; 0 for any."""

    group: str
    member_count: int
    requested_member: int = 0
    beacon: HostPort = BEACON_DEFAULT
    interface: str | None = None
    """This member's address, as the others reach it; by default the address from which multicast leaves."""
    ttl: int = 1
    """The TTL of the beacons."""

    def __post_init__(self) -> None:
        if not 1 <= self.member_count <= APPLICANTS_MAX:
            raise InvalidOption("members", f"expected 1 to {APPLICANTS_MAX} members, got {self.member_count}")
        if not 0 <= self.requested_member <= self.member_count:
            raise InvalidOption(
                "member", f"expected a number from 1 to {self.member_count}, got {self.requested_member}"
            )


@dataclass(frozen=True, slots=True)
class DnsDiscovery:
    """A search for the members by a DNS name: each address of the name is one member, and all use the same port.

    Members are numbered from 1 in ascending order of their addresses.
    """

    group: str
    name: str
    port: int
    member_count: int = 0
    """How many addresses the DNS name must have, one per member; 0 allows any number."""
    requested_member: int = 0
    bind: HostPort | None = None
    """The local address to listen at, as `requested_member`; None to listen at one of the addresses of the name."""


@dataclass(slots=True)
class DiscoveredGroup:
    """The result of discovery: all members' addresses, this member's number, its bound socket and beacon responder."""

    addresses: dict[int, HostPort]
    member: int
    bound_socket: socket.socket
    salt: str
    """A suffix of the group's name on the wire. Groups of one name but different members so ignore each other."""
    responder: BeaconResponder | None = None

    def close(self) -> None:
        """Close the socket and the beacon responder. Call this only if the group could not be opened."""
        self.bound_socket.close()
        if self.responder is not None:
            self.responder.close()


async def discover(search: BeaconDiscovery | DnsDiscovery, incarnation: int, timeout_s: float) -> DiscoveredGroup:
    """Find the other members and this member's number; raises FormationTimeout if they do not appear in time."""
    if isinstance(search, DnsDiscovery):
        return await discover_by_dns(search, timeout_s)
    return await discover_by_beacon(search, incarnation, timeout_s)


def table_salt(addresses: dict[int, HostPort]) -> str:
    """A short text computed from the members' addresses. Different addresses give a different text."""
    return f"#{group_key(repr(sorted(addresses.items()))):08x}"


# -- by beacon -----------------------------------------------------------------------------------------------


async def discover_by_beacon(search: BeaconDiscovery, incarnation: int, timeout_s: float) -> DiscoveredGroup:
    """Send beacons until the members have agreed on the table of addresses."""
    interface = search.interface or _multicast_source_address(search.beacon)
    bound = open_bound_socket(socket.AF_INET, (interface, 0))
    try:
        # A nonce is never 0. Two processes draw the same one with probability 2⁻⁶³.
        port = int(bound.getsockname()[1])
        me = Applicant(incarnation, interface, port, secrets.randbits(63) + 1, search.requested_member)
        gathering = Gathering(group_key(search.group), me, search.member_count)
        responder = BeaconResponder(gathering, search.beacon, interface, search.ttl)
    except BaseException:
        bound.close()
        raise
    found = None
    try:
        async with asyncio.timeout(timeout_s):
            while gathering.table is None and gathering.table_without_me is None:
                await responder.wait_for_change()
                if responder.send_error is not None:
                    raise _no_multicast(search.beacon, f"interface {interface}", responder.send_error)
        found = _discovered_group(search, gathering, bound, responder)
    except TimeoutError:
        sent = f"beacons went from {interface} to {address_text(search.beacon)}"
        raise FormationTimeout(search.group, timeout_s, (), f"{gathering.why_incomplete()}; {sent}") from None
    finally:
        if found is None:
            bound.close()
            responder.close()
    return found


def _multicast_source_address(beacon: HostPort) -> str:
    """The address from which multicast leaves this machine; raises MissingDependency if no route leads anywhere."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(beacon)
            return str(probe.getsockname()[0])
        except OSError as error:
            raise _no_multicast(beacon, "any interface", error) from error


def _no_multicast(beacon: HostPort, interface: str, error: OSError) -> MissingDependency:
    return MissingDependency(
        f"cannot send beacons to {address_text(beacon)} through {interface} ({error.strerror}); name the interface "
        "that leads to the other members by its address, as `ip addr` shows it: Beacon(interface=…) or --interface, "
        "127.0.0.1 if all members are on this machine; or add a route: `ip route add 224.0.0.0/4 dev NAME`; or give "
        "the members' addresses (peers=…)"
    )


def _discovered_group(
    search: BeaconDiscovery, gathering: Gathering, bound_socket: socket.socket, responder: BeaconResponder
) -> DiscoveredGroup:
    if gathering.table is not None:
        table = assign_numbers(gathering.table)
        addresses = {number: (applicant.host, applicant.port) for number, applicant in table.items()}
        member = next(number for number, applicant in table.items() if applicant == gathering.me)
        return DiscoveredGroup(addresses, member, bound_socket, table_salt(addresses), responder)
    # The group runs already. A restarted member takes its former number and address.
    table = assign_numbers(gathering.table_without_me or ())
    addresses = {number: (applicant.host, applicant.port) for number, applicant in table.items()}
    if search.requested_member not in addresses:
        raise MissingDependency(
            f"{gathering.why_incomplete()}; to rejoin as one of these members, give its number (member=…) and use "
            "an order that tolerates failures"
        )
    responder.adopt_table(gathering.table_without_me or ())
    again = open_bound_socket(socket.AF_INET, addresses[search.requested_member])
    bound_socket.close()
    return DiscoveredGroup(addresses, search.requested_member, again, table_salt(addresses), responder)


class BeaconResponder:
    """Sends this member's beacons and answers those of others, from the search until this member leaves the group."""

    def __init__(self, gathering: Gathering, beacon: HostPort, interface: str, ttl: int) -> None:
        self._gathering = gathering
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._closed = False
        self.send_error: OSError | None = None
        """Why the last beacon could not leave this machine; None if it has left, or may leave later."""
        self._sender = open_bound_socket(socket.AF_INET, (interface, 0))
        try:
            self._receiver, self._beacon_address = open_multicast_socket(self._sender, beacon, interface, ttl)
        except OSError as error:
            self._sender.close()
            raise MissingDependency(
                f"cannot receive beacons at {beacon[0]}:{beacon[1]} on {interface} ({error}); give the members' "
                "addresses (peers=…), a DNS name (peers='dns:NAME:PORT'), or an interface with multicast"
            ) from error
        self._loop.add_reader(self._receiver.fileno(), self._read)
        self._timer = self._loop.call_soon(self._wake)

    async def wait_for_change(self) -> None:
        """Wait until a beacon has arrived or the timer for the next own beacon has expired."""
        self._changed.clear()
        await self._changed.wait()

    def adopt_table(self, table: tuple[Applicant, ...]) -> None:
        """From now on, answer beacons with this table of addresses, which other members have agreed on."""
        self._gathering.table = table

    def _read(self) -> None:
        for _ in range(_READS_PER_WAKE):
            try:
                data = self._receiver.recv(65_536)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                break  # an earlier send failed; the next beacon follows soon
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
                self.send_error = None
            except OSError as error:
                # Without room at the moment a later beacon says the same. Other errors end the search. A group that
                # runs continues: its members do not need beacons, and the next one may leave.
                self.send_error = None if error.errno in _SOCKET_FULL_ERRORS else error
                break

    def close(self) -> None:
        """Stop answering beacons."""
        if self._closed:
            return
        self._closed = True
        self._timer.cancel()
        self._loop.remove_reader(self._receiver.fileno())
        self._receiver.close()
        self._sender.close()


# -- by name -------------------------------------------------------------------------------------------------


async def resolve_ipv4(name: str, port: int) -> list[str]:
    """Look up all IPv4 addresses of a DNS name."""
    answers = await asyncio.get_running_loop().getaddrinfo(name, port, family=socket.AF_INET, type=socket.SOCK_DGRAM)
    return [str(answer[4][0]) for answer in answers]


async def discover_by_dns(search: DnsDiscovery, timeout_s: float, resolver: Resolver = resolve_ipv4) -> DiscoveredGroup:
    """Resolve the DNS name again and again until it has one address per member.

    This member's own address is the first of them that a socket on this machine can bind to.
    """
    give_up = time.monotonic() + timeout_s
    problem = ""
    while True:
        try:
            hosts = sorted(set(await resolver(search.name, search.port)), key=ipaddress.ip_address)
            problem = f"{search.name} has {len(hosts)} addresses ({', '.join(hosts)}), expected {search.member_count}"
        except OSError as error:
            hosts, problem = [], f"{search.name} cannot be resolved ({error})"
        if hosts and search.member_count in {0, len(hosts)}:
            break
        if time.monotonic() + DNS_RETRY_S > give_up:
            raise FormationTimeout(search.group, timeout_s, (), problem)
        await asyncio.sleep(DNS_RETRY_S)
    for host in hosts:
        refuse_unspecified("peers.name", host)
    addresses = {number: (host, search.port) for number, host in enumerate(hosts, start=1)}
    member, bound = _bind_own_address(search, addresses)
    return DiscoveredGroup(addresses, member, bound, table_salt(addresses))


def _bind_own_address(search: DnsDiscovery, addresses: dict[int, HostPort]) -> tuple[int, socket.socket]:
    """Bind a socket to the requested member's address, or else to the first address that is possible.

    Return the number of that member, and the socket.
    """
    if search.requested_member:
        if search.requested_member not in addresses:
            raise InvalidOption(
                "member",
                f"expected 1 to {len(addresses)}, one for each address of {search.name}, got {search.requested_member}",
            )
        here = addresses[search.requested_member] if search.bind is None else search.bind
        return search.requested_member, open_bound_socket(socket.AF_INET, local_address(here, socket.AF_INET))
    problems = []
    for number, address in addresses.items():
        try:
            return number, open_bound_socket(socket.AF_INET, address)
        except (AddressInUse, MissingDependency) as error:
            problems.append(str(error))
    raise MissingDependency(f"none of the addresses of {search.name} can be bound here: {'; '.join(problems)}")
