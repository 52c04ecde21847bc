"""Integrity (paper 000, Definition 1): delivered only if it was sent, and not more often than it was sent."""

from __future__ import annotations

import numpy as np

from unisono.check.codes import group_starts, log_codes, message_at, message_codes, packed, position_at
from unisono.check.member_runs import LastLogged, SendStatus, dropped_rows_reason, empty_trace_reason, send_statuses
from unisono.check.verdict import Reason, Status, Verdict, Witness, kept, unknown
from unisono.trace.table import Ints, Rows, Trace

NAME = "integrity"


def integrity(trace: Trace, last_logged: LastLogged | None = None) -> Verdict:
    """Every delivery against its sender's log; `reached` as in `origins`, where not all messages are here.

    A member that crashed may have lost the end of its log. What others deliver from it past that end can be neither
    shown nor refuted: it is not held against the run, and the reason says how much it is.
    """
    deliveries = trace.deliveries()
    origin = send_statuses(trace, deliveries, last_logged)
    never = np.flatnonzero(origin == SendStatus.NEVER_SENT)
    again, before = _repeated(deliveries)
    if len(never) or len(again):
        witness = _earliest_witness(deliveries, never, again, before)
        return Verdict(NAME, Status.VIOLATED, witness, len(never) + len(again))
    untold = np.flatnonzero(origin == SendStatus.NOT_RECORDED)
    if len(untold):
        message = message_at(deliveries, int(untold[0]))
        reason = (
            f"the log of member {message.sender} is not whole: {len(untold)} deliveries, first {message}, not shown"
        )
        return unknown(NAME, Reason.LOG_NOT_WHOLE, reason)
    hidden = dropped_rows_reason(trace) or empty_trace_reason(trace)
    if hidden is not None:
        return kept(NAME, hidden)
    after_cut = int((origin == SendStatus.AFTER_LOG_END).sum())
    if not after_cut:
        return kept(NAME, None)
    reason = f"{after_cut} deliveries are of messages that a crashed sender had no time to log"
    return Verdict(NAME, Status.VALID, reason=reason, token=Reason.AFTER_CRASH)


def _repeated(deliveries: Rows) -> tuple[Ints, Ints]:
    """Rows that deliver a message again at the same member, and the row of the delivery before."""
    (message,) = message_codes(deliveries)
    both = packed(log_codes(deliveries), message)
    order = np.argsort(both, kind="stable")
    at = np.flatnonzero(~group_starts(both[order]))
    return order[at], order[at - 1]


def _earliest_witness(deliveries: Rows, never_sent: Ints, repeats: Ints, previous: Ints) -> Witness:
    candidates = [(int(deliveries.index[row]), int(row), -1) for row in never_sent]
    candidates += [
        (int(deliveries.index[row]), int(row), int(first)) for row, first in zip(repeats, previous, strict=True)
    ]
    index, row, first = min(candidates)
    message, member = message_at(deliveries, row), int(deliveries.member[row])
    if first < 0:
        text = f"member {member} delivered {message} at index {index}, which member {message.sender} never sent"
        return Witness((message,), (member, message.sender), (position_at(deliveries, row),), text)
    text = f"member {member} delivered {message} twice, at indices {deliveries.index[first]} and {index}"
    positions = (position_at(deliveries, first), position_at(deliveries, row))
    return Witness((message,), (member,), positions, text)
