"""The total order over one range of keys, and how ranges join: no sort, join or shuffle between ranges.

Three conditions, each checkable in a range with a summary of its edges, imply that any two members agree on all
that they share, gaps included:
1. at each member the index is dense and the key strictly increases;
2. across members key -> message is a function;
3. in the merged sequence of keys each sender's sequence numbers strictly increase. Per member would not do: a
   message moved to a key at which the other members have gaps would slip through.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from unisono.check.codes import group_starts, key_codes, log_codes, message_codes, stream_codes
from unisono.trace.table import Rows


@dataclass(frozen=True, slots=True)
class LogSpan:
    """The part of one member's deliveries that lies in a range."""

    member: int
    incarnation: int
    first_index: int
    last_index: int


@dataclass(frozen=True, slots=True)
class StreamSpan:
    """The part of one sender's messages that lies in a range, over all members."""

    sender: int
    incarnation: int
    first_sequence: int
    last_sequence: int


@dataclass(frozen=True, slots=True)
class OrderSummary:
    """What a range shows of the order: all of it where the range is clean, and its edges.

    `dense` is the first half of condition 1, `ordered` is the rest. `distinct` says that no index is there twice.
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
    """Check the deliveries of one range of slots; each log's rows must be together and in the order of index."""
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


def merge_summaries(summaries: Iterable[OrderSummary]) -> OrderSummary:
    """The summary of several ranges of slots that do not overlap."""
    ranges = sorted((s for s in summaries if s.rows), key=lambda summary: summary.first_slot)
    if not ranges:
        return EMPTY_SUMMARY
    logs: dict[tuple[int, int], LogSpan] = {}
    streams: dict[tuple[int, int], StreamSpan] = {}
    for part in ranges:
        for log in part.logs:
            known = logs.get((log.member, log.incarnation))
            logs[log.member, log.incarnation] = log if known is None else replace(known, last_index=log.last_index)
        for stream in part.streams:
            stream_id = (stream.sender, stream.incarnation)
            earlier = streams.get(stream_id)
            streams[stream_id] = stream if earlier is None else replace(earlier, last_sequence=stream.last_sequence)
    broken = list(broken_joints(ranges))
    return OrderSummary(
        rows=sum(part.rows for part in ranges),
        first_slot=ranges[0].first_slot,
        last_slot=ranges[-1].last_slot,
        dense=all(part.dense for part in ranges) and not any(joint.breaks_density for joint in broken),
        distinct=all(part.distinct for part in ranges)
        and not any(joint.breaks_density and joint.breaks_order for joint in broken),
        ordered=all(part.ordered for part in ranges) and not any(joint.breaks_order for joint in broken),
        logs=tuple(logs[key] for key in sorted(logs)),
        streams=tuple(streams[key] for key in sorted(streams)),
    )


@dataclass(frozen=True, slots=True)
class BrokenJoint:
    """Two ranges, by their place in the list, between which condition 1 (`dense`) or the order is broken."""

    earlier: int
    later: int
    breaks_density: bool
    breaks_order: bool


def broken_joints(ranges: Sequence[OrderSummary]) -> Iterator[BrokenJoint]:
    """Where ranges in the order of slots do not fit together."""
    logs: dict[tuple[int, int], tuple[int, int]] = {}
    streams: dict[tuple[int, int], tuple[int, int]] = {}
    before: int | None = None
    for number, part in enumerate(ranges):
        if part.rows == 0:
            continue
        if before is not None and part.first_slot <= before:
            raise ValueError(f"ranges overlap at slot {part.first_slot}")
        before = part.last_slot
        for log in part.logs:
            at, last = logs.get((log.member, log.incarnation), (number, log.first_index - 1))
            # Keys grow with the index across the edge, or a later range was delivered before an earlier.
            if last + 1 != log.first_index:
                yield BrokenJoint(at, number, breaks_density=True, breaks_order=last >= log.first_index)
            logs[log.member, log.incarnation] = (number, log.last_index)
        for stream in part.streams:
            at, last = streams.get((stream.sender, stream.incarnation), (number, stream.first_sequence - 1))
            if last >= stream.first_sequence:
                yield BrokenJoint(at, number, breaks_density=False, breaks_order=True)
            streams[stream.sender, stream.incarnation] = (number, stream.last_sequence)


def is_dense_from_zero(summary: OrderSummary) -> bool:
    """Whether each log is dense from its first delivery on: condition 1 for a whole run."""
    return summary.dense and all(log.first_index == 0 for log in summary.logs)
