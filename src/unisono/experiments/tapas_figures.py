"""The experiments of paper 002 §5 that draw Figures 17 to 22: formulas beside simulations of RMCast.

The numbers are those of the captions.
"""

from __future__ import annotations

from collections.abc import Sequence

from unisono.experiments.drawing import draw_curves, draw_errors, draw_failures
from unisono.experiments.experiment import Experiment, Point, Row, Tally
from unisono.experiments.intervals import Z_BEYOND_CHANCE
from unisono.experiments.multicasts import (
    GRID,
    SeedPath,
    network_of,
    numeric_parameter,
    redundancy_of,
    run_multicasts,
    run_outcomes,
    share_at,
    share_columns,
    tally_of,
    units_to_ns,
)
from unisono.experiments.tapas import point
from unisono.experiments.tapas_values import (
    CRASH,
    DIRECT,
    DIRECT_RECEIVERS,
    ETA,
    FAILURE_PLATEAU,
    LOSS,
    MEMBERS,
    NO_CRASH,
    SIZES,
)
from unisono.model.delays import ExponentialDelay
from unisono.model.policy import Redundancy
from unisono.model.units import NS_PER_MS
from unisono.qos.plan.rmcast_model import (
    agreement_failure,
    agreement_failure_extended,
    reach_probability,
    reach_probability_after_first,
    shortest_d,
    shortest_s,
)
from unisono.sim.random_streams import generator
from unisono.sim.rmcast_runs import RmcastCase, RmcastRuns

TARGETS = (0.8, 0.9, 0.99)
MANY_CRASHES = (0.2, 0.02)
"""Crash probabilities v and β (paper 002, App. C) at which disagreements are frequent enough to be counted."""
FEW_CRASHES = (0.95e-4, 1e-3)
"""Crash probabilities v and β (paper 002, App. C) for which f_n tends to the published value (erratum 002-9)."""


FIRST_RECEIVER, GIVEN_PROCESS = "first receiver", "given process"
"""From which receiver's first copy S counts.

The formulas count from a given process, the curves of paper 002 from the first receiver (erratum 002-17).
"""


def _analytic(parameters: Point, curve: str, units: float) -> float:
    formula = reach_probability if curve == "r" else reach_probability_after_first
    return formula(
        int(numeric_parameter(parameters, "n")), network_of(parameters), redundancy_of(parameters), units_to_ns(units)
    )


def _curve(parameters: Point, tally: Tally, curve: str, columns: Row) -> list[Row]:
    name, at = ("r_d", "d") if curve == "r" else ("u_s", "s")
    rows: list[Row] = []
    for place, units in enumerate(GRID):
        row: Row = {key: parameters[key] for key in ("n", "rho", "scenario", "direct")} | columns
        analytic = _analytic(parameters, curve, units)
        row |= {at: units, "analytic": analytic} | share_columns(name, tally, curve, place)
        row["overestimates"] = analytic > share_at(tally, curve, place, Z_BEYOND_CHANCE)[2]
        rows.append(row | {"paper": None, "runs": tally.runs})
    return rows


def absolute_rows(points: Sequence[tuple[Point, Tally]]) -> list[Row]:
    """The rows with r_D at each D in GRID."""
    return [row for parameters, tally in points for row in _curve(parameters, tally, "r", {})]


def relative_rows(points: Sequence[tuple[Point, Tally]]) -> list[Row]:
    """The rows with u_S at each S in GRID.

    S is the time since the first receiver got the message. Points without a crash also have rows in which S is the time
    since a given process got it.
    """
    rows: list[Row] = []
    for parameters, tally in points:
        if parameters["scenario"] == NO_CRASH:
            rows += _curve(parameters, tally, "u given", {"relative_to": GIVEN_PROCESS})
        rows += _curve(parameters, tally, "u", {"relative_to": FIRST_RECEIVER})
    return rows


CURVE_BY_LATENCY = {
    "absolute": "r",
    f"relative to a {GIVEN_PROCESS}": "u given",
    f"relative to the {FIRST_RECEIVER}": "u",
}


def _target_times(parameters: Point) -> list[tuple[str, float, float | None]]:
    """When the formulas reach each target probability: tuples (kind of latency, target, time).

    The time is in time units; None if the formula never reaches the target.
    """
    n, network, redundancy = int(numeric_parameter(parameters, "n")), network_of(parameters), redundancy_of(parameters)
    found: list[tuple[str, float, float | None]] = []
    for latency, curve in CURVE_BY_LATENCY.items():
        for target in TARGETS:
            at_ns = (shortest_d if curve == "r" else shortest_s)(n, network, redundancy, target)
            found.append((latency, target, None if at_ns is None else at_ns / NS_PER_MS))
    return found


def run_errors(parameters: Point, seed_path: SeedPath, runs: int) -> Tally:
    """Simulate one block of runs, and count the results at the times at which the formulas reach their targets."""
    grid = tuple(at or 0.0 for _, _, at in _target_times(parameters))
    return tally_of(run_outcomes(parameters, seed_path, runs), grid)


def error_rows(points: Sequence[tuple[Point, Tally]]) -> list[Row]:
    """The rows with the relative error of the formulas.

    The error is how much larger the simulated probability is than the formula's, relative to the formula's; it is
    negative if the simulated one is smaller.
    """
    rows: list[Row] = []
    for parameters, tally in points:
        for place, (latency, target, at) in enumerate(_target_times(parameters)):
            row: Row = {key: parameters[key] for key in ("n", "rho", "loss", "scenario")}
            row |= {"latency": latency, "target": target, "at": at}
            if at is not None:
                share, low, high = share_at(tally, CURVE_BY_LATENCY[latency], place)
                row |= {"share": share, "share_low": low, "share_high": high}
                ends = (("", share), ("_low", low), ("_high", high))
                row |= {f"error{end}": value / target - 1 for end, value in ends}
            rows.append(row | {"paper": None, "runs": tally.runs})
    return rows


def run_failures(parameters: Point, seed_path: SeedPath, runs: int) -> Tally:
    """Simulate one block of runs in which any process may crash."""
    redundancy = Redundancy.of_ns(int(numeric_parameter(parameters, "rho")), units_to_ns(ETA))
    n, (v, beta) = int(numeric_parameter(parameters, "n")), MANY_CRASHES
    setting = RmcastCase(
        *(n, redundancy, ExponentialDelay(NS_PER_MS), LOSS, "anybody crashes"),
        crash_in_send_probability=beta,
        crash_before_takeover_probability=v,
    )
    return tally_of(RmcastRuns(setting, generator(*seed_path)).run(runs))


def failure_rows(points: Sequence[tuple[Point, Tally]]) -> list[Row]:
    """The rows with f_n, the probability that members disagree about a message (paper 002, App. C), by group size.

    Each row has f_n for rare crashes beside the published limit, and f_n for frequent crashes beside the simulated
    share of disagreements.
    """
    rows: list[Row] = []
    for parameters, tally in points:
        n = int(numeric_parameter(parameters, "n"))
        row: Row = {"n": n, "rho": parameters["rho"]}
        row |= {
            "f_n": agreement_failure(n, LOSS, *FEW_CRASHES),
            "f_n_extended": agreement_failure_extended(n, LOSS, *FEW_CRASHES),
        }
        row["paper"] = 0.0 if n == 2 else FAILURE_PLATEAU if n >= 10 else None
        row["f_n_many_crashes"] = agreement_failure(n, LOSS, *MANY_CRASHES)
        row |= share_columns("failed", tally, "disagreed", 0)
        rows.append(row | {"runs": tally.runs})
    return rows


_ABSOLUTE = (
    "The probability that all members have a multicast to 50 within D: the formula, which relies on the "
    "originator alone, beside simulations without a crash and with a crash of the originator after copy 0. Without a "
    "crash the formula must never be above the simulation."
)
_RELATIVE = (
    "The probability that all others have the message within S of the first receiver, if the originator crashes "
    "in the middle of copy 0 and 1, 2 or 5 receive it. The formula assumes that the others can receive copy 0, so it "
    "promises too much here. Without a crash, u_S is also counted from a process that is chosen beforehand, as in the "
    "formula: there it must never be above the simulation."
)


def _absolute(figure_number: int, rho: int) -> Experiment:
    return Experiment(
        f"tapas-fig{figure_number}",
        f"Figure {figure_number}: r_D as a function of D, ρ = {rho}",
        _ABSOLUTE,
        tuple(point(MEMBERS, rho, scenario) for scenario in (NO_CRASH, CRASH)),
        run_multicasts,
        absolute_rows,
        draw_curves,
    )


def _relative(figure_number: int, rho: int) -> Experiment:
    few = [point(MEMBERS, rho, DIRECT, direct=direct) for direct in DIRECT_RECEIVERS]
    return Experiment(
        f"tapas-fig{figure_number}",
        f"Figure {figure_number}: u_S as a function of S, ρ = {rho}",
        _RELATIVE,
        (*few, point(MEMBERS, rho, NO_CRASH)),
        run_multicasts,
        relative_rows,
        draw_curves,
    )


FIGURES = (
    Experiment(
        "tapas-fig17",
        "Figure 17: the probability that agreement fails",
        "f_n by group size. The published curve converges to 1e-7, which no simulation can show; so f_n and the "
        "simulated share of failures are also shown where crashes are frequent: β = 0.02 at each send, v = 0.2 "
        "before each take-over, ρ = 2.",
        tuple({"n": n, "rho": 2} for n in (2, 3, 4, 5, 7, 10, 15, 20, 30)),
        run_failures,
        failure_rows,
        draw_failures,
    ),
    _absolute(18, 1),
    _relative(19, 1),
    _absolute(20, 2),
    _relative(21, 2),
    Experiment(
        "tapas-fig22",
        "Figure 22: relative error of the formulas, by group size",
        "At the time at which a formula reaches 0.8, 0.9 or 0.99: how much more the simulation reaches, relative to "
        "that; for r_D, and for u_S from a given process and from the first receiver; with 5 % and with 7.5 % loss, "
        "ρ = 2, no crash. Above zero the formula is pessimistic. A target that a formula never reaches has no time.",
        tuple(point(n, 2, NO_CRASH, loss=loss) for loss in (LOSS, 0.075) for n in SIZES),
        run_errors,
        error_rows,
        draw_errors,
    ),
)
