"""The building blocks of the checkers: column codes, member runs, and how far logs can be trusted.

Codes turn tuples of columns into single numbers, so that one sort or search does the work of several. A member run is
one incarnation of one member, with its first and last slot and its log. A log may lack its end or some rows; the
functions at the end of this module say what that leaves unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from unisono.check.verdict import Doubt, MessageId, Position, Reason
from unisono.model.events import ViolationKind
from unisono.trace.schema import OBSERVER, EventKind
from unisono.trace.table import Ints, Mask, MemberLog, Rows, Trace, join_columns

Codes = NDArray[np.int64]

_MAX_CODE = 1 << 62


def packed(*columns: Ints) -> Codes:
    """One number per row: rows sorted by it are sorted by these columns, the first column first."""
    if len(columns[0]) == 0:
        return np.empty(0, dtype=np.int64)
    code: Codes = np.zeros(len(columns[0]), dtype=np.int64)
    span = 1
    for given in columns:
        if given.strides == (0,):  # one value in all rows
            continue
        column, width = given.astype(np.int64), int(given.max()) - int(given.min()) + 1
        if span * width >= _MAX_CODE:  # the product would overflow: use ranks instead of values
            column, width = ranked(column)
            code, span = ranked(code)
        else:
            column -= int(given.min())
        code = code * width + column
        span *= width
    return code


def ranked(column: Codes) -> tuple[Codes, int]:
    """Each value's rank among the distinct values, and the number of distinct values."""
    values, ranks = np.unique(column, return_inverse=True)
    return ranks.astype(np.int64), len(values)


def message_codes(*parts: Rows) -> list[Codes]:
    """One number per row that identifies its message, across all parts."""
    columns = [join_columns([getattr(p, name) for p in parts]) for name in _MESSAGE_COLUMNS]
    return _split_by_part(packed(*columns), parts)


def stream_codes(*parts: Rows) -> list[Codes]:
    """One number per row that identifies its (sender, sender incarnation), across all parts."""
    columns = [join_columns([getattr(p, name) for p in parts]) for name in _MESSAGE_COLUMNS[:2]]
    return _split_by_part(packed(*columns), parts)


def log_codes(rows: Rows) -> Codes:
    """One number per row that identifies the member run whose log it is in."""
    return packed(rows.member, rows.recorder_incarnation)


def key_codes(rows: Rows) -> Codes:
    """One number per row that identifies its key: (slot, place)."""
    return packed(rows.slot, rows.place)


def group_starts(grouped: Codes) -> Mask:
    """A mask of the rows whose code differs from that of the row before; equal codes must be contiguous."""
    first = np.ones(len(grouped), dtype=bool)
    first[1:] = grouped[1:] != grouped[:-1]
    return first


def message_at(rows: Rows, row: int) -> MessageId:
    """The message of a row."""
    return MessageId(int(rows.sender[row]), int(rows.sender_incarnation[row]), int(rows.sequence[row]))


def position_at(rows: Rows, row: int) -> Position:
    """The delivery that a DELIVER row records."""
    return Position(int(rows.member[row]), message_at(rows, row), int(rows.index[row]))


_MESSAGE_COLUMNS = ("sender", "sender_incarnation", "sequence")


def _split_by_part(codes: Codes, parts: tuple[Rows, ...]) -> list[Codes]:
    return np.split(codes, np.cumsum([len(part) for part in parts])[:-1])


MemberRunId = tuple[int, int]
"""A member and its incarnation."""
FOREVER = (1 << 63) - 1
NOTHING_RECORDED = Doubt(Reason.NOTHING_RECORDED, "nothing was recorded")
MEMBER_EVENT_KINDS = (EventKind.START, EventKind.LEAVE, EventKind.CRASH, EventKind.VIOLATION)
"""The kinds of member events that decide which messages a member has to deliver."""


@dataclass(frozen=True, slots=True)
class MemberRun:
    """One incarnation of a member, from its first slot up to, not including, its end slot.

    `ended_by` is LEAVE, CRASH or None.
    """

    member: int
    incarnation: int
    first_slot: int
    end_slot: int
    end_ns: int
    ended_by: EventKind | None
    log: MemberLog | None

    @property
    def crashed(self) -> bool:
        """Whether the member crashed."""
        return self.ended_by is EventKind.CRASH

    @property
    def started(self) -> bool:
        """Whether a START row says from which slot on the member has to deliver messages."""
        return self.first_slot > -FOREVER

    @property
    def log_truncated(self) -> bool:
        """Whether the member's log may lack its end, because the recording was not closed."""
        return self.log is None or not self.log.closed

    @property
    def dropped_rows(self) -> int:
        """The number of rows that the writer of the member's log dropped."""
        return 0 if self.log is None else self.log.dropped


def member_runs(trace: Trace) -> dict[MemberRunId, MemberRun]:
    """Every member run that has a log or a START, LEAVE or CRASH row."""
    logs = {(log.member, log.incarnation): log for log in trace.logs if log.member != OBSERVER}
    events = trace.of_kind(EventKind.START, EventKind.LEAVE, EventKind.CRASH)
    first: dict[MemberRunId, int] = {}
    ends: dict[MemberRunId, tuple[int, int, EventKind]] = {}
    columns = (events.kind, events.sender, events.sender_incarnation, events.slot, events.real_ns)
    for kind, member, incarnation, slot, real_ns in zip(*(c.tolist() for c in columns), strict=True):
        run_id = (member, incarnation)
        if kind == EventKind.START.code:
            first[run_id] = max(slot, first.get(run_id, slot))
            continue
        ended_by = EventKind.CRASH if kind == EventKind.CRASH.code else EventKind.LEAVE
        known = ends.get(run_id, (FOREVER, FOREVER, ended_by))
        ends[run_id] = min(known, (slot, real_ns, ended_by), key=lambda end: end[:2])
    found = {}
    for member, incarnation in sorted(logs.keys() | first.keys() | ends.keys()):
        run_id = (member, incarnation)
        end_slot, end_ns, end = ends.get(run_id, (FOREVER, FOREVER, None))
        found[run_id] = MemberRun(
            member, incarnation, first.get(run_id, -FOREVER), end_slot, end_ns, end, logs.get(run_id)
        )
    return found


def excused_members(trace: Trace) -> set[MemberRunId]:
    """The member runs that crashed, or that reported that the other members excluded them.

    Unless delivery is uniform, the other members need not deliver the messages that these delivered.
    """
    return reporting(trace, ViolationKind.EXCLUDED) | {
        run_id for run_id, member_run in member_runs(trace).items() if member_run.crashed
    }


def reporting(trace: Trace, *kinds: ViolationKind) -> set[MemberRunId]:
    """The member runs that recorded a violation of one of these kinds."""
    violations = trace.of_kind(EventKind.VIOLATION)
    violations = violations.select(violations.with_token(*kinds))
    return set(zip(violations.member.tolist(), violations.recorder_incarnation.tolist(), strict=True))


def without_excused_deliveries(trace: Trace) -> Trace:
    """The trace without the deliveries of excused members."""
    excused = np.zeros(len(trace), dtype=bool)
    for member, incarnation in sorted(excused_members(trace)):
        excused |= (trace.member == member) & (trace.recorder_incarnation == incarnation)
    return trace.select(~excused | (trace.kind != EventKind.DELIVER.code))


class SendStatus(IntEnum):
    """Whether the sender's log shows that a delivered message was sent."""

    SENT = 0
    NEVER_SENT = 1
    NOT_RECORDED = 2
    """The sender's log lacks rows or its end without a known reason."""
    AFTER_LOG_END = 3
    """The sender crashed and its log ends before the message, so the send can be neither shown nor refuted."""


LastLogged = Mapping[MemberRunId, int]
"""The last sequence number that each sender run logged as sent."""


def unrecorded_sends(trace: Trace, deliveries: Rows, last_logged: LastLogged | None = None) -> int:
    """The number of these deliveries whose send is not recorded.

    `last_logged` has the last sequence number that each sender logged; give it if the trace holds only some messages.
    """
    return int((send_statuses(trace, deliveries, last_logged) == SendStatus.NOT_RECORDED).sum())


def send_statuses(trace: Trace, deliveries: Rows, last_logged: LastLogged | None = None) -> Ints:
    """The `SendStatus` of each delivered message.

    Give `last_logged` if the trace holds only some messages; it then says how far the senders' logs go.
    """
    sends = trace.sends()
    sent, delivered = message_codes(sends, deliveries)
    status = np.where(np.isin(delivered, sent), SendStatus.SENT, SendStatus.NEVER_SENT).astype(np.int8)
    if (status == SendStatus.SENT).all():
        return status
    known = member_runs(trace)
    send_stream, stream = stream_codes(sends, deliveries)
    for code in np.unique(stream[status != SendStatus.SENT]):
        row = int(np.flatnonzero(stream == code)[0])
        sender = (int(deliveries.sender[row]), int(deliveries.sender_incarnation[row]))
        missing = (stream == code) & (status != SendStatus.SENT)
        last = (
            int(sends.sequence[send_stream == code].max(initial=-1))
            if last_logged is None
            else last_logged.get(sender, -1)
        )
        member_run = known.get(sender)
        if member_run is None:
            others = [other for other in known.values() if other.member == sender[0]]
            absent = not others and sender[0] in trace.meta.members
            if absent or any(other.log_truncated or other.dropped_rows for other in others):
                status[missing] = SendStatus.NOT_RECORDED
        elif member_run.dropped_rows:
            status[missing] = SendStatus.NOT_RECORDED
        elif member_run.log_truncated:
            after_end = SendStatus.AFTER_LOG_END if member_run.crashed else SendStatus.NOT_RECORDED
            status[missing] = np.where(deliveries.sequence[missing] > last, after_end, SendStatus.NOT_RECORDED)
    return status


def dropped_rows_reason(trace: Trace) -> Doubt | None:
    """Why rows that the writers dropped leave a verdict unknown; None if they dropped none."""
    droppers = [f"member {log.member} {log.dropped}" for log in trace.logs if log.dropped]
    if not droppers:
        return None
    return Doubt(Reason.ROWS_DROPPED, f"rows were dropped while recording ({', '.join(droppers)})")


def empty_trace_reason(trace: Trace) -> Doubt | None:
    """Why a trace without rows leaves a verdict unknown; None if the trace has rows."""
    return None if len(trace) else NOTHING_RECORDED


def incomplete_logs(doubts: Sequence[str]) -> Doubt | None:
    """Why incomplete logs leave a verdict unknown: the reasons in `doubts`, as one text; None if there are none."""
    return Doubt(Reason.LOG_NOT_WHOLE, "; ".join(doubts)) if doubts else None
