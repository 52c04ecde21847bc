"""Evaluation and violation detection (paper 002 §2.4, §4): agreements against windows of metrics.

Rows of metrics go in, verdicts come out: one per agreement and window, held, violated or unknown. The rows may be one
member's as they are collected, or a whole system's from its metric streams: the arithmetic is the same.
"""

from __future__ import annotations

from math import ceil, exp, lgamma, log, log1p

ROUNDING_TOLERANCE = 1e-9
"""What rounding may add to a share."""
BISECTION_STEPS = 30
"""So often a bound is narrowed down: to a billionth."""


def confidence_per_link(links: int, confidence: float) -> float:
    """How sure one verdict must be for all of `judged` independent ones together to be so with `confidence` (Šidák).

    The worst of many links is told, and of many that keep a promise one looks bad by chance.
    """
    return float(confidence ** (1 / max(links, 1)))


def binomial_tail(hits: float, count: int, share: float) -> float:
    """How likely `hits` or more of `count` are if each is one with probability `share`: the binomial's tail, exactly.

    1 where no more were seen than were to be expected. An approximation by a normal distribution would be far too bold
    where many links are judged: what counts there is the end of the tail, and losses are few.
    """
    least = ceil(hits - ROUNDING_TOLERANCE * max(count, 1))
    if least <= count * share:
        return 1.0
    if share <= 0:
        return 0.0
    ways = lgamma(count + 1) - lgamma(least + 1) - lgamma(count - least + 1)
    term = exp(ways + least * log(share) + (count - least) * log1p(-share))
    odds, total = share / (1 - share), 0.0
    for number in range(least, count + 1):
        total += term
        if term <= total * ROUNDING_TOLERANCE:
            break
        term *= (count - number) / (number + 1) * odds
    return min(total, 1.0)


def share_lower_bound(hits: float, count: int, confidence: float) -> float:
    """The lower bound of a share of which `hits` of `count` were seen, one-sided, at this confidence (Clopper-Pearson).

    The largest share with which so many would be by chance no more often than is left to chance. Never above the share
    that was seen.
    """
    if not count:
        return 0.0
    low, high = 0.0, hits / count
    for _ in range(BISECTION_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if binomial_tail(hits, count, middle) <= 1 - confidence else (low, middle)
    return low
