"""A run of the priority order of any length, checked from summaries of its ranges and from few rows.

What each promise needs from the other ranges:
- Total order (P1 of paper 004): a log's indices continue from range to range, and no message is delivered in two
  ranges.
- Integrity: the set of all messages sent; delivered messages outside it are checked on their own.
- FIFO: for each log, sender and priority, the first and the last delivered sequence number.
- Priority accounting (P2 of paper 004): how far each member had consumed when it received a message. While all logs
  follow one sequence of slots, a slot says that. A window of some ranges (`check.priority_windows`) then needs from
  other ranges only the receptions of its messages and the last slot of each priority. If the logs do not follow one
  sequence, the whole run is checked at once; the verdict is unknown if it is too long for that. If only logs of crashed
  or excluded members diverge, the sequence of the others is checked, and a diverging log counts up to the point where
  it diverges. This misses no violation.
- View atomicity: the messages that each member received in each view, over all ranges.
- Gap freedom: the undelivered messages, the messages at which a log diverges, and each member's last delivery.
- Latency: the sends of a window's messages.

All rows of suspect messages are gathered and checked by the checkers of a whole run, so witnesses are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from unisono.check.columns import (
    NOTHING_RECORDED,
    MemberRunId,
    dropped_rows_reason,
    excused_members,
    member_runs,
    unrecorded_sends,
    without_excused_deliveries,
)
from unisono.check.completeness import gap_freedom, integrity
from unisono.check.latency import sends_not_recorded
from unisono.check.priority import atomicity_verdict, check_same_messages, installed_views, received_by_view
from unisono.check.priority_summary import DeliverySpan, PriorityRangeSummary, union
from unisono.check.ranges import SummarizedRun, check_ranges, latency_verdict, overlapping
from unisono.check.shard_summary import LatencySummary
from unisono.check.suite import NO_BOUND, as_unbounded
from unisono.check.total_order import FIFO, total_order
from unisono.check.verdict import Doubt, MessageId, Reason, Status, Verdict, Witness, no_violation, unknown
from unisono.model.message_set import MessageOrigin as Origins
from unisono.model.message_set import MessageRef, MessageSet
from unisono.trace.schema import ABSENT, EventKind, RunMeta
from unisono.trace.table import MemberLog, Rows, Trace, concatenated

SEVERAL_GRADES = "deliveries of several grades can be checked only in a run that is read as a whole"
GAPS_NOT_CHECKED = "gaps can be checked only in a run that is read as a whole"


class ReadLimitExceeded(Exception):
    """More rows are suspect than the checker may read."""


@dataclass(frozen=True)
class PriorityRun:
    """The summaries of all ranges of one run, sorted by slot, and how to read rows."""

    meta: RunMeta
    logs: tuple[MemberLog, ...]
    summaries: tuple[PriorityRangeSummary, ...]
    load_ranges: Callable[[Sequence[int]], Rows]
    """Returns the rows of the ranges of slots with these numbers."""
    gather_rows: Callable[[MessageSet, Collection[EventKind], Sequence[int]], Rows]
    """Returns the rows of these kinds and messages in the ranges of slots with these numbers."""
    summarize_without: Callable[[Sequence[int], frozenset[MemberRunId]], Sequence[PriorityRangeSummary]]
    """Summarizes the ranges of slots with these numbers again, without the deliveries of some logs."""
    bound_ns: int | None
    max_suspect_rows: int

    @cached_property
    def member_events(self) -> Trace:
        """The member events of the run, without the rows about messages."""
        return self.with_member_events(concatenated([]))

    def with_member_events(self, rows: Rows) -> Trace:
        """A trace of some rows together with the member events of the run."""
        events = [summary.base.events for summary in self.summaries]
        return Trace.from_rows(concatenated([rows, *events]), self.meta, self.logs)

    @cached_property
    def incomplete_reason(self) -> Doubt | None:
        """Why the trace cannot show that promises were kept; None if it can."""
        return dropped_rows_reason(self.member_events) or (
            None if any(summary.base.rows for summary in self.summaries) else NOTHING_RECORDED
        )

    def clean_verdict(self, name: str) -> Verdict:
        """The verdict if no violation was found."""
        return no_violation(name, self.incomplete_reason)

    @cached_property
    def excused(self) -> set[MemberRunId]:
        """The member runs that crashed or were excluded; others need not deliver what these delivered."""
        return excused_members(self.member_events)

    @cached_property
    def delivered_by_range(self) -> tuple[MessageSet, ...]:
        """For each range of slots, the messages that some member delivered in it."""
        return tuple(summary.all_delivered() for summary in self.summaries)

    @cached_property
    def all_delivered(self) -> MessageSet:
        """All delivered messages."""
        return union(self.delivered_by_range)

    @cached_property
    def all_sent(self) -> MessageSet:
        """All sent messages."""
        return union(summary.all_sent() for summary in self.summaries)

    @cached_property
    def spans_by_run(self) -> dict[MemberRunId, list[tuple[int, DeliverySpan]]]:
        """For each log, its deliveries in each range of slots, with the number of the range."""
        found: dict[MemberRunId, list[tuple[int, DeliverySpan]]] = {}
        for number, summary in enumerate(self.summaries):
            for span in summary.spans:
                found.setdefault(span.run_id, []).append((number, span))
        return found

    @cached_property
    def interleaved_ranges(self) -> set[int]:
        """The ranges of slots between which a log alternates, or several of which have deliveries of one message."""
        found: set[int] = set()
        for spans in self.spans_by_run.values():
            across = overlapping([(number, span.first_index, span.last_index) for number, span in spans])
            if across:
                found |= set(range(min(across), max(across) + 1))
        seen = MessageSet()
        for number, delivered in enumerate(self.delivered_by_range):
            repeated = delivered & seen
            if repeated:
                first = next(at for at, other in enumerate(self.delivered_by_range) if other & repeated)
                found |= set(range(first, number + 1))
            seen = seen | delivered
        return found

    @cached_property
    def complete_logs(self) -> set[MemberRunId]:
        """The logs that have all deliveries up to their last index."""
        return {run_id for run_id, spans in self.spans_by_run.items() if not _missing_index(run_id, spans)}

    @cached_property
    def irregular_ranges(self) -> set[int]:
        """The numbers of the ranges in which, or between which, the logs do not follow one sequence of slots."""
        found = {
            number for number, summary in enumerate(self.summaries) if not summary.is_sequential
        } | self.interleaved_ranges
        for spans in self.spans_by_run.values():
            for (before, earlier), (number, later) in pairwise(spans):
                if earlier.last_slot + 1 != later.first_slot:
                    found |= set(range(before, number + 1))
        return found

    @cached_property
    def diverging_logs(self) -> dict[MemberRunId, int]:
        """The logs of crashed or excluded members that leave the common sequence, and the index at which each does."""
        return {
            run_id: min(span.first_index for number, span in spans if number in self.irregular_ranges)
            for run_id, spans in self.spans_by_run.items()
            if run_id in self.excused and any(number in self.irregular_ranges for number, _ in spans)
        }

    def without_diverging_logs(self) -> PriorityRun:
        """This run without the deliveries of diverging logs, from the first range on in which a log diverges."""
        first = min(self.irregular_ranges, default=0)
        numbers = sorted({n for run_id in self.diverging_logs for n, _ in self.spans_by_run[run_id] if n >= first})
        new_summaries = dict(zip(numbers, self.summarize_without(numbers, frozenset(self.diverging_logs)), strict=True))
        return replace(self, summaries=tuple(new_summaries.get(n, summary) for n, summary in enumerate(self.summaries)))

    def rows_of_messages(self, wanted: MessageSet, *kinds: EventKind) -> Rows:
        """All rows of these kinds and messages; raises `ReadLimitExceeded` if there are too many."""
        rows = len(wanted) * len(kinds) * len(self.logs)
        if rows > self.max_suspect_rows:
            raise ReadLimitExceeded(
                f"{len(wanted):,} suspect messages may have {rows:,} rows, but at most "
                f"{self.max_suspect_rows:,} can be checked"
            )
        if not wanted:
            return concatenated([])
        messages_with: dict[EventKind, Callable[[PriorityRangeSummary], MessageSet]] = {
            EventKind.SEND: PriorityRangeSummary.all_sent,
            EventKind.DELIVER: PriorityRangeSummary.all_delivered,
            EventKind.RECEIVE: PriorityRangeSummary.all_received,
            EventKind.QUEUE: lambda summary: summary.queued,
        }
        ranges = [
            number
            for number, summary in enumerate(self.summaries)
            if any(messages_with[kind](summary) & wanted for kind in kinds)
        ]
        return self.gather_rows(wanted, kinds, ranges)

    def load_part(self, numbers: Iterable[int], *kinds: EventKind) -> Trace:
        """The part of the run in these ranges; raises `ReadLimitExceeded` if they have too many rows."""
        chosen = sorted(numbers)
        rows = sum(self.summaries[number].base.rows for number in chosen)
        if rows > self.max_suspect_rows:
            raise ReadLimitExceeded(f"{rows:,} rows are suspect, but at most {self.max_suspect_rows:,} can be checked")
        return self.with_member_events(self.load_ranges(chosen).of_kind(*kinds))


def unknown_if_too_large(name: str, check: Callable[[], Verdict]) -> Verdict:
    """The verdict of `check`, or unknown if too many rows are suspect."""
    try:
        return check()
    except ReadLimitExceeded as error:
        return unknown(name, Reason.TOO_MUCH_SUSPECT, str(error))


def check_order(run: PriorityRun) -> dict[str, Verdict]:
    """The verdicts of `check.suite.check_all`, except priority accounting and latency."""
    summarized = SummarizedRun(run.meta, run.logs, tuple(summary.base for summary in run.summaries), run.load_ranges)
    summarized = replace(summarized, max_suspect_rows=run.max_suspect_rows, max_whole_rows=0)
    verdicts = {
        "total_order": unknown_if_too_large("total_order", lambda: _total_order(run)),
        "integrity": unknown_if_too_large("integrity", lambda: _integrity(run)),
        FIFO: check_ranges(summarized, [FIFO])[FIFO],
        "view_atomicity": unknown_if_too_large("view_atomicity", lambda: _view_atomicity(run)),
    }
    if run.meta.reliable:
        verdicts["gap_freedom"] = unknown_if_too_large("gap_freedom", lambda: _gap_freedom(run))
    else:
        verdicts["gaps_explained"] = unknown("gaps_explained", Reason.NEEDS_WHOLE_RUN, GAPS_NOT_CHECKED)
    return verdicts


def latency_in_windows(run: PriorityRun, measured: LatencySummary, unread_reason: str) -> Verdict:
    """The verdict of the check `latency`, from the latencies measured in windows.

    `unread_reason` says why no window was read; empty if they were.
    """

    def check() -> Verdict:
        if unread_reason:
            raise ReadLimitExceeded(unread_reason)
        doubt = run.incomplete_reason
        if doubt is None and run.all_delivered - run.all_sent:
            trace = run.with_member_events(
                run.rows_of_messages(run.all_delivered - run.all_sent, EventKind.SEND, EventKind.DELIVER)
            )
            doubt = sends_not_recorded(unrecorded_sends(trace, trace.deliveries(), _last_logged(run)))
        if run.bound_ns is not None:
            return latency_verdict(measured, run.bound_ns, doubt)
        return as_unbounded(latency_verdict(measured, NO_BOUND, doubt))

    return unknown_if_too_large("latency", check)


def _total_order(run: PriorityRun) -> Verdict:
    suspect = {number for number, summary in enumerate(run.summaries) if not summary.ordered} | run.interleaved_ranges
    suspect |= {number for spans in run.spans_by_run.values() for number, span in spans if not span.distinct}
    incomplete = {
        run_id: run.spans_by_run[run_id] for run_id in sorted(run.spans_by_run.keys() - run.complete_logs - run.excused)
    }
    if suspect:
        # All ranges between the positions of a misplaced message are suspect, so the suspect ranges show it.
        verdict = total_order(without_excused_deliveries(run.load_part(suspect, EventKind.DELIVER)))
        if verdict.status is Status.VIOLATED or verdict.token is Reason.INDEX_TWICE:
            return verdict
    if not incomplete:
        return run.clean_verdict("total_order")
    run_id, spans = next(iter(incomplete.items()))
    expected, follows = _missing_index(run_id, spans) or (0, 0)
    reason = (
        f"the deliveries of member {run_id[0]} are not all recorded: index {expected} is missing, {follows} follows"
    )
    return unknown("total_order", Reason.INDEX_MISSING, reason)


def _missing_index(run_id: MemberRunId, spans: Sequence[tuple[int, DeliverySpan]]) -> tuple[int, int] | None:
    """The first index that a log lacks or has twice, and the index found there; None if the log is complete."""
    ranges = union(span.indices for _, span in spans).ranges[run_id]
    if ranges[0][0] != 0:
        return 0, ranges[0][0]
    if len(ranges) > 1:
        return ranges[0][1] + 1, ranges[1][0]
    if ranges[0][1] + 1 != sum(span.count for _, span in spans):
        return ranges[0][1] + 1, ranges[0][1]
    return None


def _last_logged(run: PriorityRun) -> dict[MemberRunId, int]:
    return {origin: ranges[-1][1] for origin, ranges in run.all_sent.ranges.items()}


def _integrity(run: PriorityRun) -> Verdict:
    suspect = (run.all_delivered - run.all_sent) | union(summary.delivered_twice for summary in run.summaries)
    for run_id in sorted(run.spans_by_run):
        suspect = suspect | _in_more_than_one(summary.delivered.get(run_id, MessageSet()) for summary in run.summaries)
    if not suspect:
        return run.clean_verdict("integrity")
    return integrity(
        run.with_member_events(run.rows_of_messages(suspect, EventKind.SEND, EventKind.DELIVER)), _last_logged(run)
    )


def _in_more_than_one(sets: Iterable[MessageSet]) -> MessageSet:
    """The messages that are in more than one of the sets."""
    seen = several = MessageSet()
    for messages in sets:
        several, seen = several | (messages & seen), seen | messages
    return several


def _gap_freedom(run: PriorityRun) -> Verdict:
    accountable = {
        run_id: member_run
        for run_id, member_run in member_runs(run.member_events).items()
        if member_run.log is not None and run_id not in run.excused
    }
    binding = union(
        messages
        for summary in run.summaries
        for run_id, messages in summary.delivered.items()
        if run_id not in run.excused
    )
    doubtful = set(run.irregular_ranges)
    spans_of = {run_id: [span for _, span in run.spans_by_run.get(run_id, ())] for run_id in accountable}
    for run_id, member_run in accountable.items():
        spans = spans_of[run_id]
        begin = min((span.first_slot for span in spans), default=None)
        end = max((span.last_slot for span in spans), default=-1)
        for number, summary in enumerate(run.summaries):
            first, last = summary.base.order.first_slot, summary.base.order.last_slot
            before = begin is not None and member_run.first_slot <= last and first < begin
            after = run.bound_ns is not None and last > end
            if summary.spans and first < member_run.end_slot and (before or after):
                doubtful.add(number)
    suspect = (run.all_sent - binding) | union(run.delivered_by_range[number] for number in sorted(doubtful))
    if not suspect:
        trace = run.member_events
    else:
        # A member's last delivery, overall and of each sender and priority, decides which messages it passed.
        last_sequences: dict[tuple[MemberRunId, int, Origins], int] = {}
        for summary in run.summaries:
            for (run_id, level), messages in summary.last_delivered.items():
                for origin in messages.ranges.keys() & suspect.ranges.keys():
                    sequence = messages.ranges[origin][0][1]
                    last_sequences[run_id, level, origin] = max(
                        sequence, last_sequences.get((run_id, level, origin), sequence)
                    )
        last_messages = [
            max(spans, key=lambda span: span.last_slot).last_message for spans in spans_of.values() if spans
        ]
        context = suspect | MessageSet.of(
            [*last_messages, *(MessageRef(*origin, number) for (_, _, origin), number in last_sequences.items())]
        )
        trace = run.with_member_events(run.rows_of_messages(context, EventKind.SEND, EventKind.DELIVER))
    times = [summary.last_non_delivery_ns for summary in run.summaries]
    times += [
        span.last_ns for run_id, spans in run.spans_by_run.items() if run_id not in run.excused for _, span in spans
    ]
    verdict = gap_freedom(
        without_excused_deliveries(trace),
        until_ns=max(times, default=0),
        bound_ns=run.bound_ns,
        dense_logs=run.complete_logs,
        excused=run.excused,
    )
    if len(trace) == 0 and verdict.token is Reason.NOTHING_RECORDED:
        return run.clean_verdict(verdict.name)  # no row had to be read
    return verdict


def _view_atomicity(run: PriorityRun) -> Verdict:
    violations: list[Witness] = []

    def report(members: tuple[int, ...], text: str, messages: tuple[MessageId, ...] = ()) -> None:
        violations.append(Witness(messages, members, (), f"member {members[0]} {text}"))

    views, installed = installed_views(run.member_events, report)
    received: dict[tuple[MemberRunId, int], MessageSet] = {}
    by_view: dict[int, MessageSet] = {}
    suspect = union(summary.received_twice for summary in run.summaries)
    for summary in run.summaries:
        for (run_id, view), newly_received in summary.received.items():
            if view == ABSENT:
                continue
            mine = installed.get(run_id, {})
            first_ns, last_ns = summary.reception_times[run_id, view]
            if view not in mine or first_ns < mine[view] or last_ns > mine.get(view + 1, last_ns):
                suspect = suspect | newly_received
            others = newly_received.ranges.keys() - set(views.get(view, ()))
            suspect = suspect | MessageSet({origin: newly_received.ranges[origin] for origin in sorted(others)})
            suspect = suspect | (newly_received & received.get((run_id, view), MessageSet()))
            received[run_id, view] = received.get((run_id, view), MessageSet()) | newly_received
            by_view[view] = by_view.get(view, MessageSet()) | newly_received
    suspect = suspect | _in_more_than_one(by_view[view] for view in sorted(by_view))
    if suspect:
        received_by_view(
            run.with_member_events(run.rows_of_messages(suspect, EventKind.RECEIVE)), views, installed, report
        )
    check_same_messages(installed, received, report)
    return atomicity_verdict(violations, len(views), run.incomplete_reason)
