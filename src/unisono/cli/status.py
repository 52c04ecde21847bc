"""`unisono status`: what the members that run on this machine know of their groups."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from unisono.cli.options import add_command, add_json
from unisono.cli.output import print_json
from unisono.errors import UnisonoError
from unisono.runtime.status_socket import RunningMembers, read_statuses, status_folder

ANSWER_TIMEOUT_S = 2.0


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `unisono status` and its options to the command line."""
    verb = add_command(
        verbs,
        "status",
        summary="show what the members running on this machine know of their groups",
        description="Show the members of this user that run on this machine: role, leader, majority, peers, queues, "
        "plan, and the measured delays and clock differences. Each member answers for itself, so two members may know "
        "different things while the network is cut.",
        examples=(
            "unisono status                      # all groups",
            "unisono status table-7              # one group",
            "unisono status table-7 --member 2   # one member of it",
            "unisono status table-7 --json       # for programs",
        ),
        notes="role         joining, leader, follower, member (no leader), blocked (no majority), left\n"
        "majority     no: nothing becomes final until more members are up and reachable\n"
        "peers        up, suspected (does not respond) or left; last heard, delay, loss (only with\n"
        "             metrics), and lag: how many log entries the peer lacks\n"
        "undelivered  messages that the member has accepted and not yet delivered to itself\n\n"
        "With --json the fields are those of the first member shown; `running` has all of them.\n"
        "A member started with status_socket = false does not appear.\n\n"
        "exit status: 0 a member was found, 2 none was found.",
    )
    verb.add_argument("group", metavar="GROUP", nargs="?", help="name of a group (default: all groups)")
    verb.add_argument("--member", type=int, metavar="N", help="only this member")
    add_json(verb)
    verb.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run `unisono status`: read the status of the members on this machine and print it; return the exit status."""
    running = read_statuses(ANSWER_TIMEOUT_S)
    chosen = [
        status
        for status in running.statuses
        if options.group in (None, status["group"]) and options.member in (None, status["member"])
    ]
    if not chosen:
        raise UnisonoError(_nothing_found(options, running))
    if options.json:
        print_json({**chosen[0], "running": chosen, "silent": list(running.silent)})
        return 0
    sys.stdout.write("\n\n".join("\n".join(status_lines(status)) for status in chosen) + "\n")
    for name in running.silent:
        sys.stdout.write(f"\n{name} gives no status: its process is paused or overloaded, or is no member\n")
    return 0


def _nothing_found(options: argparse.Namespace, running: RunningMembers) -> str:
    what = "no member" if options.member is None else f"no member {options.member}"
    what += "" if options.group is None else f" of group {options.group!r}"
    found = ", ".join(f"{status['group']}/{status['member']}" for status in running.statuses) or "none"
    silent = f"; without an answer: {', '.join(running.silent)}" if running.silent else ""
    return f"{what} of this user runs on this machine (in {status_folder()}); running members: {found}{silent}"


def status_lines(status: dict[str, Any]) -> Iterator[str]:
    """The lines that show one member's status."""
    leader = "" if status["leader"] in (None, status["member"]) else f", leader {status['leader']}"
    majority = {True: ", has a majority", False: ", has no majority", None: ""}[status["majority"]]
    yield f"group {status['group']}, member {status['member']}: {status['role']}{leader}{majority}"
    yield f"  members   {', '.join(map(str, status['members']))}"
    yield f"  plan      {status['plan']}"
    yield f"  measured  delay {_ms(status['delta_ms'])}, clocks within {_ms(status['gamma_ms'])}, bound " + _ms(
        status["bound_ms"]
    )
    yield (
        f"  messages  {status['sent']} sent, {status['delivered']} delivered, {status['late']} late, "
        f"{status['undelivered']} undelivered"
    )
    yield (
        f"  waiting   {status['waiting_to_send']} to be sent, {status['waiting_for_application']} for the application"
    )
    yield from _table([("peer", "state", "last heard", "delay", "loss", "lag"), *map(_peer_row, status["peers"])])
    for reason, count in status["refused"].items():
        yield f"  refused   {count} datagrams: {reason}"
    for kind, seen in status["violations"].items():
        yield f"  violation {kind} × {seen['count']}, the last: {seen['last']}"


def _peer_row(peer: dict[str, Any]) -> tuple[str, ...]:
    heard = "never" if peer["last_heard_ms"] is None else f"{_ms(peer['last_heard_ms'])} ago"
    loss = "-" if peer["loss"] is None else f"{peer['loss']:.2%}"
    lag = "-" if peer["lag"] is None else str(peer["lag"])
    return str(peer["member"]), peer["state"], heard, _ms(peer["delay_ms"]), loss, lag


def _table(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _ms(time_ms: float | None) -> str:
    return "-" if time_ms is None else f"{time_ms:.3g} ms" if time_ms < 1000 else f"{time_ms / 1000:.1f} s"
