"""What a run in both grades shows: how far early deliveries differ, that final ones do not, replicas that converge."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from unisono.check.columns import member_runs
from unisono.check.final import EARLY, FINAL
from unisono.check.verdict import Verdict, graded_name
from unisono.model.durations import ns_to_ms
from unisono.model.events import Batch
from unisono.model.grades import Grade
from unisono.replica.replica import MistakeCounts, Replica
from unisono.replica.structures import Dict
from unisono.trace.table import Trace


class GradedReplica:
    """One member's replica: of each sender, the last thing that it said."""

    def __init__(self, awaited_messages: Iterable[bytes] = ()) -> None:
        self.final_count = 0
        self.replica = Replica(Dict())
        self._final_from: dict[bytes, set[int]] = {word: set() for word in awaited_messages}
        """By message that matters to whoever wants to leave, those whose is final."""

    def is_final_from(self, message: bytes, members: AbstractSet[int]) -> bool:
        """Whether all that was early is final, and that these have said the word."""
        return self.replica.pending == 0 and self._final_from[message] >= members

    def apply(self, batch: Batch) -> None:
        """Messages were delivered."""
        final = batch.grade is Grade.FINAL
        key = b"%d" % batch.sender
        for number, message in enumerate(batch.messages, batch.first_sequence):
            name, command = (batch.sender, batch.incarnation, number), Dict.put(key, message)
            if final:
                self.replica.deliver_final(name, command)
                if message in self._final_from:
                    self._final_from[message].add(batch.sender)
            else:
                self.replica.deliver_early(name, command)
        self.final_count += batch.count if final else 0

    def summary(self) -> dict[str, Any]:
        """What is said of it at the end."""
        replica = self.replica
        states = [
            Dict().dump({key: value(key) for key in replica.objects()})
            for value in (replica.conservative, replica.optimistic)
        ]
        return {
            "delivered": self.final_count,
            "open": replica.pending,
            "state": hashlib.blake2b(states[0], digest_size=8).hexdigest(),
            "converged": states[0] == states[1],
            "mistakes": stored_mistakes(replica.mistakes),
        }


def stored_mistakes(mistakes: MistakeCounts) -> dict[str, int]:
    """The counts under the names that reports carry."""
    return {
        "lost": mistakes.lost,
        "out_of_order": mistakes.out_of_order,
        "retracted": mistakes.retracted,
        "late": mistakes.late,
        "rollbacks": mistakes.rollbacks,
        "reexecuted": mistakes.reexecuted,
    }


def compare_grades(trace: Trace, verdicts: Mapping[str, Verdict], final_reports: Mapping[int, Any]) -> dict[str, Any]:
    """How the members that lived to the end compare: early, while all of them took part, and finally."""
    first, end = _common_slots(trace, final_reports)
    early = [
        set(_numbered_deliveries(trace.in_slots(first, end - 1), EARLY, member).values()) for member in final_reports
    ]
    final = {member: _numbered_deliveries(trace, FINAL, member) for member in final_reports}
    ends = {member: max(numbers, default=-1) for member, numbers in final.items()}
    last = max(ends.values(), default=-1)
    named = {pair for numbers in final.values() for pair in numbers.items()}
    differ = {name for one in early for name in one} - (early[0].intersection(*early) if early else set())
    reports = {member: report["grades"] for member, report in final_reports.items() if report.get("grades")}
    figures = verdicts[graded_name("latency", FINAL)].figures
    return {
        "early_differ": len(differ),
        "early_differ_senders": sorted({sender for sender, _, _ in differ}),
        "final_same": len({number for number, _ in named}) == len(named),
        "final_left_before": {str(member): last - end for member, end in ends.items() if end < last},
        "final_delivered": {str(member): report["delivered"] for member, report in reports.items()},
        "final_open": sum(report["open"] for report in reports.values()),
        "final_latency_ms": {name: ns_to_ms(figures[f"{name}_ns"]) for name in ("p50", "p99", "p999", "max")},
        "replicas_equal": len({report["state"] for member, report in reports.items() if ends[member] == last}) <= 1
        and all(report["converged"] for report in reports.values() if not report["open"]),
        "mistakes": {str(member): report["mistakes"] for member, report in reports.items()},
    }


def _common_slots(trace: Trace, members: Iterable[int]) -> tuple[int, int]:
    """From the first slot in which all of these, in their last lives, took part, up to one of them left."""
    first, end = 0, int(trace.slot.max(initial=0)) + 1
    for member in members:
        known = [life for (who, _), life in member_runs(trace).items() if who == member and life.started]
        if known:
            first, end = max(first, known[-1].first_slot), min(end, known[-1].end_slot)
    return first, end


def _numbered_deliveries(trace: Trace, grade: str, member: int) -> dict[int, tuple[int, int, int]]:
    """What a member delivered in its last life, by row of early deliveries or by number in the final order."""
    rows = trace.with_grade(grade).deliveries()
    life = rows.recorder_incarnation[rows.member == member].max(initial=-1)
    mine = rows.select((rows.member == member) & (rows.recorder_incarnation == life))
    numbers = mine.place.tolist() if grade == FINAL else range(len(mine))
    return dict(
        zip(
            numbers,
            zip(mine.sender.tolist(), mine.sender_incarnation.tolist(), mine.sequence.tolist(), strict=True),
            strict=True,
        )
    )
