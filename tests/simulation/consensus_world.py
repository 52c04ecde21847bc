"""A simulated world for consensus alone: bare automata, an unreliable network, disks that lose unsynced records.

Each receiver decodes the sender's bytes, as the door does. The headers belong to the stack; other tests cover them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from heapq import heappop, heappush
from random import Random

from tests.worlds.check_consensus import DecisionReported, Proposed, consensus

from unisono.agreement.paxos.acceptor import RestoredState
from unisono.agreement.paxos.consensus import Consensus
from unisono.check.verdict import Verdict
from unisono.model.effects import StoredRecords
from unisono.sim.disk import SimDisk
from unisono.wire.codec import decode_message
from unisono.wire.frame import Frame

MS = 1_000_000
HEARTBEAT_NS = 20 * MS
RETRY_NS = 12 * MS
FAULT_PHASE_NS = 400 * MS


class Member:
    """One member, with the disk that survives its crashes."""

    def __init__(self, number: int, disk: SimDisk) -> None:
        self.number = number
        self.disk = disk
        self.incarnation = 0
        self.automaton: Consensus | None = None
        self.clock_offset_ns = 0
        self.alarm_number = 0
        self.paused_until = 0
        self.state = b""
        self.last_decided = 0


class ConsensusWorld:
    """Members 1 to n. `now` is real time; each member's clock is off by the steps it has made."""

    def __init__(self, seed: int, members: int = 3, *, loses_synced_records: bool = False, window: int = 8) -> None:
        self.chance = Random(seed)
        self.numbers = tuple(range(1, members + 1))
        self.members = {
            n: Member(n, SimDisk(Random(seed * 31 + n), loses_synced_records=loses_synced_records))
            for n in self.numbers
        }
        self.window = window
        self.now = 0
        self.loss = self.duplication = 0.0
        self.delay = (0, 3 * MS)
        self.partition: dict[int, int] = {}
        self.proposed: list[Proposed] = []
        self.reported: list[DecisionReported] = []
        self.states: dict[int, bytes] = {0: b""}
        self.compact_every = 0
        self.frames = 0
        self.crash_at_step: int | None = None
        """Crash the member that takes the step with this number. A step is a write or a frame sent."""
        self.step_count = 0
        self._heap: list[tuple[int, int, Callable[..., None], tuple[object, ...]]] = []
        self._scheduled_count = 0

    # -- events and inputs --------------------------------------------------------------------------------------------

    def schedule(self, at: int, callback: Callable[..., None], *arguments: object) -> None:
        self._scheduled_count += 1
        heappush(self._heap, (at, self._scheduled_count, callback, arguments))

    def run(self, until: int) -> None:
        while self._heap and self._heap[0][0] <= until:
            self.now, _, callback, arguments = heappop(self._heap)
            callback(*arguments)
        self.now = until

    def start(self, number: int) -> None:
        member = self.members[number]
        if member.automaton is not None:
            return
        member.incarnation += 1
        member.automaton = Consensus(
            number,
            self.numbers,
            every_ns=HEARTBEAT_NS,
            retry_ns=RETRY_NS,
            incarnation=member.incarnation,
            window=self.window,
            retain=4,
            stored_records=StoredRecords(number, tuple(member.disk.records())),
            max_frame=256,
        )
        member.state, member.last_decided = b"", 0
        self.wake(member)

    def crash(self, number: int) -> None:
        member = self.members[number]
        if member.automaton is not None:
            member.automaton = None
            member.disk.crash()

    def step_clock(self, number: int, by_ns: int) -> None:
        self.members[number].clock_offset_ns += by_ns
        self.wake(self.members[number])

    def pause(self, number: int, until: int) -> None:
        self.members[number].paused_until = until

    def propose(self, number: int, ahead: int) -> None:
        """Propose values for the next instance and for `ahead` more."""
        automaton = self.members[number].automaton
        if automaton is None:
            return
        for k in range(automaton.decided + 1, automaton.decided + 2 + ahead):
            value = b"%d.%d of %d at %d" % (number, self.members[number].incarnation, k, self.now)
            value += b"x" * self.chance.choice((0, 0, 60))
            self.proposed.append(Proposed(number, k, value))
            automaton.propose(self.now + self.members[number].clock_offset_ns, k, value)
        self.flush(self.members[number])

    # -- running ---------------------------------------------------------------------------------------------

    def wake(self, member: Member, number: int | None = None) -> None:
        if member.automaton is None or (number is not None and number != member.alarm_number):
            return
        if self.now < member.paused_until:
            self.schedule(member.paused_until, self.wake, member, number)
            return
        member.automaton.wake(self.now + member.clock_offset_ns)
        self.flush(member)

    def arrive(self, number: int, frame: Frame) -> None:
        member = self.members[number]
        if member.automaton is None:
            return
        if self.now < member.paused_until:
            self.schedule(member.paused_until, self.arrive, number, frame)
            return
        received = replace(frame, message=decode_message(frame.kind, bytes(frame.body)))
        member.automaton.from_below(self.now + member.clock_offset_ns, received)
        self.flush(member)

    def survives_step(self, member: Member) -> bool:
        """Count one step of a member. Returns False if it crashes at this step."""
        self.step_count += 1
        if self.step_count - 1 == self.crash_at_step:
            self.crash(member.number)
            return False
        return True

    def flush(self, member: Member) -> None:
        """Apply writes, then send frames, then handle decisions."""
        automaton = member.automaton
        assert automaton is not None
        writes, frames = automaton.writes[:], automaton.down[:]
        automaton.writes.clear()
        automaton.down.clear()
        if writes:
            if not self.survives_step(member):
                return
            member.disk.apply(writes)
        for frame in frames:
            for peer in self.numbers:
                if peer != member.number and frame.to in {0, peer}:
                    if not self.survives_step(member):
                        return
                    self.transmit(member.number, peer, frame)
        decisions = automaton.decisions[:]
        automaton.decisions.clear()
        for decision in decisions:
            if isinstance(decision, RestoredState):
                self.reported.append(DecisionReported(member.number, member.incarnation, decision.k, None))
                assert decision.state == self.states[decision.k], "the restored state differs from the compacted one"
                member.state = decision.state
            else:
                self.reported.append(DecisionReported(member.number, member.incarnation, decision.k, decision.value))
                member.state = hashlib.blake2b(member.state + decision.value, digest_size=8).digest()
                self.states.setdefault(decision.k, member.state)
            member.last_decided = decision.k
            if self.compact_every and decision.k % self.compact_every == 0 and not isinstance(decision, RestoredState):
                automaton.compact(decision.k, member.state)
        if automaton.writes:
            member.disk.apply(automaton.writes)
            automaton.writes.clear()
        member.alarm_number += 1
        at = automaton.wake_at()
        if at is not None:
            self.schedule(max(self.now + 1, at - member.clock_offset_ns), self.wake, member, member.alarm_number)

    def transmit(self, sender: int, receiver: int, frame: Frame) -> None:
        self.frames += 1
        if self.partition.get(sender, 0) != self.partition.get(receiver, 0):
            return
        copies = 1 + (self.chance.random() < self.duplication)
        for _ in range(copies):
            if self.chance.random() >= self.loss:
                low, high = self.delay
                self.schedule(self.now + low + int(self.chance.random() * (high - low)), self.arrive, receiver, frame)

    # -- results ---------------------------------------------------------------------------------------------

    def verdict(self) -> Verdict:
        return consensus(self.proposed, self.reported)

    def lagging(self) -> list[int]:
        """Members that have not reached the last decision of any member."""
        last = max((report.instance for report in self.reported), default=0)
        return [n for n, member in self.members.items() if member.last_decided < last]


def faulty_world(seed: int, *, loses_synced_records: bool = False) -> ConsensusWorld:
    """A world with random faults until FAULT_PHASE_NS. `recovers_after_faults` runs it."""
    chance = Random(seed ^ 0x5EED)
    world = ConsensusWorld(
        seed,
        chance.choice((2, 3, 3, 3, 4, 5)),
        loses_synced_records=loses_synced_records,
        window=chance.choice((1, 4, 8)),
    )
    world.compact_every = chance.choice((0, 0, 3, 10))
    world.loss = chance.choice((0.0, 0.02, 0.2, 0.4))
    world.duplication = chance.choice((0.0, 0.1, 0.5))
    world.delay = chance.choice(((0, 2 * MS), (0, 12 * MS), (MS, 40 * MS)))
    for number in world.numbers:
        world.schedule(chance.randrange(20 * MS), world.start, number)
        for _ in range(chance.randrange(12)):
            world.schedule(chance.randrange(FAULT_PHASE_NS), world.propose, number, chance.choice((0, 0, 1, 3)))
        if chance.random() < 0.5:
            for _ in range(chance.randrange(1, 4)):
                at = chance.randrange(FAULT_PHASE_NS)
                world.schedule(at, world.crash, number)
                world.schedule(at + chance.choice((0, 1, chance.randrange(150 * MS))), world.start, number)
        if chance.random() < 0.3:
            at = chance.randrange(FAULT_PHASE_NS)
            world.schedule(at, world.pause, number, at + chance.randrange(200 * MS))
        if chance.random() < 0.3:
            world.schedule(
                chance.randrange(FAULT_PHASE_NS),
                world.step_clock,
                number,
                chance.choice((MS, 100 * MS, 3_600_000 * MS)),
            )
    for _ in range(chance.randrange(3)):
        sides = {number: chance.randrange(2) for number in world.numbers}
        at = chance.randrange(FAULT_PHASE_NS)
        world.schedule(at, world.partition.update, sides)
        world.schedule(min(FAULT_PHASE_NS, at + chance.randrange(300 * MS)), world.partition.clear)
    if chance.random() < 0.5:
        world.crash_at_step = chance.randrange(400)
    return world


def recovers_after_faults(world: ConsensusWorld) -> bool:
    """Run a faulty world, then end all faults. Returns whether all values proposed then are decided everywhere."""
    world.run(FAULT_PHASE_NS)
    world.partition.clear()
    world.loss, world.duplication, world.delay, world.crash_at_step = 0.0, 0.0, (0, 2 * MS), None
    for number in world.numbers:
        world.start(number)
        world.schedule(world.now + 300 * MS, world.propose, number, 0)
    asked_at = world.now + 300 * MS
    while world.now < FAULT_PHASE_NS + 3000 * MS:
        world.run(world.now + 50 * MS)
        if world.now > asked_at and not world.lagging():
            decided = max((report.instance for report in world.reported), default=0)
            if all(proposal.instance <= decided for proposal in world.proposed[-len(world.numbers) :]):
                return True
    return False
