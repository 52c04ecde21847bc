"""The game in the simulator: nine servers in three groups, with one order over all groups, early and final."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from random import Random

from examples.areas.bots import AREAS, TOPOLOGY, TURN_NS, AreaWorld
from examples.areas.rules import Area
from unisono.model.delays import UniformDelay
from unisono.model.effects import Effects
from unisono.model.events import Batch, Grade, View
from unisono.model.policy import Policy
from unisono.model.timing import Timing
from unisono.model.topology import Multigroup
from unisono.model.units import NS_PER_MS, Rate
from unisono.replica import Replica
from unisono.sim.clocks import FixedClock
from unisono.sim.network import DelaySource, SimulatedNetwork, delays_from_model, full_mesh
from unisono.sim.world import World
from unisono.stack import build

TIMING = Timing(40 * NS_PER_MS, 0, 5 * NS_PER_MS)
SETTLE_NS = 1500 * NS_PER_MS
"""All commands are final this long after the last turn."""


class Server:
    """One server: a stack, and a replica of its area that executes delivered commands. The simulator drives it."""

    def __init__(self, member: int, window_ns: int) -> None:
        rules = Multigroup(TOPOLOGY, window=f"{window_ns}ns", optimistic=True)
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
        self.receive, self.wake = self.stack.receive, self.stack.wake
        self.change_rate, self.leave = self.stack.change_rate, self.stack.leave

    def enqueue(self, command: bytes, to: Sequence[str]) -> None:
        """Send a command to these areas at the next `submit`."""
        self._outbox.append((command, to))

    def submit(self, now: int, messages: Sequence[bytes]) -> int:
        """Send one queued command per given message. Commands that the stack does not accept stay queued."""
        for accepted in range(len(messages)):
            command, to = self._outbox[0]
            if not self.stack.submit_to(now, [command], to):
                return accepted
            self._outbox.popleft()
        return len(messages)

    def step(self) -> Effects:
        """The stack's effects; deliveries run on the replica. Servers never restart here, so no record is kept."""
        effects = self.stack.step()
        for event in effects.events:
            if isinstance(event, Batch):
                deliver = self.replica.deliver_early if event.grade is Grade.EARLY else self.replica.deliver_final
                for number, message in enumerate(event.messages, event.first_sequence):
                    deliver((event.sender, event.incarnation, number), message)
        return effects


class Game(AreaWorld):
    """A whole game: servers, network and bots."""

    def __init__(self, *, bots: int = 9, seed: int = 1, jitter_ms: int = 10, window_ms: int = 15) -> None:
        """Datagrams take 1 to `jitter_ms` ms. `window_ms` is w(p): if it is below the jitter, there are mistakes."""
        self.servers: dict[int, Server] = {member: Server(member, window_ms * NS_PER_MS) for member in TOPOLOGY.members}
        super().__init__(self.servers, bots, seed)

        def delay_source(sender: int, receiver: int) -> DelaySource:
            delay = UniformDelay(NS_PER_MS, jitter_ms * NS_PER_MS)
            return delays_from_model(delay, TIMING.delta_ns, Random(f"{seed} {sender} {receiver}"))

        self.world = World(SimulatedNetwork(full_mesh(TOPOLOGY.members, delay_source, fifo=True), []))
        for member, server in self.servers.items():
            self.world.add(member, server, FixedClock(), TIMING)
        self._start_ns = 300 * NS_PER_MS
        for area, command in self.layouts(seed).items():
            self._later(self._start_ns, self.servers[AREAS[area][0]], command, (area,))

    def _later(self, at: int, server: Server, command: bytes, to: Sequence[str]) -> None:
        self.world.schedule(at, lambda now, _: self._send(now, server, command, to), None)

    def _send(self, now: int, server: Server, command: bytes, to: Sequence[str]) -> None:
        server.enqueue(command, to)
        self.world.members[server.stack.policy.member].submit(now, (1,))

    def run(self, seconds: float) -> None:
        """Play for this many seconds, then let all commands become final."""
        for _ in self.frames(seconds, seconds):
            pass
        self.world.run(self.world.now + SETTLE_NS)

    def frames(self, seconds: float, step_s: float) -> Iterator[int]:
        """Play for this many seconds, and yield the simulated time after each step."""
        end = self._start_ns + int(seconds * 1e9)
        at = self._start_ns + 10 * TURN_NS
        while at < end:
            self.world.schedule(at, self._turns, None)
            at += TURN_NS
        shown = self._start_ns
        while shown < end:
            shown = min(end, shown + max(1, int(step_s * 1e9)))
            self.world.run(shown)
            yield shown

    def _turns(self, now: int, _: object) -> None:
        for bot in self.bots:
            action = bot.turn([self.servers[member] for member in AREAS[bot.area]])
            if action is not None:
                self._send(now, *action)
