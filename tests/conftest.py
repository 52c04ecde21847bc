"""Hypothesis profiles, and which tests stay together where several processes run them.

A property is judged by its answer and never by how long this machine took.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from xdist.remote import Producer

# print_blob: a failure prints the decorator that replays it.
settings.register_profile("local", deadline=None, print_blob=True)
settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True, database=None)
settings.load_profile("ci" if os.environ.get("CI") else "local")

TOGETHER = ("tests/pipeline/", "tests/process/test_packaging.py", "tests/process/test_sla.py")
"""Tests that share a Spark session, a build or a run of processes, which takes longer than the tests themselves."""


class Together(LoadScopeScheduling):  # type: ignore[misc]
    """Each test goes to whichever process is free, but for those that share something.

    The mark `xdist_group` would say the same, and is not heeded: https://github.com/pytest-dev/pytest-xdist/issues/1386
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
