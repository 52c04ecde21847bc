"""A simulated world for membership alone: bare automata, an unreliable network, crashes, pauses, joins, leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from heapq import heappop, heappush
from random import Random

from unisono.agreement.membership.multicast import Receive, ReceiveUnicast
from unisono.agreement.membership.views import Membership, NewView, NoLongerMember, StateReceived, StateRequested
from unisono.check.priority import view_atomicity
from unisono.check.total_order import fifo
from unisono.check.verdict import Status, Verdict
from unisono.trace.recorder import MemoryTrace, view_extras
from unisono.trace.schema import EventKind, RunMeta
from unisono.wire.codec import decode_message
from unisono.wire.frame import Frame

MS = 1_000_000
HEARTBEAT_NS = 20 * MS
RETRY_NS = 12 * MS
FAULT_PHASE_NS = 600 * MS


class Member:
    """One member, in all its incarnations."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.incarnation = 0
        self.automaton: Membership | None = None
        self.alarm_number = 0
        self.paused_until = 0
        self.sent = self.index = 0
        self.received: set[tuple[int, int, int]] = set()
        self.views: list[NewView] = []
        self.exclusion_reasons: list[str] = []
        self.unicasts: list[ReceiveUnicast] = []
        self.rejoin = True


class MembershipWorld:
    """Members 1 to n. The founders create the group."""

    def __init__(self, seed: int, members: int = 3, founders: int | None = None, max_frame: int = 256) -> None:
        self.chance = Random(seed)
        self.numbers = tuple(range(1, members + 1))
        self.founders = self.numbers[:founders]
        self.members = {n: Member(n) for n in self.numbers}
        self.max_frame = max_frame
        self.now = 0
        self.loss = self.duplication = 0.0
        self.delay = (0, 3 * MS)
        self.partition: dict[int, int] = {}
        self.memory_trace = MemoryTrace("membership", "swarm")
        self.states: dict[int, frozenset[tuple[int, int, int]]] = {}
        """By view, the messages that all its members have received when it begins."""
        self.state_problems: list[str] = []
        self._heap: list[tuple[int, int, Callable[..., None], tuple[object, ...]]] = []
        self._scheduled_count = 0

    def schedule(self, at: int, callback: Callable[..., None], *arguments: object) -> None:
        self._scheduled_count += 1
        heappush(self._heap, (at, self._scheduled_count, callback, arguments))

    def run(self, until: int) -> None:
        while self._heap and self._heap[0][0] <= until:
            self.now, _, callback, arguments = heappop(self._heap)
            callback(*arguments)
        self.now = until

    # -- inputs -----------------------------------------------------------------------------

    def start(self, number: int) -> None:
        member = self.members[number]
        if member.automaton is not None:
            return
        member.incarnation += 1
        member.sent = member.index = 0
        member.received = set()
        founders = self.founders if member.incarnation == 1 else ()
        member.automaton = Membership(
            number,
            founders,
            incarnation=member.incarnation,
            every_ns=HEARTBEAT_NS,
            retry_ns=RETRY_NS,
            max_frame=self.max_frame,
        )
        self.wake(member)

    def crash(self, number: int) -> None:
        self.members[number].automaton = None

    def pause(self, number: int, until: int) -> None:
        self.members[number].paused_until = until

    def leave(self, number: int) -> None:
        member = self.members[number]
        if member.automaton is not None:
            member.rejoin = False
            member.automaton.leave(self.now)
            self.flush(member)

    def multicast(self, number: int, count: int = 1) -> None:
        member = self.members[number]
        for _ in range(count):
            if member.automaton is None:
                return
            body = b"%d" % member.sent + b"." * self.chance.choice((0, 10, 500))
            self.memory_trace.recorder(number, incarnation=member.incarnation).sent(
                first_sequence=member.sent, count=1, sizes=1, slot=0, first_place=0, real_ns=self.now, local_ns=self.now
            )
            member.sent += 1
            member.automaton.multicast(self.now, body)
            self.flush(member)

    def unicast(self, number: int, to: int, body: bytes) -> None:
        member = self.members[number]
        if member.automaton is not None:
            member.automaton.unicast(self.now, to, body)
            self.flush(member)

    # -- running ---------------------------------------------------------------------------------------------

    def wake(self, member: Member, number: int | None = None) -> None:
        if member.automaton is None or (number is not None and number != member.alarm_number):
            return
        if self.now < member.paused_until:
            self.schedule(member.paused_until, self.wake, member, number)
            return
        member.automaton.wake(self.now)
        self.flush(member)

    def arrive(self, number: int, frame: Frame) -> None:
        member = self.members[number]
        if member.automaton is None:
            return
        if self.now < member.paused_until:
            self.schedule(member.paused_until, self.arrive, number, frame)
            return
        received = replace(frame, message=decode_message(frame.kind, bytes(frame.body)))
        member.automaton.from_below(self.now, received)
        self.flush(member)

    def flush(self, member: Member) -> None:
        automaton = member.automaton
        assert automaton is not None
        recorder = self.memory_trace.recorder(member.number, incarnation=member.incarnation)
        while automaton.stream:
            event = automaton.stream.pop(0)
            match event:
                case Receive():
                    sequence = int(event.body.rstrip(b"."))
                    recorder.delivered(
                        sender=event.sender,
                        sender_incarnation=event.incarnation,
                        first_sequence=sequence,
                        count=1,
                        sizes=1,
                        slot=event.view_id,
                        first_place=0,
                        first_index=member.index,
                        real_ns=self.now,
                        local_ns=self.now,
                        view=event.view_id,
                    )
                    member.index += 1
                    member.received.add((event.sender, event.incarnation, sequence))
                case NewView():
                    view = event.view_id
                    extras = view_extras(view, event.members, event.incarnations)
                    recorder.event(EventKind.VIEW, slot=view, real_ns=self.now, local_ns=self.now, extras=extras)
                    member.views.append(event)
                    if self.states.setdefault(view, frozenset(member.received)) != member.received:
                        self.state_problems.append(f"member {member.number} begins view {view} with a different state")
                case StateRequested():
                    state = b";".join(b"%d,%d,%d" % message for message in sorted(member.received))
                    automaton.provide_state(self.now, event.view_id, state)
                case StateReceived():
                    rows = [row.split(b",") for row in event.state.split(b";") if row]
                    member.received = {(int(a), int(b), int(c)) for a, b, c in rows}
                case ReceiveUnicast():
                    member.unicasts.append(event)
                case NoLongerMember():
                    member.exclusion_reasons.append(event.reason)
                    member.automaton = None
                    if member.rejoin:
                        self.schedule(self.now + 5 * MS, self.start, member.number)
        frames, automaton.down[:] = automaton.down[:], []
        for frame in frames:
            for peer in self.numbers:
                if peer != member.number and frame.to in {0, peer}:
                    self.transmit(member.number, peer, frame)
        member.alarm_number += 1
        at = automaton.wake_at()
        if at is not None and member.automaton is not None:
            self.schedule(max(self.now + 1, at), self.wake, member, member.alarm_number)

    def transmit(self, sender: int, receiver: int, frame: Frame) -> None:
        if self.partition.get(sender, 0) != self.partition.get(receiver, 0):
            return
        for _ in range(1 + (self.chance.random() < self.duplication)):
            if self.chance.random() >= self.loss:
                low, high = self.delay
                self.schedule(self.now + low + int(self.chance.random() * (high - low)), self.arrive, receiver, frame)

    # -- results ---------------------------------------------------------------------------------------------

    def verdicts(self) -> list[Verdict]:
        meta = RunMeta(
            run="membership",
            group="swarm",
            order="none",
            members=self.numbers,
            delta_ns=1,
            gamma_ns=1,
            theta_ns=1,
            bound_ns=None,
            reliable=False,
            source="sim",
        )
        trace = self.memory_trace.trace(meta)
        return [view_atomicity(trace), fifo(trace)]

    def problems(self) -> list[str]:
        texts = [v.witness.text for v in self.verdicts() if v.status is Status.VIOLATED and v.witness is not None]
        return [*self.state_problems, *texts]

    def all_in_one_view(self) -> bool:
        """Whether exactly the running members are in one view, and none of them is blocked."""
        running = [m for m in self.members.values() if m.automaton is not None]
        if not running or any(not m.views or m.automaton is None or m.automaton.blocked() for m in running):
            return False
        views = {
            (m.automaton.view_id, tuple(m.automaton.incarnations.items())) for m in running if m.automaton is not None
        }
        first = running[0].automaton
        return len(views) == 1 and first is not None and len(first.incarnations) == len(running)

    def cannot_recover(self) -> bool:
        """Whether too many members have crashed for good.

        That is half of the last view, all members with its state, or, without a view, half of the founders.
        """
        alive = {(n, m.incarnation) for n, m in self.members.items() if m.automaton is not None}
        views = [view for member in self.members.values() for view in member.views]
        if not views:
            return 2 * len([n for n in self.founders if (n, 1) in alive]) <= len(self.founders)
        last = max(views, key=lambda view: view.view_id)
        left = [run for run in zip(last.members, last.incarnations, strict=True) if run in alive]
        inside = [m for m in self.members.values() if m.automaton is not None and m.automaton.view_id == last.view_id]
        return 2 * len(left) <= len(last.members) or not inside


def faulty_world(seed: int) -> MembershipWorld:
    """A world with random faults until FAULT_PHASE_NS: joins, leaves, crashes, restarts, pauses and a partition."""
    chance = Random(seed ^ 0xBEEF)
    count = chance.choice((2, 3, 3, 4, 5))
    founders = chance.randrange(1, count + 1)
    world = MembershipWorld(seed, count, founders)
    world.loss = chance.choice((0.0, 0.02, 0.2))
    world.duplication = chance.choice((0.0, 0.1, 0.5))
    world.delay = chance.choice(((0, 2 * MS), (0, 12 * MS), (MS, 30 * MS)))
    for number in world.numbers:
        first = chance.randrange(20 * MS) if number in world.founders else chance.randrange(FAULT_PHASE_NS)
        world.schedule(first, world.start, number)
        for _ in range(chance.randrange(20)):
            world.schedule(chance.randrange(FAULT_PHASE_NS), world.multicast, number, chance.choice((1, 1, 5)))
        fault = chance.random()
        at = chance.randrange(FAULT_PHASE_NS)
        if fault < 0.3:
            world.schedule(at, world.crash, number)
            if chance.random() < 0.7:
                world.schedule(at + chance.choice((0, 1, chance.randrange(200 * MS))), world.start, number)
        elif fault < 0.45:
            world.schedule(at, world.pause, number, at + chance.randrange(400 * MS))
        elif fault < 0.55:
            world.schedule(at, world.leave, number)
    if chance.random() < 0.4:
        sides = {number: chance.randrange(2) for number in world.numbers}
        at = chance.randrange(FAULT_PHASE_NS)
        world.schedule(at, world.partition.update, sides)
        world.schedule(min(FAULT_PHASE_NS, at + chance.randrange(500 * MS)), world.partition.clear)
    return world


def recovers_after_faults(world: MembershipWorld) -> bool:
    """Run a faulty world, then end all faults. Returns whether all running members end up in one view.

    A group whose majority has crashed for good cannot recover; then only safety can be checked.
    """
    world.run(FAULT_PHASE_NS)
    world.partition.clear()
    world.loss, world.duplication, world.delay = 0.0, 0.0, (0, 2 * MS)
    if not _reaches_one_view(world):
        return world.cannot_recover()
    for number in world.numbers:
        world.multicast(number)
    world.run(world.now + 300 * MS)
    # A member that has been paused since before the faults ended is detected only now, and a leaving member may have
    # had to wait.
    return _reaches_one_view(world) or world.cannot_recover()


def _reaches_one_view(world: MembershipWorld) -> bool:
    until = world.now + 6000 * MS
    while not world.all_in_one_view() and world.now < until:
        world.run(world.now + 100 * MS)
    return world.all_in_one_view()
