"""Small files into few, and foreign layouts into ours: the same rows, the same verdicts."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.planted_violations import plant_late_delivery
from tests.recorded_runs import record_run

from unisono.check.verdict import Status
from unisono.pipeline import relayout as relayout_module
from unisono.pipeline.relayout import relayout
from unisono.pipeline.verify import on_spark, verify
from unisono.trace.arrow import SCHEMA, VERSION_KEY
from unisono.trace.files import find_groups, read_part, read_stamps, read_trace, write_end, write_part
from unisono.trace.schema import META_NAME, TraceDamaged, read_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_many_small_files_become_few(spark: SparkSession, tmp_path: Path) -> None:
    folder = record_run(tmp_path / "small", members=3, slots=160, burst=2, range_slots=8)
    planted = plant_late_delivery(folder)
    done = relayout(spark, folder, tmp_path / "few", range_slots=64)
    assert (done.files_before, done.files, done.rows) == (60, 9, 160 * 2 * 12)
    assert read_trace(tmp_path / "few").digest() == read_trace(folder).digest()
    (before,), (after,) = verify(tmp_path / "small"), verify(tmp_path / "few")
    assert after.verdicts == before.verdicts
    planted.assert_found(after.verdicts)
    with pytest.raises(TraceDamaged, match="already exists"):
        relayout(spark, folder, tmp_path / "few")


def test_a_foreign_layout_is_brought_into_ours(spark: SparkSession, tmp_path: Path) -> None:
    """All rows in two files, in another order, words instead of codes, no version and no record of completeness."""
    folder = record_run(tmp_path / "ours", members=3, slots=100, burst=2, range_slots=32)
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / META_NAME).write_text((folder / META_NAME).read_text("utf-8"), encoding="utf-8")
    table = pa.concat_tables([pq.read_table(path, partitioning=None) for path in folder.rglob("*.parquet")])
    plain = pa.table(
        [
            table[field.name].cast(pa.string()) if pa.types.is_dictionary(field.type) else table[field.name]
            for field in SCHEMA
        ],
        names=SCHEMA.names,
    ).sort_by([("sequence", "descending"), ("member", "ascending")])
    for number, part in enumerate((plain.slice(0, 900), plain.slice(900))):
        pq.write_table(part, foreign / f"part-{number}.parquet")
    assert verify(foreign)[0].status is Status.UNKNOWN
    relayout(spark, foreign, tmp_path / "brought", range_slots=32, closed=True)
    assert read_trace(tmp_path / "brought").digest() == read_trace(folder).digest()
    assert verify(tmp_path / "brought")[0].status is Status.VALID
    relayout(spark, foreign, tmp_path / "open", range_slots=32)
    assert verify(tmp_path / "open")[0].status is Status.UNKNOWN, "the trace does not record that it is complete"


def test_executors_run_in_another_folder(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths as a user gives them, from where the user is: what runs elsewhere must find and write the same files."""
    record_run(tmp_path / "small", members=2, slots=20, burst=1, range_slots=8)
    monkeypatch.chdir(tmp_path)
    (source,) = find_groups("small")
    done = relayout(spark, source, Path("few"))
    assert (done.rows, done.files) == (20 * 6, 2)
    (report,) = verify("few", partial(on_spark, spark))
    assert (report.status, report.rows) == (Status.VALID, done.rows)


def test_files_written_where_the_driver_cannot_find_them_are_an_error(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = record_run(tmp_path / "small", members=2, slots=20, burst=1, range_slots=8)
    written = relayout_module._write_rows

    def astray(session: SparkSession, files: list[Path], by: relayout_module.Rewriter) -> Any:
        return written(session, files, replace(by, out=f"{by.out}-elsewhere"))

    monkeypatch.setattr(relayout_module, "_write_rows", astray)
    with pytest.raises(TraceDamaged, match="60 rows were written, but this machine sees 0; on a cluster"):
        relayout(spark, folder, tmp_path / "out")
    assert not (tmp_path / "out" / "run=r" / "group=g").exists(), "an incomplete run is removed"


def test_an_interrupted_compaction_leaves_nothing_in_the_way(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = record_run(tmp_path / "small", members=2, slots=20, burst=1, range_slots=8)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(relayout_module, "_write_rows", interrupted)
        with pytest.raises(KeyboardInterrupt):
            relayout(spark, folder, tmp_path / "out")
    assert relayout(spark, folder, tmp_path / "out").rows == 20 * 6


@pytest.mark.parametrize("damage", ["another version", "a column less", "rows lost", "all rows lost", "another run"])
def test_damaged_traces_are_not_rewritten(damage: str, spark: SparkSession, tmp_path: Path) -> None:
    folder = record_run(tmp_path / "ours", members=2, slots=20, burst=1, range_slots=8)
    path = min((folder / "member=1").glob("*.parquet"))
    table = pq.read_table(path, partitioning=None)
    if damage == "another version":
        pq.write_table(table.replace_schema_metadata({VERSION_KEY: b"99"}), path)
    elif damage == "a column less":
        pq.write_table(table.drop_columns(["slot"]), path)
    elif damage == "all rows lost":  # of a second life, of which nothing else tells
        write_end(folder / "member=1", 7, rows=20, dropped=0)
    elif damage == "another run":
        write_part(path, read_part(path), "another", "g")
    else:
        end = folder / "member=1" / "end.0.json"
        end.write_text(json.dumps({**json.loads(end.read_text("utf-8")), "rows": 1}), encoding="utf-8")
    problem = {
        "another version": "version 99 is unknown",
        "a column less": "lacks the columns slot",
        "all rows lost": "the end record of incarnation 7 counts 20 rows, but the files have 0",
        "another run": "not of run r and group g",
    }
    with pytest.raises(TraceDamaged, match=problem.get(damage, "counts 1 rows")):
        relayout(spark, folder, tmp_path / "out")


def test_a_trace_of_version_1_is_written_as_version_2(spark: SparkSession, tmp_path: Path) -> None:
    source = Path(__file__).parents[1] / "data" / "trace_v1" / "run=pause-seed-1" / "group=pause"
    done = relayout(spark, source, tmp_path)
    assert read_json(Path(done.folder) / META_NAME)["schema_version"] == 2
    assert read_trace(done.folder).digest() == read_trace(source).digest()
    before, after = (verify(folder)[0].verdicts for folder in (source, done.folder))
    assert {name: verdict.status for name, verdict in after.items()} == {n: v.status for n, v in before.items()}
    for member in Path(done.folder).glob("member=*"):
        assert read_stamps(member).keys() == {path.name for path in member.glob("*.parquet")}
