"""Rewrites a trace into the layout that verification reads without a shuffle: `unisono compact`.

The source may have many small files, or rows that another tool wrote in any layout. One shuffle sends each row to the
task that writes the file of its member, incarnation and range of slots. The result is a trace of its own; the source
does not change.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from unisono.errors import InvalidOption
from unisono.trace import version_1
from unisono.trace.arrow import SCHEMA, VERSION_KEY, from_arrow
from unisono.trace.files import (
    RANGE_SLOTS,
    FileStamp,
    end_path,
    file_version,
    member_folder,
    part_path,
    read_footer,
    write_end,
    write_part,
)
from unisono.trace.schema import (
    META_NAME,
    SCHEMA_VERSION,
    RunMeta,
    TraceDamaged,
    group_folder,
    read_json,
    read_meta,
    write_meta,
)
from unisono.trace.table import Rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_WRITTEN_COLUMNS = "member int, incarnation long, rows long, file string, bytes long, sha256 string"


@dataclass(frozen=True, slots=True)
class RelayoutResult:
    """The folder that a relayout wrote, its number of rows, and the number of files before and after."""

    folder: str
    rows: int
    files_before: int
    files: int


def relayout(
    session: SparkSession, source: Path, out: Path, *, range_slots: int = RANGE_SLOTS, closed: bool = False
) -> RelayoutResult:
    """Write the run in `source` (a folder with meta.json and Parquet files at any depth) to `out`.

    A recording is closed if it has an end record. With `closed`, the other recordings count as closed too. Raises
    `TraceDamaged` if the files that the executors report as written are not in `out`.
    """
    if range_slots < 1:
        raise InvalidOption("range_slots", f"expected at least 1 slot, not {range_slots}")
    meta = read_meta(source / META_NAME)
    target = group_folder(out, meta.run, meta.group)
    if target.exists():
        raise TraceDamaged(target, "already exists; remove it, or write to another folder")
    files = sorted(path for path in source.rglob("*.parquet") if "metrics" not in path.relative_to(source).parts)
    versions = {_version(path) for path in files}
    if len(versions) > 1:
        raise TraceDamaged(source, "has files of several schema versions; compact the files of each version separately")
    write_meta(out, meta)
    try:
        by = Rewriter(str(out.absolute()), meta, range_slots, versions.pop() if versions else SCHEMA_VERSION)
        counts = _write_recordings(session, source, out, by, files, closed=closed)
    except BaseException:  # an interruption too
        shutil.rmtree(target, ignore_errors=True)  # half of a run is useless and would block a second attempt
        raise
    written = len(list(target.glob("member=*/*.parquet")))
    return RelayoutResult(str(target), sum(counts.values()), len(files), written)


def _write_recordings(
    session: SparkSession, source: Path, out: Path, by: Rewriter, files: list[Path], *, closed: bool
) -> dict[tuple[int, int], int]:
    """Write all rows and end records, and return the number of rows of each recording."""
    meta = by.meta
    written = _write_rows(session, files, by) if files else {}
    for member, incarnation in _closed_recordings(source):  # a closed recording may have lost every row
        written.setdefault((member, incarnation), _Written())
    for (member, incarnation), found in sorted(written.items()):
        dropped, whole = _recording_end(source, member, incarnation, found.rows, closed)
        folder = member_folder(out, meta.run, meta.group, member)
        here, times = _rows_on_disk(folder, incarnation)
        if here != found.rows:
            what = (
                f"{found.rows:,} rows were written, but this machine sees {here:,}; on a cluster, every machine must "
                "reach the folder of --out under this path"
            )
            raise TraceDamaged(folder.absolute(), what)
        if whole:
            folder.mkdir(parents=True, exist_ok=True)
            write_end(folder, incarnation, rows=found.rows, dropped=dropped, time_range=times, stamps=found.stamps)
    return {run_id: found.rows for run_id, found in written.items()}


@dataclass(slots=True)
class _Written:
    """The files of one recording that the executors wrote."""

    rows: int = 0
    stamps: dict[str, FileStamp] = field(default_factory=dict)


def _write_rows(session: SparkSession, files: list[Path], by: Rewriter) -> dict[tuple[int, int], _Written]:
    """Write all rows, and return the files of each recording."""
    from pyspark.sql import functions  # noqa: PLC0415 - load pyspark only if it is used

    def write(table: pa.Table) -> pa.Table:  # Spark reads the type hints
        return by.write(table)

    columns = [functions.col(called).alias(name) for name, called in by.columns.items()]
    frame = session.read.parquet(*(str(path.absolute()) for path in files)).select(*columns)
    found: dict[tuple[int, int], _Written] = {}
    place = functions.expr(f"floor(slot / {by.range_slots})").alias("range")
    for row in frame.groupBy("member", "recorder_incarnation", place).applyInArrow(write, _WRITTEN_COLUMNS).collect():
        run_id = (row["member"], row["incarnation"])
        if row["rows"] < 0:
            what = f"has rows of member {run_id[0]} that are not of run {by.meta.run} and group {by.meta.group}"
            raise TraceDamaged(files[0].parent, what)
        of = found.setdefault(run_id, _Written())
        of.rows += row["rows"]
        of.stamps[row["file"]] = FileStamp(row["bytes"], row["sha256"])
    return found


@dataclass(frozen=True, slots=True)
class Rewriter:
    """Writes the files of the new layout, on the executors."""

    out: str
    meta: RunMeta
    range_slots: int
    version: int
    """The schema version of the source rows."""

    @property
    def columns(self) -> dict[str, str]:
        """The name of each column that is written, mapped to its name in the source."""
        names = SCHEMA.names if self.version == SCHEMA_VERSION else version_1.NAMES
        called = names if self.version == SCHEMA_VERSION else version_1.stored_names(names)
        return dict(zip(names, called, strict=True))

    def write(self, table: Any) -> Any:
        """Write one file: the rows of one member, incarnation and range, in the order of recording.

        Returns a table of one row that describes the file. Its number of rows is -1 if the rows belong to another run.
        """
        run, group = self.meta.run, self.meta.group
        if any(set(table[name].unique().to_pylist()) != {value} for name, value in (("run", run), ("group", group))):
            return _written_file(
                table["member"][0].as_py(), table["recorder_incarnation"][0].as_py(), -1, "", FileStamp(0, "")
            )
        rows = from_arrow(_to_trace_schema(table), f"run {run}, group {group}")
        rows = _sorted_by_time(rows if self.version == SCHEMA_VERSION else version_1.upgraded(rows))
        member, incarnation = int(rows.member[0]), int(rows.recorder_incarnation[0])
        folder = member_folder(self.out, run, group, member)
        folder.mkdir(parents=True, exist_ok=True)
        path = part_path(folder, int(rows.slot[0]), self.range_slots, incarnation, 0)
        return _written_file(member, incarnation, len(rows), path.name, write_part(path, rows, run, group))


def _written_file(member: int, incarnation: int, rows: int, file: str, known: FileStamp) -> Any:
    return pa.table(
        {
            "member": pa.array([member], pa.int32()),
            "incarnation": [incarnation],
            "rows": [rows],
            "file": [file],
            "bytes": [known.size_bytes],
            "sha256": [known.sha256],
        }
    )


def _to_trace_schema(table: Any) -> Any:
    """Convert a table from Spark to the schema of a trace: Spark returns plain strings for dictionary columns."""
    fields = [field for field in SCHEMA if field.name in table.column_names]
    columns = []
    for known in fields:
        column = table[known.name]
        if pa.types.is_dictionary(known.type):
            column = column.cast(pa.string()).dictionary_encode()
        columns.append(column)
    return pa.table(columns, names=[known.name for known in fields]).cast(pa.schema(fields))


def _sorted_by_time(rows: Rows) -> Rows:
    return rows.select(np.lexsort((rows.index, rows.sequence, rows.real_ns)))


def _rows_on_disk(folder: Path, incarnation: int) -> tuple[int, tuple[int, int] | None]:
    """The number of rows of a recording on disk, and the times of its first and last row."""
    told = [read_footer(path) for path in folder.glob(f"slots-*.{incarnation}.*.parquet")]
    times = [when for _, when in told if when is not None]
    within = (min(first for first, _ in times), max(last for _, last in times)) if times else None
    return sum(rows for rows, _ in told), within


def _closed_recordings(source: Path) -> list[tuple[int, int]]:
    """The closed recordings of the source, as (member, incarnation)."""
    found = []
    for path in sorted(source.glob("member=*/end.*.json")):
        member, incarnation = path.parent.name.removeprefix("member="), path.name.split(".")[1]
        if member.lstrip("-").isdigit() and incarnation.isdigit():
            found.append((int(member), int(incarnation)))
    return found


def _recording_end(source: Path, member: int, incarnation: int, rows: int, closed: bool) -> tuple[int, bool]:
    """The number of rows that a recording dropped, and whether it was closed."""
    path = end_path(source / f"member={member}", incarnation)
    if not path.exists():
        return 0, closed
    ended = read_json(path)
    if ended.get("rows") != rows:
        raise TraceDamaged(
            path.parent,
            f"the end record of incarnation {incarnation} counts {ended.get('rows')} rows, but the files have {rows}",
        )
    return int(ended.get("dropped", 0)), True


def _version(path: Path) -> int:
    """The schema version of a file; raises `TraceDamaged` if it is not a trace file that this release reads."""
    try:
        schema = pq.read_schema(path)
    except (pa.ArrowException, OSError) as error:
        raise TraceDamaged(path, f"is not a readable Parquet file ({error})") from error
    # Files of other tools have no version; their columns decide.
    if VERSION_KEY in (schema.metadata or {}):
        version = file_version(path, schema.metadata)
    else:
        version = (
            version_1.VERSION if version_1.stored_names(["recorder_incarnation"])[0] in schema.names else SCHEMA_VERSION
        )
    names = SCHEMA.names if version == SCHEMA_VERSION else version_1.stored_names(version_1.NAMES)
    missing = [name for name in names if name not in schema.names]
    if missing:
        raise TraceDamaged(path, f"lacks the columns {', '.join(missing)}")
    return version
