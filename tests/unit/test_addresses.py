"""Addresses: the bind address apart from the advertised one, IPv6, 0.0.0.0, the multicast TTL, beacons and routes."""

from __future__ import annotations

import asyncio
import errno
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.worlds.joining import join_group

import unisono
from unisono.agreement.gathering import Gathering
from unisono.cluster.supervisor import free_addresses
from unisono.model.addresses import address_text, is_unspecified, parse_address
from unisono.runtime import discovery
from unisono.runtime.discovery import BeaconDiscovery, DnsDiscovery, discover_by_beacon, discover_by_dns
from unisono.runtime.socket_setup import Address, open_bound_socket, open_multicast_socket
from unisono.runtime.udp import UdpTransport
from unisono.wire.beacon import Applicant, Beacon

LOOPBACK = "127.0.0.1"


# -- as text ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9001", ("127.0.0.1", 9001)),
        ("[::1]:9001", ("::1", 9001)),
        ("[2001:db8::7]:1", ("2001:db8::7", 1)),
        ("table.example:65535", ("table.example", 65535)),
    ],
)
def test_an_address_as_text_is_read_back(text: str, address: tuple[str, int]) -> None:
    assert parse_address("peers", text) == address
    assert address_text(address) == text


@pytest.mark.parametrize("text", ["::1:9001", "2001:db8::1"])
def test_an_ipv6_address_without_brackets_is_refused_because_its_end_looks_like_a_port(text: str) -> None:
    with pytest.raises(unisono.InvalidOption, match=r"expected brackets .* '\[::1\]:9001'"):
        parse_address("peers[1]", text)


def test_unspecified_addresses_are_recognised_in_every_spelling() -> None:
    assert all(map(is_unspecified, ("0.0.0.0", "::", "0::0", "::ffff:0.0.0.0")))
    assert not any(map(is_unspecified, ("127.0.0.1", "::1", "table.example", "10.0.0.0")))


# -- 0.0.0.0 is never advertised -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "group", "peers"),
    [
        ("peers[1]", "g", {1: "0.0.0.0:9001", 2: "10.0.0.8:9001"}),
        ("peers[2]", "g", {1: "[::1]:9001", 2: "[::]:9001"}),
        ("peers[2]", "g", {1: "10.0.0.7:9001", 2: ("0.0.0.0", 9001)}),
        ("peers[2]", "unisono://g?peers=1@10.0.0.7:9001,2@0.0.0.0:9001", None),
        ("peers.interface", "g", unisono.Beacon(members=2, interface="0.0.0.0")),
    ],
)
def test_an_address_that_no_peer_can_send_to_is_refused(field: str, group: str, peers: Any) -> None:
    with pytest.raises(unisono.InvalidOption, match="no peer can send to it") as caught:
        unisono.join(group, member=1, peers=peers)
    assert caught.value.field == field


def test_a_name_for_all_addresses_is_refused_too() -> None:
    """The system reads the host name "0" as 0.0.0.0."""
    with pytest.raises(unisono.InvalidOption, match="no peer can send to it"):
        UdpTransport(1, {1: ("127.0.0.1", 9001), 2: ("0", 9001)})


def test_a_beacon_that_advertises_all_addresses_is_refused_with_the_reason() -> None:
    known = Applicant(1, "10.0.0.7", 9001, 5), Applicant(2, "10.0.0.8", 9001, 6), Applicant(2, "0.0.0.0", 9001, 6)
    for peer, found in ((known[1], 2), (known[2], 1)):
        gathering = Gathering(1, known[0], 2)
        gathering.on_beacon(0, Beacon(1, 2, peer.nonce, 0, False, False, (peer,)))
        assert f"{found} of 2 processes known" in gathering.why_incomplete()
    assert "another process advertises 0.0.0.0, to which no member can send" in gathering.why_incomplete()


def test_a_dns_name_with_all_addresses_is_refused() -> None:
    async def resolve(name: str, port: int) -> list[str]:
        return ["0.0.0.0", "10.0.0.7"]

    async def scene() -> None:
        with pytest.raises(unisono.InvalidOption, match="no peer can send to it"):
            await discover_by_dns(DnsDiscovery("g", "table.example", 9001, 2), 1, resolve)

    asyncio.run(scene())


# -- the bind address --------------------------------------------------------------------------------------------


async def exchange(peers: dict[int, Any], **own: dict[str, Any]) -> list[unisono.Group]:
    """Form a group of two on real sockets, and send a message from each to both; return the groups, which have left."""
    joins = [join_group("g", member=m, peers=peers, delta="200ms", **own.get(f"of_{m}", {})) for m in (1, 2)]
    groups = await asyncio.gather(*(join.__aenter__() for join in joins))
    for group in groups:
        await group.send(b"from %d" % group.member)
    for group in groups:
        messages = group.messages()
        assert {(await anext(messages)).payload for _ in range(2)} == {b"from 1", b"from 2"}
    await asyncio.gather(*(group.leave() for group in groups))
    return list(groups)


def test_a_member_binds_one_address_and_its_peers_use_another() -> None:
    async def scene() -> None:
        peers = {m: f"127.0.0.1:{port}" for m, (_, port) in free_addresses((1, 2)).items()}
        port = peers[1].rpartition(":")[2]
        one, _ = await exchange(peers, of_1={"bind": f"0.0.0.0:{port}"})
        assert one.reference == f"unisono://g?peers=1@{peers[1]},2@{peers[2]}"

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_a_member_behind_another_port_takes_part() -> None:
    """As in a container: the peers send to a published port, from which another program forwards to the member."""

    async def scene() -> None:
        addresses = free_addresses((1, 2, 3))
        published, inside = addresses[1], addresses.pop(3)
        peers = {m: f"127.0.0.1:{port}" for m, (_, port) in addresses.items()}
        loop = asyncio.get_running_loop()
        with open_bound_socket(socket.AF_INET, published) as gateway:
            loop.add_reader(gateway, lambda: gateway.sendto(gateway.recv(65_536), inside))
            await exchange(peers, of_1={"bind": f"127.0.0.1:{inside[1]}"})
            loop.remove_reader(gateway)

    asyncio.run(asyncio.wait_for(scene(), 60))


@pytest.mark.parametrize(
    ("options", "field", "problem"),
    [
        ({"bind": "0.0.0.0"}, "bind", "expected an address"),
        ({"bind": "here.example:9001"}, "bind", "expected a numeric address of this machine"),
        ({"bind": "0.0.0.0:9", "members": 2}, "bind", r"give Beacon\(interface=…\)"),
        ({"bind": "0.0.0.0:9", "members": 2, "peers": "dns:table.example:9"}, "member", "with bind it cannot be found"),
    ],
)
def test_a_bind_address_that_cannot_work_is_refused(options: dict[str, Any], field: str, problem: str) -> None:
    given = options if "members" in options else {"member": 1, "peers": {1: "127.0.0.1:9"}, **options}
    with pytest.raises(unisono.InvalidOption, match=problem) as caught:
        join_group("g", **given)
    assert caught.value.field == field


def test_a_bind_address_of_another_family_is_refused() -> None:
    with pytest.raises(unisono.InvalidOption, match=r"bind: expected an IPv4 address, .* got '::'"):
        UdpTransport(1, free_addresses((1,)), bind=("::", 9001))


def test_a_member_behind_a_dns_name_binds_another_address() -> None:
    async def resolve(name: str, port: int) -> list[str]:
        return ["192.0.2.200", "192.0.2.201"]

    async def scene() -> None:
        bind = free_addresses((1,))[1]
        found = await discover_by_dns(DnsDiscovery("g", "table.example", 9001, 2, 2, bind), 1, resolve)
        assert (found.member, found.addresses[2]) == (2, ("192.0.2.201", 9001))
        assert found.bound_socket.getsockname() == bind
        found.close()

    asyncio.run(scene())


# -- IPv6 and names ----------------------------------------------------------------------------------------------


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")
def test_members_with_ipv6_addresses_form_a_group() -> None:
    async def scene() -> None:
        ports = {m: port for m, (_, port) in free_addresses((1, 2)).items()}
        peers = {m: f"[::1]:{port}" for m, port in ports.items()}
        one, _ = await exchange(peers, of_2={"bind": f"[::]:{ports[2]}"})
        assert one.reference == f"unisono://g?peers=1@{peers[1]},2@{peers[2]}".replace("[", "%5B").replace("]", "%5D")

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_members_with_names_form_a_group() -> None:
    async def scene() -> None:
        await exchange({m: f"localhost:{port}" for m, (_, port) in free_addresses((1, 2)).items()})

    asyncio.run(asyncio.wait_for(scene(), 60))


# -- multicast ---------------------------------------------------------------------------------------------------


def test_the_ttl_of_multicast_is_set_on_the_socket_that_sends() -> None:
    sender = open_bound_socket(socket.AF_INET, (LOOPBACK, 0))
    receiver, _ = open_multicast_socket(sender, ("239.255.77.75", free_addresses((1,))[1][1]), LOOPBACK, 7)
    with sender, receiver:
        assert sender.getsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL) == 7


@pytest.mark.parametrize("ttl", [-1, 256])
def test_an_impossible_ttl_is_refused(ttl: int) -> None:
    with pytest.raises(unisono.InvalidOption, match=r"multicast_ttl: expected a (whole )?number"):
        unisono.Network(multicast_ttl=ttl)


def test_data_and_beacon_use_the_ttl(monkeypatch: pytest.MonkeyPatch) -> None:
    used = []

    def opened(
        sender: socket.socket, group: tuple[str, int], interface: str, ttl: int
    ) -> tuple[socket.socket, Address]:
        used.append((group[0], ttl))
        raise OSError("no multicast in this test")

    monkeypatch.setattr("unisono.runtime.udp.open_multicast_socket", opened)
    monkeypatch.setattr(discovery, "open_multicast_socket", opened)

    async def scene() -> None:
        ttl = {"multicast_ttl": 9}
        peers = free_addresses((1,))
        async with join_group("g", member=1, peers=peers, multicast="239.255.0.1:9000", **ttl) as group:
            assert group.member == 1
        with pytest.raises(unisono.MissingDependency, match="no multicast in this test"):
            await join_group("g", members=2, interface=LOOPBACK, **ttl)

    asyncio.run(scene())
    assert used == [("239.255.0.1", 9), ("239.255.77.76", 9)]


class WithoutRoute(socket.socket):
    """A socket from which no datagram leaves."""

    def sendto(self, *_: Any) -> int:
        raise OSError(errno.ENETUNREACH, "Network is unreachable")


def test_a_beacon_that_cannot_leave_is_an_error_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def bound(family: socket.AddressFamily, address: Address) -> socket.socket:
        return WithoutRoute(fileno=open_bound_socket(family, address).detach())

    monkeypatch.setattr(discovery, "open_bound_socket", bound)

    async def scene() -> None:
        search = BeaconDiscovery("g", 2, beacon=("239.255.77.76", free_addresses((1,))[1][1]), interface=LOOPBACK)
        expected = r"cannot send beacons to 239\.255\.77\.76:\d+ through interface 127\.0\.0\.1 \(Network is"
        with pytest.raises(unisono.MissingDependency, match=expected):
            await asyncio.wait_for(discover_by_beacon(search, 1, 600), 10)

    asyncio.run(scene())


def can_make_a_network_of_its_own() -> bool:
    unshare = shutil.which("unshare")
    if unshare is None:
        return False
    return subprocess.run([unshare, "-rn", "true"], check=False, capture_output=True).returncode == 0


@pytest.mark.skipif(not can_make_a_network_of_its_own(), reason="this machine does not allow network namespaces")
def test_without_a_route_for_multicast_a_beacon_is_an_error_at_once() -> None:
    command = ["unshare", "-rn", sys.executable, "-m", "unisono", "member", "--members", "2", "--timeout", "600s"]
    root = Path(__file__).parents[2]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, cwd=root)
    assert ended.returncode == 3
    assert "cannot send beacons to 239.255.77.76:7776 through any interface (Network is unreachable)" in ended.stderr
    assert "--interface" in ended.stderr
    assert "ip route add 224.0.0.0/4" in ended.stderr
