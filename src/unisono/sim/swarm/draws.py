"""Functions that draw random parts of scenarios: clocks, duplication and reordering. Several swarms use them."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from unisono.model.faults import Duplication, Fault, Reordering, Span
from unisono.model.scenario import Clocks
from unisono.model.units import NS_PER_MS
from unisono.sim.random_streams import random_bool, random_choice, random_int


def random_clocks(chance: Random, drifts_ppm: Sequence[float], longest_step_ns: int) -> Clocks:
    """Clocks of a random kind, with one of these drifts.

    The mean time between two steps of an adversarial clock is random, from 1 ms to `longest_step_ns`.
    """
    return Clocks(
        random_choice(chance, ("perfect", "fixed", "drifting", "adversarial")),
        drift_ppm=random_choice(chance, drifts_ppm),
        step_every_ns=random_int(chance, NS_PER_MS, longest_step_ns),
    )


def duplication_and_reordering(chance: Random, probability: float, shares: Sequence[float]) -> list[Fault]:
    """Draw faults that every order must tolerate, although the paper's network never duplicates or reorders datagrams.

    Each of the two faults is part of the scenario with this `probability`. It then affects a share of the datagrams,
    drawn from `shares`.
    """
    faults: list[Fault] = []
    if random_bool(chance, probability):
        faults.append(Duplication(Span(), random_choice(chance, shares)))
    if random_bool(chance, probability):
        faults.append(Reordering(Span(), random_choice(chance, shares)))
    return faults
