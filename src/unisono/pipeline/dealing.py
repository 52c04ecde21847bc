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
    """What `work`, a function of a module, makes of every thing; each hand is one task of Spark."""
    frame = session.range(0, len(hands), 1, numPartitions=len(hands))
    for row in frame.mapInArrow(partial(_play, hands, work), "outcome binary").collect():
        yield pickle.loads(bytes(row["outcome"]))


def _play(hands: Sequence[Sequence[Any]], work: Callable[[Any], object], batches: Iterable[Any]) -> Iterator[Any]:
    _settle()
    for batch in batches:
        for hand in batch.column("id").to_pylist():
            for thing in hands[hand]:
                outcome = pickle.dumps(work(thing), protocol=pickle.HIGHEST_PROTOCOL)
                yield pa.RecordBatch.from_pydict({"outcome": pa.array([outcome], pa.binary())})


@cache
def _settle() -> None:
    """Once in each of an executor's processes: modules, which stay, are no longer looked through for garbage.

    Spark's worker collects all garbage after every task, and has a hundred thousand objects by then.
    """
    gc.collect()
    gc.freeze()
