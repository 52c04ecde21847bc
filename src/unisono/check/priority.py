"""Promises of the priority order (paper 004): view-atomic multicast (§3.2) and priority accounting (its property P2).

View atomicity: two members that both move from a view to the next have received the same messages in it. The check
compares RECEIVE rows in the priority order, where a message may be consumed in a later view than it was received, and
DELIVER rows in other orders. It also checks more than the definition says:
- all members install one sequence of views;
- each message belongs to one view, comes from a member of that view and arrives before the next view is installed;
- a member that moves to the next view has received all messages that it sent itself in the view it leaves.

Priority accounting: a message h overtakes every less urgent message l that no member had consumed yet. The paper states
this twice (erratum 004-6). In words: h comes before l if no process had delivered l when it received h. In equation
(1): h comes before l if every process had l in its queue when it received h. The first statement implies the second, so
the check uses the first, and a witness says whether it breaks both.

All members consume one sequence, so the messages that a member had consumed when it received h form a prefix of it.
Let R(h) be the longest of these prefixes over all members. Then P2 in words is: between R(h) and h there is no message
of lower priority. For a member that never received h, the prefix is all that it consumed. Crashed members count for
R(h), because they may have consumed l, but their own deliveries are not checked (erratum 004-5). If a member was killed
and the end of its log is lost, it is unknown how much it had consumed at its last receptions, and those messages are
not checked. If a log lacks deliveries, or a reception has no count of the messages consumed before it, the verdict is
unknown.

Runs that are too long to be read at once are checked by `check.priority_ranges`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from unisono.check.columns import (
    MemberRun,
    MemberRunId,
    dropped_rows_reason,
    empty_trace_reason,
    excused_members,
    member_runs,
)
from unisono.check.verdict import Doubt, MessageId, Position, Reason, Status, Verdict, Witness, no_violation
from unisono.model.capabilities import recorded_capabilities
from unisono.model.message_set import NO_MESSAGES, MessageRef, MessageSet
from unisono.trace.schema import ABSENT, EventKind
from unisono.trace.table import Rows, Trace

VIEW_ATOMICITY = "view_atomicity"
ViewMembers = dict[int, tuple[MemberRunId, ...]]
"""The member runs that each view lists, by the number of the view."""
InstallTimes = dict[MemberRunId, dict[int, int]]
"""When each member run installed each view: by member run, then by the number of the view."""
ReportViolation = Callable[[tuple[int, ...], str, tuple[MessageId, ...]], None]


def view_atomicity(trace: Trace) -> Verdict:
    """Check view atomicity; a witness names a message and two members."""
    violations: list[Witness] = []

    def report(members: tuple[int, ...], text: str, messages: tuple[MessageId, ...] = ()) -> None:
        violations.append(Witness(messages, members, (), f"member {members[0]} {text}"))

    views, installed = installed_views(trace, report)
    ids_by_view = received_by_view(trace, views, installed, report)
    received = {
        key: MessageSet.of(MessageRef(m.sender, m.incarnation, m.sequence) for m in ids)
        for key, ids in ids_by_view.items()
    }
    check_same_messages(installed, received, report)
    return atomicity_verdict(violations, len(views), dropped_rows_reason(trace) or empty_trace_reason(trace))


def atomicity_verdict(violations: list[Witness], views: int, incomplete_reason: Doubt | None) -> Verdict:
    """The verdict for these violations; `incomplete_reason` says why there could be more."""
    if violations:
        return Verdict(VIEW_ATOMICITY, Status.VIOLATED, violations[0], len(violations))
    if incomplete_reason is None and not views:
        incomplete_reason = Doubt(Reason.NO_VIEWS, "no agreed view was recorded")
    return no_violation(VIEW_ATOMICITY, incomplete_reason, {"views": views})


def check_same_messages(
    installed: InstallTimes, received: Mapping[tuple[MemberRunId, int], MessageSet], report: ReportViolation
) -> None:
    """Report members that moved to the next view without a message that another member received, or that they sent."""
    for run_id, own_views in installed.items():
        for view in own_views:
            if view + 1 not in own_views:
                continue
            own = received.get((run_id, view), NO_MESSAGES)
            for other, other_views in installed.items():
                if other > run_id and view in other_views and view + 1 in other_views:
                    others = received.get((other, view), NO_MESSAGES)
                    difference = (own - others) | (others - own)
                    if difference:
                        lost = next(iter(difference))
                        has, lacks = (run_id, other) if lost in own else (other, run_id)
                        text = f"received {lost} in view {view} and moved on; member {lacks[0]} moved on without it"
                        report((has[0], lacks[0]), text, (MessageId(*lost),))
    _check_own_messages(installed, received, report)


def _members_text(members: tuple[MemberRunId, ...]) -> str:
    return ", ".join(f"{member}:{incarnation}" for member, incarnation in members)


def _column_tuples(rows: Rows, *names: str) -> list[tuple[int, ...]]:
    return list(zip(*(getattr(rows, name).tolist() for name in names), strict=True))


def installed_views(trace: Trace, report: ReportViolation) -> tuple[ViewMembers, InstallTimes]:
    """The members of each view, and when each member run installed which views."""
    rows = trace.of_kind(EventKind.VIEW)
    views: ViewMembers = {}
    installed: InstallTimes = {}
    for row, (member, incarnation, view, at) in enumerate(
        _column_tuples(rows, "member", "recorder_incarnation", "view", "real_ns")
    ):
        members = rows.listed_runs(row)
        if not members:
            continue
        if views.setdefault(view, members) != members:
            text = (
                f"installed view {view} with members {_members_text(members)}; another member installed it with "
                f"{_members_text(views[view])}"
            )
            report((member,), text, ())
        mine = installed.setdefault((member, incarnation), {})
        if mine and view != max(mine) + 1:
            report((member,), f"installed view {view} after view {max(mine)}", ())
        mine[view] = at
        if (member, incarnation) not in members:
            report((member,), f"installed view {view} without being a member of it", ())
    return views, installed


def received_by_view(
    trace: Trace, views: ViewMembers, installed: InstallTimes, report: ReportViolation
) -> dict[tuple[MemberRunId, int], set[MessageId]]:
    """The messages that each member run received in each view.

    Reports messages received twice, outside their view, in two views, or from a sender that is not in the view.
    """
    kind = EventKind.RECEIVE if recorded_capabilities(trace.meta.order).pulled else EventKind.DELIVER
    rows = trace.of_kind(kind)
    rows = rows.select(rows.view != ABSENT)
    received: dict[tuple[MemberRunId, int], set[MessageId]] = {}
    where: dict[MessageId, int] = {}
    names = ("member", "recorder_incarnation", "sender", "sender_incarnation", "sequence", "view", "real_ns")
    for member, recorder_incarnation, sender, sender_incarnation, sequence, view, at in _column_tuples(rows, *names):
        run_id, message = (member, recorder_incarnation), MessageId(sender, sender_incarnation, sequence)
        mine = installed.get(run_id, {})
        if view not in mine or at < mine[view] or at > mine.get(view + 1, at):
            report((member,), f"received {message} of view {view} outside that view", (message,))
        if (sender, sender_incarnation) not in views.get(view, ()):
            report((member,), f"received {message} in view {view}, but its sender is not in that view", (message,))
        if where.setdefault(message, view) != view:
            text = f"received {message} in view {view}, but other members in view {where[message]}"
            report((member,), text, (message,))
        known = received.setdefault((run_id, view), set())
        if message in known:
            report((member,), f"received {message} twice", (message,))
        known.add(message)
    return received


def _check_own_messages(
    installed: InstallTimes, received: Mapping[tuple[MemberRunId, int], MessageSet], report: ReportViolation
) -> None:
    """Report members that moved on without some of the messages that they sent in the view."""
    for run_id, ids in installed.items():
        own = 0
        for view in sorted(ids):
            mine = received.get((run_id, view), NO_MESSAGES).ranges.get(run_id, ())
            count = sum(last - first + 1 for first, last in mine)
            if view + 1 in ids and mine != (((own, own + count - 1),) if count else ()):
                report((run_id[0],), f"left view {view} without some of its own messages", ())
            own += count


PRIORITY_ACCOUNTING = "priority_accounting"
NO_RECEPTIONS = Doubt(Reason.NO_RECEPTIONS, "deliveries were recorded, but no receptions")

_UNDELIVERED = 1 << 62


@dataclass(slots=True)
class ConsumptionLog:
    """The receptions and deliveries of one member run, by message."""

    member_run: MemberRun
    order: list[MessageId]
    is_dense: bool
    """Whether `order` has every delivery up to the last recorded one."""
    index_of: dict[MessageId, int]
    slots: list[int]
    consumed_before: dict[MessageId, int]
    """The number of messages consumed before each reception."""
    all_counted: bool
    """Whether every reception records how many messages the member had consumed before it."""
    received_step: dict[MessageId, int]
    queued_step: dict[MessageId, int]
    received_ns: dict[MessageId, int]
    """The time at which each message was received, by the same clock as the views."""
    views: list[tuple[int, tuple[int, ...]]]
    """The time and the members of each installed view."""


@dataclass(frozen=True, slots=True)
class MissedOvertaking:
    """A member delivered `overtaken` at `index`, although `urgent` should have overtaken it."""

    log: ConsumptionLog
    urgent: MessageId
    overtaken: MessageId
    index: int


def priority_accounting(trace: Trace) -> Verdict:
    """Check priority accounting (paper 004, P2) at every member that did not crash.

    The figure `overtakings` counts messages consumed directly before one that had been received earlier.
    """
    priority, first_received_ns = priorities_and_arrivals(trace)
    logs = [consumption_log(trace, member_run) for member_run in member_runs(trace).values()]
    for log in logs:
        if log.order and not log.received_step:
            return no_violation(PRIORITY_ACCOUNTING, NO_RECEPTIONS)
    for log in logs:
        if not log.is_dense or max(log.consumed_before.values(), default=0) > len(log.order):
            return no_violation(PRIORITY_ACCOUNTING, missing_deliveries_reason(log.member_run.member))
        if not log.all_counted:
            return no_violation(PRIORITY_ACCOUNTING, uncounted_reception_reason(log.member_run.member))
    firsts: list[MissedOvertaking] = []
    count = overtakings = 0
    excused = excused_members(trace)
    for log in logs:
        if (log.member_run.member, log.member_run.incarnation) in excused:
            continue
        missed, overtook = _check_member(log, logs, priority, first_received_ns)
        firsts += missed[:1]
        count += len(missed)
        overtakings += overtook
    figures = {"overtakings": overtakings}
    if firsts:
        first = min(firsts, key=lambda pair: (pair.index, pair.log.member_run.member))
        return violation_verdict(first, logs, priority, count, overtakings)
    return no_violation(PRIORITY_ACCOUNTING, dropped_rows_reason(trace), figures)


def missing_deliveries_reason(member: int) -> Doubt:
    """Why a verdict is unknown if a log lacks deliveries: a count of consumed messages does not say which they were."""
    text = f"not all deliveries of member {member} are recorded, so the number of them does not say which they were"
    return Doubt(Reason.INDEX_MISSING, text)


def uncounted_reception_reason(member: int) -> Doubt:
    """Why a verdict is unknown if a reception of this member does not say how many messages it had consumed."""
    text = f"a reception of member {member} does not say how many messages the member had delivered"
    return Doubt(Reason.LOG_NOT_WHOLE, text)


def violation_verdict(
    first: MissedOvertaking, logs: list[ConsumptionLog], priority: dict[MessageId, int], count: int, overtakings: int
) -> Verdict:
    """The verdict if `count` messages were not overtaken although they had to be; `first` is the first of them."""
    witness, both = _overtaking_witness(first, logs, priority)
    text = "breaks priority accounting (paper 004, P2) as stated in words"
    if both:
        text += " and in equation (1)"
    else:
        text += "; equation (1) does not apply, because a member had not queued the less urgent message yet"
    reason = Reason.OVERTAKEN_IN_BOTH if both else Reason.OVERTAKEN_IN_WORDS
    return Verdict(PRIORITY_ACCOUNTING, Status.VIOLATED, witness, count, text, {"overtakings": overtakings}, reason)


def priorities_and_arrivals(trace: Trace) -> tuple[dict[MessageId, int], dict[MessageId, int]]:
    """Every message's priority, and the time of its first reception at any member."""
    steps = trace.of_kind(EventKind.RECEIVE)
    priority: dict[MessageId, int] = {}
    came_ns: dict[MessageId, int] = {}
    for message, level, at in zip(message_ids(steps), steps.priority.tolist(), steps.real_ns.tolist(), strict=True):
        priority[message] = level
        came_ns[message] = min(at, came_ns.get(message, at))
    return priority, came_ns


def message_ids(rows: Rows) -> list[MessageId]:
    """The message of each row."""
    columns = (rows.sender.tolist(), rows.sender_incarnation.tolist(), rows.sequence.tolist())
    return [MessageId(*message) for message in zip(*columns, strict=True)]


def consumption_log(trace: Trace, member_run: MemberRun) -> ConsumptionLog:
    """The receptions and deliveries of this member run."""
    rows = trace.select((trace.member == member_run.member) & (trace.recorder_incarnation == member_run.incarnation))
    consumed, received = rows.of_kind(EventKind.DELIVER), rows.of_kind(EventKind.RECEIVE)
    queued, views = rows.of_kind(EventKind.QUEUE), rows.of_kind(EventKind.VIEW)
    order, received_messages = message_ids(consumed), message_ids(received)
    return ConsumptionLog(
        member_run=member_run,
        order=order,
        is_dense=consumed.index.tolist() == list(range(len(order))),
        index_of=dict(zip(order, consumed.index.tolist(), strict=True)),
        slots=consumed.slot.tolist(),
        consumed_before=dict(zip(received_messages, received.index.tolist(), strict=True)),
        all_counted=bool((received.index >= 0).all()),
        received_step=dict(zip(received_messages, received.place.tolist(), strict=True)),
        queued_step=dict(zip(message_ids(queued), queued.place.tolist(), strict=True)),
        received_ns=dict(zip(received_messages, received.real_ns.tolist(), strict=True)),
        views=[(at, views.listed(row)) for row, at in enumerate(views.real_ns.tolist()) if views.listed(row)],
    )


def _check_member(
    log: ConsumptionLog,
    logs: list[ConsumptionLog],
    priority: dict[MessageId, int],
    first_received_ns: dict[MessageId, int],
) -> tuple[list[MissedOvertaking], int]:
    """The overtakings that a member missed, and the number of those that it made."""
    prefixes = [_ConsumedPrefix(log, other) for other in logs]
    levels = np.array([priority.get(message, 0) for message in log.order], dtype=np.int64)
    missed: list[MissedOvertaking] = []
    overtook = 0
    truncated = [other for other in logs if other.member_run.crashed and other.member_run.log_truncated]
    for message in sorted(log.received_step):
        if any(_may_have_consumed(other, log, message) for other in truncated):
            continue
        own_index = log.index_of.get(message, _UNDELIVERED)
        since = max(prefix.end_at_reception(message) for prefix in prefixes)
        lower = np.flatnonzero(levels[since:own_index] < priority[message])
        if len(lower):
            at = since + int(lower[0])
            missed.append(MissedOvertaking(log, message, log.order[at], at))
        if own_index < _UNDELIVERED:
            next_messages = log.order[own_index + 1 : own_index + 2]
            overtook += sum(
                1 for other in next_messages if first_received_ns.get(other, 0) < first_received_ns[message]
            )
    return missed, overtook


def _may_have_consumed(other: ConsumptionLog, member: ConsumptionLog, message: MessageId) -> bool:
    """Whether `other`, a crashed member whose log lacks its end, may have received the message after that end.

    It cannot if its log shows that it received the message, or if `member` received the message in a view without it.
    """
    if message in other.received_step:
        return False
    last_ns = max(other.received_ns.values(), default=0)
    gone_ns = [at for at, view in member.views if at >= last_ns and other.member_run.member not in view]
    return not gone_ns or member.received_ns[message] < min(gone_ns)


class _ConsumedPrefix:
    """Maps the messages that `other` had consumed at a reception to a prefix of `member`'s deliveries."""

    def __init__(self, member: ConsumptionLog, other: ConsumptionLog) -> None:
        self._member, self._other = member, other
        there = [member.index_of.get(message, -1) + 1 for message in other.order]
        self._prefix_ends = [0, *accumulate(there, max)]

    def end_at_reception(self, message: MessageId) -> int:
        member, other = self._member, self._other
        at = member.index_of.get(message)
        if at is not None and other.member_run.first_slot > member.slots[at]:
            return 0  # `other` joined after `member` had consumed the message, so it does not count
        return self._prefix_ends[other.consumed_before.get(message, len(other.order))]


def _overtaking_witness(
    missed: MissedOvertaking, logs: list[ConsumptionLog], priority: dict[MessageId, int]
) -> tuple[Witness, bool]:
    early, late, member = missed.overtaken, missed.urgent, missed.log
    both = all(
        other.queued_step.get(early, _UNDELIVERED) < place
        and other.index_of.get(early, _UNDELIVERED) >= other.consumed_before[late]
        for other in logs
        if (place := other.received_step.get(late)) is not None
    )
    number = member.member_run.member
    positions = [Position(number, early, missed.index)]
    if late in member.index_of:
        positions.append(Position(number, late, member.index_of[late]))
    text = (
        f"member {number} delivered {early} of priority {priority.get(early, 0)} before {late} of priority "
        f"{priority[late]}, although no member had delivered {early} when it received {late}"
    )
    return Witness((early, late), (number,), tuple(positions), text), both
