"""Estimates of the network from metric rows, for adaptation: one value per metric and period.

The links into a member are combined pessimistically: the worst loss and the longest run of losses of any link, and the
delays of all links together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from unisono.model.delays import DelayModel, EmpiricalDelay, Histogram, ScaledDelay
from unisono.model.sla import MetricRow, Side
from unisono.qos.confidence import binomial_tail, confidence_per_link, share_lower_bound

CONFIDENCE = 0.9
"""Confidence that an estimated loss is real, over all links of a period together."""
MIN_DATAGRAMS = 30
"""Links with fewer counted datagrams in a period are ignored when estimating loss."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimate of the network in one period: loss, delays, longest run of losses, largest clock difference."""

    loss: float
    delays: Histogram = field(compare=False)
    delay_model: DelayModel = field(compare=False)
    """The measured delays as a distribution, for the formulas of reliable multicast."""
    loss_burst: int = 0
    gamma_ns: int = 0
    certain_loss: float | None = None
    """The lower confidence bound of the loss, far below `loss` if there are few observations; None means `loss`."""

    @classmethod
    def of(
        cls, loss: float, delays: Histogram, loss_burst: int = 0, gamma_ns: int = 0, certain_loss: float | None = None
    ) -> Estimate:
        """An estimate from these measurements; its delay model follows from the histogram `delays`."""
        return cls(loss, delays, EmpiricalDelay.of_histogram(delays), loss_burst, gamma_ns, certain_loss)

    def with_certain_loss(self) -> Estimate:
        """The estimate with `certain_loss` as its loss, for decisions that must not follow from a chance deviation."""
        return self if self.certain_loss is None else replace(self, loss=self.certain_loss)

    def with_margin(self, margin: float) -> Estimate:
        """The estimate of a network that is worse by the fraction `margin`."""
        return replace(
            self, loss=min(self.loss * (1 + margin), 0.999), delay_model=ScaledDelay(self.delay_model, 1 + margin)
        )

    def worst_of(self, other: Estimate) -> Estimate:
        """The worse of both estimates in every respect."""
        delays = Histogram()
        delays.merge(self.delays)
        delays.merge(other.delays)
        burst, gamma_ns = max(self.loss_burst, other.loss_burst), max(self.gamma_ns, other.gamma_ns)
        return Estimate.of(max(self.loss, other.loss), delays, burst, gamma_ns)


class Estimator:
    """Collects metric rows and makes one estimate per period. Periods start at multiples of their length."""

    def __init__(self, layer: str, period_ns: int, members: int = 0) -> None:
        """`layer` is the layer directly above the network; `members` is the size of the group."""
        self._layer = layer
        self._group_links = members * (members - 1)
        self.period_ns = period_ns
        self._period: int | None = None
        self._rows: list[MetricRow] = []

    def add_rows(self, rows: Sequence[MetricRow], until_ns: int) -> Estimate | None:
        """Add the rows of an interval that ended at `until_ns`; return an estimate if a period ended with it."""
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
    """The totals of the metric rows of one link: datagrams, losses and delays."""

    lost: float = 0.0
    datagrams: int = 0
    """The number of datagrams among which `lost` were lost."""
    loss_burst: int = 0
    delays: Histogram = field(default_factory=Histogram)
    jitter_ns: float | None = None
    gamma_ns: float | None = None

    def add_row(self, row: MetricRow) -> None:
        """Add a metric row of this link to the totals."""
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
    """An estimate from one member's rows; None if there are too few observations.

    `group_links` is the number of links that all members of the group evaluate in a period.
    """
    links: dict[int, LinkTally] = {}
    for row in rows:
        links.setdefault(row.link, LinkTally()).add_row(row)
    return combine_links(tuple(links.values()), group_links)


def combine_links(links: Sequence[LinkTally], group_links: int = 0) -> Estimate | None:
    """One estimate for several links: the worst of each metric and all delays; None if there is too little data."""
    confidence = confidence_per_link(
        max(group_links, sum(link.datagrams >= MIN_DATAGRAMS for link in links)), CONFIDENCE
    )
    delays, burst, gamma, share, certain = Histogram(), 0, 0.0, -1.0, -1.0
    for link in links:
        delays.merge(link.delays)
        burst, gamma = max(burst, link.loss_burst), max(gamma, link.gamma_ns or 0.0)
        if link.datagrams >= MIN_DATAGRAMS:
            share = max(share, link.lost / link.datagrams)
            if certain < 0 or binomial_tail(link.lost, link.datagrams, certain) <= 1 - confidence:
                certain = share_lower_bound(link.lost, link.datagrams, confidence)
    if share < 0 or not delays.total:
        return None
    return Estimate.of(share, delays, burst, int(gamma), certain)
