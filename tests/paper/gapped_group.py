"""A group whose members crash, join, leave and return, and a log of it that is independent of the order.

The log is taken at the edges of the stacks: submitted messages, arrived datagrams, deliveries. Two checks of the
liveness of Definition 2 use it. `undelivered` uses the simulator's knowledge of which members are correct, and holds
where nothing is lost; `received_not_delivered` is the definition to the letter and holds under loss too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random

from tests.full_rate import full_rate
from tests.worlds.adversaries import adversarial_network

from unisono.check.suite import check_all
from unisono.check.verdict import Status, Verdict
from unisono.model.effects import Effects
from unisono.model.events import Batch, LeaveComplete, View, ViewChange, Violation
from unisono.model.faults import Loss, Span
from unisono.model.policy import Policy
from unisono.model.scenario import EPOCH_NS
from unisono.model.timing import Timing
from unisono.model.units import Rate, UnlimitedNetwork, group_key
from unisono.model.workloads import ScheduledSends
from unisono.net.clock_check import ClockCheck
from unisono.orders.vbr.failures import VbrGaps, latency_bound_ns
from unisono.sim.clocks import Clock, DriftingClock, FixedClock, corner_clock
from unisono.sim.faults import LossFault
from unisono.sim.member import SimulatedMember
from unisono.sim.network import Adversary, SimulatedNetwork, constant_delay, corners
from unisono.sim.world import World
from unisono.stack import Stack
from unisono.trace.recorder import MemoryTrace
from unisono.trace.schema import OBSERVER, RunMeta
from unisono.wire.door import Door
from unisono.wire.frame import FIRST_FRAGMENT, FRAGMENT, MORE_FRAGMENTS, Frame, Kind, unpack_header

MS = 1_000_000

Message = tuple[int, int, int]
"""A message: its sender, the sender's incarnation, its sequence number."""


@dataclass(slots=True)
class MemberRecord:
    """The log of one incarnation of one member."""

    member: int
    incarnation: int
    order: VbrGaps
    started_ns: int = -1
    sent_ns: list[int] = field(default_factory=list)
    """When each message was accepted, by its sequence number."""
    delivered: dict[Message, tuple[int, int]] = field(default_factory=dict)
    """In the order of delivery: the slot, and when."""
    views: list[tuple[int, ViewChange]] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)
    joins_sent: int = 0
    frames: dict[tuple[int, int, int, int], Frame] = field(default_factory=dict)
    """Data frames that arrived, by sender, incarnation, slot and number in the slot."""
    left: LeaveComplete | None = None
    crashed: bool = False

    @property
    def first_slot(self) -> int | None:
        return self.views[0][1].view.first_slot if self.views else None

    def removed(self) -> list[tuple[int, int]]:
        """(slot, member) of each member that left the view, and the slot of that change."""
        return [(change.view.first_slot, gone) for _, change in self.views for gone in change.left]

    def added(self, member: int) -> list[int]:
        """The slots in which a member joined the view."""
        return [change.view.first_slot for _, change in self.views if member in change.joined]

    def received(self) -> set[Message]:
        """The messages that arrived completely."""
        found: set[Message] = set()
        for (sender, life, slot, number), frame in self.frames.items():
            if frame.packed_messages is not None:
                first = frame.first_sequence
                found.update((sender, life, sequence) for sequence in range(first, first + frame.packed_messages.count))
            if frame.flags & FRAGMENT and not frame.flags & MORE_FRAGMENTS:
                at, part = number, frame
                while not part.flags & FIRST_FRAGMENT and (sender, life, slot, at - 1) in self.frames:
                    at, part = at - 1, self.frames[sender, life, slot, at - 1]
                if part.flags & FIRST_FRAGMENT:
                    found.add((sender, life, frame.first_sequence))
        return found


class RecordingStack(Stack):
    """A stack that logs its inputs and outputs."""

    def __init__(self, policy: Policy, order: VbrGaps, record: MemberRecord, world: Callable[[], World]) -> None:
        skew = ClockCheck(policy)
        super().__init__(policy, order, [skew], skew)
        self.record = record
        self.world = world
        self._door = Door(group_key(policy.group), policy.member, policy.view.members)

    def wake(self, now: int) -> None:
        if self.record.started_ns < 0:
            self.record.started_ns = self.world().now
        super().wake(now)

    def submit(self, now: int, messages: Sequence[bytes], priority: int = 0) -> int:
        taken = super().submit(now, messages, priority)
        self.record.sent_ns.extend([self.world().now] * taken)
        return taken

    def receive(self, now: int, data: bytes, start: int = 0, end: int | None = None, multicast: bool = False) -> None:
        frame = self._door.admit(data, 0, len(data), 2**62)
        if frame is not None and frame.kind is Kind.DATA:
            self.record.frames[frame.sender, frame.incarnation, frame.slot, frame.number] = frame
        super().receive(now, data, start, end, multicast)

    def step(self) -> Effects:
        effects = super().step()
        self.record.joins_sent += sum(unpack_header(d.data, 0)[1] == Kind.JOIN for d in effects.datagrams)
        account, now = self.record, self.world().now
        for event in effects.events:
            match event:
                case Batch():
                    for sequence in range(event.first_sequence, event.first_sequence + event.count):
                        message = (event.sender, event.incarnation, sequence)
                        assert message not in account.delivered, f"{message} was delivered twice"
                        account.delivered[message] = (event.slot, now)
                case ViewChange():
                    account.views.append((now, event))
                case Violation():
                    account.violations.append(event)
                case LeaveComplete():
                    account.left = event
        return effects


class GapGroup:
    """Members with these clocks on this network; they come up at `starts_ns`, or at the start."""

    def __init__(
        self,
        timing: Timing,
        clocks: Mapping[int, Clock],
        network: SimulatedNetwork,
        *,
        rates: Mapping[int, Rate] | None = None,
        orders: Mapping[int, type[VbrGaps]] | None = None,
        loss_burst: int = 0,
        max_message: int = 1000,
        max_frame: int = 1400,
        start_ns: int | None = None,
        starts_ns: Mapping[int, int] | None = None,
        workloads: Mapping[int, ScheduledSends] | None = None,
        send_until: int = 2**63,
        probe_every_ns: int = 0,
    ) -> None:
        self.timing = timing
        self.members = tuple(sorted(clocks))
        self.bound_ns = latency_bound_ns(timing)
        self.start_ns = EPOCH_NS - EPOCH_NS % timing.theta_ns if start_ns is None else start_ns
        self.records: dict[tuple[int, int], MemberRecord] = {}
        self._memory = MemoryTrace("paper", "paper")
        self._orders = orders or {}
        self._policy = partial(
            self._make_policy,
            rates or {},
            loss_burst=loss_burst,
            max_message=max_message,
            max_frame=max_frame,
            probe_every_ns=probe_every_ns,
        )
        self.world = World(
            network, start_ns=self.start_ns, send_until_ns=send_until, memory_trace=self._memory, compare_payloads=True
        )
        for member in self.members:
            starts, offered = (starts_ns or {}).get(member), (workloads or {}).get(member)
            self.world.add(
                member, self._build(member, 1), clocks[member], timing, starts_at_ns=starts, workload=offered
            )

    def _make_policy(
        self,
        rates: Mapping[int, Rate],
        member: int,
        incarnation: int,
        *,
        loss_burst: int,
        max_message: int,
        max_frame: int,
        probe_every_ns: int,
    ) -> Policy:
        return Policy(
            "paper",
            member,
            View(self.members),
            self.timing,
            rates.get(member, full_rate(8, self.timing)),
            incarnation=incarnation,
            max_message=max_message,
            max_frame=max_frame,
            failures=True,
            loss_burst=loss_burst,
            probe_every_ns=probe_every_ns,
        )

    def _build(self, member: int, incarnation: int) -> RecordingStack:
        policy = self._policy(member, incarnation)
        order = self._orders.get(member, VbrGaps)(policy, UnlimitedNetwork())
        account = self.records[member, incarnation] = MemberRecord(member, incarnation, order)
        return RecordingStack(policy, order, account, lambda: self.world)

    # -- scheduling ------------------------------------------------------------------------------------------

    def slot_start_ns(self, member: int, slot: int) -> int:
        """The true instant at which a member's clock enters a slot, counted from the run's first."""
        reading = self.start_ns - self.start_ns % self.timing.theta_ns + slot * self.timing.theta_ns
        return self.world.members[member].clock.true_at(reading)

    def slot_number(self, slot: int) -> int:
        """A slot, counted from the run's first, as its number."""
        return self.timing.slot_of(self.start_ns) + slot

    def send(self, at: int, member: int, *sizes: int) -> None:
        """Let a member's application, in its incarnation at that time, submit messages."""
        self.world.schedule(at, lambda now, _: self._node(member).submit(now, sizes), None)

    def crash(self, at: int, member: int) -> None:
        def crash(now: int, _: object) -> None:
            node = self._node(member)
            if node.up:
                self.records[member, node.incarnation].crashed = True
            node.crash(now, self._memory.recorder(OBSERVER))

        self.world.schedule(at, crash, None)

    def restart(self, at: int, member: int) -> None:
        def restart(now: int, _: object) -> None:
            if self.latest_record(member).started_ns >= 0:  # a member that has not started yet cannot restart
                self.world.restart(now, member, partial(self._build, member))

        self.world.schedule(at, restart, None)

    def leave(self, at: int, member: int) -> None:
        self.world.schedule(at, lambda now, _: self._node(member).leave(now, None), None)

    def pause(self, from_ns: int, to_ns: int, member: int) -> None:
        self.world.schedule(from_ns, lambda now, _: self._node(member).pause(now, to_ns), None)

    def _node(self, member: int) -> SimulatedMember:
        return self.world.members[member]

    def run(self, until: int) -> GapGroup:
        self.world.run(until)
        return self

    # -- the log ---------------------------------------------------------------------------------------------

    def latest_record(self, member: int) -> MemberRecord:
        """The log of the latest incarnation of a member."""
        return self.records[member, max(life for m, life in self.records if m == member)]

    def violations(self) -> list[str]:
        return [f"{who}: {v.kind}: {v.text}" for who, account in self.records.items() for v in account.violations]

    def latencies(self) -> list[tuple[int, Message, int]]:
        """(latency, message, receiver) of every delivery."""
        return [
            (at - self.records[message[:2]].sent_ns[message[2]], message, account.member)
            for account in self.records.values()
            for message, (_, at) in account.delivered.items()
        ]

    def latency(self) -> int:
        return max(self.latencies(), default=(0, (0, 0, 0), 0))[0]

    def correct(self) -> list[MemberRecord]:
        return [account for account in self.records.values() if not account.crashed]

    def undelivered(self) -> list[str]:
        """Liveness where nothing is lost: what a correct member sent, all correct members of its slot deliver.

        That no correct member is missing from another's list follows: of such a one something would be missing.
        """
        found, end = [], self.world.now - self.bound_ns
        for sender in self.correct():
            for sequence, sent_ns in enumerate(sender.sent_ns):
                message = (sender.member, sender.incarnation, sequence)
                if sent_ns > end:
                    continue
                if message not in sender.delivered:
                    found.append(f"{message} was never delivered to its own sender")
                    continue
                slot = sender.delivered[message][0]
                found.extend(
                    f"member {other.member} in life {other.incarnation} never delivered {message} of slot {slot}"
                    for other in self.correct()
                    if _takes_part(other, slot) and message not in other.delivered
                )
        return found

    def received_not_delivered(self) -> list[str]:
        """Definition 2's liveness to the letter: sent by a correct member, received by a correct member, delivered."""
        found, end = [], self.world.now - self.bound_ns
        for account in self.correct():
            for message in sorted(account.received() - account.delivered.keys()):
                sender = self.records[message[:2]]
                slot = sender.delivered[message][0] if message in sender.delivered else -1
                if not sender.crashed and sender.sent_ns[message[2]] <= end and _takes_part(account, slot):
                    found.append(f"member {account.member} received {message} of slot {slot} and never delivered it")
        return found

    def wrongly_removed(self) -> list[str]:
        """Correct members that a correct member suspected although they were up: §6.2 promises that there is none."""
        return [
            f"member {account.member} took {gone} from its list at slot {slot}"
            for account in self.correct()
            for slot, gone in account.removed()
            for other in self.correct()
            if other.member == gone and other.first_slot is not None and other.first_slot < slot
            if other.left is None or slot <= other.left.final_slot
        ]

    def unordered(self) -> list[str]:
        """Total order by its definition: every two logs have their common messages in the same order."""
        logs = [list(account.delivered) for account in self.records.values()]
        found = []
        for number, log in enumerate(logs):
            for other in logs[:number]:
                places = {message: place for place, message in enumerate(other)}
                shared = [places[message] for message in log if message in places]
                if shared != sorted(shared):
                    found.append(f"{log} and {other}")
        return found

    def verdicts(self) -> dict[str, Verdict]:
        """The verdicts of the checkers."""
        timing = self.timing
        meta = RunMeta(
            run="paper",
            group="paper",
            order="vbr",
            members=self.members,
            delta_ns=timing.delta_ns,
            gamma_ns=timing.gamma_ns,
            theta_ns=timing.theta_ns,
            bound_ns=self.bound_ns,
            reliable=False,
            source="sim",
        )
        return check_all(self._memory.trace(meta), until_ns=self.world.now)

    def failed_checks(self, *, ignore: Sequence[str] = ()) -> dict[str, Verdict]:
        """The verdicts that are not valid; a run without messages has none."""
        if not any(account.sent_ns for account in self.records.values()):
            return {}
        return {n: v for n, v in self.verdicts().items() if v.status is not Status.VALID and n not in ignore}


def _takes_part(record: MemberRecord, slot: int) -> bool:
    first = record.first_slot
    return first is not None and first <= slot and (record.left is None or slot <= record.left.final_slot)


def fixed(offsets_ns: Mapping[int, int]) -> dict[int, Clock]:
    """A constant offset per member."""
    return {member: FixedClock(offset) for member, offset in offsets_ns.items()}


@dataclass(frozen=True, slots=True)
class ChurnPlan:
    """The parameters of a random schedule, for the message of a failing test."""

    seed: int
    timing: Timing
    clocks: str
    delays: str
    events: tuple[str, ...]


def random_churn(
    seed: int, *, loss_burst: int = 0, orders: Mapping[int, type[VbrGaps]] | None = None
) -> tuple[ChurnPlan, GapGroup]:
    """Two to five members who come, crash, come back and leave, under anything that §2 and §6 allow; it has been run.

    With `loss_burst`, each link also loses datagrams, at most this many in a row.
    """
    chance = Random(seed)
    theta = chance.choice((MS, 5 * MS, chance.randint(MS // 2, 10 * MS)))
    delta = chance.choice((1, theta // 3, 2 * theta, chance.randint(1, 3 * theta)))
    gamma = chance.choice((0, 2, theta // 2, 2 * (chance.randint(0, 3 * theta // 2) // 2)))
    timing = Timing(delta, gamma, theta)
    members = tuple(sorted(chance.sample(range(1, 2000), chance.choice((2, 2, 3, 3, 4, 5)))))
    start = EPOCH_NS - EPOCH_NS % theta + chance.randint(0, theta)
    slots = chance.randint(6, 12)
    span = slots * theta + 3 * (delta + gamma)
    clock_kind, clocks = _random_clocks(chance, timing, members, start, span)
    delay_kind, network = _random_network(chance, timing, members, loss_burst)
    group = GapGroup(
        timing,
        clocks,
        network,
        rates={member: full_rate(chance.randint(1, 4), timing) for member in members},
        orders=orders,
        loss_burst=loss_burst,
        max_message=chance.choice((200, 3000)),
        max_frame=chance.choice((256, 1400)),
        start_ns=start,
        starts_ns={m: start + chance.choice((0, 0, 1, chance.randint(0, span // 2))) for m in members},
    )
    happens = []
    largest = group.latest_record(members[0]).order._policy.max_message
    for member in members:
        for _ in range(chance.choice((0, 5, 20))):
            size = chance.choice((0, 1, largest, chance.randint(0, largest)))
            group.send(start + chance.randint(0, span), member, *[size] * chance.choice((1, 1, 3)))
        at = start
        for _ in range(chance.choice((0, 0, 1, 2, 3))):
            at += chance.randint(0, span // 2)
            end = chance.choice((group.crash, group.crash, group.leave))
            end(at, member)
            happens.append(f"{end.__name__} {member} at {at - start}")
            if chance.random() < 0.7:
                # At once, before any member has suspected it, or later.
                at += chance.choice((0, 1, delta, chance.randint(0, span // 3)))
                group.restart(at, member)
                happens.append(f"restart {member} at {at - start}")
    group.run(start + 2 * span + 3 * group.bound_ns)
    return ChurnPlan(seed, timing, clock_kind, delay_kind, tuple(happens)), group


def _random_clocks(
    chance: Random, timing: Timing, members: Sequence[int], start: int, span: int
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
                clocks[member] = corner_clock(chance, half, start, start + 3 * span, timing.theta_ns)
    return kind, clocks


def _random_network(
    chance: Random, timing: Timing, members: Sequence[int], loss_burst: int
) -> tuple[str, SimulatedNetwork]:
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
    # FIFO order reveals losses (§7); without loss, the numbers in the headers restore the order.
    fifo = loss_burst > 0 or chance.random() < 0.8
    network = adversarial_network(members, adversaries[kind], delta, fifo=fifo)
    if loss_burst:
        loss = Loss(Span(), chance.choice((0.1, 0.5, 1.0)), loss_burst, loss_burst + 1)
        network.faults = (LossFault((loss,), 0, chance),)
    return f"{kind}{'' if fifo else ', not FIFO'}", network
