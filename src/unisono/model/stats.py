"""What a running member has measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from unisono.model.histogram import Histogram


@dataclass(frozen=True, slots=True)
class Stats:
    """What a running member has measured of itself and of its network."""

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
    """Datagrams that were not let in, by reason."""
    ignored: Mapping[str, int]
    """Frames that were let in but not used, by reason."""
    dropped: int
    """Datagrams that the kernel threw away because the receive buffer was full."""
    errors: Mapping[str, int]
    """Datagrams that could not be sent, by the system's error."""
    multicast: bool
    """Whether this member's data goes by IP multicast."""
    order: str = "vbr"
    gap_free: bool = True
    """Whether deliveries are promised to have no gaps; where there are two grades, the final ones."""
