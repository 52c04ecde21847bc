"""The guarantees of paper 000 §5 in random schedules: VBR stacks, delays up to Δ, clocks within Γ."""

import heapq
import random
from collections import Counter, defaultdict
from typing import Any

import pytest
from tests.full_rate import full_rate
from tests.stepping import events, outgoing, wake_at

from unisono.model.events import POSITIONS_PER_SENDER, Batch, LeaveComplete, StackEvent, View, ViewChange, Violation
from unisono.model.policy import Policy
from unisono.model.timing import Timing
from unisono.orders.packing import frames_per_slot
from unisono.orders.vbr.order import VbrOrder
from unisono.stack import build
from unisono.wire.door import Door
from unisono.wire.frame import END_OF_SLOT, LEAVING, Kind

MS = 1_000_000
T0 = 10**18


class World:
    """Members with fixed clock offsets; the network delays by up to Δ, reorders, and duplicates if `duplicates`."""

    def __init__(self, seed: int, duplicates: bool = False, **changes: Any) -> None:
        self.chance = chance = random.Random(seed)
        self.duplicates = duplicates
        theta = chance.choice([2, 5, 20]) * MS
        self.timing = Timing(chance.choice([0, 1, 10, 30]) * MS, chance.choice([0, 2, 7]) * MS, theta)
        members = tuple(sorted(chance.sample(range(1, 10), chance.randint(1, 4))))
        fields: dict[str, Any] = {"max_frame": 256, "max_message": 700, "probe_every_ns": chance.choice([0, 40 * MS])}
        fields.update(changes)
        rates = {m: full_rate(chance.choice([1, 2, 3, 8]), self.timing) for m in members}
        self.policies = {m: Policy("g", m, View(members), self.timing, rates[m], **fields) for m in members}
        half = self.timing.gamma_ns // 2
        self.offset = {m: chance.choice([-half, half, chance.randint(-half, half)]) for m in members}
        self.stacks = {m: build(self.policies[m]) for m in members}
        self.events: dict[int, list[StackEvent]] = {m: [] for m in members}
        self.submitted: dict[bytes, tuple[int, int]] = {}
        """The real time and the slot of each message's submission."""
        self.delivered_at: dict[int, dict[bytes, int]] = {m: {} for m in members}
        self.frames: dict[int, Counter[int]] = defaultdict(Counter)
        self.marks: dict[int, Counter[int]] = defaultdict(Counter)
        self.now = T0
        self._heap: list[tuple[int, int, int, bytes]] = []
        self._sent = 0
        self._paused: dict[int, list[bytes]] = {}

    def pause(self, member: int) -> None:
        """The member neither wakes nor reads; its socket buffer keeps arriving datagrams."""
        self._paused[member] = []

    def resume(self, member: int) -> None:
        for data in self._paused.pop(member):
            self.stacks[member].receive(self.clock(member), data)
        self.stacks[member].wake(self.clock(member))
        self.after(member)

    def vbr(self, member: int) -> VbrOrder:
        order = self.stacks[member].order
        assert isinstance(order, VbrOrder)
        return order

    def clock(self, member: int) -> int:
        return self.now + self.offset[member]

    def run(self, until: int) -> None:
        """Arrivals before timers at equal times (erratum 000-22)."""
        while True:
            due = [
                (max(self.now, at - self.offset[m]), 1, m)
                for m, stack in self.stacks.items()
                if m not in self._paused and (at := wake_at(stack)) is not None
            ]
            if self._heap:
                due.append((self._heap[0][0], 0, 0))
            when, timer, member = min(due, default=(until + 1, 0, 0))
            if when > until:
                self.now = until
                return
            self.now = when
            if timer:
                self.stacks[member].wake(self.clock(member))
                again = wake_at(self.stacks[member])
                assert again is None or again > self.clock(member), "a wake makes progress"
            else:
                _, _, member, data = heapq.heappop(self._heap)
                if member in self._paused:
                    self._paused[member].append(data)
                    continue
                self.stacks[member].receive(self.clock(member), data)
            self.after(member)

    def after(self, member: int) -> None:
        stack, delta = self.stacks[member], self.timing.delta_ns
        for datagram in outgoing(stack):
            self._record(member, datagram.data)
            for peer in self.stacks:
                if peer != member and peer in datagram.destinations:
                    for _ in range(2 if self.duplicates and self.chance.random() < 0.5 else 1):
                        self._sent += 1
                        delay = self.chance.choice([0, delta, self.chance.randint(0, delta)])
                        heapq.heappush(self._heap, (self.now + delay, self._sent, peer, datagram.data))
        for event in events(stack):
            self.events[member].append(event)
            if isinstance(event, Batch):
                for message in event.messages:
                    assert message not in self.delivered_at[member], "delivered twice"
                    self.delivered_at[member][message] = self.now

    def _record(self, member: int, data: bytes) -> None:
        door = Door(int.from_bytes(data[8:12]), 0, (member,))
        frame = door.admit(data, 0, len(data), 2**63)
        assert frame is not None, door.refused
        assert len(data) <= self.policies[member].max_frame
        if frame.kind is Kind.DATA:
            assert frame.number == self.frames[member][frame.slot]
            self.frames[member][frame.slot] += 1
            self.marks[member][frame.slot] += bool(frame.flags & END_OF_SLOT)
            if frame.flags & LEAVING:
                self.marks[member][-1] += 1

    def submit(self, member: int, count: int) -> int:
        messages = []
        for n in range(count):
            label = f"{member} {self.now} {len(self.submitted)} {n} ".encode()
            messages.append(label.ljust(self.chance.choice([0, 60, 203, 210, 700]), b"."))
        accepted = self.stacks[member].submit(self.clock(member), messages)
        for message in messages[:accepted]:
            self.submitted[message] = (self.now, self.timing.slot_of(self.clock(member)))
        self.after(member)
        return accepted

    def form(self) -> None:
        limit = self.timing.delta_ns + self.timing.gamma_ns + self.timing.theta_ns
        self.run(self.now + 3 * limit + 300 * MS)
        assert all(stack.order.running() for stack in self.stacks.values())

    def slots(self, count: int) -> None:
        """Random traffic for `count` slots, in steps that may be shorter or longer than a slot."""
        until = self.now + count * self.timing.theta_ns
        while self.now < until:
            member = self.chance.choice(list(self.stacks))
            self.submit(member, self.chance.choice([1, 1, 2, 5, 20]))
            self.run(self.now + self.chance.choice([0, 1, self.timing.theta_ns // 7, self.timing.theta_ns]))

    def drain(self) -> None:
        self.run(self.now + self.timing.delta_ns + 2 * self.timing.gamma_ns + 3 * self.timing.theta_ns)

    # -- properties --------------------------------------------------------------------------------------------

    def order_of(self, member: int) -> list[tuple[int, int, bytes]]:
        return [(e.slot, e.sender, m) for e in self.events[member] if isinstance(e, Batch) for m in e.messages]

    def check(self, on_time: bool = True) -> None:
        bound = self.timing.delta_ns + self.timing.gamma_ns + self.timing.theta_ns
        longest = max((self.order_of(m) for m in self.stacks), key=len)
        assert {message for _, _, message in longest} == set(self.submitted), "all accepted messages, and nothing else"
        assert [row[:2] for row in longest] == sorted(row[:2] for row in longest), "by slot, then by member"
        for slot, _, message in longest:
            assert slot == self.submitted[message][1], "delivered in the slot in which it was submitted"
        for member in self.stacks:
            order = self.order_of(member)
            assert order == longest[: len(order)], "one order"
            if on_time:
                assert not [e for e in self.events[member] if isinstance(e, Violation)]
                late = [m for m, at in self.delivered_at[member].items() if at - self.submitted[m][0] > bound]
                assert not late, "Theorem 2"
            assert not self.stacks[member].door.refused
            self._check_numbers(member)
            self._check_marks(member)

    def _check_numbers(self, member: int) -> None:
        next_sequence: Counter[int] = Counter()
        in_slot: Counter[tuple[int, int]] = Counter()
        index = 0
        for event in self.events[member]:
            if isinstance(event, Batch):
                assert event.first_sequence == next_sequence[event.sender], "no gaps (FIFO)"
                assert event.first_index == index
                place = event.sender * POSITIONS_PER_SENDER + in_slot[event.slot, event.sender]
                assert event.first_position == place, "numbered from 0 in each slot"
                in_slot[event.slot, event.sender] += event.count
                assert event.count == len(event.messages)
                assert event.payload_bytes == sum(event.sizes()) == sum(map(len, event.messages))
                next_sequence[event.sender] += event.count
                index += event.count

    def _check_marks(self, member: int) -> None:
        finals = self.marks[member].pop(-1, 0)
        slots = sorted(self.marks[member])
        first = self.vbr(member).exchange.first_slot()
        assert slots == list(range(first, first + len(slots))), "no slot is skipped"
        ended = [slot for slot in slots if self.marks[member][slot] == 1]
        assert ended in (slots, slots[:-1]), "one mark per slot; the slot being sent may have none yet"
        assert finals == any(isinstance(event, LeaveComplete) for event in self.events[member])


@pytest.mark.parametrize("seed", range(60))
def test_one_order_on_time_and_in_the_slot_of_submission(seed: int) -> None:
    world = World(seed)
    world.form()
    world.slots(25)
    world.drain()
    world.check()
    assert all(world.order_of(m) == world.order_of(min(world.stacks)) for m in world.stacks)
    for member, policy in world.policies.items():
        most = frames_per_slot(policy.rate, policy.max_message, policy.max_frame)
        assert max(world.frames[member].values()) <= most


@pytest.mark.parametrize("seed", range(30))
def test_duplicated_datagrams_change_nothing_and_are_not_kept(seed: int) -> None:
    world = World(seed, duplicates=True)
    world.form()
    world.slots(15)
    world.drain()
    world.check()
    for member in world.stacks:
        vbr = world.vbr(member)
        oldest = [min(queue.slots) for queue in vbr._rqueues.values() if queue.slots]
        assert all(slot >= vbr._deliver_slot for slot in oldest), "delivered slots are not kept"


@pytest.mark.parametrize("seed", range(30))
def test_rate_changes_in_every_slot_move_no_message_to_another_slot(seed: int) -> None:
    """Errata 000-15 to 000-17, Lemma 5.1."""
    world = World(seed)
    world.form()
    chance = world.chance
    for _ in range(20):
        for member in world.stacks:
            clock = world.clock(member)
            world.stacks[member].change_rate(clock, full_rate(chance.choice([1, 2, 3]), world.timing))
            world.after(member)
            assert world.submit(member, 10) <= 8
        world.run(world.now + world.timing.theta_ns)
    world.drain()
    world.check()


@pytest.mark.parametrize("seed", range(40))
def test_a_leaving_member_departs_at_the_same_position_everywhere(seed: int) -> None:
    world = World(seed)
    world.form()
    world.slots(5)
    members = list(world.stacks)
    leaving = world.chance.sample(members, world.chance.randint(1, len(members)))
    for member in leaving:
        world.stacks[member].leave(world.clock(member))
        world.after(member)
        if world.chance.random() < 0.7:
            world.slots(world.chance.choice([1, 2, 6]))
    world.slots(5)
    world.drain()
    world.check()
    final = {m: [e for e in world.events[m] if isinstance(e, LeaveComplete)] for m in leaving}
    assert all(len(left) == 1 and world.events[m][-1] == left[0] for m, left in final.items())
    changes = {m: [e for e in world.events[m] if isinstance(e, ViewChange)][1:] for m in members}
    longest = max(changes.values(), key=len)
    for member in members:
        assert changes[member] == longest[: len(changes[member])], "one sequence of views"
        if member not in leaving:
            assert changes[member] == longest
            departed = {m: change.view.first_slot - 1 for change in longest for m in change.left}
            assert departed == {m: left[0].final_slot for m, left in final.items()}
        for place, event in enumerate(world.events[member]):
            if isinstance(event, ViewChange) and event.left:
                before = [e.slot for e in world.events[member][:place] if isinstance(e, Batch)]
                behind = [e.slot for e in world.events[member][place:] if isinstance(e, Batch)]
                assert all(slot < event.view.first_slot for slot in before)
                assert all(slot >= event.view.first_slot for slot in behind)
    for member in leaving:
        assert max(world.frames[member]) == final[member][0].final_slot, "nothing is sent after the final slot"


@pytest.mark.parametrize("seed", range(20))
def test_a_stalled_peer_keeps_every_sender_within_its_window(seed: int) -> None:
    """Back-pressure: no queue is longer than the window, and no accepted message is lost."""
    world = World(seed, probe_every_ns=0)
    world.form()
    if len(world.stacks) == 1:
        return
    stalled = world.chance.choice(list(world.stacks))
    others = [m for m in world.stacks if m != stalled]
    world.pause(stalled)
    for _ in range(30):
        for member in others:
            vbr = world.vbr(member)
            if world.submit(member, 1):
                assert len(vbr._undelivered_own_slots) <= vbr.window_slots
        world.run(world.now + world.timing.theta_ns)
    assert all(not world.submit(member, 1) for member in others), "the window is full"
    for member in others:
        reports = [e for e in world.events[member] if isinstance(e, Violation)]
        assert [(e.kind, e.member) for e in reports] == [("late", stalled)], "reported once, for the slot that waits"
    world.resume(stalled)
    # Members are at most two windows apart, so they catch up in steps of that size.
    world.run(world.now + 30 * (world.timing.delta_ns + world.timing.theta_ns))
    assert all(world.submit(member, 1) == 1 for member in others), "its marks let the others go on"
    world.slots(5)
    world.drain()
    world.check(on_time=False)


def test_the_same_seed_gives_the_same_run() -> None:
    def run() -> tuple[Any, ...]:
        world = World(7, duplicates=True)
        world.form()
        world.slots(10)
        world.drain()
        return tuple(world.order_of(m) for m in world.stacks), world._sent

    assert run() == run()
