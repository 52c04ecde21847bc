"""The walk of one message: which files and functions of the package run between its send and its delivery.

python -m benchmarks.walk [--order NAME]... [--messages N]

Two members run in this process and exchange datagrams over loopback UDP. Member 1 sends one message at a time while
`sys.setprofile` records every call of a function of the package, until member 2 hands the message to its application.
Of several messages the walk with the fewest files counts, so that work which merely happens at the same time
(heartbeats, the comparison of clocks) drops out as far as possible.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FrameType

from tests.worlds.joining import join_group

import unisono
from unisono.model.capabilities import needs_storage

PACKAGE = Path(unisono.__file__).parent
SENDER, RECEIVER = 1, 2
SLOT = "50ms"
"""Long enough that a member which is profiled keeps up with its slots."""
TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Step:
    """One call: the member in whose driver it happens, 0 if none is known, and the function."""

    member: int
    file: str
    function: str


@dataclass
class Walk:
    """Every call of a function of the package, in order, while `record` is the profile function."""

    owners: dict[int, int]
    """The member that a driver, group, transport or alarm belongs to, by the object's id."""
    steps: list[Step] = field(default_factory=list)
    crossings: int = 0
    """Calls from one file of the package to another."""

    def record(self, frame: FrameType, event: str, _argument: object) -> None:
        """The profile function: takes down calls of the package's functions, no comprehensions or lambdas."""
        file = _file_of(frame)
        if event != "call" or file is None or frame.f_code.co_name.startswith("<"):
            return
        self.steps.append(Step(self._member(frame), file, frame.f_code.co_qualname))
        caller = None if frame.f_back is None else _file_of(frame.f_back)
        self.crossings += caller is not None and caller != file

    def _member(self, frame: FrameType | None) -> int:
        while frame is not None:
            member = self.owners.get(id(frame.f_locals.get("self")))
            if member is not None:
                return member
            frame = frame.f_back
        return 0

    def files(self) -> list[str]:
        """The files, in the order of the first visit."""
        return list(dict.fromkeys(step.file for step in self.steps))

    def functions(self, file: str) -> list[str]:
        """The functions of a file that were called, in the order of their first call."""
        return list(dict.fromkeys(step.function for step in self.steps if step.file == file))


def _file_of(frame: FrameType) -> str | None:
    return _relative_to_package(frame.f_code.co_filename)


@cache
def _relative_to_package(filename: str) -> str | None:
    path = Path(filename)
    return path.relative_to(PACKAGE).as_posix() if path.is_relative_to(PACKAGE) else None


def _free_addresses() -> dict[int, str]:
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in (SENDER, RECEIVER)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    addresses = {member: f"127.0.0.1:{each.getsockname()[1]}" for member, each in enumerate(sockets, start=1)}
    for each in sockets:
        each.close()
    return addresses


async def _receive(group: unisono.Group, payload: bytes) -> None:
    async for event in group:
        if isinstance(event, unisono.Delivery) and event.payload == payload:
            return


async def walk(order: str, messages: int) -> Walk:
    """The walk with the fewest files, of some messages from member 1 to member 2."""
    peers = _free_addresses()
    with tempfile.TemporaryDirectory() as folder:
        async with AsyncExitStack() as members:
            joins = [
                join_group(
                    "walk",
                    member=member,
                    peers=peers,
                    order=order,
                    slot=SLOT,
                    storage=Path(folder) / str(member) if needs_storage(order) else None,
                )
                for member in peers
            ]
            first, second = await asyncio.gather(*(members.enter_async_context(each) for each in joins))
            found = [await _one(first, second, b"x%d" % number) for number in range(messages)]
    return min(found, key=lambda each: (len(each.files()), len(each.steps)))


async def _one(first: unisono.Group, second: unisono.Group, payload: bytes) -> Walk:
    owners = {
        id(part): member
        for member, group in ((SENDER, first), (RECEIVER, second))
        for driver in (group._driver,)
        for part in (group, driver, driver.transport, driver.alarm)
    }
    taken = Walk(owners)
    received = asyncio.ensure_future(_receive(second, payload))
    await asyncio.sleep(0)  # the receiver waits for an event before the message is sent
    sys.setprofile(taken.record)
    try:
        await first.send(payload)
        await asyncio.wait_for(received, TIMEOUT_S)
    finally:
        sys.setprofile(None)
    return taken


def table(order: str, taken: Walk) -> str:
    """The counts of a walk, and its files with their functions."""
    functions = {(step.file, step.function) for step in taken.steps}
    lines = [f"{order}: {len(taken.files())} files, {len(functions)} functions, {taken.crossings} calls across files"]
    for file in taken.files():
        members = sorted({step.member for step in taken.steps if step.file == file and step.member})
        place = " and ".join(map(str, members))
        lines.append(f"  {file} (member {place}): {', '.join(taken.functions(file))}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the walk of each order."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.walk", description="the walk of one message")
    parser.add_argument("--order", action="append", help="an order; repeat for several (default vbr and consensus)")
    parser.add_argument("--messages", type=int, default=20, help="take the shortest walk of N messages (default 20)")
    options = parser.parse_args(arguments)
    for order in options.order or ("vbr", "consensus"):
        sys.stdout.write(table(order, asyncio.run(walk(order, options.messages))) + "\n")


if __name__ == "__main__":
    main()
