"""Durations counted in constant memory, for quantiles of delay, lateness and latency."""

from __future__ import annotations

from dataclasses import dataclass, field

_SUB_BITS = 5
_SUB = 1 << _SUB_BITS


def _bucket(value: int) -> int:
    """Log-linear bucket: 32 steps per power of two, so a quantile is off by at most 1/32."""
    if value < _SUB:
        return max(value, 0)
    shift = value.bit_length() - _SUB_BITS - 1
    return ((shift + 1) << _SUB_BITS) + (value >> shift) - _SUB


def _upper_edge(bucket: int) -> int:
    if bucket < _SUB:
        return bucket
    shift, step = (bucket >> _SUB_BITS) - 1, bucket & (_SUB - 1)
    return ((_SUB + step + 1) << shift) - 1


@dataclass(slots=True)
class Histogram:
    """Counts of non-negative integers; negative ones count as zero (a delay seen through skewed clocks)."""

    counts: dict[int, int] = field(default_factory=dict)
    total: int = 0
    largest: int = 0

    def add(self, value: int, times: int = 1) -> None:
        """Count a value."""
        bucket = _bucket(value)
        self.counts[bucket] = self.counts.get(bucket, 0) + times
        self.total += times
        self.largest = max(self.largest, value)

    def merge(self, other: Histogram) -> None:
        """Count all that `other` has counted."""
        for bucket, times in other.counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + times
        self.total += other.total
        self.largest = max(self.largest, other.largest)

    def quantile(self, q: float) -> int:
        """An upper bound, within 1/32, of the value below which a share `q` of the counted values lies."""
        rank, seen = q * self.total, 0
        for bucket in sorted(self.counts):
            seen += self.counts[bucket]
            if seen >= rank:
                return min(_upper_edge(bucket), self.largest)
        return self.largest

    def to_pairs(self) -> list[tuple[int, int]]:
        """The counts as (bucket, times), for sending to another process."""
        return sorted(self.counts.items())

    @classmethod
    def of_pairs(cls, pairs: list[tuple[int, int]], largest: int) -> Histogram:
        """The histogram whose `to_pairs` and `largest` these are."""
        return cls(dict(pairs), sum(times for _, times in pairs), largest)
