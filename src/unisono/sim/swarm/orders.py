"""Short random scenarios of every order, one per seed. Thousands of them take minutes.

Each keeps the assumptions of its order, and within them is as adverse as possible: clocks and delays at their limits,
members that start late, change their rates and leave. If the order tolerates it, members also crash, restart, are
partitioned, pause, and lose datagrams within the declared bound. `Expectation.bound_ns` is the latency bound of
the paper's theorem, with its errata. If members of an order with a leader crash, the order itself states the bound,
because it knows how long a change of leader takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random

from unisono.model.delays import ConstantDelay, DelayModel, UniformDelay
from unisono.model.faults import Crash, Fault, Loss, Partition, Pause, Span
from unisono.model.scenario import (
    EPOCH_NS,
    Expectation,
    Leave,
    Network,
    PlannedRateChange,
    Restart,
    Scenario,
    ScenarioStep,
    Start,
    Workload,
)
from unisono.model.timing import Timing
from unisono.model.units import NS_PER_MS, NS_PER_S, Rate
from unisono.orders.cbr.bounds import latency_bound_ns as cbr_bound_ns
from unisono.orders.leader.broadcast import latency_bound_ns as leader_bound_ns
from unisono.orders.leader.timestamp import latency_bound_ns as timestamp_bound_ns
from unisono.sim.random_streams import RandomStreams, random_below, random_bool, random_choice, random_int
from unisono.sim.swarm.draws import duplication_and_reordering, random_clocks
from unisono.stack import build

FORMING_NS = 8 * NS_PER_MS
"""Members that do not join a running group start within this time."""


def any_order(seed: int) -> Scenario:
    """The random scenario for a seed; consecutive seeds have scenarios of different orders."""
    kind = KINDS[seed % len(KINDS)]
    return _SCENARIO_BUILDERS[kind](RandomStreams(seed).stream("any order"), seed)


def _scenario(
    chance: Random,
    seed: int,
    order: str,
    timing: Timing,
    rates: Mapping[int, Rate],
    *,
    run_ns: int,
    bound_ns: int | None,
    max_message: int = 300,
    faults: list[Fault] | None = None,
    steps: list[ScenarioStep] | None = None,
    failures: bool = False,
    loss_burst: int = 0,
    fec: tuple[int, int] | None = None,
    processing_ns: int = 0,
    reservation: str = "sender",
    fifo: bool | None = None,
) -> Scenario:
    delays: tuple[DelayModel, ...] = (
        UniformDelay(0, timing.delta_ns),
        ConstantDelay(random_below(chance, timing.delta_ns + 1)),
    )
    return Scenario(
        source=f"any_order({seed})",
        group="swarm",
        order=order,
        members=tuple(rates),
        timing=timing,
        rates=rates,
        workloads={member: _workload(chance, rate, max_message) for member, rate in rates.items()},
        network=Network(
            random_choice(chance, delays),
            random_choice(chance, ("none", "corners", "corners", "all_delta")),
            fifo=random_bool(chance, 0.8) if fifo is None else fifo,
        ),
        run_ns=run_ns,
        seed=seed,
        epoch_ns=EPOCH_NS + random_below(chance, NS_PER_S),
        max_message=max_message,
        max_frame=random_choice(chance, (400, 1400)),
        failures=failures,
        loss_burst=loss_burst,
        fec=fec,
        processing_ns=processing_ns,
        reservation=reservation,
        clocks=random_clocks(chance, (100.0, 1e6), 30 * NS_PER_MS),
        faults=tuple(faults or ()),
        steps=tuple(steps or ()),
        expect=Expectation("valid", bound_ns),
    )


def _members(chance: Random, low: int = 2, high: int = 8) -> tuple[int, ...]:
    """Random members: mostly few, because the cost of a run grows with the square of their count."""
    count = min(random_int(chance, low, high) for _ in range(random_choice(chance, (1, 3, 3, 3, 3, 3))))
    first, apart = random_choice(chance, (1, 1, 7)), random_choice(chance, (1, 1, 13))
    return tuple(range(first, first + count * apart, apart))


def _timing(chance: Random, min_delta_ns: int = 0) -> Timing:
    theta = random_choice(chance, (5 * NS_PER_MS, random_int(chance, NS_PER_MS, 10 * NS_PER_MS)))
    return Timing(
        max(min_delta_ns, random_choice(chance, (0, theta // 3, 2 * theta, random_below(chance, 2 * theta)))),
        2 * random_choice(chance, (0, 1, theta // 5, random_below(chance, theta) // 2)),
        theta,
    )


def _rate(chance: Random, timing: Timing) -> Rate:
    burst = random_choice(chance, (1, 2, 5))
    return Rate(random_choice(chance, (0.2, 0.6, 1.0)) * burst * NS_PER_S / timing.theta_ns, burst)


def _workload(chance: Random, rate: Rate, max_message: int) -> Workload:
    high = random_int(chance, 0, max_message)
    if random_bool(chance, 0.2):
        return Workload("silent")
    # Sometimes more than the declared rate, so that the stack applies back-pressure.
    rate_hz = min(rate.avg, 250.0) * random_choice(chance, (0.2, 0.8, 1.5))
    if random_bool(chance, 0.4):
        return Workload(
            "bursts", 0, high, burst=random_int(chance, 1, rate.burst), every_ns=int(rate.burst * 1e9 / rate_hz)
        )
    return Workload(random_choice(chance, ("poisson", "cbr")), 0, high, rate=rate_hz)


def _span_ns(chance: Random, timing: Timing) -> int:
    """How long members send: long enough for messages to be in every stage of delivery at the same time."""
    return random_int(chance, 5, 11) * timing.theta_ns + 2 * (timing.delta_ns + timing.gamma_ns)


def _starts(chance: Random, members: tuple[int, ...], within_ns: int = FORMING_NS) -> list[ScenarioStep]:
    return [Start(member, random_below(chance, within_ns)) for member in members if random_bool(chance, 0.3)]


def _rate_changes(chance: Random, members: tuple[int, ...], timing: Timing, run_ns: int) -> list[ScenarioStep]:
    changes = random_choice(chance, (0, 1, 3))
    return [
        PlannedRateChange(random_choice(chance, members), random_below(chance, run_ns), _rate(chance, timing))
        for _ in range(changes)
    ]


def _duplication_and_reordering(chance: Random) -> list[Fault]:
    return duplication_and_reordering(chance, 0.25, (0.05, 0.5))


def _formed_ns(timing: Timing, steps: list[ScenarioStep]) -> int:
    """When a group that waits for all its members has formed."""
    latest = max((step.at_ns for step in steps if isinstance(step, Start)), default=0)
    return latest + max(timing.delta_ns, timing.theta_ns, 10 * NS_PER_MS) + 3 * (timing.delta_ns + timing.gamma_ns)


# -- orders without failures -------------------------------------------------------------------------------------


def _cbr(chance: Random, seed: int) -> Scenario:
    """A scenario of the CBR order. Its cycles last a second, so it runs for some seconds, at low rates."""
    members, theta = _members(chance), random_choice(chance, (5 * NS_PER_MS, 7_777_777))
    delta = random_choice(chance, (0, 10 * NS_PER_MS, random_below(chance, 300 * NS_PER_MS)))
    timing = Timing(delta, 2 * random_choice(chance, (0, NS_PER_MS, random_below(chance, 20 * NS_PER_MS))), theta)
    run_ns = random_int(chance, 1800, 3600) * NS_PER_MS
    steps = _starts(chance, members, 300 * NS_PER_MS)
    changes = [
        PlannedRateChange(m, random_below(chance, run_ns), _integer_rate(chance))
        for m in members
        if random_bool(chance, 0.4)
    ]
    steps += changes
    leaver = random_choice(chance, members)
    if random_bool(chance, 0.3):
        steps.append(Leave(leaver, _formed_ns(timing, steps) + NS_PER_S + random_below(chance, run_ns)))
    rates = {member: _integer_rate(chance) for member in members}
    slowest = min(int(rate.avg) for rate in (*rates.values(), *(change.rate for change in changes)))
    return _scenario(
        chance,
        seed,
        "cbr",
        timing,
        rates,
        run_ns=run_ns,
        bound_ns=cbr_bound_ns(timing, slowest),
        faults=_duplication_and_reordering(chance),
        steps=steps,
        reservation=random_choice(chance, ("sender", "receiver")),
    )


def _integer_rate(chance: Random) -> Rate:
    return Rate(float(random_choice(chance, (1, 2, 3, random_int(chance, 1, 10)))), 1)


def _vbr(chance: Random, seed: int) -> Scenario:
    members, timing = _members(chance), _timing(chance)
    steps = _starts(chance, members)
    formed_ns = _formed_ns(timing, steps) + 2 * timing.theta_ns
    run_ns = formed_ns + _span_ns(chance, timing)
    steps += _rate_changes(chance, members, timing, run_ns)
    steps += [Leave(m, random_int(chance, formed_ns, run_ns)) for m in members if random_bool(chance, 0.15)]
    rates = {member: _rate(chance, timing) for member in members}
    bound_ns = timing.delta_ns + timing.gamma_ns + timing.theta_ns
    return _scenario(
        chance,
        seed,
        "vbr",
        timing,
        rates,
        run_ns=run_ns,
        bound_ns=bound_ns,
        faults=_duplication_and_reordering(chance),
        steps=steps,
    )


def _vbr_fec(chance: Random, seed: int) -> Scenario:
    """At most a of any b consecutive datagrams are lost: forward error correction repairs all losses (paper 001)."""
    members, timing, fec = _members(chance), _timing(chance), _fec(chance)
    steps = _starts(chance, members)
    run_ns = _formed_ns(timing, steps) + 2 * timing.theta_ns + _span_ns(chance, timing)
    steps += _rate_changes(chance, members, timing, run_ns)
    rates = {member: _rate(chance, timing) for member in members}
    faults: list[Fault] = [Loss(Span(), random_choice(chance, (0.1, 0.6, 1.0)), *fec)]
    bound_ns = timing.delta_ns + timing.gamma_ns + timing.theta_ns
    return _scenario(
        chance, seed, "vbr", timing, rates, run_ns=run_ns, bound_ns=bound_ns, faults=faults, steps=steps, fec=fec
    )


def _fec(chance: Random) -> tuple[int, int]:
    a = random_int(chance, 1, 3)
    return a, a + random_int(chance, 1, 4)


# -- with failures -----------------------------------------------------------------------------------------------


def _vbr_failures(chance: Random, seed: int) -> Scenario:
    """Members crash, leave and restart; a quiet period follows, so that the group is complete again at the end."""
    members, timing = _members(chance), _timing(chance, min_delta_ns=1)
    trouble_ns = _span_ns(chance, timing) + 10 * NS_PER_MS
    tolerance = random_choice(chance, ("none", "burst", "fec"))
    loss_burst = random_int(chance, 1, 3) if tolerance == "burst" else 0
    fec = _fec(chance) if tolerance == "fec" else None
    faults, steps = _churn_faults(chance, members, timing, trouble_ns)
    if loss_burst:
        faults.append(Loss(Span(), random_choice(chance, (0.05, 0.3, 0.8)), loss_burst, loss_burst + 1))
    elif fec:
        faults.append(Loss(Span(), random_choice(chance, (0.1, 0.6)), *fec))
    else:
        faults += _duplication_and_reordering(chance)
    steps += _rate_changes(chance, members, timing, trouble_ns)
    quiet_ns = 8 * (timing.delta_ns + timing.gamma_ns) + (8 + 2 * loss_burst) * timing.theta_ns + 25 * NS_PER_MS
    return _scenario(
        chance,
        seed,
        "vbr",
        timing,
        {member: _rate(chance, timing) for member in members},
        run_ns=trouble_ns + quiet_ns,
        bound_ns=timing.delta_ns + 2 * timing.gamma_ns + timing.theta_ns,
        faults=faults,
        steps=steps,
        failures=True,
        loss_burst=loss_burst,
        fec=fec,
        fifo=True,
    )


def _churn_faults(
    chance: Random, members: tuple[int, ...], timing: Timing, trouble_ns: int
) -> tuple[list[Fault], list[ScenarioStep]]:
    faults: list[Fault] = []
    steps: list[ScenarioStep] = []
    for member in members:
        at_ns = random_below(chance, trouble_ns // 2) if random_bool(chance, 0.4) else 0
        if at_ns:
            steps.append(Start(member, at_ns))
        for _ in range(random_choice(chance, (0, 0, 1, 2))):
            at_ns += 1 + random_below(chance, trouble_ns)
            if at_ns >= trouble_ns:
                break
            if random_bool(chance, 0.6):
                faults.append(Crash(member, at_ns))
            else:
                steps.append(Leave(member, at_ns))
            # It restarts at once, before any member suspects it, or later.
            at_ns += random_choice(chance, (0, 1, timing.delta_ns, random_below(chance, trouble_ns)))
            if at_ns >= trouble_ns or random_bool(chance, 0.3):
                break
            steps.append(Restart(member, at_ns))
    if random_bool(chance, 0.12):
        cut, from_ns = random_int(chance, 1, len(members) - 1), random_below(chance, trouble_ns)
        span = Span(from_ns, from_ns + 1 + random_below(chance, trouble_ns - from_ns))
        faults.append(Partition(span, (members[:cut], members[cut:])))
    if random_bool(chance, 0.12):
        from_ns = random_below(chance, trouble_ns)
        faults.append(
            Pause(random_choice(chance, members), from_ns, from_ns + 1 + random_below(chance, trouble_ns - from_ns))
        )
    return faults, steps


# -- with a leader -----------------------------------------------------------------------------------------------


def _leader_scenario(chance: Random, seed: int, order: str) -> Scenario:
    """A scenario of an order with a leader: any minority may crash, usually including the leader."""
    members, timing = _members(chance, low=random_choice(chance, (2, 3, 3))), _timing(chance)
    steps = _starts(chance, members)
    formed_ns = _formed_ns(timing, steps)
    run_ns = formed_ns + _span_ns(chance, timing)
    steps += _rate_changes(chance, members, timing, run_ns)
    processing_ns = random_choice(chance, (0, NS_PER_MS, random_below(chance, 2 * timing.theta_ns)))
    # The leader may leave, too. Messages on their way to it then take longer, so no member crashes in that case.
    hands_over = random_bool(chance, 0.1)
    leaving = (
        [members[0]] if hands_over else sorted(members[1:], key=lambda _: chance.random())[: random_int(chance, 0, 1)]
    )
    steps += [Leave(member, random_int(chance, formed_ns, run_ns)) for member in leaving]
    staying = [member for member in members if member not in leaving]
    crashing: list[int] = []
    if random_bool(chance, 0.5) and not hands_over:
        crashing = staying[: (len(staying) - 1) // 2]
        if random_bool(chance, 0.4):
            crashing = sorted(staying, key=lambda _: chance.random())[: len(crashing)]
    crashes = [Crash(member, random_int(chance, formed_ns, run_ns)) for member in crashing]
    bound_ns = (leader_bound_ns if order == "leader" else timestamp_bound_ns)(timing, processing_ns)
    if hands_over:
        bound_ns += 5 * timing.delta_ns + processing_ns
    scenario = _scenario(
        chance,
        seed,
        order,
        timing,
        {member: _rate(chance, timing) for member in members},
        run_ns=run_ns,
        bound_ns=None if crashing else bound_ns,
        faults=[*crashes, *_duplication_and_reordering(chance)],
        steps=steps,
        failures=bool(crashing),
        processing_ns=processing_ns,
    )
    if crashing and leaving:
        # The leaving member may be the leader by then.
        stack, crashed = (
            build(scenario.policy_for(members[0])),
            [fault.member for fault in sorted(crashes, key=_crash_time_ns)],
        )
        bound_ns += stack.outage_ns(crashed) + 5 * timing.delta_ns + processing_ns
        return replace(scenario, expect=Expectation("valid", bound_ns))
    return scenario


def _crash_time_ns(crash: Crash) -> int:
    return crash.at_ns


def _leader(chance: Random, seed: int) -> Scenario:
    return _leader_scenario(chance, seed, "leader")


def _timestamp(chance: Random, seed: int) -> Scenario:
    return _leader_scenario(chance, seed, "timestamp")


_SCENARIO_BUILDERS: dict[str, Callable[[Random, int], Scenario]] = {
    "cbr": _cbr,
    "vbr": _vbr,
    "vbr with fec": _vbr_fec,
    "vbr with failures": _vbr_failures,
    "leader": _leader,
    "timestamp": _timestamp,
}
KINDS = tuple(_SCENARIO_BUILDERS)
