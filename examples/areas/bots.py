"""The bots, and the world that they play in: the same in the simulator and over sockets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from string import ascii_letters
from typing import Any, Protocol, TypeVar

from examples.areas.rules import HEIGHT, WIDTH, Spot, begin, bot_key, coin_key, cross, grab, walk
from unisono.model.topology import Topology
from unisono.model.units import NS_PER_MS
from unisono.replica import Replica

AREAS = {"west": (1, 2, 3), "middle": (4, 5, 6), "east": (7, 8, 9)}
NEXT = {"west": ("middle",), "middle": ("west", "east"), "east": ("middle",)}
TOPOLOGY = Topology(AREAS, {area: (area, *NEXT[area]) for area in AREAS})
BOTS_MAX = len(ascii_letters)
COINS = 6
"""The number of coins in each area."""
REST_TURNS = 4
"""A bot stands still for this many turns before it crosses, so that its commands become final."""
TURN_NS = 40 * NS_PER_MS
"""The time between two turns of a bot."""


class AreaServer(Protocol):
    """A server as the bots see it: it has a replica of its area."""

    @property
    def replica(self) -> Replica: ...


ServerT = TypeVar("ServerT", bound=AreaServer)


class Bot:
    """Walks to the nearest coin, and sometimes crosses into the next area."""

    def __init__(self, name: str, area: str, chance: Random) -> None:
        self.name = name
        self.area = area
        self._chance = chance
        self._rested = 0
        """The number of turns for which it has stood still; 0 unless it is about to cross."""
        self.crossings = 0

    def turn(self, servers: Sequence[ServerT]) -> tuple[ServerT, bytes, Sequence[str]] | None:
        """The next command, with the server and the areas to send it to; based on the optimistic state of a server."""
        server = servers[number_of(self.name) % len(servers)]
        replica, key, chance = server.replica, bot_key(self.name), self._chance
        bot = replica.optimistic(key)
        if bot is None:
            return None  # it is crossing from another area
        at, coins = bot
        if self._rested or chance.random() < 0.08:
            self._rested += 1
            if self._rested <= REST_TURNS or replica.open_on(key):
                return None
            old_area, self.area, self._rested = self.area, chance.choice(NEXT[self.area]), 0
            self.crossings += 1
            spot = (chance.randrange(WIDTH), chance.randrange(HEIGHT))
            return server, cross(self.name, old_area, self.area, coins=coins, to=spot), (old_area, self.area)
        if replica.optimistic(coin_key(at)):
            grows = (chance.randrange(WIDTH), chance.randrange(HEIGHT))
            return server, grab(self.name, at, grows), (self.area,)
        return server, walk(self.name, at, self._toward(server, at)), (self.area,)

    def _toward(self, server: AreaServer, at: Spot) -> Spot:
        spots = [(x, y) for x in range(WIDTH) for y in range(HEIGHT) if server.replica.optimistic(coin_key((x, y)))]
        if not spots:
            return at
        x, y = min(spots, key=lambda spot: (abs(spot[0] - at[0]) + abs(spot[1] - at[1]), spot))
        return (at[0] + _sign(x - at[0]), at[1] + _sign(y - at[1]))


def number_of(name: str) -> int:
    """A number for a name; it is the same in every run."""
    return sum(name.encode())


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)


class AreaWorld:
    """A world with bots and coins; `servers` are the servers of its areas, by member number."""

    def __init__(self, servers: Mapping[int, AreaServer], bots: int, seed: int) -> None:
        self.servers = servers
        self.coins = COINS
        names = ascii_letters[:bots]
        self.bots = [Bot(name, list(AREAS)[number % 3], Random(f"{seed} {name}")) for number, name in enumerate(names)]

    def layouts(self, seed: int) -> dict[str, bytes]:
        """By area, the command that places its bots and coins."""
        chance, commands = Random(seed), {}
        for area in AREAS:
            spots = {bot.name: _spot(chance) for bot in self.bots if bot.area == area}
            commands[area] = begin(spots, [_spot(chance) for _ in range(COINS)])
        return commands

    def state_of(self, member: int) -> dict[Any, Any]:
        """The final state of a server."""
        replica = self.servers[member].replica
        return {key: replica.conservative(key) for key in replica.objects()}

    def problems(self) -> list[str]:
        """The problems of the final state; empty if the servers are right and all commands are final."""
        found = []
        for area, members in AREAS.items():
            first = self.state_of(members[0])
            found += [f"{area}: server {m} differs from {members[0]}" for m in members[1:] if self.state_of(m) != first]
            coins = sum(value for key, value in first.items() if key[0] == "coins")
            if coins != self.coins:
                found.append(f"{area}: there are {coins} coins, not {self.coins}")
        for bot in self.bots:
            homes = [area for area, m in AREAS.items() if self.servers[m[0]].replica.conservative(bot_key(bot.name))]
            if len(homes) != 1:
                found.append(f"bot {bot.name} is in {homes or 'no area'}")
        for member, server in self.servers.items():
            if server.replica.pending:
                found.append(f"server {member}: {server.replica.pending} early commands are not final")
        return found


def _spot(chance: Random) -> Spot:
    return chance.randrange(WIDTH), chance.randrange(HEIGHT)
