"""One Spark session for all tests of the pipeline: starting one takes many times as long as using it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from unisono.pipeline.session import SparkChoice, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with spark_session(SparkChoice("local[2]"), "unisono tests") as session:
        yield session
