"""Quasi-genuine groups in random topologies with skewed clocks, loss, reordering, partitions, crashes and restarts.

A failure names the seed. To run a range of seeds:
    .venv/bin/python tests/simulation/test_quasi_genuine_swarm.py 0..2000
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # to run this file as a script
from tests.simulation.seed_ranges import run_ranges

from unisono.check.multigroup import genuineness, genuineness_over_time
from unisono.check.suite import check_all
from unisono.check.verdict import Status, Verdict
from unisono.model.events import NoticeKind
from unisono.model.faults import Pause
from unisono.model.scenario import Workload
from unisono.orders.quasi_genuine import order as quasi_genuine
from unisono.sim.result import Result
from unisono.sim.run import run
from unisono.sim.swarm.multigroup import groups_scenario
from unisono.sim.swarm.quiescence import MultigroupQuiescent

CHUNK, SLOW_CHUNK = 12, 500
FULL_EVERY = 100
"""One of this many runs continues to its end, even if nothing is left to do."""


def outcome(seed: int) -> tuple[Result, dict[str, Verdict]]:
    """One run and the verdicts of all checkers."""
    scenario = groups_scenario(seed)
    result = run(
        scenario, compare_payloads=True, is_quiescent=None if seed % FULL_EVERY == 0 else MultigroupQuiescent(scenario)
    )
    assert scenario.multigroup is not None
    if len(result.trace) == 0:
        return result, {}
    return result, check_all(result.trace, until_ns=result.until_ns) | {"genuineness": genuineness_verdict(result)}


def genuineness_verdict(result: Result) -> Verdict:
    """Whether only linked groups exchanged datagrams, at any time."""
    multigroup = result.scenario.multigroup
    assert multigroup is not None
    if not result.send_times:
        return genuineness(multigroup.topology, result.datagrams_by_pair)
    pauses = [fault.to_ns - fault.from_ns for fault in result.scenario.faults if isinstance(fault, Pause)]
    return genuineness_over_time(multigroup.topology, result.trace, result.send_times, max(pauses, default=0))


def problems(seed: int) -> list[str]:
    """Every verdict of one run that is not valid."""
    return [
        f"{name}: {verdict.status.value}: {verdict.witness.text if verdict.witness else verdict.reason}"
        for name, verdict in outcome(seed)[1].items()
        if verdict.status is not Status.VALID
    ]


def check_run(seed: int) -> None:
    assert not problems(seed), f"test_quasi_genuine_swarm.py {seed}: {problems(seed)}"


@pytest.mark.parametrize("first", range(0, 36, CHUNK))
def test_runs_are_always_safe_and_finally_live(first: int) -> None:
    for seed in range(first, first + CHUNK):
        check_run(seed)


@pytest.mark.parametrize("seed", [1857, 6311, 7241, 13122])
def test_past_failures_stay_fixed(seed: int) -> None:
    """Restarted members replay all topology changes, some at the same instant, while other groups answer them.

    The checker once sorted such changes wrongly, and took the answers for datagrams between unlinked groups.
    """
    check_run(seed)


@pytest.mark.parametrize("seed", [9, 10, 12, 14])
def test_logs_that_are_compacted_all_the_time(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Members restart from snapshots instead of logs, and a lagging member gets another member's snapshot."""
    monkeypatch.setattr(quasi_genuine, "COMPACT_EVERY_INSTANCES", 4)
    result, verdicts = outcome(seed)
    for name, verdict in verdicts.items():
        if name == "uniform_agreement" and verdict.witness is not None:
            kinds = [violation.kind for violation in result.violations[verdict.witness.members[0]]]
            assert "too_far_behind" in kinds, f"seed {seed}: {verdict.witness.text}"
        else:
            assert verdict.status is Status.VALID, f"seed {seed}: {name}: {verdict}"


def test_the_swarm_draws_every_kind_of_trouble() -> None:
    """Every fault is drawn often enough, and there are large scenarios among the small ones."""
    counts: Counter[str] = Counter()
    for seed in range(600):
        scenario = groups_scenario(seed)
        multigroup = scenario.multigroup
        assert multigroup is not None
        group_count = len(multigroup.topology.names)
        counts.update({type(part).__name__ for part in (*scenario.faults, *scenario.steps)})
        counts.update([f"{group_count} groups", multigroup.liveness, f"clocks {scenario.clocks.kind}"])
        counts["early"] += multigroup.optimistic
        counts["asymmetric"] += any(
            (other in multigroup.topology.sends[one]) != (one in multigroup.topology.sends[other])
            for one in multigroup.topology.names
            for other in multigroup.topology.names
        )
        senders = sum(workload != Workload() for workload in scenario.workloads.values())
        counts["several senders"] += senders > 1
        counts["many senders"] += senders >= 8
    assert min(counts[kind] for kind in ("Crash", "Restart", "Loss", "asymmetric", "PlannedTopologyChange")) >= 200
    assert min(counts[kind] for kind in ("Pause", "Duplication", "Reordering", "Partition", "early")) >= 50
    assert min(counts[f"{count} groups"] for count in range(2, 7)) >= 40
    assert min(counts[kind] for kind in ("periodic", "clocks drifting", "clocks adversarial")) >= 150
    assert counts["several senders"] >= 500
    assert counts["many senders"] >= 10


def test_the_drawn_troubles_have_effects() -> None:
    """Datagrams are lost, members restart and deliver, leaders are replaced, messages of several groups compete."""
    counts: Counter[str] = Counter()
    for seed in range(100, 124):
        result, _ = outcome(seed)
        sends, deliveries = result.trace.sends(), result.trace.deliveries()
        counts["faults had effects"] += any(result.fault_hits)
        counts["restarted"] += bool((deliveries.recorder_incarnation > 1).any())
        counts["leader_lost"] += any(
            v.kind == "leader_lost" for violations in result.violations.values() for v in violations
        )
        multigroup = groups_scenario(seed).multigroup
        assert multigroup is not None
        sources = {multigroup.topology.group_of(member) for member in sends.member.tolist()}
        counts["several sources"] += len(sources) > 1
        counts["messages"] += len(sends)
        counts["topology changed"] += NoticeKind.TOPOLOGY in result.trace.tokens
    assert min(counts["faults had effects"], counts["several sources"]) >= 8
    assert counts["restarted"] >= 4
    assert counts["topology changed"] >= 5
    assert counts["leader_lost"] >= 2
    assert counts["messages"] >= 200


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("first", range(1000, 21_000, SLOW_CHUNK))
def test_20000_runs_have_no_violation(first: int) -> None:
    for seed in range(first, first + SLOW_CHUNK):
        check_run(seed)


if __name__ == "__main__":
    sys.exit(run_ranges(sys.argv[1:], problems))
