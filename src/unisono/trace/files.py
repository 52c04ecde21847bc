"""Parquet files of a trace, by member and by range of slots: a range can be checked without a shuffle.

    DIR/run=R/group=G/meta.json
    DIR/run=R/group=G/member=M/slots-FIRST-LAST.LIFE.N.parquet     rows in the order of recording
    DIR/run=R/group=G/member=M/end.LIFE.json                       written when the recording was closed

LIFE is the recorder's incarnation. The end mark has the size and the SHA-256 of each file of the recording.

Ranges are aligned (FIRST is a multiple of the range's length): the same range has the same name at each
member.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from unisono.trace import version_1
from unisono.trace.kinds import (
    ABSENT,
    CODED,
    MESSAGE_KINDS,
    NULLABLE_NUMBER_COLUMNS,
    NUMBER_COLUMNS,
    SCHEMA_VERSION,
    EventKind,
)
from unisono.trace.meta import (
    META_NAME,
    RunMeta,
    TraceDamaged,
    check_version,
    group_folder,
    read_json,
    read_meta,
    write_json,
    write_meta,
)
from unisono.trace.schema import ABSENT_LISTS_KEY, LISTS, SCHEMA, VERSION_KEY
from unisono.trace.table import KIND_NAMES, MemberLog, Rows, Trace, concatenated, constant, encode

RANGE_SLOTS: Final = 4096

PART_NAME = re.compile(r"slots-(-?\d+)-(-?\d+)\.(\d+)\.(\d+)\.parquet")
_GROWING: Final = ("sequence", "slot", "place", "index", "real_ns", "local_ns")
"""Columns that grow from row to row: as differences they are a third of the size, and written and read in half the
time that dictionaries take."""
_END_NAME = re.compile(r"end\.(\d+)\.json")


def member_folder(directory: str | os.PathLike[str], run: str, group: str, member: int) -> Path:
    """Where one member's files are."""
    return group_folder(directory, run, group) / f"member={member}"


def part_path(folder: Path, slot: int, range_slots: int, incarnation: int, number: int) -> Path:
    """The name of a part: the aligned range of slots that `slot` is in, the life, and the part's number."""
    first = slot // range_slots * range_slots
    return folder / f"slots-{first}-{first + range_slots - 1}.{incarnation}.{number}.parquet"


def end_path(folder: Path, incarnation: int) -> Path:
    """The record of a closed recording."""
    return folder / f"end.{incarnation}.json"


@dataclass(frozen=True, slots=True)
class FileStamp:
    """The size and the hash that a file had when it was written."""

    size_bytes: int
    sha256: str

    def check(self, path: str | os.PathLike[str]) -> None:
        """Refuse a file that has changed since."""
        if (now := stamp(path)) != self:
            raise TraceDamaged(path, f"has changed since it was written: {now.size_bytes} bytes, SHA-256 {now.sha256}")


Stamps: TypeAlias = Mapping[str, FileStamp]
"""By name, the files of a member's recording."""


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
    """Say that a recording was closed, how many rows it wrote and how many it had to drop.

    `times` are the first and the last `real_ns` in it: who looks for another time need open none of its files.
    `stamps` are those of all its files.
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
    """Write one file under a temporary name, then rename: no truncated file ever has a final name."""
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
    """Write a whole trace in the layout above; gives the group's folder."""
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
    """Read a recorded trace: `path` is a group's folder, or one above it where `run` and `group` choose."""
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
    silent = sorted(set(meta.members) - {log.member for log in logs} - crashed)
    if silent:
        raise TraceDamaged(folder, f"no file of member {', '.join(map(str, silent))}, which {META_NAME} names")
    return Trace.from_rows(rows, meta, sorted(logs, key=lambda log: (log.member, log.incarnation)))


def find_group(path: str | os.PathLike[str], run: str | None = None, group: str | None = None) -> Path:
    """The one folder at or below `path` that has a `meta.json` of this run and group."""
    root = Path(path)
    found = find_groups(root)
    if run is not None or group is not None:
        metas = [(folder, read_meta(folder / META_NAME)) for folder in found]
        found = [f for f, m in metas if run in (None, m.run) and group in (None, m.group)]
    if not found:
        raise TraceDamaged(root, f"has no run {run or ''} of a group {group or ''}")
    if len(found) > 1:
        names = ", ".join(str(folder.relative_to(root)) for folder in found[:5])
        raise TraceDamaged(root, f"holds {len(found)} runs or groups, name one of them: {names}")
    return found[0]


def find_groups(path: str | os.PathLike[str]) -> list[Path]:
    """Every folder at or below `path` that has a `meta.json`: a run of a group each."""
    root = Path(path)
    if not root.is_dir():
        raise TraceDamaged(root, "is no folder; one of `demo --out` or `simulate --trace`, or one above, is needed")
    found = sorted(meta.parent for pattern in ("", "*/", "*/*/") for meta in root.glob(pattern + META_NAME))
    if not found:
        raise TraceDamaged(root, f"no {META_NAME} here or below: no run was recorded here")
    return found


def _read_member(folder: Path, meta: RunMeta) -> tuple[list[Rows], list[MemberLog]]:
    member_text = folder.name.removeprefix("member=")
    if not re.fullmatch(r"-?\d+", member_text):
        raise TraceDamaged(folder, "the folder's name does not end in a member's number")
    member = int(member_text)
    counts: dict[int, int] = {}
    stamps = read_stamps(folder)
    parts = []
    for path in sorted(folder.glob("*.parquet")):
        named = PART_NAME.fullmatch(path.name)
        if not named:
            raise TraceDamaged(path, "a name of the form slots-FIRST-LAST.LIFE.N.parquet was expected")
        first, last, incarnation = (int(text) for text in named.groups()[:3])
        if path.name in stamps:
            stamps[path.name].check(path)
        rows = read_part(path, meta.run, meta.group)
        if len(rows) and not ((rows.member == member).all() and (rows.recorder_incarnation == incarnation).all()):
            raise TraceDamaged(path, f"has rows of another member or life than {member}.{incarnation}")
        if len(rows) and not (first <= rows.slot.min() and rows.slot.max() <= last):
            raise TraceDamaged(path, f"has rows of slots outside {first} to {last}")
        counts[incarnation] = counts.get(incarnation, 0) + len(rows)
        parts.append(rows)
    return parts, closed_logs(folder, member, counts)


def closed_logs(folder: Path, member: int, counts: dict[int, int]) -> list[MemberLog]:
    """What is known of a member's recordings, each of which has `counts` rows; refused if those are not all."""
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
            raise TraceDamaged(ends[incarnation], "the fields rows and dropped must be numbers")
        if written != counts.get(incarnation, 0):
            raise TraceDamaged(folder, f"{written} rows were written, {counts.get(incarnation, 0)} are there")
        logs.append(MemberLog(member, incarnation, closed=True, dropped=dropped))
    return logs


def read_stamps(folder: Path) -> dict[str, FileStamp]:
    """What the end marks in a member's folder say of its files; a missing file, or one of another size, is refused."""
    found: dict[str, FileStamp] = {}
    for path in sorted(path for path in folder.iterdir() if _END_NAME.fullmatch(path.name)):
        files = read_json(path).get("files", {})
        try:
            found |= {name: FileStamp(int(known["bytes"]), str(known["sha256"])) for name, known in files.items()}
        except (AttributeError, KeyError, TypeError, ValueError):
            raise TraceDamaged(path, "the field files must have the size and the hash of each file") from None
    for name, known in found.items():
        path = folder / name
        if not path.is_file():
            raise TraceDamaged(path, "is missing; its recording was closed with it")
        if path.stat().st_size != known.size_bytes:
            raise TraceDamaged(path, f"has {path.stat().st_size} bytes, {known.size_bytes} were written")
    return found


def closed_time_range(folder: str | os.PathLike[str]) -> tuple[int, int] | None:
    """The first and the last `real_ns` of a group's run, if all its recordings were closed and say so; else None."""
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
    """The rows of one file, of this run and group."""
    version, table = _read_table(path, SCHEMA.names)
    for name, expected in (("run", run), ("group", group)):
        words = set(_codes_and_words(table[name])[1])
        if expected is not None and not words <= {expected}:
            raise TraceDamaged(path, f"has rows of {name} {', '.join(sorted(words))}, not {expected}")
    rows = from_arrow(table, path)
    return rows if version == SCHEMA_VERSION else version_1.upgraded(rows)


def read_columns(
    path: str | os.PathLike[str], names: Sequence[str], *, run: str, group: str, member: int, recorder_incarnation: int
) -> Rows:
    """Some columns of one file of a member's life; those not named are as if null. Rows of others are refused."""
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
    """The version and columns of a file; those that are alike in all rows are not read if `constants` takes them.

    `expected` columns must have that value in all rows. Statistics spare reading these and those that are alike. Names
    are those of the present schema; of a file of version 1 the columns that its notes are upgraded to are missing.
    """
    try:
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            version = file_version(path, schema.metadata)
            there = SCHEMA.names if version == SCHEMA_VERSION else version_1.NAMES
            if version != SCHEMA_VERSION:
                names = [name for name in dict.fromkeys((*names, *version_1.NEEDED)) if name in there]
            called = list if version == SCHEMA_VERSION else version_1.called
            missing = [name for name in called(there) if name not in schema.names]
            if missing:
                raise TraceDamaged(path, f"lacks the column {', '.join(missing)}")
            for name, value in (expected or {}).items():
                if not _has_only(file, called([name])[0], value):
                    raise TraceDamaged(path, f"has rows of another {name} than {value}")
            if constants is not None:
                constants |= _constant_columns(file, [name for name in names if name != "kind"], version)
                names = [name for name in names if name not in constants]
            table = file.read(columns=called(names), use_threads=False)
    except FileNotFoundError as error:
        raise TraceDamaged(path, "is not there; on a cluster every machine needs the folder under this path") from error
    except (pa.ArrowException, OSError) as error:
        raise TraceDamaged(path, f"is no readable Parquet file ({error})") from error
    try:
        table = table.select(called(names)).rename_columns(names)
        return version, table.cast(pa.schema([SCHEMA.field(name) for name in names]))
    except (pa.ArrowException, ValueError) as error:
        raise TraceDamaged(path, f"has a column of the wrong type ({error})") from error


def file_version(path: str | os.PathLike[str], metadata: Mapping[bytes, bytes] | None) -> int:
    """The schema version in the metadata of a Parquet file; refused if this release does not read it."""
    version = (metadata or {}).get(VERSION_KEY)
    return check_version(path, int(version) if version and version.isdigit() else version)


def _has_only(file: Any, name: str, value: str | int) -> bool:
    """Whether a column has this value in all rows of a file."""
    leaves = file.metadata.schema.names
    groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    told = [group.column(leaves.index(name)).statistics for group in groups]
    if all(seen is not None and seen.has_min_max and seen.has_null_count for seen in told) and all(
        seen.min == seen.max == value and not seen.null_count for seen in told
    ):
        return True  # statistics prove it; that they do not proves nothing: some writers cut long words short
    return set(file.read(columns=[name], use_threads=False)[name].to_pylist()) <= {value}


def _constant_columns(file: Any, names: Sequence[str], version: int) -> dict[str, int]:
    """Of these columns, those that have the same number, or no value, in all rows of a file."""
    schema = file.schema_arrow
    found = {name: ABSENT for name in _absent_lists(file) if name in names}
    if file.metadata.num_row_groups != 1:
        return found
    called = names if version == SCHEMA_VERSION else version_1.called(names)
    name_of = dict(zip(called, names, strict=True))
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
    """The columns of lists that no row of a file has.

    Statistics count an empty list as null, so only who wrote the file can tell; they can refute it.
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
    return [name for name, told in seen.items() if all(s is not None and not s.has_min_max for s in told)]


def to_arrow(rows: Rows, run: str, group: str) -> Any:
    """The rows as an Arrow table of the schema."""
    zeros = np.zeros(len(rows), dtype=np.int32)
    columns: dict[str, Any] = {
        "run": _dictionary(zeros, (run,)),
        "group": _dictionary(zeros, (group,)),
        "kind": _dictionary(rows.kind, KIND_NAMES),
    }
    absent_lists = []
    for name, table_name in CODED.items():
        codes, values = getattr(rows, name), getattr(rows, table_name)
        field = SCHEMA.field(name)
        if not values or (codes == ABSENT).all():
            columns[name] = pa.nulls(len(rows), field.type)
            absent_lists += [name] if name in LISTS else []
        elif name in LISTS:
            lists = pa.array([list(value) for value in values], field.type)
            columns[name] = lists.take(pa.array(codes, pa.int32(), mask=codes == ABSENT))
        else:
            columns[name] = _dictionary(codes, values).cast(field.type)
    for name in NUMBER_COLUMNS:
        values = getattr(rows, name)
        mask = values == ABSENT if name in NULLABLE_NUMBER_COLUMNS else None
        if mask is not None and mask.all():
            columns[name] = pa.nulls(len(rows), SCHEMA.field(name).type)
        else:
            columns[name] = pa.array(np.ascontiguousarray(values), mask=mask)
    table = pa.table([columns[name] for name in SCHEMA.names], schema=SCHEMA)
    return table.replace_schema_metadata({**SCHEMA.metadata, ABSENT_LISTS_KEY: ",".join(absent_lists).encode()})


def _dictionary(codes: Any, table: tuple[str, ...]) -> Any:
    indices = pa.array(codes.astype(np.int32), mask=codes == ABSENT)
    return pa.DictionaryArray.from_arrays(indices, pa.array(table, pa.string()))


def from_arrow(table: Any, where: str | os.PathLike[str] = "table", constants: Mapping[str, int] | None = None) -> Rows:
    """The rows of an Arrow table of the schema; columns that it lacks have the given constant, or null, in all rows."""
    known, constants = set(table.column_names), constants or {}
    columns: dict[str, Any] = {}
    for name, dtype in NUMBER_COLUMNS.items():
        if name not in known:
            columns[name] = constant(len(table), dtype, constants.get(name, ABSENT))
            continue
        column = table[name]
        if column.null_count and name not in NULLABLE_NUMBER_COLUMNS:
            raise TraceDamaged(where, f"column {name} has nulls")
        if column.null_count == len(table) and len(table):
            columns[name] = constant(len(table), dtype)
            continue
        if column.null_count:
            column = column.fill_null(ABSENT)
        columns[name] = column.to_numpy().astype(dtype, copy=False)
    codes, words = _codes_and_words(table["kind"])
    unknown = [word for word in words if word not in KIND_NAMES]
    if unknown or (codes == ABSENT).any():
        raise TraceDamaged(where, f"column kind: unknown kind {', '.join(map(repr, unknown)) or 'null'}")
    to_code = np.array([*(KIND_NAMES.index(word) for word in words), ABSENT], dtype=np.int8)
    columns["kind"] = to_code[codes]
    if "sequence" in known or "sequence" in constants:
        kinds = columns["kind"][columns["sequence"] < 0]
        if np.isin(kinds, [kind.code for kind in MESSAGE_KINDS]).any():
            raise TraceDamaged(where, "has a message without a number")
    for name, table_name in CODED.items():
        columns[name], columns[table_name] = (_lists if name in LISTS else _coded_column)(table, name)
    return Rows(**columns)


def _lists(table: Any, name: str) -> tuple[Any, tuple[Any, ...]]:
    """A column of lists as codes into a sorted table; rows that lack it, most of them, cost nothing."""
    if name not in table.column_names or table[name].null_count == len(table):
        return constant(len(table), np.int32), ()
    column = table[name].combine_chunks()
    there = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
    codes, values = encode([tuple(value) for value in column.drop_null().to_pylist()])
    found = np.full(len(table), ABSENT, dtype=np.int32)
    found[there] = codes
    return found, values


def _coded_column(table: Any, name: str) -> tuple[Any, tuple[str, ...]]:
    """A column of words as codes into a sorted table; one that is absent or all null costs nothing."""
    if name not in table.column_names or table[name].null_count == len(table):
        return constant(len(table), np.int32), ()
    column = table[name]
    return _normalized(*_codes_and_words(column if pa.types.is_dictionary(column.type) else column.dictionary_encode()))


def _codes_and_words(column: Any) -> tuple[Any, list[str]]:
    """Codes (-1 for null) and words of a dictionary column."""
    column = column.unify_dictionaries().combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        if column.num_chunks == 0:
            return np.empty(0, dtype=np.int32), []
        column = column.chunk(0)
    return column.indices.fill_null(ABSENT).to_numpy(zero_copy_only=False), column.dictionary.to_pylist()


def _normalized(codes: Any, words: list[str]) -> tuple[Any, tuple[str, ...]]:
    """The same codes into a sorted table of the words that occur."""
    used = [words[code] for code in np.unique(codes).tolist() if code != ABSENT]
    table = tuple(sorted(used))
    code = {word: number for number, word in enumerate(table)}
    to_new = np.array([*(code.get(word, ABSENT) for word in words), ABSENT], dtype=np.int32)
    return to_new[codes], table
