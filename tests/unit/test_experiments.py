"""Experiments: tasks for other processes, tallies that add up in any order, intervals, and the command."""

import csv
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from argparse import Namespace
from contextlib import suppress
from math import inf, sqrt
from pathlib import Path

import pytest

from unisono.cli.experiment import format_table
from unisono.cli.main import ExitStatus, main
from unisono.errors import InvalidOption
from unisono.experiments.catalogue import EXPERIMENTS, find_experiment, run_task
from unisono.experiments.experiment import Experiment, ExperimentTask, Tally, result_rows, run_block, split_into_tasks
from unisono.experiments.intervals import difference_margin, mean_interval, share_interval
from unisono.pipeline.experiments import tally_path

PUBLISHED = {*(f"tapas-group-{group}" for group in range(1, 6)), *(f"tapas-fig{figure}" for figure in range(17, 25))}
SWEEPS = {"orders-latency", "slot-trade-off", "loss-remedies", "priority-latency", "optimistic-mistakes"}
NAMES = PUBLISHED | SWEEPS


def test_the_published_groups_and_figures_are_all_there() -> None:
    assert set(EXPERIMENTS) == NAMES
    assert all(len(one.description) > 60 for one in EXPERIMENTS.values())
    assert all(EXPERIMENTS[name].runs == 10_000 for name in PUBLISHED)


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_every_experiment_runs_and_its_rows_carry_intervals(name: str) -> None:
    experiment = find_experiment(name)
    work = split_into_tasks(experiment, runs=3)
    rows = result_rows(experiment, map(run_task, work))
    assert len(rows) >= len(experiment.points)
    for row in rows:
        assert "paper" in row
        lows = [column for column in row if column.endswith("_low")]
        for low in lows:
            assert low.removesuffix("_low") + "_high" in row
    assert any(column.endswith("_low") for row in rows for column in row)


@pytest.mark.parametrize("name", ["tapas-group-1", "tapas-group-5", "tapas-fig23", "tapas-fig24"])
def test_tables_of_broadcasts_have_their_columns(name: str) -> None:
    experiment = find_experiment(name)
    columns = {"n", "rho", "scenario", "adaptive", "broadcasts_mean", "broadcasts_low", "broadcasts_high", "paper"}
    for row in result_rows(experiment, map(run_task, split_into_tasks(experiment, runs=2))):
        assert columns <= row.keys()


def test_a_task_and_its_tally_are_small_and_can_be_pickled() -> None:
    (task, *_) = split_into_tasks(find_experiment("tapas-fig18"), runs=5)
    there = pickle.loads(pickle.dumps(task))
    result = pickle.dumps(run_task(there))
    assert len(result) < 4000
    assert pickle.loads(result)[1] == run_task(task)[1]


def test_blocks_cover_all_runs_and_have_their_own_random_numbers() -> None:
    experiment = find_experiment("tapas-group-1")
    work = split_into_tasks(experiment, runs=1234)
    assert sum(task.runs for task in work) == 2 * 1234
    assert len(work) == 2 * 3
    one, two = (run_block(experiment, task) for task in split_into_tasks(experiment, runs=1000)[::2])
    assert one.runs == two.runs == 500
    assert one.hits["r"] != two.hits["r"]


def test_the_table_does_not_depend_on_the_order_in_which_tasks_end() -> None:
    experiment = find_experiment("tapas-group-5")
    done = list(map(run_task, split_into_tasks(experiment, runs=40, seed=3)))
    assert result_rows(experiment, done) == result_rows(experiment, reversed(done))
    other = result_rows(experiment, map(run_task, split_into_tasks(experiment, runs=40, seed=4)))
    assert result_rows(experiment, done) != other


def test_tallies_add_up() -> None:
    whole = Tally()
    whole.add(Tally(2, {"x": 3.0}, {"x": 5.0}, {"h": [1, 2]}))
    whole.add(Tally(1, {"x": 2.0}, {"x": 4.0}, {"h": [0, 1]}))
    assert whole == Tally(3, {"x": 5.0}, {"x": 9.0}, {"h": [1, 3]})


def test_intervals_by_hand() -> None:
    values = [2.0, 4.0, 6.0, 8.0]
    mean, low, high = mean_interval(4, sum(values), sum(value * value for value in values))
    spread = sqrt(sum((value - 5) ** 2 for value in values) / 3 / 4)
    assert (mean, low, high) == pytest.approx((5, 5 - 1.96 * spread, 5 + 1.96 * spread), rel=1e-4)
    assert mean_interval(1, 3.0, 9.0) == (3.0, -inf, inf)
    # Wilson for 8 of 10, as in the textbooks.
    assert share_interval(10, 8) == pytest.approx((0.8, 0.490, 0.943), abs=5e-4)
    assert share_interval(100, 100)[2] == 1
    assert share_interval(100, 100)[1] == pytest.approx(0.963, abs=5e-4)
    assert difference_margin((50, 100), (50, 100)) == pytest.approx(1.96 * sqrt(0.005), rel=1e-4)


def test_an_unknown_experiment_and_zero_runs_are_refused() -> None:
    with pytest.raises(InvalidOption, match="tapas-fig17"):
        find_experiment("tapas-fig99")
    with pytest.raises(InvalidOption, match="runs"):
        split_into_tasks(find_experiment("tapas-fig18"), runs=0)


def test_the_command_prints_json_and_writes_table_and_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["experiment", "tapas-group-1", "--runs", "20", "--json", "--out", str(tmp_path), "--processes", "1"]) == 0
    )
    output = json.loads(capsys.readouterr().out)
    assert output["experiment"] == "tapas-group-1"
    assert output["out"] == str(tmp_path)
    assert [row["paper"] for row in output["rows"]] == [4.53, 5.37]
    for suffix in ("csv", "json", "png", "svg"):
        assert (tmp_path / f"tapas-group-1.{suffix}").stat().st_size > 100
    with (tmp_path / "tapas-group-1.csv").open(encoding="utf-8") as file:
        assert [float(row["paper"]) for row in csv.DictReader(file)] == [4.53, 5.37]


def test_without_matplotlib_the_table_is_written_and_the_missing_package_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    arguments = ["experiment", "tapas-group-1", "--runs", "3", "--out", str(tmp_path), "--master", "none"]
    assert main(arguments) == ExitStatus.ENVIRONMENT
    assert "pip install" in capsys.readouterr().err
    assert (tmp_path / "tapas-group-1.csv").exists()


def test_two_processes_make_the_same_table_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    def rows(processes: str) -> list[dict[str, object]]:
        arguments = ["experiment", "tapas-group-1", "--runs", "30", "--json", "--processes", processes]
        assert main(arguments) == 0
        found: list[dict[str, object]] = json.loads(capsys.readouterr().out)["rows"]
        return found

    assert rows("2") == rows("1")


def test_an_interruption_is_silent_and_keeps_finished_points(tmp_path: Path) -> None:
    # A minute of work, whose first point is there at once.
    arguments = ["experiment", "tapas-fig23", "--runs", "20000", "--processes", "2", "--out", str(tmp_path)]
    command = [sys.executable, "-m", "unisono.cli.main", *arguments]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        job = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    finally:
        signal.signal(signal.SIGINT, before)
    with job:
        try:
            deadline = time.monotonic() + 120
            while not tally_path(tmp_path, "tapas-fig23", 0).exists():
                assert job.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.01)
            os.killpg(job.pid, signal.SIGINT)  # as a terminal does, to all of them
            assert job.stderr is not None
            assert job.stderr.read() == ""
            assert job.wait(60) == ExitStatus.INTERRUPTED
        finally:
            with suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)
    assert not tally_path(tmp_path, "tapas-fig23", 14).exists()


def test_the_command_prints_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["experiment", "tapas-group-3", "--runs", "5", "--master", "none"]) == 0
    said = capsys.readouterr().out
    assert "Group 3" in said
    assert "8.48" in said


def test_the_list_describes_each_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["experiment", "--list"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in NAMES)
    assert main(["experiment", "--list", "--json"]) == 0
    assert {one["name"] for one in json.loads(capsys.readouterr().out)["experiments"]} == NAMES


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "NAME"),
        (["tapas-fig99"], "tapas-fig99"),
        (["tapas-fig18", "--runs", "0"], "runs"),
        (["tapas-fig18", "--processes", "0"], "--processes"),
        (["tapas-fig18", "--processes", "2", "--master", "spark://host:7077"], "--master"),
    ],
)
def test_bad_input_is_refused_and_named(arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["experiment", *arguments]) == ExitStatus.BAD_INPUT
    assert named in capsys.readouterr().err


def test_spark_is_the_default(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked = []

    def on_spark(
        experiment: Experiment, work: list[ExperimentTask], options: Namespace
    ) -> list[tuple[ExperimentTask, Tally]]:
        asked.append((experiment.name, options.master))
        return [run_task(task) for task in work]

    monkeypatch.setattr("unisono.cli.experiment._run_with_spark", on_spark)
    assert main(["experiment", "tapas-group-1", "--runs", "3"]) == 0
    assert asked == [("tapas-group-1", "local[*]")]
    assert "4.53" in capsys.readouterr().out


def test_constant_columns_are_listed_once_above_the_table() -> None:
    text = format_table([{"n": 5, "x": 1.23456, "paper": None, "y": True}, {"n": 5, "x": 2.0, "paper": 3.5, "y": None}])
    head, lines = text.split("\n\n")
    assert head == "n = 5"
    assert [line.split() for line in lines.splitlines()] == [
        ["x", "paper", "y"],
        ["1.235", "-", "yes"],
        ["2", "3.5", "-"],
    ]
