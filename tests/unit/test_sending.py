"""Sending: from other threads and event loops, and how much of an interrupted `send_many` was accepted."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
from tests.worlds.joining import memory_network as network

import unisono
from unisono import testing
from unisono.testing import deliveries

PATIENCE_S = 60
SLOW = unisono.Rate(avg=1, burst=2)
"""A rate whose pacer accepts two messages, and has no credit for more during the next seconds."""
T = TypeVar("T")


def run_virtual(part: Coroutine[None, None, T]) -> T:
    async def timed() -> T:
        async with asyncio.timeout(PATIENCE_S):
            return await part

    return testing.run(timed())


def run_real(part: Coroutine[None, None, T]) -> T:
    """In real time, for tests with threads."""

    async def timed() -> T:
        async with asyncio.timeout(PATIENCE_S):
            return await part

    return asyncio.run(timed())


@contextmanager
def running_loop() -> Iterator[Callable[[Coroutine[Any, Any, Any]], Any]]:
    """Another event loop in a thread, as a function that runs a coroutine there and returns its result."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield lambda coroutine: asyncio.run_coroutine_threadsafe(coroutine, loop).result(PATIENCE_S)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


# -- threads and event loops ---------------------------------------------------------------------------------------


def test_send_from_another_event_loop_is_refused_before_anything_is_sent() -> None:
    async def part() -> None:
        async with network(members=1) as net:
            group, here = net[1], asyncio.get_running_loop()

            async def refused() -> None:
                with pytest.raises(unisono.WrongEventLoop, match=r"submit_threadsafe") as wrong:
                    await group.send(b"foreign")
                assert isinstance(wrong.value, RuntimeError)
                for call in (
                    lambda: group.send_many([b"a", b"b"]),
                    lambda: group.next(timeout="1s"),
                    lambda: anext(aiter(group)),
                    lambda: anext(group.batches()),
                    group.consume,
                    group.leave,
                    lambda: group.change_topology(["a"]),
                ):
                    with pytest.raises(unisono.WrongEventLoop):
                        await call()
                with pytest.raises(unisono.WrongEventLoop):
                    group.renegotiate(unisono.Rate(avg=10, burst=1))

            with running_loop() as run_there:
                await here.run_in_executor(None, run_there, refused())
            assert group.stats().sent == 0
            await group.send(b"own")
            assert [delivery.payload for delivery in await deliveries(group, 1)] == [b"own"]
            assert group.stats().sent == 1

    run_real(part())


def test_calls_without_an_event_loop_are_refused() -> None:
    async def part() -> None:
        async with network(members=1) as net:
            rate = unisono.Rate(avg=10, burst=1)
            with pytest.raises(unisono.WrongEventLoop):
                await asyncio.to_thread(net[1].renegotiate, rate)

    run_real(part())


def test_submit_threadsafe_sends_in_order_from_another_thread() -> None:
    async def part() -> None:
        async with network(members=1) as net:

            def work() -> None:
                futures = [net[1].submit_threadsafe(b"%d" % number) for number in range(20)]
                for future in futures:
                    assert future.result(PATIENCE_S) is None

            with ThreadPoolExecutor(1) as pool:
                await asyncio.get_running_loop().run_in_executor(pool, work)
            found = await deliveries(net[1], 20)
            assert [delivery.payload for delivery in found] == [b"%d" % number for number in range(20)]

    run_real(part())


def test_submit_threadsafe_reports_errors_in_its_future() -> None:
    async def part() -> None:
        async with network(members=1) as net:
            group = net[1]

            def work() -> None:
                with pytest.raises(unisono.MessageTooLarge):
                    group.submit_threadsafe(b"x" * 5000).result(PATIENCE_S)
                with pytest.raises(unisono.InvalidOption, match="priority"):
                    group.submit_threadsafe(b"x", priority=-1).result(PATIENCE_S)

            await asyncio.to_thread(work)
            await group.leave()
            with pytest.raises(unisono.GroupClosed):
                await asyncio.to_thread(lambda: group.submit_threadsafe(b"late").result(PATIENCE_S))

    run_real(part())


def test_submit_threadsafe_after_the_event_loop_has_ended_raises_group_closed() -> None:
    async def part() -> unisono.Group:
        async with network(members=1) as net:
            return net[1]

    group = run_real(part())
    with pytest.raises(unisono.GroupClosed, match="event loop"):
        group.submit_threadsafe(b"late")


# -- interrupted sending -------------------------------------------------------------------------------------------


def test_send_many_returns_the_number_of_messages() -> None:
    async def part() -> None:
        async with network(members=1) as net:
            assert await net[1].send_many([b"a", b"b", b"c"]) == 3
            assert await net[1].send_many([]) == 0

    run_virtual(part())


def test_a_cancelled_send_many_says_how_many_messages_were_accepted() -> None:
    async def part() -> None:
        async with network(members=1, rate=SLOW) as net:
            sending = unisono.Sending()
            task = asyncio.create_task(net[1].send_many([b"%d" % n for n in range(10)], sending=sending))
            assert [delivery.payload for delivery in await deliveries(net[1], 2)] == [b"0", b"1"]
            task.cancel()
            with pytest.raises(asyncio.CancelledError) as cancelled:
                await task
            assert sending.accepted == 2
            assert cancelled.value.__notes__ == ["2 of 10 messages were accepted; the others are not sent"]
            await asyncio.sleep(30)  # the pacer has credit again, and nothing is left to send
            assert net[1].stats().sent == 2

    run_virtual(part())


def test_a_timed_out_send_many_can_continue_where_it_stopped() -> None:
    async def part() -> None:
        async with network(members=1, rate=SLOW) as net:
            rest, rounds = [b"%d" % n for n in range(8)], 0
            while rest:
                sending, rounds = unisono.Sending(), rounds + 1
                try:
                    async with asyncio.timeout(2.5):
                        await net[1].send_many(rest, sending=sending)
                except TimeoutError:
                    pass
                rest = rest[sending.accepted :]
            assert rounds > 2
            assert [d.payload for d in await deliveries(net[1], 8)] == [b"%d" % n for n in range(8)]

    run_virtual(part())


def test_a_send_many_that_waits_for_its_turn_has_accepted_nothing() -> None:
    """The first call has used the credit, so the second waits behind it, and its cancellation sends nothing."""

    async def part() -> None:
        async with network(members=1, rate=SLOW) as net:
            first, second = unisono.Sending(), unisono.Sending()
            tasks = [
                asyncio.create_task(net[1].send_many([name] * 3, sending=sending))
                for name, sending in ((b"first", first), (b"second", second))
            ]
            await asyncio.sleep(0.1)
            tasks[1].cancel()
            await asyncio.wait(tasks)
            assert (first.accepted, second.accepted) == (3, 0)
            assert [d.payload for d in await deliveries(net[1], 3)] == [b"first"] * 3
            assert net[1].stats().sent == 3

    run_virtual(part())


def test_a_send_many_interrupted_by_the_end_of_the_group_says_the_number() -> None:
    async def part() -> None:
        async with network(members=1, rate=SLOW) as net:
            sending = unisono.Sending()
            task = asyncio.create_task(net[1].send_many([b"x"] * 5, sending=sending))
            await deliveries(net[1], 2)
            await net[1].leave()
            with pytest.raises(unisono.GroupClosed) as closed:
                await task
            assert sending.accepted == 2
            assert closed.value.__notes__ == ["2 of 5 messages were accepted; the others are not sent"]

    run_virtual(part())


def test_each_call_that_a_failure_interrupts_has_its_own_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise unisono.StorageError("the disk is full") from OSError("planted")

    async def part() -> None:
        async with network(members=1, rate=SLOW) as net:
            tasks = [asyncio.create_task(net[1].send_many([b"x"] * count)) for count in (3, 5)]
            await deliveries(net[1], 2)
            monkeypatch.setattr(net[1]._stack, "wake", full)
            for task, note in zip(tasks, ("2 of 3", "0 of 5"), strict=True):
                with pytest.raises(unisono.StorageError, match="the disk is full") as failed:
                    await task
                assert failed.value.__notes__ == [f"{note} messages were accepted; the others are not sent"]
                assert isinstance(failed.value.__cause__, OSError)

    run_virtual(part())


def test_a_refused_send_many_takes_nothing() -> None:
    async def part() -> None:
        async with network(members=1) as net:
            sending = unisono.Sending()
            with pytest.raises(unisono.MessageTooLarge):
                await net[1].send_many([b"small", b"x" * 5000], sending=sending)
            assert sending.accepted == 0
            assert net[1].stats().sent == 0

    run_virtual(part())
