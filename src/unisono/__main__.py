"""`python -m unisono` and the console script `unisono`.

This module answers `--version` itself and loads the commands only afterwards. So the version is available at once, and
also on an installation that lacks numpy, pyarrow or rich, which the commands need.
"""

from __future__ import annotations

import sys

from unisono import __version__

_MISSING_DEPENDENCY = 3
"""The exit status of the command line for a machine that lacks something (`Exit` in `unisono.cli`)."""


def run() -> None:
    """Run the command line and end the process with its exit status."""
    if sys.argv[1:2] == ["--version"]:
        sys.stdout.write(f"unisono {__version__}\n")
        return
    try:
        from unisono.cli.main import run as run_command  # noqa: PLC0415  loads numpy, pyarrow and rich
    except ModuleNotFoundError as error:
        package = (error.name or "unisono").partition(".")[0]
        if package == "unisono":
            raise
        sys.stderr.write(
            f"unisono: the command line needs the package {package}, which is not installed. "
            f"Install it with: {sys.executable} -m pip install {package}\n"
        )
        sys.exit(_MISSING_DEPENDENCY)
    run_command()


if __name__ == "__main__":
    run()
