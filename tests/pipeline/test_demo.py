"""The demo ends with Spark's verdict on its own trace; without Spark it says so, and judges all the same."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from unisono.cli.main import main
from unisono.pipeline import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHORT = ("demo", "--members", "3", "--seconds", "0.5", "--delta", "200ms", "--verify", "spark")


@pytest.fixture
def shared(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def running(*_: object) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(session, "spark_session", running)


def test_spark_says_what_the_checkers_say(shared: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for run in ("first", "again"):  # a folder may hold other runs
        assert main([*SHORT, "--json", "--out", str(tmp_path)]) == 0, run
        result = json.loads(capsys.readouterr().out)
        spark = result["spark"]
        assert spark["verdict"] == result["verdict"] == "valid"
        assert spark["differs"] == []
        assert spark["events"] > result["sent"] + sum(result["delivered"].values()), "and starts and leaves"
        assert spark["checks"].keys() == result["checks"].keys()


def test_for_people(shared: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SHORT, "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    assert "on Spark: valid, same as in-process" in shown.out
    assert "verifying the trace on Spark" in shown.err


def test_without_pyspark(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    assert main([*SHORT, "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "verdict: valid" in shown
    assert "on Spark: not verified: pyspark is not installed: pip install 'unisono[pipeline]'" in shown
