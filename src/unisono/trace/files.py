"""The Parquet files of a trace: names, writing, reading, and the background writer of a running member.

    DIR/run=R/group=G/meta.json
    DIR/run=R/group=G/member=M/slots-FIRST-LAST.INCARNATION.N.parquet    rows in the order of recording
    DIR/run=R/group=G/member=M/end.INCARNATION.json                      written when the recording was closed

INCARNATION is the recorder's incarnation. Slot ranges are aligned (FIRST is a multiple of the range's length), so the
same range has the same name at every member, and one range can be checked without a shuffle. The end record has the
number of rows, and the size and the SHA-256 of each file of the recording.

Writing: `write_trace` writes a whole trace. `ParquetWriter` writes one member's recording from its own thread, so
delivery never waits for a disk: `put` appends to a bounded queue and returns. If the queue is full, the writer drops
the rows, counts them, and says so in the end record.

Reading: `read_trace` reads a whole trace. `layout` lists the files by range of slots without reading rows, and
`read_range` reads the rows of one range. Damaged files raise `TraceDamaged`. `layout` checks file names, end records
and footers by the same rules as `read_trace`; `read_range` checks the rows.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Self, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from unisono.trace import version_1
from unisono.trace.arrow import ABSENT_LISTS_KEY, LISTS, SCHEMA, VERSION_KEY, codes_and_words, from_arrow, to_arrow
from unisono.trace.recorder import COUNT_INDEX, SLOT_INDEX, Extras, PackedRows, Recorder
from unisono.trace.schema import (
    ABSENT,
    META_NAME,
    NUMBER_COLUMNS,
    SCHEMA_VERSION,
    EventKind,
    RunMeta,
    TraceDamaged,
    check_version,
    group_folder,
    read_json,
    read_meta,
    write_json,
    write_meta,
)
from unisono.trace.table import MemberLog, Rows, Trace, concatenated, expand_rows
from unisono.trace.writer_thread import WriterThread

RANGE_SLOTS: Final = 4096

PART_NAME = re.compile(r"slots-(-?\d+)-(-?\d+)\.(\d+)\.(\d+)\.parquet")
_GROWING: Final = ("sequence", "slot", "place", "index", "real_ns", "local_ns")
"""Columns that grow from row to row. Delta encoding stores them in a third of the size of dictionaries, and halves the
time to write and read them."""
_END_NAME = re.compile(r"end\.(\d+)\.json")


def member_folder(directory: str | os.PathLike[str], run: str, group: str, member: int) -> Path:
    """The folder of one member's files."""
    return group_folder(directory, run, group) / f"member={member}"


def part_path(folder: Path, slot: int, range_slots: int, incarnation: int, number: int) -> Path:
    """The path of one Parquet file (part) of a recording.

    Its name has the aligned range of slots that contains `slot`, the incarnation, and the part's number.
    """
    first = slot // range_slots * range_slots
    return folder / f"slots-{first}-{first + range_slots - 1}.{incarnation}.{number}.parquet"


def end_path(folder: Path, incarnation: int) -> Path:
    """The path of the end record, which says that the recording of an incarnation was closed."""
    return folder / f"end.{incarnation}.json"


@dataclass(frozen=True, slots=True)
class FileStamp:
    """The size and the hash of a file when it was written."""

    size_bytes: int
    sha256: str

    def check(self, path: str | os.PathLike[str]) -> None:
        """Raise `TraceDamaged` if the file at `path` has another size or hash than this stamp."""
        if (now := stamp(path)) != self:
            raise TraceDamaged(
                path,
                f"has changed since it was written: found {now.size_bytes} bytes with SHA-256 {now.sha256}, "
                f"expected {self.size_bytes} bytes with SHA-256 {self.sha256}",
            )


Stamps: TypeAlias = Mapping[str, FileStamp]
"""The files of a member's recording, by name."""


def stamp(path: str | os.PathLike[str]) -> FileStamp:
    """The size and the hash of a file."""
    try:
        with open(path, "rb") as file:
            return FileStamp(os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest())
    except OSError as error:
        raise TraceDamaged(path, f"is not readable ({error})") from error


def write_end(
    folder: Path,
    incarnation: int,
    *,
    rows: int,
    dropped: int,
    error: str | None = None,
    time_range: tuple[int, int] | None = None,
    stamps: Stamps | None = None,
) -> None:
    """Write the end record of a recording: that it was closed, and how many rows it wrote and dropped.

    `time_range` has the times of its first and last row, so that readers can skip it without opening its files.
    `stamps` has the size and hash of each of its files.
    """
    ended: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "rows": rows, "dropped": dropped, "error": error}
    if time_range is not None:
        ended |= {"first_ns": time_range[0], "last_ns": time_range[1]}
    if stamps is not None:
        ended["files"] = {
            name: {"bytes": known.size_bytes, "sha256": known.sha256} for name, known in sorted(stamps.items())
        }
    write_json(end_path(folder, incarnation), ended)


def write_part(path: Path, rows: Rows, run: str, group: str) -> FileStamp:
    """Write one file under a temporary name, then rename it, so a truncated file never has a final name."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        pq.write_table(
            to_arrow(rows, run, group),
            partial,
            compression="lz4",
            use_dictionary=[name for name in SCHEMA.names if name not in _GROWING],
            column_encoding=dict.fromkeys(_GROWING, "DELTA_BINARY_PACKED"),
        )
        written = stamp(partial)
        partial.replace(path)
        return written
    finally:
        partial.unlink(missing_ok=True)


def write_trace(directory: str | os.PathLike[str], trace: Trace, *, range_slots: int = RANGE_SLOTS) -> Path:
    """Write a whole trace and return the group's folder."""
    run, group = trace.meta.run, trace.meta.group
    meta_path = write_meta(directory, trace.meta)
    for log in trace.logs:
        folder = member_folder(directory, run, group, log.member)
        folder.mkdir(parents=True, exist_ok=True)
        rows = trace.select((trace.member == log.member) & (trace.recorder_incarnation == log.incarnation))
        ranges = rows.slot // range_slots
        stamps: dict[str, FileStamp] = {}
        for number in np.unique(ranges).tolist():
            path = part_path(folder, number * range_slots, range_slots, log.incarnation, 0)
            stamps[path.name] = write_part(path, rows.select(ranges == number), run, group)
        if log.closed:
            times = (int(rows.real_ns.min()), int(rows.real_ns.max())) if len(rows) else None
            write_end(folder, log.incarnation, rows=len(rows), dropped=log.dropped, time_range=times, stamps=stamps)
    return meta_path.parent


def read_trace(path: str | os.PathLike[str], *, run: str | None = None, group: str | None = None) -> Trace:
    """Read a recorded trace. `path` is a group's folder, or a folder above it with `run` and `group` to choose one."""
    folder = find_group(path, run, group)
    meta = read_meta(folder / META_NAME)
    parts: list[Rows] = []
    logs: list[MemberLog] = []
    for member_path in sorted(folder.glob("member=*")):
        member_parts, member_logs = _read_member(member_path, meta)
        parts += member_parts
        logs += member_logs
    rows = concatenated(parts)
    crashed = set(rows.sender[rows.kind == EventKind.CRASH.code].tolist())
    without_files = sorted(set(meta.members) - {log.member for log in logs} - crashed)
    if without_files:
        names = ", ".join(map(str, without_files))
        raise TraceDamaged(folder, f"has no file of member {names}, which {META_NAME} lists")
    return Trace.from_rows(rows, meta, sorted(logs, key=lambda log: (log.member, log.incarnation)))


def find_group(path: str | os.PathLike[str], run: str | None = None, group: str | None = None) -> Path:
    """The one folder at or below `path` that has a `meta.json` of this run and group."""
    root = Path(path)
    found = find_groups(root)
    if run is not None or group is not None:
        metas = [(folder, read_meta(folder / META_NAME)) for folder in found]
        found = [f for f, m in metas if run in (None, m.run) and group in (None, m.group)]
    if not found:
        raise TraceDamaged(root, f"has no trace of run {run or '(any)'} and group {group or '(any)'}")
    if len(found) > 1:
        names = ", ".join(str(folder.relative_to(root)) for folder in found[:5])
        raise TraceDamaged(root, f"has {len(found)} runs or groups; choose one of them: {names}")
    return found[0]


def find_groups(path: str | os.PathLike[str]) -> list[Path]:
    """Every folder at or below `path` that has a `meta.json`. Each is one run of one group."""
    root = Path(path)
    if not root.is_dir():
        raise TraceDamaged(root, "is not a folder; give a folder written by `demo --out` or `simulate --trace`")
    found = sorted(meta.parent for pattern in ("", "*/", "*/*/") for meta in root.glob(pattern + META_NAME))
    if not found:
        raise TraceDamaged(root, f"has no {META_NAME} in it or below it, so no run was recorded here")
    return found


def _read_member(folder: Path, meta: RunMeta) -> tuple[list[Rows], list[MemberLog]]:
    member = _member_of_folder(folder)
    counts: dict[int, int] = {}
    stamps = read_stamps(folder)
    parts = []
    for path in sorted(folder.glob("*.parquet")):
        first, last, incarnation = _parsed_part_name(path)
        if path.name in stamps:
            stamps[path.name].check(path)
        rows = read_part(path, meta.run, meta.group)
        if len(rows) and not ((rows.member == member).all() and (rows.recorder_incarnation == incarnation).all()):
            raise TraceDamaged(path, f"has rows that are not of member {member}, incarnation {incarnation}")
        if len(rows) and not (first <= rows.slot.min() and rows.slot.max() <= last):
            raise TraceDamaged(path, f"has rows of slots outside {first} to {last}")
        counts[incarnation] = counts.get(incarnation, 0) + len(rows)
        parts.append(rows)
    return parts, closed_logs(folder, member, counts)


def _member_of_folder(folder: Path) -> int:
    text = folder.name.removeprefix("member=")
    if not re.fullmatch(r"-?\d+", text):
        raise TraceDamaged(folder, "the folder's name does not end in a member's number")
    return int(text)


def _parsed_part_name(path: Path) -> tuple[int, int, int]:
    """The first slot, the last slot and the incarnation in the name of a part."""
    named = PART_NAME.fullmatch(path.name)
    if not named:
        raise TraceDamaged(path, "is not named slots-FIRST-LAST.INCARNATION.N.parquet")
    return int(named[1]), int(named[2]), int(named[3])


def closed_logs(folder: Path, member: int, counts: dict[int, int]) -> list[MemberLog]:
    """Whether each recording of a member was closed, and how many rows it dropped.

    `counts` has the number of rows found of each incarnation. Raises `TraceDamaged` if a closed recording lacks rows.
    """
    logs = []
    ends = {int(n[1]): path for path in sorted(folder.iterdir()) if (n := _END_NAME.fullmatch(path.name))}
    for incarnation in sorted(counts.keys() | ends.keys()):
        if incarnation not in ends:
            logs.append(MemberLog(member, incarnation, closed=False))
            continue
        ended = read_json(ends[incarnation])
        check_version(ends[incarnation], ended.get("schema_version"))
        written, dropped = ended.get("rows"), ended.get("dropped")
        if not isinstance(written, int) or not isinstance(dropped, int):
            problem = f"the fields rows and dropped must be integers, not {written!r} and {dropped!r}"
            raise TraceDamaged(ends[incarnation], problem)
        if written != counts.get(incarnation, 0):
            raise TraceDamaged(
                folder,
                f"the end record of incarnation {incarnation} counts {written} rows, "
                f"but the files have {counts.get(incarnation, 0)}",
            )
        logs.append(MemberLog(member, incarnation, closed=True, dropped=dropped))
    return logs


def read_stamps(folder: Path) -> dict[str, FileStamp]:
    """The stamps in the end records of a member's folder.

    Raises `TraceDamaged` for a file that is missing or has another size.
    """
    found: dict[str, FileStamp] = {}
    for path in sorted(path for path in folder.iterdir() if _END_NAME.fullmatch(path.name)):
        files = read_json(path).get("files", {})
        try:
            found |= {name: FileStamp(int(known["bytes"]), str(known["sha256"])) for name, known in files.items()}
        except (AttributeError, KeyError, TypeError, ValueError):
            text = "each entry of `files` needs the fields `bytes` and `sha256`; copy or record the trace again"
            raise TraceDamaged(path, text) from None
    for name, known in found.items():
        path = folder / name
        if not path.is_file():
            raise TraceDamaged(path, "is missing, but the end record of its recording lists it")
        if path.stat().st_size != known.size_bytes:
            raise TraceDamaged(path, f"has {path.stat().st_size} bytes, but {known.size_bytes} were written")
    return found


def closed_time_range(folder: str | os.PathLike[str]) -> tuple[int, int] | None:
    """The first and the last `real_ns` of a group's run; None if the end record of some recording does not have it."""
    times: list[tuple[int, int]] = []
    for member in Path(folder).glob("member=*"):
        incarnations = {named[3] for path in member.glob("*.parquet") if (named := PART_NAME.fullmatch(path.name))}
        ends = {named[1]: path for path in member.iterdir() if (named := _END_NAME.fullmatch(path.name))}
        for incarnation in incarnations | ends.keys():
            ended = read_json(ends[incarnation]) if incarnation in ends else {}
            first, last = ended.get("first_ns"), ended.get("last_ns")
            if isinstance(first, int) and isinstance(last, int):
                times.append((first, last))
            elif ended.get("rows") != 0 or incarnation in incarnations:
                return None
    return (min(first for first, _ in times), max(last for _, last in times)) if times else None


def read_part(path: str | os.PathLike[str], run: str | None = None, group: str | None = None) -> Rows:
    """The rows of one file. Raises `TraceDamaged` if it has rows of another run or group."""
    version, table = _read_table(path, SCHEMA.names)
    for name, expected in (("run", run), ("group", group)):
        words = set(codes_and_words(table[name])[1])
        if expected is not None and not words <= {expected}:
            raise TraceDamaged(path, f"has rows of {name} {', '.join(sorted(words))}; expected only {expected}")
    rows = from_arrow(table, path)
    return rows if version == SCHEMA_VERSION else version_1.upgraded(rows)


def read_columns(
    path: str | os.PathLike[str], names: Sequence[str], *, run: str, group: str, member: int, recorder_incarnation: int
) -> Rows:
    """Some columns of one file; the others are null.

    Raises `TraceDamaged` if the file has rows of another run, group, member or incarnation.
    """
    constants = {"member": member, "recorder_incarnation": recorder_incarnation}
    expected: dict[str, str | int] = {"run": run, "group": group, **constants}
    version, table = _read_table(path, list(names), constants, expected)
    rows = from_arrow(table, path, constants)
    return rows if version == SCHEMA_VERSION else version_1.upgraded(rows)


def _read_table(
    path: str | os.PathLike[str],
    names: list[str],
    constants: dict[str, int] | None = None,
    expected: Mapping[str, str | int] | None = None,
) -> tuple[int, Any]:
    """The schema version of a file, and the columns `names` under their present names.

    A file of version 1 lacks some of them; `version_1.upgraded` adds these. Raises `TraceDamaged` if a column in
    `expected` does not have the given value in all rows. If `constants` is given, columns that have one value in all
    rows are added to it and not read.
    """
    try:
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            version = file_version(path, schema.metadata)
            known = SCHEMA.names if version == SCHEMA_VERSION else version_1.NAMES
            if version != SCHEMA_VERSION:
                names = [name for name in dict.fromkeys((*names, *version_1.NEEDED)) if name in known]
            stored_names = list if version == SCHEMA_VERSION else version_1.stored_names
            missing = [name for name in stored_names(known) if name not in schema.names]
            if missing:
                raise TraceDamaged(path, f"lacks the columns {', '.join(missing)}")
            for name, value in (expected or {}).items():
                if not _has_only(file, stored_names([name])[0], value):
                    raise TraceDamaged(path, f"has rows whose {name} is not {value}")
            if constants is not None:
                constants |= _constant_columns(file, [name for name in names if name != "kind"], version)
                names = [name for name in names if name not in constants]
            table = file.read(columns=stored_names(names), use_threads=False)
    except FileNotFoundError as error:
        text = "is missing; on a cluster, every machine needs access to the folder under this path"
        raise TraceDamaged(path, text) from error
    except (pa.ArrowException, OSError) as error:
        raise TraceDamaged(path, f"is not a readable Parquet file ({error})") from error
    try:
        table = table.select(stored_names(names)).rename_columns(names)
        return version, table.cast(pa.schema([SCHEMA.field(name) for name in names]))
    except (pa.ArrowException, ValueError) as error:
        raise TraceDamaged(path, f"has a column of the wrong type ({error})") from error


def file_version(path: str | os.PathLike[str], metadata: Mapping[bytes, bytes] | None) -> int:
    """The schema version in the metadata of a Parquet file; raise `TraceDamaged` if this release cannot read it."""
    version = (metadata or {}).get(VERSION_KEY)
    return check_version(path, int(version) if version and version.isdigit() else version)


def _has_only(file: Any, name: str, value: str | int) -> bool:
    """Whether a column has this value in all rows of a file."""
    leaves = file.metadata.schema.names
    groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    statistics = [group.column(leaves.index(name)).statistics for group in groups]
    if all(seen is not None and seen.has_min_max and seen.has_null_count for seen in statistics) and all(
        seen.min == seen.max == value and not seen.null_count for seen in statistics
    ):
        return True
    # Other statistics prove nothing, since some writers truncate long words in them.
    return set(file.read(columns=[name], use_threads=False)[name].to_pylist()) <= {value}


def _constant_columns(file: Any, names: Sequence[str], version: int) -> dict[str, int]:
    """Those of these columns that have the same number, or null, in all rows of a file."""
    schema = file.schema_arrow
    found = {name: ABSENT for name in _absent_lists(file) if name in names}
    if file.metadata.num_row_groups != 1:
        return found
    stored_names = names if version == SCHEMA_VERSION else version_1.stored_names(names)
    name_of = dict(zip(stored_names, names, strict=True))
    group = file.metadata.row_group(0)
    for column in (group.column(number) for number in range(group.num_columns)):
        name, seen = name_of.get(column.path_in_schema), column.statistics
        if name is None or seen is None or not seen.has_null_count:
            continue
        if schema.field(column.path_in_schema).type != SCHEMA.field(name).type:
            continue
        if seen.null_count == group.num_rows and SCHEMA.field(name).nullable:
            found[name] = ABSENT
        elif name in NUMBER_COLUMNS and seen.null_count == 0 and seen.has_min_max and seen.min == seen.max:
            found[name] = int(seen.min)
    return found


def _absent_lists(file: Any) -> list[str]:
    """The columns of lists that are null in all rows of a file.

    The file's metadata lists them. Its statistics can only refute that, because they count an empty list as null.
    """
    metadata = file.schema_arrow.metadata or {}
    names = metadata.get(ABSENT_LISTS_KEY, b"").decode().split(",")
    if version_1.UNDIRECTED_KEY in metadata:
        names.append("destinations")
    groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    columns = [group.column(number) for group in groups for number in range(group.num_columns)]
    seen = {
        name: [column.statistics for column in columns if column.path_in_schema.startswith(f"{name}.")]
        for name in names
        if name in LISTS
    }
    return [name for name, statistics in seen.items() if all(s is not None and not s.has_min_max for s in statistics)]


SUMMARY_COLUMNS = (
    *("kind", "sender", "sender_incarnation", "sequence", "slot", "place", "index", "real_ns"),
    *("priority", "view", "grade", "destinations"),
    *("token", "members", "member_incarnations", "theta_ns", "bound_ns", "talks_with"),
)
"""The columns that a shard summary reads; the path of the file names the member and the incarnation."""


TimeRange = tuple[int, int]
"""The real times, in nanoseconds, of the first and the last row."""


@dataclass(frozen=True, slots=True)
class PartFile:
    """One Parquet file of a member's recording."""

    path: str
    """The absolute path of the file, since its reader may run in another folder."""
    member: int
    incarnation: int
    rows: int
    time_range: TimeRange | None
    """The times of the file's first and last row, from its footer; None if the footer lacks them."""
    stamp: FileStamp | None = None
    """The file's size and hash from the end record; None if the recording was not closed or is from an old release."""


@dataclass(frozen=True, slots=True)
class RangeFiles:
    """The files of one range of slots, of all members."""

    first_slot: int
    last_slot: int
    parts: tuple[PartFile, ...]
    run: str
    group: str

    @property
    def rows(self) -> int:
        """The number of rows in the files."""
        return sum(part.rows for part in self.parts)


@dataclass(frozen=True, slots=True)
class Layout:
    """The files of one run of one group on disk, by range of slots."""

    folder: str
    meta: RunMeta
    logs: tuple[MemberLog, ...]
    ranges: tuple[RangeFiles, ...]
    """The files of each range of slots, in the order of slots; ranges do not overlap."""

    @property
    def rows(self) -> int:
        """The number of rows in all files."""
        return sum(files.rows for files in self.ranges)

    def may_contain(self, since_ns: int | None, until_ns: int | None) -> bool:
        """Whether the run may have rows between these times. Decided by the footers, without reading rows."""
        if since_ns is None and until_ns is None:
            return True
        parts = (part for files in self.ranges for part in files.parts if part.rows)
        return any(may_overlap(part.time_range, since_ns, until_ns) for part in parts)


def may_overlap(time_range: TimeRange | None, since_ns: int | None, until_ns: int | None) -> bool:
    """Whether a time range, which may be unknown, can contain a time between `since_ns` and `until_ns`."""
    if time_range is None:
        return True
    return (since_ns is None or time_range[1] >= since_ns) and (until_ns is None or time_range[0] <= until_ns)


def layout(folder: str | Path) -> Layout:
    """List the files in a group's folder."""
    root = Path(folder)
    meta = read_meta(root / META_NAME)
    ranges: dict[tuple[int, int], list[PartFile]] = {}
    logs: list[MemberLog] = []
    for member_path in sorted(root.glob("member=*")):
        member = _member_of_folder(member_path)
        counts: dict[int, int] = {}
        stamps = read_stamps(member_path)
        for path in sorted(member_path.glob("*.parquet")):
            first, last, incarnation = _parsed_part_name(path)
            rows, times = read_footer(path)
            counts[incarnation] = counts.get(incarnation, 0) + rows
            part = PartFile(str(path.absolute()), member, incarnation, rows, times, stamps.get(path.name))
            ranges.setdefault((first, last), []).append(part)
        logs += closed_logs(member_path, member, counts)
    ordered = sorted(ranges)
    for (_, last), (first, _) in pairwise(ordered):
        if first <= last:
            raise TraceDamaged(
                root, f"slot ranges overlap at slot {first}: the folder mixes files of several recordings"
            )
    files = tuple(RangeFiles(first, last, tuple(ranges[first, last]), meta.run, meta.group) for first, last in ordered)
    return Layout(str(root), meta, tuple(sorted(logs, key=lambda log: (log.member, log.incarnation))), files)


def members_without_files(plan: Layout, crashed: frozenset[int]) -> list[int]:
    """The members that `meta.json` lists, that have no file, and that did not crash."""
    return sorted(set(plan.meta.members) - {log.member for log in plan.logs} - crashed)


def read_range(
    files: RangeFiles, *, all_columns: bool = False, columns: tuple[str, ...] = SUMMARY_COLUMNS, checked: bool = False
) -> list[Rows]:
    """Read the rows of one range of slots, file by file: the given columns, which must include `kind` and `slot`.

    With `all_columns`, read all columns. With `all_columns` or `checked`, first compare each file with its size and
    hash in the end record, and raise `TraceDamaged` if it has changed since its recording was closed.
    """
    read = []
    for part in files.parts:
        of: dict[str, Any] = {"run": files.run, "group": files.group}
        if part.stamp is not None and (all_columns or checked):
            part.stamp.check(part.path)
        if all_columns:
            rows = read_part(part.path, **of)
        else:
            rows = read_columns(part.path, columns, **of, member=part.member, recorder_incarnation=part.incarnation)
        if len(rows) == 0:
            continue
        if all_columns and not (
            (rows.member == part.member).all() and (rows.recorder_incarnation == part.incarnation).all()
        ):
            text = f"has rows that are not of member {part.member}, incarnation {part.incarnation}"
            raise TraceDamaged(part.path, text)
        if not (files.first_slot <= rows.slot.min() and rows.slot.max() <= files.last_slot):
            raise TraceDamaged(part.path, f"has rows of slots outside {files.first_slot} to {files.last_slot}")
        read.append(rows)
    return read


def read_footer(path: Path) -> tuple[int, TimeRange | None]:
    """The number of rows in a Parquet file, and the times of its first and last row (None if the footer lacks them)."""
    try:
        metadata = pq.read_metadata(path)
    except (pa.ArrowException, OSError) as error:
        raise TraceDamaged(path, f"is not a readable Parquet file ({error})") from error
    names = metadata.schema.names
    if "real_ns" not in names or not metadata.num_row_groups:
        return metadata.num_rows, None
    # The leaves of the schema have the same numbers as the columns of a row group.
    at = names.index("real_ns")
    statistics = [metadata.row_group(number).column(at).statistics for number in range(metadata.num_row_groups)]
    if not all(seen is not None and seen.has_min_max and isinstance(seen.min, int) for seen in statistics):
        return metadata.num_rows, None
    return metadata.num_rows, (min(seen.min for seen in statistics), max(seen.max for seen in statistics))


_TUPLES_AT_ONCE = 2048
"""The writer converts this many tuples to columns at once; that holds the interpreter lock for far less than a slot."""


@cache
def warm_up() -> None:
    """Write one row to a temporary file, so that a later write is fast.

    At the first write pyarrow loads parts of itself and of numpy. That holds the interpreter lock for 0.1 s or more,
    which would add to the latency of a running group.
    """
    extras = Extras(note="warm-up", token="warm-up", members=(1,))
    row: PackedRows = (0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, extras)
    with tempfile.TemporaryDirectory(prefix="unisono-") as folder:
        write_part(Path(folder) / "part", expand_rows(1, 0, [row]), "warm-up", "warm-up")


class ParquetWriter:
    """Writes the recording of one incarnation of a member to Parquet, from its own thread. One thread may call `put`.

    A part is on disk at most about `flush_s` after its first row, so a killed process loses no more than that.
    `close()` writes the rest and the end record, which says how many rows are missing.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        run: str,
        group: str,
        member: int,
        *,
        incarnation: int = 0,
        range_slots: int = RANGE_SLOTS,
        queue_rows: int = 1_000_000,
        part_rows: int = 262_144,
        flush_s: float = 1.0,
    ) -> None:
        if min(range_slots, queue_rows, part_rows) < 1 or incarnation < 0:
            raise ValueError(
                f"expected range_slots, queue_rows and part_rows of at least 1 and an incarnation of at least 0, not "
                f"{range_slots}, {queue_rows}, {part_rows} and {incarnation}"
            )
        self.run, self.group, self.member, self.incarnation = run, group, member, incarnation
        self.written = 0
        """The rows of this incarnation that are on disk."""
        self._error: Exception | None = None
        self._later_writers: list[ParquetWriter] = []
        """The writers of this member's later incarnations."""
        self._new_writer = partial(
            ParquetWriter,
            directory,
            run,
            group,
            member,
            range_slots=range_slots,
            queue_rows=queue_rows,
            part_rows=part_rows,
            flush_s=flush_s,
        )
        self._folder = member_folder(directory, run, group, member)
        self._folder.mkdir(parents=True, exist_ok=True)
        if end_path(self._folder, incarnation).exists() or any(self._folder.glob(f"slots-*.{incarnation}.*.parquet")):
            raise FileExistsError(
                f"{self._folder}: already has a recording of incarnation {incarnation}; use another name for the run"
            )
        self._range_slots, self._queue_rows, self._part_rows = range_slots, queue_rows, part_rows
        self._flush_s = flush_s
        self._queue: deque[PackedRows] = deque()
        # Only one thread writes each counter: the caller's thread the first two, this writer's thread the other two.
        self._put_rows = self._refused_rows = 0
        self._processed_rows = self._lost_rows = 0
        self._parts: dict[int, list[PackedRows]] = {}
        self._part_counts: dict[int, int] = {}
        self._next_part: dict[int, int] = {}
        self._time_range: tuple[int, int] | None = None
        self._stamps: dict[str, FileStamp] = {}
        warm_up()
        self._flush_at = time.monotonic() + flush_s
        self._thread = WriterThread(f"trace-{member}", self._write_queued)

    @property
    def dropped(self) -> int:
        """The number of rows that are not in the trace because the queue was full or a file could not be written.

        Rows of later incarnations count too.
        """
        return self._dropped_here() + sum(writer.dropped for writer in self._later_writers)

    def _dropped_here(self) -> int:
        return self._refused_rows + self._lost_rows

    @property
    def error(self) -> Exception | None:
        """The first error of this incarnation or, if it had none, of a later one; None if all rows could be written."""
        return self._error or next((writer.error for writer in self._later_writers if writer.error), None)

    def recorder(self) -> Recorder:
        """A recorder that writes here. Later incarnations are written beside this one, and closed with it."""
        return Recorder(
            self.run,
            self.group,
            self.member,
            self.put,
            incarnation=self.incarnation,
            new_incarnation=self._new_incarnation,
        )

    def _new_incarnation(self, incarnation: int) -> Recorder:
        self._later_writers.append(self._new_writer(incarnation=incarnation))
        return self._later_writers[-1].recorder()

    def put(self, packed: PackedRows) -> None:
        """Queue rows for writing; never blocks. If the queue is full, the rows are dropped and counted."""
        rows = packed[COUNT_INDEX]
        if self._thread.stopped or self._put_rows - self._processed_rows + rows > self._queue_rows:
            self._refused_rows += rows
            return
        self._put_rows += rows
        self._queue.append(packed)

    def close(self) -> None:
        """Write all queued rows, then the end record; a second call does nothing."""
        if not self._thread.stop():
            return
        problem = None if self._error is None else f"{type(self._error).__name__}: {self._error}"
        write_end(
            self._folder,
            self.incarnation,
            rows=self.written,
            dropped=self._dropped_here(),
            error=problem,
            time_range=self._time_range,
            stamps=self._stamps,
        )
        for writer in self._later_writers:
            writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write_queued(self, last: bool) -> bool:
        self._drain_queue()
        now = time.monotonic()
        if last or now >= self._flush_at:
            self._flush_at = now + self._flush_s
            for number in sorted(self._parts):
                self._write(number)
        return not self._queue

    def _drain_queue(self) -> None:
        """Sort the queued rows into ranges of slots; write a range as soon as it is full."""
        while self._queue:
            packed = self._queue.popleft()
            number = packed[SLOT_INDEX] // self._range_slots
            self._parts.setdefault(number, []).append(packed)
            count = self._part_counts[number] = self._part_counts.get(number, 0) + packed[COUNT_INDEX]
            if count >= self._part_rows:
                self._write(number)

    def _write(self, number: int) -> None:
        packed = self._parts.pop(number)
        count = self._part_counts.pop(number)
        try:
            batches = [packed[at : at + _TUPLES_AT_ONCE] for at in range(0, len(packed), _TUPLES_AT_ONCE)]
            rows = concatenated([expand_rows(self.member, self.incarnation, batch) for batch in batches])
            part = self._next_part.get(number, 0)
            first = number * self._range_slots
            path = part_path(self._folder, first, self._range_slots, self.incarnation, part)
            self._stamps[path.name] = write_part(path, rows, self.run, self.group)
            self._next_part[number] = part + 1
            times = int(rows.real_ns.min()), int(rows.real_ns.max())
            before = self._time_range or times
            self._time_range = min(before[0], times[0]), max(before[1], times[1])
            self.written += count
        except Exception as error:  # noqa: BLE001  the thread must survive a full disk: it counts the rows as lost
            self._error = self._error or error
            self._lost_rows += count
        finally:
            self._processed_rows += count
