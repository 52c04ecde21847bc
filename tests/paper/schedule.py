"""A group in a hand-made simulated world, random schedules for it, and a log of its events.

The account is read off the recorded rows without unisono.check, so that a claim of the paper and the checker of
that claim are two independent witnesses. Every random schedule is a function of its seed: `random_schedule(17)` is
the same schedule everywhere, and a failing test names the seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from tests.full_rate import full_rate
from tests.worlds.adversaries import adversarial_network

from unisono.check.suite import check_all
from unisono.check.verdict import Verdict
from unisono.model.events import View
from unisono.model.policy import Policy
from unisono.model.scenario import EPOCH_NS
from unisono.model.timing import Timing
from unisono.model.units import Rate, UnlimitedNetwork
from unisono.net.clock_check import ClockCheck
from unisono.orders.vbr.order import VbrOrder
from unisono.sim.clocks import Clock, DriftingClock, FixedClock, SteppedClock, corner_clock
from unisono.sim.network import Adversary, SimulatedNetwork, constant_delay, corners
from unisono.sim.traffic import TrafficLedger
from unisono.sim.world import World
from unisono.stack import Stack
from unisono.trace.recorder import MemoryTrace
from unisono.trace.schema import EventKind, RunMeta
from unisono.trace.table import Trace

MS = 1_000_000
"""An average rate that never binds: bursts alone limit the sender."""

MessageName = tuple[int, int]
"""A message: its sender and its sequence number."""


@dataclass(frozen=True, slots=True)
class Sent:
    """When the stack accepted a message, and in which slot of its sender's clock."""

    slot: int
    real_ns: int
    local_ns: int


@dataclass(frozen=True, slots=True)
class Delivered:
    """One delivery at one member."""

    message: MessageName
    slot: int
    real_ns: int


class Group:
    """Members with these clocks on this network, who have exchanged their rates.

    `base` is the first clock reading of a slot that no member has entered yet.
    """

    def __init__(
        self,
        timing: Timing,
        clocks: Mapping[int, Clock],
        network: SimulatedNetwork,
        *,
        rates: Mapping[int, Rate] | None = None,
        orders: Mapping[int, type[VbrOrder]] | None = None,
        max_message: int = 1000,
        max_frame: int = 1400,
        start_ns: int | None = None,
        starts_ns: Mapping[int, int] | None = None,
    ) -> None:
        self.timing = timing
        self.members = tuple(sorted(clocks))
        self.bound_ns = timing.delta_ns + timing.gamma_ns + timing.theta_ns
        start = EPOCH_NS - EPOCH_NS % timing.theta_ns if start_ns is None else start_ns
        self._memory = MemoryTrace("paper", "paper")
        self.ledger = TrafficLedger()
        self.world = World(
            network, start_ns=start, memory_trace=self._memory, ledger=self.ledger, compare_payloads=True
        )
        self.orders: dict[int, VbrOrder] = {}
        self.policies: dict[int, Policy] = {}
        for member in self.members:
            policy = Policy(
                "paper",
                member,
                View(self.members),
                timing,
                (rates or {}).get(member, full_rate(8, timing)),
                max_message=max_message,
                max_frame=max_frame,
            )
            order = (orders or {}).get(member, VbrOrder)(policy, UnlimitedNetwork())
            skew = ClockCheck(policy)
            self.orders[member], self.policies[member] = order, policy
            stack = Stack(policy, order, [skew], skew)
            starts = (starts_ns or {}).get(member)
            self.world.add(member, stack, clocks[member], timing, starts_at_ns=starts)
        while not all(order.running() for order in self.orders.values()):
            self.world.run(self.world.now + timing.theta_ns)
        first = max(timing.slot_of(self.world.now + timing.gamma_ns) + 1, self.orders[self.members[0]].view.first_slot)
        self.base_ns = self.last_ns = timing.start_of(first)

    def slot_start(self, member: int, number: int) -> int:
        """The true instant at which a member's clock enters the slot `number` slots after the base."""
        reading = self.base_ns + number * self.timing.theta_ns
        return self.world.members[member].clock.true_at(reading)

    def send(self, at: int, member: int, *sizes: int) -> None:
        """Let a member's application submit messages."""
        self.last_ns = max(self.last_ns, at)
        self.world.send(at, member, sizes)

    def change_rate(self, at: int, member: int, rate: Rate) -> None:
        """Let a member change its rate."""
        self.world.change_rate(at, member, rate)

    def run(self, until: int | None = None) -> Group:
        """Run, by default until the bound after the last message was submitted."""
        self.world.run(self.last_ns + self.bound_ns if until is None else until)
        return self

    def sent(self) -> dict[MessageName, Sent]:
        """All accepted messages."""
        found: dict[MessageName, Sent] = {}
        for (member, _), runs in self._memory.packed_rows.items():
            for kind, _, _, first, count, _, slot, _, _, real, local, _ in runs:
                if kind == EventKind.SEND.code:
                    assert isinstance(real, int)
                    assert isinstance(local, int)
                    for sequence in range(first, first + count):
                        found[member, sequence] = Sent(slot, real, local)
        return found

    def delivered(self) -> dict[int, list[Delivered]]:
        """The deliveries of each member, in order."""
        found: dict[int, list[Delivered]] = {member: [] for member in self.members}
        for (member, _), runs in self._memory.packed_rows.items():
            for kind, sender, _, first, count, _, slot, _, _, real, _, _ in runs:
                if kind == EventKind.DELIVER.code:
                    assert isinstance(real, int)
                    for sequence in range(first, first + count):
                        found[member].append(Delivered((sender, sequence), slot, real))
        return found

    def latencies(self) -> list[tuple[int, MessageName, int]]:
        """(latency, message, receiver) of every delivery."""
        sent = self.sent()
        return [
            (row.real_ns - sent[row.message].real_ns, row.message, member)
            for member, rows in self.delivered().items()
            for row in rows
        ]

    def violations(self) -> dict[int, list[str]]:
        """The violations that members reported."""
        return {m: [v.text for v in node.violations] for m, node in self.world.members.items() if node.violations}

    def trace(self) -> Trace:
        """The rows."""
        timing = self.timing
        return self._memory.trace(
            RunMeta(
                run="paper",
                group="paper",
                order="vbr",
                members=self.members,
                delta_ns=timing.delta_ns,
                gamma_ns=timing.gamma_ns,
                theta_ns=timing.theta_ns,
                bound_ns=self.bound_ns,
                reliable=True,
                source="sim",
            )
        )

    def verdicts(self) -> dict[str, Verdict]:
        """The verdicts of the checkers."""
        return check_all(self.trace(), until_ns=self.world.now)


def fixed(offsets_ns: Mapping[int, int]) -> dict[int, Clock]:
    """A constant offset per member."""
    return {member: FixedClock(offset) for member, offset in offsets_ns.items()}


def figure_8(
    timing: Timing, members: int, *, orders: Mapping[int, type[VbrOrder]] | None = None, seed: int = 8
) -> Group:
    """The schedule of Figure 8: the worst that can happen to a message.

    The last member's clock is Γ/2 ahead and it sends at the first instant of its slot; the first member's clock
    is Γ/2 behind and its end mark takes Δ. Everybody else's clock and delays are anything.
    """
    chance, half = Random(seed), timing.gamma_ns // 2
    offsets = {member: chance.randint(-half, half) for member in range(1, members + 1)}
    offsets[1], offsets[members] = -half, half
    whim = corners(chance, timing.delta_ns)

    def delay(sender: int, receiver: int, now: int, ordinal: int) -> int:
        return timing.delta_ns if sender == 1 else whim(sender, receiver, now, ordinal)

    group = Group(timing, fixed(offsets), adversarial_network(tuple(offsets), delay, timing.delta_ns), orders=orders)
    group.send(group.slot_start(members, 1), members, 100)
    return group


@dataclass(frozen=True, slots=True)
class Plan:
    """The parameters of a random schedule, for the message of a failing test."""

    seed: int
    timing: Timing
    clocks: str
    delays: str
    bursts: Mapping[int, int]
    sends: int


def random_schedule(
    seed: int, *, slots: int = 2, orders: Mapping[int, type[VbrOrder]] | None = None, greedy: bool = False
) -> tuple[Plan, Group]:
    """Two to eight members with gaps in their numbers, and anything that the model of §2 allows.

    Applications keep to their declared bursts, unless `greedy`: then they hand in more and are pushed back.
    """
    chance = Random(seed)
    theta = chance.choice((MS, 5 * MS, chance.randint(MS // 2, 10 * MS)))
    delta = chance.choice((0, 1, 2 * theta, chance.randint(0, 3 * theta)))
    gamma = chance.choice((0, 2, theta // 2, chance.randint(0, 3 * theta // 2)))
    timing = Timing(delta, gamma, theta)
    members = tuple(sorted(chance.sample(range(1, 2000), chance.choice((2, 2, 2, 2, 3, 3, 3, 4, 5, 8)))))
    bursts = {member: chance.randint(1, 4) for member in members}
    start = EPOCH_NS - EPOCH_NS % timing.theta_ns + chance.randint(0, timing.theta_ns)
    clock_kind, clocks = _random_clocks(chance, timing, members, start, slots)
    delay_kind, network = _random_network(chance, timing, members)
    group = Group(
        timing,
        clocks,
        network,
        rates={member: full_rate(burst, timing) for member, burst in bursts.items()},
        orders=orders,
        max_message=chance.choice((200, 3000)),
        max_frame=chance.choice((256, 1400)),
        start_ns=start,
    )
    sends = 0
    for member in members:
        for number in range(1, slots + 1):
            count = chance.randint(0, bursts[member] * (2 if greedy else 1))
            for at in _instants(chance, group, member, number, count):
                group.send(at, member, _size(chance, group.policies[member].max_message))
                sends += 1
    return Plan(seed, timing, clock_kind, delay_kind, bursts, sends), group


def _instants(chance: Random, group: Group, member: int, number: int, count: int) -> list[int]:
    """True instants within one slot of the member's clock, its first and last among the likely ones.

    A clock that leaps may have no instant in a slot; then there is none.
    """
    clock, theta = group.world.members[member].clock, group.timing.theta_ns
    slot = group.base_ns // theta + number
    low, high = clock.true_at(slot * theta), clock.true_at((slot + 1) * theta) - 1
    if high < low:
        return []
    return sorted(chance.choice((low, high, chance.randint(low, high))) for _ in range(count))


def _size(chance: Random, largest: int) -> int:
    return chance.choice((0, 1, largest, chance.randint(0, largest)))


def _random_clocks(
    chance: Random, timing: Timing, members: Sequence[int], start: int, slots: int
) -> tuple[str, dict[int, Clock]]:
    half = timing.gamma_ns // 2
    kind = chance.choice(("corners", "fixed", "drifting", "stepping"))
    clocks: dict[int, Clock] = {}
    for member in members:
        match kind:
            case "corners":
                clocks[member] = FixedClock(chance.choice((-half, half)))
            case "fixed":
                clocks[member] = FixedClock(chance.randint(-half, half))
            case "drifting":
                sweep = max(1, 2 * half) * chance.randint(1, 20)
                clocks[member] = DriftingClock(half, sweep, chance.randint(0, 2 * sweep))
            case _:
                end = start + 4 * (timing.delta_ns + timing.gamma_ns) + (slots + 8) * timing.theta_ns
                stepping: SteppedClock = corner_clock(chance, half, start, end, timing.theta_ns)
                clocks[member] = stepping
    return kind, clocks


def _random_network(chance: Random, timing: Timing, members: Sequence[int]) -> tuple[str, SimulatedNetwork]:
    delta = timing.delta_ns
    per_link = {(a, b): chance.choice((0, delta)) for a in members for b in members}
    adversaries: dict[str, Adversary] = {
        "corners": corners(chance, delta),
        "all Δ": constant_delay(delta),
        "nothing": constant_delay(0),
        "uniform": lambda *_: chance.randint(0, delta),
        "corner links": lambda sender, receiver, *_: per_link[sender, receiver],
    }
    kind = chance.choice(tuple(adversaries))
    fifo = chance.random() < 0.8  # without FIFO order, the numbers in the headers restore the order
    return f"{kind}{'' if fifo else ', not FIFO'}", adversarial_network(members, adversaries[kind], delta, fifo=fifo)
