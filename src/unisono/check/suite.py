"""Every checker that a run's promises call for."""

from __future__ import annotations

from unisono.check.fifo import fifo
from unisono.check.gap_freedom import gap_freedom
from unisono.check.integrity import integrity
from unisono.check.latency import latency
from unisono.check.total_order import total_order
from unisono.check.verdict import Verdict
from unisono.trace.table import Trace


def check_all(
    trace: Trace,
    *,
    bound_ns: int | None = None,
    until_slot: int | None = None,
    until_ns: int | None = None,
) -> dict[str, Verdict]:
    """One verdict per promise: gap freedom where the run promised it, latency where it promised a bound.

    Deliveries of several grades are judged grade by grade, as `total_order[early]`.
    """
    grades = trace.delivered_grades()
    if len(grades) > 1:
        return {
            f"{name}[{grade}]": verdict
            for grade in grades
            for name, verdict in check_all(
                trace.graded(grade), bound_ns=bound_ns, until_slot=until_slot, until_ns=until_ns
            ).items()
        }
    verdicts = {
        "total_order": total_order(trace),
        "integrity": integrity(trace),
        "fifo": fifo(trace),
    }
    if trace.meta.reliable:
        verdicts["gap_freedom"] = gap_freedom(trace, until_slot=until_slot, until_ns=until_ns, bound_ns=bound_ns)
    if trace.meta.bound_ns is not None or bound_ns is not None:
        verdicts["latency"] = latency(trace, bound_ns=bound_ns)
    return verdicts
