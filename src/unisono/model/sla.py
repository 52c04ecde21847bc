"""Service level agreements: metrics that layers collect about each other, and promises of one layer to another.

At every boundary between two layers, both layers measure (paper 002 §2.4). The upper layer is the consumer: it
collects metrics of the provider's service (side `below`). The lower layer is the provider: it collects metrics of the
consumer's usage (side `above`). The application and the network count as layers, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from unisono.errors import InvalidOption, SlaError
from unisono.model.delays import Histogram
from unisono.model.events import NoticeKind, SlaCleared, SlaVerdict, SlaViolation, ViolationKind
from unisono.model.text.toml import nearest_line
from unisono.model.units import duration_text


class Side(StrEnum):
    """Where the measured layer is, seen from the layer that collects the metric: below it or above it."""

    BELOW = "below"
    """The metric measures the service that the layer below provides."""
    ABOVE = "above"
    """The metric measures the use that the layer above makes of the collecting layer."""


class Shape(StrEnum):
    """The form in which a window of a metric is stored: many values, a share, or one value."""

    SPREAD = "spread"
    """The metric has many values in a window, stored as a histogram."""
    SHARE = "share"
    """The metric is a share of the observations in a window, such as the share of lost datagrams."""
    LEVEL = "level"
    """The metric has one value for a window, such as a rate."""


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
        "reordering": MetricKind(
            Unit.SHARE, Shape.SHARE, Side.BELOW, "share of datagrams that arrived after a later one"
        ),
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
"""The two ends of a stack, named like layers: the application is the topmost consumer, the network the lowest
provider."""
EVERY_LINK = 0
"""The value of `link` in a metric row that does not concern a single peer."""


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One metric at one boundary over one window of the collecting member's clock.

    `value` comes from `count` observations. Depending on the metric's `Shape`, it is a share, a level, or the mean of a
    distribution. `buckets` are the histogram of that distribution, so rows of several windows, links or members can be
    added up exactly.
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
        """The histogram of the row's values, for a metric of the shape SPREAD."""
        return Histogram.of_pairs(list(self.buckets), self.largest)


RELIABILITY, RHO_MOST, FEC_MOST = 0.999, 4, 8
"""Defaults of adaptation: the reliability to keep, and the limits up to which it may raise ρ and a."""
MIN_OBSERVATIONS = 30
"""By default, a window with fewer observations than this gives no verdict."""


@dataclass(frozen=True, slots=True)
class Sla:
    """One agreement: `metric` keeps `bound` with `probability`, evaluated window by window.

    - Spread (latency, delay, size, loss_burst): at least the share `probability` of a window's values is within the
      bound.
    - Share (loss, reordering, held_back): the window's share is not above the bound. A share that is above it by chance
      is no violation: the observer reports a violation only with a confidence of at least `probability`.
    - Level (jitter, gamma, silence, rate, burst, bandwidth): a window consists of several
      collecting intervals, each with one value. At least the share `probability` of these values is within the bound.
    """

    name: str
    provider: str
    consumer: str
    metric: str
    bound: float
    probability: float
    window_ns: int
    links: tuple[int, ...] = ()
    """The peers whose links the agreement covers; all peers if empty."""
    together: bool = False
    """Whether the values of all links are evaluated together; otherwise each link must keep the agreement by itself."""
    observations: int = MIN_OBSERVATIONS
    informs: tuple[str, ...] = ()
    """The names of the layers that learn of a violation, so that they can negotiate other settings."""

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            raise InvalidOption("metric", f"expected one of {', '.join(METRICS)}, got {self.metric!r}")
        if not 0 < self.probability <= 1:
            raise InvalidOption("probability", f"expected more than 0 and at most 1, got {self.probability:g}")
        if self.shape is Shape.SHARE and self.probability == 1:
            raise InvalidOption(
                "probability",
                f"expected less than 1, got 1: for {self.metric} it is the confidence needed to report a violation, "
                "and no measurement reaches 1",
            )
        if self.bound < 0:
            raise InvalidOption("bound", f"expected a bound of at least 0, got {self.bound:g}")
        if self.kind.unit is Unit.SHARE and self.bound >= 1:
            raise InvalidOption(
                "bound", f"expected a share from 0 to less than 1 for {self.metric}, got {self.bound:g}"
            )
        if self.window_ns < 1:
            raise InvalidOption("window", f"expected a window above zero, got {self.window_ns} ns")
        if self.provider == self.consumer:
            raise InvalidOption("consumer", f"expected a layer other than the provider, got {self.consumer!r} for both")

    @property
    def kind(self) -> MetricKind:
        """The unit, shape and side of the metric."""
        return METRICS[self.metric]

    @property
    def shape(self) -> Shape:
        """The shape of the agreement's metric: SPREAD, SHARE or LEVEL."""
        return METRICS[self.metric].shape

    def bound_text(self) -> str:
        """The agreement's bound with its unit, as a text for the user."""
        return value_text(self.metric, self.bound)


def value_text(metric: str, value: float) -> str:
    """A value of the named metric with its unit, as a text for the user."""
    unit = METRICS[metric].unit
    if unit is Unit.NS:
        return duration_text(int(value))
    return f"{value:.4g}" if unit is Unit.SHARE else f"{value:.6g} {unit.value}"


@dataclass(frozen=True, slots=True)
class Hysteresis:
    """Options that keep adaptation from oscillating. They count windows of the service level agreements."""

    raise_after: int = 1
    """Adaptation raises the settings after this many consecutive windows that need more."""
    lower_after: int = 8
    """Adaptation lowers the settings after this many consecutive windows that need less.

    It waits for twice as many after it has lowered them too early.
    """
    margin: float = 0.5
    """Adaptation lowers the settings only if they would suffice even if losses and delays grew by this share."""

    def __post_init__(self) -> None:
        if self.raise_after < 1:
            raise InvalidOption("raise_after", f"expected at least one window, got {self.raise_after}")
        if self.lower_after < self.raise_after:
            raise InvalidOption(
                "lower_after", f"expected at least raise_after = {self.raise_after} windows, got {self.lower_after}"
            )
        if not 0 <= self.margin <= 10:
            raise InvalidOption("margin", f"expected a share from 0 to 10, got {self.margin:g}")


@dataclass(frozen=True, slots=True)
class SlaSet:
    """The contents of one SLA file: the agreements, the collecting interval, and the options of adaptation."""

    source: str
    slas: tuple[Sla, ...]
    collect_interval_ns: int
    adaptable_settings: tuple[str, ...] = ()
    """The settings that adaptation may change; none by default."""
    hysteresis: Hysteresis = Hysteresis()
    reliability: float = RELIABILITY
    """The share of multicasts, or with forward error correction of frames, that adaptation keeps within Δ."""
    rho_most: int = RHO_MOST
    fec_most: int = FEC_MOST
    """The limits up to which adaptation may raise ρ (`rho_most`) and the a of forward error correction (`fec_most`)."""
    evaluated_by_members: bool = True
    """Whether members evaluate their incoming links and request settings.

    Otherwise only the measurement service does so.
    """
    lines: Mapping[str, int] = field(default_factory=dict, compare=False)
    """The line number of each field in the SLA file, for error messages."""

    def error(self, name: str, problem: str) -> SlaError:
        """The error to raise for a field of the SLA file that does not fit the group."""
        return SlaError(self.source, nearest_line(self.lines, name), name, problem)


_COMMON_FIELDS: Final = {
    "text": "text",
    "member": "member",
    "slot": "slot",
    "sla": "sla",
    "window_start_ns": "window_start_ns",
    "window_ns": "window_ns",
    "id": "id",
}
"""The fields that every stored SLA verdict has: the name in storage, and the attribute of the event."""
_VIOLATION_FIELDS: Final = {
    "metric": "metric",
    "bound": "bound",
    "measured": "measured",
    "probability": "probability",
    "link": "link",
    "offered": "offered",
}
"""The fields that only stored SLA violations have: the name in storage, and the attribute of the event."""


def fields_of_verdict(verdict: SlaVerdict) -> dict[str, Any]:
    """The fields of an SLA verdict under the names with which they are stored."""
    violated = isinstance(verdict, SlaViolation)
    names = _COMMON_FIELDS | _VIOLATION_FIELDS if violated else _COMMON_FIELDS
    stored = {name: getattr(verdict, attribute) for name, attribute in names.items()}
    return {"violated": violated, "kind": verdict.kind.value, **stored}


def verdict_of_fields(fields: Mapping[str, Any]) -> SlaVerdict:
    """The SLA verdict with these stored fields. Accepts "system sla" too, as early releases stored it."""
    token = str(fields["kind"]).replace(" ", "_")
    names = _COMMON_FIELDS | _VIOLATION_FIELDS if fields["violated"] else _COMMON_FIELDS
    values = {attribute: fields[name] for name, attribute in names.items()}
    if fields["violated"]:
        return SlaViolation(ViolationKind(token), **values)
    return SlaCleared(NoticeKind(token), **values)
