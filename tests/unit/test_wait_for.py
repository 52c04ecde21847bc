"""`wait_for` returns when enough members are up: in the view, not suspected, and heard from."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.worlds.joining import group_config, join_group, memory_network

import unisono
from unisono.testing import MemoryNetwork, run


def play(scene: Callable[[MemoryNetwork], Awaitable[None]], **options: Any) -> None:
    async def whole() -> None:
        async with asyncio.timeout(120), memory_network(**{"members": 3, **options}) as net:
            await scene(net)

    run(whole())


TOPOLOGY = unisono.Topology({"all": (1, 2, 3)}, {"all": ("all",)})
ORDERS: list[dict[str, Any]] = [
    {"order": "vbr"},
    {"order": "vbr", "failures": True},
    {"order": "vbr", "failures": True, "grades": "both"},
    {"order": "cbr"},
    {"order": "leader"},
    {"order": "timestamp"},
    {"order": "consensus"},
    {"order": "priority"},
    {"order": "priority_coordinator"},
    {"order": unisono.QuasiGenuine(topology=TOPOLOGY)},
    {"order": "reliable"},
    {"order": "uniform_causal", "failures": True},
]


@pytest.mark.parametrize("options", ORDERS, ids=lambda options: "-".join(map(str, options.values())))
def test_in_every_order_all_members_come_up(options: dict[str, Any]) -> None:
    async def scene(net: MemoryNetwork) -> None:
        for group in net.groups.values():
            await group.wait_for(3, timeout="10s")

    play(scene, **options)


@pytest.mark.parametrize("order", [{"order": "consensus"}, {"failures": True}, {"failures": True, "grades": "both"}])
def test_it_waits_for_a_member_that_starts_later(order: dict[str, Any]) -> None:
    async def scene(net: MemoryNetwork) -> None:
        await net[1].wait_for(2, timeout="10s")
        waiting = asyncio.create_task(net[1].wait_for(3, timeout="60s"))
        await asyncio.sleep(1)
        assert not waiting.done(), "member 3 has not started"
        await net.join(3)
        await waiting
        assert 3 in net[1].members

    play(scene, members=2, later=(3,), **order)


def test_a_timeout_names_each_missing_member_and_why() -> None:
    async def scene(net: MemoryNetwork) -> None:
        net.crash(2)
        await net[1].wait_for(2, timeout="10s")
        with pytest.raises(unisono.Timeout) as caught:
            await net[1].wait_for(4, timeout="5s")
        assert str(caught.value) == (
            "only 2 of 4 members were up within 5s; missing: member 2 (not heard for 5s), member 4 (never heard)"
        )

    play(scene, members=3, later=(4,), order="consensus")


def test_a_departed_member_is_not_up() -> None:
    async def scene(net: MemoryNetwork) -> None:
        await net[3].leave()
        with pytest.raises(unisono.Timeout, match=r"missing: member 3 \(not in the view\)"):
            await net[1].wait_for(3, timeout="2s")

    play(scene, failures=True)


def test_after_a_cut_heals_the_members_are_up_again() -> None:
    async def scene(net: MemoryNetwork) -> None:
        net.cut(1, (2, 3))
        await asyncio.sleep(5)
        with pytest.raises(unisono.Timeout, match="only 1 of 3 members were up"):
            await net[1].wait_for(3, timeout="10ms")
        net.heal()
        await net[1].wait_for(3, timeout="20s")

    play(scene, order="consensus")


def test_a_member_that_leaves_gets_an_error() -> None:
    async def scene(net: MemoryNetwork) -> None:
        waiting = asyncio.create_task(net[1].wait_for(4))
        await asyncio.sleep(0.1)
        await net[1].leave()
        with pytest.raises(unisono.GroupClosed):
            await waiting

    play(scene, later=(4,), failures=True)


@pytest.mark.parametrize("count", [0, -1, 4, True, "2"])
def test_an_impossible_number_is_refused_at_once(count: Any) -> None:
    async def scene(net: MemoryNetwork) -> None:
        with pytest.raises(unisono.InvalidOption, match="expected a number from 1 to 3") as caught:
            await net[1].wait_for(count)
        assert caught.value.field == "members"

    play(scene)


# -- min_members -----------------------------------------------------------------------------------------------------


async def late_join(net: MemoryNetwork, **options: Any) -> unisono.Group:
    """Let member 1 join while member 3 starts only after ten seconds; return the group of member 1."""
    joining = [asyncio.create_task(net.join(member, config=group_config(**options))) for member in (1, 2)]
    await asyncio.sleep(10)
    is_done = joining[0].done()
    await net.join(3, config=group_config(**options))
    await asyncio.gather(*joining)
    assert is_done is (options.get("min_members", 1) < 3)
    return net[1]


@pytest.mark.parametrize("order", [{"order": "consensus"}, {"failures": True}, {"order": "priority"}])
@pytest.mark.parametrize("least", [None, 2, 3])
def test_join_returns_when_min_members_are_up(order: dict[str, Any], least: int | None) -> None:
    async def scene() -> None:
        options = order if least is None else {"min_members": least, **order}
        net = MemoryNetwork((1, 2, 3))
        try:
            group = await late_join(net, **options)
            if least == 3:
                assert {peer.member for peer in group.status().peers if peer.state == "up"} == {2, 3}
        finally:
            net.abort()

    run(scene())


def test_if_too_few_members_come_up_the_error_names_the_missing_ones() -> None:
    async def scene() -> None:
        net = MemoryNetwork((1, 2, 3))
        try:
            config = group_config(failures=True, min_members=2, timeout="3s")
            with pytest.raises(unisono.FormationTimeout) as caught:
                await net.join(1, config=config)
            assert caught.value.missing == (2, 3)
            assert "missing: member 2, 3; 1 of at least 2 members are up (min_members)\n" in str(caught.value)
            assert [tried.outcome for tried in caught.value.tried] == ["refused", "refused"]
        finally:
            net.abort()

    run(scene())


@pytest.mark.parametrize("least", [0, 4])
def test_impossible_values_of_min_members_are_refused(least: int) -> None:
    peers = {member: f"127.0.0.1:{9000 + member}" for member in (1, 2, 3)}
    with pytest.raises(unisono.InvalidOption, match="min_members: expected a number from 1 to 3"):
        join_group(member=1, peers=peers, min_members=least)
    with pytest.raises(unisono.InvalidOption, match="min_members: expected a number from 1 to 2"):
        join_group(members=2, min_members=3)
