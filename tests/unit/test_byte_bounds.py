"""Logs and queues are bounded in bytes, too: a few thousand entries of 60 kB would be hundreds of megabytes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from tests.worlds.joining import memory_network as network

import unisono
from unisono.agreement.paxos.acceptor import RETAINED_BYTES, Acceptor
from unisono.model.events import View
from unisono.model.policy import Policy
from unisono.model.timing import Timing
from unisono.model.units import NS_PER_MS as MS
from unisono.model.units import Rate, UnlimitedNetwork
from unisono.orders.consensus.order import COMPACT_EVERY_BYTES, UNDECIDED_BYTES_MAX, ConsensusOrder
from unisono.orders.leader import stream as stream_module
from unisono.orders.leader.messages import EntryType
from unisono.orders.leader.stream import WINDOW_BYTES, OrderedStream, StreamEntry
from unisono.testing import deliveries, run

BIG = bytes(60_000)
BIG_RATE = Rate(avg=10_000, burst=100)


def big_policy(members: tuple[int, ...], order: str) -> Policy:
    timing = Timing(5 * MS, MS, 5 * MS)
    return Policy("g", 2, View(members), timing, BIG_RATE, order=order, max_message=len(BIG), max_frame=65_000)


def stream_of(count: int, payload: bytes) -> OrderedStream:
    stream = OrderedStream()
    for position in range(1, count + 1):
        entry = StreamEntry(position, 1, 1, 0, EntryType.RELAY, 1, 1, 0, 0, 0, 0, 0, 0, None, payload, None)
        stream.accept(entry)
    return stream


def test_the_leader_waits_for_the_slowest_member_by_bytes() -> None:
    stream = stream_of(WINDOW_BYTES // len(BIG), BIG)
    assert not stream.window_is_full()
    last = stream_of(1, BIG).accepted.pop()
    stream.accept(replace(last, position=stream.position + 1))
    assert stream.window_is_full()
    stream.stable = 1
    assert not stream.window_is_full()


def test_a_follower_forgets_the_sizes_of_entries_that_all_members_have() -> None:
    """Only a leader asks whether its window is full."""
    stream = stream_of(100, b"x")
    stream.stable = 90
    stream.prune()
    assert len(stream._unstable) == 10


def test_the_stream_retains_a_limited_number_of_bytes() -> None:
    most = stream_module.RETAINED_BYTES // len(BIG)
    stream = stream_of(2 * most, BIG)
    stream.prune()
    assert stream.position + 1 - stream.retained_from() == 2 * most, "other members may lack every entry"
    stream.stable = stream.position
    stream.prune()
    assert stream.position + 1 - stream.retained_from() == most
    small = stream_of(2 * most, b"x")
    small.stable = small.position
    small.prune()
    assert small.position + 1 - small.retained_from() == 2 * most, "small entries stay"


def test_undecided_bundles_are_bounded_in_bytes() -> None:
    order = ConsensusOrder(big_policy((1, 2, 3), "consensus"), UnlimitedNetwork())
    order.wake(0)
    order.mode = order.mode.DELIVER_MESSAGES
    accepted = sum(order.submit(number * 5 * MS, [BIG]) for number in range(1, 200))
    assert UNDECIDED_BYTES_MAX <= accepted * len(BIG) < UNDECIDED_BYTES_MAX + 2 * len(BIG)


def test_a_decided_log_is_compacted_by_bytes() -> None:
    order = ConsensusOrder(replace(big_policy((1, 2), "consensus"), view=View((2,))), UnlimitedNetwork())
    order.wake(0)
    order.flush()
    for number in range(1, 600):
        assert order.submit(number * 5 * MS, [BIG]) == 1
        order.flush()
        order.writes.clear()
        order.events.clear()
        kept = sum(len(value) for _, value in order.consensus._acceptor.log.values())
        assert kept <= RETAINED_BYTES + COMPACT_EVERY_BYTES + 2 * len(BIG)
    assert order.consensus._acceptor.snapshot_at > 500


def test_an_acceptor_retains_a_limited_number_of_bytes() -> None:
    count = 2 * RETAINED_BYTES // len(BIG)
    acceptor = Acceptor(1, retained_values=count)
    for k in range(1, count + 1):
        acceptor.accept(k, 1, BIG)
    acceptor.decide(count)
    acceptor.compact(count, b"state")
    assert len(acceptor.log) == RETAINED_BYTES // len(BIG)
    assert acceptor.discarded_upto == count - len(acceptor.log)
    assert max(acceptor.log) == count


def test_events_that_wait_for_the_application_are_bounded_in_bytes() -> None:
    """Input pauses at the limit, and nothing is lost when the application reads again."""

    async def scene() -> None:
        async with asyncio.timeout(600):
            options: dict[str, Any] = {"rate": Rate(avg=10_000, burst=50), "slot": "5ms", "max_message": 1000}
            async with network(members=1, link=unisono.Link("400Gbit/s"), **options) as net:
                group = net[1]
                limit = 100_000
                group._driver._queue_limits = (1_000_000, limit)
                sending = asyncio.create_task(group.send_many([bytes(1000)] * 500))
                await asyncio.sleep(1)
                assert group._driver._paused
                assert limit < group._driver._queued_bytes < limit + 100_000
                assert not sending.done()
                assert len(await deliveries(group, 500)) == 500
                await sending

    run(scene())
