"""Slot-length changes in a running group: agreement, reports, reservations, and members that missed a change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from unisono.check.latency import latency_in_force
from unisono.check.suite import check_all
from unisono.check.verdict import Status
from unisono.errors import InvalidOption, ReservationRefused
from unisono.model.delays import ConstantDelay
from unisono.model.events import TimingChange, View, ViewChange, Violation
from unisono.model.faults import Crash, Fault, Loss, Partition, Span
from unisono.model.policy import Policy, Redundancy
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
from unisono.model.units import BandwidthReservation, Rate
from unisono.orders.packing import Pacer
from unisono.orders.vbr.failures import VbrGaps
from unisono.orders.vbr.order import VbrOrder
from unisono.qos.plan.admission import Link
from unisono.sim import member as sim_member
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


def simulate(given: Scenario) -> tuple[World, Trace]:
    world, recorder, bound_ns, reliable = build_world(given, 1, compare_payloads=True)
    world.run(world.send_until_ns + bound_ns)
    return world, recorder.trace(run_meta(given, 1, bound_ns, reliable))


def order(world: World, member: int) -> VbrOrder:
    stack = world.members[member].stack
    assert isinstance(stack, Stack)
    assert isinstance(stack.order, VbrOrder)
    return stack.order


def violated_checks(world: World, trace: Trace) -> list[str]:
    verdicts = check_all(trace, until_ns=world.now) | {"in force": latency_in_force(trace)}
    return [name for name, verdict in verdicts.items() if verdict.status is Status.VIOLATED]


def timing_changes(trace: Trace, member: int) -> list[tuple[int, int]]:
    """The slot and the new length of each change that a member reported."""
    rows = trace.of_kind(EventKind.TIMING)
    own = rows.select(rows.member == member)
    return list(zip(own.slot.tolist(), own.theta_ns.tolist(), strict=True))


def violation_kinds(world: World) -> list[str]:
    return [violation.kind for node in world.members.values() for violation in node.violations]


# -- agreement -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fec", [None, (1, 3)])
@pytest.mark.parametrize("failures", [False, True])
def test_all_members_change_at_the_same_slot_and_no_message_is_lost(
    failures: bool, fec: tuple[int, int] | None
) -> None:
    given = scenario(
        PlannedSlotChange(2, 100 * MS, 10 * MS), PlannedSlotChange(3, 250 * MS, 2 * MS), failures=failures, fec=fec
    )
    world, trace = simulate(given)
    assert violated_checks(world, trace) == []
    assert violation_kinds(world) == []
    assert timing_changes(trace, 1) == timing_changes(trace, 2) == timing_changes(trace, 3)
    assert len(timing_changes(trace, 1)) == 2
    sends, deliveries = trace.sends(), trace.deliveries()
    assert len(deliveries) == 3 * len(sends), "even where gaps would be allowed"
    grid = order(world, 1).grid
    assert (grid.changes, grid.last_segment.theta_ns) == (2, 2 * MS)


def test_two_requests_in_one_slot_take_effect_one_after_the_other() -> None:
    world, trace = simulate(
        scenario(PlannedSlotChange(3, 100 * MS, 20 * MS), PlannedSlotChange(1, 100 * MS, 2 * MS), run_ms=700)
    )
    assert violated_checks(world, trace) == []
    lengths = [theta_ns for _, theta_ns in timing_changes(trace, 2)]
    assert lengths == [2 * MS, 20 * MS], "the request of the lowest member first"


def test_the_request_of_a_member_that_leaves_still_takes_effect() -> None:
    world, trace = simulate(scenario(PlannedSlotChange(2, 101 * MS, 10 * MS), Leave(2, 102 * MS)))
    assert violated_checks(world, trace) == []
    assert [slot for slot, _ in timing_changes(trace, 1)] == [slot for slot, _ in timing_changes(trace, 3)] != []


def test_the_bound_is_the_larger_one_while_both_lengths_are_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int]] = []
    record = sim_member.SimulatedMember.on_event

    def recording(node: sim_member.SimulatedMember, event: Any) -> None:
        stack = node.stack
        assert isinstance(stack, Stack)
        if node.member == 1 and isinstance(event, TimingChange):
            seen.append(("reported", event.bound_ns))
        elif node.member == 1:
            seen.append(("in between", stack.order.bound_ns()))
        record(node, event)

    monkeypatch.setattr(sim_member.SimulatedMember, "on_event", recording)
    simulate(scenario(PlannedSlotChange(2, 100 * MS, 10 * MS), PlannedSlotChange(2, 250 * MS, 5 * MS)))
    # When its events are read, the order's bound is 17 ms, 22 ms from the agreement on, and 17 ms in the end.
    reported = [bound for kind, bound in seen if kind == "reported"]
    assert reported == [22 * MS, 17 * MS]
    others = [bound for kind, bound in seen if kind == "in between"]
    assert [bound for bound, after in zip(others, [*others[1:], 0], strict=True) if bound != after] == [
        17 * MS,
        22 * MS,
        17 * MS,
    ]
    assert seen.index(("in between", 22 * MS)) < seen.index(("reported", 22 * MS)), "before any message needs it"


def test_a_change_is_reported_between_two_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    slots: list[tuple[str, int]] = []
    record = sim_member.SimulatedMember.on_event

    def recording(node: sim_member.SimulatedMember, event: Any) -> None:
        if node.member == 3 and not isinstance(event, ViewChange | Violation):
            slots.append((type(event).__name__, event.slot))
        record(node, event)

    monkeypatch.setattr(sim_member.SimulatedMember, "on_event", recording)
    simulate(scenario(PlannedSlotChange(2, 100 * MS, 10 * MS)))
    (at,) = [place for place, (kind, _) in enumerate(slots) if kind == "TimingChange"]
    change = slots[at][1]
    assert all(slot < change for _, slot in slots[:at])
    assert all(slot >= change for _, slot in slots[at + 1 :])
    assert {slot for _, slot in slots[at + 1 :]} & {change, change + 1}


# -- refusals --------------------------------------------------------------------------------------------------------


def policy(**changes: Any) -> Policy:
    fields: dict[str, Any] = {"max_message": 100, "timing": TIMING, "rate": Rate(100, 4)}
    return Policy("g", 1, View((1, 2)), **(fields | changes))


@pytest.mark.parametrize("name", ["cbr", "leader", "timestamp"])
def test_other_orders_refuse_a_slot_change_and_name_one_that_can(name: str) -> None:
    rate = Rate(100, 1) if name == "cbr" else Rate(100, 4)
    with pytest.raises(InvalidOption, match=rf"slot: the order {name} cannot change its slot length; vbr can"):
        build(policy(order=name, rate=rate)).change_slot(0, 10 * MS)


def test_over_reliable_multicast_a_slot_change_is_refused() -> None:
    with pytest.raises(InvalidOption, match="slot: the slot length cannot change over reliable multicast"):
        build(policy(reliable=Redundancy.of_ns(1, 5 * MS, 20 * MS))).change_slot(0, 10 * MS)


@pytest.mark.parametrize("theta_ns", [0, -1, 999, 60_000_000_001])
def test_slot_lengths_out_of_range_are_refused(theta_ns: int) -> None:
    with pytest.raises(InvalidOption, match=r"slot: expected a slot length from 1us to 60s"):
        build(policy()).change_slot(0, theta_ns)


class LimitedNetwork:
    """Grants reservations up to a peak rate, and records the last one granted."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held: BandwidthReservation | None = None

    def reserve(self, reservation: BandwidthReservation) -> None:
        if reservation.needed_bytes_per_s > self.limit:
            raise ReservationRefused(reservation.needed_bytes_per_s, self.limit, self.limit)
        self.held = reservation


def test_a_refused_slot_change_changes_nothing() -> None:
    network = LimitedNetwork(10_000_000)
    stack = build(policy(), network)
    held = network.held
    network.limit = held.needed_bytes_per_s if held is not None else 0
    with pytest.raises(ReservationRefused):
        stack.change_slot(0, MS)
    assert network.held == held
    assert isinstance(stack.order, VbrOrder)
    assert stack.order.schedule.slot_change.requested_theta_ns is None
    stack.change_slot(0, 10 * MS)
    assert stack.order.schedule.slot_change.requested_theta_ns == 10 * MS


def test_a_member_that_cannot_reserve_for_an_agreed_change_shrinks_its_burst_and_reports_it() -> None:
    network = LimitedNetwork(10_000_000)
    stack = build(policy(rate=Rate(100, 8)), network)
    order = stack.order
    assert isinstance(order, VbrOrder)
    assert network.held is not None
    network.limit = network.held.needed_bytes_per_s
    order._adopt_schedule(order.grid.with_slot_length(10, 2 * MS))
    (event,) = order.events
    assert isinstance(event, Violation)
    assert event.kind == "reservation"
    assert "the burst is now 2 instead of 8" in event.text
    assert network.held.needed_bytes_per_s <= network.limit
    order.schedule.enter_slot(9)
    order.schedule.enter_slot(10)
    assert (order.schedule.pacer.rate.burst, order.schedule.pacer.theta_ns) == (2, 2 * MS)
    assert network.held.theta_ns == 2 * MS
    order.schedule.enter_slot(11)
    tight = LimitedNetwork(10_000_000)
    poor = build(policy(rate=Rate(100, 8)), tight).order
    assert isinstance(poor, VbrOrder)
    tight.limit = 1
    poor._adopt_schedule(poor.grid.with_slot_length(10, 2 * MS))
    (event,) = poor.events
    assert isinstance(event, Violation)
    assert "and even that is more than is reserved" in event.text
    poor.schedule.enter_slot(10)
    assert poor.schedule.pacer.rate.burst == 1


def test_a_rate_requested_with_a_slot_length_takes_effect_with_it() -> None:
    link = Link("10MB/s")
    stack = build(policy(), link.share(1))
    order = stack.order
    assert isinstance(order, VbrOrder)
    order.schedule.enter_slot(5)
    stack.change_slot(0, 10 * MS, Rate(200, 9))
    order.schedule.enter_slot(6)
    assert order.schedule.pacer.rate == Rate(100, 4)
    order._adopt_schedule(order.grid.with_slot_length(8, 10 * MS))
    order.schedule.enter_slot(7)
    assert order.schedule.pacer.rate == Rate(100, 4)
    order.schedule.enter_slot(8)
    assert (order.schedule.pacer.rate, order.schedule.pacer.theta_ns) == (Rate(200, 9), 10 * MS)


@pytest.mark.parametrize(("before", "after"), [(10, 2), (2, 10), (5, 5)])
def test_the_average_rate_is_kept_across_a_change(before: int, after: int) -> None:
    """At most 100 messages in any second, whatever the slot length."""
    pacer = Pacer(Rate(100, 50), before * MS, 100)
    change, sent_at_ms = 1000 // before, []
    for slot in range(change + 2000 // after):
        if slot == change:
            pacer.change_slot(slot, after * MS)
        pacer.open_slot(slot)
        at = slot * before if slot < change else change * before + (slot - change) * after
        count = pacer.messages_left()
        pacer.record_sent(count, 0)
        sent_at_ms += [at] * count
    for first, at in enumerate(sent_at_ms):
        assert sum(at <= other < at + 1000 for other in sent_at_ms[first:]) <= 100
    assert len(sent_at_ms) >= 250, "but not much less"


# -- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("theta_ms", [2, 15])
@pytest.mark.parametrize("starts_ms", [95, 100, 105, 110, 118, 125, 130, 140, 150, 160, 200, 300])
def test_a_newcomer_learns_the_slot_length_before_it_sends(starts_ms: int, theta_ms: int) -> None:
    """In every phase: before the request, between request and change, at the change, long after it."""
    world, trace = simulate(newcomer(starts_ms, theta_ms))
    assert violated_checks(world, trace) == []
    assert order(world, 3).view.members == (1, 2, 3)
    assert order(world, 3).grid.has_same_slots(order(world, 1).grid)
    assert missing_of_newcomer(trace) == set()
    assert violation_kinds(world) == [], "learning the schedule is not a violation"


def newcomer(starts_ms: int, theta_ms: int) -> Scenario:
    """Member 3 starts at `starts_ms`; all members send full bursts, which leave at once."""
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
    """(member, sequence number) of each message of member 3 that a member lacks."""
    sent, rows = trace.sends(), trace.deliveries()
    of_newcomer = set(sent.sequence[sent.sender == 3].tolist())
    return {
        (member, sequence)
        for member in (1, 2)
        for sequence in of_newcomer - set(rows.sequence[(rows.sender == 3) & (rows.member == member)].tolist())
    }


def test_a_newcomer_that_sends_before_its_slots_are_confirmed_loses_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    join_at = VbrGaps._join_at

    def confirmed_at_once(self: VbrGaps, now: int, first: int) -> None:
        join_at(self, now, first)
        self._slots_confirmed_at_ns = None

    monkeypatch.setattr(VbrGaps, "_join_at", confirmed_at_once)
    lost = [missing_of_newcomer(simulate(newcomer(starts_ms, 15))[1]) for starts_ms in (200, 203, 206)]
    assert any(lost)


def test_a_member_cut_off_during_a_change_joins_again_with_the_new_slots() -> None:
    for theta_ms in (2, 15):
        faults = (Partition(Span(90 * MS, 300 * MS), ((1, 2), (3,))),)
        world, trace = simulate(
            scenario(PlannedSlotChange(2, 100 * MS, theta_ms * MS), faults=faults, failures=True, run_ms=900)
        )
        assert [name for name in violated_checks(world, trace) if not name.startswith(("latency", "in force"))] == []
        assert "slots" in violation_kinds(world)
        assert {order(world, member).grid.last_segment.theta_ns for member in (1, 2, 3)} == {theta_ms * MS}
        assert {order(world, member).view.members for member in (1, 2, 3)} == {(1, 2, 3)}


def test_the_group_skips_slot_numbers_if_a_rejoining_member_is_far_ahead() -> None:
    faults = (Partition(Span(90 * MS, 5000 * MS), ((1, 2), (3,))),)
    given = scenario(PlannedSlotChange(2, 100 * MS, 20 * MS), faults=faults, failures=True, run_ms=5400)
    world, trace = simulate(given)
    assert [name for name in violated_checks(world, trace) if not name.startswith(("latency", "in force"))] == []
    grid = order(world, 1).grid
    assert grid.changes == 2, "the length, then the numbers"
    assert (grid.last_segment.theta_ns, order(world, 3).grid.last_segment) == (20 * MS, grid.last_segment)
    assert grid.last_segment.first_slot - grid.segments[-2].first_slot > 700, (
        "member 3 has used that many more slots of 5 ms"
    )
    assert order(world, 3).view.members == order(world, 1).view.members == (1, 2, 3)
    rows = trace.deliveries()
    late = rows.select(rows.slot > grid.last_segment.first_slot)
    assert set(late.member.tolist()) == set(late.sender.tolist()) == {1, 2, 3}


def test_two_halves_with_different_changes_agree_on_one_schedule() -> None:
    faults = (Partition(Span(90 * MS, 400 * MS), ((1, 2), (3, 4))),)
    steps = (PlannedSlotChange(2, 100 * MS, 10 * MS), PlannedSlotChange(3, 100 * MS, 4 * MS))
    world, trace = simulate(scenario(*steps, faults=faults, failures=True, run_ms=900, members=(1, 2, 3, 4)))
    assert [name for name in violated_checks(world, trace) if not name.startswith(("latency", "in force"))] == []
    grids = [order(world, member).grid for member in (1, 2, 3, 4)]
    assert {grid.last_segment for grid in grids} == {grids[0].last_segment}
    assert grids[0].last_segment.theta_ns == 4 * MS, (
        "the schedule with the higher slot numbers, so that no member has to wait"
    )
    assert {order(world, member).view.members for member in (1, 2, 3, 4)} == {(1, 2, 3, 4)}


def test_a_restarted_member_learns_the_changed_slots() -> None:
    world, trace = simulate(
        scenario(
            PlannedSlotChange(2, 60 * MS, 15 * MS),
            Restart(3, 300 * MS),
            faults=(Crash(3, 40 * MS),),
            failures=True,
            run_ms=700,
        )
    )
    assert violated_checks(world, trace) == []
    assert order(world, 3).grid.has_same_slots(order(world, 1).grid)
    assert violation_kinds(world).count("policy_differs") == 0


def test_a_slot_request_survives_the_declared_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sent once, a lost request leaves members with different slots; one of x+1 copies arrives."""
    faults = (Loss(Span(), 0.6, 2, 3),)
    given = scenario(PlannedSlotChange(2, 100 * MS, 10 * MS), faults=faults, failures=True, loss_burst=2)
    assert "slots" not in [kind for seed in range(6) for kind in violation_kinds(simulate_seed(given, seed))]
    close_slot = VbrOrder._close_slot

    def once(self: VbrOrder, now: int, last: Any = None) -> None:
        before = len(self.down)
        close_slot(self, now, last)
        while len(self.down) > before + 1 and self.down[-1] is self.down[-2]:
            self.down.pop()

    monkeypatch.setattr(VbrOrder, "_close_slot", once)
    assert "slots" in [kind for seed in range(6) for kind in violation_kinds(simulate_seed(given, seed))]


def simulate_seed(given: Scenario, seed: int) -> World:
    world, _, bound_ns, _ = build_world(given, seed, compare_payloads=True)
    world.run(world.send_until_ns + bound_ns)
    return world


def test_newcomers_would_miss_a_change_without_the_schedule_sent_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = (PlannedSlotChange(2, 100 * MS, 15 * MS), Start(3, 95 * MS))
    world, _ = simulate(scenario(*steps, failures=True))
    assert violation_kinds(world) == []
    monkeypatch.setattr(VbrGaps, "_send_schedule_to_newcomers", lambda *_: None)
    world, _ = simulate(scenario(*steps, failures=True))
    assert "slots" in violation_kinds(world)


def test_rates_and_slots_change_together() -> None:
    steps = [PlannedSlotChange(1 + n % 3, (60 + 40 * n) * MS, (3 + 4 * (n % 3)) * MS) for n in range(8)]
    rates = [PlannedRateChange(1 + n % 3, (70 + 40 * n) * MS, Rate(200 + 100 * n, 1 + n)) for n in range(8)]
    world, trace = simulate(scenario(*steps, *rates, run_ms=600))
    assert violated_checks(world, trace) == []
    assert len(timing_changes(trace, 1)) >= 5


# -- the checker -----------------------------------------------------------------------------------------------------


def test_a_message_is_checked_against_the_bound_of_its_own_slot() -> None:
    """The network's real Δ is longer than declared: within the run's bound, and beyond that of the short slots."""
    given = scenario(PlannedSlotChange(2, 100 * MS, 2 * MS))
    _, trace = simulate(given)
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
