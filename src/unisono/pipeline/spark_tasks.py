"""What a verification does with the rows of some files, in a task of Spark or in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from unisono.check.message_shards import MessageShard, RunContext, ShardFinding, VerdictSummary, check_shard
from unisono.check.shard_summary import RangeSummary, summarize_range
from unisono.check.timing import DeclaredRates, declared_rates
from unisono.pipeline.distribute import run_on_spark
from unisono.pipeline.session import parallelism
from unisono.trace.files import Layout, RangeFiles, read_range
from unisono.trace.schema import RunMeta, TraceDamaged
from unisono.trace.table import Rows, concatenated

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TASKS_PER_CORE = 4


class SparkTask(Protocol):
    """Something to be done with the rows of some files."""

    @property
    def rows(self) -> int:
        """How many rows it reads."""
        ...

    def run(self) -> object:
        """Read them; what was found."""
        ...


Outcome = object
"""What a task found, or the damage that it met: that is an outcome, not a failure of the task."""
Runner = Callable[[Sequence[SparkTask]], list[Outcome]]
"""Runs tasks; the outcomes in their order."""


@dataclass(frozen=True, slots=True)
class RangeSummaryTask:
    """One range of one run, to be surveyed."""

    run_number: int
    files: RangeFiles
    grade: str | None
    bound_ns: int | None
    promised: DeclaredRates | None

    @property
    def rows(self) -> int:
        """How many rows it reads."""
        return self.files.rows

    def run(self) -> RangeSummary:
        """Survey the range."""
        slots = self.files.first_slot, self.files.last_slot
        chosen = {"grade": self.grade, "bound_ns": self.bound_ns, "promised": self.promised}
        return summarize_range(read_range(self.files, checked=True), *slots, **chosen)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class ShardTask:
    """One tile of one run, to be judged; with the tile before it, where that tells something."""

    context: RunContext
    nothing_found: dict[str, VerdictSummary]
    shard: MessageShard
    files: tuple[RangeFiles, ...]
    previous: MessageShard | None
    previous_files: tuple[RangeFiles, ...]
    max_rows: int
    """How many rows a tile may have."""

    @property
    def rows(self) -> int:
        """How many rows it reads."""
        return sum(files.rows for files in (*self.files, *self.previous_files))

    def run(self) -> ShardFinding:
        """Judge the tile."""
        try:
            own = shard_rows(self.shard, self.files, self.max_rows)
            previous = None if self.previous is None else shard_rows(self.previous, self.previous_files, self.max_rows)
        except _ShardTooLarge:
            return ShardFinding(frozenset(), 0, too_large=True)
        return check_shard(self.context, self.nothing_found, own, previous)


class _ShardTooLarge(Exception):
    """A tile has more rows than are held."""


def shard_rows(shard: MessageShard, files: Iterable[RangeFiles], max_rows: int | None = None) -> Rows:
    """The sends and deliveries of a tile's messages, from the files that have them."""
    parts: list[Rows] = []
    for rows in (rows for one in files for rows in read_range(one)):
        parts.append(shard.select_rows(rows))
        if max_rows is not None and sum(map(len, parts)) > max_rows:
            raise _ShardTooLarge
    return concatenated(parts)


def summary_task(
    meta: RunMeta, files: RangeFiles, grade: str | None, bound_ns: int | None, run_number: int = 0
) -> RangeSummaryTask:
    """The survey of one range of a run."""
    return RangeSummaryTask(run_number, files, grade, bound_ns, declared_rates(meta))


def summarize_ranges(
    layout: Layout, runner: Runner, grade: str | None, bound_ns: int | None
) -> tuple[RangeSummary, ...]:
    """The surveys of all ranges of a run; damage is raised."""
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
    """The runner without Spark: one task after the other."""
    return [_run_task(task) for task in tasks]


def on_spark(session: SparkSession, tasks: Sequence[SparkTask]) -> list[Outcome]:
    """The runner on Spark. Large and small ones are dealt out so that Spark's tasks are alike in size."""
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
