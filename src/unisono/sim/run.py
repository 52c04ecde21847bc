"""Runs a scenario: builds its clocks, links, faults and stacks, and runs the world."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import assert_never

from unisono.errors import InvalidOption, ScenarioError
from unisono.model.capabilities import capabilities_of, needs_storage
from unisono.model.delays import UniformDelay
from unisono.model.faults import Crash, Loss, Pause, fault_to_row
from unisono.model.scenario import (
    Leave,
    PlannedRateChange,
    PlannedSlotChange,
    PlannedTopologyChange,
    Restart,
    Scenario,
    Start,
)
from unisono.model.units import NS_PER_MS, NS_PER_S
from unisono.model.workloads import scheduled_sends
from unisono.orders.priority.order import WINDOW
from unisono.sim.clocks import Clock, DriftingClock, FixedClock, corner_clock
from unisono.sim.disk import SimDisk
from unisono.sim.faults import LinkFault, LossFault, link_fault
from unisono.sim.member import Machine
from unisono.sim.network import (
    DelaySource,
    SimulatedNetwork,
    constant_delay,
    corners,
    delays_from_adversary,
    delays_from_model,
    full_mesh,
)
from unisono.sim.random_streams import RandomStreams, random_below
from unisono.sim.result import Result
from unisono.sim.traffic import TrafficLedger
from unisono.sim.world import World
from unisono.stack import Stack, build
from unisono.trace.recorder import MemoryTrace
from unisono.trace.schema import RunMeta

DRAIN_DELTAS = 100
"""After the last message is sent, the run continues for this many Δ, so that views change and messages are queued."""
FINAL_DRAIN_NS = 2 * NS_PER_S
"""After the last message is sent, the run continues for this time, so that messages become final."""
QUIESCENCE_CHECK_INTERVAL_NS = 10 * NS_PER_MS
QUIESCENCE_MARGIN_NS = 30 * NS_PER_MS
"""A quiescent world continues for this time, so that datagrams in flight arrive."""
FIRST_INCARNATION = 1
"""The first incarnation of every simulated member."""


def run(
    scenario: Scenario,
    seed: int | None = None,
    *,
    check: Callable[[World], None] | None = None,
    compare_payloads: bool = False,
    is_quiescent: Callable[[World], bool] | None = None,
) -> Result:
    """Run a scenario, by default with its own seed.

    Applications send until the scenario's `run_ns`. Then the world continues for the latency bound, within which all
    accepted messages must be delivered. `check` and `compare_payloads` are those of `World`. If `is_quiescent` says
    that nothing is left to do, the run stops soon after. The checkers treat its result as that of a complete run, so
    they report every delivery that is missing.
    """
    seed = scenario.seed if seed is None else seed
    try:
        world, memory_trace, bound_ns, reliable = build_world(
            scenario, seed, check=check, compare_payloads=compare_payloads
        )
    except InvalidOption as error:
        raise ScenarioError(scenario.source, error.field, error.problem) from error
    until = world.send_until_ns + bound_ns + drain_ns(scenario)
    while is_quiescent is not None and world.now + QUIESCENCE_MARGIN_NS < until:
        world.run(world.now + QUIESCENCE_CHECK_INTERVAL_NS)
        if is_quiescent(world):
            break
    world.run(until if is_quiescent is None else min(until, world.now + QUIESCENCE_MARGIN_NS))
    members = world.members
    declared = max((each.setup.bound_ns for each in members.values() if each.setup.bound_ns is not None), default=None)
    return Result(
        scenario,
        seed,
        run_meta(scenario, seed, bound_ns, reliable, declared),
        memory_trace,
        until_ns=until,
        events=world.steps,
        datagrams=world.datagrams,
        sent={number: member.accepted for number, member in members.items()},
        delivered={number: member.delivered or member.delivered_final for number, member in members.items()},
        unsent={number: member.waiting_count for number, member in members.items()},
        traffic=world.ledger.traffic if world.ledger is not None else {},
        datagrams_by_pair=dict(world.ledger.datagrams_by_pair) if world.ledger is not None else {},
        send_times=world.ledger.send_times if world.ledger is not None else {},
        violations={number: member.violations for number, member in members.items()},
        fault_hits=tuple(fault.hits for fault in world.network.faults),
    )


def build_world(
    scenario: Scenario,
    seed: int,
    *,
    check: Callable[[World], None] | None = None,
    compare_payloads: bool = False,
) -> tuple[World, MemoryTrace, int, bool]:
    """Build the world of a scenario. Return it with its trace, the latency bound, and whether the order is gap-free.

    The bound includes the time that an order with a leader needs for the scenario's crashes.
    """
    streams = RandomStreams(seed)
    # The run begins at the beginning of a slot, so that a scenario can give times relative to slots.
    start = scenario.epoch_ns - scenario.epoch_ns % scenario.timing.theta_ns
    memory_trace = MemoryTrace(_run_name(scenario, seed), scenario.group)
    world = World(
        _network(scenario, streams, start),
        start_ns=start,
        send_until_ns=start + scenario.run_ns,
        memory_trace=memory_trace,
        ledger=TrafficLedger(keeps_send_times=any(isinstance(step, PlannedTopologyChange) for step in scenario.steps)),
        check=check,
        compare_payloads=compare_payloads,
    )
    starts = {step.member: start + step.at_ns for step in scenario.steps if isinstance(step, Start)}
    crashes = sorted((fault.at_ns, fault.member) for fault in scenario.faults if isinstance(fault, Crash))
    crashed = list(dict.fromkeys(member for _, member in crashes))
    bound, reliable = 0, True
    disks = {member: SimDisk(streams.stream("disk", member)) for member in scenario.members}
    for member in scenario.members:
        stack = _build_stack(scenario, member, FIRST_INCARNATION, disks[member])
        bounds = [stack.bound_ns(), *_requested_slot_bounds(scenario, member)]
        bound = max(bound, max(bounds) + stack.outage_ns(crashed))
        reliable = reliable and stack.gap_free()
        world.add(
            member,
            stack,
            _clock(scenario, member, streams, start),
            scenario.timing,
            starts_at_ns=starts.get(member, start),
            workload=scheduled_sends(scenario.workloads[member], streams.stream("workload", member)),
            incarnation=FIRST_INCARNATION,
            consume_ns=scenario.consume_ns.get(member, 0),
            priorities=scenario.priorities,
            routes=scenario.routes.get(member, ()),
            bound_ns=stack.declared_bound_ns,
            disk=disks[member] if needs_storage(scenario.order, scenario.grades) else None,
        )
    _schedule_steps_and_faults(world, scenario, start, disks)
    return world, memory_trace, bound, reliable


def drain_ns(scenario: Scenario) -> int:
    """How long the run continues after the latency bound.

    In the priority orders, all messages are consumed in this time. With final deliveries, all messages become final in
    it. With several groups, it is the bound that the scenario states.
    """
    if scenario.multigroup is not None:
        return scenario.expect.bound_ns or 0
    if not capabilities_of(scenario.order).pulled:
        return FINAL_DRAIN_NS if scenario.grades != "early" else 0
    most = WINDOW * len(set(scenario.priorities)) * len(scenario.members)
    return most * max(scenario.consume_ns.values(), default=0) + DRAIN_DELTAS * scenario.timing.delta_ns


def _requested_slot_bounds(scenario: Scenario, member: int) -> list[int]:
    """The order's latency bounds with each slot length that members ask for during the run."""
    return [build(scenario.policy_with_timing(member, timing)).bound_ns() for timing in scenario.timings[1:]]


def _schedule_steps_and_faults(world: World, scenario: Scenario, start: int, disks: Mapping[int, SimDisk]) -> None:
    """Schedule the scripted sends, the steps and the faults of members."""
    for member in scenario.members:
        for send in scenario.workloads[member].sends:
            world.send(start + send.at_ns, member, send.sizes)
    for step in scenario.steps:
        match step:
            case Start():
                pass
            case Leave():
                world.leave(start + step.at_ns, step.member)
            case PlannedRateChange():
                world.change_rate(start + step.at_ns, step.member, step.rate)
            case PlannedSlotChange():
                world.change_slot(start + step.at_ns, step.member, step.theta_ns)
            case PlannedTopologyChange():
                world.change_topology(start + step.at_ns, step.member, step.sends)
            case Restart():
                world.restart(
                    start + step.at_ns, step.member, partial(_rebuild_after_crash, scenario, step.member, disks)
                )
            case _:
                assert_never(step)
    for fault in scenario.faults:
        if isinstance(fault, Crash):
            world.crash(start + fault.at_ns, fault.member)
        elif isinstance(fault, Pause):
            world.pause(start + fault.from_ns, start + fault.to_ns, fault.member)


def _build_stack(scenario: Scenario, member: int, incarnation: int, disk: SimDisk) -> Stack:
    policy = scenario.policy_for(member, incarnation=incarnation)
    if not needs_storage(scenario.order, scenario.grades):
        return build(policy)
    return build(policy, stored_records=disk.stored_records(member))


def _rebuild_after_crash(scenario: Scenario, member: int, disks: Mapping[int, SimDisk], incarnation: int) -> Machine:
    disks[member].crash()
    return _build_stack(scenario, member, incarnation, disks[member])


def _network(scenario: Scenario, streams: RandomStreams, start: int) -> SimulatedNetwork:
    plan, delta = scenario.network, scenario.timing.delta_ns
    delays_by_link = {(link.sender, link.receiver): link.delay for link in plan.links}

    def draw(sender: int, receiver: int) -> DelaySource:
        chance = streams.stream("network", sender, receiver)
        own = delays_by_link.get((sender, receiver))
        if own is not None or plan.adversary == "none":
            return delays_from_model(own or plan.delay or UniformDelay(0, delta), delta, chance)
        adversary = corners(chance, delta) if plan.adversary == "corners" else constant_delay(delta)
        return delays_from_adversary(adversary, sender, receiver, delta)

    faults: list[LinkFault] = []
    losses = [fault for fault in scenario.faults if isinstance(fault, Loss)]
    for number, fault in enumerate(scenario.faults):
        if isinstance(fault, Loss):
            if fault is losses[0]:  # one LossFault has all of them, because their bounds apply together
                faults.append(LossFault(losses, start, streams.stream("fault", number)))
        elif not isinstance(fault, Crash | Pause):
            faults.append(link_fault(fault, start, delta, streams.stream("fault", number)))
    return SimulatedNetwork(full_mesh(scenario.members, draw, fifo=plan.fifo), faults)


def _clock(scenario: Scenario, member: int, streams: RandomStreams, start: int) -> Clock:
    plan, half = scenario.clocks, scenario.timing.gamma_ns // 2
    if member in plan.offsets_ns:
        return FixedClock(plan.offsets_ns[member])
    chance = streams.stream("clock", member)
    match plan.kind:
        case "perfect":
            return FixedClock()
        case "fixed" | None:
            return FixedClock(random_below(chance, 2 * half + 1) - half)
        case "drifting":
            sweep = max(1, int(2 * half * 1e6 / plan.drift_ppm))
            return DriftingClock(half, sweep, random_below(chance, 2 * sweep))
        case "adversarial":
            end = start + 2 * scenario.run_ns
            return corner_clock(chance, half, start, end, plan.step_every_ns)
    assert_never(plan.kind)


def _run_name(scenario: Scenario, seed: int) -> str:
    return f"{scenario.group}-seed-{seed}"


def run_meta(
    scenario: Scenario, seed: int, bound_ns: int, gap_free: bool, declared_bound_ns: int | None = None
) -> RunMeta:
    """The trace's description of the run; a latency bound in the scenario overrides that of the order."""
    stated = scenario.expect.bound_ns
    return RunMeta(
        run=_run_name(scenario, seed),
        group=scenario.group,
        order=scenario.order,
        members=scenario.members,
        delta_ns=scenario.timing.delta_ns,
        gamma_ns=scenario.timing.gamma_ns,
        theta_ns=scenario.timing.theta_ns,
        bound_ns=(bound_ns if not capabilities_of(scenario.order).pulled else None) if stated is None else stated,
        reliable=gap_free,
        source="sim",
        faults=tuple(map(fault_to_row, scenario.faults)),
        rates=scenario.constant_rates,
        declared_bound_ns=declared_bound_ns,
    )
