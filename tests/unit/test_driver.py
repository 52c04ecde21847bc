"""The driver's own duties: a defect ends the group with an error, queues are bounded, the clock follows the system."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.worlds.joining import join_group

import unisono
from unisono.cluster.supervisor import free_addresses
from unisono.model.effects import Datagram, Effects, Write
from unisono.model.events import ViolationKind
from unisono.net.fec.layer import Fec
from unisono.runtime import driver as driver_module

Break = Callable[[pytest.MonkeyPatch, unisono.Group], None]


def planted(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError("planted")


def scene(part: Callable[[unisono.Group], Awaitable[None]], **options: Any) -> None:
    async def play() -> None:
        async with asyncio.timeout(60):
            peers = free_addresses((1,))
            group = await join_group("one", member=1, peers=peers, **options)
            try:
                await part(group)
            finally:
                await group.leave()

    asyncio.run(play())


BREAKS: dict[str, Break] = {
    "wake": lambda patch, group: patch.setattr(group._stack, "wake", planted),
    "step": lambda patch, group: patch.setattr(group._stack, "step", planted),
    "submit": lambda patch, group: patch.setattr(group._stack, "submit", planted),
    "socket": lambda patch, group: patch.setattr(group._driver.transport, "send", planted),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_defect_ends_the_group_and_every_waiting_call(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting calls of `send`, iterations and `leave` all end, and the error keeps its cause."""

    async def part(group: unisono.Group) -> None:
        waiting = asyncio.create_task(group.send_many([b"x"] * 1000))
        reading = asyncio.create_task(_drain(group))
        await asyncio.sleep(0)
        BREAKS[name](monkeypatch, group)
        for task in (waiting, reading):
            with pytest.raises(unisono.UnisonoError, match="driver stopped: ZeroDivisionError") as told:
                await task
            assert isinstance(told.value.__cause__, ZeroDivisionError)
        with pytest.raises(unisono.UnisonoError, match="driver stopped"):
            await group.send(b"x")
        assert await group.leave() is False

    scene(part)


async def _drain(group: unisono.Group) -> None:
    async for _ in group.batches():
        pass


def test_a_datagram_that_breaks_the_stack_ends_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    async def part(group: unisono.Group) -> None:
        monkeypatch.setattr(group._stack, "receive", planted)
        transport = group._driver.transport
        loop = asyncio.get_running_loop()
        enemy, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, remote_addr=transport.address)
        enemy.sendto(b"anything")
        with pytest.raises(unisono.UnisonoError, match="driver stopped"):
            await _drain(group)
        enemy.close()

    scene(part)


async def _first_messages(group: unisono.Group, count: int) -> AsyncIterator[bytes]:
    async for event in group:
        if isinstance(event, unisono.Delivery):
            yield event.payload
            count -= 1
            if not count:
                return


def test_a_recorder_that_fails_ends_the_group_loudly() -> None:
    class Failing:
        delivered = sent = event = staticmethod(planted)
        incarnation = 1

    async def part() -> None:
        with pytest.raises(unisono.UnisonoError, match="driver stopped: ZeroDivisionError"):
            await join_group("one", member=1, peers=free_addresses((1,)), recorder=Failing())

    asyncio.run(part())


def test_a_long_submission_is_offered_in_bounded_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of messages per call of the stack does not grow with the number of waiting messages."""
    offered: list[int] = []

    async def part(group: unisono.Group) -> None:
        submit = group._stack.submit

        def noted(now: int, messages: Any) -> int:
            offered.append(len(messages))
            return submit(now, messages)

        monkeypatch.setattr(group._stack, "submit", noted)
        waiting = asyncio.create_task(group.send_many([b"x"] * 100_000))
        while group.stats().sent < 50:
            await asyncio.sleep(0.001)
        assert await group.leave()
        with pytest.raises(unisono.GroupClosed, match="left the group before these messages were sent"):
            await waiting

    scene(part, rate=unisono.Rate(avg=1600, burst=8))
    assert offered
    assert max(offered) <= driver_module._MIN_SUBMIT_MESSAGES


def test_violations_count_in_the_queue() -> None:
    """Violations count in the bounded queue, so an application that does not iterate cannot fill the memory."""

    async def part(group: unisono.Group) -> None:
        for number in range(10):
            group._driver.report_violation(unisono.Violation(ViolationKind.LATE, f"report {number}"))
        await group.send(b"x")
        while not group._driver._paused:
            await asyncio.sleep(0.001)
        kinds = []
        async for event in group:
            kinds.append(type(event))
            if isinstance(event, unisono.Delivery):
                break
        assert kinds.count(unisono.Violation) >= 10
        assert not group._driver._paused

    scene(part, queue_messages=5)


def test_a_clock_that_was_set_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def part(group: unisono.Group) -> None:
        driver = group._driver
        monkeypatch.setattr(driver.clock, "slew_toward_system", lambda: -3_600_000_000_000)
        driver._check_clock_and_losses()
        driver._check_clock_and_losses()
        texts = []
        while (event := driver.pop()) is not None:
            if isinstance(event, unisono.Violation) and event.kind == "clock":
                texts.append(event.text)
        assert len(texts) == 1
        assert "3600s behind" in texts[0]

    scene(part)


def test_the_clock_follows_the_system_while_the_group_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    followed = asyncio.Event()

    async def part(group: unisono.Group) -> None:
        monkeypatch.setattr(group._driver.clock, "slew_toward_system", lambda: followed.set() or 0)  # type: ignore[func-returns-value]
        group._driver._next_clock_check_ns = 0
        await followed.wait()

    scene(part)


def test_no_datagram_leaves_before_its_records_are_durable(tmp_path: Path) -> None:
    """Votes and promises: no datagram leaves before the records that it depends on are durable."""

    async def play() -> None:
        peers, early, saved = free_addresses((1, 2)), list[int](), list[int]()

        def watch(group: unisono.Group) -> None:
            transport, storage, stack = group._driver.transport, group._driver._storage, group._stack
            assert storage is not None
            send, apply, step, unsaved = transport.send, storage.apply, stack.step, list[Write]()

            def stepped() -> Effects:
                effects = step()
                unsaved.extend(effects.records)
                return effects

            def applied(writes: Sequence[Write]) -> None:
                apply(writes)
                unsaved.clear()
                saved.append(group.member)

            def checked(datagrams: Sequence[Datagram]) -> None:
                if datagrams and unsaved:
                    early.append(group.member)
                send(datagrams)

            stack.step, storage.apply, transport.send = stepped, applied, checked  # type: ignore[method-assign]

        async with asyncio.timeout(60):
            options = {"order": "consensus", "peers": peers, "fsync": "never"}
            groups = await asyncio.gather(
                *(join_group("kept", member=m, storage=tmp_path / str(m), **options) for m in peers)
            )
            for group in groups:
                watch(group)
            for group in groups:
                await group.send_many([b"x"] * 5)
            while any(group.stats().delivered < 10 for group in groups):
                await asyncio.sleep(0.01)
            await asyncio.gather(*(group.leave() for group in groups))
        assert saved
        assert not early

    asyncio.run(play())


def test_stats_have_what_storage_and_transport_have_counted(tmp_path: Path) -> None:
    async def part(group: unisono.Group) -> None:
        await group.send(b"kept")
        assert [message async for message in _first_messages(group, 1)] == [b"kept"]
        counters = group.stats().counters
        assert counters["storage.syncs"] > 0
        assert counters["storage.truncated_bytes"] == 0
        assert counters["transport.send_buffer_bytes"] == group._driver.transport.counters()["send_buffer_bytes"] > 0
        assert counters["transport.receive_buffer_bytes"] > 0

    scene(part, order="consensus", storage=tmp_path / "kept")


def test_stats_have_what_the_layers_have_counted() -> None:
    async def part(group: unisono.Group) -> None:
        fec = next(layer for layer in group._stack._layers if isinstance(layer, Fec))
        assert group.stats().counters["fec.surplus"] == 0
        fec.surplus_shares += 3
        assert group.stats().counters["fec.surplus"] == 3
        assert not any(name.startswith("storage.") for name in group.stats().counters)

    scene(part, fec=(1, 4), failures=True)
