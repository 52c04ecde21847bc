"""Everything that one member must know to take part in one group: the input of `stack.build`."""

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
"""How often a member probes the clock of each other one, unless told."""
RESERVATIONS = ("sender", "receiver")
SLOTS_IN_FLIGHT_MAX = 4000
"""A member has to keep all slots that have not had the time to arrive."""
SHARES_MAX = 256
"""Erasure codes are over GF(2⁸): no block has more shares than the field has elements."""


def check_fec(fec: tuple[int, int]) -> None:
    """Raise InvalidOption unless a lost of any b consecutive datagrams can be made up for."""
    numbers = isinstance(fec, tuple) and len(fec) == 2 and all(isinstance(number, int) for number in fec)
    if not numbers or not 0 < fec[0] < fec[1] <= SHARES_MAX:
        given = f"{fec[0]}/{fec[1]}" if numbers else repr(fec)
        raise InvalidOption("fec", f"a/b with 0 < a < b <= {SHARES_MAX} is needed, as numbers (a, b), not {given}")


def check_slots(timing: Timing) -> None:
    """Raise InvalidOption if Δ or Γ is out of all proportion to Θ: so many slots would be under way at once."""
    waiting = (timing.delta_ns + 2 * timing.gamma_ns) // timing.theta_ns
    if waiting > SLOTS_IN_FLIGHT_MAX:
        which = "delta" if timing.delta_ns >= 2 * timing.gamma_ns else "gamma"
        spans = f"Δ+2Γ spans {waiting:,} slots of {duration_text(timing.theta_ns)}"
        raise InvalidOption(which, f"{spans}, at most {SLOTS_IN_FLIGHT_MAX:,} are possible: longer slots are needed")


@dataclass(frozen=True, slots=True)
class Policy:
    """One member's part in one group.

    `failures` lets members crash, join and leave while the group runs, at the price of gaps in the order when they
    crash; `loss_burst` is the most consecutive datagrams of a sender that are lost (x), `fec` = (a, b) the most lost
    (a) of any b consecutive ones; `processing_ns` is what a leader may take over one message or request (p).

    `rho_most` and `fec_most` are how far adaptation may raise ρ and a; bandwidth is reserved for that.
    `reliable` puts reliable multicast under the order, over a network that loses datagrams. Δ is then the time within
    which that reaches everyone with the probability asked for; single datagrams must not take longer either.

    `grades` says whether messages are delivered as the order gives them ("early"), when all have agreed on them
    ("final"), or in both grades, once each ("both").

    `reservation` says who reserves a flow's bandwidth: its "sender", or each "receiver" (§4.2; the CBR order only).
    `probe_every_ns` is how often each peer's clock is probed (0: never); `multicast` says that an IP multicast
    path may exist. `start_margin_ns` puts the first slot later than the paper's Smax, for start-ups slower than Δ.
    `multigroup` is the topology, and what else a quasi-genuine order runs by. `rejoin` (over agreed views): a member
    that the others went on without comes back by itself, in another incarnation.
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
            raise InvalidOption("member", f"member {self.member} is not among the members {self.view.members}")
        if not 1 <= self.max_message <= MESSAGE_MAX:
            raise InvalidOption("max_message", f"1 to {MESSAGE_MAX:,} bytes are possible, not {self.max_message:,}")
        if not FRAME_MIN <= self.max_frame <= FRAME_MAX:
            raise InvalidOption("max_frame", f"{FRAME_MIN} to {FRAME_MAX:,} bytes are possible, not {self.max_frame:,}")
        if not 0 <= self.incarnation < 2**32:
            raise InvalidOption("incarnation", f"a 32-bit number is needed, not {self.incarnation}")
        if not 0 <= self.epoch < 2**32:
            raise InvalidOption("epoch", f"a 32-bit number is needed, not {self.epoch}")
        if self.probe_every_ns < 0:
            raise InvalidOption("probe_every", f"a duration cannot be negative, and {self.probe_every_ns} ns is")
        if self.fec is not None:
            check_fec(self.fec)
        check_slots(self.timing)
        if self.reservation not in RESERVATIONS:
            raise InvalidOption("reservation", f"{' or '.join(RESERVATIONS)} is possible, not {self.reservation!r}")
        if self.grades not in GRADES:
            raise InvalidOption("grades", f"{', '.join(GRADES)} are possible, not {self.grades!r}")
        if self.multigroup is not None and self.multigroup.topology.members != self.view.members:
            raise InvalidOption(
                "topology.groups",
                f"each member is in one group: {self.multigroup.topology.members} are, not {self.view.members}",
            )
        self.check_rate(self.rate)

    @property
    def neighbours(self) -> tuple[int, ...]:
        """Whom this member may talk to at all: everybody else, or those in groups related to its own."""
        members = self.view.members
        if self.multigroup is not None:
            topology = self.multigroup.topology
            members = topology.members_of(topology.neighbours(topology.group_of(self.member)))
        return tuple(member for member in members if member != self.member)

    @property
    def copies(self) -> int:
        """How often a message that has to arrive is sent in a row, so that one does (paper 000 §7).

        One more than may be lost in a row: x, or a of b consecutive ones that forward error correction makes up for.
        """
        return 1 + max(self.loss_burst, 0 if self.fec is None else self.fec[0])

    def check_rate(self, rate: Rate) -> None:
        """Raise InvalidOption if a message of the largest size could never be sent at this rate."""
        limit = rate.bytes_per_slot(self.max_message)
        if limit < self.max_message:
            raise InvalidOption(
                "rate.burst_bytes",
                f"a slot of {limit:,} bytes cannot carry one message of {self.max_message:,}",
            )
