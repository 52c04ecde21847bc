"""A group that does not form says, for each address that it tried, what came back."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest
from tests.worlds.joining import group_config, join_group

import unisono
from unisono.cluster.supervisor import free_addresses
from unisono.errors import AddressTried
from unisono.group import open_group
from unisono.runtime.environment import EnvironmentScope
from unisono.testing import MemoryNetwork, run


async def failed_joins(net: MemoryNetwork, members: dict[int, dict[str, Any]]) -> list[unisono.FormationTimeout]:
    """Let these members try to join, each with its own options; return the errors."""
    with EnvironmentScope(net):
        joins = [
            open_group(group_config(**{"member": member, "peers": net.peers, "timeout": "2s", **options}))
            for member, options in members.items()
        ]
    errors = await asyncio.gather(*(one_join(join) for join in joins), return_exceptions=True)
    return [error for error in errors if isinstance(error, unisono.FormationTimeout)]


async def one_join(join: unisono.group.PendingJoin) -> unisono.Group:
    return await join


@pytest.mark.parametrize("order", ["vbr", "cbr", "leader", "consensus", "priority", "reliable"])
def test_an_address_without_a_process_is_refused_and_a_cut_off_one_is_silent(order: str) -> None:
    async def scene() -> None:
        net = MemoryNetwork((1, 2, 3))
        net.cut(1, 3)
        one, _ = await failed_joins(net, {1: {"order": order}, 3: {"order": order}})
        assert one.missing == (2, 3)
        refused, silent = "connection refused: no process has this UDP port open", "no answer"
        assert one.tried == (
            AddressTried(2, "memory:2", "refused", refused),
            AddressTried(3, "memory:3", "silent", silent),
        )
        assert str(one) == (
            "group 'unisono' did not form within 2 s; missing: member 2, 3"
            f"\n  member 2 at memory:2: {refused}\n  member 3 at memory:3: {silent}"
        )
        net.abort()

    run(scene())


def test_a_peer_that_answers_has_another_outcome_than_one_that_does_not() -> None:
    async def scene() -> None:
        net = MemoryNetwork((1, 2, 3))
        one, _ = await failed_joins(net, {1: {}, 2: {}})
        assert [(tried.member, tried.outcome) for tried in one.tried] == [(2, "answers"), (3, "refused")]
        assert one.tried[0].text == "answers, but does not hear all other members yet"
        net.abort()

    run(scene())


def test_datagrams_refused_at_the_door_are_counted_by_their_sender() -> None:
    async def scene() -> None:
        net = MemoryNetwork((1, 2))
        one, two = await failed_joins(net, {1: {"group": "table-1"}, 2: {"group": "table-2"}})
        for error, peer in ((one, 2), (two, 1)):
            assert [(tried.member, tried.outcome) for tried in error.tried] == [(peer, "rejected")]
            assert error.tried[0].text.startswith("this member refuses its datagrams: ")
            assert error.tried[0].text.endswith(" × wrong group")
        net.abort()

    run(scene())


def test_a_peer_that_this_member_refuses_is_named_with_the_reason() -> None:
    async def scene() -> None:
        net = MemoryNetwork((1, 2))
        net.clock.offset(2, "5s")
        one, _ = await failed_joins(net, {1: {}, 2: {}})
        assert [(tried.member, tried.outcome) for tried in one.tried] == [(2, "differs")]
        assert one.tried[0].text.startswith("answers, but has a wrong clock")
        net.abort()

    run(scene())


def test_on_real_sockets_the_system_tells_that_no_process_has_the_port_open() -> None:
    async def scene() -> None:
        peers = free_addresses((1, 2))
        with pytest.raises(unisono.FormationTimeout) as caught:
            await join_group("table", member=1, peers=peers, timeout="100ms")
        (tried,) = caught.value.tried
        assert (tried.member, tried.address, tried.outcome) == (2, f"127.0.0.1:{peers[2][1]}", "refused")

    asyncio.run(scene())


def test_an_address_without_a_route_is_unreachable() -> None:
    async def scene() -> None:
        peers = {1: "[::1]:9001", 2: "[2001:db8::1]:9002"}
        with pytest.raises(unisono.FormationTimeout) as caught:
            await join_group("table", member=1, peers=peers, timeout="100ms")
        (tried,) = caught.value.tried
        assert tried.address == "[2001:db8::1]:9002"
        assert tried.outcome in {"unreachable", "silent"}, "silent on a machine with a route for IPv6"

    asyncio.run(scene())


def test_the_error_survives_pickling() -> None:
    error = unisono.FormationTimeout("g", 2, (2,), "a hint", (AddressTried(2, "h:1", "silent", "no answer"),))
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.group, again.missing, again.tried) == (str(error), "g", (2,), error.tried)


def test_the_error_has_no_file_name_although_a_timeout_is_an_error_of_the_system() -> None:
    error = unisono.FormationTimeout("g", 2, (2,))
    assert (error.errno, error.filename) == (None, None)
