"""Random scenarios, one per seed: what a swarm of runs is made of.

`calm` keeps to what the failure-free orders assume (delays within Δ, clocks within Γ/2, nothing lost), and within that
is as unkind as it can be: adversarial clocks and delays, duplicates, reordering, members that come up late,
renegotiate and leave. `stormy` adds what they do not assume; then safety is all that can be asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import TypeVar

from unisono.model.delays import Constant, DelayModel, Empirical, Exponential, Lognormal, Uniform
from unisono.model.durations import NS_PER_MS, NS_PER_S
from unisono.model.faults import Crash, Duplication, Fault, Loss, Partition, Pause, Reordering, Span
from unisono.model.rates import Rate
from unisono.model.scenario import (
    EPOCH_NS,
    Adversary,
    Clocks,
    Expect,
    Leave,
    Network,
    RateChange,
    Scenario,
    Start,
    Step,
    Workload,
    WorkloadKind,
)
from unisono.model.timing import Timing
from unisono.sim.streams import Streams, below

_Item = TypeVar("_Item")


def calm(seed: int) -> Scenario:
    """A scenario that keeps to the assumptions: every guarantee has to hold."""
    chance = Streams(seed).stream("swarm")
    count = _whole(chance, 2, 8)
    members = tuple(range(1, count + 1)) if _happens(chance, 0.7) else tuple(range(3, 3 + 5 * count, 5))
    timing = Timing(
        _one_of(chance, (0, 1, _whole(chance, 0, 20 * NS_PER_MS), 10 * NS_PER_MS)),
        _one_of(chance, (0, _whole(chance, 0, 6 * NS_PER_MS), 2 * NS_PER_MS)),
        _one_of(chance, (_whole(chance, NS_PER_MS, 10 * NS_PER_MS), 5 * NS_PER_MS)),
    )
    max_message = _one_of(chance, (1, 64, 1000, 3000))
    rates = {member: _rate(chance, timing, max_message) for member in members}
    run_ns = _whole(chance, 30, 60) * timing.theta_ns + 4 * (timing.delta_ns + timing.gamma_ns) + 40 * NS_PER_MS
    return Scenario(
        source=f"calm({seed})",
        group="swarm",
        order="vbr",
        members=members,
        timing=timing,
        rates=rates,
        workloads={member: _workload(chance, rates[member], timing, max_message) for member in members},
        network=_network(chance, timing),
        run_ns=run_ns,
        seed=seed,
        epoch_ns=_one_of(chance, (0, EPOCH_NS, EPOCH_NS + below(chance, NS_PER_S))),
        max_message=max_message,
        max_frame=_one_of(chance, (256, 576, 1400)),
        clocks=Clocks(
            _one_of(chance, ("perfect", "fixed", "drifting", "adversarial")),
            drift_ppm=_one_of(chance, (100.0, 10_000.0, 1e6)),
            step_every_ns=_whole(chance, NS_PER_MS, 50 * NS_PER_MS),
        ),
        faults=_mischief(chance),
        steps=_steps(chance, members, timing, max_message, run_ns),
    )


def stormy(seed: int) -> Scenario:
    """The same with losses, partitions, crashes and pauses: safety has to hold, liveness cannot."""
    base = calm(seed)
    chance = Streams(seed).stream("storm")
    faults: list[Fault] = list(base.faults)
    while len(faults) == len(base.faults):
        if _happens(chance, 0.4):
            at_most = _one_of(chance, (None, 1, 2))
            of = None if at_most is None else at_most + _whole(chance, 1, 5)
            faults.append(Loss(_span(chance, base.run_ns), _one_of(chance, (0.001, 0.01, 0.2)), at_most, of))
        if _happens(chance, 0.3):
            cut = _whole(chance, 1, len(base.members) - 1)
            span = _span(chance, base.run_ns)
            faults.append(Partition(span, (base.members[:cut], base.members[cut:])))
        if _happens(chance, 0.3):
            faults.append(Crash(_one_of(chance, base.members), below(chance, base.run_ns)))
        if _happens(chance, 0.3):
            from_ns = below(chance, base.run_ns)
            to_ns = from_ns + _whole(chance, 1, 60 * NS_PER_MS)
            faults.append(Pause(_one_of(chance, base.members), from_ns, to_ns))
    return replace(base, source=f"stormy({seed})", faults=tuple(faults), expect=Expect("unknown"))


def _whole(chance: Random, low: int, high: int) -> int:
    return low + below(chance, high - low + 1)


def _happens(chance: Random, probability: float) -> bool:
    return chance.random() < probability


def _one_of(chance: Random, items: Sequence[_Item]) -> _Item:
    return items[below(chance, len(items))]


def _span(chance: Random, run_ns: int) -> Span:
    from_ns = below(chance, run_ns)
    return Span(from_ns, None if _happens(chance, 0.3) else from_ns + 1 + below(chance, run_ns // 3))


def _rate(chance: Random, timing: Timing, max_message: int) -> Rate:
    burst = _one_of(chance, (1, 2, 8, 30))
    share = _one_of(chance, (0.1, 0.5, 1.0))
    burst_bytes = _whole(chance, max_message, burst * max_message) if _happens(chance, 0.2) else None
    return Rate(share * burst * NS_PER_S / timing.theta_ns, burst, burst_bytes)


def _workload(chance: Random, rate: Rate, timing: Timing, max_message: int) -> Workload:
    high = _whole(chance, 0, max_message)
    low = high if _happens(chance, 0.3) else _whole(chance, 0, high)
    kinds: tuple[WorkloadKind, ...] = ("poisson", "poisson", "cbr", "bursts", "bursts", "silent")
    # Up to twice the declared rate: then the stack pushes back.
    asked = min(rate.avg, 5000.0) * _one_of(chance, (0.2, 0.9, 2.0))
    every_ns = _one_of(chance, (timing.theta_ns, _whole(chance, NS_PER_MS, 30 * NS_PER_MS)))
    return Workload(
        _one_of(chance, kinds), low, high, rate=asked, burst=_whole(chance, 1, rate.burst), every_ns=every_ns
    )


def _network(chance: Random, timing: Timing) -> Network:
    delta = timing.delta_ns
    middle = max(1, delta // 4)
    models: list[DelayModel] = [
        Constant(_whole(chance, 0, delta)),
        Uniform(0, delta),
        Empirical.of_samples([0, delta // 2, delta, delta]),
    ]
    if delta:
        models += [Exponential(middle), Lognormal(middle, 0.7)]
    adversaries: tuple[Adversary, ...] = ("none", "none", "none", "corners", "all_delta")
    adversary = _one_of(chance, adversaries)
    return Network(_one_of(chance, models), adversary, fifo=_happens(chance, 0.8))


def _mischief(chance: Random) -> tuple[Fault, ...]:
    """What orders have to bear although the paper's network does not do it: it stays within Δ."""
    faults: list[Fault] = []
    if _happens(chance, 0.4):
        faults.append(Duplication(Span(), _one_of(chance, (0.05, 0.5, 1.0))))
    if _happens(chance, 0.4):
        faults.append(Reordering(Span(), _one_of(chance, (0.05, 0.5, 1.0))))
    return tuple(faults)


def _steps(chance: Random, members: Sequence[int], timing: Timing, max_message: int, run_ns: int) -> tuple[Step, ...]:
    steps: list[Step] = []
    for member in members:
        if _happens(chance, 0.3):
            steps.append(Start(member, below(chance, 30 * NS_PER_MS)))
        if _happens(chance, 0.25):
            changes = _whole(chance, 1, 3)
            steps.extend(
                RateChange(member, below(chance, run_ns), _rate(chance, timing, max_message)) for _ in range(changes)
            )
        if _happens(chance, 0.1):
            steps.append(Leave(member, below(chance, run_ns)))
    return tuple(steps)
