"""One member of the view-change benchmark: sends and pulls, and says when it installs a view.

Each line out is one JSON object: the time of a view, its members, the gap that the change made, and of each member of
the view before after how long a silence this one would have suspected it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from tests.worlds.joining import join_group

import unisono
from unisono.agreement.membership.views import Membership
from unisono.model.events import ViewChange
from unisono.orders.priority.order import PriorityOrder

LOOK_EVERY_S = 0.02


async def run(setup: dict[str, Any]) -> None:
    """Take part until this process is killed; after an exclusion, join again."""
    while True:
        await live(setup)


async def live(setup: dict[str, Any]) -> None:
    """One incarnation: until this member is excluded."""
    group = await join_group(
        "views-benchmark",
        member=int(setup["member"]),
        peers={int(m): (a[0], int(a[1])) for m, a in setup["peers"].items()},
        order="priority",
        rate=unisono.Rate(avg=200, burst=8),
        delta="20ms",
        timeout="60s",
    )
    order = group._stack.order
    assert isinstance(order, PriorityOrder)
    views = order._views
    assert isinstance(views, Membership)
    timeouts: dict[int, int] = {}

    async def send() -> None:
        while True:
            await group.send(bytes(100))
            await asyncio.sleep(0.01)

    async def look() -> None:
        while True:
            if not views.blocked():
                timeouts.update({m: views.detector.timeout_ns(m) for m in views.incarnations if m != group.member})
            await asyncio.sleep(LOOK_EVERY_S)

    tasks = [asyncio.create_task(send()), asyncio.create_task(look())]
    async for event in group.batches():
        if isinstance(event, ViewChange):
            said = {"at_ns": time.time_ns(), "members": event.view.members, "gap_ns": event.blocked_ns}
            sys.stdout.write(json.dumps({**said, "timeouts_ns": timeouts}) + "\n")
            sys.stdout.flush()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(run(json.loads(sys.stdin.readline())))
