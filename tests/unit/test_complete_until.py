"""`group.complete_until()`: an auction closes at a time, and all members compute the same winner."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.worlds.joining import memory_network

import unisono
from unisono.testing import MemoryNetwork, deliveries, run

SENT_EVERY_S = 0.013
SLOT_NS = 10_000_000
OPTIONS = {"failures": True, "slot": "10ms", "rate": unisono.Rate(avg=200, burst=16)}


def play(scene: Callable[[MemoryNetwork], Awaitable[None]], **options: Any) -> None:
    async def whole() -> None:
        async with asyncio.timeout(120), memory_network(**{"members": 3, **OPTIONS, **options}) as net:
            await scene(net)

    run(whole())


async def bid(net: MemoryNetwork, member: int, until_ns: int) -> None:
    """Send bids with the time of sending, until after the close."""
    amount = member
    while (now := net.clock.now_ns()) < until_ns:
        await net[member].send(b"%06d %d" % (amount, now))
        amount += 7
        await asyncio.sleep(SENT_EVERY_S)


async def winner(group: unisono.Group, closes_at_ns: int, *, early: bool) -> unisono.Delivery:
    """The highest bid that was sent before the auction closed."""
    best: unisono.Delivery | None = None
    is_closed = False
    async for message in group.messages(early=early):
        sent_ns = int(message.payload.split()[1])
        assert sent_ns <= group.sent_before(message)
        if not message.late and group.sent_before(message) <= closes_at_ns:
            assert not is_closed
            best = message if best is None else max(best, message, key=lambda bid: bid.payload)
        assert message.late or not is_closed or sent_ns > closes_at_ns
        if is_closed:
            break
        is_closed = (group.complete_until(early=early) or 0) >= closes_at_ns
    assert best is not None
    return best


@pytest.mark.parametrize(
    ("options", "early"),
    [({}, True), ({"grades": "both"}, True), ({"grades": "both"}, False)],
    ids=["one grade", "early", "final"],
)
def test_an_auction_closes_at_a_time_and_all_members_have_the_same_winner(options: dict[str, Any], early: bool) -> None:
    async def scene(net: MemoryNetwork) -> None:
        closes_at_ns = net.clock.now_ns() + 1_000_000_000
        bidding = [asyncio.create_task(bid(net, member, closes_at_ns + 500_000_000)) for member in net.groups]
        if not early:
            net.lose(0.1, at_most=2, of=8)  # early bids are missing at some members
        found = await asyncio.gather(*(winner(group, closes_at_ns, early=early) for group in net.groups.values()))
        net.heal()
        await asyncio.gather(*bidding)
        assert len({best.id for best in found}) == 1
        sent_ns = int(found[0].payload.split()[1])
        assert 0 <= closes_at_ns - sent_ns < 2 * SLOT_NS, "the highest bid is one of the last in time"

    play(scene, **{"loss_burst": 8, **options})


def test_messages_that_wait_for_the_application_are_not_complete() -> None:
    async def scene(net: MemoryNetwork) -> None:
        sent_ns = net.clock.now_ns()
        await net[1].send_many((b"a", b"b"))
        await asyncio.sleep(1)
        await net[1].send(b"c")
        await asyncio.sleep(1)
        group, marks = net[2], []
        for _ in range(3):
            marks.append(group.complete_until() or 0)
            await deliveries(group, 1)
        marks.append(group.complete_until() or 0)
        now = net.clock.now_ns()
        assert marks[0] == marks[1] <= sent_ns, "one of two messages of a slot is taken"
        assert sent_ns + 800_000_000 < marks[2] < sent_ns + 1_100_000_000, "the next message was sent 1 s later"
        assert now - 200_000_000 < marks[3] < now

    play(scene)


def test_other_orders_have_no_such_time() -> None:
    async def scene(net: MemoryNetwork) -> None:
        with pytest.raises(unisono.InvalidOption, match="only the orders cbr and vbr know"):
            net[1].complete_until()
        await net[1].send(b"a")
        (message,) = await deliveries(net[1], 1)
        with pytest.raises(unisono.InvalidOption, match="only the orders cbr and vbr know"):
            net[1].sent_before(message)

    play(scene, order="consensus", rate=unisono.Rate(avg=50, burst=8))


def test_bids_of_a_member_that_was_cut_off_are_late_at_all_members() -> None:
    async def taken_until_end(group: unisono.Group, closes_at_ns: int) -> tuple[list[bytes], list[bytes], list[bytes]]:
        """The bids that the auction takes, the late ones, and the ones after the close."""
        taken, late, after = list[bytes](), list[bytes](), list[bytes]()
        async for message in group.messages():
            if message.payload == b"end":
                break
            if message.late:
                late.append(message.payload)
            elif group.sent_before(message) > closes_at_ns:
                after.append(message.payload)
            else:
                taken.append(message.payload)
        return taken, late, after

    async def scene(net: MemoryNetwork) -> None:
        closes_at_ns = net.clock.now_ns() + 1_000_000_000
        bidding = [asyncio.create_task(bid(net, member, closes_at_ns + 600_000_000)) for member in net.groups]
        taking = [asyncio.create_task(taken_until_end(group, closes_at_ns)) for group in net.groups.values()]
        await asyncio.sleep(0.8)
        net.cut(3, (1, 2))
        await asyncio.sleep(0.6)
        net.heal()
        await asyncio.gather(*bidding)
        await asyncio.sleep(5)
        await net[1].send(b"end")
        first, *others = await asyncio.gather(*taking)
        assert all(other == first for other in others), "all members agree on the late bids"
        taken, late, after = first
        assert len(taken) > 150
        assert len(late) > 10
        assert len(after) > 50

    play(scene, grades="both")
