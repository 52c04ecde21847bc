"""Complete marks: after `complete_until` returned T, no message sent at T or before is delivered, except late ones.

A trace does not contain the marks, so the caller passes them: each says what `complete_until` returned at a member
after its first deliveries. The send time of a message is the one in its SEND row, by the sender's clock. Messages of a
member that was suspended, or that had to join again, may be sent later than they were accepted; they are not checked.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import accumulate

from unisono.check.columns import MemberRunId, dropped_rows_reason, reporting
from unisono.check.verdict import MessageId, Position, Status, Verdict, Witness, no_violation
from unisono.model.events import ViolationKind
from unisono.trace.table import Rows, Trace

COMPLETE_UNTIL = "complete_until"


@dataclass(frozen=True, slots=True)
class CompleteMark:
    """`complete_until` returned `until_ns` at a member after its deliveries with indices below `index`."""

    member: int
    incarnation: int
    index: int
    until_ns: int


def check_complete_until(
    trace: Trace, marks: Iterable[CompleteMark], late: Collection[tuple[int, MessageId]] = ()
) -> Verdict:
    """Check the marks of all members against the deliveries of one grade.

    `late` has the deliveries that were marked late, as pairs of the member that delivered and the message.
    """
    sends, deliveries = trace.sends(), trace.deliveries()
    unchecked = reporting(trace, ViolationKind.PAUSED, ViolationKind.SLOTS)
    sent_ns = {
        message: at
        for message, at in zip(_messages(sends), sends.local_ns.tolist(), strict=True)
        if (message.sender, message.incarnation) not in unchecked
    }
    by_run: dict[MemberRunId, list[CompleteMark]] = {}
    for mark in sorted(marks, key=lambda mark: mark.index):
        by_run.setdefault((mark.member, mark.incarnation), []).append(mark)
    limits = {run_id: _Limits(found) for run_id, found in by_run.items()}
    witness, count = None, 0
    columns = (deliveries.member, deliveries.recorder_incarnation, deliveries.index)
    for (member, incarnation, index), message in zip(
        zip(*(column.tolist() for column in columns), strict=True), _messages(deliveries), strict=True
    ):
        limit = limits[member, incarnation].at(index) if (member, incarnation) in limits else None
        at = sent_ns.get(message)
        if limit is None or at is None or at > limit or (member, message) in late:
            continue
        count += 1
        if witness is None:
            text = f"member {member} delivered message {message}, sent at {at}, after complete_until returned {limit}"
            witness = Witness((message,), (member,), (Position(member, message, index),), text)
    if witness is not None:
        return Verdict(COMPLETE_UNTIL, Status.VIOLATED, witness, count)
    figures = {"marks": sum(map(len, by_run.values())), "late": len(late)}
    return no_violation(COMPLETE_UNTIL, dropped_rows_reason(trace), figures)


class _Limits:
    """The latest time that the marks of one member have reached before each delivery."""

    def __init__(self, marks: list[CompleteMark]) -> None:
        self._indices = [mark.index for mark in marks]
        self._until = list(accumulate((mark.until_ns for mark in marks), max))

    def at(self, index: int) -> int | None:
        number = bisect_right(self._indices, index)
        return self._until[number - 1] if number else None


def _messages(rows: Rows) -> Iterable[MessageId]:
    return map(MessageId, rows.sender.tolist(), rows.sender_incarnation.tolist(), rows.sequence.tolist())
