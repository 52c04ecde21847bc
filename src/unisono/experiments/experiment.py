"""Defines an experiment, and splits it into tasks.

To run an experiment: `split_into_tasks`, `run_task` for each task in any process, and `result_rows` for the table. A
task is a few words and a tally is a few numbers, so both are cheap to send.
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
"""One point of an experiment: a value for each of its parameters."""
Row: TypeAlias = dict[str, Value]

BLOCK_RUNS = 500
"""How many runs one task has: a fraction of a second of work, and a small part of a point's runs."""


@dataclass(slots=True)
class Tally:
    """The totals of many runs of one point.

    `sums` and `squares` have the sum and the sum of squares of each measured value, by name. `hits` has for each curve
    how many runs reached each position on it.
    """

    runs: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    squares: dict[str, float] = field(default_factory=dict)
    hits: dict[str, list[int]] = field(default_factory=dict)

    def add(self, other: Tally) -> None:
        """Add the totals of `other` to these."""
        self.runs += other.runs
        for name, value in other.sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
            self.squares[name] = self.squares.get(name, 0.0) + other.squares[name]
        for name, counts in other.hits.items():
            before = self.hits.get(name, [0] * len(counts))
            self.hits[name] = [a + b for a, b in zip(before, counts, strict=True)]


@dataclass(frozen=True, slots=True)
class Experiment:
    """A named experiment: its description, its points, and the functions that run, tabulate and draw it."""

    name: str
    title: str
    description: str
    """What the experiment shows: one paragraph for users."""
    points: tuple[Point, ...]
    run_point: Callable[[Point, tuple[int, str, str, int], int], Tally]
    """Runs one block. Arguments: the point, the seed path (seed, experiment, point, block) and the number of runs."""
    make_rows: Callable[[Sequence[tuple[Point, Tally]]], list[Row]]
    """Makes the rows of the result table from all points and their tallies."""
    draw: Callable[[Figure, Sequence[Row]], None] | None = None
    runs: int = 10_000
    """The default number of runs per point; 0 if every value follows from a formula and nothing is simulated."""
    block_runs: int = BLOCK_RUNS
    run_s: float = 0.0003
    """The rough duration of a run in seconds, for the first distribution of tasks; measured durations replace it."""
    source: str = ""
    """The TOML text, if the experiment is a sweep from a file; empty for named experiments."""
    scenario_hash: str = ""
    """For a sweep, a fingerprint of its scenario: stored points are reused only if it is equal."""


@dataclass(frozen=True, slots=True)
class ExperimentTask:
    """A task for a worker: one block of runs of one point."""

    experiment: str
    """The name of the experiment, or the TOML text of a sweep from a file."""
    point: int
    block: int
    runs: int
    seed: int


def split_into_tasks(experiment: Experiment, runs: int | None = None, seed: int = 1) -> list[ExperimentTask]:
    """Split an experiment into tasks. Their order alternates between the points."""
    wanted = experiment.runs if runs is None else runs
    if wanted < 1 and experiment.runs:
        raise InvalidOption("runs", f"expected at least 1 run per point, not {wanted}")
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
    """Run one task. Its random numbers follow from the seed, the experiment, the point and the block."""
    point = experiment.points[task.point]
    label = json.dumps(dict(point), sort_keys=True)
    return experiment.run_point(point, (task.seed, experiment.name, label, task.block), task.runs)


def result_rows(experiment: Experiment, finished: Iterable[tuple[ExperimentTask, Tally]]) -> list[Row]:
    """The rows of the result table, from the tallies of all tasks in any order."""
    whole = [Tally() for _ in experiment.points]
    for task, tally in sorted(finished, key=lambda pair: (pair[0].point, pair[0].block)):
        whole[task.point].add(tally)
    return experiment.make_rows(list(zip(experiment.points, whole, strict=True)))
