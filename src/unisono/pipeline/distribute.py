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

Thing = TypeVar("Thing")
Outcome = TypeVar("Outcome")


def deal(
    session: SparkSession, hands: Sequence[Sequence[Thing]], work: Callable[[Thing], Outcome]
) -> Iterator[Outcome]:
    """What `work`, a function of a module, makes of every thing; each hand is one task of Spark.

    There are no columns to plan for, and planning costs more than the rest of a short job: a client of Spark Connect,
    which has nothing else, sends a frame, everybody else the hands themselves.
    """
    if hasattr(session, "_jsparkSession"):
        return iter(session.sparkContext.parallelize(hands, len(hands)).flatMap(partial(_play, work)).collect())
    return deal_by_frame(session, hands, work)


def deal_by_frame(
    session: SparkSession, hands: Sequence[Sequence[Thing]], work: Callable[[Thing], Outcome]
) -> Iterator[Outcome]:
    """The same, with nothing but frames."""
    frame = session.range(0, len(hands), 1, numPartitions=len(hands))
    for row in frame.mapInArrow(partial(_play_batches, hands, work), "outcome binary").collect():
        yield pickle.loads(bytes(row["outcome"]))


def _play(work: Callable[[Thing], Outcome], hand: Sequence[Thing]) -> Iterator[Outcome]:
    _settle()
    return map(work, hand)


def _play_batches(
    hands: Sequence[Sequence[Thing]], work: Callable[[Thing], object], batches: Iterable[Any]
) -> Iterator[Any]:
    for batch in batches:
        for number in batch.column("id").to_pylist():
            for outcome in _play(work, hands[number]):
                packed = pickle.dumps(outcome, protocol=pickle.HIGHEST_PROTOCOL)
                yield pa.RecordBatch.from_pydict({"outcome": pa.array([packed], pa.binary())})


@cache
def _settle() -> None:
    """Once in each of an executor's processes: modules, which stay, are no longer looked through for garbage.

    Spark's worker collects all garbage after every task, and has a hundred thousand objects by then.
    """
    gc.collect()
    gc.freeze()
