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
from unisono.qos.adapt.hysteresis import CannotHold, Controller, SettingChange
from unisono.qos.adapt.mechanisms import FecMechanism, RedundancyMechanism, SlotLengthMechanism
from unisono.qos.plan.negotiation import Target
from unisono.qos.watch.sla import Finding, SlaStatus

DEPARTED_REQUEST_KEPT_NS = 30_000_000_000
"""So long the demand of a member that was given up is remembered."""
REDUNDANCY_SETTINGS = frozenset({"rho", "eta", "omega"})


class Adapter:
    """Turns estimates into demands, and everybody's demands into settings."""

    def __init__(self, policy: Policy, slas: SlaSet, checked_slas: Sequence[Sla], network_observer: str) -> None:
        """`network_watcher` is the layer whose collector watches the network.

        Raises SlaError for knobs that cannot be turned here.
        """
        self._policy = policy
        self._slas = tuple(checked_slas)
        window_ns = min(sla.window_ns for sla in checked_slas)
        self._estimator = Estimator(network_observer, window_ns, len(policy.view.members))
        self._controllers: dict[str, Controller[Any]] = {}
        """By the layer whose knobs are turned."""
        for knob in slas.adaptable_settings:
            layer, remedy, current = self._mechanism_for(knob, slas)
            if layer not in self._controllers:
                self._controllers[layer] = Controller(remedy, current, slas.hysteresis)
        self.declared = Settings(
            _rho_eta_omega(policy.reliable) if "rmcast" in self._controllers else None,
            policy.fec if "fec" in self._controllers else None,
            policy.timing.theta_ns if policy.order in self._controllers else None,
        )
        self.in_force = self.declared
        self._requests = dict.fromkeys(policy.view.members, self.declared)
        self._broken_layers: set[str] = set()
        self._ever_changed = False
        self._departed_since_ns: dict[int, int] = {}
        """By member that is not in the list any more, since when."""

    def _mechanism_for(self, setting: str, slas: SlaSet) -> tuple[str, Any, Any]:
        """The layer that a knob is of, what it is worth, and how it is set now."""
        policy = self._policy
        if policy.order != "vbr":
            raise slas.error("adaptation.knobs", f"settings are agreed on by the order vbr, not by {policy.order}")
        if setting in REDUNDANCY_SETTINGS:
            if policy.reliable is None:
                raise slas.error("adaptation.knobs", f"{setting} is reliable multicast's, which this stack is without")
            turned = REDUNDANCY_SETTINGS.intersection(slas.adaptable_settings)
            if "omega" in turned and "eta" not in turned:
                raise slas.error("adaptation.knobs", "omega follows eta, which is not among the knobs")
            copies = RedundancyMechanism(
                members=len(policy.view.members),
                promise=Target(slas.reliability, policy.timing.delta_ns),
                omega_per_eta=policy.reliable.omega_ns / policy.reliable.eta_ns,
                rho_most=max(policy.rho_most, policy.reliable.rho),
                declared=policy.reliable,
                may_change_rho="rho" in turned,
                may_change_eta="eta" in turned,
            )
            return "rmcast", copies, policy.reliable
        if setting == "fec":
            if policy.fec is None:
                raise slas.error("adaptation.knobs", "fec is not in this stack")
            a, b = policy.fec
            return "fec", FecMechanism(b - a, 1 - slas.reliability, max(policy.fec_most, a)), policy.fec
        promises = [sla for sla in self._slas if sla.metric == "latency"]
        if policy.failures or policy.reliable is not None or not promises:
            needs = "an SLA about latency, and neither failures nor reliable multicast"
            raise slas.error("adaptation.knobs", f"to adapt the slot needs {needs}")
        target = Target(min(sla.probability for sla in promises), min(int(sla.bound) for sla in promises))
        return policy.order, SlotLengthMechanism(target, policy.timing), policy.timing.theta_ns

    # -- what this member needs ------------------------------------------------------------------------------

    def on_violation(self, layer: str) -> Callable[[object], None]:
        """Who is told, for a layer, that a promise was not kept: its negotiation."""

        def told(event: object) -> None:
            if isinstance(event, SlaViolation):
                self._broken_layers.add(layer)

        return told

    def controls(self, layer: str) -> bool:
        """Whether a layer's knobs are turned here."""
        return layer in self._controllers

    def step(
        self, rows: Sequence[MetricRow], until_ns: int, findings: Sequence[Finding]
    ) -> tuple[Settings | None, list[Violation | Notice]]:
        """A collecting interval is over: what this member demands from now on if that changes, and what to tell."""
        estimate = self._estimator.add_rows(rows, until_ns)
        for finding in findings:
            if finding.status is SlaStatus.VIOLATED and finding.sla.provider in self._controllers:
                self._broken_layers.add(finding.sla.provider)
        return (None, []) if estimate is None else self.update(estimate)

    def update(self, estimate: Estimate) -> tuple[Settings | None, list[Violation | Notice]]:
        """What is demanded over such a network if that changes, and what to tell."""
        events: list[Violation | Notice] = []
        before = self.own_request()
        for layer, controller in self._controllers.items():
            # A promise of the network that was broken is in the estimate; one of the layer's own is not.
            own = any(sla.provider == layer for sla in self._slas)
            had = controller.current
            wanted = controller.step(estimate, promise_broken=own and layer in self._broken_layers)
            if isinstance(wanted, CannotHold) and wanted.possible_guarantee:
                events.append(self._cannot_hold_violation(layer, wanted))
            if wanted is not None and wanted.setting != had:
                events.append(self._request_notice(controller, wanted))
        self._broken_layers.clear()
        after = self.own_request()
        self._ever_changed = self._ever_changed or after != self.declared
        return (after if after != before else None), events

    def own_request(self) -> Settings:
        """What this member demands."""
        rmcast, fec, slot = (self._controllers.get(layer) for layer in ("rmcast", "fec", self._policy.order))
        return Settings(
            _rho_eta_omega(rmcast.current) if rmcast else None,
            fec.current if fec else None,
            slot.current if slot else None,
        )

    def _request_notice(self, controller: Controller[Any], wanted: SettingChange[Any] | CannotHold[Any]) -> Notice:
        raised = isinstance(wanted, CannotHold) or wanted.raised
        why = "needs" if raised else "can do with"
        text = f"member {self._policy.member} {why} {controller.mechanism.text(wanted.setting)}: {wanted.reason}"
        return Notice(NoticeKind.DEMAND, text, self._policy.member)

    def _cannot_hold_violation(self, layer: str, wanted: CannotHold[Any]) -> SlaViolation:
        names = [sla.name for sla in self._slas if layer in sla.informs or sla.provider == layer]
        text = f"{layer} cannot hold what was promised ({wanted.reason}); it can offer {wanted.possible_guarantee}"
        return SlaViolation(
            ViolationKind.CANNOT_HOLD,
            text,
            self._policy.member,
            sla=names[0] if names else "",
            offered=wanted.possible_guarantee,
        )

    # -- what all need ---------------------------------------------------------------------------------------

    @property
    def has_changed(self) -> bool:
        """Whether anything has ever been demanded here that was not declared."""
        return self._ever_changed or self.in_force != self.declared

    def on_request(self, sender: int, request: Settings) -> Settings | None:
        """Everybody has this demand now: the settings that follow, if they are others than before."""
        self._requests[sender] = request
        settings = strongest(self._requests.values())
        if settings == self.in_force:
            return None
        self.in_force = settings
        return settings

    def on_view(self, now: int, members: Sequence[int]) -> None:
        """Who is in the group now."""
        for member in self._requests:
            if member in members:
                self._departed_since_ns.pop(member, None)
            else:
                self._departed_since_ns.setdefault(member, now)

    def has_departed(self, member: int) -> bool:
        """Whether a member is not in the group any more."""
        return member in self._departed_since_ns

    def departed_with_request(self, now: int) -> list[int]:
        """Those who have left and still have a demand that counts: somebody has to say that they need nothing.

        Where members may fail, one that is gone may only have been given up for a moment: it is counted on for a while.
        """
        patience = DEPARTED_REQUEST_KEPT_NS if self._policy.failures else 0
        gone = (member for member, since in self._departed_since_ns.items() if now - since >= patience)
        return sorted(member for member in gone if self._requests[member] != self.declared)


def _rho_eta_omega(redundancy: Redundancy | None) -> tuple[int, int, int] | None:
    return None if redundancy is None else (redundancy.rho, redundancy.eta_ns, redundancy.omega_ns)
