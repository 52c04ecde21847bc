"""Replicated state on real sockets: a member that crashes during a burst, and one that joins late."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence

import pytest
from tests.worlds.joining import join_group

import unisono
from unisono.cluster.supervisor import free_addresses
from unisono.errors import GroupClosed, InvalidOption
from unisono.model.events import Grade
from unisono.replica import Counter, Dict, Log, Replicated, Set
from unisono.replica.state_machine import StateMachine
from unisono.testing import network

PATIENCE_S = 90
Peers = dict[int, tuple[str, int]]


def joining(member: int, peers: Peers, **settings: object) -> Coroutine[None, None, unisono.Group]:
    async def joined() -> unisono.Group:
        return await join_group(
            "table",
            member=member,
            peers=peers,
            rate=unisono.Rate(avg=400, burst=16),
            delta="100ms",
            gamma="5ms",
            slot="10ms",
            **{"grades": "both", "failures": True, **settings},
        )

    return joined()


def play(part: Coroutine[None, None, None]) -> None:
    async def timed() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await part

    asyncio.run(timed())


async def until_all_have(states: Sequence[Replicated], keys: Sequence[bytes]) -> None:
    """Wait until all these states have these objects as final and no command is pending."""
    for state in states:
        while state.replica.pending or any(state.conservative(key) is None for key in keys):
            await state.wait_for_change()


def contents(state: Replicated) -> dict[object, object]:
    return {key: state.conservative(key) for key in state.replica.objects()}


def test_one_of_four_crashes_in_a_burst_and_the_other_states_are_equal() -> None:
    async def scene() -> None:
        members = (1, 2, 3, 4)
        peers = free_addresses(members)
        async with network(members=0) as net:
            groups = await asyncio.gather(*(joining(member, peers) for member in members))
            states = [Replicated(group, Dict()) for group in groups]

            async def burst(state: Replicated, me: int) -> None:
                for number in range(40):
                    await state.execute(Dict.put(b"shared", b"%d/%d" % (me, number)), grade=Grade.EARLY)
                await state.execute(Dict.put(b"done %d" % me, b"yes"))

            async with states[0], states[1], states[2], states[3]:
                bursts = [asyncio.create_task(burst(state, me)) for me, state in zip(members, states, strict=True)]
                while states[0].optimistic(b"shared") is None:
                    await states[0].wait_for_change()
                net.crash(2)
                with pytest.raises(GroupClosed):
                    await bursts[1]
                survivors = [states[0], states[2], states[3]]
                await asyncio.gather(bursts[0], bursts[2], bursts[3])
                await until_all_have(survivors, [b"done 1", b"done 3", b"done 4"])
                assert contents(survivors[0]) == contents(survivors[1]) == contents(survivors[2])
                for state in survivors:
                    assert state.optimistic(b"shared") == state.conservative(b"shared")
            for group in (groups[0], groups[2], groups[3]):
                await group.leave()

    play(scene())


def test_a_late_member_gets_the_state_and_continues_from_it() -> None:
    async def scene() -> None:
        members = (1, 2, 3)
        peers = free_addresses(members)
        first = await asyncio.gather(joining(1, peers), joining(2, peers))
        log = [Replicated(group, Log(), part_bytes=64) for group in first]
        async with log[0], log[1]:
            for number in range(30):
                await log[number % 2].execute(b"entry %d" % number)
            late = await joining(3, peers)
            async with Replicated(late, Log(), part_bytes=64) as third:
                for number in range(30, 40):
                    await log[number % 2].execute(b"entry %d" % number)
                while (third.conservative(Log.KEY) or (None, 0))[1] < 40:
                    await third.wait_for_change()
                entries = Log.entries(third.conservative(Log.KEY))
                assert entries == [b"entry %d" % number for number in range(40)]
                assert await third.execute(b"mine") == 40
            await late.leave()
        for group in first:
            await group.leave()

    play(scene())


@pytest.mark.parametrize("order", ["vbr", "consensus"])
def test_with_one_grade_commands_run_only_once(order: str) -> None:
    async def scene() -> None:
        peers, grades = free_addresses((1, 2)), "early" if order == "vbr" else None
        groups = await asyncio.gather(*(joining(m, peers, order=order, grades=grades, failures=False) for m in (1, 2)))
        machines: list[StateMachine] = [Counter(), Counter()]
        one, two = (Replicated(group, machine) for group, machine in zip(groups, machines, strict=True))
        async with one, two:
            with pytest.raises(ValueError, match=r"made by Counter.add, got b'3'"):
                await one.execute(b"3")
            assert await one.execute(Counter.add(5), grade=Grade.EARLY) == 5
            assert await two.execute(Counter.add(-2)) == 3
            while one.conservative(Counter.KEY) != 3:
                await one.wait_for_change()
            assert one.mistakes.lost == one.mistakes.rollbacks == 0
        for group in groups:
            await group.leave()

    play(scene())


def test_over_an_order_with_gaps_states_are_refused() -> None:
    async def scene() -> None:
        peers = free_addresses((1,))
        async with await joining(1, peers, grades="early") as group:
            with pytest.raises(InvalidOption, match="gaps"):
                Replicated(group, Set())

    play(scene())
