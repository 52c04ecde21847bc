"""Finding the other members: by IP multicast beacon or by a DNS name (paper 002 §4.2: the group manager, without a
registry that can fail).

The beacon's protocol is `agreement.gathering`; here are its sockets and its time. A member that has found the others goes
on answering beacons for as long as its group is open, so that whoever restarts can learn the table from anybody who
runs.
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

from unisono.agreement.gathering import Gathering, numbered
from unisono.errors import EnvironmentLacks, FormationTimeout, InvalidPolicy
from unisono.model.ids import group_key
from unisono.runtime.sockets import open_bound, open_multicast
from unisono.wire.beacon import APPLICANTS_MAX, Applicant, decode_beacon, encode_beacon

BEACON_DEFAULT = ("239.255.77.76", 7776)
LOOK_AGAIN_S = 0.5
_READS_AT_ONCE = 64

Address: TypeAlias = tuple[str, int]
Resolve: TypeAlias = Callable[[str, int], Awaitable[list[str]]]


@dataclass(frozen=True, slots=True)
class ByBeacon:
    """Find so many members by beacon; `wanted` is the number that this one insists on, 0 for any."""

    group: str
    members: int
    wanted: int = 0
    beacon: Address = BEACON_DEFAULT
    interface: str | None = None
    """The address of ours that the others reach; unless told, the one from which multicast leaves."""

    def __post_init__(self) -> None:
        if not 1 <= self.members <= APPLICANTS_MAX:
            raise InvalidPolicy("members", f"1 to {APPLICANTS_MAX} members find each other, not {self.members}")
        if not 0 <= self.wanted <= self.members:
            raise InvalidPolicy("member", f"a number from 1 to {self.members} is possible, not {self.wanted}")


@dataclass(frozen=True, slots=True)
class ByName:
    """The members are at the addresses of a DNS name, all at one port, numbered in the addresses' order."""

    group: str
    name: str
    port: int
    members: int = 0
    """How many addresses there have to be; 0: as many as there are."""
    wanted: int = 0


@dataclass(slots=True)
class Found:
    """Everybody's address, this member's number, the socket that it is bound to, and who answers for it."""

    addresses: dict[int, Address]
    member: int
    bound: socket.socket
    salt: str
    """Tells groups of one name with different tables apart, so that members of the one do not hear the other's."""
    responder: Responder | None = None

    def close(self) -> None:
        """Let go of what has not been handed on."""
        self.bound.close()
        if self.responder is not None:
            self.responder.close()


async def discover(place: ByBeacon | ByName, incarnation: int, timeout_s: float) -> Found:
    """The others, and this member's place among them; FormationTimeout if they do not come."""
    if isinstance(place, ByName):
        return await by_name(place, timeout_s)
    return await by_beacon(place, incarnation, timeout_s)


def salt_of(addresses: dict[int, Address]) -> str:
    """A few letters that are others for other tables."""
    return f"#{group_key(repr(sorted(addresses.items()))):08x}"


# -- by beacon -----------------------------------------------------------------------------------------------


async def by_beacon(place: ByBeacon, incarnation: int, timeout_s: float) -> Found:
    """Beacon until the table is settled."""
    interface = place.interface or _outward(place.beacon)
    bound = open_bound(socket.AF_INET, (interface, 0))
    try:
        # A nonce is never 0, and two processes draw the same once in 2⁶⁴.
        port = int(bound.getsockname()[1])
        me = Applicant(incarnation, interface, port, secrets.randbits(63) + 1, place.wanted)
        gathering = Gathering(group_key(place.group), me, place.members)
        responder = Responder(gathering, place.beacon, interface)
    except BaseException:
        bound.close()
        raise
    found = None
    try:
        async with asyncio.timeout(timeout_s):
            while gathering.table is None and gathering.closed_to_me is None:
                await responder.changed()
        found = _member_of(place, gathering, bound, responder)
    except TimeoutError:
        raise FormationTimeout(place.group, timeout_s, (), gathering.missing()) from None
    finally:
        if found is None:
            bound.close()
            responder.close()
    return found


def _outward(beacon: Address) -> str:
    """The address from which multicast leaves this machine; loopback where it does not."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(beacon)
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def _member_of(place: ByBeacon, gathering: Gathering, bound: socket.socket, responder: Responder) -> Found:
    if gathering.table is not None:
        table = numbered(gathering.table)
        addresses = {number: (who.host, who.port) for number, who in table.items()}
        mine = next(number for number, who in table.items() if who == gathering.me)
        return Found(addresses, mine, bound, salt_of(addresses), responder)
    # The group runs already. Whoever restarts takes the place that the others still count on.
    table = numbered(gathering.closed_to_me or ())
    addresses = {number: (who.host, who.port) for number, who in table.items()}
    if place.wanted not in addresses:
        raise EnvironmentLacks(
            f"{gathering.missing()}; to come back as one of them say which (member=…) and let it join with failures"
        )
    responder.take_over(gathering.closed_to_me or ())
    again = open_bound(socket.AF_INET, addresses[place.wanted])
    bound.close()
    return Found(addresses, place.wanted, again, salt_of(addresses), responder)


class Responder:
    """The beacon's sockets and its time, from the first beacon until the group is left."""

    def __init__(self, gathering: Gathering, beacon: Address, interface: str) -> None:
        self._gathering = gathering
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._closed = False
        self._sender = open_bound(socket.AF_INET, (interface, 0))
        try:
            self._hearing, self._to = open_multicast(self._sender, beacon, interface)
        except OSError as error:
            self._sender.close()
            raise EnvironmentLacks(
                f"no beacon can be heard at {beacon[0]}:{beacon[1]} on {interface} ({error}); give the members' "
                "addresses (peers=…), a DNS name (peers='dns:NAME:PORT'), or an interface with multicast"
            ) from error
        self._loop.add_reader(self._hearing.fileno(), self._read)
        self._timer = self._loop.call_soon(self._wake)

    async def changed(self) -> None:
        """Wait until something has come."""
        self._changed.clear()
        await self._changed.wait()

    def take_over(self, table: tuple[Applicant, ...]) -> None:
        """Answer with a table that others have settled."""
        self._gathering.table = table

    def _read(self) -> None:
        for _ in range(_READS_AT_ONCE):
            try:
                data = self._hearing.recv(65_536)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                break  # an error of an earlier send, reported here; the next beacon is due soon
            beacon = decode_beacon(data)
            if beacon is not None:
                self._gathering.beacon(time.monotonic_ns(), beacon)
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
        beacons, self._gathering.out[:] = self._gathering.out[:], []
        for beacon in beacons:
            try:
                self._sender.sendto(encode_beacon(beacon), self._to)
            except OSError:
                break  # no route or no room at the moment; beacons are repeated

    def close(self) -> None:
        """Say no more."""
        if self._closed:
            return
        self._closed = True
        self._timer.cancel()
        self._loop.remove_reader(self._hearing.fileno())
        self._hearing.close()
        self._sender.close()


# -- by name -------------------------------------------------------------------------------------------------


async def look_up_all(name: str, port: int) -> list[str]:
    """All IPv4 addresses of a name."""
    answers = await asyncio.get_running_loop().getaddrinfo(name, port, family=socket.AF_INET, type=socket.SOCK_DGRAM)
    return [str(answer[4][0]) for answer in answers]


async def by_name(place: ByName, timeout_s: float, resolve: Resolve = look_up_all) -> Found:
    """Look the name up until it has as many addresses as there are members; ours is the one that can be bound."""
    give_up = time.monotonic() + timeout_s
    problem = ""
    while True:
        try:
            hosts = sorted(set(await resolve(place.name, place.port)), key=ipaddress.ip_address)
            problem = f"{place.name} has {len(hosts)} addresses, {place.members} are needed: {', '.join(hosts)}"
        except OSError as error:
            hosts, problem = [], f"{place.name} cannot be resolved ({error})"
        if hosts and place.members in {0, len(hosts)}:
            break
        if time.monotonic() + LOOK_AGAIN_S > give_up:
            raise FormationTimeout(place.group, timeout_s, (), problem)
        await asyncio.sleep(LOOK_AGAIN_S)
    addresses = {number: (host, place.port) for number, host in enumerate(hosts, start=1)}
    member, bound = _own(place, addresses)
    return Found(addresses, member, bound, salt_of(addresses))


def _own(place: ByName, addresses: dict[int, Address]) -> tuple[int, socket.socket]:
    """Which of the addresses is ours: the first that can be bound, or the one that was asked for."""
    if place.wanted:
        if place.wanted not in addresses:
            raise InvalidPolicy("member", f"{place.name} has {len(addresses)} addresses, none for {place.wanted}")
        return place.wanted, open_bound(socket.AF_INET, addresses[place.wanted])
    problems = []
    for number, address in addresses.items():
        try:
            return number, open_bound(socket.AF_INET, address)
        except EnvironmentLacks as error:
            problems.append(str(error))
    raise EnvironmentLacks(f"none of the addresses of {place.name} can be bound here: {'; '.join(problems)}")
