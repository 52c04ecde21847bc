"""What several verbs' command lines share."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unisono.errors import InvalidOption, UnisonoError
from unisono.model.durations import duration_ns
from unisono.model.redundancy import Adaptive, Redundancy
from unisono.model.timing import DELTA_DEFAULT, GAMMA_DEFAULT, SLOT_DEFAULT

# TC
if TYPE_CHECKING:
    from unisono.pipeline.session import SparkChoice
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console


def duration(text: str) -> int:
    """An argparse type: a duration with a unit, as nanoseconds."""
    try:
        return duration_ns(text)
    except InvalidOption as error:
        raise argparse.ArgumentTypeError(error.problem) from error


def iso_time(text: str) -> int:
    """An argparse type: a time in ISO 8601, UTC unless it says otherwise, as nanoseconds since the Unix epoch."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"a time such as 2026-11-16T10:30 was expected, not {text!r}") from error
    since = (at if at.tzinfo else at.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return since // timedelta(microseconds=1) * 1000


def add_json(verb: argparse.ArgumentParser) -> None:
    """`--json`."""
    verb.add_argument("--json", action="store_true", help="print one JSON object and nothing else")


def add_timing(verb: argparse.ArgumentParser) -> None:
    """`--slot`, `--delta`, `--gamma`; the defaults are those of `join`."""
    for option, default, letter, what in (
        ("--slot", SLOT_DEFAULT, "Θ", "length of a slot"),
        ("--delta", DELTA_DEFAULT, "Δ", "the network's largest delay"),
        ("--gamma", GAMMA_DEFAULT, "Γ", "largest difference between two clocks"),
    ):
        verb.add_argument(option, type=duration, default=default, metavar=letter, help=f"{what} (default {default})")


def add_rate(verb: argparse.ArgumentParser) -> None:
    """`--rate`, `--burst`, `--max-message`."""
    verb.add_argument("--rate", type=float, default=50, help="messages per second and member, on average (default 50)")
    verb.add_argument("--burst", type=int, default=8, help="messages per slot and member, at most (default 8)")
    verb.add_argument("--max-message", type=int, default=4096, help="largest message in bytes (default 4096)")


LOCAL_MASTER = "local[*]"
"""Where Spark runs unless told: on this machine."""


def add_spark(verb: argparse.ArgumentParser) -> None:
    """`--master`, `--spark-config`."""
    verb.add_argument(
        "--master",
        default=LOCAL_MASTER,
        help="where Spark runs: local[*], spark://host:7077, yarn, k8s://…, sc://host for Spark Connect; "
        f"none does without Spark (default {LOCAL_MASTER})",
    )
    verb.add_argument("--spark-config", type=Path, metavar="FILE", help="TOML file with a table [spark] of settings")


def spark_choice(options: argparse.Namespace) -> SparkChoice:
    """What those two say."""
    from unisono.pipeline.session import SparkChoice  # noqa: PLC0415 - only verbs that use Spark pay for it

    return SparkChoice(options.master, options.spark_config)


def add_tolerance(verb: argparse.ArgumentParser) -> None:
    """`--failures`, `--fec`, `--loss-burst`, `--reliable`, `--processing`: what the order is to put up with."""
    verb.add_argument("--failures", action="store_true", help="let members crash, come and go: the order may have gaps")
    verb.add_argument("--fec", metavar="a/b", help="forward error correction against a lost of any b consecutive")
    verb.add_argument(
        "--loss-burst",
        type=int,
        default=0,
        metavar="x",
        help="most consecutive losses of one sender; what is lost is a gap, so this allows for failures too",
    )
    verb.add_argument(
        "--reliable",
        metavar="ρ/η[/ω[/RULE]]",
        help="multicast everything ρ+1 times, η apart, and take over for who falls silent, such as 4/6ms/2ms; "
        "RULE is none, heuristic or counting: how receivers save broadcasts; "
        "`demo` also takes rmcast, and negotiates and adapts them",
    )
    verb.add_argument(
        "--processing",
        type=duration,
        default="0ms",
        metavar="p",
        help="what a leader takes over one message (default 0ms)",
    )


def parse_fec(text: str | None) -> tuple[int, int] | None:
    """`a/b` as two numbers."""
    if text is None:
        return None
    a, slash, b = text.partition("/")
    if not slash or not a.isdigit() or not b.isdigit():
        raise InvalidOption("--fec", f"a/b such as 2/10 is needed, not {text!r}")
    return int(a), int(b)


def parse_reliable(text: str | None) -> Redundancy | None:
    """`ρ/η`, `ρ/η/ω` or `ρ/η/ω/rule` as what reliable multicast needs; the rule is how receivers lengthen ω."""
    if text is None:
        return None
    rho, *parts = text.split("/")
    durations, rules = parts[:2], parts[2:]
    if not rho.isdigit() or not durations or len(rules) > 1:
        raise InvalidOption("--reliable", f"ρ/η or ρ/η/ω such as 4/6ms/2ms is needed, not {text!r}")
    eta_ns, *omega_ns = [duration_ns(part, "--reliable") for part in durations]
    known: dict[str, Adaptive] = {"none": "none", "heuristic": "heuristic", "counting": "counting"}
    rule = known.get(rules[0]) if rules else "none"
    if rule is None:
        raise InvalidOption("--reliable", f"after ω one of {', '.join(known)} is possible, not {rules[0]!r}")
    return Redundancy(int(rho), eta_ns, sum(omega_ns), rule)


def read_text(path: Path) -> str:
    """What a file says; UnisonoError names the file if it is not text."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UnisonoError(f"{path}: this is not text in UTF-8: byte {error.start + 1} is not") from error


def make_writable_folder(option: str, path: Path) -> None:
    """The folder that an option names, made and tried before hours of work and not after them."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        raise InvalidOption(option, f"{path} cannot be written ({error.strerror}); name another folder") from error


def print_json(value: dict[str, Any]) -> None:
    """The one JSON object."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


@contextmanager
def progress_reports(first_report: str, *, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Say what is going on, with the time that it has taken; a line each where there is no terminal."""
    console = Console(stderr=True)
    if quiet:
        yield _ignore_report
        return
    if not console.is_terminal:
        began = time.monotonic()
        sys.stderr.write(f"{first_report}\n")
        yield lambda text: print(f"{time.monotonic() - began:6.1f} s  {text}", file=sys.stderr)
        return
    with console.status(first_report) as status:
        yield status.update


def _ignore_report(text: str) -> None:
    """Nobody wants to know."""
