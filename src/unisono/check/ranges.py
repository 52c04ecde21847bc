"""Verdicts over a run of any length: from the surveys of its ranges, and from the rows of suspect ranges alone.

Where the surveys prove a promise kept, no row is read again. Otherwise the checkers of this room judge a part of the
run: the rows of the suspect ranges, every event of the members' lives, and the sends of messages whose delivery lies
in another range. Indices and keys stay what they are, so a witness is the one that the whole run would give.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np

from unisono.check import rate_compliance
from unisono.check.codes import message_codes
from unisono.check.fifo import fifo
from unisono.check.gap_freedom import gap_freedom
from unisono.check.gaps_explained import gaps_explained
from unisono.check.integrity import integrity
from unisono.check.latency import latencies, sends_not_recorded
from unisono.check.member_runs import NOTHING, Origin, hidden_rows, lives, origins
from unisono.check.order_kernel import LogSpan
from unisono.check.shard_summary import FifoSpan, Latencies, Survey, reached
from unisono.check.total_order import index_twice, total_order
from unisono.check.verdict import Doubt, MessageId, Position, Reason, Status, Verdict, Witness, kept, unknown
from unisono.trace.meta import RunMeta
from unisono.trace.table import Log, Rows, Trace, concatenated

LOOKED_AT_ROWS = 5_000_000
"""So many rows of suspect ranges are read; violations further on are not counted."""
SOUND_IN_PARTS = frozenset({"total_order", "fifo", "latency"})
"""A violation of these is one whatever else the run holds."""


@dataclass(frozen=True, slots=True)
class Findings:
    """The surveys of all ranges of one run and one grade, in the order of slots, and how to read a range's rows."""

    meta: RunMeta
    logs: tuple[Log, ...]
    surveys: tuple[Survey, ...]
    load: Callable[[Sequence[int]], Rows]
    """The rows of the ranges with these numbers."""
    grade: str | None = None
    bound_ns: int | None = None
    looked_at_rows: int = LOOKED_AT_ROWS
    whole_rows: int = LOOKED_AT_ROWS
    """A run of so many rows that is not proven clean is read as a whole."""


@dataclass(frozen=True, slots=True)
class _Crossing:
    """Messages whose send and deliveries lie in different ranges, and what has no counterpart anywhere."""

    sends: Rows
    """Sends of messages that were delivered in another range."""
    latencies: Latencies
    unmatched: Rows
    """Deliveries of which no send was found where it could be."""
    never_sent: frozenset[int]
    """The ranges with deliveries of which no send was found, and those in which it may be."""
    undelivered: frozenset[int]
    """The ranges with sends that nobody delivered."""


def check_ranges(found: Findings, only: Collection[str] = ()) -> dict[str, Verdict]:
    """One verdict per promise, as `check.suite.check_all` gives over the whole run; or `only` some of them."""
    crossing = _crossing(found)
    events = concatenated([survey.events for survey in found.surveys])
    scrambled = _scrambled(found.surveys)
    disorder = _disordered(found.surveys) | scrambled
    cut_short: set[int] = set()

    def part(ranges: Iterable[int]) -> Trace:
        rows = 0
        chosen: list[int] = []
        wanted = sorted(ranges)
        if sum(survey.rows for survey in found.surveys) <= found.whole_rows:
            wanted = list(range(len(found.surveys)))
        for number in wanted:
            rows += found.surveys[number].rows
            if chosen and rows > found.looked_at_rows:
                cut_short.add(len(wanted))
                break
            chosen.append(number)
        return _part(found, crossing, events, chosen)

    # Where the ranges of a log reach into one another, an index that is there twice may hide one that is missing.
    complete = _complete(found.surveys) and not (scrambled and index_twice(part(scrambled).deliveries()))

    def judged(judge: Callable[[], Verdict | None]) -> dict[str, Verdict]:
        cut_short.clear()
        verdict = judge()
        if verdict is None:
            return {}
        sound = verdict.status is Status.VIOLATED and verdict.name in SOUND_IN_PARTS
        if cut_short and not sound:
            reason = (
                f"{max(cut_short)} ranges of slots are suspect, more than the {found.looked_at_rows:,} rows looked at"
            )
            verdict = replace(unknown(verdict.name, Reason.TOO_MUCH_SUSPECT, reason), figures=verdict.figures)
        return {verdict.name: verdict}

    judges: dict[str, Callable[[], Verdict | None]] = {
        "total_order": lambda: _total_order(found, disorder, complete, part),
        "integrity": lambda: _integrity(found, disorder | crossing.never_sent, part),
        "fifo": lambda: _fifo(found, part),
        "completeness": lambda: _completeness(found, crossing.undelivered | disorder, events, complete, part),
        "rate_compliance": lambda: _rates(found, events),
        "latency": lambda: _latency(found, crossing, part),
    }
    chosen = [judge for name, judge in judges.items() if not only or name in only]
    return {name: verdict for judge in chosen for name, verdict in judged(judge).items()}


_Part = Callable[[Iterable[int]], Trace]


def _total_order(found: Findings, disorder: set[int], complete: bool, part: _Part) -> Verdict:
    if not disorder and complete:
        return _kept("total_order", found)
    # An index that is there twice leaves open what the order is, wherever that is.
    doubled = {number for number, survey in enumerate(found.surveys) if not survey.order.distinct}
    trace = part(disorder | doubled if disorder else _incomplete(found.surveys))
    verdict = total_order(trace)
    if verdict.status is Status.VIOLATED and doubled:  # not all was looked at
        trace = part(doubled)
        verdict = total_order(trace)
    whole = len(trace.deliveries()) == sum(sum(survey.counts.values()) for survey in found.surveys)
    if whole or verdict.status is Status.VIOLATED or verdict.token is Reason.INDEX_TWICE:
        return verdict
    if complete:
        return _kept("total_order", found)  # only repeated or FIFO-inverted messages made it seem so
    return unknown("total_order", Reason.INDEX_MISSING, _lacking(found.surveys))


def _integrity(found: Findings, suspect: set[int], part: _Part) -> Verdict:
    return integrity(part(suspect), reached(found.surveys)) if suspect else _kept("integrity", found)


def _fifo(found: Findings, part: _Part) -> Verdict:
    """Of two neighbours that are the wrong way round, both are in suspect ranges, so these show just what all do."""
    suspect = {number for number, survey in enumerate(found.surveys) if not survey.in_fifo}
    spans: dict[tuple[int, int, int, int], list[tuple[int, FifoSpan]]] = {}
    for number, survey in enumerate(found.surveys):
        for span in survey.fifo:
            spans.setdefault((span.member, span.life, span.sender, span.priority), []).append((number, span))
    for of in spans.values():
        suspect |= overlapping([(number, span.first_index, span.last_index) for number, span in of])
        suspect |= overlapping([(number, span.first, span.last) for number, span in of])
    return fifo(part(suspect)) if suspect else _kept("fifo", found)


def _completeness(found: Findings, doubtful: frozenset[int], events: Rows, complete: bool, part: _Part) -> Verdict:
    judge = gap_freedom if found.meta.reliable else gaps_explained
    skeleton = Trace.from_rows(events, found.meta, found.logs)
    known = [life for life in lives(skeleton).values() if life.log is not None]
    suspect = set(doubtful)
    last_with_rows: dict[tuple[int, int], int] = {}
    for number, survey in enumerate(found.surveys):
        for who in survey.counts:
            last_with_rows[who] = number
        for life in known:
            if life.end_slot <= survey.first_slot or life.first_slot > survey.last_slot:
                continue
            # Where the order is kept, who has as many as there are keys has them all.
            if survey.directed or survey.counts.get((life.member, life.life), 0) != survey.keys:
                suspect.add(number)
    # How far a member got decides what it passed over, so the ranges of the last deliveries belong to the part.
    context = suspect | set(last_with_rows.values())
    if not complete:  # which logs lack rows is seen only when all are read
        context = set(range(len(found.surveys)))
    end_ns = max((survey.last_ns for survey in found.surveys), default=0)
    # Where nothing is missing, what is left to say is about the logs.
    trace = skeleton if not suspect and complete else part(context)
    verdict = judge(trace, until_ns=end_ns, bound_ns=found.bound_ns, whole=complete)
    if len(trace) == 0 and verdict.token is Reason.NOTHING_RECORDED:
        verdict = _kept(verdict.name, found)  # no row had to be read
    return verdict


def _rates(found: Findings, events: Rows) -> Verdict | None:
    promised = rate_compliance.declared(found.meta)
    if promised is None or not rate_compliance.judged(found.meta, events):
        return None
    edges = rate_compliance.joined([survey.usage for survey in found.surveys])
    excesses = [excess for survey in found.surveys for excess in survey.excesses]
    return rate_compliance.verdict([*excesses, *rate_compliance.excesses(edges, promised)], _doubt(found))


def _latency(found: Findings, crossing: _Crossing, part: _Part) -> Verdict | None:
    bound = found.meta.bound_ns if found.bound_ns is None else found.bound_ns
    if bound is None:
        return None
    seen = Latencies()
    for survey in found.surveys:
        seen.merge(survey.latencies)
    seen.merge(crossing.latencies)
    doubt = _doubt(found)
    if crossing.never_sent:
        # The send may have been matched, in its own range, with other deliveries of the message.
        trace, unmatched = part(crossing.never_sent), crossing.unmatched
        matched, taken_ns = latencies(trace, unmatched)
        seen.add(taken_ns, bound, unmatched.select(matched))
        untold = int((origins(trace, unmatched, reached(found.surveys)) == Origin.UNTOLD).sum())
        doubt = doubt or sends_not_recorded(untold)
    return latency_verdict(seen, bound, doubt)


def latency_verdict(seen: Latencies, bound_ns: int, doubt: Doubt | None) -> Verdict:
    """What latencies come to; `doubt` says why there could be others."""
    quantile = seen.histogram.quantile
    figures = {
        "deliveries": seen.deliveries,
        "late": seen.late,
        "min_ns": seen.min_ns,
        "p50_ns": min(quantile(0.5), seen.max_ns),
        "p99_ns": min(quantile(0.99), seen.max_ns),
        "p999_ns": min(quantile(0.999), seen.max_ns),
        "max_ns": seen.max_ns,
    }
    late = seen.first_late
    if late is not None:
        message = MessageId(late.sender, late.incarnation, late.sequence)
        text = (
            f"member {late.member} delivered {message} {late.taken_ns / 1e6:.3f} ms after it was sent, "
            f"{(late.taken_ns - bound_ns) / 1e6:.3f} ms later than the bound of {bound_ns / 1e6:.3f} ms"
        )
        witness = Witness((message,), (late.member,), (Position(late.member, message, late.index),), text)
        return Verdict("latency", Status.VIOLATED, witness, seen.late, figures=figures)
    return kept("latency", doubt, figures)


def _kept(name: str, found: Findings) -> Verdict:
    """Nothing speaks against the promise, unless rows are hidden or there are none."""
    return kept(name, _doubt(found))


def _doubt(found: Findings) -> Doubt | None:
    hidden = hidden_rows(Trace.from_rows(concatenated([]), found.meta, found.logs))
    return hidden or (None if any(survey.rows for survey in found.surveys) else NOTHING)


def _disordered(surveys: Sequence[Survey]) -> set[int]:
    """The ranges in which, or between which, the order is broken."""
    broken = {number for number, survey in enumerate(surveys) if not survey.order.ordered}
    streams: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for number, survey in enumerate(surveys):
        for span in survey.delivered:  # all numbers, also those out of turn: a message may be in two ranges
            spans = streams.setdefault((span.sender, span.incarnation), [])
            spans.append((number, span.first_sequence, span.last_sequence))
    for spans in streams.values():
        broken |= overlapping(spans)
    return broken


def _spans(surveys: Sequence[Survey]) -> dict[tuple[int, int], list[tuple[int, LogSpan]]]:
    """By log, its spans with the numbers of their ranges, in the order of slots."""
    found: dict[tuple[int, int], list[tuple[int, LogSpan]]] = {}
    for number, survey in enumerate(surveys):
        for span in survey.order.logs:
            found.setdefault((span.member, span.life), []).append((number, span))
    return found


def _scrambled(surveys: Sequence[Survey]) -> set[int]:
    """The ranges of a log whose indices reach into one another: only together do they show in which order it is."""
    found: set[int] = set()
    for spans in _spans(surveys).values():
        found |= overlapping([(number, span.first_index, span.last_index) for number, span in spans])
    return found


def overlapping(spans: Sequence[tuple[int, Any, Any]]) -> set[int]:
    """The ranges whose spans (range, first, last), given in the order of ranges, do not follow one another."""
    reached = accumulate((last for _, _, last in spans), max)
    behind = {number for (number, first, _), until in zip(spans[1:], reached, strict=False) if first <= until}
    coming = accumulate((first for _, first, _ in reversed(spans)), min)
    ahead = {number for (number, _, last), since in zip(spans[-2::-1], coming, strict=False) if last >= since}
    return behind | ahead


def _complete(surveys: Sequence[Survey]) -> bool:
    """Whether every log has as many deliveries as its last index says."""
    if not all(survey.order.distinct for survey in surveys):
        return False
    for who, spans in _spans(surveys).items():
        count = sum(survey.counts.get(who, 0) for survey in surveys)
        if min(span.first_index for _, span in spans) != 0 or max(span.last_index for _, span in spans) + 1 != count:
            return False
    return True


def _incomplete(surveys: Sequence[Survey]) -> set[int]:
    """The ranges in which or before which a log lacks deliveries."""
    lacking = {number for number, survey in enumerate(surveys) if not survey.order.dense}
    for spans in _spans(surveys).values():
        expected = 0
        for number, span in spans:
            if span.first_index != expected:
                lacking.add(number)
            expected = span.last_index + 1
    return lacking


def _lacking(surveys: Sequence[Survey]) -> str:
    for (member, _), spans in sorted(_spans(surveys).items()):
        expected = 0
        for number, span in spans:
            if span.first_index != expected:
                return (
                    f"the deliveries of member {member} are not all recorded: index {expected} is missing, "
                    f"{span.first_index} follows"
                )
            if not surveys[number].order.dense:
                first, last = surveys[number].first_slot, surveys[number].last_slot
                return f"not all deliveries in slots {first} to {last} are recorded: an index is missing there"
            expected = span.last_index + 1
    return "not all deliveries are recorded"


def _crossing(found: Findings) -> _Crossing:
    sends, sent_in = _joined(found.surveys, "unmatched_sends")
    deliveries, delivered_in = _joined(found.surveys, "unmatched_deliveries")
    sent, delivered = message_codes(sends, deliveries)
    seen = Latencies()
    matched = np.zeros(len(deliveries), dtype=bool)
    if len(sent):
        order = np.argsort(sent, kind="stable")
        at = np.minimum(np.searchsorted(sent[order], delivered), len(sent) - 1)
        matched = sent[order][at] == delivered
        bound = found.meta.bound_ns if found.bound_ns is None else found.bound_ns
        taken = deliveries.select(matched)
        seen.add(taken.real_ns - sends.real_ns[order][at][matched], bound, taken)
    elsewhere = np.isin(sent, delivered)
    return _Crossing(
        sends=sends.select(elsewhere),
        latencies=seen,
        unmatched=deliveries.select(~matched),
        never_sent=frozenset(delivered_in[~matched].tolist()) | _may_have_sent(found, deliveries.select(~matched)),
        undelivered=frozenset(sent_in[~elsewhere].tolist()),
    )


def _may_have_sent(found: Findings, deliveries: Rows) -> set[int]:
    """The ranges in which the sends of these deliveries could be: they were matched there with other deliveries."""
    wanted: dict[tuple[int, int], set[int]] = {}
    columns = (deliveries.sender, deliveries.incarnation, deliveries.sequence)
    for sender, incarnation, sequence in zip(*(column.tolist() for column in columns), strict=True):
        wanted.setdefault((sender, incarnation), set()).add(sequence)
    return {
        number
        for number, survey in enumerate(found.surveys)
        for span in survey.sends
        if any(
            span.first_sequence <= sequence <= span.last_sequence
            for sequence in wanted.get((span.sender, span.incarnation), ())
        )
    }


def _joined(surveys: Sequence[Survey], name: str) -> tuple[Rows, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    parts = [getattr(survey, name) for survey in surveys]
    numbers = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    return concatenated(parts), numbers


def _part(found: Findings, crossing: _Crossing, events: Rows, ranges: Sequence[int]) -> Trace:
    """The run as far as the rows of these ranges show it."""
    loaded = found.load(ranges) if ranges else concatenated([])
    trace = Trace.from_rows(loaded, found.meta, found.logs)
    if found.grade is not None:
        trace = trace.graded(found.grade)
    deliveries, sends = trace.deliveries(), trace.sends()
    # A send whose delivery lies in a range that was not read would look undelivered.
    here, delivered = message_codes(sends, deliveries)
    elsewhere, own = message_codes(crossing.sends, sends)
    keep = np.isin(here, delivered) | ~np.isin(own, elsewhere)
    away, at, sent = message_codes(crossing.sends, deliveries, sends)
    fetched = crossing.sends.select(np.isin(away, at) & ~np.isin(away, sent))
    return Trace.from_rows(concatenated([deliveries, sends.select(keep), fetched, events]), found.meta, found.logs)
