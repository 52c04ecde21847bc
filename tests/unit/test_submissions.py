"""Priorities of messages that wait at their sender: the only place where they count, except in the priority orders."""

import asyncio

import pytest
from tests.worlds.joining import join_group

import unisono
from unisono.cluster.supervisor import free_addresses
from unisono.runtime.driver import Submission, Submissions
from unisono.trace.recorder import MemoryTrace
from unisono.trace.schema import RunMeta

LOOP = asyncio.new_event_loop()
LOOP.close()


def submission(name: bytes, priority: int) -> Submission:
    return Submission((name,), LOOP.create_future(), priority)


def drained(queue: Submissions) -> list[bytes]:
    found = []
    while queue.first is not None:
        found.append(queue.first.messages[0])
        queue.pop()
    return found


def test_higher_priorities_go_first_and_equals_in_their_order() -> None:
    queue = Submissions()
    told = [
        queue.put(submission(name, priority))
        for name, priority in ((b"a", 0), (b"b", 2), (b"c", 0), (b"d", 2), (b"e", 1), (b"f", 7))
    ]
    assert told == [True, True, False, False, False, True], "whether it is the turn of what was put in"
    assert drained(queue) == [b"f", b"b", b"d", b"e", b"a", b"c"]
    assert queue.first is None


def test_pop_all_returns_every_waiting_submission() -> None:
    queue = Submissions()
    for name, priority in ((b"a", 0), (b"b", 3)):
        queue.put(submission(name, priority))
    assert [one.messages[0] for one in queue.pop_all()] == [b"b", b"a"]
    assert queue.first is None
    assert queue.pop_all() == []


def test_an_urgent_message_overtakes_waiting_ones_and_the_trace_has_its_priority() -> None:
    memory = MemoryTrace("run", "one")
    lows, order = 12, []

    async def play() -> None:
        async with asyncio.timeout(60):
            group = await join_group(
                "one",
                member=1,
                peers=free_addresses((1,)),
                rate=unisono.Rate(avg=100, burst=1),
                slot="10ms",
                delta="5ms",
                incarnation=1,
                recorder=memory.recorder(1, incarnation=1),
            )
            low = asyncio.create_task(group.send_many([b"low %d" % n for n in range(lows)]))
            await asyncio.sleep(0)
            high = [asyncio.create_task(group.send(b"high %d" % n, priority=5)) for n in range(2)]
            async for event in group:
                if isinstance(event, unisono.Delivery):
                    order.append(event.payload)
                if len(order) == lows + 2:
                    break
            await asyncio.gather(low, *high)
            await group.leave()

    asyncio.run(play())
    first = order.index(b"high 0")
    assert first < lows - 1, "it went before some that had been handed in earlier"
    assert order[first + 1] == b"high 1"
    assert [name for name in order if name.startswith(b"low")] == [b"low %d" % n for n in range(lows)]
    meta = RunMeta("run", "one", "vbr", (1,), 0, 0, 10_000_000, None, reliable=True, source="test")
    sends = memory.trace(meta).sends()
    assert sends.priority.tolist() == [5 if name.startswith(b"high") else -1 for name in order]


@pytest.mark.parametrize("priority", [-1, 0x8000])
def test_an_impossible_priority_is_refused(priority: int) -> None:
    async def play() -> None:
        group = await join_group("one", member=1, peers=free_addresses((1,)))
        try:
            with pytest.raises(unisono.InvalidOption, match="priority"):
                await group.send(b"x", priority=priority)
        finally:
            await group.leave()

    asyncio.run(play())
