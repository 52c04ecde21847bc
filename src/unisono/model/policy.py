"""The options with which one member takes part in one group: the input of `stack.build`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, Protocol, TypeAlias, get_args, runtime_checkable

from unisono.errors import InvalidOption
from unisono.model.delays import DelayModel
from unisono.model.events import GRADES, View
from unisono.model.timing import Timing
from unisono.model.topology import Multigroup
from unisono.model.units import NS_PER_S, Rate, duration_ns, duration_text, exact_duration_text

PRIORITY_MAX: Final = 0x7FFF


Gaps: TypeAlias = Literal["never", "repaired", "allowed"]
Adaptive: TypeAlias = Literal["none", "exact", "heuristic", "counting"]
ADAPTIVE: tuple[str, ...] = get_args(Adaptive)
RHO_MAX = 254
"""The largest possible ρ: frames number copies with one byte, and copy ρ+1 must fit too."""


@dataclass(frozen=True, slots=True)
class RelativeRequirement:
    """The requirement that, with probability U, all others have a message at most S after one receiver has it.

    `success` is U and `within_ns` is S (paper 002 §3.1, B.1). `loss` and `delay` describe one datagram to one receiver.
    Receivers need all four values to lengthen ω exactly (`Redundancy.adaptive` = "exact").
    """

    success: float
    within_ns: int
    loss: float
    delay: DelayModel

    def __post_init__(self) -> None:
        if not 0 < self.success < 1:
            raise InvalidOption("relative.success", f"expected a probability above 0 and below 1, got {self.success}")
        if self.within_ns < 1:
            raise InvalidOption("relative.within", f"expected a duration above zero, got {self.within_ns} ns")
        if not 0 <= self.loss < 1:
            raise InvalidOption("relative.loss", f"expected a probability of at least 0 and below 1, got {self.loss}")

    def not_arrived_probability(self, x_ns: int) -> float:
        """The probability that a datagram has not arrived `x_ns` after it was sent: h(x) in paper 002, equation (1)."""
        return 1.0 if x_ns <= 0 else 1 - (1 - self.loss) * self.delay.cdf(x_ns)


@dataclass(frozen=True, slots=True)
class Redundancy:
    """The settings of reliable multicast.

    A message is broadcast ρ+1 times, at intervals of η. A receiver that misses the next copy for η+ω+ζ takes over.
    `eta` and `omega` are durations with a unit, such as "4ms".

    `adaptive` says how a receiver lengthens ω. "none": not at all. "exact": by equations (9) to (11) of paper 002,
    which needs `relative`. "heuristic": as in paper 002, appendix B.2. "counting": as "heuristic", but a receiver that
    knows of ρ+2 broadcasts makes none itself.
    With `last_copy`, a process that receives the last copy, copy ρ, as its first one broadcasts it once more unless
    another process does (erratum 002-3). The default for `last_copy` is true with uniform delivery and false otherwise.
    """

    rho: int
    eta: str = field(compare=False)
    omega: str = field(default="0ms", compare=False)
    adaptive: Adaptive = "none"
    relative: RelativeRequirement | None = None
    last_copy: bool | None = None
    eta_ns: int = field(init=False, repr=False)
    omega_ns: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "eta_ns", duration_ns(self.eta, "redundancy.eta"))
        object.__setattr__(self, "omega_ns", duration_ns(self.omega, "redundancy.omega"))
        if not 0 <= self.rho <= RHO_MAX:
            raise InvalidOption("redundancy.rho", f"expected 0 to {RHO_MAX} repetitions, got {self.rho}")
        if not 1_000 <= self.eta_ns < 2**62:
            raise InvalidOption("redundancy.eta", f"expected an interval of at least 1us, got {self.eta_ns} ns")
        if not 0 <= self.omega_ns < 2**62:
            raise InvalidOption("redundancy.omega", f"expected a duration of at least 0, got {self.omega_ns} ns")
        if self.adaptive not in ADAPTIVE:
            raise InvalidOption("redundancy.adaptive", f"expected one of {', '.join(ADAPTIVE)}, got {self.adaptive!r}")
        if (self.relative is not None) != (self.adaptive == "exact"):
            raise InvalidOption(
                "redundancy.relative",
                f"expected a RelativeRequirement with adaptive = 'exact', and None otherwise; got {self.relative!r} "
                f"with adaptive = {self.adaptive!r}",
            )

    @classmethod
    def of_ns(
        cls,
        rho: int,
        eta_ns: int,
        omega_ns: int = 0,
        adaptive: Adaptive = "none",
        relative: RelativeRequirement | None = None,
        *,
        last_copy: bool | None = None,
    ) -> Redundancy:
        """The settings with η and ω in nanoseconds."""
        return cls(rho, exact_duration_text(eta_ns), exact_duration_text(omega_ns), adaptive, relative, last_copy)

    def longest_wait_ns(self) -> int:
        """The longest time that a process waits before it broadcasts.

        It is the sum of η, the longest finite ω, and the longest ζ, which is η.
        """
        if self.adaptive in ("heuristic", "counting"):
            return 2 * self.eta_ns + self.omega_ns + max(self.rho, 1) * self.eta_ns
        if self.relative is not None:
            return 2 * self.eta_ns + max(self.omega_ns, self.relative.within_ns)
        return 2 * self.eta_ns + self.omega_ns

    def message_lifetime_ns(self, members: int, delta_ns: int) -> int:
        """How long after its first broadcast a message can still be in flight, if no copy takes longer than Δ.

        A process broadcasts each copy number at most once, so there are at most n(ρ+1) broadcasts. If none has happened
        for the longest wait plus Δ, every copy has arrived and every timer has expired, so no broadcast follows.
        """
        return members * (self.rho + 1) * (self.longest_wait_ns() + delta_ns) + delta_ns

    def text(self) -> str:
        """The settings as a short text for the user."""
        adaptive = {"none": "", "counting": ", counting copies"}.get(self.adaptive, f", {self.adaptive} time-outs")
        return f"ρ = {self.rho}, η = {duration_text(self.eta_ns)}, ω = {duration_text(self.omega_ns)}{adaptive}"


def eta_of_one(delay: DelayModel, alpha: float) -> int:
    """The η within which one datagram arrives with probability α (paper 002 §3.3, the first choice)."""
    return max(1_000, delay.quantile(_checked_alpha(alpha)))


def eta_of_all(delay: DelayModel, alpha: float, members: int) -> int:
    """The η within which a datagram reaches all other members with probability α (paper 002 §3.3, second choice)."""
    if members < 2:
        raise InvalidOption("members", f"expected at least 2 members, one sender and one receiver; got {members}")
    return max(1_000, delay.quantile(_checked_alpha(alpha) ** (1 / (members - 1))))


def _checked_alpha(alpha: float) -> float:
    if not 0 < alpha < 1:
        raise InvalidOption("alpha", f"expected a probability above 0 and below 1, got {alpha}")
    return alpha


@dataclass(frozen=True, slots=True)
class Settings:
    """The values of adaptable settings that a member requests, or that the group uses.

    None means that the setting is not requested.
    """

    redundancy: tuple[int, int, int] | None = None
    """The triple (ρ, η, ω) of reliable multicast; η and ω are in nanoseconds."""
    fec: tuple[int, int] | None = None
    """The pair (a, b) of forward error correction: of every b shares, a are redundant."""
    theta_ns: int | None = None

    def text(self) -> str:
        """The settings as a text for the user."""
        parts = []
        if self.redundancy is not None:
            rho, eta_ns, omega_ns = self.redundancy
            parts.append(f"ρ = {rho}, η = {duration_text(eta_ns)}, ω = {duration_text(omega_ns)}")
        if self.fec is not None:
            parts.append(f"{self.fec[0]} redundant of {self.fec[1]} shares")
        if self.theta_ns is not None:
            parts.append(f"slots of {duration_text(self.theta_ns)}")
        return "; ".join(parts) or "as declared"


def strongest(requests: Iterable[Settings]) -> Settings:
    """The settings that satisfy all requests: most copies, shortest η and ω, most redundant shares, shortest slots.

    The result does not depend on the order of the requests, so members with the same requests agree.
    """
    known = tuple(requests)
    copies = [request.redundancy for request in known if request.redundancy is not None]
    shares = [request.fec for request in known if request.fec is not None]
    slots = [request.theta_ns for request in known if request.theta_ns is not None]
    return Settings(
        max(copies, key=lambda c: (c[0], -c[1], -c[2]), default=None),
        max(shares, default=None),
        min(slots, default=None),
    )


@runtime_checkable
class StateHolder(Protocol):
    """An application whose state is transferred to a newcomer when the view with the newcomer begins.

    The state must be the result of all messages consumed so far. So the application must apply a consumed message to
    its state before it awaits anything else. Neither method may block. If one of them raises, this member stops.
    """

    def snapshot(self) -> bytes:
        """The application's current state as bytes."""

    def restore(self, state: bytes) -> None:
        """Replace the state by another member's snapshot. Called before the first message can be consumed.

        It is called again each time that this member was excluded and has rejoined.
        """


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
"""The most shares of a block: erasure codes use the finite field GF(2⁸), which has this many elements."""


def check_fec(fec: tuple[int, int]) -> None:
    """Raise InvalidOption unless (a, b) is valid: FEC repairs `a` losses among any `b` consecutive datagrams."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderSettings:
    """The options that only some orders have, as a policy and a scenario hold them. The default is: not used.

    `failures` lets members crash, join and leave while the group runs; a crash may then leave gaps in the order.
    `loss_burst` (x) is the largest number of consecutive datagrams of a sender that are lost. `fec` = (a, b) says that
    at most a of any b consecutive ones are lost. `processing_ns` (p) is the most time that a leader needs for one
    message or request. `reservation` says whether the "sender" or each "receiver" of a flow reserves its bandwidth
    (paper 000 §4.2; CBR).

    `reliable` puts reliable multicast under the order, for a network that loses datagrams. Δ is then the time within
    which a multicast reaches all members with the required probability; a single datagram must not take longer either.

    `grades` selects the deliveries: "early" (as the order produces them), "final" (agreed by all members), or "both",
    each message once in each grade. `multigroup` is the topology and the other options of a quasi-genuine order.
    """

    failures: bool = False
    loss_burst: int = 0
    fec: tuple[int, int] | None = None
    processing_ns: int = 0
    reservation: str = "sender"
    reliable: Redundancy | None = None
    grades: str = "early"
    multigroup: Multigroup | None = None

    def order_settings(self) -> dict[str, Any]:
        """These options by name, for a value that has the same ones."""
        return {field.name: getattr(self, field.name) for field in fields(OrderSettings)}


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """The options of `join` from which a plan follows. Members name them when their plans differ."""

    gaps: Gaps
    deadline_ns: int | None
    order_is_given: bool
    """Whether the user named the order. Otherwise it follows from `gaps`."""
    slot_is_given: bool
    """Whether the user gave the slot length. Otherwise it is the default, or follows from the deadline."""


@dataclass(frozen=True, slots=True)
class Policy(OrderSettings):
    """The options with which one member takes part in one group.

    `rho_most` and `fec_most` are the limits up to which adaptation may raise ρ and a; the member reserves bandwidth for
    them. `probe_every_ns` is the interval at which each peer's clock is probed (0: never). `multicast` allows IP
    multicast. The first slot begins at least `start_margin_ns` after a member chooses it, even if the paper's Smax is
    earlier. `rejoin` (over agreed views): an excluded member rejoins by itself, as a new incarnation.
    With `plan_inputs`, this member compares its plan with the plans of its peers.
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
    rho_most: int = 0
    fec_most: int = 0
    rejoin: bool = True
    plan_inputs: PlanInputs | None = None

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
        self.check_message_fits(self.rate)

    @property
    def neighbours(self) -> tuple[int, ...]:
        """The members that this member exchanges datagrams with: all others.

        With a topology, only those of its own group and of the groups that it may send to or receive from.
        """
        members = self.view.members
        if self.multigroup is not None:
            topology = self.multigroup.topology
            members = topology.members_of(topology.neighbours(topology.group_of(self.member)))
        return tuple(member for member in members if member != self.member)

    @property
    def copies(self) -> int:
        """How many times in a row a member sends a message that must arrive (paper 000 §7).

        This is one more than the datagrams that may be lost in a row: `loss_burst`, or the a of `fec`.
        """
        return 1 + max(self.loss_burst, 0 if self.fec is None else self.fec[0])

    def check_rate(self, rate: Rate, theta_ns: int | None = None) -> None:
        """Raise InvalidOption if slots of this length, by default the declared one, cannot carry this rate."""
        self.check_message_fits(rate)
        excess = rate.average_excess(theta_ns or self.timing.theta_ns)
        if excess:
            raise InvalidOption("rate.avg", f"{excess}; lower avg, raise burst or use shorter slots")

    def check_message_fits(self, rate: Rate) -> None:
        """Raise InvalidOption if a message of the largest size could never be sent at this rate."""
        limit = rate.bytes_per_slot(self.max_message)
        if limit < self.max_message:
            raise InvalidOption(
                "rate.burst_bytes",
                f"a slot of {limit:,} bytes cannot carry one message of max_message = {self.max_message:,} bytes; "
                "raise burst_bytes or lower max_message",
            )
