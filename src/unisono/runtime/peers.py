"""Where the members of a group are, from the arguments of `join`: addresses, a reference, a DNS name, or a beacon."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass

from unisono.config import Beacon, Config, Dns, Peers
from unisono.errors import InvalidOption
from unisono.model.addresses import parse_address, refuse_unspecified
from unisono.model.text.references import SCHEME, GroupReference, parse_reference
from unisono.runtime.discovery import BEACON_DEFAULT, BeaconDiscovery, DnsDiscovery


@dataclass(frozen=True, slots=True)
class GroupLocation:
    """Where a group is: its name, this member's number and all members' addresses.

    If the addresses are not known yet, `search` says how to find them, and `addresses` has one placeholder per member.
    """

    group: str
    member: int
    addresses: dict[int, tuple[str, int]]
    salt: str = ""
    search: BeaconDiscovery | DnsDiscovery | None = None


def group_location(config: Config) -> GroupLocation:
    """Find out from a configuration where the members are; raises InvalidOption if it does not say it."""
    group, salt, peers = config.group, "", config.peers
    if group.startswith(SCHEME):
        if peers is not None:
            raise InvalidOption(
                "peers",
                "the group is given as a reference, which already contains the members' addresses; leave out peers",
            )
        reference = parse_reference(group)
        group, salt, peers = reference.group, reference.membership_salt, _referenced_peers(reference)
    if isinstance(peers, Dns):
        return _location_by_dns(group, config, peers)
    if isinstance(peers, Beacon):
        search = _beacon_search(group, config, peers)
        return GroupLocation(group, config.member or 1, _placeholder_addresses(peers.members), salt, search)
    return GroupLocation(group, *_location_of_peers(config.member, _checked_peers(peers)), salt)


def _referenced_peers(reference: GroupReference) -> Peers:
    """The members that a group reference names."""
    if reference.dns is not None:
        name, port = parse_address("group", reference.dns)
        return Dns(name=name, port=port, members=reference.members or 0)
    if reference.peers:
        return reference.peers
    if reference.members is None:
        raise InvalidOption(
            "group", "expected the number of members, members=N, in a reference with a beacon, got none"
        )
    return Beacon(members=reference.members, address=reference.beacon)


def _checked_peers(peers: object) -> Mapping[int, str | tuple[str, int]]:
    if isinstance(peers, Mapping) and peers and all(type(number) is int for number in peers):
        return peers
    example = "{1: '10.0.0.7:9001', 2: '10.0.0.8:9001'}"
    expected = f"expected a dict with the address of each member by its number, such as {example}"
    raise InvalidOption("peers", f"{expected}, or Beacon(members=…), or Dns(…), got {peers!r}")


def _location_of_peers(
    member: int | None, peers: Mapping[int, str | tuple[str, int]]
) -> tuple[int, dict[int, tuple[str, int]]]:
    addresses = {number: parse_address(f"peers[{number}]", peer) for number, peer in peers.items()}
    for number, (host, _) in addresses.items():
        refuse_unspecified(f"peers[{number}]", host)
    if member is None:
        raise InvalidOption("member", f"expected this process's number among the peers {sorted(addresses)}, got None")
    if member not in addresses:
        raise InvalidOption(
            "peers", f"expected member {member}, this process, among the peers, got only {sorted(addresses)}"
        )
    owners: dict[tuple[str, int], int] = {}
    for number, address in addresses.items():
        if owners.setdefault(address, number) != number:
            raise InvalidOption(
                "peers", f"members {owners[address]} and {number} have the same address; give each its own"
            )
    return member, addresses


def bind_address(config: Config) -> tuple[str, int] | None:
    """The local address at which this member's socket has to listen; None if it is the member's address."""
    if config.network.bind is None:
        return None
    host, port = parse_address("bind", config.network.bind)
    try:
        ipaddress.ip_address(host)
    except ValueError:
        text = f"expected a numeric address of this machine, such as '0.0.0.0:9001', got {config.network.bind!r}"
        raise InvalidOption("bind", text) from None
    return host, port


def _beacon_search(group: str, config: Config, peers: Beacon) -> BeaconDiscovery:
    if config.network.bind is not None:
        text = "with a beacon the system chooses this member's port; leave out bind, and give Beacon(interface=…)"
        raise InvalidOption("bind", text)
    if peers.interface is not None:
        refuse_unspecified("peers.interface", peers.interface)
    at = BEACON_DEFAULT if peers.address is None else parse_address("peers.address", peers.address)
    ttl = config.network.multicast_ttl
    return BeaconDiscovery(group, peers.members, config.member or 0, at, peers.interface, ttl)


def _location_by_dns(group: str, config: Config, peers: Dns) -> GroupLocation:
    member, bind = config.member, bind_address(config)
    if peers.members < 1:
        # A group needs a fixed size, and the name may not have all its addresses yet.
        raise InvalidOption(
            "peers.members", f"expected the number of members, which is the number of addresses of {peers.name}, got 0"
        )
    if bind is not None and member is None:
        text = "expected this process's number, because with bind it cannot be found from the addresses, got None"
        raise InvalidOption("member", text)
    search = DnsDiscovery(group, peers.name, peers.port, peers.members, member or 0, bind)
    return GroupLocation(group, member or 1, _placeholder_addresses(peers.members), "", search)


def _placeholder_addresses(members: int) -> dict[int, tuple[str, int]]:
    return {number: ("127.0.0.1", number) for number in range(1, members + 1)}
