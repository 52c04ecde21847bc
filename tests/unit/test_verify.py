"""`verify` over recorded runs, without Spark: its findings, and that it reports damage and never calls it valid."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.recorded_priority_runs import plant_priority_violation, record_priority
from tests.recorded_runs import BOUND_NS, SLOT_NS, record_run

from unisono.check.suite import check_all
from unisono.check.verdict import Status
from unisono.cli.main import main
from unisono.pipeline.priority_runs import GatherTask
from unisono.pipeline.verify import RunReport, select_runs, verify, verify_selected
from unisono.trace.files import layout, read_part, read_trace, write_part, write_trace
from unisono.trace.schema import EventKind
from unisono.trace.table import Rows


def one(path: Path) -> RunReport:
    (report,) = verify(path)
    return report


def edit(part: Path, change: Callable[[Rows], Rows]) -> None:
    """Rewrite one file; the number of its rows must stay."""
    rows = read_part(part)
    write_part(part, change(rows), part.parents[2].name.removeprefix("run="), "g")


def part_of(folder: Path, member: int, number: int) -> Path:
    return sorted((folder / f"member={member}").glob("*.parquet"), key=lambda p: int(p.name.split("-")[1]))[number]


def nth_delivery(rows: Rows, n: int) -> int:
    return int(np.flatnonzero(rows.kind == EventKind.DELIVER.code)[n])


def test_clean_run_is_valid_and_equal_to_the_checkers(tmp_path: Path) -> None:
    folder = record_run(tmp_path, members=3, slots=700, burst=2)
    report = one(tmp_path)
    assert report.status is Status.VALID
    assert report.rows == 700 * 2 * (3 + 9)
    assert {n: v.status for n, v in report.verdicts.items()} == {
        n: v.status for n, v in check_all(read_trace(folder)).items()
    }
    assert report.verdicts["latency"].figures["max_ns"] == 4 * SLOT_NS + 3000


def swapped(rows: Rows) -> Rows:
    a, b = nth_delivery(rows, 100), nth_delivery(rows, 101)
    index = rows.index.copy()
    index[[a, b]] = index[[b, a]]
    return replace(rows, index=index)


def foreign(rows: Rows) -> Rows:
    sequence = rows.sequence.copy()
    sequence[nth_delivery(rows, 50)] += 10**9
    return replace(rows, sequence=sequence)


def late(rows: Rows) -> Rows:
    real_ns = rows.real_ns.copy()
    real_ns[nth_delivery(rows, 7)] += 2 * BOUND_NS
    return replace(rows, real_ns=real_ns)


@pytest.mark.parametrize(("change", "check"), [(swapped, "total_order"), (foreign, "integrity"), (late, "latency")])
def test_planted_violation_has_the_witness_of_the_checkers(
    tmp_path: Path, change: Callable[[Rows], Rows], check: str
) -> None:
    folder = record_run(tmp_path, members=3, slots=700, burst=2)
    edit(part_of(folder, 2, 1), change)
    found, whole = one(tmp_path).verdicts, check_all(read_trace(folder))
    assert found[check].status is Status.VIOLATED
    assert {n: (v.status, v.witness) for n, v in found.items()} == {n: (v.status, v.witness) for n, v in whole.items()}


@pytest.mark.parametrize("order", ["vbr", "uniform"])
def test_another_bound_than_the_run_s_own_is_judged(order: str, tmp_path: Path) -> None:
    folder = record_run(tmp_path, members=3, slots=300, burst=1)
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    (folder / "meta.json").write_text(json.dumps({**meta, "order": order}), encoding="utf-8")
    for whole_rows in (0, 10**6):
        (report,) = verify(folder, bound_ns=4 * SLOT_NS, max_whole_rows=whole_rows)
        whole = check_all(read_trace(folder), bound_ns=4 * SLOT_NS)
        assert whole["latency"].status is Status.VIOLATED
        assert {n: (v.status, v.witness) for n, v in report.verdicts.items()} == {
            n: (v.status, v.witness) for n, v in whole.items()
        }


def truncate(folder: Path) -> None:
    part = part_of(folder, 1, 0)
    part.write_bytes(part.read_bytes()[:-100])


def lack_a_column(folder: Path) -> None:
    part = part_of(folder, 1, 0)
    table = pq.read_table(part, partitioning=None)
    pq.write_table(table.drop_columns(["index"]), part)


def lack_a_file(folder: Path) -> None:
    part_of(folder, 2, 1).unlink()


def rows_of_another_member(folder: Path) -> None:
    """As many rows as were written, and the same deliveries; but they are another's."""
    part_of(folder, 1, 0).write_bytes(part_of(folder, 2, 0).read_bytes())


def one_row_of_another(name: str, value: int | None) -> Callable[[Path], None]:
    """One row in the middle of a file says that it is another's; or it does not say whose it is."""

    def damage(folder: Path) -> None:
        part = part_of(folder, 1, 0)
        table = pq.read_table(part, partitioning=None)
        column = table[name].cast(pa.string() if name == "group" else table.schema.field(name).type).to_pylist()
        column[len(column) // 2] = value
        at = table.schema.get_field_index(name)
        field = table.schema.field(name).with_nullable(True)
        pq.write_table(table.set_column(at, field, pa.array(column, field.type)), part)

    return damage


def rows_of_another_run(folder: Path) -> None:
    part = part_of(folder, 1, 0)
    write_part(part, read_part(part), "another", "g")


def lack_a_member(folder: Path) -> None:
    shutil.rmtree(folder / "member=3")


def another_version(folder: Path) -> None:
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps({**meta, "schema_version": 99}))


def misplaced_rows(folder: Path) -> None:
    edit(part_of(folder, 1, 0), lambda rows: replace(rows, slot=rows.slot + 10_000))


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (truncate, "not a readable Parquet"),
        (lack_a_column, "lacks the columns index"),
        (lack_a_file, "but the files have"),
        (lack_a_member, "no file of member 3"),
        (rows_of_another_member, "has rows whose member is not 1"),
        (rows_of_another_run, "has rows whose run is not r"),
        (one_row_of_another("member", 2), "has rows whose member is not 1"),
        (one_row_of_another("member", 0), "has rows whose member is not 1"),
        (one_row_of_another("recorder_incarnation", 1), "has rows whose recorder_incarnation is not 0"),
        (one_row_of_another("group", None), "has rows whose group is not g"),
        (one_row_of_another("sequence", None), "column sequence: a row about a message has no sequence number"),
        (another_version, "version 99 is unknown"),
        (misplaced_rows, "slots outside"),
    ],
)
def test_damage_is_unknown_with_the_reason(
    tmp_path: Path, damage: Callable[[Path], None], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = record_run(tmp_path, members=3, slots=300, burst=1)
    damage(folder)
    assert main(["verify", str(tmp_path), "--master", "none", "--json"]) == 2
    shown = json.loads(capsys.readouterr().out)
    assert shown["verdict"] == "unknown"
    assert told in shown["checks"]["trace"]["reason"]


def test_a_member_without_a_file_is_missed_where_a_run_is_read_whole_at_once(tmp_path: Path) -> None:
    folder = record_run(tmp_path, members=3, slots=300, burst=1, declare=False)
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    (folder / "meta.json").write_text(json.dumps({**meta, "order": "priority"}), encoding="utf-8")
    lack_a_member(folder)
    assert "no file of member 3" in one(tmp_path).verdicts["trace"].reason


def test_no_trace_there_names_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(tmp_path / "nowhere"), "--master", "none"]) == 2
    assert "nowhere: is not a folder" in capsys.readouterr().err


def test_every_run_below_the_folder_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record_run(tmp_path, members=2, slots=10, burst=1, run="clean")
    folder = record_run(tmp_path, members=2, slots=200, burst=1, run="bad")
    edit(part_of(folder, 1, 0), late)
    assert main(["verify", str(tmp_path), "--master", "none", "--json"]) == 1
    shown = json.loads(capsys.readouterr().out)
    assert {run["run"]: run["verdict"] for run in shown["runs"]} == {"clean": "valid", "bad": "violated"}
    assert shown["checks"]["latency"]["verdict"] == "violated"


def test_one_run_of_many_is_chosen_and_no_other_is_opened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record_run(tmp_path, members=2, slots=50, burst=1, run="good")
    bad = record_run(tmp_path, members=2, slots=50, burst=1, run="bad")
    min(bad.rglob("*.parquet")).write_bytes(b"")
    assert main(["verify", str(tmp_path), "--master", "none", "--json"]) == 2
    capsys.readouterr()
    assert main(["verify", str(tmp_path), "--master", "none", "--json", "--run", "good", "--group", "g"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [(one["run"], one["group"]) for one in shown["runs"]] == [("good", "g")]
    assert main(["verify", str(tmp_path), "--master", "none", "--run", "other"]) == 2
    assert "has no run other; it has run bad of group g, run good of group g" in capsys.readouterr().err


def test_runs_of_another_time_are_left_out_by_their_footers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def hours_later(rows: Rows) -> Rows:
        return replace(rows, real_ns=rows.real_ns + 7200 * 10**9)

    first = record_run(tmp_path, members=2, slots=300, burst=1, run="first")
    second = record_run(tmp_path, members=2, slots=300, burst=1, run="second")
    for path in second.rglob("*.parquet"):
        edit(path, hours_later)
    for chosen, run in ((["--since", "1970-01-01T01:00"], "second"), (["--until", "1970-01-01T02:00+01:00"], "first")):
        assert main(["verify", str(tmp_path), "--master", "none", "--json", *chosen]) == 0
        assert [one["run"] for one in json.loads(capsys.readouterr().out)["runs"]] == [run]
    # Rows of the other are not read: that they are damaged goes unnoticed.
    path = min(first.rglob("*.parquet"))
    content = bytearray(path.read_bytes())
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    path.write_bytes(b"PAR1" + bytes(footer - 4) + content[footer:])
    assert main(["verify", str(tmp_path), "--master", "none", "--since", "1970-01-01T01:00"]) == 0
    assert main(["verify", str(tmp_path), "--master", "none"]) == 2
    assert main(["verify", str(tmp_path), "--master", "none", "--since", "1970-01-02"]) == 2
    assert "in that time" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["verify", str(tmp_path), "--since", "yesterday"])
    assert "a time such as" in capsys.readouterr().err


def test_no_file_is_opened_of_a_closed_run_of_another_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = read_trace(record_run(tmp_path / "made", members=2, slots=300, burst=1))
    runs = tmp_path / "runs"
    for name, later_ns in (("first", 0), ("second", 7200 * 10**9)):
        moved = replace(trace, meta=replace(trace.meta, run=name), real_ns=trace.real_ns + later_ns)
        write_trace(runs, moved, range_slots=64)
    opened: set[str] = set()

    def noted(read: Callable[..., object]) -> Callable[..., object]:
        def reading(path: object, *words: object, **options: object) -> object:
            opened.add(str(path))
            return read(path, *words, **options)

        return reading

    monkeypatch.setattr(pq, "read_metadata", noted(pq.read_metadata))
    monkeypatch.setattr(pq, "ParquetFile", noted(pq.ParquetFile))
    hour_ns = 3600 * 10**9
    for since_ns, until_ns, other in (hour_ns, None, "run=first"), (None, hour_ns, "run=second"):
        opened.clear()
        (report,) = verify_selected(select_runs(runs, since_ns=since_ns, until_ns=until_ns))
        assert report.status is Status.VALID
        assert opened
        assert not any(other in path for path in opened)
    # A recording that was not closed says nothing of when it ended: its files do.
    opened.clear()
    (runs / "run=first" / "group=g" / "member=1" / "end.0.json").unlink()
    (report,) = verify_selected(select_runs(runs, since_ns=hour_ns))
    assert report.run == "second"
    assert any("run=first" in path for path in opened)


def test_a_long_run_of_the_priority_order_is_judged_by_windows_as_it_is_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_priority(tmp_path, members=3, messages=600, range_slots=64, run="clean")
    monkeypatch.setattr("unisono.pipeline.priority_runs.WINDOW_ROWS", 1000)
    planted = plant_priority_violation(
        record_priority(tmp_path, members=3, messages=600, range_slots=64, run="outpaced"), 0.8
    )
    whole = {report.run: report for report in verify(tmp_path)}
    gather, read = GatherTask.run, []

    def noted(task: GatherTask) -> Rows:
        rows = gather(task)
        if EventKind.QUEUE in task.kinds:
            read.append(task.files)
        assert set(rows.notes) == {rows.notes[code] for code in rows.note.tolist() if code >= 0}
        return rows

    monkeypatch.setattr(GatherTask, "run", noted)
    found = {report.run: report for report in verify(tmp_path, max_whole_rows=0)}
    assert found["clean"].status is Status.VALID
    assert found["clean"].verdicts["priority_accounting"].figures["overtakings"] > 100
    planted.assert_found(found["outpaced"].verdicts)
    assert 0 < len(read) < len(layout(tmp_path / "run=outpaced" / "group=g").ranges) / 2
    for run, report in found.items():
        for name, verdict in report.verdicts.items():
            assert replace(verdict, figures={}) == replace(whole[run].verdicts[name], figures={}), name


@pytest.mark.parametrize("order", ["priority", "priority_coordinator"])
def test_a_long_run_without_receptions_is_unknown_with_the_reason(order: str, tmp_path: Path) -> None:
    folder = record_run(tmp_path, members=2, slots=300, burst=1, declare=False)
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    (folder / "meta.json").write_text(json.dumps({**meta, "order": order}), encoding="utf-8")
    (whole,), (report,) = verify(folder), verify(folder, max_whole_rows=0)
    assert report.status is Status.UNKNOWN
    assert "no receptions" in report.verdicts["priority_accounting"].reason
    assert {n: (v.status, v.reason) for n, v in report.verdicts.items()} == {
        n: (v.status, v.reason) for n, v in whole.verdicts.items()
    }
