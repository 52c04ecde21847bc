"""What a finished run of real processes shows: its measured bound, its verdicts, its figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from unisono.check.latency import latency
from unisono.check.suite import check_all
from unisono.check.verdict import Status, Verdict, overall
from unisono.cluster.local import Report
from unisono.model.durations import ms
from unisono.model.histogram import Histogram
from unisono.model.scenario import Scenario
from unisono.model.timing import Timing
from unisono.stack import build
from unisono.trace.files import read_trace
from unisono.trace.kinds import OBSERVER, EventKind
from unisono.trace.meta import RunMeta, write_meta
from unisono.trace.table import Trace
from unisono.trace.writer import ParquetWriter

DELTA_QUANTILE = 0.9999
ORDER_CHECKS = ("total_order", "integrity", "fifo", "gap_freedom")


@dataclass(frozen=True, slots=True)
class Measured:
    """What the machine and its network did during the run."""

    delay_ns: int
    """The 99.99 % quantile of one-way delays between members."""
    lateness_ns: int
    """The latest that any timer of any member fired."""
    gamma_ns: int
    """The largest clock difference that any member saw, errors included."""

    def bound_ns(self, scenario: Scenario) -> int:
        """The order's own bound, with Δ as measured: the network's quantile plus the driver's lateness."""
        timing = Timing(self.delay_ns + self.lateness_ns, self.gamma_ns, scenario.timing.theta_ns)
        bounds = (
            build(replace(scenario.policy_for(member), timing=timing)).order.bound_ns() for member in scenario.members
        )
        return max(bounds)


def measured(finals: Mapping[int, Report], gamma_ns: int) -> Measured:
    """The members' measurements taken together; Γ as declared where a peer was gone before it could be probed."""
    delays = Histogram()
    for final in finals.values():
        delays.merge(Histogram.of_pairs([(b, n) for b, n in final["delays"]], final["delay_max_ns"]))
    return Measured(
        delays.quantile(DELTA_QUANTILE),
        max((final["lateness_max_ns"] for final in finals.values()), default=0),
        max(
            (gamma_ns if final["gamma_ns"] is None else final["gamma_ns"] for final in finals.values()),
            default=gamma_ns,
        ),
    )


@dataclass(frozen=True, slots=True)
class Judgement:
    """The run's verdicts and figures."""

    trace: Trace
    verdicts: dict[str, Verdict]
    measured: Measured
    bound_ns: int
    """With Δ and Γ as measured."""
    declared_bound_ns: int
    """With Δ and Γ as they were declared: what the members promised before the first message."""
    finals: Mapping[int, Report]

    @property
    def verdict(self) -> Status:
        """Whether the order held: a late delivery is counted, it does not make the order wrong.

        The bound rests on Δ, which is a property of a machine that others use too.
        """
        return overall({name: self.verdicts[name] for name in ORDER_CHECKS if name in self.verdicts})

    def same_sequence(self) -> bool:
        """Whether every member delivered the very same sequence."""
        rows = self.trace.deliveries()
        sequences = [
            (rows.sender[mine], rows.sequence[mine]) for mine in (rows.member == m for m in self.trace.meta.members)
        ]
        first = sequences[0]
        return all(np.array_equal(first[0], s[0]) and np.array_equal(first[1], s[1]) for s in sequences)

    def to_json(self) -> dict[str, Any]:
        """The figures that `demo --json` prints."""
        figures = self.verdicts["latency"].figures
        return {
            "verdict": self.verdict.value,
            "checks": {name: verdict.to_json() for name, verdict in self.verdicts.items()},
            "same_sequence": self.same_sequence(),
            "sent": len(self.trace.sends()),
            "delivered": {str(member): final["delivered"] for member, final in self.finals.items()},
            "latency_ms": {name: ms(figures[f"{name}_ns"]) for name in ("p50", "p99", "p999", "max")},
            "bound_ms": ms(self.bound_ns),
            "late": figures["late"],
            "declared_bound_ms": ms(self.declared_bound_ns),
            "late_declared": int(latency(self.trace, bound_ns=self.declared_bound_ns).figures["late"]),
            "delta_measured_ms": ms(self.measured.delay_ns),
            "timer_lateness_ms": ms(self.measured.lateness_ns),
            "gamma_measured_ms": ms(self.measured.gamma_ns),
            "longest_gap_ms": ms(max(final["longest_gap_ns"] for final in self.finals.values())),
            "left_in_order": all(final["in_order"] for final in self.finals.values()),
            "refused": _added(final["refused"] for final in self.finals.values()),
            "violations": sorted({text for final in self.finals.values() for text in final["violations"]}),
        }


def _added(counts: Any) -> dict[str, int]:
    total: dict[str, int] = {}
    for each in counts:
        for reason, number in each.items():
            total[reason] = total.get(reason, 0) + number
    return total


def note_crashes(scenario: Scenario, run: str, directory: Path, killed: Mapping[int, tuple[int, int | None]]) -> None:
    """Write down, as an onlooker, who was killed when and in which incarnation."""
    with ParquetWriter(directory, run, scenario.group, OBSERVER) as writer:
        for member, (at_ns, life) in killed.items():
            slot = scenario.timing.slot_of(at_ns - scenario.timing.delta_ns)
            writer.recorder().event(
                EventKind.CRASH, slot=slot, real_ns=at_ns, local_ns=at_ns, subject=member, incarnation=life
            )


def judge(scenario: Scenario, run: str, directory: Path, finals: Mapping[int, Report]) -> Judgement:
    """Complete the recorded trace with what was measured, and check it."""
    what = measured(finals, scenario.timing.gamma_ns)
    bound_ns = what.bound_ns(scenario)
    meta = RunMeta(
        run=run,
        group=scenario.group,
        order=scenario.order,
        members=scenario.members,
        delta_ns=what.delay_ns + what.lateness_ns,
        gamma_ns=what.gamma_ns,
        theta_ns=scenario.timing.theta_ns,
        bound_ns=bound_ns,
        reliable=build(scenario.policy_for(scenario.members[0])).order.reliable(),
        source="runtime",
    )
    write_meta(directory, meta)
    trace = read_trace(directory, run=run)
    declared_ns = max(build(scenario.policy_for(m)).order.bound_ns() for m in scenario.members)
    return Judgement(trace, check_all(trace), what, bound_ns, declared_ns, finals)
