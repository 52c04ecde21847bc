"""A Spark source of metric rows: it reads the members' streams, one append-only file each, as they grow.

Spark's own file source reads each file once and whole, but these files grow. An offset is the number of bytes read of
each stream. So a batch that is read again, after a task failed or the job was restarted, has the same rows. Each row
that Spark gets from this source is a block: all new metric rows of one member, parsed by the task that reads them. So
Spark handles few rows, however many the members write.
"""

from __future__ import annotations

import gc
import os
import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from unisono.trace.metrics import (
    MetricBlock,
    StreamSlice,
    balanced_parts,
    read_values,
    readable_offsets,
    slices_between,
    with_rows,
)

NAME = "unisono_metrics"
_SCHEMA = "block binary"
_PART_BYTES = 512 * 1024
"""A Spark task costs about 80 ms, the time to parse this many bytes; smaller batches get one task."""


class MetricSource(DataSource):
    """A Spark source of metric rows: `spark.readStream.format("unisono_metrics").option("path", DIR)`.

    The option `hands` is the largest number of tasks that read one batch.
    """

    @classmethod
    def name(cls) -> str:
        """The name of this source for `spark.readStream.format`."""
        return NAME

    def schema(self) -> str:
        """The schema of this source: one column, which holds an encoded block."""
        return _SCHEMA

    def streamReader(self, schema: Any) -> MetricReader:  # noqa: N802 - Spark's name
        """The reader of the metric streams in the folder that the option `path` names."""
        return MetricReader(self.options["path"], int(self.options.get("hands", "2")))


class MetricReader(DataSourceStreamReader):
    """Computes offsets of the metric streams on the Spark driver, and reads blocks of rows on the executors."""

    def __init__(self, path: str, max_parts: int) -> None:
        self._path = os.path.abspath(path)
        self._max_parts = max_parts

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """The offset before anything was read: no stream is known yet."""
        return {}

    def latestOffset(self, start: dict[str, int] | None = None, limit: Any = None) -> dict[str, int]:  # noqa: N802
        """The offset up to which the metric streams can be read now."""
        return readable_offsets(self._path, start or {})

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Split the bytes between two offsets into as many partitions as their size justifies."""
        work = slices_between(start, end)
        size = sum(stretch.end - stretch.start for stretch in work)
        return [InputPartition(part) for part in balanced_parts(work, min(self._max_parts, 1 + size // _PART_BYTES))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the blocks of one partition."""
        part: list[StreamSlice] = partition.value
        # Thousands of new values and no garbage: collection would take a third of the time.
        gc.disable()
        try:
            blocks = [pickle.dumps(read_values(stretch), protocol=pickle.HIGHEST_PROTOCOL) for stretch in part]
        finally:
            gc.enable()
        yield pa.RecordBatch.from_pydict({"block": pa.array(blocks, pa.binary())})


def decode_blocks(rows: Sequence[Any]) -> list[MetricBlock]:
    """Decode the blocks of a batch from the rows that Spark collected."""
    return [with_rows(*pickle.loads(bytes(row["block"]))) for row in rows]
