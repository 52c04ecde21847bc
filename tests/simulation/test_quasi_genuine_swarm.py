"""Quasi-genuine groups in any topology, through skewed clocks, loss, reordering, partitions, crashes with recovery.

A failure names the seed; a range of seeds runs by
    .venv/bin/python tests/simulation/test_quasi_genuine_swarm.py 0..2000
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # for a run as a script
from tests.simulation.seed_ranges import run_ranges

from unisono.check.multigroup import genuineness, genuineness_over_time
from unisono.check.suite import check_all
from unisono.check.verdict import Status, Verdict
from unisono.model.events import NoticeKind
from unisono.model.faults import Pause
from unisono.model.scenario import Workload
from unisono.orders.multigroup import order as quasi_genuine
from unisono.sim.result import Result
from unisono.sim.run import run
from unisono.sim.swarm.multigroup import groups_scenario
from unisono.sim.swarm.multigroup_at_rest import MultigroupQuiescent

CHUNK, SLOW_CHUNK = 12, 500
FULL_EVERY = 100
"""Of so many runs one goes on to its end, though nothing is left to do."""


def outcome(seed: int) -> tuple[Result, dict[str, Verdict]]:
    """One run, and what the checkers say of it."""
    scenario = groups_scenario(seed)
    result = run(
        scenario, compare_payloads=True, is_quiescent=None if seed % FULL_EVERY == 0 else MultigroupQuiescent(scenario)
    )
    assert scenario.multigroup is not None
    if len(result.trace) == 0:
        return result, {}
    return result, check_all(result.trace, until_ns=result.until_ns) | {"genuineness": genuine(result)}


def genuine(result: Result) -> Verdict:
    """Whether only related groups have talked, at any time."""
    rules = result.scenario.multigroup
    assert rules is not None
    if not result.send_times:
        return genuineness(rules.topology, result.datagrams_by_pair)
    pauses = [fault.to_ns - fault.from_ns for fault in result.scenario.faults if isinstance(fault, Pause)]
    return genuineness_over_time(rules.topology, result.trace, result.send_times, max(pauses, default=0))


def problems(seed: int) -> list[str]:
    """What is wrong with one run."""
    return [
        f"{name}: {verdict.status.value}: {verdict.witness.text if verdict.witness else verdict.reason}"
        for name, verdict in outcome(seed)[1].items()
        if verdict.status is not Status.VALID
    ]


def judge(seed: int) -> None:
    assert not problems(seed), f"test_quasi_genuine_swarm.py {seed}: {problems(seed)}"


@pytest.mark.parametrize("first", range(0, 36, CHUNK))
def test_safe_always_and_live_in_the_end(first: int) -> None:
    for seed in range(first, first + CHUNK):
        judge(seed)


@pytest.mark.parametrize("seed", [1857, 6311, 7241, 13122])
def test_what_failed_once_holds(seed: int) -> None:
    """Members that come back go through all changes of the topology, some in one instant, and are answered meanwhile:
    the checker took such changes the wrong way round, and the answers for talk between strangers.
    """
    judge(seed)


@pytest.mark.parametrize("seed", [9, 10, 12, 14])
def test_logs_that_are_cut_all_the_time(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Members come back from states in place of logs, and who lags is given another member's state."""
    monkeypatch.setattr(quasi_genuine, "COMPACT_EVERY_INSTANCES", 4)
    result, verdicts = outcome(seed)
    for name, verdict in verdicts.items():
        if name == "uniform_agreement" and verdict.witness is not None:
            said = [violation.kind for violation in result.violations[verdict.witness.members[0]]]
            assert "too_far_behind" in said, f"seed {seed}: {verdict.witness.text}"
        else:
            assert verdict.status is Status.VALID, f"seed {seed}: {name}: {verdict}"


def test_the_swarm_is_not_tame() -> None:
    """All kinds of trouble are drawn, and there are large scenarios among the small ones."""
    happen: Counter[str] = Counter()
    for seed in range(600):
        scenario = groups_scenario(seed)
        rules = scenario.multigroup
        assert rules is not None
        sizes = len(rules.topology.names)
        happen.update({type(part).__name__ for part in (*scenario.faults, *scenario.steps)})
        happen.update([f"{sizes} groups", rules.liveness, f"clocks {scenario.clocks.kind}"])
        happen["early"] += rules.optimistic
        happen["asymmetric"] += any(
            (other in rules.topology.sends[one]) != (one in rules.topology.sends[other])
            for one in rules.topology.names
            for other in rules.topology.names
        )
        senders = sum(load != Workload() for load in scenario.workloads.values())
        happen["several senders"] += senders > 1
        happen["many senders"] += senders >= 8
    assert min(happen[what] for what in ("Crash", "Restart", "Loss", "asymmetric", "PlannedTopologyChange")) >= 200
    assert min(happen[what] for what in ("Pause", "Duplication", "Reordering", "Partition", "early")) >= 50
    assert min(happen[f"{count} groups"] for count in range(2, 7)) >= 40
    assert min(happen[what] for what in ("periodic", "clocks drifting", "clocks adversarial")) >= 150
    assert happen["several senders"] >= 500
    assert happen["many senders"] >= 10


def test_what_is_drawn_really_happens() -> None:
    """Datagrams are lost; members come back and deliver; leaders are replaced; messages of several groups compete."""
    happen: Counter[str] = Counter()
    for seed in range(100, 124):
        result, _ = outcome(seed)
        sends, deliveries = result.trace.sends(), result.trace.deliveries()
        happen["touched"] += any(result.fault_hits)
        happen["came back"] += bool((deliveries.recorder_incarnation > 1).any())
        happen["leader_lost"] += any(v.kind == "leader_lost" for said in result.violations.values() for v in said)
        home = groups_scenario(seed).multigroup
        assert home is not None
        sources = {home.topology.group_of(member) for member in sends.member.tolist()}
        happen["several sources"] += len(sources) > 1
        happen["messages"] += len(sends)
        happen["relation changed"] += NoticeKind.TOPOLOGY in result.trace.tokens
    assert min(happen["touched"], happen["several sources"]) >= 8
    assert happen["came back"] >= 4
    assert happen["relation changed"] >= 5
    assert happen["leader_lost"] >= 2
    assert happen["messages"] >= 200


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("first", range(1000, 21_000, SLOW_CHUNK))
def test_in_20000_runs_there_is_no_violation(first: int) -> None:
    for seed in range(first, first + SLOW_CHUNK):
        judge(seed)


if __name__ == "__main__":
    sys.exit(run_ranges(sys.argv[1:], problems))
