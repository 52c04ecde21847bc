"""Functions of the application that the group calls: their exceptions are logged, and the group continues."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.worlds.joining import memory_network as network

import unisono
from unisono import testing
from unisono.testing import deliveries

PATIENCE_S = 120
SLA = """
collect = "250ms"

[[sla]]
name = "few losses"
provider = "network"
consumer = "order"
metric = "loss"
bound = 0.01
probability = 0.95
window = "1s"
observations = 10
"""


def run_test(part: Coroutine[None, None, None]) -> None:
    async def timed() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await part

    testing.run(timed())


def logged(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == "unisono" and record.levelno == logging.ERROR]


def test_an_exception_of_the_monitor_function_does_not_end_the_group(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []
    three_calls = asyncio.Event()

    def failing(rows: Sequence[unisono.MetricRow]) -> None:
        calls.append(len(rows))
        if len(calls) == 3:
            three_calls.set()
        raise LookupError("planted")

    async def part() -> None:
        async with network(members=1, metrics=failing) as net:
            await three_calls.wait()
            await net[1].send(b"still here")
            assert [delivery.payload for delivery in await deliveries(net[1], 1)] == [b"still here"]
            assert await net[1].leave()

    run_test(part())
    assert all(calls)
    records = logged(caplog)
    assert len(records) >= 3
    assert records[0].getMessage() == (
        "group 'test', member 1: the function for metrics raised an exception; the group continues"
    )
    assert records[0].exc_info is not None
    assert isinstance(records[0].exc_info[1], LookupError)


def test_an_exception_of_an_sla_listener_does_not_end_the_group(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    sla = tmp_path / "sla.toml"
    sla.write_text(SLA, encoding="utf-8")
    heard: list[str] = []

    def failing(event: object) -> None:
        raise LookupError("planted")

    async def part() -> None:
        options: dict[str, Any] = {
            "failures": True,
            "loss_burst": 2,
            "sla": sla,
            "rate": unisono.Rate(avg=500, burst=8),
        }
        async with network(members=2, **options) as net:
            net[1].on_sla("few losses", failing)
            net[1].on_sla("few losses", lambda event: heard.append(event.sla))
            net.lose(0.3, at_most=2, of=6)
            while not isinstance(await net[1].next(timeout="60s"), unisono.SlaViolation):
                pass
            net.heal()
            await net[1].send(b"still here")
            while not isinstance(event := await net[1].next(timeout="60s"), unisono.Delivery):
                pass
            assert event.payload == b"still here"

    run_test(part())
    assert heard[:1] == ["few losses"], "the other listener is called"
    records = logged(caplog)
    assert records
    assert "the on_sla listener of 'few losses' raised an exception" in records[0].getMessage()
