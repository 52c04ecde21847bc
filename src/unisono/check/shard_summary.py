"""The summary of one range of slots: enough to show that a run kept its promises, and small for any length of range.

A summary proves a range clean or marks it suspect; it has no witness. If the summaries of a run do not prove it
clean, the checkers read only the suspect ranges (`check.ranges`). Members almost always deliver the same messages in
the same order, so `_all_equal` compares columns first; only if they differ does `_by_sorting` sort them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from unisono.check.columns import Codes, group_starts, key_codes, log_codes, message_codes, packed, stream_codes
from unisono.check.final import FINAL, FinalRange, summarize_finals
from unisono.check.rates import (
    MAX_REPORTED,
    NO_USAGE,
    DeclaredRates,
    RateViolation,
    SlotUsage,
    edge_usage,
    rate_violations,
    slot_usage,
)
from unisono.check.total_order import EMPTY_SUMMARY, LogSpan, OrderSummary, StreamSpan, summarize_order
from unisono.model.delays import Histogram, upper_edge
from unisono.trace.schema import EventKind
from unisono.trace.table import EMPTY, Ints, Rows, concatenated, copied

_MAX_COUNTED_NS = 4_000_000_000
"""Latencies below this many nanoseconds are counted in an array, in units of 1024 ns."""
_UNIT_BITS = 10
_MAX_COUNTED_CODE = 1 << 16
_QUEUE_STEP_KINDS = (EventKind.RECEIVE.code, EventKind.QUEUE.code)
_BUCKET_EDGES = np.array([edge for edge in map(upper_edge, range(2048)) if edge < 1 << 62], dtype=np.int64)
"""The largest value of each of a histogram's buckets."""


@dataclass(frozen=True, slots=True)
class FifoSpan:
    """One log's deliveries of one sender and priority in a range: the first and the last, by (incarnation, sequence)
    and by index."""

    member: int
    recorder_incarnation: int
    sender: int
    priority: int
    first: tuple[int, int]
    last: tuple[int, int]
    first_index: int
    last_index: int


@dataclass(frozen=True, slots=True)
class LateDelivery:
    """A delivery that came after its latency bound."""

    real_ns: int
    member: int
    recorder_incarnation: int
    index: int
    sender: int
    sender_incarnation: int
    sequence: int
    latency_ns: int


@dataclass(slots=True)
class LatencySummary:
    """Statistics of the latencies of deliveries, which take the same memory for any number of deliveries."""

    deliveries: int = 0
    late_deliveries: int = 0
    min_ns: int = 0
    max_ns: int = 0
    histogram: Histogram = field(default_factory=Histogram)
    first_late_delivery: LateDelivery | None = None

    def add(self, latencies_ns: Ints, bound_ns: int | None, deliveries: Rows) -> None:
        """Add the latencies of these deliveries."""
        if len(latencies_ns) == 0:
            return
        smallest, largest = int(latencies_ns.min()), int(latencies_ns.max())
        part = LatencySummary(len(latencies_ns), 0, smallest, largest, _histogram(latencies_ns, largest))
        if bound_ns is not None and largest > bound_ns:
            late = np.flatnonzero(latencies_ns > bound_ns)
            part.late_deliveries = len(late)
            columns = [deliveries.real_ns, deliveries.member, deliveries.recorder_incarnation, deliveries.index]
            row = int(late[np.lexsort([column[late] for column in reversed(columns)])[0]])
            columns += [deliveries.sender, deliveries.sender_incarnation, deliveries.sequence, latencies_ns]
            part.first_late_delivery = LateDelivery(*(int(column[row]) for column in columns))
        self.merge(part)

    def merge(self, other: LatencySummary) -> None:
        """Add the latencies of another summary to this one."""
        if other.deliveries == 0:
            return
        self.min_ns = other.min_ns if self.deliveries == 0 else min(self.min_ns, other.min_ns)
        self.max_ns = other.max_ns if self.deliveries == 0 else max(self.max_ns, other.max_ns)
        self.deliveries += other.deliveries
        self.late_deliveries += other.late_deliveries
        self.histogram.merge(other.histogram)
        firsts = [late for late in (self.first_late_delivery, other.first_late_delivery) if late is not None]
        self.first_late_delivery = min(firsts, key=_late_order, default=None)


@dataclass(frozen=True, slots=True)
class RangeSummary:
    """The facts about one range of slots that the checkers need."""

    first_slot: int
    last_slot: int
    rows: int
    last_ns: int
    order: OrderSummary
    in_fifo: bool
    fifo: tuple[FifoSpan, ...]
    keys: int
    """The number of different keys (slot, position in slot) among the deliveries."""
    delivery_counts: dict[tuple[int, int], int]
    """The number of deliveries in each log."""
    grades: tuple[str, ...]
    """The grades that occur in deliveries."""
    has_destinations: bool
    """Whether some message was addressed to some members only."""
    latencies: LatencySummary
    sends: tuple[StreamSpan, ...]
    """The first and the last sequence number that each sender sent."""
    delivered: tuple[StreamSpan, ...]
    """The first and the last sequence number of each sender's delivered messages."""
    unmatched_sends: Rows
    """Sends without a delivery in this range, and deliveries without a send."""
    unmatched_deliveries: Rows
    events: Rows
    """The rows of member events in this range, without queue steps of messages."""
    rate_violations: tuple[RateViolation, ...]
    """The first rate violations within the range, at most `MAX_REPORTED`."""
    edge_usage: SlotUsage
    """How many messages each sender has in the slots at the range's edges."""
    finals: FinalRange | None
    """The part of the agreed sequence in this range, in a summary of final deliveries; None in other summaries."""


def summarize_range(
    parts: Sequence[Rows],
    first_slot: int,
    last_slot: int,
    *,
    grade: str | None,
    bound_ns: int | None,
    promised: DeclaredRates | None = None,
) -> RangeSummary:
    """Summarize the rows of a range; `grade` selects deliveries of one grade."""
    deliveries, sends, events = [], [], []
    grades: set[str] = set()
    last_ns = 0
    for rows in parts:
        is_delivery = rows.kind == EventKind.DELIVER.code
        is_send = rows.kind == EventKind.SEND.code
        others = rows.select(~(is_delivery | is_send))
        if rows.grades:
            grades.update(rows.grades[code] for code in np.unique(rows.grade[is_delivery]).tolist() if code >= 0)
        if grade is not None:
            is_delivery &= rows.grade == (rows.grades.index(grade) if grade in rows.grades else -2)
        deliveries.append(rows.select(is_delivery))
        sends.append(rows.select(is_send))
        last_ns = max(last_ns, *(int(kept.real_ns.max(initial=0)) for kept in (deliveries[-1], sends[-1], others)))
        events.append(others.select(~np.isin(others.kind, _QUEUE_STEP_KINDS)) if len(others) else others)
    logs = _deliveries_by_run(deliveries)
    sent = concatenated(sends)
    same = _all_equal(logs, sent, bound_ns)
    facts = same or _by_sorting(logs, sent, bound_ns)
    # If all logs are equal, one of them shows the usage.
    used = (
        NO_USAGE
        if promised is None
        else slot_usage(logs[0] if same else concatenated(logs), single_log=same is not None)
    )
    return RangeSummary(
        first_slot=first_slot,
        last_slot=last_slot,
        rows=sum(map(len, parts)),
        last_ns=last_ns,
        delivery_counts={(int(log.member[0]), int(log.recorder_incarnation[0])): len(log) for log in logs},
        grades=tuple(sorted(grades)),
        has_destinations=any(rows.destination_sets for rows in parts),
        sends=_sequence_spans(sent),
        events=copied(concatenated(events)),
        rate_violations=() if promised is None else tuple(rate_violations(used, promised)[:MAX_REPORTED]),
        edge_usage=used if promised is None else edge_usage(used, first_slot, last_slot, promised),
        finals=summarize_finals(concatenated(logs)) if grade == FINAL else None,
        **facts,  # type: ignore[arg-type]
    )


def last_logged_sequences(summaries: Sequence[RangeSummary]) -> dict[tuple[int, int], int]:
    """For each sender, the sequence number of its last message that is recorded as sent."""
    found: dict[tuple[int, int], int] = {}
    for span in (span for summary in summaries for span in summary.sends):
        stream_id = (span.sender, span.incarnation)
        found[stream_id] = max(span.last_sequence, found.get(stream_id, span.last_sequence))
    return found


def _sequence_spans(messages: Rows) -> tuple[StreamSpan, ...]:
    if len(messages) == 0:
        return ()
    (stream,) = stream_codes(messages)
    _, rows, edges = _grouped(stream)
    found = []
    for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        of = rows[first:last]
        numbers = messages.sequence[of]
        whose = int(messages.sender[of[0]]), int(messages.sender_incarnation[of[0]])
        found.append(StreamSpan(*whose, int(numbers.min()), int(numbers.max())))
    return tuple(found)


def _deliveries_by_run(parts: Sequence[Rows]) -> list[Rows]:
    """The deliveries of each log, sorted by index. Files mostly have them in that order already."""
    pieces: dict[tuple[int, int], list[Rows]] = {}
    for part in parts:
        if len(part) == 0:
            continue
        code = log_codes(part)
        for of in [part] if (code == code[0]).all() else [part.select(code == one) for one in np.unique(code)]:
            pieces.setdefault((int(of.member[0]), int(of.recorder_incarnation[0])), []).append(of)
    found = []
    for run_id in sorted(pieces):
        log = concatenated(pieces[run_id])
        if (np.diff(log.index) <= 0).any():  # the canonical order breaks ties of equal indices as in a whole trace
            log = log.canonical()
        found.append(log)
    return found


# -- every member delivered the same -------------------------------------------------------------------------


def _all_equal(logs: Sequence[Rows], sends: Rows, bound_ns: int | None) -> dict[str, object] | None:
    """The fields of the summary of a range in which all logs are equal and clean; None for any other range."""
    if not logs:
        return None
    one = logs[0]
    for log in logs:
        if len(log) != len(one) or int(log.index[-1]) - int(log.index[0]) + 1 != len(log):
            return None
        if not (np.diff(log.index) == 1).all():
            return None
        if log is not one and not all(
            np.array_equal(getattr(log, name), getattr(one, name))
            for name in ("slot", "place", "sequence", "sender", "sender_incarnation")
        ):
            return None
    step = np.diff(one.slot)
    if not ((step > 0) | ((step == 0) & (np.diff(one.place) > 0))).all():
        return None
    (stream,) = stream_codes(one)
    streams, by_stream, edges = _grouped(stream)
    sequence = one.sequence[by_stream]
    inner = np.ones(len(sequence), dtype=bool)
    inner[edges[:-1]] = False
    if not (np.diff(sequence)[inner[1:]] > 0).all():
        return None
    sent_ns = np.full(len(one), -1, dtype=np.int64)
    used, spans = np.zeros(len(sends), dtype=bool), []
    for number in range(len(streams)):
        at = by_stream[edges[number] : edges[number + 1]]
        first, last = int(one.sequence[at[0]]), int(one.sequence[at[-1]])
        spans.append(StreamSpan(int(one.sender[at[0]]), int(one.sender_incarnation[at[0]]), first, last))
        own = np.flatnonzero((sends.sender == spans[-1].sender) & (sends.sender_incarnation == spans[-1].incarnation))
        if len(own) == 0:
            continue
        numbers = sends.sequence[own]
        if not (np.diff(numbers) > 0).all():
            return None
        wanted = sequence[edges[number] : edges[number + 1]]
        if int(numbers[-1]) - int(numbers[0]) + 1 == len(numbers):  # nothing between is missing
            found = np.clip(wanted - numbers[0], 0, len(own) - 1)
        else:
            found = np.minimum(np.searchsorted(numbers, wanted), len(own) - 1)
        matched = numbers[found] == wanted
        sent_ns[at[matched]] = sends.real_ns[own[found[matched]]]
        used[own[found[matched]]] = True
    if len(spans) > len({span.sender for span in spans}) or any(np.ptp(log.priority) for log in logs):
        return None  # several incarnations of a sender, or several priorities
    latencies = LatencySummary()
    known = sent_ns >= 0
    everything = bool(known.all())
    unmatched = []
    for log in logs:
        if everything:
            latencies.add(log.real_ns - sent_ns, bound_ns, log)
        else:
            part = log.select(known)
            latencies.add(part.real_ns - sent_ns[known], bound_ns, part)
            unmatched.append(log.select(~known))
    order = OrderSummary(
        rows=sum(map(len, logs)),
        first_slot=int(one.slot[0]),
        last_slot=int(one.slot[-1]),
        dense=True,
        distinct=True,
        ordered=True,
        logs=tuple(
            LogSpan(int(log.member[0]), int(log.recorder_incarnation[0]), int(log.index[0]), int(log.index[-1]))
            for log in logs
        ),
        streams=tuple(sorted(spans, key=lambda span: (span.sender, span.incarnation))),
    )
    return {
        "order": order,
        "in_fifo": True,
        "fifo": tuple(
            FifoSpan(
                *(int(log.member[0]), int(log.recorder_incarnation[0]), span.sender, int(log.priority[0])),
                (span.incarnation, span.first_sequence),
                (span.incarnation, span.last_sequence),
                *(int(log.index[by_stream[at]]) for at in (edges[number], edges[number + 1] - 1)),
            )
            for log in logs
            for number, span in enumerate(spans)
        ),
        "delivered": order.streams,
        "keys": len(one),
        "latencies": latencies,
        "unmatched_sends": copied(sends.select(~used)),
        "unmatched_deliveries": copied(concatenated(unmatched)),
    }


def _grouped(code: Codes) -> tuple[Codes, Ints, Ints]:
    """The distinct codes, the rows sorted by code (stable), and the edges between the rows of different codes."""
    largest = int(code.max(initial=0))
    if largest < _MAX_COUNTED_CODE:  # codes begin at 0: counting spares a sort, and few bits make the other one quick
        counts = np.bincount(code)
        codes = np.flatnonzero(counts)
        counts, narrow = counts[codes], code.astype(np.uint8 if largest < 1 << 8 else np.uint16)
    else:
        codes, narrow, counts = np.unique(code, return_inverse=True, return_counts=True)
    edges = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])
    return codes, np.argsort(narrow, kind="stable"), edges


# -- members differ --------------------------------------------------------------------------------------------


def _by_sorting(logs: Sequence[Rows], sends: Rows, bound_ns: int | None) -> dict[str, object]:
    """The fields of the summary of any range of slots, found by sorting its rows."""
    deliveries = concatenated(logs) if logs else EMPTY
    in_fifo, fifo = _fifo_spans(deliveries)
    sent, delivered = message_codes(sends, deliveries)
    by_message = np.argsort(sent, kind="stable")
    at = np.minimum(np.searchsorted(sent[by_message], delivered), max(len(sent) - 1, 0))
    matched = sent[by_message][at] == delivered if len(sent) else np.zeros(len(deliveries), dtype=bool)
    taken = deliveries.select(matched)
    latencies = LatencySummary()
    if len(sent):
        latencies.add(taken.real_ns - sends.real_ns[by_message][at][matched], bound_ns, taken)
    return {
        "order": summarize_order(deliveries) if len(deliveries) else EMPTY_SUMMARY,
        "in_fifo": in_fifo,
        "fifo": fifo,
        "delivered": _sequence_spans(deliveries),
        "keys": len(np.unique(key_codes(deliveries))),
        "latencies": latencies,
        "unmatched_sends": copied(sends.select(~np.isin(sent, delivered))),
        "unmatched_deliveries": copied(deliveries.select(~matched)),
    }


def _fifo_spans(deliveries: Rows) -> tuple[bool, tuple[FifoSpan, ...]]:
    """Whether each log has the messages of each sender and priority in order, and their spans.

    The rows of each log must be sorted by index.
    """
    pair = packed(log_codes(deliveries), deliveries.sender, deliveries.priority)
    order = np.argsort(pair, kind="stable")
    number = packed(deliveries.sender_incarnation, deliveries.sequence)
    fresh = group_starts(pair[order])
    first = np.flatnonzero(fresh)
    last = np.append(first[1:], len(order)) - 1 if len(order) else first
    in_fifo = bool((np.diff(number[order])[~fresh[1:]] > 0).all())

    def numbers(rows: Ints) -> list[tuple[int, int]]:
        return list(zip(deliveries.sender_incarnation[rows].tolist(), deliveries.sequence[rows].tolist(), strict=True))

    whose = [
        getattr(deliveries, name)[order[first]].tolist()
        for name in ("member", "recorder_incarnation", "sender", "priority")
    ]
    ends = (numbers(order[first]), numbers(order[last]))
    indices = (deliveries.index[order[first]].tolist(), deliveries.index[order[last]].tolist())
    return in_fifo, tuple(FifoSpan(*span) for span in zip(*whose, *ends, *indices, strict=True))


def _histogram(latencies_ns: Ints, largest: int) -> Histogram:
    """A histogram of the latencies. There are many, so they are first counted in units of 1024 ns."""
    units = np.maximum(latencies_ns, 0) >> _UNIT_BITS
    if largest < _MAX_COUNTED_NS:
        counts = np.bincount(units)
        values = np.flatnonzero(counts)
        counts = counts[values]
    else:
        values, counts = np.unique(units, return_counts=True)
    buckets = np.searchsorted(_BUCKET_EDGES, ((values + 1) << _UNIT_BITS) - 1)
    begins = np.flatnonzero(group_starts(buckets))
    times = np.add.reduceat(counts, begins).tolist()
    return Histogram.of_pairs(list(zip(buckets[begins].tolist(), times, strict=True)), max(largest, 0))


def _late_order(late: LateDelivery) -> tuple[int, int, int, int]:
    return late.real_ns, late.member, late.recorder_incarnation, late.index
