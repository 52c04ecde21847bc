"""Delay models: how long a datagram may take, as a distribution that can be drawn from and asked for quantiles.

A hard bound Δ is a quantile of such a distribution, so that papers with bounds and papers with probabilities speak
one language. Every draw inverts the distribution at one `random()`: the same stream gives the same delays on every
Python.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from math import ceil, exp, expm1, inf, isfinite, log, log1p
from statistics import NormalDist
from typing import Protocol

from unisono.errors import InvalidPolicy
from unisono.model.durations import duration_exact, duration_ns, duration_text
from unisono.model.histogram import Histogram

_NORMAL = NormalDist()
_LONGEST_NS = 2**62
_LISTED = 16
"""Up to so many measurements are listed one by one where a model is put into words."""


class Chance(Protocol):
    """A stream of chance; `random.Random` is one."""

    def random(self) -> float:
        """The next number in [0, 1)."""


class DelayModel(Protocol):
    """A distribution of delays in integer nanoseconds."""

    def sample(self, chance: Chance) -> int:
        """Draw a delay."""

    def quantile(self, q: float) -> int:
        """The shortest delay within which a share `q` of all datagrams arrives."""

    def cdf(self, ns: int) -> float:
        """The share of datagrams that take at most this long."""

    def text(self) -> str:
        """What `parse_delay` makes this model from; of many measurements, what there is to know."""


def _checked_share(q: float) -> float:
    if not 0 <= q <= 1:
        raise InvalidPolicy("quantile", f"a share between 0 and 1 is needed, not {q}")
    return q


def _bounded(ns: float, q: float) -> int:
    """A quantile as an integer; unbounded models have none at 1."""
    if ns > _LONGEST_NS:
        raise InvalidPolicy("quantile", f"this delay has no upper bound, so none at {q}; ask below 1")
    return ceil(ns)


@dataclass(frozen=True, slots=True)
class Constant:
    """Always the same delay."""

    ns: int

    def __post_init__(self) -> None:
        _not_negative(self.ns)

    def sample(self, chance: Chance) -> int:
        return self.ns

    def quantile(self, q: float) -> int:
        _checked_share(q)
        return self.ns

    def cdf(self, ns: int) -> float:
        return 1.0 if ns >= self.ns else 0.0

    def text(self) -> str:
        return f"constant:{duration_exact(self.ns)}"


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every delay from `low_ns` to `high_ns`, both included, is as likely as any other."""

    low_ns: int
    high_ns: int
    steps: int = field(init=False, repr=False, compare=False)
    """How many delays there are."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", self.high_ns - self.low_ns + 1)
        _not_negative(self.low_ns)
        if self.high_ns < self.low_ns:
            low, high = duration_text(self.low_ns), duration_text(self.high_ns)
            raise InvalidPolicy("delay", f"a range goes from its shortest delay to its longest, not {low}..{high}")

    def sample(self, chance: Chance) -> int:
        return self.low_ns + int(chance.random() * self.steps)

    def quantile(self, q: float) -> int:
        return self.low_ns + max(ceil(_checked_share(q) * self.steps) - 1, 0)

    def cdf(self, ns: int) -> float:
        return min(max((ns - self.low_ns + 1) / self.steps, 0.0), 1.0)

    def text(self) -> str:
        return f"uniform:{duration_exact(self.low_ns)}..{duration_exact(self.high_ns)}"


@dataclass(frozen=True, slots=True)
class Exponential:
    """Memoryless, with this mean."""

    mean_ns: int

    def __post_init__(self) -> None:
        _positive("mean", self.mean_ns)

    def sample(self, chance: Chance) -> int:
        return ceil(-self.mean_ns * log1p(-chance.random()))

    def quantile(self, q: float) -> int:
        return _bounded(-self.mean_ns * log1p(-q) if _checked_share(q) < 1 else inf, q)

    def cdf(self, ns: int) -> float:
        return -expm1(-ns / self.mean_ns) if ns > 0 else 0.0

    def text(self) -> str:
        return f"exponential:{duration_exact(self.mean_ns)}"


@dataclass(frozen=True, slots=True)
class Lognormal:
    """The logarithm is normal: `median_ns` is the median, `sigma` the logarithm's standard deviation."""

    median_ns: int
    sigma: float

    def __post_init__(self) -> None:
        _positive("median", self.median_ns)
        if not (isfinite(self.sigma) and 0 < self.sigma <= 10):
            raise InvalidPolicy("delay", f"a lognormal's sigma lies between 0 and 10, and {self.sigma} does not")

    def sample(self, chance: Chance) -> int:
        return self.quantile(chance.random())

    def quantile(self, q: float) -> int:
        if _checked_share(q) == 0:
            return 0
        return _bounded(self.median_ns * exp(self.sigma * _NORMAL.inv_cdf(q)) if q < 1 else inf, q)

    def cdf(self, ns: int) -> float:
        return _NORMAL.cdf(log(ns / self.median_ns) / self.sigma) if ns > 0 else 0.0

    def text(self) -> str:
        return f"lognormal:{duration_exact(self.median_ns)},{self.sigma!r}"


@dataclass(frozen=True, slots=True)
class Empirical:
    """Delays as they were measured: each of the ascending `delays_ns` was seen `counts` times."""

    delays_ns: tuple[int, ...]
    counts: tuple[int, ...]
    up_to: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """How many were at most as long as each."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "up_to", tuple(accumulate(self.counts)))
        if not self.delays_ns or len(self.delays_ns) != len(self.counts) or min(self.counts, default=0) < 1:
            raise InvalidPolicy("delay", "an empirical delay needs at least one sample, each seen at least once")
        if list(self.delays_ns) != sorted(set(self.delays_ns)):
            raise InvalidPolicy("delay", "an empirical delay lists its samples once each, ascending, beside counts")
        _not_negative(self.delays_ns[0])

    @classmethod
    def of_samples(cls, samples_ns: list[int]) -> Empirical:
        """The model of single measurements, in any order."""
        counted = sorted(Counter(samples_ns).items())
        return cls(tuple(delay for delay, _ in counted), tuple(times for _, times in counted))

    @classmethod
    def of_histogram(cls, histogram: Histogram) -> Empirical:
        """The model of a measured histogram, each delay counted at its bucket's upper edge."""
        counts: dict[int, int] = {}
        seen = 0
        for _, times in histogram.to_pairs():
            # Half a count below the bucket's last: no rounding can push the rank into the next bucket.
            edge = histogram.quantile((seen + times - 0.5) / histogram.total)
            counts[edge] = counts.get(edge, 0) + times
            seen += times
        return cls(tuple(counts), tuple(counts.values()))

    def sample(self, chance: Chance) -> int:
        return self.quantile(chance.random())

    def quantile(self, q: float) -> int:
        rank = bisect_left(self.up_to, _checked_share(q) * self.up_to[-1])
        return self.delays_ns[min(rank, len(self.up_to) - 1)]

    def cdf(self, ns: int) -> float:
        seen = bisect_right(self.delays_ns, ns)
        return self.up_to[seen - 1] / self.up_to[-1] if seen else 0.0

    def text(self) -> str:
        measured = self.up_to[-1]
        if measured > _LISTED:
            half, most, longest = (duration_text(self.quantile(share)) for share in (0.5, 0.99, 1.0))
            return f"{measured:,} measured delays (half within {half}, 99 % within {most}, all within {longest})"
        pairs = zip(self.delays_ns, self.counts, strict=True)
        return "empirical:" + ",".join(duration_exact(delay) for delay, times in pairs for _ in range(times))


@dataclass(frozen=True, slots=True)
class Truncated:
    """A model whose delays above `limit_ns` are drawn again until they are not.

    Where that could take long, one draw is inverted at u · cdf(limit), which has the same distribution.
    """

    model: DelayModel
    limit_ns: int
    share: float = field(init=False, repr=False, compare=False)
    """cdf(limit) of the model."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "share", self.model.cdf(self.limit_ns))
        if self.share <= 0:
            shown = duration_text(self.limit_ns)
            raise InvalidPolicy("delay", f"{self.model.text()} is never within the network's largest delay, {shown}")

    def sample(self, chance: Chance) -> int:
        if self.share < 0.5:
            return self.quantile(chance.random())
        while (drawn := self.model.sample(chance)) > self.limit_ns:
            pass
        return drawn

    def quantile(self, q: float) -> int:
        return min(self.model.quantile(_checked_share(q) * self.share), self.limit_ns)

    def cdf(self, ns: int) -> float:
        return min(self.model.cdf(ns) / self.share, 1.0)

    def text(self) -> str:
        return self.model.text()


@dataclass(frozen=True, slots=True)
class Stretched:
    """A model whose delays are all `factor` times as long: a network that is that much slower, or faster."""

    model: DelayModel
    factor: float

    def __post_init__(self) -> None:
        if not (isfinite(self.factor) and self.factor > 0):
            raise InvalidPolicy("delay", f"a delay is stretched by a factor above zero, not by {self.factor}")

    def sample(self, chance: Chance) -> int:
        return ceil(self.model.sample(chance) * self.factor)

    def quantile(self, q: float) -> int:
        return _bounded(self.model.quantile(q) * self.factor, q)

    def cdf(self, ns: int) -> float:
        return self.model.cdf(min(int(ns / self.factor), _LONGEST_NS)) if ns >= 0 else 0.0

    def text(self) -> str:
        return f"{self.factor:.4g} × {self.model.text()}"


def within(model: DelayModel, limit_ns: int) -> DelayModel:
    """The model held to `limit_ns`: itself if it never takes longer, else truncated."""
    return model if model.cdf(limit_ns) >= 1 else Truncated(model, limit_ns)


def _not_negative(ns: int) -> None:
    if ns < 0:
        raise InvalidPolicy("delay", f"a delay cannot be negative, and {ns} ns is")


def _positive(word: str, ns: int) -> None:
    if ns <= 0:
        raise InvalidPolicy("delay", f"a {word} delay above zero is needed, not {ns} ns")


def _uniform(text: str, field: str) -> DelayModel:
    low, dots, high = text.partition("..")
    if not dots:
        raise InvalidPolicy(field, f"'uniform:SHORTEST..LONGEST' is needed, such as 'uniform:1ms..5ms', not {text!r}")
    return Uniform(duration_ns(low, field), duration_ns(high, field))


def _lognormal(text: str, field: str) -> DelayModel:
    median, _, sigma = text.partition(",")
    try:
        spread = float(sigma)
    except ValueError:
        example = "'lognormal:2ms,0.5' (median, then sigma of the logarithm)"
        raise InvalidPolicy(field, f"{example} is the form, and {text!r} has no number for sigma") from None
    return Lognormal(duration_ns(median, field), spread)


_PARSERS: dict[str, Callable[[str, str], DelayModel]] = {
    "constant": lambda text, field: Constant(duration_ns(text, field)),
    "uniform": _uniform,
    "exponential": lambda text, field: Exponential(duration_ns(text, field)),
    "lognormal": _lognormal,
    "empirical": lambda text, field: Empirical.of_samples([duration_ns(part, field) for part in text.split(",")]),
}


def parse_delay(text: str, field: str = "delay") -> DelayModel:
    """`constant:2ms`, `uniform:1ms..5ms`, `exponential:1ms`, `lognormal:2ms,0.5`, `empirical:1ms,2ms,2ms,9ms`."""
    kind, colon, rest = text.partition(":")
    parse = _PARSERS.get(kind.strip())
    if parse is None or not colon:
        kinds = ", ".join(_PARSERS)
        raise InvalidPolicy(field, f"a delay such as 'exponential:1ms' is needed (kinds: {kinds}), not {text!r}")
    try:
        return parse(rest.strip(), field)
    except InvalidPolicy as error:
        raise InvalidPolicy(field, error.problem) from None
