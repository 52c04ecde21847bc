"""A run cut by its messages: each belongs to one tile, which sees all sends and deliveries of its messages.

Promises about one message each (`check.suite.of_messages`) are judged tile by tile, by the same checkers as a whole
run. Tiles with something to say are put together and judged once more as one: clean ones add nothing to a verdict, so
it is that of the whole run, witness included.

A sender numbers its messages as time goes by, and a message's rows lie in the slots around its sending. So a tile is,
of each sender, the numbers that it sent in one range of slots, and its rows are in that range and, at times, in a
neighbour.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from unisono.check.causal_shards import CausalShardSummary, summarize_causal_order
from unisono.check.columns import LastLogged, SendStatus, dropped_rows_reason, send_statuses
from unisono.check.shard_summary import LatencySummary, RangeSummary
from unisono.check.suite import check_messages
from unisono.check.timing import latencies, sends_not_recorded
from unisono.check.total_order import StreamSpan
from unisono.check.verdict import Doubt, Reason, Status, Verdict, check_name, unknown
from unisono.trace.schema import EventKind, RunMeta
from unisono.trace.table import Mask, MemberLog, Rows, Trace, concatenated

StreamId = tuple[int, int]
"""A sender in one of its lives."""
FOREVER = (1 << 63) - 1
MAX_REREAD_FACTOR = 8
"""How many times as many rows as a run has may be read for its tiles, and as one range has may be held for a tile."""


@dataclass(frozen=True, slots=True)
class MessageShard:
    """Which messages belong to it, of each sender from one number to another, and in which ranges their rows are."""

    sequence_ranges: Mapping[StreamId, tuple[int, int]]
    ranges: tuple[int, ...]

    def select_rows(self, rows: Rows) -> Rows:
        """The sends and deliveries of its messages."""
        return rows.select(self._contains(rows) & np.isin(rows.kind, (EventKind.SEND.code, EventKind.DELIVER.code)))

    def _contains(self, rows: Rows) -> Mask:
        among: Mask = np.zeros(len(rows), dtype=bool)
        for (sender, incarnation), (first, last) in self.sequence_ranges.items():
            of = (rows.sender == sender) & (rows.sender_incarnation == incarnation)
            among |= of & (rows.sequence >= first) & (rows.sequence <= last)
        return among


@dataclass(frozen=True, slots=True)
class Said:
    """A verdict without its witness. Equal texts say the same; a text that differs only makes a tile suspect."""

    status: Status
    doubt: Doubt | None


def said(verdict: Verdict) -> Said:
    """What a verdict says; that nothing was recorded says nothing about a part of a run."""
    if verdict.status is Status.UNKNOWN and verdict.token is Reason.NOTHING_RECORDED:
        return Said(Status.VALID, None)
    return Said(verdict.status, None if verdict.token is None else Doubt(verdict.token, verdict.reason))


@dataclass(frozen=True, slots=True)
class RunContext:
    """What every tile of a run is judged by."""

    meta: RunMeta
    logs: tuple[MemberLog, ...]
    events: Rows
    """What happened to members."""
    grades: tuple[str, ...]
    timed_grade: str | None
    """The grade of the deliveries whose latency counts; None if there are no grades."""
    until_ns: int
    """When the run ended; for promises about that grade, when what is not of another grade did."""
    last_logged: LastLogged
    bound_ns: int | None
    late_after_ns: int | None
    """Past which latency a delivery is late; None if no bound is promised of that grade."""
    checks_causal: bool
    """Whether causal order is promised."""

    def with_member_events(self, rows: Rows) -> Trace:
        """Some of the messages, with all that happened to members."""
        return Trace.from_rows(concatenated([rows, self.events]), self.meta, self.logs)

    def check(self, rows: Rows) -> dict[str, Verdict]:
        """The promises about these messages."""
        return check_messages(
            self.with_member_events(rows),
            self.grades,
            bound_ns=self.bound_ns,
            until_ns=self.until_ns,
            last_logged=self.last_logged,
        )

    def nothing_found(self) -> dict[str, Said]:
        """What is said of messages of which there is nothing to say."""
        return {name: said(verdict) for name, verdict in self.check(concatenated([])).items()}


@dataclass(frozen=True, slots=True)
class ShardFinding:
    """What one tile shows."""

    suspect_checks: frozenset[str]
    """The checks that have something to say."""
    rows: int
    latencies: LatencySummary = field(default_factory=LatencySummary)
    unrecorded_sends: int = 0
    """How many deliveries there are whose send is not recorded."""
    causal: CausalShardSummary | None = None
    too_large: bool = False
    """Whether it has more rows than are held; nothing else is said then."""


def message_shards(summaries: Sequence[RangeSummary]) -> list[MessageShard]:
    """Every message in just one tile; the tiles in the order of ranges."""
    owned: list[dict[StreamId, tuple[int, int]]] = [{} for _ in summaries]
    ranges: list[set[int]] = [set() for _ in summaries]
    sent, delivered = _spans_by_stream(summaries, "sends"), _spans_by_stream(summaries, "delivered")
    for stream in sorted(sent.keys() | delivered.keys()):
        sends, deliveries = sent.get(stream, []), delivered.get(stream, [])
        # Where a sender's log has ended, what others delivered shows where its numbers are.
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
    """Why a run is not judged by tiles: the rows of its messages lie far apart. Empty if they do not."""
    rows = sum(survey.rows for survey in summaries)
    read = sum(summaries[number].rows for tile in shards for number in tile.ranges)
    if read <= MAX_REREAD_FACTOR * max(rows, 1):
        return ""
    return f"the rows of messages are scattered over ranges of slots: {read:,} rows would have to be read for {rows:,}"


def max_shard_rows(summaries: Sequence[RangeSummary]) -> int:
    """How many rows one tile may have: it is about as long as a range, however long the run is."""
    return MAX_REREAD_FACTOR * max((survey.rows for survey in summaries), default=0)


_Spans = list[tuple[int, int, int]]
"""Range, first and last number."""


def _spans_by_stream(summaries: Sequence[RangeSummary], name: str) -> dict[StreamId, _Spans]:
    found: dict[StreamId, _Spans] = {}
    for number, survey in enumerate(summaries):
        spans: tuple[StreamSpan, ...] = getattr(survey, name)
        for span in spans:
            first_last = (span.first_sequence, span.last_sequence)
            found.setdefault((span.sender, span.incarnation), []).append((number, *first_last))
    return found


def _increasing_chain(spans: _Spans) -> _Spans:
    """As many of these as have first numbers that grow: a stray number ends no other's tile."""
    ends: list[int] = []  # of the chains of each length, the one that ends lowest, by its last span
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
    """The ranges with a span that meets these numbers."""
    return {number for number, begin, end in spans if begin <= last and end >= first}


def check_shard(
    context: RunContext, nothing_found: Mapping[str, Said], rows: Rows, previous: Rows | None = None
) -> ShardFinding:
    """Judge the rows of one tile: which checks have something to say, and how long deliveries took.

    `previous` are the rows of the tile before it.
    """
    verdicts = context.check(rows)
    trace = whole = context.with_member_events(rows)
    if context.timed_grade is not None:
        trace = trace.with_grade(context.timed_grade)
    deliveries = trace.deliveries()
    matched, taken_ns = latencies(trace, deliveries)
    seen = LatencySummary()
    seen.add(taken_ns, context.late_after_ns, deliveries.select(matched))
    untold = 0
    if len(matched) < len(deliveries):
        untold = int((send_statuses(trace, deliveries, context.last_logged) == SendStatus.NOT_RECORDED).sum())
    edges = None
    if context.checks_causal:
        edges = summarize_causal_order(
            whole, whole if previous is None else context.with_member_events(concatenated([previous, rows]))
        )
    suspect = frozenset(name for name, found in verdicts.items() if said(found) != nothing_found[name])
    return ShardFinding(suspect, len(rows), seen, untold, edges)


def check_shards(
    context: RunContext,
    findings: Sequence[ShardFinding],
    load: Callable[[Collection[int]], Rows],
    max_suspect_rows: int,
) -> dict[str, Verdict]:
    """The verdicts over all tiles; `load` gives the rows of those with these numbers."""
    verdicts: dict[str, Verdict] = {}
    judged: dict[tuple[int, ...], dict[str, Verdict]] = {}
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
        if tuple(chosen) not in judged:
            judged[tuple(chosen)] = context.check(load(chosen))
        verdict = judged[tuple(chosen)][name]
        if len(chosen) < len(suspect) and verdict.status is not Status.VIOLATED:
            # A violation is one whatever the other messages show; the rest is about all of them.
            why = f"{len(suspect)} parts of the run are suspect, more than the {max_suspect_rows:,} rows looked at"
            verdict = replace(unknown(verdict.name, Reason.TOO_MUCH_SUSPECT, why), figures=verdict.figures)
        verdicts[name] = verdict
    return verdicts


def measured_latencies(context: RunContext, findings: Sequence[ShardFinding]) -> tuple[LatencySummary, Doubt | None]:
    """How long the deliveries of all tiles took, and why that may not be all."""
    seen = LatencySummary()
    for finding in findings:
        seen.merge(finding.latencies)
    untold = sum(finding.unrecorded_sends for finding in findings)
    hidden = dropped_rows_reason(Trace.from_rows(concatenated([]), context.meta, context.logs))
    return seen, hidden or sends_not_recorded(untold)
