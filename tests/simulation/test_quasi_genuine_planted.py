"""Planted defects in stamps and barriers: the checkers find each of them, with a witness."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from unisono.check.multigroup import genuineness_over_time
from unisono.check.suite import check_all
from unisono.check.verdict import Status, Verdict
from unisono.model.faults import Loss, Span
from unisono.model.scenario import Expectation, PlannedTopologyChange, Workload
from unisono.model.text.scenario import parse_scenario
from unisono.model.units import NS_PER_MS
from unisono.orders.quasi_genuine import group_log
from unisono.orders.quasi_genuine.barriers import BarrierQueue, SourceGroup
from unisono.orders.quasi_genuine.group_log import PendingProposals
from unisono.orders.quasi_genuine.messages import Cast, StampedEntry, TopologyControl, stamp_of
from unisono.orders.quasi_genuine.topology_change import LinkState, TopologyState
from unisono.sim.run import run

SEEDS = range(1, 8)


def delivering_without(own: bool, first: bool) -> Callable[[BarrierQueue, int], list[tuple[int, StampedEntry]]]:
    """Line 28 without waiting for the own group's stamps (003-3), or for one sender's barrier."""
    original = BarrierQueue.pop_deliverable

    def defective(queue: BarrierQueue, own_last_stamp: int) -> list[tuple[int, StampedEntry]]:
        if own:
            return original(queue, 1 << 79)
        sources = dict(queue.sources)
        if first and queue.sources:
            del queue.sources[next(iter(queue.sources))]
        deliverable = original(queue, own_last_stamp)
        queue.sources = sources
        return deliverable

    return defective


def run_contended(seed: int) -> dict[str, Verdict]:
    """Three groups that all send to each other, over a network that loses a tenth of the datagrams."""
    path = Path(__file__).parents[2] / "scenarios" / "quasi_genuine_crash.toml"
    scenario = parse_scenario(path.read_text("utf-8"), path.name)
    lossy = replace(scenario, faults=(Loss(Span(), 0.1),), steps=(), run_ns=500_000_000)
    result = run(lossy, seed)
    return check_all(result.trace, until_ns=result.until_ns)


def run_changing(seed: int) -> dict[str, Verdict]:
    """Three groups under load; one of them starts to send to others, stops, and starts again."""
    path = Path(__file__).parents[2] / "scenarios" / "quasi_genuine_topology_change.toml"
    scenario = parse_scenario(path.read_text("utf-8"), path.name)
    receivers = (("market",), ("market", "floor", "archive"))
    steps = tuple(
        PlannedTopologyChange(2 + step % 2, (step + 1) * 40 * NS_PER_MS, receivers[step % 2]) for step in range(8)
    )
    workloads = dict.fromkeys(scenario.members, Workload("poisson", rate=150.0))
    busy = replace(
        scenario,
        workloads=workloads,
        faults=(Loss(Span(), 0.05),),
        steps=steps,
        run_ns=400 * NS_PER_MS,
        expect=Expectation(bound_ns=500 * NS_PER_MS),
    )
    assert busy.multigroup is not None
    result = run(busy, seed)
    over_time = genuineness_over_time(busy.multigroup.topology, result.trace, result.send_times)
    return check_all(result.trace, until_ns=result.until_ns) | {"genuineness": over_time}


def violation(names: tuple[str, ...], run_seed: Callable[[int], dict[str, Verdict]] = run_contended) -> Verdict:
    for seed in SEEDS:
        for name, verdict in run_seed(seed).items():
            if name in names and verdict.status is Status.VIOLATED:
                return verdict
    pytest.fail(f"{len(SEEDS)} runs with a planted defect, and the checkers found none")


def test_without_a_defect_every_check_is_valid() -> None:
    assert {verdict.status for verdict in run_contended(SEEDS[0]).values()} == {Status.VALID}


def test_delivery_without_waiting_for_the_own_group_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BarrierQueue, "pop_deliverable", delivering_without(own=True, first=False))
    verdict = violation(("total_order", "uniform_agreement"))
    assert verdict.witness is not None


def test_delivery_without_waiting_for_a_barrier_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BarrierQueue, "pop_deliverable", delivering_without(own=False, first=True))
    assert violation(("total_order", "uniform_agreement")).witness is not None


def test_a_barrier_that_counts_before_its_entries_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def promise(queue: BarrierQueue, source: int, head: int, last_stamp: int) -> None:
        queue.sources[source].barrier = max(queue.sources[source].barrier, last_stamp)

    monkeypatch.setattr(BarrierQueue, "promise", promise)
    assert violation(("total_order", "uniform_agreement")).witness is not None


def test_stamps_that_do_not_grow_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """003-1: each message keeps its timestamp as its stamp, whatever was decided before."""
    monkeypatch.setattr(group_log, "stamp_after", lambda _last, ts, sender: stamp_of(ts, sender))
    assert violation(("total_order", "fifo")).witness is not None


def test_without_a_defect_every_check_of_a_changing_topology_is_valid() -> None:
    assert {verdict.status for verdict in run_changing(SEEDS[0]).values()} == {Status.VALID}


def test_delivery_without_waiting_for_a_new_sender_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = SourceGroup.blocks
    monkeypatch.setattr(SourceGroup, "blocks", lambda source, stamp: source.epoch == 1 and original(source, stamp))
    assert violation(("total_order", "uniform_agreement"), run_changing).witness is not None


def test_a_stream_that_ends_before_all_members_have_confirmed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = TopologyState.apply_control

    def apply_control(topology: TopologyState, sender: int, control: TopologyControl) -> None:
        original(topology, sender, control)
        for link in topology.outgoing.values():
            link.state = LinkState.CLOSED if link.state is LinkState.CLOSING else link.state

    monkeypatch.setattr(TopologyState, "apply_control", apply_control)
    assert violation(("validity", "uniform_agreement"), run_changing).witness is not None


def test_releasing_a_sender_before_its_last_messages_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = SourceGroup.blocks
    monkeypatch.setattr(
        SourceGroup, "blocks", lambda source, stamp: source.ends_after is None and original(source, stamp)
    )
    assert violation(("total_order", "uniform_agreement", "validity"), run_changing).witness is not None


def test_discarding_late_messages_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """003-6: Algorithm 3 line 26 as printed."""
    original = PendingProposals.add
    latest = [0]

    def add(proposals: PendingProposals, cast: Cast, next_serial: int) -> bool:
        if cast.ts + 1_000_000 < latest[0]:
            return False
        latest[0] = max(latest[0], cast.ts)
        return original(proposals, cast, next_serial)

    monkeypatch.setattr(PendingProposals, "add", add)
    assert violation(("validity",)).witness is not None
