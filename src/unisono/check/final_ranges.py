"""Final deliveries over a slot order, in a run of any length: from what its ranges of slots show of the sequence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from unisono.check.finals import (
    FINAL,
    GRACE_NS,
    ORDER,
    FinalLog,
    Step,
    begun_ns,
    bound_lives,
    final_agreement,
    final_order,
    jumped,
    one_to_one,
)
from unisono.check.ranges import overlapping
from unisono.check.survey import Survey
from unisono.check.verdict import Status, Verdict
from unisono.trace.table import Trace

Part = Callable[[Iterable[int]], Trace]
"""The run as far as the rows of some ranges show it, with all that happened to members."""


def final_order_in_ranges(surveys: Sequence[Survey], part: Part, fine: Verdict) -> Verdict:
    """As `final_order`; `fine` is what is said where nothing is broken."""
    logs = _by_log(surveys)
    steps: list[Step] = []
    count = 0
    for spans in logs.values():
        scrambled = overlapping([(number, log.first.index, log.last.index) for number, log in spans])
        if scrambled:  # all of these ranges together show in which order it is
            found = final_order(part(range(min(scrambled), max(scrambled) + 1)))
            why = f"member {spans[0][1].member} delivered finally in {len(scrambled)} ranges of slots by turns"
            return found if found.status is Status.VIOLATED else Verdict(ORDER, Status.UNKNOWN, reason=why)
        steps += [log.first_jump for _, log in spans if log.first_jump is not None]
        count += sum(log.jumps for _, log in spans)
        for (_, earlier), (_, later) in pairwise(spans):
            step = Step(earlier.last, later.first, (earlier.places[1], later.places[0]))
            if step.jumps:
                steps.append(step)
                count += 1
    if steps:
        return jumped(min(steps, key=lambda step: (step.earlier.index, step.earlier.member)), count)
    suspect = {number for number, survey in enumerate(surveys) if survey.finals and not survey.finals.one_to_one}
    suspect |= overlapping([(number, *found.finals.places) for number, found in enumerate(surveys) if found.finals])
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
    surveys: Sequence[Survey], skeleton: Trace, part: Part, until_ns: int, grace_ns: int = GRACE_NS
) -> Verdict:
    """As `final_agreement`: what members lack of the sequence lies in the ranges behind what they delivered last."""
    logs = _by_log(surveys)
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
        for number, found in enumerate(survey.finals for survey in surveys):
            if found is None or found.first_ns > end_ns:
                continue
            if found.last_ns > begun + grace_ns if highest is None else found.places[1] > highest:
                suspect.add(number)
    return final_agreement(part(suspect), until_ns=until_ns, grace_ns=grace_ns)


def _by_log(surveys: Sequence[Survey]) -> dict[tuple[int, int], list[tuple[int, FinalLog]]]:
    found: dict[tuple[int, int], list[tuple[int, FinalLog]]] = {}
    for number, survey in enumerate(surveys):
        for log in survey.finals.logs if survey.finals else ():
            found.setdefault((log.member, log.life), []).append((number, log))
    return found
