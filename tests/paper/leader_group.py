"""A simulated group with a leader for the schedules of §8, with the deliveries and violations of each member.

Clocks are unrelated on purpose: §8 does not assume that they are synchronised.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from random import Random

from tests.full_rate import full_rate

from unisono.check.suite import check_all
from unisono.check.verdict import Status, Verdict
from unisono.model.events import View
from unisono.model.faults import Loss, Partition
from unisono.model.policy import Policy
from unisono.model.scenario import EPOCH_NS
from unisono.model.timing import Timing
from unisono.model.units import Rate, UnlimitedNetwork
from unisono.net.clock_check import ClockCheck
from unisono.orders.leader.base import LeaderOrderBase
from unisono.orders.leader.broadcast import LeaderBroadcast
from unisono.orders.leader.timestamp import TimestampLeader
from unisono.sim.clocks import FixedClock
from unisono.sim.faults import link_fault
from unisono.sim.network import Adversary, SimulatedNetwork, delays_from_adversary, full_mesh
from unisono.sim.traffic import TrafficLedger
from unisono.sim.world import World
from unisono.stack import Stack
from unisono.trace.recorder import MemoryTrace
from unisono.trace.schema import EventKind, RunMeta
from unisono.trace.table import Trace

MS = 1_000_000
SAFETY = ("total_order", "integrity", "fifo")
MessageName = tuple[int, int]

NAMES: dict[type[LeaderOrderBase], str] = {LeaderBroadcast: "leader", TimestampLeader: "timestamp"}


class LeaderGroup:
    """Members 1 to n. Times are relative to `base_ns`, the start of a slot by which the group has formed."""

    def __init__(
        self,
        order: type[LeaderOrderBase],
        timing: Timing,
        members: int | Sequence[int],
        delays: Adversary,
        *,
        processing_ns: int = 0,
        offsets_ns: Mapping[int, int] | None = None,
        rate: Rate | None = None,
        link_faults: Sequence[Partition | Loss] = (),
        fifo: bool = True,
        max_message: int = 1000,
    ) -> None:
        self.timing = timing
        self.members = tuple(range(1, members + 1)) if isinstance(members, int) else tuple(members)
        start = EPOCH_NS - EPOCH_NS % timing.theta_ns
        formed = start + 4 * timing.delta_ns + 20 * MS
        self.base_ns = -(-formed // timing.theta_ns) * timing.theta_ns
        delta = timing.delta_ns
        network = SimulatedNetwork(
            full_mesh(self.members, lambda a, b: delays_from_adversary(delays, a, b, delta), fifo=fifo),
            [link_fault(fault, self.base_ns, delta, Random(1)) for fault in link_faults],
        )
        self._trace_rows = MemoryTrace("led", "led")
        self.ledger = TrafficLedger()
        self.world = World(
            network, start_ns=start, memory_trace=self._trace_rows, ledger=self.ledger, compare_payloads=True
        )
        self.orders: dict[int, LeaderOrderBase] = {}
        for member in self.members:
            policy = Policy(
                "led",
                member,
                View(self.members),
                timing,
                rate or full_rate(8, timing),
                order=next(name for kind, name in NAMES.items() if issubclass(order, kind)),
                max_message=max_message,
                processing_ns=processing_ns,
            )
            self.orders[member] = order(policy, UnlimitedNetwork())
            clock_check = ClockCheck(policy)
            stack = Stack(policy, self.orders[member], [clock_check], clock_check)
            self.world.add(member, stack, FixedClock((offsets_ns or {}).get(member, 0)), timing)
        self.bound_ns = self.orders[self.members[0]].bound_ns()
        self.last_ns = self.base_ns

    def send(self, at: int, member: int, *sizes: int) -> None:
        """A member's application submits messages of these sizes at `at`."""
        self.last_ns = max(self.last_ns, self.base_ns + at)
        self.world.send(self.base_ns + at, member, sizes)

    def crash(self, at: int, member: int) -> None:
        self.world.crash(self.base_ns + at, member)

    def pause(self, at: int, until: int, member: int) -> None:
        self.world.pause(self.base_ns + at, self.base_ns + until, member)

    def leave(self, at: int, member: int) -> None:
        self.world.leave(self.base_ns + at, member)

    def run(self, extra_ns: int = 0) -> LeaderGroup:
        """Run until the bound after the last submission, and `extra_ns` more."""
        self.world.run(self.last_ns + self.bound_ns + extra_ns)
        return self

    def _rows(self, kind: EventKind) -> Iterator[tuple[int, int, int, int]]:
        """(member, sender, sequence, true time)."""
        for (member, _), rows in self._trace_rows.packed_rows.items():
            for code, sender, _, first, count, _, _, _, _, real, _, _ in rows:
                if code == kind.code:
                    assert isinstance(real, int)
                    for sequence in range(first, first + count):
                        yield member, sender if kind is EventKind.DELIVER else member, sequence, real

    def latencies(self) -> list[tuple[int, MessageName, int]]:
        """(latency, message, receiving member) of every delivery."""
        sent = {(sender, sequence): real for _, sender, sequence, real in self._rows(EventKind.SEND)}
        return [
            (real - sent[sender, sequence], (sender, sequence), member)
            for member, sender, sequence, real in self._rows(EventKind.DELIVER)
        ]

    def delivered(self) -> dict[int, list[MessageName]]:
        """The messages that each member delivered, in delivery order."""
        found: dict[int, list[MessageName]] = {member: [] for member in self.members}
        for member, sender, sequence, _ in self._rows(EventKind.DELIVER):
            found[member].append((sender, sequence))
        return found

    def delivery_times(self, member: int) -> list[int]:
        """The true times at which a member delivered."""
        return [real for receiver, _, _, real in self._rows(EventKind.DELIVER) if receiver == member]

    def longest_gap_ns(self, member: int, after_ns: int) -> int:
        """The longest time between two deliveries of a member, from `after_ns` on."""
        times = [max(at, self.base_ns + after_ns) for at in self.delivery_times(member)]
        return max((b - a for a, b in pairwise(times)), default=0)

    def violation_kinds(self, member: int) -> list[str]:
        """The kinds of the violations that a member reported."""
        return [violation.kind for violation in self.world.members[member].violations]

    def violation_texts(self, kind: str) -> list[str]:
        return [v.text for node in self.world.members.values() for v in node.violations if v.kind == kind]

    def trace(self, bound_ns: int | None = None) -> Trace:
        timing = self.timing
        return self._trace_rows.trace(
            RunMeta(
                run="led",
                group="led",
                order="leader",
                members=self.members,
                delta_ns=timing.delta_ns,
                gamma_ns=timing.gamma_ns,
                theta_ns=timing.theta_ns,
                bound_ns=self.bound_ns if bound_ns is None else bound_ns,
                reliable=True,
                source="sim",
            )
        )

    def failed_checks(self, *, bound_ns: int | None = None, ignore: Sequence[str] = ()) -> dict[str, Verdict]:
        """The verdicts of the checkers that are not valid."""
        verdicts = check_all(self.trace(bound_ns), until_ns=self.world.now)
        return {n: v for n, v in verdicts.items() if v.status is not Status.VALID and n not in ignore}


def unrelated_clocks(chance: Random, members: Sequence[int]) -> dict[int, int]:
    """Offsets of up to an hour."""
    return {member: chance.randint(-3_600_000 * MS, 3_600_000 * MS) for member in members}
