"""Runs the points of experiments that simulate many reliable multicasts (RMCast, paper 002).

The parameters of a point become the setting of the simulation, and the outcomes become a tally. One time unit of the
paper is 1 ms.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import numpy.typing as npt

from unisono.experiments.experiment import Point, Row, Tally
from unisono.experiments.intervals import Interval, Z, mean_interval, share_interval
from unisono.model.delays import ExponentialDelay
from unisono.model.policy import Adaptive, Redundancy
from unisono.model.units import NS_PER_MS
from unisono.qos.plan.rmcast_model import NetworkModel
from unisono.sim.random_streams import generator
from unisono.sim.rmcast_runs import CrashScenario, RmcastCase, RmcastOutcomes, RmcastRuns

GRID = tuple(half / 2 for half in range(1, 51))
"""The values of D and S at which the curves of r_D and u_S are measured, in units of the mean delay."""

SeedPath = tuple[int, str, str, int]


def units_to_ns(units: float) -> int:
    """Convert time units of the paper to nanoseconds."""
    return round(units * NS_PER_MS)


def numeric_parameter(point: Point, name: str) -> float:
    """A parameter of a point as a number."""
    return float(cast("float", point[name]))


def redundancy_of(point: Point) -> Redundancy:
    """The redundancy of a point: ρ, η, ω and the rule for lengthening ω."""
    return Redundancy.of_ns(
        int(numeric_parameter(point, "rho")),
        units_to_ns(numeric_parameter(point, "eta")),
        units_to_ns(numeric_parameter(point, "omega")),
        cast("Adaptive", point.get("adaptive", "none")),
    )


def network_of(point: Point) -> NetworkModel:
    """The network of a point: exponential delays with a mean of one time unit, and the point's loss."""
    return NetworkModel(ExponentialDelay(NS_PER_MS), numeric_parameter(point, "loss"))


def setting_of(point: Point) -> RmcastCase:
    """The setting to simulate for a point: group size, redundancy, network and crashes."""
    network = network_of(point)
    return RmcastCase(
        int(numeric_parameter(point, "n")),
        redundancy_of(point),
        network.delay,
        network.loss,
        cast("CrashScenario", point["scenario"]),
        int(cast("int", point.get("direct", 0))),
    )


def run_outcomes(point: Point, seed_path: SeedPath, runs: int) -> RmcastOutcomes:
    """Simulate the multicasts of one block of runs."""
    return RmcastRuns(setting_of(point), generator(*seed_path)).run(runs)


def count_within(times_ns: npt.NDArray[np.int64], grid: tuple[float, ...]) -> list[int]:
    """For each time in `grid`, in time units: how many of the values are at most that time."""
    ordered = np.sort(times_ns)
    return [int(count) for count in np.searchsorted(ordered, [units_to_ns(units) for units in grid], side="right")]


def tally_of(outcomes: RmcastOutcomes, grid: tuple[float, ...] = GRID) -> Tally:
    """The tally of a block: the broadcasts, and how many multicasts reached all members within each D and S."""
    broadcasts, given = outcomes.broadcasts.astype(np.float64), outcomes.spread_after_one_receiver_ns()
    return Tally(
        len(broadcasts),
        {"broadcasts": float(broadcasts.sum())},
        {"broadcasts": float((broadcasts * broadcasts).sum())},
        {
            "r": count_within(outcomes.last_ns, grid),
            "u": count_within(outcomes.spread_ns(), grid),
            "u given": count_within(given, grid),
            "given": [len(given)],
            "disagreed": [int(outcomes.disagreed().sum())],
        },
    )


def run_multicasts(point: Point, seed_path: SeedPath, runs: int) -> Tally:
    """Simulate one block of runs, and count the results at the values of D and S in GRID."""
    return tally_of(run_outcomes(point, seed_path, runs))


def broadcast_columns(tally: Tally) -> Row:
    """The columns with the mean number of broadcasts and its confidence interval."""
    mean, low, high = mean_interval(tally.runs, tally.sums["broadcasts"], tally.squares["broadcasts"])
    return {"broadcasts_mean": mean, "broadcasts_low": low, "broadcasts_high": high}


def share_at(tally: Tally, curve: str, grid_index: int, z: float = Z) -> Interval:
    """The share of runs that reached one position of a curve, with its confidence interval.

    The curve "u given" measures times from one given process, so only runs that reached this process count.
    """
    count = tally.hits["given"][0] if curve == "u given" else tally.runs
    return share_interval(count, tally.hits[curve][grid_index], z)


def share_columns(name: str, tally: Tally, curve: str, grid_index: int) -> Row:
    """The columns with the share of runs at one position of a curve, and its confidence interval."""
    share, low, high = share_at(tally, curve, grid_index)
    return {name: share, f"{name}_low": low, f"{name}_high": high}
