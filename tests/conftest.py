"""Hypothesis profiles, a fixture that hides zfec, and which tests stay together when several processes run them.

Properties have no deadline: their result must not depend on the speed of the machine.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from tests.worlds.coders import forget_coders
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from xdist.remote import Producer

# print_blob: a failure prints the decorator that replays it.
settings.register_profile("local", deadline=None, print_blob=True)
settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True, database=None)
settings.load_profile("ci" if os.environ.get("CI") else "local")

TOGETHER = ("tests/pipeline/", "tests/process/test_packaging.py", "tests/process/test_sla.py")
"""Tests that share a Spark session, a build or a run of processes, whose set-up takes longer than the tests."""


class Together(LoadScopeScheduling):  # type: ignore[misc]
    """Runs each test on any free process, but all tests of one entry of TOGETHER on the same process.

    The mark `xdist_group` should do the same but is ignored: https://github.com/pytest-dev/pytest-xdist/issues/1386
    """

    def _split_scope(self, nodeid: str) -> str:
        return next((shared for shared in TOGETHER if nodeid.startswith(shared)), nodeid)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-transcripts", action="store_true", help="write the present outputs into tests/transcripts/*.txt"
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Together | None:
    return Together(config, log) if config.getvalue("dist") == "loadgroup" else None


@pytest.fixture
def without_zfec(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make the test run as on a machine without zfec."""
    monkeypatch.setitem(sys.modules, "zfec", None)
    forget_coders()
    yield
    forget_coders()
