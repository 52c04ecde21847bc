"""Random scenarios with final deliveries, one per seed: faults, then a quiet period in which all messages become final.

Members crash and restart with their disks, pause, are partitioned, leave and join late; datagrams are lost. A majority
never crashes, because final deliveries need one. Early deliveries need no majority.
"""

from __future__ import annotations

from random import Random

from unisono.model.delays import UniformDelay
from unisono.model.faults import Crash, Duplication, Fault, Loss, Partition, Pause, Span
from unisono.model.scenario import Clocks, Leave, Network, Restart, Scenario, ScenarioStep, Start, Workload
from unisono.model.timing import Timing
from unisono.model.units import NS_PER_MS, Rate
from unisono.sim.random_streams import RandomStreams, random_below, random_bool, random_choice, random_int

QUIET_PERIOD_NS = 300 * NS_PER_MS
"""Members continue to send for this time after the last fault."""


def finals(seed: int) -> Scenario:
    """The random scenario with final deliveries over the VBR order, for a seed."""
    chance = RandomStreams(seed).stream("finals")
    members = tuple(range(1, random_choice(chance, (3, 3, 4, 5)) + 1))
    theta = random_choice(chance, (5, 10)) * NS_PER_MS
    timing = Timing(random_choice(chance, (NS_PER_MS, theta, 2 * theta)), random_choice(chance, (0, theta // 5)), theta)
    trouble_ns = random_int(chance, 150, 500) * NS_PER_MS
    loss_burst = random_choice(chance, (0, 0, 1, 2))
    faults, steps = _member_faults(chance, members, trouble_ns)
    if loss_burst:
        faults.append(
            Loss(Span(0, trouble_ns + QUIET_PERIOD_NS), random_choice(chance, (0.05, 0.3)), loss_burst, loss_burst + 1)
        )
    elif random_bool(chance, 0.3):
        # More loss than the group tolerates: early deliveries have unexpected gaps, final ones have none.
        faults.append(Loss(Span(0, trouble_ns), random_choice(chance, (0.01, 0.1))))
    elif random_bool(chance, 0.3):
        faults.append(Duplication(Span(), 0.2))
    max_message = random_choice(chance, (50, 3000))
    return Scenario(
        source=f"finals({seed})",
        group="swarm",
        order="vbr",
        members=members,
        timing=timing,
        rates=dict.fromkeys(members, Rate(400.0, 6)),
        workloads={member: _workload(chance, max_message) for member in members},
        network=Network(UniformDelay(0, timing.delta_ns)),
        run_ns=trouble_ns + QUIET_PERIOD_NS,
        seed=seed,
        max_message=max_message,
        max_frame=random_choice(chance, (400, 1400)),
        failures=True,
        loss_burst=loss_burst,
        grades="both",
        clocks=Clocks(random_choice(chance, ("perfect", "fixed", "drifting"))),
        faults=tuple(faults),
        steps=tuple(steps),
    )


def cbr_finals(seed: int) -> Scenario:
    """The random scenario with final deliveries over the CBR order, for a seed.

    That order tolerates no fault, so its early deliveries may stop at any point.
    """
    chance = RandomStreams(seed).stream("cbr finals")
    members = tuple(range(1, random_choice(chance, (3, 3, 4, 5)) + 1))
    theta = random_choice(chance, (5, 10, 40)) * NS_PER_MS
    timing = Timing(random_choice(chance, (NS_PER_MS, theta, 2 * theta)), random_choice(chance, (0, theta // 5)), theta)
    # The group starts when the clock shows a full second. Faults begin after that, and a quiet period follows them.
    begins_ns, trouble_ns = 2_000 * NS_PER_MS, random_int(chance, 50, 400) * NS_PER_MS
    trouble = Span(begins_ns, begins_ns + trouble_ns)
    faults: list[Fault] = []
    steps: list[ScenarioStep] = []
    may_crash = list(members)
    chance.shuffle(may_crash)
    for member in may_crash[: (len(members) - 1) // 2]:
        fate, at_ns = (
            random_choice(chance, ("crash", "crash", "leave", "nothing")),
            begins_ns + random_below(chance, trouble_ns),
        )
        if fate == "crash":
            faults.append(Crash(member, at_ns))
        elif fate == "leave":
            steps.append(Leave(member, at_ns))
    if random_bool(chance, 0.3):
        faults.append(Loss(trouble, random_choice(chance, (0.01, 0.1))))
    if random_bool(chance, 0.2):
        faults.append(Duplication(Span(), 0.2))
    if random_bool(chance, 0.2):
        at_ns = begins_ns + random_below(chance, trouble_ns)
        faults.append(Pause(random_choice(chance, members), at_ns, at_ns + random_int(chance, 10, 200) * NS_PER_MS))
    max_message = random_choice(chance, (50, 3000))
    rates = {member: Rate(float(random_choice(chance, (10, 40, 150))), 1) for member in members}
    return Scenario(
        source=f"cbr_finals({seed})",
        group="swarm",
        order="cbr",
        members=members,
        timing=timing,
        rates=rates,
        workloads={
            member: Workload("poisson", 0, max_message, rate=rate.avg * random_choice(chance, (0.3, 0.9)))
            for member, rate in rates.items()
        },
        network=Network(UniformDelay(0, timing.delta_ns)),
        run_ns=begins_ns + trouble_ns + QUIET_PERIOD_NS,
        seed=seed,
        max_message=max_message,
        max_frame=random_choice(chance, (400, 1400)),
        grades="both",
        clocks=Clocks(random_choice(chance, ("perfect", "fixed", "drifting"))),
        faults=tuple(faults),
        steps=tuple(steps),
    )


def _workload(chance: Random, max_message: int) -> Workload:
    if random_bool(chance, 0.15):
        return Workload("silent")
    rate = random_choice(chance, (20.0, 60.0, 150.0))
    if random_bool(chance, 0.4):
        return Workload("bursts", 0, max_message, burst=4, every_ns=int(4e9 / rate))
    return Workload("poisson", 0, max_message, rate=rate)


def _member_faults(chance: Random, members: tuple[int, ...], trouble_ns: int) -> tuple[list[Fault], list[ScenarioStep]]:
    faults: list[Fault] = []
    steps: list[ScenarioStep] = []
    may_crash = list(members)
    chance.shuffle(may_crash)
    for member in may_crash[: (len(members) - 1) // 2]:
        fate = random_choice(chance, ("crash", "crash", "restart", "restart", "leave", "late", "nothing"))
        at_ns = 1 + random_below(chance, trouble_ns - 1)
        if fate in {"crash", "restart"}:
            faults.append(Crash(member, at_ns))
            if fate == "restart":
                steps.append(
                    Restart(
                        member, at_ns + random_choice(chance, (1, NS_PER_MS, random_int(chance, 1, 300) * NS_PER_MS))
                    )
                )
        elif fate == "leave":
            steps.append(Leave(member, at_ns))
        elif fate == "late":
            steps.append(Start(member, at_ns))
    if random_bool(chance, 0.3):
        from_ns = random_below(chance, trouble_ns)
        to_ns = from_ns + 1 + random_below(chance, 2 * (trouble_ns - from_ns))
        faults.append(Pause(random_choice(chance, members), from_ns, min(to_ns, trouble_ns)))
    if random_bool(chance, 0.3):
        cut, from_ns = random_int(chance, 1, len(members) - 1), random_below(chance, trouble_ns)
        span = Span(from_ns, from_ns + 1 + random_below(chance, trouble_ns - from_ns))
        faults.append(Partition(span, (members[:cut], members[cut:])))
    return faults, steps
