"""FIFO: each member delivers the messages of one sender in the order in which they were sent.

Where deliveries say their priority (paper 004 §4.2), that holds among those of one priority.
"""

from __future__ import annotations

import numpy as np

from unisono.check.codes import group_starts, log_codes, message_at, packed, position_at
from unisono.check.member_runs import dropped_rows_reason, empty_trace_reason
from unisono.check.verdict import Status, Verdict, Witness, kept
from unisono.trace.table import Trace

NAME = "fifo"


def fifo(trace: Trace) -> Verdict:
    """At each member, each sender's (incarnation, sequence) strictly increases, by priority; gaps are allowed."""
    deliveries = trace.deliveries()
    pair = packed(log_codes(deliveries), deliveries.sender, deliveries.priority)
    order = np.argsort(pair, kind="stable")
    number = packed(deliveries.sender_incarnation, deliveries.sequence)[order]
    falls = np.flatnonzero((np.diff(number) <= 0) & ~group_starts(pair[order])[1:])
    if len(falls):
        at = falls[np.lexsort((order[falls + 1], deliveries.index[order[falls + 1]]))[0]]
        earlier, later = int(order[at]), int(order[at + 1])
        first, second = message_at(deliveries, earlier), message_at(deliveries, later)
        member = int(deliveries.member[later])
        witness = Witness(
            (first, second),
            (member,),
            (position_at(deliveries, earlier), position_at(deliveries, later)),
            f"member {member} delivered {second} after {first}, though member {second.sender} sent it no later",
        )
        return Verdict(NAME, Status.VIOLATED, witness, len(falls))
    return kept(NAME, dropped_rows_reason(trace) or empty_trace_reason(trace))
