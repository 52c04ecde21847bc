"""An experiment as a value, and the tasks that it falls into.

A runner needs `tasks`, `run_task` and `rows_of`, and nothing else: map `run_task` over the tasks, wherever, and give
the tallies to `rows_of`. A task is a few words, a tally a few numbers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from unisono.errors import InvalidOption

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Value: TypeAlias = str | int | float | bool | None
Point: TypeAlias = Mapping[str, Value]
"""The parameters of one point."""
Row: TypeAlias = dict[str, Value]

BLOCK_RUNS = 500
"""How many runs one task makes: a fraction of a second of work, a small share of a point."""


@dataclass(slots=True)
class Tally:
    """What many runs add up to: sums and sums of squares by name, and hits by name, one for each place of a grid."""

    runs: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    squares: dict[str, float] = field(default_factory=dict)
    hits: dict[str, list[int]] = field(default_factory=dict)

    def add(self, other: Tally) -> None:
        """Count what `other` has counted."""
        self.runs += other.runs
        for name, value in other.sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
            self.squares[name] = self.squares.get(name, 0.0) + other.squares[name]
        for name, counts in other.hits.items():
            before = self.hits.get(name, [0] * len(counts))
            self.hits[name] = [a + b for a, b in zip(before, counts, strict=True)]


@dataclass(frozen=True, slots=True)
class Experiment:
    """A name, what it shows, its points, and three functions."""

    name: str
    title: str
    description: str
    """One paragraph for people."""
    points: tuple[Point, ...]
    run_point: Callable[[Point, tuple[int, str, str, int], int], Tally]
    """A block of runs: the point, the seed with the names under it, and how many."""
    make_rows: Callable[[Sequence[tuple[Point, Tally]]], list[Row]]
    """The table of all points."""
    draw: Callable[[Figure, Sequence[Row]], None] | None = None
    runs: int = 10_000
    """How many runs of each point it takes to show it; 0: none, the figures are computed."""
    block_runs: int = BLOCK_RUNS
    run_s: float = 0.0003
    """About how long a run takes: work is first dealt out by it, then by what was measured."""
    source: str = ""
    """The text of a sweep that is in no catalogue."""
    scenario_hash: str = ""
    """Of a sweep, what tells its scenario from others: points are runs of the same only with the same."""


@dataclass(frozen=True, slots=True)
class ExperimentTask:
    """One block of one point: what a worker is sent."""

    experiment: str
    """Its name, or its text if it is in no catalogue."""
    point: int
    block: int
    runs: int
    seed: int


def split_into_tasks(experiment: Experiment, runs: int | None = None, seed: int = 1) -> list[ExperimentTask]:
    """Everything there is to do, in an order that spreads the points."""
    wanted = experiment.runs if runs is None else runs
    if wanted < 1 and experiment.runs:
        raise InvalidOption("runs", f"at least one run of each point is needed, not {wanted}")
    if not experiment.runs:
        return [
            ExperimentTask(experiment.source or experiment.name, point, 0, 0, seed)
            for point in range(len(experiment.points))
        ]
    size = experiment.block_runs
    sizes = [min(size, wanted - start) for start in range(0, wanted, size)]
    return [
        ExperimentTask(experiment.source or experiment.name, point, block, count, seed)
        for block, count in enumerate(sizes)
        for point in range(len(experiment.points))
    ]


def run_block(experiment: Experiment, task: ExperimentTask) -> Tally:
    """Run one task. Its chance follows from the seed, the experiment, the point itself and the block."""
    point = experiment.points[task.point]
    label = json.dumps(dict(point), sort_keys=True)
    return experiment.run_point(point, (task.seed, experiment.name, label, task.block), task.runs)


def result_rows(experiment: Experiment, finished: Iterable[tuple[ExperimentTask, Tally]]) -> list[Row]:
    """The table, from what the tasks have counted, in any order."""
    whole = [Tally() for _ in experiment.points]
    for task, tally in sorted(finished, key=lambda pair: (pair[0].point, pair[0].block)):
        whole[task.point].add(tally)
    return experiment.make_rows(list(zip(experiment.points, whole, strict=True)))
