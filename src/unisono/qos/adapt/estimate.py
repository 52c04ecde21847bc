"""What the collectors' rows say of the network over one period, as adaptation needs it: one figure per metric.

The links into this member are put together pessimistically: the worst loss and the longest run of losses of any link,
and the delays of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from unisono.model.delays import DelayModel, EmpiricalDelay, ScaledDelay
from unisono.model.histogram import Histogram
from unisono.model.metrics import MetricRow, Side
from unisono.qos.confidence import binomial_tail, confidence_per_link, share_lower_bound

CONFIDENCE = 0.9
"""How sure it must be that a loss is there, of all links that are looked at in a period together."""
MIN_DATAGRAMS = 30
"""A link of which fewer datagrams are settled in a period says nothing about loss."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The network as it was: loss, delays, the longest run of losses, and the largest clock difference."""

    loss: float
    delays: Histogram = field(compare=False)
    delay_model: DelayModel = field(compare=False)
    """The delays as a distribution."""
    loss_burst: int = 0
    gamma_ns: int = 0
    certain_loss: float | None = None
    """The loss that there is with CONFIDENCE, which few observations leave far below what was seen; None: `loss`."""

    @classmethod
    def of(
        cls, loss: float, delays: Histogram, loss_burst: int = 0, gamma_ns: int = 0, certain_loss: float | None = None
    ) -> Estimate:
        """What was measured."""
        return cls(loss, delays, EmpiricalDelay.of_histogram(delays), loss_burst, gamma_ns, certain_loss)

    def with_certain_loss(self) -> Estimate:
        """The network with the loss that is certain: for what must not be done by mistake."""
        return self if self.certain_loss is None else replace(self, loss=self.certain_loss)

    def with_margin(self, margin: float) -> Estimate:
        """A network that is worse by this share."""
        return replace(
            self, loss=min(self.loss * (1 + margin), 0.999), delay_model=ScaledDelay(self.delay_model, 1 + margin)
        )

    def worst_of(self, other: Estimate) -> Estimate:
        """A network as bad as the worse of both in every respect."""
        delays = Histogram()
        delays.merge(self.delays)
        delays.merge(other.delays)
        burst, gamma_ns = max(self.loss_burst, other.loss_burst), max(self.gamma_ns, other.gamma_ns)
        return Estimate.of(max(self.loss, other.loss), delays, burst, gamma_ns)


class Estimator:
    """Gathers rows into periods that begin at multiples of their length."""

    def __init__(self, layer: str, period_ns: int, members: int = 0) -> None:
        """`layer` is the one whose collector watches the network, at each of `members`."""
        self._layer = layer
        self._group_links = members * (members - 1)
        self.period_ns = period_ns
        self._period: int | None = None
        self._rows: list[MetricRow] = []

    def add_rows(self, rows: Sequence[MetricRow], until_ns: int) -> Estimate | None:
        """The rows of an interval that ended at `until_ns`; an estimate if a period did and there is enough to say."""
        self._rows += [row for row in rows if row.layer == self._layer and row.side is Side.BELOW]
        period = until_ns // self.period_ns
        if self._period is None:
            self._period = (until_ns - 1) // self.period_ns
        if period == self._period:
            return None
        self._period = period
        rows, self._rows = self._rows, []
        return estimate(rows, self._group_links)


@dataclass(slots=True)
class LinkTally:
    """What rows of one link add up to."""

    lost: float = 0.0
    datagrams: int = 0
    """Of so many datagrams."""
    loss_burst: int = 0
    delays: Histogram = field(default_factory=Histogram)
    jitter_ns: float | None = None
    gamma_ns: float | None = None

    def add_row(self, row: MetricRow) -> None:
        """One more row."""
        metric = row.metric
        if metric == "loss":
            self.lost += row.value * row.count
            self.datagrams += row.count
        elif metric == "delay":
            self.delays.merge_pairs(row.buckets, row.largest)
        elif metric == "loss_burst":
            self.loss_burst = max(self.loss_burst, row.largest)
        elif metric == "gamma":
            self.gamma_ns = max(self.gamma_ns or 0.0, row.value)
        elif metric == "jitter":
            self.jitter_ns = max(self.jitter_ns or 0.0, row.value)


def estimate(rows: Sequence[MetricRow], group_links: int = 0) -> Estimate | None:
    """What rows of one member's collector at the network say; None if they say too little.

    `looked_at` is how many links the group looks at in a period, each member at its own.
    """
    links: dict[int, LinkTally] = {}
    for row in rows:
        links.setdefault(row.link, LinkTally()).add_row(row)
    return combine_links(tuple(links.values()), group_links)


def combine_links(links: Sequence[LinkTally], group_links: int = 0) -> Estimate | None:
    """What links say, the worst of each and all delays; None if they say too little."""
    confidence = confidence_per_link(
        max(group_links, sum(link.datagrams >= MIN_DATAGRAMS for link in links)), CONFIDENCE
    )
    delays, burst, gamma, share, sure = Histogram(), 0, 0.0, -1.0, -1.0
    for link in links:
        delays.merge(link.delays)
        burst, gamma = max(burst, link.loss_burst), max(gamma, link.gamma_ns or 0.0)
        if link.datagrams >= MIN_DATAGRAMS:
            share = max(share, link.lost / link.datagrams)
            if sure < 0 or binomial_tail(link.lost, link.datagrams, sure) <= 1 - confidence:
                sure = share_lower_bound(link.lost, link.datagrams, confidence)
    if share < 0 or not delays.total:
        return None
    return Estimate.of(share, delays, burst, int(gamma), sure)
