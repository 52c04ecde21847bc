"""Opens UDP sockets: resolves host names, sizes buffers, joins multicast groups, finds the path MTU.

Errors say how to fix the cause.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import socket
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unisono.errors import AddressInUse, InvalidOption, MissingDependency
from unisono.model.addresses import refuse_unspecified
from unisono.model.events import Violation, ViolationKind
from unisono.orders.packing import reservation
from unisono.stack import Stack

Address = tuple[str, int] | tuple[str, int, int, int]
ReceiveCallback = Callable[[bytes, int, int, int, bool], None]
"""A function that gets received datagrams.

Arguments: data, start, end, size, multicast. The datagrams are data[start:end]. Each has `size` bytes; the last one may
have fewer. `multicast` says whether they came by multicast.
"""

MAX_UDP_PAYLOAD = 65_507
DEFAULT_MAX_FRAME = 1_400
"""The default largest frame in bytes: it fits in an Ethernet frame and leaves room for the headers of a tunnel."""
PROBE_S = 0.2
"""How many seconds to wait for the network's answer to a probe."""
_HEADER_BYTES = {socket.AF_INET: 28, socket.AF_INET6: 48}
_LINUX = sys.platform == "linux"
# Numbers of Linux socket options that have no name in Python.
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE, _SO_MEMINFO = 32, 33, 55
_IP_MTU, _IPV6_MTU = 14, 24


LookupAnswers = Sequence[tuple[Any, Any, Any, Any, tuple[Any, ...]]]
"""The answers of `getaddrinfo`: family, type, protocol, canonical name, address."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """The numeric address of every member, either all IPv4 or all IPv6.

    Addresses are numeric because a send to a name would resolve the name for each datagram.
    """

    family: socket.AddressFamily
    by_member: Mapping[int, Address]


def resolve_all(hosts: Mapping[int, tuple[str, int]]) -> Addresses:
    """Resolve the host names of all members; blocks until the answers are there."""
    return _choose_family({member: (host, resolve_host(host, f"member {member}")) for member, host in hosts.items()})


async def resolve_all_async(hosts: Mapping[int, tuple[str, int]], timeout_s: float) -> Addresses:
    """Resolve all members' host names concurrently, without blocking the event loop. An error names the member."""
    loop = asyncio.get_running_loop()
    lookups = {
        member: asyncio.ensure_future(loop.getaddrinfo(*host, type=socket.SOCK_DGRAM)) for member, host in hosts.items()
    }
    try:
        _, slow = await asyncio.wait(lookups.values(), timeout=timeout_s)
    finally:
        for task in lookups.values():
            task.cancel()
        answers = await asyncio.gather(*lookups.values(), return_exceptions=True)
    found: dict[int, tuple[tuple[str, int], LookupAnswers]] = {}
    for (member, host), answer in zip(hosts.items(), answers, strict=True):
        owner = f"member {member}"
        if lookups[member] in slow:
            raise _cannot_resolve(host, owner, TimeoutError(f"no answer within {timeout_s:g} s"))
        if isinstance(answer, BaseException):
            raise _cannot_resolve(host, owner, answer) from answer
        found[member] = host, answer
    return _choose_family(found)


def resolve_host(host: tuple[str, int], owner: str, flags: int = 0) -> LookupAnswers:
    """Resolve a host name. If this fails, the error says that it is the name of `owner`."""
    try:
        return socket.getaddrinfo(*host, type=socket.SOCK_DGRAM, flags=flags)
    except (OSError, UnicodeError) as error:
        raise _cannot_resolve(host, owner, error) from error


def _cannot_resolve(host: tuple[str, int], owner: str, error: BaseException) -> MissingDependency:
    return MissingDependency(
        f"the address {host[0]!r} of {owner} cannot be resolved ({error}); "
        "check its spelling and the name server, or give a numeric address"
    )


def _choose_family(answers_by_member: Mapping[int, tuple[tuple[str, int], LookupAnswers]]) -> Addresses:
    """Choose IPv4 if all members have it, else IPv6, and return the addresses.

    All members see the same addresses, so all choose the same family.
    """
    for family in (socket.AF_INET, socket.AF_INET6):
        addresses = {member: address_in_family(answers, family) for member, (_, answers) in answers_by_member.items()}
        if all(address is not None for address in addresses.values()):
            for member, address in addresses.items():
                refuse_unspecified(f"peers[{member}]", "" if address is None else address[0])
            return Addresses(family, {m: address for m, address in addresses.items() if address is not None})
    problems = [
        f"{host[0]} of member {member} has {families}"
        for member, (host, answers) in sorted(answers_by_member.items())
        if (families := _families_text(answers)) != "both"
    ]
    raise MissingDependency(
        f"the members have no address family in common ({', '.join(problems)}); "
        "give all of them IPv4 or all of them IPv6 addresses"
    )


def _families_text(answers: LookupAnswers) -> str:
    has_ipv4, has_ipv6 = (address_in_family(answers, f) is not None for f in (socket.AF_INET, socket.AF_INET6))
    if has_ipv4 and has_ipv6:
        return "both"
    return "IPv4 only" if has_ipv4 else "IPv6 only" if has_ipv6 else "neither IPv4 nor IPv6"


def address_in_family(answers: LookupAnswers, family: socket.AddressFamily) -> Address | None:
    """The first address of this family (IPv4 or IPv6) among the answers of a lookup; None if there is none."""
    for kind, _, _, _, address in answers:
        if kind == family:
            if len(address) == 4:
                return (str(address[0]), int(address[1]), int(address[2]), int(address[3]))
            return (str(address[0]), int(address[1]))
    return None


def local_address(bind: tuple[str, int], family: socket.AddressFamily) -> Address:
    """The address to bind a socket of this family to; `bind` has a numeric host."""
    found = address_in_family(resolve_host(bind, "the socket to bind", socket.AI_NUMERICHOST), family)
    if found is None:
        name = "IPv4" if family == socket.AF_INET else "IPv6"
        raise InvalidOption("bind", f"expected an {name} address, because the members have such, got {bind[0]!r}")
    return found


def open_bound_socket(family: socket.AddressFamily, address: Address) -> socket.socket:
    """Open a non-blocking UDP socket and bind it to this address."""
    sock = socket.socket(family, socket.SOCK_DGRAM)
    try:
        sock.setblocking(False)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise _cannot_bind(address, error) from error
    return sock


def _cannot_bind(address: Address, error: OSError) -> AddressInUse | MissingDependency:
    host, port = address[:2]
    match error.errno:
        case errno.EADDRINUSE:
            return AddressInUse(host, port)
        case errno.EADDRNOTAVAIL:
            advice = (
                f"{host} is not an address of this machine; give this member an address that `ip addr` shows, "
                "or a bind address if the peers reach it under another one"
            )
        case errno.EACCES | errno.EPERM:
            advice = f"UDP port {port} needs privileges; give this member a port above 1023"
        case _:
            advice = f"cannot bind UDP {host} port {port} ({error}); give this member another address or port"
    return MissingDependency(advice)


async def probe_address(family: socket.AddressFamily, address: Address) -> int | None:
    """Send an empty datagram to this address, and wait shortly for an error of the network; return its errno or None.

    The system reports such an error, for example ECONNREFUSED, only to a socket that is connected to the address.
    """
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(address)
            probe.send(b"")
            async with asyncio.timeout(PROBE_S):
                await asyncio.get_running_loop().sock_recv(probe, 1)
        except TimeoutError:
            return None
        except OSError as error:
            return error.errno
    return None


def grow_buffers(sock: socket.socket, receive_bytes: int, send_bytes: int) -> tuple[int, int]:
    """Request socket buffers of these sizes, beyond the system's limit if permitted; return the granted sizes."""
    return (
        _grow_buffer(sock, socket.SO_RCVBUF, _SO_RCVBUFFORCE, receive_bytes),
        _grow_buffer(sock, socket.SO_SNDBUF, _SO_SNDBUFFORCE, send_bytes),
    )


def _grow_buffer(sock: socket.socket, option: int, forced_option: int, size: int) -> int:
    for choice in (forced_option, option) if _LINUX else (option,):
        try:
            sock.setsockopt(socket.SOL_SOCKET, choice, size)
            break
        except OSError:
            continue  # no privilege to exceed the limit, or too large; the caller gets the granted size
    granted = sock.getsockopt(socket.SOL_SOCKET, option)
    return granted // 2 if _LINUX else granted  # Linux doubles the size, for its own bookkeeping


def open_multicast_socket(
    sender: socket.socket, group: tuple[str, int], interface: str, ttl: int
) -> tuple[socket.socket, Address]:
    """Open a socket that receives the multicast group, and let `sender` send to it; raises OSError if that fails."""
    if sender.family != socket.AF_INET:
        raise OSError(
            "multicast needs IPv4, but the members have IPv6 addresses; give IPv4 addresses, or leave out multicast"
        )
    name, port = group
    address = address_in_family(resolve_host(group, "the multicast group", socket.AI_NUMERICHOST), socket.AF_INET)
    if address is None or not ipaddress.IPv4Address(address[0]).is_multicast:
        raise OSError(f"{name} is not a multicast address; give one from 224.0.0.0 to 239.255.255.255")
    local = socket.inet_aton(interface)
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        sock.setblocking(False)
        # Several members on one machine receive the group at the same port.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if not _LINUX and hasattr(socket, "SO_REUSEPORT"):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(address if os.name == "posix" else ("", port))
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(address[0]) + local)
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, local)
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, ttl)
    except OSError:
        sock.close()
        raise
    return sock, address


def max_frame_to(family: socket.AddressFamily, address: Address, interface: str | None = None) -> int:
    """The largest datagram that reaches this address unfragmented, as far as the kernel knows the path."""
    level, option = (socket.IPPROTO_IP, _IP_MTU) if family == socket.AF_INET else (socket.IPPROTO_IPV6, _IPV6_MTU)
    if not _LINUX:
        return DEFAULT_MAX_FRAME
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            if interface is not None:
                probe.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(interface))
            probe.connect(address)
            mtu = probe.getsockopt(level, option)
        except OSError:
            return DEFAULT_MAX_FRAME
    return min(mtu - _HEADER_BYTES[family], MAX_UDP_PAYLOAD)


def kernel_drops(sock: socket.socket) -> int:
    """How many datagrams the kernel dropped because this socket's receive buffer was full; 0 where unknown."""
    if not _LINUX:
        return 0
    try:
        words = sock.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, 36)
    except OSError:
        return 0
    return int(struct.unpack("=9I", words)[8]) if len(words) == 36 else 0


def receive_buffer_violation(stack: Stack, granted_bytes: int) -> Violation | None:
    """The violation to report if a receive buffer of this size is too small for the peers' bursts; else None."""
    policy = stack.policy
    peers = [m for m in policy.view.members if m != policy.member]
    rates = [rate for peer in peers if (rate := stack.peer_rate(peer)) is not None]
    needed = stack.window_slots * sum(reservation(policy, rate).burst_bytes_per_slot for rate in rates)
    if needed <= granted_bytes:
        return None
    text = (
        f"{needed:,} bytes may be in flight to this member, but its receive buffer holds only {granted_bytes:,}; "
        "lower the peers' bursts or raise the system's limit for receive buffers (net.core.rmem_max)"
    )
    return Violation(ViolationKind.RECEIVE_BUFFER, text, policy.member)
