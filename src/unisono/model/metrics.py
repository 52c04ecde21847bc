"""The metrics that layers collect about each other, and one row of measurements.

At every boundary between layers, both sides measure (paper 002 §2.4). The layer above collects metrics of the service
that the layer below provides (side `below`). The layer below collects metrics of how it is used (side `above`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from unisono.model.histogram import Histogram


class Side(StrEnum):
    """The side of the collecting layer on which the measured layer is."""

    BELOW = "below"
    """The service of the layer below."""
    ABOVE = "above"
    """The usage by the layer above."""


class Shape(StrEnum):
    """The form of a metric's values over a window."""

    SPREAD = "spread"
    """Many values, stored as a histogram."""
    SHARE = "share"
    """A share of `count` observations."""
    LEVEL = "level"
    """One value for the window."""


class Unit(StrEnum):
    """The unit of a metric."""

    NS = "ns"
    SHARE = "share"
    DATAGRAMS = "datagrams"
    MESSAGES = "messages"
    MESSAGES_PER_S = "messages/s"
    BYTES = "bytes"
    BYTES_PER_S = "bytes/s"


@dataclass(frozen=True, slots=True)
class MetricKind:
    """The unit, shape and meaning of a metric, and the side that it measures."""

    unit: Unit
    shape: Shape
    side: Side
    meaning: str


METRICS: Mapping[str, MetricKind] = MappingProxyType(
    {
        "latency": MetricKind(Unit.NS, Shape.SPREAD, Side.BELOW, "time from a message's submission to its delivery"),
        "delay": MetricKind(Unit.NS, Shape.SPREAD, Side.BELOW, "time from a datagram's sending to its arrival"),
        "jitter": MetricKind(Unit.NS, Shape.LEVEL, Side.BELOW, "change of the delay from one datagram to the next"),
        "loss": MetricKind(Unit.SHARE, Shape.SHARE, Side.BELOW, "share of datagrams or frames that were lost"),
        "loss_burst": MetricKind(Unit.DATAGRAMS, Shape.SPREAD, Side.BELOW, "consecutive losses"),
        "reordering": MetricKind(Unit.SHARE, Shape.SHARE, Side.BELOW, "share that arrived after a later one"),
        "silence": MetricKind(Unit.NS, Shape.LEVEL, Side.BELOW, "longest time without a datagram from a peer"),
        "gamma": MetricKind(Unit.NS, Shape.LEVEL, Side.BELOW, "largest clock difference, measurement error included"),
        "rate": MetricKind(
            Unit.MESSAGES_PER_S, Shape.LEVEL, Side.ABOVE, "messages per second that the layer above submits"
        ),
        "burst": MetricKind(Unit.MESSAGES, Shape.LEVEL, Side.ABOVE, "most messages submitted within one slot"),
        "size": MetricKind(Unit.BYTES, Shape.SPREAD, Side.ABOVE, "size of a message; one message per call is sampled"),
        "held_back": MetricKind(Unit.SHARE, Shape.SHARE, Side.ABOVE, "share of submitted messages that had to wait"),
        "bandwidth": MetricKind(Unit.BYTES_PER_S, Shape.LEVEL, Side.ABOVE, "bytes that the stack sends to the network"),
    }
)

APPLICATION = "application"
NETWORK = "network"
"""Layer names for the two ends of the stack: the consumer at the top and the provider at the bottom."""
EVERY_LINK = 0
"""The link of a row that does not concern a single peer."""


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One metric at one boundary over one window of the collecting member's clock.

    `value` is the mean of a spread, the share, or the level, from `count` observations. `buckets` are the histogram of
    a spread, so rows of several windows, links or members can be added up exactly.
    """

    layer: str
    side: Side
    link: int
    metric: str
    window_start_ns: int
    window_ns: int
    count: int
    value: float
    largest: int = 0
    buckets: tuple[tuple[int, int], ...] = ()

    def histogram(self) -> Histogram:
        """The histogram of a spread."""
        return Histogram.of_pairs(list(self.buckets), self.largest)
