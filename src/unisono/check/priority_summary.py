"""The summary of one range of slots of a run of the priority order: which messages have rows in it.

The slot of a delivery or queue step is the message's number in the agreed order; a send has the slot of its time.
So a message's rows lie in several ranges, and each summary says which messages it has. Members send, receive and
consume nearly in sequence, so sets of messages are stored as ranges of sequence numbers (`model.message_set`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from unisono.check.columns import Codes, MemberRunId, group_starts, key_codes, log_codes, message_codes, packed
from unisono.check.shard_summary import RangeSummary, summarize_range
from unisono.model.message_set import MessageRef, MessageSet
from unisono.trace.schema import ABSENT, EventKind
from unisono.trace.table import EMPTY, Mask, Rows, concatenated, constant, copied

_QUEUE_STEP_KINDS = (EventKind.RECEIVE.code, EventKind.QUEUE.code)


@dataclass(frozen=True, slots=True)
class DeliverySpan:
    """The deliveries of one member run in one range of slots."""

    run_id: MemberRunId
    count: int
    first_index: int
    last_index: int
    first_slot: int
    last_slot: int
    indices: MessageSet
    """The indices of these deliveries, stored as if they were sequence numbers of this member run."""
    distinct: bool
    """Whether no two of these deliveries have the same index."""
    last_ns: int
    last_message: MessageRef
    """The message of the delivery with the largest key (slot, position in slot)."""


@dataclass(frozen=True, slots=True)
class ReceptionSummary:
    """The receptions of one member run in one range of slots."""

    max_consumed: int
    """The largest number of messages consumed before a reception."""
    all_counted: bool
    """Whether every reception records how many messages the member had consumed before it."""
    last_ns: int

    def merged(self, other: ReceptionSummary) -> ReceptionSummary:
        """The receptions in this range and in another."""
        most_consumed = max(self.max_consumed, other.max_consumed)
        return ReceptionSummary(most_consumed, self.all_counted and other.all_counted, max(self.last_ns, other.last_ns))


NO_RECEPTION_SUMMARY = ReceptionSummary(0, True, 0)


@dataclass(frozen=True, slots=True)
class PriorityRangeSummary:
    """The facts about one range of slots that the checkers of the priority order need."""

    base: RangeSummary
    """The summary for any order, without unmatched messages."""
    last_non_delivery_ns: int
    """The real time of the last row in the range that is not a delivery."""
    spans: tuple[DeliverySpan, ...]
    has_ungraded: bool
    """Whether some delivery has no grade."""
    ordered: bool
    """Whether keys (slot, position in slot) and messages are one to one, and keys grow with the index in each log."""
    is_sequential: bool
    """Whether `ordered` holds, slots grow by one with each index of a log, and each message has one priority."""
    delivered_twice: MessageSet
    """Messages that some log delivered twice."""
    delivered: dict[MemberRunId, MessageSet]
    sent: dict[MemberRunId, MessageSet]
    received: dict[tuple[MemberRunId, int], MessageSet]
    """The messages that each member run received in each view."""
    reception_times: dict[tuple[MemberRunId, int], tuple[int, int]]
    """For each member run and view, the times of the first and the last reception."""
    received_twice: MessageSet
    """Messages that some log received twice in one view."""
    queued: MessageSet
    """Messages that some member put into its queue."""
    receptions: dict[MemberRunId, ReceptionSummary]
    slot_spans_by_priority: dict[int, tuple[int, int]]
    """By priority, the first and the last slot in which such a message was delivered."""
    last_delivered: dict[tuple[MemberRunId, int], MessageSet]
    """The last message of each sender that each log delivered, by log and priority."""

    def all_delivered(self) -> MessageSet:
        """All delivered messages."""
        return union(self.delivered.values())

    def all_received(self) -> MessageSet:
        """All received messages."""
        return union(self.received.values())

    def has_steps(self) -> bool:
        """Whether the range has receptions, queue steps or deliveries."""
        return bool(self.spans or self.received or self.queued)

    def all_sent(self) -> MessageSet:
        """All sent messages."""
        return union(self.sent.values())


def summarize_priority_range(
    parts: Sequence[Rows], first_slot: int, last_slot: int, excluded_logs: Collection[MemberRunId] = ()
) -> PriorityRangeSummary:
    """Summarize the rows of a range, without the deliveries of `excluded_logs`."""
    parts = (
        [rows.select(~((rows.kind == _DELIVER) & in_logs(rows, excluded_logs))) for rows in parts]
        if excluded_logs
        else parts
    )
    sends, receives, queued, deliveries, events = (
        [_of_kinds(part, *kinds) for part in parts] for kinds in _KIND_GROUPS
    )
    deliveries = [
        rows.select(np.argsort(rows.index, kind="stable")) for _, rows in rows_by_run(concatenated(deliveries))
    ]
    received_rows, sent = concatenated(receives), concatenated(sends)
    base = summarize_range([*deliveries, *map(copied, events)], first_slot, last_slot, grade=None, bound_ns=None)
    delivered = concatenated(deliveries)
    ordered, sequential = _is_ordered_and_sequential(delivered)
    received_by_view = _rows_by_view(received_rows)
    return PriorityRangeSummary(
        base=replace(base, rows=sum(map(len, parts)), unmatched_deliveries=EMPTY, unmatched_sends=EMPTY),
        last_non_delivery_ns=max(int(part.real_ns[part.kind != _DELIVER].max(initial=0)) for part in (*parts, EMPTY)),
        spans=tuple(map(_delivery_span, deliveries)),
        has_ungraded=bool((delivered.grade == ABSENT).any()),
        ordered=ordered,
        is_sequential=sequential,
        delivered_twice=union(_repeated_messages(rows) for rows in deliveries),
        delivered={_run_id(rows): message_set(rows) for rows in deliveries},
        sent={run_id: message_set(rows) for run_id, rows in rows_by_run(sent)},
        received={key: message_set(rows) for key, rows in received_by_view},
        reception_times={key: (int(rows.real_ns.min()), int(rows.real_ns.max())) for key, rows in received_by_view},
        received_twice=union(_repeated_messages(rows) for (_, view), rows in received_by_view if view != ABSENT),
        queued=message_set(concatenated(queued)),
        receptions={run_id: _reception_summary(rows) for run_id, rows in rows_by_run(received_rows)},
        slot_spans_by_priority=_slot_spans_by_priority(delivered),
        last_delivered={
            (run_id, level): _last_of_each_sender(rows.select(rows.priority == level))
            for run_id, rows in rows_by_run(delivered)
            for level in np.unique(rows.priority).tolist()
        },
    )


_DELIVER = EventKind.DELIVER.code
_SEND = EventKind.SEND.code
_KIND_GROUPS = (
    (_SEND,),
    (EventKind.RECEIVE.code,),
    (EventKind.QUEUE.code,),
    (_DELIVER,),
    tuple(kind.code for kind in EventKind if kind.code not in (_SEND, _DELIVER, *_QUEUE_STEP_KINDS)),
)


def _of_kinds(rows: Rows, *kinds: int) -> Rows:
    """The rows of some kinds, without the column `messages`, which is large and not needed here."""
    chosen = rows.select(np.isin(rows.kind, kinds))
    return replace(chosen, messages=constant(len(chosen), np.int32), message_texts=())


def _run_id(rows: Rows) -> MemberRunId:
    return int(rows.member[0]), int(rows.recorder_incarnation[0])


def in_logs(rows: Rows, logs: Collection[MemberRunId]) -> Mask:
    """A mask of the rows of these logs."""
    mask: Mask = np.zeros(len(rows), dtype=bool)
    for member, incarnation in sorted(logs):
        mask |= (rows.member == member) & (rows.recorder_incarnation == incarnation)
    return mask


def rows_by_run(rows: Rows) -> list[tuple[MemberRunId, Rows]]:
    """The rows of each log."""
    code = log_codes(rows)
    parts = [rows.select(code == value) for value in np.unique(code).tolist()]
    return [(_run_id(part), part) for part in parts]


def _rows_by_view(rows: Rows) -> list[tuple[tuple[MemberRunId, int], Rows]]:
    return [
        ((run_id, view), part.select(part.view == view))
        for run_id, part in rows_by_run(rows)
        for view in np.unique(part.view).tolist()
    ]


def union(sets: Iterable[MessageSet]) -> MessageSet:
    """The union of sets of messages."""
    total = MessageSet()
    for messages in sets:
        total = total | messages
    return total


def message_set(rows: Rows) -> MessageSet:
    """The messages of these rows."""
    if len(rows) == 0:
        return MessageSet()
    order = np.lexsort((rows.sequence, rows.sender_incarnation, rows.sender))
    sender, incarnation = rows.sender[order].astype(np.int64), rows.sender_incarnation[order]
    number = rows.sequence[order]
    starts_range = np.ones(len(order), dtype=bool)
    starts_range[1:] = (np.diff(sender) != 0) | (np.diff(incarnation) != 0) | (np.diff(number) > 1)
    first = np.flatnonzero(starts_range)
    last = np.append(first[1:], len(order)) - 1
    ranges: dict[tuple[int, int], list[tuple[int, int]]] = {}
    columns = (sender[first], incarnation[first], number[first], number[last])
    for range_sender, range_incarnation, begin, end in zip(*(column.tolist() for column in columns), strict=True):
        ranges.setdefault((range_sender, range_incarnation), []).append((begin, end))
    return MessageSet({origin: tuple(spans) for origin, spans in ranges.items()})


def in_message_set(rows: Rows, wanted: MessageSet) -> Mask:
    """A mask of the rows of these messages."""
    mask: Mask = np.zeros(len(rows), dtype=bool)
    for (sender, incarnation), ranges in wanted.ranges.items():
        candidates = np.flatnonzero((rows.sender == sender) & (rows.sender_incarnation == incarnation))
        firsts, lasts = (np.array(ends, dtype=np.int64) for ends in zip(*ranges, strict=True))
        at = np.searchsorted(firsts, rows.sequence[candidates], side="right") - 1
        mask[candidates[(at >= 0) & (rows.sequence[candidates] <= lasts[np.maximum(at, 0)])]] = True
    return mask


def _repeated_messages(rows: Rows) -> MessageSet:
    """The messages that have several rows."""
    (message,) = message_codes(rows)
    order = np.argsort(message, kind="stable")
    return message_set(rows.select(order[~group_starts(message[order])])) if len(rows) else MessageSet()


def _last_of_each_sender(rows: Rows) -> MessageSet:
    return MessageSet({origin: (ranges[-1][1:] * 2,) for origin, ranges in message_set(rows).ranges.items()})


def _delivery_span(rows: Rows) -> DeliverySpan:
    """The deliveries of one log; its rows must be sorted by index."""
    steps = np.diff(rows.index)
    begins = np.flatnonzero(np.append(True, steps > 1))
    ends = np.append(begins[1:], len(rows)) - 1
    indices = zip(rows.index[begins].tolist(), rows.index[ends].tolist(), strict=True)
    last = int(np.argmax(key_codes(rows)))
    return DeliverySpan(
        run_id=_run_id(rows),
        count=len(rows),
        first_index=int(rows.index[0]),
        last_index=int(rows.index[-1]),
        first_slot=int(rows.slot.min()),
        last_slot=int(rows.slot.max()),
        indices=MessageSet({_run_id(rows): tuple(indices)}),
        distinct=bool((steps > 0).all()),
        last_ns=int(rows.real_ns.max()),
        last_message=MessageRef(int(rows.sender[last]), int(rows.sender_incarnation[last]), int(rows.sequence[last])),
    )


def _reception_summary(rows: Rows) -> ReceptionSummary:
    return ReceptionSummary(int(rows.index.max()), bool((rows.index >= 0).all()), int(rows.real_ns.max()))


def _is_ordered_and_sequential(deliveries: Rows) -> tuple[bool, bool]:
    """The fields `ordered` and `is_sequential` of a summary. Deliveries must be sorted by log and index."""
    if len(deliveries) == 0:
        return True, True
    key, (message,) = key_codes(deliveries), message_codes(deliveries)
    inner = ~group_starts(log_codes(deliveries))[1:]
    keys = _distinct_count(key)
    ordered = bool((np.diff(key)[inner] > 0).all())
    ordered = ordered and keys == _distinct_count(message) == _distinct_count(packed(key, message))
    follow = [bool((np.diff(column)[inner] == 1).all()) for column in (deliveries.slot, deliveries.index)]
    sequential = ordered and all(follow) and bool((deliveries.place == deliveries.place[0]).all())
    return ordered, sequential and _distinct_count(packed(message, deliveries.priority)) == keys


def _distinct_count(code: Codes) -> int:
    return len(np.unique(code))


def _slot_spans_by_priority(deliveries: Rows) -> dict[int, tuple[int, int]]:
    found = {}
    for level in np.unique(deliveries.priority).tolist():
        slots = deliveries.slot[deliveries.priority == level]
        found[level] = int(slots.min()), int(slots.max())
    return found
