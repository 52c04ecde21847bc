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
from unisono.qos.adapt.mechanisms import Remedy, Setting, cheapest

LONGEST_WAIT = 64
"""Waiting before lowering is doubled up to this many times what was asked for."""
FORGET = 64
"""After so many waits without a change, the wait is halved again: a network may have become another one."""


@dataclass(frozen=True, slots=True)
class Change(Generic[Setting]):
    """A setting that is wanted in place of the one in force, and why."""

    setting: Setting
    raised: bool
    why: str


@dataclass(frozen=True, slots=True)
class CannotHold(Generic[Setting]):
    """No setting keeps the promise over the network as it is: the best there is, and what can be promised instead."""

    setting: Setting
    offered: str
    why: str


class Controller(Generic[Setting]):
    """One remedy's."""

    def __init__(self, remedy: Remedy[Setting], current: Setting, hysteresis: Hysteresis) -> None:
        self.remedy = remedy
        self.current = current
        """The setting that this controller wants to be in force."""
        self.holding = True
        """Whether the promise is held; told to be so again only after some periods in which it was."""
        self._hysteresis = hysteresis
        self._wait = hysteresis.lower_after
        self._short = self._kept = self._calm = self._unchanged = 0
        self._worst: Estimate | None = None
        self._lowered = self._gave_in = False

    def step(self, estimate: Estimate, broken: bool = False) -> Change[Setting] | CannotHold[Setting] | None:
        """A period is over. `broken`: a promise of this mechanism was seen not to hold, whatever is computed."""
        self._unchanged += 1
        if self._unchanged >= FORGET * self._wait and self._wait > self._hysteresis.lower_after:
            self._wait, self._unchanged = self._wait // 2, 0
        if broken or not self.remedy.keeps(self.current, estimate.surely()):
            self._kept = self._calm = 0
            self._worst = None
            self._short += 1
            return self._raise(estimate, broken) if self._short >= self._hysteresis.raise_after else None
        self._short = 0
        self._kept += 1
        self.holding = self.holding or self._kept >= self._wait
        return self._lower(estimate)

    def _raise(self, estimate: Estimate, broken: bool) -> Change[Setting] | CannotHold[Setting] | None:
        remedy = self.remedy
        wanted = cheapest(remedy, estimate.with_margin(self._hysteresis.margin)) or cheapest(remedy, estimate)
        if broken and wanted is not None and remedy.cost(wanted) <= remedy.cost(self.current):
            # The arithmetic says that there is enough, and there is not: one step more than there is.
            dearer = (s for s in remedy.settings() if remedy.cost(s) > remedy.cost(self.current))
            wanted = next((s for s in dearer if remedy.keeps(s, estimate)), None)
        if wanted is None:
            return self._give_in(estimate)
        if wanted == self.current:
            return None
        if self._lowered:
            # Lowering was too early, whether it shows at once or later.
            self._wait_longer()
            self._lowered = False
        return self._changed(wanted, raised=True, why=_seen(estimate))

    def _give_in(self, estimate: Estimate) -> CannotHold[Setting] | None:
        """Told once, until the promise has been held again for a while."""
        best = self.remedy.best(estimate)
        if self.remedy.cost(best) < self.remedy.cost(self.current):
            best = self.current  # less than there is never comes nearer
        known, self.holding = not self.holding, False
        if known and self.remedy.cost(best) <= self.remedy.cost(self.current):
            return None
        if not known:
            if self._gave_in:
                self._wait_longer()
            self._gave_in = True
        self._changed(best, raised=True, why="")
        return CannotHold(best, "" if known else self.remedy.offer(estimate), _seen(estimate))

    def _wait_longer(self) -> None:
        self._wait = min(2 * self._wait, LONGEST_WAIT * self._hysteresis.lower_after)

    def _lower(self, estimate: Estimate) -> Change[Setting] | None:
        worst = estimate if self._worst is None else self._worst.worse(estimate)
        wanted = cheapest(self.remedy, worst.with_margin(self._hysteresis.margin))
        if wanted is None or self.remedy.cost(wanted) >= self.remedy.cost(self.current):
            # What was calm before may have been the quieter half of a network that is not.
            self._calm, self._worst = 0, None
            return None
        self._calm, self._worst = self._calm + 1, worst
        if self._calm < self._wait:
            return None
        self._lowered = True
        return self._changed(wanted, raised=False, why=_seen(worst))

    def _changed(self, setting: Setting, *, raised: bool, why: str) -> Change[Setting]:
        self._short = self._calm = self._unchanged = 0
        self._worst = None
        self.current = setting
        return Change(setting, raised, why)


def _seen(estimate: Estimate) -> str:
    delay = estimate.delays.quantile(0.99) / 1e6
    return f"loss {estimate.loss:.4g}, at most {estimate.burst} in a row, 99 % of delays within {delay:.3g}ms"
