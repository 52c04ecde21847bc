"""`unisono simulate --swarm KIND`: random scenarios, one per seed, each with a verdict and a command to replay it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from unisono.check.verdict import Status
from unisono.cli import simulate
from unisono.cli.main import main
from unisono.cli.swarm import DEFAULT_SEEDS, SWARMS, SwarmPromise
from unisono.model.faults import Pause
from unisono.trace.files import read_trace

BROKEN_PROMISE = replace(SWARMS["stormy"], promise=SwarmPromise.EVERYTHING)
"""Losses and crashes beyond the assumptions of vbr violate gap freedom, if that is promised."""


def swarm_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    status = main(["simulate", "--swarm", *arguments, "--json"])
    return status, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("kind", SWARMS)
def test_each_kind_is_valid_and_reports_the_documented_fields(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, found = swarm_json(capsys, kind, "--seeds", "0..1")
    assert (status, found["verdict"], found["witness"], found["swarm"]) == (0, "valid", None, kind)
    assert found["replay"] == f"unisono simulate --swarm {kind} --seed {found['seed']}"
    assert found["counts"] == {"valid": 2, "unknown": 0, "violated": 0}
    for field in ("deliveries", "latency_max_ms", "bound_ms"):
        assert isinstance(found[field], int | float), field
    assert [run["seed"] for run in found["runs"]] == [0, 1]


def test_a_violated_seed_has_a_line_with_the_command_that_replays_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(SWARMS, "calm", BROKEN_PROMISE)
    assert main(["simulate", "--swarm", "calm", "--seeds", "0..3"]) == 1
    *lines, summary = capsys.readouterr().out.splitlines()
    status, found = swarm_json(capsys, "calm", "--seeds", "0..3")
    violated = [run for run in found["runs"] if run["verdict"] == "violated"]
    assert (status, found["verdict"]) == (1, "violated")
    assert found["witness"]["text"]
    assert violated
    assert lines == [
        f"seed {run['seed']}: {run['violated_check']}: {run['witness']['text']}; "
        f"replay: unisono simulate --swarm calm --seed {run['seed']}"
        for run in violated
    ]
    assert summary.startswith(f"4 seeds of calm: {4 - len(violated)} valid, 0 unknown, {len(violated)} violated")


def test_the_replay_command_repeats_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(SWARMS, "calm", BROKEN_PROMISE)
    _, found = swarm_json(capsys, "calm", "--seeds", "0..3")
    status, replayed = swarm_json(capsys, *found["replay"].split()[3:])
    assert status == 1
    assert (replayed["seed"], replayed["digest"]) == (found["seed"], found["digest"])
    assert main(["simulate", "--swarm", "calm", "--seed", str(found["seed"])]) == 1
    shown = capsys.readouterr().out
    assert found["witness"]["text"] in shown
    assert shown.endswith(f"replay:  {found['replay']}\n")


def test_a_check_that_the_kind_does_not_promise_is_shown_and_does_not_count(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The same scenarios as above, which violate gap freedom, are valid where only safety is promised."""
    status, found = swarm_json(capsys, "stormy", "--seeds", "0..3")
    assert (status, found["verdict"]) == (0, "valid")
    assert any(run["checks"]["gap_freedom"]["verdict"] == "violated" for run in found["runs"])


def test_a_paused_member_excuses_late_deliveries_and_nothing_else() -> None:
    swarm = SWARMS["churning"]
    excused = 0
    for seed in range(20):
        result, verdicts = swarm.run(seed)
        left_out = verdicts.keys() - swarm.promised_verdicts(result, verdicts).keys()
        if any(isinstance(fault, Pause) for fault in result.scenario.faults):
            assert left_out == {"latency"}
            excused += verdicts["latency"].status is Status.VIOLATED
        else:
            assert not left_out
    assert excused


def test_of_two_grades_only_safety_is_promised_for_early_deliveries() -> None:
    swarm = SWARMS["final_cbr"]
    result, verdicts = swarm.run(0)
    promised = swarm.promised_verdicts(result, verdicts)
    assert {name for name in promised if name.endswith("[early]")} == {
        "total_order[early]",
        "integrity[early]",
        "fifo[early]",
    }
    assert {name for name in verdicts if not name.endswith("[early]")} <= promised.keys()


def test_groups_are_also_checked_for_genuineness(capsys: pytest.CaptureFixture[str]) -> None:
    _, found = swarm_json(capsys, "multigroup", "--seed", "3")
    assert found["checks"]["genuineness"]["verdict"] == "valid"


def test_changed_slots_are_also_checked_against_the_bound_in_force(capsys: pytest.CaptureFixture[str]) -> None:
    _, found = swarm_json(capsys, "renegotiated", "--seed", "0")
    assert found["checks"]["latency_in_force"]["verdict"] == "valid"


def test_the_trace_of_a_seed_can_be_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, found = swarm_json(capsys, "any_order", "--seed", "7", "--trace", str(tmp_path))
    assert read_trace(tmp_path, run="swarm-seed-7").digest() == found["digest"]


def test_without_seeds_a_hundred_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(simulate, "DEFAULT_SEEDS", range(DEFAULT_SEEDS.start, 3))
    assert len(DEFAULT_SEEDS) == 100
    _, found = swarm_json(capsys, "any_order")
    assert [run["seed"] for run in found["runs"]] == [0, 1, 2]


def test_progress_is_shown_on_standard_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(simulate, "PROGRESS_EVERY_S", 0.0)
    main(["simulate", "--swarm", "any_order", "--seeds", "0..2"])
    assert capsys.readouterr().err.splitlines() == [
        "unisono simulate: 1 of 3 seeds, 0 not valid",
        "unisono simulate: 2 of 3 seeds, 0 not valid",
    ]


def test_help_lists_every_kind(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["simulate", "--help"])
    text = capsys.readouterr().out
    for kind, swarm in SWARMS.items():
        assert f"  {kind:<14}{swarm.description}" in text


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "give a scenario file or --swarm KIND, and not both"),
        (("scenarios/vbr_quickstart.toml", "--swarm", "calm"), "give a scenario file or --swarm KIND, and not both"),
        (("--swarm", "calm", "--seeds", "5"), "expected a range such as 1..50, not '5'"),
    ],
)
def test_contradictory_arguments_are_refused(
    arguments: tuple[str, ...], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", *arguments]) == 2
    assert problem in capsys.readouterr().err


def test_an_unknown_kind_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["simulate", "--swarm", "wild"])
    assert "'churning'" in capsys.readouterr().err
