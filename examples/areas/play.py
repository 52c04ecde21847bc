"""Servers and bots in the simulator: nine servers in three groups, one order over all of them, early and final."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from random import Random
from string import ascii_letters
from typing import Any

from examples.areas.rules import HEIGHT, WIDTH, Area, Spot, begin, bot_key, coin_key, cross, grab, walk
from unisono.model.delays import Uniform
from unisono.model.durations import NS_PER_MS
from unisono.model.events import Batch, StackEvent
from unisono.model.grades import Grade
from unisono.model.policy import Policy
from unisono.model.rates import Rate
from unisono.model.timing import Timing
from unisono.model.topology import Multigroup, Topology
from unisono.model.views import View
from unisono.replica import Replica
from unisono.sim.clocks import FixedClock
from unisono.sim.network import Draw, Network, drawn, mesh
from unisono.sim.world import World
from unisono.stack import Datagram, build

AREAS = {"west": (1, 2, 3), "middle": (4, 5, 6), "east": (7, 8, 9)}
NEXT = {"west": ("middle",), "middle": ("west", "east"), "east": ("middle",)}
TOPOLOGY = Topology(AREAS, {area: (area, *NEXT[area]) for area in AREAS})
TIMING = Timing(40 * NS_PER_MS, 0, 5 * NS_PER_MS)
SETTLE_NS = 1500 * NS_PER_MS
"""So long after the last turn everything is final."""
BOTS_MAX = len(ascii_letters)
COINS = 6
"""So many lie in each area."""
REST_TURNS = 4
"""A bot stands still for so many turns before it crosses: what it owns has to be settled."""
TURN_NS = 40 * NS_PER_MS
"""A bot has its turn so often."""


class Server:
    """One server: a stack, and a replica of its area on what the stack delivers. It is a machine of the simulator."""

    def __init__(self, member: int, window_ns: int) -> None:
        rules = Multigroup(TOPOLOGY, window_ns=window_ns, optimistic=True)
        policy = Policy(
            "areas",
            member,
            View(TOPOLOGY.members),
            TIMING,
            Rate(avg=2000, burst=16),
            order="quasi_genuine",
            multigroup=rules,
        )
        self.area = TOPOLOGY.group_of(member)
        self.replica = Replica(Area(self.area))
        self.stack = build(policy)
        self._outbox: deque[tuple[bytes, Sequence[str]]] = deque()
        self.receive, self.wake, self.wake_at = self.stack.receive, self.stack.wake, self.stack.wake_at
        self.new_rate, self.leave = self.stack.new_rate, self.stack.leave

    def say(self, command: bytes, to: Sequence[str]) -> None:
        """Have a command sent to these areas at the next `submit`."""
        self._outbox.append((command, to))

    def submit(self, now: int, messages: Sequence[bytes]) -> int:
        """The simulator's word that something is to be sent, once for each command; what does not go stays."""
        for taken in range(len(messages)):
            command, to = self._outbox[0]
            if not self.stack.submit_to(now, [command], to):
                return taken
            self._outbox.popleft()
        return len(messages)

    def outgoing(self) -> Sequence[Datagram]:
        """The stack's datagrams; this world's servers do not come back, so what they promise is not kept."""
        self.stack.writes()
        return self.stack.outgoing()

    def events(self) -> Sequence[StackEvent]:
        """What was delivered runs on the replica."""
        events = self.stack.events()
        for event in events:
            if isinstance(event, Batch):
                run = self.replica.early if event.grade is Grade.EARLY else self.replica.final
                for number, message in enumerate(event.messages, event.first_sequence):
                    run((event.sender, event.incarnation, number), message)
        return events


class Bot:
    """Walks to the nearest coin, and now and then into the next area."""

    def __init__(self, name: str, area: str, chance: Random) -> None:
        self.name = name
        self.area = area
        self._chance = chance
        self._rested = 0
        """For how many turns it has stood still; not at all, unless it wants to cross."""
        self.crossings = 0

    def turn(self, servers: Sequence[Server]) -> tuple[Server, bytes, Sequence[str]] | None:
        """What it does next, by one of its area's servers' optimistic state."""
        server = servers[number_of(self.name) % len(servers)]
        replica, key, chance = server.replica, bot_key(self.name), self._chance
        bot = replica.optimistic(key)
        if bot is None:
            return None  # on its way from another area
        at, coins = bot
        if self._rested or chance.random() < 0.08:
            self._rested += 1
            if self._rested <= REST_TURNS or replica.open_on(key):
                return None
            leaving, self.area, self._rested = self.area, chance.choice(NEXT[self.area]), 0
            self.crossings += 1
            spot = (chance.randrange(WIDTH), chance.randrange(HEIGHT))
            return server, cross(self.name, leaving, self.area, coins=coins, to=spot), (leaving, self.area)
        if replica.optimistic(coin_key(at)):
            grows = (chance.randrange(WIDTH), chance.randrange(HEIGHT))
            return server, grab(self.name, at, grows), (self.area,)
        return server, walk(self.name, at, self._toward(server, at)), (self.area,)

    def _toward(self, server: Server, at: Spot) -> Spot:
        spots = [(x, y) for x in range(WIDTH) for y in range(HEIGHT) if server.replica.optimistic(coin_key((x, y)))]
        if not spots:
            return at
        x, y = min(spots, key=lambda spot: (abs(spot[0] - at[0]) + abs(spot[1] - at[1]), spot))
        return (at[0] + _sign(x - at[0]), at[1] + _sign(y - at[1]))


def number_of(name: str) -> int:
    """A number for a name, the same in every run."""
    return sum(name.encode())


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)


class Game:
    """The world, from its first coin on."""

    def __init__(self, *, bots: int = 9, seed: int = 1, jitter_ms: int = 10, window_ms: int = 15) -> None:
        """Datagrams take 1 to `jitter_ms` ms; `window_ms` is w(p): below the jitter, early deliveries are mistaken."""
        chance = Random(seed)
        self.coins = COINS
        self.servers = {member: Server(member, window_ms * NS_PER_MS) for member in TOPOLOGY.members}

        def draw(sender: int, receiver: int) -> Draw:
            delay = Uniform(NS_PER_MS, jitter_ms * NS_PER_MS)
            return drawn(delay, TIMING.delta_ns, Random(f"{seed} {sender} {receiver}"))

        self.world = World(Network(mesh(TOPOLOGY.members, draw, fifo=True), []))
        for member, server in self.servers.items():
            self.world.add(member, server, FixedClock(), TIMING)
        names = ascii_letters[:bots]
        self.bots = [Bot(name, list(AREAS)[number % 3], Random(f"{seed} {name}")) for number, name in enumerate(names)]
        self._begun_ns = 300 * NS_PER_MS
        for area, members in AREAS.items():
            spots = {bot.name: _spot(chance) for bot in self.bots if bot.area == area}
            command = begin(spots, [_spot(chance) for _ in range(COINS)])
            self._later(self._begun_ns, self.servers[members[0]], command, (area,))

    def _later(self, at: int, server: Server, command: bytes, to: Sequence[str]) -> None:
        self.world.later(at, lambda now, _: self._send(now, server, command, to), None)

    def _send(self, now: int, server: Server, command: bytes, to: Sequence[str]) -> None:
        server.say(command, to)
        self.world.nodes[server.stack.policy.member].offer(now, (1,))

    def run(self, seconds: float) -> None:
        """Play for so long, then let everything become final."""
        for _ in self.frames(seconds, seconds):
            pass
        self.world.run(self.world.now + SETTLE_NS)

    def frames(self, seconds: float, step_s: float) -> Iterator[int]:
        """Play for so long, and give the simulated time after each step."""
        end = self._begun_ns + int(seconds * 1e9)
        at = self._begun_ns + 10 * TURN_NS
        while at < end:
            self.world.later(at, self._turns, None)
            at += TURN_NS
        shown = self._begun_ns
        while shown < end:
            shown = min(end, shown + max(1, int(step_s * 1e9)))
            self.world.run(shown)
            yield shown

    def _turns(self, now: int, _: object) -> None:
        for bot in self.bots:
            action = bot.turn([self.servers[member] for member in AREAS[bot.area]])
            if action is not None:
                self._send(now, *action)

    # -- what can be said of it ----------------------------------------------------------------------------------

    def state_of(self, member: int) -> dict[Any, Any]:
        """What a server has agreed on."""
        replica = self.servers[member].replica
        return {key: replica.conservative(key) for key in replica.objects()}

    def problems(self) -> list[str]:
        """What is wrong with the agreed world: nothing, when all is final."""
        found = []
        for area, members in AREAS.items():
            first = self.state_of(members[0])
            found += [f"{area}: server {m} differs from {members[0]}" for m in members[1:] if self.state_of(m) != first]
            lying = sum(value for key, value in first.items() if key[0] == "coins")
            if lying != self.coins:
                found.append(f"{area}: {lying} coins lie there, and {self.coins} did")
        for bot in self.bots:
            homes = [area for area, m in AREAS.items() if self.servers[m[0]].replica.conservative(bot_key(bot.name))]
            if len(homes) != 1:
                found.append(f"bot {bot.name} is in {homes or 'no area'}")
        for member, server in self.servers.items():
            if server.replica.pending:
                found.append(f"server {member}: {server.replica.pending} commands are early and not final")
        return found


def _spot(chance: Random) -> Spot:
    return chance.randrange(WIDTH), chance.randrange(HEIGHT)
