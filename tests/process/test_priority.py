"""The priority order with real processes and sockets."""

import asyncio
import json
from pathlib import Path

import pytest

import unisono
from unisono.cli.main import main
from unisono.cluster.local import free_addresses


def test_consume_pulls_and_an_urgent_message_overtakes_at_both_members() -> None:
    async def play() -> None:
        peers = free_addresses((1, 2))
        async with asyncio.timeout(60):
            first, second = await asyncio.gather(
                *(unisono.join("pulled", order="priority", member=m, peers=peers, delta="50ms") for m in (1, 2))
            )
            await first.send_many([b"a", b"b", b"c"])
            assert (await second.consume()).payload == b"a"
            await second.send(b"!", priority=7)
            while first._stack.queued() < 4:
                await asyncio.sleep(0.01)
            mine = [await first.consume() for _ in range(4)]
            theirs = [await second.consume() for _ in range(3)]
            assert [message.payload for message in mine] == [b"a", b"!", b"b", b"c"]
            assert [message.payload for message in theirs] == [b"!", b"b", b"c"]
            assert [message.priority for message in mine] == [0, 7, 0, 0]
            assert first.stats().delivered == second.stats().delivered == 4
            await asyncio.gather(first.leave(), second.leave())

    asyncio.run(play())


@pytest.mark.parametrize("order", ["priority", "priority_coordinator"])
def test_the_demo_of_the_priority_order_is_valid(
    order: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["demo", "--order", order, "--members", "3", "--seconds", "2", "--rate", "20", "--json"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["checks"]["priority_accounting"]["verdict"] == "valid"
    assert shown["checks"]["view_atomicity"]["verdict"] == "valid"
    assert shown["checks"]["priority_accounting"]["figures"]["overtakings"] > 0
    assert shown["bound_ms"] is None, "the consumers set the pace"
    assert shown["late"] is None
    assert shown["verdict"] == "valid"
