"""Recorders, columns, files and the background writer of traces."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from unisono.check.suite import check_all
from unisono.check.verdict import Reason, Status, overall
from unisono.model.events import Violation, ViolationKind
from unisono.pipeline.verify import verify
from unisono.trace import files as trace_files
from unisono.trace.arrow import ABSENT_LISTS_KEY, SCHEMA, VERSION_KEY
from unisono.trace.files import (
    PART_NAME,
    SUMMARY_COLUMNS,
    FileStamp,
    ParquetWriter,
    read_columns,
    read_part,
    read_stamps,
    read_trace,
    stamp,
    write_part,
    write_trace,
)
from unisono.trace.recorder import MemoryTrace, Recorder, report_extras, view_extras
from unisono.trace.schema import (
    CODED,
    MESSAGE_KINDS,
    OBSERVER,
    EventKind,
    RunMeta,
    TraceDamaged,
    read_json,
    read_meta,
    write_json,
    write_meta,
)
from unisono.trace.table import Rows, Trace, encode

META = RunMeta(
    run="run 1/a",
    group="table-7",
    order="vbr",
    members=(1, 2),
    delta_ns=1,
    gamma_ns=2,
    theta_ns=3,
    bound_ns=40,
    reliable=True,
    source="simulator",
    versions={"unisono": "0.1.0"},
)


def fill(recorder: Recorder, slots: int = 6, per_slot: int = 3) -> None:
    """Two members that each send `per_slot` messages in each slot; this one's view of it."""
    member, index = recorder.member, 0
    recorder.event(EventKind.START, slot=0, real_ns=0, local_ns=1)
    for slot in range(slots):
        recorder.sent(
            first_sequence=slot * per_slot,
            count=per_slot,
            sizes=list(range(per_slot)),
            slot=slot,
            first_place=member << 32,
            real_ns=slot * 10,
            local_ns=slot * 10 + member,
        )
        for sender in (1, 2):
            recorder.delivered(
                sender=sender,
                sender_incarnation=0,
                first_sequence=slot * per_slot,
                count=per_slot,
                sizes=range(per_slot) if sender == 1 else 7,
                slot=slot,
                first_place=sender << 32,
                first_index=index,
                real_ns=slot * 10 + 30,
                local_ns=slot * 10 + 30 + member,
            )
            index += per_slot


def remembered() -> MemoryTrace:
    memory = MemoryTrace(META.run, META.group)
    for member in META.members:
        fill(memory.recorder(member))
    return memory


def everything() -> Trace:
    """A trace in which every column is used."""
    memory = remembered()
    one = memory.recorder(1)
    one.sent(
        first_sequence=18,
        count=2,
        sizes=5,
        slot=6,
        first_place=1 << 32,
        real_ns=[60, 61],
        local_ns=(62, 63),
        priority=4,
        view=9,
        destinations=(1, 2),
    )
    one.event(
        EventKind.VIOLATION,
        slot=6,
        real_ns=70,
        local_ns=70,
        extras=report_extras(Violation(ViolationKind.LATE, "3 ms")),
    )
    one.event(EventKind.VIEW, slot=6, real_ns=70, local_ns=70, extras=view_extras(10, (1, 2), (7, 8)))
    memory.recorder(OBSERVER).event(EventKind.CRASH, slot=6, real_ns=70, local_ns=70, subject=2, subject_incarnation=0)
    return memory.trace(META)


def test_a_run_becomes_one_row_per_message() -> None:
    sends = everything().sends()
    mine = sends.select(sends.member == 1)
    assert mine.sequence.tolist() == list(range(20))
    assert mine.place[:4].tolist() == [1 << 32, (1 << 32) + 1, (1 << 32) + 2, 1 << 32]
    assert mine.size[-5:].tolist() == [0, 1, 2, 5, 5]
    assert mine.real_ns[-3:].tolist() == [50, 60, 61]
    assert set(mine.index.tolist()) == {-1}
    assert mine.priority[-3:].tolist() == [-1, 4, 4]
    assert mine.destination_sets[mine.destinations[-1]] == (1, 2)
    deliveries = everything().deliveries()
    assert deliveries.select(deliveries.member == 2).index.tolist() == list(range(36))


def test_recorders_refuse_message_kinds_as_events() -> None:
    with pytest.raises(ValueError, match="SEND"):
        MemoryTrace("r", "g").recorder(1).event(EventKind.SEND, slot=0, real_ns=0, local_ns=0)


def test_recording_loads_neither_numpy_nor_pyarrow() -> None:
    code = "import sys, unisono.trace.recorder; sys.exit(bool({'numpy', 'pyarrow'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_digest_does_not_depend_on_the_order_of_recorders_but_on_every_column() -> None:
    trace = everything()
    assert trace.digest() == everything().digest()
    assert trace.select(slice(None, None, -1)).digest() == trace.digest()
    for column in ("local_ns", "size", "grade", "kind", "view", "token", "members", "member_incarnations"):
        changed = getattr(trace, column).copy()
        changed[3] += 1
        assert replace(trace, **{column: changed}).digest() != trace.digest(), column
    assert replace(trace, tokens=("other",)).digest() != trace.digest()


def test_free_text_is_no_part_of_the_digest() -> None:
    trace = everything()
    assert trace.notes == ("3 ms",)
    assert replace(trace, notes=("other",)).digest() == trace.digest()


def test_written_and_read_again_it_is_the_same_trace(tmp_path: Path) -> None:
    trace = everything()
    folder = write_trace(tmp_path, trace, range_slots=4)
    again = read_trace(tmp_path)
    assert again.digest() == trace.digest()
    assert again.meta == META
    assert again.logs == trace.logs
    assert again.dropped == 0
    names = sorted(path.name for path in (folder / "member=1").iterdir())
    assert names == ["end.0.json", "slots-0-3.0.0.parquet", "slots-4-7.0.0.parquet"]
    assert pq.read_schema(folder / "member=1" / names[1]).equals(SCHEMA)
    assert read_trace(folder).digest() == trace.digest()


def same_where_surveyed(some: Rows, whole: Rows) -> bool:
    """Whether rows are the same in the columns that a survey reads."""
    columns = (
        *SUMMARY_COLUMNS,
        "member",
        "recorder_incarnation",
        *(table for name, table in CODED.items() if name in SUMMARY_COLUMNS),
    )
    return all(np.array_equal(getattr(some, name), getattr(whole, name)) for name in columns)


def test_columns_that_a_file_s_statistics_tell_are_those_that_it_holds(tmp_path: Path) -> None:
    plain, full = remembered().trace(META), everything()
    empty, sets = encode([(), *[None] * (len(plain) - 1)])
    for name, trace in {
        "plain": plain,
        "full": full,
        "no destinations": replace(plain, destinations=empty, destination_sets=sets),
        "one kind": plain.deliveries(),
        "one row": plain.select(slice(0, 1)),
    }.items():
        folder = write_trace(tmp_path / name, trace, range_slots=2)
        for path in folder.glob("member=*/*.parquet"):
            named = PART_NAME.fullmatch(path.name)
            assert named
            member, life = int(path.parent.name.removeprefix("member=")), int(named[3])
            who: dict[str, Any] = {"run": META.run, "group": META.group, "member": member, "recorder_incarnation": life}
            assert same_where_surveyed(read_columns(path, SUMMARY_COLUMNS, **who), read_part(path))
            # Files that other tools wrote tell less, or have more groups of rows.
            table = pq.ParquetFile(path).read()
            for options in ({"write_statistics": False}, {"row_group_size": 1}, {}):
                pq.write_table(table.replace_schema_metadata({VERSION_KEY: b"2"}), path, **options)
                assert same_where_surveyed(read_columns(path, SUMMARY_COLUMNS, **who), read_part(path))
    text = table.set_column(table.column_names.index("view"), "view", pa.array(["?"] * len(table)))
    pq.write_table(text, path)
    with pytest.raises(TraceDamaged, match="wrong type"):
        read_columns(path, SUMMARY_COLUMNS, **who)


def test_that_no_row_has_destinations_is_not_believed_where_some_have(tmp_path: Path) -> None:
    path = tmp_path / "slots-0-99.0.0.parquet"
    rows = remembered().trace(META)
    write_part(path, rows.select((rows.member == 1) & (rows.recorder_incarnation == 0)), META.run, META.group)
    table = pq.ParquetFile(path).read()
    assert b"destinations" in table.schema.metadata[ABSENT_LISTS_KEY]
    directed = pa.array([[2], *[None] * (len(table) - 1)], pa.list_(pa.int32()))
    pq.write_table(table.set_column(table.column_names.index("destinations"), "destinations", directed), path)
    read = read_columns(path, SUMMARY_COLUMNS, run=META.run, group=META.group, member=1, recorder_incarnation=0)
    assert read.destination_sets == ((2,),)


def test_the_writers_files_hold_the_same_rows_as_memory(tmp_path: Path) -> None:
    write_meta(tmp_path, META)
    for member in META.members:
        with ParquetWriter(tmp_path, META.run, META.group, member, range_slots=4, part_rows=10) as writer:
            fill(writer.recorder())
        assert writer.dropped == 0
        assert writer.written == 55
        assert writer.error is None
    trace = read_trace(tmp_path)
    assert trace.digest() == remembered().trace(META).digest()
    assert overall(check_all(trace)) is Status.VALID
    with pytest.raises(FileExistsError, match="already has a recording of incarnation"):
        ParquetWriter(tmp_path, META.run, META.group, 1)


def test_full_queue_drops_counts_and_never_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk_is_back = threading.Event()
    real_write = write_part

    def slow_write(*arguments: object) -> FileStamp:
        disk_is_back.wait(30)
        return real_write(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(trace_files, "write_part", slow_write)
    write_meta(tmp_path, META)
    dropped = 0
    for member in META.members:
        disk_is_back.clear()
        writer = ParquetWriter(tmp_path, META.run, META.group, member, queue_rows=20, part_rows=1)
        fill(writer.recorder())
        disk_is_back.set()
        writer.close()
        assert writer.dropped == 55 - 19
        assert writer.written == 19
        writer.put((0, 1, 0, 0, 5, 0, 0, 0, 0, 0, 0, None))
        assert writer.dropped == 55 - 19 + 5  # after close there is nowhere to put it
        dropped += 55 - 19
    trace = read_trace(tmp_path)
    assert trace.dropped == dropped
    verdicts = check_all(trace)
    assert {verdict.status for verdict in verdicts.values()} == {Status.UNKNOWN}


def test_a_later_incarnation_is_written_with_the_same_options(tmp_path: Path) -> None:
    with ParquetWriter(tmp_path, META.run, META.group, 1, range_slots=4, part_rows=10, flush_s=60) as writer:
        fill(writer.recorder())
        fill(later_recorder(writer.recorder(), 7))
    names = {
        incarnation: {path.name for path in tmp_path.rglob(f"*.{incarnation}.*.parquet")} for incarnation in (0, 7)
    }
    assert {name.replace(".0.", ".7.", 1) for name in names[0]} == names[7]
    assert all(int(name.split("-")[1]) % 4 == 0 and len(names[7]) > 1 for name in names[7])


def test_rows_that_a_later_incarnation_drops_count_for_the_member(tmp_path: Path) -> None:
    with ParquetWriter(tmp_path, META.run, META.group, 1, queue_rows=1) as writer:
        recorder = writer.recorder()
        last = later_recorder(later_recorder(recorder, 7), 8)
    fill(last)
    assert writer.dropped == 55, "after close there is nowhere to put them"
    fill(recorder)
    assert writer.dropped == 110
    assert [json.loads(path.read_text())["dropped"] for path in tmp_path.rglob("end.*.json")] == [0, 0, 0]


def test_an_error_of_a_later_incarnation_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(*_: object) -> None:
        raise OSError("no space left on device")

    with ParquetWriter(tmp_path, META.run, META.group, 1) as writer:
        later = later_recorder(writer.recorder(), 7)
        monkeypatch.setattr(trace_files, "write_part", full_disk)
        fill(later)
    assert isinstance(writer.error, OSError)
    assert writer.dropped == 55
    ends = {path.name: json.loads(path.read_text()) for path in tmp_path.rglob("end.*.json")}
    assert {name: (end["dropped"], end["error"]) for name, end in ends.items()} == {
        "end.0.json": (0, None),
        "end.7.json": (55, "OSError: no space left on device"),
    }


def later_recorder(recorder: Recorder, incarnation: int) -> Recorder:
    assert recorder.new_incarnation is not None
    return recorder.new_incarnation(incarnation)


def test_rows_that_cannot_be_written_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(trace_files, "write_part", full_disk)
    with ParquetWriter(tmp_path, META.run, META.group, 1) as writer:
        fill(writer.recorder())
    assert (writer.dropped, writer.written) == (55, 0)
    assert isinstance(writer.error, OSError)
    (end,) = tmp_path.rglob("end.0.json")
    assert json.loads(end.read_text())["error"] == "OSError: no space left on device"


def test_killed_writer_leaves_whole_files_and_no_end(tmp_path: Path) -> None:
    """SIGKILL while parts are written one after another: what has a final name can be read."""
    code = f"""
    from unisono.trace.files import ParquetWriter
    writer = ParquetWriter({str(tmp_path)!r}, {META.run!r}, {META.group!r}, 1, part_rows=50, flush_s=0.01)
    recorder = writer.recorder()
    index = 0
    while True:
        if writer._put_rows - writer._processed_rows < 1000:
            recorder.delivered(sender=1, sender_incarnation=0, first_sequence=index, count=10, sizes=1,
                               slot=index // 10, first_place=0, first_index=index, real_ns=0, local_ns=0)
            index += 10
    """
    child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)])
    try:
        while len(list(tmp_path.rglob("slots-*.parquet"))) < 5:
            assert child.poll() is None
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    write_meta(tmp_path, replace(META, members=(1,)))
    trace = read_trace(tmp_path)
    assert not trace.logs[0].closed
    assert trace.index.tolist() == list(range(len(trace)))
    assert len(trace) >= 250


def damaged(tmp_path: Path) -> str:
    with pytest.raises(TraceDamaged) as caught:
        read_trace(tmp_path)
    return str(caught.value)


def part_of(tmp_path: Path, *, stamped: bool = False) -> Path:
    """A file of a trace; the end mark of one that a test rewrites has no hash of it."""
    write_trace(tmp_path, everything())
    (part,) = tmp_path.rglob("member=1/*.parquet")
    if not stamped:
        end = part.parent / "end.0.json"
        write_json(end, {name: value for name, value in read_json(end).items() if name != "files"})
    return part


def test_truncated_file_is_named(tmp_path: Path) -> None:
    part = part_of(tmp_path)
    part.write_bytes(part.read_bytes()[:-40])
    assert damaged(tmp_path).startswith(f"{part}: is not a readable Parquet file")


def test_the_end_mark_has_the_size_and_the_hash_of_each_file(tmp_path: Path) -> None:
    part = part_of(tmp_path, stamped=True)
    whole = part.read_bytes()
    hashed = {"bytes": len(whole), "sha256": hashlib.sha256(whole).hexdigest()}
    assert read_json(part.parent / "end.0.json")["files"] == {part.name: hashed}
    part.write_bytes(whole[:-40])
    assert damaged(tmp_path) == f"{part}: has {len(whole) - 40} bytes, but {len(whole)} were written"
    for at in (0, len(whole) // 2, len(whole) - 1):
        part.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert damaged(tmp_path).startswith(f"{part}: has changed since it was written")
        (report,) = verify(tmp_path)
        (verdict,) = report.verdicts.values()
        assert (verdict.status, verdict.token) == (Status.UNKNOWN, Reason.TRACE_DAMAGED)
        assert verdict.reason.startswith(str(part))
    part.unlink()
    assert damaged(tmp_path) == f"{part}: is missing, but the end record of its recording lists it"
    write_json(part.parent / "end.0.json", {**read_json(part.parent / "end.0.json"), "files": {part.name: 1}})
    assert "each entry of `files` needs the fields `bytes` and `sha256`" in damaged(tmp_path)


def test_a_writer_says_the_size_and_the_hash_of_each_of_its_files(tmp_path: Path) -> None:
    with ParquetWriter(tmp_path, META.run, META.group, 1, range_slots=2) as writer:
        fill(writer.recorder())
    (folder,) = tmp_path.rglob("member=1")
    files = sorted(folder.glob("*.parquet"))
    assert len(files) > 1
    assert read_stamps(folder) == {path.name: stamp(path) for path in files}


def test_missing_column_is_named(tmp_path: Path) -> None:
    part = part_of(tmp_path)
    pq.write_table(pq.read_table(part).drop_columns(["place", "slot"]), part)
    assert damaged(tmp_path) == f"{part}: lacks the columns slot, place"


def test_wrong_type_is_named(tmp_path: Path) -> None:
    part = part_of(tmp_path)
    table = pq.read_table(part)
    words = pa.array(["x"] * len(table))
    pq.write_table(table.set_column(table.schema.get_field_index("slot"), "slot", words), part)
    assert "has a column of the wrong type" in damaged(tmp_path)


@pytest.mark.parametrize("kind", MESSAGE_KINDS)
@pytest.mark.parametrize("count", [1, 3])
def test_a_message_without_a_number_is_refused(kind: EventKind, count: int, tmp_path: Path) -> None:
    path = tmp_path / "slots-0-99.0.0.parquet"
    rows = remembered().trace(META)
    rows = rows.select((rows.member == 1) & (rows.recorder_incarnation == 0)).deliveries().select(slice(0, 3))
    without = np.where(np.arange(3) < count, -1, rows.sequence)
    write_part(path, replace(rows, kind=np.full(3, kind.code, dtype=np.int8), sequence=without), META.run, META.group)
    told = re.escape(f"{path}: column sequence: a row about a message has no sequence number")
    with pytest.raises(TraceDamaged, match=told):
        read_part(path)
    for names in (SUMMARY_COLUMNS, ["kind", "sequence"]):
        with pytest.raises(TraceDamaged, match=told):
            read_columns(path, names, run=META.run, group=META.group, member=1, recorder_incarnation=0)


@pytest.mark.parametrize("version", [b"3", b"soon", None])
def test_unknown_version_is_refused(tmp_path: Path, version: bytes | None) -> None:
    part = part_of(tmp_path)
    pq.write_table(pq.read_table(part).replace_schema_metadata({VERSION_KEY: version} if version else {}), part)
    assert "is unknown; this release reads versions 1 and 2" in damaged(tmp_path)


def test_missing_file_or_member_is_named(tmp_path: Path) -> None:
    part = part_of(tmp_path)
    part.unlink()
    assert "the end record of incarnation 0 counts 59 rows, but the files have 0" in damaged(tmp_path)
    (part.parent / "end.0.json").unlink()
    part.parent.rmdir()
    assert "has no file of member 1, which meta.json lists" in damaged(tmp_path)


def test_rows_of_another_run_are_refused(tmp_path: Path) -> None:
    part = part_of(tmp_path)
    write_meta(tmp_path, replace(META, run="other"))
    (target,) = (path.parent for path in tmp_path.rglob("meta.json") if "run=other" in str(path))
    (target / "member=1").mkdir()
    part.rename(target / "member=1" / part.name)
    with pytest.raises(TraceDamaged, match="has rows of run run 1/a; expected only other"):
        read_trace(tmp_path, run="other")


def test_meta_is_checked(tmp_path: Path) -> None:
    path = write_meta(tmp_path, META)
    assert read_meta(path) == META
    path.write_text(path.read_text().replace('"order"', '"disorder"'))
    assert damaged(tmp_path) == f"{path}: lacks the fields order"
    path.write_text("{")
    assert "is not readable JSON" in damaged(tmp_path)
    path.unlink()
    assert "has no meta.json in it or below it" in damaged(tmp_path)


def test_one_of_several_runs_must_be_named(tmp_path: Path) -> None:
    write_trace(tmp_path, everything())
    other = replace(everything(), meta=replace(META, run="2"))
    write_trace(tmp_path, other)
    assert "has 2 runs or groups" in damaged(tmp_path)
    assert read_trace(tmp_path, run="2").meta.run == "2"
