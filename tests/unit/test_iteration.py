"""Iteration over a group: a cancelled `anext` loses nothing, and two iterations share the events."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

import pytest
from tests.worlds.joining import memory_network as network

import unisono
from unisono import testing

PATIENCE_S = 120
"""In virtual time: a test that waits for nothing ends at once."""
T = TypeVar("T")


def run_test(part: Coroutine[None, None, T]) -> T:
    async def timed() -> T:
        async with asyncio.timeout(PATIENCE_S):
            return await part

    return testing.run(timed())


async def drain(group: unisono.Group) -> None:
    """Take the events that the group has reported so far."""
    try:
        while True:
            await group.next(timeout="1s")
    except unisono.Timeout:
        return


def payload(event: unisono.Event) -> bytes:
    assert isinstance(event, unisono.Delivery)
    return event.payload


def test_an_iterator_continues_after_a_timed_out_anext() -> None:
    async def part() -> None:
        async with network(members=2) as net:
            await drain(net[1])
            events = aiter(net[1])
            for number in range(3):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(events), 1)
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(1):
                        await anext(events)
                await net[2].send(b"%d" % number)
                assert payload(await anext(events)) == b"%d" % number

    run_test(part())


def test_an_iterator_over_batches_continues_after_a_timed_out_anext() -> None:
    async def part() -> None:
        async with network(members=2) as net:
            await drain(net[1])
            batches = net[1].batches()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(batches), 1)
            await net[2].send(b"after")
            batch = await anext(batches)
            assert isinstance(batch, unisono.Batch)
            assert batch.messages == [b"after"]

    run_test(part())


@pytest.mark.parametrize("order", ["vbr", "consensus", "priority"])
def test_no_event_is_lost_when_anext_is_cancelled_at_every_moment(order: str) -> None:
    """Short timeouts end waits before, between and while deliveries arrive. Each message still comes once, in order."""

    async def part() -> list[bytes]:
        found: list[bytes] = []
        async with network(members=2, order=order, rate=unisono.Rate(avg=800, burst=4)) as net:
            await drain(net[1])
            sending = asyncio.create_task(net[2].send_many([b"%d" % number for number in range(50)]))
            events, timeouts = aiter(net[1]), 0
            while len(found) < 50:
                try:
                    found.append(payload(await asyncio.wait_for(anext(events), 0.0011)))
                except TimeoutError:
                    timeouts += 1
            await sending
            assert timeouts > 10
        return found

    assert run_test(part()) == [b"%d" % number for number in range(50)]


def test_a_cancelled_anext_whose_event_has_just_come_leaves_it_to_the_next_one() -> None:
    async def part() -> None:
        async with network(members=1) as net:
            await drain(net[1])
            waiting = asyncio.ensure_future(anext(aiter(net[1])))
            await asyncio.sleep(0)
            net[1]._driver.report_violation(unisono.Violation(unisono.ViolationKind.LATE, "kept"))
            waiting.cancel()  # the event wakes the task, and the cancellation comes before the task runs
            with pytest.raises(asyncio.CancelledError):
                await waiting
            event = await net[1].next(timeout="1s")
            assert isinstance(event, unisono.Violation)
            assert event.text == "kept"

    run_test(part())


@pytest.mark.parametrize("by_batches", [False, True])
def test_two_iterations_share_the_events_and_each_event_comes_once(by_batches: bool) -> None:
    async def part() -> None:
        async with network(members=2, rate=unisono.Rate(avg=1600, burst=8)) as net:
            await drain(net[1])
            found: list[list[bytes]] = [[], []]

            async def read(mine: list[bytes]) -> None:
                async for event in net[1].batches() if by_batches else net[1]:
                    mine += event.messages if isinstance(event, unisono.Batch) else [payload(event)]
                    if mine[-1] == b"end":
                        return
                    await asyncio.sleep(0)

            readers = [asyncio.create_task(read(mine)) for mine in found]
            await asyncio.gather(*(net[2].send_many([b"%d" % number for number in range(100)]), net[2].send(b"end")))
            await asyncio.wait(readers, return_when=asyncio.FIRST_COMPLETED)
            await net[2].send(b"end")
            await asyncio.gather(*readers)
            assert sorted(found[0] + found[1]) == sorted([b"%d" % number for number in range(100)] + [b"end"] * 2)
            for mine in found:
                assert len(mine) > 10, "both get events"
                assert mine[:-1] == sorted(mine[:-1], key=int), "each in the order of delivery"

    run_test(part())


def test_two_iterations_both_end_when_the_member_leaves() -> None:
    async def part() -> None:
        async with network(members=1) as net:

            async def read() -> int:
                return len([event async for event in net[1]])

            readers = [asyncio.create_task(read()) for _ in range(2)]
            await asyncio.sleep(1)
            await net[1].leave()
            await asyncio.gather(*readers)
            with pytest.raises(StopAsyncIteration):
                await anext(aiter(net[1]))

    run_test(part())


def test_batches_give_the_rest_of_a_batch_that_an_iteration_has_begun() -> None:
    async def part() -> None:
        async with network(members=1) as net:
            await drain(net[1])
            await net[1].send_many([b"a", b"b", b"c"])
            assert payload(await net[1].next(timeout="1s")) == b"a"
            rest = await anext(net[1].batches())
            assert isinstance(rest, unisono.Batch)
            assert (rest.messages, rest.first_sequence) == ([b"b", b"c"], 1)

    run_test(part())


def test_next_returns_events_in_order_and_raises_timeout() -> None:
    async def part() -> None:
        async with network(members=2) as net:
            await drain(net[1])
            await net[2].send_many([b"a", b"b"])
            assert [payload(await net[1].next()) for _ in range(2)] == [b"a", b"b"]
            before = net.clock.now_ns()
            with pytest.raises(unisono.Timeout, match=r"no event within 2s") as late:
                await net[1].next(timeout="2s")
            assert isinstance(late.value, TimeoutError)
            assert net.clock.now_ns() - before == pytest.approx(2_000_000_000, rel=0.01)
            with pytest.raises(unisono.Timeout):
                await net[1].next(timeout="0ms")
            await net[2].send(b"c")
            assert payload(await net[1].next(timeout="2s")) == b"c"
            with pytest.raises(TypeError, match="timeout=2 has no unit; write '2ms'"):
                await net[1].next(timeout=2)  # type: ignore[arg-type]

    run_test(part())


def test_next_raises_group_closed_after_the_member_has_left() -> None:
    async def part() -> None:
        async with network(members=1) as net:
            await drain(net[1])
            waiting = asyncio.create_task(net[1].next())
            await asyncio.sleep(1)
            await net[1].leave()
            for waits in (waiting, net[1].next(timeout="1s")):
                with pytest.raises(unisono.GroupClosed, match="has left the group"):
                    await waits

    run_test(part())
