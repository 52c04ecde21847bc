"""Plan exchange: two members compare their options when they meet, and report the ones that differ.

A PLAN shows the incarnation of the receiver, if the sender knows it. A PLAN that shows this member's incarnation is
proven: a forger that does not receive this member's frames cannot send one. A member sends its PLAN to each peer when
it starts, and again every SEND_INTERVAL_NS until it has a proven PLAN of that peer. Until then its PLAN asks for an
answer. So each of two members gets a proven PLAN of the other, also after one of them has restarted.

A difference is reported by the option that the user wrote: with `order="auto"`, the order follows from `gaps`, and a
slot length that was not given follows from the deadline. It is reported once for each incarnation of a peer. PLANs can
be forged, so a member compares only proven ones, no PLAN changes what a running member does, and a peer's differences
are reported at most once in REPORT_INTERVAL_NS.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from unisono.errors import PlanMismatch
from unisono.model.events import Violation, ViolationKind
from unisono.model.options import ORDER_NAMES
from unisono.model.policy import PlanInputs, Policy
from unisono.model.timing import earliest
from unisono.model.units import NS_PER_S, exact_duration_text, members_key
from unisono.wire.codec import control_frame, message_in
from unisono.wire.control import Plan
from unisono.wire.frame import Frame, Kind

SEND_INTERVAL_NS: Final = NS_PER_S
"""How often a member sends its PLAN to a peer that it has no proven PLAN of."""
REPORT_INTERVAL_NS: Final = 10 * NS_PER_S
"""The least time between two reports about the same peer."""


def order_name_key(name: str) -> int:
    """The key of an order's name in a PLAN."""
    return zlib.crc32(name.encode())


_ORDERS: Final = {order_name_key(name): name for name in ORDER_NAMES}
_CHOSEN_BY_GAPS: Final = {"order", "failures", "grades"}
"""The options that `order="auto"` chooses."""
_ORDER_OPTIONS: Final = {"failures", "grades", "slot", "loss_burst", "fec", "reliable"}
"""The options of an order. They are not comparable between different orders."""
_MAY_DIFFER: Final = {"max_message"}
"""The options that do not prevent a group from forming."""


@dataclass(frozen=True, slots=True)
class PlanDifference:
    """An option that differs between this member and a peer, with both values, and both options as a text."""

    option: str
    ours: object
    theirs: object
    our_text: str
    their_text: str

    @property
    def prevents_forming(self) -> bool:
        """Whether the two members cannot form a group. With reliable multicast, each message carries its ρ and η."""
        if self.option == "reliable":
            return self.ours is None or self.theirs is None
        return self.option not in _MAY_DIFFER


def plan_of(
    policy: Policy,
    inputs: PlanInputs,
    known_incarnation: int = 0,
    *,
    wants_answer: bool = False,
    slots_changed: bool = False,
) -> Plan:
    """The PLAN of a member with this policy, for a peer whose PLAN of `known_incarnation` it has."""
    timing, reliable = policy.timing, policy.reliable
    redundant, shares = policy.fec or (0, 0)
    return Plan(
        known_incarnation=known_incarnation,
        wants_answer=wants_answer,
        order_key=order_name_key(policy.order),
        order_is_given=inputs.order_is_given,
        gaps=inputs.gaps,
        deadline_ns=inputs.deadline_ns or 0,
        theta_ns=timing.theta_ns,
        slot_is_given=inputs.slot_is_given,
        slots_changed=slots_changed,
        delta_ns=timing.delta_ns,
        gamma_ns=timing.gamma_ns,
        grades=policy.grades,
        failures=policy.failures,
        loss_burst=policy.loss_burst,
        fec_redundant=redundant,
        fec_shares=shares,
        rho=0 if reliable is None else reliable.rho,
        eta_ns=0 if reliable is None else reliable.eta_ns,
        omega_ns=0 if reliable is None else reliable.omega_ns,
        max_message=policy.max_message,
        members_key=members_key(policy.view.members),
    )


def differences(ours: Plan, theirs: Plan) -> list[PlanDifference]:
    """The options that the users of two members have to make equal; those that prevent forming come first."""
    our_values, their_values = _values(ours), _values(theirs)
    names = {name for name, value in our_values.items() if value != their_values[name]} - {"gaps", "deadline"}
    if ours.slots_changed or theirs.slots_changed:
        names.discard("slot")
    if "order" in names:
        names -= _ORDER_OPTIONS
    causes = set()
    if names & _CHOSEN_BY_GAPS and ours.gaps != theirs.gaps and not (ours.order_is_given or theirs.order_is_given):
        names -= _CHOSEN_BY_GAPS
        causes.add("gaps")
    if "slot" in names and not (ours.slot_is_given or theirs.slot_is_given):
        if ours.deadline_ns != theirs.deadline_ns:
            causes.add("deadline")
        if causes or len(names) > 1:
            names.remove("slot")  # it follows from one of the others
    found = [
        PlanDifference(name, our_values[name], their_values[name], _text(name, ours), _text(name, theirs))
        for name in our_values
        if name in names | causes
    ]
    return sorted(found, key=lambda difference: not difference.prevents_forming)


def _values(plan: Plan) -> dict[str, object]:
    """The options of a plan by name, as the user writes them."""
    reliable = "/".join((str(plan.rho), exact_duration_text(plan.eta_ns), exact_duration_text(plan.omega_ns)))
    return {
        "gaps": plan.gaps,
        "deadline": exact_duration_text(plan.deadline_ns) if plan.deadline_ns else None,
        "order": _ORDERS.get(plan.order_key, "unknown"),
        "failures": plan.failures,
        "grades": plan.grades,
        "slot": exact_duration_text(plan.theta_ns),
        "delta": exact_duration_text(plan.delta_ns),
        "gamma": exact_duration_text(plan.gamma_ns),
        "loss_burst": plan.loss_burst,
        "fec": (plan.fec_redundant, plan.fec_shares) if plan.fec_shares else None,
        "reliable": reliable if plan.eta_ns else None,
        "max_message": plan.max_message,
        "peers": f"hash {plan.members_key:08x}",
    }


def _text(name: str, plan: Plan) -> str:
    """An option with its value, and the option that it was chosen by."""
    values = _values(plan)
    if name == "peers":
        return f"peers of the {values[name]}"
    text = f"{name}={values[name]!r}"
    if name in _CHOSEN_BY_GAPS and not plan.order_is_given:
        return f"{text} (chosen by gaps={plan.gaps!r})"
    if name == "slot" and not plan.slot_is_given and plan.deadline_ns:
        return f"{text} (chosen by deadline={values['deadline']!r})"
    return text


class PlanExchange:
    """The layer that exchanges plans with the peers and compares them."""

    name: ClassVar[str] = "plan"
    wraps: frozenset[Kind] = frozenset()
    opens = frozenset({Kind.PLAN})

    def __init__(self, policy: Policy, inputs: PlanInputs) -> None:
        self.down: list[Frame] = []
        self.up: list[Frame] = []
        self._policy, self._inputs = policy, inputs
        self._incarnations: dict[int, int] = dict.fromkeys(policy.neighbours, 0)
        """By peer, its incarnation according to its last PLAN; 0 if none has arrived."""
        self._proven_incarnations: dict[int, int] = {}
        """By peer, its incarnation according to its last proven PLAN."""
        self._next_send: int | None = 0 if self._incarnations else None
        self._last_reports: dict[int, tuple[int, int]] = {}
        """By peer, the incarnation and the time of the last report."""
        self._waiting_reports: dict[int, tuple[int, Violation]] = {}
        """By peer, the incarnation and the report that waits for the end of REPORT_INTERVAL_NS."""
        self.mismatches: dict[int, PlanMismatch] = {}
        """By peer, the difference because of which the group cannot form."""
        self.report: Callable[[Violation], None] = lambda _: None
        """Called with each difference for the application. The stack sets it."""
        self.slots_have_changed: Callable[[], bool] = lambda: False
        """Says whether the group has changed its slot length. The stack sets it."""

    def from_above(self, now: int, frame: Frame) -> None:
        """Pass the frame down unchanged: this layer wraps no frames."""
        self.down.append(frame)

    def from_below(self, now: int, frame: Frame) -> None:
        """Compare a peer's PLAN with ours if it is proven; answer it if the peer asks for that."""
        theirs, peer = message_in(frame, Plan), frame.sender
        if peer not in self._incarnations:
            return
        self._incarnations[peer] = frame.incarnation
        if theirs.known_incarnation == self._policy.incarnation:
            self._proven_incarnations[peer] = frame.incarnation
            self._compare(now, frame, theirs)
        elif self._next_send is None:
            self._next_send = now + SEND_INTERVAL_NS
        if theirs.wants_answer:
            self._send(now, peer)

    def _compare(self, now: int, frame: Frame, theirs: Plan) -> None:
        found = differences(self._plan(frame.sender), theirs)
        self.mismatches.pop(frame.sender, None)
        self._waiting_reports.pop(frame.sender, None)
        if found:
            self._on_differences(now, frame, found)

    def _on_differences(self, now: int, frame: Frame, found: list[PlanDifference]) -> None:
        peer, first = frame.sender, found[0]
        theirs, ours = (", ".join(texts) for texts in zip(*((d.their_text, d.our_text) for d in found), strict=True))
        text = f"member {peer} joined with {theirs}, this member with {ours}; give both the same"
        if first.prevents_forming:
            self.mismatches[peer] = PlanMismatch(peer, first.option, first.ours, first.theirs, text)
        incarnation, reported_ns = self._last_reports.get(peer, (None, 0))
        if incarnation == frame.incarnation:
            return
        violation = Violation(ViolationKind.POLICY_DIFFERS, text, peer)
        if incarnation is not None and now - reported_ns < REPORT_INTERVAL_NS:
            self._waiting_reports[peer] = frame.incarnation, violation
        else:
            self._report(now, peer, frame.incarnation, violation)

    def _report(self, now: int, peer: int, incarnation: int, violation: Violation) -> None:
        self._last_reports[peer] = incarnation, now
        self.report(violation)

    # -- sending and time --------------------------------------------------------------------------------------

    def wake(self, now: int) -> None:
        """Send our PLAN to the peers that we have no proven one of, and report what had to wait, if either is due."""
        for peer in [peer for peer in self._waiting_reports if self._report_at(peer) <= now]:
            self._report(now, peer, *self._waiting_reports.pop(peer))
        if self._next_send is None or now < self._next_send:
            return
        missing = [peer for peer in self._incarnations if self._needs_plan_of(peer)]
        self._next_send = now + SEND_INTERVAL_NS if missing else None
        for peer in missing:
            self._send(now, peer)

    def wake_at(self) -> int | None:
        """When the next PLAN or a waiting report is due, or None if neither is."""
        return earliest([self._next_send, *map(self._report_at, self._waiting_reports)])

    def _report_at(self, peer: int) -> int:
        return self._last_reports[peer][1] + REPORT_INTERVAL_NS

    def _needs_plan_of(self, peer: int) -> bool:
        """Whether this member has no proven PLAN of the last incarnation of a peer."""
        return self._proven_incarnations.get(peer) != self._incarnations[peer]

    def _plan(self, peer: int) -> Plan:
        known, wants_answer, changed = self._incarnations[peer], self._needs_plan_of(peer), self.slots_have_changed()
        return plan_of(self._policy, self._inputs, known, wants_answer=wants_answer, slots_changed=changed)

    def _send(self, now: int, to: int) -> None:
        policy, plan = self._policy, self._plan(to)
        self.down.append(control_frame(plan, policy.member, policy.incarnation, policy.epoch, sent_ns=now, to=to))

    def change_incarnation(self, policy: Policy) -> None:
        """Use a new incarnation of this member in all later frames."""
        self._policy = policy

    def counters(self) -> Mapping[str, int]:
        """The plan exchange has no counters: it reports differences as it finds them."""
        return {}
