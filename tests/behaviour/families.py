"""The families of seeded runs whose behaviour is compared: every order, every swarm, every scenario file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

import pytest
from examples.areas.play import Game
from tests.behaviour.recording import Play, Recording, frame_bytes
from tests.paper.leader_group import LeaderGroup
from tests.simulation import consensus_world, membership_world, test_adaptation
from tests.simulation.test_leader_swarm import busy, crashed, partitioned_with_failure
from tests.simulation.test_rmcast_swarm import counted, crashing, lossy
from tests.worlds.ideal_swarm import finish_required, random_group, run_randomly
from tests.worlds.ideal_trace import ideal_trace

from unisono.model.capabilities import SERVICES, orders_with
from unisono.model.delays import ExponentialDelay
from unisono.model.faults import Crash
from unisono.model.policy import Adaptive, Redundancy
from unisono.model.scenario import Clocks, Leave, Restart, Scenario, Start, Workload
from unisono.model.text.scenario import parse_scenario
from unisono.model.units import NS_PER_MS
from unisono.orders.leader.broadcast import LeaderBroadcast
from unisono.orders.leader.timestamp import TimestampLeader
from unisono.sim import run
from unisono.sim.random_streams import RandomStreams, generator
from unisono.sim.rmcast_runs import CrashScenario as CopyScenario
from unisono.sim.rmcast_runs import RmcastCase, RmcastRuns
from unisono.sim.run import run_meta
from unisono.sim.swarm import vbr as swarm
from unisono.sim.swarm.final import cbr_finals, finals
from unisono.sim.swarm.multigroup import groups_scenario
from unisono.sim.swarm.orders import KINDS, any_order
from unisono.trace.schema import RunMeta
from unisono.wire.frame import Frame

ROOT: Final = Path(__file__).parents[2]
SCENARIO_FILES: Final = tuple(sorted((ROOT / "scenarios").glob("*.toml")))
LEADER_ORDERS: Final = (LeaderBroadcast, TimestampLeader)


@dataclass(frozen=True, slots=True)
class Family:
    """Some seeded runs of one kind; `quick` of them are also part of the quick test."""

    seeds: range
    play: Play
    quick: int = 1


def _scenario(draw: Callable[[int], Scenario], seed: int, recording: Recording) -> None:
    result = run(draw(seed), compare_payloads=True)
    recording.outcome(result.until_ns)
    recording.rows(result.trace)


# -- scenarios that no swarm draws -------------------------------------------------------------------------------


def consensus_scenario(seed: int) -> Scenario:
    """Total order by consensus with stable storage, and the faults of `finals`."""
    base = finals(seed)
    return replace(base, source=f"consensus({seed})", order="consensus", grades="early", failures=False, loss_burst=0)


def priority_scenario(order: str, seed: int) -> Scenario:
    """The priority order over agreed views, with consumers of different speeds: crashes, joins and leaves."""
    base = finals(seed)
    chance = Random(f"priority {seed}")
    return replace(
        base,
        source=f"{order}({seed})",
        order=order,
        grades="early",
        failures=False,
        loss_burst=0,
        max_message=64,
        workloads={m: Workload("poisson", 0, 64, rate=chance.choice((20.0, 60.0))) for m in base.members},
        consume_ns={member: chance.choice((0, 1, 5, 20)) * NS_PER_MS for member in base.members},
        priorities=chance.choice(((0,), (0, 1), (0, 3, 0, 7))),
    )


def final_scenario(seed: int) -> Scenario:
    """Only final deliveries, without early ones."""
    return replace(finals(seed), source=f"final only({seed})", grades="final")


def rmcast_scenario(order: str, seed: int) -> Scenario:
    """An order or a service over reliable multicast: as it is, with crashes, with counting receivers, with a leave."""
    scenario = crashing(seed, order) if seed % 4 == 1 and order in SERVICES else lossy(seed, order)
    if seed % 4 == 2:
        scenario = counted(scenario)
    if seed % 4 == 3:
        scenario = replace(scenario, steps=(Leave(scenario.members[0], 200 * NS_PER_MS),))
    return scenario


def rmcast_failures(seed: int) -> Scenario:
    """VBR with failures over reliable multicast: one member joins late, another crashes and returns."""
    scenario = lossy(seed, "vbr")
    first, last = scenario.members[0], scenario.members[-1]
    return replace(
        scenario,
        failures=True,
        run_ns=600 * NS_PER_MS,
        faults=(*scenario.faults, Crash(first, 150 * NS_PER_MS)),
        steps=(Start(last, 120 * NS_PER_MS), Restart(first, 300 * NS_PER_MS)),
    )


def wrong_clocks(seed: int) -> Scenario:
    """A clock that is off by more than Γ: members probe each other's clocks and fence the wrong one."""
    base = swarm.churning(seed) if seed % 2 else swarm.calm(seed)
    wrong = Random(f"clocks {seed}").choice(base.members)
    offset_ns = (base.timing.gamma_ns + NS_PER_MS) * (3 if seed % 4 < 2 else -3)
    return replace(base, source=f"wrong clocks({seed})", clocks=Clocks("fixed", offsets_ns={wrong: offset_ns}))


def scenario_file(seed: int) -> Scenario:
    """One of the scenario files, in the order of their names."""
    path = SCENARIO_FILES[seed]
    return parse_scenario(path.read_text("utf-8"), path.name)


# -- families with their own world -------------------------------------------------------------------------------


def _led(seed: int, recording: Recording) -> None:
    """A leader that crashes, is partitioned or leaves, in a group with unrelated clocks."""
    order = LEADER_ORDERS[seed % 2]
    what = seed // 2 % 4
    if what == 0:
        group = crashed(order, seed)
    elif what == 1:
        group, _ = partitioned_with_failure(order, seed)
    else:
        group = _left(order, seed) if what == 2 else busy(order, seed)[1]
    group.run(300 * NS_PER_MS)
    recording.rows(group.trace())


def _left(order: type[LeaderBroadcast | TimestampLeader], seed: int) -> LeaderGroup:
    chance, group = busy(order, seed)
    group.leave(chance.randint(0, 100 * NS_PER_MS), 1)
    return group


def _consensus_automata(seed: int, recording: Recording) -> None:
    """Consensus alone; frames pass through `ConsensusWorld.transmit`, one call per receiver."""
    world = consensus_world.faulty_world(seed)
    transmit = world.transmit

    def transmitting(sender: int, receiver: int, frame: Frame) -> None:
        recording.datagram(world.now, sender, receiver, frame.multicast, frame_bytes(frame))
        transmit(sender, receiver, frame)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world, "transmit", transmitting)
        recording.outcome(consensus_world.recovers_after_faults(world))
    recording.outcome(*[(each.member, each.incarnation, each.instance, each.value) for each in world.reported])


def _membership_automata(seed: int, recording: Recording) -> None:
    """Membership alone; frames pass through `MembershipWorld.transmit`, one call per receiver."""
    world = membership_world.faulty_world(seed)
    transmit = world.transmit

    def transmitting(sender: int, receiver: int, frame: Frame) -> None:
        recording.datagram(world.now, sender, receiver, frame.multicast, frame_bytes(frame))
        transmit(sender, receiver, frame)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world, "transmit", transmitting)
        recording.outcome(membership_world.recovers_after_faults(world))
    for number, member in world.members.items():
        recording.outcome(
            (
                number,
                member.incarnation,
                len(member.exclusion_reasons),
                *[(unicast.sender, unicast.body) for unicast in member.unicasts],
            )
        )
    recording.rows(world.memory_trace.trace(_meta(world.numbers)))


def _meta(members: Sequence[int]) -> RunMeta:
    """Parameters of a trace of which only the rows are hashed."""
    return RunMeta(
        run="behaviour",
        group="behaviour",
        order="none",
        members=tuple(members),
        delta_ns=1,
        gamma_ns=1,
        theta_ns=1,
        bound_ns=None,
        reliable=False,
        source="sim",
    )


def _ideal(seed: int, recording: Recording) -> None:
    """The algorithm of the priority order over ideal views."""
    chance = RandomStreams(seed).stream("priority swarm")
    group = random_group(chance)
    recording.outcome(*run_randomly(group, chance))
    finish_required(group)
    recording.rows(ideal_trace(group))


def _copies(seed: int, recording: Recording) -> None:
    """The automaton of reliable multicast alone, with many messages at a time."""
    adaptives: tuple[Adaptive, ...] = ("none", "heuristic", "counting")
    scenarios: tuple[CopyScenario, ...] = (
        "no crash",
        "originator crashes",
        "direct receivers",
        "anybody crashes",
    )
    scenario = scenarios[seed % 4]
    may_crash = scenario == "anybody crashes"
    redundancy = Redundancy.of_ns(1 + seed % 3, 4_600_000, NS_PER_MS * (seed % 2), adaptives[seed // 4 % 3])
    setting = RmcastCase(
        (3, 8, 20)[seed % 3],
        redundancy,
        ExponentialDelay(NS_PER_MS),
        0.1,
        scenario,
        direct_receivers=2 if scenario == "direct receivers" else 0,
        crash_in_send_probability=0.02 if may_crash else 0.0,
        crash_before_takeover_probability=0.1 if may_crash else 0.0,
    )
    found = RmcastRuns(setting, generator(seed)).run(200)
    recording.outcome(*[column.tolist() for column in (found.first_ns, found.one_receiver_ns, found.last_ns)])
    recording.outcome(found.broadcasts.tolist())


def _adaptation(seed: int, recording: Recording) -> None:
    """Members that measure the network and change their settings together."""
    scenario = replace(test_adaptation.troubled(seed), run_ns=3_000 * NS_PER_MS)
    play = test_adaptation.Play(scenario, test_adaptation.agreed(), seed)
    recording.rows(play.memory.trace(run_meta(scenario, seed, play.bound_ns, True)))


def _game(seed: int, recording: Recording) -> None:
    """The example with optimistic deliveries between groups."""
    game = Game(seed=seed, jitter_ms=(10, 40)[seed % 2])
    game.run(0.3)
    recording.outcome(game.world.now)


def _families() -> dict[str, Family]:
    scenarios: dict[str, tuple[int, Callable[[int], Scenario]]] = {
        "calm": (120, swarm.calm),
        "stormy": (120, swarm.stormy),
        "churning": (160, swarm.churning),
        "renegotiated": (120, swarm.renegotiated),
        "any order": (120 * len(KINDS), any_order),
        "finals over vbr": (40, finals),
        "finals over cbr": (20, cbr_finals),
        "finals alone": (6, final_scenario),
        "quasi-genuine": (80, groups_scenario),
        "consensus": (120, consensus_scenario),
        "vbr with failures over rmcast": (24, rmcast_failures),
        "wrong clocks": (60, wrong_clocks),
        "scenario files": (len(SCENARIO_FILES), scenario_file),
    }
    scenarios |= {order: (30, partial(priority_scenario, order)) for order in orders_with("pulled")}
    over_rmcast = ("vbr", "cbr", "leader", "timestamp", *sorted(SERVICES))
    scenarios |= {f"{order} over rmcast": (16, partial(rmcast_scenario, order)) for order in over_rmcast}
    families = {name: Family(range(count), partial(_scenario, draw)) for name, (count, draw) in scenarios.items()}
    families["any order"] = replace(families["any order"], quick=len(KINDS))
    return families | {
        "leader groups": Family(range(96), _led, quick=2),
        "consensus automata": Family(range(400), _consensus_automata, quick=4),
        "membership automata": Family(range(90), _membership_automata),
        "ideal priority": Family(range(300), _ideal, quick=4),
        "rmcast automata": Family(range(72), _copies, quick=4),
        "adaptation": Family(range(12), _adaptation, quick=0),
        "game": Family(range(8), _game, quick=0),
    }


FAMILIES: Final = _families()
