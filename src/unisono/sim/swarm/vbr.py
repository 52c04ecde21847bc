"""Random scenarios of the VBR order, one per seed.

`calm` keeps the assumptions of the failure-free orders (delays within Δ, clocks within Γ/2, no loss). Within them it is
as adverse as possible: adversarial clocks and delays, duplicates, reordering, members that start late, change their
rates and leave. `stormy` violates the assumptions, so only safety can be required.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

from unisono.model.delays import (
    ConstantDelay,
    DelayModel,
    EmpiricalDelay,
    ExponentialDelay,
    LognormalDelay,
    UniformDelay,
)
from unisono.model.faults import Crash, Fault, Loss, Partition, Pause, Span
from unisono.model.scenario import (
    EPOCH_NS,
    Adversary,
    Expectation,
    Leave,
    Network,
    PlannedRateChange,
    PlannedSlotChange,
    Restart,
    Scenario,
    ScenarioStep,
    Start,
    Workload,
    WorkloadKind,
)
from unisono.model.timing import Timing
from unisono.model.units import NS_PER_MS, NS_PER_S, Rate
from unisono.sim.random_streams import RandomStreams, random_below, random_bool, random_choice, random_int
from unisono.sim.swarm.draws import duplication_and_reordering, random_clocks

LATEST_START_NS = 30 * NS_PER_MS


def calm(seed: int) -> Scenario:
    """A scenario that keeps the assumptions: every guarantee must hold."""
    chance = RandomStreams(seed).stream("swarm")
    count = random_int(chance, 2, 8)
    members = tuple(range(1, count + 1)) if random_bool(chance, 0.7) else tuple(range(3, 3 + 5 * count, 5))
    timing = Timing(
        random_choice(chance, (0, 1, random_int(chance, 0, 20 * NS_PER_MS), 10 * NS_PER_MS)),
        random_choice(chance, (0, random_int(chance, 0, 6 * NS_PER_MS), 2 * NS_PER_MS)),
        random_choice(chance, (random_int(chance, NS_PER_MS, 10 * NS_PER_MS), 5 * NS_PER_MS)),
    )
    max_message = random_choice(chance, (1, 64, 1000, 3000))
    rates = {member: _rate(chance, timing, max_message) for member in members}
    run_ns = random_int(chance, 15, 40) * timing.theta_ns + 4 * (timing.delta_ns + timing.gamma_ns) + 40 * NS_PER_MS
    return replace(
        _vbr_scenario(chance, f"calm({seed})", seed, timing, rates, max_message=max_message, run_ns=run_ns),
        epoch_ns=random_choice(chance, (0, EPOCH_NS, EPOCH_NS + random_below(chance, NS_PER_S))),
        max_frame=random_choice(chance, (256, 576, 1400)),
        clocks=random_clocks(chance, (100.0, 10_000.0, 1e6), 50 * NS_PER_MS),
        faults=_duplication_and_reordering(chance),
        steps=_steps(chance, members, timing, max_message, run_ns),
    )


def stormy(seed: int) -> Scenario:
    """A `calm` scenario with losses, partitions, crashes and pauses: safety must hold, liveness need not."""
    base = calm(seed)
    chance = RandomStreams(seed).stream("storm")
    faults: list[Fault] = list(base.faults)
    while len(faults) == len(base.faults):
        if random_bool(chance, 0.4):
            at_most = random_choice(chance, (None, 1, 2))
            of = None if at_most is None else at_most + random_int(chance, 1, 5)
            faults.append(Loss(_span(chance, base.run_ns), random_choice(chance, (0.001, 0.01, 0.2)), at_most, of))
        if random_bool(chance, 0.3):
            cut = random_int(chance, 1, len(base.members) - 1)
            span = _span(chance, base.run_ns)
            faults.append(Partition(span, (base.members[:cut], base.members[cut:])))
        if random_bool(chance, 0.3):
            faults.append(Crash(random_choice(chance, base.members), random_below(chance, base.run_ns)))
        if random_bool(chance, 0.3):
            from_ns = random_below(chance, base.run_ns)
            to_ns = from_ns + random_int(chance, 1, 60 * NS_PER_MS)
            faults.append(Pause(random_choice(chance, base.members), from_ns, to_ns))
    return replace(base, source=f"stormy({seed})", faults=tuple(faults), expect=Expectation("unknown"))


def churning(seed: int) -> Scenario:
    """Members crash, restart, join, leave and pause; the network loses and duplicates datagrams, and is partitioned.

    Losses keep the declared bound. All faults end early enough for the group to be complete again at the end. The total
    order must hold in every case; the latency bound must hold unless a member pauses.
    """
    chance = RandomStreams(seed).stream("churn")
    members = tuple(sorted({random_int(chance, 1, 40) for _ in range(random_int(chance, 2, 6))} | {7, 20}))
    theta = random_choice(chance, (random_int(chance, NS_PER_MS, 10 * NS_PER_MS), 5 * NS_PER_MS))
    timing = Timing(
        random_choice(chance, (1, random_int(chance, 1, 3 * theta), 2 * theta, theta // 3)),
        random_choice(chance, (0, random_int(chance, 0, theta), 2 * NS_PER_MS)),
        theta,
    )
    max_message = random_choice(chance, (1, 64, 3000))
    rates = {member: _rate(chance, timing, max_message) for member in members}
    trouble_ns = random_int(chance, 15, 30) * theta + 4 * (timing.delta_ns + timing.gamma_ns)
    loss_burst = random_choice(chance, (0, 0, 1, 2, 3))
    faults, steps = _churn_faults(chance, members, timing, trouble_ns)
    if loss_burst:
        faults.append(Loss(Span(), random_choice(chance, (0.01, 0.2, 0.6)), loss_burst, loss_burst + 1))
    else:
        faults.extend(_duplication_and_reordering(chance))
    steps += [
        PlannedRateChange(
            random_choice(chance, members), random_below(chance, trouble_ns), _rate(chance, timing, max_message)
        )
        for _ in range(random_int(chance, 0, 3))
    ]
    has_pause = any(isinstance(fault, Pause) for fault in faults)
    run_ns = trouble_ns + 8 * (timing.delta_ns + timing.gamma_ns) + (10 + 2 * loss_burst) * theta + 60 * NS_PER_MS
    base = _vbr_scenario(chance, f"churning({seed})", seed, timing, rates, max_message=max_message, run_ns=run_ns)
    return replace(
        base,
        network=replace(base.network, fifo=True),
        max_frame=random_choice(chance, (256, 1400)),
        failures=True,
        loss_burst=loss_burst,
        clocks=random_clocks(chance, (100.0, 1e6), 50 * NS_PER_MS),
        faults=tuple(faults),
        steps=tuple(steps),
        expect=Expectation("unknown" if has_pause else "valid"),
    )


def _vbr_scenario(
    chance: Random, source: str, seed: int, timing: Timing, rates: Mapping[int, Rate], *, max_message: int, run_ns: int
) -> Scenario:
    """A run without faults; its workloads and its network are random."""
    return Scenario(
        source=source,
        group="swarm",
        order="vbr",
        members=tuple(rates),
        timing=timing,
        rates=rates,
        workloads={member: _workload(chance, rate, timing, max_message) for member, rate in rates.items()},
        network=_network(chance, timing),
        run_ns=run_ns,
        seed=seed,
        max_message=max_message,
    )


def renegotiated(seed: int) -> Scenario:
    """A `calm` or, for odd seeds, a `churning` scenario in which members also ask for other slot lengths."""
    base = churning(seed) if seed % 2 else calm(seed)
    chance = RandomStreams(seed).stream("renegotiation")
    # All requests come early enough for the group to have agreed before the end.
    from_ns, to_ns = base.run_ns // 8, base.run_ns // 2
    requests = [
        PlannedSlotChange(
            random_choice(chance, base.members), random_int(chance, from_ns, to_ns), _other_slot_ns(chance, base.timing)
        )
        for _ in range(random_int(chance, 1, 5))
    ]
    longest = max(step.theta_ns for step in requests)
    run_ns = base.run_ns + (12 + 2 * base.loss_burst) * longest + 12 * (base.timing.delta_ns + base.timing.gamma_ns)
    return replace(base, source=f"renegotiated({seed})", run_ns=run_ns, steps=(*base.steps, *requests))


def _other_slot_ns(chance: Random, timing: Timing) -> int:
    """Draw another slot length: a quarter to four times the present one, often exactly half, double or four times."""
    theta = timing.theta_ns
    return max(
        NS_PER_MS // 2,
        random_choice(chance, (2 * theta, theta // 2, 4 * theta, random_int(chance, theta // 4, 4 * theta))),
    )


def _churn_faults(
    chance: Random, members: Sequence[int], timing: Timing, trouble_ns: int
) -> tuple[list[Fault], list[ScenarioStep]]:
    """Draw faults and planned steps of members, and partitions between members, all before `trouble_ns`."""
    faults: list[Fault] = []
    steps: list[ScenarioStep] = []
    for member in members:
        starts_ns = random_below(chance, trouble_ns // 2) if random_bool(chance, 0.4) else 0
        if starts_ns:
            steps.append(Start(member, starts_ns))
        ends_ns = starts_ns + 1 + random_below(chance, trouble_ns - starts_ns - 1)
        fate = chance.random()
        if fate < 0.3:
            faults.append(Crash(member, ends_ns))
        elif fate < 0.45:
            steps.append(Leave(member, ends_ns))
        elif fate < 0.6:
            long_ns = 3 * (timing.delta_ns + timing.gamma_ns) + 5 * timing.theta_ns
            faults.append(Pause(member, ends_ns, min(trouble_ns, ends_ns + 1 + random_below(chance, long_ns))))
        if fate < 0.45 and random_bool(chance, 0.6):
            # It restarts at once, before any member suspects it, or later.
            away_ns = random_choice(chance, (0, 1, timing.delta_ns, random_below(chance, trouble_ns)))
            steps.append(Restart(member, min(trouble_ns, ends_ns + away_ns)))
    if random_bool(chance, 0.4):
        cut, from_ns = random_int(chance, 1, len(members) - 1), random_below(chance, trouble_ns - 1)
        span = Span(from_ns, from_ns + 1 + random_below(chance, trouble_ns - from_ns))
        faults.append(Partition(span, (tuple(members[:cut]), tuple(members[cut:]))))
    return faults, steps


def _span(chance: Random, run_ns: int) -> Span:
    from_ns = random_below(chance, run_ns)
    return Span(from_ns, None if random_bool(chance, 0.3) else from_ns + 1 + random_below(chance, run_ns // 3))


def _rate(chance: Random, timing: Timing, max_message: int) -> Rate:
    # Large messages need many frames: few of them keep a swarm quick.
    burst = random_choice(chance, (1, 2, 8, 30) if max_message < 1000 else (1, 2, 5))
    share = random_choice(chance, (0.1, 0.5, 1.0))
    burst_bytes = random_int(chance, max_message, burst * max_message) if random_bool(chance, 0.2) else None
    return Rate(share * burst * NS_PER_S / timing.theta_ns, burst, burst_bytes)


def _workload(chance: Random, rate: Rate, timing: Timing, max_message: int) -> Workload:
    high = random_int(chance, 0, max_message)
    low = high if random_bool(chance, 0.3) else random_int(chance, 0, high)
    kinds: tuple[WorkloadKind, ...] = ("poisson", "poisson", "cbr", "bursts", "bursts", "silent")
    # Up to twice the declared rate, so that the stack applies back-pressure.
    message_rate = min(rate.avg, 2000.0) * random_choice(chance, (0.2, 0.9, 2.0))
    every_ns = random_choice(chance, (timing.theta_ns, random_int(chance, NS_PER_MS, 30 * NS_PER_MS)))
    return Workload(
        random_choice(chance, kinds),
        low,
        high,
        rate=message_rate,
        burst=random_int(chance, 1, rate.burst),
        every_ns=every_ns,
    )


def _network(chance: Random, timing: Timing) -> Network:
    delta = timing.delta_ns
    middle = max(1, delta // 4)
    models: list[DelayModel] = [
        ConstantDelay(random_int(chance, 0, delta)),
        UniformDelay(0, delta),
        EmpiricalDelay.of_samples([0, delta // 2, delta, delta]),
    ]
    if delta:
        models += [ExponentialDelay(middle), LognormalDelay(middle, 0.7)]
    adversaries: tuple[Adversary, ...] = ("none", "none", "none", "corners", "all_delta")
    adversary = random_choice(chance, adversaries)
    return Network(random_choice(chance, models), adversary, fifo=random_bool(chance, 0.8))


def _duplication_and_reordering(chance: Random) -> tuple[Fault, ...]:
    return tuple(duplication_and_reordering(chance, 0.4, (0.05, 0.5, 1.0)))


def _steps(
    chance: Random, members: Sequence[int], timing: Timing, max_message: int, run_ns: int
) -> tuple[ScenarioStep, ...]:
    steps: list[ScenarioStep] = []
    # After every group has formed: leaving earlier is tested elsewhere.
    formed_ns = LATEST_START_NS + 10 * NS_PER_MS + 3 * (timing.delta_ns + timing.gamma_ns) + 2 * timing.theta_ns
    for member in members:
        if random_bool(chance, 0.3):
            steps.append(Start(member, random_below(chance, LATEST_START_NS)))
        if random_bool(chance, 0.25):
            changes = random_int(chance, 1, 3)
            steps.extend(
                PlannedRateChange(member, random_below(chance, run_ns), _rate(chance, timing, max_message))
                for _ in range(changes)
            )
        if random_bool(chance, 0.1):
            steps.append(Leave(member, random_int(chance, formed_ns, max(formed_ns, run_ns))))
    return tuple(steps)
