"""One member of the consensus benchmark: submits batches of messages and counts decided instances."""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from typing import Any

from tests.worlds.joining import join_group

import unisono
from unisono.orders.consensus.order import ConsensusOrder

WARM_S = 0.5


async def run(setup: dict[str, Any]) -> dict[str, Any]:
    """Take part for the given time and return the figures."""
    seconds, size = float(setup["seconds"]), int(setup["size"])
    messages = [bytes(size)] * int(setup["batch"])
    group = await join_group(
        "consensus-benchmark",
        member=int(setup["member"]),
        peers={int(m): (a[0], int(a[1])) for m, a in setup["peers"].items()},
        order="consensus",
        rate=unisono.Rate(avg=200_000, burst=1000),
        max_message=size,
        delta="5ms",
        link=unisono.Link("400Gbit/s"),
        storage=setup["storage"],
        fsync=setup["fsync"],
    )
    order = group._stack.order
    assert isinstance(order, ConsensusOrder)
    consensus = order.consensus

    async def send() -> None:
        while True:
            await group.send_many(messages)
            await asyncio.sleep(0)

    async def consume() -> None:
        async for _ in group.batches():
            pass

    tasks = [asyncio.create_task(send()), asyncio.create_task(consume())]
    await asyncio.sleep(WARM_S)
    before, decided, delivered = time.monotonic(), consensus.decided, group.stats().delivered
    usage = resource.getrusage(resource.RUSAGE_SELF)
    await asyncio.sleep(seconds)
    elapsed = time.monotonic() - before
    after = resource.getrusage(resource.RUSAGE_SELF)
    figures = {
        "member": group.member,
        "batches_per_s": (consensus.decided - decided) / elapsed,
        "messages_per_s": (group.stats().delivered - delivered) / elapsed,
        "cpu_s": (after.ru_utime + after.ru_stime - usage.ru_utime - usage.ru_stime) / elapsed,
        "leads": consensus.is_leader,
        "reigns": consensus.leader_changes,
        "syncs_per_s": group._driver._storage.sync_count / (elapsed + WARM_S) if group._driver._storage else 0.0,
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
