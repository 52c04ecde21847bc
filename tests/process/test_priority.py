"""The priority order with real processes and sockets."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.worlds.joining import join_group

import unisono
from unisono.cli.main import main
from unisono.cluster.supervisor import free_addresses
from unisono.model.options import order_options
from unisono.trace.recorder import Recorder


def test_an_urgent_message_overtakes_at_both_members() -> None:
    async def scenario() -> None:
        peers = free_addresses((1, 2))
        async with asyncio.timeout(60):
            first, second = await asyncio.gather(
                *(join_group("pulled", order="priority", member=m, peers=peers, delta="50ms") for m in (1, 2))
            )
            await first.send_many([b"a", b"b", b"c"])
            assert (await second.consume()).payload == b"a"
            await second.send(b"!", priority=7)
            while first.stats().counters["priority.queued"] < 4:
                await asyncio.sleep(0.01)
            at_first = [await first.consume() for _ in range(4)]
            at_second = [await second.consume() for _ in range(3)]
            assert [message.payload for message in at_first] == [b"a", b"!", b"b", b"c"]
            assert [message.payload for message in at_second] == [b"!", b"b", b"c"]
            assert [message.priority for message in at_first] == [0, 7, 0, 0]
            assert first.stats().delivered == second.stats().delivered == 4
            await asyncio.gather(first.leave(), second.leave())

    asyncio.run(scenario())


class Ledger:
    """An application whose state is the list of consumed messages."""

    def __init__(self) -> None:
        self.entries: list[str] = []

    def snapshot(self) -> bytes:
        return json.dumps(self.entries).encode()

    def restore(self, state: bytes) -> None:
        self.entries = json.loads(state)


def test_a_newcomer_receives_the_application_state() -> None:
    async def scenario() -> None:
        peers = free_addresses((1, 2, 3))
        ledgers = {member: Ledger() for member in peers}

        async def join(member: int) -> unisono.Group:
            return await join_group("kept", order="priority", member=member, peers=peers, state=ledgers[member])

        async def consume_until(group: unisono.Group, count: int) -> None:
            while len(ledgers[group.member].entries) < count:
                ledgers[group.member].entries.append((await group.consume()).payload.decode())

        async with asyncio.timeout(60):
            first, second = await asyncio.gather(join(1), join(2))
            await first.send_many([b"a", b"b", b"c", b"d"])
            await asyncio.gather(consume_until(first, 4), consume_until(second, 2))
            third = await join(3)
            assert ledgers[3].entries in (list("ab"), list("abcd")), "the provider's state when the view began"
            await third.send(b"e")
            await asyncio.gather(*(consume_until(group, 5) for group in (first, second, third)))
            assert [ledger.entries for ledger in ledgers.values()] == [list("abcde")] * 3
            await asyncio.gather(*(group.leave() for group in (first, second, third)))

    asyncio.run(scenario())


def test_orders_without_state_transfer_refuse_a_state() -> None:
    with pytest.raises(unisono.InvalidOption, match="does not have this option; orders that do: priority"):
        order_options("vbr", {"state": Ledger()})


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"deadline": "10s"}, "deadline: the priority orders cannot promise a deadline"),
        ({"state": object()}, "state: expected an object with snapshot"),
        ({"recorder": Recorder("run", "g", 1, list[object]().append)}, r"recorder: .* Priority\(rejoin=False\)"),
    ],
)
def test_unsupported_options_are_refused(options: dict[str, Any], problem: str) -> None:
    peers = free_addresses((1, 2))
    with pytest.raises(unisono.InvalidOption, match=problem):
        join_group("g", order="priority", member=1, peers=peers, **options)
    if "recorder" in options:
        join_group("g", order="priority", member=1, peers=peers, rejoin=False, **options)


@pytest.mark.parametrize("order", ["priority", "priority_coordinator"])
def test_the_demo_of_the_priority_order_is_valid(
    order: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["demo", "--order", order, "--members", "3", "--seconds", "2", "--rate", "20", "--json"]
    assert main([*command, "--out", str(tmp_path)]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["checks"]["priority_accounting"]["verdict"] == "valid"
    assert shown["checks"]["view_atomicity"]["verdict"] == "valid"
    assert shown["checks"]["priority_accounting"]["figures"]["overtakings"] > 0
    assert shown["bound_ms"] is None, "the consumers set the pace"
    assert shown["late"] is None
    assert shown["verdict"] == "valid"
