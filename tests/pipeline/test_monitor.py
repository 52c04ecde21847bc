"""`unisono monitor` as a process: killed without warning, interrupted, asked for what cannot be."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.metric_streams import SLA, append_rows, interval_rows, lossy_between, write_run

from unisono.cli.main import main

LOSS = lossy_between(4, 8)
MEMBERS = (1, 2, 3)
PATIENCE_S = 240
MASTERS = ["none", pytest.param("local[2]", marks=pytest.mark.slow)]


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "unisono.cli.main", "monitor", *words]


def start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ)


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*words), capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def wait_for(what: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not what():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def kept(keep: Path, query: str) -> Any:
    """What a running job has kept so far."""
    path = keep / "measurement.sqlite"
    if not path.exists():
        return None
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        row = connection.execute(query).fetchone()
    except sqlite3.OperationalError:  # the tables are not there yet
        return None
    finally:
        connection.close()
    return None if row is None else row[0]


def rows_kept(keep: Path) -> int:
    state = kept(keep, "SELECT value FROM state")
    return 0 if state is None else int(json.loads(state)["rows"])


def has_kept(keep: Path, rows: int) -> bool:
    return rows_kept(keep) >= rows


def grow(trace: Path, first: int, last: int) -> None:
    for number in range(first, last):
        for member in MEMBERS:
            append_rows(trace, member, interval_rows(member, MEMBERS, number, LOSS))


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path, list[str]]:
    (tmp_path / "sla.toml").write_text(SLA, encoding="utf-8")
    trace, keep = tmp_path / "trace", tmp_path / "keep"
    write_run(trace, 2, LOSS)
    return trace, keep, [str(trace), "--sla", str(tmp_path / "sla.toml"), "--keep", str(keep), "--trigger", "50ms"]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("master", MASTERS)
def test_a_job_that_is_killed_loses_no_verdict_and_doubles_none(
    places: tuple[Path, Path, list[str]], master: str, tmp_path: Path
) -> None:
    trace, keep, words = places
    each = 3 * 11
    written = 2
    # Before the breach, right behind it, and when it is over.
    for until in (6, 8, 13):
        job = start(*words, "--master", master, "--json")
        grow(trace, written, until)
        written = until
        wait_for(partial(has_kept, keep, written * each), job)
        job.kill()
        job.communicate()
    grow(trace, written, 16)
    last = run(*words, "--master", master, "--once", "--json")
    assert last.returncode == 1, last.stderr
    result = json.loads(last.stdout)
    assert (result["events"], result["late"], result["damaged"], result["broken"]) == (16 * each, 0, 0, [])
    at_once = run(str(trace), "--sla", str(tmp_path / "sla.toml"), "--master", "none", "--once", "--json")
    whole = json.loads(at_once.stdout)
    for kind in ("violations", "cleared"):
        assert result[kind] == whole[kind]
        assert len(result[kind]) == 1
    (violation,) = result["violations"]
    assert (violation["sla"], violation["member"], violation["link"], violation["bound"]) == ("few losses", 2, 1, 0.05)
    assert {(e["member"], e["link"]) for e in whole["estimates"]} == {
        (m, p) for m in MEMBERS for p in MEMBERS if m != p
    }


@pytest.mark.timeout(600)
@pytest.mark.parametrize("master", MASTERS)
def test_an_interruption_ends_it_with_what_was_found(places: tuple[Path, Path, list[str]], master: str) -> None:
    trace, keep, words = places
    grow(trace, 2, 16)
    job = start(*words, "--master", master, "--json")
    wait_for(lambda: rows_kept(keep) >= 16 * 3 * 11, job)
    job.send_signal(signal.SIGINT)
    out, errors = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 130, errors
    assert len(json.loads(out)["violations"]) == 1
    assert "Traceback" not in errors


def test_it_stops_when_the_members_have_closed_their_streams(places: tuple[Path, Path, list[str]]) -> None:
    trace, keep, words = places
    job = start(*words, "--master", "none", "--until-end")
    wait_for(lambda: rows_kept(keep) > 0, job)
    grow(trace, 2, 16)
    for stream in trace.glob("run=*/group=*/metrics/*.jsonl"):
        stream.with_suffix(".parquet").touch()
    out, errors = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 1, errors
    assert "✗ g at member 2: 'few losses' between network and vbr: loss from member 1 was 0.2 of 400 in 1s" in out
    assert "✓ g at member" in out
    assert "violations: 1; SLAs violated now: 0" in out
    assert "never evaluated" not in out


def test_an_agreement_that_was_never_judged_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    (tmp_path / "sla.toml").write_text(SLA.replace('provider = "network"', 'provider = "rmcast"', 1), encoding="utf-8")
    write_run(tmp_path, 16, LOSS)
    words = ["monitor", str(tmp_path), "--sla", str(tmp_path / "sla.toml"), "--master", "none", "--once"]
    assert main(words) == 0
    assert "never evaluated in g: 'few losses': too few observations in each window, or one" in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unjudged"] == [{"run": "r", "group": "g", "sla": "few losses"}]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere", "--sla", "SLA"], "nowhere: is not a folder"),
        (["TRACE", "--sla", "SLA", "--id", "6"], "--join, --peers: give --join, --peers and --id together"),
        (["TRACE", "--sla", "SLA", "--master", "sc://localhost"], "it cannot use Spark Connect"),
        (["TRACE", "--sla", "missing.toml"], "missing.toml"),
        (["TRACE", "--sla", "SLA", "--window", "300ms"], "--window: expected a multiple of `collect`, 250ms"),
        (["TRACE", "--sla", "SLA", "--keep", "SLA"], "(File exists); name another folder"),
        (["EMPTY", "--sla", "SLA"], "has no metric streams; `unisono demo --out` and"),
    ],
)
def test_what_cannot_be_is_refused(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "sla.toml").write_text(SLA, encoding="utf-8")
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # this process keeps its handlers
    write_run(tmp_path / "trace", 2, LOSS)
    (tmp_path / "empty").mkdir()
    meant = {"SLA": "sla.toml", "TRACE": "trace", "EMPTY": "empty"}
    given = [str(tmp_path / meant[word]) if word in meant else word for word in words]
    assert main(["monitor", *given, "--once"]) == 2
    assert said in capsys.readouterr().err
