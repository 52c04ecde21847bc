"""Total order (paper 000, Definitions 1 and 2) and FIFO: two members deliver the messages they share in the same order.

Three conditions imply that any two members agree on all messages that they share, gaps included:
1. at each member the delivery indices have no gaps, and the keys strictly increase;
2. across members, each key belongs to one message;
3. in the merged sequence of keys, each sender's sequence numbers strictly increase. Checking this per member is not
   enough: it would miss a message moved to a key at which the other members have gaps.

Each condition can be checked within one range of slots and, across ranges, from a summary of the edges. So ranges need
no common sort, join or shuffle: `summarize_order` checks one range, and `check/ranges.py` the edges between ranges.
If the conditions fail, `total_order` looks for the smallest explanation: two members that disagree, else a cycle over
several members, else contradictory keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from unisono.check.columns import (
    Codes,
    dropped_rows_reason,
    empty_trace_reason,
    group_starts,
    key_codes,
    log_codes,
    message_at,
    message_codes,
    packed,
    position_at,
    stream_codes,
)
from unisono.check.verdict import Reason, Status, Verdict, Witness, no_violation, unknown
from unisono.trace.table import Ints, Rows, Trace


@dataclass(frozen=True, slots=True)
class LogSpan:
    """The deliveries of one member run in one range of slots: its first and last."""

    member: int
    incarnation: int
    first_index: int
    last_index: int


@dataclass(frozen=True, slots=True)
class StreamSpan:
    """One sender's messages in one range of slots, over all members: the first and the last."""

    sender: int
    incarnation: int
    first_sequence: int
    last_sequence: int


@dataclass(frozen=True, slots=True)
class OrderSummary:
    """The order within one range of slots, and its edges.

    `dense` means that each log has all indices from its first to its last. `distinct` means that no index of a log
    occurs twice. `ordered` means that keys (slot, place) grow in each log, each key has one message, and the sequence
    numbers of each sender grow with the keys.
    """

    rows: int
    first_slot: int
    last_slot: int
    dense: bool
    distinct: bool
    ordered: bool
    logs: tuple[LogSpan, ...]
    streams: tuple[StreamSpan, ...]


EMPTY_SUMMARY = OrderSummary(0, 0, -1, dense=True, distinct=True, ordered=True, logs=(), streams=())


def summarize_order(deliveries: Rows) -> OrderSummary:
    """Check the deliveries of one range of slots; each log's rows must be contiguous and sorted by index."""
    if len(deliveries) == 0:
        return EMPTY_SUMMARY
    log, key = log_codes(deliveries), key_codes(deliveries)
    (message,) = message_codes(deliveries)
    fresh = group_starts(log)
    follows = ~fresh[1:]
    steps = np.diff(deliveries.index)[follows]
    dense, distinct = bool((steps == 1).all()), bool((steps > 0).all())
    ordered = bool((np.diff(key)[follows] > 0).all())

    merged = np.argsort(key, kind="stable")
    ordered &= bool((np.diff(message[merged])[np.diff(key[merged]) == 0] == 0).all())
    merged = merged[group_starts(key[merged])]

    (stream,) = stream_codes(deliveries)
    by_stream = merged[np.argsort(stream[merged], kind="stable")]
    sequence = deliveries.sequence[by_stream]
    fresh_stream = group_starts(stream[by_stream])
    ordered &= bool((np.diff(sequence)[~fresh_stream[1:]] > 0).all())

    first = np.flatnonzero(fresh)
    last = np.append(first[1:], len(deliveries)) - 1
    stream_first = np.flatnonzero(fresh_stream)
    stream_last = np.append(stream_first[1:], len(by_stream)) - 1
    return OrderSummary(
        rows=len(deliveries),
        first_slot=int(deliveries.slot.min()),
        last_slot=int(deliveries.slot.max()),
        dense=dense,
        distinct=distinct,
        ordered=ordered,
        logs=tuple(
            LogSpan(*span)
            for span in zip(
                deliveries.member[first].tolist(),
                deliveries.recorder_incarnation[first].tolist(),
                deliveries.index[first].tolist(),
                deliveries.index[last].tolist(),
                strict=True,
            )
        ),
        streams=tuple(
            StreamSpan(*span)
            for span in zip(
                deliveries.sender[by_stream[stream_first]].tolist(),
                deliveries.sender_incarnation[by_stream[stream_first]].tolist(),
                sequence[stream_first].tolist(),
                sequence[stream_last].tolist(),
                strict=True,
            )
        ),
    )


def is_dense_from_zero(summary: OrderSummary) -> bool:
    """Whether each log has all indices from 0 to its last."""
    return summary.dense and all(log.first_index == 0 for log in summary.logs)


TOTAL_ORDER = "total_order"


def total_order(trace: Trace) -> Verdict:
    """Check the total order. Gaps are allowed, and repeated deliveries are ignored: `integrity` reports them."""
    deliveries = trace.deliveries()
    summary = summarize_order(deliveries)
    complete = is_dense_from_zero(summary)
    if not summary.ordered:
        twice = duplicate_index_reason(deliveries)
        if twice is not None:
            return unknown(TOTAL_ORDER, Reason.INDEX_TWICE, twice)
        found = _explain(deliveries)
        if found is not None:
            return found
    if not complete:
        return unknown(TOTAL_ORDER, Reason.INDEX_MISSING, _missing_index_reason(deliveries))
    return no_violation(TOTAL_ORDER, dropped_rows_reason(trace) or empty_trace_reason(trace))


def _explain(deliveries: Rows) -> Verdict | None:
    """The verdict if keys (slot, place) are out of order; None if only repeated or FIFO-inverted messages cause it."""
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
        text = "no single order fits all members, although no two disagree"
        return _violated(_cycle_witness(rows, cycle), 1, Reason.CYCLE, text)
    text = "the keys contradict each other, although no two members disagree"
    return _violated(fault, 1, Reason.KEYS_CONTRADICT, text)


def _violated(witness: Witness, count: int, reason: Reason, text: str) -> Verdict:
    return Verdict(TOTAL_ORDER, Status.VIOLATED, witness, count, text, token=reason)


@dataclass(frozen=True, slots=True)
class _Disagreement:
    witness: Witness
    count: int


def _disagreement(rows: Rows, message: Codes, messages: int, logs: list[Ints]) -> _Disagreement | None:
    """The first two messages that two members deliver in different orders; None if no two members disagree.

    For members p and q, take the messages that both delivered, in p's order. The two members disagree first where q
    delivered a message before the one that precedes it in this list.
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
    other_earlier, other_later = int(at[q, message[earlier]]), int(at[q, message[later]])
    first, second = message_at(rows, earlier), message_at(rows, later)
    member, other = int(rows.member[earlier]), int(rows.member[other_earlier])
    witness = Witness(
        (first, second),
        (member, other),
        tuple(position_at(rows, row) for row in (earlier, later, other_later, other_earlier)),
        f"member {member} delivered {first} before {second}, member {other} after it",
    )
    return _Disagreement(witness, count)


def _cycle_witness(rows: Rows, cycle: list[tuple[int, int]]) -> Witness:
    """The witness for a cycle of deliveries.

    Each step is two rows of one member, and begins with the message with which the previous step ended.
    """
    steps = [f"member {rows.member[a]} delivered {message_at(rows, a)} before {message_at(rows, b)}" for a, b in cycle]
    return Witness(
        tuple(message_at(rows, a) for a, _ in cycle),
        tuple(int(rows.member[a]) for a, _ in cycle),
        tuple(position_at(rows, row) for step in cycle for row in step),
        "; ".join(steps),
    )


def _key_contradiction(rows: Rows) -> Witness | None:
    """The witness for keys (slot, place) that contradict each other; None if none do. No delivery may be repeated."""
    log, key = log_codes(rows), key_codes(rows)
    (message,) = message_codes(rows)
    falls = np.flatnonzero((np.diff(key) <= 0) & ~group_starts(log)[1:])
    if len(falls):
        row = int(falls[np.argmin(rows.index[falls])])
        relation = "which is not after the key of"
        return _contradiction_witness(rows, row + 1, row, relation)
    for one, other, relation in (
        (key, message, "which is also the key of"),
        (message, key, "and elsewhere under another:"),
    ):
        order = np.argsort(one, kind="stable")
        differs = np.flatnonzero((np.diff(one[order]) == 0) & (np.diff(other[order]) != 0))
        if len(differs):
            at = int(differs[np.argmin(rows.index[order[differs + 1]])])
            return _contradiction_witness(rows, int(order[at]), int(order[at + 1]), relation)
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
    """Why a verdict is unknown if two deliveries of a log have the same index; None if no log has such deliveries."""
    same = np.flatnonzero((np.diff(deliveries.index) == 0) & ~group_starts(log_codes(deliveries))[1:])
    if len(same) == 0:
        return None
    row = same[0]
    return (
        f"two deliveries of member {deliveries.member[row]} have index {deliveries.index[row]}, so their order is "
        "unknown (check deliveries of several grades one grade at a time)"
    )


def _missing_index_reason(deliveries: Rows) -> str:
    fresh = group_starts(log_codes(deliveries))
    expected = np.where(fresh, 0, np.append(0, deliveries.index[:-1] + 1))
    row = int(np.flatnonzero(deliveries.index != expected)[0])
    return (
        f"the deliveries of member {deliveries.member[row]} are not all recorded: index {expected[row]} is "
        f"missing, {deliveries.index[row]} follows"
    )


def precedence_cycle(message: Codes, logs: Sequence[Ints]) -> list[tuple[int, int]]:
    """A cycle in the relation "some member delivered x before y", or an empty list if one order fits all logs.

    Members can agree pairwise and still form a cycle. Each step is (row, later row of the same log). `message` numbers
    the messages from 0; each log is its rows in delivery order.
    """
    codes: list[int] = message.tolist()
    count = max(codes, default=-1) + 1
    later: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    pending = [0] * count
    for log in logs:
        rows = log.tolist()
        for row, after in pairwise(rows):
            later[codes[row]].append((row, after))
            pending[codes[after]] += 1
    ready = [code for code in range(count) if pending[code] == 0]
    while ready:  # remove messages without predecessors; the remaining ones are on a cycle or after one
        for _, after in later[ready.pop()]:
            pending[codes[after]] -= 1
            if pending[codes[after]] == 0:
                ready.append(codes[after])
    stuck = [code for code in range(count) if pending[code] > 0]
    if not stuck:
        return []
    before: dict[int, tuple[int, int]] = {}
    for code in stuck:
        for row, after in later[code]:
            before.setdefault(codes[after], (row, after))
    path: list[tuple[int, int]] = []
    seen: dict[int, int] = {}
    code = stuck[0]
    while code not in seen:  # walk backwards: each stuck message has a stuck predecessor
        seen[code] = len(path)
        path.append(before[code])
        code = codes[before[code][0]]
    return _contracted(path[seen[code] :][::-1], codes, logs)


def _contracted(steps: list[tuple[int, int]], codes: list[int], logs: Sequence[Ints]) -> list[tuple[int, int]]:
    """Shorten a cycle: join consecutive steps in the same log, and start with the smallest message."""
    log_of = {row: number for number, log in enumerate(logs) for row in log.tolist()}
    switch = next(i for i in range(len(steps)) if log_of[steps[i][0]] != log_of[steps[i - 1][0]])
    joined: list[tuple[int, int]] = []
    for row, after in steps[switch:] + steps[:switch]:
        if joined and log_of[joined[-1][1]] == log_of[row]:
            joined[-1] = (joined[-1][0], after)
        else:
            joined.append((row, after))
    least = min(range(len(joined)), key=lambda i: codes[joined[i][0]])
    return joined[least:] + joined[:least]


FIFO = "fifo"


def fifo(trace: Trace) -> Verdict:
    """Check that each member delivers each sender's messages in the order of sending; gaps are allowed.

    Where deliveries have a priority (paper 004 §4.2), this holds among messages of the same priority.
    """
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
            f"member {member} delivered {second} after {first}, although member {second.sender} sent {second} no later",
        )
        return Verdict(FIFO, Status.VIOLATED, witness, len(falls))
    return no_violation(FIFO, dropped_rows_reason(trace) or empty_trace_reason(trace))
