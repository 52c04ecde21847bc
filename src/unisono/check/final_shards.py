"""Final deliveries over a slot order, in a run of any length: from what its ranges of slots show of the sequence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from unisono.check.final import (
    FINAL,
    GRACE_NS,
    FinalLog,
    FinalRange,
    Step,
    begun_ns,
    bound_lives,
    final_agreement,
    jumped,
    one_to_one,
    survey_finals,
)
from unisono.check.ranges import overlapping
from unisono.check.shard_summary import Survey
from unisono.check.verdict import Verdict
from unisono.trace.table import Trace

Part = Callable[[Iterable[int]], Trace]
"""The run as far as the rows of some ranges show it, with all that happened to members."""


def final_order_in_ranges(surveys: Sequence[Survey], part: Part, fine: Verdict) -> Verdict:
    """As `final_order`; `fine` is what is said where nothing is broken."""
    ranges = _numbered(surveys)
    scrambled: set[int] = set()
    for spans in _by_log(ranges).values():
        scrambled |= overlapping([(number, log.first.index, log.last.index) for number, log in spans])
    if scrambled:
        # Ranges that a log delivered by turns, and all between them, show only as one in which order it did. In the
        # others each log is before that or after it.
        together = range(min(scrambled), max(scrambled) + 1)
        as_one = survey_finals(part(together).graded(FINAL).deliveries())
        assert as_one is not None
        before = [(number, found) for number, found in ranges if number < together.start]
        ranges = [*before, (together.start, as_one), *(one for one in ranges if one[0] >= together.stop)]
    steps: list[Step] = []
    count = 0
    for _, spans in sorted(_by_log(ranges).items()):
        steps += [log.first_jump for _, log in spans if log.first_jump is not None]
        count += sum(log.jumps for _, log in spans)
        for (_, earlier), (_, later) in pairwise(spans):
            step = Step(earlier.last, later.first, (earlier.places[1], later.places[0]))
            if step.jumps:
                steps.append(step)
                count += 1
    if steps:
        return jumped(min(steps, key=lambda step: step.earlier.index), count)
    suspect = {number for number, found in _numbered(surveys) if not found.one_to_one}
    suspect |= overlapping([(number, *found.places) for number, found in _numbered(surveys)])
    streams: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for number, survey in enumerate(surveys):
        for span in survey.delivered:
            numbers = (number, span.first_sequence, span.last_sequence)
            streams.setdefault((span.sender, span.incarnation), []).append(numbers)
    for numbered in streams.values():
        suspect |= overlapping(numbered)
    broken = one_to_one(part(suspect).graded(FINAL).deliveries()) if suspect else None
    return broken or fine


def final_agreement_in_ranges(
    surveys: Sequence[Survey], skeleton: Trace, part: Part, fine: Verdict, *, until_ns: int, grace_ns: int = GRACE_NS
) -> Verdict:
    """As `final_agreement`: what members lack of the sequence lies in the ranges behind what they delivered last.

    `fine` is what is said where no row had to be read.
    """
    ranges = _numbered(surveys)
    logs = _by_log(ranges)
    suspect: set[int] = set()
    for life in bound_lives(skeleton):
        spans = logs.get((life.member, life.life), [])
        begun = begun_ns(skeleton, life)
        if begun is None:
            continue
        end_ns = min(until_ns, life.end_ns) - grace_ns
        highest = max((log.highest for _, log in spans), default=None)
        # How far it came is seen from the range of its highest place.
        suspect |= {number for number, log in spans if log.highest == highest}
        for number, found in ranges:
            if found.first_ns > end_ns:
                continue
            if found.last_ns > begun + grace_ns if highest is None else found.places[1] > highest:
                suspect.add(number)
    trace = part(suspect)
    return final_agreement(trace, until_ns=until_ns, grace_ns=grace_ns) if len(trace) else fine


def _numbered(surveys: Sequence[Survey]) -> list[tuple[int, FinalRange]]:
    return [(number, survey.finals) for number, survey in enumerate(surveys) if survey.finals is not None]


def _by_log(ranges: Sequence[tuple[int, FinalRange]]) -> dict[tuple[int, int], list[tuple[int, FinalLog]]]:
    found: dict[tuple[int, int], list[tuple[int, FinalLog]]] = {}
    for number, one in ranges:
        for log in one.logs:
            found.setdefault((log.member, log.life), []).append((number, log))
    return found
