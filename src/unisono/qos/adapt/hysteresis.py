"""Adaptation with hysteresis (paper 002 §3.2): hold the promise when the network does worse than promised, and spend
less when it does better.

A controller looks at one estimate per period. It raises as soon as the setting in force would not keep the promise
over the network as it surely is, and then to what would keep it over a worse one. It lowers only after many periods in
which a cheaper setting would have kept it over a worse network than any of them; if that proves too early, it waits
twice as long the next time. Between what raises and what lowers lies the margin, so an estimate that wavers around
either one does not make it swing, and a network that goes to and fro beyond the margin makes it wait ever longer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

from unisono.model.sla import Hysteresis
from unisono.qos.adapt.estimate import Estimate
from unisono.qos.adapt.mechanisms import Mechanism, Setting, cheapest

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
