"""The event loop of the simulator: the order of events at equal times, faults of members, applications."""

from collections.abc import Sequence

import pytest
from tests.worlds.adversaries import adversarial_network

from unisono.errors import InvalidOption
from unisono.model.effects import Datagram, Effects
from unisono.model.events import View
from unisono.model.policy import Policy
from unisono.model.timing import Timing
from unisono.model.units import Rate
from unisono.model.workloads import cbr
from unisono.sim.clocks import Clock, FixedClock
from unisono.sim.member import PayloadMismatch, WakesForever
from unisono.sim.network import SimulatedNetwork, constant_delay
from unisono.sim.random_streams import RandomStreams
from unisono.sim.traffic import TrafficLedger
from unisono.sim.world import World
from unisono.stack import build
from unisono.trace.recorder import MemoryTrace
from unisono.trace.schema import OBSERVER, EventKind

MS = 1_000_000
TIMING = Timing(10 * MS, 2 * MS, 5 * MS)
START = 1_700_000_000_000 * MS


class Scribe:
    """A machine that logs its inputs, wakes at given times and accepts a given number of messages."""

    def __init__(self, alarms: Sequence[int] = (), takes: Sequence[int] = ()) -> None:
        self.log: list[tuple[str, int, object]] = []
        self.alarms = list(alarms)
        self.takes = list(takes)
        self.out: list[Datagram] = []

    def submit(self, now: int, messages: Sequence[bytes]) -> int:
        taken = min(self.takes.pop(0) if self.takes else len(messages), len(messages))
        self.log.append(("submit", now, taken))
        self.out += [Datagram((1, 2), message, to_group=True) for message in messages[:taken]]
        return taken

    def receive(self, now: int, data: bytes) -> None:
        self.log.append(("receive", now, len(data)))

    def wake(self, now: int) -> None:
        self.log.append(("wake", now, None))
        if self.alarms and now >= self.alarms[0]:
            self.alarms.pop(0)

    def step(self) -> Effects:
        out, self.out = self.out, []
        return Effects((), out, (), self.alarms[0] if self.alarms else None)

    def change_rate(self, now: int, rate: Rate) -> None:
        self.log.append(("new_rate", now, rate.burst))

    def leave(self, now: int) -> None:
        self.log.append(("leave", now, None))


def two(first: Scribe, second: Scribe, *, delay: int = 10, offsets: tuple[int, int] = (0, 0)) -> World:
    world = World(adversarial_network((1, 2), constant_delay(delay), 1000))
    for member, machine, offset in ((1, first, offsets[0]), (2, second, offsets[1])):
        world.add(member, machine, FixedClock(offset), TIMING)
    return world


def test_at_equal_times_arrivals_come_before_timers_and_inputs() -> None:
    second = Scribe(alarms=[110])
    world = two(Scribe(), second)
    world.send(110, 2, [1])
    world.send(100, 1, [7])
    world.run(200)
    assert [entry for entry in second.log if entry[1] == 110] == [
        ("receive", 110, 7),
        ("submit", 110, 1),
        ("wake", 110, None),
    ]


def test_datagrams_of_one_instant_arrive_in_the_order_sent() -> None:
    second = Scribe()
    world = two(Scribe(), second)
    world.send(100, 1, [1, 2, 3])
    world.run(200)
    assert [what for verb, _, what in second.log if verb == "receive"] == [1, 2, 3]


def test_machines_see_their_own_clocks_only() -> None:
    first, second = Scribe(alarms=[150]), Scribe()
    world = two(first, second, offsets=(50, 3))
    world.send(100, 1, [9])
    world.run(99)
    assert world.now == 99
    assert first.log == [("wake", 50, None)]
    world.run(200)
    assert first.log[1:] == [("submit", 150, 1), ("wake", 150, None)]
    assert second.log == [("wake", 3, None), ("receive", 113, 9)]


def test_a_member_starts_when_its_clock_shows_zero_at_the_earliest() -> None:
    first = Scribe()
    two(first, Scribe(), offsets=(-40, 0)).run(100)
    assert first.log == [("wake", 0, None)]


def test_a_datagram_to_a_member_that_is_not_up_is_lost() -> None:
    world = World(adversarial_network((1, 2), constant_delay(10), 10))
    second = Scribe()
    world.add(1, Scribe(), FixedClock(), TIMING)
    world.add(2, second, FixedClock(), TIMING, starts_at_ns=100)
    for at in (50, 95):
        world.send(at, 1, [at])
    world.run(200)
    assert second.log == [("wake", 100, None), ("receive", 105, 95)]


def test_a_crashed_member_does_nothing_more() -> None:
    second = Scribe(alarms=[120])
    world = two(Scribe(), second)
    world.send(95, 1, [1])
    world.crash(100, 2)
    world.send(110, 2, [1])
    world.run(200)
    assert second.log == [("wake", 0, None)]
    assert not world.members[2].up


def test_inputs_wait_for_the_end_of_a_pause() -> None:
    second = Scribe(alarms=[105])
    world = two(Scribe(), second)
    world.pause(100, 150, 2)
    world.send(95, 1, [3])
    world.send(97, 1, [4])
    world.send(120, 2, [5])
    world.send(145, 1, [6])
    world.run(200)
    at_end = [(verb, what) for verb, now, what in second.log if now == 150]
    assert at_end[:2] == [("receive", 3), ("receive", 4)]
    assert at_end[2:] == [("wake", None), ("submit", 1)]
    assert second.log[-1] == ("receive", 155, 6)


def test_messages_not_accepted_are_submitted_again_at_the_next_wake_up() -> None:
    first, second = Scribe(alarms=[200, 300, 400], takes=[1, 0, 5]), Scribe()
    world = two(first, second)
    world.send(100, 1, [1, 2, 3])
    world.run(150)
    assert world.members[1].waiting_count == 2
    world.run(500)
    assert [entry for entry in first.log if entry[0] == "submit"] == [
        ("submit", 100, 1),
        ("submit", 200, 0),
        ("submit", 300, 2),
    ]
    assert [what for verb, _, what in second.log if verb == "receive"] == [1, 2, 3]
    assert world.members[1].waiting_count == 0


class Restless(Scribe):
    """A machine that asks after every input to be woken at once."""

    def step(self) -> Effects:
        return Effects((), (), (), 0)


def test_a_machine_that_always_wants_to_wake_does_not_stop_time() -> None:
    restless = Restless()
    two(restless, Scribe()).run(20)
    assert [now for _, now, _ in restless.log] == list(range(21))


def test_a_machine_that_asks_for_ever_to_be_woken_at_once_is_named() -> None:
    world = two(Restless(), Scribe())
    with pytest.raises(WakesForever, match="member 1, which runs Restless, asked 10,000 times in a row"):
        world.run(MS)


def test_the_check_runs_after_every_step() -> None:
    seen: list[int] = []

    def check(world: World) -> None:
        seen.append(world.now)

    world = World(SimulatedNetwork([]), check=check)
    world.add(1, Scribe(alarms=[5, 9]), FixedClock(), TIMING)
    world.run(100)
    assert seen == [0, 5, 9]
    assert world.steps == 3


def test_requests_reach_the_machine() -> None:
    first = Scribe()
    world = two(first, Scribe())
    world.change_rate(10, 1, Rate(1, 7))
    world.leave(20, 1)
    world.run(30)
    assert first.log[1:] == [("new_rate", 10, 7), ("leave", 20, None)]


def test_a_member_can_be_added_only_once() -> None:
    world = two(Scribe(), Scribe())
    with pytest.raises(InvalidOption, match="already in the world"):
        world.add(2, Scribe(), FixedClock(), TIMING)


# -- with the real stack -------------------------------------------------------------------------------------


def group(
    clocks: dict[int, Clock], *, delay: int = 3 * MS, burst: int = 8, start: int = START
) -> tuple[World, MemoryTrace]:
    members = tuple(clocks)
    memory = MemoryTrace("run", "g")
    network = adversarial_network(members, constant_delay(delay), TIMING.delta_ns)
    world = World(network, start_ns=start, memory_trace=memory, ledger=TrafficLedger(), compare_payloads=True)
    for member, clock in clocks.items():
        policy = Policy("g", member, View(members), TIMING, Rate(1600, burst), max_message=2000)
        offers = cbr(100, (10, 1900), RandomStreams(1).stream("workload", member))
        world.add(member, build(policy), clock, TIMING, workload=offers)
    return world, memory


def kinds(memory: MemoryTrace, member: int) -> list[str]:
    codes = {kind.code: kind.value for kind in EventKind}
    return [codes[row[0]] for row in memory.packed_rows.get((member, 0 if member == OBSERVER else 1), [])]


@pytest.mark.parametrize("start", [0, START])
def test_a_group_delivers_what_it_sends(start: int) -> None:
    world, memory = group({1: FixedClock(MS), 2: FixedClock(-MS), 3: FixedClock()}, start=start)
    world.send_until_ns = start + 300 * MS
    world.run(start + 400 * MS)
    sent = sum(node.accepted for node in world.members.values())
    assert sent > 50
    assert [node.delivered for node in world.members.values()] == [sent] * 3
    assert kinds(memory, 1)[:2] == ["start", "view"]


def test_leaving_and_crashing_are_recorded() -> None:
    world, memory = group({1: FixedClock(), 2: FixedClock(), 3: FixedClock()})
    world.leave(START + 100 * MS, 2)
    world.crash(START + 200 * MS, 3)
    world.run(START + 300 * MS)
    assert kinds(memory, 2)[-1] == "leave"
    assert kinds(memory, OBSERVER) == ["crash"]
    assert "violation" in kinds(memory, 1)
    assert not world.members[2].up


def test_changed_bytes_are_detected() -> None:
    world, _ = group({1: FixedClock(), 2: FixedClock()})
    world.run(START + 100 * MS)
    assert world.sent_payloads is not None
    world.sent_payloads[1, 1].extend([b"never sent"] * 5)
    world.members[1].accepted += 5
    with pytest.raises(PayloadMismatch, match="member"):
        world.run(START + 200 * MS)


def test_the_ledger_counts_frames_by_their_slot() -> None:
    world, _ = group({1: FixedClock(), 2: FixedClock()})
    world.run(START + 200 * MS)
    assert world.ledger is not None
    load = world.ledger.traffic[1]
    slots = list(load.frames_by_slot)
    assert slots == list(range(slots[0], slots[0] + len(slots)))
    assert min(load.frames_by_slot.values()) == 1
    assert load.control_frames >= 2
