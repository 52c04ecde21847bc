"""What files a recorded run has, by range of slots, without reading their rows: the plan of a verification.

A damaged layout is refused here (`TraceDamaged`), by the same rules as `read_trace` refuses it; what only the rows
can show is refused where the rows are read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from unisono.trace.files import PART_NAME, FileStamp, closed_logs, read_columns, read_part, read_stamps
from unisono.trace.meta import META_NAME, RunMeta, TraceDamaged, read_meta
from unisono.trace.table import MemberLog, Rows

SUMMARY_COLUMNS = (
    *("kind", "sender", "sender_incarnation", "sequence", "slot", "place", "index", "real_ns"),
    *("priority", "view", "grade", "destinations"),
    *("token", "members", "member_incarnations", "theta_ns", "bound_ns", "talks_with"),
)
"""The columns that a survey of a range reads; member and life are in the file's name."""


TimeRange = tuple[int, int]


@dataclass(frozen=True, slots=True)
class PartFile:
    """One file."""

    path: str
    """From the root, since who reads it may run in another folder."""
    member: int
    incarnation: int
    rows: int
    time_range: TimeRange | None
    """The first and the last `real_ns` in it, as the file's footer says; None if it says nothing."""
    stamp: FileStamp | None = None
    """As the end of the recording says; None if that was not closed, or is of a release without stamps."""


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
        """How many rows they have."""
        return sum(part.rows for part in self.parts)


@dataclass(frozen=True, slots=True)
class Layout:
    """One run of one group on disk."""

    folder: str
    meta: RunMeta
    logs: tuple[MemberLog, ...]
    ranges: tuple[RangeFiles, ...]
    """In the order of slots; they do not overlap."""

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return sum(files.rows for files in self.ranges)

    def may_contain(self, since_ns: int | None, until_ns: int | None) -> bool:
        """Whether something may have happened in this time; footers decide, and no row is read."""
        if since_ns is None and until_ns is None:
            return True
        parts = (part for files in self.ranges for part in files.parts if part.rows)
        return any(may_overlap(part.time_range, since_ns, until_ns) for part in parts)


def may_overlap(time_range: TimeRange | None, since_ns: int | None, until_ns: int | None) -> bool:
    """Whether something between these times may lie in that time; it may if they are not known."""
    if time_range is None:
        return True
    return (since_ns is None or time_range[1] >= since_ns) and (until_ns is None or time_range[0] <= until_ns)


def layout(folder: str | Path) -> Layout:
    """The layout of a group's folder."""
    root = Path(folder)
    meta = read_meta(root / META_NAME)
    ranges: dict[tuple[int, int], list[PartFile]] = {}
    logs: list[MemberLog] = []
    for member_path in sorted(root.glob("member=*")):
        text = member_path.name.removeprefix("member=")
        if not re.fullmatch(r"-?\d+", text):
            raise TraceDamaged(member_path, "the folder's name does not end in a member's number")
        member = int(text)
        counts: dict[int, int] = {}
        stamps = read_stamps(member_path)
        for path in sorted(member_path.glob("*.parquet")):
            named = PART_NAME.fullmatch(path.name)
            if not named:
                raise TraceDamaged(path, "a name of the form slots-FIRST-LAST.LIFE.N.parquet was expected")
            first, last, incarnation = (int(word) for word in named.groups()[:3])
            rows, times = read_footer(path)
            counts[incarnation] = counts.get(incarnation, 0) + rows
            part = PartFile(str(path.absolute()), member, incarnation, rows, times, stamps.get(path.name))
            ranges.setdefault((first, last), []).append(part)
        logs += closed_logs(member_path, member, counts)
    ordered = sorted(ranges)
    for (_, last), (first, _) in pairwise(ordered):
        if first <= last:
            raise TraceDamaged(root, f"ranges of slots overlap at slot {first}: the files are of several recordings")
    files = tuple(RangeFiles(first, last, tuple(ranges[first, last]), meta.run, meta.group) for first, last in ordered)
    return Layout(str(root), meta, tuple(sorted(logs, key=lambda log: (log.member, log.incarnation))), files)


def members_without_files(plan: Layout, crashed: frozenset[int]) -> list[int]:
    """Members that the run names but of which there is no file, though nobody saw them crash."""
    return sorted(set(plan.meta.members) - {log.member for log in plan.logs} - crashed)


def read_range(
    files: RangeFiles, *, all_columns: bool = False, columns: tuple[str, ...] = SUMMARY_COLUMNS, checked: bool = False
) -> list[Rows]:
    """The rows of a range, file by file: some columns, `kind` and `slot` among them, or the `whole` rows.

    A file that is read whole, or is to be `checked`, is refused if it has changed since its recording was closed.
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
            raise TraceDamaged(part.path, f"has rows of another member or life than {part.member}.{part.incarnation}")
        if not (files.first_slot <= rows.slot.min() and rows.slot.max() <= files.last_slot):
            raise TraceDamaged(part.path, f"has rows of slots outside {files.first_slot} to {files.last_slot}")
        read.append(rows)
    return read


def read_footer(path: Path) -> tuple[int, TimeRange | None]:
    """How many rows a file has, and when they happened."""
    try:
        metadata = pq.read_metadata(path)
    except (pa.ArrowException, OSError) as error:
        raise TraceDamaged(path, f"is no readable Parquet file ({error})") from error
    names = metadata.schema.names
    if "real_ns" not in names or not metadata.num_row_groups:
        return metadata.num_rows, None
    # The leaves of the schema are counted as the columns of a group of rows are.
    at = names.index("real_ns")
    told = [metadata.row_group(number).column(at).statistics for number in range(metadata.num_row_groups)]
    if not all(seen is not None and seen.has_min_max and isinstance(seen.min, int) for seen in told):
        return metadata.num_rows, None
    return metadata.num_rows, (min(seen.min for seen in told), max(seen.max for seen in told))
