"""The options with which one member takes part in one group: the input of `stack.build`."""

from __future__ import annotations

from dataclasses import dataclass

from unisono.errors import InvalidOption
from unisono.model.durations import NS_PER_S, duration_text
from unisono.model.grades import GRADES
from unisono.model.rates import Rate
from unisono.model.redundancy import Redundancy
from unisono.model.timing import Timing
from unisono.model.topology import Multigroup
from unisono.model.views import View

MESSAGE_MAX = 64 * 1024 * 1024
FRAME_MIN = 256
FRAME_MAX = 65_507
"""The largest UDP payload over IPv4."""
PROBE_INTERVAL_NS = NS_PER_S
"""The default interval at which a member probes the clock of each other member."""
RESERVATIONS = ("sender", "receiver")
SLOTS_IN_FLIGHT_MAX = 4000
"""A member stores all slots that may still be in flight, so their number is limited."""
SHARES_MAX = 256
"""Erasure codes use GF(2⁸): a block has at most as many shares as the field has elements."""


def check_fec(fec: tuple[int, int]) -> None:
    """Raise InvalidOption unless forward error correction can repair a losses among any b consecutive datagrams."""
    numbers = isinstance(fec, tuple) and len(fec) == 2 and all(isinstance(number, int) for number in fec)
    if not numbers or not 0 < fec[0] < fec[1] <= SHARES_MAX:
        given = f"{fec[0]}/{fec[1]}" if numbers else repr(fec)
        raise InvalidOption("fec", f"expected a/b with 0 < a < b <= {SHARES_MAX}, as numbers (a, b), got {given}")


def check_slots(timing: Timing) -> None:
    """Raise InvalidOption if Δ or Γ is too large for Θ: too many slots would be in flight at once."""
    waiting = (timing.delta_ns + 2 * timing.gamma_ns) // timing.theta_ns
    if waiting > SLOTS_IN_FLIGHT_MAX:
        which = "delta" if timing.delta_ns >= 2 * timing.gamma_ns else "gamma"
        spans = f"Δ+2Γ spans {waiting:,} slots of {duration_text(timing.theta_ns)}"
        raise InvalidOption(which, f"{spans}, but the limit is {SLOTS_IN_FLIGHT_MAX:,}; use longer slots")


@dataclass(frozen=True, slots=True)
class Policy:
    """One member's options in one group.

    `failures` lets members crash, join and leave while the group runs; a crash may then leave gaps in the order.
    `loss_burst` (x) is the largest number of consecutive datagrams of a sender that are lost. `fec` = (a, b) says that
    at most a of any b consecutive ones are lost. `processing_ns` (p) is the most time that a leader needs for one
    message or request.

    `reliable` puts reliable multicast under the order, for a network that loses datagrams. Δ is then the time within
    which a multicast reaches all members with the required probability; a single datagram must not take longer either.
    `rho_most` and `fec_most` limit how far adaptation may raise ρ and a; bandwidth is reserved up to there.

    `grades` selects the deliveries: "early" (as the order produces them), "final" (agreed by all members), or "both",
    each message once in each grade.

    `reservation` says whether the "sender" or each "receiver" of a flow reserves its bandwidth (§4.2; only in CBR).
    `probe_every_ns` is the interval at which each peer's clock is probed (0: never). `multicast` allows IP multicast.
    `start_margin_ns` puts the first slot later than the paper's Smax, for start-ups slower than Δ. `multigroup` is the
    topology and the other options of a quasi-genuine order. `rejoin` (over agreed views): an excluded member rejoins
    by itself, as a new incarnation.
    """

    group: str
    member: int
    view: View
    timing: Timing
    rate: Rate
    order: str = "vbr"
    incarnation: int = 1
    epoch: int = 0
    max_message: int = 4096
    max_frame: int = 1400
    start_margin_ns: int = 0
    probe_every_ns: int = 0
    multicast: bool = False
    failures: bool = False
    loss_burst: int = 0
    fec: tuple[int, int] | None = None
    processing_ns: int = 0
    reservation: str = "sender"
    reliable: Redundancy | None = None
    grades: str = "early"
    rho_most: int = 0
    fec_most: int = 0
    multigroup: Multigroup | None = None
    rejoin: bool = True

    def __post_init__(self) -> None:
        if self.member not in self.view.members:
            raise InvalidOption("member", f"expected one of the members {self.view.members}, got {self.member}")
        if not 1 <= self.max_message <= MESSAGE_MAX:
            raise InvalidOption("max_message", f"expected 1 to {MESSAGE_MAX:,} bytes, got {self.max_message:,}")
        if not FRAME_MIN <= self.max_frame <= FRAME_MAX:
            raise InvalidOption("max_frame", f"expected {FRAME_MIN} to {FRAME_MAX:,} bytes, got {self.max_frame:,}")
        if not 0 <= self.incarnation < 2**32:
            raise InvalidOption("incarnation", f"expected a 32-bit number, got {self.incarnation}")
        if not 0 <= self.epoch < 2**32:
            raise InvalidOption("epoch", f"expected a 32-bit number, got {self.epoch}")
        if self.probe_every_ns < 0:
            raise InvalidOption("probe_every", f"expected a duration of at least 0, got {self.probe_every_ns} ns")
        if self.fec is not None:
            check_fec(self.fec)
        check_slots(self.timing)
        if self.reservation not in RESERVATIONS:
            raise InvalidOption("reservation", f"expected {' or '.join(RESERVATIONS)}, got {self.reservation!r}")
        if self.grades not in GRADES:
            raise InvalidOption("grades", f"expected one of {', '.join(GRADES)}, got {self.grades!r}")
        if self.multigroup is not None and self.multigroup.topology.members != self.view.members:
            raise InvalidOption(
                "topology.groups",
                f"expected every member in one group: the groups contain {self.multigroup.topology.members}, "
                f"the members are {self.view.members}",
            )
        self.check_rate(self.rate)

    @property
    def neighbours(self) -> tuple[int, ...]:
        """The members that this one exchanges datagrams with: all others, or those of connected groups."""
        members = self.view.members
        if self.multigroup is not None:
            topology = self.multigroup.topology
            members = topology.members_of(topology.neighbours(topology.group_of(self.member)))
        return tuple(member for member in members if member != self.member)

    @property
    def copies(self) -> int:
        """How many times in a row a message that must arrive is sent (paper 000 §7).

        One more than may be lost in a row: x losses, or the a of b that forward error correction repairs.
        """
        return 1 + max(self.loss_burst, 0 if self.fec is None else self.fec[0])

    def check_rate(self, rate: Rate) -> None:
        """Raise InvalidOption if a message of the largest size could never be sent at this rate."""
        limit = rate.bytes_per_slot(self.max_message)
        if limit < self.max_message:
            raise InvalidOption(
                "rate.burst_bytes",
                f"a slot of {limit:,} bytes cannot carry one message of max_message = {self.max_message:,} bytes; "
                "raise burst_bytes or lower max_message",
            )
