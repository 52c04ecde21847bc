"""Sending on credit: many calls of `send` in one turn of the event loop, and the limits of a turn."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from tests.worlds.joining import memory_network as network

import unisono
from unisono.check.rates import rate_compliance
from unisono.check.verdict import Status
from unisono.errors import InvariantViolated
from unisono.model.units import NS_PER_MS, Rate
from unisono.runtime.turn import TURN_MESSAGES, TURN_S, Credit
from unisono.testing import MemoryNetwork, deliveries, run
from unisono.testing.virtual_time import VirtualTimeLoop
from unisono.trace.recorder import MemoryTrace
from unisono.trace.schema import RunMeta

MESSAGES = 319
"""How many messages the tasks of the first test send."""
ORDERS = ("vbr", "leader", "timestamp", "consensus", "cbr", "priority")
FAST: dict[str, Any] = {"rate": Rate(avg=100_000, burst=2000), "slot": "10ms", "link": unisono.Link("400Gbit/s")}


def spend(seconds: float) -> None:
    """Let virtual time pass while the application works and does not wait."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop._advance(seconds)


def play(part: Callable[[unisono.Group], Awaitable[None]], **options: Any) -> None:
    async def scene() -> None:
        async with asyncio.timeout(60), network(members=1, **options) as net:
            await net[1].send(b"the first slot has begun")
            await deliveries(net[1], 1)
            await part(net[1])

    run(scene())


@pytest.mark.parametrize("order", ORDERS)
def test_messages_are_sent_in_the_order_of_the_calls(order: str) -> None:
    """`send` and `send_many`, mixed and from several tasks, with less room than they need."""
    calls: list[bytes] = []

    async def send(group: unisono.Group, task: int) -> None:
        for number in range(40):
            messages = [b"%d-%d-%d" % (task, number, part) for part in range(1 + (task + number) % 3)]
            calls.extend(messages)
            if len(messages) == 1:
                await group.send(messages[0])
            else:
                await group.send_many(messages)
            if number % 7 == task:
                await asyncio.sleep(0)

    async def scene() -> list[bytes]:
        async with asyncio.timeout(600):
            rate = Rate(avg=100, burst=1) if order == "cbr" else Rate(avg=2000, burst=30)
            async with network(members=2, order=order, rate=rate, slot="10ms", delta="20ms") as net:
                reading = [asyncio.create_task(deliveries(net[member], MESSAGES)) for member in (1, 2)]
                await asyncio.gather(*(send(net[1], task) for task in range(4)))
                return [delivery.payload for delivery in (await asyncio.gather(*reading))[1]]

    assert run(scene()) == calls
    assert len(calls) == MESSAGES


def test_one_turn_costs_one_submission() -> None:
    """All messages of a turn go to the stack together, and none of the calls waits."""

    async def part(group: unisono.Group) -> None:
        submitted: list[int] = []
        submit = group._stack.submit

        def noted(now: int, messages: Any) -> int:
            submitted.append(len(messages))
            return submit(now, messages)

        group._stack.submit = noted  # type: ignore[method-assign, assignment]
        for _ in range(100):
            await group.send(b"x")
        assert submitted == []
        assert group.stats().sent == 101
        await asyncio.sleep(0)
        assert submitted == [100]
        assert len(await deliveries(group, 100)) == 100

    play(part, **FAST)


def test_a_send_loop_yields_by_count() -> None:
    """A task that only sends lets other tasks run, although the clock stands still in virtual time."""

    async def part(group: unisono.Group) -> None:
        others = 0

        async def other() -> None:
            nonlocal others
            for _ in range(3):
                await asyncio.sleep(0)
                others += 1

        task = asyncio.create_task(other())
        for _ in range(4 * TURN_MESSAGES):
            await group.send(b"x")
        assert others == 3
        await task

    play(part, rate=Rate(avg=400_000, burst=8 * TURN_MESSAGES), slot="10ms", link=unisono.Link("400Gbit/s"))


@pytest.mark.parametrize("order", ["vbr", "leader", "consensus"])
@pytest.mark.parametrize("work_us", [2, 100])
def test_an_application_that_floods_does_not_delay_timers(order: str, work_us: int) -> None:
    """One task sends, one receives, both without a pause: slot ends and heartbeats are late by two turns at most."""

    async def scene() -> None:
        async with asyncio.timeout(600), network(members=2, order=order, delta="50ms", **FAST) as net:
            group = net[1]

            async def send() -> None:
                while True:
                    spend(work_us * 1e-6)
                    await group.send(b"x" * 100)

            async def receive() -> None:
                async for _ in group:
                    spend(work_us * 1e-6)

            tasks = [asyncio.create_task(part) for part in (send(), receive())]
            await asyncio.sleep(1)
            assert group.stats().sent > 1000
            assert group.stats().delivered > 1000
            # A call between two looks at the clock may exceed the turn: an iteration looks once per chunk.
            assert group.stats().lateness.largest <= 3 * TURN_S * 1e9 + 20 * work_us * 1000
            for task in tasks:
                task.cancel()

    run(scene())


def test_a_cancelled_send_that_waits_is_not_sent() -> None:
    async def part(group: unisono.Group) -> None:
        for number in range(2):
            await group.send(b"%d" % number)
        waiting = asyncio.create_task(group.send(b"cancelled"))
        later = asyncio.create_task(group.send(b"later"))
        await asyncio.sleep(0)
        assert not waiting.done()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await later
        assert [delivery.payload for delivery in await deliveries(group, 3)] == [b"0", b"1", b"later"]
        assert group.stats().sent == 4

    play(part, rate=Rate(avg=200, burst=2), slot="10ms")


@pytest.mark.parametrize("order", ["vbr", "leader", "consensus", "timestamp"])
def test_a_send_loop_keeps_the_declared_rate(order: str) -> None:
    """The checker of traces finds no slot above the burst and no window above the average."""
    rate, slot_ns = Rate(avg=1000, burst=25), 10 * NS_PER_MS
    memory = MemoryTrace("run", "test")

    async def scene() -> None:
        async with asyncio.timeout(600):
            recorder = memory.recorder(1, incarnation=1)
            async with network(members=1, order=order, rate=rate, slot="10ms", recorder=recorder) as net:

                async def send() -> None:
                    for number in range(600):
                        await net[1].send(bytes(number % 90))

                sending = asyncio.create_task(send())
                await deliveries(net[1], 600)
                await sending

    run(scene())
    rates = ((1, rate.avg, rate.burst),)
    meta = RunMeta("run", "test", order, (1,), 0, 0, slot_ns, None, reliable=True, source="test", rates=rates)
    trace = memory.trace(meta)
    assert len(trace.sends()) == 600
    verdict = rate_compliance(trace)
    assert verdict.status is Status.VALID, verdict


def test_messages_of_the_last_turn_are_sent_before_the_member_leaves() -> None:
    async def scene() -> None:
        async with asyncio.timeout(60), network(members=2, **FAST) as net:
            for number in range(5):
                await net[1].send(b"%d" % number)
            await net[1].leave()
            assert [delivery.payload for delivery in await deliveries(net[2], 5)] == [b"%d" % n for n in range(5)]

    run(scene())


@pytest.mark.parametrize(
    ("message", "options", "error"),
    [
        ("text", {}, TypeError),
        (bytearray(b"x"), {}, TypeError),
        (bytes(101), {}, unisono.MessageTooLarge),
        (b"x", {"priority": 0.0}, unisono.InvalidOption),
        (b"x", {"priority": -1}, unisono.InvalidOption),
    ],
)
def test_errors_are_raised_at_the_call(message: Any, options: dict[str, Any], error: type[Exception]) -> None:
    """Also in the middle of a turn, where `send` does not ask the stack."""

    async def part(group: unisono.Group) -> None:
        await group.send(b"first")
        with pytest.raises(error):
            await group.send(message, **options)
        await group.send(b"second")
        assert [delivery.payload for delivery in await deliveries(group, 2)] == [b"first", b"second"]

    play(part, max_message=100, **FAST)


def test_a_stack_that_breaks_its_promise_ends_the_group() -> None:
    """No message that `send` has accepted is dropped silently."""

    async def part(group: unisono.Group) -> None:
        group._stack.order.submit = lambda now, messages: 0  # type: ignore[method-assign]
        await group.send(b"x")
        with pytest.raises(InvariantViolated, match="promised room"):
            await deliveries(group, 1)

    play(part, **FAST)


def test_send_after_the_end_of_the_group_is_refused() -> None:
    async def part(group: unisono.Group) -> None:
        await group.send(b"x")
        await group.leave()
        with pytest.raises(unisono.GroupClosed):
            await group.send(b"y")

    play(part, **FAST)


def test_credit_is_limited_by_messages_bytes_and_time() -> None:
    loop = asyncio.new_event_loop()
    try:
        credit = Credit(loop, 10)
        assert not credit.take(b"x"), "without a grant"
        credit.grant(1, 2, 100, loop.time() + 100)
        assert [credit.take(b"x") for _ in range(3)] == [True, True, False]
        assert credit.settle() == [b"x", b"x"]
        assert not credit.take(b"x"), "the grant is used up"
        credit.grant(2, 9, 12, loop.time() + 100)
        assert [credit.take(bytes(size)) for size in (11, 8, 8, 4)] == [False, True, False, True]
        credit.settle()
        credit.grant(3, 9, 100, loop.time())
        assert not credit.take(b"x"), "the turn is over"
    finally:
        loop.close()


def test_a_batch_can_be_continued_in_the_middle() -> None:
    """An iteration over single deliveries stops inside a batch; `batches` continues with the next message."""

    async def part(group: unisono.Group) -> None:
        sent = [b"%d" % number for number in range(50)]
        await group.send_many(sent)
        first = await deliveries(group, 7)
        rest: list[bytes] = []
        async for event in group.batches():
            if isinstance(event, unisono.Batch):
                assert event.first_sequence == 8 + len(rest)
                rest += event.messages
            if len(rest) + len(first) >= len(sent):
                break
        assert [delivery.payload for delivery in first] + rest == sent

    play(part, **FAST)


def test_a_delivery_is_an_immutable_value() -> None:
    one = unisono.Delivery(2, 10, 7, b"a", 1)
    assert one == unisono.Delivery(2, 10, 7, b"a", incarnation=1)
    assert one != unisono.Delivery(2, 10, 7, b"b", 1)
    assert one != (2, 10, 7, b"a", 1, None, None, False), "a plain tuple is no delivery"
    assert len({one, unisono.Delivery(2, 10, 7, b"a", 1)}) == 1
    assert pickle.loads(pickle.dumps(one)) == one
    numbers = "sender=2, sequence=10, slot=7, payload=b'a', incarnation=1"
    assert repr(one) == f"Delivery({numbers}, priority=None, grade=None, late=False)"
    assert one.id == (2, 1, 10)
    with pytest.raises(AttributeError):
        one.slot = 8  # type: ignore[misc]


def test_a_refused_request_does_not_hold_back_messages_of_the_same_turn() -> None:
    async def scene() -> None:
        async with asyncio.timeout(60), network(members=2, order="leader", **FAST) as net:
            await net[2].send(b"the first slot has begun")
            await deliveries(net[2], 1)
            sent = net.datagrams
            await net[2].send(b"x")
            with pytest.raises(unisono.InvalidOption):
                net[2].renegotiate(slot="7ms")
            assert net.datagrams == sent
            await asyncio.sleep(0)
            assert net.datagrams == sent + 1, "the frame to the leader has left in the next turn"

    run(scene())


def test_each_turn_has_its_whole_share() -> None:
    """The messages of one turn do not count against the next one, in which they go to the stack."""

    async def part(group: unisono.Group) -> None:
        for _ in range(3):
            for _ in range(TURN_MESSAGES):
                assert group._driver.credit.take(b"x") or group._driver.take_first(b"x")
            assert not group._driver.credit.take(b"x")
            await asyncio.sleep(0)

    play(part, rate=Rate(avg=400_000, burst=8 * TURN_MESSAGES), slot="10ms", link=unisono.Link("400Gbit/s"))


@pytest.mark.parametrize("order", ["leader", "timestamp", "vbr", "consensus"])
def test_messages_taken_before_the_process_stood_still_are_submitted_as_of_now(order: str) -> None:
    """Otherwise a leader that was deposed meanwhile would order them in its old term."""
    submitted: list[int] = []

    async def scene(net: MemoryNetwork) -> None:
        await net[1].send(b"the first slot has begun")
        await deliveries(net[1], 1)
        driver = net[1]._driver
        submit = driver.stack.submit

        def recording(now: int, messages: Sequence[bytes], priority: int = 0) -> int:
            submitted.append(now)
            return submit(now, messages, priority)

        driver.stack.submit = recording  # type: ignore[method-assign]
        await net[1].send(b"taken")
        assert driver.credit.taken == [b"taken"]
        granted_ns = driver.credit.granted_ns
        net.clock.offset(1, "1500ms")
        assert [delivery.payload for delivery in await deliveries(net[1], 1)] == [b"taken"]
        assert submitted[0] >= granted_ns + 1_500_000_000

    async def whole() -> None:
        async with asyncio.timeout(120), network(members=1, order=order, **FAST) as net:
            await scene(net)

    run(whole())


def test_a_timeout_of_send_is_checked_even_if_there_is_room() -> None:
    async def part(group: unisono.Group) -> None:
        with pytest.raises(TypeError, match="timeout=5 has no unit"):
            await group.send(b"x", timeout=5)  # type: ignore[arg-type]
        with pytest.raises(unisono.InvalidOption, match="timeout: expected a duration"):
            await group.send(b"x", timeout="banana")

    play(part)
