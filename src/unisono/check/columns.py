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
    """One number per row that orders rows as the tuple of their columns does, equal where all are equal."""
    if len(columns[0]) == 0:
        return np.empty(0, dtype=np.int64)
    code: Codes = np.zeros(len(columns[0]), dtype=np.int64)
    span = 1
    for given in columns:
        if given.strides == (0,):  # one value in all rows
            continue
        column, width = given.astype(np.int64), int(given.max()) - int(given.min()) + 1
        if span * width >= _MAX_CODE:  # too far apart to multiply: ranks are as good as values
            column, width = ranked(column)
            code, span = ranked(code)
        else:
            column -= int(given.min())
        code = code * width + column
        span *= width
    return code


def ranked(column: Codes) -> tuple[Codes, int]:
    """Each value's rank among the distinct values, and how many there are."""
    values, ranks = np.unique(column, return_inverse=True)
    return ranks.astype(np.int64), len(values)


def message_codes(*parts: Rows) -> list[Codes]:
    """One number per row for its message, the same number for the same message in all parts."""
    columns = [join_columns([getattr(p, name) for p in parts]) for name in _MESSAGE_COLUMNS]
    return _split_by_part(packed(*columns), parts)


def stream_codes(*parts: Rows) -> list[Codes]:
    """One number per row for its (sender, incarnation), the same in all parts."""
    columns = [join_columns([getattr(p, name) for p in parts]) for name in _MESSAGE_COLUMNS[:2]]
    return _split_by_part(packed(*columns), parts)


def log_codes(rows: Rows) -> Codes:
    """One number per row for the log that it is in: a member in one of its lives."""
    return packed(rows.member, rows.recorder_incarnation)


def key_codes(rows: Rows) -> Codes:
    """One number per row for its key in the order, (slot, place)."""
    return packed(rows.slot, rows.place)


def group_starts(grouped: Codes) -> Mask:
    """Where a new group begins, in rows whose groups are contiguous."""
    first = np.ones(len(grouped), dtype=bool)
    first[1:] = grouped[1:] != grouped[:-1]
    return first


def message_at(rows: Rows, row: int) -> MessageId:
    """The message of one row."""
    return MessageId(int(rows.sender[row]), int(rows.sender_incarnation[row]), int(rows.sequence[row]))


def position_at(rows: Rows, row: int) -> Position:
    """The delivery of one row."""
    return Position(int(rows.member[row]), message_at(rows, row), int(rows.index[row]))


_MESSAGE_COLUMNS = ("sender", "sender_incarnation", "sequence")


def _split_by_part(codes: Codes, parts: tuple[Rows, ...]) -> list[Codes]:
    return np.split(codes, np.cumsum([len(part) for part in parts])[:-1])


FOREVER = (1 << 63) - 1
NOTHING_RECORDED = Doubt(Reason.NOTHING_RECORDED, "nothing was recorded")
MEMBER_EVENT_KINDS = (EventKind.START, EventKind.LEAVE, EventKind.CRASH, EventKind.VIOLATION)
"""What happened to members that decides what they are held to."""


@dataclass(frozen=True, slots=True)
class MemberRun:
    """A member from its first slot up to, not including, its end slot; `fate` is LEAVE, CRASH or None."""

    member: int
    incarnation: int
    first_slot: int
    end_slot: int
    end_ns: int
    ended_by: EventKind | None
    log: MemberLog | None

    @property
    def crashed(self) -> bool:
        """Whether it ended by a crash."""
        return self.ended_by is EventKind.CRASH

    @property
    def started(self) -> bool:
        """Whether a START says from which slot on it is held to the order."""
        return self.first_slot > -FOREVER

    @property
    def log_truncated(self) -> bool:
        """Whether its log may lack its end: it was not closed."""
        return self.log is None or not self.log.closed

    @property
    def dropped_rows(self) -> int:
        """How many rows its log lacks."""
        return 0 if self.log is None else self.log.dropped


def member_runs(trace: Trace) -> dict[tuple[int, int], MemberRun]:
    """Each (member, incarnation) that has a log or an event, by its START, LEAVE and CRASH."""
    logs = {(log.member, log.incarnation): log for log in trace.logs if log.member != OBSERVER}
    events = trace.of_kind(EventKind.START, EventKind.LEAVE, EventKind.CRASH)
    first: dict[tuple[int, int], int] = {}
    ends: dict[tuple[int, int], tuple[int, int, EventKind]] = {}
    columns = (events.kind, events.sender, events.sender_incarnation, events.slot, events.real_ns)
    for kind, member, incarnation, slot, real_ns in zip(*(c.tolist() for c in columns), strict=True):
        run_id = (member, incarnation)
        if kind == EventKind.START.code:
            first[run_id] = max(slot, first.get(run_id, slot))
            continue
        fate = EventKind.CRASH if kind == EventKind.CRASH.code else EventKind.LEAVE
        known = ends.get(run_id, (FOREVER, FOREVER, fate))
        ends[run_id] = min(known, (slot, real_ns, fate), key=lambda end: end[:2])
    everyone = sorted(logs.keys() | first.keys() | ends.keys())
    found = {}
    for member, incarnation in everyone:
        run_id = (member, incarnation)
        end_slot, end_ns, end = ends.get(run_id, (FOREVER, FOREVER, None))
        found[run_id] = MemberRun(
            member, incarnation, first.get(run_id, -FOREVER), end_slot, end_ns, end, logs.get(run_id)
        )
    return found


def excused_members(trace: Trace) -> set[tuple[int, int]]:
    """The members, each in one of its lives, whose deliveries bind nobody where delivery is not uniform.

    They crashed, or the others went on without them, which they say themselves as a violation.
    """
    return reporting(trace, ViolationKind.EXCLUDED) | {
        run_id for run_id, member_run in member_runs(trace).items() if member_run.crashed
    }


def reporting(trace: Trace, *kinds: ViolationKind) -> set[tuple[int, int]]:
    """The members, each in one of its lives, that recorded a violation of one of these kinds."""
    told = trace.of_kind(EventKind.VIOLATION)
    told = told.select(told.with_token(*kinds))
    return set(zip(told.member.tolist(), told.recorder_incarnation.tolist(), strict=True))


def without_excused_deliveries(trace: Trace) -> Trace:
    """The trace without what such members delivered."""
    doubtful = np.zeros(len(trace), dtype=bool)
    for member, incarnation in sorted(excused_members(trace)):
        doubtful |= (trace.member == member) & (trace.recorder_incarnation == incarnation)
    return trace.select(~doubtful | (trace.kind != EventKind.DELIVER.code))


class SendStatus(IntEnum):
    """What the send logs say of a delivered message."""

    SENT = 0
    NEVER_SENT = 1
    NOT_RECORDED = 2
    """The sender's log lacks rows or its end, and nothing says why."""
    AFTER_LOG_END = 3
    """The sender crashed, and its log ends before the message: neither shown nor refuted."""


LastLogged = Mapping[tuple[int, int], int]
"""The last number that each sender, in one of its lives, has logged as sent."""


def send_statuses(trace: Trace, deliveries: Rows, last_logged: LastLogged | None = None) -> Ints:
    """The origin of each delivered message, by its sender's log; `reached`, how far that goes if not all is here."""
    sends = trace.sends()
    sent, delivered = message_codes(sends, deliveries)
    origin = np.where(np.isin(delivered, sent), SendStatus.SENT, SendStatus.NEVER_SENT).astype(np.int8)
    if (origin == SendStatus.SENT).all():
        return origin
    known = member_runs(trace)
    send_stream, stream = stream_codes(sends, deliveries)
    for code in np.unique(stream[origin != SendStatus.SENT]):
        row = int(np.flatnonzero(stream == code)[0])
        sender = (int(deliveries.sender[row]), int(deliveries.sender_incarnation[row]))
        missing = (stream == code) & (origin != SendStatus.SENT)
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
                origin[missing] = SendStatus.NOT_RECORDED
        elif member_run.dropped_rows:
            origin[missing] = SendStatus.NOT_RECORDED
        elif member_run.log_truncated:
            past = SendStatus.AFTER_LOG_END if member_run.crashed else SendStatus.NOT_RECORDED
            origin[missing] = np.where(deliveries.sequence[missing] > last, past, SendStatus.NOT_RECORDED)
    return origin


def dropped_rows_reason(trace: Trace) -> Doubt | None:
    """Why the trace may hide something: rows that its writers had to drop. None if it hides nothing."""
    droppers = [f"member {log.member} {log.dropped}" for log in trace.logs if log.dropped]
    if not droppers:
        return None
    return Doubt(Reason.ROWS_DROPPED, f"rows were dropped while recording ({', '.join(droppers)})")


def empty_trace_reason(trace: Trace) -> Doubt | None:
    """Why nothing can be said: there is not one row. None if there is."""
    return None if len(trace) else NOTHING_RECORDED


def incomplete_logs(doubts: Sequence[str]) -> Doubt | None:
    """The doubts that incomplete logs leave; None if there are none."""
    return Doubt(Reason.LOG_NOT_WHOLE, "; ".join(doubts)) if doubts else None
