"""A member of a group in the priority order, as a process: sends messages of all priorities, and pulls at its own pace.

Configuration is one line of JSON on standard input; when that is closed, the member leaves. One that the others went on
without joins again. Each line out is one JSON list: ["up", life], ["view", id, members, gap_ns], ["got", sender, life,
sequence, slot], ["said", kind, text], ["out", life], ["left", in_order], ["error", text]. Each life writes what its
recorder notes to a file as it happens, a run of rows a line.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import unisono
from unisono.errors import UnisonoError
from unisono.model.events import Batch, ViewChange, Violation
from unisono.runtime.clock import new_incarnation
from unisono.trace.recorder import Recorder

LEVELS = (0, 0, 0, 1, 5)


def say(*fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def as_line(fields: Sequence[Any]) -> bytes:
    return json.dumps(fields).encode() + b"\n"


async def send(group: unisono.Group, every_s: float, chance: random.Random) -> None:
    while True:
        await group.send(b"x" * chance.randrange(1, 200), priority=chance.choice(LEVELS))
        await asyncio.sleep(every_s * 2 * chance.random())


async def consume(group: unisono.Group, pause_s: float) -> None:
    async for event in group.batches():
        if isinstance(event, Batch):
            say("got", event.sender, event.incarnation, event.first_sequence, event.slot)
            await asyncio.sleep(pause_s)
        elif isinstance(event, ViewChange):
            say("view", event.view_id, event.view.members, event.gap_ns)
        elif isinstance(event, Violation):
            say("said", event.kind, event.text)


async def live(setup: dict[str, Any], life: int, closed: asyncio.Event) -> bool:
    """One life; whether another is to follow."""
    member = setup["member"]
    with Path(setup["trace"], f"{member}.{life}.jsonl").open("wb", buffering=0) as rows:
        group = await unisono.join(
            "table",
            member=member,
            peers={int(number): (host, port) for number, (host, port) in setup["peers"].items()},
            order=setup["order"],
            rate=unisono.Rate(avg=200, burst=8),
            recorder=Recorder(
                "run", "table", member, lambda run: rows.write(json.dumps(run).encode() + b"\n"), life=life
            ),
            incarnation=life,
            timeout="60s",
        )
        say("up", life)
        sending = asyncio.create_task(send(group, setup["every_s"], random.Random(life)))
        consuming = asyncio.create_task(consume(group, setup["pause_s"]))
        ending = asyncio.create_task(closed.wait())
        try:
            await asyncio.wait({consuming, ending}, return_when=asyncio.FIRST_COMPLETED)
            if not closed.is_set():
                await consuming
                say("out", life)
                return True
            say("left", await group.leave())
            return False
        finally:
            for task in (sending, consuming, ending):
                task.cancel()
            await asyncio.gather(sending, consuming, ending, return_exceptions=True)


async def run(setup: dict[str, Any]) -> None:
    loop, closed = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), closed.set)
    life = setup["life"]
    try:
        while await live(setup, life, closed):
            life = max(life + 1, new_incarnation())
    except UnisonoError as error:
        say("error", f"{type(error).__name__}: {error}")
    finally:
        loop.remove_reader(sys.stdin.fileno())


if __name__ == "__main__":
    asyncio.run(run(json.loads(sys.stdin.readline())))
