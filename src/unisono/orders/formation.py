"""How a group forms: every member learns all rates and first slots (paper 000 §5.1 init-rate, §6.3 Smax).

Each member repeats a HELLO. Once it has a HELLO of every peer, it names its own first slot in its HELLOs. By its clock,
this is the first slot that begins after the HELLO has reached every peer. The group starts at the latest of the named
slots, which each member knows when it has them all. No member sends a message before that, so a member that starts late
loses none. Where datagrams may be lost, each HELLO is sent in enough copies for one to arrive (paper 000 §7), so that
no member learns a first slot too late.
"""

from __future__ import annotations

import zlib

from unisono.model.events import ClockViolation, Violation, ViolationKind
from unisono.model.policy import Policy
from unisono.model.units import Rate, members_key
from unisono.wire.codec import control_frame, message_in
from unisono.wire.control import Hello, SeenPeer
from unisono.wire.frame import Frame

HELLO_INTERVAL_MIN_NS = 10_000_000
HELLO_INTERVAL_MAX_NS = 200_000_000


def order_key(policy: Policy) -> int:
    """A number computed from the order and from whether it uses reliable multicast; members compare it in HELLOs.

    ρ, η and ω may differ: each message carries its own.
    """
    return zlib.crc32(f"{policy.order}/{policy.reliable is not None}".encode())


class RateExchange:
    """One member's part in forming the group: it sends HELLOs and collects those of its peers."""

    def __init__(
        self,
        policy: Policy,
        down: list[Frame] | None = None,
        *,
        allow_restarts: bool = False,
        check_clocks: bool = False,
    ) -> None:
        """HELLOs to send are appended to `down`, the outgoing frames of the order.

        With `allow_restarts`, peers may return as new incarnations, and the exchange continues while the group runs.
        With `check_clocks`, the group does not begin with a member whose clock is off by more than Γ.
        """
        self._allow_restarts = allow_restarts
        self._check_clocks = check_clocks
        self.down: list[Frame] = [] if down is None else down
        self.problems: dict[int, str] = {}
        """By refused peer, why its HELLO does not fit this member's settings."""
        self._policy = policy
        timing = policy.timing
        self._hello_interval_ns = min(
            max(timing.delta_ns, timing.theta_ns, HELLO_INTERVAL_MIN_NS), HELLO_INTERVAL_MAX_NS
        )
        self._peers = tuple(m for m in policy.view.members if m != policy.member)
        self._hellos: dict[int, Hello] = {}
        self.incarnations: dict[int, int] = {policy.member: policy.incarnation}
        """By member, its incarnation according to its latest HELLO."""
        self._received_by_multicast: dict[int, bool] = {}
        self._own_first_slot = 0
        self.next_hello_at: int | None = 0
        """When the next HELLO is due; None when no more are needed."""
        self._refused_incarnations: dict[int, int] = {}
        """By peer that was refused because its clock is wrong, its incarnation at that time."""
        self.slot_changes = 0
        """How many times the running group has changed its slot length; HELLOs carry this number."""

    def from_below(self, now: int, frame: Frame) -> Violation | None:
        """Process a HELLO that has arrived; returns a violation if the HELLO shows a new problem, otherwise None."""
        hello, peer = message_in(frame, Hello), frame.sender
        if frame.epoch != self._policy.epoch:
            problem = f"is in epoch {frame.epoch}, here it is {self._policy.epoch}"
            return self._report_problem(ViolationKind.POLICY_DIFFERS, peer, problem)
        if not self._fits(hello):
            self.problems[peer] = "joined with other options"  # `net.plan_exchange` reports which
            return None
        if self._check_clocks and not self.has_named_first_slot:
            ahead_ns = frame.sent_ns - now
            if self._refused_incarnations.get(peer) == frame.incarnation:
                return None
            if ahead_ns > self._policy.timing.gamma_ns:
                return self.on_clock_difference(peer, frame.incarnation, ahead_ns)
        if self.complete and not self._allow_restarts and self.incarnations.get(peer) != frame.incarnation:
            text = "has restarted; this group began with its earlier incarnation and cannot add it again"
            return self._report_problem(ViolationKind.RESTARTED, peer, text)
        self.problems.pop(peer, None)
        if self.incarnations.get(peer) != frame.incarnation:
            self._received_by_multicast[peer] = False
            self._hellos.pop(peer, None)
            if self._allow_restarts:
                self.next_hello_at = now  # the new incarnation needs our HELLO
        was_complete, known = self.complete, self._hellos.get(peer)
        self.incarnations[peer] = frame.incarnation
        self._received_by_multicast[peer] = self._received_by_multicast.get(peer, False) or frame.multicast
        # An earlier HELLO that arrives after a later one changes nothing.
        if known is None or (known.first_slot, known.complete) <= (hello.first_slot, hello.complete):
            self._hellos[peer] = hello
        if not self._own_first_slot and len(self._hellos) == len(self._peers):
            self._name_first_slot(now)
        elif self.complete and not was_complete:
            self._send_hello(now)
        elif was_complete and not hello.complete:
            self._send_hello(now, to=peer)
        return None

    def on_clock_difference(self, peer: int, incarnation: int, difference_ns: int) -> ClockViolation | None:
        """Refuse a peer whose clock is off by more than Γ, if this member has not named its first slot yet.

        Returns a violation, or None if this incarnation of the peer was already refused.
        """
        if self._refused_incarnations.get(peer) == incarnation:
            return None
        gamma_ns = self._policy.timing.gamma_ns
        if self.has_named_first_slot:
            outcome = "without failures no member can be left out, so deliveries may be late"
            return ClockViolation.of(peer, difference_ns, gamma_ns, outcome)
        violation = ClockViolation.of(peer, difference_ns, gamma_ns, "the group does not begin with it")
        self._refused_incarnations[peer] = incarnation
        self._hellos.pop(peer, None)
        self.problems[peer] = f"has a wrong clock: {violation.text}"
        return violation

    def _report_problem(self, kind: ViolationKind, peer: int, problem: str) -> Violation | None:
        """Returns a violation for the first HELLO in which a peer shows this problem, and None for later ones."""
        if self.problems.get(peer) == problem:
            return None
        self.problems[peer] = problem
        return Violation(kind, f"member {peer} {problem}", peer)

    def _fits(self, hello: Hello) -> bool:
        """Whether the group can begin with the sender of this HELLO: its settings are ours."""
        timing, policy = self._policy.timing, self._policy
        # After a slot-length change, newcomers learn the present length from JOINs.
        slot_fits = hello.theta_ns == timing.theta_ns or hello.slot_changes > 0 or self.slot_changes > 0
        order_fits = hello.order_key in {0, order_key(policy)}
        theirs = hello.delta_ns, hello.gamma_ns, hello.failures, hello.fec, hello.loss_burst, hello.members_key
        members = members_key(policy.view.members)
        ours = timing.delta_ns, timing.gamma_ns, policy.failures, policy.fec, policy.loss_burst, members
        return slot_fits and order_fits and theirs == ours

    def _name_first_slot(self, now: int) -> None:
        timing, policy = self._policy.timing, self._policy
        extra = max(0, policy.start_margin_ns - timing.delta_ns - timing.gamma_ns)
        self._own_first_slot = timing.smax(now + extra)
        self._send_hello(now)

    def wake(self, now: int) -> None:
        """Send a HELLO if one is due."""
        if self.next_hello_at is None or now < self.next_hello_at:
            return
        if not self._peers and not self._own_first_slot:
            self._name_first_slot(now)
        if self.is_complete_everywhere():
            self.next_hello_at = None
            return
        self._send_hello(now)
        self.next_hello_at = now + self._hello_interval_ns

    def stop(self) -> None:
        """Send no more HELLOs, unless members may restart. Called when a slot is delivered: every member has begun."""
        if not self._allow_restarts:
            self.next_hello_at = None

    def _send_hello(self, now: int, to: int = 0) -> None:
        policy, timing, rate = self._policy, self._policy.timing, self._policy.rate
        seen_peers = tuple(
            SeenPeer(peer, self.incarnations[peer], self._received_by_multicast[peer])
            for peer in self._peers
            if peer in self._hellos
        )
        hello = Hello(
            timing.theta_ns,
            timing.delta_ns,
            timing.gamma_ns,
            members_key(policy.view.members),
            rate.avg,
            rate.burst,
            rate.bytes_per_slot(policy.max_message),
            self._own_first_slot,
            self.complete,
            seen_peers,
            policy.failures,
            *(policy.fec or (0, 0)),
            policy.loss_burst,
            self.slot_changes,
            order_key(policy),
        )
        for multicast in (False, True) if policy.multicast and not to else (False,):
            frame = control_frame(
                hello,
                policy.member,
                policy.incarnation,
                policy.epoch,
                slot=timing.slot_of(now),
                burst=rate.burst,
                sent_ns=now,
                to=to,
                multicast=multicast,
            )
            self.down.extend([frame] * policy.copies)

    @property
    def has_named_first_slot(self) -> bool:
        """Whether this member has named its first slot."""
        return self._own_first_slot > 0

    @property
    def complete(self) -> bool:
        """Whether this member knows the first slot of every member."""
        return (
            self._own_first_slot > 0
            and len(self._hellos) == len(self._peers)
            and all(hello.first_slot for hello in self._hellos.values())
        )

    def is_complete_everywhere(self) -> bool:
        """Whether this member knows that every member knows all first slots."""
        return self.complete and all(hello.complete for hello in self._hellos.values())

    def first_slot(self) -> int:
        """The slot at which the group starts; valid only once `complete` is true."""
        return max(self._own_first_slot, *(hello.first_slot for hello in self._hellos.values()), 0)

    def missing(self) -> tuple[int, ...]:
        """The peers from which no HELLO has arrived yet, or whose HELLOs name no first slot yet."""
        return tuple(p for p in self._peers if p not in self._hellos or not self._hellos[p].first_slot)

    def rate(self, peer: int) -> Rate | None:
        """The rate that a peer declared; None if no HELLO of that peer has arrived."""
        hello = self._hellos.get(peer)
        return None if hello is None else Rate(hello.avg, hello.burst, hello.burst_bytes)

    def reaches_all_by_multicast(self) -> bool:
        """Whether every peer has received a HELLO of this member by IP multicast."""
        me = self._policy.member
        return (
            self._policy.multicast
            and len(self._hellos) == len(self._peers)
            and all(any(h.member == me and h.by_multicast for h in hello.seen_peers) for hello in self._hellos.values())
        )
