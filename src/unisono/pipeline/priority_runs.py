"""Checks long runs of the priority order in two passes over their ranges of slots, and a third over suspect messages.

The first pass summarizes each range by itself. The second checks windows of neighbouring ranges, each with the rows of
its messages in other ranges. Tasks need no common sort, join or shuffle, and one process holds at most the summaries,
one window, or the suspect rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from unisono.check.priority_accounts import WINDOW_ROWS, PriorityWindow, check_priority
from unisono.check.priority_ranges import PriorityRun
from unisono.check.priority_summary import PriorityRangeSummary, in_message_set, summarize_priority_range
from unisono.check.priority_windows import LogFacts, WindowFinding, check_window
from unisono.check.suite import NO_BOUND
from unisono.check.verdict import Verdict
from unisono.model.message_set import MessageSet
from unisono.pipeline.spark_tasks import Runner, SparkTask
from unisono.trace.files import Layout, RangeFiles, read_range
from unisono.trace.schema import EventKind, RunMeta, TraceDamaged
from unisono.trace.table import Rows, concatenated, copied

_COLUMNS = ("kind", "sender", "sender_incarnation", "sequence", "slot", "place", "index", "real_ns", "priority")
_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class PrioritySummaryTask:
    """A task that summarizes one range of slots."""

    files: RangeFiles
    excluded_logs: frozenset[tuple[int, int]] = frozenset()
    """The member runs whose deliveries do not count, as (member, incarnation)."""

    @property
    def rows(self) -> int:
        """How many rows this task reads."""
        return self.files.rows

    def run(self) -> PriorityRangeSummary:
        """Read the range of slots and return its summary."""
        files = self.files
        return summarize_priority_range(
            read_range(files, checked=True), files.first_slot, files.last_slot, self.excluded_logs
        )


@dataclass(frozen=True, slots=True)
class GatherTask:
    """A task that selects the rows of some messages from one range of slots."""

    files: RangeFiles
    wanted: MessageSet
    kinds: tuple[EventKind, ...]

    @property
    def rows(self) -> int:
        """How many rows this task reads."""
        return self.files.rows

    def run(self) -> Rows:
        """Read the range of slots and return the rows of the wanted messages."""
        found = [part.of_kind(*self.kinds) for part in read_range(self.files, all_columns=True)]
        return concatenated([copied(part.select(in_message_set(part, self.wanted))) for part in found])


@dataclass(frozen=True, slots=True)
class WindowTask:
    """A task that checks one window of neighbouring ranges of slots.

    Without facts about the member runs (`logs`), it only measures latencies.
    """

    delivery_files: tuple[RangeFiles, ...]
    reception_files: tuple[RangeFiles, ...]
    send_files: tuple[RangeFiles, ...]
    window: PriorityWindow
    logs: tuple[LogFacts, ...] | None
    meta: RunMeta
    bound_ns: int

    @property
    def rows(self) -> int:
        """How many rows this task reads."""
        return sum(files.rows for files in {*self.delivery_files, *self.reception_files, *self.send_files})

    def run(self) -> WindowFinding:
        """Read the rows of the window of ranges and return what the checks found in it."""
        kept: dict[EventKind, list[Rows]] = {
            kind: [] for kind in (EventKind.DELIVER, EventKind.RECEIVE, EventKind.SEND)
        }
        wanted = zip(kept, (self.delivery_files, self.reception_files, self.send_files), strict=True)
        of = {kind: set(files) for kind, files in wanted}
        for files in dict.fromkeys((*self.delivery_files, *self.reception_files, *self.send_files)):
            for part in read_range(files, columns=_COLUMNS):
                for kind in (kind for kind in kept if files in of[kind]):
                    rows = part.of_kind(kind)
                    kept[kind].append(rows.select(in_message_set(rows, self.window.messages)))
        delivered, received, sent = (concatenated(parts) for parts in kept.values())
        of_window = delivered, received, sent
        return check_window(self.logs, self.window.last_slots_by_priority, of_window, self.meta, self.bound_ns)


def verify_in_windows(
    layout: Layout,
    runner: Runner,
    bound_ns: int | None,
    require_all_members: Callable[[Rows], None],
    *,
    max_suspect_rows: int,
) -> dict[str, Verdict]:
    """Check a long run of the priority order. The verdicts equal those of `check.suite.check_all` over the whole run.

    `require_all_members` is called with all member events, and raises `TraceDamaged` if files of the run are missing.
    """

    def load(numbers: Sequence[int]) -> Rows:
        return concatenated(
            [part for number in numbers for part in read_range(layout.ranges[number], all_columns=True)]
        )

    def gather(wanted: MessageSet, kinds: Collection[EventKind], numbers: Sequence[int]) -> Rows:
        tasks = [GatherTask(layout.ranges[number], wanted, tuple(kinds)) for number in numbers]
        return concatenated(_run_all(runner, tasks, Rows))

    def judge(cut: Sequence[PriorityWindow], logs: tuple[LogFacts, ...] | None) -> list[WindowFinding]:
        limit_ns = NO_BOUND if bound_ns is None else bound_ns
        return _run_all(runner, [_window_task(layout, window, logs, limit_ns) for window in cut], WindowFinding)

    def survey(numbers: Sequence[int], without: frozenset[tuple[int, int]] = frozenset()) -> list[PriorityRangeSummary]:
        tasks = [PrioritySummaryTask(layout.ranges[number], without) for number in numbers]
        return _run_all(runner, tasks, PriorityRangeSummary)

    surveys = tuple(survey(range(len(layout.ranges))))
    require_all_members(concatenated([survey.base.events for survey in surveys]))
    run = PriorityRun(layout.meta, layout.logs, surveys, load, gather, survey, bound_ns, max_suspect_rows)
    return check_priority(run, judge, window_rows=WINDOW_ROWS)


def _window_task(
    layout: Layout, window: PriorityWindow, logs: tuple[LogFacts, ...] | None, limit_ns: int
) -> WindowTask:
    def files(numbers: Iterable[int]) -> tuple[RangeFiles, ...]:
        return tuple(layout.ranges[number] for number in numbers)

    receptions = () if logs is None else files(window.reception_ranges)
    return WindowTask(
        files(window.delivery_ranges), receptions, files(window.send_ranges), window, logs, layout.meta, limit_ns
    )


def _run_all(runner: Runner, tasks: Sequence[SparkTask], kind: type[_Found]) -> list[_Found]:
    """The results of the tasks; raises `TraceDamaged` if a task found damage."""
    kept = []
    for outcome in runner(tasks):
        if isinstance(outcome, TraceDamaged):
            raise outcome
        assert isinstance(outcome, kind)
        kept.append(outcome)
    return kept
