"""`unisono verify`: every checker over recorded runs of any size, on Spark.

One task summarizes one range of slots of one run from the files of all its members; tasks need no common sort, join or
shuffle. The driver merges the summaries, which are small, and reads only the rows of suspect ranges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from unisono.check.final import FINAL
from unisono.check.ranges import MAX_SUSPECT_ROWS, SummarizedRun, check_ranges
from unisono.check.shard_summary import RangeSummary
from unisono.check.suite import check_all
from unisono.check.verdict import Reason, Status, Verdict, graded_name, overall, unknown
from unisono.model.capabilities import recorded_capabilities
from unisono.pipeline.message_shards import RecordedRun, verify_in_shards
from unisono.pipeline.priority_runs import verify_in_windows
from unisono.pipeline.spark_tasks import Runner, in_process, on_spark, summarize_ranges, summary_task
from unisono.trace.files import (
    Layout,
    closed_time_range,
    find_groups,
    layout,
    may_overlap,
    members_without_files,
    read_range,
)
from unisono.trace.schema import META_NAME, EventKind, TraceDamaged, read_meta
from unisono.trace.table import Rows, Trace, concatenated

_MAX_NAMED_RUNS = 3
"""At most this many runs are named in the error if the requested one does not exist."""

__all__ = ["RunReport", "SelectedRuns", "in_process", "on_spark", "select_runs", "verify", "verify_selected"]


@dataclass(frozen=True, slots=True)
class RunReport:
    """The verdicts on one run of one group."""

    folder: str
    run: str
    group: str
    rows: int
    verdicts: dict[str, Verdict] = field(default_factory=dict)

    @property
    def status(self) -> Status:
        """The overall verdict on the run: violated, unknown or valid, the worst of its checks."""
        return overall(self.verdicts)


@dataclass(frozen=True, slots=True)
class SelectedRuns:
    """The recorded runs to check, and a report for each run whose files are too damaged to be checked."""

    plans: tuple[Layout, ...]
    damaged: tuple[RunReport, ...]


def select_runs(
    path: str | Path,
    *,
    run: str | None = None,
    group: str | None = None,
    since_ns: int | None = None,
    until_ns: int | None = None,
) -> SelectedRuns:
    """Find the recorded runs in the folder `path` and below. Raise TraceDamaged if no run is selected.

    `run` and `group` select runs by name. Runs that ended before `since_ns` or began after `until_ns` are skipped. The
    times come from the end records or, if there are none, from the footers of the files.
    """
    damaged: list[RunReport] = []
    plans: list[Layout] = []
    there: set[str] = set()
    when = (since_ns, until_ns) != (None, None)
    for folder in find_groups(path):
        try:
            meta = read_meta(folder / META_NAME)
            there.add(f"run {meta.run} of group {meta.group}")
            if run not in (None, meta.run) or group not in (None, meta.group):
                continue
            if when and not may_overlap(closed_time_range(folder), since_ns, until_ns):
                continue
            plan = layout(folder)
            if plan.may_contain(since_ns, until_ns):
                plans.append(plan)
        except TraceDamaged as damage:
            damaged.append(RunReport(str(folder), "", "", 0, _damaged_verdict(damage)))
    if not plans and not damaged:
        what = " ".join(
            filter(None, ("has no run", run, group and f"of group {group}", "in that time" if when else ""))
        )
        others = f" and {len(there) - _MAX_NAMED_RUNS} more" if len(there) > _MAX_NAMED_RUNS else ""
        raise TraceDamaged(path, f"{what}; it has {', '.join(sorted(there)[:_MAX_NAMED_RUNS])}{others}")
    return SelectedRuns(tuple(plans), tuple(damaged))


def verify(
    path: str | Path,
    runner: Runner = in_process,
    *,
    bound_ns: int | None = None,
    max_whole_rows: int = MAX_SUSPECT_ROWS,
    max_suspect_rows: int = MAX_SUSPECT_ROWS,
) -> list[RunReport]:
    """Check every recorded run of every group in the folder `path` and below; return a report for each.

    A run of at most `max_whole_rows` rows may be read as a whole. Of a longer run, at most `max_suspect_rows` suspect
    rows are in memory at once.
    """
    return verify_selected(
        select_runs(path),
        runner,
        bound_ns=bound_ns,
        max_whole_rows=max_whole_rows,
        max_suspect_rows=max_suspect_rows,
    )


def verify_selected(
    selected: SelectedRuns,
    runner: Runner = in_process,
    *,
    bound_ns: int | None = None,
    max_whole_rows: int = MAX_SUSPECT_ROWS,
    max_suspect_rows: int = MAX_SUSPECT_ROWS,
) -> list[RunReport]:
    """Check the selected runs, as `verify` does."""
    plans, reports = selected.plans, list(selected.damaged)
    tasks = [
        summary_task(plan.meta, files, None, plan.meta.bound_ns if bound_ns is None else bound_ns, number)
        for number, plan in enumerate(plans)
        # Where the application pulls, sends and deliveries have different slots, so all would cross ranges.
        if not recorded_capabilities(plan.meta.order).pulled
        for files in plan.ranges
    ]
    outcomes = dict(zip(((task.run_number, task.files) for task in tasks), runner(tasks), strict=True))
    for number, plan in enumerate(plans):
        try:
            if recorded_capabilities(plan.meta.order).pulled:
                by_priority = partial(_verify_priority, runner=runner, max_suspect_rows=max_suspect_rows)
                verdicts = (_verify_whole if plan.rows <= max_whole_rows else by_priority)(plan, bound_ns)
            else:
                found = [outcomes[number, files] for files in plan.ranges]
                verdicts = _verify_summaries(plan, found, runner, bound_ns, (max_suspect_rows, max_whole_rows))
        except TraceDamaged as damage:  # found only when whole rows are read, or damaged after the summary
            verdicts = _damaged_verdict(damage)
        reports.append(RunReport(plan.folder, plan.meta.run, plan.meta.group, plan.rows, verdicts))
    return sorted(reports, key=lambda report: report.folder)


def _verify_summaries(
    plan: Layout, outcomes: Sequence[object], runner: Runner, bound_ns: int | None, limits: tuple[int, int]
) -> dict[str, Verdict]:
    looked_at_rows, whole_rows = limits
    surveys: list[RangeSummary] = []
    for outcome in outcomes:
        if isinstance(outcome, TraceDamaged):
            return _damaged_verdict(outcome)
        assert isinstance(outcome, RangeSummary)
        surveys.append(outcome)
    _require_all_members(plan, concatenated([found.events for found in surveys]))
    load, bound = partial(_load, plan), plan.meta.bound_ns if bound_ns is None else bound_ns
    grades = tuple(sorted({grade for found in surveys for grade in found.grades}))
    capabilities = recorded_capabilities(plan.meta.order)
    finals = FINAL in grades and capabilities.slotted
    if finals or not capabilities.keyed:
        if plan.rows <= whole_rows:
            return _verify_whole(plan, bound_ns)
        return verify_in_shards(RecordedRun(plan, tuple(surveys), grades, bound, load, runner, looked_at_rows))
    if len(grades) <= 1:
        return check_ranges(SummarizedRun(plan.meta, plan.logs, tuple(surveys), load, None, bound, *limits))
    verdicts: dict[str, Verdict] = {}
    for grade in grades:
        kept = summarize_ranges(plan, runner, grade, bound)
        found = check_ranges(SummarizedRun(plan.meta, plan.logs, kept, load, grade, bound, *limits))
        verdicts |= {graded_name(name, grade): verdict for name, verdict in found.items()}
    return verdicts


def _load(plan: Layout, numbers: Sequence[int]) -> Rows:
    return concatenated([part for number in numbers for part in read_range(plan.ranges[number], all_columns=True)])


def _verify_whole(plan: Layout, bound_ns: int | None) -> dict[str, Verdict]:
    rows = _load(plan, range(len(plan.ranges)))
    _require_all_members(plan, rows)
    return check_all(Trace.from_rows(rows, plan.meta, plan.logs), bound_ns=bound_ns)


def _require_all_members(plan: Layout, events: Rows) -> None:
    """Raise `TraceDamaged` if a member has no file and no CRASH row explains it."""
    silent = members_without_files(plan, frozenset(events.of_kind(EventKind.CRASH).sender.tolist()))
    if silent:
        names = ", ".join(map(str, silent))
        raise TraceDamaged(plan.folder, f"has no file of member {names}, which {META_NAME} lists")


def _verify_priority(plan: Layout, bound_ns: int | None, runner: Runner, max_suspect_rows: int) -> dict[str, Verdict]:
    bound = plan.meta.bound_ns if bound_ns is None else bound_ns
    return verify_in_windows(
        plan, runner, bound, partial(_require_all_members, plan), max_suspect_rows=max_suspect_rows
    )


def _damaged_verdict(damage: TraceDamaged) -> dict[str, Verdict]:
    return {"trace": unknown("trace", Reason.TRACE_DAMAGED, str(damage))}
