"""One member's part in adapting the group (paper 002 §3.2): what it needs, and what follows from what all need.

Each member judges the links into it and demands the settings that they need. Demands travel in the group's own slots,
so that all go by each of them from the same slot on, and have what satisfies all demands: the strongest of each. Nobody
can lower what another one needs, and nobody decides alone. For who has left, the others say that it needs nothing any
more, in the same way: who is gone is no concern of the arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import log10
from typing import Any, Generic, Protocol, TypeVar

from unisono.model.durations import duration_text
from unisono.model.events import Notice, NoticeKind, SlaViolation, Violation, ViolationKind
from unisono.model.metrics import MetricRow
from unisono.model.policy import Policy
from unisono.model.redundancy import Redundancy
from unisono.model.settings import Settings, strongest
from unisono.model.sla import Hysteresis, Sla, SlaSet
from unisono.model.timing import Timing
from unisono.net.fec.layer import residual_loss
from unisono.qos.adapt.estimate import Estimate, Estimator
from unisono.qos.plan.negotiation import CounterOffer, Environment, Requirement, Target, meets, negotiate
from unisono.qos.plan.rmcast_model import FOREVER_NS, NetworkModel, reach_probability
from unisono.qos.watch.sla import Finding, SlaStatus

Setting = TypeVar("Setting")

RHO_MOST = 6
DELAY_SPREAD_SHARE = 0.95
"""Delays differ as much as their quantiles at this share and at the rest of it do."""
CANDIDATE_LENGTHS_NS = tuple(int(500_000 * 2 ** (step / 2)) for step in range(18))
"""Lengths of η and of slots that are tried, 0.5 ms to about 180 ms: each is √2 times the one before."""


class Mechanism(Protocol[Setting]):
    """One mechanism with its settings."""

    def keeps_promise(self, setting: Setting, estimate: Estimate) -> bool:
        """Whether the promise holds with this setting."""

    def cost(self, setting: Setting) -> float:
        """What it takes: datagrams per datagram, or per second."""

    def settings(self, estimate: Estimate | None = None) -> Iterator[Setting]:
        """All that can be tried, the cheapest first; with an estimate, what makes sense over such a network."""

    def best(self, estimate: Estimate) -> Setting:
        """The setting that comes nearest to the promise where none keeps it."""

    def possible_guarantee(self, estimate: Estimate) -> str:
        """What can be promised instead."""

    def text(self, setting: Setting) -> str:
        """In words."""


def cheapest(mechanism: Mechanism[Setting], estimate: Estimate) -> Setting | None:
    """The first setting that keeps the promise."""
    return next(
        (setting for setting in mechanism.settings(estimate) if mechanism.keeps_promise(setting, estimate)), None
    )


@dataclass(frozen=True, slots=True)
class RedundancyMechanism:
    """ρ, η and ω of reliable multicast: everybody has a message within D with probability R."""

    members: int
    promise: Target
    omega_per_eta: float = 1.0
    """ω in η."""
    rho_most: int = RHO_MOST
    declared: Redundancy | None = None
    """Where not all of ρ and η may be changed, those that may not."""
    may_change_rho: bool = True
    may_change_eta: bool = True

    def _environment(self, estimate: Estimate) -> Environment:
        return Environment(self.members, NetworkModel(estimate.delay_model, estimate.loss), rho_most=self.rho_most)

    def keeps_promise(self, setting: Redundancy, estimate: Estimate) -> bool:
        if not self._copies_suffice(setting.rho, estimate):
            return False  # not even whenever: no need to look at delays
        return meets(Requirement(self.promise), self._environment(estimate), setting)

    def _copies_suffice(self, rho: int, estimate: Estimate) -> bool:
        """Whether so many copies are enough against losses, whenever they come (002-11)."""
        reached: float = (1 - estimate.loss ** (rho + 1)) ** (self.members - 1)
        return reached >= self.promise.share

    def cost(self, setting: Redundancy) -> float:
        return setting.rho + 1

    def settings(self, estimate: Estimate | None = None) -> Iterator[Redundancy]:
        """Fewest copies first; of those the longest η, which makes the fewest needless takeovers.

        Copies are for losses. r_D takes their delays for independent, and so would have more and quicker copies outrun
        long delays too; but copies that follow each other wait in the same queue, and make it longer. So over a network
        as estimated there are no more of them than its losses need, and receivers wait for the next one at least
        as long as delays differ: else they would take over what is only late.
        """
        fixed, most, patience_ns = self.declared, self.rho_most, 0
        if estimate is not None:
            most = next((rho for rho in range(most) if self._copies_suffice(rho, estimate)), most)
            late, soon = (
                estimate.delay_model.quantile(share) for share in (DELAY_SPREAD_SHARE, 1 - DELAY_SPREAD_SHARE)
            )
            patience_ns = late - soon
        rhos = range(most + 1) if self.may_change_rho or fixed is None else (fixed.rho,)
        longest = self.promise.within_ns or CANDIDATE_LENGTHS_NS[-1]
        etas = [eta for eta in reversed(CANDIDATE_LENGTHS_NS) if eta <= longest] or [CANDIDATE_LENGTHS_NS[0]]
        etas = [eta for eta in etas if eta * (1 + self.omega_per_eta) >= patience_ns] or etas[:1]
        if fixed is not None and not self.may_change_eta:
            etas = [fixed.eta_ns]
        for rho in rhos:
            for eta_ns in etas:
                if rho * eta_ns <= longest:
                    yield Redundancy(rho, eta_ns, int(self.omega_per_eta * eta_ns))

    def best(self, estimate: Estimate) -> Redundancy:
        """What fails least often to reach everybody in time; of what is as good to a quarter, the cheapest."""
        network, within_ns = NetworkModel(estimate.delay_model, estimate.loss), self.promise.within_ns or FOREVER_NS

        def worth(setting: Redundancy) -> float:
            return -round(10 * log10(max(1 - reach_probability(self.members, network, setting, within_ns), 1e-12)))

        return max(self.settings(estimate), key=worth)

    def possible_guarantee(self, estimate: Estimate) -> str:
        answer = negotiate(Requirement(self.promise), self._environment(estimate))
        if isinstance(answer, CounterOffer):
            return "; or ".join(offer.text() for offer in answer.alternatives)
        return answer.guarantee.text()

    def text(self, setting: Redundancy) -> str:
        return setting.text()


@dataclass(frozen=True, slots=True)
class FecMechanism:
    """The strength a of forward error correction with blocks of k originals: few enough frames stay lost."""

    originals: int
    residual_loss_max: float
    """The share of frames that may stay lost."""
    redundant_max: int = 16

    def keeps_promise(self, setting: tuple[int, int], estimate: Estimate) -> bool:
        a, b = setting
        return estimate.loss_burst <= a and residual_loss(estimate.loss, a, b) <= self.residual_loss_max

    def cost(self, setting: tuple[int, int]) -> float:
        return setting[1] / (setting[1] - setting[0])

    def settings(self, estimate: Estimate | None = None) -> Iterator[tuple[int, int]]:
        for a in range(1, self.redundant_max + 1):
            yield a, self.originals + a

    def best(self, estimate: Estimate) -> tuple[int, int]:
        return self.redundant_max, self.originals + self.redundant_max

    def possible_guarantee(self, estimate: Estimate) -> str:
        a, b = self.best(estimate)
        return f"{residual_loss(estimate.loss, a, b):.3g} of the frames lost with {a} redundant of {b}"

    def text(self, setting: tuple[int, int]) -> str:
        return f"{setting[0]} redundant of {setting[1]} shares"


@dataclass(frozen=True, slots=True)
class SlotLengthMechanism:
    """Θ: what the network's delay and the clocks leave of the latency that was promised."""

    promise: Target
    timing: Timing
    shortest_ns: int = 1_000_000
    longest_ns: int = 50_000_000
    gamma_count: int = 1
    """How often Γ counts in the order's bound."""

    def _bound_ns(self, setting: int, estimate: Estimate) -> int:
        """The order's bound with what was measured in place of Δ and Γ."""
        return estimate.delay_model.quantile(self.promise.share) + self.gamma_count * estimate.gamma_ns + setting

    def keeps_promise(self, setting: int, estimate: Estimate) -> bool:
        return self.promise.within_ns is None or self._bound_ns(setting, estimate) <= self.promise.within_ns

    def cost(self, setting: int) -> float:
        return 1e9 / setting

    def settings(self, estimate: Estimate | None = None) -> Iterator[int]:
        for theta_ns in reversed(CANDIDATE_LENGTHS_NS):
            if self.shortest_ns <= theta_ns <= self.longest_ns:
                yield theta_ns

    def best(self, estimate: Estimate) -> int:
        return min(self.settings())

    def possible_guarantee(self, estimate: Estimate) -> str:
        bound = duration_text(self._bound_ns(self.best(estimate), estimate))
        return f"{self.promise.share:.6g} within {bound} with slots of {duration_text(self.best(estimate))}"

    def text(self, setting: int) -> str:
        return f"slots of {duration_text(setting)}"


MAX_WAIT_FACTOR = 64
"""Waiting before lowering is doubled up to this many times what was asked for."""
HALVE_WAIT_AFTER_WAITS = 64
"""After so many waits without a change, the wait is halved again: a network may have become another one."""


@dataclass(frozen=True, slots=True)
class SettingChange(Generic[Setting]):
    """A setting that is wanted in place of the one in force, and why."""

    setting: Setting
    raised: bool
    reason: str


@dataclass(frozen=True, slots=True)
class CannotHold(Generic[Setting]):
    """No setting keeps the promise over the network as it is: the best there is, and what can be promised instead."""

    setting: Setting
    possible_guarantee: str
    reason: str


class Controller(Generic[Setting]):
    """One remedy's."""

    def __init__(self, mechanism: Mechanism[Setting], current: Setting, hysteresis: Hysteresis) -> None:
        self.mechanism = mechanism
        self.current = current
        """The setting that this controller wants to be in force."""
        self.promise_held = True
        """Whether the promise is held; told to be so again only after some periods in which it was."""
        self._hysteresis = hysteresis
        self._lower_after_periods = hysteresis.lower_after
        self._periods_short = self._periods_kept = self._periods_calm = self._periods_unchanged = 0
        self._worst_estimate: Estimate | None = None
        self._was_lowered = self._failed_before = False

    def step(
        self, estimate: Estimate, promise_broken: bool = False
    ) -> SettingChange[Setting] | CannotHold[Setting] | None:
        """A period is over. `broken`: a promise of this mechanism was seen not to hold, whatever is computed."""
        self._periods_unchanged += 1
        if (
            self._periods_unchanged >= HALVE_WAIT_AFTER_WAITS * self._lower_after_periods
            and self._lower_after_periods > self._hysteresis.lower_after
        ):
            self._lower_after_periods, self._periods_unchanged = self._lower_after_periods // 2, 0
        if promise_broken or not self.mechanism.keeps_promise(self.current, estimate.with_certain_loss()):
            self._periods_kept = self._periods_calm = 0
            self._worst_estimate = None
            self._periods_short += 1
            return (
                self._raise(estimate, promise_broken) if self._periods_short >= self._hysteresis.raise_after else None
            )
        self._periods_short = 0
        self._periods_kept += 1
        self.promise_held = self.promise_held or self._periods_kept >= self._lower_after_periods
        return self._lower(estimate)

    def _raise(self, estimate: Estimate, promise_broken: bool) -> SettingChange[Setting] | CannotHold[Setting] | None:
        remedy = self.mechanism
        wanted = cheapest(remedy, estimate.with_margin(self._hysteresis.margin)) or cheapest(remedy, estimate)
        if promise_broken and wanted is not None and remedy.cost(wanted) <= remedy.cost(self.current):
            # The arithmetic says that there is enough, and there is not: one step more than there is.
            dearer = (s for s in remedy.settings() if remedy.cost(s) > remedy.cost(self.current))
            wanted = next((s for s in dearer if remedy.keeps_promise(s, estimate)), None)
        if wanted is None:
            return self._cannot_hold(estimate)
        if wanted == self.current:
            return None
        if self._was_lowered:
            # Lowering was too early, whether it shows at once or later.
            self._double_wait()
            self._was_lowered = False
        return self._changed(wanted, raised=True, reason=_describe(estimate))

    def _cannot_hold(self, estimate: Estimate) -> CannotHold[Setting] | None:
        """Told once, until the promise has been held again for a while."""
        best = self.mechanism.best(estimate)
        if self.mechanism.cost(best) < self.mechanism.cost(self.current):
            best = self.current  # less than there is never comes nearer
        known, self.promise_held = not self.promise_held, False
        if known and self.mechanism.cost(best) <= self.mechanism.cost(self.current):
            return None
        if not known:
            if self._failed_before:
                self._double_wait()
            self._failed_before = True
        self._changed(best, raised=True, reason="")
        return CannotHold(best, "" if known else self.mechanism.possible_guarantee(estimate), _describe(estimate))

    def _double_wait(self) -> None:
        self._lower_after_periods = min(2 * self._lower_after_periods, MAX_WAIT_FACTOR * self._hysteresis.lower_after)

    def _lower(self, estimate: Estimate) -> SettingChange[Setting] | None:
        worst = estimate if self._worst_estimate is None else self._worst_estimate.worst_of(estimate)
        wanted = cheapest(self.mechanism, worst.with_margin(self._hysteresis.margin))
        if wanted is None or self.mechanism.cost(wanted) >= self.mechanism.cost(self.current):
            # What was calm before may have been the quieter half of a network that is not.
            self._periods_calm, self._worst_estimate = 0, None
            return None
        self._periods_calm, self._worst_estimate = self._periods_calm + 1, worst
        if self._periods_calm < self._lower_after_periods:
            return None
        self._was_lowered = True
        return self._changed(wanted, raised=False, reason=_describe(worst))

    def _changed(self, setting: Setting, *, raised: bool, reason: str) -> SettingChange[Setting]:
        self._periods_short = self._periods_calm = self._periods_unchanged = 0
        self._worst_estimate = None
        self.current = setting
        return SettingChange(setting, raised, reason)


def _describe(estimate: Estimate) -> str:
    delay = estimate.delays.quantile(0.99) / 1e6
    return f"loss {estimate.loss:.4g}, at most {estimate.loss_burst} in a row, 99 % of delays within {delay:.3g}ms"


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
