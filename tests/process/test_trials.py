"""Real groups beyond their assumptions: a member that pauses, wrong clocks, one member number used twice.

The tests assert safety, the reported events and the final members; never a duration.
"""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.worlds.joining import join_group

import unisono
from unisono.check.suite import check_all
from unisono.check.verdict import Status
from unisono.cluster.report import ClusterReport, check_cluster_run
from unisono.cluster.supervisor import LocalCluster, MemberSchedule, free_addresses
from unisono.errors import AddressInUse, MemberProcessFailed
from unisono.model.text.scenario import parse_scenario
from unisono.runtime.fault_injection import FaultInjection
from unisono.runtime.timers import new_incarnation
from unisono.trace.recorder import MemoryTrace
from unisono.trace.schema import EventKind, RunMeta

PATIENCE_S = 90.0
SECOND = 1_000_000_000
ORDER = ("total_order", "integrity", "fifo")


def scenario_text(seconds: float, members: int) -> str:
    # Δ is generous, so that a busy machine does not look like a failure.
    return f"""
[group]
name = "trial"
failures = true
members = {members}
slot = "20ms"
delta = "300ms"
gamma = "20ms"
[rate]
avg = 200
burst = 8
[workload]
kind = "poisson"
rate = 100
[run]
seconds = {seconds}
"""


def played(folder: Path, text: str, fates: dict[int, MemberSchedule]) -> ClusterReport:
    """One run of real processes, with its checked report."""
    scenario = parse_scenario(text, "the trial")
    setup: dict[str, Any] = {"scenario": text, "source": "the trial", "trace": str(folder), "run": "trial"}
    setup |= {"peers": free_addresses(scenario.members), "expected": list(scenario.members)}
    configurations = {member: {**setup, "member": member} for member in scenario.members}
    cluster = LocalCluster(configurations, lambda _member, _report: None, schedules=fates)
    nodes = asyncio.run(cluster.run(PATIENCE_S))
    finals = {member: final for member, node in nodes.items() if (final := node.final_report()) is not None}
    assert sorted(finals) == list(scenario.members), "every member has a final report"
    return check_cluster_run(scenario, "trial", folder, finals)


def assert_in_order(found: ClusterReport) -> None:
    for name in ORDER:
        assert found.verdicts[name].status is Status.VALID, (name, found.verdicts[name])
    rows = found.trace.deliveries()
    for member in found.final_reports:
        mine = rows.select((rows.member == member).nonzero()[0])
        messages = list(
            zip(mine.sender.tolist(), mine.sender_incarnation.tolist(), mine.sequence.tolist(), strict=True)
        )
        assert len(messages) == len(set(messages)), f"member {member} delivered something twice"
        places = list(zip(mine.slot.tolist(), mine.place.tolist(), strict=True))
        assert places == sorted(places), f"member {member} delivered out of order"


def said(found: ClusterReport, member: int) -> str:
    return "\n".join(found.final_reports[member]["violations"])


def views(found: ClusterReport, member: int) -> list[tuple[int, ...]]:
    rows = found.trace.of_kind(EventKind.VIEW)
    mine = rows.select((rows.member == member).nonzero()[0])
    return [mine.listed(row) for row in range(len(mine))]


# -- a member that pauses ------------------------------------------------------------------------------------------


def test_a_member_that_was_stopped_is_removed_and_joins_again(tmp_path: Path) -> None:
    """SIGSTOP for two seconds, then SIGCONT (paper 000 §6.3 to §6.5)."""
    found = played(tmp_path, scenario_text(5, 3), {3: MemberSchedule(pauses_s=((1.0, 3.0),))})
    assert_in_order(found)
    for other in (1, 2):
        seen = views(found, other)
        assert (1, 2) in seen, "it is removed"
        assert (1, 2, 3) in seen[: seen.index((1, 2))]
        assert (1, 2, 3) in seen[seen.index((1, 2)) :], "it is back"
    assert "stood still" in said(found, 3)
    rows = found.trace.deliveries()
    theirs = rows.sequence[(rows.sender == 3) & (rows.member == 1)]
    mine = rows.sequence[(rows.sender == 3) & (rows.member == 3)]
    assert theirs.max() == mine.max(), "what it sends after its return reaches the others"


# -- several members in this process -------------------------------------------------------------------------------


HERE = b"here"


def payloads(events: list[Any]) -> list[bytes]:
    """The deliveries without the roll calls."""
    return [event.payload for event in events if isinstance(event, unisono.Delivery) and event.payload != HERE]


class Table:
    """Members in this process over real sockets, and a trace of what they do."""

    def __init__(self, members: tuple[int, ...], **options: Any) -> None:
        self.members = members
        self.peers = free_addresses(members)
        self.memory = MemoryTrace("run", "table")
        self.groups: list[unisono.Group] = []
        self.events: dict[int, list[Any]] = {member: [] for member in members}
        self._options = options
        self._tasks: dict[int, asyncio.Task[None]] = {}

    async def join(self, member: int, offset_ms: int = 0) -> unisono.Group:
        incarnation = new_incarnation()
        group = await join_group(
            "table",
            member=member,
            peers=self.peers,
            incarnation=incarnation,
            recorder=self.memory.recorder(member, incarnation=incarnation),
            injection=FaultInjection(member, clock_offset_ns=offset_ms * 1_000_000),
            **self._options,
        )
        self.groups.append(group)
        self._tasks[member] = asyncio.create_task(self._consume(group))
        return group

    async def _consume(self, group: unisono.Group) -> None:
        async for event in group:
            self.events[group.member].append(event)

    def has_ended(self, member: int) -> bool:
        """Whether the iteration over the events of a member has ended: it is not in the group any more."""
        return self._tasks[member].done()

    def kinds(self, member: int) -> list[str]:
        return [event.kind for event in self.events[member] if isinstance(event, unisono.Violation)]

    async def until(self, what: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not what():
                await asyncio.sleep(0.01)

    async def roll(self, groups: list[unisono.Group]) -> None:
        """Send roll calls: with failures, each member starts at its own slot and misses earlier messages."""
        members = {group.member for group in groups}
        begun = {member: len(self.events[member]) for member in members}

        def heard(member: int) -> set[int]:
            events = self.events[member][begun[member] :]
            return {event.sender for event in events if isinstance(event, unisono.Delivery)}

        async with asyncio.timeout(PATIENCE_S):
            while not all(members <= heard(member) for member in members):
                await asyncio.gather(*(group.send(HERE) for group in groups))
                await asyncio.sleep(0.05)

    async def talk(self, groups: list[unisono.Group], count: int = 20) -> None:
        """All members send, and each delivers all of it."""
        await self.roll(groups)
        before = {group: len(payloads(self.events[group.member])) for group in groups}
        for number in range(count):
            await asyncio.gather(*(group.send(b"%d/%d" % (group.member, number)) for group in groups))
        most = count * len(groups)
        await self.until(lambda: all(len(payloads(self.events[g.member])) >= before[g] + most for g in groups))

    async def part(self) -> None:
        await asyncio.gather(*(group.leave() for group in self.groups))
        await asyncio.gather(*self._tasks.values())

    def assert_in_order(self) -> None:
        meta = RunMeta("run", "table", "vbr", self.members, 0, 0, 20_000_000, None, reliable=False, source="runtime")
        trace = self.memory.trace(meta)
        verdicts = check_all(trace)
        for name in ORDER:
            assert verdicts[name].status is Status.VALID, (name, verdicts[name])

    def senders(self, *members: int) -> set[int]:
        """The senders whose messages these members have delivered."""
        return {event.sender for m in members for event in self.events[m] if isinstance(event, unisono.Delivery)}


# -- a wrong clock -------------------------------------------------------------------------------------------------

LOOSE: dict[str, Any] = {"failures": True, "delta": "300ms", "gamma": "20ms", "slot": "20ms"}
MEMBERS = (1, 2, 3, 4)
ODD = 4


@pytest.mark.parametrize("offset_ms", [200, -200])
def test_a_joining_member_with_a_wrong_clock_is_refused(offset_ms: int) -> None:
    """Off by more than Γ: it is refused with a reason when it joins, and the order of the others is not affected."""

    async def part() -> None:
        table = Table(MEMBERS, **LOOSE)
        good = await asyncio.gather(*(table.join(member) for member in MEMBERS if member != ODD))
        await table.until(lambda: all(group.members == (1, 2, 3) for group in good))
        with pytest.raises(unisono.GroupClosed, match="clocks differ from ours by more than Γ = 20ms: ours is wrong"):
            await table.join(ODD, offset_ms)
        await table.talk(good)
        if offset_ms > 0:
            assert all("clock" in table.kinds(member) for member in (1, 2, 3)), "one that is ahead shows at once"
        assert all(group.members == (1, 2, 3) for group in good)
        await table.part()
        table.assert_in_order()
        assert table.senders(1, 2, 3) == {1, 2, 3}, "nothing of it is in the others' order"

    asyncio.run(part())


@pytest.mark.parametrize("offset_ms", [200, -200])
def test_a_first_member_with_a_wrong_clock_leaves(offset_ms: int) -> None:
    """Alone it cannot know. When most others differ, it reports it and leaves, and the others deliver nothing of it."""

    async def part() -> None:
        table = Table(MEMBERS, **LOOSE)
        odd = await table.join(ODD, offset_ms)
        await odd.send(b"alone")
        await table.until(lambda: payloads(table.events[ODD]) == [b"alone"])
        good = await asyncio.gather(*(table.join(member) for member in MEMBERS if member != ODD))
        await table.until(lambda: table.has_ended(ODD))
        assert table.kinds(ODD)[-1] == "own_clock"
        assert table.kinds(ODD).count("clock") >= 2
        await table.until(lambda: all(group.members == (1, 2, 3) for group in good))
        await table.talk(good)
        await table.part()
        table.assert_in_order()
        assert table.senders(1, 2, 3) == {1, 2, 3}

    asyncio.run(part())


def test_a_clock_difference_below_gamma_is_ignored() -> None:
    async def part() -> None:
        table = Table(MEMBERS, **LOOSE)
        groups = await asyncio.gather(*(table.join(member, 8 * (member == ODD)) for member in MEMBERS))
        await table.until(lambda: all(group.members == MEMBERS for group in groups))
        await table.talk(list(groups))
        await table.until(lambda: all((group.stats().gamma_ns or 0) > 5_000_000 for group in groups))
        assert not any("clock" in kind for member in MEMBERS for kind in table.kinds(member))
        orders = [payloads(table.events[member]) for member in MEMBERS]
        assert len(orders[0]) == 80
        assert all(order == orders[0] for order in orders)
        await table.part()

    asyncio.run(part())


# -- one number, two processes -------------------------------------------------------------------------------------


def test_joining_twice_from_one_process_is_refused_and_does_not_disturb_the_first() -> None:
    async def part() -> None:
        table = Table((1, 2))
        groups = list(await asyncio.gather(*(table.join(member) for member in (1, 2))))
        link = unisono.Link("1Gbit/s")
        with pytest.raises(AddressInUse, match=rf"UDP port {table.peers[1][1]} of 127\.0\.0\.1 is in use"):
            await join_group("table", member=1, peers=table.peers, link=link)
        assert link.free_bytes_per_s == link.capacity_bytes_per_s, "what it would have had is free"
        await table.talk(groups)
        assert payloads(table.events[1]) == payloads(table.events[2])
        assert all(await asyncio.gather(*(group.leave() for group in groups)))
        await table.part()
        # What was left can be joined again, by the same process.
        again = await asyncio.gather(*(join_group("table", member=m, peers=table.peers) for m in (1, 2)))
        assert all(await asyncio.gather(*(group.leave() for group in again)))

    asyncio.run(part())


def test_a_second_process_with_the_same_number_is_refused_by_a_fixed_group() -> None:
    """Without failures no member returns: the group reports the attempt and continues."""

    async def part() -> None:
        table = Table((1, 2, 3))
        groups = list(await asyncio.gather(*(table.join(member) for member in (1, 2, 3))))
        elsewhere = {**table.peers, 2: free_addresses((2,))[2]}
        later = new_incarnation() + 8  # a second after the first process
        with pytest.raises(unisono.FormationTimeout, match="did not form"):
            await join_group("table", member=2, peers=elsewhere, incarnation=later, timeout="1s")
        await table.talk(groups)
        assert payloads(table.events[1]) == payloads(table.events[2]) == payloads(table.events[3])
        assert "restarted" in table.kinds(1)
        assert "restarted" in table.kinds(3)
        assert all(await asyncio.gather(*(group.leave() for group in groups)))
        await table.part()

    asyncio.run(part())


def test_a_second_process_with_the_same_number_replaces_the_first_in_a_group_with_failures() -> None:
    """The later process counts: it may be a restart after a partition. The earlier one gets a report and leaves."""

    async def part() -> None:
        table = Table((1, 2, 3), **LOOSE)
        groups = list(await asyncio.gather(*(table.join(member) for member in (1, 2, 3))))
        await table.until(lambda: all(group.members == (1, 2, 3) for group in groups))
        elsewhere = {**table.peers, 2: free_addresses((2,))[2]}
        later = new_incarnation() + 8  # a second after the first process
        second = await join_group("table", member=2, peers=elsewhere, incarnation=later, **LOOSE)
        await table.until(lambda: table.has_ended(2))
        assert table.kinds(2)[-1] == "number_taken"
        rest = [groups[0], groups[2]]
        await table.talk(rest)
        await asyncio.gather(table.part(), second.leave())
        table.assert_in_order()

    asyncio.run(part())


@pytest.mark.parametrize(
    ("timeout_s", "problem"),
    [(60.0, "member 1 ended with status 1: KeyError"), (0.001, r"did not begin within 0\.001 s")],
)
def test_a_process_that_fails_or_is_late_is_named(timeout_s: float, problem: str) -> None:
    cluster = LocalCluster({1: {}}, lambda _member, _report: None)
    with pytest.raises(MemberProcessFailed, match=problem):
        asyncio.run(cluster.run(timeout_s))


# -- late members on a busy machine ----------------------------------------------------------------------------------


def test_members_stay_until_a_late_member_has_joined(tmp_path: Path) -> None:
    """The process of a late member may start so slowly that the others have already sent all their messages."""
    text = scenario_text(0.3, 3).replace("failures = true", 'order = "priority"')
    found = played(tmp_path, text, {3: MemberSchedule(start_s=1.5)})
    assert found.verdict is Status.VALID, found.verdicts
    assert found.final_reports[3]["delivered"] > 0
    assert max(views(found, 1), key=len) == (1, 2, 3)


def test_the_process_of_a_later_incarnation_starts_in_advance(tmp_path: Path) -> None:
    """On a busy machine an interpreter takes seconds to start, which must not delay a restart."""
    text = scenario_text(60, 1)
    setup = {"scenario": text, "source": "the trial", "trace": str(tmp_path), "run": "trial", "member": 1}
    begun = asyncio.Event()

    def on_report(_member: int, report: dict[str, Any]) -> None:
        if report["kind"] == "begun":
            begun.set()

    async def part() -> tuple[set[int], set[int]]:
        before = children(os.getpid())
        cluster = LocalCluster(
            {1: {**setup, "peers": free_addresses((1,))}}, on_report, schedules={1: MemberSchedule(restarts_s=(3600,))}
        )
        running = asyncio.create_task(cluster.run(PATIENCE_S))
        async with asyncio.timeout(PATIENCE_S):
            await begun.wait()
        started = children(os.getpid()) - before
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return started, children(os.getpid()) - before

    started, left = asyncio.run(part())
    assert len(started) == 2
    assert left == set()


def children(parent: int) -> set[int]:
    """The processes that this process has started and that still run."""
    return set(map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text(encoding="ascii").split()))
