"""Adaptation with hysteresis: keep promises on a worse network, and save cost on a better one (paper 002 §3.2).

Three parts, from bottom to top:

- A *mechanism* (`RedundancyMechanism`, `FecMechanism`, `SlotLengthMechanism`) knows the settings of one layer: whether
  a setting keeps the promise on an estimated network, what it costs, and what can be guaranteed if no setting keeps it.
  Settings are few and far apart, so small changes of an estimate change nothing.
- A `Controller` looks at one estimate per period and chooses a setting of one mechanism. It raises the setting as soon
  as the current one would surely break the promise, and adds a margin. It lowers the setting only after many periods in
  which a cheaper one would have been enough with that margin. If lowering was too early, it waits twice as long the
  next time. Because of the margin, an estimate that varies a little does not move the setting up and down.
- An `Adapter` does this for one member and combines the requests of all members. Each member requests the settings that
  its incoming links need. Requests are ordered in the group's slots, so all members apply each one from the same slot
  on. The strongest request wins, so no member can weaken the settings that another one needs. The remaining members
  withdraw the request of a departed member in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import log10
from typing import Any, Generic, Protocol, TypeVar

from unisono.model.events import Notice, NoticeKind, SlaViolation, Violation, ViolationKind
from unisono.model.policy import Policy, Redundancy, Settings, strongest
from unisono.model.sla import Hysteresis, MetricRow, Sla, SlaSet
from unisono.model.timing import Timing
from unisono.model.units import duration_text
from unisono.net.fec.layer import residual_loss
from unisono.qos.adapt.estimate import Estimate, Estimator
from unisono.qos.plan.negotiation import CounterOffer, Environment, Requirement, Target, meets, negotiate
from unisono.qos.plan.rmcast_model import FOREVER_NS, NetworkModel, reach_probability
from unisono.qos.watch.sla_evaluation import Finding, SlaStatus

Setting = TypeVar("Setting")

RHO_MOST = 6
DELAY_SPREAD_SHARE = 0.95
"""The spread of delays is the difference between the quantiles at this share and at 1 minus this share."""
CANDIDATE_LENGTHS_NS = tuple(int(500_000 * 2 ** (step / 2)) for step in range(18))
"""Lengths of η and of slots to try: 0.5 ms to about 180 ms, each √2 times the one before."""


class Mechanism(Protocol[Setting]):
    """A mechanism that adaptation can adjust: its settings, their cost, and whether they keep a promise."""

    def keeps_promise(self, setting: Setting, estimate: Estimate) -> bool:
        """Whether this setting keeps the promise on the estimated network."""

    def cost(self, setting: Setting) -> float:
        """The cost of a setting, to compare settings: datagrams sent per datagram to deliver, or per second."""

    def settings(self, estimate: Estimate | None = None) -> Iterator[Setting]:
        """All settings to try, cheapest first; with an estimate, only those that make sense on that network."""

    def best(self, estimate: Estimate) -> Setting:
        """The setting that comes closest to the promise, for a network on which no setting keeps it."""

    def possible_guarantee(self, estimate: Estimate) -> str:
        """What the mechanism can guarantee on a network on which no setting keeps the promise, in words."""

    def text(self, setting: Setting) -> str:
        """The setting in words."""


def cheapest(mechanism: Mechanism[Setting], estimate: Estimate) -> Setting | None:
    """The cheapest setting of a mechanism that keeps the promise on the estimated network; None if none does."""
    return next(
        (setting for setting in mechanism.settings(estimate) if mechanism.keeps_promise(setting, estimate)), None
    )


@dataclass(frozen=True, slots=True)
class RedundancyMechanism:
    """Adjusts ρ, η and ω of reliable multicast. The promise: all members get a message within D with probability R."""

    members: int
    promise: Target
    omega_per_eta: float = 1.0
    """ω as a multiple of η."""
    rho_most: int = RHO_MOST
    declared: Redundancy | None = None
    """The declared redundancy. Its ρ or η is used if adaptation may not change that value."""
    may_change_rho: bool = True
    may_change_eta: bool = True

    def _environment(self, estimate: Estimate) -> Environment:
        return Environment(self.members, NetworkModel(estimate.delay_model, estimate.loss), rho_most=self.rho_most)

    def keeps_promise(self, setting: Redundancy, estimate: Estimate) -> bool:
        if not self._copies_suffice(setting.rho, estimate):
            return False  # not even eventually, so delays do not matter
        return meets(Requirement(self.promise), self._environment(estimate), setting)

    def _copies_suffice(self, rho: int, estimate: Estimate) -> bool:
        """Whether ρ+1 copies are enough against losses, without a time limit (erratum 002-11)."""
        reached: float = (1 - estimate.loss ** (rho + 1)) ** (self.members - 1)
        return reached >= self.promise.share

    def cost(self, setting: Redundancy) -> float:
        return setting.rho + 1

    def settings(self, estimate: Estimate | None = None) -> Iterator[Redundancy]:
        """The settings to try: fewest copies first, then the longest η, which causes the fewest unnecessary take-overs.

        Copies protect against losses. The formula of r_D assumes independent delays, so it predicts that more and
        faster copies also help against long delays. In reality copies wait in the same queue and make it longer. An
        estimate therefore limits the settings: no more copies than its losses need, and η + ω no shorter than the
        spread of its delays, because receivers would otherwise take over messages that are only late.
        """
        fixed, rho_most, delay_spread_ns = self.declared, self.rho_most, 0
        if estimate is not None:
            rho_most = next((rho for rho in range(rho_most) if self._copies_suffice(rho, estimate)), rho_most)
            late, soon = (
                estimate.delay_model.quantile(share) for share in (DELAY_SPREAD_SHARE, 1 - DELAY_SPREAD_SHARE)
            )
            delay_spread_ns = late - soon
        rhos = range(rho_most + 1) if self.may_change_rho or fixed is None else (fixed.rho,)
        longest = self.promise.within_ns or CANDIDATE_LENGTHS_NS[-1]
        etas = [eta for eta in reversed(CANDIDATE_LENGTHS_NS) if eta <= longest] or [CANDIDATE_LENGTHS_NS[0]]
        etas = [eta for eta in etas if eta * (1 + self.omega_per_eta) >= delay_spread_ns] or etas[:1]
        if fixed is not None and not self.may_change_eta:
            etas = [fixed.eta_ns]
        for rho in rhos:
            for eta_ns in etas:
                if rho * eta_ns <= longest:
                    yield Redundancy.of_ns(rho, eta_ns, int(self.omega_per_eta * eta_ns))

    def best(self, estimate: Estimate) -> Redundancy:
        """The setting with the lowest probability that a message misses a member.

        Probabilities that are equal when rounded to a decibel count as equal; of these settings, the cheapest.
        """
        network, within_ns = NetworkModel(estimate.delay_model, estimate.loss), self.promise.within_ns or FOREVER_NS

        def decibels(setting: Redundancy) -> float:
            return -round(10 * log10(max(1 - reach_probability(self.members, network, setting, within_ns), 1e-12)))

        return max(self.settings(estimate), key=decibels)

    def possible_guarantee(self, estimate: Estimate) -> str:
        answer = negotiate(Requirement(self.promise), self._environment(estimate))
        if isinstance(answer, CounterOffer):
            return "; or ".join(offer.text() for offer in answer.alternatives)
        return answer.guarantee.text()

    def text(self, setting: Redundancy) -> str:
        return setting.text()


@dataclass(frozen=True, slots=True)
class FecMechanism:
    """Adjusts the redundant shares of forward error correction. The promise: few frames stay lost."""

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
    """Adjusts the slot length Θ. An SLA promises a latency; Θ may use what network delay and clock difference leave."""

    promise: Target
    timing: Timing
    shortest_ns: int = 1_000_000
    longest_ns: int = 50_000_000
    gamma_count: int = 1
    """How many times Γ occurs in the order's bound."""

    def _bound_ns(self, setting: int, estimate: Estimate) -> int:
        """The order's latency bound with this slot length and the measured Δ and Γ."""
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
"""The wait before a setting is lowered grows to at most this many times `lower_after`."""
HALVE_WAIT_AFTER_WAITS = 64
"""After this many waits without a change of the setting, the wait before lowering it is halved."""


@dataclass(frozen=True, slots=True)
class SettingChange(Generic[Setting]):
    """A controller's decision: the new setting to request, and the reason."""

    setting: Setting
    raised: bool
    reason: str


@dataclass(frozen=True, slots=True)
class CannotHold(Generic[Setting]):
    """A controller's report that no setting keeps the promise: the best setting, and what it can guarantee."""

    setting: Setting
    possible_guarantee: str
    reason: str


class Controller(Generic[Setting]):
    """Chooses the setting of one mechanism, from one estimate of the network per period."""

    def __init__(self, mechanism: Mechanism[Setting], current: Setting, hysteresis: Hysteresis) -> None:
        self.mechanism = mechanism
        self.current = current
        """The setting that this controller currently wants."""
        self.promise_held = True
        """Whether the promise is kept; true again only after it was kept for some periods."""
        self._hysteresis = hysteresis
        self._lower_after_periods = hysteresis.lower_after
        self._periods_short = self._periods_kept = self._periods_calm = self._periods_unchanged = 0
        self._worst_estimate: Estimate | None = None
        self._was_lowered = self._failed_before = False

    def step(
        self, estimate: Estimate, promise_broken: bool = False
    ) -> SettingChange[Setting] | CannotHold[Setting] | None:
        """Process the estimate of one period. `promise_broken` means that measurements show a broken promise."""
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
        mechanism = self.mechanism
        wanted = cheapest(mechanism, estimate.with_margin(self._hysteresis.margin)) or cheapest(mechanism, estimate)
        if promise_broken and wanted is not None and mechanism.cost(wanted) <= mechanism.cost(self.current):
            # The formulas say that the current setting is enough, but measurements disagree: use a stronger one.
            stronger = (s for s in mechanism.settings() if mechanism.cost(s) > mechanism.cost(self.current))
            wanted = next((s for s in stronger if mechanism.keeps_promise(s, estimate)), None)
        if wanted is None:
            return self._cannot_hold(estimate)
        if wanted == self.current:
            return None
        if self._was_lowered:
            # The last lowering was too early.
            self._double_wait()
            self._was_lowered = False
        return self._changed(wanted, raised=True, reason=_describe(estimate))

    def _cannot_hold(self, estimate: Estimate) -> CannotHold[Setting] | None:
        """Report that no setting keeps the promise: once, until the promise has been kept again for a while."""
        best = self.mechanism.best(estimate)
        if self.mechanism.cost(best) < self.mechanism.cost(self.current):
            best = self.current  # a weaker setting is never closer to the promise
        already_reported, self.promise_held = not self.promise_held, False
        if already_reported and self.mechanism.cost(best) <= self.mechanism.cost(self.current):
            return None
        if not already_reported:
            if self._failed_before:
                self._double_wait()
            self._failed_before = True
        self._changed(best, raised=True, reason="")
        return CannotHold(
            best, "" if already_reported else self.mechanism.possible_guarantee(estimate), _describe(estimate)
        )

    def _double_wait(self) -> None:
        self._lower_after_periods = min(2 * self._lower_after_periods, MAX_WAIT_FACTOR * self._hysteresis.lower_after)

    def _lower(self, estimate: Estimate) -> SettingChange[Setting] | None:
        worst = estimate if self._worst_estimate is None else self._worst_estimate.worst_of(estimate)
        wanted = cheapest(self.mechanism, worst.with_margin(self._hysteresis.margin))
        if wanted is None or self.mechanism.cost(wanted) >= self.mechanism.cost(self.current):
            # The network may alternate between good and bad phases: count the good periods from zero again.
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
"""Keep the request of a departed member for this long if members may fail: it may return."""
REDUNDANCY_SETTINGS = frozenset({"rho", "eta", "omega"})


class Adapter:
    """Turns estimates into this member's requests, and the requests of all members into settings."""

    def __init__(self, policy: Policy, slas: SlaSet, checked_slas: Sequence[Sla], network_observer: str) -> None:
        """`network_observer` is the layer directly above the network, which measures it.

        Raises SlaError for settings that cannot be adapted here.
        """
        self._policy = policy
        self._slas = tuple(checked_slas)
        window_ns = min(sla.window_ns for sla in checked_slas)
        self._estimator = Estimator(network_observer, window_ns, len(policy.view.members))
        self._controllers: dict[str, Controller[Any]] = {}
        """The controller of each layer whose settings are adapted, by the layer's name."""
        for setting in slas.adaptable_settings:
            layer, mechanism, current = self._mechanism_for(setting, slas)
            if layer not in self._controllers:
                self._controllers[layer] = Controller(mechanism, current, slas.hysteresis)
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
        """Departed members, and the time at which each was first missing from the group."""

    def _mechanism_for(self, setting: str, slas: SlaSet) -> tuple[str, Any, Any]:
        """The layer that has this setting, its mechanism, and its current value."""
        policy = self._policy
        if policy.order != "vbr":
            raise slas.error(
                "adaptation.knobs", f"only the order vbr can change settings while it runs, not {policy.order}"
            )
        if setting in REDUNDANCY_SETTINGS:
            if policy.reliable is None:
                raise slas.error(
                    "adaptation.knobs", f"{setting} is a setting of reliable multicast, which this stack does not use"
                )
            adapted = REDUNDANCY_SETTINGS.intersection(slas.adaptable_settings)
            if "omega" in adapted and "eta" not in adapted:
                raise slas.error(
                    "adaptation.knobs", "omega follows eta, so adapting omega needs eta among the knobs too; add eta"
                )
            redundancy = RedundancyMechanism(
                members=len(policy.view.members),
                promise=Target(slas.reliability, policy.timing.delta_ns),
                omega_per_eta=policy.reliable.omega_ns / policy.reliable.eta_ns,
                rho_most=max(policy.rho_most, policy.reliable.rho),
                declared=policy.reliable,
                may_change_rho="rho" in adapted,
                may_change_eta="eta" in adapted,
            )
            return "rmcast", redundancy, policy.reliable
        if setting == "fec":
            if policy.fec is None:
                raise slas.error("adaptation.knobs", "fec is a setting of the fec layer, which this stack does not use")
            a, b = policy.fec
            return "fec", FecMechanism(b - a, 1 - slas.reliability, max(policy.fec_most, a)), policy.fec
        promises = [sla for sla in self._slas if sla.metric == "latency"]
        if policy.failures or policy.reliable is not None or not promises:
            needs = "an SLA about latency, and a stack without failures and without reliable multicast"
            raise slas.error("adaptation.knobs", f"adapting the slot length needs {needs}")
        target = Target(min(sla.probability for sla in promises), min(int(sla.bound) for sla in promises))
        return policy.order, SlotLengthMechanism(target, policy.timing), policy.timing.theta_ns

    # -- requests of this member -----------------------------------------------------------------------------

    def on_violation(self, layer: str) -> Callable[[object], None]:
        """A listener for violations, which counts each one as a promise broken by `layer`."""

        def record(event: object) -> None:
            if isinstance(event, SlaViolation):
                self._broken_layers.add(layer)

        return record

    def step(
        self, rows: Sequence[MetricRow], until_ns: int, findings: Sequence[Finding]
    ) -> tuple[Settings | None, list[Violation | Notice]]:
        """Process the metric rows of a collecting interval.

        Return this member's new request, or None if it stays the same, and the events to publish.
        """
        estimate = self._estimator.add_rows(rows, until_ns)
        for finding in findings:
            if finding.status is SlaStatus.VIOLATED and finding.sla.provider in self._controllers:
                self._broken_layers.add(finding.sla.provider)
        return (None, []) if estimate is None else self.update(estimate)

    def update(self, estimate: Estimate) -> tuple[Settings | None, list[Violation | Notice]]:
        """Process an estimate.

        Return this member's new request, or None if it stays the same, and the events to publish.
        """
        events: list[Violation | Notice] = []
        before = self.own_request()
        for layer, controller in self._controllers.items():
            # The estimate already shows when the network breaks an SLA. Only an SLA of this layer adds information.
            has_own_sla = any(sla.provider == layer for sla in self._slas)
            before_step = controller.current
            wanted = controller.step(estimate, promise_broken=has_own_sla and layer in self._broken_layers)
            if isinstance(wanted, CannotHold) and wanted.possible_guarantee:
                events.append(self._cannot_hold_violation(layer, wanted))
            if wanted is not None and wanted.setting != before_step:
                events.append(self._request_notice(controller, wanted))
        self._broken_layers.clear()
        after = self.own_request()
        self._ever_changed = self._ever_changed or after != self.declared
        return (after if after != before else None), events

    def own_request(self) -> Settings:
        """The settings that this member requests."""
        rmcast, fec, slot = (self._controllers.get(layer) for layer in ("rmcast", "fec", self._policy.order))
        return Settings(
            _rho_eta_omega(rmcast.current) if rmcast else None,
            fec.current if fec else None,
            slot.current if slot else None,
        )

    def _request_notice(self, controller: Controller[Any], wanted: SettingChange[Any] | CannotHold[Any]) -> Notice:
        raised = isinstance(wanted, CannotHold) or wanted.raised
        verb = "needs" if raised else "needs only"
        text = f"member {self._policy.member} {verb} {controller.mechanism.text(wanted.setting)}: {wanted.reason}"
        return Notice(NoticeKind.DEMAND, text, self._policy.member)

    def _cannot_hold_violation(self, layer: str, wanted: CannotHold[Any]) -> SlaViolation:
        names = [sla.name for sla in self._slas if layer in sla.informs or sla.provider == layer]
        text = f"{layer} cannot keep its promise ({wanted.reason}); it can guarantee {wanted.possible_guarantee}"
        return SlaViolation(
            ViolationKind.CANNOT_HOLD,
            text,
            self._policy.member,
            sla=names[0] if names else "",
            offered=wanted.possible_guarantee,
        )

    # -- requests of all members -----------------------------------------------------------------------------

    @property
    def has_changed(self) -> bool:
        """Whether any requested settings ever differed from the declared ones."""
        return self._ever_changed or self.in_force != self.declared

    def on_request(self, sender: int, request: Settings) -> Settings | None:
        """Add a request that all members have now. Return the group's new settings, or None if they stay the same."""
        self._requests[sender] = request
        settings = strongest(self._requests.values())
        if settings == self.in_force:
            return None
        self.in_force = settings
        return settings

    def on_view(self, now: int, members: Sequence[int]) -> None:
        """Record the members of the group, which have changed."""
        for member in self._requests:
            if member in members:
                self._departed_since_ns.pop(member, None)
            else:
                self._departed_since_ns.setdefault(member, now)

    def has_departed(self, member: int) -> bool:
        """Whether a member has left the group."""
        return member in self._departed_since_ns

    def departed_with_request(self, now: int) -> list[int]:
        """Departed members whose request still counts and is to be withdrawn.

        If members may fail, a departed member may be back soon, so its request stays for a while.
        """
        patience = DEPARTED_REQUEST_KEPT_NS if self._policy.failures else 0
        departed = (member for member, since in self._departed_since_ns.items() if now - since >= patience)
        return sorted(member for member in departed if self._requests[member] != self.declared)


def _rho_eta_omega(redundancy: Redundancy | None) -> tuple[int, int, int] | None:
    return None if redundancy is None else (redundancy.rho, redundancy.eta_ns, redundancy.omega_ns)
