"""Groups on real sockets over loopback: one order at all members, back-pressure, rates, leaving, and errors.

No test asserts a speed: on a busy machine the group reports lateness and continues.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.process.test_discovery import multicast_only
from tests.worlds.joining import join_group
from tests.worlds.joining import memory_network as network

import unisono
from unisono.cluster.supervisor import free_addresses
from unisono.runtime.udp import UdpTransport

TIMEOUT_S = 60
FAST: dict[str, Any] = {"rate": unisono.Rate(avg=3200, burst=16), "max_message": 1000}


async def join_all(count: int, **options: Any) -> list[unisono.Group]:
    peers = free_addresses(tuple(range(1, count + 1)))
    return await asyncio.gather(
        *(join_group("table", member=member, peers=peers, **{**FAST, **options}) for member in peers)
    )


@asynccontextmanager
async def groups(count: int, **options: Any) -> AsyncIterator[list[unisono.Group]]:
    async with asyncio.timeout(TIMEOUT_S):
        joined = await join_all(count, **options)
        try:
            yield joined
        finally:
            await asyncio.gather(*(group.leave() for group in joined))


async def deliveries(group: unisono.Group, count: int) -> list[unisono.Delivery]:
    """The next deliveries; view changes and reports of lateness are skipped."""
    found: list[unisono.Delivery] = []
    if count == 0:
        return found
    async for event in group:
        if isinstance(event, unisono.Delivery):
            found.append(event)
            if len(found) == count:
                return found
    raise AssertionError(f"the group ended after {len(found)} of {count} deliveries")


async def all_deliveries(joined: list[unisono.Group], count: int) -> list[unisono.Delivery]:
    """The next deliveries, which must be the same at every member."""
    first, *others = await asyncio.gather(*(deliveries(group, count) for group in joined))
    assert all(other == first for other in others)
    return first


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def run_test(part: Callable[[], Awaitable[None]]) -> None:
    async def timed() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await part()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert not others, "tasks are still running"

    asyncio.run(timed())


def per_slot(found: list[unisono.Delivery], sender: int) -> Counter[int]:
    return Counter(delivery.slot for delivery in found if delivery.sender == sender)


# -- one order -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3])
def test_all_members_deliver_the_same_sequence(count: int) -> None:
    async def part() -> None:
        async with groups(count) as joined:

            async def send_messages(group: unisono.Group) -> None:
                for number in range(30):
                    await group.send(f"{group.member}/{number}".encode())

            await asyncio.gather(*map(send_messages, joined))
            found = await all_deliveries(joined, 30 * count)
            for group in joined:
                own = [d for d in found if d.sender == group.member]
                assert [d.payload for d in own] == [f"{group.member}/{n}".encode() for n in range(30)]
                assert [d.sequence for d in own] == list(range(30))
                assert (group.stats().sent, group.stats().delivered) == (30, 30 * count)
            assert [(d.slot, d.sender, d.sequence) for d in found] == sorted(
                (d.slot, d.sender, d.sequence) for d in found
            )

    run_test(part)


def test_batches_and_view_changes() -> None:
    async def part() -> None:
        messages = [f"{n}".encode() * (n % 7) for n in range(200)]
        joined = await join_all(2)
        events: dict[int, list[Any]] = {1: [], 2: []}

        async def consume(group: unisono.Group) -> None:
            async for event in group.batches():
                if not isinstance(event, unisono.Violation):
                    events[group.member].append(event)

        consuming = [asyncio.create_task(consume(group)) for group in joined]
        assert joined[0].members == joined[1].members == (1, 2)
        await asyncio.gather(*(group.send_many(messages) for group in joined))
        await until(lambda: all(group.stats().delivered == 400 for group in joined))
        assert await joined[0].leave()
        await until(lambda: joined[1].members == (2,))
        await joined[1].send(b"alone")
        await until(lambda: joined[1].stats().delivered == 401)
        assert await joined[1].leave()
        await asyncio.gather(*consuming)
        for seen in events.values():
            assert isinstance(seen[0], unisono.ViewChange)
            assert (seen[0].view.members, seen[0].joined, seen[0].left) == ((1, 2), (1, 2), ())
        assert [type(e) for e in events[2][-2:]] == [unisono.ViewChange, unisono.Batch]
        assert (events[2][-2].view.members, events[2][-2].left) == ((2,), (1,))
        sequences = [[m for e in seen if isinstance(e, unisono.Batch) for m in e.messages] for seen in events.values()]
        assert sequences[1] == [*sequences[0], b"alone"]
        assert Counter(sequences[0]) == Counter(messages * 2)
        for batch in (e for e in events[1] if isinstance(e, unisono.Batch)):
            assert batch.count == len(batch.messages) == len(batch.sizes())
            assert [d.payload for d in batch.deliveries()] == batch.messages

    run_test(part)


def test_leaving_an_iteration_early_loses_no_message() -> None:
    async def part() -> None:
        async with groups(1) as (group,):
            await group.send_many([bytes([n]) for n in range(16)])
            found = await deliveries(group, 3)
            found += await deliveries(group, 2)
            async for event in group.batches():
                if isinstance(event, unisono.Batch):
                    found += event.deliveries()
                    if len(found) == 16:
                        break
            assert [d.payload for d in found] == [bytes([n]) for n in range(16)]
            assert [d.sequence for d in found] == list(range(16))

    run_test(part)


def test_several_groups_in_one_process() -> None:
    async def part() -> None:
        rate = unisono.Rate(avg=1600, burst=16)
        async with groups(2) as red, groups(2, slot="10ms", rate=rate) as blue, groups(1) as alone:
            await asyncio.gather(red[0].send(b"red"), blue[1].send(b"blue"), alone[0].send(b"alone"))
            for joined, payload in ((red, b"red"), (blue, b"blue"), (alone, b"alone")):
                assert [d.payload for d in await all_deliveries(joined, 1)] == [payload]

    run_test(part)


# -- sizes ---------------------------------------------------------------------------------------------------------


def test_empty_messages_and_messages_larger_than_a_datagram() -> None:
    async def part() -> None:
        sizes = [0, 1, 0, 1399, 1400, 1401, 30_000, 0, 5, 100_000]
        messages = [bytes([n]) * size for n, size in enumerate(sizes)]
        options: dict[str, Any] = {
            "max_frame": 1400,
            "max_message": 100_000,
            "rate": unisono.Rate(avg=400, burst=4, burst_bytes=150_000),
            "slot": "10ms",
        }
        async with groups(2, **options) as joined:
            await asyncio.gather(*(group.send_many(messages) for group in joined))
            found = await all_deliveries(joined, 2 * len(messages))
            for member in (1, 2):
                assert [d.payload for d in found if d.sender == member] == messages

    run_test(part)


def test_messages_of_one_megabyte() -> None:
    async def part() -> None:
        size = 1 << 20
        link = unisono.Link("100Gbit/s")
        rate = unisono.Rate(avg=50, burst=1)
        async with groups(2, max_message=size, max_frame=1400, rate=rate, slot="20ms", link=link) as joined:
            if min(group.stats().counters["transport.receive_buffer_bytes"] for group in joined) < 4 * size:
                pytest.skip("this system's receive buffers hold less than a few such messages")
            messages = [bytes([n]) * (size - n) for n in range(3)]
            await joined[0].send_many(messages)
            found = await all_deliveries(joined, 3)
            assert [d.payload for d in found] == messages

    run_test(part)


def test_a_too_large_message_is_refused_with_its_whole_batch() -> None:
    async def part() -> None:
        async with groups(2, rate=unisono.Rate(avg=50, burst=1), slot="20ms") as joined:
            one = joined[0]
            with pytest.raises(
                unisono.MessageTooLarge, match="1,001 bytes is larger than the declared maximum of 1,000"
            ):
                await one.send(bytes(1001))
            with pytest.raises(unisono.MessageTooLarge):
                await one.send_many([b"before", bytes(1001), b"after"])
            # Also while other messages wait for capacity.
            waiting = asyncio.create_task(one.send_many([b"%d" % n for n in range(5)]))
            await until(lambda: one.stats().sent > 0)
            with pytest.raises(unisono.MessageTooLarge):
                await one.send(bytes(2000))
            await waiting
            await one.send(bytes(1000))
            found = await all_deliveries(joined, 6)
            assert [d.payload for d in found] == [*(b"%d" % n for n in range(5)), bytes(1000)]

    run_test(part)


@pytest.mark.parametrize("message", ["text", 7, None, bytearray(b"mutable"), memoryview(b"view")])
def test_only_bytes_are_accepted(message: Any) -> None:
    async def part() -> None:
        async with groups(1) as (group,):
            with pytest.raises(TypeError, match="expected messages of type bytes, got"):
                await group.send(message)
            with pytest.raises(TypeError, match="expected messages of type bytes, got"):
                await group.send_many([b"fine", message])
            await group.send_many([])
            await group.send(b"the group continues")
            assert [d.payload for d in await deliveries(group, 1)] == [b"the group continues"]

    run_test(part)


# -- rates ---------------------------------------------------------------------------------------------------------


def test_a_sender_is_limited_to_its_burst_and_every_message_arrives() -> None:
    async def part() -> None:
        async with groups(2, rate=unisono.Rate(avg=400, burst=4), slot="10ms") as joined:
            messages = [b"%d" % n for n in range(60)]
            await asyncio.gather(joined[0].send_many(messages), *(joined[1].send(message) for message in messages))
            found = await all_deliveries(joined, 120)
            for sender in (1, 2):
                assert [d.payload for d in found if d.sender == sender] == messages
                assert max(per_slot(found, sender).values()) == 4

    run_test(part)


def test_a_sender_is_limited_to_its_average_rate() -> None:
    async def part() -> None:
        async with groups(2, rate=unisono.Rate(avg=20, burst=8), slot="10ms") as joined:
            await joined[0].send_many([b"%d" % n for n in range(30)])
            found = await all_deliveries(joined, 30)
            slots = sorted(d.slot for d in found)
            # 20 messages per second; a second has 100 slots.
            assert all(later - earlier >= 100 for earlier, later in zip(slots, slots[20:], strict=False))

    run_test(part)


def test_a_long_submission_is_accepted_in_parts() -> None:
    async def part() -> None:
        async with groups(2, rate=unisono.Rate(avg=150_000, burst=1500), slot="10ms", max_message=16) as joined:
            messages = [b"%d" % n for n in range(20_000)]
            await joined[0].send_many(messages)
            assert [d.payload for d in await all_deliveries(joined, len(messages))] == messages

    run_test(part)


def test_a_new_rate_applies_from_the_next_slot_on() -> None:
    async def part() -> None:
        async with groups(2, rate=unisono.Rate(avg=100, burst=1), slot="10ms") as joined:
            await joined[0].send_many([b"slow"] * 5)
            joined[0].renegotiate(unisono.Rate(avg=800, burst=8))
            await joined[0].send_many([b"fast"] * 40)
            found = await all_deliveries(joined, 45)
            slow = Counter(d.slot for d in found if d.payload == b"slow")
            fast = Counter(d.slot for d in found if d.payload == b"fast")
            assert max(slow.values()) == 1
            assert max(fast.values()) == 8

    run_test(part)


def test_a_refused_renegotiation_keeps_the_old_rate() -> None:
    async def part() -> None:
        link = unisono.Link("1MB/s")
        async with groups(1, link=link, slot="10ms", rate=unisono.Rate(avg=200, burst=2)) as (group,):
            reserved = link.capacity_bytes_per_s - link.free_bytes_per_s
            assert reserved > 0
            with pytest.raises(unisono.ReservationRefused, match="1,000,000 B/s free"):
                group.renegotiate(unisono.Rate(avg=500, burst=100))
            with pytest.raises(unisono.InvalidOption, match=r"rate\.burst_bytes"):
                group.renegotiate(unisono.Rate(avg=200, burst=2, burst_bytes=999))
            await group.send_many([b"x"] * 10)
            found = await deliveries(group, 10)
            assert max(per_slot(found, 1).values()) == 2
            assert link.capacity_bytes_per_s - link.free_bytes_per_s == reserved

    run_test(part)


def test_groups_share_a_link_and_release_their_reservations() -> None:
    async def part() -> None:
        link = unisono.Link("1MB/s")
        options: dict[str, Any] = {"link": link, "slot": "10ms", "rate": unisono.Rate(avg=400, burst=4)}
        async with groups(1, **options):
            async with groups(1, **options):
                with pytest.raises(unisono.ReservationRefused) as refused:
                    await join_all(1, **options)
                assert refused.value.free_bytes_per_s == link.free_bytes_per_s < refused.value.asked_bytes_per_s
            async with groups(1, **options) as (third,):
                await third.send(b"capacity is free again")
                await deliveries(third, 1)
        assert link.free_bytes_per_s == link.capacity_bytes_per_s

    run_test(part)


def test_a_deadline_sets_the_bound() -> None:
    async def part() -> None:
        rate = unisono.Rate(avg=400, burst=16)
        async with groups(2, deadline="60ms", delta="20ms", gamma="5ms", rate=rate) as joined:
            assert [group.bound_ns for group in joined] == [60_000_000] * 2
            assert joined[0].stats().bound_ns == 60_000_000
            await joined[0].send(b"x")
            await all_deliveries(joined, 1)

    run_test(part)


# -- leaving -------------------------------------------------------------------------------------------------------


def test_accepted_messages_are_sent_before_leaving() -> None:
    async def part() -> None:
        one, two = await join_all(2)
        await one.send_many([b"%d" % n for n in range(10)])
        assert await one.leave() is True
        assert [d.payload for d in await deliveries(two, 10)] == [b"%d" % n for n in range(10)]
        assert [d.payload for d in await deliveries(one, 10)] == [b"%d" % n for n in range(10)]
        assert await two.leave() is True

    run_test(part)


def test_leaving_twice_and_sending_after_leaving() -> None:
    async def part() -> None:
        one, two = await join_all(2)
        assert [*await asyncio.gather(one.leave(), one.leave())] == [True, True]
        assert await one.leave() is True
        with pytest.raises(unisono.GroupClosed, match="has left the group"):
            await one.send(b"x")
        with pytest.raises(unisono.GroupClosed):
            await one.send_many([b"x"])
        with pytest.raises(unisono.GroupClosed):
            one.renegotiate(unisono.Rate(avg=1, burst=1))
        assert [type(event) async for event in one if not isinstance(event, unisono.Violation)] == [unisono.ViewChange]
        assert [event async for event in one] == []
        assert one.stats().delivered == 0
        assert await two.leave() is True

    run_test(part)


def test_waiting_senders_get_an_error_when_the_member_leaves() -> None:
    async def part() -> None:
        async with groups(2, rate=unisono.Rate(avg=10, burst=1)) as joined:
            one = joined[0]
            senders = [asyncio.create_task(one.send_many([b"%d" % n] * 100)) for n in range(3)]
            await until(lambda: one.stats().sent > 0)
            assert await one.leave()
            results = await asyncio.gather(*senders, return_exceptions=True)
            assert [type(result) for result in results] == [unisono.GroupClosed] * 3
            found = await deliveries(joined[1], one.stats().sent)
            assert {d.payload for d in found} == {b"0"}, "accepted messages arrive, in order"

    run_test(part)


def test_a_waiting_iteration_ends_when_the_member_leaves() -> None:
    async def part() -> None:
        one, two = await join_all(2)

        async def consume(group: unisono.Group) -> list[unisono.Event]:
            return [event async for event in group if isinstance(event, unisono.Delivery)]

        consuming = [asyncio.create_task(consume(group)) for group in (one, two)]
        await two.send(b"last")
        await until(lambda: one.stats().delivered == 1)
        assert [*await asyncio.gather(one.leave(), two.leave())] == [True, True]
        first, second = await asyncio.gather(*consuming)
        assert first == second
        assert len(first) == 1

    run_test(part)


def test_an_error_in_the_with_body_leaves_the_group_and_is_raised() -> None:
    async def part() -> None:
        peers = free_addresses((1,))
        with pytest.raises(LookupError, match="own error"):
            async with join_group("table", member=1, peers=peers) as group:
                raise LookupError("own error")
        with pytest.raises(unisono.GroupClosed):
            await group.send(b"x")
        UdpTransport(1, peers).close()

    run_test(part)


def test_leaving_times_out_if_no_peer_answers() -> None:
    async def part() -> None:
        async with network(members=3, **FAST) as net:
            one = net[1]
            net.crash(2)
            net.crash(3)
            waiting = asyncio.create_task(one.send_many([b"x"] * 10_000))
            assert await one.leave() is False
            assert await one.leave() is False
            with pytest.raises(unisono.GroupClosed):
                await waiting
            assert [event async for event in one if isinstance(event, unisono.Delivery)] == []

    run_test(part)


# -- cancellation --------------------------------------------------------------------------------------------------


def test_a_cancelled_send_is_not_sent_and_does_not_block_others() -> None:
    async def part() -> None:
        async with groups(2, rate=unisono.Rate(avg=50, burst=1), slot="20ms") as joined:
            one = joined[0]
            first = asyncio.create_task(one.send_many([b"first"] * 3))
            await until(lambda: one.stats().sent == 1)
            cancelled = [asyncio.create_task(one.send(b"cancelled")) for _ in range(3)]
            last = asyncio.create_task(one.send(b"last"))
            await asyncio.sleep(0)
            for task in cancelled:
                task.cancel()
            await asyncio.gather(first, last)
            found = await all_deliveries(joined, 4)
            assert [d.payload for d in found] == [b"first"] * 3 + [b"last"]
            assert all(task.cancelled() for task in cancelled)

    run_test(part)


def test_a_cancelled_join_releases_its_port_and_its_reservation() -> None:
    async def part() -> None:
        peers, link = free_addresses((1, 2)), unisono.Link()
        joining = asyncio.create_task(_await_join(join_group("table", member=1, peers=peers, link=link)))
        await until(lambda: link.free_bytes_per_s < link.capacity_bytes_per_s)
        joining.cancel()
        with pytest.raises(asyncio.CancelledError):
            await joining
        assert link.free_bytes_per_s == link.capacity_bytes_per_s
        UdpTransport(1, peers).close()

    run_test(part)


async def _await_join(join: Any) -> unisono.Group:
    group: unisono.Group = await join
    return group


# -- formation -----------------------------------------------------------------------------------------------------


def test_a_missing_member_is_named() -> None:
    async def part() -> None:
        peers, link = free_addresses((1, 2, 7)), unisono.Link()
        results = await asyncio.gather(
            *(join_group("table", member=m, peers=peers, timeout="300ms", link=link) for m in (1, 2)),
            return_exceptions=True,
        )
        for result in results:
            assert isinstance(result, unisono.FormationTimeout)
            assert 7 in result.missing
            assert "'table' did not form within 0.3 s" in str(result)
        assert link.free_bytes_per_s == link.capacity_bytes_per_s
        UdpTransport(1, peers).close()

    run_test(part)


@pytest.mark.parametrize(
    ("option", "ours", "theirs"),
    [
        ("slot", {"slot": "5ms"}, {"slot": "6ms"}),
        ("slot", {"slot": "10ms"}, {"slot": "5ms"}),
        ("delta", {"delta": "20ms"}, {"delta": "30ms"}),
        ("gamma", {"gamma": "2ms"}, {"gamma": "3ms"}),
        ("gaps", {"order": "auto", "gaps": "never"}, {"order": "auto", "gaps": "repaired"}),
        ("gaps", {"order": "auto", "gaps": "allowed"}, {"order": "auto", "gaps": "repaired"}),
    ],
)
def test_a_different_policy_is_named_on_both_sides(option: str, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    async def part() -> None:
        peers = free_addresses((1, 2))
        results = await asyncio.gather(
            join_group("table", member=1, peers=peers, timeout="20s", **ours),
            join_group("table", member=2, peers=peers, timeout="20s", **theirs),
            return_exceptions=True,
        )
        for other, result in zip((2, 1), results, strict=True):
            assert isinstance(result, unisono.PlanMismatch)
            assert (result.peer, result.option) == (other, option)
            assert {result.ours, result.theirs} == {ours[option], theirs[option]}

    run_test(part)


def test_another_group_at_the_address_is_reported() -> None:
    async def part() -> None:
        peers = free_addresses((1, 2))
        results = await asyncio.gather(
            *(join_group(f"table-{m}", member=m, peers=peers, timeout="300ms") for m in (1, 2)),
            return_exceptions=True,
        )
        for result in results:
            assert isinstance(result, unisono.FormationTimeout)
            assert "wrong group" in str(result)

    run_test(part)


def test_a_port_in_use_is_reported_at_once() -> None:
    async def part() -> None:
        peers = free_addresses((1,))
        link = unisono.Link()
        async with join_group("table", member=1, peers=peers):
            with pytest.raises(unisono.AddressInUse, match="is in use"):
                await join_group("table", member=1, peers=peers, link=link)
        assert link.free_bytes_per_s == link.capacity_bytes_per_s

    run_test(part)


# -- slow consumers ------------------------------------------------------------------------------------------------


async def _until_blocked(group: unisono.Group, by: int) -> None:
    """Wait until a member reports that it waits for `by`: the group makes no progress."""
    async for event in group.batches():
        if isinstance(event, unisono.Violation) and event.kind == "late" and event.member == by:
            return


@pytest.mark.parametrize("slow_sends", [False, True])
def test_a_slow_consumer_slows_down_the_group_and_loses_no_message(slow_sends: bool) -> None:
    """Also if the slow member keeps sending: that must not end its slots, or the others would run ahead of it."""

    async def part() -> None:
        total = 3000
        async with groups(2, queue_messages=20, rate=unisono.Rate(avg=2000, burst=10), slot="5ms") as joined:
            fast, slow = joined
            sending: list[asyncio.Task[Any]] = [asyncio.create_task(fast.send_many([b"%d" % n for n in range(total)]))]
            # The fast member consumes, so that only the slow one blocks the group.
            await _until_blocked(fast, by=slow.member)

            async def send_from_slow() -> None:
                for _ in range(50):
                    await slow.send(b"slow")

            if slow_sends:
                sending.append(asyncio.create_task(send_from_slow()))
            delivered = slow.stats().delivered
            start = time.monotonic()  # wait some slots, in which a group that is not blocked would continue
            await until(lambda: time.monotonic() - start > 4 * fast.bound_ns / 1e9)
            window = -(-fast.bound_ns // 5_000_000) + 2  # the slots of Δ+Γ, and three more
            assert fast.stats().sent <= delivered + 10 * (2 * window + 2), "at most a window ahead of the slow member"
            assert slow.stats().delivered == delivered

            async def drain() -> None:
                async for event in fast.batches():
                    del event

            draining = asyncio.create_task(drain())
            expected = total + (50 if slow_sends else 0)
            found = await deliveries(slow, expected)
            await asyncio.gather(*sending)
            assert [d.payload for d in found if d.sender == 1] == [b"%d" % n for n in range(total)]
            assert slow.stats().dropped == 0
            await until(lambda: fast.stats().delivered == expected)
            await asyncio.gather(fast.leave(), slow.leave())
            await draining

    run_test(part)


def test_a_member_can_leave_without_consuming() -> None:
    async def part() -> None:
        one, two = await join_all(2, queue_messages=5)
        await one.send_many([b"x"] * 16)
        await until(lambda: min(one.stats().delivered, two.stats().delivered) > 5)  # more than their queues hold
        assert [*await asyncio.gather(one.leave(), two.leave())] == [True, True]
        assert len(await deliveries(two, 16)) == 16

    run_test(part)


# -- multicast -----------------------------------------------------------------------------------------------------


def _multicast_address(last: int = 1) -> str:
    return f"239.255.42.{last}:{free_addresses((1,))[1][1]}"


@multicast_only
def test_ip_multicast_is_used_if_it_reaches_all_members() -> None:
    """On a busy machine a group may form before its multicasts arrive, and then uses unicast: try another group."""

    async def part() -> None:
        found: list[list[bool]] = []
        while [True] * 3 not in found and len(found) < 10:
            async with groups(3, multicast=_multicast_address()) as joined:
                await asyncio.gather(*(group.send_many([b"%d" % n for n in range(50)]) for group in joined))
                await all_deliveries(joined, 150)
                found.append([group.stats().multicast for group in joined])
        assert [True] * 3 in found

    run_test(part)


def test_one_peer_without_multicast_makes_all_members_use_unicast() -> None:
    async def part() -> None:
        peers = free_addresses((1, 2, 3))
        common, other = _multicast_address(1), _multicast_address(2)
        links = {member: unisono.Link() for member in peers}
        joined = list(
            await asyncio.gather(
                *(
                    join_group("table", member=m, peers=peers, link=links[m], multicast=other if m == 3 else common)
                    for m in peers
                )
            )
        )
        await asyncio.gather(*(group.send(b"%d" % group.member) for group in joined))
        assert len(await all_deliveries(joined, 3)) == 3
        assert [group.stats().multicast for group in joined] == [False] * 3
        reserved = {member: link.capacity_bytes_per_s - link.free_bytes_per_s for member, link in links.items()}
        assert await asyncio.gather(*(group.leave() for group in joined)) == [True] * 3
        one_peer = unisono.Link()
        async with groups(2, rate=None, max_message=4096, link=one_peer):
            to_each_other = one_peer.capacity_bytes_per_s - one_peer.free_bytes_per_s
        assert set(reserved.values()) == {to_each_other}, "each datagram is sent to two peers, and that was reserved"

    run_test(part)


def test_an_address_that_is_not_multicast_is_reported_and_the_group_runs() -> None:
    async def part() -> None:
        async with groups(2, multicast="127.0.0.1:9") as joined:
            first = [event async for event in _first(joined[0], 2)]
            texts = [event.text for event in first if isinstance(event, unisono.Violation)]
            assert any("127.0.0.1 is not a multicast address" in text for text in texts)
            await joined[0].send(b"x")
            assert [d.payload for d in await all_deliveries(joined, 1)] == [b"x"]

    run_test(part)


async def _first(group: unisono.Group, count: int) -> AsyncIterator[unisono.Event]:
    async for event in group:
        yield event
        count -= 1
        if count == 0:
            return
