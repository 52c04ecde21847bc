"""Priority accounting and latency of a long run, from its windows (`check.priority_windows`).

If all members consumed one sequence of slots, the windows decide everything except two cases: messages that no member
delivered, and messages that a member received but did not deliver before it ended. In these cases the member must not
have delivered a less urgent message between two known slots. The summaries of the ranges show whether it did, or which
range must be read to find out.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from unisono.check.columns import MemberRunId, member_runs
from unisono.check.priority import (
    NO_RECEPTIONS,
    PRIORITY_ACCOUNTING,
    MissedOvertaking,
    consumption_log,
    message_ids,
    missing_deliveries_reason,
    priorities_and_arrivals,
    priority_accounting,
    uncounted_reception_reason,
    violation_verdict,
)
from unisono.check.priority_ranges import (
    SEVERAL_GRADES,
    PriorityRun,
    ReadLimitExceeded,
    check_order,
    latency_in_windows,
    unknown_if_too_large,
)
from unisono.check.priority_summary import (
    NO_RECEPTION_SUMMARY,
    ReceptionSummary,
    in_logs,
    rows_by_run,
    union,
)
from unisono.check.priority_windows import (
    AFTER_ALL_SLOTS,
    BrokenConstraints,
    LogFacts,
    OvertakingConstraint,
    WindowFinding,
)
from unisono.check.shard_summary import LatencySummary
from unisono.check.suite import SOME_UNGRADED
from unisono.check.verdict import Doubt, MessageId, Reason, Status, Verdict, no_violation, unknown
from unisono.model.message_set import MessageRef, MessageSet
from unisono.trace.schema import EventKind
from unisono.trace.table import Rows

WINDOW_ROWS = 500_000
"""A window has at most this many rows, unless it is a single range."""
MAX_REREAD_FACTOR = 8
"""All windows together may read this many times the rows of the run."""


@dataclass(frozen=True, slots=True)
class PriorityWindow:
    """One window: the messages that were delivered in some neighbouring ranges, and the ranges that have their rows.

    `last_slots_by_priority` has the last slot before the window with a delivery of each priority.
    """

    delivery_ranges: tuple[int, ...]
    reception_ranges: tuple[int, ...]
    send_ranges: tuple[int, ...]
    messages: MessageSet
    last_slots_by_priority: Mapping[int, int]


def plan_windows(
    run: PriorityRun, sequential_run: PriorityRun, window_rows: int, max_reread_factor: int
) -> list[PriorityWindow]:
    """Divide the run into windows of neighbouring ranges of slots, such that every delivery is in exactly one window.

    `sequential_run` is the run without diverging logs. Raises `ReadLimitExceeded` if the rows of single messages are
    spread over too many ranges.
    """
    range_groups: list[list[int]] = []
    rows = window_rows
    for number, summary in enumerate(run.summaries):
        if not summary.spans:
            continue
        rows += summary.base.rows
        if rows > window_rows:
            range_groups.append([])
            rows = summary.base.rows
        range_groups[-1].append(number)
    received = [summary.all_received() for summary in run.summaries]
    sent = [summary.all_sent() for summary in run.summaries]
    found: list[PriorityWindow] = []
    last_slots: dict[int, int] = {}
    for ranges in range_groups:
        messages = union(run.delivered_by_range[number] for number in ranges)
        reception_ranges = tuple(number for number, of in enumerate(received) if of & messages)
        send_ranges = tuple(number for number, of in enumerate(sent) if of & messages)
        found.append(PriorityWindow(tuple(ranges), reception_ranges, send_ranges, messages, dict(last_slots)))
        for number in ranges:
            for level, (_, last) in sequential_run.summaries[number].slot_spans_by_priority.items():
                last_slots[level] = max(last, last_slots.get(level, last))
    read = sum(
        run.summaries[n].base.rows
        for one in found
        for n in {*one.delivery_ranges, *one.reception_ranges, *one.send_ranges}
    )
    rows = sum(summary.base.rows for summary in run.summaries)
    if read > max_reread_factor * rows:
        raise ReadLimitExceeded(
            f"the rows of messages are scattered over ranges of slots: to check {rows:,} rows means to read {read:,}"
        )
    return found


def log_facts(run: PriorityRun) -> tuple[LogFacts, ...] | Doubt:
    """What the check of a window must know about each member's log, or the reason why no window can be checked."""
    known = member_runs(run.member_events)
    receptions: dict[MemberRunId, ReceptionSummary] = {}
    for summary in run.summaries:
        for run_id, of in summary.receptions.items():
            receptions[run_id] = of.merged(receptions.get(run_id, NO_RECEPTION_SUMMARY))
    counts = {run_id: sum(line.count for _, line in lines) for run_id, lines in run.spans_by_run.items()}
    if any(run_id not in receptions for run_id in run.spans_by_run):
        return NO_RECEPTIONS
    for run_id in known:
        lacking = run_id in run.spans_by_run and run_id not in run.complete_logs
        if lacking or receptions.get(run_id, NO_RECEPTION_SUMMARY).max_consumed > counts.get(run_id, 0):
            return missing_deliveries_reason(run_id[0])
        if not receptions.get(run_id, NO_RECEPTION_SUMMARY).all_counted:
            return uncounted_reception_reason(run_id[0])
    truncated = [run_id for run_id, member_run in known.items() if member_run.crashed and member_run.log_truncated]
    views = dict(rows_by_run(run.member_events.of_kind(EventKind.VIEW)))
    facts = []
    for run_id, member_run in known.items():
        begin = run.spans_by_run[run_id][0][1].first_slot if run_id in run.spans_by_run else 0
        excluded_since_ns = {
            other: _removed_from_view_ns(
                views.get(run_id), other[0], receptions.get(other, NO_RECEPTION_SUMMARY).last_ns
            )
            for other in truncated
        }
        end = begin + counts.get(run_id, 0)
        regular = run.diverging_logs.get(run_id, end - begin)
        facts.append(
            LogFacts(run_id, member_run.first_slot, begin, end, run_id not in run.excused, regular, excluded_since_ns)
        )
    return tuple(facts)


def _removed_from_view_ns(views: Rows | None, member: int, last_ns: int) -> int:
    """The first time from `last_ns` on at which a view without `member` was installed."""
    if views is None:
        return AFTER_ALL_SLOTS
    noted = [(at, views.listed(row)) for row, at in enumerate(views.real_ns.tolist())]
    return min(
        (at for at, listed in noted if listed and at >= last_ns and member not in listed), default=AFTER_ALL_SLOTS
    )


def _check_whole_run(run: PriorityRun) -> Verdict:
    """Check the whole run at once, because the logs do not follow one sequence; unknown if it is too long."""

    def check() -> Verdict:
        numbers = [number for number, summary in enumerate(run.summaries) if summary.has_steps()]
        kinds = (EventKind.DELIVER, EventKind.RECEIVE, EventKind.QUEUE)
        try:
            return priority_accounting(run.load_part(numbers, *kinds))
        except ReadLimitExceeded as error:
            raise ReadLimitExceeded(
                f"the members' logs do not follow one sequence, so the whole run must be read at once, but {error}"
            ) from error

    return unknown_if_too_large(PRIORITY_ACCOUNTING, check)


def _check_in_windows(run: PriorityRun, facts: Sequence[LogFacts], findings: Sequence[WindowFinding]) -> Verdict:
    """The verdict of the check `priority_accounting`, from the findings of all windows."""

    def check() -> Verdict:
        violations = _PriorityViolations(run, facts)
        for finding in findings:
            for broken in finding.broken.values():
                violations.add(broken)
            for constraint in finding.undecided:
                violations.add_if_broken(constraint)
        violations.add_undelivered()
        return violations.verdict(_overtakings(findings))

    return unknown_if_too_large(PRIORITY_ACCOUNTING, check)


def _overtakings(findings: Sequence[WindowFinding]) -> int:
    total = sum(finding.overtakings for finding in findings)
    edges = [finding for finding in findings if finding.first_edge and finding.last_edge]
    for before, after in pairwise(edges):
        if (
            before.last_edge
            and after.first_edge
            and after.first_edge.first_received_ns < before.last_edge.first_received_ns
        ):
            total += len(before.last_edge.continuing_runs)
    return total


class _PriorityViolations:
    """Collects the overtaking constraints that members broke, over all windows of a run."""

    def __init__(self, run: PriorityRun, facts: Sequence[LogFacts]) -> None:
        self._run = run
        self._facts = {log.run_id: log for log in facts}
        self._broken_by_run: dict[MemberRunId, BrokenConstraints] = {}
        self._cached_range: tuple[int, Rows] | None = None
        self._slot_spans_by_priority: dict[int, tuple[list[int], list[tuple[int, int]]]] = {}
        """For each priority, the ranges with deliveries of it, and the first and last slot in each."""
        for number, summary in enumerate(run.summaries):
            for level, span in summary.slot_spans_by_priority.items():
                numbers, spans = self._slot_spans_by_priority.setdefault(level, ([], []))
                numbers.append(number)
                spans.append(span)

    def add(self, broken: BrokenConstraints) -> None:
        """Add broken constraints of one member."""
        known = self._broken_by_run.get(broken.first.run_id)
        if known is not None:
            first = min(known.first, broken.first, key=lambda pair: pair.urgent)
            broken = BrokenConstraints(known.count + broken.count, first)
        self._broken_by_run[broken.first.run_id] = broken

    def add_if_broken(self, constraint: OvertakingConstraint) -> None:
        """Add an overtaking constraint if a member broke it."""
        if self._has_lower(constraint):
            self.add(BrokenConstraints(1, constraint))

    def add_undelivered(self) -> None:
        """Add the broken constraints of messages that some member received and no member delivered."""
        undelivered = union(summary.all_received() for summary in self._run.summaries) - self._run.all_delivered
        trace = self._run.with_member_events(self._run.rows_of_messages(undelivered, EventKind.RECEIVE))
        priority, _ = priorities_and_arrivals(trace)
        logs = {run_id: consumption_log(trace, member_run) for run_id, member_run in member_runs(trace).items()}
        others = sorted(self._facts.values(), key=lambda other: other.begin_slot)
        begins = [other.begin_slot for other in others]
        consumed_slots: dict[MessageId, list[int]] = {}
        for message in priority:
            consumed_counts = [
                logs[other.run_id].consumed_before.get(message, other.end_slot - other.begin_slot) for other in others
            ]
            slots = (
                other.slot_after_consuming(consumed) for other, consumed in zip(others, consumed_counts, strict=True)
            )
            consumed_slots[message] = list(accumulate(slots, max))
        for run_id, log in self._facts.items():
            if not log.is_accountable or log.begin_slot == log.end_slot:
                continue
            for message in sorted(logs[run_id].received_step):
                if all(
                    message in logs[other].received_step or logs[run_id].received_ns[message] >= since
                    for other, since in log.excluded_since_ns.items()
                ):
                    # Members that consumed no message of this log do not count.
                    since = max(log.begin_slot, consumed_slots[message][bisect_left(begins, log.end_slot) - 1])
                    self.add_if_broken(OvertakingConstraint(run_id, message, priority[message], since, log.end_slot))

    def _next_range_with_lower(self, first_slot: int, priority: int) -> tuple[int, list[tuple[int, int]]]:
        """The first range from `first_slot` on with messages below `priority`, and their slots for each priority."""
        ahead = [
            (numbers[at], spans[at])
            for level, (numbers, spans) in self._slot_spans_by_priority.items()
            if level < priority and (at := bisect_left(spans, first_slot, key=lambda span: span[1])) < len(spans)
        ]
        nearest = min((number for number, _ in ahead), default=-1)
        return nearest, [span for number, span in ahead if number == nearest]

    def _has_lower(self, constraint: OvertakingConstraint) -> bool:
        """Whether a less urgent message breaks the constraint. Reads rows only if the summaries cannot decide."""
        _, spans = self._next_range_with_lower(constraint.since_slot, constraint.priority)
        if any(constraint.since_slot <= slot < constraint.end_slot for span in spans for slot in span):
            return True
        unclear = any(first < constraint.since_slot for first, _ in spans)
        return unclear and self._first_lower_slot(constraint.since_slot, constraint.priority) < constraint.end_slot

    def _first_lower_slot(self, first_slot: int, priority: int) -> int:
        """The first slot from `first_slot` on with a message less urgent than `priority`."""
        number, spans = self._next_range_with_lower(first_slot, priority)
        if any(first < first_slot for first, _ in spans):
            rows = self._deliveries(number)
            return int(rows.slot[(rows.slot >= first_slot) & (rows.priority < priority)].min())
        return min((first for first, _ in spans), default=AFTER_ALL_SLOTS)

    def _deliveries(self, number: int) -> Rows:
        if self._cached_range is None or self._cached_range[0] != number:
            rows = self._run.load_ranges([number]).of_kind(EventKind.DELIVER)
            for run_id, log in self._facts.items():
                rows = rows.select(~(in_logs(rows, [run_id]) & (rows.index >= log.regular_deliveries)))
            self._cached_range = number, rows
        return self._cached_range[1]

    def _message_in_slot(self, slot: int) -> MessageId:
        """The message that was delivered in a slot; in the priority order a slot has one message."""
        for number, summary in enumerate(self._run.summaries):
            if summary.spans and summary.base.first_slot <= slot <= summary.base.last_slot:
                rows = self._deliveries(number)
                return message_ids(rows.select(rows.slot == slot))[0]
        raise ValueError(f"nothing was delivered in slot {slot}")

    def verdict(self, overtakings: int) -> Verdict:
        """The verdict for all violations added so far."""
        if not self._broken_by_run:
            return no_violation(PRIORITY_ACCOUNTING, self._run.incomplete_reason, {"overtakings": overtakings})
        firsts = []
        for run_id in sorted(self._broken_by_run):
            constraint, log = self._broken_by_run[run_id].first, self._facts[run_id]
            slot = self._first_lower_slot(constraint.since_slot, constraint.priority)
            firsts.append((slot - log.begin_slot, run_id[0], slot, constraint))
        at, _, slot, constraint = min(firsts, key=lambda first: first[:2])
        early = self._message_in_slot(slot)
        wanted = MessageSet.of(MessageRef(m.sender, m.incarnation, m.sequence) for m in (early, constraint.urgent))
        kinds = (EventKind.DELIVER, EventKind.RECEIVE, EventKind.QUEUE)
        trace = self._run.with_member_events(self._run.rows_of_messages(wanted, *kinds))
        logs = {run_id: consumption_log(trace, member_run) for run_id, member_run in member_runs(trace).items()}
        first = MissedOvertaking(logs[constraint.run_id], constraint.urgent, early, at)
        count = sum(broken.count for broken in self._broken_by_run.values())
        return violation_verdict(first, list(logs.values()), priorities_and_arrivals(trace)[0], count, overtakings)


def _accounting_verdict(
    run: PriorityRun,
    sequential_run: PriorityRun,
    facts: tuple[LogFacts, ...] | Doubt,
    findings: Sequence[WindowFinding],
    unread_reason: str,
) -> Verdict:
    """The verdict of `priority_accounting`: from the windows if they can decide it, else from the whole run.

    `unread_reason` says why no window was read.
    """
    if isinstance(facts, Doubt):
        return no_violation(PRIORITY_ACCOUNTING, facts)
    if sequential_run.irregular_ranges or any(finding.unknown_reason for finding in findings):
        return _check_whole_run(run)
    if unread_reason:
        return unknown(PRIORITY_ACCOUNTING, Reason.TOO_MUCH_SUSPECT, unread_reason)
    verdict = _check_in_windows(sequential_run, facts, findings)
    # For a diverging log the windows count less than it consumed. So they can show that P2 was kept, but not violated.
    return _check_whole_run(run) if verdict.status is Status.VIOLATED and run.diverging_logs else verdict


CheckWindows = Callable[[Sequence[PriorityWindow], tuple[LogFacts, ...] | None], Sequence[WindowFinding]]
"""A function that checks windows with `check_window`; without facts about the logs it only measures latencies."""


def check_priority(
    run: PriorityRun,
    check_windows: CheckWindows,
    *,
    window_rows: int = WINDOW_ROWS,
    max_reread_factor: int = MAX_REREAD_FACTOR,
) -> dict[str, Verdict]:
    """One verdict per promise, the same as `check.suite.check_all` returns for the whole run."""
    grades = {grade for summary in run.summaries for grade in summary.base.grades}
    if grades and any(summary.has_ungraded for summary in run.summaries):
        return {"grades": SOME_UNGRADED}
    if len(grades) > 1:
        return {"grades": unknown("grades", Reason.GRADES_MIXED, SEVERAL_GRADES)}
    verdicts = check_order(run)
    facts = log_facts(run)
    sequential_run = run.without_diverging_logs() if run.diverging_logs else run
    findings: Sequence[WindowFinding] = ()
    unread_reason = ""
    try:
        windows = plan_windows(run, sequential_run, window_rows, max_reread_factor)
        findings = check_windows(
            windows, None if isinstance(facts, Doubt) or sequential_run.irregular_ranges else facts
        )
    except ReadLimitExceeded as error:
        unread_reason = str(error)
    latencies = LatencySummary()
    for finding in findings:
        latencies.merge(finding.latencies)
    verdicts[PRIORITY_ACCOUNTING] = _accounting_verdict(run, sequential_run, facts, findings, unread_reason)
    verdicts["latency"] = latency_in_windows(run, latencies, unread_reason)
    return verdicts
