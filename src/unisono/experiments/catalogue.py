"""The catalogue of all experiments by name."""

from __future__ import annotations

from unisono.errors import InvalidOption
from unisono.experiments.experiment import Experiment, ExperimentTask, Tally, run_block
from unisono.experiments.sweeps import read_sweep
from unisono.experiments.tapas import TABLES
from unisono.experiments.tapas_figures import FIGURES
from unisono.experiments.trade_offs import TRADE_OFFS

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment for experiment in sorted((*TABLES, *FIGURES, *TRADE_OFFS), key=lambda each: each.name)
}


def find_experiment(name: str) -> Experiment:
    """Return the experiment with this name. A name of several lines is the TOML text of a sweep."""
    if "\n" in name:
        return read_sweep(name)
    found = EXPERIMENTS.get(name)
    if found is None:
        raise InvalidOption(
            "experiment", f"there is no experiment {name!r}; the experiments are {', '.join(EXPERIMENTS)}"
        )
    return found


def run_task(task: ExperimentTask) -> tuple[ExperimentTask, Tally]:
    """Run one task and return it with its tally. The task names its experiment, so a worker needs nothing else."""
    return task, run_block(find_experiment(task.experiment), task)
