"""Final deliveries over a slot order in a run of any length, from summaries of its ranges of slots."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from unisono.check.final import (
    FINAL,
    GRACE_NS,
    FinalLogSpan,
    FinalRange,
    SequenceStep,
    accountable_runs,
    check_one_to_one,
    final_agreement,
    jump_verdict,
    start_ns,
    summarize_finals,
)
from unisono.check.ranges import overlapping
from unisono.check.shard_summary import RangeSummary
from unisono.check.verdict import Verdict
from unisono.trace.table import Trace

LoadPart = Callable[[Iterable[int]], Trace]
"""A function that loads the rows in the ranges of slots with these numbers, with all member events of the run."""


def final_order_in_ranges(summaries: Sequence[RangeSummary], load_part: LoadPart, clean_verdict: Verdict) -> Verdict:
    """The verdict of the check `final_order` on the whole run; `clean_verdict` if there is no violation."""
    ranges = _numbered_final_ranges(summaries)
    scrambled: set[int] = set()
    for spans in _spans_by_run(ranges).values():
        scrambled |= overlapping([(number, log.first.index, log.last.index) for number, log in spans])
    if scrambled:
        # If a log interleaves ranges, these ranges and all between them must be read as one to show the log's order.
        # In all other ranges each log lies entirely before or after them.
        together = range(min(scrambled), max(scrambled) + 1)
        merged = summarize_finals(load_part(together).with_grade(FINAL).deliveries())
        assert merged is not None
        before = [(number, final_range) for number, final_range in ranges if number < together.start]
        ranges = [*before, (together.start, merged), *(one for one in ranges if one[0] >= together.stop)]
    steps: list[SequenceStep] = []
    count = 0
    for _, spans in sorted(_spans_by_run(ranges).items()):
        steps += [log.first_jump for _, log in spans if log.first_jump is not None]
        count += sum(log.jump_count for _, log in spans)
        for (_, earlier), (_, later) in pairwise(spans):
            step = SequenceStep(earlier.last, later.first, (earlier.numbers[1], later.numbers[0]))
            if step.is_out_of_sequence:
                steps.append(step)
                count += 1
    if steps:
        return jump_verdict(min(steps, key=lambda step: step.earlier.index), count)
    suspect = {number for number, final_range in _numbered_final_ranges(summaries) if not final_range.is_one_to_one}
    suspect |= overlapping(
        [(number, *final_range.number_range) for number, final_range in _numbered_final_ranges(summaries)]
    )
    streams: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for number, summary in enumerate(summaries):
        for span in summary.delivered:
            numbers = (number, span.first_sequence, span.last_sequence)
            streams.setdefault((span.sender, span.incarnation), []).append(numbers)
    for numbered in streams.values():
        suspect |= overlapping(numbered)
    violation = check_one_to_one(load_part(suspect).with_grade(FINAL).deliveries()) if suspect else None
    return violation or clean_verdict


def final_agreement_in_ranges(
    summaries: Sequence[RangeSummary],
    member_events: Trace,
    load_part: LoadPart,
    clean_verdict: Verdict,
    *,
    until_ns: int,
    grace_ns: int = GRACE_NS,
) -> Verdict:
    """The verdict of the check `final_agreement` on the whole run; `clean_verdict` if no rows have to be read.

    Only the range of a member's last final delivery and later ranges can show that it lacks final deliveries.
    """
    ranges = _numbered_final_ranges(summaries)
    logs = _spans_by_run(ranges)
    suspect: set[int] = set()
    for member_run in accountable_runs(member_events):
        spans = logs.get((member_run.member, member_run.incarnation), [])
        began_ns = start_ns(member_events, member_run)
        if began_ns is None:
            continue
        end_ns = min(until_ns, member_run.end_ns) - grace_ns
        highest = max((log.highest_number for _, log in spans), default=None)
        # The range of its highest number shows how far the member got.
        suspect |= {number for number, log in spans if log.highest_number == highest}
        for number, final_range in ranges:
            if final_range.first_ns > end_ns:
                continue
            if final_range.last_ns > began_ns + grace_ns if highest is None else final_range.number_range[1] > highest:
                suspect.add(number)
    trace = load_part(suspect)
    return final_agreement(trace, until_ns=until_ns, grace_ns=grace_ns) if len(trace) else clean_verdict


def _numbered_final_ranges(summaries: Sequence[RangeSummary]) -> list[tuple[int, FinalRange]]:
    return [(number, summary.finals) for number, summary in enumerate(summaries) if summary.finals is not None]


def _spans_by_run(ranges: Sequence[tuple[int, FinalRange]]) -> dict[tuple[int, int], list[tuple[int, FinalLogSpan]]]:
    spans: dict[tuple[int, int], list[tuple[int, FinalLogSpan]]] = {}
    for number, final_range in ranges:
        for log in final_range.logs:
            spans.setdefault((log.member, log.incarnation), []).append((number, log))
    return spans
