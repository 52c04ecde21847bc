"""Priority accounting (paper 004, P2): a message overtakes every less urgent one that nobody had consumed yet.

The paper says it twice (erratum 004-6). In words: if l was delivered at no process when h was received there, h comes
before l. In equation (1): if l was queued at every process when h was received there, h comes before l. Whoever
satisfies the first satisfies the second, so pairs are judged by the first, and a witness says whether it breaks both.

All members consume one sequence, so the messages that a member had consumed when it received h are those before some
place in it. With R(h) the latest of these places, P2 in words is: from R(h) up to h there is nothing of lower priority.
A member that never received h had consumed what it consumed in all. Crashed members count in the premise, since l may
have been consumed there, and not in the conclusion (erratum 004-5). Where a member was killed and the end of its log is
lost, nobody knows what it had consumed when it received its last messages: these are not judged. Where a log lacks
deliveries, a number of messages consumed does not say which, and where a reception has no number it says nothing: then
nothing is known.

A run that is too long for one place is judged by `check.priority_ranges`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from unisono.check.member_runs import MemberRun, dropped_rows_reason, excused_members, member_runs
from unisono.check.verdict import Doubt, MessageId, Position, Reason, Status, Verdict, Witness, kept
from unisono.trace.kinds import EventKind
from unisono.trace.table import Rows, Trace

NAME = "priority_accounting"
NO_RECEPTIONS = Doubt(Reason.NO_RECEPTIONS, "deliveries were recorded, but no receptions")

_UNDELIVERED = 1 << 62


@dataclass(slots=True)
class ConsumptionLog:
    """What one member's log says, by message."""

    member_run: MemberRun
    order: list[MessageId]
    is_dense: bool
    """Whether the order has all that was delivered, as far as it goes."""
    index_of: dict[MessageId, int]
    slots: list[int]
    consumed_before: dict[MessageId, int]
    """How many messages it had consumed when it received this one."""
    all_counted: bool
    """Whether every reception says that."""
    received_step: dict[MessageId, int]
    queued_step: dict[MessageId, int]
    received_ns: dict[MessageId, int]
    """When it received a message, by the same clock as its views."""
    views: list[tuple[int, tuple[int, ...]]]
    """When it installed a view, and with whom."""


@dataclass(frozen=True, slots=True)
class MissedOvertaking:
    """A member delivered a message at an index though a later one should have overtaken it."""

    log: ConsumptionLog
    urgent: MessageId
    overtaken: MessageId
    index: int


def priority_accounting(trace: Trace) -> Verdict:
    """Judge P2 at every member that has not crashed.

    `overtakings` counts how often a message was consumed just before one that had been received earlier.
    """
    priority, came_ns = priorities_and_arrivals(trace)
    members = [consumption_log(trace, member_run) for member_run in member_runs(trace).values()]
    for member in members:
        if member.order and not member.received_step:
            return kept(NAME, NO_RECEPTIONS)
    for member in members:
        if not member.is_dense or max(member.consumed_before.values(), default=0) > len(member.order):
            return kept(NAME, missing_deliveries_reason(member.member_run.member))
        if not member.all_counted:
            return kept(NAME, uncounted_reception_reason(member.member_run.member))
    found: list[MissedOvertaking] = []
    count = overtakings = 0
    doubtful = excused_members(trace)
    for member in members:
        if (member.member_run.member, member.member_run.incarnation) in doubtful:
            continue
        broken, overtook = _check_member(member, members, priority, came_ns)
        found += broken[:1]
        count += len(broken)
        overtakings += overtook
    figures = {"overtakings": overtakings}
    if found:
        first = min(found, key=lambda pair: (pair.index, pair.log.member_run.member))
        return violation_verdict(first, members, priority, count, overtakings)
    return kept(NAME, dropped_rows_reason(trace), figures)


def missing_deliveries_reason(member: int) -> Doubt:
    """Why nothing is known: what a member had consumed is told by a number, which counts what its log has."""
    text = f"the deliveries of member {member} are not all recorded, so a number of them does not say which they are"
    return Doubt(Reason.INDEX_MISSING, text)


def uncounted_reception_reason(member: int) -> Doubt:
    """Why nothing is known where a reception has no index."""
    text = f"a reception of member {member} does not say how many messages it had delivered"
    return Doubt(Reason.LOG_NOT_WHOLE, text)


def violation_verdict(
    first: MissedOvertaking, logs: list[ConsumptionLog], priority: dict[MessageId, int], count: int, overtakings: int
) -> Verdict:
    """What `count` broken pairs come to, of which this is the first."""
    witness, both = _witness(first, logs, priority)
    text = "in words and by equation (1)" if both else "in words; by equation (1) the message was not queued yet"
    reason = Reason.OVERTAKEN_IN_BOTH if both else Reason.OVERTAKEN_IN_WORDS
    return Verdict(NAME, Status.VIOLATED, witness, count, text, {"overtakings": overtakings}, reason)


def priorities_and_arrivals(trace: Trace) -> tuple[dict[MessageId, int], dict[MessageId, int]]:
    """Every message's priority, and when it was first received anywhere."""
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
    """What the log of this life says."""
    rows = trace.select((trace.member == member_run.member) & (trace.recorder_incarnation == member_run.incarnation))
    consumed, received = rows.of_kind(EventKind.DELIVER), rows.of_kind(EventKind.RECEIVE)
    queued, views = rows.of_kind(EventKind.QUEUE), rows.of_kind(EventKind.VIEW)
    order, came = message_ids(consumed), message_ids(received)
    return ConsumptionLog(
        member_run=member_run,
        order=order,
        is_dense=consumed.index.tolist() == list(range(len(order))),
        index_of=dict(zip(order, consumed.index.tolist(), strict=True)),
        slots=consumed.slot.tolist(),
        consumed_before=dict(zip(came, received.index.tolist(), strict=True)),
        all_counted=bool((received.index >= 0).all()),
        received_step=dict(zip(came, received.place.tolist(), strict=True)),
        queued_step=dict(zip(message_ids(queued), queued.place.tolist(), strict=True)),
        received_ns=dict(zip(came, received.real_ns.tolist(), strict=True)),
        views=[(at, views.listed(row)) for row, at in enumerate(views.real_ns.tolist()) if views.listed(row)],
    )


def _check_member(
    log: ConsumptionLog,
    logs: list[ConsumptionLog],
    priority: dict[MessageId, int],
    first_received_ns: dict[MessageId, int],
) -> tuple[list[MissedOvertaking], int]:
    """What a member consumed too early, and its overtakings."""
    reaches = [_ConsumedPrefix(log, other) for other in logs]
    levels = np.array([priority.get(message, 0) for message in log.order], dtype=np.int64)
    broken: list[MissedOvertaking] = []
    overtook = 0
    unread = [other for other in logs if other.member_run.crashed and other.member_run.log_truncated]
    for message in sorted(log.received_step):
        if any(_may_have_consumed(other, log, message) for other in unread):
            continue
        here = log.index_of.get(message, _UNDELIVERED)
        since = max(reach.end_at_reception(message) for reach in reaches)
        lower = np.flatnonzero(levels[since:here] < priority[message])
        if len(lower):
            at = since + int(lower[0])
            broken.append(MissedOvertaking(log, message, log.order[at], at))
        if here < _UNDELIVERED:
            behind = log.order[here + 1 : here + 2]
            overtook += sum(1 for other in behind if first_received_ns.get(other, 0) < first_received_ns[message])
    return broken, overtook


def _may_have_consumed(other: ConsumptionLog, member: ConsumptionLog, message: MessageId) -> bool:
    """Whether a crashed member, whose log lacks its end, may have received the message after what the log shows.

    It may, unless the message came to `member` in a view without it.
    """
    if message in other.received_step:
        return False
    last_ns = max(other.received_ns.values(), default=0)
    gone_ns = [at for at, view in member.views if at >= last_ns and other.member_run.member not in view]
    return not gone_ns or member.received_ns[message] < min(gone_ns)


class _ConsumedPrefix:
    """Up to which index of one member lies what another had consumed when it received a message."""

    def __init__(self, member: ConsumptionLog, other: ConsumptionLog) -> None:
        self._member, self._other = member, other
        there = [member.index_of.get(message, -1) + 1 for message in other.order]
        self._prefix_ends = [0, *accumulate(there, max)]

    def end_at_reception(self, message: MessageId) -> int:
        member, other = self._member, self._other
        at = member.index_of.get(message)
        if at is not None and other.member_run.first_slot > member.slots[at]:
            return 0  # it came when the message had been consumed: nothing of this is its concern
        return self._prefix_ends[other.consumed_before.get(message, len(other.order))]


def _witness(
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
        f"{priority[late]}, though nobody had delivered it when the more urgent one was received"
    )
    return Witness((early, late), (number,), tuple(positions), text), both
