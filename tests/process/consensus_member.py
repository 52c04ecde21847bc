"""A process that is a member of a consensus group: it sends numbered messages and reports its sends and deliveries.

Configuration is one line of JSON on standard input. Each line out is one JSON list: ["sent", sequence] as soon as a
message was accepted, ["delivered", sender, incarnation, sequence, slot, position, index], ["violation", kind], ["up"],
["error", text].
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from tests.worlds.joining import join_group

import unisono
from unisono.errors import UnisonoError
from unisono.model.events import Batch, Violation


def emit(*fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


async def run(setup: dict[str, Any]) -> None:
    try:
        group = await join_group(
            "table",
            member=setup["member"],
            peers={int(member): (host, port) for member, (host, port) in setup["peers"].items()},
            order="consensus",
            rate=unisono.Rate(avg=200, burst=8),
            storage=setup["storage"],
            fsync=setup.get("fsync", "never"),
            incarnation=setup["incarnation"],
            timeout="60s",
        )
    except UnisonoError as error:
        emit("error", f"{type(error).__name__}: {error}")
        return
    emit("up")

    async def send() -> None:
        sequence = 0
        while True:
            await group.send(b"%d/%d/%d" % (setup["member"], setup["incarnation"], sequence))
            emit("sent", sequence)
            sequence += 1
            await asyncio.sleep(setup["every_s"])

    sending = asyncio.create_task(send())
    try:
        async for event in group.batches():
            if isinstance(event, Batch):
                for number, message in enumerate(event.messages):
                    sequence = event.first_sequence + number
                    assert message == b"%d/%d/%d" % (event.sender, event.incarnation, sequence)
                    position, index = event.first_position + number, event.first_index + number
                    emit("delivered", event.sender, event.incarnation, sequence, event.slot, position, index)
            elif isinstance(event, Violation):
                emit("violation", event.kind)
    except UnisonoError as error:
        emit("error", f"{type(error).__name__}: {error}")
    finally:
        sending.cancel()


if __name__ == "__main__":
    asyncio.run(run(json.loads(sys.stdin.readline())))
