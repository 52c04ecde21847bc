"""One member's part in adapting the group (paper 002 §3.2): what it needs, and what follows from what all need.

Each member judges the links into it and demands the settings that they need. Demands travel in the group's own slots,
so that all go by each of them from the same slot on, and have what satisfies all demands: the strongest of each. Nobody
can lower what another one needs, and nobody decides alone. For who has left, the others say that it needs nothing any
more, in the same way: who is gone is no concern of the arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from unisono.model.events import Notice, NoticeKind, SlaViolation, Violation, ViolationKind
from unisono.model.metrics import MetricRow
from unisono.model.policy import Policy
from unisono.model.redundancy import Redundancy
from unisono.model.settings import Settings, strongest
from unisono.model.sla import Sla, SlaSet
from unisono.qos.adapt.estimate import Estimate, Estimator
from unisono.qos.adapt.hysteresis import CannotHold, Change, Controller
from unisono.qos.adapt.mechanisms import Copies, Shares, SlotLength
from unisono.qos.plan.negotiation import Target
from unisono.qos.watch.sla import Finding, Kept

GONE_NS = 30_000_000_000
"""So long the demand of a member that was given up is remembered."""
COPY_KNOBS = frozenset({"rho", "eta", "omega"})


class Adapter:
    """Turns estimates into demands, and everybody's demands into settings."""

    def __init__(self, policy: Policy, slas: SlaSet, agreed: Sequence[Sla], network_watcher: str) -> None:
        """`network_watcher` is the layer whose collector watches the network.

        Raises SlaError for knobs that cannot be turned here.
        """
        self._policy = policy
        self._agreed = tuple(agreed)
        window_ns = min(sla.window_ns for sla in agreed)
        self._estimator = Estimator(network_watcher, window_ns, len(policy.view.members))
        self._controllers: dict[str, Controller[Any]] = {}
        """By the layer whose knobs are turned."""
        for knob in slas.adapt:
            layer, remedy, current = self._mechanism(knob, slas)
            if layer not in self._controllers:
                self._controllers[layer] = Controller(remedy, current, slas.hysteresis)
        self.declared = Settings(
            _of(policy.reliable) if "rmcast" in self._controllers else None,
            policy.fec if "fec" in self._controllers else None,
            policy.timing.theta_ns if policy.order in self._controllers else None,
        )
        self.in_force = self.declared
        self._demands = dict.fromkeys(policy.view.members, self.declared)
        self._broken: set[str] = set()
        self._changed = False
        self._gone: dict[int, int] = {}
        """By member that is not in the list any more, since when."""

    def _mechanism(self, knob: str, slas: SlaSet) -> tuple[str, Any, Any]:
        """The layer that a knob is of, what it is worth, and how it is set now."""
        policy = self._policy
        if policy.order != "vbr":
            raise slas.error("adaptation.knobs", f"settings are agreed on by the order vbr, not by {policy.order}")
        if knob in COPY_KNOBS:
            if policy.reliable is None:
                raise slas.error("adaptation.knobs", f"{knob} is reliable multicast's, which this stack is without")
            turned = COPY_KNOBS.intersection(slas.adapt)
            if "omega" in turned and "eta" not in turned:
                raise slas.error("adaptation.knobs", "omega follows eta, which is not among the knobs")
            copies = Copies(
                members=len(policy.view.members),
                promise=Target(slas.reliability, policy.timing.delta_ns),
                patience=policy.reliable.omega_ns / policy.reliable.eta_ns,
                rho_most=max(policy.rho_most, policy.reliable.rho),
                fixed=policy.reliable,
                turn_rho="rho" in turned,
                turn_eta="eta" in turned,
            )
            return "rmcast", copies, policy.reliable
        if knob == "fec":
            if policy.fec is None:
                raise slas.error("adaptation.knobs", "fec is not in this stack")
            a, b = policy.fec
            return "fec", Shares(b - a, 1 - slas.reliability, max(policy.fec_most, a)), policy.fec
        promises = [sla for sla in self._agreed if sla.metric == "latency"]
        if policy.failures or policy.reliable is not None or not promises:
            needs = "an SLA about latency, and neither failures nor reliable multicast"
            raise slas.error("adaptation.knobs", f"to adapt the slot needs {needs}")
        target = Target(min(sla.probability for sla in promises), min(int(sla.bound) for sla in promises))
        return policy.order, SlotLength(target, policy.timing), policy.timing.theta_ns

    # -- what this member needs ------------------------------------------------------------------------------

    def informed(self, layer: str) -> Callable[[object], None]:
        """Who is told, for a layer, that a promise was not kept: its negotiation."""

        def told(event: object) -> None:
            if isinstance(event, SlaViolation):
                self._broken.add(layer)

        return told

    def turns(self, layer: str) -> bool:
        """Whether a layer's knobs are turned here."""
        return layer in self._controllers

    def step(
        self, rows: Sequence[MetricRow], until_ns: int, findings: Sequence[Finding]
    ) -> tuple[Settings | None, list[Violation | Notice]]:
        """A collecting interval is over: what this member demands from now on if that changes, and what to tell."""
        estimate = self._estimator.take(rows, until_ns)
        for finding in findings:
            if finding.kept is Kept.VIOLATED and finding.sla.provider in self._controllers:
                self._broken.add(finding.sla.provider)
        return (None, []) if estimate is None else self.consider(estimate)

    def consider(self, estimate: Estimate) -> tuple[Settings | None, list[Violation | Notice]]:
        """What is demanded over such a network if that changes, and what to tell."""
        events: list[Violation | Notice] = []
        before = self.wanted()
        for layer, controller in self._controllers.items():
            # A promise of the network that was broken is in the estimate; one of the layer's own is not.
            own = any(sla.provider == layer for sla in self._agreed)
            had = controller.current
            wanted = controller.step(estimate, broken=own and layer in self._broken)
            if isinstance(wanted, CannotHold) and wanted.offered:
                events.append(self._cannot(layer, wanted))
            if wanted is not None and wanted.setting != had:
                events.append(self._needs(controller, wanted))
        self._broken.clear()
        after = self.wanted()
        self._changed = self._changed or after != self.declared
        return (after if after != before else None), events

    def wanted(self) -> Settings:
        """What this member demands."""
        rmcast, fec, slot = (self._controllers.get(layer) for layer in ("rmcast", "fec", self._policy.order))
        return Settings(
            _of(rmcast.current) if rmcast else None, fec.current if fec else None, slot.current if slot else None
        )

    def _needs(self, controller: Controller[Any], wanted: Change[Any] | CannotHold[Any]) -> Notice:
        raised = isinstance(wanted, CannotHold) or wanted.raised
        why = "needs" if raised else "can do with"
        text = f"member {self._policy.member} {why} {controller.remedy.text(wanted.setting)}: {wanted.why}"
        return Notice(NoticeKind.DEMAND, text, self._policy.member)

    def _cannot(self, layer: str, wanted: CannotHold[Any]) -> SlaViolation:
        names = [sla.name for sla in self._agreed if layer in sla.informs or sla.provider == layer]
        text = f"{layer} cannot hold what was promised ({wanted.why}); it can offer {wanted.offered}"
        return SlaViolation(
            ViolationKind.CANNOT_HOLD, text, self._policy.member, sla=names[0] if names else "", offered=wanted.offered
        )

    # -- what all need ---------------------------------------------------------------------------------------

    @property
    def changed(self) -> bool:
        """Whether anything has ever been demanded here that was not declared."""
        return self._changed or self.in_force != self.declared

    def demanded(self, sender: int, demand: Settings) -> Settings | None:
        """Everybody has this demand now: the settings that follow, if they are others than before."""
        self._demands[sender] = demand
        settings = strongest(self._demands.values())
        if settings == self.in_force:
            return None
        self.in_force = settings
        return settings

    def view(self, now: int, members: Sequence[int]) -> None:
        """Who is in the group now."""
        for member in self._demands:
            if member in members:
                self._gone.pop(member, None)
            else:
                self._gone.setdefault(member, now)

    def gone(self, member: int) -> bool:
        """Whether a member is not in the group any more."""
        return member in self._gone

    def left(self, now: int) -> list[int]:
        """Those who have left and still have a demand that counts: somebody has to say that they need nothing.

        Where members may fail, one that is gone may only have been given up for a moment: it is counted on for a while.
        """
        patience = GONE_NS if self._policy.failures else 0
        gone = (member for member, since in self._gone.items() if now - since >= patience)
        return sorted(member for member in gone if self._demands[member] != self.declared)


def _of(redundancy: Redundancy | None) -> tuple[int, int, int] | None:
    return None if redundancy is None else (redundancy.rho, redundancy.eta_ns, redundancy.omega_ns)
