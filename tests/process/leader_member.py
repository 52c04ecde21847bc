"""A process that is a member of a group with a leader: it sends messages in a plain loop, as fast as it can.

Configuration is one line of JSON on standard input. Each line out is one JSON list: ["violation", kind];
["done", digest, ignored] once all messages of all members are delivered, with a digest of their order and the number of
frames that this member ignored as duplicates. The process leaves the group when its standard input ends.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from typing import Any

from tests.worlds.joining import join_group

import unisono
from unisono.model.events import Batch, Violation


def emit(*fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


async def run(setup: dict[str, Any]) -> None:
    peers = {int(member): (host, port) for member, (host, port) in setup["peers"].items()}
    group = await join_group(
        "table",
        member=setup["member"],
        peers=peers,
        order="leader",
        rate=unisono.Rate(avg=1_000_000, burst=20_000),
        max_message=100,
        delta="200ms",
        slot="20ms",
        link=unisono.Link("1000GB/s"),
    )

    async def send() -> None:
        for number in range(setup["messages"]):
            await group.send(b"%4d %95d" % (setup["member"], number))

    sending = asyncio.create_task(send())
    left, digest = setup["messages"] * len(peers), hashlib.sha256()
    async for event in group.batches():
        if isinstance(event, Batch):
            left -= event.count
            for message in event.messages:
                digest.update(message)
            if not left:
                break
        elif isinstance(event, Violation):
            emit("violation", event.kind)
    await sending
    emit("done", digest.hexdigest(), group.stats().ignored.get("duplicate", 0))
    await asyncio.to_thread(sys.stdin.read)
    await group.leave()


if __name__ == "__main__":
    asyncio.run(run(json.loads(sys.stdin.readline())))
