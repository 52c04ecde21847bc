"""Slots that change on real sockets over loopback: nothing is lost, and there is one order.

Nothing here asserts how fast anything is: this machine may be busy, and then the group reports lateness and goes on.
"""

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from tests.worlds.joining import join_group

import unisono
from unisono.cluster.supervisor import free_addresses

PATIENCE_S = 90
MEMBERS = (1, 2, 3, 4, 5)
Happened = unisono.Delivery | unisono.TimingChange


async def join_all(**options: Any) -> list[unisono.Group]:
    peers = free_addresses(MEMBERS)
    fields: dict[str, Any] = {"rate": unisono.Rate(avg=3200, burst=16), "max_message": 100, "slot": "5ms"} | options
    return list(
        await asyncio.gather(*(join_group("table", member=member, peers=peers, **fields) for member in MEMBERS))
    )


async def heard(group: unisono.Group) -> list[Happened]:
    """All deliveries and slot events of a member until it has left."""
    return [event async for event in group if isinstance(event, Happened)]


async def send_until(group: unisono.Group, done: asyncio.Event) -> int:
    sent = 0
    while not done.is_set():
        await group.send(b"%d/%d" % (group.member, sent))
        sent += 1
        await asyncio.sleep(0.001)
    return sent


def test_slots_of_5_10_and_2_ms_while_all_send() -> None:
    async def part() -> None:
        joined = await join_all()
        hearing = [asyncio.create_task(heard(group)) for group in joined]
        done = asyncio.Event()
        sending = [asyncio.create_task(send_until(group, done)) for group in joined]
        await joined[1].renegotiate(slot="10ms")
        await joined[3].renegotiate(slot="2ms")
        both = [joined[0].renegotiate(slot="4ms"), joined[2].renegotiate(unisono.Rate(avg=1000, burst=8), slot="8ms")]
        await asyncio.gather(*both)
        await joined[1].renegotiate(slot="8ms")  # as it is, or once more
        done.set()
        sent = await asyncio.gather(*sending)
        # A slot later all of it is under way, and each leaves when it has delivered its own last slot.
        await asyncio.gather(*(group.send(b"bye") for group in joined))
        left = await asyncio.gather(*(group.leave() for group in joined))
        events = await asyncio.gather(*hearing)
        assert all(left)
        for member, count, mine in zip(MEMBERS, sent, events, strict=True):
            own = [event.payload for event in mine if isinstance(event, unisono.Delivery) and event.sender == member]
            assert own == [b"%d/%d" % (member, n) for n in range(count)] + [b"bye"], "nothing lost, in its order"
        shortest = min(map(len, events))
        assert all(mine[:shortest] == events[0][:shortest] for mine in events), "one order, changes included"
        lengths = [event.timing.theta_ns // 10**6 for event in events[0] if isinstance(event, unisono.TimingChange)]
        assert lengths[:4] == [10, 2, 4, 8]
        slots = [event.slot for event in events[0]]
        assert all(before <= after for before, after in pairwise(slots)), "numbers go on"

    asyncio.run(asyncio.wait_for(part(), PATIENCE_S))


def test_a_member_that_comes_later_has_the_slots_of_the_others() -> None:
    async def part() -> None:
        peers = free_addresses((1, 2))
        fields: dict[str, Any] = {"rate": unisono.Rate(avg=3200, burst=16), "max_message": 100, "failures": True}
        fields |= {"delta": "100ms", "slot": "5ms"}
        first = await join_group("table", member=1, peers=peers, **fields)
        hearing = asyncio.create_task(heard(first))
        await first.renegotiate(slot="20ms")
        bound = first.bound_ns
        second = await join_group("table", member=2, peers=peers, **fields)
        await second.send(b"hello")
        assert any(isinstance(event, unisono.TimingChange) for event in await seen(second)), "before it delivers"
        assert second.bound_ns == bound
        while second.member not in first.members:
            await asyncio.sleep(0.01)
        await second.leave()
        await first.leave()
        events = await hearing
        assert [e.payload for e in events if isinstance(e, unisono.Delivery)] == [b"hello"], "it was not sent too early"

    asyncio.run(asyncio.wait_for(part(), PATIENCE_S))


def test_a_declared_deadline_is_kept_or_its_member_gets_a_violation() -> None:
    async def part() -> None:
        peers = free_addresses((1, 2))
        fields: dict[str, Any] = {"delta": "20ms", "gamma": "2ms", "slot": "5ms"}
        bound = join_group("table", member=1, peers=peers, deadline="40ms", **fields)
        first, second = await asyncio.gather(bound, join_group("table", member=2, peers=peers, **fields))
        with pytest.raises(
            unisono.Infeasible, match="with slots of 20ms the latency bound would be 42ms; the best offer is 27 ms"
        ):
            first.renegotiate(slot="20ms")
        second.renegotiate(slot="20ms")
        told = ""
        async for event in first:
            if isinstance(event, unisono.Violation) and event.kind == "deadline":
                told = event.text
                break
        assert (
            told == "the group changed its slot length: the latency bound is now 42ms, more than the deadline of 40ms"
        )
        await asyncio.gather(first.leave(), second.leave())

    asyncio.run(asyncio.wait_for(part(), PATIENCE_S))


async def seen(group: unisono.Group) -> list[object]:
    """What happens up to the next delivery."""
    found: list[object] = []
    async for event in group:
        found.append(event)
        if isinstance(event, unisono.Delivery):
            break
    return found


def test_what_cannot_be_changed_is_refused_at_once() -> None:
    async def part() -> None:
        peers = free_addresses((1,))
        async with join_group("table", member=1, peers=peers, order="leader") as group:
            with pytest.raises(
                unisono.InvalidOption, match="slot: the order leader cannot change its slot length; vbr can"
            ):
                group.renegotiate(slot="10ms")
        async with join_group("table", member=1, peers=peers) as group:
            with pytest.raises(unisono.InvalidOption, match="expected a rate, a slot, or both"):
                group.renegotiate()
            with pytest.raises(unisono.InvalidOption, match="slot"):
                group.renegotiate(slot="2 fortnights")
            with pytest.raises(unisono.InvalidOption, match="slot: expected a slot length from 1us to 60s"):
                group.renegotiate(slot="100ns")
            await group.renegotiate(unisono.Rate(avg=10, burst=2))
            await group.renegotiate(slot="5ms")  # as it is
            waiting = group.renegotiate(slot="1s")
            unheeded = group.renegotiate(slot="2s")
            await group.leave()
            with pytest.raises(unisono.GroupClosed, match="before the slot length changed"):
                await waiting
            del unheeded

    asyncio.run(asyncio.wait_for(part(), PATIENCE_S))
