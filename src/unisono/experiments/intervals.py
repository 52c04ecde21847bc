"""Computes 95 % confidence intervals: by normal approximation for a mean, by Wilson score for a share."""

from __future__ import annotations

from math import inf, sqrt

Z = 1.959963984540054
"""The 0.975 quantile of the normal distribution, which gives 95 % confidence intervals."""
Z_BEYOND_CHANCE = 3.2905267314919255
"""The 0.9995 quantile of the normal distribution.

It serves experiments with many comparisons, where some differences exceed a 95 % interval by chance.
"""

Interval = tuple[float, float, float]
"""A confidence interval: the estimate, the lower end and the upper end."""


def mean_interval(count: int, total: float, squares: float) -> Interval:
    """The mean of `count` values with its confidence interval, from their sum and their sum of squares."""
    mean = total / count
    if count < 2:
        return mean, -inf, inf
    variance = max(squares - count * mean * mean, 0.0) / (count - 1)
    half = Z * sqrt(variance / count)
    return mean, mean - half, mean + half


def share_interval(count: int, hits: int, z: float = Z) -> Interval:
    """The share `hits` / `count` with its confidence interval."""
    share = hits / count
    spread = z * z / count
    middle = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * sqrt(share * (1 - share) / count + spread / (4 * count))
    return share, max(middle - half, 0.0), min(middle + half, 1.0)


def difference_margin(one: tuple[int, int], other: tuple[int, int]) -> float:
    """Half the width of the confidence interval of the difference between two shares, each given as (hits, count)."""
    variance = sum(hits / count * (1 - hits / count) / count for hits, count in (one, other))
    return Z * sqrt(variance)
