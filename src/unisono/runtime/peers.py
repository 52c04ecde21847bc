"""Where the members of a group are, from the arguments of `join`: addresses, a reference, a DNS name, or a beacon."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from unisono.config import Beacon, Config, Dns, Peers
from unisono.errors import InvalidOption
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


def parse_address(field: str, value: object) -> tuple[str, int]:
    """Parse an address, given as text or as (host, port). Raises InvalidOption, which names `field`."""
    match value:
        case str():
            host, _, port = value.rpartition(":")
        case (str(host), int(number)):
            port = str(number)
        case _:
            host = port = ""
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InvalidOption(field, f"expected an address such as '127.0.0.1:9001', got {value!r}")
    return host.strip("[]"), int(port)


def address_text(address: tuple[str, int]) -> str:
    """An address as text, which `parse_address` reads back."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


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
        return _location_by_dns(group, config.member, peers)
    if isinstance(peers, Beacon):
        at = BEACON_DEFAULT if peers.address is None else parse_address("peers.address", peers.address)
        search = BeaconDiscovery(group, peers.members, config.member or 0, at, peers.interface)
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


def _location_by_dns(group: str, member: int | None, peers: Dns) -> GroupLocation:
    if peers.members < 1:
        # A group needs a fixed size, and the name may not have all its addresses yet.
        raise InvalidOption(
            "peers.members", f"expected the number of members, which is the number of addresses of {peers.name}, got 0"
        )
    search = DnsDiscovery(group, peers.name, peers.port, peers.members, member or 0)
    return GroupLocation(group, member or 1, _placeholder_addresses(peers.members), "", search)


def _placeholder_addresses(members: int) -> dict[int, tuple[str, int]]:
    return {number: ("127.0.0.1", number) for number in range(1, members + 1)}
