"""How long an urgent message takes into the queues of all members, by group and message size (paper 004, Figure 5).

The groups run over loopback in one process, so members share one core: figures are for comparison with each other. In
each round some messages of low priority are queued everywhere, and then one more is sent, and timed until the queues of
all members have it: of low priority by turns with urgent. The low one goes behind the others: that is the order without
priorities at work. The urgent one locks them and overtakes them. The ratio of the two, by the clock and by processor
time, is what priorities cost. The paper has less than 6 ms for 1024 bytes and 6 members. Beside it, in the same run,
the agreed log (order consensus), which knows no priorities: from sending until all members have delivered.
"""

from __future__ import annotations

import asyncio
import time
from statistics import median
from typing import Any

from tests.worlds.joining import join_group

import unisono
from benchmarks.progress import Say, silence
from unisono.cluster.supervisor import free_addresses

SIZES = (2, 4, 6, 8)
BYTES = (64, 1024)
QUEUED = 3
"""Messages that wait when the urgent one comes: the paper believes a few to be representative."""
ROUNDS = 400
"""The ratio of medians of 50 scattered from 1.05 to 1.35 on a machine that others use."""
PAPER_MS = {(6, 1024): 6.0}


async def _inserted(group: unisono.Group, count: int) -> None:
    while group._stack.queued() < count:
        await group._driver.wait_for_change()


async def _send(groups: list[unisono.Group], payload: bytes, priority: int) -> tuple[int, int]:
    """Nanoseconds until a message is in all queues, behind or before those that wait: by the clock, and of CPU."""
    await groups[0].send_many([payload] * QUEUED)
    await asyncio.gather(*(_inserted(group, QUEUED) for group in groups))
    began, began_cpu = time.perf_counter_ns(), time.process_time_ns()
    await groups[0].send(payload, priority=priority)
    await asyncio.gather(*(_inserted(group, QUEUED + 1) for group in groups))
    taken = time.perf_counter_ns() - began, time.process_time_ns() - began_cpu
    for group in groups:
        consumed = [(await group.consume()).priority for _ in range(QUEUED + 1)]
        if consumed != [priority, *[0] * QUEUED]:
            raise AssertionError(f"the urgent message did not overtake everywhere: {consumed}")
    return taken


async def _delivered(group: unisono.Group, count: int) -> None:
    while group.stats().delivered < count:
        await group._driver.wait_for_change()


async def _join(order: str, members: int) -> list[unisono.Group]:
    peers = free_addresses(tuple(range(1, members + 1)))
    options: dict[str, Any] = {"order": order, "peers": peers, "rate": unisono.Rate(avg=20_000, burst=100)}
    links = {m: unisono.Link("10000Gbit/s") for m in peers}
    return list(await asyncio.gather(*(join_group("figure 5", member=m, link=links[m], **options) for m in peers)))


async def _agreed_ms(members: int, size: int, rounds: int) -> float:
    """The same message through the agreed log."""
    groups = await _join("consensus", members)
    try:
        taken = []
        for number in range(rounds):
            began = time.perf_counter_ns()
            await groups[-1].send(bytes(size))
            await asyncio.gather(*(_delivered(group, number + 1) for group in groups))
            taken.append(time.perf_counter_ns() - began)
            await asyncio.sleep(0.005)
    finally:
        await asyncio.gather(*(group.leave() for group in groups))
    return median(taken) / 1e6


async def _measure(order: str, members: int, size: int, rounds: int) -> dict[str, Any]:
    groups = await _join(order, members)
    taken: dict[int, list[tuple[int, int]]] = {0: [], 1: []}
    try:
        for number in range(2 * rounds):
            taken[number % 2].append(await _send(groups, bytes(size), number % 2))
    finally:
        await asyncio.gather(*(group.leave() for group in groups))
    plain, plain_cpu = (median(times) / 1e6 for times in zip(*taken[0], strict=True))
    urgent, urgent_cpu = (median(times) / 1e6 for times in zip(*taken[1], strict=True))
    figures = {
        "unprioritised_ms": plain,
        "urgent_ms": urgent,
        "ratio": urgent / plain,
        "cpu_ratio": urgent_cpu / plain_cpu,
        "consensus_ms": await _agreed_ms(members, size, rounds),
    }
    of = {"order": order, "members": members, "bytes": size}
    return of | {name: round(value, 2) for name, value in figures.items()} | {"paper_ms": PAPER_MS.get((members, size))}


def rows(*, quick: bool = False, say: Say = silence) -> list[dict[str, Any]]:
    """One row per form, group size and message size."""
    found = []
    for order in ("priority", "priority_coordinator"):
        for members in (2, 6) if quick else SIZES:
            for size in (1024,) if quick else BYTES:
                say(f"priority: {order}, {members} members, {size} bytes")
                found.append(asyncio.run(_measure(order, members, size, 10 if quick else ROUNDS)))
    return found
