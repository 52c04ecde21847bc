"""`unisono member`: one member of a group. It multicasts the lines of standard input and prints deliveries."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

import unisono
from unisono.cli.options import add_command, add_option
from unisono.config import CONFIG_OPTIONS, Peers, read_config
from unisono.errors import InvalidOption
from unisono.group import open_group
from unisono.model.addresses import parse_address
from unisono.model.capabilities import orders_with
from unisono.model.events import Grade
from unisono.model.options import ORDER_NAMES, OrderName, options_of, order_options, text_options
from unisono.model.units import duration_text, ns_to_ms
from unisono.runtime.timers import new_incarnation
from unisono.trace.metrics import MetricWriter

DNS_PREFIX = "dns:"
RELIABLE_EXAMPLE = "--order vbr --reliable 4/6ms/2ms"
"""Options for reliable multicast that five members can start with on a link of the default capacity."""


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `unisono member` and its options to the command line."""
    verb = add_command(
        verbs,
        "member",
        summary="join a group: multicast lines of input, print deliveries",
        description="Join a group as one member. Each line of standard input is multicast, and each delivery is "
        "printed, in the same order at every member. The group starts when all members are up. The member leaves at "
        "the end of its input, or on Ctrl-C or SIGTERM; a second signal ends it at once.",
        examples=(
            "unisono member --id 1 --peers 1=127.0.0.1:9001,2=127.0.0.1:9002",
            "unisono member --id 2 --peers 1=127.0.0.1:9001,2=127.0.0.1:9002   # in a second terminal: a chat",
            "unisono member --members 3                                        # members find each other",
            f"unisono member --members 5 {RELIABLE_EXAMPLE}   # each datagram five times",
        ),
        notes="The group reserves link capacity for the declared rate. If the link has too little, give the size of\n"
        "your largest message (--max-message), a smaller --burst, or the real capacity (--link).\n\n"
        "exit status: 0 end of input, 3 the group did not form in time, 130 interrupted.",
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
    verb.add_argument("--group", help="name of the group, or a group reference (default unisono)")
    verb.add_argument(
        "--config", type=Path, metavar="FILE", help="TOML file with these options; options given here override it"
    )
    verb.add_argument(
        "--order",
        choices=("auto", *ORDER_NAMES),
        metavar="ORDER",
        help=f"auto chooses by --gaps (default); or one of {', '.join(ORDER_NAMES)}",
    )
    verb.add_argument(
        "--priority", type=int, default=0, help="priority of the lines; higher is more urgent (default 0)"
    )
    verb.add_argument("--rate", type=float, help="messages per second, on average (default 50)")
    verb.add_argument("--burst", type=int, help="messages per slot, at most (default 8)")
    for option in (*CONFIG_OPTIONS, *text_options()):
        add_option(verb, option)
    verb.add_argument("--metrics", metavar="DIR", help="write metrics to this folder, for `unisono monitor`")
    verb.add_argument(
        "--run",
        default="live",
        dest="run_name",
        metavar="NAME",
        help="name of the run in the metrics folder (default live)",
    )
    verb.add_argument(
        "--json", action="store_true", help="print one JSON object per line for each event, and nothing else"
    )
    verb.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run `unisono member`: join the group, send input lines, print deliveries; return the exit status."""
    return asyncio.run(_run_member(options))


def parse_peers(text: str) -> dict[int, str]:
    """Parse `--peers`, such as `1=HOST:PORT,2=HOST:PORT`."""
    peers: dict[int, str] = {}
    for part in text.split(","):
        number, equals, address = part.strip().partition("=")
        if not equals or not number.isdigit():
            raise InvalidOption("--peers", f"expected a list such as 1=127.0.0.1:9001,2=127.0.0.1:9002, not {part!r}")
        if int(number) in peers:
            raise InvalidOption("--peers", f"expected each member once, but member {number} is listed twice")
        peers[int(number)] = address
    return peers


def _peers(options: argparse.Namespace) -> Peers | None:
    """The members by `--peers`, `--members`, `--beacon` and `--interface`; None if none of them is given."""
    text, members = options.peers, options.members
    if text is not None and not text.startswith(DNS_PREFIX):
        return parse_peers(text)
    if members is None:
        if text is not None or options.beacon is not None or options.interface is not None:
            raise InvalidOption("--members", "expected the number of members to find, got none")
        return None
    if text is not None:
        name, port = parse_address("--peers", text.removeprefix(DNS_PREFIX))
        return unisono.Dns(name=name, port=port, members=members)
    return unisono.Beacon(members=members, address=options.beacon, interface=options.interface)


def configuration(options: argparse.Namespace) -> unisono.Config:
    """The configuration: the file of `--config`, overridden by the options that are given."""
    base = unisono.Config() if options.config is None else read_config(options.config)
    given: dict[str, Any] = {"group": options.group, "member": options.id, "peers": _peers(options)}
    given |= {"order": _order(options, base.order), "rate": _rate(options, base.rate)}
    given |= {option.name: getattr(options, option.name) for option in CONFIG_OPTIONS}
    network = replace(base.network, **_given_fields(unisono.Network, given))
    observe = replace(base.observe, **_given_fields(unisono.Observe, given))
    return replace(base, **_given_fields(unisono.Config, given), network=network, observe=observe)


def _given_fields(made: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are given and are fields of `made`."""
    names = {field.name for field in fields(made)}
    return {name: value for name, value in given.items() if name in names and value is not None}


def _order(
    options: argparse.Namespace, configured: OrderName | Literal["auto"] | unisono.OrderOptions
) -> OrderName | Literal["auto"] | unisono.OrderOptions:
    """The order by `--order` and the options of orders, which are added to those of the configuration file."""
    values = {option.name: getattr(options, option.name) for option in text_options()}
    values = {name: value for name, value in values.items() if value is not None}
    if values.get("loss_burst"):
        values.setdefault("failures", True)  # lost messages are gaps
    if options.order is None and isinstance(configured, unisono.OrderOptions):
        known = {option.name for option in options_of(type(configured))}
        if values.keys() <= known:
            return replace(configured, **values)
    name = options.order or (configured if isinstance(configured, str) else configured.name)
    if name == "auto":
        if values:
            flag = "--" + next(iter(values)).replace("_", "-")
            raise InvalidOption(flag, "is an option of an order; name the order too, such as --order vbr")
        return "auto"
    return order_options(name, values)


def _rate(options: argparse.Namespace, configured: unisono.Rate) -> unisono.Rate:
    avg, burst = options.rate, options.burst
    return replace(
        configured, avg=configured.avg if avg is None else avg, burst=configured.burst if burst is None else burst
    )


async def _run_member(options: argparse.Namespace) -> int:
    config = configuration(options)
    if options.metrics is None:
        return await _run_in_group(options, config, None)
    if config.member is None:
        raise InvalidOption("--metrics", "give --id too, because the file is named after the member")
    writer = MetricWriter(options.metrics, options.run_name, config.group, config.member, incarnation=new_incarnation())
    with writer:
        return await _run_in_group(options, config, writer)


async def _run_in_group(options: argparse.Namespace, config: unisono.Config, metrics: MetricWriter | None) -> int:
    if metrics is not None:
        config = replace(config, observe=replace(config.observe, metrics=metrics.put))
    joining = open_group(config, incarnation=None if metrics is None else metrics.incarnation)
    stopping = _stopping_on_signals()
    if not options.json:
        _print_log_lines()
        name = f"member {config.member}" if config.member is not None else "a member"
        _print_status(f"{name} of {config.group!r}: waiting for the other members …")
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


def _stopping_on_signals() -> asyncio.Event:
    """An event that the first SIGINT or SIGTERM sets. The second one cancels the current task, which ends at once."""
    loop, task, stopping = asyncio.get_running_loop(), asyncio.current_task(), asyncio.Event()

    def stop() -> None:
        if not stopping.is_set():
            stopping.set()
            _print_status("leaving the group; another signal ends this member at once")
        elif task is not None:
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    return stopping


def _print_log_lines() -> None:
    """Print the log lines of the group on standard error. They say everything that happens beside deliveries."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("-- %(message)s"))
    logger = logging.getLogger("unisono")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    logger.propagate = False


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
            sys.stdout.write(json.dumps(event_json(event)) + "\n")
        elif isinstance(event, unisono.Delivery):
            mark = {None: "", Grade.EARLY: "early  ", Grade.FINAL: "final  "}[event.grade]
            sys.stdout.write(f"{mark}{event.sender}: {event.payload.decode(errors='replace')}\n")
        sys.stdout.flush()
    if as_json:
        stats = group.stats()
        row = {"event": "end", "sent": stats.sent, "delivered": stats.delivered, "bound_ms": ns_to_ms(stats.bound_ns)}
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()


def event_json(event: unisono.Event) -> dict[str, object]:
    """The row that `--json` prints for an event."""
    if isinstance(event, unisono.Delivery):
        text = event.payload.decode(errors="replace")
        return {
            "event": "delivery",
            "sender": event.sender,
            "sequence": event.sequence,
            "slot": event.slot,
            "text": text,
            **({} if event.grade is None else {"grade": event.grade.value}),
            **({"late": True} if event.late else {}),
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
        elif isinstance(event, unisono.LateDeliveries):
            row |= {"slot": event.slot, "count": event.count, "late_by_ms": ns_to_ms(event.late_by_ns)}
        return row
    if isinstance(event, unisono.Notice):
        return {"event": "notice", "notice": event.kind, "text": event.text, "member": event.member}
    if isinstance(event, unisono.TimingChange):
        slot_ms, bound_ms = ns_to_ms(event.timing.theta_ns), ns_to_ms(event.bound_ns)
        return {"event": "timing", "slot": event.slot, "slot_ms": slot_ms, "bound_ms": bound_ms}
    if isinstance(event, unisono.Gap):
        numbers = {"first": event.first, "last": event.last, "count": event.count}
        return {"event": "gap", "sender": event.sender, "slot": event.slot, **numbers}
    return {"event": "view", "members": event.view.members, "joined": event.joined, "left": event.left}


def _print_status(text: str) -> None:
    sys.stderr.write(f"-- {text}\n")
    sys.stderr.flush()
