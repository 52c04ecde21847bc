"""`flush` returns when all accepted messages are final, and never hangs without a word."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.worlds.joining import memory_network

import unisono
from unisono.runtime.waiting import time_limit
from unisono.testing import MemoryNetwork, run


def play(scene: Callable[[MemoryNetwork], Awaitable[None]], **options: Any) -> None:
    async def whole() -> None:
        async with asyncio.timeout(120), memory_network(**{"members": 3, **options}) as net:
            await scene(net)

    run(whole())


@pytest.mark.parametrize(
    "options",
    [{"order": "consensus"}, {"order": "vbr"}, {"order": "leader"}, {"failures": True, "grades": "both"}],
    ids=["consensus", "vbr", "leader", "both grades"],
)
def test_after_flush_all_accepted_messages_are_final_here(options: dict[str, Any]) -> None:
    async def scene(net: MemoryNetwork) -> None:
        group = net[1]
        await group.flush()  # nothing was accepted
        for number in range(20):
            await group.send(b"%d" % number)
        await group.flush(timeout="10s")
        messages = group.messages()
        async with asyncio.timeout(0):  # they wait in the stream
            assert [(await anext(messages)).payload for _ in range(20)] == [b"%d" % number for number in range(20)]

    play(scene, **options)


def test_without_a_majority_flush_says_so() -> None:
    async def scene(net: MemoryNetwork) -> None:
        group = net[1]
        net.cut(1, (2, 3))
        await group.send(b"cut off")
        with pytest.raises(unisono.NoMajority, match="1 accepted messages are not final"):
            await group.flush()
        with pytest.raises(unisono.NoMajority, match="within 300ms, because this member has no majority"):
            await group.flush(timeout="300ms")
        net.heal()
        await group.flush(timeout="20s")

    play(scene, order="consensus")


def test_flush_with_a_timeout_ends_in_time() -> None:
    async def scene(net: MemoryNetwork) -> None:
        net.delay("5s")
        await net[1].send(b"slow")
        with pytest.raises(unisono.Timeout, match="not all accepted messages became final within 20ms"):
            await net[1].flush(timeout="20ms")
        net.delay("0ms")

    play(scene, order="consensus")


def test_in_the_priority_order_there_is_no_flush() -> None:
    async def scene(net: MemoryNetwork) -> None:
        with pytest.raises(unisono.InvalidOption, match="the application decides"):
            await net[1].flush()

    play(scene, order="priority")


def test_messages_to_other_groups_that_are_sent_later_do_not_end_a_flush() -> None:
    async def scene(net: MemoryNetwork) -> None:
        group = net[1]
        net.cut(1, (2, 3))
        await group.send(b"cut off")
        flushing = asyncio.create_task(group.flush(timeout="300ms"))
        await asyncio.sleep(0.01)
        group._driver.watch.on_sent_elsewhere(3)
        group._driver.announce_change()
        with pytest.raises(unisono.Timeout):
            await flushing
        net.heal()

    play(scene, order="consensus")


def test_what_happened_just_as_the_time_was_up_is_no_timeout() -> None:
    async def scene(net: MemoryNetwork) -> None:
        driver = net[1]._driver
        async with time_limit("10ms", driver, "nothing happened", is_done=lambda: True):
            await asyncio.sleep(1)
        with pytest.raises(unisono.Timeout, match="nothing happened within 10ms"):
            async with time_limit("10ms", driver, "nothing happened"):
                await asyncio.sleep(1)

    play(scene, order="consensus")
