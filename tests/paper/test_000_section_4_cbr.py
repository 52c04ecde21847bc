"""Paper 000 §4: the CBR order. Figure 2, Lemmas 4.1 and 4.2, Theorem 1, NetRate = AppRate, §4.2, errata 000-5 to -12.

The tests compute latencies from the recorded rows, without unisono.check. Turn latencies count from the instant at
which the message's turn is sent (Theorem 1), the others from the submission by the application.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from random import Random
from typing import Any

import pytest
from tests.worlds.adversaries import adversarial_network, delay_per_link

from unisono.check.suite import check_all
from unisono.check.verdict import Status
from unisono.errors import ReservationRefused
from unisono.model.events import View
from unisono.model.policy import Policy
from unisono.model.scenario import EPOCH_NS
from unisono.model.timing import Timing
from unisono.model.units import BandwidthReservation, Rate, Reserver, UnlimitedNetwork
from unisono.net.clock_check import ClockCheck
from unisono.orders.cbr.bounds import latency_bound_ns, turn_bound_ns
from unisono.orders.cbr.order import CbrAction, CbrMode, CbrOrder
from unisono.orders.cbr.turns import CYCLE_NS, cbr_reservation, cycle_and_turn, due_ns, period_ns, porder_by_sorting
from unisono.orders.packing import SlotFrames
from unisono.sim.clocks import Clock, DriftingClock, FixedClock, corner_clock
from unisono.sim.network import Adversary, constant_delay, corners
from unisono.sim.traffic import TrafficLedger
from unisono.sim.world import World
from unisono.stack import Stack
from unisono.trace.recorder import MemoryTrace
from unisono.trace.schema import EventKind, RunMeta
from unisono.wire.frame import Kind, unpack_header

MS = 1_000_000
TIMING = Timing(10 * MS, 2 * MS, 5 * MS)
Name = tuple[int, int]


class RecordingCbr(CbrOrder):
    """Records its mode changes, and Porder and current before each turn that it processes (Lemma 4.1)."""

    def __init__(self, policy: Policy, reserver: Reserver) -> None:
        super().__init__(policy, reserver)
        self.modes = [self.mode]
        self.history: list[tuple[tuple[int, ...], int]] = []
        self.turns: dict[int, tuple[int, int]] = {}
        """When the turn of a message was sent, and its sender's rate at that time, by sequence."""
        self.true_now: Callable[[], int] = lambda: 0

    def _change_mode(self, action: CbrAction) -> None:
        super()._change_mode(action)
        self.modes.append(self.mode)

    def _process_turn(self, sender: int, frames: SlotFrames) -> None:
        self.history.append((self.porder, self.current))
        super()._process_turn(sender, frames)

    def _send_turn(self, now: int) -> None:
        if self._squeue is not None:
            self.turns[self._sequence] = (self.true_now(), self._renegotiation.rate)
        super()._send_turn(now)


class RecordingLedger(TrafficLedger):
    """Also records the kind and the slot of every datagram."""

    def __init__(self) -> None:
        super().__init__()
        self.headers: dict[int, list[tuple[int, int]]] = {}

    def record(self, member: int, datagrams: Sequence[Any]) -> None:
        super().record(member, datagrams)
        for datagram in datagrams:
            header = unpack_header(datagram.data, 0)
            self.headers.setdefault(member, []).append((header[1], header[10]))

    def per_cycle(self, member: int) -> dict[int, int]:
        """The number of data frames that a member sent, by cycle."""
        headers = self.headers.get(member, [])
        return dict(Counter(cycle_and_turn(slot)[0] for kind, slot in headers if kind == Kind.DATA))


class Group:
    """A running group with these rates and clocks; `epoch` is the clock reading of its first turn."""

    def __init__(
        self,
        rates: Mapping[int, int],
        *,
        timing: Timing = TIMING,
        clocks: Mapping[int, Clock] | None = None,
        delays: Adversary | None = None,
        fifo: bool = True,
        by: str = "sender",
        reservers: Mapping[int, Reserver] | None = None,
        starts: Mapping[int, int] | None = None,
        max_message: int = 1000,
        max_frame: int = 1400,
    ) -> None:
        self.timing, self.rates, self.members = timing, rates, tuple(sorted(rates))
        network = adversarial_network(
            self.members, delays or constant_delay(timing.delta_ns), timing.delta_ns, fifo=fifo
        )
        self._memory = MemoryTrace("cbr", "cbr")
        self.ledger = RecordingLedger()
        self.world = World(
            network, start_ns=EPOCH_NS, memory_trace=self._memory, ledger=self.ledger, compare_payloads=True
        )
        self.orders: dict[int, RecordingCbr] = {}
        self.policies: dict[int, Policy] = {}
        for member in self.members:
            policy = self.policies[member] = Policy(
                *("cbr", member, View(self.members), timing, Rate(rates[member], 1), "cbr"),
                max_message=max_message,
                max_frame=max_frame,
                reservation=by,
            )
            order = RecordingCbr(policy, (reservers or {}).get(member, UnlimitedNetwork()))
            order.true_now = lambda: self.world.now
            check = ClockCheck(policy)
            clock = (clocks or {}).get(member, FixedClock())
            at = EPOCH_NS + (starts or {}).get(member, 0)
            self.world.add(member, Stack(policy, order, [check], check), clock, timing, starts_at_ns=at)
            self.orders[member] = order
        until = EPOCH_NS
        while not all(order.running() for order in self.orders.values()):
            until += 50 * MS
            self.world.run(until)
        self.first = self.orders[self.members[0]].cycle
        self.epoch = due_ns(self.first, 0, 1)
        self.slowest = min(rates.values())
        self.last = self.epoch

    def turn(self, member: int, cycle: int, k: int, rate: int | None = None) -> int:
        """The true instant of a member's turn, `cycle` cycles after the first."""
        reading = due_ns(self.first + cycle, k, rate or self.rates[member])
        return self.world.members[member].clock.true_at(reading)

    def send(self, at: int, member: int, *sizes: int, after_the_turn: bool = False) -> None:
        """The application submits messages, just before a turn at the same instant or just after it."""
        self.last = max(self.last, at)
        if after_the_turn:
            self.world.schedule(at - 1, lambda _now, _: self.world.send(at, member, sizes or (100,)), None)
        else:
            self.world.send(at, member, sizes or (100,))

    def new_rate(self, at: int, member: int, rate: int) -> None:
        self.last = max(self.last, at)
        self.slowest = min(self.slowest, rate)
        self.world.change_rate(at, member, Rate(rate, 1))

    def leave(self, at: int, member: int) -> None:
        self.last = max(self.last, at)
        self.world.leave(at, member)

    @property
    def bound(self) -> int:
        return latency_bound_ns(self.timing, self.slowest)

    def run(self, cycles: int | None = None) -> Group:
        """Run this many cycles and Δ+Γ, or until all messages of the schedule are delivered."""
        if cycles is None:
            self.world.send_until_ns = self.last + 1
        until = self.last + self.bound if cycles is None else self.epoch + cycles * CYCLE_NS + self.timing.delta_ns
        self.world.run(until + self.timing.gamma_ns)
        return self

    def rows(self, kind: EventKind) -> list[tuple[int, Name, int]]:
        """(member, message, time) of each row of this kind."""
        rows = []
        for (member, _), packed_rows in self._memory.packed_rows.items():
            for code, sender, _, first, count, _, _, _, _, real, _, _ in packed_rows:
                if code == kind.code:
                    assert isinstance(real, int)
                    rows += [(member, (sender, sequence), real) for sequence in range(first, first + count)]
        return rows

    def delivered(self, member: int) -> list[Name]:
        return [message for at, message, _ in self.rows(EventKind.DELIVER) if at == member]

    def turn_latencies(self) -> list[int]:
        """The latencies from the sending of the turn, which Theorem 1 bounds."""
        return [now - self.orders[sender].turns[n][0] for _, (sender, n), now in self.rows(EventKind.DELIVER)]

    def excess(self) -> list[int]:
        """The latencies from submission, minus Δ+Γ and a period of the sender's rate: at most zero."""
        sent = {message: real for _, message, real in self.rows(EventKind.SEND)}
        slack = turn_bound_ns(self.timing)
        return [
            now - sent[sender, n] - slack - period_ns(self.orders[sender].turns[n][1])
            for _, (sender, n), now in self.rows(EventKind.DELIVER)
        ]

    def check(self) -> Group:
        """Assert that no member reports a violation and that all checkers find the run valid."""
        assert not [node.violations for node in self.world.members.values() if node.violations]
        timing = (self.timing.delta_ns, self.timing.gamma_ns, self.timing.theta_ns)
        meta = RunMeta("cbr", "cbr", "cbr", self.members, *timing, self.bound, True, "sim")
        verdicts = check_all(self._memory.trace(meta), until_ns=self.world.now)
        assert {v.status for v in verdicts.values()} <= {Status.VALID}, verdicts
        return self


@dataclass
class Schedule:
    """A random schedule that depends only on its seed."""

    seed: int
    cycles: int = 2
    changes: bool = True
    notes: list[str] = field(default_factory=list)

    def group(self) -> Group:
        chance = Random(self.seed)
        timing = Timing(
            chance.choice((0, 1, 10 * MS, chance.randint(0, 40 * MS), 300 * MS)),
            2 * chance.choice((0, 1, MS, chance.randint(0, 20 * MS))),
            chance.choice((5 * MS, 7_777_777, CYCLE_NS)),
        )
        members = sorted(chance.sample(range(1, 999), chance.randint(2, 5)))
        rates = {m: chance.choice((1, 2, 3, chance.randint(1, 12))) for m in members}
        group = Group(
            rates,
            timing=timing,
            clocks=self._clocks(chance, timing, members),
            delays=self._delays(chance, timing, members),
            fifo=chance.random() < 0.7,
            by=chance.choice(("sender", "receiver")),
            starts={m: chance.choice((0, chance.randint(0, 700 * MS))) for m in members},
            max_frame=chance.choice((256, 1400)),
        )
        for member in members:
            for cycle, k in product(range(self.cycles), range(rates[member])):
                at = group.turn(member, cycle, k)
                match chance.randrange(4):
                    case 0:
                        group.send(at, member, chance.choice((0, 1, 1000)))
                    case 1:
                        group.send(at, member, 10, after_the_turn=True)
                    case 2:
                        group.send(at + chance.randrange(period_ns(rates[member])), member, 100)
                    case _:
                        pass
            if self.changes and chance.random() < 0.5:
                at = group.epoch + chance.randrange(self.cycles * CYCLE_NS)
                group.new_rate(at, member, chance.randint(1, 12))
            if self.changes and chance.random() < 0.15:
                group.leave(group.epoch + chance.randrange(self.cycles * CYCLE_NS), member)
        return group

    def _clocks(self, chance: Random, timing: Timing, members: Sequence[int]) -> dict[int, Clock]:
        half = timing.gamma_ns // 2
        makers: dict[str, Callable[[], Clock]] = {
            "corners": lambda: FixedClock(chance.choice((-half, half))),
            "fixed": lambda: FixedClock(chance.randint(-half, half)),
            "drifting": lambda: DriftingClock(half, max(1, 2 * half) * chance.randint(1, 9), chance.randint(0, MS)),
            "stepping": lambda: corner_clock(chance, half, EPOCH_NS, EPOCH_NS + 6 * CYCLE_NS, 200 * MS),
        }
        kind = chance.choice(tuple(makers))
        self.notes.append(kind)
        return {member: makers[kind]() for member in members}

    def _delays(self, chance: Random, timing: Timing, members: Sequence[int]) -> Adversary:
        delta = timing.delta_ns
        links = {(a, b): chance.choice((0, delta)) for a in members for b in members}

        def uniform(*_: int) -> int:
            return chance.randint(0, delta)

        return chance.choice((corners(chance, delta), constant_delay(delta), delay_per_link(links), uniform))


# -- Figure 2 ------------------------------------------------------------------------------------------------------


def test_figure_2_mode_changes() -> None:
    group = Group({1: 2, 2: 2})
    group.new_rate(group.epoch + 100 * MS, 1, 3)
    group.run(3).check()
    start = [CbrMode.GET_RATE, CbrMode.FIRST_RESERVE, CbrMode.DET_ORDER, CbrMode.DELIVER_MESSAGES]
    assert group.orders[1].modes == [*start, CbrMode.RESERVE, CbrMode.DELIVER_MESSAGES]
    assert group.orders[2].modes == start, "change-rate at a receiver does not change its mode"


def test_figure_2_new_rate_in_det_order_leads_to_first_reserve() -> None:
    policy = Policy("cbr", 1, View((1, 2)), TIMING, Rate(2, 1), "cbr")
    alone = RecordingCbr(policy, UnlimitedNetwork())
    alone.wake(EPOCH_NS)
    alone.change_rate(EPOCH_NS + 1, Rate(3, 1))
    assert alone.modes == [
        CbrMode.GET_RATE,
        CbrMode.FIRST_RESERVE,
        CbrMode.DET_ORDER,
        CbrMode.FIRST_RESERVE,
        CbrMode.DET_ORDER,
    ]


# -- Lemmas 4.1 and 4.2 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", range(4))
def test_lemma_4_1_porder_and_current_agree_before_the_kth_message(part: int) -> None:
    changed = 0
    for seed in range(part * 25, (part + 1) * 25):
        group = Schedule(seed, cycles=3).group().run(4)
        histories = sorted((order.history for order in group.orders.values()), key=len)
        assert len(histories[0]) > 5
        for history in histories:
            assert histories[-1][: len(history)] == history, f"Schedule({seed}, cycles=3)"
        orders = {order for order, _ in histories[-1]}
        changed += len(orders) > 1
        assert histories[-1][0] == (porder_by_sorting(group.rates), 0)
    assert changed > 5, "some schedules contain renegotiations"


@pytest.mark.parametrize("part", range(4))
def test_lemma_4_2_all_members_deliver_the_same_kth_message(part: int) -> None:
    messages = 0
    for seed in range(1000 + part * 25, 1000 + (part + 1) * 25):
        group = Schedule(seed).group().run().check()
        logs = sorted((group.delivered(member) for member in group.members), key=len)
        for log in logs:
            assert logs[-1][: len(log)] == log, f"Schedule({seed})"
        sent = {message for _, message, _ in group.rows(EventKind.SEND)}
        for member in group.members:
            if not group.orders[member]._leaving:
                assert set(group.delivered(member)) == sent, (
                    "all members deliver all accepted messages within the bound"
                )
        messages += len(sent)
    assert messages > 200


# -- Theorem 1 -----------------------------------------------------------------------------------------------------


def check_theorem_1(seeds: range) -> tuple[int, int]:
    """Check latencies. Returns the number of delivered messages, and of schedules that attain Δ+Γ."""
    messages = attained = 0
    for seed in seeds:
        schedule = Schedule(seed, cycles=1 + seed % 2)
        group = schedule.group().run()
        latencies, limit = group.turn_latencies(), turn_bound_ns(group.timing)
        assert max(latencies, default=0) <= limit, f"{schedule}: above Δ+Γ from the turn"
        assert max(group.excess(), default=0) <= 0, f"{schedule}: above Δ+Γ and a period from submission"
        assert not [node.violations for node in group.world.members.values() if node.violations], schedule
        messages += len(latencies)
        attained += max(latencies, default=-1) == limit
    return messages, attained


@pytest.mark.parametrize("part", range(6))
def test_theorem_1_latency_is_at_most_delta_plus_gamma_in_600_random_schedules(part: int) -> None:
    messages, attained = check_theorem_1(range(part * 100, (part + 1) * 100))
    assert messages > 1000
    assert attained > 5, "some random schedules attain the bound, so they are demanding enough"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(12))
def test_theorem_1_latency_is_at_most_delta_plus_gamma_in_12000_random_schedules(part: int) -> None:
    check_theorem_1(range(10_000 + part * 1000, 10_000 + (part + 1) * 1000))


def tight(timing: Timing, members: int = 2, rate: int = 1, *, after_the_turn: bool = False) -> Group:
    """The last member's clock is Γ/2 ahead, the first one's Γ/2 behind, and datagrams of the first member take Δ."""
    half = timing.gamma_ns // 2
    clocks: dict[int, Clock] = {m: FixedClock() for m in range(1, members + 1)}
    clocks[1], clocks[members] = FixedClock(-half), FixedClock(half)
    delays = delay_per_link({(1, m): timing.delta_ns for m in clocks})
    group = Group(dict.fromkeys(clocks, rate), timing=timing, clocks=clocks, delays=delays)
    cycle, k = (0, rate - 1) if after_the_turn else (1, 0)
    group.send(group.turn(members, cycle, k), members, after_the_turn=after_the_turn)
    return group.run().check()


@pytest.mark.parametrize(
    "timing",
    [
        TIMING,
        Timing(0, 0, 1000),
        Timing(0, 2 * MS, 5 * MS),
        Timing(10 * MS, 0, 5 * MS),
        Timing(1, 2, 1001),
        Timing(123_456_789, 34_567_890, 5 * MS),
        Timing(1_700 * MS, 40 * MS, CYCLE_NS),
    ],
)
def test_theorem_1_delta_plus_gamma_is_attained_by_message_2_0(timing: Timing) -> None:
    """Rates (1,1), clocks -Γ/2 and +Γ/2: message (2,0) waits for (1,0), which leaves Γ later and takes Δ."""
    group = tight(timing)
    assert max(group.turn_latencies()) == turn_bound_ns(timing) == timing.delta_ns + timing.gamma_ns
    (sent,) = group.rows(EventKind.SEND)
    assert max(now for _, _, now in group.rows(EventKind.DELIVER)) - sent[2] == turn_bound_ns(timing), (
        "a message submitted at the very instant of its turn does not wait"
    )


@pytest.mark.parametrize("rate", [1, 2, 4, 100])
def test_theorem_1_the_bound_from_submission_is_attained(rate: int) -> None:
    """A message submitted just after a turn waits a whole period, and then takes Δ+Γ."""
    group = tight(TIMING, rate=rate, after_the_turn=True)
    assert max(group.excess()) == 0
    assert group.orders[1].bound_ns() == TIMING.delta_ns + TIMING.gamma_ns + period_ns(rate)


@pytest.mark.parametrize("members", [2, 3, 8, 16, pytest.param(64, marks=pytest.mark.slow)])
def test_theorem_1_does_not_depend_on_the_number_of_members(members: int) -> None:
    assert max(tight(TIMING, members).turn_latencies()) == 12 * MS


# -- rate ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("load", ["silent", "full", "greedy"])
def test_net_rate_is_app_rate_exactly(load: str) -> None:
    """A member sends exactly as many frames per second as declared, for any load of its application."""
    rates = {1: 1, 2: 7, 3: 20}
    group = Group(rates)
    if load != "silent":
        for member, rate in rates.items():
            for cycle, k in product(range(3), range(rate)):
                group.send(group.turn(member, cycle, k), member, *[50] * (3 if load == "greedy" else 1))
    group.run(3)
    for member, rate in rates.items():
        frames = group.ledger.per_cycle(member)
        assert [frames[group.first + cycle] for cycle in range(3)] == [rate] * 3
    if load == "full":
        assert sum(node.accepted for node in group.world.members.values()) == 3 * sum(rates.values())


def test_section_4_1_delays_do_not_grow_with_rates_10_and_100() -> None:
    """In round-robin delivery, message n of process 2 would wait ever longer for message n of process 1."""
    group = Group({1: 10, 2: 100}, clocks={1: FixedClock(-MS), 2: FixedClock(MS)})
    for cycle, member in product(range(5), (1, 2)):
        for k in range(group.rates[member]):
            group.send(group.turn(member, cycle, k), member)
    group.run(5).check()
    worst: Counter[int] = Counter()
    for _, (sender, n), now in group.rows(EventKind.DELIVER):
        cycle = n // group.rates[sender]
        worst[cycle] = max(worst[cycle], now - group.orders[sender].turns[n][0])
    assert [worst[cycle] for cycle in range(5)] == [12 * MS] * 5
    round_robin = [due_ns(0, n, 10) - due_ns(0, n, 100) for n in range(10)]
    assert round_robin == sorted(round_robin)
    assert round_robin[-1] == 810 * MS


# -- §4.2 ----------------------------------------------------------------------------------------------------------


class RecordingNetwork:
    """A network that records reservations, and refuses those above a limit."""

    def __init__(self, limit: int = 2**62) -> None:
        self.reserved: list[int] = []
        self.limit = limit

    def reserve(self, reservation: BandwidthReservation) -> None:
        requested = reservation.avg_bytes_per_s
        if requested > self.limit:
            raise ReservationRefused(requested, self.limit, self.limit)
        self.reserved.append(requested)


def test_section_4_2_the_smaller_rate_is_used_until_all_receivers_have_confirmed() -> None:
    """With Δ = 1.5 s a request and its confirmation take three cycles."""
    timing = Timing(1_500 * MS, 2 * MS, 5 * MS)
    networks = {m: RecordingNetwork() for m in (1, 2, 3)}
    group = Group({1: 2, 2: 3, 3: 3}, timing=timing, by="receiver", reservers=networks)
    group.new_rate(group.epoch + 100 * MS, 1, 8)
    for member in group.members:
        for cycle, k in product(range(7), range(group.rates[member])):
            group.send(group.turn(member, cycle, k), member)
    group.world.run(group.epoch + 3_100 * MS - 1)
    assert group.orders[1].modes[4:] == [CbrMode.RESERVE]
    group.run(7).check()
    frames = group.ledger.per_cycle(1)
    assert [frames[group.first + cycle] for cycle in range(7)] == [2, 2, 2, 2, 8, 8, 8]
    assert max(group.turn_latencies()) <= turn_bound_ns(timing), "latency is not affected"
    assert group.orders[1].modes[4:] == [CbrMode.RESERVE, CbrMode.DELIVER_MESSAGES]
    incoming = cbr_reservation(group.policies[2], 8 + 3).avg_bytes_per_s
    assert networks[2].reserved[-1] == max(networks[2].reserved) == incoming, "it receives 8 + 3 messages per second"


def test_section_4_2_a_smaller_rate_needs_no_confirmation() -> None:
    group = Group({1: 8, 2: 3}, by="receiver")
    group.new_rate(group.epoch + 100 * MS, 1, 2)
    group.run(3).check()
    frames = group.ledger.per_cycle(1)
    assert [frames[group.first + cycle] for cycle in range(3)] == [8, 2, 2]
    assert all(kind != Kind.NEW_RATE for kind, _ in group.ledger.headers[1])


def test_section_4_2_a_receiver_without_bandwidth_keeps_the_old_rate_in_force() -> None:
    network = RecordingNetwork()
    group = Group({1: 2, 2: 3, 3: 3}, by="receiver", reservers={3: network})
    network.limit = max(network.reserved)
    group.new_rate(group.epoch + 100 * MS, 1, 8)
    group.run(3)
    assert [v.kind for v in group.world.members[1].violations] == ["reservation_refused"]
    assert [group.ledger.per_cycle(1)[group.first + cycle] for cycle in range(3)] == [2, 2, 2]
    assert group.orders[1].mode is CbrMode.DELIVER_MESSAGES
    assert max(network.reserved) == network.limit


def test_section_4_2_sender_and_receiver_based_reservation_deliver_the_same() -> None:
    logs = []
    for by in ("sender", "receiver"):
        group = Group({1: 2, 2: 5}, by=by)
        for cycle, k in product(range(3), range(5)):
            group.send(group.turn(2, cycle, k), 2)
        logs.append((group.run(3).check().delivered(1), max(group.turn_latencies())))
    assert logs[0] == logs[1]


# -- errata 000-5 to 000-12 (000-1 to -4 and -11 are in tests/unit/test_porder.py) ------------------------------------


@pytest.mark.parametrize("times", [1, 2, 3, 4])
def test_erratum_000_5_renegotiations_delay_no_turn(times: int) -> None:
    """The new rate travels in frame headers and takes no turn, so the other members do not wait for it."""
    group = Group({1: 2, 2: 2}, clocks={1: FixedClock(-MS), 2: FixedClock(MS)})
    for number in range(times):
        group.new_rate(group.epoch + number * CYCLE_NS + 100 * MS, 1, 2 + (number + 1) % 2)
    for cycle, k in product(range(times + 2), range(2)):
        group.send(group.turn(2, cycle, k), 2)
    group.run(times + 2).check()
    late_turns = {n: at for n, (at, _) in group.orders[2].turns.items() if n >= 2 * times}
    latencies = [
        now - late_turns[n] for _, (sender, n), now in group.rows(EventKind.DELIVER) if sender == 2 and n in late_turns
    ]
    assert max(latencies) <= 12 * MS


@pytest.mark.parametrize("rates", [(1, 1), (2, 2), (1, 2), (3, 2)])
def test_erratum_000_6_sends_at_the_start_of_the_period_give_delta_plus_gamma(rates: tuple[int, int]) -> None:
    """Over all extreme clocks, extreme delays and senders the maximum is Δ+Γ; sends at the end would give more."""
    worst = 0
    for offsets, delays, sender in product(product((-MS, MS), repeat=2), product((0, 10 * MS), repeat=2), (1, 2)):
        clocks: dict[int, Clock] = {m: FixedClock(offset) for m, offset in enumerate(offsets, 1)}
        links = delay_per_link({(1, 2): delays[0], (2, 1): delays[1]})
        group = Group(dict(enumerate(rates, 1)), clocks=clocks, delays=links)
        for k in range(rates[sender - 1]):
            group.send(group.turn(sender, 1, k), sender)
        worst = max(worst, *group.run().turn_latencies())
    assert worst == 12 * MS


def test_erratum_000_7_all_members_have_the_same_epoch() -> None:
    """Rates (10,1), members that start 600 ms apart: no latency is above Δ+Γ."""
    group = Group({1: 10, 2: 1}, starts={2: 600 * MS})
    for cycle, k in product(range(4), range(10)):
        group.send(group.turn(1, cycle, k), 1)
    group.run(4).check()
    assert max(group.turn_latencies()) <= 12 * MS
    for order in group.orders.values():
        assert order.turns.keys() <= set(range(40))
    assert group.orders[1].turns[0][0] == group.epoch
    assert group.orders[1].turns[15][0] == group.epoch + 1_500 * MS


def test_erratum_000_8_new_rate_in_first_reserve_is_treated_as_in_det_order() -> None:
    """A receiver stays in FirstReserve until it has all HELLOs; a new rate does not change that."""
    policy = Policy("cbr", 1, View((1, 2)), TIMING, Rate(2, 1), "cbr", reservation="receiver")
    order = RecordingCbr(policy, UnlimitedNetwork())
    order.wake(EPOCH_NS)
    assert order.mode is CbrMode.FIRST_RESERVE
    order.change_rate(EPOCH_NS + 1, Rate(5, 1))
    assert order.mode is CbrMode.FIRST_RESERVE
    assert order.porder == ()


def test_erratum_000_8_the_new_rate_holds_from_the_second_cycle_on() -> None:
    group = Group({1: 2, 2: 3})
    order = group.orders[1]
    assert order.porder == porder_by_sorting({1: 2, 2: 3})
    group.new_rate(group.epoch - 1, 1, 6)
    group.run(3).check()
    assert [group.ledger.per_cycle(1)[group.first + cycle] for cycle in range(3)] == [2, 6, 6]


def test_erratum_000_9_a_silent_application_costs_one_dummy_per_turn() -> None:
    group = Group({1: 5, 2: 2}).run(2)
    slots = [slot for kind, slot in group.ledger.headers[1] if kind == Kind.DATA]
    assert len(slots) == len(set(slots))
    assert group.ledger.per_cycle(1)[group.first] == 5


def test_erratum_000_10_messages_submitted_together_leave_one_per_turn() -> None:
    group = Group({1: 4, 2: 1})
    group.send(group.turn(1, 0, 1), 1, 10, 10, 10)
    group.run(1)
    sent = [at - group.epoch for at, _ in group.orders[1].turns.values()]
    assert sent == [250 * MS, 500 * MS, 750 * MS]
    assert min(slot for kind, slot in group.ledger.headers[1] if kind == Kind.DATA) >= group.first << 20, (
        "no data leaves before the epoch"
    )


def test_erratum_000_12_a_new_rate_takes_effect_at_a_cycle_boundary() -> None:
    """In mid-cycle the turns do not move; from the next cycle on, turn k is due at k/rate_new."""
    group = Group({1: 2, 2: 1})
    group.new_rate(group.epoch + 300 * MS, 1, 4)
    for at in range(0, 2_000, 50):
        group.send(group.epoch + at * MS, 1)
    group.run(2).check()
    instants = [at - group.epoch for at, _ in group.orders[1].turns.values()]
    assert instants[:6] == [0, 500 * MS, 1_000 * MS, 1_250 * MS, 1_500 * MS, 1_750 * MS]


def test_erratum_000_12_the_last_turn_of_a_cycle_decides() -> None:
    """A rate requested after the last turn of a cycle holds from the cycle after the next."""
    group = Group({1: 2, 2: 1})
    group.new_rate(group.turn(1, 0, 1) + 1, 1, 4)
    group.run(3).check()
    assert [group.ledger.per_cycle(1)[group.first + cycle] for cycle in range(3)] == [2, 2, 4]
