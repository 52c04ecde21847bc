"""A small world for consensus alone: bare automata, a network that does anything, disks that lose what was not synced.

Frames go over with their encoded bodies; the headers are the stack's matter and are tried elsewhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random

from unisono.agreement.paxos.consensus import Consensus
from unisono.agreement.paxos.decisions import Restored
from unisono.check.consensus import Proposed, Told, consensus
from unisono.check.verdict import Verdict
from unisono.model.stored_records import Memory
from unisono.sim.disk import SimDisk
from unisono.wire.frame import Frame

MS = 1_000_000
EVERY = 20 * MS
RETRY = 12 * MS
TROUBLE = 400 * MS


class Member:
    """One member: its disk outlives its lives."""

    def __init__(self, number: int, disk: SimDisk) -> None:
        self.number = number
        self.disk = disk
        self.life = 0
        self.automaton: Consensus | None = None
        self.offset = 0
        self.alarm = 0
        self.paused_until = 0
        self.state = b""
        self.at = 0


class ConsensusWorld:
    """Members 1 to n; time is true time, and each clock is off by what its leaps have left."""

    def __init__(self, seed: int, members: int = 3, *, forgets: bool = False, window: int = 8) -> None:
        self.chance = Random(seed)
        self.numbers = tuple(range(1, members + 1))
        self.members = {n: Member(n, SimDisk(Random(seed * 31 + n), forgets=forgets)) for n in self.numbers}
        self.window = window
        self.now = 0
        self.loss = self.duplication = 0.0
        self.delay = (0, 3 * MS)
        self.sides: dict[int, int] = {}
        self.proposed: list[Proposed] = []
        self.told: list[Told] = []
        self.states: dict[int, bytes] = {0: b""}
        self.compact_every = 0
        self.frames = 0
        self.crash_at_step: int | None = None
        """Crash whoever takes this step: a write, or a frame put on the network."""
        self.steps = 0
        self._heap: list[tuple[int, int, Callable[..., None], tuple[object, ...]]] = []
        self._planned = 0

    # -- planning --------------------------------------------------------------------------------------------

    def later(self, at: int, act: Callable[..., None], *what: object) -> None:
        self._planned += 1
        heappush(self._heap, (at, self._planned, act, what))

    def run(self, until: int) -> None:
        while self._heap and self._heap[0][0] <= until:
            self.now, _, act, what = heappop(self._heap)
            act(*what)
        self.now = until

    def start(self, number: int) -> None:
        member = self.members[number]
        if member.automaton is not None:
            return
        member.life += 1
        member.automaton = Consensus(
            number,
            self.numbers,
            every_ns=EVERY,
            retry_ns=RETRY,
            incarnation=member.life,
            window=self.window,
            retain=4,
            memory=Memory(number, tuple(member.disk.records())),
            max_frame=256,
        )
        member.state, member.at = b"", 0
        self.wake(member)

    def crash(self, number: int) -> None:
        member = self.members[number]
        if member.automaton is not None:
            member.automaton = None
            member.disk.crash()

    def leap(self, number: int, by: int) -> None:
        self.members[number].offset += by
        self.wake(self.members[number])

    def pause(self, number: int, until: int) -> None:
        self.members[number].paused_until = until

    def propose(self, number: int, ahead: int) -> None:
        """For the next instance and some that follow, if the window has room."""
        automaton = self.members[number].automaton
        if automaton is None:
            return
        for k in range(automaton.decided + 1, automaton.decided + 2 + ahead):
            value = b"%d.%d of %d at %d" % (number, self.members[number].life, k, self.now)
            value += b"x" * self.chance.choice((0, 0, 60))
            self.proposed.append(Proposed(number, k, value))
            automaton.propose(self.now + self.members[number].offset, k, value)
        self.settle(self.members[number])

    # -- running ---------------------------------------------------------------------------------------------

    def wake(self, member: Member, number: int | None = None) -> None:
        if member.automaton is None or (number is not None and number != member.alarm):
            return
        if self.now < member.paused_until:
            self.later(member.paused_until, self.wake, member, number)
            return
        member.automaton.wake(self.now + member.offset)
        self.settle(member)

    def arrive(self, number: int, frame: Frame) -> None:
        member = self.members[number]
        if member.automaton is None:
            return
        if self.now < member.paused_until:
            self.later(member.paused_until, self.arrive, number, frame)
            return
        member.automaton.from_below(self.now + member.offset, frame)
        self.settle(member)

    def step(self, member: Member) -> bool:
        """Whether the member lives through its next step."""
        self.steps += 1
        if self.steps - 1 == self.crash_at_step:
            self.crash(member.number)
            return False
        return True

    def settle(self, member: Member) -> None:
        """Writes, then frames, then decisions."""
        automaton = member.automaton
        assert automaton is not None
        writes, frames = automaton.writes[:], automaton.down[:]
        automaton.writes.clear()
        automaton.down.clear()
        if writes:
            if not self.step(member):
                return
            member.disk.apply(writes)
        for frame in frames:
            for peer in self.numbers:
                if peer != member.number and frame.to in {0, peer}:
                    if not self.step(member):
                        return
                    self.transmit(member.number, peer, frame)
        decisions = automaton.decisions[:]
        automaton.decisions.clear()
        for decision in decisions:
            if isinstance(decision, Restored):
                self.told.append(Told(member.number, member.life, decision.k, None))
                assert decision.state == self.states[decision.k], "another state than was compacted"
                member.state = decision.state
            else:
                self.told.append(Told(member.number, member.life, decision.k, decision.value))
                member.state = hashlib.blake2b(member.state + decision.value, digest_size=8).digest()
                self.states.setdefault(decision.k, member.state)
            member.at = decision.k
            if self.compact_every and decision.k % self.compact_every == 0 and not isinstance(decision, Restored):
                automaton.compact(decision.k, member.state)
        if automaton.writes:
            member.disk.apply(automaton.writes)
            automaton.writes.clear()
        member.alarm += 1
        at = automaton.wake_at()
        if at is not None:
            self.later(max(self.now + 1, at - member.offset), self.wake, member, member.alarm)

    def transmit(self, sender: int, receiver: int, frame: Frame) -> None:
        self.frames += 1
        if self.sides.get(sender, 0) != self.sides.get(receiver, 0):
            return
        copies = 1 + (self.chance.random() < self.duplication)
        for _ in range(copies):
            if self.chance.random() >= self.loss:
                low, high = self.delay
                self.later(self.now + low + int(self.chance.random() * (high - low)), self.arrive, receiver, frame)

    # -- judging ---------------------------------------------------------------------------------------------

    def verdict(self) -> Verdict:
        return consensus(self.proposed, self.told)

    def lagging(self) -> list[int]:
        """Members that are not as far as somebody is."""
        furthest = max((told.k for told in self.told), default=0)
        return [n for n, member in self.members.items() if member.at < furthest]


def stormy(seed: int, *, forgets: bool = False) -> ConsensusWorld:
    """A while of anything, then quiet: safety all the way, and progress in the end."""
    chance = Random(seed ^ 0x5EED)
    world = ConsensusWorld(seed, chance.choice((2, 3, 3, 3, 4, 5)), forgets=forgets, window=chance.choice((1, 4, 8)))
    world.compact_every = chance.choice((0, 0, 3, 10))
    world.loss = chance.choice((0.0, 0.02, 0.2, 0.4))
    world.duplication = chance.choice((0.0, 0.1, 0.5))
    world.delay = chance.choice(((0, 2 * MS), (0, 12 * MS), (MS, 40 * MS)))
    trouble = TROUBLE
    for number in world.numbers:
        world.later(chance.randrange(20 * MS), world.start, number)
        for _ in range(chance.randrange(12)):
            world.later(chance.randrange(trouble), world.propose, number, chance.choice((0, 0, 1, 3)))
        if chance.random() < 0.5:
            for _ in range(chance.randrange(1, 4)):
                at = chance.randrange(trouble)
                world.later(at, world.crash, number)
                world.later(at + chance.choice((0, 1, chance.randrange(150 * MS))), world.start, number)
        if chance.random() < 0.3:
            at = chance.randrange(trouble)
            world.later(at, world.pause, number, at + chance.randrange(200 * MS))
        if chance.random() < 0.3:
            world.later(chance.randrange(trouble), world.leap, number, chance.choice((MS, 100 * MS, 3_600_000 * MS)))
    for _ in range(chance.randrange(3)):
        sides = {number: chance.randrange(2) for number in world.numbers}
        at = chance.randrange(trouble)
        world.later(at, world.sides.update, sides)
        world.later(min(trouble, at + chance.randrange(300 * MS)), world.sides.clear)
    if chance.random() < 0.5:
        world.crash_at_step = chance.randrange(400)
    return world


def calm_after(world: ConsensusWorld) -> bool:
    """Let a stormy world run, then mend everything; whether all that is proposed then is decided everywhere."""
    world.run(TROUBLE)
    world.sides.clear()
    world.loss, world.duplication, world.delay, world.crash_at_step = 0.0, 0.0, (0, 2 * MS), None
    for number in world.numbers:
        world.start(number)
        world.later(world.now + 300 * MS, world.propose, number, 0)
    asked_at = world.now + 300 * MS
    while world.now < TROUBLE + 3000 * MS:
        world.run(world.now + 50 * MS)
        if world.now > asked_at and not world.lagging():
            decided = max((told.k for told in world.told), default=0)
            if all(proposal.k <= decided for proposal in world.proposed[-len(world.numbers) :]):
                return True
    return False
