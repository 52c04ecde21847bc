"""The background writer: delivery never waits for a disk.

`put` appends to a bounded queue and returns; when the queue is full the rows are dropped and counted, and the
record that closes the recording says so. A thread takes the queue apart and writes whole files.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections import deque
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

from unisono.trace.files import RANGE_SLOTS, FileStamp, end_path, member_folder, part_path, write_end, write_part
from unisono.trace.recorder import COUNT_INDEX, SLOT_INDEX, Extras, PackedRows, Recorder
from unisono.trace.table import concatenated, expand_rows

_POLL_S = 0.05
_TUPLES_AT_ONCE = 2048
"""Runs are turned into columns in pieces of this size: each holds the interpreter for well under a slot."""


@cache
def _warm_up() -> None:
    """Write one row to nowhere.

    pyarrow loads parts of itself, and of numpy, at the first write. That holds the interpreter for a tenth of a
    second and more, which the members of a running group would see as latency.
    """
    extras = Extras(note="warm-up", token="warm-up", members=(1,))
    row: PackedRows = (0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, extras)
    with tempfile.TemporaryDirectory(prefix="unisono-") as folder:
        write_part(Path(folder) / "part", expand_rows(1, 0, [row]), "warm-up", "warm-up")


class ParquetWriter:
    """Writes one member's life to Parquet in a thread of its own. One thread may call `put`.

    A part is in place about `flush_s` after its first row at the latest, so a killed process loses no more than
    that; `close()` writes the rest, and the record that says what is missing.
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
            raise ValueError("range_slots, queue_rows and part_rows must be at least 1, life at least 0")
        self.run, self.group, self.member, self.incarnation = run, group, member, incarnation
        self.written = 0
        self.error: Exception | None = None
        self._directory, self._later_writers = directory, list[ParquetWriter]()
        """What writes the lives that this member has begun since."""
        self._folder = member_folder(directory, run, group, member)
        self._folder.mkdir(parents=True, exist_ok=True)
        if end_path(self._folder, incarnation).exists() or any(self._folder.glob(f"slots-*.{incarnation}.*.parquet")):
            raise FileExistsError(f"{self._folder}: life {incarnation} is recorded already; name the run differently")
        self._range_slots, self._queue_rows, self._part_rows = range_slots, queue_rows, part_rows
        self._flush_s = flush_s
        self._queue: deque[PackedRows] = deque()
        # Each counter has one writing thread: put and refused belong to the caller, taken and lost to ours.
        self._put_rows = self._refused_rows = 0
        self._processed_rows = self._lost_rows = 0
        self._parts: dict[int, list[PackedRows]] = {}
        self._part_counts: dict[int, int] = {}
        self._next_part: dict[int, int] = {}
        self._time_range: tuple[int, int] | None = None
        self._stamps: dict[str, FileStamp] = {}
        self._closing = threading.Event()
        self._closed = False
        _warm_up()
        self._thread = threading.Thread(target=self._work, name=f"trace-{member}", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Rows that are not in the trace: the queue was full, or a file could not be written."""
        return self._refused_rows + self._lost_rows

    def recorder(self) -> Recorder:
        """The recorder that writes here; a life that follows is written beside this one, and closed with it."""
        return Recorder(
            self.run,
            self.group,
            self.member,
            self.put,
            incarnation=self.incarnation,
            new_incarnation=self._new_incarnation,
        )

    def _new_incarnation(self, incarnation: int) -> Recorder:
        self._later_writers.append(
            ParquetWriter(self._directory, self.run, self.group, self.member, incarnation=incarnation)
        )
        return self._later_writers[-1].recorder()

    def put(self, packed: PackedRows) -> None:
        """Take a run of rows; never blocks."""
        rows = packed[COUNT_INDEX]
        if self._closed or self._put_rows - self._processed_rows + rows > self._queue_rows:
            self._refused_rows += rows
            return
        self._put_rows += rows
        self._queue.append(packed)

    def close(self) -> None:
        """Write what was taken, then say how much is there; may be called twice."""
        if self._closed:
            return
        self._closed = True
        self._closing.set()
        self._thread.join()
        problem = None if self.error is None else f"{type(self.error).__name__}: {self.error}"
        write_end(
            self._folder,
            self.incarnation,
            rows=self.written,
            dropped=self.dropped,
            error=problem,
            time_range=self._time_range,
            stamps=self._stamps,
        )
        for writer in self._later_writers:
            writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _work(self) -> None:
        flush_at = time.monotonic() + self._flush_s
        while True:
            last = self._closing.wait(_POLL_S)
            self._drain_queue()
            now = time.monotonic()
            if last or now >= flush_at:
                flush_at = now + self._flush_s
                for number in sorted(self._parts):
                    self._write(number)
            if last and not self._queue:
                return

    def _drain_queue(self) -> None:
        """Sort what is queued into the ranges of slots; a range that is full is written at once."""
        while self._queue:
            run = self._queue.popleft()
            number = run[SLOT_INDEX] // self._range_slots
            self._parts.setdefault(number, []).append(run)
            count = self._part_counts[number] = self._part_counts.get(number, 0) + run[COUNT_INDEX]
            if count >= self._part_rows:
                self._write(number)

    def _write(self, number: int) -> None:
        runs = self._parts.pop(number)
        count = self._part_counts.pop(number)
        try:
            pieces = [runs[at : at + _TUPLES_AT_ONCE] for at in range(0, len(runs), _TUPLES_AT_ONCE)]
            rows = concatenated([expand_rows(self.member, self.incarnation, piece) for piece in pieces])
            part = self._next_part.get(number, 0)
            first = number * self._range_slots
            path = part_path(self._folder, first, self._range_slots, self.incarnation, part)
            self._stamps[path.name] = write_part(path, rows, self.run, self.group)
            self._next_part[number] = part + 1
            times = int(rows.real_ns.min()), int(rows.real_ns.max())
            before = self._time_range or times
            self._time_range = min(before[0], times[0]), max(before[1], times[1])
            self.written += count
        except Exception as error:  # noqa: BLE001  the thread must outlive a full disk: rows are lost and counted
            self.error = self.error or error
            self._lost_rows += count
        finally:
            self._processed_rows += count
