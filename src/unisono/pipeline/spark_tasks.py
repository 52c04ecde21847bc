"""The tasks of a verification: each reads the rows of some files, in a Spark task or in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from unisono.check.message_shards import MessageShard, RunContext, ShardFinding, VerdictSummary, check_shard
from unisono.check.rates import DeclaredRates, declared_rates
from unisono.check.shard_summary import RangeSummary, summarize_range
from unisono.pipeline.distribute import run_on_spark
from unisono.pipeline.session import parallelism
from unisono.trace.files import Layout, RangeFiles, read_range
from unisono.trace.schema import RunMeta, TraceDamaged
from unisono.trace.table import Rows, concatenated

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TASKS_PER_CORE = 4


class SparkTask(Protocol):
    """The interface of a verification task, which reads the rows of some trace files."""

    @property
    def rows(self) -> int:
        """How many rows this task reads."""
        ...

    def run(self) -> object:
        """Read the rows and return the result."""
        ...


Outcome = object
"""The result of a task, or the damage that it found; damage does not make the task fail."""
Runner = Callable[[Sequence[SparkTask]], list[Outcome]]
"""Runs tasks and returns their outcomes in order."""


@dataclass(frozen=True, slots=True)
class RangeSummaryTask:
    """A task that summarizes one range of slots of one run."""

    run_number: int
    files: RangeFiles
    grade: str | None
    bound_ns: int | None
    promised: DeclaredRates | None

    @property
    def rows(self) -> int:
        """How many rows this task reads."""
        return self.files.rows

    def run(self) -> RangeSummary:
        """Read the range of slots and return its summary."""
        slots = self.files.first_slot, self.files.last_slot
        chosen = {"grade": self.grade, "bound_ns": self.bound_ns, "promised": self.promised}
        return summarize_range(read_range(self.files, checked=True), *slots, **chosen)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class ShardTask:
    """A task that checks one message shard of one run, with the previous shard if causal order is checked."""

    context: RunContext
    nothing_found: dict[str, VerdictSummary]
    shard: MessageShard
    files: tuple[RangeFiles, ...]
    previous: MessageShard | None
    previous_files: tuple[RangeFiles, ...]
    max_rows: int
    """The largest number of rows that a shard may have."""

    @property
    def rows(self) -> int:
        """How many rows this task reads."""
        return sum(files.rows for files in (*self.files, *self.previous_files))

    def run(self) -> ShardFinding:
        """Read the rows of the message shard and return what the checks found in it."""
        try:
            own = shard_rows(self.shard, self.files, self.max_rows)
            previous = None if self.previous is None else shard_rows(self.previous, self.previous_files, self.max_rows)
        except _ShardTooLarge:
            return ShardFinding(frozenset(), 0, too_large=True)
        return check_shard(self.context, self.nothing_found, own, previous)


class _ShardTooLarge(Exception):
    """A message shard has more rows than one task may hold in memory."""


def shard_rows(shard: MessageShard, files: Iterable[RangeFiles], max_rows: int | None = None) -> Rows:
    """Read the sends and deliveries of a message shard from the files that may contain them."""
    parts: list[Rows] = []
    for rows in (rows for one in files for rows in read_range(one)):
        parts.append(shard.select_rows(rows))
        if max_rows is not None and sum(map(len, parts)) > max_rows:
            raise _ShardTooLarge
    return concatenated(parts)


def summary_task(
    meta: RunMeta, files: RangeFiles, grade: str | None, bound_ns: int | None, run_number: int = 0
) -> RangeSummaryTask:
    """Make the task that summarizes one range of slots of a run."""
    return RangeSummaryTask(run_number, files, grade, bound_ns, declared_rates(meta))


def summarize_ranges(
    layout: Layout, runner: Runner, grade: str | None, bound_ns: int | None
) -> tuple[RangeSummary, ...]:
    """Summarize all ranges of slots of a run; raises `TraceDamaged` if a task found damage."""
    kept = []
    for outcome in runner([summary_task(layout.meta, files, grade, bound_ns) for files in layout.ranges]):
        if isinstance(outcome, TraceDamaged):
            raise outcome
        assert isinstance(outcome, RangeSummary)
        kept.append(outcome)
    return tuple(kept)


def _run_task(task: SparkTask) -> Outcome:
    try:
        return task.run()
    except TraceDamaged as damage:
        return damage


def in_process(tasks: Sequence[SparkTask]) -> list[Outcome]:
    """Run tasks without Spark, one after another."""
    return [_run_task(task) for task in tasks]


def on_spark(session: SparkSession, tasks: Sequence[SparkTask]) -> list[Outcome]:
    """Run tasks on Spark, distributed so that all Spark tasks have about the same size."""
    if not tasks:
        return []
    count = min(len(tasks), parallelism(session) * _TASKS_PER_CORE)
    by_size = sorted(range(len(tasks)), key=lambda number: -tasks[number].rows)
    hands = [[(number, tasks[number]) for number in by_size[first::count]] for first in range(count)]
    found = dict(run_on_spark(session, hands, _run_numbered_task))
    return [found[number] for number in range(len(tasks))]


def _run_numbered_task(numbered: tuple[int, SparkTask]) -> tuple[int, Outcome]:
    number, task = numbered
    return number, _run_task(task)
