"""The streams of a group: `messages()` and `events()` are independent, and each yields everything that it wants."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.worlds.joining import memory_network

import unisono
from unisono.runtime.driver import QUEUE_BYTES
from unisono.testing import MemoryNetwork, run

TEN = [b"%d" % number for number in range(10)]


def play(scene: Callable[[MemoryNetwork], Awaitable[None]], **options: Any) -> None:
    """Run a scene in virtual time, on a network with two members unless `members` says otherwise."""

    async def whole() -> None:
        async with asyncio.timeout(60), memory_network(**{"members": 2, **options}) as net:
            await scene(net)

    run(whole())


async def payloads(group: unisono.Group, count: int, *, early: bool = False) -> list[bytes]:
    found = []
    async for message in group.messages(early=early):
        found.append(message.payload)
        if len(found) == count:
            break
    return found


def test_messages_yields_only_messages_each_once() -> None:
    async def scene(net: MemoryNetwork) -> None:
        await net[1].send_many(TEN[:5])
        assert await payloads(net[2], 5) == TEN[:5]
        await net[1].send_many(TEN[5:])
        assert await payloads(net[2], 5) == TEN[5:], "a new iteration continues where the last one stopped"

    play(scene)


def test_messages_and_events_can_be_read_at_the_same_time() -> None:
    async def scene(net: MemoryNetwork) -> None:
        group = net[2]
        seen: list[unisono.Event] = []

        async def watch() -> None:
            events = group.events()
            while True:
                seen.append(await anext(events))

        messages = group.messages()
        watching = asyncio.create_task(watch())
        await net[1].send_many(TEN)
        assert [(await anext(messages)).payload for _ in TEN] == TEN
        await net[1].leave()
        while not any(isinstance(event, unisono.ViewChange) and event.left == (1,) for event in seen):
            await asyncio.sleep(0.01)
        assert [event.payload for event in seen if isinstance(event, unisono.Delivery)] == TEN
        watching.cancel()

    play(scene, failures=True)


def test_with_two_grades_messages_are_the_final_ones_and_early_ones_on_request() -> None:
    async def scene(net: MemoryNetwork) -> None:
        group = net[2]
        final, early = group.messages(), group.messages(early=True)
        await net[1].send_many(TEN)
        first = [await anext(early) for _ in TEN]
        last = [await anext(final) for _ in TEN]
        assert [message.payload for message in first] == [message.payload for message in last] == TEN
        assert {message.grade for message in first} == {unisono.Grade.EARLY}
        assert {message.grade for message in last} == {unisono.Grade.FINAL}

    play(scene, failures=True, grades="both", members=3)


def test_in_the_priority_order_every_stream_gets_each_message() -> None:
    async def scene(net: MemoryNetwork) -> None:
        group = net[2]
        messages, events = group.messages(), group.events()
        await net[1].send_many(TEN)
        assert [(await anext(messages)).payload for _ in TEN] == TEN
        again: list[bytes] = []
        while len(again) < len(TEN):
            event = await anext(events)
            if isinstance(event, unisono.Delivery):
                again.append(event.payload)
        assert again == TEN

    play(scene, order="priority")


def test_a_stream_that_lags_holds_the_others_up_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(net: MemoryNetwork) -> None:
        group = net[1]
        events, messages = group.events(), group.messages()
        sending = asyncio.create_task(group.send_many(TEN))
        read = [(await anext(messages)).payload for _ in range(5)]
        waiting = asyncio.ensure_future(anext(messages))
        await asyncio.sleep(1)
        assert not waiting.done(), "five events wait in the stream of all events, which is the limit"
        assert "other streams of this group wait for it" in caplog.text
        while not waiting.done():
            await anext(events)
            await asyncio.sleep(0)
        assert [*read, (await waiting).payload] == TEN[:6]
        sending.cancel()

    with caplog.at_level(logging.WARNING, logger="unisono"):
        play(scene, members=1, queue_messages=5, rate=unisono.Rate(avg=200, burst=5))


def test_at_the_end_no_delivered_message_is_left_out_because_another_stream_lags() -> None:
    async def scene(net: MemoryNetwork) -> None:
        group = net[1]
        group.events()  # a stream without a reader
        messages = group.messages()

        async def read_all() -> list[bytes]:
            return [message.payload async for message in messages]

        reading = asyncio.create_task(read_all())
        await group.send_many(TEN[:9])
        await group.leave()
        assert await reading == TEN[:9]

    play(scene, members=1, queue_messages=5, rate=unisono.Rate(avg=200, burst=5))


def test_the_events_that_are_kept_for_a_stream_are_bounded_in_bytes() -> None:
    async def scene(net: MemoryNetwork) -> None:
        group = net[1]
        group.events()
        messages, big = group.messages(), bytes(60_000)
        sending = asyncio.create_task(group.send_many([big] * 1500))
        read = 0

        async def read_all() -> None:
            nonlocal read
            async for _ in messages:
                read += 1

        reading = asyncio.create_task(read_all())
        done, _ = await asyncio.wait({reading}, timeout=30)
        assert not done, "the reader waits for the stream without a reader"
        assert 0 < read * len(big) < 2 * QUEUE_BYTES
        for task in (reading, sending):
            task.cancel()

    rate = unisono.Rate(avg=1000, burst=10)
    play(scene, members=1, max_message=60_000, rate=rate, slot="10ms", link=unisono.Link("400Gbit/s"))
