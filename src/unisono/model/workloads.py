"""Workloads as sequences of (time since the application started, sizes of the messages submitted together)."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import count
from math import log1p
from typing import TypeAlias, assert_never

from unisono.model.delays import RandomSource
from unisono.model.scenario import Workload
from unisono.model.units import NS_PER_S

ScheduledSend: TypeAlias = tuple[int, tuple[int, ...]]
ScheduledSends: TypeAlias = Iterator[ScheduledSend]


def cbr(rate: float, sizes: tuple[int, int], rng: RandomSource) -> ScheduledSends:
    """One message every 1/rate seconds, the first at once, without accumulated rounding errors."""
    period = Fraction(NS_PER_S) / Fraction(rate)
    for number in count():
        yield int(number * period), (_size(sizes, rng),)


def poisson(rate: float, sizes: tuple[int, int], rng: RandomSource) -> ScheduledSends:
    """Messages at independent random times (a Poisson process)."""
    at = 0.0
    while True:
        at -= log1p(-rng.random()) * NS_PER_S / rate
        yield int(at), (_size(sizes, rng),)


def bursts(burst: int, every_ns: int, sizes: tuple[int, int], rng: RandomSource) -> ScheduledSends:
    """`burst` messages together, at intervals of `every_ns`."""
    for number in count():
        yield number * every_ns, tuple(_size(sizes, rng) for _ in range(burst))


def silent() -> ScheduledSends:
    """A workload without any messages."""
    return iter(())


def scheduled_sends(workload: Workload, rng: RandomSource) -> ScheduledSends:
    """The sends of a workload, timed from when the group runs.

    A script has none here: its times count from the start of the run.
    """
    sizes = (workload.size_low, workload.size_high)
    match workload.kind:
        case "cbr":
            return cbr(workload.rate, sizes, rng)
        case "poisson":
            return poisson(workload.rate, sizes, rng)
        case "bursts":
            return bursts(workload.burst, workload.every_ns, sizes, rng)
        case "silent" | "script":
            return silent()
    assert_never(workload.kind)


def _size(sizes: tuple[int, int], rng: RandomSource) -> int:
    low, high = sizes
    return low if low == high else low + int(rng.random() * (high - low + 1))
