"""What a finished run of real processes shows: its measured bound, its verdicts, its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from unisono.check.final import EARLY
from unisono.check.suite import check_all, latency_of
from unisono.check.timing import latency
from unisono.check.verdict import Status, Verdict, check_name, overall
from unisono.cluster.grades_report import compare_grades
from unisono.cluster.supervisor import MemberProcess, ProcessReport
from unisono.model.durations import ns_to_ms
from unisono.model.faults import fault_to_row
from unisono.model.histogram import Histogram
from unisono.model.priorities import PRIORITY_ORDERS
from unisono.model.scenario import Scenario
from unisono.model.timing import Timing
from unisono.stack import build
from unisono.trace.files import ParquetWriter, read_trace
from unisono.trace.schema import OBSERVER, EventKind, RunMeta, write_meta
from unisono.trace.table import Trace

DELTA_QUANTILE = 0.9999
ORDER_CHECKS = (
    "total_order",
    "integrity",
    "fifo",
    "priority_accounting",
    "view_atomicity",
    "gap_freedom",
    "gaps_explained",
    "agreement",
    "uniform_agreement",
    "causal",
    "final_order",
    "final_agreement",
    "early_in_final",
)


@dataclass(frozen=True, slots=True)
class MeasuredTiming:
    """What the machine and its network did during the run."""

    delay_ns: int
    """The 99.99 % quantile of one-way delays between members."""
    lateness_ns: int
    """The latest that any timer of any member fired."""
    gamma_ns: int
    """The largest clock difference that any member saw, errors included."""

    def timing(self, scenario: Scenario) -> Timing:
        """Δ and Γ as measured: Δ is the network's quantile plus the driver's lateness."""
        return Timing(self.delay_ns + self.lateness_ns, self.gamma_ns, scenario.longest_slot_ns)

    def timing_with_failures(self, scenario: Scenario) -> Timing:
        """The same where somebody died or was not heard: who is missing is waited for as long as was declared."""
        declared, gamma_ns = scenario.timing, max(scenario.timing.gamma_ns, self.gamma_ns)
        return Timing(max(declared.delta_ns, self.delay_ns) + self.lateness_ns, gamma_ns, scenario.longest_slot_ns)


def measured_timing(final_reports: Mapping[int, ProcessReport], gamma_ns: int) -> MeasuredTiming:
    """The members' measurements taken together; Γ as declared where a peer was gone before it could be probed."""
    delays = Histogram()
    for final in final_reports.values():
        delays.merge(Histogram.of_pairs([(b, n) for b, n in final["delays"]], final["delay_max_ns"]))
    return MeasuredTiming(
        delays.quantile(DELTA_QUANTILE),
        max((final["lateness_max_ns"] for final in final_reports.values()), default=0),
        max(
            (gamma_ns if final["gamma_ns"] is None else final["gamma_ns"] for final in final_reports.values()),
            default=gamma_ns,
        ),
    )


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """The run's verdicts and figures."""

    trace: Trace
    """With early deliveries only, where there are two grades."""
    verdicts: dict[str, Verdict]
    measured: MeasuredTiming
    bound_ns: int
    """With Δ and Γ as measured; if members died or were not heard, with what that cost."""
    declared_bound_ns: int
    """With Δ and Γ as they were declared: what the members promised before the first message."""
    outage_ns: int
    """How much of the bound is for members that died or were not heard."""
    final_reports: Mapping[int, ProcessReport]
    grades: dict[str, Any] | None = None
    """How members compare in each grade, where there are two."""

    @property
    def verdict(self) -> Status:
        """Whether the order held: a late delivery is counted, it does not make the order wrong.

        The bound rests on Δ, which is a property of a machine that others use too.
        """
        judged = {name: verdict for name, verdict in self.verdicts.items() if check_name(name) in ORDER_CHECKS}
        return overall(judged)

    def same_sequence(self) -> bool:
        """Whether every member delivered the very same sequence."""
        rows = self.trace.deliveries()
        sequences = [
            (rows.sender[mine], rows.sequence[mine]) for mine in (rows.member == m for m in self.trace.meta.members)
        ]
        first = sequences[0]
        return all(np.array_equal(first[0], s[0]) and np.array_equal(first[1], s[1]) for s in sequences)

    def missing(self) -> int | None:
        """Gaps: what somebody delivered and a member did not, of the slots in which that took part, in its last life.

        Whoever was killed is not counted. None where no gaps are promised: there a checker judges.
        """
        if self.trace.meta.reliable:
            return None
        rows, starts, leaves = (
            self.trace.deliveries(),
            self.trace.of_kind(EventKind.START),
            self.trace.of_kind(EventKind.LEAVE),
        )
        _, first = np.unique(np.stack((rows.sender, rows.sender_incarnation, rows.sequence)), axis=1, return_index=True)
        slots, missing = rows.slot[first], 0
        for member in self.final_reports:
            begun = starts.select(starts.member == member)
            if not len(begun):
                continue
            life = begun.recorder_incarnation.max()
            left = leaves.slot[(leaves.member == member) & (leaves.recorder_incarnation == life)]
            begin = begun.slot[begun.recorder_incarnation == life].min()
            end = left.min() if len(left) else rows.slot.max() + 1
            heard = rows.slot[(rows.member == member) & (rows.recorder_incarnation == life)]
            there = [int(np.count_nonzero((slot >= begin) & (slot < end))) for slot in (slots, heard)]
            missing += there[0] - there[1]
        return missing

    def sla_events(self) -> list[dict[str, Any]]:
        """What the members told of their agreements, in the order of their clocks."""
        told = [{"member": member, **event} for member, final in self.final_reports.items() for event in final["qos"]]
        return sorted(told, key=lambda event: event["at_ns"])

    def to_json(self) -> dict[str, Any]:
        """The figures that `demo --json` prints."""
        figures = latency_of(self.verdicts).figures
        # Where consumers set the pace no delivery can be late.
        bounded = self.trace.meta.order not in PRIORITY_ORDERS
        late_declared = latency(self.trace, bound_ns=self.declared_bound_ns).figures["late"] if bounded else None
        return {
            "verdict": self.verdict.value,
            "checks": {name: verdict.to_json() for name, verdict in self.verdicts.items()},
            "same_sequence": self.same_sequence(),
            "sent": len(self.trace.sends()),
            "delivered": {str(member): final["delivered"] for member, final in self.final_reports.items()},
            "latency_ms": {name: ns_to_ms(figures[f"{name}_ns"]) for name in ("p50", "p99", "p999", "max")},
            "bound_ms": ns_to_ms(self.bound_ns) if bounded else None,
            "outage_bound_ms": ns_to_ms(self.outage_ns),
            "late": figures["late"] if bounded else None,
            "declared_bound_ms": ns_to_ms(self.declared_bound_ns) if bounded else None,
            "late_declared": late_declared,
            "delta_measured_ms": ns_to_ms(self.measured.delay_ns),
            "timer_lateness_ms": ns_to_ms(self.measured.lateness_ns),
            "gamma_measured_ms": ns_to_ms(self.measured.gamma_ns),
            "longest_gap_ms": ns_to_ms(max(final["longest_gap_ns"] for final in self.final_reports.values())),
            "left_in_order": all(final["in_order"] for final in self.final_reports.values()),
            "refused": _sum_counts(final["refused"] for final in self.final_reports.values()),
            "injected": _sum_counts(final["injected"] for final in self.final_reports.values()),
            "missing": self.missing(),
            "qos": self.sla_events(),
            "grades": self.grades,
            "violations": sorted({text for final in self.final_reports.values() for text in final["violations"]}),
        }


def _sum_counts(counts: Any) -> dict[str, int]:
    total: dict[str, int] = {}
    for each in counts:
        for reason, number in each.items():
            total[reason] = total.get(reason, 0) + number
    return total


def record_crashes(scenario: Scenario, run: str, directory: Path, killed: Sequence[MemberProcess]) -> None:
    """Write down, as an onlooker, who was killed when and in which incarnation."""
    with ParquetWriter(directory, run, scenario.group, OBSERVER) as writer:
        for node in killed:
            member, at_ns, life = node.member, node.killed_ns or 0, node.incarnation()
            slot = scenario.timing.slot_of(at_ns - scenario.timing.delta_ns)
            writer.recorder().event(
                EventKind.CRASH, slot=slot, real_ns=at_ns, local_ns=at_ns, subject=member, subject_incarnation=life
            )


def _latency_bound_ns(scenario: Scenario, timing: Timing, crashed_members: Sequence[int] = ()) -> int:
    """The order's own bound with this timing, and with what these deaths cost an order with a leader."""
    stacks = [build(replace(scenario.policy_for(member), timing=timing)) for member in scenario.members]
    return max(stack.order.bound_ns() + stack.outage_ns(crashed_members) for stack in stacks)


def check_cluster_run(
    scenario: Scenario,
    run: str,
    directory: Path,
    final_reports: Mapping[int, ProcessReport],
    killed: Sequence[MemberProcess] = (),
) -> ClusterReport:
    """Complete the recorded trace with what was measured, and check it; `killed` as for `note_crashes`."""
    what = measured_timing(final_reports, scenario.timing.gamma_ns)
    died = [node.member for node in sorted(killed, key=lambda node: node.killed_ns or 0)]
    bound_ns = usual_ns = _latency_bound_ns(scenario, what.timing(scenario))
    if died or (scenario.order == "vbr" and scenario.failures):
        bound_ns = _latency_bound_ns(scenario, what.timing_with_failures(scenario), died)
    longest = replace(scenario.timing, theta_ns=scenario.longest_slot_ns)
    declared_ns = _latency_bound_ns(scenario, longest, died)
    meta = RunMeta(
        run=run,
        group=scenario.group,
        order=scenario.order,
        members=scenario.members,
        delta_ns=what.delay_ns + what.lateness_ns,
        gamma_ns=what.gamma_ns,
        theta_ns=scenario.timing.theta_ns,
        bound_ns=None if scenario.order in PRIORITY_ORDERS else bound_ns,
        reliable=build(scenario.policy_for(scenario.members[0])).order.gap_free(),
        source="runtime",
        faults=tuple(map(fault_to_row, scenario.faults)),
        rates=scenario.constant_rates,
        declared_bound_ns=None if scenario.order in PRIORITY_ORDERS else _latency_bound_ns(scenario, longest),
    )
    write_meta(directory, meta)
    trace = read_trace(directory, run=run)
    verdicts, grades = check_all(trace), None
    if EARLY in trace.delivered_grades() and scenario.grades == "both":
        trace, grades = trace.with_grade(EARLY), compare_grades(trace, verdicts, final_reports)
    return ClusterReport(trace, verdicts, what, bound_ns, declared_ns, bound_ns - usual_ns, final_reports, grades)
