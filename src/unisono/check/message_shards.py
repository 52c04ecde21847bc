"""A run divided by messages: each message belongs to one shard, which has all its sends and deliveries.

Promises about single messages (`check.suite.check_messages`) are checked shard by shard, by the same checkers as a
whole run. Suspect shards are then joined and checked once more. Clean shards add nothing to a verdict, so the result is
that of the whole run, witness included.

A sender numbers its messages over time, and a message's rows lie in the slots around its sending. So a shard has, for
each sender, the sequence numbers that it sent in one range of slots; its rows are in that range and sometimes in a
neighbouring one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from unisono.check.causal_shards import CausalShardSummary, summarize_causal_order
from unisono.check.columns import LastLogged, dropped_rows_reason, unrecorded_sends
from unisono.check.latency import latencies, sends_not_recorded
from unisono.check.shard_summary import LatencySummary, RangeSummary
from unisono.check.suite import check_messages
from unisono.check.total_order import StreamSpan
from unisono.check.verdict import Doubt, Reason, Status, Verdict, check_name, unknown
from unisono.trace.schema import EventKind, RunMeta
from unisono.trace.table import Mask, MemberLog, Rows, Trace, concatenated

StreamId = tuple[int, int]
"""A sender and its incarnation."""
FOREVER = (1 << 63) - 1
MAX_REREAD_FACTOR = 8
"""Limits reading: all shards together may read this many times the rows of the run, and one shard may hold this many
times the rows of the largest range."""


@dataclass(frozen=True, slots=True)
class MessageShard:
    """The messages of a shard, as a range of sequence numbers for each sender, and the ranges that have their rows."""

    sequence_ranges: Mapping[StreamId, tuple[int, int]]
    ranges: tuple[int, ...]

    def select_rows(self, rows: Rows) -> Rows:
        """The sends and deliveries of the shard's messages among these rows."""
        return rows.select(self._contains(rows) & np.isin(rows.kind, (EventKind.SEND.code, EventKind.DELIVER.code)))

    def _contains(self, rows: Rows) -> Mask:
        among: Mask = np.zeros(len(rows), dtype=bool)
        for (sender, incarnation), (first, last) in self.sequence_ranges.items():
            of = (rows.sender == sender) & (rows.sender_incarnation == incarnation)
            among |= of & (rows.sequence >= first) & (rows.sequence <= last)
        return among


@dataclass(frozen=True, slots=True)
class VerdictSummary:
    """A verdict without its witness.

    A shard whose summaries differ from those of a clean shard is suspect and is checked again.
    """

    status: Status
    doubt: Doubt | None


def summarize_verdict(verdict: Verdict) -> VerdictSummary:
    """A verdict without its witness. "Nothing recorded" becomes valid, because other shards may have rows."""
    if verdict.status is Status.UNKNOWN and verdict.token is Reason.NOTHING_RECORDED:
        return VerdictSummary(Status.VALID, None)
    return VerdictSummary(verdict.status, None if verdict.token is None else Doubt(verdict.token, verdict.reason))


@dataclass(frozen=True, slots=True)
class RunContext:
    """What the check of a message shard needs to know about the whole run."""

    meta: RunMeta
    logs: tuple[MemberLog, ...]
    events: Rows
    """The rows of member events of the whole run, such as START, LEAVE and CRASH."""
    grades: tuple[str, ...]
    timed_grade: str | None
    """The grade of the deliveries whose latency counts; None if there are no grades."""
    until_ns: int
    """When the run ended. For promises about one grade, deliveries of other grades do not count."""
    last_logged: LastLogged
    bound_ns: int | None
    late_after_ns: int | None
    """A delivery with a larger latency is late; None if the timed grade has no promised bound."""
    checks_causal: bool
    """Whether the run promised causal order."""

    def with_member_events(self, rows: Rows) -> Trace:
        """A trace of these rows and all member events."""
        return Trace.from_rows(concatenated([rows, self.events]), self.meta, self.logs)

    def check(self, rows: Rows) -> dict[str, Verdict]:
        """Check the promises about the messages of these rows: one verdict per promise."""
        return check_messages(
            self.with_member_events(rows),
            self.grades,
            bound_ns=self.bound_ns,
            until_ns=self.until_ns,
            last_logged=self.last_logged,
        )

    def nothing_found(self) -> dict[str, VerdictSummary]:
        """The verdicts that a message shard without any violation gets."""
        return {name: summarize_verdict(verdict) for name, verdict in self.check(concatenated([])).items()}


@dataclass(frozen=True, slots=True)
class ShardFinding:
    """The result of checking one message shard."""

    suspect_checks: frozenset[str]
    """The names of the checks whose verdict differs from that of a shard without violations."""
    rows: int
    latencies: LatencySummary = field(default_factory=LatencySummary)
    unrecorded_sends: int = 0
    """The number of deliveries whose send is not recorded."""
    causal: CausalShardSummary | None = None
    too_large: bool = False
    """Whether the shard has more rows than may be held; the other fields mean nothing then."""


def message_shards(summaries: Sequence[RangeSummary]) -> list[MessageShard]:
    """Message shards, sorted by range of slots, such that every message is in exactly one of them."""
    owned: list[dict[StreamId, tuple[int, int]]] = [{} for _ in summaries]
    ranges: list[set[int]] = [set() for _ in summaries]
    sent, delivered = _spans_by_stream(summaries, "sends"), _spans_by_stream(summaries, "delivered")
    for stream in sorted(sent.keys() | delivered.keys()):
        sends, deliveries = sent.get(stream, []), delivered.get(stream, [])
        # After the end of a sender's log, the deliveries at other members show where its sequence numbers lie.
        begins = _increasing_chain(sorted({span[0]: span for span in (*deliveries, *sends)}.values()))
        for at, (number, first, _) in enumerate(begins):
            last = begins[at + 1][1] - 1 if at + 1 < len(begins) else FOREVER
            owned[number][stream] = (first if at else -FOREVER, last)
            ranges[number] |= _ranges_meeting([*sends, *deliveries], *owned[number][stream])
    return [
        MessageShard(mine, tuple(sorted(numbers)))
        for mine, numbers in zip(owned, ranges, strict=True)
        if mine and numbers
    ]


def scattered_reason(shards: Sequence[MessageShard], summaries: Sequence[RangeSummary]) -> str:
    """Why a run cannot be checked by shards: the rows of its messages lie too far apart. Empty if it can."""
    rows = sum(summary.rows for summary in summaries)
    read = sum(summaries[number].rows for shard in shards for number in shard.ranges)
    if read <= MAX_REREAD_FACTOR * max(rows, 1):
        return ""
    return f"the rows of messages are scattered over ranges of slots: to check {rows:,} rows means to read {read:,}"


def max_shard_rows(summaries: Sequence[RangeSummary]) -> int:
    """The most rows that one message shard may have. It depends on the length of ranges, not on that of the run."""
    return MAX_REREAD_FACTOR * max((summary.rows for summary in summaries), default=0)


_Spans = list[tuple[int, int, int]]
"""One sender's sequence numbers by range of slots: triples (number of the range, first sequence, last sequence)."""


def _spans_by_stream(summaries: Sequence[RangeSummary], name: str) -> dict[StreamId, _Spans]:
    found: dict[StreamId, _Spans] = {}
    for number, summary in enumerate(summaries):
        spans: tuple[StreamSpan, ...] = getattr(summary, name)
        for span in spans:
            first_last = (span.first_sequence, span.last_sequence)
            found.setdefault((span.sender, span.incarnation), []).append((number, *first_last))
    return found


def _increasing_chain(spans: _Spans) -> _Spans:
    """The longest subsequence of spans whose first sequence numbers grow.

    It leaves out sequence numbers that do not fit, so that they do not become edges of shards.
    """
    ends: list[int] = []  # for each length, the last span of the chain that ends lowest
    before: list[int] = []
    for at, (_, first, _) in enumerate(spans):
        length = bisect_left(ends, first, key=lambda end: spans[end][1])
        before.append(ends[length - 1] if length else -1)
        ends[length : length + 1] = [at]
    chain, at = [], ends[-1]
    while at >= 0:
        chain.append(spans[at])
        at = before[at]
    return chain[::-1]


def _ranges_meeting(spans: _Spans, first: int, last: int) -> set[int]:
    """The ranges of slots that have a sequence number from `first` to `last`."""
    return {number for number, begin, end in spans if begin <= last and end >= first}


def check_shard(
    context: RunContext, nothing_found: Mapping[str, VerdictSummary], rows: Rows, previous: Rows | None = None
) -> ShardFinding:
    """Check the rows of one message shard: which checks find something, and the latencies of deliveries.

    `previous` has the rows of the previous shard.
    """
    verdicts = context.check(rows)
    trace = whole = context.with_member_events(rows)
    if context.timed_grade is not None:
        trace = trace.with_grade(context.timed_grade)
    deliveries = trace.deliveries()
    matched, taken_ns = latencies(trace, deliveries)
    seen = LatencySummary()
    seen.add(taken_ns, context.late_after_ns, deliveries.select(matched))
    not_recorded = 0
    if len(matched) < len(deliveries):
        not_recorded = unrecorded_sends(trace, deliveries, context.last_logged)
    edges = None
    if context.checks_causal:
        edges = summarize_causal_order(
            whole, whole if previous is None else context.with_member_events(concatenated([previous, rows]))
        )
    suspect = frozenset(name for name, found in verdicts.items() if summarize_verdict(found) != nothing_found[name])
    return ShardFinding(suspect, len(rows), seen, not_recorded, edges)


def check_shards(
    context: RunContext,
    findings: Sequence[ShardFinding],
    load: Callable[[Collection[int]], Rows],
    max_suspect_rows: int,
) -> dict[str, Verdict]:
    """One verdict per promise over all message shards; `load` returns the rows of the shards with these numbers."""
    verdicts: dict[str, Verdict] = {}
    checked: dict[tuple[int, ...], dict[str, Verdict]] = {}
    for name, plain in context.nothing_found().items():
        suspect = [number for number, finding in enumerate(findings) if name in finding.suspect_checks]
        if not suspect:
            text, token = ("", None) if plain.doubt is None else (plain.doubt.text, plain.doubt.reason)
            verdicts[name] = Verdict(check_name(name), plain.status, reason=text, token=token)
            continue
        chosen: list[int] = []
        rows = 0
        for number in suspect:
            rows += findings[number].rows
            if chosen and rows > max_suspect_rows:
                break
            chosen.append(number)
        if tuple(chosen) not in checked:
            checked[tuple(chosen)] = context.check(load(chosen))
        verdict = checked[tuple(chosen)][name]
        if len(chosen) < len(suspect) and verdict.status is not Status.VIOLATED:
            # A violation stands regardless of other messages; any other verdict would need all of them.
            total = sum(findings[number].rows for number in suspect)
            why = f"the suspect message shards have {total:,} rows, but at most {max_suspect_rows:,} can be checked"
            verdict = replace(unknown(verdict.name, Reason.TOO_MUCH_SUSPECT, why), figures=verdict.figures)
        verdicts[name] = verdict
    return verdicts


def measured_latencies(context: RunContext, findings: Sequence[ShardFinding]) -> tuple[LatencySummary, Doubt | None]:
    """The latencies of the deliveries of all message shards, and why some may be missing (None if none is)."""
    seen = LatencySummary()
    for finding in findings:
        seen.merge(finding.latencies)
    not_recorded = sum(finding.unrecorded_sends for finding in findings)
    hidden = dropped_rows_reason(Trace.from_rows(concatenated([]), context.meta, context.logs))
    return seen, hidden or sends_not_recorded(not_recorded)
