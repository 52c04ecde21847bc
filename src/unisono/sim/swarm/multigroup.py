"""Random scenarios with several groups (order quasi_genuine): any topology, wrong clocks, loss, crashes, restarts."""

from __future__ import annotations

from random import Random

from unisono.model.delays import UniformDelay
from unisono.model.faults import Crash, Duplication, Fault, Loss, Partition, Pause, Reordering, Span
from unisono.model.scenario import (
    Clocks,
    Expectation,
    Network,
    PlannedTopologyChange,
    Restart,
    Scenario,
    ScenarioStep,
    Workload,
)
from unisono.model.timing import Timing
from unisono.model.topology import Multigroup, Topology
from unisono.model.units import NS_PER_MS, NS_PER_S, Rate
from unisono.sim.random_streams import RandomStreams, random_below, random_bool, random_choice, random_int

GROUP_SIZE = 3
DRAIN_NS = 1_500 * NS_PER_MS
"""No fault happens after the end of sending, so everything is delivered within this time."""
GROUP_NAMES = "abcdef"
LARGE_PROBABILITY = 0.03
"""This share of the scenarios is large: many groups, in which most members send, and for longer."""

TOPOLOGY_CHANGE_PROBABILITY = 0.4
"""In this share of the scenarios the topology changes during the run."""


def groups_scenario(seed: int) -> Scenario:
    """The random scenario with several groups, for a seed."""
    chance = RandomStreams(seed).stream("groups")
    large = random_bool(chance, LARGE_PROBABILITY)
    count = (
        random_int(chance, 4, 6) if large else random_choice(chance, (2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 4, 4, 5, 6))
    )
    send_ns = (200 if large else random_choice(chance, (40, 60, 60, 80, 80, 100, 120, 250))) * NS_PER_MS
    topology = _topology(chance, count)
    members = topology.members
    possible_senders = tuple(member for member in members if topology.sends[topology.group_of(member)])
    senders = {
        random_choice(chance, possible_senders)
        for _ in range(2 * len(possible_senders) if large else random_int(chance, 2, 4))
    }
    delta = random_int(chance, 1, 8) * NS_PER_MS
    timing = Timing(delta, random_below(chance, 2 * delta), random_int(chance, 1, 5) * NS_PER_MS)
    window = random_choice(chance, (0, 0, 0, delta, None))
    rules = Multigroup.of_ns(
        topology,
        random_choice(chance, ("on_demand", "on_demand", "periodic")),
        random_int(chance, 4, 40) * NS_PER_MS,
        window,
        optimistic=window != 0 and random_bool(chance, 0.5),
    )
    faults, steps = _faults(chance, topology, send_ns)
    steps += _topology_changes(RandomStreams(seed).stream("changes"), topology, send_ns)
    rate = Rate(avg=5000, burst=64)
    return Scenario(
        source=f"groups_scenario({seed})",
        group=f"groups-{seed}",
        order="quasi_genuine",
        members=members,
        timing=timing,
        rates=dict.fromkeys(members, rate),
        workloads={member: _workload(chance, send_ns) if member in senders else Workload() for member in members},
        network=Network(UniformDelay(random_below(chance, delta), delta), fifo=random_bool(chance, 0.7)),
        run_ns=send_ns,
        seed=seed,
        failures=True,
        max_frame=random_choice(chance, (1400, 400)),
        clocks=Clocks(random_choice(chance, ("fixed", "drifting", "adversarial"))),
        faults=faults,
        steps=steps,
        multigroup=rules,
        routes={member: _routes(chance, topology, member) for member in members},
        expect=Expectation(bound_ns=DRAIN_NS),
    )


def _topology(chance: Random, count: int) -> Topology:
    names = GROUP_NAMES[:count]
    groups = {
        name: range(GROUP_SIZE * number + 1, GROUP_SIZE * number + GROUP_SIZE + 1) for number, name in enumerate(names)
    }
    density = random_choice(chance, (0.3, 0.6, 1.0))
    sends = {name: [other for other in names if random_bool(chance, density)] for name in names}
    if random_bool(chance, 0.3) or not any(sends.values()):  # a ring, the most asymmetric and cyclic topology
        sends = {name: [name, names[(number + 1) % count]] for number, name in enumerate(names)}
    return Topology({name: tuple(members) for name, members in groups.items()}, sends)


def _workload(chance: Random, send_ns: int) -> Workload:
    if random_bool(chance, 0.5):
        messages = random_int(chance, 1, 8)
        return Workload("poisson", 10, random_choice(chance, (100, 1500)), rate=messages * NS_PER_S / send_ns)
    return Workload(
        "bursts", 10, 100, burst=random_int(chance, 1, 6), every_ns=send_ns * random_int(chance, 20, 60) // 100
    )


def _routes(chance: Random, topology: Topology, member: int) -> tuple[tuple[str, ...], ...]:
    receivers = topology.receivers_from(topology.group_of(member))
    if not receivers:
        return ((topology.group_of(member),),)
    routes = []
    for _ in range(random_int(chance, 1, 4)):
        chosen = tuple(name for name in receivers if random_bool(chance, 0.5))
        routes.append(chosen or (random_choice(chance, receivers),))
    return tuple(routes)


def _topology_changes(chance: Random, topology: Topology, send_ns: int) -> tuple[PlannedTopologyChange, ...]:
    """Random topology changes: a member asks its group to send to other groups, or to none."""
    if not random_bool(chance, TOPOLOGY_CHANGE_PROBABILITY):
        return ()
    steps = []
    for _ in range(random_int(chance, 1, 4)):
        sends = tuple(name for name in topology.names if random_bool(chance, 0.5))
        steps.append(
            PlannedTopologyChange(random_choice(chance, topology.members), random_below(chance, send_ns), sends)
        )
    return tuple(steps)


def _faults(chance: Random, topology: Topology, send_ns: int) -> tuple[tuple[Fault, ...], tuple[ScenarioStep, ...]]:
    faults: list[Fault] = []
    steps: list[ScenarioStep] = []
    sending = Span(0, send_ns)
    if random_bool(chance, 0.6):
        faults.append(Loss(sending, random_choice(chance, (0.01, 0.05, 0.15))))
    if random_bool(chance, 0.3):
        faults.append(Duplication(sending, 0.1))
    if random_bool(chance, 0.3):
        faults.append(Reordering(sending, 0.2))
    if random_bool(chance, 0.2):
        isolated = tuple(member for member in topology.members if random_bool(chance, 0.3))
        if isolated:
            start = random_below(chance, send_ns)
            faults.append(Partition(Span(start, min(send_ns, start + send_ns // 3) + 1), (isolated,)))
    for name in topology.names:
        if random_bool(chance, 0.4):
            member, at = random_choice(chance, tuple(topology.groups[name])), random_below(chance, send_ns)
            faults.append(Crash(member, at))
            if random_bool(chance, 0.7):
                steps.append(
                    Restart(member, at + random_int(chance, 1, random_choice(chance, (20, 60, 200))) * NS_PER_MS)
                )
        elif random_bool(chance, 0.15):
            start = random_below(chance, send_ns)
            faults.append(
                Pause(
                    random_choice(chance, tuple(topology.groups[name])),
                    start,
                    start + random_int(chance, 10, 100) * NS_PER_MS,
                )
            )
    return tuple(faults), tuple(steps)
