"""Planted defects in stamps and barriers: each is found out by the checkers, with a witness."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from unisono.check.multigroup import genuineness_over_time
from unisono.check.suite import check_all
from unisono.check.verdict import Status, Verdict
from unisono.model.durations import NS_PER_MS
from unisono.model.faults import Loss, Span
from unisono.model.scenario import Expectation, PlannedTopologyChange, Workload
from unisono.model.text.scenario import parse_scenario
from unisono.orders.multigroup import group_log
from unisono.orders.multigroup.barriers import BarrierQueue, SourceGroup
from unisono.orders.multigroup.group_log import PendingProposals
from unisono.orders.multigroup.messages import Cast, StampedEntry, TopologyControl, stamp_of
from unisono.orders.multigroup.topology_change import LinkState, TopologyState
from unisono.sim.run import run
from unisono.wire.bundles import Bundle

SEEDS = range(1, 8)


def open_without(own: bool, first: bool) -> Callable[[BarrierQueue, int], list[tuple[int, StampedEntry]]]:
    """Line 28 without the own group's stamps (003-3), or without one sender's barrier."""
    right = BarrierQueue.pop_deliverable

    def wrong(gate: BarrierQueue, own_last: int) -> list[tuple[int, StampedEntry]]:
        if own:
            return right(gate, 1 << 79)
        kept = dict(gate.sources)
        if first and gate.sources:
            del gate.sources[next(iter(gate.sources))]
        found = right(gate, own_last)
        gate.sources = kept
        return found

    return wrong


def contended(seed: int) -> dict[str, Verdict]:
    """Three groups that all send to each other, over a network that loses a tenth."""
    path = Path(__file__).parents[2] / "scenarios" / "quasi_genuine_crash.toml"
    scenario = parse_scenario(path.read_text("utf-8"), path.name)
    lossy = replace(scenario, faults=(Loss(Span(), 0.1),), steps=(), run_ns=500_000_000)
    result = run(lossy, seed)
    return check_all(result.trace, until_ns=result.until_ns)


def changing(seed: int) -> dict[str, Verdict]:
    """Three groups of which one begins to send to another, and stops, and begins again, under load."""
    path = Path(__file__).parents[2] / "scenarios" / "quasi_genuine_topology_change.toml"
    scenario = parse_scenario(path.read_text("utf-8"), path.name)
    turns = (("market",), ("market", "floor", "archive"))
    steps = tuple(
        PlannedTopologyChange(2 + turn % 2, (turn + 1) * 40 * NS_PER_MS, turns[turn % 2]) for turn in range(8)
    )
    loads = dict.fromkeys(scenario.members, Workload("poisson", rate=150.0))
    busy = replace(
        scenario,
        workloads=loads,
        faults=(Loss(Span(), 0.05),),
        steps=steps,
        run_ns=400 * NS_PER_MS,
        expect=Expectation(bound_ns=500 * NS_PER_MS),
    )
    assert busy.multigroup is not None
    result = run(busy, seed)
    over_time = genuineness_over_time(busy.multigroup.topology, result.trace, result.send_times)
    return check_all(result.trace, until_ns=result.until_ns) | {"genuineness": over_time}


def found(names: tuple[str, ...], play: Callable[[int], dict[str, Verdict]] = contended) -> Verdict:
    for seed in SEEDS:
        for name, verdict in play(seed).items():
            if name in names and verdict.status is Status.VIOLATED:
                return verdict
    pytest.fail(f"{len(SEEDS)} runs with a planted defect, and none was found out")


def test_without_a_planted_defect_all_is_well() -> None:
    assert {verdict.status for verdict in contended(SEEDS[0]).values()} == {Status.VALID}


def test_the_local_ordering_is_not_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BarrierQueue, "pop_deliverable", open_without(own=True, first=False))
    verdict = found(("total_order", "uniform_agreement"))
    assert verdict.witness is not None


def test_a_sender_s_barrier_is_not_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BarrierQueue, "pop_deliverable", open_without(own=False, first=True))
    assert found(("total_order", "uniform_agreement")).witness is not None


def test_a_barrier_counts_before_the_entries_that_it_was_announced_with(monkeypatch: pytest.MonkeyPatch) -> None:
    def promise(gate: BarrierQueue, source: int, head: int, last: int) -> None:
        gate.sources[source].barrier = max(gate.sources[source].barrier, last)

    monkeypatch.setattr(BarrierQueue, "promise", promise)
    assert found(("total_order", "uniform_agreement")).witness is not None


def test_messages_keep_their_time_stamps_whatever_was_decided_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """003-1: the larger of the time stamp and what follows the last stamp, without the second part."""
    monkeypatch.setattr(group_log, "stamp_after", lambda _last, ts, sender: stamp_of(ts, sender))
    assert found(("total_order", "fifo")).witness is not None


def test_without_a_planted_defect_the_topology_changes_well() -> None:
    assert {verdict.status for verdict in changing(SEEDS[0]).values()} == {Status.VALID}


def test_a_new_sender_s_barrier_is_not_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    right = SourceGroup.blocks
    monkeypatch.setattr(SourceGroup, "blocks", lambda its, stamp: its.epoch == 1 and right(its, stamp))
    assert found(("total_order", "uniform_agreement"), changing).witness is not None


def test_a_stream_ends_before_all_members_have_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = TopologyState.apply_control

    def control(relation: TopologyState, sender: int, said: TopologyControl) -> None:
        right(relation, sender, said)
        for tied in relation.outgoing.values():
            tied.state = LinkState.CLOSED if tied.state is LinkState.CLOSING else tied.state

    monkeypatch.setattr(TopologyState, "apply_control", control)
    assert found(("validity", "uniform_agreement"), changing).witness is not None


def test_a_sender_that_stops_is_let_go_before_its_last_messages_are_here(monkeypatch: pytest.MonkeyPatch) -> None:
    right = SourceGroup.blocks
    monkeypatch.setattr(SourceGroup, "blocks", lambda its, stamp: its.ends_after is None and right(its, stamp))
    assert found(("total_order", "uniform_agreement", "validity"), changing).witness is not None


def test_what_is_late_is_discarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """003-6: Algorithm 3 line 26 as printed."""
    right = PendingProposals.add
    top = [0]

    def add(proposals: PendingProposals, parcel: Bundle, cast: Cast, settled: int) -> bool:
        if cast.ts + 1_000_000 < top[0]:
            return False
        top[0] = max(top[0], cast.ts)
        return right(proposals, parcel, cast, settled)

    monkeypatch.setattr(PendingProposals, "add", add)
    assert found(("validity",)).witness is not None
