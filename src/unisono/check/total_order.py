"""Total order (paper 000, Definitions 1 and 2): whatever two members both deliver, they deliver in one order."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from unisono.check.codes import (
    Codes,
    group_starts,
    key_codes,
    log_codes,
    message_at,
    message_codes,
    packed,
    position_at,
)
from unisono.check.cycles import precedence_cycle
from unisono.check.member_runs import dropped_rows_reason, empty_trace_reason
from unisono.check.order_kernel import is_dense_from_zero, summarize_order
from unisono.check.verdict import Reason, Status, Verdict, Witness, kept, unknown
from unisono.trace.table import Ints, Rows, Trace

NAME = "total_order"


def total_order(trace: Trace) -> Verdict:
    """Gaps are allowed; a second delivery of a message is integrity's matter and does not count here."""
    deliveries = trace.deliveries()
    summary = summarize_order(deliveries)
    complete = is_dense_from_zero(summary)
    if not summary.ordered:
        twice = duplicate_index_reason(deliveries)
        if twice is not None:
            return unknown(NAME, Reason.INDEX_TWICE, twice)
        found = _explain(deliveries)
        if found is not None:
            return found
    if not complete:
        return unknown(NAME, Reason.INDEX_MISSING, _missing_index_reason(deliveries))
    return kept(NAME, dropped_rows_reason(trace) or empty_trace_reason(trace))


def _explain(deliveries: Rows) -> Verdict | None:
    """Why the keys are not in order, or None if only repeated or FIFO-inverted messages made it seem so."""
    (message,) = message_codes(deliveries)
    _, firsts = np.unique(packed(log_codes(deliveries), message), return_index=True)
    rows = deliveries.select(np.sort(firsts))
    fault = _key_contradiction(rows)
    if fault is None:
        return None
    (message,) = message_codes(rows)
    message, messages = np.unique(message, return_inverse=True)[1].astype(np.int64), len(np.unique(message))
    log = log_codes(rows)
    edges = np.append(np.flatnonzero(group_starts(log)), len(rows))
    logs = [np.arange(first, last) for first, last in pairwise(edges.tolist())]

    pair = _disagreement(rows, message, messages, logs)
    if pair is not None:
        return _violated(pair.witness, pair.count, Reason.MEMBERS_DISAGREE, "two members disagree")
    cycle = precedence_cycle(message, logs)
    if cycle:
        text = "no one order fits all members, though no two disagree"
        return _violated(_cycle_witness(rows, cycle), 1, Reason.CYCLE, text)
    text = "the keys contradict each other, though no two members disagree"
    return _violated(fault, 1, Reason.KEYS_CONTRADICT, text)


def _violated(witness: Witness, count: int, reason: Reason, text: str) -> Verdict:
    return Verdict(NAME, Status.VIOLATED, witness, count, text, token=reason)


@dataclass(frozen=True, slots=True)
class _Disagreement:
    witness: Witness
    count: int


def _disagreement(rows: Rows, message: Codes, messages: int, logs: list[Ints]) -> _Disagreement | None:
    """The two messages that two members deliver in different orders; the earliest in the first member's log.

    Along the messages that p shares with q, in p's order, the first descent of q's positions is the first message
    that q delivered on the other side of one before it: no earlier message of p is in a disagreement with q.
    """
    at = np.full((len(logs), messages), -1, dtype=np.int64)
    for number, log in enumerate(logs):
        at[number, message[log]] = log
    best: tuple[int, int, int, int, int] | None = None
    count = 0
    for p, log in enumerate(logs):
        for q in range(len(logs)):
            if p == q:
                continue
            elsewhere = at[q, message[log]]
            shared = log[elsewhere >= 0]
            descents = np.flatnonzero(np.diff(elsewhere[elsewhere >= 0]) < 0)
            if len(descents) == 0:
                continue
            if p < q:
                count += len(descents)
            earlier, later = int(shared[descents[0]]), int(shared[descents[0] + 1])
            found = (int(rows.index[later]), p, q, earlier, later)
            best = found if best is None else min(best, found)
    if best is None:
        return None
    _, _, q, earlier, later = best
    there_earlier, there_later = int(at[q, message[earlier]]), int(at[q, message[later]])
    first, second = message_at(rows, earlier), message_at(rows, later)
    member, other = int(rows.member[earlier]), int(rows.member[there_earlier])
    witness = Witness(
        (first, second),
        (member, other),
        tuple(position_at(rows, row) for row in (earlier, later, there_later, there_earlier)),
        f"member {member} delivered {first} before {second}, member {other} after it",
    )
    return _Disagreement(witness, count)


def _cycle_witness(rows: Rows, cycle: list[tuple[int, int]]) -> Witness:
    """Each step is two rows of one member, and begins with the message that the step before ended with."""
    told = [f"member {rows.member[a]} delivered {message_at(rows, a)} before {message_at(rows, b)}" for a, b in cycle]
    return Witness(
        tuple(message_at(rows, a) for a, _ in cycle),
        tuple(int(rows.member[a]) for a, _ in cycle),
        tuple(position_at(rows, row) for step in cycle for row in step),
        "; ".join(told),
    )


def _key_contradiction(rows: Rows) -> Witness | None:
    """The first contradiction among the keys of first deliveries, if there is one."""
    log, key = log_codes(rows), key_codes(rows)
    (message,) = message_codes(rows)
    falls = np.flatnonzero((np.diff(key) <= 0) & ~group_starts(log)[1:])
    if len(falls):
        row = int(falls[np.argmin(rows.index[falls])])
        how = "which is not after the key of"
        return _contradiction_witness(rows, row + 1, row, how)
    for one, other, how in (
        (key, message, "which is also the key of"),
        (message, key, "and elsewhere under another:"),
    ):
        order = np.argsort(one, kind="stable")
        differs = np.flatnonzero((np.diff(one[order]) == 0) & (np.diff(other[order]) != 0))
        if len(differs):
            at = int(differs[np.argmin(rows.index[order[differs + 1]])])
            return _contradiction_witness(rows, int(order[at]), int(order[at + 1]), how)
    return None


def _contradiction_witness(rows: Rows, row: int, other: int, relation: str) -> Witness:
    text = (
        f"member {rows.member[row]} delivered {message_at(rows, row)} under the key {_key_text(rows, row)}, {relation} "
        f"{message_at(rows, other)} {_key_text(rows, other)} at member {rows.member[other]}"
    )
    return Witness(
        (message_at(rows, row), message_at(rows, other)),
        (int(rows.member[row]), int(rows.member[other])),
        (position_at(rows, row), position_at(rows, other)),
        text,
    )


def _key_text(rows: Rows, row: int) -> str:
    return f"(slot {rows.slot[row]}, place {rows.place[row]})"


def duplicate_index_reason(deliveries: Rows) -> str | None:
    """That two deliveries of a log have one index; None if none have."""
    same = np.flatnonzero((np.diff(deliveries.index) == 0) & ~group_starts(log_codes(deliveries))[1:])
    if len(same) == 0:
        return None
    row = same[0]
    return (
        f"two deliveries of member {deliveries.member[row]} have index {deliveries.index[row]}: their order is "
        "not recorded (deliveries of several grades are checked one grade at a time)"
    )


def _missing_index_reason(deliveries: Rows) -> str:
    fresh = group_starts(log_codes(deliveries))
    expected = np.where(fresh, 0, np.append(0, deliveries.index[:-1] + 1))
    row = int(np.flatnonzero(deliveries.index != expected)[0])
    return (
        f"the deliveries of member {deliveries.member[row]} are not all recorded: index {expected[row]} is "
        f"missing, {deliveries.index[row]} follows"
    )
