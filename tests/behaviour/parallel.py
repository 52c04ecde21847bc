"""Runs families of seeds in several processes."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Final

from tests.behaviour.baseline import FamilyHash, RunHash
from tests.behaviour.families import FAMILIES
from tests.behaviour.recording import played

CHUNK: Final = 4
"""How many runs a worker process takes at a time."""


def hashes(names: Sequence[str], processes: int) -> dict[str, FamilyHash]:
    """The hashes of these families."""
    tasks = [
        (name, tuple(FAMILIES[name].seeds[at : at + CHUNK]))
        for name in names
        for at in range(0, len(FAMILIES[name].seeds), CHUNK)
    ]
    found: dict[str, dict[int, RunHash]] = {name: {} for name in names}
    # Fresh interpreters: the hashes must not depend on the state of the parent process.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for name, runs in pool.map(_play, tasks):
            found[name] |= runs
    return {name: FamilyHash.of([found[name][seed] for seed in FAMILIES[name].seeds]) for name in names}


def _play(task: tuple[str, tuple[int, ...]]) -> tuple[str, dict[int, RunHash]]:
    name, seeds = task
    return name, {seed: RunHash.of(played(FAMILIES[name].play, seed)) for seed in seeds}
