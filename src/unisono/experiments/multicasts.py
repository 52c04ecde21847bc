"""Points that simulate many RMCasts: parameters become a setting, outcomes become a tally. One time unit is 1 ms."""

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
"""The values of D and S on the curves, in units of the mean delay."""

SeedPath = tuple[int, str, str, int]


def units_to_ns(units: float) -> int:
    """Time units as nanoseconds."""
    return round(units * NS_PER_MS)


def numeric_parameter(point: Point, name: str) -> float:
    """A numeric parameter."""
    return float(cast("float", point[name]))


def redundancy_of(point: Point) -> Redundancy:
    """ρ, η, ω and the rule of a point."""
    return Redundancy(
        int(numeric_parameter(point, "rho")),
        units_to_ns(numeric_parameter(point, "eta")),
        units_to_ns(numeric_parameter(point, "omega")),
        cast("Adaptive", point.get("adaptive", "none")),
    )


def network_of(point: Point) -> NetworkModel:
    """The network of a point: exponential delays with mean 1, and the loss."""
    return NetworkModel(ExponentialDelay(NS_PER_MS), numeric_parameter(point, "loss"))


def setting_of(point: Point) -> RmcastCase:
    """The complete setting of a point."""
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
    """Simulate the multicasts of a block."""
    return RmcastRuns(setting_of(point), generator(*seed_path)).run(runs)


def count_within(times_ns: npt.NDArray[np.int64], grid: tuple[float, ...]) -> list[int]:
    """How many values are within each time of a grid."""
    ordered = np.sort(times_ns)
    return [int(count) for count in np.searchsorted(ordered, [units_to_ns(units) for units in grid], side="right")]


def tally_of(outcomes: RmcastOutcomes, grid: tuple[float, ...] = GRID) -> Tally:
    """The tally of a block: broadcasts, and how many multicasts reached all members within D and S."""
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
    """A block of runs on the common grid."""
    return tally_of(run_outcomes(point, seed_path, runs))


def broadcast_columns(tally: Tally) -> Row:
    """The mean number of broadcasts, with its interval."""
    mean, low, high = mean_interval(tally.runs, tally.sums["broadcasts"], tally.squares["broadcasts"])
    return {"broadcasts_mean": mean, "broadcasts_low": low, "broadcasts_high": high}


def share_at(tally: Tally, curve: str, grid_index: int, z: float = Z) -> Interval:
    """The share of runs at one grid position; relative to a given process, only runs that reached it."""
    count = tally.hits["given"][0] if curve == "u given" else tally.runs
    return share_interval(count, tally.hits[curve][grid_index], z)


def share_columns(name: str, tally: Tally, curve: str, grid_index: int) -> Row:
    """A share of the runs, with its interval."""
    share, low, high = share_at(tally, curve, grid_index)
    return {name: share, f"{name}_low": low, f"{name}_high": high}
