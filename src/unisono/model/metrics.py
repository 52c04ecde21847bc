"""What is measured of a layer's services: the metrics' names, and one row of measurement.

Two parties watch each other at every boundary between layers (paper 002 §2.4). The layer above collects what the layer
below gives it (side `below`); the layer below collects how the layer above uses it (side `above`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from unisono.model.histogram import Histogram


class Side(StrEnum):
    """On which side of the collecting layer the boundary lies."""

    BELOW = "below"
    """What the layer below delivered to this layer."""
    ABOVE = "above"
    """How the layer above uses this layer."""


class Shape(StrEnum):
    """What a metric's values are over a window."""

    SPREAD = "spread"
    """Many values, kept as a histogram."""
    SHARE = "share"
    """A share of `count` things."""
    LEVEL = "level"
    """One figure for the window."""


class Unit(StrEnum):
    """What a metric is counted in."""

    NS = "ns"
    SHARE = "share"
    DATAGRAMS = "datagrams"
    MESSAGES = "messages"
    MESSAGES_PER_S = "messages/s"
    BYTES = "bytes"
    BYTES_PER_S = "bytes/s"


@dataclass(frozen=True, slots=True)
class MetricKind:
    """How a metric is to be read, and who collects it."""

    unit: Unit
    shape: Shape
    side: Side
    meaning: str


METRICS: Mapping[str, MetricKind] = MappingProxyType(
    {
        "latency": MetricKind(Unit.NS, Shape.SPREAD, Side.BELOW, "from a message's submission to its delivery"),
        "delay": MetricKind(Unit.NS, Shape.SPREAD, Side.BELOW, "from a datagram's send to its arrival"),
        "jitter": MetricKind(Unit.NS, Shape.LEVEL, Side.BELOW, "how much the delay changes from datagram to datagram"),
        "loss": MetricKind(Unit.SHARE, Shape.SHARE, Side.BELOW, "the share of datagrams or frames that did not come"),
        "loss_burst": MetricKind(Unit.DATAGRAMS, Shape.SPREAD, Side.BELOW, "how many were lost in a row"),
        "reordering": MetricKind(Unit.SHARE, Shape.SHARE, Side.BELOW, "the share that came after a later one"),
        "silence": MetricKind(Unit.NS, Shape.LEVEL, Side.BELOW, "the longest time with nothing from a peer"),
        "gamma": MetricKind(Unit.NS, Shape.LEVEL, Side.BELOW, "the clocks' difference, its error included"),
        "rate": MetricKind(Unit.MESSAGES_PER_S, Shape.LEVEL, Side.ABOVE, "what the layer above hands in per second"),
        "burst": MetricKind(Unit.MESSAGES, Shape.LEVEL, Side.ABOVE, "the most that it hands in within one slot"),
        "size": MetricKind(
            Unit.BYTES, Shape.SPREAD, Side.ABOVE, "how large a message is; one of each call is looked at"
        ),
        "held_back": MetricKind(Unit.SHARE, Shape.SHARE, Side.ABOVE, "the share of what was offered that had to wait"),
        "bandwidth": MetricKind(Unit.BYTES_PER_S, Shape.LEVEL, Side.ABOVE, "what the stack puts on the network"),
    }
)

APPLICATION = "application"
NETWORK = "network"
"""The two parties that are no layers of the stack: the consumer at its top, and the provider under it."""
EVERY_LINK = 0
"""The link of a row that is not about one peer."""


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One metric of one boundary over one window of the collecting member's clock.

    `value` is the mean of a spread, the share, or the level; `count` says of how many observations. `buckets` are a
    spread's histogram: rows of several windows, links or members can be added up without loss.
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
        """The spread's histogram."""
        return Histogram.of_pairs(list(self.buckets), self.largest)
