"""A histogram of bounded size, for quantiles of delay, lateness and latency."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

_SUB_BITS = 5
_SUB = 1 << _SUB_BITS


def upper_edge(bucket: int) -> int:
    """The largest value that a bucket counts."""
    if bucket < _SUB:
        return bucket
    shift, step = (bucket >> _SUB_BITS) - 1, bucket & (_SUB - 1)
    return ((_SUB + step + 1) << shift) - 1


def bucket_middle(bucket: int) -> int:
    """A value in the middle of a bucket."""
    below = upper_edge(bucket - 1) if bucket else -1
    return (below + 1 + upper_edge(bucket)) // 2


@dataclass(slots=True)
class Histogram:
    """Counts non-negative integers. Negative values, such as delays measured with skewed clocks, count as zero."""

    counts: dict[int, int] = field(default_factory=dict)
    total: int = 0
    largest: int = 0

    def add(self, value: int, times: int = 1) -> None:
        """Count a value."""
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
        if value > self.largest:  # noqa: PLR1730  a call of max() would cost as much as all the rest
            self.largest = value

    def merge(self, other: Histogram) -> None:
        """Add the counts of `other`."""
        for bucket, times in other.counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + times
        self.total += other.total
        self.largest = max(self.largest, other.largest)

    def merge_pairs(self, pairs: Iterable[tuple[int, int]], largest: int) -> None:
        """Add the counts of a histogram, given its `to_pairs` and `largest`."""
        counts, total = self.counts, self.total
        for bucket, times in pairs:
            counts[bucket] = counts.get(bucket, 0) + times
            total += times
        self.total = total
        self.largest = max(self.largest, largest)

    def quantile(self, q: float) -> int:
        """An upper bound, within 1/32, of the value below which a share `q` of the counted values lies."""
        rank, seen = q * self.total, 0
        for bucket in sorted(self.counts):
            seen += self.counts[bucket]
            if seen >= rank:
                return min(upper_edge(bucket), self.largest)
        return self.largest

    def mean(self) -> float:
        """The mean of the counted values, within 1/32 above it."""
        if not self.total:
            return 0.0
        return sum(min(upper_edge(bucket), self.largest) * times for bucket, times in self.counts.items()) / self.total

    def count_above(self, bound: int) -> int:
        """The number of values certainly above `bound`: those in buckets entirely above it."""
        return sum(times for bucket, times in self.counts.items() if upper_edge(bucket - 1) >= bound)

    def to_pairs(self) -> list[tuple[int, int]]:
        """The counts as (bucket, times), for sending to another process."""
        return sorted(self.counts.items())

    @classmethod
    def of_pairs(cls, pairs: list[tuple[int, int]], largest: int) -> Histogram:
        """The histogram with these `to_pairs` and `largest`."""
        return cls(dict(pairs), sum(times for _, times in pairs), largest)
