"""Members of a real group that are partitioned, killed and started late: the others go on, and members can return.

Δ is generous, so that a busy machine does not look like a failure; no latency is asserted.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.worlds.joining import join_group

import unisono
from unisono.cluster.supervisor import free_addresses
from unisono.model.faults import Partition, Span
from unisono.runtime.fault_injection import FaultInjection

PATIENCE_S = 30.0


CUT = Partition(Span(1, 2), ((1,), (2, 3)))
"""Member 1 is cut off while the time of the injection is 1."""


async def joined(
    member: int, peers: dict[int, tuple[str, int]], injection: FaultInjection | None = None
) -> unisono.Group:
    return await join_group(
        "table", member=member, peers=peers, failures=True, delta="300ms", slot="20ms", injection=injection
    )


async def seen(groups: Sequence[unisono.Group], what: Callable[[], bool]) -> None:
    """Consume the events of all groups until the condition holds."""

    async def consume(group: unisono.Group) -> None:
        async for event in group.batches():
            del event

    consuming = [asyncio.create_task(consume(group)) for group in groups]
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not what():
                await asyncio.wait(consuming, timeout=0.02)
    finally:
        for task in consuming:
            task.cancel()
        await asyncio.gather(*consuming, return_exceptions=True)


def test_a_partition_heals_and_both_sides_become_one_group_again() -> None:
    """Paper 000 §6.6, over sockets: members still send to suspected members, so that a merge can begin."""

    async def part() -> None:
        peers, time_ns = free_addresses((1, 2, 3)), 0
        injections = {member: FaultInjection(member, (CUT,), time_ns=lambda: time_ns) for member in peers}
        for injection in injections.values():
            injection.start_run(0)
        groups = list(await asyncio.gather(*(joined(member, peers, injections[member]) for member in peers)))
        await seen(groups, lambda: all(group.members == (1, 2, 3) for group in groups))
        time_ns = 1
        await seen(groups, lambda: [group.members for group in groups] == [(1,), (2, 3), (2, 3)])
        time_ns = 2
        await seen(groups, lambda: all(group.members == (1, 2, 3) for group in groups))
        before = [group.stats().delivered for group in groups]
        await groups[0].send(b"back")
        await seen(groups, lambda: all(g.stats().delivered > n for g, n in zip(groups, before, strict=True)))
        await asyncio.gather(*(group.leave() for group in groups))

    asyncio.run(part())


def test_a_late_member_joins_a_running_group() -> None:
    async def part() -> None:
        peers = free_addresses((1, 2, 3))
        groups = list(await asyncio.gather(*(joined(member, peers) for member in (1, 2))))
        await seen(groups, lambda: all(group.members == (1, 2) for group in groups))
        groups.append(await joined(3, peers))
        await seen(groups, lambda: all(group.members == (1, 2, 3) for group in groups))
        await groups[2].send(b"hello")
        await seen(groups, lambda: all(group.stats().delivered >= 1 for group in groups))
        await asyncio.gather(*(group.leave() for group in groups))

    asyncio.run(part())


def test_the_demo_kills_a_member_and_lets_another_join(tmp_path: Path) -> None:
    words = ["demo", "--json", "--seconds", "3", "--members", "3", "--kill", "2@1s", "--join", "4@1500ms"]
    words += ["--delta", "300ms", "--slot", "20ms", "--out", str(tmp_path)]
    command = [sys.executable, "-c", "from unisono.cli.main import run; run()", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["verdict"] == "valid"
    assert sorted(result["delivered"]) == ["1", "3", "4"], "the one killed has no last word"
    assert all(count > 0 for count in result["delivered"].values())
    assert {name: check["verdict"] for name, check in result["checks"].items() if name != "latency"} == {
        "total_order": "valid",
        "integrity": "valid",
        "fifo": "valid",
        "gaps_explained": "valid",
        "rate_compliance": "valid",
    }


def test_when_the_demo_kills_the_leader_the_bound_includes_the_outage(tmp_path: Path) -> None:
    words = ["demo", "--json", "--seconds", "3", "--members", "3", "--kill", "1@1s", "--order", "leader"]
    words += ["--delta", "100ms", "--slot", "20ms", "--out", str(tmp_path)]
    command = [sys.executable, "-c", "from unisono.cli.main import run; run()", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["verdict"] == "valid", result["checks"]
    assert sorted(result["delivered"]) == ["2", "3"], "the leader has no last word"
    # Δ to the crashing leader, the declared Θ+5Δ+7Γ without a leader, and 2Δ to and from the next leader.
    usual_ms = 2 * (result["delta_measured_ms"] + result["timer_lateness_ms"])
    assert result["bound_ms"] == result["declared_bound_ms"] == 100 + 20 + 500 + 7 * 5 + 200
    assert result["measured_bound_ms"] >= result["bound_ms"]
    assert result["outage_bound_ms"] == pytest.approx(result["measured_bound_ms"] - usual_ms)
