"""`unisono`: parses the command line, runs one command, and turns errors into exit statuses."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from enum import IntEnum

from unisono import __version__
from unisono.cli import compact, demo, experiment, member, monitor, plan, simulate, status, verify
from unisono.errors import (
    AddressInUse,
    FormationTimeout,
    Infeasible,
    MemberProcessFailed,
    MissingDependency,
    ReservationRefused,
    UnisonoError,
)


class ExitStatus(IntEnum):
    """The exit statuses of the command `unisono`. Scripts may rely on them."""

    SUCCESS = 0
    VIOLATED = 1
    BAD_INPUT = 2
    ENVIRONMENT = 3
    INTERRUPTED = 130


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of the whole command line, with all commands."""
    top = argparse.ArgumentParser(
        prog="unisono",
        description="Group communication with total order and latency bounds: every member delivers the same messages "
        "in the same order, within a known time. Start with `unisono demo`; `unisono COMMAND --help` explains each "
        "command.",
        epilog="Durations carry a unit: 5ms, 200us, 2s. Exit status: 0 success, 1 violated or infeasible, 2 bad input, "
        "3 something is missing on this machine, 130 interrupted.",
    )
    top.add_argument("--version", action="version", version=f"unisono {__version__}", help="print the version and exit")
    verbs = top.add_subparsers(dest="verb", metavar="COMMAND")
    for verb in (demo, member, status, simulate, plan, verify, compact, experiment, monitor):
        verb.add_parser(verbs)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    if options.verb is None:
        parser.print_help(sys.stderr)
        sys.stderr.write("\nunisono: expected one of the commands above\n")
        return ExitStatus.BAD_INPUT
    try:
        return int(options.run(options))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return ExitStatus.INTERRUPTED
    except BrokenPipeError:
        # The reader of standard output has closed it. Without this, Python would report that again when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitStatus.INTERRUPTED
    except (Infeasible, ReservationRefused) as error:
        status = ExitStatus.VIOLATED
        problem: Exception = error
    except (MissingDependency, AddressInUse, FormationTimeout, MemberProcessFailed) as error:
        status, problem = ExitStatus.ENVIRONMENT, error
    except (UnisonoError, OSError) as error:
        status, problem = ExitStatus.BAD_INPUT, error
    if isinstance(problem, OSError) and problem.filename is not None:
        problem = UnisonoError(f"{problem.filename}: {problem.strerror}")
    sys.stderr.write(f"unisono {options.verb}: {problem}\n")
    return status


def run() -> None:
    """Run the command in `sys.argv` and exit with its status."""
    sys.exit(main())


if __name__ == "__main__":
    run()
