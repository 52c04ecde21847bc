"""Work dealt out to Spark: everything is done once, and a worker looks through its modules for garbage no more."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from unisono.pipeline.distribute import run_by_frame, run_on_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _square(number: int) -> tuple[int, int, bool]:
    return number, number * number, gc.get_freeze_count() > 0


@pytest.mark.parametrize("deals", [run_on_spark, run_by_frame])
def test_everything_is_done_once_in_a_settled_worker(spark: SparkSession, deals: Callable[..., Any]) -> None:
    hands = [[1, 2, 3], [], [4]]
    assert sorted(deals(spark, hands, _square)) == [(n, n * n, True) for n in (1, 2, 3, 4)]
    assert gc.get_freeze_count() == 0  # not here
