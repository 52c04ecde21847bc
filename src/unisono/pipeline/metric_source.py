"""Spark's source of metric rows: tails the members' streams, one append-only file each.

The file source of Spark takes each file once and whole; these grow. An offset is how many bytes of each stream were
read, so a batch that is read again, after a task failed or the job was started anew, holds the same rows. A row of this
source is a block: what one member wrote since the last batch, parsed where it is read. So Spark moves few rows,
whatever the members write.
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
"""A task of Spark costs some 80 ms, in which this much is parsed: less is one task's work."""


class MetricSource(DataSource):
    """`spark.readStream.format("unisono_metrics").option("path", DIR)`; `hands` is how many tasks may share a batch."""

    @classmethod
    def name(cls) -> str:
        """What `format` calls it."""
        return NAME

    def schema(self) -> str:
        """One column."""
        return _SCHEMA

    def streamReader(self, schema: Any) -> MetricReader:  # noqa: N802 - Spark's name
        """The reader of the folder that was named."""
        return MetricReader(self.options["path"], int(self.options.get("hands", "2")))


class MetricReader(DataSourceStreamReader):
    """Offsets on the driver, blocks on the executors."""

    def __init__(self, path: str, max_parts: int) -> None:
        self._path = os.path.abspath(path)
        self._max_parts = max_parts

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Nothing was read."""
        return {}

    def latestOffset(self, start: dict[str, int] | None = None, limit: Any = None) -> dict[str, int]:  # noqa: N802
        """How far the streams go now."""
        return readable_offsets(self._path, start or {})

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """What has come, in as many parts as it is worth."""
        work = slices_between(start, end)
        size = sum(stretch.end - stretch.start for stretch in work)
        return [InputPartition(part) for part in balanced_parts(work, min(self._max_parts, 1 + size // _PART_BYTES))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The blocks of one part."""
        part: list[StreamSlice] = partition.value
        # Thousands of new values, none of them garbage: looking for it would take a third of the time.
        gc.disable()
        try:
            blocks = [pickle.dumps(read_values(stretch), protocol=pickle.HIGHEST_PROTOCOL) for stretch in part]
        finally:
            gc.enable()
        yield pa.RecordBatch.from_pydict({"block": pa.array(blocks, pa.binary())})


def decode_blocks(rows: Sequence[Any]) -> list[MetricBlock]:
    """The blocks of a batch, as collected."""
    return [with_rows(*pickle.loads(bytes(row["block"]))) for row in rows]
