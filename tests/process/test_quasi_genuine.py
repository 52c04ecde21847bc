"""Several groups on real sockets: messages to one or more groups, one order over all, a member that restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from examples.areas import sockets as areas
from tests.worlds.joining import join_group

import unisono
from unisono.cluster.supervisor import free_addresses
from unisono.model.events import Grade
from unisono.replica import Dict, Replicated
from unisono.testing import network

TIMEOUT_S = 60
TOPOLOGY = unisono.Topology(
    {"north": (1, 2, 3), "south": (4, 5, 6)}, {"north": ("north", "south"), "south": ("north", "south")}
)
Message = tuple[int, int]


async def join_all(
    topology: unisono.Topology | unisono.Multigroup,
    members: Sequence[int],
    peers: dict[int, tuple[str, int]],
    folder: Path | None = None,
) -> dict[int, unisono.Group]:
    joined = await asyncio.gather(
        *(
            join_group(
                "areas",
                member=member,
                peers=peers,
                order="quasi_genuine",
                topology=topology,
                rate=unisono.Rate(avg=3200, burst=16),
                max_message=1000,
                storage=None if folder is None else folder / f"{member}.log",
                fsync="always" if folder is None else "never",
            )
            for member in members
        )
    )
    return dict(zip(members, joined, strict=True))


async def final_deliveries(
    group: unisono.Group, count: int, seen: list[unisono.Delivery] | None = None
) -> list[Message]:
    """The next final deliveries; `seen` collects every delivery on the way."""
    found: list[Message] = []
    async for event in group:
        if isinstance(event, unisono.Delivery):
            if seen is not None:
                seen.append(event)
            if event.grade is not Grade.EARLY:
                found.append((event.sender, event.sequence))
                if len(found) == count:
                    return found
    raise AssertionError(f"the group ended after {len(found)} of {count} deliveries")


async def send_rounds(groups: dict[int, unisono.Group], rounds: int) -> None:
    for number in range(rounds):
        for member, group in groups.items():
            await group.send(b"%d of %d" % (number, member), to=("north", "south"))


def run_test(steps: Coroutine[None, None, None]) -> None:
    async def timed() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await steps

    asyncio.run(timed())


def test_two_groups_deliver_in_one_order() -> None:
    async def part() -> None:
        groups = await join_all(TOPOLOGY, TOPOLOGY.members, free_addresses(TOPOLOGY.members))
        try:
            waiting = [asyncio.create_task(final_deliveries(group, 60)) for group in groups.values()]
            await send_rounds(groups, 10)
            first, *others = await asyncio.gather(*waiting)
            assert all(other == first for other in others)
            for member in TOPOLOGY.members:
                assert [sequence for sender, sequence in first if sender == member] == list(range(10))
        finally:
            await asyncio.gather(*(group.leave() for group in groups.values()))

    run_test(part())


def test_a_destination_that_is_not_allowed_is_refused_at_once() -> None:
    async def part() -> None:
        one_way = unisono.Topology(TOPOLOGY.groups, {"north": ("north", "south"), "south": ("south",)})
        groups = await join_all(one_way, one_way.members, free_addresses(one_way.members))
        try:
            with pytest.raises(unisono.DestinationNotAllowed, match="'south' may not send to north"):
                await groups[5].send(b"no", to=("south", "north"))
            await groups[1].send(b"yes", to=("south",))
            await groups[5].send(b"yes", to=("south",))
            assert sorted(await final_deliveries(groups[4], 2)) == [(1, 0), (5, 0)]
        finally:
            await asyncio.gather(*(group.leave() for group in groups.values()))

    run_test(part())


def test_early_and_final_deliveries() -> None:
    async def part() -> None:
        multigroup = unisono.Multigroup(TOPOLOGY, window="200ms", optimistic=True)
        groups = await join_all(multigroup, TOPOLOGY.members, free_addresses(TOPOLOGY.members))
        try:
            seen: list[unisono.Delivery] = []
            waiting = asyncio.create_task(final_deliveries(groups[6], 12, seen))
            await send_rounds(groups, 2)
            await waiting
            assert sum(event.grade is Grade.FINAL for event in seen) == 12
            assert {event.id for event in seen if event.grade is Grade.EARLY} <= {
                event.id for event in seen if event.grade is Grade.FINAL
            }
        finally:
            await asyncio.gather(*(group.leave() for group in groups.values()))

    run_test(part())


def test_a_restarted_member_with_storage_delivers_all_messages(tmp_path: Path) -> None:
    async def part() -> None:
        peers = free_addresses(TOPOLOGY.members)
        async with network(members=0) as net:
            groups = await join_all(TOPOLOGY, TOPOLOGY.members, peers, tmp_path)
            before = [asyncio.create_task(final_deliveries(group, 12)) for group in groups.values()]
            await send_rounds(groups, 2)
            expected, *_ = await asyncio.gather(*before)
            net.crash(5)
            del groups[5]
            more = [asyncio.create_task(final_deliveries(group, 5)) for group in groups.values()]
            await send_rounds(groups, 1)
            expected += (await asyncio.gather(*more))[0]
            groups |= await join_all(TOPOLOGY, (5,), peers, tmp_path)
            assert await final_deliveries(groups[5], 17) == expected
            await asyncio.gather(*(group.leave() for group in groups.values()))

    run_test(part())


def test_replicas_of_two_groups_agree_after_a_crash_in_a_burst() -> None:
    """Members send to their own group and to both groups at once; each group agrees on its own and on shared keys."""

    async def part() -> None:
        multigroup = unisono.Multigroup(TOPOLOGY, window="20ms", optimistic=True)
        async with network(members=0) as net:
            groups = await join_all(multigroup, TOPOLOGY.members, free_addresses(TOPOLOGY.members))
            states = {member: Replicated(group, Dict()) for member, group in groups.items()}

            async def burst(member: int) -> None:
                state, home = states[member], TOPOLOGY.group_of(member)
                for number in range(6):
                    put = Dict.put(b"shared", b"%d/%d" % (member, number))
                    await state.execute(put, grade=Grade.EARLY, to=("north", "south"))
                    await state.execute(Dict.put(b"own", b"%d/%d" % (member, number)), grade=Grade.EARLY, to=(home,))
                await state.execute(Dict.put(b"done %d" % member, b"yes"), to=("north", "south"))

            async with AsyncExitStack() as stack:
                for state in states.values():
                    await stack.enter_async_context(state)
                bursts = {member: asyncio.create_task(burst(member)) for member in states}
                while states[1].conservative(b"shared") is None:
                    await states[1].wait_for_change()
                net.crash(5)
                del groups[5]
                with pytest.raises(unisono.GroupClosed):
                    await bursts.pop(5)
                await asyncio.gather(*bursts.values())
                alive = [states[member] for member in groups]
                for state in alive:
                    while state.replica.pending or any(state.conservative(b"done %d" % m) is None for m in groups):
                        await state.wait_for_change()
                agreed = [{key: state.conservative(key) for key in state.replica.objects()} for state in alive]
                north, south = agreed[:3], agreed[3:]
                assert north == [north[0]] * 3
                assert south == [south[0]] * 2
                assert north[0].keys() == south[0].keys()
                assert {key for key in north[0] if north[0][key] != south[0][key]} <= {b"own"}
                assert all(state.optimistic(b"shared") == north[0][b"shared"] for state in alive)
            await asyncio.gather(*(group.leave() for group in groups.values()))

    run_test(part())


def test_the_example_world_over_sockets() -> None:
    async def part() -> None:
        game = await areas.play(1.0, bots=6)
        assert game.problems() == []
        assert all(server.replica.executed > 5 for server in game.servers.values())

    run_test(part())


def test_the_topology_changes_while_groups_run() -> None:
    """South may not send to north, then it may, then it may not again; north delivers the messages in between."""

    async def part() -> None:
        one_way = unisono.Topology(TOPOLOGY.groups, {"north": ("north", "south"), "south": ("south",)})
        groups = await join_all(one_way, one_way.members, free_addresses(one_way.members))
        try:
            with pytest.raises(unisono.DestinationNotAllowed, match="change_topology"):
                await groups[5].send(b"no", to=("north",))
            await groups[4].change_topology(("north", "south"))
            await groups[4].send(b"now it may", to=("north", "south"))
            await groups[1].send(b"as before", to=("north", "south"))
            orders = await asyncio.gather(*(final_deliveries(group, 2) for group in groups.values()))
            assert all(order == orders[0] for order in orders)
            assert sorted(orders[0]) == [(1, 0), (4, 0)]
            await groups[6].change_topology(("south",))
            with pytest.raises(unisono.DestinationNotAllowed, match="lets it send to south"):
                await groups[6].send(b"no", to=("north",))
            with pytest.raises(unisono.InvalidOption, match="unknown group 'west'"):
                await groups[6].change_topology(("west",))
            await groups[1].send(b"does not wait for south", to=("north",))
            assert await final_deliveries(groups[2], 1) == [(1, 1)]
        finally:
            await asyncio.gather(*(group.leave() for group in groups.values()))

    run_test(part())
