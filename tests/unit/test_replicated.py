"""How a replica fails: every failure is logged and reaches the callers that wait, and options are checked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.worlds.joining import join_group
from tests.worlds.joining import memory_network as network

import unisono
from unisono import testing
from unisono.group import PendingJoin
from unisono.replica import Dict, Log, ObjectView, Replicated
from unisono.testing import MemoryNetwork

PATIENCE_S = 300


def run_test(part: Coroutine[None, None, None]) -> None:
    async def timed() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await part

    testing.run(timed())


class Fragile(Log):
    """A log that raises for one entry."""

    def apply(self, view: ObjectView, command: bytes) -> int:
        if command == b"break":
            raise LookupError("planted")
        return super().apply(view, command)


def logged(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == "unisono" and record.levelno == logging.ERROR]


async def wait_for_end(state: Replicated) -> None:
    while True:
        await state.wait_for_change()


async def execution(state: Replicated, command: bytes) -> asyncio.Task[Any]:
    """An `execute` whose command is sent and has not run yet."""
    task = asyncio.create_task(state.execute(command))
    while not state._group.stats().sent:
        await asyncio.sleep(0.001)
    return task


def test_a_failure_of_the_machine_reaches_waiting_and_later_calls_and_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def part() -> None:
        async with (
            network(members=2) as net,
            Replicated(net[1], Fragile()) as one,
            Replicated(net[2], Fragile()) as two,
        ):
            assert await one.execute(b"fine") == 0
            breaking, waiting = asyncio.create_task(one.execute(b"break")), asyncio.create_task(two.execute(b"x"))
            changes = asyncio.create_task(wait_for_end(two))
            for task in (breaking, waiting, changes):
                with pytest.raises(LookupError, match="planted"):
                    await task
            with pytest.raises(LookupError, match="planted"):
                await two.execute(b"later")

    run_test(part())
    records = logged(caplog)
    assert len(records) == 2, "once per member"
    assert "member 1: the replica has stopped" in records[0].getMessage()


def test_an_exception_of_on_event_is_logged_and_the_replica_continues(caplog: pytest.LogCaptureFixture) -> None:
    def failing(event: object) -> None:
        raise LookupError("planted")

    async def part() -> None:
        async with network(members=1) as net, Replicated(net[1], Log(), on_event=failing) as state:
            net[1]._driver.report_violation(unisono.Violation(unisono.ViolationKind.LATE, "planted"))
            assert await state.execute(b"entry") == 0

    run_test(part())
    assert any("on_event function raised an exception" in record.getMessage() for record in logged(caplog))


def test_a_failure_of_the_group_reaches_a_pending_execute(monkeypatch: pytest.MonkeyPatch) -> None:
    def planted(*_: Any) -> Any:
        raise ZeroDivisionError("planted")

    async def part() -> None:
        async with network(members=1) as net, Replicated(net[1], Log()) as state:
            pending = await execution(state, b"entry")
            monkeypatch.setattr(net[1]._stack, "wake", planted)
            with pytest.raises(unisono.UnisonoError, match="driver stopped: ZeroDivisionError"):
                await pending

    run_test(part())


def test_a_pending_execute_says_that_the_member_was_stopped() -> None:
    async def part() -> None:
        async with network(members=2) as net, Replicated(net[1], Log()) as state:
            net.cut(1, 2)
            pending = await execution(state, b"entry")
            net.crash(1)
            with pytest.raises(unisono.GroupClosed, match="left the group before the command ran"):
                await pending

    run_test(part())


def test_a_pending_execute_says_that_the_replica_was_closed() -> None:
    async def part() -> None:
        async with network(members=2) as net:
            net.cut(1, 2)
            async with Replicated(net[1], Log()) as state:
                pending = await execution(state, b"entry")
            with pytest.raises(unisono.GroupClosed, match="the replica was closed before the command ran here"):
                await pending
            with pytest.raises(unisono.GroupClosed, match="the replica is closed"):
                await state.execute(b"later")

    run_test(part())


GRADED: dict[str, Any] = {"grades": "both", "failures": True, "rate": unisono.Rate(avg=400, burst=16)}


def test_a_failed_state_transfer_stops_the_replica_that_sends_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def part() -> None:
        async with network(members=(1, 2), later=(3,), **GRADED) as net, Replicated(net[1], Log()) as one:
            await one.execute(b"first")
            async with Replicated(net[2], Log()) as two:
                monkeypatch.setattr(Replicated, "_send_state", failing_transfer)
                await net.join(3)
                async with Replicated(net[3], Log()):
                    await one.execute(b"second")  # the first final command at member 3, which requests the state
                    with pytest.raises(LookupError, match="planted"):
                        await asyncio.gather(wait_for_end(one), wait_for_end(two))

    async def failing_transfer(*_: object) -> None:
        raise LookupError("planted")

    run_test(part())
    assert any("the replica has stopped" in record.getMessage() for record in logged(caplog))


async def complete(net: MemoryNetwork, member: int) -> None:
    async with Replicated(net[member], Log()) as state:
        while (state.conservative(Log.KEY) or (None, 0))[1] < 30:
            await state.wait_for_change()


def test_the_default_part_size_fits_small_messages() -> None:
    async def part() -> None:
        async with (
            network(members=(1, 2), later=(3,), max_message=64, **GRADED) as net,
            Replicated(net[1], Log()) as one,
            Replicated(net[2], Log()),
        ):
            for number in range(29):
                await one.execute(b"entry %d" % number)
            await net.join(3)
            joining = asyncio.create_task(complete(net, 3))
            await one.execute(b"last")
            await joining

    run_test(part())


@pytest.mark.parametrize("part_bytes", [0, -5, 46, 10**9])
def test_a_part_size_that_fits_no_message_is_refused(part_bytes: int) -> None:
    async def part() -> None:
        async with network(members=1, max_message=64) as net:
            with pytest.raises(unisono.InvalidOption, match=r"^part_bytes: expected 1 to 45 bytes, .* got "):
                Replicated(net[1], Log(), part_bytes=part_bytes)
            Replicated(net[1], Log(), part_bytes=45)

    run_test(part())


def test_messages_too_small_for_a_state_are_refused() -> None:
    async def part() -> None:
        async with network(members=1, max_message=19) as net:
            with pytest.raises(unisono.InvalidOption, match=r"^max_message: expected at least 20 bytes"):
                Replicated(net[1], Log())

    run_test(part())


def test_execute_ends_when_the_majority_is_lost() -> None:
    """A waiting call ends when the loss is detected, a later one at once, and one with a time-out at that time."""

    async def part() -> None:
        async with network(members=3, order="consensus") as net, Replicated(net[1], Log()) as one:
            assert await one.execute(b"fine") == 0
            net.cut(1, (2, 3))
            loop = asyncio.get_running_loop()
            with pytest.raises(unisono.NoMajority, match="it may still run later"):
                await one.execute(b"waiting")
            began = loop.time()
            with pytest.raises(unisono.NoMajority, match="was not sent"):
                await one.execute(b"later")
            assert loop.time() == began
            with pytest.raises(unisono.NoMajority, match="it may still run later"):
                await one.execute(b"patient", timeout="3s")
            assert 3 <= loop.time() - began < 3.1
            net.heal()
            while net[1].has_majority is not True:
                await asyncio.sleep(0.01)
            assert await one.execute(b"again") == 3, "the two commands that were sent have run"

    run_test(part())


@pytest.mark.parametrize("wait_s", [2.0, 2.2, 2.4, 2.6, 2.8])
def test_execute_ends_when_the_majority_is_lost_again_soon_after_it_came_back(wait_s: float) -> None:
    """The member checks its majority once per second; some of the waits end between two checks."""

    async def part() -> None:
        options: dict[str, Any] = {"order": "consensus", "slot": "10ms", "delta": "5ms", "gamma": "1ms"}
        async with network(members=3, **options) as net, Replicated(net[1], Log()) as one:
            lost: list[str] = []
            net[1].on_majority_lost(lost.append)
            assert await one.execute(b"fine") == 0
            net.cut(1, (2, 3))
            while not lost:
                await asyncio.sleep(0.01)
            await asyncio.sleep(wait_s)
            net.heal()
            while not net[1].has_majority:
                await asyncio.sleep(0.005)
            net.cut(1, (2, 3))
            async with asyncio.timeout(30):
                with pytest.raises(unisono.NoMajority, match="it may still run later"):
                    await one.execute(b"waiting")
            assert len(lost) == 2

    run_test(part())


def test_execute_with_a_timeout_raises_timeout_while_there_is_a_majority() -> None:
    async def part() -> None:
        async with network(members=3, order="consensus") as net, Replicated(net[1], Log()) as one:
            net.delay("40ms")
            with pytest.raises(unisono.Timeout, match=r"^the command has not run here within 1ms") as no:
                await one.execute(b"x", timeout="1ms")
            assert not isinstance(no.value, unisono.NoMajority)

    run_test(part())


def test_early_commands_run_without_a_majority() -> None:
    async def part() -> None:
        options: dict[str, Any] = {"order": "vbr", "failures": True, "grades": "both"}
        async with network(members=3, **options) as net, Replicated(net[1], Log()) as one:
            net.cut(1, (2, 3))
            while net[1].has_majority is not False:
                await asyncio.sleep(0.01)
            assert await one.execute(b"early", grade=unisono.Grade.EARLY) == 0
            with pytest.raises(unisono.NoMajority):
                await one.execute(b"final")

    run_test(part())


@pytest.mark.parametrize("order", [{"failures": True, "grades": "both"}, {"order": "consensus"}])
def test_the_first_command_of_a_returned_member_has_a_result(order: dict[str, Any], tmp_path: Path) -> None:
    """It runs after the state has arrived. Before, it was part of the state, and its caller waited for ever."""

    async def scene() -> None:
        async with asyncio.timeout(120), network(members=0) as net:
            net.peers.update({member: ("memory", member) for member in (1, 2, 3)})

            def joining(member: int) -> PendingJoin:
                return join_group("kept", member=member, peers=net.peers, storage=tmp_path / str(member), **order)

            groups = await asyncio.gather(*map(joining, (1, 2, 3)))
            async with Replicated(groups[0], Dict()) as one, Replicated(groups[1], Dict()):
                for number in range(5):
                    await one.execute(Dict.put(b"%d" % number, b"before"))
                net.crash(3)
                await one.execute(Dict.put(b"5", b"while away"))
                again = await joining(3)
                async with Replicated(again, Dict()) as three:
                    await three.execute(Dict.put(b"6", b"after"), timeout="60s")
                    found = [three.conservative(b"%d" % number) for number in (0, 5, 6)]
                    assert found == [b"before", b"while away", b"after"]

    run_test(scene())
