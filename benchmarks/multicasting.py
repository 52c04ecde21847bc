"""One member of the benchmark of several groups: multicasts to all groups at a rate, and counts what it delivers."""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from typing import Any

from tests.worlds.joining import join_group

import unisono

BEGIN_S = 2.0


async def run(setup: dict[str, Any]) -> dict[str, Any]:
    """Take part for the given time and return the figures."""
    seconds, size, rate, batch = (float(setup[word]) for word in ("seconds", "size", "rate", "batch"))
    groups = {name: tuple(members) for name, members in setup["groups"].items()}
    topology = unisono.Topology(groups, {name: tuple(groups) for name in groups})
    group = await join_group(
        "groups-benchmark",
        member=int(setup["member"]),
        peers={int(m): (a[0], int(a[1])) for m, a in setup["peers"].items()},
        order="quasi_genuine",
        topology=topology,
        rate=unisono.Rate(avg=200_000, burst=2000),
        max_message=int(size),
        delta="20ms",
        link=unisono.Link("400Gbit/s"),
    )
    messages = [bytes(int(size))] * int(batch)
    loop = asyncio.get_running_loop()

    async def send() -> None:
        due = loop.time()
        while rate:
            await group.send_many(messages, to=tuple(groups))
            due = max(due + batch / rate, loop.time() - 1.0)
            await asyncio.sleep(max(0.0, due - loop.time()))

    async def consume() -> None:
        async for _ in group.batches():
            pass

    tasks = [asyncio.create_task(send()), asyncio.create_task(consume())]
    await asyncio.sleep(BEGIN_S)
    before, delivered = time.monotonic(), group.stats().delivered
    usage = resource.getrusage(resource.RUSAGE_SELF)
    await asyncio.sleep(seconds)
    elapsed = time.monotonic() - before
    after = resource.getrusage(resource.RUSAGE_SELF)
    figures = {
        "member": group.member,
        "multicasts_per_s": (group.stats().delivered - delivered) / elapsed,
        "cpu_s": (after.ru_utime + after.ru_stime - usage.ru_utime - usage.ru_stime) / elapsed,
    }
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    group._driver.close()
    return figures


def main() -> None:
    """Configuration on standard input, one line of JSON with the figures out."""
    sys.stdout.write(json.dumps(asyncio.run(run(json.loads(sys.stdin.readline())))) + "\n")


if __name__ == "__main__":
    main()
