"""What several verbs' command lines share."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from unisono.errors import InvalidPolicy
from unisono.model.durations import duration_ns


def duration(text: str) -> int:
    """An argparse type: a duration with a unit, as nanoseconds."""
    try:
        return duration_ns(text)
    except InvalidPolicy as error:
        raise argparse.ArgumentTypeError(error.problem) from error


def add_json(verb: argparse.ArgumentParser) -> None:
    """`--json`."""
    verb.add_argument("--json", action="store_true", help="print one JSON object and nothing else")


def add_timing(verb: argparse.ArgumentParser, delta: str, gamma: str) -> None:
    """`--slot`, `--delta`, `--gamma`."""
    verb.add_argument("--slot", type=duration, default="5ms", metavar="Θ", help="length of a slot (default 5ms)")
    verb.add_argument(
        "--delta", type=duration, default=delta, metavar="Δ", help=f"the network's largest delay (default {delta})"
    )
    verb.add_argument(
        "--gamma", type=duration, default=gamma, metavar="Γ", help=f"largest clock difference (default {gamma})"
    )


def add_rate(verb: argparse.ArgumentParser) -> None:
    """`--rate`, `--burst`, `--max-message`."""
    verb.add_argument("--rate", type=float, default=50, help="messages per second and member, on average (default 50)")
    verb.add_argument("--burst", type=int, default=8, help="messages per slot and member, at most (default 8)")
    verb.add_argument("--max-message", type=int, default=4096, help="largest message in bytes (default 4096)")


def print_json(value: dict[str, Any]) -> None:
    """The one JSON object."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")
