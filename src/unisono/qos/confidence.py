"""How much a measured share says: exact binomial statistics for SLA evaluation and network estimates.

Losses are rare and many links are evaluated at once, so the far end of the binomial tail decides. A normal
approximation would report far too many violations there.
"""

from __future__ import annotations

from math import ceil, exp, lgamma, log, log1p

ROUNDING_TOLERANCE = 1e-9
"""Tolerance for floating-point rounding of a share."""
BISECTION_STEPS = 30
"""Steps of bisection: enough for a precision of one billionth."""


def confidence_per_link(links: int, confidence: float) -> float:
    """The confidence needed per link so that all `links` independent verdicts together have `confidence` (Šidák).

    Only the worst of many links is reported, and among many good links one looks bad by chance.
    """
    return float(confidence ** (1 / max(links, 1)))


def binomial_tail(hits: float, count: int, share: float) -> float:
    """The probability of at least `hits` hits in `count` trials that each hit with probability `share`.

    This is the exact tail of the binomial distribution; it returns 1 if there are no more hits than expected.
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
    """The one-sided lower confidence bound of a share after `hits` of `count` trials (Clopper-Pearson).

    This is the largest share for which `hits` or more would have a probability of at most 1 - `confidence`. It is never
    above the observed share.
    """
    if not count:
        return 0.0
    low, high = 0.0, hits / count
    for _ in range(BISECTION_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if binomial_tail(hits, count, middle) <= 1 - confidence else (low, middle)
    return low
