"""What applications send, as (time since the application began, sizes of the messages handed in together)."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import count
from math import log1p
from typing import TypeAlias, assert_never

from unisono.model.delays import Chance
from unisono.model.durations import NS_PER_S
from unisono.model.scenario import Workload

Offer: TypeAlias = tuple[int, tuple[int, ...]]
Offers: TypeAlias = Iterator[Offer]


def cbr(rate: float, sizes: tuple[int, int], chance: Chance) -> Offers:
    """One message each 1/rate seconds, the first at once, without rounding errors that add up."""
    period = Fraction(NS_PER_S) / Fraction(rate)
    for number in count():
        yield int(number * period), (_size(sizes, chance),)


def poisson(rate: float, sizes: tuple[int, int], chance: Chance) -> Offers:
    """Messages independent of one another."""
    at = 0.0
    while True:
        at -= log1p(-chance.random()) * NS_PER_S / rate
        yield int(at), (_size(sizes, chance),)


def bursts(burst: int, every_ns: int, sizes: tuple[int, int], chance: Chance) -> Offers:
    """`burst` messages at once, again and again."""
    for number in count():
        yield number * every_ns, tuple(_size(sizes, chance) for _ in range(burst))


def silent() -> Offers:
    """Nothing."""
    return iter(())


def offers(workload: Workload, chance: Chance) -> Offers:
    """What a scenario's workload sends once the group runs; a script is not here, since its times are absolute."""
    sizes = (workload.size_low, workload.size_high)
    match workload.kind:
        case "cbr":
            return cbr(workload.rate, sizes, chance)
        case "poisson":
            return poisson(workload.rate, sizes, chance)
        case "bursts":
            return bursts(workload.burst, workload.every_ns, sizes, chance)
        case "silent" | "script":
            return silent()
    assert_never(workload.kind)


def _size(sizes: tuple[int, int], chance: Chance) -> int:
    low, high = sizes
    return low if low == high else low + int(chance.random() * (high - low + 1))
