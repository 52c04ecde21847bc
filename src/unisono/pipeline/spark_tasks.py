"""What a verification does with the rows of some files, in a task of Spark or in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from unisono.check.message_shards import Frame, Said, Tile, TileFinding, judge_tile
from unisono.check.rate_compliance import Declared, declared
from unisono.check.shard_summary import Survey, survey
from unisono.pipeline.distribute import deal
from unisono.pipeline.session import parallelism
from unisono.trace.layout import Layout, RangeFiles, read_range
from unisono.trace.meta import RunMeta, TraceDamaged
from unisono.trace.table import Rows, concatenated

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TASKS_PER_CORE = 4


class Task(Protocol):
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
Runner = Callable[[Sequence[Task]], list[Outcome]]
"""Runs tasks; the outcomes in their order."""


@dataclass(frozen=True, slots=True)
class RangeTask:
    """One range of one run, to be surveyed."""

    run_number: int
    files: RangeFiles
    grade: str | None
    bound_ns: int | None
    promised: Declared | None

    @property
    def rows(self) -> int:
        """How many rows it reads."""
        return self.files.rows

    def run(self) -> Survey:
        """Survey the range."""
        slots = self.files.first_slot, self.files.last_slot
        chosen = {"grade": self.grade, "bound_ns": self.bound_ns, "promised": self.promised}
        return survey(read_range(self.files, checked=True), *slots, **chosen)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class TileTask:
    """One tile of one run, to be judged; with the tile before it, where that tells something."""

    frame: Frame
    plain: dict[str, Said]
    tile: Tile
    files: tuple[RangeFiles, ...]
    previous: Tile | None
    previous_files: tuple[RangeFiles, ...]
    most_rows: int
    """How many rows a tile may have."""

    @property
    def rows(self) -> int:
        """How many rows it reads."""
        return sum(files.rows for files in (*self.files, *self.previous_files))

    def run(self) -> TileFinding:
        """Judge the tile."""
        try:
            own = tile_rows(self.tile, self.files, self.most_rows)
            previous = None if self.previous is None else tile_rows(self.previous, self.previous_files, self.most_rows)
        except _TooManyRows:
            return TileFinding(frozenset(), 0, too_long=True)
        return judge_tile(self.frame, self.plain, own, previous)


class _TooManyRows(Exception):
    """A tile has more rows than are held."""


def tile_rows(tile: Tile, files: Iterable[RangeFiles], most_rows: int | None = None) -> Rows:
    """The sends and deliveries of a tile's messages, from the files that have them."""
    parts: list[Rows] = []
    for rows in (rows for one in files for rows in read_range(one)):
        parts.append(tile.rows_of(rows))
        if most_rows is not None and sum(map(len, parts)) > most_rows:
            raise _TooManyRows
    return concatenated(parts)


def survey_task(
    meta: RunMeta, files: RangeFiles, grade: str | None, bound_ns: int | None, run_number: int = 0
) -> RangeTask:
    """The survey of one range of a run."""
    return RangeTask(run_number, files, grade, bound_ns, declared(meta))


def surveyed(plan: Layout, runner: Runner, grade: str | None, bound_ns: int | None) -> tuple[Survey, ...]:
    """The surveys of all ranges of a run; damage is raised."""
    kept = []
    for outcome in runner([survey_task(plan.meta, files, grade, bound_ns) for files in plan.ranges]):
        if isinstance(outcome, TraceDamaged):
            raise outcome
        assert isinstance(outcome, Survey)
        kept.append(outcome)
    return tuple(kept)


def _outcome(task: Task) -> Outcome:
    try:
        return task.run()
    except TraceDamaged as damage:
        return damage


def in_process(tasks: Sequence[Task]) -> list[Outcome]:
    """The runner without Spark: one task after the other."""
    return [_outcome(task) for task in tasks]


def on_spark(session: SparkSession, tasks: Sequence[Task]) -> list[Outcome]:
    """The runner on Spark. Large and small ones are dealt out so that Spark's tasks are alike in size."""
    if not tasks:
        return []
    count = min(len(tasks), parallelism(session) * _TASKS_PER_CORE)
    by_size = sorted(range(len(tasks)), key=lambda number: -tasks[number].rows)
    hands = [[(number, tasks[number]) for number in by_size[first::count]] for first in range(count)]
    found = dict(deal(session, hands, _numbered_outcome))
    return [found[number] for number in range(len(tasks))]


def _numbered_outcome(numbered: tuple[int, Task]) -> tuple[int, Outcome]:
    number, task = numbered
    return number, _outcome(task)
