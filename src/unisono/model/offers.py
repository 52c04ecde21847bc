"""What is asked of a stack, and what an order answers: the algebra's two values.

Each order and each layer knows its own arithmetic as a function from an Ask to an Offer; the planner only lists them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp

from unisono.errors import InvalidOption
from unisono.model.delays import DelayModel
from unisono.model.durations import NS_PER_S
from unisono.model.grades import GRADES
from unisono.model.rates import Rate
from unisono.model.redundancy import Redundancy
from unisono.model.timing import Timing


@dataclass(frozen=True, slots=True)
class Ask:
    """A group to be planned: who sends how much over which network, and what must hold."""

    members: int
    rate: Rate
    timing: Timing
    processing_ns: int = 0
    """How long a leader takes over one message or request (p)."""
    loss: float = 0.0
    """The share of datagrams that the network loses."""
    loss_burst: int = 0
    """At most this many consecutive datagrams of a sender are lost (x)."""
    fec: tuple[int, int] | None = None
    """At most a of any b consecutive datagrams of a sender are lost: (a, b)."""
    failures: int = 0
    """How many members may crash (f)."""
    reliable: bool = False
    """Whether gaps in the order are ruled out even when members crash."""
    priorities: bool = False
    """Whether urgent messages are to overtake those of others that are queued."""
    grades: str = "early"
    """Whether messages are wanted as the order gives them, when all have agreed, or both."""
    deadline_ns: int | None = None
    delay: DelayModel | None = None
    """How long datagrams take, where more is known than Δ."""
    delays_dependent: bool = False
    """Whether delays may depend on each other, as those of a host that stalls do."""
    session_ns: int = 3600 * NS_PER_S
    """How long the group is to run: an order that waits for what is lost has to get through it."""

    def __post_init__(self) -> None:
        if self.members < 1:
            raise InvalidOption("members", f"at least one is needed, not {self.members}")
        if not 0 <= self.loss < 1:
            raise InvalidOption("loss", f"a share from 0 to less than 1 is needed, not {self.loss}")
        if self.fec is not None and not 0 < self.fec[0] < self.fec[1]:
            raise InvalidOption("fec", f"a/b with 0 < a < b is needed, not {self.fec[0]}/{self.fec[1]}")
        if self.grades not in GRADES:
            raise InvalidOption("grades", f"{', '.join(GRADES)} are possible, not {self.grades!r}")
        if min(self.loss_burst, self.failures, self.processing_ns) < 0:
            raise InvalidOption("loss_burst, failures, processing", "none of them can be negative")
        if self.failures >= self.members:
            raise InvalidOption("failures", f"of {self.members} members fewer can crash than {self.failures}")
        if self.deadline_ns is not None and self.deadline_ns <= 0:
            raise InvalidOption("deadline", f"a duration above zero is needed, not {self.deadline_ns} ns")
        if self.session_ns <= 0:
            raise InvalidOption("session", f"a duration above zero is needed, not {self.session_ns} ns")

    def probability_reaches_all(self) -> float:
        """The probability that a datagram is lost to nobody."""
        return float((1 - self.loss) ** (self.members - 1))

    def probability_nothing_lost(self, datagrams_per_s: float) -> float:
        """The probability that no member's datagram is lost to anybody while the group runs."""
        sent = self.members * datagrams_per_s * self.session_ns / NS_PER_S
        return exp(-sent * (1 - self.probability_reaches_all()))


@dataclass(frozen=True, slots=True)
class Offer:
    """What one order would give: figures, and behind each the arithmetic in words."""

    order: str
    feasible: bool
    latency_bound_ns: int
    avg_rate: float
    """NetAvgRate: datagrams per second and member, at most."""
    max_burst: int
    """NetMaxBurst: datagrams per slot and member, at most."""
    header_bytes: int
    """What each datagram carries beside payload."""
    gap_free: bool
    loss_tolerance: str
    reliability: float
    """The probability that a message is delivered by every correct member, at the loss asked about."""
    reasons: tuple[str, ...] = field(default=())
    """The arithmetic, or the reasons against."""
    redundancy: Redundancy | None = None
    """ρ, η and ω where it stands on RMCast."""
    broadcasts: float = 1.0
    """How often a datagram is expected to be broadcast."""
    by_priority: bool = False
    """Whether urgent messages overtake others in the agreed order; it is chosen where that is asked for, only there."""
    outage_ns: int | None = 0
    """By how much the bound is exceeded for each member that dies; None where nothing is promised then."""
    final_latency_ns: int | None = None
    """Where messages become final behind the order, how long after sending, about; none is promised."""
