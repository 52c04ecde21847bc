"""`unisono verify`: every checker over recorded runs of any size, on Spark.

One task surveys one range of slots of one run, reading the files of all its members; nothing is sorted, joined or
shuffled between tasks. The driver merges the surveys, which are small, and reads the rows of suspect ranges alone.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from unisono.check.finals import FINAL, ORDER
from unisono.check.ranges import LOOKED_AT_ROWS, Findings, check_ranges
from unisono.check.rate_compliance import Declared, declared
from unisono.check.suite import SLOT_ORDERS, check_all
from unisono.check.survey import Survey, survey
from unisono.check.verdict import Status, Verdict, overall
from unisono.model.priorities import PRIORITY_ORDERS
from unisono.pipeline.session import parallelism
from unisono.trace.files import find_groups
from unisono.trace.kinds import EventKind
from unisono.trace.layout import Layout, RangeFiles, layout, read_range, silent_members
from unisono.trace.meta import META_NAME, TraceDamaged, read_meta
from unisono.trace.table import Rows, Trace, concatenated

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TASKS_PER_CORE = 4
BETWEEN_GROUPS = frozenset({"quasi_genuine"})
"""Orders whose members deliver what is meant for them alone: their promises are about pairs of messages anywhere."""


@dataclass(frozen=True, slots=True)
class RangeTask:
    """One range of one run, to be surveyed."""

    run: int
    files: RangeFiles
    grade: str | None
    bound_ns: int | None
    promised: Declared | None


Outcome = Survey | TraceDamaged
Runner = Callable[[Sequence[RangeTask]], list[Outcome]]
"""Surveys ranges; the outcomes in the order of the tasks."""


@dataclass(frozen=True, slots=True)
class RunReport:
    """What was found of one run of one group."""

    folder: str
    run: str
    group: str
    rows: int
    verdicts: dict[str, Verdict] = field(default_factory=dict)

    @property
    def status(self) -> Status:
        """Of the run as a whole."""
        return overall(self.verdicts)


def survey_task(task: RangeTask) -> Outcome:
    """Read one range and survey it; damage is an outcome, not a failure of the task."""
    try:
        parts = read_range(task.files)
    except TraceDamaged as damage:
        return damage
    slots = task.files.first_slot, task.files.last_slot
    return survey(parts, *slots, grade=task.grade, bound_ns=task.bound_ns, promised=task.promised)


def in_process(tasks: Sequence[RangeTask]) -> list[Outcome]:
    """The runner without Spark: one range after the other."""
    return [survey_task(task) for task in tasks]


def on_spark(session: SparkSession, tasks: Sequence[RangeTask]) -> list[Outcome]:
    """The runner on Spark. Large and small ranges are dealt out so that tasks are alike in size."""
    if not tasks:
        return []
    count = min(len(tasks), parallelism(session) * _TASKS_PER_CORE)
    by_size = sorted(range(len(tasks)), key=lambda number: -tasks[number].files.rows)
    hands = [[(number, tasks[number]) for number in by_size[first::count]] for first in range(count)]
    frame = session.range(0, count, 1, numPartitions=count).mapInArrow(
        partial(_survey_hands, hands), "number long, outcome binary"
    )
    found: dict[int, Outcome] = {}
    for row in frame.collect():
        found[row["number"]] = pickle.loads(bytes(row["outcome"]))
    return [found[number] for number in range(len(tasks))]


def _survey_hands(hands: Sequence[Sequence[tuple[int, RangeTask]]], batches: Iterable[Any]) -> Iterator[Any]:
    for batch in batches:
        for hand in batch.column("id").to_pylist():
            for number, task in hands[hand]:
                outcome = pickle.dumps(survey_task(task), protocol=pickle.HIGHEST_PROTOCOL)
                yield pa.RecordBatch.from_pydict(
                    {"number": pa.array([number], pa.int64()), "outcome": pa.array([outcome], pa.binary())}
                )


def verify(
    path: str | Path,
    runner: Runner = in_process,
    *,
    bound_ns: int | None = None,
    run: str | None = None,
    group: str | None = None,
    since_ns: int | None = None,
    until_ns: int | None = None,
) -> list[RunReport]:
    """A report for each run of each group at or below `path`.

    Of others than `run` and `group` no file is opened; of runs in which nothing happened between `since_ns` and
    `until_ns`, no more than the footers of files is read.
    """
    reports: list[RunReport] = []
    plans: list[Layout] = []
    for folder in find_groups(path):
        try:
            meta = read_meta(folder / META_NAME)
            if run not in (None, meta.run) or group not in (None, meta.group):
                continue
            plan = layout(folder)
            if plan.within(since_ns, until_ns):
                plans.append(plan)
        except TraceDamaged as damage:
            reports.append(RunReport(str(folder), "", "", 0, _unknown(damage)))
    if not plans and not reports:
        when = "" if since_ns is None and until_ns is None else " in that time"
        raise TraceDamaged(path, f"has no run {run or ''} of a group {group or ''}{when}")
    tasks = [
        RangeTask(number, files, None, plan.meta.bound_ns if bound_ns is None else bound_ns, declared(plan.meta))
        for number, plan in enumerate(plans)
        for files in plan.ranges
    ]
    outcomes = dict(zip(((task.run, task.files) for task in tasks), runner(tasks), strict=True))
    for number, plan in enumerate(plans):
        surveyed = [outcomes[number, files] for files in plan.ranges]
        try:
            verdicts = _verdicts(plan, surveyed, runner, bound_ns)
        except TraceDamaged as damage:  # found only when whole rows were read, or since the survey
            verdicts = _unknown(damage)
        reports.append(RunReport(plan.folder, plan.meta.run, plan.meta.group, plan.rows, verdicts))
    return sorted(reports, key=lambda report: report.folder)


def _verdicts(plan: Layout, outcomes: Sequence[Outcome], runner: Runner, bound_ns: int | None) -> dict[str, Verdict]:
    surveys: list[Survey] = []
    for outcome in outcomes:
        if isinstance(outcome, TraceDamaged):
            return _unknown(outcome)
        surveys.append(outcome)
    crashed = frozenset(member for found in surveys for member in found.events.of_kind(EventKind.CRASH).sender.tolist())
    silent = silent_members(plan, crashed)
    if silent:
        names = ", ".join(map(str, silent))
        return _unknown(TraceDamaged(plan.folder, f"no file of member {names}, which {META_NAME} names"))

    def load(numbers: Sequence[int]) -> Rows:
        return concatenated([part for number in numbers for part in read_range(plan.ranges[number], whole=True)])

    bound = plan.meta.bound_ns if bound_ns is None else bound_ns
    if plan.meta.order in PRIORITY_ORDERS or plan.meta.order in BETWEEN_GROUPS:
        return _judged_whole(plan, load, bound)
    grades = sorted({grade for found in surveys for grade in found.grades})
    if FINAL in grades and plan.meta.order in SLOT_ORDERS:
        return _judged_whole(plan, load, bound)
    if len(grades) <= 1:
        return check_ranges(Findings(plan.meta, plan.logs, tuple(surveys), load, bound_ns=bound))
    verdicts: dict[str, Verdict] = {}
    for grade in grades:
        kept: list[Survey] = []
        for outcome in runner([RangeTask(0, files, grade, bound, declared(plan.meta)) for files in plan.ranges]):
            if isinstance(outcome, TraceDamaged):
                raise outcome
            kept.append(outcome)
        found = check_ranges(Findings(plan.meta, plan.logs, tuple(kept), load, grade, bound))
        verdicts |= {f"{name}[{grade}]": verdict for name, verdict in found.items()}
    return verdicts


def _judged_whole(plan: Layout, load: Callable[[Sequence[int]], Rows], bound_ns: int | None) -> dict[str, Verdict]:
    """A run whose promises are about pairs of messages anywhere in it: it is read as one, up to a size."""
    if plan.rows > LOOKED_AT_ROWS:
        name = "priority_accounting" if plan.meta.order in PRIORITY_ORDERS else ORDER
        name = "total_order" if plan.meta.order in BETWEEN_GROUPS else name
        reason = f"{name} reads a run as a whole: {LOOKED_AT_ROWS:,} rows at most, not {plan.rows:,}"
        return {name: Verdict(name, Status.UNKNOWN, reason=reason)}
    rows = load(range(len(plan.ranges)))
    return check_all(Trace.from_rows(rows, plan.meta, plan.logs), bound_ns=bound_ns)


def _unknown(damage: TraceDamaged) -> dict[str, Verdict]:
    return {"trace": Verdict("trace", Status.UNKNOWN, reason=str(damage))}
