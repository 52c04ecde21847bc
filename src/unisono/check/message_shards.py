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

from unisono.check.causal_shards import CausalEdges, causal_edges
from unisono.check.latency import latencies, sends_not_recorded
from unisono.check.member_runs import Origin, Reached, hidden_rows, origins
from unisono.check.order_kernel import StreamSpan
from unisono.check.shard_summary import Latencies, Survey
from unisono.check.suite import of_messages
from unisono.check.verdict import Doubt, Reason, Status, Verdict, check_name, unknown
from unisono.trace.kinds import EventKind
from unisono.trace.meta import RunMeta
from unisono.trace.table import Log, Mask, Rows, Trace, concatenated

Stream = tuple[int, int]
"""A sender in one of its lives."""
FOREVER = (1 << 63) - 1
READ_AGAIN = 8
"""How many times as many rows as a run has may be read for its tiles, and as one range has may be held for a tile."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Which messages belong to it, of each sender from one number to another, and in which ranges their rows are."""

    owned: Mapping[Stream, tuple[int, int]]
    ranges: tuple[int, ...]

    def rows_of(self, rows: Rows) -> Rows:
        """The sends and deliveries of its messages."""
        return rows.select(self._among(rows) & np.isin(rows.kind, (EventKind.SEND.code, EventKind.DELIVER.code)))

    def _among(self, rows: Rows) -> Mask:
        among: Mask = np.zeros(len(rows), dtype=bool)
        for (sender, incarnation), (first, last) in self.owned.items():
            of = (rows.sender == sender) & (rows.incarnation == incarnation)
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
class Frame:
    """What every tile of a run is judged by."""

    meta: RunMeta
    logs: tuple[Log, ...]
    events: Rows
    """What happened to members."""
    grades: tuple[str, ...]
    timed: str | None
    """The grade of the deliveries whose latency counts; None if there are no grades."""
    until_ns: int
    """When the run ended; for promises about that grade, when what is not of another grade did."""
    reached: Reached
    bound_ns: int | None
    limit_ns: int | None
    """Past which latency a delivery is late; None if no bound is promised of that grade."""
    causal: bool
    """Whether causal order is promised."""

    def trace(self, rows: Rows) -> Trace:
        """Some of the messages, with all that happened to members."""
        return Trace.from_rows(concatenated([rows, self.events]), self.meta, self.logs)

    def judge(self, rows: Rows) -> dict[str, Verdict]:
        """The promises about these messages."""
        return of_messages(
            self.trace(rows), self.grades, bound_ns=self.bound_ns, until_ns=self.until_ns, reached=self.reached
        )

    def plain(self) -> dict[str, Said]:
        """What is said of messages of which there is nothing to say."""
        return {name: said(verdict) for name, verdict in self.judge(concatenated([])).items()}


@dataclass(frozen=True, slots=True)
class TileFinding:
    """What one tile shows."""

    suspect: frozenset[str]
    """The checks that have something to say."""
    rows: int
    latencies: Latencies = field(default_factory=Latencies)
    untold: int = 0
    """How many deliveries there are whose send is not recorded."""
    causal: CausalEdges | None = None
    too_long: bool = False
    """Whether it has more rows than are held; nothing else is said then."""


def tiles(surveys: Sequence[Survey]) -> list[Tile]:
    """Every message in just one tile; the tiles in the order of ranges."""
    owned: list[dict[Stream, tuple[int, int]]] = [{} for _ in surveys]
    ranges: list[set[int]] = [set() for _ in surveys]
    sent, delivered = _by_stream(surveys, "sends"), _by_stream(surveys, "delivered")
    for stream in sorted(sent.keys() | delivered.keys()):
        sends, deliveries = sent.get(stream, []), delivered.get(stream, [])
        # Where a sender's log has ended, what others delivered shows where its numbers are.
        begins = _chain(sorted({span[0]: span for span in (*deliveries, *sends)}.values()))
        for at, (number, first, _) in enumerate(begins):
            last = begins[at + 1][1] - 1 if at + 1 < len(begins) else FOREVER
            owned[number][stream] = (first if at else -FOREVER, last)
            ranges[number] |= _meeting([*sends, *deliveries], *owned[number][stream])
    return [Tile(mine, tuple(sorted(numbers))) for mine, numbers in zip(owned, ranges, strict=True) if mine and numbers]


def too_scattered(found: Sequence[Tile], surveys: Sequence[Survey]) -> str:
    """Why a run is not judged by tiles: the rows of its messages lie far apart. Empty if they do not."""
    rows = sum(survey.rows for survey in surveys)
    read = sum(surveys[number].rows for tile in found for number in tile.ranges)
    if read <= READ_AGAIN * max(rows, 1):
        return ""
    return f"the rows of messages are scattered over ranges of slots: {read:,} rows would have to be read for {rows:,}"


def most_held(surveys: Sequence[Survey]) -> int:
    """How many rows one tile may have: it is about as long as a range, however long the run is."""
    return READ_AGAIN * max((survey.rows for survey in surveys), default=0)


_Spans = list[tuple[int, int, int]]
"""Range, first and last number."""


def _by_stream(surveys: Sequence[Survey], name: str) -> dict[Stream, _Spans]:
    found: dict[Stream, _Spans] = {}
    for number, survey in enumerate(surveys):
        spans: tuple[StreamSpan, ...] = getattr(survey, name)
        for span in spans:
            first_last = (span.first_sequence, span.last_sequence)
            found.setdefault((span.sender, span.incarnation), []).append((number, *first_last))
    return found


def _chain(spans: _Spans) -> _Spans:
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


def _meeting(spans: _Spans, first: int, last: int) -> set[int]:
    """The ranges with a span that meets these numbers."""
    return {number for number, begin, end in spans if begin <= last and end >= first}


def judge_tile(frame: Frame, plain: Mapping[str, Said], rows: Rows, previous: Rows | None = None) -> TileFinding:
    """Judge the rows of one tile: which checks have something to say, and how long deliveries took.

    `previous` are the rows of the tile before it.
    """
    verdicts = frame.judge(rows)
    trace = whole = frame.trace(rows)
    if frame.timed is not None:
        trace = trace.graded(frame.timed)
    deliveries = trace.deliveries()
    matched, taken_ns = latencies(trace, deliveries)
    seen = Latencies()
    seen.add(taken_ns, frame.limit_ns, deliveries.select(matched))
    untold = 0
    if len(matched) < len(deliveries):
        untold = int((origins(trace, deliveries, frame.reached) == Origin.UNTOLD).sum())
    edges = None
    if frame.causal:
        edges = causal_edges(whole, whole if previous is None else frame.trace(concatenated([previous, rows])))
    suspect = frozenset(name for name, found in verdicts.items() if said(found) != plain[name])
    return TileFinding(suspect, len(rows), seen, untold, edges)


def judge_tiles(
    frame: Frame,
    found: Sequence[TileFinding],
    load: Callable[[Collection[int]], Rows],
    looked_at_rows: int,
) -> dict[str, Verdict]:
    """The verdicts over all tiles; `load` gives the rows of those with these numbers."""
    verdicts: dict[str, Verdict] = {}
    judged: dict[tuple[int, ...], dict[str, Verdict]] = {}
    for name, plain in frame.plain().items():
        suspect = [number for number, finding in enumerate(found) if name in finding.suspect]
        if not suspect:
            text, token = ("", None) if plain.doubt is None else (plain.doubt.text, plain.doubt.reason)
            verdicts[name] = Verdict(check_name(name), plain.status, reason=text, token=token)
            continue
        chosen: list[int] = []
        rows = 0
        for number in suspect:
            rows += found[number].rows
            if chosen and rows > looked_at_rows:
                break
            chosen.append(number)
        if tuple(chosen) not in judged:
            judged[tuple(chosen)] = frame.judge(load(chosen))
        verdict = judged[tuple(chosen)][name]
        if len(chosen) < len(suspect) and verdict.status is not Status.VIOLATED:
            # A violation is one whatever the other messages show; the rest is about all of them.
            why = f"{len(suspect)} parts of the run are suspect, more than the {looked_at_rows:,} rows looked at"
            verdict = replace(unknown(verdict.name, Reason.TOO_MUCH_SUSPECT, why), figures=verdict.figures)
        verdicts[name] = verdict
    return verdicts


def timed(frame: Frame, found: Sequence[TileFinding]) -> tuple[Latencies, Doubt | None]:
    """How long the deliveries of all tiles took, and why that may not be all."""
    seen = Latencies()
    for finding in found:
        seen.merge(finding.latencies)
    untold = sum(finding.untold for finding in found)
    hidden = hidden_rows(Trace.from_rows(concatenated([]), frame.meta, frame.logs))
    return seen, hidden or sends_not_recorded(untold)
