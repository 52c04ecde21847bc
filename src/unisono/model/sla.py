"""A service level agreement: what one party promises another about a metric, as frozen values.

The parties are the application, the layers by name, and the network. Of the two, who is above is the consumer and who
is below the provider. A metric of the provider's service is collected by the consumer, a metric of the consumer's
usage by the provider (paper 002 §2.4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from unisono.errors import InvalidOption, SlaError
from unisono.model.durations import duration_text
from unisono.model.metrics import METRICS, MetricKind, Shape, Unit
from unisono.model.text.toml_lines import nearest_line

RELIABILITY, RHO_MOST, FEC_MOST = 0.999, 4, 8
"""What adaptation holds, and how far it goes for that, unless told."""
MIN_OBSERVATIONS = 30
"""Fewer observations in a window than this give no verdict, unless told."""


@dataclass(frozen=True, slots=True)
class Sla:
    """One agreement: `metric` keeps `bound` with `probability`, judged window by window.

    Of a spread (latency, delay, size, loss_burst), at least the share `probability` of a window's values is within the
    bound. Of a share (loss, reordering, held_back), the window's share is not above the bound, and a breach is told
    when it is certain with `probability`. Of a level (jitter, gamma, silence, rate, burst, bandwidth), at least the
    share `probability` of the window's collecting intervals is within the bound.
    """

    name: str
    provider: str
    consumer: str
    metric: str
    bound: float
    probability: float
    window_ns: int
    links: tuple[int, ...] = ()
    """The peers it is about; all of them if empty."""
    together: bool = False
    """Whether the links are judged as one; else each keeps the agreement by itself."""
    observations: int = MIN_OBSERVATIONS
    informs: tuple[str, ...] = ()
    """The layers whose negotiation hears of a violation."""

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            raise InvalidOption("metric", f"one of {', '.join(METRICS)} is possible, not {self.metric!r}")
        if not 0 < self.probability <= 1:
            raise InvalidOption("probability", f"more than 0 and at most 1 is possible, not {self.probability:g}")
        if self.shape is Shape.SHARE and self.probability == 1:
            raise InvalidOption("probability", f"of {self.metric} it is how sure a breach must be: less than 1")
        if self.bound < 0:
            raise InvalidOption("bound", f"a bound cannot be negative, and {self.bound:g} is")
        if self.kind.unit is Unit.SHARE and self.bound >= 1:
            raise InvalidOption("bound", f"of {self.metric} it is a share from 0 to less than 1, not {self.bound:g}")
        if self.window_ns < 1:
            raise InvalidOption("window", "a window above zero is needed")
        if self.provider == self.consumer:
            raise InvalidOption("consumer", f"two parties are needed, and {self.provider!r} is both of them")

    @property
    def kind(self) -> MetricKind:
        """How the metric is read."""
        return METRICS[self.metric]

    @property
    def shape(self) -> Shape:
        """What the metric's values are."""
        return METRICS[self.metric].shape

    def bound_text(self) -> str:
        """The bound with its unit."""
        return value_text(self.metric, self.bound)


def value_text(metric: str, value: float) -> str:
    """A metric's value with its unit."""
    unit = METRICS[metric].unit
    if unit is Unit.NS:
        return duration_text(int(value))
    return f"{value:.4g}" if unit is Unit.SHARE else f"{value:.6g} {unit.value}"


@dataclass(frozen=True, slots=True)
class Hysteresis:
    """What keeps adaptation from swinging to and fro, in windows of the SLAs that drive it."""

    raise_after: int = 1
    """So many windows in a row must need more before more is spent."""
    lower_after: int = 8
    """So many windows in a row must do with less before less is spent; doubled each time that proves too early."""
    margin: float = 0.5
    """Less is spent only if it would do even with losses and delays larger by this share."""

    def __post_init__(self) -> None:
        if self.raise_after < 1:
            raise InvalidOption("raise_after", f"at least one window is needed, not {self.raise_after}")
        if self.lower_after < self.raise_after:
            raise InvalidOption("lower_after", "lowering may not be faster than raising")
        if not 0 <= self.margin <= 10:
            raise InvalidOption("margin", f"a share from 0 to 10 is needed, not {self.margin:g}")


@dataclass(frozen=True, slots=True)
class SlaSet:
    """What one file holds: agreements, how often is collected, and what may be adapted to keep them."""

    source: str
    slas: tuple[Sla, ...]
    collect_interval_ns: int
    adaptable_settings: tuple[str, ...] = ()
    """The knobs that adaptation may turn; none without the file's saying so."""
    hysteresis: Hysteresis = Hysteresis()
    reliability: float = RELIABILITY
    """What adaptation holds: this share of all multicasts within Δ, or of all frames."""
    rho_most: int = RHO_MOST
    fec_most: int = FEC_MOST
    """How far ρ and a may be raised."""
    evaluated_by_members: bool = True
    """Whether members judge the links into them and demand what these need; else the measurement service does alone."""
    lines: Mapping[str, int] = field(default_factory=dict, compare=False)
    """At which line of the file each field stands."""

    def error(self, name: str, problem: str) -> SlaError:
        """What to raise about a field of the file that makes no sense in the group at hand."""
        return SlaError(self.source, nearest_line(self.lines, name), name, problem)
