"""`unisono member`: one member on real machines; lines in, deliveries out."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import threading

import unisono
from unisono.cli.options import add_json, add_rate, add_timing
from unisono.errors import InvalidPolicy
from unisono.model.durations import duration_text, ms


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The verb's command line."""
    verb = verbs.add_parser(
        "member",
        allow_abbrev=False,
        help="one member: reads lines, prints what the group delivers",
        description="Take part in a group. Each line of standard input is multicast; each delivery is printed, in the "
        "same order at every member. The group starts when all peers are up; end of input or Ctrl-C leaves it.",
        epilog="Two terminals make a chat: unisono member --id 1 --peers 1=127.0.0.1:9001,2=127.0.0.1:9002, and the "
        "same with --id 2.",
    )
    verb.add_argument("--id", type=int, required=True, help="this member's number, from 1")
    verb.add_argument("--peers", required=True, help="every member's address: 1=HOST:PORT,2=HOST:PORT,…")
    verb.add_argument("--group", default="unisono", help="the group's name (default unisono)")
    verb.add_argument("--order", default="auto", help="auto, vbr, cbr, leader or timestamp (default auto)")
    verb.add_argument("--failures", action="store_true", help="let members crash, come and go: the order may have gaps")
    verb.add_argument(
        "--multicast", metavar="ADDRESS:PORT", help="use this IP multicast group where it reaches everyone"
    )
    verb.add_argument("--deadline", help="refuse to start unless every delivery is within this")
    verb.add_argument("--timeout", default="60s", help="how long to wait for the other members (default 60s)")
    add_timing(verb, "50ms", "20ms")
    add_rate(verb)
    add_json(verb)
    verb.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Join, and pass lines both ways."""
    return asyncio.run(_chat(options))


def parse_peers(text: str) -> dict[int, str]:
    """`1=HOST:PORT,2=HOST:PORT` as a mapping."""
    peers: dict[int, str] = {}
    for part in text.split(","):
        number, equals, address = part.strip().partition("=")
        if not equals or not number.isdigit():
            raise InvalidPolicy("--peers", f"a list such as 1=127.0.0.1:9001,2=127.0.0.1:9002 is needed, not {part!r}")
        if int(number) in peers:
            raise InvalidPolicy("--peers", f"member {number} is listed twice")
        peers[int(number)] = address
    return peers


async def _chat(options: argparse.Namespace) -> int:
    joining = unisono.join(
        options.group,
        member=options.id,
        peers=parse_peers(options.peers),
        order=options.order,
        rate=unisono.Rate(avg=options.rate, burst=options.burst),
        deadline=options.deadline,
        failures=options.failures,
        slot=options.slot,
        delta=options.delta,
        gamma=options.gamma,
        max_message=options.max_message,
        multicast=options.multicast,
        timeout=options.timeout,
    )
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    if not options.json:
        _note(f"member {options.id} of {options.group!r}: waiting for the others …")
    opening = asyncio.ensure_future(joining.__aenter__())
    stop = asyncio.create_task(stopping.wait())
    await asyncio.wait({opening, stop}, return_when=asyncio.FIRST_COMPLETED)
    if not opening.done():
        opening.cancel()
        await asyncio.wait({opening})
        return 130
    group = await opening
    if not options.json:
        _note(f"members {', '.join(map(str, group.members))}; every delivery within {duration_text(group.bound_ns)}")
    printing = asyncio.create_task(_print(group, options.json))
    reading = asyncio.create_task(_read(group))
    done, _ = await asyncio.wait({reading, printing, stop}, return_when=asyncio.FIRST_COMPLETED)
    reading.cancel()
    if not await group.leave():
        _note("the others did not answer; what they sent last is not shown here")
    await printing
    for task in done - {stop}:
        task.result()
    return 130 if stopping.is_set() else 0


async def _read(group: unisono.Group) -> None:
    """Lines of standard input, multicast one by one.

    A thread reads, so that terminals, pipes and files all work; it waits for each line to be taken.
    """
    loop = asyncio.get_running_loop()
    ended = loop.create_future()

    def send(line: bytes) -> None:
        asyncio.run_coroutine_threadsafe(_send(group, line), loop).result()

    def read() -> None:
        problem: BaseException | None = None
        try:
            rest = b""
            while chunk := os.read(0, 65536):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    send(line)
            if rest:
                send(rest)
        except BaseException as error:  # noqa: BLE001 - carried over to the loop, which raises it
            problem = error
        with contextlib.suppress(RuntimeError):  # the loop has ended while this thread was waiting for input
            loop.call_soon_threadsafe(finish, problem)

    def finish(problem: BaseException | None) -> None:
        if ended.done():
            return
        if problem is None:
            ended.set_result(None)
        else:
            ended.set_exception(problem)

    threading.Thread(target=read, name="input", daemon=True).start()
    await ended


async def _send(group: unisono.Group, line: bytes) -> None:
    try:
        await group.send(line.rstrip(b"\r"))
    except unisono.MessageTooLarge as error:
        _note(str(error))


async def _print(group: unisono.Group, as_json: bool) -> None:
    async for event in group:
        if as_json:
            sys.stdout.write(json.dumps(_row(event)) + "\n")
        elif isinstance(event, unisono.Delivery):
            sys.stdout.write(f"{event.sender}: {event.payload.decode(errors='replace')}\n")
        elif isinstance(event, unisono.Violation):
            _note(f"violation: {event.text}")
        else:
            _note(f"members are now {', '.join(map(str, event.view.members))}")
        sys.stdout.flush()
    if as_json:
        stats = group.stats()
        row = {"event": "end", "sent": stats.sent, "delivered": stats.delivered, "bound_ms": ms(stats.bound_ns)}
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()


def _row(event: unisono.Event) -> dict[str, object]:
    if isinstance(event, unisono.Delivery):
        text = event.payload.decode(errors="replace")
        return {
            "event": "delivery",
            "sender": event.sender,
            "sequence": event.sequence,
            "slot": event.slot,
            "text": text,
        }
    if isinstance(event, unisono.Violation):
        return {"event": "violation", "violation": event.kind, "text": event.text, "member": event.member}
    return {"event": "view", "members": event.view.members, "joined": event.joined, "left": event.left}


def _note(text: str) -> None:
    sys.stderr.write(f"-- {text}\n")
    sys.stderr.flush()
