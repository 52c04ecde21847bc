"""How long an urgent message takes into the queues of all members, by group and message size (paper 004, Figure 5).

The groups run over loopback in one process, so members share one core: figures are for comparison with each other. In
each round a message is first sent to members whose queues are empty: that is the order without priorities at work.
Then some messages of low priority are queued, an urgent one is sent, and every member pulls it: it has overtaken
them. The ratio of the two is what locks and insertion cost. The paper has less than 6 ms for 1024 bytes and 6 members.
"""

from __future__ import annotations

import asyncio
import time
from statistics import median
from typing import Any

import unisono
from benchmarks.progress import Say, silence
from unisono.cluster.local import free_addresses

SIZES = (2, 4, 6, 8)
BYTES = (64, 1024)
QUEUED = 3
"""Messages that wait when the urgent one comes: the paper believes a few to be representative."""
PAPER_MS = {(6, 1024): 6.0}


def _queued(group: unisono.Group) -> int:
    return group._stack.queued()


async def _everyone(groups: list[unisono.Group]) -> list[unisono.Delivery]:
    return list(await asyncio.gather(*(group.consume() for group in groups)))


async def _round(groups: list[unisono.Group], payload: bytes) -> tuple[int, int]:
    """Nanoseconds until all have consumed a message of a quiet group, and an urgent one of a group with a queue."""
    began = time.perf_counter_ns()
    await groups[0].send(payload)
    await _everyone(groups)
    plain = time.perf_counter_ns() - began
    await groups[0].send_many([payload] * QUEUED)
    while not all(_queued(group) == QUEUED for group in groups):
        await asyncio.sleep(0.001)
    began = time.perf_counter_ns()
    await groups[0].send(payload, priority=1)
    while not all(_queued(group) == QUEUED + 1 for group in groups):
        await asyncio.sleep(0)
    urgent = await _everyone(groups)
    taken = time.perf_counter_ns() - began
    if {delivery.priority for delivery in urgent} != {1}:
        raise AssertionError(f"the urgent message did not overtake everywhere: {urgent}")
    for _ in range(QUEUED):
        await _everyone(groups)
    return plain, taken


async def _measure(order: str, members: int, size: int, rounds: int) -> dict[str, Any]:
    peers = free_addresses(tuple(range(1, members + 1)))
    options: dict[str, Any] = {"order": order, "peers": peers, "rate": unisono.Rate(avg=1000, burst=10)}
    groups = list(await asyncio.gather(*(unisono.join("figure 5", member=m, **options) for m in peers)))
    try:
        taken = [await _round(groups, bytes(size)) for _ in range(rounds)]
    finally:
        await asyncio.gather(*(group.leave() for group in groups))
    plain, urgent = (median(times) / 1e6 for times in zip(*taken, strict=True))
    return {
        "order": order,
        "members": members,
        "bytes": size,
        "unprioritised_ms": plain,
        "urgent_ms": urgent,
        "ratio": urgent / plain,
        "paper_ms": PAPER_MS.get((members, size)),
    }


def rows(*, quick: bool = False, say: Say = silence) -> list[dict[str, Any]]:
    """One row per form, group size and message size."""
    found = []
    for order in ("priority", "priority_coordinator"):
        for members in (2, 6) if quick else SIZES:
            for size in (1024,) if quick else BYTES:
                say(f"priority: {order}, {members} members, {size} bytes")
                found.append(asyncio.run(_measure(order, members, size, 10 if quick else 50)))
    return found
