"""Rows of a trace into the layout that verification reads without a shuffle: many small files into few, and rows that
were brought from elsewhere in any layout.

Every row goes once, by one shuffle, to the task that writes the file of its member, life and range of slots. What is
written is a trace of its own; the source stays as it is.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from unisono.errors import InvalidPolicy
from unisono.trace.files import RANGE_SLOTS, end_path, from_arrow, member_folder, part_path, write_end, write_part
from unisono.trace.kinds import SCHEMA_VERSION
from unisono.trace.layout import footer
from unisono.trace.meta import (
    META_NAME,
    RunMeta,
    TraceDamaged,
    check_version,
    group_folder,
    read_json,
    read_meta,
    write_meta,
)
from unisono.trace.schema import SCHEMA, VERSION_KEY
from unisono.trace.table import Rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_WRITTEN = "member int, life long, rows long"


@dataclass(frozen=True, slots=True)
class Relayout:
    """What was written."""

    folder: str
    rows: int
    files_before: int
    files: int


def relayout(
    session: SparkSession, source: Path, out: Path, *, range_slots: int = RANGE_SLOTS, closed: bool = False
) -> Relayout:
    """Write the run in `source` (a folder with meta.json and Parquet files at any depth) to `out`.

    A recording counts as closed if the source says so; `closed` says so of all, for sources that do not record it.
    What the executors say they wrote has to be here.
    """
    if range_slots < 1:
        raise InvalidPolicy("range_slots", f"at least one slot is needed, not {range_slots}")
    meta = read_meta(source / META_NAME)
    target = group_folder(out, meta.run, meta.group)
    if target.exists():
        raise TraceDamaged(target, "is there already; remove it or name another folder")
    files = sorted(path for path in source.rglob("*.parquet") if "metrics" not in path.relative_to(source).parts)
    for path in files:
        _refuse_foreign(path)
    write_meta(out, meta)
    try:
        counts = _carried(session, source, out, meta, files, range_slots=range_slots, closed=closed)
    except BaseException:  # an interruption too
        shutil.rmtree(target, ignore_errors=True)  # half of a run is of no use, and would be in the way of a second try
        raise
    written = len(list(target.glob("member=*/*.parquet")))
    return Relayout(str(target), sum(counts.values()), len(files), written)


def _carried(
    session: SparkSession, source: Path, out: Path, meta: RunMeta, files: list[Path], *, range_slots: int, closed: bool
) -> dict[tuple[int, int], int]:
    """How many rows each recording has, once they and the recordings' ends are written."""
    counts = _written(session, files, str(out.absolute()), meta, range_slots) if files else {}
    for member, life in _closed(source):  # of a recording that was closed, every row may have been lost
        counts.setdefault((member, life), 0)
    for (member, life), rows in sorted(counts.items()):
        dropped, whole = _recording(source, member, life, rows, closed)
        folder = member_folder(out, meta.run, meta.group, member)
        here, times = _here(folder, life)
        if here != rows:
            what = (
                f"{rows:,} rows were written, {here:,} are here; on a cluster every machine needs --out under this path"
            )
            raise TraceDamaged(folder.absolute(), what)
        if whole:
            folder.mkdir(parents=True, exist_ok=True)
            write_end(folder, life, rows=rows, dropped=dropped, times=times)
    return counts


def _written(
    session: SparkSession, files: list[Path], out: str, meta: RunMeta, range_slots: int
) -> dict[tuple[int, int], int]:
    """How many rows each recording has, once they are written."""
    from pyspark.sql import functions  # noqa: PLC0415 - only who uses Spark pays for it

    def write(table: pa.Table) -> pa.Table:  # Spark looks at the hints
        return _write(out, meta, range_slots, table)

    frame = session.read.parquet(*(str(path.absolute()) for path in files)).select(*SCHEMA.names)
    found: dict[tuple[int, int], int] = {}
    place = functions.expr(f"floor(slot / {range_slots})").alias("range")
    for row in frame.groupBy("member", "life", place).applyInArrow(write, _WRITTEN).collect():
        who = (row["member"], row["life"])
        if row["rows"] < 0:
            what = f"has rows of member {who[0]} that are not of run {meta.run} and group {meta.group}"
            raise TraceDamaged(files[0].parent, what)
        found[who] = found.get(who, 0) + row["rows"]
    return found


def _write(out: str, meta: RunMeta, range_slots: int, table: Any) -> Any:
    """One file: the rows of one member, life and range, in the order of what happened. -1 rows if not of this run."""
    if any(
        set(table[name].unique().to_pylist()) != {value} for name, value in (("run", meta.run), ("group", meta.group))
    ):
        who = {name: table[name][:1] for name in ("member", "life")}
        return pa.table({**who, "rows": pa.array([-1], pa.int64())})
    rows = _in_order(from_arrow(_as_recorded(table), f"run {meta.run}, group {meta.group}"))
    member, life = int(rows.member[0]), int(rows.life[0])
    folder = member_folder(out, meta.run, meta.group, member)
    folder.mkdir(parents=True, exist_ok=True)
    write_part(part_path(folder, int(rows.slot[0]), range_slots, life, 0), rows, meta.run, meta.group)
    return pa.table({"member": pa.array([member], pa.int32()), "life": [life], "rows": [len(rows)]})


def _as_recorded(table: Any) -> Any:
    """Spark gives plain words for codes."""
    columns = []
    for field in SCHEMA:
        column = table[field.name]
        if pa.types.is_dictionary(field.type):
            column = column.cast(pa.string()).dictionary_encode()
        columns.append(column)
    return pa.table(columns, names=SCHEMA.names).cast(SCHEMA)


def _in_order(rows: Rows) -> Rows:
    return rows.select(np.lexsort((rows.index, rows.sequence, rows.real_ns)))


def _here(folder: Path, life: int) -> tuple[int, tuple[int, int] | None]:
    """How many rows of a recording were written, and when they happened."""
    told = [footer(path) for path in folder.glob(f"slots-*.{life}.*.parquet")]
    times = [when for _, when in told if when is not None]
    within = (min(first for first, _ in times), max(last for _, last in times)) if times else None
    return sum(rows for rows, _ in told), within


def _closed(source: Path) -> list[tuple[int, int]]:
    """The recordings that the source says were closed, each a member's life."""
    found = []
    for path in sorted(source.glob("member=*/end.*.json")):
        member, life = path.parent.name.removeprefix("member="), path.name.split(".")[1]
        if member.lstrip("-").isdigit() and life.isdigit():
            found.append((int(member), int(life)))
    return found


def _recording(source: Path, member: int, life: int, rows: int, closed: bool) -> tuple[int, bool]:
    """How many rows a recording dropped, and whether it was closed."""
    path = end_path(source / f"member={member}", life)
    if not path.exists():
        return 0, closed
    ended = read_json(path)
    if ended.get("rows") != rows:
        raise TraceDamaged(path.parent, f"{ended.get('rows')} rows were written, {rows} are there")
    return int(ended.get("dropped", 0)), True


def _refuse_foreign(path: Path) -> None:
    """A file of another version, or one that is not of a trace, is not carried over."""
    try:
        schema = pq.read_schema(path)
    except (pa.ArrowException, OSError) as error:
        raise TraceDamaged(path, f"is no readable Parquet file ({error})") from error
    version = (schema.metadata or {}).get(VERSION_KEY)
    # What other tools wrote has no version: its columns decide.
    check_version(path, SCHEMA_VERSION if version is None else int(version) if version.isdigit() else version)
    missing = [name for name in SCHEMA.names if name not in schema.names]
    if missing:
        raise TraceDamaged(path, f"lacks the column {', '.join(missing)}")
