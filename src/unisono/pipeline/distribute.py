"""Distributes work over Spark: one batch of items per Spark task."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


def run_on_spark(
    session: SparkSession, batches: Sequence[Sequence[Item]], work: Callable[[Item], Outcome]
) -> Iterator[Outcome]:
    """Call `work`, a module-level function, on every item and return the results; each batch is one Spark task.

    This uses an RDD, because planning a DataFrame would take longer than the rest of a short job. Spark Connect offers
    only DataFrames.
    """
    if hasattr(session, "_jsparkSession"):
        return iter(
            session.sparkContext.parallelize(batches, len(batches)).flatMap(partial(_run_batch, work)).collect()
        )
    return run_by_frame(session, batches, work)


def run_by_frame(
    session: SparkSession, batches: Sequence[Sequence[Item]], work: Callable[[Item], Outcome]
) -> Iterator[Outcome]:
    """Do the same as `run_on_spark`, with DataFrames only, which Spark Connect requires."""
    frame = session.range(0, len(batches), 1, numPartitions=len(batches))
    for row in frame.mapInArrow(partial(_run_record_batches, batches, work), "outcome binary").collect():
        yield pickle.loads(bytes(row["outcome"]))


def _run_batch(work: Callable[[Item], Outcome], batch: Sequence[Item]) -> Iterator[Outcome]:
    _freeze_gc()
    return map(work, batch)


def _run_record_batches(
    work_batches: Sequence[Sequence[Item]], work: Callable[[Item], object], record_batches: Iterable[Any]
) -> Iterator[Any]:
    for batch in record_batches:
        for number in batch.column("id").to_pylist():
            for outcome in _run_batch(work, work_batches[number]):
                packed = pickle.dumps(outcome, protocol=pickle.HIGHEST_PROTOCOL)
                yield pa.RecordBatch.from_pydict({"outcome": pa.array([packed], pa.binary())})


@cache
def _freeze_gc() -> None:
    """Exclude the objects of loaded modules from garbage collection, once in each process of an executor.

    Spark's worker collects garbage after every task, over about 100,000 objects that never become garbage.
    """
    gc.collect()
    gc.freeze()
