"""Work dealt out to Spark: everything is done once, and a worker looks through its modules for garbage no more."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from unisono.pipeline.dealing import deal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _square(number: int) -> tuple[int, int, bool]:
    return number, number * number, gc.get_freeze_count() > 0


def test_everything_is_done_once_in_a_settled_worker(spark: SparkSession) -> None:
    hands = [[1, 2, 3], [], [4]]
    assert sorted(deal(spark, hands, _square)) == [(n, n * n, True) for n in (1, 2, 3, 4)]
    assert gc.get_freeze_count() == 0  # not here
