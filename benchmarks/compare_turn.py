"""One turn of `benchmarks.compare`: measures the sources on PYTHONPATH and prints the figures as one line of JSON.

python benchmarks/compare_turn.py SOURCES SCENARIOS

This file runs against two versions of the package, so it uses the public API alone. `_simulated` is the exception: when
`run` or `parse_scenario` move, try the new import first and keep the old one for older commits.
"""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from importlib import import_module
from pathlib import Path
from typing import Literal, cast

import unisono

MEMBERS = (1, 2, 3)
SIZE = 100
SLOT_NS = 10_000_000
BATCH = 500
"""Messages per `send_many`, and the burst per slot where messages are sent by `send_many`."""
SINGLE = 50
"""The burst per slot where messages are sent one by one."""
SLOTS = 100
"""How many slots of bursts each member sends."""
WARM_UP_SLOTS = 10
DONE_WITHIN_S = 60.0
SEEDS = (1, 2)
SCENARIOS = (
    "vbr_quickstart",
    "vbr_failures_churn",
    "consensus_dies",
    "leader_dies",
    "priority_overtaking",
    "rmcast_vbr",
)

Part = Callable[[unisono.Group, int], Awaitable[None]]


async def _send_batches(group: unisono.Group, count: int) -> None:
    messages = [bytes(SIZE)] * BATCH
    for _ in range(count // BATCH):
        await group.send_many(messages)


async def _send_each(group: unisono.Group, count: int) -> None:
    message = bytes(SIZE)
    for _ in range(count):
        await group.send(message)


async def _receive_batches(group: unisono.Group, count: int) -> None:
    async for happening in group.batches():
        if isinstance(happening, unisono.Batch):
            count -= len(happening.messages)
        if count <= 0:
            return


async def _receive_each(group: unisono.Group, count: int) -> None:
    async for event in group:
        if isinstance(event, unisono.Delivery):
            count -= 1
        if count <= 0:
            return


def _addresses() -> dict[int, tuple[str, int]]:
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in MEMBERS]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    found = {member: ("127.0.0.1", one.getsockname()[1]) for member, one in zip(MEMBERS, sockets, strict=True)}
    for one in sockets:
        one.close()
    return found


def _join(
    order: str, member: int, peers: dict[int, tuple[str, int]], burst: int, storage: Path | None
) -> Awaitable[unisono.Group]:
    rate, link, slot = unisono.Rate(avg=burst * 1e9 / SLOT_NS, burst=burst), unisono.Link("400Gbit/s"), f"{SLOT_NS}ns"
    fsync: Literal["always", "never"] = "always" if storage is None else "never"
    join = cast("Callable[..., Awaitable[unisono.Group]]", unisono.join)
    if not hasattr(unisono, "Config"):  # an older commit
        options = {"rate": rate, "slot": slot, "delta": "50ms", "link": link, "max_message": SIZE, "fsync": fsync}
        return join("compare", member=member, peers=peers, order=order, storage=storage, **options)
    config = unisono.Config(
        member=member,
        peers=peers,
        order=(unisono.Vbr if order == "vbr" else unisono.Consensus)(slot=slot),
        rate=rate,
        network=unisono.Network(delta="50ms", link=link),
        max_message=SIZE,
        storage=storage,
        fsync=fsync,
    )
    return join("compare", config=config)


async def _messages(order: str, burst: int, send: Part, receive: Part) -> float:
    """CPU microseconds per message that is sent by one of three members and delivered at all of them."""
    with tempfile.TemporaryDirectory() as folder:
        storage = order == "consensus"
        peers = _addresses()
        groups = await asyncio.gather(
            *(_join(order, member, peers, burst, Path(folder) / str(member) if storage else None) for member in MEMBERS)
        )

        async def play(slots: int) -> None:
            sent = slots * burst
            async with asyncio.timeout(DONE_WITHIN_S):
                await asyncio.gather(
                    *(send(group, sent) for group in groups),
                    *(receive(group, sent * len(MEMBERS)) for group in groups),
                )

        try:
            await play(WARM_UP_SLOTS)
            gc.collect()
            began = time.process_time()
            await play(SLOTS)
            taken = time.process_time() - began
        finally:
            await asyncio.gather(*(group.leave() for group in groups))
    return taken * 1e6 / (SLOTS * burst * len(MEMBERS))


def _simulated(scenarios: Path) -> tuple[float, int]:
    """CPU microseconds per simulated event, and how many events there were."""
    try:
        scenario_reader = import_module("unisono.model.text.scenario")
    except ModuleNotFoundError:
        scenario_reader = import_module("unisono.model.scenario_text")
    from unisono.sim import run  # noqa: PLC0415

    taken, events = 0.0, 0
    for name in SCENARIOS:
        scenario = scenario_reader.parse_scenario((scenarios / f"{name}.toml").read_text("utf-8"), name)
        for seed in SEEDS:
            gc.collect()
            began = time.process_time()
            result = run(scenario, seed)
            taken += time.process_time() - began
            events += result.events
    return taken * 1e6 / events, events


def main(sources: str, scenarios: str) -> int:
    """Measure and print."""
    if Path(sources).resolve() not in Path(unisono.__file__).resolve().parents:
        sys.stderr.write(f"compare: {unisono.__file__} was imported, not a module of {sources}\n")
        return 1
    figures: dict[str, float] = {}
    for order in ("vbr", "consensus"):
        figures[f"{order}, batch API"] = asyncio.run(_messages(order, BATCH, _send_batches, _receive_batches))
        figures[f"{order}, single API"] = asyncio.run(_messages(order, SINGLE, _send_each, _receive_each))
    figures["simulated event"], events = _simulated(Path(scenarios))
    sys.stdout.write(json.dumps({"figures": figures, "events": events}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
