"""Checks long runs of orders in which members do not deliver in one sequence of slots.

These are the services without a total order, multicast to several groups, and final deliveries over a slot order.

Promises about single messages are checked by message shards (`check.message_shards`), promises about their order by
ranges of slots. In both cases one process holds at most one shard, or the suspect rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from unisono.check.causal_shards import causal_in_shards
from unisono.check.columns import MEMBER_EVENT_KINDS, dropped_rows_reason
from unisono.check.final import EARLY, FINAL, FINAL_AGREEMENT, FINAL_ORDER
from unisono.check.final_shards import final_agreement_in_ranges, final_order_in_ranges
from unisono.check.message_shards import (
    MessageShard,
    RunContext,
    ShardFinding,
    check_shards,
    max_shard_rows,
    measured_latencies,
    message_shards,
    scattered_reason,
)
from unisono.check.ranges import SummarizedRun, check_ranges, latency_verdict
from unisono.check.shard_summary import RangeSummary, last_logged_sequences
from unisono.check.suite import NO_BOUND, as_unbounded
from unisono.check.verdict import Reason, Verdict, graded_name, no_violation, unknown
from unisono.model.capabilities import recorded_capabilities
from unisono.pipeline.spark_tasks import Runner, ShardTask, shard_rows, summarize_ranges
from unisono.trace.files import Layout
from unisono.trace.schema import EventKind, TraceDamaged
from unisono.trace.table import Rows, Trace, concatenated


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A recorded run with the summaries of its ranges of slots."""

    layout: Layout
    summaries: tuple[RangeSummary, ...]
    """Summaries of the deliveries of all grades."""
    grades: tuple[str, ...]
    bound_ns: int | None
    load_ranges: Callable[[Sequence[int]], Rows]
    runner: Runner
    max_suspect_rows: int

    @property
    def has_finals(self) -> bool:
        """Whether the run has final deliveries over a slot order."""
        return recorded_capabilities(self.layout.meta.order).slotted

    @property
    def events(self) -> Rows:
        """The rows of all events that concern members rather than messages, such as joins and crashes."""
        return concatenated([survey.events for survey in self.summaries])

    def clean_verdict(self, name: str) -> Verdict:
        """The verdict of a check in which no violation was found."""
        return no_violation(
            name, dropped_rows_reason(Trace.from_rows(concatenated([]), self.layout.meta, self.layout.logs))
        )


def verify_in_shards(run: RecordedRun) -> dict[str, Verdict]:
    """Check a run by message shards and ranges of slots. The verdicts equal those of `check.suite.check_all`."""
    if not recorded_capabilities(run.layout.meta.order).total_order and len(run.grades) > 1:
        reason = f"a service without a total order has deliveries of one grade, not {' and '.join(run.grades)}"
        return {"messages": unknown("messages", Reason.GRADES_MIXED, reason)}
    # Early deliveries oblige no other member, even if no delivery became final.
    binding = FINAL if run.has_finals or EARLY in run.grades else None
    graded = run.summaries if binding is None else summarize_ranges(run.layout, run.runner, binding, run.bound_ns)
    verdicts = _check_order(run, graded, binding)
    cut = message_shards(run.summaries)
    scattered = scattered_reason(cut, run.summaries)
    if scattered:
        return verdicts | {"messages": unknown("messages", Reason.SCATTERED, scattered)}
    frame = RunContext(
        meta=run.layout.meta,
        logs=run.layout.logs,
        events=run.events.of_kind(*MEMBER_EVENT_KINDS),
        grades=run.grades,
        timed_grade=binding,
        until_ns=max(survey.last_ns for survey in (run.summaries if run.has_finals else graded)),
        last_logged=last_logged_sequences(run.summaries),
        bound_ns=run.bound_ns,
        late_after_ns=None if run.has_finals else run.bound_ns,
        checks_causal="causal" in recorded_capabilities(run.layout.meta.order).checks,
    )
    most_rows = max_shard_rows(run.summaries)
    found = _shard_findings(run, frame, cut, most_rows)
    if any(finding.too_large for finding in found):
        reason = f"the rows of messages are scattered over ranges of slots: a part of the run has over {most_rows:,}"
        return verdicts | {"messages": unknown("messages", Reason.SCATTERED, reason)}

    def rows(numbers: Collection[int]) -> Rows:
        return concatenated([shard_rows(cut[n], [run.layout.ranges[at] for at in cut[n].ranges]) for n in numbers])

    def looked_at(numbers: Collection[int]) -> Trace | None:
        if sum(found[number].rows for number in numbers) > run.max_suspect_rows:
            return None
        return frame.with_member_events(rows(numbers))

    verdicts |= check_shards(frame, found, rows, run.max_suspect_rows)
    if frame.checks_causal:
        edges = [finding.causal for finding in found if finding.causal is not None]
        verdicts["causal"] = causal_in_shards(edges, looked_at, run.clean_verdict("causal"))
    seen, doubt = measured_latencies(frame, found)
    if run.has_finals:
        verdicts[graded_name("latency", FINAL)] = as_unbounded(latency_verdict(seen, NO_BOUND, doubt))
    elif run.bound_ns is not None:
        verdicts["latency"] = latency_verdict(seen, run.bound_ns, doubt)
    return verdicts


def _shard_findings(
    run: RecordedRun, context: RunContext, shards: Sequence[MessageShard], max_rows: int
) -> list[ShardFinding]:
    plain, ranges = context.nothing_found(), run.layout.ranges
    tasks = []
    for number, shard in enumerate(shards):
        before = shards[number - 1] if context.checks_causal and number else None
        files = tuple(ranges[at] for at in shard.ranges)
        files_before = tuple(ranges[at] for at in before.ranges) if before else ()
        tasks.append(ShardTask(context, plain, shard, files, before, files_before, max_rows))
    found: list[ShardFinding] = []
    for outcome in run.runner(tasks):
        if isinstance(outcome, TraceDamaged):
            raise outcome
        assert isinstance(outcome, ShardFinding)
        found.append(outcome)
    return found


def _check_order(
    run: RecordedRun, graded_summaries: tuple[RangeSummary, ...], binding_grade: str | None
) -> dict[str, Verdict]:
    """The verdicts on the order of deliveries."""
    plan = run.layout

    def in_ranges(summaries: tuple[RangeSummary, ...], grade: str | None, only: Collection[str]) -> dict[str, Verdict]:
        found = SummarizedRun(
            plan.meta, plan.logs, summaries, run.load_ranges, grade, run.bound_ns, run.max_suspect_rows, 0
        )
        return check_ranges(found, only)

    capabilities = recorded_capabilities(plan.meta.order)
    if not capabilities.total_order:
        return in_ranges(graded_summaries, binding_grade, ["fifo"]) if "fifo" in capabilities.checks else {}
    if not run.has_finals:
        return in_ranges(graded_summaries, binding_grade, ["total_order", "fifo"])
    verdicts: dict[str, Verdict] = {}
    if EARLY in run.grades:
        early = in_ranges(summarize_ranges(plan, run.runner, EARLY, run.bound_ns), EARLY, ())
        verdicts = {graded_name(name, EARLY): verdict for name, verdict in early.items()}
    verdicts |= {graded_name("total_order", FINAL): in_ranges(graded_summaries, FINAL, ["total_order"])["total_order"]}
    skeleton = Trace.from_rows(run.events, plan.meta, plan.logs)
    until_ns = max(survey.last_ns for survey in run.summaries)
    verdicts[FINAL_ORDER] = _unknown_if_too_large(
        run, FINAL_ORDER, lambda part: final_order_in_ranges(graded_summaries, part, run.clean_verdict(FINAL_ORDER))
    )
    fine = run.clean_verdict(FINAL_AGREEMENT)
    verdicts[FINAL_AGREEMENT] = _unknown_if_too_large(
        run,
        FINAL_AGREEMENT,
        lambda part: final_agreement_in_ranges(graded_summaries, skeleton, part, fine, until_ns=until_ns),
    )
    return verdicts


def _unknown_if_too_large(
    run: RecordedRun, name: str, check: Callable[[Callable[[Iterable[int]], Trace]], Verdict]
) -> Verdict:
    """The verdict of a check that reads some ranges of slots; unknown if these have too many rows."""

    def part(numbers: Iterable[int]) -> Trace:
        chosen = sorted(numbers)
        rows = sum(run.summaries[number].rows for number in chosen)
        if rows > run.max_suspect_rows:
            raise _SuspectLimitExceeded(
                f"{rows:,} rows are suspect, but at most {run.max_suspect_rows:,} can be checked"
            )
        loaded = run.load_ranges(chosen).of_kind(EventKind.SEND, EventKind.DELIVER)
        return Trace.from_rows(concatenated([loaded, run.events]), run.layout.meta, run.layout.logs)

    try:
        return check(part)
    except _SuspectLimitExceeded as why:
        return unknown(name, Reason.TOO_MUCH_SUSPECT, str(why))


class _SuspectLimitExceeded(Exception):
    """More rows are suspect than the check may read."""
