"""A small world for membership alone: bare automata, a network that does anything, crashes, pauses, joins, leaves."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random

from unisono.agreement.membership.contract import NewView, Out, Receive, StateGiven, StateWanted, Told
from unisono.agreement.membership.views import Membership
from unisono.check.fifo import fifo
from unisono.check.verdict import Status, Verdict
from unisono.check.view_atomicity import view_atomicity
from unisono.trace.kinds import EventKind
from unisono.trace.meta import RunMeta
from unisono.trace.recorder import MemoryTrace, view_extras
from unisono.wire.frame import Frame

MS = 1_000_000
EVERY = 20 * MS
RETRY = 12 * MS
TROUBLE = 600 * MS


class Member:
    """One member through its lives."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.life = 0
        self.automaton: Membership | None = None
        self.alarm = 0
        self.paused_until = 0
        self.sent = self.index = 0
        self.seen: set[tuple[int, int, int]] = set()
        self.views: list[NewView] = []
        self.outs: list[str] = []
        self.told: list[Told] = []
        self.rejoin = True


class MembershipWorld:
    """Members 1 to n; the founders begin the group."""

    def __init__(self, seed: int, members: int = 3, founders: int | None = None, max_frame: int = 256) -> None:
        self.chance = Random(seed)
        self.numbers = tuple(range(1, members + 1))
        self.founders = self.numbers[:founders]
        self.members = {n: Member(n) for n in self.numbers}
        self.max_frame = max_frame
        self.now = 0
        self.loss = self.duplication = 0.0
        self.delay = (0, 3 * MS)
        self.sides: dict[int, int] = {}
        self.memory = MemoryTrace("membership", "swarm")
        self.states: dict[int, frozenset[tuple[int, int, int]]] = {}
        """By view, what everybody who comes from the view before has seen at its beginning."""
        self.wrong: list[str] = []
        self._heap: list[tuple[int, int, Callable[..., None], tuple[object, ...]]] = []
        self._planned = 0

    def later(self, at: int, act: Callable[..., None], *what: object) -> None:
        self._planned += 1
        heappush(self._heap, (at, self._planned, act, what))

    def run(self, until: int) -> None:
        while self._heap and self._heap[0][0] <= until:
            self.now, _, act, what = heappop(self._heap)
            act(*what)
        self.now = until

    # -- what happens to members -----------------------------------------------------------------------------

    def start(self, number: int) -> None:
        member = self.members[number]
        if member.automaton is not None:
            return
        member.life += 1
        member.sent = member.index = 0
        member.seen = set()
        founders = self.founders if member.life == 1 else ()
        member.automaton = Membership(
            number, founders, incarnation=member.life, every_ns=EVERY, retry_ns=RETRY, max_frame=self.max_frame
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
            self.settle(member)

    def multicast(self, number: int, count: int = 1) -> None:
        member = self.members[number]
        for _ in range(count):
            if member.automaton is None:
                return
            body = b"%d" % member.sent + b"." * self.chance.choice((0, 10, 500))
            self.memory.recorder(number, life=member.life).sent(
                first_sequence=member.sent, count=1, sizes=1, slot=0, first_place=0, real_ns=self.now, local_ns=self.now
            )
            member.sent += 1
            member.automaton.multicast(self.now, body)
            self.settle(member)

    def tell(self, number: int, to: int, body: bytes) -> None:
        member = self.members[number]
        if member.automaton is not None:
            member.automaton.tell(self.now, to, body)
            self.settle(member)

    # -- running ---------------------------------------------------------------------------------------------

    def wake(self, member: Member, number: int | None = None) -> None:
        if member.automaton is None or (number is not None and number != member.alarm):
            return
        if self.now < member.paused_until:
            self.later(member.paused_until, self.wake, member, number)
            return
        member.automaton.wake(self.now)
        self.settle(member)

    def arrive(self, number: int, frame: Frame) -> None:
        member = self.members[number]
        if member.automaton is None:
            return
        if self.now < member.paused_until:
            self.later(member.paused_until, self.arrive, number, frame)
            return
        member.automaton.from_below(self.now, frame)
        self.settle(member)

    def settle(self, member: Member) -> None:
        automaton = member.automaton
        assert automaton is not None
        recorder = self.memory.recorder(member.number, life=member.life)
        while automaton.stream:
            happening = automaton.stream.pop(0)
            match happening:
                case Receive():
                    sequence = int(happening.body.rstrip(b"."))
                    recorder.delivered(
                        sender=happening.sender,
                        incarnation=happening.incarnation,
                        first_sequence=sequence,
                        count=1,
                        sizes=1,
                        slot=happening.view_id,
                        first_place=0,
                        first_index=member.index,
                        real_ns=self.now,
                        local_ns=self.now,
                        view=happening.view_id,
                    )
                    member.index += 1
                    member.seen.add((happening.sender, happening.incarnation, sequence))
                case NewView():
                    view = happening.view_id
                    extras = view_extras(view, happening.members, happening.incarnations)
                    recorder.event(EventKind.VIEW, slot=view, real_ns=self.now, local_ns=self.now, extras=extras)
                    member.views.append(happening)
                    if self.states.setdefault(view, frozenset(member.seen)) != member.seen:
                        self.wrong.append(f"member {member.number} begins view {view} with another state")
                case StateWanted():
                    state = b";".join(b"%d,%d,%d" % seen for seen in sorted(member.seen))
                    automaton.give_state(self.now, happening.view_id, state)
                case StateGiven():
                    rows = [row.split(b",") for row in happening.state.split(b";") if row]
                    member.seen = {(int(a), int(b), int(c)) for a, b, c in rows}
                case Told():
                    member.told.append(happening)
                case Out():
                    member.outs.append(happening.reason)
                    member.automaton = None
                    if member.rejoin:
                        self.later(self.now + 5 * MS, self.start, member.number)
        frames, automaton.down[:] = automaton.down[:], []
        for frame in frames:
            for peer in self.numbers:
                if peer != member.number and frame.to in {0, peer}:
                    self.transmit(member.number, peer, frame)
        member.alarm += 1
        at = automaton.wake_at()
        if at is not None and member.automaton is not None:
            self.later(max(self.now + 1, at), self.wake, member, member.alarm)

    def transmit(self, sender: int, receiver: int, frame: Frame) -> None:
        if self.sides.get(sender, 0) != self.sides.get(receiver, 0):
            return
        for _ in range(1 + (self.chance.random() < self.duplication)):
            if self.chance.random() >= self.loss:
                low, high = self.delay
                self.later(self.now + low + int(self.chance.random() * (high - low)), self.arrive, receiver, frame)

    # -- judging ---------------------------------------------------------------------------------------------

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
        trace = self.memory.trace(meta)
        return [view_atomicity(trace), fifo(trace)]

    def faults(self) -> list[str]:
        texts = [v.witness.text for v in self.verdicts() if v.status is Status.VIOLATED and v.witness is not None]
        return [*self.wrong, *texts]

    def together(self) -> bool:
        """Whether everybody who is up is in one view with all others that are up, and nobody waits."""
        up = [member for member in self.members.values() if member.automaton is not None]
        if not up or any(not member.views or member.automaton is None or member.automaton.blocked() for member in up):
            return False
        views = {(m.automaton.view_id, tuple(m.automaton.lives.items())) for m in up if m.automaton is not None}
        return len(views) == 1 and up[0].automaton is not None and len(up[0].automaton.lives) == len(up)

    def hopeless(self) -> bool:
        """Whether a majority of the last view is gone for good, or all who had its state, or the founders never met."""
        alive = {(n, m.life) for n, m in self.members.items() if m.automaton is not None}
        views = [view for member in self.members.values() for view in member.views]
        if not views:
            return 2 * len([n for n in self.founders if (n, 1) in alive]) <= len(self.founders)
        last = max(views, key=lambda view: view.view_id)
        there = [life for life in zip(last.members, last.incarnations, strict=True) if life in alive]
        inside = [m for m in self.members.values() if m.automaton is not None and m.automaton.view_id == last.view_id]
        return 2 * len(there) <= len(last.members) or not inside


def stormy(seed: int) -> MembershipWorld:
    """A while of anything: members come, go, crash, come back, stand still, and the network divides."""
    chance = Random(seed ^ 0xBEEF)
    count = chance.choice((2, 3, 3, 4, 5))
    founders = chance.randrange(1, count + 1)
    world = MembershipWorld(seed, count, founders)
    world.loss = chance.choice((0.0, 0.02, 0.2))
    world.duplication = chance.choice((0.0, 0.1, 0.5))
    world.delay = chance.choice(((0, 2 * MS), (0, 12 * MS), (MS, 30 * MS)))
    for number in world.numbers:
        first = chance.randrange(20 * MS) if number in world.founders else chance.randrange(TROUBLE)
        world.later(first, world.start, number)
        for _ in range(chance.randrange(20)):
            world.later(chance.randrange(TROUBLE), world.multicast, number, chance.choice((1, 1, 5)))
        what = chance.random()
        at = chance.randrange(TROUBLE)
        if what < 0.3:
            world.later(at, world.crash, number)
            if chance.random() < 0.7:
                world.later(at + chance.choice((0, 1, chance.randrange(200 * MS))), world.start, number)
        elif what < 0.45:
            world.later(at, world.pause, number, at + chance.randrange(400 * MS))
        elif what < 0.55:
            world.later(at, world.leave, number)
    if chance.random() < 0.4:
        sides = {number: chance.randrange(2) for number in world.numbers}
        at = chance.randrange(TROUBLE)
        world.later(at, world.sides.update, sides)
        world.later(min(TROUBLE, at + chance.randrange(500 * MS)), world.sides.clear)
    return world


def calm_after(world: MembershipWorld) -> bool:
    """Let a stormy world run, then mend everything; whether all who are up end in one view, and talk in it.

    A group whose majority has crashed for good cannot: then only safety can be asked for.
    """
    world.run(TROUBLE)
    world.sides.clear()
    world.loss, world.duplication, world.delay = 0.0, 0.0, (0, 2 * MS)
    if not _comes_together(world):
        return world.hopeless()
    for number in world.numbers:
        world.multicast(number)
    world.run(world.now + 300 * MS)
    # Who stood still since before the calm is noticed only now, and who leaves may have had to wait.
    return _comes_together(world) or world.hopeless()


def _comes_together(world: MembershipWorld) -> bool:
    until = world.now + 6000 * MS
    while not world.together() and world.now < until:
        world.run(world.now + 100 * MS)
    return world.together()
