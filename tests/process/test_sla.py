"""Agreements on real processes: a network that gets worse violates them, and every member reports it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.metric_streams import read_metrics

from unisono.model.text.scenario import parse_scenario
from unisono.model.text.sla import parse_slas
from unisono.qos.watch.sla_evaluation import SlaStatus, evaluate
from unisono.trace.metrics import read_stream

SLA = """
collect = "100ms"

[[sla]]
name = "few losses"
provider = "network"
consumer = "order"
metric = "loss"
bound = 0.02
probability = 0.99
window = "500ms"
"""


def unisono(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "unisono.cli.main", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ, check=False)


@pytest.fixture(scope="module")
def degraded(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, object], Path]:
    folder = tmp_path_factory.mktemp("degraded")
    (folder / "sla.toml").write_text(SLA, encoding="utf-8")
    done = unisono(
        *("demo", "--members", "3", "--seconds", "4", "--loss-burst", "6", "--degrade", "0.25@1500ms", "--json"),
        *("--sla", str(folder / "sla.toml"), "--out", str(folder / "out")),
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), folder


def test_a_degraded_network_violates_the_agreement_at_every_member(degraded: tuple[dict[str, object], Path]) -> None:
    result, _ = degraded
    events = result["qos"]
    assert isinstance(events, list)
    broken = [event for event in events if event["what"] == "sla"]
    assert {event["member"] for event in broken} == {1, 2, 3}
    assert {event["sla"] for event in broken} == {"few losses"}
    assert result["verdict"] == "valid", "the order holds all the same"


def test_the_metric_files_give_the_same_verdict_afterwards(degraded: tuple[dict[str, object], Path]) -> None:
    _, folder = degraded
    (sla,) = parse_slas(SLA.replace('"order"', '"vbr"'), "sla.toml").slas
    streams = sorted(folder.glob("out/run=*/group=*/metrics/*.jsonl"))
    assert len(streams) == 3
    for stream in streams:
        records = list(read_stream(stream))
        assert records == read_metrics(stream.with_suffix(".parquet"))
        rows = [record.row for record in records]
        windows = sorted({row.window_start_ns // sla.window_ns for row in rows})
        kept = [
            evaluate(sla, [r for r in rows if r.window_start_ns // sla.window_ns == w], w * sla.window_ns).status
            for w in windows
        ]
        assert SlaStatus.VIOLATED in kept
        assert SlaStatus.HELD in kept


def test_a_wrong_file_is_refused_with_its_line_and_field(tmp_path: Path) -> None:
    path = tmp_path / "sla.toml"
    path.write_text(SLA.replace("bound = 0.02", "bound = 2"), encoding="utf-8")
    done = unisono("demo", "--members", "2", "--seconds", "1", "--sla", str(path))
    assert done.returncode == 2
    assert f"{path}:9: sla[1].bound: expected a share from 0 to less than 1 for loss, got 2" in done.stderr
    path.write_text(SLA.replace('"order"', '"rmcast"'), encoding="utf-8")
    done = unisono("demo", "--members", "2", "--seconds", "1", "--sla", str(path))
    assert done.returncode == 2
    problem = (
        "sla[1].consumer: there is no layer rmcast in this stack; its layers are application, vbr, network "
        "('few losses')"
    )
    assert f"{path}:7: {problem}" in done.stderr
    path.write_bytes(b"\xff\xfe nothing of the kind")
    done = unisono("demo", "--members", "2", "--seconds", "1", "--sla", str(path))
    assert (done.returncode, done.stderr) == (
        2,
        f"unisono demo: {path}: expected text in UTF-8, but byte 1 is not valid; save it as UTF-8\n",
    )


@pytest.fixture(scope="module")
def negotiated() -> dict[str, Any]:
    """The JSON of a demo with a group that negotiates, and whose network gets worse."""
    done = unisono(
        *("demo", "--members", "3", "--seconds", "6", "--loss", "0.05", "--order", "vbr", "--reliable", "rmcast"),
        *("--degrade", "0.2@2s", "--json"),
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def adapted(result: dict[str, Any]) -> dict[int, set[tuple[int, str]]]:
    events = result["qos"]
    return {
        m: {(e["slot"], e["text"]) for e in events if e["what"] == "adapted" and e["member"] == m} for m in (1, 2, 3)
    }


def test_the_demo_negotiates_degrades_violates_and_adapts(negotiated: dict[str, Any]) -> None:
    assert negotiated["verdict"] == "valid"
    assert negotiated["negotiation"]["rho"] >= 1
    played = Path(negotiated["trace"]) / "scenario.toml"
    reliable = parse_scenario(played.read_text(encoding="utf-8"), "played").reliable
    assert reliable is not None
    assert (reliable.rho, reliable.adaptive) == (
        negotiated["negotiation"]["rho"],
        negotiated["negotiation"]["adaptive"],
    )
    assert reliable.adaptive == "counting", "what runs is what was negotiated"
    assert any("needs a loss of at most" in step for step in negotiated["negotiation"]["steps"])
    assert {event["sla"] for event in negotiated["qos"] if event["what"] == "sla"} >= {"few losses"}
    more = [f"ρ = {rho}" for rho in range(negotiated["negotiation"]["rho"] + 1, 7)]
    for member, changes in adapted(negotiated).items():
        assert any(words in text for _, text in changes for words in more), (member, negotiated["qos"])


def test_the_members_of_the_demo_change_together(negotiated: dict[str, Any]) -> None:
    """Every member present at a change made it at the same slot and to the same settings."""
    settings: dict[int, dict[int, str]] = {}
    for member, changes in adapted(negotiated).items():
        for slot, text in changes:
            if "this member rejoined" not in text:
                settings.setdefault(slot, {})[member] = text.partition(";")[0]
    for slot, by_member in settings.items():
        assert len(set(by_member.values())) == 1, (slot, negotiated["qos"])
    assert any(len(by_member) == 3 for by_member in settings.values()), negotiated["qos"]


def test_an_infeasible_promise_is_answered_with_alternatives() -> None:
    words = ("--members", "5", "--loss", "0.3", "--delta", "5ms", "--slot", "5ms")
    done = unisono("demo", *words, "--reliable", "rmcast")
    assert done.returncode == 1
    assert "not feasible" in done.stderr
    assert "the best offer is 0." in done.stderr
    assert "within 5ms" in done.stderr.partition("the best offer is")[2]
    done = unisono("demo", *words, "--reliable", "rmcast", "--reliability", "2")
    assert (done.returncode, done.stderr.partition(", not 2")[0]) == (
        2,
        "unisono demo: --reliability: expected a probability above 0 and below 1",
    )
