"""Where a group's members are, as `join` was told it: their addresses, a reference, a DNS name, or nothing at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from unisono.errors import InvalidPolicy
from unisono.model.text.references import SCHEME, parse_reference
from unisono.runtime.discovery import BEACON_DEFAULT, ByBeacon, ByName
from unisono.runtime.setup import address_of

Peers: TypeAlias = Mapping[int, str | tuple[str, int]] | str | None
DNS = "dns:"


@dataclass(frozen=True, slots=True)
class Where:
    """The group's name, this member's number and everybody's address; `search` is how to find those, if they are not
    known yet: until then they stand for so many members."""

    group: str
    member: int
    addresses: dict[int, tuple[str, int]]
    salt: str = ""
    search: ByBeacon | ByName | None = None


def where(
    group: str,
    member: int | None,
    peers: Peers,
    members: int | None,
    *,
    beacon: str | None = None,
    interface: str | None = None,
) -> Where:
    """What `join`'s arguments say of that; InvalidPolicy for what they leave open."""
    salt = ""
    if group.startswith(SCHEME):
        if peers is not None:
            raise InvalidPolicy("peers", "a reference says where the members are")
        reference = parse_reference(group)
        group, salt, beacon = reference.group, reference.table, reference.beacon or beacon
        members = members if members is not None else reference.members
        peers = reference.peers if reference.dns is None else DNS + reference.dns
    if isinstance(peers, str):
        return _named(group, member, peers, members)
    if peers is not None:
        return Where(group, *_known(member, peers), salt)
    if members is None:
        raise InvalidPolicy("members", "say how many there are to be, or give everybody's address (peers=…)")
    at = BEACON_DEFAULT if beacon is None else address_of("beacon", beacon)
    search = ByBeacon(group, members, member or 0, at, interface)
    return Where(group, member or 1, _unknown(members), salt, search)


def _known(member: int | None, peers: Mapping[int, str | tuple[str, int]]) -> tuple[int, dict[int, tuple[str, int]]]:
    addresses = {number: address_of(f"peers[{number}]", peer) for number, peer in peers.items()}
    if member is None:
        raise InvalidPolicy("member", f"which of the peers {sorted(addresses)} is this one?")
    if member not in addresses:
        raise InvalidPolicy("peers", f"member {member} itself must be among the peers {sorted(addresses)}")
    owners: dict[tuple[str, int], int] = {}
    for number, address in addresses.items():
        if owners.setdefault(address, number) != number:
            raise InvalidPolicy("peers", f"members {owners[address]} and {number} have the same address")
    return member, addresses


def _named(group: str, member: int | None, peers: str, members: int | None) -> Where:
    if not peers.startswith(DNS):
        raise InvalidPolicy("peers", f"addresses by member number, or 'dns:NAME:PORT', are needed, not {peers!r}")
    name, port = address_of("peers", peers.removeprefix(DNS))
    if members is None:
        # Nobody can plan for a group of unknown size, and a name that is half filled in would make one.
        raise InvalidPolicy("members", f"say how many addresses {name} is to have")
    search = ByName(group, name, port, members, member or 0)
    return Where(group, member or 1, _unknown(max(1, members)), "", search)


def _unknown(members: int) -> dict[int, tuple[str, int]]:
    return {number: ("127.0.0.1", number) for number in range(1, members + 1)}
