"""Metric rows on disk: the schema, the stream that a running member appends to, and the readers that follow it.

A member writes its rows as JSON lines while it runs and as Parquet when it stops. JSON lines suit readers that follow
a growing file: a line is complete when its newline is there, a histogram has as many buckets as it needs, and a reader
of an older version skips fields that it does not know. Parquet suits readers of finished runs.

Writing: `MetricWriter.put` queues rows and returns; a thread appends them to the stream.

Following: an offset is a number of bytes into a stream, always just after a newline. Streams are only appended to, so
the bytes between two offsets never change and can be read again. `readable_offsets` finds how far the streams can be
read now, `slices_between` lists the new parts, `read_block` reads one.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import fields as fields_of
from itertools import chain, starmap
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import unquote

from unisono.model.sla import METRICS, MetricRow, Shape, Side
from unisono.trace.schema import TraceDamaged, group_folder
from unisono.trace.writer_thread import WriterThread

METRIC_VERSION: Final = 1
QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
"""The quantiles written beside a spread's buckets, for readers that do not add up histograms."""


RowValues = tuple[str, Side, int, str, int, int, int, float, int, tuple[tuple[int, int], ...]]
"""The fields of a `MetricRow`, in order."""


@dataclass(frozen=True, slots=True)
class MetricRecord:
    """One metric row, and the run, group, member and incarnation that it comes from."""

    run: str
    group: str
    member: int
    incarnation: int
    row: MetricRow


def to_fields(record: MetricRecord) -> dict[str, Any]:
    """The record's columns under their stored names, in the schema's order."""
    row = record.row
    quantiles: dict[str, int | None] = dict.fromkeys(QUANTILES)
    if METRICS[row.metric].shape is Shape.SPREAD and row.count:
        histogram = row.histogram()
        quantiles = {name: histogram.quantile(q) for name, q in QUANTILES.items()}
    return {
        "version": METRIC_VERSION,
        "run": record.run,
        "group": record.group,
        "member": record.member,
        "life": record.incarnation,
        "layer": row.layer,
        "side": row.side.value,
        "link": row.link,
        "metric": row.metric,
        "window_start_ns": row.window_start_ns,
        "window_ns": row.window_ns,
        "count": row.count,
        "value": float(row.value),
        **quantiles,
        "largest": row.largest,
        "buckets": [list(pair) for pair in row.buckets],
    }


def from_fields(fields: Mapping[str, Any]) -> MetricRecord:
    """The record with these columns; raises ValueError if they are wrong."""
    if fields.get("version") != METRIC_VERSION:
        raise ValueError(f"metric version {fields.get('version')!r} is unknown; this release reads {METRIC_VERSION}")
    try:
        row = MetricRow(
            layer=str(fields["layer"]),
            side=Side(fields["side"]),
            link=int(fields["link"]),
            metric=str(fields["metric"]),
            window_start_ns=int(fields["window_start_ns"]),
            window_ns=int(fields["window_ns"]),
            count=int(fields["count"]),
            value=float(fields["value"]),
            largest=int(fields["largest"]),
            buckets=tuple([(int(bucket), int(times)) for bucket, times in fields["buckets"]]),
        )
        record = MetricRecord(str(fields["run"]), str(fields["group"]), int(fields["member"]), int(fields["life"]), row)
    except KeyError as error:
        raise ValueError(f"the field {error.args[0]} is missing") from error
    except TypeError as error:
        raise ValueError(f"a field has the wrong type: {error}") from error
    if row.metric not in METRICS:
        raise ValueError(f"metric {row.metric!r} is unknown")
    return record


def parse_rows(text: str) -> list[RowValues] | None:
    """The row values of each line if every line has the form that `to_line` writes, else None.

    After None, the caller must parse each line on its own. Readers read thousands of lines at once; parsing them as one
    JSON array, and checking types without converting, takes half the time of parsing lines one by one.
    """
    try:
        records = json.loads(f"[{text.replace(chr(10), ',')}]")
        return list(map(_checked_row_values, records)) if len(records) == text.count("\n") + 1 else None
    except (ValueError, KeyError, TypeError):
        return None


def _checked_row_values(fields: dict[str, Any]) -> RowValues:
    """The values of one metric row; raises an error unless every field has exactly the right type."""
    words, numbers, value, buckets = _WORDS(fields), _NUMBERS(fields), fields["value"], fields["buckets"]
    layer, side, metric, _, _ = words
    link, window_start_ns, window_ns, count, largest, _, _, version = numbers
    if set(map(type, words)) != _STR or set(map(type, numbers)) != _INT or type(value) is not float:
        raise TypeError
    if version != METRIC_VERSION or metric not in METRICS:
        raise ValueError
    if buckets:
        pairs = tuple(map(tuple, buckets))
        if set(map(len, pairs)) != _TWO or set(map(type, chain.from_iterable(pairs))) != _INT:
            raise TypeError
    else:
        pairs = ()
    return layer, _SIDES[side], link, metric, window_start_ns, window_ns, count, value, largest, pairs


_WORDS = itemgetter("layer", "side", "metric", "run", "group")
_NUMBERS = itemgetter("link", "window_start_ns", "window_ns", "count", "largest", "member", "life", "version")
_STR, _INT, _TWO = {str}, {int}, {2}
_SIDES = {side.value: side for side in Side}


row_values = attrgetter(*(field.name for field in fields_of(MetricRow)))
"""The `RowValues` of a row."""


def to_line(record: MetricRecord) -> str:
    """The record as one line of the stream, newline included."""
    return json.dumps(to_fields(record), separators=(",", ":")) + "\n"


def from_line(line: str) -> MetricRecord:
    """The record of one line; raises ValueError if the line is damaged."""
    fields = json.loads(line)
    if not isinstance(fields, dict):
        raise ValueError("the line is not a JSON object")
    return from_fields(fields)


_QUEUE_ROWS = 100_000
_VERSION_KEY = b"unisono.metrics.version"


def metrics_folder(directory: str | os.PathLike[str], run: str, group: str) -> Path:
    """The folder of the metric files of one group in one run."""
    return group_folder(directory, run, group) / "metrics"


def metric_schema() -> Any:
    """The Parquet schema of metric rows. It has the same fields as a line of a stream; quantiles may be null."""
    import pyarrow as pa  # noqa: PLC0415  loaded only to read or write Parquet

    word, number = pa.dictionary(pa.int32(), pa.string()), pa.int64()
    columns: dict[str, Any] = {"run": word, "group": word, "member": pa.int32(), "life": number}
    columns |= {"layer": word, "side": word, "link": pa.int32(), "metric": word}
    columns |= {"window_start_ns": number, "window_ns": number, "count": number, "value": pa.float64()}
    columns |= dict.fromkeys(QUANTILES, number)
    columns |= {"largest": number, "buckets": pa.list_(pa.list_(number, 2))}
    fields = [pa.field(name, kind, nullable=name in QUANTILES) for name, kind in columns.items()]
    return pa.schema(fields, metadata={_VERSION_KEY: str(METRIC_VERSION).encode()})


class MetricWriter:
    """Appends one member's rows to its stream from its own thread, and writes Parquet when closed.

    One thread may call `put`.
    """

    def __init__(
        self, directory: str | os.PathLike[str], run: str, group: str, member: int, *, incarnation: int = 0
    ) -> None:
        self.run, self.group, self.member, self.incarnation = run, group, member, incarnation
        self.error: Exception | None = None
        self.written = self._refused_rows = self._lost_rows = 0
        folder = metrics_folder(directory, run, group)
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"member={member}.{incarnation}.jsonl"
        self._file = self.path.open("x", encoding="utf-8")
        self._queue: deque[MetricRow] = deque()
        self._thread = WriterThread(f"metrics-{member}", self._write_queued)

    @property
    def dropped(self) -> int:
        """The number of rows that are in no file because the queue or the disk was full."""
        return self._refused_rows + self._lost_rows

    def put(self, rows: Sequence[MetricRow]) -> None:
        """Queue the rows of one interval; never blocks."""
        if self._thread.stopped or len(self._queue) + len(rows) > _QUEUE_ROWS:
            self._refused_rows += len(rows)
            return
        self._queue.extend(rows)

    def _write_queued(self, last: bool) -> bool:
        rows = [self._queue.popleft() for _ in range(len(self._queue))]
        if rows:
            self._append(rows)
        return not self._queue

    def _append(self, rows: list[MetricRow]) -> None:
        try:
            # Write whole lines at once and flush, so that a reader does not see half an interval for long.
            self._file.write("".join(to_line(self._record(row)) for row in rows))
            self._file.flush()
            self.written += len(rows)
        except Exception as error:  # noqa: BLE001  the thread must survive a full disk: it counts the rows as lost
            self.error = self.error or error
            self._lost_rows += len(rows)

    def _record(self, row: MetricRow) -> MetricRecord:
        return MetricRecord(self.run, self.group, self.member, self.incarnation, row)

    def close(self) -> None:
        """Write all queued rows, then the Parquet file; a second call does nothing."""
        if self._thread.stop():
            self._file.close()
            write_metrics(self.path.with_suffix(".parquet"), list(read_stream(self.path)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def write_metrics(path: Path, records: Sequence[MetricRecord]) -> None:
    """Write records as Parquet, under a temporary name first, so that a reader never sees half a file."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    schema = metric_schema()
    rows = [{name: value for name, value in to_fields(r).items() if name != "version"} for r in records]
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), partial, compression="zstd")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read_stream(path: str | os.PathLike[str]) -> Iterator[MetricRecord]:
    """The records of a stream, without an incomplete last line that is still being written."""
    with Path(path).open(encoding="utf-8") as stream:
        for number, line in enumerate(stream, start=1):
            if not line.endswith("\n"):
                return
            try:
                yield from_line(line)
            except ValueError as error:
                raise TraceDamaged(path, f"line {number}: {error}") from error


_PATTERNS = ("member=*.jsonl", "metrics/*.jsonl", "group=*/metrics/*.jsonl", "run=*/group=*/metrics/*.jsonl")
_LOOK_BACK = 65_536
BUDGET_BYTES = 32 * 1024 * 1024
"""How many bytes a reader reads at once, over all streams."""
LEAST_BYTES = 256 * 1024
"""The least number of bytes that a reader reads of each stream at once; a line is far shorter."""

Offsets = Mapping[str, int]
"""How far each stream was read, by path."""


@dataclass(frozen=True, slots=True)
class StreamSlice:
    """A range of bytes of one stream that holds whole lines."""

    path: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class MetricBlock:
    """The rows in a slice of a stream: one member's rows in the order of their windows."""

    stream_slice: StreamSlice
    run: str
    group: str
    member: int
    incarnation: int
    rows: tuple[MetricRow, ...]
    at_end: bool
    """Whether the stream ended with this slice when it was read."""
    damaged_lines: int = 0
    first_problem: str = ""
    """What is wrong with the first damaged line of the slice; empty if no line is damaged."""


def metric_streams(directory: str | os.PathLike[str]) -> list[str]:
    """The paths of the streams in a folder of traces, or in one of its subfolders."""
    folder = Path(os.path.abspath(directory))
    return sorted(str(path) for pattern in _PATTERNS for path in folder.glob(pattern))


def is_closed(path: str) -> bool:
    """Whether the writer closed the stream and will append no more rows."""
    return Path(path).with_suffix(".parquet").exists()


def readable_offsets(directory: str | os.PathLike[str], start: Offsets, budget: int = BUDGET_BYTES) -> dict[str, int]:
    """How far each stream can be read now: up to its last whole line, but about `budget` bytes over all streams."""
    found = {path: os.stat(path).st_size for path in metric_streams(directory)}
    grown = [path for path, size in found.items() if size > start.get(path, 0)]
    each = max(LEAST_BYTES, budget // max(1, len(grown)))
    return {**start, **{path: _end_of_last_line(path, start.get(path, 0), found[path], each) for path in grown}}


def _end_of_last_line(path: str, start: int, size: int, most: int) -> int:
    """The end of the last whole line after `start`, at most `most` bytes away; `start` if there is none."""
    end = min(size, start + most)
    with open(path, "rb") as stream:
        while end > start:
            begin = max(start, end - _LOOK_BACK)
            stream.seek(begin)
            newline = stream.read(end - begin).rfind(b"\n")
            if newline >= 0:
                return begin + newline + 1
            end = begin
    return start


def slices_between(start: Offsets, end: Offsets) -> list[StreamSlice]:
    """The slices of all streams between two sets of offsets."""
    return [StreamSlice(path, start.get(path, 0), to) for path, to in sorted(end.items()) if to > start.get(path, 0)]


def balanced_parts(slices: Sequence[StreamSlice], max_parts: int) -> list[list[StreamSlice]]:
    """The slices, distributed over at most `max_parts` parts of about equal size."""
    parts: list[list[StreamSlice]] = [[] for _ in range(min(max_parts, len(slices)))]
    sizes = [0] * len(parts)
    for stream_slice in sorted(slices, key=lambda s: s.start - s.end):
        least = sizes.index(min(sizes))
        parts[least].append(stream_slice)
        sizes[least] += stream_slice.end - stream_slice.start
    return parts


def read_block(stream_slice: StreamSlice) -> MetricBlock:
    """Read the rows of a slice, and count its damaged lines."""
    return with_rows(*read_values(stream_slice))


def with_rows(block: MetricBlock, values: Sequence[RowValues]) -> MetricBlock:
    """The block with rows made from the values that `read_values` returned."""
    return replace(block, rows=tuple(starmap(MetricRow, values)))


def read_values(stream_slice: StreamSlice) -> tuple[MetricBlock, list[RowValues]]:
    """Read a slice: a block without rows, and the values of its rows, which are cheaper to send to another process."""
    path = Path(stream_slice.path)
    with path.open("rb") as stream:
        stream.seek(stream_slice.start)
        text = stream.read(stream_slice.end - stream_slice.start)
        at_end = b"\n" not in stream.read(_LOOK_BACK)
    lines, damaged, problem = text[:-1].decode("utf-8", errors="replace"), 0, ""
    values = parse_rows(lines)
    if values is None:
        values = []
        for number, line in enumerate(lines.split("\n"), start=1):
            try:
                values.append(row_values(from_line(line).row))
            except ValueError as error:
                damaged += 1
                problem = problem or f"{stream_slice.path}: line {number} after byte {stream_slice.start}: {error}"
    run, group = (_name(folder, kind) for folder, kind in ((path.parents[2], "run="), (path.parents[1], "group=")))
    member, incarnation = path.stem.removeprefix("member=").split(".")
    return MetricBlock(stream_slice, run, group, int(member), int(incarnation), (), at_end, damaged, problem), values


def _name(folder: Path, kind: str) -> str:
    return unquote(folder.name.removeprefix(kind))
