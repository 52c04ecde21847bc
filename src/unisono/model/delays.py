"""Delay models, histograms, and random numbers from a seed.

A delay model is a probability distribution of the time that datagrams take. It serves both kinds of papers: a largest
delay Δ is a quantile of it, and probabilities follow from its distribution function. One random number gives one
sample, so the same stream of random numbers gives the same delays on every Python version.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import accumulate
from math import ceil, exp, expm1, inf, isfinite, log, log1p
from statistics import NormalDist
from typing import Protocol

from unisono.errors import InvalidOption
from unisono.model.units import duration_ns, duration_text, exact_duration_text

_SUB_BITS = 5
_SUB = 1 << _SUB_BITS


def upper_edge(bucket: int) -> int:
    """The largest value that a histogram counts in the bucket with this number."""
    if bucket < _SUB:
        return bucket
    shift, step = (bucket >> _SUB_BITS) - 1, bucket & (_SUB - 1)
    return ((_SUB + step + 1) << shift) - 1


def bucket_middle(bucket: int) -> int:
    """The middle of the values that a histogram counts in the bucket with this number."""
    below = upper_edge(bucket - 1) if bucket else -1
    return (below + 1 + upper_edge(bucket)) // 2


@dataclass(slots=True)
class Histogram:
    """Counts integers in buckets. The width of a bucket is at most 1/32 of the values in it.

    Negative values, such as delays measured between clocks that differ, count as zero.
    """

    counts: dict[int, int] = field(default_factory=dict)
    total: int = 0
    largest: int = 0

    def add(self, value: int, times: int = 1) -> None:
        """Count a value, as if it had been added `times` times."""
        # Log-linear buckets: 32 steps per power of two, so a quantile is off by at most 1/32.
        if value < _SUB:
            bucket = max(value, 0)
        else:
            shift = value.bit_length() - _SUB_BITS - 1
            bucket = ((shift + 1) << _SUB_BITS) + (value >> shift) - _SUB
        counts = self.counts
        if bucket in counts:
            counts[bucket] += times
        else:
            counts[bucket] = times
        self.total += times
        if value > self.largest:  # noqa: PLR1730  calling max() would double the cost of this method
            self.largest = value

    def merge(self, other: Histogram) -> None:
        """Add the counts of another histogram to this one."""
        for bucket, times in other.counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + times
        self.total += other.total
        self.largest = max(self.largest, other.largest)

    def merge_pairs(self, pairs: Iterable[tuple[int, int]], largest: int) -> None:
        """Add the counts of another histogram: `pairs` is what its `to_pairs()` returned.

        `largest` is its largest value.
        """
        counts, total = self.counts, self.total
        for bucket, times in pairs:
            counts[bucket] = counts.get(bucket, 0) + times
            total += times
        self.total = total
        self.largest = max(self.largest, largest)

    def quantile(self, q: float) -> int:
        """The value at or below which a share `q` of the counted values lies, at most 1/32 too high."""
        rank, seen = q * self.total, 0
        for bucket in sorted(self.counts):
            seen += self.counts[bucket]
            if seen >= rank:
                return min(upper_edge(bucket), self.largest)
        return self.largest

    def mean(self) -> float:
        """The mean of the counted values, at most 1/32 too high; 0 if nothing was counted."""
        if not self.total:
            return 0.0
        return sum(min(upper_edge(bucket), self.largest) * times for bucket, times in self.counts.items()) / self.total

    def count_above(self, bound: int) -> int:
        """The number of values certainly above `bound`: those in buckets entirely above it."""
        return sum(times for bucket, times in self.counts.items() if upper_edge(bucket - 1) >= bound)

    def to_pairs(self) -> list[tuple[int, int]]:
        """The counts as sorted pairs (number of the bucket, count), for sending to another process."""
        return sorted(self.counts.items())

    @classmethod
    def of_pairs(cls, pairs: list[tuple[int, int]], largest: int) -> Histogram:
        """The histogram whose `to_pairs()` returned `pairs` and whose largest value was `largest`."""
        return cls(dict(pairs), sum(times for _, times in pairs), largest)


_NORMAL = NormalDist()
_LONGEST_NS = 2**62
_MAX_LISTED_SAMPLES = 16
"""`EmpiricalDelay.text` lists up to this many samples and summarizes more of them."""


class RandomSource(Protocol):
    """A stream of random numbers, such as `random.Random`."""

    def random(self) -> float:
        """The next number in [0, 1)."""


class DelayModel(Protocol):
    """A distribution of delays in integer nanoseconds."""

    def sample(self, rng: RandomSource) -> int:
        """Draw one delay."""

    def quantile(self, q: float) -> int:
        """The shortest delay within which a share `q` of all datagrams arrives."""

    def cdf(self, ns: int) -> float:
        """The share of datagrams that take at most `ns` nanoseconds."""

    def text(self) -> str:
        """The text that `parse_delay` reads back; a summary for a model of many measurements."""


def _checked_share(q: float) -> float:
    if not 0 <= q <= 1:
        raise InvalidOption("quantile", f"expected a share from 0 to 1, got {q}")
    return q


def _finite_quantile(ns: float, q: float) -> int:
    """The quantile `ns` as an integer. Raises InvalidOption if it is infinite: some models have no longest delay."""
    if ns > _LONGEST_NS:
        raise InvalidOption(
            "quantile", f"this delay model has no longest delay, so it has no quantile at {q}; use a share below 1"
        )
    return ceil(ns)


@dataclass(frozen=True, slots=True)
class ConstantDelay:
    """Every datagram takes the same time."""

    ns: int

    def __post_init__(self) -> None:
        _require_not_negative(self.ns)

    def sample(self, rng: RandomSource) -> int:
        return self.ns

    def quantile(self, q: float) -> int:
        _checked_share(q)
        return self.ns

    def cdf(self, ns: int) -> float:
        return 1.0 if ns >= self.ns else 0.0

    def text(self) -> str:
        return f"constant:{exact_duration_text(self.ns)}"


@dataclass(frozen=True, slots=True)
class UniformDelay:
    """Every delay from `low_ns` to `high_ns`, both included, is equally likely."""

    low_ns: int
    high_ns: int
    steps: int = field(init=False, repr=False, compare=False)
    """The number of different delays, in nanoseconds, from `low_ns` to `high_ns`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", self.high_ns - self.low_ns + 1)
        _require_not_negative(self.low_ns)
        if self.high_ns < self.low_ns:
            low, high = duration_text(self.low_ns), duration_text(self.high_ns)
            raise InvalidOption("delay", f"expected a range from the shortest delay to the longest, got {low}..{high}")

    def sample(self, rng: RandomSource) -> int:
        return self.low_ns + int(rng.random() * self.steps)

    def quantile(self, q: float) -> int:
        return self.low_ns + max(ceil(_checked_share(q) * self.steps) - 1, 0)

    def cdf(self, ns: int) -> float:
        return min(max((ns - self.low_ns + 1) / self.steps, 0.0), 1.0)

    def text(self) -> str:
        return f"uniform:{exact_duration_text(self.low_ns)}..{exact_duration_text(self.high_ns)}"


@dataclass(frozen=True, slots=True)
class ExponentialDelay:
    """Exponentially distributed delays with the mean `mean_ns`."""

    mean_ns: int

    def __post_init__(self) -> None:
        _require_positive("mean", self.mean_ns)

    def sample(self, rng: RandomSource) -> int:
        return ceil(-self.mean_ns * log1p(-rng.random()))

    def quantile(self, q: float) -> int:
        return _finite_quantile(-self.mean_ns * log1p(-q) if _checked_share(q) < 1 else inf, q)

    def cdf(self, ns: int) -> float:
        return -expm1(-ns / self.mean_ns) if ns > 0 else 0.0

    def text(self) -> str:
        return f"exponential:{exact_duration_text(self.mean_ns)}"


@dataclass(frozen=True, slots=True)
class LognormalDelay:
    """Delays whose logarithm is normally distributed, with the standard deviation `sigma`."""

    median_ns: int
    sigma: float

    def __post_init__(self) -> None:
        _require_positive("median", self.median_ns)
        if not (isfinite(self.sigma) and 0 < self.sigma <= 10):
            raise InvalidOption("delay", f"expected a lognormal sigma above 0 and at most 10, got {self.sigma}")

    def sample(self, rng: RandomSource) -> int:
        return self.quantile(rng.random())

    def quantile(self, q: float) -> int:
        if _checked_share(q) == 0:
            return 0
        return _finite_quantile(self.median_ns * exp(self.sigma * _NORMAL.inv_cdf(q)) if q < 1 else inf, q)

    def cdf(self, ns: int) -> float:
        return _NORMAL.cdf(log(ns / self.median_ns) / self.sigma) if ns > 0 else 0.0

    def text(self) -> str:
        return f"lognormal:{exact_duration_text(self.median_ns)},{self.sigma!r}"


@dataclass(frozen=True, slots=True)
class EmpiricalDelay:
    """Measured delays: ascending `delays_ns`, each observed as many times as `counts` says."""

    delays_ns: tuple[int, ...]
    counts: tuple[int, ...]
    cumulative_counts: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """For each delay of `delays_ns`, the number of measured delays that are not longer."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "cumulative_counts", tuple(accumulate(self.counts)))
        if not self.delays_ns or len(self.delays_ns) != len(self.counts) or min(self.counts, default=0) < 1:
            raise InvalidOption(
                "delay",
                f"expected at least one sample, and a count above 0 for each, got {len(self.delays_ns)} samples "
                f"with counts {self.counts[:_MAX_LISTED_SAMPLES]}",
            )
        if list(self.delays_ns) != sorted(set(self.delays_ns)):
            raise InvalidOption(
                "delay", f"expected ascending samples, each listed once, got {self.delays_ns[:_MAX_LISTED_SAMPLES]}"
            )
        _require_not_negative(self.delays_ns[0])

    @classmethod
    def of_samples(cls, samples_ns: list[int]) -> EmpiricalDelay:
        """The model of these measured delays, given in any order."""
        counted = sorted(Counter(samples_ns).items())
        return cls(tuple(delay for delay, _ in counted), tuple(times for _, times in counted))

    @classmethod
    def of_histogram(cls, histogram: Histogram) -> EmpiricalDelay:
        """The model of the delays in a histogram. Each delay counts as the largest value of its bucket."""
        counts: dict[int, int] = {}
        seen = 0
        for _, times in histogram.to_pairs():
            # The rank is half a count below the bucket's last, so no rounding can move it into the next bucket.
            edge = histogram.quantile((seen + times - 0.5) / histogram.total)
            counts[edge] = counts.get(edge, 0) + times
            seen += times
        return cls(tuple(counts), tuple(counts.values()))

    def sample(self, rng: RandomSource) -> int:
        return self.quantile(rng.random())

    def quantile(self, q: float) -> int:
        rank = bisect_left(self.cumulative_counts, _checked_share(q) * self.cumulative_counts[-1])
        return self.delays_ns[min(rank, len(self.cumulative_counts) - 1)]

    def cdf(self, ns: int) -> float:
        seen = bisect_right(self.delays_ns, ns)
        return self.cumulative_counts[seen - 1] / self.cumulative_counts[-1] if seen else 0.0

    def text(self) -> str:
        measured = self.cumulative_counts[-1]
        if measured > _MAX_LISTED_SAMPLES:
            half, most, longest = (duration_text(self.quantile(share)) for share in (0.5, 0.99, 1.0))
            return f"{measured:,} measured delays (half within {half}, 99 % within {most}, all within {longest})"
        pairs = zip(self.delays_ns, self.counts, strict=True)
        return "empirical:" + ",".join(exact_duration_text(delay) for delay, times in pairs for _ in range(times))


@dataclass(frozen=True, slots=True)
class TruncatedDelay:
    """Another delay model without its delays above `limit_ns`: a sample above the limit is drawn again.

    If fewer than half of the samples are within the limit, this would take too long. Then `sample` draws one number u
    from [0, 1) and returns the model's quantile at u · cdf(limit), which has the same distribution.
    """

    model: DelayModel
    limit_ns: int
    cdf_at_limit: float = field(init=False, repr=False, compare=False)
    """The share of the untruncated model's delays that are within `limit_ns`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "cdf_at_limit", self.model.cdf(self.limit_ns))
        if self.cdf_at_limit <= 0:
            limit = duration_text(self.limit_ns)
            raise InvalidOption(
                "delay", f"expected delays of at most Δ = {limit}, but all delays of {self.model.text()} are longer"
            )

    def sample(self, rng: RandomSource) -> int:
        if self.cdf_at_limit < 0.5:
            return self.quantile(rng.random())
        while (drawn := self.model.sample(rng)) > self.limit_ns:
            pass
        return drawn

    def quantile(self, q: float) -> int:
        return min(self.model.quantile(_checked_share(q) * self.cdf_at_limit), self.limit_ns)

    def cdf(self, ns: int) -> float:
        return min(self.model.cdf(ns) / self.cdf_at_limit, 1.0)

    def text(self) -> str:
        return self.model.text()


@dataclass(frozen=True, slots=True)
class ScaledDelay:
    """Another delay model whose delays all become `factor` times as long."""

    model: DelayModel
    factor: float

    def __post_init__(self) -> None:
        if not (isfinite(self.factor) and self.factor > 0):
            raise InvalidOption("delay", f"expected a scaling factor above zero, got {self.factor}")

    def sample(self, rng: RandomSource) -> int:
        return ceil(min(self.model.sample(rng) * self.factor, _LONGEST_NS))

    def quantile(self, q: float) -> int:
        return _finite_quantile(self.model.quantile(q) * self.factor, q)

    def cdf(self, ns: int) -> float:
        # With a tiny factor the quotient may be infinite.
        return self.model.cdf(int(min(ns / self.factor, _LONGEST_NS))) if ns >= 0 else 0.0

    def text(self) -> str:
        return f"{self.factor:.4g} × {self.model.text()}"


def truncated_to(model: DelayModel, limit_ns: int) -> DelayModel:
    """The model truncated to `limit_ns`; the model itself if its delays are never longer."""
    return model if model.cdf(limit_ns) >= 1 else TruncatedDelay(model, limit_ns)


def _require_not_negative(ns: int) -> None:
    if ns < 0:
        raise InvalidOption("delay", f"expected a delay of at least 0, got {ns} ns")


def _require_positive(quantity: str, ns: int) -> None:
    if ns <= 0:
        raise InvalidOption("delay", f"expected a {quantity} delay above zero, got {ns} ns")


def _uniform(text: str, field: str) -> DelayModel:
    low, dots, high = text.partition("..")
    if not dots:
        raise InvalidOption(
            field, f"expected 'uniform:SHORTEST..LONGEST', such as 'uniform:1ms..5ms', got 'uniform:{text}'"
        )
    return UniformDelay(duration_ns(low, field), duration_ns(high, field))


def _lognormal(text: str, field: str) -> DelayModel:
    median, _, sigma = text.partition(",")
    try:
        spread = float(sigma)
    except ValueError:
        example = "'lognormal:MEDIAN,SIGMA', such as 'lognormal:2ms,0.5'"
        raise InvalidOption(field, f"expected {example}; 'lognormal:{text}' has no number for sigma") from None
    return LognormalDelay(duration_ns(median, field), spread)


_PARSERS: dict[str, Callable[[str, str], DelayModel]] = {
    "constant": lambda text, field: ConstantDelay(duration_ns(text, field)),
    "uniform": _uniform,
    "exponential": lambda text, field: ExponentialDelay(duration_ns(text, field)),
    "lognormal": _lognormal,
    "empirical": lambda text, field: EmpiricalDelay.of_samples([duration_ns(part, field) for part in text.split(",")]),
}


def parse_delay(text: str, field: str = "delay") -> DelayModel:
    """Parse `constant:2ms`, `uniform:1ms..5ms`, `exponential:1ms`, `lognormal:2ms,0.5` or `empirical:1ms,2ms,2ms`."""
    kind, colon, rest = text.partition(":")
    parse = _PARSERS.get(kind.strip())
    if parse is None or not colon:
        kinds = ", ".join(_PARSERS)
        raise InvalidOption(field, f"expected a delay such as 'exponential:1ms' (kinds: {kinds}), got {text!r}")
    try:
        return parse(rest.strip(), field)
    except InvalidOption as error:
        raise InvalidOption(field, error.problem) from None


_MASK = 2**64 - 1


class SplitMix64:
    """Vigna's random number generator SplitMix64. Members use it to spread their timers. It is not safe for secrets."""

    __slots__ = ("_state",)

    def __init__(self, *seed: int) -> None:
        self._state = 0
        for part in seed:
            self._state = self._next() ^ part & _MASK

    def _next(self) -> int:
        self._state = self._state + 0x9E3779B97F4A7C15 & _MASK
        mixed = self._state
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK
        return mixed ^ mixed >> 31

    def random(self) -> float:
        """The next number in [0, 1)."""
        return (self._next() >> 11) / 2**53
