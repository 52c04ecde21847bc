"""Final deliveries over a slot order (paper 000 §9): one sequence for all members that contains all early deliveries.

A final delivery's place is its number in the agreed sequence. A member that joins delivers
all of the sequence from some number on. Final deliveries have no promised bound; in a finite run they are due after
`grace_ns`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from unisono.check.columns import (
    MemberRun,
    dropped_rows_reason,
    empty_trace_reason,
    group_starts,
    incomplete_logs,
    log_codes,
    member_runs,
    message_at,
    message_codes,
    position_at,
    reporting,
)
from unisono.check.verdict import Doubt, Position, Status, Verdict, Witness, no_violation
from unisono.model.events import ViolationKind
from unisono.trace.schema import EventKind
from unisono.trace.table import Rows, Trace

FINAL_ORDER, FINAL_AGREEMENT, EARLY_IN_FINAL = "final_order", "final_agreement", "early_in_final"
GRACE_NS = 2_000_000_000
"""The default time within which a delivery must become final."""
EARLY, FINAL = "early", "final"


@dataclass(frozen=True, slots=True)
class SequenceStep:
    """Two consecutive final deliveries in a log, with their numbers in the agreed sequence."""

    earlier: Position
    later: Position
    numbers: tuple[int, int]

    @property
    def is_out_of_sequence(self) -> bool:
        """Whether the second delivery is not the one that follows the first in the agreed sequence."""
        return self.numbers[1] != self.numbers[0] + 1


@dataclass(frozen=True, slots=True)
class FinalLogSpan:
    """The part of the agreed sequence that one log has in a range of slots."""

    member: int
    incarnation: int
    first: Position
    last: Position
    numbers: tuple[int, int]
    """The numbers of the log's first and last delivery of this range, in the agreed sequence."""
    highest_number: int
    jump_count: int
    first_jump: SequenceStep | None


@dataclass(frozen=True, slots=True)
class FinalRange:
    """The part of the agreed sequence in a range of slots."""

    logs: tuple[FinalLogSpan, ...]
    number_range: tuple[int, int]
    first_ns: int
    last_ns: int
    is_one_to_one: bool
    """Whether each number of the agreed sequence has one message, and each message one number."""


def summarize_finals(rows: Rows) -> FinalRange | None:
    """Summarize the final deliveries in one range of slots; None if there are none.

    Each log's rows must be contiguous and sorted by index.
    """
    if len(rows) == 0:
        return None
    edges = np.append(np.flatnonzero(group_starts(log_codes(rows))), len(rows))
    logs = []
    for first, end in pairwise(edges.tolist()):
        jumps = first + np.flatnonzero(np.diff(rows.place[first:end]) != 1)
        logs.append(
            FinalLogSpan(
                int(rows.member[first]),
                int(rows.recorder_incarnation[first]),
                position_at(rows, first),
                position_at(rows, end - 1),
                (int(rows.place[first]), int(rows.place[end - 1])),
                int(rows.place[first:end].max()),
                len(jumps),
                _sequence_step(rows, int(jumps[0])) if len(jumps) else None,
            )
        )
    places, times = (int(rows.place.min()), int(rows.place.max())), (int(rows.real_ns.min()), int(rows.real_ns.max()))
    return FinalRange(tuple(logs), places, *times, check_one_to_one(rows) is None)


def _sequence_step(rows: Rows, row: int) -> SequenceStep:
    places = (int(rows.place[row]), int(rows.place[row + 1]))
    return SequenceStep(position_at(rows, row), position_at(rows, row + 1), places)


def final_order(trace: Trace) -> Verdict:
    """Check the agreed sequence: one message per number, one number per message, delivered number after number."""
    rows = trace.with_grade(FINAL).deliveries()
    jumps = np.flatnonzero((np.diff(rows.place) != 1) & ~group_starts(log_codes(rows))[1:])
    if len(jumps):
        return jump_verdict(_sequence_step(rows, int(jumps[np.argmin(rows.index[jumps])])), len(jumps))
    return check_one_to_one(rows) or _clean_verdict(trace, FINAL_ORDER)


def jump_verdict(step: SequenceStep, count: int) -> Verdict:
    """The verdict for a member whose final deliveries do not go from one number of the agreed sequence to the next."""
    earlier, later = step.earlier, step.later
    text = (
        f"member {earlier.member} delivered {later.message}, number {step.numbers[1]} of the final order, right after "
        f"{earlier.message}, number {step.numbers[0]}"
    )
    witness = Witness((earlier.message, later.message), (earlier.member,), (earlier, later), text)
    return Verdict(FINAL_ORDER, Status.VIOLATED, witness, count)


def check_one_to_one(rows: Rows) -> Verdict | None:
    """The verdict if a number of the agreed sequence has two messages, or a message two numbers; None if not."""
    (message,) = message_codes(rows)
    for one, other, words in (
        (rows.place, message, "number {0} of the final order is {1} at member {2} and {3} at member {4}"),
        (message, rows.place, "{1} is number {0} of the final order at member {2} and number {5} at member {4}"),
    ):
        order = np.argsort(one, kind="stable")
        differs = np.flatnonzero((np.diff(one[order]) == 0) & (np.diff(other[order]) != 0))
        if len(differs):
            at = int(differs[np.argmin(rows.place[order[differs]])])
            a, b = int(order[at]), int(order[at + 1])
            names = (message_at(rows, a), rows.member[a], message_at(rows, b), rows.member[b], rows.place[b])
            return _violation(FINAL_ORDER, rows, (a, b), words.format(rows.place[a], *names), len(differs))
    return None


def final_agreement(trace: Trace, *, until_ns: int | None = None, grace_ns: int = GRACE_NS) -> Verdict:
    """Check that a final delivery at any member, crashed or not, occurs at every member that stayed up long enough."""
    rows = trace.with_grade(FINAL).deliveries()
    doubtful: list[str] = []
    for member_run in accountable_runs(trace):
        end = _end_ns(trace, member_run, until_ns) - grace_ns
        mine = np.flatnonzero(
            (rows.member == member_run.member) & (rows.recorder_incarnation == member_run.incarnation)
        )
        begun = start_ns(trace, member_run)
        if begun is None:
            continue
        since = rows.real_ns > begun + grace_ns if not len(mine) else rows.place > rows.place[mine].max()
        due = np.flatnonzero((rows.real_ns <= end) & since)
        if member_run.log_truncated or member_run.dropped_rows:
            doubtful.append(f"the log of member {member_run.member} is incomplete")
        elif len(due):
            row = int(due[np.argmin(rows.place[due])])
            text = (
                f"member {rows.member[row]} delivered {message_at(rows, row)} as number {rows.place[row]} of the final "
                f"order, but member {member_run.member} did not within {grace_ns / 1e9:g} s"
            )
            return _violation(FINAL_AGREEMENT, rows, (row,), text, len(due))
    return _clean_verdict(trace, FINAL_AGREEMENT, incomplete_logs(doubtful))


def early_in_final(trace: Trace, *, until_ns: int | None = None, grace_ns: int = GRACE_NS) -> Verdict:
    """Check that every early delivery of a member that did not crash becomes final."""
    rows = trace.with_grade(EARLY).deliveries()
    finals = trace.with_grade(FINAL).deliveries()
    early, final = message_codes(rows, finals)
    missing = ~np.isin(early, final)
    for member_run in accountable_runs(trace):
        mine = (rows.member == member_run.member) & (rows.recorder_incarnation == member_run.incarnation)
        due = np.flatnonzero(mine & missing & (rows.real_ns <= _end_ns(trace, member_run, until_ns) - grace_ns))
        if len(due):
            row = int(due[np.argmin(rows.index[due])])
            text = f"member {member_run.member} delivered {message_at(rows, row)} early, and it never became final"
            return _violation(EARLY_IN_FINAL, rows, (row,), text, len(due))
    return _clean_verdict(trace, EARLY_IN_FINAL)


def accountable_runs(trace: Trace) -> list[MemberRun]:
    """The member runs that every guarantee applies to: neither crashed nor excluded."""
    excused = reporting(trace, ViolationKind.EXCLUDED, ViolationKind.UNSETTLED, ViolationKind.NUMBER_TAKEN)
    known = member_runs(trace).items()
    return [
        member_run
        for run_id, member_run in known
        if run_id not in excused and not member_run.crashed and member_run.log is not None
    ]


def _end_ns(trace: Trace, member_run: MemberRun, until_ns: int | None) -> int:
    end = int(trace.real_ns.max(initial=0)) if until_ns is None else until_ns
    return min(end, member_run.end_ns)


def start_ns(trace: Trace, member_run: MemberRun) -> int | None:
    """The real time at which a member run started; None if it recorded no START."""
    begun = trace.of_kind(EventKind.START)
    times = begun.real_ns[(begun.member == member_run.member) & (begun.recorder_incarnation == member_run.incarnation)]
    return int(times.min()) if len(times) else None


def _violation(name: str, rows: Rows, row_numbers: tuple[int, ...], text: str, count: int) -> Verdict:
    members = tuple(dict.fromkeys(int(rows.member[row]) for row in row_numbers))
    positions = tuple(position_at(rows, row) for row in row_numbers)
    return Verdict(name, Status.VIOLATED, Witness(tuple(p.message for p in positions), members, positions, text), count)


def _clean_verdict(trace: Trace, name: str, doubt: Doubt | None = None) -> Verdict:
    return no_violation(name, doubt or dropped_rows_reason(trace) or empty_trace_reason(trace))
