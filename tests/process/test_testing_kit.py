"""The testing kit as a user's tests use it: a network in memory, faults, clocks, virtual time."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TypeVar

import pytest
from tests.worlds.joining import join_group
from tests.worlds.joining import memory_network as network

import unisono
from unisono import testing
from unisono.cluster.supervisor import free_addresses
from unisono.runtime.udp import UdpTransport
from unisono.testing import MemoryNetwork, deliveries
from unisono.testing.clocks import VIRTUAL_EPOCH_NS

RATE = unisono.Rate(avg=2000, burst=16)
PATIENCE_S = 120
"""In virtual time: a test that waits for nothing ends at once."""
T = TypeVar("T")


def run_test(part: Coroutine[None, None, T]) -> T:
    async def timed() -> T:
        async with asyncio.timeout(PATIENCE_S):
            return await part

    return testing.run(timed())


async def send_round(net: MemoryNetwork, label: str) -> None:
    await asyncio.gather(*(group.send(b"%s %d" % (label.encode(), m)) for m, group in net.groups.items()))


async def next_event(group: unisono.Group, wanted: Callable[[unisono.Event], bool]) -> unisono.Event:
    async for event in group:
        if wanted(event):
            return event
    raise AssertionError("the group ended before the event came")


async def view_of(group: unisono.Group, *members: int) -> None:
    """Wait until the group's view has exactly these members."""
    if group.members != members:
        await next_event(group, lambda event: isinstance(event, unisono.ViewChange) and event.view.members == members)


async def same_order(net: MemoryNetwork, count: int) -> list[tuple[int, bytes]]:
    """Assert that all members deliver the same next `count` messages in one order, and return it."""
    found = await asyncio.gather(*(deliveries(group, count) for group in net.groups.values()))
    orders = [[(each.sender, each.payload) for each in delivered] for delivered in found]
    assert orders == [orders[0]] * len(orders)
    return orders[0]


@pytest.mark.parametrize("order", ["vbr", "cbr", "leader", "timestamp", "consensus"])
def test_three_members_deliver_the_same_messages_in_one_order(order: str) -> None:
    async def part() -> None:
        async with network(members=3, order=order, rate=RATE) as net:
            for number in range(10):
                await send_round(net, f"round {number}")
            delivered = await same_order(net, 30)
            assert len(set(delivered)) == 30

    run_test(part())


@pytest.mark.usefixtures("without_zfec")
def test_forward_error_correction_repairs_losses_without_zfec() -> None:
    async def part() -> None:
        async with network(members=3, order="vbr", rate=RATE, fec=(2, 5)) as net:
            net.lose(0.3, at_most=2, of=5)
            for number in range(20):
                await send_round(net, f"round {number}")
            delivered = await same_order(net, 60)
            assert len(set(delivered)) == 60
            for group in net.groups.values():
                assert group.stats().counters["fec.recovered"] > 0

    run_test(part())


def test_real_time_works_too() -> None:
    async def part() -> None:
        async with network(members=2, delta="100ms") as net:
            assert not net.clock.is_virtual
            await net[1].send(b"hello")
            assert (await deliveries(net[2], 1))[0].payload == b"hello"

    asyncio.run(part())


# -- virtual time --------------------------------------------------------------------------------------------------


def test_virtual_time_passes_without_waiting() -> None:
    async def part() -> float:
        loop = asyncio.get_running_loop()
        before = loop.time()
        await asyncio.sleep(3600)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3600):
                await asyncio.Event().wait()
        return loop.time() - before

    started = time.monotonic()
    assert testing.run(part()) == pytest.approx(7200)
    assert time.monotonic() - started < 60


def test_a_run_with_losses_takes_the_same_course_twice() -> None:
    async def part(seed: int) -> tuple[int, int, list[tuple[int, bytes]], int]:
        async with network(members=3, order="consensus", rate=RATE, seed=seed) as net:
            net.lose(0.1)
            for number in range(10):
                await send_round(net, f"round {number}")
            delivered = await same_order(net, 30)
            return net.datagrams, net.lost, delivered, net.clock.now_ns()

    first = run_test(part(1))
    assert first == run_test(part(1))
    assert first[1] > 0
    assert first[:2] != run_test(part(2))[:2]


def test_a_delivery_takes_the_time_that_the_bound_allows() -> None:
    async def part() -> None:
        async with network(members=2, delta="20ms", gamma="2ms", slot="5ms") as net:
            net.delay("20ms")
            await net[1].send(b"the first slot has begun")
            await deliveries(net[2], 1)
            before = net.clock.now_ns()
            await net[1].send(b"hello")
            await deliveries(net[2], 1)
            assert 20_000_000 <= net.clock.now_ns() - before <= net[2].bound_ns == 27_000_000

    run_test(part())


# -- faults --------------------------------------------------------------------------------------------------------


def test_forward_error_correction_repairs_losses() -> None:
    async def part() -> None:
        async with network(members=3, fec=(1, 5), rate=RATE) as net:
            net.lose(0.2, at_most=1, of=5)
            for number in range(40):
                await send_round(net, f"round {number}")
            await same_order(net, 120)
            assert net.lost > 0

    run_test(part())


def test_consensus_repeats_lost_datagrams() -> None:
    async def part() -> None:
        async with network(members=3, order="consensus", rate=RATE) as net:
            net.lose(0.05)
            for number in range(40):
                await send_round(net, f"round {number}")
            await same_order(net, 120)
            assert net.lost > 0

    run_test(part())


def test_a_member_that_is_cut_off_catches_up_after_healing() -> None:
    async def part() -> None:
        async with network(members=3, order="consensus", rate=RATE) as net:
            net.cut(3, (1, 2))
            await net[1].send(b"while 3 is cut off")
            for member in (1, 2):
                assert (await deliveries(net[member], 1))[0].payload == b"while 3 is cut off"
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(5):
                    await deliveries(net[3], 1)
            net.heal()
            assert (await deliveries(net[3], 1))[0].payload == b"while 3 is cut off"
            await net[3].send(b"back")
            assert await same_order(net, 1) == [(3, b"back")]

    run_test(part())


def test_a_cut_can_be_one_way() -> None:
    async def part() -> None:
        async with network(members=2, failures=True) as net:
            net.cut(1, 2, one_way=True)
            await view_of(net[2], 2)
            assert net[1].members == (1, 2), "member 1 still hears member 2"
            net.heal()
            await view_of(net[2], 1, 2)

    run_test(part())


def test_the_view_loses_a_crashed_member_and_takes_it_back() -> None:
    async def part() -> None:
        async with network(members=3, failures=True) as net:
            crashed = net[3]
            net.crash(3)
            assert [event async for event in crashed if isinstance(event, unisono.Delivery)] == []
            with pytest.raises(unisono.GroupClosed):
                await crashed.send(b"too late")
            await asyncio.gather(view_of(net[1], 1, 2), view_of(net[2], 1, 2))
            await send_round(net, "without 3")
            await same_order(net, 2)
            await net.join(3)
            await asyncio.gather(view_of(net[1], 1, 2, 3), view_of(net[2], 1, 2, 3))
            await net[3].send(b"again")
            assert await same_order(net, 1) == [(3, b"again")]

    run_test(part())


def test_a_member_can_join_later() -> None:
    async def part() -> None:
        async with network(members=2, later=[3], failures=True) as net:
            await asyncio.gather(*(view_of(group, 1, 2) for group in net.groups.values()))
            await net.join(3)
            await asyncio.gather(*(view_of(group, 1, 2, 3) for group in net.groups.values()))

    run_test(part())


def test_a_paused_member_is_suspected_and_returns() -> None:
    async def part() -> None:
        async with network(members=3, failures=True) as net:
            net.pause(2)
            assert net.paused == (2,)
            await asyncio.gather(view_of(net[1], 1, 3), view_of(net[3], 1, 3))
            assert net[2].members == (1, 2, 3)
            net.resume(2)
            await asyncio.gather(*(view_of(group, 1, 2, 3) for group in net.groups.values()))

    run_test(part())


@pytest.mark.parametrize("ahead", ["30ms", "-30ms"])
def test_a_clock_beyond_gamma_is_reported(ahead: str) -> None:
    async def part() -> None:
        async with network(members=2, gamma="2ms") as net:
            net.clock.offset(2, ahead)
            event = await next_event(net[1], lambda event: isinstance(event, unisono.ClockViolation))
            assert isinstance(event, unisono.ClockViolation)
            assert event.member == 2

    run_test(part())


# -- a user's own program ------------------------------------------------------------------------------------------


async def greeter(member: int, peers: dict[int, tuple[str, int]], heard: list[bytes]) -> None:
    """A program under test: it knows nothing of the kit."""
    async with join_group("greetings", member=member, peers=peers) as group:
        await group.send(b"hello from %d" % member)
        async for event in group:
            if isinstance(event, unisono.Delivery):
                heard.append(event.payload)
                if len(heard) == len(peers):
                    return


def test_a_program_that_calls_join_runs_on_the_network_unchanged() -> None:
    async def part() -> None:
        heard: dict[int, list[bytes]] = {1: [], 2: []}
        async with network(members=0) as net:
            peers = {1: ("10.0.0.1", 9001), 2: ("10.0.0.2", 9001)}
            await asyncio.gather(*(greeter(member, peers, heard[member]) for member in peers))
            assert net.datagrams > 0
        assert heard[1] == heard[2] == [b"hello from 1", b"hello from 2"]

    run_test(part())


def test_outside_the_block_join_uses_sockets_again() -> None:
    async def part() -> None:
        async with network(members=1):
            pass
        peers = free_addresses((1,))
        async with join_group("table", member=1, peers=peers):
            with pytest.raises(unisono.AddressInUse, match="is in use"):
                UdpTransport(1, peers)

    asyncio.run(part())


def test_an_error_in_the_block_stops_all_members_at_once() -> None:
    async def part() -> None:
        nets: list[MemoryNetwork] = []

        async def failing() -> None:
            async with network(members=2) as net:
                nets.append(net)
                raise LookupError("the test failed")

        with pytest.raises(LookupError):
            await failing()
        assert nets[0].groups == {}
        assert nets[0].clock.now_ns() == VIRTUAL_EPOCH_NS, "leaving in order would have taken time"

    run_test(part())


def test_misuse_is_refused() -> None:
    async def part() -> None:
        async with network(members=1) as net:
            with pytest.raises(unisono.InvalidOption, match="member 2 has not joined"):
                net.crash(2)
            with pytest.raises(unisono.InvalidOption, match="probability"):
                net.lose(5)
            with pytest.raises(unisono.InvalidOption, match="give at_most= and of= together"):
                net.lose(0.5, of=3)
            with pytest.raises(unisono.InvalidOption, match=r"net\.peers"):
                await join_group("table", members=2)
            for at_most, of in ((0, 0), (1, -1), (-1, 5)):
                with pytest.raises(unisono.InvalidOption, match="expected at_most of 0 or more, and of of 1 or more"):
                    net.lose(0.5, at_most=at_most, of=of)
            with pytest.raises(unisono.AddressInUse, match="port 1 of memory is in use"):
                await net.join(1)

    run_test(part())


def test_the_example_of_the_documentation_runs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "testing.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    with pytest.raises(AssertionError):
        exec(example.replace("delivery.payload ==", "delivery.payload !="), {})
    exec(example, {})


def test_importing_unisono_does_not_import_the_kit() -> None:
    code = "import sys, unisono; print('unisono.testing' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"
