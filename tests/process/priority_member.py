"""A member process in the priority order: sends messages of all priorities and consumes at its own pace.

The configuration is one line of JSON on standard input; when the input closes, the member leaves. Each output line is
one JSON list: ["up", incarnation] (at the start and after each rejoin), ["view", id, members, blocked_ns], ["got",
sender, incarnation, sequence, slot, digest], ["said", kind, text] for a violation, ["left", in_order], ["error", text].
The digest covers all consumed messages, including those in the state that was taken over. Each incarnation writes the
rows of its recorder to its own file at once, one batch of rows per line.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import sys
from pathlib import Path
from typing import Any

from tests.worlds.joining import join_group

import unisono
from unisono.errors import UnisonoError
from unisono.model.events import Batch, Rejoining, ViewChange, Violation
from unisono.trace.recorder import PackedRows, Recorder

LEVELS = (0, 0, 0, 1, 5)


def emit(*fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


async def send(group: unisono.Group, every_s: float, chance: random.Random) -> None:
    while True:
        await group.send(b"x" * chance.randrange(1, 200), priority=chance.choice(LEVELS))
        await asyncio.sleep(every_s * 2 * chance.random())


class Digest:
    """The application's state: a hash over all consumed messages, in order."""

    def __init__(self) -> None:
        self.value = b""

    def add(self, message: tuple[int, int, int]) -> str:
        self.value = hashlib.sha256(self.value + repr(message).encode()).digest()
        return self.value.hex()

    def snapshot(self) -> bytes:
        return self.value

    def restore(self, state: bytes) -> None:
        self.value = state


async def consume(group: unisono.Group, digest: Digest, pause_s: float) -> None:
    async for event in group.batches():
        if isinstance(event, Batch):
            message = (event.sender, event.incarnation, event.first_sequence)
            emit("got", *message, event.slot, digest.add(message))
            await asyncio.sleep(pause_s)
        elif isinstance(event, ViewChange):
            emit("view", event.view_id, event.view.members, event.blocked_ns)
        elif isinstance(event, Violation):
            emit("said", event.kind, event.text)
        elif isinstance(event, Rejoining):
            emit("up", event.incarnation)


def recorder(folder: str, member: int, incarnation: int) -> Recorder:
    """A recorder that writes one incarnation's rows to a file."""
    path = Path(folder, f"{member}.{incarnation}.jsonl")
    path.touch()

    def write(rows: PackedRows) -> None:
        with path.open("ab", buffering=0) as file:
            file.write(json.dumps(rows).encode() + b"\n")

    return Recorder(
        "run",
        "table",
        member,
        write,
        incarnation=incarnation,
        new_incarnation=lambda following: recorder(folder, member, following),
    )


async def run(setup: dict[str, Any]) -> None:
    loop, closed = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), closed.set)
    member, incarnation, digest = setup["member"], setup["life"], Digest()
    tasks: list[asyncio.Task[Any]] = []
    try:
        group = await join_group(
            "table",
            member=member,
            peers={int(number): (host, port) for number, (host, port) in setup["peers"].items()},
            order=setup["order"],
            rate=unisono.Rate(avg=200, burst=8),
            recorder=recorder(setup["trace"], member, incarnation),
            incarnation=incarnation,
            timeout="60s",
            state=digest,
        )
        emit("up", incarnation)
        sending = asyncio.create_task(send(group, setup["every_s"], random.Random(incarnation)))
        consuming = asyncio.create_task(consume(group, digest, setup["pause_s"]))
        tasks = [sending, consuming, asyncio.create_task(closed.wait())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not closed.is_set():
            await asyncio.gather(*(task for task in tasks if task.done()))  # raises the cause
        emit("left", await group.leave())
    except UnisonoError as error:
        emit("error", f"{type(error).__name__}: {error}")
    finally:
        loop.remove_reader(sys.stdin.fileno())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(run(json.loads(sys.stdin.readline())))
