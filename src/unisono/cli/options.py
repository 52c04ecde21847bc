"""The options that several commands share, and functions that parse their values."""

from __future__ import annotations

import argparse
import tempfile
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unisono.config import DELTA, GAMMA
from unisono.errors import InvalidOption, UnisonoError
from unisono.model.options import FAILURES, FEC_OPTION, FLAG, LOSS_BURST, PROCESSING, RELIABLE_OPTION, SLOT, Option
from unisono.model.policy import Redundancy
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


def add_option(verb: argparse.ArgumentParser, option: Option, **overrides: Any) -> None:
    """Add the command-line option of a definition; `overrides` are arguments of argparse. Not given means None."""
    form = option.form
    if form is None:
        raise AssertionError(f"the option {option.name} has no text form")
    flag = "--" + option.name.replace("_", "-")
    default = "" if option.default is None or form is FLAG else f" (default {form.text(option.default)})"
    settings: dict[str, Any] = {"default": None, "help": f"{option.meaning}{default}".replace("%", "%%")}
    if form is FLAG:
        settings["action"] = argparse.BooleanOptionalAction if option.default else "store_true"
    else:
        settings |= {"metavar": form.placeholder, "type": partial(_parsed, option)}
    verb.add_argument(flag, **(settings | overrides))


def _parsed(option: Option, text: str) -> Any:
    """The value of a command-line option, for argparse."""
    if option.form is None:
        raise AssertionError(f"the option {option.name} has no text form")
    try:
        return option.form.parse(option.name, text)
    except InvalidOption as error:
        raise argparse.ArgumentTypeError(error.problem) from error


def add_timing(verb: argparse.ArgumentParser) -> None:
    """Add the options `--slot`, `--delta` and `--gamma`, in nanoseconds, with the defaults of `join`."""
    for option, default in ((SLOT, SLOT_DEFAULT), (DELTA, DELTA_DEFAULT), (GAMMA, GAMMA_DEFAULT)):
        add_option(verb, option, type=duration, default=default)


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
    """Add the options of orders that say which failures, losses and delays the order has to tolerate."""
    add_option(verb, FAILURES, default=False)
    add_option(verb, FEC_OPTION, type=str)
    add_option(verb, LOSS_BURST, default=0)
    rmcast = f"{RELIABLE_OPTION.meaning}. rmcast negotiates and adapts these values"
    add_option(verb, RELIABLE_OPTION, type=str, help=rmcast)
    add_option(verb, PROCESSING, type=duration, default="0ms")


def parse_fec(text: str | None) -> tuple[int, int] | None:
    """Parse the value of `--fec`, such as `2/10`, into two numbers; None for None."""
    return None if text is None else _FEC_FLAG.parse(text)


def parse_reliable(text: str | None) -> Redundancy | None:
    """Parse the value of `--reliable`, such as `4/6ms/2ms`; None for None."""
    return None if text is None else _RELIABLE_FLAG.parse(text)


_FEC_FLAG, _RELIABLE_FLAG = replace(FEC_OPTION, name="--fec"), replace(RELIABLE_OPTION, name="--reliable")
"""The definitions under the names that the command line has, for errors."""


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
