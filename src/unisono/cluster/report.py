"""The report on a finished run of real processes: verdicts, declared and measured bound, and figures.

`check_cluster_run` completes the recorded trace with the declared timing and bound and runs all checkers. The bound for
the measured Δ and Γ is a figure beside it, which no checker uses. If the run has two
grades, `compare_grades` shows how far early deliveries differ between members, that final ones do not, and that
replicas converge.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from unisono.check.columns import member_runs
from unisono.check.final import EARLY, FINAL
from unisono.check.latency import LATENCY, latency
from unisono.check.suite import check_all, latency_of
from unisono.check.verdict import Status, Verdict, check_name, graded_name, overall
from unisono.cluster.supervisor import MemberProcess, ProcessReport
from unisono.model.capabilities import capabilities_of, recorded_capabilities
from unisono.model.delays import Histogram
from unisono.model.faults import fault_to_row
from unisono.model.scenario import Scenario
from unisono.model.timing import Timing
from unisono.model.units import duration_text, ns_to_ms
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
    """The network delay, timer lateness and clock difference that the members of a run measured."""

    delay_ns: int
    """The 99.99 % quantile of the one-way delays between members, in ns."""
    delay_max_ns: int
    """The longest one-way delay between two members."""
    lateness_ns: int
    """The largest lateness of any timer of any member."""
    gamma_ns: int
    """The largest clock difference that any member measured, including the error of measurement."""

    def timing(self, scenario: Scenario) -> Timing:
        """The timing with the measured values: Δ is `delay_ns` plus `lateness_ns`, and Γ is `gamma_ns`."""
        return Timing(self.delay_ns + self.lateness_ns, self.gamma_ns, scenario.longest_slot_ns)

    def timing_with_failures(self, scenario: Scenario) -> Timing:
        """The timing of a run in which members crashed or were unreachable.

        Δ and Γ are at least the declared ones, because the other members wait for such a member that long.
        """
        declared, gamma_ns = scenario.timing, max(scenario.timing.gamma_ns, self.gamma_ns)
        return Timing(max(declared.delta_ns, self.delay_ns) + self.lateness_ns, gamma_ns, scenario.longest_slot_ns)


def measured_timing(final_reports: Mapping[int, ProcessReport], gamma_ns: int) -> MeasuredTiming:
    """Combine the measurements of all members. A member that could not measure Γ counts with `gamma_ns`."""
    delays = Histogram()
    for final in final_reports.values():
        delays.merge(Histogram.of_pairs([(b, n) for b, n in final["delays"]], final["delay_max_ns"]))
    return MeasuredTiming(
        delays.quantile(DELTA_QUANTILE),
        delays.largest,
        max((final["lateness_max_ns"] for final in final_reports.values()), default=0),
        max(
            (gamma_ns if final["gamma_ns"] is None else final["gamma_ns"] for final in final_reports.values()),
            default=gamma_ns,
        ),
    )


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """The verdicts and figures of one finished run of real processes."""

    trace: Trace
    """The recorded trace; in a run with two grades, only its early deliveries."""
    verdicts: dict[str, Verdict]
    measured: MeasuredTiming
    bound_ns: int
    """The latency bound promised before the first message, for the declared Δ and Γ, or as the scenario states it.

    It includes the outage if members crashed.
    """
    measured_bound_ns: int
    """The latency bound for the measured Δ and Γ, plus the outage if members crashed or were unreachable."""
    outage_ns: int
    """The part of `measured_bound_ns` that is due to crashed or unreachable members."""
    doubtful_assumptions: tuple[str, ...]
    """The assumptions behind `bound_ns` that did not hold in this run or were not measured; empty if all held."""
    final_reports: Mapping[int, ProcessReport]
    grades: dict[str, Any] | None = None
    """How the members' deliveries of each grade compare, from `compare_grades`; None in a run with one grade."""

    @property
    def verdict(self) -> Status:
        """The verdict on the order; also on the latency if all assumptions behind the bound held.

        Otherwise late deliveries are counted and reported, but the order does not have to prevent them.
        """
        judged = {
            name: verdict
            for name, verdict in self.verdicts.items()
            if check_name(name) in ORDER_CHECKS or (check_name(name) == LATENCY and not self.doubtful_assumptions)
        }
        return overall(judged)

    def same_sequence(self) -> bool:
        """Whether all members delivered the same sequence."""
        rows = self.trace.deliveries()
        sequences = [
            (rows.sender[mine], rows.sequence[mine]) for mine in (rows.member == m for m in self.trace.meta.members)
        ]
        first = sequences[0]
        return all(np.array_equal(first[0], s[0]) and np.array_equal(first[1], s[1]) for s in sequences)

    def missing(self) -> int | None:
        """The number of gaps: messages that a member skipped and another delivered, in slots in which both took part.

        Only the last incarnation of each member counts, and killed members do not. None for orders
        that promise no gaps, where a checker decides.
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
            member_starts = starts.select(starts.member == member)
            if not len(member_starts):
                continue
            incarnation = member_starts.recorder_incarnation.max()
            left = leaves.slot[(leaves.member == member) & (leaves.recorder_incarnation == incarnation)]
            begin = member_starts.slot[member_starts.recorder_incarnation == incarnation].min()
            end = left.min() if len(left) else rows.slot.max() + 1
            own_slots = rows.slot[(rows.member == member) & (rows.recorder_incarnation == incarnation)]
            due, delivered = (int(np.count_nonzero((slot >= begin) & (slot < end))) for slot in (slots, own_slots))
            missing += due - delivered
        return missing

    def sla_events(self) -> list[dict[str, Any]]:
        """The SLA events of all members, sorted by the times on the members' clocks."""
        events = [{"member": member, **event} for member, final in self.final_reports.items() for event in final["qos"]]
        return sorted(events, key=lambda event: event["at_ns"])

    def to_json(self) -> dict[str, Any]:
        """The report as the JSON object that `demo --json` prints."""
        figures = latency_of(self.verdicts).figures
        # In the priority orders consumers set the pace, so no delivery is late.
        bounded = not recorded_capabilities(self.trace.meta.order).pulled
        late, bound_ms = (figures["late"], ns_to_ms(self.bound_ns)) if bounded else (None, None)
        late_measured = latency(self.trace, bound_ns=self.measured_bound_ns).figures["late"] if bounded else None
        return {
            "verdict": self.verdict.value,
            "checks": {name: verdict.to_json() for name, verdict in self.verdicts.items()},
            "same_sequence": self.same_sequence(),
            "sent": len(self.trace.sends()),
            "delivered": {str(member): final["delivered"] for member, final in self.final_reports.items()},
            "latency_ms": {name: ns_to_ms(figures[f"{name}_ns"]) for name in ("p50", "p99", "p999", "max")},
            "bound_ms": bound_ms,
            "late": late,
            "declared_bound_ms": bound_ms,
            "late_declared": late,
            "measured_bound_ms": ns_to_ms(self.measured_bound_ns) if bounded else None,
            "late_measured": late_measured,
            "outage_bound_ms": ns_to_ms(self.outage_ns),
            "doubtful_assumptions": list(self.doubtful_assumptions),
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
    """Record in the trace which member was killed, when, and in which incarnation."""
    with ParquetWriter(directory, run, scenario.group, OBSERVER) as writer:
        for process in killed:
            member, at_ns, incarnation = process.member, process.killed_ns or 0, process.incarnation()
            slot = scenario.timing.slot_of(at_ns - scenario.timing.delta_ns)
            writer.recorder().event(
                EventKind.CRASH,
                slot=slot,
                real_ns=at_ns,
                local_ns=at_ns,
                subject=member,
                subject_incarnation=incarnation,
            )


def _latency_bound_ns(scenario: Scenario, timing: Timing, crashed_members: Sequence[int] = ()) -> int:
    """The order's latency bound for this timing, including the outage that crashes of these members cause."""
    stacks = [build(scenario.policy_with_timing(member, timing)) for member in scenario.members]
    return max(stack.bound_ns() + stack.outage_ns(crashed_members) for stack in stacks)


def check_cluster_run(
    scenario: Scenario,
    run: str,
    directory: Path,
    final_reports: Mapping[int, ProcessReport],
    killed: Sequence[MemberProcess] = (),
) -> ClusterReport:
    """Complete the recorded trace with the declared timing, and check it. `killed` lists the killed processes."""
    measured = measured_timing(final_reports, scenario.timing.gamma_ns)
    crashed = [process.member for process in sorted(killed, key=lambda process: process.killed_ns or 0)]
    measured_ns = usual_ns = _latency_bound_ns(scenario, measured.timing(scenario))
    if crashed or (scenario.order == "vbr" and scenario.failures):
        measured_ns = _latency_bound_ns(scenario, measured.timing_with_failures(scenario), crashed)
    longest = replace(scenario.timing, theta_ns=scenario.longest_slot_ns)
    stated = scenario.expect.bound_ns
    bound_ns = _latency_bound_ns(scenario, longest, crashed) if stated is None else stated
    pulled = capabilities_of(scenario.order).pulled
    meta = RunMeta(
        run=run,
        group=scenario.group,
        order=scenario.order,
        members=scenario.members,
        delta_ns=scenario.timing.delta_ns,
        gamma_ns=scenario.timing.gamma_ns,
        theta_ns=scenario.timing.theta_ns,
        bound_ns=None if pulled and stated is None else bound_ns,
        reliable=build(scenario.policy_for(scenario.members[0])).gap_free(),
        source="runtime",
        faults=tuple(map(fault_to_row, scenario.faults)),
        rates=scenario.constant_rates,
        declared_bound_ns=None if pulled else _latency_bound_ns(scenario, longest),
    )
    write_meta(directory, meta)
    trace = read_trace(directory, run=run)
    verdicts, grades = check_all(trace), None
    if EARLY in trace.delivered_grades() and scenario.grades == "both":
        trace, grades = trace.with_grade(EARLY), compare_grades(trace, verdicts, final_reports)
    doubtful, outage_ns = doubtful_assumptions(scenario, measured), measured_ns - usual_ns
    return ClusterReport(trace, verdicts, measured, bound_ns, measured_ns, outage_ns, doubtful, final_reports, grades)


def doubtful_assumptions(scenario: Scenario, measured: MeasuredTiming) -> tuple[str, ...]:
    """The assumptions behind the latency bound that did not hold in a run, or that no member measured.

    These are Δ, Γ, and that nothing fails. Only some orders measure the delays of their datagrams.
    """
    declared, doubtful = scenario.timing, []
    taken_ns = measured.delay_max_ns + measured.lateness_ns
    if taken_ns > declared.delta_ns:
        doubtful.append(
            f"a datagram took up to {duration_text(measured.delay_max_ns)} and a timer was up to "
            f"{duration_text(measured.lateness_ns)} late, together more than Δ = {duration_text(declared.delta_ns)}"
        )
    if measured.delay_max_ns == 0 and len(scenario.members) > 1:
        doubtful.append("no member measured delays, so it is not known whether Δ held")
    if measured.gamma_ns > declared.gamma_ns:
        doubtful.append(
            f"clocks differ by up to {duration_text(measured.gamma_ns)}, more than Γ = "
            f"{duration_text(declared.gamma_ns)}"
        )
    doubtful += [f"the scenario injects the fault {kind}" for kind in sorted({fault.kind for fault in scenario.faults})]
    return tuple(doubtful)


def compare_grades(trace: Trace, verdicts: Mapping[str, Verdict], final_reports: Mapping[int, Any]) -> dict[str, Any]:
    """Compare the deliveries of the members that stayed to the end.

    This covers the early deliveries of the slots in which all of them took part, and all final deliveries.
    """
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
    """The slots in which all of these members took part in their last incarnations: first slot, and end (exclusive)."""
    first, end = 0, int(trace.slot.max(initial=0)) + 1
    for member in members:
        runs = [run for (run_member, _), run in member_runs(trace).items() if run_member == member and run.started]
        if runs:
            first, end = max(first, runs[-1].first_slot), min(end, runs[-1].end_slot)
    return first, end


def _numbered_deliveries(trace: Trace, grade: str, member: int) -> dict[int, tuple[int, int, int]]:
    """The messages that a member delivered in its last incarnation, by number.

    Early deliveries are numbered from 0. Final deliveries have their numbers in the final order.
    """
    rows = trace.with_grade(grade).deliveries()
    incarnation = rows.recorder_incarnation[rows.member == member].max(initial=-1)
    own = rows.select((rows.member == member) & (rows.recorder_incarnation == incarnation))
    numbers = own.place.tolist() if grade == FINAL else range(len(own))
    return dict(
        zip(
            numbers,
            zip(own.sender.tolist(), own.sender_incarnation.tolist(), own.sequence.tolist(), strict=True),
            strict=True,
        )
    )
