"""Opening UDP sockets: names, buffers, multicast membership and path MTU, with errors that say what to do."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
import sys
from collections.abc import Mapping

from unisono.errors import EnvironmentLacks
from unisono.runtime.batching import LARGEST_UDP, Address

UNKNOWN_PATH_FRAME = 1_400
"""Fits in an Ethernet frame with room for the headers of a tunnel."""
_HEADERS = {socket.AF_INET: 28, socket.AF_INET6: 48}
_LINUX = sys.platform == "linux"
# Linux's numbers, where Python has no name for them.
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE, _SO_MEMINFO = 32, 33, 55
_IP_MTU, _IPV6_MTU = 14, 24


def resolve_all(hosts: Mapping[int, tuple[str, int]]) -> tuple[socket.AddressFamily, dict[int, Address]]:
    """Every member's address in one family: IPv4 if all have it, else IPv6.

    All members see the same map, so all choose the same family.
    """
    failure: EnvironmentLacks | None = None
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            return family, {member: resolve(host, family, f"member {member}") for member, host in hosts.items()}
        except EnvironmentLacks as error:
            # When both families fail, the first name that has an address in neither is the trouble to tell.
            failure = failure or error
    assert failure is not None
    for member, host in hosts.items():
        resolve(host, socket.AF_UNSPEC, f"member {member}")
    raise EnvironmentLacks(
        f"the members have no address family in common ({failure}); give all of them IPv4 or all of them IPv6 addresses"
    )


def resolve(host: tuple[str, int], family: socket.AddressFamily, whose: str) -> Address:
    """The numeric address of a host name; sending to a name would look it up every time."""
    name, port = host
    try:
        found = socket.getaddrinfo(name, port, family, socket.SOCK_DGRAM)
    except (OSError, UnicodeError) as error:
        raise EnvironmentLacks(
            f"the address {name!r} of {whose} cannot be resolved ({error}); "
            "check its spelling, or give a numeric address"
        ) from error
    address = found[0][4]
    if len(address) == 4:
        return (str(address[0]), int(address[1]), int(address[2]), int(address[3]))
    return (str(address[0]), int(address[1]))


def open_bound(family: socket.AddressFamily, address: Address) -> socket.socket:
    """A non-blocking UDP socket at this address."""
    sock = socket.socket(family, socket.SOCK_DGRAM)
    try:
        sock.setblocking(False)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise _cannot_bind(address, error) from error
    return sock


def _cannot_bind(address: Address, error: OSError) -> EnvironmentLacks:
    host, port = address[:2]
    match error.errno:
        case errno.EADDRINUSE:
            advice = (
                f"UDP port {port} of {host} is taken; end the process that has it "
                f"(`ss -ulpn sport = :{port}` names it) or give this member another port"
            )
        case errno.EADDRNOTAVAIL:
            advice = (
                f"{host} is not an address of this machine; give this member an address that `ip addr` shows, "
                "or a bind address if the peers reach it under another one"
            )
        case errno.EACCES | errno.EPERM:
            advice = f"UDP port {port} needs privileges; give this member a port from 1024 on"
        case _:
            advice = f"cannot bind UDP {host} port {port} ({error}); give this member another address or port"
    return EnvironmentLacks(advice)


def grow_buffers(sock: socket.socket, receive_bytes: int, send_bytes: int) -> tuple[int, int]:
    """Ask for large buffers, beyond the system's limit if we may; what was granted."""
    return (
        _grow(sock, socket.SO_RCVBUF, _SO_RCVBUFFORCE, receive_bytes),
        _grow(sock, socket.SO_SNDBUF, _SO_SNDBUFFORCE, send_bytes),
    )


def _grow(sock: socket.socket, option: int, forced: int, size: int) -> int:
    for choice in (forced, option) if _LINUX else (option,):
        try:
            sock.setsockopt(socket.SOL_SOCKET, choice, size)
            break
        except OSError:
            continue  # no privilege to force, or too large; what there is will be reported
    granted = sock.getsockopt(socket.SOL_SOCKET, option)
    return granted // 2 if _LINUX else granted  # Linux doubles it, for its own bookkeeping


def open_multicast(sender: socket.socket, group: tuple[str, int], interface: str) -> tuple[socket.socket, Address]:
    """A socket that hears the group, and its address; `sender` can reach it from now on. OSError if that fails."""
    if sender.family != socket.AF_INET:
        raise OSError("multicast is over IPv4 and the members have IPv6 addresses")
    name, port = group
    address = resolve(group, socket.AF_INET, "the multicast group")
    if not ipaddress.IPv4Address(address[0]).is_multicast:
        raise OSError(f"{name} is not a multicast address (224.0.0.0 to 239.255.255.255)")
    local = socket.inet_aton(interface)
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        sock.setblocking(False)
        # Several members of one machine hear the group at one port.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if not _LINUX and hasattr(socket, "SO_REUSEPORT"):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(address if os.name == "posix" else ("", port))
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(address[0]) + local)
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, local)
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 1)
    except OSError:
        sock.close()
        raise
    return sock, address


def largest_frame(family: socket.AddressFamily, address: Address, interface: str | None = None) -> int:
    """The largest datagram that reaches this address in one piece, as far as the kernel knows the path."""
    level, option = (socket.IPPROTO_IP, _IP_MTU) if family == socket.AF_INET else (socket.IPPROTO_IPV6, _IPV6_MTU)
    if not _LINUX:
        return UNKNOWN_PATH_FRAME
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            if interface is not None:
                probe.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(interface))
            probe.connect(address)
            mtu = probe.getsockopt(level, option)
        except OSError:
            return UNKNOWN_PATH_FRAME
    return min(mtu - _HEADERS[family], LARGEST_UDP)


def kernel_drops(sock: socket.socket) -> int:
    """How many datagrams the kernel has dropped because this socket's receive buffer was full; 0 where unknown."""
    if not _LINUX:
        return 0
    try:
        words = sock.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, 36)
    except OSError:
        return 0
    return int(struct.unpack("=9I", words)[8]) if len(words) == 36 else 0
