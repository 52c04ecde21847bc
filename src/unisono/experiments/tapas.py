"""The experiments of paper 002 §5.2 that count broadcasts: its groups 1 to 5, and Figures 23 and 24.

The published counts do not follow from the published pseudo-code under any reading (erratum 002-1). They are shown
beside ours, and nothing is fitted to them. The rule `counting` is this project's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from unisono.experiments.drawing import draw_broadcasts
from unisono.experiments.experiment import Experiment, Point, Row, Tally
from unisono.experiments.intervals import difference_margin
from unisono.experiments.multicasts import GRID, broadcast_columns, run_multicasts, share_columns
from unisono.experiments.tapas_values import (
    CRASH,
    DIRECT,
    DIRECT_RECEIVERS,
    ETA,
    FIGURE_23,
    FIGURE_24,
    GROUP_1,
    LOSS,
    MEMBERS,
    NO_CRASH,
    SIZES,
)

RULES = ("none", "heuristic", "counting")
AT_S = 8.0
"""The S at which the tables show u_S, in time units: take-overs have begun but have not reached all members."""


def point(n: int, rho: int, scenario: str, *, adaptive: str = "none", direct: int = 0, loss: float = LOSS) -> Point:
    """Make a point of these experiments, with times in the units of paper 002."""
    return {
        "n": n,
        "rho": rho,
        "scenario": scenario,
        "direct": direct,
        "adaptive": adaptive,
        "loss": loss,
        "eta": ETA,
        "omega": 0.0,
    }


def published(rho: int, values: Mapping[str, Mapping[int, float]]) -> Mapping[tuple[object, ...], float]:
    """The published values of a table of paper 002, by ρ, group size and rule."""
    return {(rho, n, rule): value for rule, by_size in values.items() for n, value in by_size.items()}


PUBLISHED_BROADCASTS: dict[tuple[object, ...], float] = {
    **{(scenario, 1, MEMBERS, "none"): value for scenario, value in GROUP_1.items()},
    **{(NO_CRASH, *key): value for key, value in published(2, FIGURE_23).items()},
    **{(CRASH, *key): value for key, value in published(2, FIGURE_24).items()},
}


def broadcast_rows(points: Sequence[tuple[Point, Tally]]) -> list[Row]:
    """The rows of the table of broadcasts: the simulated counts beside the published ones, and u_S.

    Each row also says how far u_S falls behind that of the published heuristic.
    """
    rows: list[Row] = []
    for parameters, tally in points:
        key = tuple(parameters[name] for name in ("scenario", "rho", "n", "adaptive"))
        row: Row = {name: parameters[name] for name in ("n", "rho", "scenario", "adaptive")}
        if parameters["direct"]:
            row["direct"] = parameters["direct"]
        row |= broadcast_columns(tally)
        row["paper"] = PUBLISHED_BROADCASTS.get(key)
        row["s"] = AT_S
        row |= share_columns("u_s", tally, "u", GRID.index(AT_S))
        row["disagreed"] = tally.hits["disagreed"][0]
        row["runs"] = tally.runs
        rows.append(row | _lag_behind_heuristic(parameters, tally, points))
    return rows


def _lag_behind_heuristic(parameters: Point, tally: Tally, points: Sequence[tuple[Point, Tally]]) -> Row:
    """How far u_S of this point falls behind that of the published heuristic at most, with its 95 % margin.

    Empty for the heuristic itself.
    """
    if parameters["adaptive"] == "heuristic":
        return {}
    for other, theirs in points:
        if other == {**parameters, "adaptive": "heuristic"}:
            here, there = tally.hits["u"], theirs.hits["u"]
            lead = [there[i] / theirs.runs - here[i] / tally.runs for i in range(len(GRID))]
            place = max(range(len(GRID)), key=lead.__getitem__)
            margin = difference_margin((here[place], tally.runs), (there[place], theirs.runs))
            return {"u_s_behind": lead[place], "u_s_behind_margin": margin}
    return {}


def _table(name: str, title: str, description: str, points: Sequence[Point]) -> Experiment:
    return Experiment(name, title, description, tuple(points), run_multicasts, broadcast_rows, draw_broadcasts)


def _figure(number: int, scenario: str, words: str) -> Experiment:
    return _table(
        f"tapas-fig{number}",
        f"Figure {number}: broadcasts with and without adaptive time-outs, {words}",
        f"Mean broadcasts per multicast for groups of 5 to 50 with ρ = 2, {words}: fixed time-outs, the published "
        "heuristic (B.2), and the project's own rule: a member that knows of ρ+2 broadcasts makes none itself. u_S "
        "is shown beside the counts: fewer broadcasts are better only if messages arrive as reliably and as soon.",
        [point(n, 2, scenario, adaptive=rule) for n in SIZES for rule in RULES],
    )


TABLES = (
    _table(
        "tapas-group-1",
        "Group 1: broadcasts, ρ = 1, scenarios 1 and 2",
        "What one multicast to 50 costs with two copies: without a crash, and if the originator crashes after copy 0.",
        [point(MEMBERS, 1, scenario) for scenario in (NO_CRASH, CRASH)],
    ),
    _table(
        "tapas-group-2",
        "Group 2: broadcasts, ρ = 1, scenario 3",
        "The originator crashes in the middle of copy 0, which reaches 1, 2 or 5 processes; those take over.",
        [point(MEMBERS, 1, DIRECT, direct=direct) for direct in DIRECT_RECEIVERS],
    ),
    _table(
        "tapas-group-3",
        "Group 3: broadcasts, ρ = 2, scenarios 1 and 2",
        "As group 1 with three copies: the cost of a third copy without a crash, and if the originator crashes.",
        [point(MEMBERS, 2, scenario) for scenario in (NO_CRASH, CRASH)],
    ),
    _table(
        "tapas-group-4",
        "Group 4: broadcasts, ρ = 2, scenario 3",
        "As group 2 with three copies: how many broadcasts it takes 1, 2 or 5 direct receivers to reach 50.",
        [point(MEMBERS, 2, DIRECT, direct=direct) for direct in DIRECT_RECEIVERS],
    ),
    _table(
        "tapas-group-5",
        "Group 5: broadcasts, ρ = 2, adaptive time-outs",
        "As group 3, with the published heuristic for adaptive time-outs and with the project's own rule.",
        [point(MEMBERS, 2, scenario, adaptive=rule) for scenario in (NO_CRASH, CRASH) for rule in RULES[1:]],
    ),
    _figure(23, NO_CRASH, "no crash"),
    _figure(24, CRASH, "the originator crashes after copy 0"),
)
