"""What the collectors' rows say of the network over one period, as adaptation needs it: one figure per metric.

The links into this member are put together pessimistically: the worst loss and the longest run of losses of any link,
and the delays of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from unisono.model.delays import DelayModel, Empirical, Stretched
from unisono.model.histogram import Histogram
from unisono.model.metrics import MetricRow, Side
from unisono.qos.watch.sla import by_chance, each_of, surely_at_least

CONFIDENCE = 0.9
"""How sure it must be that a loss is there, of all links that are looked at in a period together."""
LEAST = 30
"""A link of which fewer datagrams are settled in a period says nothing about loss."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The network as it was: loss, delays, the longest run of losses, and the largest clock difference."""

    loss: float
    delays: Histogram = field(compare=False)
    delay: DelayModel = field(compare=False)
    """The delays as a distribution."""
    burst: int = 0
    gamma_ns: int = 0
    sure: float | None = None
    """The loss that there is with CONFIDENCE, which few observations leave far below what was seen; None: `loss`."""

    @classmethod
    def of(
        cls, loss: float, delays: Histogram, burst: int = 0, gamma_ns: int = 0, sure: float | None = None
    ) -> Estimate:
        """What was measured."""
        return cls(loss, delays, Empirical.of_histogram(delays), burst, gamma_ns, sure)

    def surely(self) -> Estimate:
        """The network with the loss that is certain: for what must not be done by mistake."""
        return self if self.sure is None else replace(self, loss=self.sure)

    def with_margin(self, margin: float) -> Estimate:
        """A network that is worse by this share."""
        return replace(self, loss=min(self.loss * (1 + margin), 0.999), delay=Stretched(self.delay, 1 + margin))

    def worse(self, other: Estimate) -> Estimate:
        """A network as bad as the worse of both in every respect."""
        delays = Histogram()
        delays.merge(self.delays)
        delays.merge(other.delays)
        burst, gamma_ns = max(self.burst, other.burst), max(self.gamma_ns, other.gamma_ns)
        return Estimate.of(max(self.loss, other.loss), delays, burst, gamma_ns)


class Estimator:
    """Gathers rows into periods that begin at multiples of their length."""

    def __init__(self, layer: str, period_ns: int, members: int = 0) -> None:
        """`layer` is the one whose collector watches the network, at each of `members`."""
        self._layer = layer
        self._looked_at = members * (members - 1)
        self.period_ns = period_ns
        self._period: int | None = None
        self._rows: list[MetricRow] = []

    def take(self, rows: Sequence[MetricRow], until_ns: int) -> Estimate | None:
        """The rows of an interval that ended at `until_ns`; an estimate if a period did and there is enough to say."""
        self._rows += [row for row in rows if row.layer == self._layer and row.side is Side.BELOW]
        period = until_ns // self.period_ns
        if self._period is None:
            self._period = (until_ns - 1) // self.period_ns
        if period == self._period:
            return None
        self._period = period
        rows, self._rows = self._rows, []
        return estimate(rows, self._looked_at)


@dataclass(slots=True)
class LinkTally:
    """What rows of one link add up to."""

    lost: float = 0.0
    count: int = 0
    """Of so many datagrams."""
    burst: int = 0
    delays: Histogram = field(default_factory=Histogram)
    jitter_ns: float | None = None
    gamma_ns: float | None = None

    def take(self, row: MetricRow) -> None:
        """One more row."""
        metric = row.metric
        if metric == "loss":
            self.lost += row.value * row.count
            self.count += row.count
        elif metric == "delay":
            self.delays.merge_pairs(row.buckets, row.largest)
        elif metric == "loss_burst":
            self.burst = max(self.burst, row.largest)
        elif metric == "gamma":
            self.gamma_ns = max(self.gamma_ns or 0.0, row.value)
        elif metric == "jitter":
            self.jitter_ns = max(self.jitter_ns or 0.0, row.value)


def estimate(rows: Sequence[MetricRow], looked_at: int = 0) -> Estimate | None:
    """What rows of one member's collector at the network say; None if they say too little.

    `looked_at` is how many links the group looks at in a period, each member at its own.
    """
    links: dict[int, LinkTally] = {}
    for row in rows:
        links.setdefault(row.link, LinkTally()).take(row)
    return together(tuple(links.values()), looked_at)


def together(links: Sequence[LinkTally], looked_at: int = 0) -> Estimate | None:
    """What links say, the worst of each and all delays; None if they say too little."""
    confidence = each_of(max(looked_at, sum(link.count >= LEAST for link in links)), CONFIDENCE)
    delays, burst, gamma, share, sure = Histogram(), 0, 0.0, -1.0, -1.0
    for link in links:
        delays.merge(link.delays)
        burst, gamma = max(burst, link.burst), max(gamma, link.gamma_ns or 0.0)
        if link.count >= LEAST:
            share = max(share, link.lost / link.count)
            if sure < 0 or by_chance(link.lost, link.count, sure) <= 1 - confidence:
                sure = surely_at_least(link.lost, link.count, confidence)
    if share < 0 or not delays.total:
        return None
    return Estimate.of(share, delays, burst, int(gamma), sure)
