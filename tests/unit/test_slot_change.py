"""Changing slots in a running group: agreed, told, reserved for, and got over by who missed it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.worlds.latency_in_force import latency_in_force

from unisono.check.suite import check_all
from unisono.check.verdict import Status
from unisono.errors import InvalidOption, ReservationRefused
from unisono.model.delays import ConstantDelay
from unisono.model.events import TimingChange, ViewChange, Violation
from unisono.model.faults import Crash, Fault, Loss, Partition, Span
from unisono.model.policy import Policy
from unisono.model.rates import BandwidthReservation, Rate
from unisono.model.redundancy import Redundancy
from unisono.model.scenario import (
    Clocks,
    Leave,
    Network,
    PlannedRateChange,
    PlannedSlotChange,
    Restart,
    Scenario,
    ScenarioStep,
    Start,
    Workload,
)
from unisono.model.timing import Timing
from unisono.model.views import View
from unisono.net.pacer import Pacer
from unisono.orders.vbr.joins import VbrJoins
from unisono.orders.vbr.order import Vbr
from unisono.orders.vbr.slots import SlotOrderBase
from unisono.qos.plan.admission import Link
from unisono.sim import member as sim_node
from unisono.sim.run import build_world, run_meta
from unisono.sim.world import World
from unisono.stack import Stack, build
from unisono.trace.schema import EventKind
from unisono.trace.table import Trace

MS = 1_000_000
TIMING = Timing(10 * MS, 2 * MS, 5 * MS)


def scenario(*steps: ScenarioStep, faults: tuple[Fault, ...] = (), run_ms: int = 500, **changes: Any) -> Scenario:
    members = changes.pop("members", (1, 2, 3))
    fields: dict[str, Any] = {
        "source": "test",
        "group": "slots",
        "order": "vbr",
        "members": members,
        "timing": TIMING,
        "rates": {member: Rate(1000, 8) for member in members},
        "workloads": {member: Workload("cbr", 20, 20, rate=150) for member in members},
        "network": Network(ConstantDelay(4 * MS)),
        "run_ns": run_ms * MS,
        "clocks": Clocks("fixed", dict.fromkeys(members, 0)),
        "faults": faults,
        "steps": steps,
    }
    return Scenario(**(fields | changes))


def played(what: Scenario) -> tuple[World, Trace]:
    world, memory, bound_ns, reliable = build_world(what, 1, compare_payloads=True)
    world.run(world.send_until_ns + bound_ns)
    return world, memory.trace(run_meta(what, 1, bound_ns, reliable))


def order(world: World, member: int) -> Vbr:
    stack = world.members[member].stack
    assert isinstance(stack, Stack)
    assert isinstance(stack.order, Vbr)
    return stack.order


def problems(world: World, trace: Trace) -> list[str]:
    verdicts = check_all(trace, until_ns=world.now) | {"in force": latency_in_force(trace)}
    return [name for name, verdict in verdicts.items() if verdict.status is Status.VIOLATED]


def told(trace: Trace, member: int) -> list[tuple[int, int]]:
    rows = trace.of_kind(EventKind.TIMING)
    mine = rows.select(rows.member == member)
    return list(zip(mine.slot.tolist(), mine.theta_ns.tolist(), strict=True))


def kinds(world: World) -> list[str]:
    return [violation.kind for node in world.members.values() for violation in node.violations]


# -- agreeing ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fec", [None, (1, 3)])
@pytest.mark.parametrize("failures", [False, True])
def test_all_have_the_same_slots_at_the_same_number_and_nothing_is_lost(
    failures: bool, fec: tuple[int, int] | None
) -> None:
    what = scenario(
        PlannedSlotChange(2, 100 * MS, 10 * MS), PlannedSlotChange(3, 250 * MS, 2 * MS), failures=failures, fec=fec
    )
    world, trace = played(what)
    assert problems(world, trace) == []
    assert kinds(world) == []
    assert told(trace, 1) == told(trace, 2) == told(trace, 3)
    assert len(told(trace, 1)) == 2
    sends, deliveries = trace.sends(), trace.deliveries()
    assert len(deliveries) == 3 * len(sends), "also where gaps would be allowed"
    grid = order(world, 1).grid
    assert (grid.changes, grid.last_segment.theta_ns) == (2, 2 * MS)


def test_two_that_ask_at_once_get_their_slots_one_after_the_other() -> None:
    world, trace = played(
        scenario(PlannedSlotChange(3, 100 * MS, 20 * MS), PlannedSlotChange(1, 100 * MS, 2 * MS), run_ms=700)
    )
    assert problems(world, trace) == []
    lengths = [theta_ns for _, theta_ns in told(trace, 2)]
    assert lengths == [2 * MS, 20 * MS], "the first in the order is member 1"


def test_who_asks_and_leaves_still_has_its_wish() -> None:
    world, trace = played(scenario(PlannedSlotChange(2, 101 * MS, 10 * MS), Leave(2, 102 * MS)))
    assert problems(world, trace) == []
    assert [slot for slot, _ in told(trace, 1)] == [slot for slot, _ in told(trace, 3)] != []


def test_the_bound_is_the_larger_one_while_both_lengths_are_in_play(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int]] = []
    noted = sim_node.SimulatedMember._record

    def note(node: sim_node.SimulatedMember, now: int, local: int, event: Any) -> None:
        stack = node.stack
        assert isinstance(stack, Stack)
        if node.member == 1 and isinstance(event, TimingChange):
            seen.append(("told", event.bound_ns))
        elif node.member == 1:
            seen.append(("in between", stack.order.bound_ns()))
        noted(node, now, local, event)

    monkeypatch.setattr(sim_node.SimulatedMember, "_record", note)
    played(scenario(PlannedSlotChange(2, 100 * MS, 10 * MS), PlannedSlotChange(2, 250 * MS, 5 * MS)))
    # By the order as it is when its events are taken: 17 ms, from the agreement on 22 ms, and 17 ms in the end.
    told = [bound for kind, bound in seen if kind == "told"]
    assert told == [22 * MS, 17 * MS]
    others = [bound for kind, bound in seen if kind == "in between"]
    assert [bound for bound, after in zip(others, [*others[1:], 0], strict=True) if bound != after] == [
        17 * MS,
        22 * MS,
        17 * MS,
    ]
    assert seen.index(("in between", 22 * MS)) < seen.index(("told", 22 * MS)), "before any message has it"


def test_a_change_comes_between_two_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    slots: list[tuple[str, int]] = []
    noted = sim_node.SimulatedMember._record

    def note(node: sim_node.SimulatedMember, now: int, local: int, event: Any) -> None:
        if node.member == 3 and not isinstance(event, ViewChange | Violation):
            slots.append((type(event).__name__, event.slot))
        noted(node, now, local, event)

    monkeypatch.setattr(sim_node.SimulatedMember, "_record", note)
    played(scenario(PlannedSlotChange(2, 100 * MS, 10 * MS)))
    (at,) = [place for place, (kind, _) in enumerate(slots) if kind == "TimingChange"]
    change = slots[at][1]
    assert all(slot < change for _, slot in slots[:at])
    assert all(slot >= change for _, slot in slots[at + 1 :])
    assert {slot for _, slot in slots[at + 1 :]} & {change, change + 1}


# -- refusing ----------------------------------------------------------------------------------------------------


def policy(**changes: Any) -> Policy:
    fields: dict[str, Any] = {"max_message": 100, "timing": TIMING, "rate": Rate(100, 4)}
    return Policy("g", 1, View((1, 2)), **(fields | changes))


@pytest.mark.parametrize("name", ["cbr", "leader", "timestamp"])
def test_orders_whose_slots_stay_refuse_and_say_who_can(name: str) -> None:
    rate = Rate(100, 1) if name == "cbr" else Rate(100, 4)
    with pytest.raises(InvalidOption, match=rf"slot: the order {name} keeps its slot length; vbr can"):
        build(policy(order=name, rate=rate)).change_slot(0, 10 * MS)


def test_over_reliable_multicast_slots_stay() -> None:
    with pytest.raises(InvalidOption, match="slot: over reliable multicast"):
        build(policy(reliable=Redundancy(1, 5 * MS, 20 * MS))).change_slot(0, 10 * MS)


@pytest.mark.parametrize("theta_ns", [0, -1, 999, 60_000_000_001])
def test_impossible_lengths_are_refused(theta_ns: int) -> None:
    with pytest.raises(InvalidOption, match=r"slot: a length from 1us to 60s is needed"):
        build(policy()).change_slot(0, theta_ns)


class Network1:
    """Grants up to a peak, and keeps what it granted last."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.held: BandwidthReservation | None = None

    def reserve(self, reservation: BandwidthReservation) -> None:
        if reservation.peak_bytes_per_s > self.most:
            raise ReservationRefused(reservation.peak_bytes_per_s, self.most, self.most)
        self.held = reservation


def test_who_asks_for_more_than_there_is_changes_nothing() -> None:
    network = Network1(10_000_000)
    stack = build(policy(), network)
    held = network.held
    network.most = held.peak_bytes_per_s if held is not None else 0
    with pytest.raises(ReservationRefused):
        stack.change_slot(0, MS)
    assert network.held == held
    assert isinstance(stack.order, SlotOrderBase)
    assert stack.order.slot_change.requested_theta_ns is None
    stack.change_slot(0, 10 * MS)
    assert stack.order.slot_change.requested_theta_ns == 10 * MS


def test_a_member_without_room_for_the_others_wish_sends_less_at_once_and_says_so() -> None:
    network = Network1(10_000_000)
    stack = build(policy(rate=Rate(100, 8)), network)
    order = stack.order
    assert isinstance(order, SlotOrderBase)
    assert network.held is not None
    network.most = network.held.peak_bytes_per_s
    order._adopt_schedule(order.grid.with_slot_length(10, 2 * MS))
    (event,) = order.events
    assert isinstance(event, Violation)
    assert event.kind == "reservation"
    assert "the burst is now 2 instead of 8" in event.text
    assert network.held.peak_bytes_per_s <= network.most
    order._enter_slot(9)
    order._enter_slot(10)
    assert (order._pacer.rate.burst, order._pacer.theta_ns) == (2, 2 * MS)
    assert network.held.theta_ns == 2 * MS
    order._enter_slot(11)
    tight = Network1(10_000_000)
    poor = build(policy(rate=Rate(100, 8)), tight).order
    assert isinstance(poor, SlotOrderBase)
    tight.most = 1
    poor._adopt_schedule(poor.grid.with_slot_length(10, 2 * MS))
    (event,) = poor.events
    assert isinstance(event, Violation)
    assert "and even that is more than is reserved" in event.text
    poor._enter_slot(10)
    assert poor._pacer.rate.burst == 1


def test_a_rate_that_is_asked_for_with_a_slot_comes_with_it() -> None:
    link = Link("10MB/s")
    stack = build(policy(), link.share(1))
    order = stack.order
    assert isinstance(order, SlotOrderBase)
    order._enter_slot(5)
    stack.change_slot(0, 10 * MS, Rate(200, 9))
    order._enter_slot(6)
    assert order._pacer.rate == Rate(100, 4)
    order._adopt_schedule(order.grid.with_slot_length(8, 10 * MS))
    order._enter_slot(7)
    assert order._pacer.rate == Rate(100, 4)
    order._enter_slot(8)
    assert (order._pacer.rate, order._pacer.theta_ns) == (Rate(200, 9), 10 * MS)


@pytest.mark.parametrize(("before", "after"), [(10, 2), (2, 10), (5, 5)])
def test_the_average_is_kept_across_a_change(before: int, after: int) -> None:
    """100 messages in any second, however long slots are."""
    pacer = Pacer(Rate(100, 50), before * MS, 100)
    change, taken = 1000 // before, []
    for slot in range(change + 2000 // after):
        if slot == change:
            pacer.change_slot(slot, after * MS)
        pacer.open_slot(slot)
        at = slot * before if slot < change else change * before + (slot - change) * after
        count = pacer.messages_left()
        pacer.record_sent(count, 0)
        taken += [at] * count
    for first, at in enumerate(taken):
        assert sum(at <= other < at + 1000 for other in taken[first:]) <= 100
    assert len(taken) >= 250, "and not much less"


# -- failures ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("theta_ms", [2, 15])
@pytest.mark.parametrize("starts_ms", [95, 100, 105, 110, 118, 125, 130, 140, 150, 160, 200, 300])
def test_a_newcomer_learns_what_slots_are_before_it_sends(starts_ms: int, theta_ms: int) -> None:
    """In every phase: before the wish, between wish and change, at the change, long after it."""
    world, trace = played(newcomer(starts_ms, theta_ms))
    assert problems(world, trace) == []
    assert order(world, 3).view.members == (1, 2, 3)
    assert order(world, 3).grid.has_same_slots(order(world, 1).grid)
    assert missing_of_newcomer(trace) == set()
    assert kinds(world) == [], "to be told is no violation"


def newcomer(starts_ms: int, theta_ms: int) -> Scenario:
    """Of full bursts, which leave at once."""
    full = Workload("bursts", 20, 20, burst=8, every_ns=MS)
    return scenario(
        PlannedSlotChange(2, 100 * MS, theta_ms * MS),
        Start(3, starts_ms * MS),
        failures=True,
        network=Network(ConstantDelay(9 * MS)),
        workloads=dict.fromkeys((1, 2, 3), full),
        run_ms=600,
    )


def missing_of_newcomer(trace: Trace) -> set[tuple[int, int]]:
    """Members, and messages of member 3 that they lack."""
    sent, rows = trace.sends(), trace.deliveries()
    of_newcomer = set(sent.sequence[sent.sender == 3].tolist())
    return {
        (member, sequence)
        for member in (1, 2)
        for sequence in of_newcomer - set(rows.sequence[(rows.sender == 3) & (rows.member == member)].tolist())
    }


def test_a_newcomer_that_sent_before_it_is_sure_would_send_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_in = VbrJoins._join_at

    def sure_at_once(self: VbrJoins, now: int, first: int) -> None:
        asked_in(self, now, first)
        self._slots_confirmed_at_ns = None

    monkeypatch.setattr(VbrJoins, "_join_at", sure_at_once)
    lost = [missing_of_newcomer(played(newcomer(starts_ms, 15))[1]) for starts_ms in (200, 203, 206)]
    assert any(lost)


def test_who_was_cut_off_from_a_change_joins_again_with_the_others_slots() -> None:
    for theta_ms in (2, 15):
        faults = (Partition(Span(90 * MS, 300 * MS), ((1, 2), (3,))),)
        world, trace = played(
            scenario(PlannedSlotChange(2, 100 * MS, theta_ms * MS), faults=faults, failures=True, run_ms=900)
        )
        assert [name for name in problems(world, trace) if not name.startswith(("latency", "in force"))] == []
        assert "slots" in kinds(world)
        assert {order(world, member).grid.last_segment.theta_ns for member in (1, 2, 3)} == {theta_ms * MS}
        assert {order(world, member).view.members for member in (1, 2, 3)} == {(1, 2, 3)}


def test_whose_numbers_are_far_ahead_the_others_leave_some_out() -> None:
    faults = (Partition(Span(90 * MS, 5000 * MS), ((1, 2), (3,))),)
    what = scenario(PlannedSlotChange(2, 100 * MS, 20 * MS), faults=faults, failures=True, run_ms=5400)
    world, trace = played(what)
    assert [name for name in problems(world, trace) if not name.startswith(("latency", "in force"))] == []
    grid = order(world, 1).grid
    assert grid.changes == 2, "the length, and the numbers"
    assert (grid.last_segment.theta_ns, order(world, 3).grid.last_segment) == (20 * MS, grid.last_segment)
    assert grid.last_segment.first_slot - grid.segments[-2].first_slot > 700, (
        "so many slots of 5 ms more member 3 had had"
    )
    assert order(world, 3).view.members == order(world, 1).view.members == (1, 2, 3)
    rows = trace.deliveries()
    late = rows.select(rows.slot > grid.last_segment.first_slot)
    assert set(late.member.tolist()) == set(late.sender.tolist()) == {1, 2, 3}


def test_two_halves_that_changed_differently_meet_in_one_of_both() -> None:
    faults = (Partition(Span(90 * MS, 400 * MS), ((1, 2), (3, 4))),)
    steps = (PlannedSlotChange(2, 100 * MS, 10 * MS), PlannedSlotChange(3, 100 * MS, 4 * MS))
    world, trace = played(scenario(*steps, faults=faults, failures=True, run_ms=900, members=(1, 2, 3, 4)))
    assert [name for name in problems(world, trace) if not name.startswith(("latency", "in force"))] == []
    grids = [order(world, member).grid for member in (1, 2, 3, 4)]
    assert {grid.last_segment for grid in grids} == {grids[0].last_segment}
    assert grids[0].last_segment.theta_ns == 4 * MS, "whose numbers are higher: nobody has to wait"
    assert {order(world, member).view.members for member in (1, 2, 3, 4)} == {(1, 2, 3, 4)}


def test_a_restarted_member_is_told_what_slots_have_become() -> None:
    world, trace = played(
        scenario(
            PlannedSlotChange(2, 60 * MS, 15 * MS),
            Restart(3, 300 * MS),
            faults=(Crash(3, 40 * MS),),
            failures=True,
            run_ms=700,
        )
    )
    assert problems(world, trace) == []
    assert order(world, 3).grid.has_same_slots(order(world, 1).grid)
    assert kinds(world).count("policy_differs") == 0


def test_a_wish_outlives_the_losses_that_are_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sent once, a lost wish leaves members with different slots; sent x+1 times in a row it arrives."""
    faults = (Loss(Span(), 0.6, 2, 3),)
    what = scenario(PlannedSlotChange(2, 100 * MS, 10 * MS), faults=faults, failures=True, loss_burst=2)
    assert "slots" not in [kind for seed in range(6) for kind in kinds(seeded(what, seed))]
    closed = Vbr._close_slot

    def once(self: Vbr, now: int, last: Any = None) -> None:
        before = len(self.down)
        closed(self, now, last)
        while len(self.down) > before + 1 and self.down[-1] is self.down[-2]:
            self.down.pop()

    monkeypatch.setattr(Vbr, "_close_slot", once)
    assert "slots" in [kind for seed in range(6) for kind in kinds(seeded(what, seed))]


def seeded(what: Scenario, seed: int) -> World:
    world, _, bound_ns, _ = build_world(what, seed, compare_payloads=True)
    world.run(world.send_until_ns + bound_ns)
    return world


def test_without_the_word_to_newcomers_they_would_miss_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = (PlannedSlotChange(2, 100 * MS, 15 * MS), Start(3, 95 * MS))
    world, _ = played(scenario(*steps, failures=True))
    assert kinds(world) == []
    monkeypatch.setattr(VbrJoins, "_send_schedule_to_newcomers", lambda *_: None)
    world, _ = played(scenario(*steps, failures=True))
    assert "slots" in kinds(world)


def test_rates_and_slots_change_together() -> None:
    steps = [PlannedSlotChange(1 + n % 3, (60 + 40 * n) * MS, (3 + 4 * (n % 3)) * MS) for n in range(8)]
    rates = [PlannedRateChange(1 + n % 3, (70 + 40 * n) * MS, Rate(200 + 100 * n, 1 + n)) for n in range(8)]
    world, trace = played(scenario(*steps, *rates, run_ms=600))
    assert problems(world, trace) == []
    assert len(told(trace, 1)) >= 5


# -- judging -----------------------------------------------------------------------------------------------------


def test_a_message_is_held_to_the_bound_of_its_own_slot() -> None:
    """The network's real Δ is longer than declared: within the run's bound, and beyond that of the short slots."""
    what = scenario(PlannedSlotChange(2, 100 * MS, 2 * MS))
    _, trace = played(what)
    assert latency_in_force(trace).status is Status.VALID
    assert check_all(trace)["latency"].status is Status.VALID
    tight = replace(trace, meta=replace(trace.meta, bound_ns=12 * MS))
    assert check_all(tight)["latency"].status is Status.VALID
    verdict = latency_in_force(tight)
    assert verdict.status is Status.VALID, "3 ms less for slots of 2 ms: they take 4 to 6 ms"
    tighter = replace(trace, meta=replace(trace.meta, bound_ns=9 * MS + 1))
    assert check_all(tighter)["latency"].status is Status.VALID
    verdict = latency_in_force(replace(tighter, meta=replace(tighter.meta, theta_ns=7 * MS)))
    assert verdict.status is Status.VIOLATED
    assert verdict.witness is not None
    assert "in a slot of 2.000 ms whose bound is 4.000 ms" in verdict.witness.text
