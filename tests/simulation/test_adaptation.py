"""Adaptation in the simulated world: a network that gets worse and better again, and members that change together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from unisono.check.suite import check_all
from unisono.check.verdict import Status, overall
from unisono.model.events import Notice, SlaViolation
from unisono.model.histogram import Histogram
from unisono.model.scenario import Scenario
from unisono.model.scenario_text import parse_scenario
from unisono.model.sla_text import parse_slas
from unisono.qos.estimate import Estimate
from unisono.qos.oversight import Oversight
from unisono.sim.node import Node
from unisono.sim.run import meta_of, prepare
from unisono.sim.world import World
from unisono.stack import Stack

SCENARIO = """
[group]
name = "changing"
members = 3
slot = "10ms"
delta = "40ms"
gamma = "1ms"
{group}

{reliable}

[rate]
avg = 50
burst = 8

[workload]
kind = "poisson"
rate = 20

[network]
delay = "exponential:1ms"

[run]
seconds = {seconds}

[[fault]]
kind = "loss"
probability = 0.01
to = "1s"

[[fault]]
kind = "loss"
probability = {loss}
from = "1s"
to = "3s"

[[fault]]
kind = "loss"
probability = 0.01
from = "3s"
"""
RELIABLE = """[reliable]
rho = {rho}
eta = "8ms"
omega = "8ms"
"""
SLA = """
[[sla]]
name = "few losses"
provider = "network"
consumer = "{consumer}"
metric = "loss"
bound = 0.05
probability = 0.95
window = "250ms"

[adaptation]
knobs = {knobs}
lower_after = 6
reliability = {reliability}
"""


class Play:
    """A scenario with adaptation at every member; `service` says what member 1 tells the group, and when."""

    def __init__(
        self,
        scenario: Scenario,
        slas: str,
        seed: int,
        service: Sequence[tuple[int, Estimate | None, SlaViolation]] = (),
    ) -> None:
        self.scenario = scenario
        agreed = parse_slas(slas, "sla.toml")
        world, memory, self.bound_ns, _ = prepare(scenario, seed)
        self.world: World = world
        self.memory = memory
        for node in world.nodes.values():
            stack = node.stack
            assert isinstance(stack, Stack)
            policy = replace(stack.policy, rho_most=agreed.rho_most, fec_most=agreed.fec_most)
            stack.watcher = Oversight(policy, stack.parties, stack.skew, agreed, stack)
        for at_ns, network, verdict in service:
            world.later(world.send_until - scenario.run_ns + at_ns, self._proclaim, (network, verdict))
        world.run(world.send_until + self.bound_ns)

    def _proclaim(self, now: int, what: tuple[Estimate | None, SlaViolation]) -> None:
        stack = self.nodes[1].stack
        assert isinstance(stack, Stack)
        assert isinstance(stack.watcher, Oversight)
        stack.watcher.proclaim(self.nodes[1].clock.local(now), what[0], [what[1]])

    def notices(self, kind: str) -> dict[int, list[Notice]]:
        return {m: [n for n in node.notices if n.kind == kind] for m, node in self.nodes.items()}

    @property
    def nodes(self) -> dict[int, Node]:
        return self.world.nodes

    def in_force(self, member: int) -> object:
        stack = self.nodes[member].stack
        assert isinstance(stack, Stack)
        assert isinstance(stack.watcher, Oversight)
        assert stack.watcher.adapter is not None
        return stack.watcher.adapter.in_force


def rmcast(loss: float, seconds: int = 6, *, rho: int = 1, failures: bool = True) -> Scenario:
    group, reliable = f"failures = {str(failures).lower()}", RELIABLE.format(rho=rho)
    return parse_scenario(SCENARIO.format(group=group, reliable=reliable, loss=loss, seconds=seconds), "changing")


def agreed(knobs: str = '["rho", "eta"]', consumer: str = "rmcast", reliability: float = 0.99) -> str:
    return SLA.format(knobs=knobs, consumer=consumer, reliability=reliability)


@pytest.mark.parametrize("seed", [0, 1, 3])
def test_all_members_raise_and_lower_at_the_same_places_in_the_order(seed: int) -> None:
    """With seeds in which no message loses every copy before the change: without failures that is a stall."""
    play = Play(rmcast(0.15, rho=3, failures=False), agreed(reliability=0.9995), seed)
    assert not any(v.kind == "lost" for node in play.nodes.values() for v in node.violations)
    changes = {m: [(n.slot, n.text) for n in notices] for m, notices in play.notices("adapted").items()}
    texts = [text for _, text in changes[1]]
    # A handful for one network that got worse and better: raised by the first who saw it, lowered by the last.
    assert 2 <= len(texts) <= 10
    for member in play.nodes:
        assert changes[member] == changes[1]
    assert "ρ = 4" in texts[0]
    broken = [v for node in play.nodes.values() for v in node.violations if isinstance(v, SlaViolation)]
    assert "few losses" in {v.sla for v in broken}


@pytest.mark.parametrize("seed", range(2))
def test_where_members_miss_demands_all_have_the_same_settings_in_the_end(seed: int) -> None:
    play = Play(rmcast(0.25, 8), agreed(), seed)
    assert max(len(notices) for notices in play.notices("adapted").values()) >= 2
    assert len({play.in_force(member) for member in play.nodes}) == 1


def test_fewer_messages_are_lost_than_without_adaptation() -> None:
    def gaps(knobs: str) -> int:
        play = Play(rmcast(0.25), agreed(knobs), 1)
        return sum("did not come" in v.text for node in play.nodes.values() for v in node.violations)

    adapted, fixed = gaps('["rho", "eta"]'), gaps("[]")
    assert fixed > 5
    assert adapted < fixed / 3


def test_the_order_holds_while_settings_change() -> None:
    scenario = rmcast(0.25)
    play = Play(scenario, agreed(), 2)
    trace = play.memory.trace(meta_of(scenario, 2, play.bound_ns, False))
    verdicts = check_all(trace, until_ns=play.world.send_until + play.bound_ns)
    safe = {name: verdict for name, verdict in verdicts.items() if name in {"total_order", "integrity", "fifo"}}
    assert overall(safe) is Status.VALID


def test_what_cannot_be_held_is_told_with_what_can_be_offered() -> None:
    play = Play(rmcast(0.7, 3), agreed(reliability=0.999), 1)
    told = [v for node in play.nodes.values() for v in node.violations if v.kind == "cannot hold"]
    assert told
    for violation in told:
        assert isinstance(violation, SlaViolation)
        assert "probability" in violation.offered


def test_forward_error_correction_is_strengthened_together() -> None:
    pytest.importorskip("zfec")
    text = SCENARIO.format(group='failures = true\nfec = "1/5"', reliable="", loss=0.1, seconds=3)
    play = Play(parse_scenario(text, "changing"), agreed('["fec"]', "fec", 0.999), 1)
    changes = {m: [(n.slot, n.text) for n in notices] for m, notices in play.notices("adapted").items()}
    assert changes[1]
    assert "redundant of" in changes[1][0][1]
    assert len({play.in_force(member) for member in play.nodes}) == 1


def bad_network(loss: float) -> Estimate:
    delays = Histogram()
    delays.add(1_000_000, 1000)
    return Estimate.of(loss, delays, burst=2)


def verdict(number: int, name: str = "few losses") -> SlaViolation:
    loss = SlaViolation(
        "system sla", "", 2, sla=name, metric="loss", bound=0.05, measured=0.2, probability=0.95, link=3
    )
    return replace(loss, id=f"{number:016x}")


@pytest.mark.parametrize("failures", [False, True])
def test_a_verdict_on_the_whole_group_reaches_all_at_one_slot_and_all_adapt_there(failures: bool) -> None:
    """Nobody but the measurement service demands anything here: `judge = "system"`."""
    slas = agreed(reliability=0.9995) + 'judge = "system"\n'
    told = [(1_500_000_000, bad_network(0.3), verdict(1)), (1_500_000_000, None, verdict(2, "other"))]
    play = Play(rmcast(0.01, 5 if failures else 3, rho=3, failures=failures), slas, 1, told)
    heard = {
        m: [
            (v.slot, v.sla, v.member, v.link)
            for v in n.violations
            if isinstance(v, SlaViolation) and "system" in v.kind
        ]
        for m, n in play.nodes.items()
    }
    # Each once, though they are said again in case somebody has missed them.
    assert [sla for _, sla, _, _ in heard[1]] == ["few losses", "other"]
    assert heard[1][0][2:] == (2, 3)
    assert heard[2] == heard[3] == heard[1]
    adapted = {m: [(n.slot, n.text) for n in notices] for m, notices in play.notices("adapted").items()}
    assert len(adapted[1]) == 1
    assert adapted[1][0][0] == heard[1][0][0]
    assert "ρ = 4" in adapted[1][0][1]
    assert adapted[2] == adapted[3] == adapted[1]


def test_members_that_leave_judging_to_the_system_demand_nothing_themselves() -> None:
    play = Play(rmcast(0.25, 3), agreed() + 'judge = "system"\n', 1)
    assert not any(play.notices("demand").values())
    assert not any(play.notices("adapted").values())
