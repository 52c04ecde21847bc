"""Statistics of a running member."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from unisono.model.histogram import Histogram


@dataclass(frozen=True, slots=True)
class Stats:
    """What a running member has measured about itself and its network."""

    sent: int
    delivered: int
    bound_ns: int
    delays: Histogram
    """One-way delays of end-of-slot marks, as the clocks show them."""
    lateness: Histogram
    """How late this member's timers fired."""
    gamma_ns: int | None
    """The largest difference between clocks, errors included; None until every peer has answered a probe."""
    refused: Mapping[str, int]
    """Refused datagrams, by reason."""
    ignored: Mapping[str, int]
    """Valid frames that were not used, by reason."""
    dropped: int
    """Datagrams that the kernel dropped because the receive buffer was full."""
    errors: Mapping[str, int]
    """Datagrams that could not be sent, by the error of the operating system."""
    multicast: bool
    """Whether this member sends its data by IP multicast."""
    order: str = "vbr"
    gap_free: bool = True
    """Whether deliveries, or with two grades the final deliveries, are guaranteed to have no gaps."""
    counters: Mapping[str, int] = field(default_factory=dict)
    """What the parts of this member have counted, by "part.name", as "fec.recovered"; docs/monitoring.md lists them."""
