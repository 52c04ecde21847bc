"""The options that several commands share, and functions that parse their values."""

from __future__ import annotations

import argparse
import tempfile
import textwrap
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from unisono.errors import InvalidOption, UnisonoError
from unisono.model.policy import Adaptive, Redundancy
from unisono.model.timing import DELTA_DEFAULT, GAMMA_DEFAULT, SLOT_DEFAULT
from unisono.model.units import duration_ns

if TYPE_CHECKING:
    from unisono.pipeline.session import SparkChoice


def duration(text: str) -> int:
    """Parse a duration with a unit, such as 10ms, into nanoseconds, for argparse."""
    try:
        return duration_ns(text)
    except InvalidOption as error:
        raise argparse.ArgumentTypeError(error.problem) from error


def iso_time(text: str) -> int:
    """Parse an ISO 8601 time, UTC by default, into nanoseconds since the Unix epoch, for argparse."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected a time such as 2026-11-16T10:30, not {text!r}") from error
    since = (at if at.tzinfo else at.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return since // timedelta(microseconds=1) * 1000


HELP_WIDTH = 88


def add_command(
    verbs: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    *,
    summary: str,
    description: str,
    examples: Sequence[str],
    notes: str = "",
) -> argparse.ArgumentParser:
    """Add a command to the parser, and return the parser of the command.

    Its help shows the description, options, examples and notes; examples and notes keep their line breaks.
    """
    lines = ["examples:", *(f"  {example}" for example in examples), *(["", notes] if notes else [])]
    return verbs.add_parser(
        name,
        allow_abbrev=False,
        help=summary,
        description=textwrap.fill(description, HELP_WIDTH),
        epilog="\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_json(verb: argparse.ArgumentParser) -> None:
    """Add the option `--json`."""
    verb.add_argument("--json", action="store_true", help="print one JSON object and nothing else")


def add_timing(verb: argparse.ArgumentParser) -> None:
    """Add the options `--slot`, `--delta` and `--gamma`, with the defaults of `join`."""
    for option, default, letter, meaning in (
        ("--slot", SLOT_DEFAULT, "Θ", "length of a slot"),
        ("--delta", DELTA_DEFAULT, "Δ", "largest delay of the network"),
        ("--gamma", GAMMA_DEFAULT, "Γ", "largest difference between two clocks"),
    ):
        verb.add_argument(option, type=duration, default=default, metavar=letter, help=f"{meaning} (default {default})")


def add_rate(verb: argparse.ArgumentParser) -> None:
    """Add the options `--rate`, `--burst` and `--max-message`."""
    verb.add_argument("--rate", type=float, default=50, help="messages per second and member, on average (default 50)")
    verb.add_argument("--burst", type=int, default=8, help="messages per slot and member, at most (default 8)")
    verb.add_argument("--max-message", type=int, default=4096, help="largest message in bytes (default 4096)")


LOCAL_MASTER = "local[*]"
"""The default of `--master`: Spark runs on this machine, with all cores."""


def add_spark(verb: argparse.ArgumentParser, *, works_without: bool = True) -> None:
    """Add the options `--master` and `--spark-config`. The help lists `none` if the command works without Spark."""
    verb.add_argument(
        "--master",
        default=LOCAL_MASTER,
        help="where Spark runs: local[*], spark://host:7077, yarn, k8s://…, sc://host for Spark Connect"
        f"{'; none: without Spark' if works_without else ''} (default {LOCAL_MASTER})",
    )
    verb.add_argument(
        "--spark-config", type=Path, metavar="FILE", help="TOML file with Spark settings in a table [spark]"
    )


def spark_choice(options: argparse.Namespace) -> SparkChoice:
    """The Spark to use, from the values of `--master` and `--spark-config`."""
    from unisono.pipeline.session import SparkChoice  # noqa: PLC0415 - only commands that use Spark load it

    return SparkChoice(options.master, options.spark_config)


def add_tolerance(verb: argparse.ArgumentParser) -> None:
    """Add the options `--failures`, `--fec`, `--loss-burst`, `--reliable` and `--processing`.

    They say which failures, losses and delays the order has to tolerate.
    """
    verb.add_argument(
        "--failures", action="store_true", help="tolerate members that crash, join and leave; deliveries may have gaps"
    )
    verb.add_argument(
        "--fec", metavar="a/b", help="forward error correction: repair up to a losses in any b consecutive datagrams"
    )
    verb.add_argument(
        "--loss-burst",
        type=int,
        default=0,
        metavar="x",
        help="tolerate up to x consecutive losses of one sender; lost messages are gaps, so this implies --failures",
    )
    verb.add_argument(
        "--reliable",
        metavar="ρ/η[/ω[/RULE]]",
        help="reliable multicast, such as 4/6ms/2ms: send everything ρ+1 times, η apart; a receiver that misses the "
        "next copy for η+ω takes over. RULE is how receivers save broadcasts: none, heuristic or counting. `demo` also "
        "accepts rmcast, which negotiates and adapts these values",
    )
    verb.add_argument(
        "--processing",
        type=duration,
        default="0ms",
        metavar="p",
        help="time that a leader needs for one message (default 0ms)",
    )


def parse_fec(text: str | None) -> tuple[int, int] | None:
    """Parse the value of `--fec`, such as `2/10`, into two numbers; None for None."""
    if text is None:
        return None
    a, slash, b = text.partition("/")
    if not slash or not a.isdigit() or not b.isdigit():
        raise InvalidOption("--fec", f"expected a/b such as 2/10 (repair 2 losses in 10 datagrams), not {text!r}")
    return int(a), int(b)


def parse_reliable(text: str | None) -> Redundancy | None:
    """Parse the value of `--reliable`: `ρ/η`, `ρ/η/ω` or `ρ/η/ω/rule`; None for None.

    The rule says how receivers lengthen ω.
    """
    if text is None:
        return None
    rho, *parts = text.split("/")
    durations, rules = parts[:2], parts[2:]
    if not rho.isdigit() or not durations or len(rules) > 1:
        raise InvalidOption("--reliable", f"expected ρ/η, ρ/η/ω or ρ/η/ω/RULE such as 4/6ms/2ms, not {text!r}")
    eta_ns, *omega_ns = [duration_ns(part, "--reliable") for part in durations]
    known: dict[str, Adaptive] = {"none": "none", "heuristic": "heuristic", "counting": "counting"}
    rule = known.get(rules[0]) if rules else "none"
    if rule is None:
        raise InvalidOption("--reliable", f"expected one of {', '.join(known)} after ω, not {rules[0]!r}")
    return Redundancy.of_ns(int(rho), eta_ns, sum(omega_ns), rule)


def read_text(path: Path) -> str:
    """Read a text file; raises UnisonoError, with the name of the file, if it is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UnisonoError(
            f"{path}: expected text in UTF-8, but byte {error.start + 1} is not valid; save it as UTF-8"
        ) from error


def make_writable_folder(option: str, path: Path) -> None:
    """Create the folder that an option names and check that it is writable, before any long work starts."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        raise InvalidOption(option, f"cannot write to {path} ({error.strerror}); name another folder") from error
