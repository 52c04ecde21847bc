"""`unisono member`: one member of a group. It multicasts the lines of standard input and prints deliveries."""

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
from unisono.cli.options import add_command, add_rate, add_timing, add_tolerance, parse_fec, parse_reliable
from unisono.errors import InvalidOption
from unisono.model.capabilities import orders_with
from unisono.model.events import GRADES, Grade
from unisono.model.units import duration_text, exact_duration_text, ns_to_ms
from unisono.runtime.timers import new_incarnation
from unisono.trace.metrics import MetricWriter


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `unisono member` and its options to the command line."""
    verb = add_command(
        verbs,
        "member",
        summary="join a group: multicast lines of input, print deliveries",
        description="Join a group as one member. Each line of standard input is multicast, and each delivery is "
        "printed, in the same order at every member. The group starts when all members are up. The member leaves at "
        "the end of its input, or with Ctrl-C.",
        examples=(
            "unisono member --id 1 --peers 1=127.0.0.1:9001,2=127.0.0.1:9002",
            "unisono member --id 2 --peers 1=127.0.0.1:9001,2=127.0.0.1:9002   # in a second terminal: a chat",
            "unisono member --members 3                                        # members find each other",
        ),
        notes="exit status: 0 end of input, 3 the group did not form in time, 130 interrupted.",
    )
    verb.add_argument("--id", type=int, help="this member's number, from 1; optional if members find each other")
    verb.add_argument(
        "--peers",
        help="address of every member: 1=HOST:PORT,2=HOST:PORT,…; or dns:NAME:PORT; without it members find each other",
    )
    verb.add_argument("--members", type=int, metavar="N", help="without --peers: how many members to find")
    verb.add_argument(
        "--beacon", metavar="ADDRESS:PORT", help="multicast address to find members (default 239.255.77.76:7776)"
    )
    verb.add_argument("--interface", metavar="ADDRESS", help="the address at which the others reach this machine")
    verb.add_argument("--group", default="unisono", help="name of the group, or a group reference (default unisono)")
    verb.add_argument(
        "--order",
        default="auto",
        help="auto, vbr, cbr, leader, timestamp, consensus, priority, or a service without total order: "
        "reliable, fifo, causal, uniform (default auto)",
    )
    verb.add_argument(
        "--fsync", default="always", help="when to sync --storage to disk: always, batch or never (default always)"
    )
    verb.add_argument(
        "--priority", type=int, default=0, help="priority of the lines; higher is more urgent (default 0)"
    )
    verb.add_argument(
        "--multicast", metavar="ADDRESS:PORT", help="use this IP multicast group if it reaches all members"
    )
    _add_guarantees_and_files(verb)
    add_tolerance(verb)
    add_timing(verb)
    add_rate(verb)
    verb.add_argument(
        "--json", action="store_true", help="print one JSON object per line for each event, and nothing else"
    )
    verb.set_defaults(run=run, slot=None)


def _add_guarantees_and_files(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--deadline",
        help="refuse to start unless every delivery meets this deadline; without --slot, use the longest slot that "
        "meets it",
    )
    verb.add_argument(
        "--grades",
        choices=GRADES,
        default="early",
        help="early: on time; final: later, after agreement, without gaps; both: each line in both grades; "
        "final and both need vbr or cbr (default early)",
    )
    verb.add_argument("--storage", metavar="FILE", help="file for this member's durable state, to rejoin after a crash")
    verb.add_argument("--sla", metavar="FILE", help="service level agreements to evaluate while the group runs")
    verb.add_argument("--metrics", metavar="DIR", help="write metrics to this folder, for `unisono monitor`")
    verb.add_argument(
        "--run",
        default="live",
        dest="run_name",
        metavar="NAME",
        help="name of the run in the metrics folder (default live)",
    )
    verb.add_argument("--timeout", default="60s", help="how long to wait for the other members (default 60s)")
    verb.add_argument("--max-frame", type=int, help="largest datagram in bytes (default: fits the path to the peers)")
    verb.add_argument(
        "--link",
        default="1Gbit/s",
        help="capacity of this machine's link; the group may reserve no more (default 1Gbit/s)",
    )
    verb.add_argument(
        "--queue",
        type=int,
        default=1_000_000,
        metavar="N",
        help="how many deliveries may wait to be printed (default 1000000)",
    )


def run(options: argparse.Namespace) -> int:
    """Run `unisono member`: join the group, send input lines, print deliveries; return the exit status."""
    return asyncio.run(_run_member(options))


def parse_peers(text: str | None) -> dict[int, str] | str | None:
    """Parse `--peers`, such as `1=HOST:PORT,2=HOST:PORT`; `dns:NAME:PORT` and None are returned unchanged."""
    if text is None or text.startswith("dns:"):
        return text
    peers: dict[int, str] = {}
    for part in text.split(","):
        number, equals, address = part.strip().partition("=")
        if not equals or not number.isdigit():
            raise InvalidOption("--peers", f"expected a list such as 1=127.0.0.1:9001,2=127.0.0.1:9002, not {part!r}")
        if int(number) in peers:
            raise InvalidOption("--peers", f"expected each member once, but member {number} is listed twice")
        peers[int(number)] = address
    return peers


async def _run_member(options: argparse.Namespace) -> int:
    if options.metrics is None:
        return await _run_in_group(options, None)
    if options.id is None:
        raise InvalidOption("--metrics", "give --id too, because the file is named after the member")
    writer = MetricWriter(options.metrics, options.run_name, options.group, options.id, incarnation=new_incarnation())
    with writer:
        return await _run_in_group(options, writer)


async def _run_in_group(options: argparse.Namespace, metrics: MetricWriter | None) -> int:
    joining = unisono.join(
        options.group,
        member=options.id,
        peers=parse_peers(options.peers),
        members=options.members,
        beacon=options.beacon,
        interface=options.interface,
        order=options.order,
        rate=unisono.Rate(avg=options.rate, burst=options.burst),
        deadline=options.deadline,
        failures=options.failures or options.loss_burst > 0,
        loss_burst=options.loss_burst,
        fec=parse_fec(options.fec),
        reliable=parse_reliable(options.reliable),
        grades=options.grades,
        storage=options.storage,
        processing=exact_duration_text(options.processing),
        slot=None if options.slot is None else exact_duration_text(options.slot),
        delta=exact_duration_text(options.delta),
        gamma=exact_duration_text(options.gamma),
        max_message=options.max_message,
        max_frame=options.max_frame,
        multicast=options.multicast,
        link=unisono.Link(options.link),
        queue_messages=options.queue,
        timeout=options.timeout,
        sla=options.sla,
        monitor=False if metrics is None else metrics.put,
        incarnation=None if metrics is None else metrics.incarnation,
        fsync=options.fsync,
    )
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    if not options.json:
        name = f"member {options.id}" if options.id is not None else "a member"
        _print_status(f"{name} of {options.group!r}: waiting for the other members …")
    opening = asyncio.ensure_future(joining.__aenter__())
    stop = asyncio.create_task(stopping.wait())
    await asyncio.wait({opening, stop}, return_when=asyncio.FIRST_COMPLETED)
    if not opening.done():
        opening.cancel()
        await asyncio.wait({opening})
        return 130
    group = await opening
    if not options.json:
        _print_status(f"member {group.member} of {group.reference}")
        members = ", ".join(map(str, group.members))
        bound = duration_text(group.bound_ns)
        pulls = group.stats().order in orders_with("pulled")
        _print_status(
            f"members {members}; " + (f"queued within {bound}" if pulls else f"every delivery within {bound}")
        )
    printing = asyncio.create_task(_print_events(group, options.json))
    reading = asyncio.create_task(_send_input_lines(group, options.priority))
    done, _ = await asyncio.wait({reading, printing, stop}, return_when=asyncio.FIRST_COMPLETED)
    reading.cancel()
    if not await group.leave():
        _print_status("the other members did not answer; their last messages may be missing here")
    await printing
    for task in done - {stop}:
        task.result()
    return 130 if stopping.is_set() else 0


async def _send_input_lines(group: unisono.Group, priority: int) -> None:
    """Multicast the lines of standard input one by one.

    A thread reads, so that terminals, pipes and files all work. It reads the next line when the group has accepted the
    previous one.
    """
    loop = asyncio.get_running_loop()
    ended = loop.create_future()

    def send(line: bytes) -> None:
        asyncio.run_coroutine_threadsafe(_send_line(group, line, priority), loop).result()

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
        except BaseException as error:  # noqa: BLE001 - passed to the loop, which raises it
            problem = error
        with contextlib.suppress(RuntimeError):  # the loop ended while this thread was reading
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


async def _send_line(group: unisono.Group, line: bytes, priority: int) -> None:
    try:
        await group.send(line.rstrip(b"\r"), priority=priority)
    except unisono.MessageTooLarge as error:
        _print_status(str(error))


async def _print_events(group: unisono.Group, as_json: bool) -> None:
    async for event in group:
        if as_json:
            sys.stdout.write(json.dumps(_event_json(event)) + "\n")
        elif isinstance(event, unisono.Delivery):
            mark = {None: "", Grade.EARLY: "early  ", Grade.FINAL: "final  "}[event.grade]
            sys.stdout.write(f"{mark}{event.sender}: {event.payload.decode(errors='replace')}\n")
        elif isinstance(event, unisono.Violation):
            _print_status(f"violation: {event.text}")
        elif isinstance(event, unisono.Notice):
            _print_status(event.text)
        elif isinstance(event, unisono.TimingChange):
            slot, bound = duration_text(event.timing.theta_ns), duration_text(event.bound_ns)
            _print_status(f"slots are now {slot} long; every delivery within {bound}")
        else:
            _print_status(f"members are now {', '.join(map(str, event.view.members))}")
        sys.stdout.flush()
    if as_json:
        stats = group.stats()
        row = {"event": "end", "sent": stats.sent, "delivered": stats.delivered, "bound_ms": ns_to_ms(stats.bound_ns)}
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()


def _event_json(event: unisono.Event) -> dict[str, object]:
    if isinstance(event, unisono.Delivery):
        text = event.payload.decode(errors="replace")
        return {
            "event": "delivery",
            "sender": event.sender,
            "sequence": event.sequence,
            "slot": event.slot,
            "text": text,
            **({} if event.grade is None else {"grade": event.grade.value}),
        }
    if isinstance(event, unisono.Violation):
        row: dict[str, object] = {
            "event": "violation",
            "violation": event.kind,
            "text": event.text,
            "member": event.member,
        }
        if isinstance(event, unisono.SlaViolation):
            row |= {"sla": event.sla, "metric": event.metric, "measured": event.measured, "offered": event.offered}
        return row
    if isinstance(event, unisono.Notice):
        return {"event": "notice", "notice": event.kind, "text": event.text, "member": event.member}
    if isinstance(event, unisono.TimingChange):
        slot_ms, bound_ms = ns_to_ms(event.timing.theta_ns), ns_to_ms(event.bound_ns)
        return {"event": "timing", "slot": event.slot, "slot_ms": slot_ms, "bound_ms": bound_ms}
    return {"event": "view", "members": event.view.members, "joined": event.joined, "left": event.left}


def _print_status(text: str) -> None:
    sys.stderr.write(f"-- {text}\n")
    sys.stderr.flush()
