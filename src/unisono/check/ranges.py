"""Verdicts over a run of any length, from the summaries of its ranges and the rows of suspect ranges only.

If the summaries prove that a promise was kept, no row is read again. Otherwise the checkers run on a part of the run:
the rows of the suspect ranges, all member events, and the sends of messages whose delivery lies in another range.
Indices and keys do not change, so the witness is the same as that of the whole run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np

from unisono.check import rates
from unisono.check.columns import NOTHING_RECORDED, dropped_rows_reason, member_runs, message_codes, unrecorded_sends
from unisono.check.completeness import gap_freedom, gaps_explained, integrity
from unisono.check.latency import latencies, sends_not_recorded
from unisono.check.shard_summary import FifoSpan, LatencySummary, RangeSummary, last_logged_sequences
from unisono.check.total_order import LogSpan, duplicate_index_reason, fifo, total_order
from unisono.check.verdict import Doubt, MessageId, Position, Reason, Status, Verdict, Witness, no_violation, unknown
from unisono.trace.schema import RunMeta
from unisono.trace.table import MemberLog, Rows, Trace, concatenated

MAX_SUSPECT_ROWS = 5_000_000
"""At most this many rows of suspect ranges are read; later violations are not counted."""
SOUND_IN_PARTS = frozenset({"total_order", "fifo", "latency"})
"""The checks for which a violation in a part of the run is a violation in the whole run."""


@dataclass(frozen=True, slots=True)
class SummarizedRun:
    """The summaries of all ranges of one run and one grade, sorted by slot, and how to read the rows of ranges."""

    meta: RunMeta
    logs: tuple[MemberLog, ...]
    summaries: tuple[RangeSummary, ...]
    load_ranges: Callable[[Sequence[int]], Rows]
    """Returns the rows of the ranges of slots with these numbers."""
    grade: str | None = None
    bound_ns: int | None = None
    max_suspect_rows: int = MAX_SUSPECT_ROWS
    max_whole_rows: int = MAX_SUSPECT_ROWS
    """A run of up to this many rows that is not proven clean is read as a whole."""


@dataclass(frozen=True, slots=True)
class _CrossRangeMessages:
    """Messages sent in one range and delivered in another, and those of which only a send or deliveries were found."""

    sends: Rows
    """Sends of messages that were delivered in another range."""
    latencies: LatencySummary
    unmatched_deliveries: Rows
    """Deliveries whose send was not found."""
    ranges_without_send: frozenset[int]
    """The ranges with deliveries whose send was not found, and the ranges that may contain those sends."""
    ranges_without_delivery: frozenset[int]
    """The ranges with sends of undelivered messages."""


def check_ranges(run: SummarizedRun, only: Collection[str] = ()) -> dict[str, Verdict]:
    """One verdict per promise, or only for the promises in `only`. They equal those of `check.suite.check_all`."""
    crossing = _cross_range_messages(run)
    events = concatenated([summary.events for summary in run.summaries])
    scrambled = _interleaved_ranges(run.summaries)
    disorder = _disordered_ranges(run.summaries) | scrambled
    cut_short: set[int] = set()

    def part(ranges: Iterable[int]) -> Trace:
        rows = 0
        chosen: list[int] = []
        wanted = sorted(ranges)
        if sum(summary.rows for summary in run.summaries) <= run.max_whole_rows:
            wanted = list(range(len(run.summaries)))
        for number in wanted:
            rows += run.summaries[number].rows
            if chosen and rows > run.max_suspect_rows:
                cut_short.add(sum(run.summaries[each].rows for each in wanted))
                break
            chosen.append(number)
        return _partial_trace(run, crossing, events, chosen)

    # Where the ranges of a log reach into one another, an index that is there twice may hide one that is missing.
    complete = _is_complete(run.summaries) and not (scrambled and duplicate_index_reason(part(scrambled).deliveries()))

    def judged(judge: Callable[[], Verdict | None]) -> dict[str, Verdict]:
        cut_short.clear()
        verdict = judge()
        if verdict is None:
            return {}
        sound = verdict.status is Status.VIOLATED and verdict.name in SOUND_IN_PARTS
        if cut_short and not sound:
            reason = (
                f"the suspect ranges of slots have {max(cut_short):,} rows, but at most {run.max_suspect_rows:,} "
                "can be checked"
            )
            verdict = replace(unknown(verdict.name, Reason.TOO_MUCH_SUSPECT, reason), figures=verdict.figures)
        return {verdict.name: verdict}

    judges: dict[str, Callable[[], Verdict | None]] = {
        "total_order": lambda: _total_order(run, disorder, complete, part),
        "integrity": lambda: _integrity(run, disorder | crossing.ranges_without_send, part),
        "fifo": lambda: _fifo(run, part),
        "completeness": lambda: _completeness(run, crossing.ranges_without_delivery | disorder, events, complete, part),
        "rate_compliance": lambda: _rate_compliance(run, events),
        "latency": lambda: _latency(run, crossing, part),
    }
    chosen = [judge for name, judge in judges.items() if not only or name in only]
    return {name: verdict for judge in chosen for name, verdict in judged(judge).items()}


_LoadPart = Callable[[Iterable[int]], Trace]


def _total_order(run: SummarizedRun, disorder: set[int], complete: bool, load_part: _LoadPart) -> Verdict:
    if not disorder and complete:
        return _clean_verdict("total_order", run)
    # Where an index occurs twice, the order is unknown.
    doubled = {number for number, summary in enumerate(run.summaries) if not summary.order.distinct}
    trace = load_part(disorder | doubled if disorder else _incomplete_ranges(run.summaries))
    verdict = total_order(trace)
    if verdict.status is Status.VIOLATED and doubled:  # not all was looked at
        trace = load_part(doubled)
        verdict = total_order(trace)
    whole = len(trace.deliveries()) == sum(sum(summary.delivery_counts.values()) for summary in run.summaries)
    if whole or verdict.status is Status.VIOLATED or verdict.token is Reason.INDEX_TWICE:
        return verdict
    if complete:
        return _clean_verdict("total_order", run)  # only repeated or FIFO-inverted messages made it seem so
    return unknown("total_order", Reason.INDEX_MISSING, _missing_index_reason(run.summaries))


def _integrity(run: SummarizedRun, suspect: set[int], load_part: _LoadPart) -> Verdict:
    return (
        integrity(load_part(suspect), last_logged_sequences(run.summaries))
        if suspect
        else _clean_verdict("integrity", run)
    )


def _fifo(run: SummarizedRun, load_part: _LoadPart) -> Verdict:
    """Check FIFO in the suspect ranges. These contain both messages of every pair in the wrong order."""
    suspect = {number for number, summary in enumerate(run.summaries) if not summary.in_fifo}
    spans: dict[tuple[int, int, int, int], list[tuple[int, FifoSpan]]] = {}
    for number, summary in enumerate(run.summaries):
        for span in summary.fifo:
            spans.setdefault((span.member, span.recorder_incarnation, span.sender, span.priority), []).append(
                (number, span)
            )
    for of in spans.values():
        suspect |= overlapping([(number, span.first_index, span.last_index) for number, span in of])
        suspect |= overlapping([(number, span.first, span.last) for number, span in of])
    return fifo(load_part(suspect)) if suspect else _clean_verdict("fifo", run)


def _completeness(
    run: SummarizedRun, doubtful: frozenset[int], events: Rows, complete: bool, load_part: _LoadPart
) -> Verdict:
    judge = gap_freedom if run.meta.reliable else gaps_explained
    skeleton = Trace.from_rows(events, run.meta, run.logs)
    known = [member_run for member_run in member_runs(skeleton).values() if member_run.log is not None]
    suspect = set(doubtful)
    last_with_rows: dict[tuple[int, int], int] = {}
    for number, summary in enumerate(run.summaries):
        for run_id in summary.delivery_counts:
            last_with_rows[run_id] = number
        for member_run in known:
            if member_run.end_slot <= summary.first_slot or member_run.first_slot > summary.last_slot:
                continue
            # If the order is kept, a member with as many deliveries as there are keys has all of them.
            if (
                summary.has_destinations
                or summary.delivery_counts.get((member_run.member, member_run.incarnation), 0) != summary.keys
            ):
                suspect.add(number)
    # A member's last delivery decides which messages it passed, so the part includes the ranges of last deliveries.
    context = suspect | set(last_with_rows.values())
    if not complete:  # only the whole run shows which logs lack rows
        context = set(range(len(run.summaries)))
    end_ns = max((summary.last_ns for summary in run.summaries), default=0)
    # If no range is suspect, only the state of the logs matters.
    trace = skeleton if not suspect and complete else load_part(context)
    verdict = judge(trace, until_ns=end_ns, bound_ns=run.bound_ns, dense_logs=complete)
    if len(trace) == 0 and verdict.token is Reason.NOTHING_RECORDED:
        verdict = _clean_verdict(verdict.name, run)  # no row had to be read
    return verdict


def _rate_compliance(run: SummarizedRun, events: Rows) -> Verdict | None:
    promised = rates.declared_rates(run.meta)
    if promised is None or not rates.is_checked(run.meta, events):
        return None
    edges = rates.merge_usage([summary.edge_usage for summary in run.summaries])
    excesses = [excess for summary in run.summaries for excess in summary.rate_violations]
    return rates.rate_verdict([*excesses, *rates.rate_violations(edges, promised)], _doubt(run))


def _latency(run: SummarizedRun, crossing: _CrossRangeMessages, load_part: _LoadPart) -> Verdict | None:
    bound = run.meta.bound_ns if run.bound_ns is None else run.bound_ns
    if bound is None:
        return None
    seen = LatencySummary()
    for summary in run.summaries:
        seen.merge(summary.latencies)
    seen.merge(crossing.latencies)
    doubt = _doubt(run)
    if crossing.ranges_without_send:
        # The send may have been matched, in its own range, with other deliveries of the message.
        trace, unmatched = load_part(crossing.ranges_without_send), crossing.unmatched_deliveries
        matched, taken_ns = latencies(trace, unmatched)
        seen.add(taken_ns, bound, unmatched.select(matched))
        not_recorded = unrecorded_sends(trace, unmatched, last_logged_sequences(run.summaries))
        doubt = doubt or sends_not_recorded(not_recorded)
    return latency_verdict(seen, bound, doubt)


def latency_verdict(measured: LatencySummary, bound_ns: int, doubt: Doubt | None) -> Verdict:
    """The verdict for these latencies; `doubt` says why some latencies may be missing, or is None."""
    quantile = measured.histogram.quantile
    figures = {
        "deliveries": measured.deliveries,
        "late": measured.late_deliveries,
        "min_ns": measured.min_ns,
        "p50_ns": min(quantile(0.5), measured.max_ns),
        "p99_ns": min(quantile(0.99), measured.max_ns),
        "p999_ns": min(quantile(0.999), measured.max_ns),
        "max_ns": measured.max_ns,
    }
    late = measured.first_late_delivery
    if late is not None:
        message = MessageId(late.sender, late.sender_incarnation, late.sequence)
        text = (
            f"member {late.member} delivered {message} {late.latency_ns / 1e6:.3f} ms after it was sent, "
            f"{(late.latency_ns - bound_ns) / 1e6:.3f} ms later than the bound of {bound_ns / 1e6:.3f} ms"
        )
        witness = Witness((message,), (late.member,), (Position(late.member, message, late.index),), text)
        return Verdict("latency", Status.VIOLATED, witness, measured.late_deliveries, figures=figures)
    return no_violation("latency", doubt, figures)


def _clean_verdict(name: str, run: SummarizedRun) -> Verdict:
    """The verdict if no violation was found: valid, unless rows are missing or there are none."""
    return no_violation(name, _doubt(run))


def _doubt(found: SummarizedRun) -> Doubt | None:
    hidden = dropped_rows_reason(Trace.from_rows(concatenated([]), found.meta, found.logs))
    return hidden or (None if any(summary.rows for summary in found.summaries) else NOTHING_RECORDED)


def _disordered_ranges(summaries: Sequence[RangeSummary]) -> set[int]:
    """The numbers of the ranges of slots in which, or between which, the order is broken."""
    broken = {number for number, summary in enumerate(summaries) if not summary.order.ordered}
    streams: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for number, summary in enumerate(summaries):
        for span in summary.delivered:  # includes numbers out of order: a message may be in two ranges
            spans = streams.setdefault((span.sender, span.incarnation), [])
            spans.append((number, span.first_sequence, span.last_sequence))
    for spans in streams.values():
        broken |= overlapping(spans)
    return broken


def _spans_by_run(summaries: Sequence[RangeSummary]) -> dict[tuple[int, int], list[tuple[int, LogSpan]]]:
    """The spans of each log with the numbers of their ranges, sorted by slot."""
    found: dict[tuple[int, int], list[tuple[int, LogSpan]]] = {}
    for number, summary in enumerate(summaries):
        for span in summary.order.logs:
            found.setdefault((span.member, span.incarnation), []).append((number, span))
    return found


def _interleaved_ranges(summaries: Sequence[RangeSummary]) -> set[int]:
    """The ranges of slots in which a log's indices overlap. Only together do these ranges show the log's order."""
    found: set[int] = set()
    for spans in _spans_by_run(summaries).values():
        found |= overlapping([(number, span.first_index, span.last_index) for number, span in spans])
    return found


def overlapping(spans: Sequence[tuple[int, Any, Any]]) -> set[int]:
    """The ranges whose spans overlap. `spans` has (range, first, last), sorted by range."""
    reached = accumulate((last for _, _, last in spans), max)
    behind = {number for (number, first, _), until in zip(spans[1:], reached, strict=False) if first <= until}
    coming = accumulate((first for _, first, _ in reversed(spans)), min)
    ahead = {number for (number, _, last), since in zip(spans[-2::-1], coming, strict=False) if last >= since}
    return behind | ahead


def _is_complete(summaries: Sequence[RangeSummary]) -> bool:
    """Whether every log has all deliveries up to its last index."""
    if not all(summary.order.distinct for summary in summaries):
        return False
    for run_id, spans in _spans_by_run(summaries).items():
        count = sum(summary.delivery_counts.get(run_id, 0) for summary in summaries)
        if min(span.first_index for _, span in spans) != 0 or max(span.last_index for _, span in spans) + 1 != count:
            return False
    return True


def _incomplete_ranges(summaries: Sequence[RangeSummary]) -> set[int]:
    """The ranges in which, or directly before which, a log lacks deliveries."""
    lacking = {number for number, summary in enumerate(summaries) if not summary.order.dense}
    for spans in _spans_by_run(summaries).values():
        expected = 0
        for number, span in spans:
            if span.first_index != expected:
                lacking.add(number)
            expected = span.last_index + 1
    return lacking


def _missing_index_reason(summaries: Sequence[RangeSummary]) -> str:
    for (member, _), spans in sorted(_spans_by_run(summaries).items()):
        expected = 0
        for number, span in spans:
            if span.first_index != expected:
                return (
                    f"the deliveries of member {member} are not all recorded: index {expected} is missing, "
                    f"{span.first_index} follows"
                )
            if not summaries[number].order.dense:
                first, last = summaries[number].first_slot, summaries[number].last_slot
                return f"not all deliveries in slots {first} to {last} are recorded: an index is missing there"
            expected = span.last_index + 1
    return "not all deliveries are recorded"


def _cross_range_messages(run: SummarizedRun) -> _CrossRangeMessages:
    sends, sent_in = _concatenated_field(run.summaries, "unmatched_sends")
    deliveries, delivered_in = _concatenated_field(run.summaries, "unmatched_deliveries")
    sent, delivered = message_codes(sends, deliveries)
    seen = LatencySummary()
    matched = np.zeros(len(deliveries), dtype=bool)
    if len(sent):
        order = np.argsort(sent, kind="stable")
        at = np.minimum(np.searchsorted(sent[order], delivered), len(sent) - 1)
        matched = sent[order][at] == delivered
        bound = run.meta.bound_ns if run.bound_ns is None else run.bound_ns
        taken = deliveries.select(matched)
        seen.add(taken.real_ns - sends.real_ns[order][at][matched], bound, taken)
    elsewhere = np.isin(sent, delivered)
    return _CrossRangeMessages(
        sends=sends.select(elsewhere),
        latencies=seen,
        unmatched_deliveries=deliveries.select(~matched),
        ranges_without_send=frozenset(delivered_in[~matched].tolist())
        | _ranges_with_possible_sends(run, deliveries.select(~matched)),
        ranges_without_delivery=frozenset(sent_in[~elsewhere].tolist()),
    )


def _ranges_with_possible_sends(run: SummarizedRun, deliveries: Rows) -> set[int]:
    """The ranges that may contain the sends of these deliveries.

    The summaries do not list every send: a send with a delivery in its own range is not in its summary.
    """
    wanted: dict[tuple[int, int], set[int]] = {}
    columns = (deliveries.sender, deliveries.sender_incarnation, deliveries.sequence)
    for sender, incarnation, sequence in zip(*(column.tolist() for column in columns), strict=True):
        wanted.setdefault((sender, incarnation), set()).add(sequence)
    return {
        number
        for number, summary in enumerate(run.summaries)
        for span in summary.sends
        if any(
            span.first_sequence <= sequence <= span.last_sequence
            for sequence in wanted.get((span.sender, span.incarnation), ())
        )
    }


def _concatenated_field(
    summaries: Sequence[RangeSummary], name: str
) -> tuple[Rows, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    parts = [getattr(summary, name) for summary in summaries]
    numbers = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    return concatenated(parts), numbers


def _partial_trace(run: SummarizedRun, crossing: _CrossRangeMessages, events: Rows, ranges: Sequence[int]) -> Trace:
    """A trace of the rows in these ranges of slots, with the member events and the sends that they need."""
    loaded = run.load_ranges(ranges) if ranges else concatenated([])
    trace = Trace.from_rows(loaded, run.meta, run.logs)
    if run.grade is not None:
        trace = trace.with_grade(run.grade)
    deliveries, sends = trace.deliveries(), trace.sends()
    # Leave out sends whose delivery lies in a range that was not read: they would look undelivered.
    here, delivered = message_codes(sends, deliveries)
    elsewhere, own = message_codes(crossing.sends, sends)
    keep = np.isin(here, delivered) | ~np.isin(own, elsewhere)
    away, at, sent = message_codes(crossing.sends, deliveries, sends)
    fetched = crossing.sends.select(np.isin(away, at) & ~np.isin(away, sent))
    return Trace.from_rows(concatenated([deliveries, sends.select(keep), fetched, events]), run.meta, run.logs)
