"""View-atomic multicast (paper 004 §3.2): who goes from one view to the next has received the same messages in it.

Judged from the rows of messages with a view and the VIEW rows, which list the members with their incarnations. In the
priority order a message is received before it is queued, and consumed in any later view: there RECEIVE rows count,
elsewhere DELIVER rows. Besides the definition: one sequence of views, each message in one view only, from a member of
that view, and before the next view is installed; a member that goes on has received all that it sent in the view it
leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from unisono.check.member_runs import dropped_rows_reason, empty_trace_reason
from unisono.check.verdict import Doubt, MessageId, Reason, Status, Verdict, Witness, kept
from unisono.model.message_set import NO_MESSAGES, MessageRef, MessageSet
from unisono.model.priorities import PRIORITY_ORDERS
from unisono.trace.kinds import ABSENT, EventKind
from unisono.trace.table import Rows, Trace

NAME = "view_atomicity"
MemberRunId = tuple[int, int]
"""A member in one of its lives."""
ViewMembers = dict[int, tuple[MemberRunId, ...]]
"""Who is in which view."""
InstallTimes = dict[MemberRunId, dict[int, int]]
"""When who installed which views."""
ReportViolation = Callable[[tuple[int, ...], str, tuple[MessageId, ...]], None]


def view_atomicity(trace: Trace) -> Verdict:
    """The verdict; a witness names a message and two members."""
    faults: list[Witness] = []

    def complain(members: tuple[int, ...], text: str, messages: tuple[MessageId, ...] = ()) -> None:
        faults.append(Witness(messages, members, (), f"member {members[0]} {text}"))

    views, installed = installed_views(trace, complain)
    sets = received_by_view(trace, views, installed, complain)
    received = {
        key: MessageSet.of(MessageRef(m.sender, m.incarnation, m.sequence) for m in of) for key, of in sets.items()
    }
    check_same_messages(installed, received, complain)
    return atomicity_verdict(faults, len(views), dropped_rows_reason(trace) or empty_trace_reason(trace))


def atomicity_verdict(violations: list[Witness], views: int, incomplete_reason: Doubt | None) -> Verdict:
    """What the faults come to; `hidden` says why there could be others."""
    if violations:
        return Verdict(NAME, Status.VIOLATED, violations[0], len(violations))
    if incomplete_reason is None and not views:
        incomplete_reason = Doubt(Reason.NO_VIEWS, "no agreed view was recorded")
    return kept(NAME, incomplete_reason, {"views": views})


def check_same_messages(
    installed: InstallTimes, received: Mapping[tuple[MemberRunId, int], MessageSet], report: ReportViolation
) -> None:
    """Whoever goes from one view to the next has received what the others have that do, and what it sent itself."""
    for run_id, ids in installed.items():
        for view in ids:
            if view + 1 not in ids:
                continue
            mine = received.get((run_id, view), NO_MESSAGES)
            for other, theirs in installed.items():
                if other > run_id and view in theirs and view + 1 in theirs:
                    its = received.get((other, view), NO_MESSAGES)
                    difference = (mine - its) | (its - mine)
                    if difference:
                        lost = next(iter(difference))
                        has, lacks = (run_id, other) if lost in mine else (other, run_id)
                        text = f"received {lost} in view {view} and went on, member {lacks[0]} went on without it"
                        report((has[0], lacks[0]), text, (MessageId(*lost),))
    _check_own_messages(installed, received, report)


def _members_text(members: tuple[MemberRunId, ...]) -> str:
    return ", ".join(f"{member}:{incarnation}" for member, incarnation in members)


def _column_tuples(rows: Rows, *names: str) -> list[tuple[int, ...]]:
    return list(zip(*(getattr(rows, name).tolist() for name in names), strict=True))


def installed_views(trace: Trace, report: ReportViolation) -> tuple[ViewMembers, InstallTimes]:
    """What each view is, and by member and life when it installed which views."""
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
                f"installed view {view} with {_members_text(members)}, another member with {_members_text(views[view])}"
            )
            report((member,), text, ())
        mine = installed.setdefault((member, incarnation), {})
        if mine and view != max(mine) + 1:
            report((member,), f"installed view {view} after view {max(mine)}", ())
        mine[view] = at
        if (member, incarnation) not in members:
            report((member,), f"installed view {view}, which it is not in", ())
    return views, installed


def received_by_view(
    trace: Trace, views: ViewMembers, installed: InstallTimes, report: ReportViolation
) -> dict[tuple[MemberRunId, int], set[MessageId]]:
    """What each has received in which view; each message once, in the view that it is of, from a member of it."""
    kind = EventKind.RECEIVE if trace.meta.order in PRIORITY_ORDERS else EventKind.DELIVER
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
            report((member,), f"received {message} in view {view}, which its sender is not in", (message,))
        if where.setdefault(message, view) != view:
            report((member,), f"received {message} in view {view}, others in view {where[message]}", (message,))
        known = received.setdefault((run_id, view), set())
        if message in known:
            report((member,), f"received {message} twice", (message,))
        known.add(message)
    return received


def _check_own_messages(
    installed: InstallTimes, received: Mapping[tuple[MemberRunId, int], MessageSet], report: ReportViolation
) -> None:
    """Whoever goes on has received its own messages of the view, without gaps from its first."""
    for run_id, ids in installed.items():
        own = 0
        for view in sorted(ids):
            mine = received.get((run_id, view), NO_MESSAGES).ranges.get(run_id, ())
            count = sum(last - first + 1 for first, last in mine)
            if view + 1 in ids and mine != (((own, own + count - 1),) if count else ()):
                report((run_id[0],), f"left view {view} without some of its own messages", ())
            own += count
