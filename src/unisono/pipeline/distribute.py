"""Work dealt out to Spark: a hand of things to each of its tasks."""

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
    """What `work`, a function of a module, makes of every thing; each hand is one task of Spark.

    There are no columns to plan for, and planning costs more than the rest of a short job: a client of Spark Connect,
    which has nothing else, sends a frame, everybody else the hands themselves.
    """
    if hasattr(session, "_jsparkSession"):
        return iter(
            session.sparkContext.parallelize(batches, len(batches)).flatMap(partial(_run_batch, work)).collect()
        )
    return run_by_frame(session, batches, work)


def run_by_frame(
    session: SparkSession, batches: Sequence[Sequence[Item]], work: Callable[[Item], Outcome]
) -> Iterator[Outcome]:
    """The same, with nothing but frames."""
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
    """Once in each of an executor's processes: modules, which stay, are no longer looked through for garbage.

    Spark's worker collects all garbage after every task, and has a hundred thousand objects by then.
    """
    gc.collect()
    gc.freeze()
