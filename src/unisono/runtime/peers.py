"""Where the members of a group are, from the arguments of `join`: addresses, a reference, a DNS name, or a beacon."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from unisono.errors import InvalidOption
from unisono.model.text.references import SCHEME, parse_reference
from unisono.runtime.discovery import BEACON_DEFAULT, BeaconDiscovery, DnsDiscovery
from unisono.runtime.setup import parse_address

Peers: TypeAlias = Mapping[int, str | tuple[str, int]] | str | None
DNS_PREFIX = "dns:"


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


def group_location(
    group: str,
    member: int | None,
    peers: Peers,
    members: int | None,
    *,
    beacon: str | None = None,
    interface: str | None = None,
) -> GroupLocation:
    """Find out from the arguments of `join` where the members are; raises InvalidOption if they do not say it."""
    salt = ""
    if group.startswith(SCHEME):
        if peers is not None:
            raise InvalidOption(
                "peers",
                "the group is given as a reference, which already contains the members' addresses; leave out peers",
            )
        reference = parse_reference(group)
        group, salt, beacon = reference.group, reference.membership_salt, reference.beacon or beacon
        members = members if members is not None else reference.members
        peers = reference.peers if reference.dns is None else DNS_PREFIX + reference.dns
    if isinstance(peers, str):
        return _location_by_dns(group, member, peers, members)
    if peers is not None:
        _check_peers(peers)
        return GroupLocation(group, *_location_of_peers(member, peers), salt)
    if members is None:
        raise InvalidOption(
            "members", "expected the number of members, or all members' addresses (peers=…), got neither"
        )
    at = BEACON_DEFAULT if beacon is None else parse_address("beacon", beacon)
    search = BeaconDiscovery(group, members, member or 0, at, interface)
    return GroupLocation(group, member or 1, _placeholder_addresses(members), salt, search)


def _check_peers(peers: object) -> None:
    is_dict = isinstance(peers, Mapping) and peers and all(type(number) is int for number in peers)
    if not is_dict:
        example = "{1: '10.0.0.7:9001', 2: '10.0.0.8:9001'}"
        raise InvalidOption(
            "peers", f"expected a dict with the address of each member by its number, such as {example}, got {peers!r}"
        )


def _location_of_peers(
    member: int | None, peers: Mapping[int, str | tuple[str, int]]
) -> tuple[int, dict[int, tuple[str, int]]]:
    addresses = {number: parse_address(f"peers[{number}]", peer) for number, peer in peers.items()}
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


def _location_by_dns(group: str, member: int | None, peers: str, members: int | None) -> GroupLocation:
    if not peers.startswith(DNS_PREFIX):
        raise InvalidOption("peers", f"expected addresses by member number, or 'dns:NAME:PORT', got {peers!r}")
    name, port = parse_address("peers", peers.removeprefix(DNS_PREFIX))
    if members is None:
        # A group needs a fixed size, and the name may not have all its addresses yet.
        raise InvalidOption(
            "members", f"expected the number of members, which is the number of addresses of {name}, got None"
        )
    search = DnsDiscovery(group, name, port, members, member or 0)
    return GroupLocation(group, member or 1, _placeholder_addresses(max(1, members)), "", search)


def _placeholder_addresses(members: int) -> dict[int, tuple[str, int]]:
    return {number: ("127.0.0.1", number) for number in range(1, members + 1)}
