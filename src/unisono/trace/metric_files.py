"""The files of metric rows: a background writer that never blocks its caller, and readers."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from unisono.trace.meta import TraceDamaged, group_folder
from unisono.trace.metrics import METRIC_VERSION, QUANTILES, MetricRecord, from_fields, from_line, to_fields, to_line

if TYPE_CHECKING:
    from unisono.model.metrics import MetricRow

_POLL_S = 0.05
_QUEUE_ROWS = 100_000
_VERSION_KEY = b"unisono.metrics.version"


def metrics_folder(directory: str | os.PathLike[str], run: str, group: str) -> Path:
    """Where the metric files of one group in one run are."""
    return group_folder(directory, run, group) / "metrics"


def metric_schema() -> Any:
    """The Parquet schema: the fields of a line, with quantiles that only spreads have."""
    import pyarrow as pa  # noqa: PLC0415  only whoever reads or writes Parquet needs it

    word, number = pa.dictionary(pa.int32(), pa.string()), pa.int64()
    columns: dict[str, Any] = {"run": word, "group": word, "member": pa.int32(), "life": number}
    columns |= {"layer": word, "side": word, "link": pa.int32(), "metric": word}
    columns |= {"window_start_ns": number, "window_ns": number, "count": number, "value": pa.float64()}
    columns |= dict.fromkeys(QUANTILES, number)
    columns |= {"largest": number, "buckets": pa.list_(pa.list_(number, 2))}
    fields = [pa.field(name, kind, nullable=name in QUANTILES) for name, kind in columns.items()]
    return pa.schema(fields, metadata={_VERSION_KEY: str(METRIC_VERSION).encode()})


class MetricWriter:
    """Appends one member's rows to its stream in a thread of its own; Parquet when closed.

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
        self._closing = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name=f"metrics-{member}", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Rows that are in no file: the queue was full, or the disk."""
        return self._refused_rows + self._lost_rows

    def put(self, rows: Sequence[MetricRow]) -> None:
        """Take the rows of an interval; never blocks."""
        if self._closed or len(self._queue) + len(rows) > _QUEUE_ROWS:
            self._refused_rows += len(rows)
            return
        self._queue.extend(rows)

    def _work(self) -> None:
        while True:
            last = self._closing.wait(_POLL_S)
            rows = [self._queue.popleft() for _ in range(len(self._queue))]
            if rows:
                self._append(rows)
            if last and not self._queue:
                return

    def _append(self, rows: list[MetricRow]) -> None:
        try:
            # One write of whole lines, then to the system: a reader sees no half interval for long.
            self._file.write("".join(to_line(self._record(row)) for row in rows))
            self._file.flush()
            self.written += len(rows)
        except Exception as error:  # noqa: BLE001  the thread must outlive a full disk: rows are lost and counted
            self.error = self.error or error
            self._lost_rows += len(rows)

    def _record(self, row: MetricRow) -> MetricRecord:
        return MetricRecord(self.run, self.group, self.member, self.incarnation, row)

    def close(self) -> None:
        """Write what was taken, then the Parquet file; may be called twice."""
        if self._closed:
            return
        self._closed = True
        self._closing.set()
        self._thread.join()
        self._file.close()
        write_metrics(self.path.with_suffix(".parquet"), list(read_stream(self.path)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def write_metrics(path: Path, records: Sequence[MetricRecord]) -> None:
    """Write records as Parquet, under a temporary name first."""
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
    """The records of a stream; a last line without its newline is still being written and is left out."""
    with Path(path).open(encoding="utf-8") as stream:
        for number, line in enumerate(stream, start=1):
            if not line.endswith("\n"):
                return
            try:
                yield from_line(line)
            except ValueError as error:
                raise TraceDamaged(path, f"line {number}: {error}") from error


def read_metrics(path: str | os.PathLike[str]) -> list[MetricRecord]:
    """The records of a Parquet file of metrics."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise TraceDamaged(path, f"is no readable Parquet file ({error})") from error
    version = (table.schema.metadata or {}).get(_VERSION_KEY)
    missing = [name for name in metric_schema().names if name not in table.schema.names]
    if missing:
        raise TraceDamaged(path, f"lacks the column {', '.join(missing)}")
    stated = {"version": int(version) if version and version.isdigit() else version}
    try:
        return [from_fields({**stated, **fields}) for fields in table.to_pylist()]
    except ValueError as error:
        raise TraceDamaged(path, str(error)) from error
