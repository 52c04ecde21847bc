"""Sweeps of scenarios: the named ones show what they claim, and a TOML file can describe another."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from unisono.cli.main import ExitStatus, main
from unisono.errors import InvalidOption
from unisono.experiments.catalogue import find_experiment, run_task
from unisono.experiments.experiment import (
    Experiment,
    ExperimentTask,
    Row,
    Tally,
    result_rows,
    run_block,
    split_into_tasks,
)
from unisono.experiments.mistakes import EarlyDeliveryMistakes, count_mistakes
from unisono.experiments.sweeps import cross_product, read_sweep, sweep, with_parameters
from unisono.model.text.scenario import parse_scenario
from unisono.model.text.toml import to_toml
from unisono.pipeline.experiments import read_tally, tally_path, write_tally
from unisono.trace.recorder import MemoryTrace
from unisono.trace.schema import RunMeta

SWEEP = """
[sweep]
name = "few"
shows = "Two lengths of slots and two sizes of group."
runs = 3
[sweep.over]
"group.slot" = ["5ms", "20ms"]
"group.members" = [2, 3]

[group]
name = "few"
delta = "10ms"
gamma = "1ms"
[rate]
avg = 100
burst = 8
[workload]
kind = "poisson"
rate = 50
[network]
delay = "uniform:1ms..10ms"
[run]
seconds = 0.2
"""


def rows_for(experiment: Experiment, chosen: dict[str, object], runs: int = 1) -> list[Row]:
    """The rows of the points that have these parameters."""
    points = [n for n, point in enumerate(experiment.points) if chosen.items() <= point.items()]
    done = [(task, run_block(experiment, task)) for task in split_into_tasks(experiment, runs) if task.point in points]
    return experiment.make_rows([(experiment.points[task.point], tally) for task, tally in done])


def test_no_order_is_later_than_its_bound_and_the_bound_is_the_theorem() -> None:
    centre = {"group.delta": "20ms", "group.gamma": "2ms", "group.slot": "10ms", "group.members": 5}
    rows = {str(row["system"]): row for row in rows_for(find_experiment("orders-latency"), dict(centre))}
    bounds = {"vbr": 32, "vbr with failures": 34, "cbr": 42, "leader": 40, "timestamp": 50}
    assert {system: row["bound_ms"] for system, row in rows.items()} == bounds
    for row in rows.values():
        assert (row["late"], row["valid_runs"], row["delivered_share"]) == (0, 1, 1.0)
        assert 0 < float(str(row["latency_max_ms"])) <= float(str(row["bound_ms"]))


def test_long_slots_cost_fewer_frames_and_more_time() -> None:
    short, long = (rows_for(find_experiment("slot-trade-off"), {"group.slot": slot})[0] for slot in ("2ms", "50ms"))
    assert float(str(short["frames_per_message"])) > 5 * float(str(long["frames_per_message"]))
    assert float(str(short["latency_ms"])) < float(str(long["latency_ms"]))


def test_each_mechanism_delivers_more_and_costs_more() -> None:
    rows = {str(row["remedy"]): row for row in rows_for(find_experiment("loss-remedies"), {"fault.0.probability": 0.1})}
    nothing = rows.pop("nothing")
    assert float(str(nothing["delivered_share"])) < 0.95
    assert {name.split()[0].rstrip(",") for name in rows} == {"repetition", "FEC", "RMCast"}
    for row in rows.values():
        assert row["delivered_share"] > nothing["delivered_share"]  # type: ignore[operator]
        assert row["bytes_per_message"] > nothing["bytes_per_message"]  # type: ignore[operator]
        assert row["valid_runs"] == 1


def test_a_window_above_delays_and_skew_makes_no_mistakes_and_a_short_one_many() -> None:
    chosen = {"network.delay": "uniform:0ms..5ms", "group.gamma": "2ms"}
    short, long = (
        rows_for(find_experiment("optimistic-mistakes"), {**chosen, "topology.window": window})[0]
        for window in ("2ms", "8ms")
    )
    assert (long["mistakes_share"], long["lost_share"]) == (0.0, 0.0)
    assert float(str(short["mistakes_share"])) > 0.2
    assert float(str(short["early_ms"])) < float(str(long["early_ms"])) < float(str(long["final_ms"]))
    assert all((row["valid_runs"], row["delivered_share"], row["late"]) == (1, 1.0, 0) for row in (short, long))


def test_a_mistake_is_a_final_delivery_that_is_not_the_first_early_one() -> None:
    memory = MemoryTrace("r", "g")
    one = memory.recorder(1)
    early, final = [1, 2, 3, 5], [1, 3, 2, 4, 5]
    for grade, sequences, start_ns in (("early", early, 0), ("final", final, 100)):
        for index, sequence in enumerate(sequences):
            one.delivered(
                sender=2,
                sender_incarnation=0,
                first_sequence=sequence,
                count=1,
                sizes=1,
                slot=0,
                first_place=sequence,
                first_index=index,
                real_ns=start_ns + index,
                local_ns=0,
                grade=grade,
            )
    found = count_mistakes(memory.trace(RunMeta("r", "g", "quasi_genuine", (1, 2), 0, 0, 1, None, False, "test")))
    # 3 overtakes 2; 4 was never early.
    assert found == EarlyDeliveryMistakes(deliveries=5, out_of_order=1, lost=1)
    assert (found.share, found.lost_share) == (0.4, 0.2)


def test_urgent_messages_overtake() -> None:
    (row,) = rows_for(find_experiment("priority-latency"), {"group.order": "priority", "group.members": 6})
    assert row["paper"] == 6.0
    assert float(str(row["urgent_ms"])) < float(str(row["plain_ms"]))


def test_a_sweep_in_a_file_is_a_table_of_its_points(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "few.toml"
    path.write_text(SWEEP, encoding="utf-8")
    assert main(["experiment", str(path), "--json", "--out", str(tmp_path / "out"), "--processes", "1"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["experiment"] == "few"
    assert [(row["slot"], row["members"], row["runs"]) for row in shown["rows"]] == [
        (slot, members, 3) for slot in ("5ms", "20ms") for members in (2, 3)
    ]
    assert main(["experiment", str(path), "--processes", "1"]) == 0
    text = capsys.readouterr().out
    assert "Two lengths of slots" in text
    assert "–" in text, "means have their intervals beside them"


def test_without_spark_an_interrupted_sweep_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "few.toml"
    ran: list[int] = []
    arguments = ["experiment", str(path), "--json", "--out", str(tmp_path / "out"), "--processes", "1"]

    def shown(text: str, breaks_at: int = -1) -> tuple[int, list[int], str]:
        """The exit status, the points that were run, and what was printed."""
        ran.clear()

        def counted(task: ExperimentTask) -> tuple[ExperimentTask, Tally]:
            if len(ran) == breaks_at:
                raise KeyboardInterrupt
            ran.append(task.point)
            return run_task(task)

        monkeypatch.setattr("unisono.cli.experiment.run_task", counted)
        path.write_text(text, encoding="utf-8")
        return main(arguments), list(ran), capsys.readouterr().out

    assert shown(SWEEP, breaks_at=2) == (ExitStatus.INTERRUPTED, [0, 1], "")
    status, points, finished = shown(SWEEP)
    assert (status, points) == (0, [2, 3])
    assert shown(SWEEP) == (0, [], finished)
    assert json.loads(finished)["rows"] == result_rows(
        read_sweep(SWEEP), map(run_task, split_into_tasks(read_sweep(SWEEP)))
    )
    assert shown(SWEEP.replace("shows = ", 'title = "Slots"\nshows = '))[1] == [], "another title is the same sweep"
    status, points, other = shown(SWEEP.replace('delta = "10ms"', 'delta = "12ms"'))
    assert (status, points) == (0, [0, 1, 2, 3]), "another scenario is another sweep"
    assert other != finished


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("cut short", "is not a readable Parquet file"),
        ("version", "has tally version 9, but this release reads version 1; give another folder with --out"),
        ("no version", "has tally version none, but"),
        ("column", "lacks the columns seed"),
    ],
)
def test_an_unreadable_stored_point_is_reported_and_neither_used_nor_overwritten(
    damage: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "few.toml"
    path.write_text(SWEEP, encoding="utf-8")
    arguments = ["experiment", str(path), "--out", str(tmp_path / "out"), "--master", "none", "--runs", "1"]
    assert main(arguments) == 0
    kept = tally_path(tmp_path / "out", "few", 1)
    table = pq.read_table(kept, partitioning=None)
    if damage == "cut short":
        kept.write_bytes(kept.read_bytes()[:100])
    elif damage == "column":
        pq.write_table(table.drop_columns(["seed"]), kept)
    else:
        version = {b"unisono.tally.version": b"9"} if damage == "version" else {}
        pq.write_table(table.replace_schema_metadata(version), kept)
    before = kept.read_bytes()
    capsys.readouterr()
    assert main(arguments) == ExitStatus.BAD_INPUT
    err = capsys.readouterr().err
    assert f"{kept}: {said}" in err
    assert "to repeat its runs" in err
    assert kept.read_bytes() == before
    kept.unlink()
    assert main(arguments) == 0


@pytest.mark.parametrize("where", ["a file", "below a file"])
def test_an_unwritable_folder_is_refused_before_anything_runs(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "taken"
    out.write_text("", encoding="utf-8")
    monkeypatch.setattr("unisono.cli.experiment.run_task", None)
    place = out if where == "a file" else out / "deeper"
    assert main(["experiment", "tapas-group-1", "--master", "none", "--out", str(place)]) == ExitStatus.BAD_INPUT
    said = capsys.readouterr().err
    assert f"--out: cannot write to {place} (" in said
    assert "name another folder" in said


def test_points_of_a_named_sweep_are_stored_with_its_scenario(tmp_path: Path) -> None:
    text = "[group]\ndelta = {}\n"
    one, other = (sweep("slots", "Slots", "", text.format(delta), [{"group.slot": "5ms"}], runs=1) for delta in (1, 2))
    task = ExperimentTask("slots", 0, 0, 1, 1)
    write_tally(tmp_path, one, [(task, Tally(1, {"late": 2.0}, {"late": 4.0}))])
    assert read_tally(tmp_path, one, [task]) == [(task, Tally(1, {"late": 2.0}, {"late": 4.0}))]
    assert read_tally(tmp_path, other, [task]) is None


def test_a_task_of_a_sweep_file_carries_its_text() -> None:
    experiment = read_sweep(SWEEP)
    work = [pickle.loads(pickle.dumps(task)) for task in split_into_tasks(experiment)]
    assert result_rows(experiment, map(run_task, work)) == result_rows(
        experiment, map(run_task, split_into_tasks(find_experiment(SWEEP)))
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("x =", "is not TOML"),
        ("[group]\nname = 'a'\n", "expected a table [sweep]"),
        (SWEEP.replace("runs = 3", "runs = 0"), "sweep.runs: expected at least 1"),
        (SWEEP.replace("runs = 3", "rums = 3"), "[sweep] has no field rums"),
        (SWEEP.replace('name = "few"\nshows', 'name = "../few"\nshows'), "expected letters, digits, - and _"),
        (SWEEP.replace('"group.slot"', '"slot"'), "expected a path into the scenario"),
        (SWEEP.replace("[2, 3]", "2"), "expected a list of values"),
        (SWEEP.replace("[2, 3]", '[2, 3]\n"group.colour" = ["red"]'), "group.colour"),
        (
            SWEEP.replace("[2, 3]", '[2, 3]\n"group.slot.colour" = ["red"]'),
            "group.slot.colour does not exist",
        ),
        (
            SWEEP.replace("[2, 3]", '[2, 3]\n"fault.7.burst" = [1]\n[[fault]]\nkind = "loss"'),
            "fault.7.burst does not exist",
        ),
        (
            SWEEP.replace("[2, 3]", '[2, 3]\n"fault.last.burst" = [1]\n[[fault]]\nkind = "loss"'),
            "fault.last.burst does not exist",
        ),
    ],
)
def test_an_invalid_sweep_is_refused_with_the_reason(
    text: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text(text, encoding="utf-8")
    assert main(["experiment", str(path)]) == ExitStatus.BAD_INPUT
    assert problem in capsys.readouterr().err


def test_tables_are_written_as_they_are_read() -> None:
    tables = with_parameters(
        {"a": {"x": 1, "y": ["p", 2.5]}, "f": [{"z": True}]}, {"f.0.w": "s", "a.x": None, "label": 3}
    )
    assert tables == {"a": {"y": ["p", 2.5]}, "f": [{"z": True, "w": "s"}]}
    assert to_toml(tables) == '[a]\ny = ["p", 2.5]\n[[f]]\nz = true\nw = "s"\n'
    assert (
        parse_scenario(to_toml(with_parameters(_scenario(), {"group.slot": "5ms", "group.members": 2})), "again").group
        == "few"
    )
    assert cross_product({"a": [1, 2], "b": ["x"]}) == [{"a": 1, "b": "x"}, {"a": 2, "b": "x"}]


def _scenario() -> dict[str, object]:
    import tomllib

    tables = tomllib.loads(SWEEP)
    del tables["sweep"]
    return tables


def test_an_unknown_experiment_is_refused() -> None:
    with pytest.raises(InvalidOption, match="there is no experiment"):
        find_experiment("orders")


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[2] / "sweeps").glob("*.toml")), ids=lambda p: p.stem)
def test_the_example_sweeps_are_valid(path: Path) -> None:
    assert read_sweep(path.read_text(encoding="utf-8"), str(path)).points
