"""All experiments by name."""

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
    """The experiment with this name, or the sweep in this text."""
    if "\n" in name:
        return read_sweep(name)
    found = EXPERIMENTS.get(name)
    if found is None:
        raise InvalidOption(
            "experiment", f"there is no experiment {name!r}; the experiments are {', '.join(EXPERIMENTS)}"
        )
    return found


def run_task(task: ExperimentTask) -> tuple[ExperimentTask, Tally]:
    """Run one task on a worker; the task names its experiment, so nothing else has to be sent."""
    return task, run_block(find_experiment(task.experiment), task)
