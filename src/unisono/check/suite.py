"""Runs every checker that applies to what a run promised."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from unisono.check.causal import causal
from unisono.check.columns import LastLogged, excused_members, without_excused_deliveries
from unisono.check.completeness import agreement, gap_freedom, gaps_explained, integrity, uniform_agreement
from unisono.check.final import (
    EARLY,
    EARLY_IN_FINAL,
    FINAL,
    FINAL_AGREEMENT,
    FINAL_ORDER,
    GRACE_NS,
    early_in_final,
    final_agreement,
    final_order,
)
from unisono.check.latency import latency
from unisono.check.multigroup import multigroup_agreement
from unisono.check.priority import priority_accounting, view_atomicity
from unisono.check.rates import is_checked, rate_compliance
from unisono.check.total_order import fifo, total_order
from unisono.check.verdict import Reason, Verdict, graded_name, unknown
from unisono.model.capabilities import recorded_capabilities
from unisono.trace.schema import ABSENT
from unisono.trace.table import Trace

NO_BOUND = 1 << 62
LATENCIES = ("latency", graded_name("latency", EARLY), graded_name("latency", FINAL))
SOME_UNGRADED = unknown("grades", Reason.GRADES_MIXED, "some deliveries have a grade and some have none")
"""The verdict if only some deliveries of the priority order have a grade: they cannot be checked apart."""


def check_all(
    trace: Trace,
    *,
    bound_ns: int | None = None,
    until_slot: int | None = None,
    until_ns: int | None = None,
    grace_ns: int = GRACE_NS,
) -> dict[str, Verdict]:
    """One verdict per promise of the run, by name.

    A run that promised no gaps is checked for gaps, other runs for unexplained gaps. Latency is checked against the
    bound. For a service without a total order (`model.capabilities`), only the promises of that service are checked.

    Deliveries of several grades are checked grade by grade, under names such as `total_order[early]`. Final deliveries
    over a slot order are due after `grace_ns`.
    """
    if trace.meta.order == "quasi_genuine":
        return _check_multigroup(trace, bound_ns=bound_ns, until_ns=until_ns)
    grades = trace.delivered_grades()
    if FINAL in grades and recorded_capabilities(trace.meta.order).slotted:
        early = trace.with_grade(EARLY)
        verdicts = check_all(early, bound_ns=bound_ns, until_ns=until_ns) if EARLY in grades else {}
        return {graded_name(name, EARLY): verdict for name, verdict in verdicts.items()} | _check_finals(
            trace, until_ns, grace_ns
        )
    if grades and recorded_capabilities(trace.meta.order).pulled and (trace.deliveries().grade == ABSENT).any():
        return {"grades": SOME_UNGRADED}
    if len(grades) > 1:
        return {
            graded_name(name, grade): verdict
            for grade in grades
            for name, verdict in check_all(
                trace.with_grade(grade), bound_ns=bound_ns, until_slot=until_slot, until_ns=until_ns
            ).items()
        }
    if not recorded_capabilities(trace.meta.order).total_order:
        return _check_unordered(trace, bound_ns=bound_ns, until_ns=until_ns)
    # In the priority order, a member that crashed may have consumed messages at other positions (erratum 004-5).
    by_priority = recorded_capabilities(trace.meta.order).pulled
    excused = excused_members(trace) if by_priority else set()
    binding = without_excused_deliveries(trace) if by_priority else trace
    verdicts = {
        "total_order": total_order(binding),
        "integrity": integrity(trace),
        "fifo": fifo(trace),
    }
    if by_priority:
        verdicts["priority_accounting"] = priority_accounting(trace)
        verdicts["view_atomicity"] = view_atomicity(trace)
    if trace.meta.reliable:
        verdicts["gap_freedom"] = gap_freedom(
            binding, until_slot=until_slot, until_ns=until_ns, bound_ns=bound_ns, excused=excused
        )
    else:
        verdicts["gaps_explained"] = gaps_explained(trace, until_ns=until_ns, bound_ns=bound_ns)
    if is_checked(trace.meta, trace):
        verdicts["rate_compliance"] = rate_compliance(trace)
    if trace.meta.bound_ns is not None or bound_ns is not None:
        verdicts["latency"] = latency(trace, bound_ns=bound_ns)
    elif by_priority:  # measured without a bound, because the consumers set the pace
        verdicts["latency"] = as_unbounded(latency(trace, bound_ns=NO_BOUND))
    return verdicts


def as_unbounded(measured: Verdict) -> Verdict:
    """The latency verdict with the reason "no bound is promised", unless it already has a reason."""
    if measured.reason:
        return measured
    return replace(measured, reason="no bound is promised", token=Reason.NO_BOUND)


def latency_of(verdicts: Mapping[str, Verdict]) -> Verdict:
    """The latency verdict of a run; with two grades, that of the early deliveries."""
    return next(verdicts[name] for name in LATENCIES if name in verdicts)


def _check_multigroup(trace: Trace, *, bound_ns: int | None, until_ns: int | None) -> dict[str, Verdict]:
    """Check the promises of multicast to several groups: each message reaches its destinations, in one order.

    For early deliveries it promises only integrity: each message was sent, and is delivered at most once.
    """
    grades = trace.delivered_grades()
    binding = trace.with_grade(FINAL) if EARLY in grades else trace
    verdicts = {"total_order": total_order(binding), "fifo": fifo(binding)}
    verdicts |= check_messages(trace, grades, bound_ns=bound_ns, until_ns=until_ns)
    if trace.meta.bound_ns is not None or bound_ns is not None:
        verdicts["latency"] = latency(binding, bound_ns=bound_ns)
    return verdicts


def _check_finals(trace: Trace, until_ns: int | None, grace_ns: int) -> dict[str, Verdict]:
    """Check the promises for final deliveries over a slot order. Their latency is measured without a bound."""
    finals = trace.with_grade(FINAL)
    verdicts = {
        graded_name("total_order", FINAL): total_order(finals),
        FINAL_ORDER: final_order(trace),
        FINAL_AGREEMENT: final_agreement(trace, until_ns=until_ns, grace_ns=grace_ns),
        graded_name("latency", FINAL): as_unbounded(latency(finals, bound_ns=NO_BOUND)),
    }
    return verdicts | check_messages(trace, trace.delivered_grades(), until_ns=until_ns, grace_ns=grace_ns)


def _check_unordered(trace: Trace, *, bound_ns: int | None, until_ns: int | None) -> dict[str, Verdict]:
    """Check the promises of a service without a total order."""
    checks = {"fifo": fifo, "causal": causal}
    verdicts = check_messages(trace, (), bound_ns=bound_ns, until_ns=until_ns)
    verdicts |= {name: checks[name](trace) for name in recorded_capabilities(trace.meta.order).checks if name in checks}
    if trace.meta.bound_ns is not None or bound_ns is not None:
        verdicts["latency"] = latency(trace, bound_ns=bound_ns)
    return verdicts


def check_messages(
    trace: Trace,
    grades: Collection[str],
    *,
    bound_ns: int | None = None,
    until_ns: int | None = None,
    grace_ns: int = GRACE_NS,
    last_logged: LastLogged | None = None,
) -> dict[str, Verdict]:
    """Check the promises about single messages: of services without a total order, of multicast to several groups,
    and of final deliveries over a slot order.

    These checks need only the sends and deliveries of each message and the member runs, so a run can be checked some
    messages at a time. Then `grades` and `until_ns` must be those of the whole run, and `last_logged` says how far the
    senders' logs go.
    """
    order = trace.meta.order
    if order == "quasi_genuine":
        binding = trace.with_grade(FINAL) if EARLY in grades else trace
        verdicts = {"integrity": integrity(binding, last_logged)}
        verdicts |= multigroup_agreement(binding, until_ns=until_ns, bound_ns=bound_ns)
        if EARLY in grades:
            verdicts[graded_name("integrity", EARLY)] = integrity(trace.with_grade(EARLY), last_logged)
        return verdicts
    if not recorded_capabilities(order).total_order:
        checks = {"agreement": agreement, "uniform_agreement": uniform_agreement}
        verdicts = {"integrity": integrity(trace, last_logged)}
        promised = [name for name in recorded_capabilities(order).checks if name in checks]
        return verdicts | {name: checks[name](trace, until_ns=until_ns, bound_ns=bound_ns) for name in promised}
    verdicts = {graded_name("integrity", FINAL): integrity(trace.with_grade(FINAL), last_logged)}
    if EARLY in grades:
        verdicts[EARLY_IN_FINAL] = early_in_final(trace, until_ns=until_ns, grace_ns=grace_ns)
    return verdicts
