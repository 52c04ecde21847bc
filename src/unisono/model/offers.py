"""A user's requirements for a group (`Ask`), and the guarantees of an order for them (`Offer`).

Each order and each layer calculates its offer in a function from Ask to Offer. The planner compares the offers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp

from unisono.errors import InvalidOption
from unisono.model.delays import DelayModel
from unisono.model.events import GRADES
from unisono.model.options import OrderOptions
from unisono.model.policy import Redundancy
from unisono.model.timing import Timing
from unisono.model.units import NS_PER_S, Rate


@dataclass(frozen=True, slots=True)
class Ask:
    """The group to plan: its members, their rate, the network, and the guarantees that must hold."""

    members: int
    rate: Rate
    timing: Timing
    max_message: int = 4096
    """The size of the largest message, in bytes."""
    link_bytes_per_s: int | None = None
    """The capacity of each member's link; None if it does not limit the group."""
    processing_ns: int = 0
    """The processing time p: how long a leader needs for one message or request."""
    loss: float = 0.0
    """The share of datagrams that the network loses."""
    loss_burst: int = 0
    """At most this many consecutive datagrams of a sender are lost (x in paper 000 §7)."""
    fec: tuple[int, int] | None = None
    """At most a of any b consecutive datagrams of a sender are lost: (a, b)."""
    failures: int = 0
    """How many members may crash while the group runs."""
    reliable: bool = False
    """Whether the order must have no gaps even when members crash."""
    priorities: bool = False
    """Whether urgent messages must overtake queued messages of other senders."""
    grades: str = "early"
    """Which deliveries are requested: "early", "final" (agreed by all members) or "both"."""
    deadline_ns: int | None = None
    delay: DelayModel | None = None
    """The distribution of delays, if more is known than Δ."""
    delays_dependent: bool = False
    """Whether the delays of different datagrams may depend on each other, for example because a host stalls."""
    session_ns: int = 3600 * NS_PER_S
    """How long the group runs. An order without retransmissions must get through this time without a loss."""

    def __post_init__(self) -> None:
        if self.members < 1:
            raise InvalidOption("members", f"expected at least one member, got {self.members}")
        if not 0 <= self.loss < 1:
            raise InvalidOption("loss", f"expected a share from 0 to less than 1, got {self.loss}")
        if self.fec is not None and not 0 < self.fec[0] < self.fec[1]:
            raise InvalidOption("fec", f"expected a/b with 0 < a < b, got {self.fec[0]}/{self.fec[1]}")
        if self.grades not in GRADES:
            raise InvalidOption("grades", f"expected one of {', '.join(GRADES)}, got {self.grades!r}")
        if min(self.loss_burst, self.failures, self.processing_ns) < 0:
            found = f"{self.loss_burst}, {self.failures} and {self.processing_ns} ns"
            raise InvalidOption("loss_burst, failures, processing", f"expected values of at least 0, got {found}")
        if self.failures >= self.members:
            raise InvalidOption(
                "failures", f"expected fewer crashes than the group's {self.members} members, got {self.failures}"
            )
        if self.deadline_ns is not None and self.deadline_ns <= 0:
            raise InvalidOption("deadline", f"expected a duration above zero, got {self.deadline_ns} ns")
        if self.session_ns <= 0:
            raise InvalidOption("session", f"expected a duration above zero, got {self.session_ns} ns")

    def probability_reaches_all(self) -> float:
        """The probability that a datagram reaches all other members."""
        return float((1 - self.loss) ** (self.members - 1))

    def probability_nothing_lost(self, datagrams_per_s: float) -> float:
        """The probability that no datagram of any member is lost while the group runs."""
        sent = self.members * datagrams_per_s * self.session_ns / NS_PER_S
        return exp(-sent * (1 - self.probability_reaches_all()))


@dataclass(frozen=True, slots=True)
class Offer:
    """What one order guarantees for an Ask: figures, and the calculation behind them in words."""

    order: str
    feasible: bool
    latency_bound_ns: int
    avg_rate: float
    """The most datagrams per second that each member sends, on average (NetAvgRate in paper 000)."""
    max_burst: int
    """The most datagrams that each member sends in one slot (NetMaxBurst in paper 000)."""
    header_bytes: int
    """Bytes of each datagram that are not payload."""
    gap_free: bool
    loss_tolerance: str
    reliability: float
    """The probability that every correct member delivers a message, if the network loses the share `Ask.loss`."""
    reasons: tuple[str, ...] = field(default=())
    """The calculation in words. If the order cannot meet the Ask, the first lines say why."""
    redundancy: Redundancy | None = None
    """The settings ρ, η and ω, if the order runs over reliable multicast; None otherwise."""
    broadcasts: float = 1.0
    """The expected number of times that reliable multicast broadcasts each datagram."""
    by_priority: bool = False
    """Whether urgent messages overtake others at every member. The planner chooses such an order only on request."""
    outage_ns: int | None = 0
    """How much longer than the bound a message may take for each member that crashes; None if there is no limit."""
    final_latency_ns: int | None = None
    """With final deliveries, the approximate time from sending to the final delivery. This is not a bound."""
    options: OrderOptions | None = None
    """The options with which `join` gives exactly this offer; the planner sets them."""
    delta_ns: int | None = None
    """The Δ to join with, if it is not the Δ of the Ask: over reliable multicast, the time in which copies arrive."""
