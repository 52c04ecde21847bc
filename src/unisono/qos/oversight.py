"""One member's QoS management around its stack: collectors, agreements, and who hears of a violation.

The paper's measurement service, evaluation and violation detection service and event channels (002 §2.4, §4.2), in one
process and without a broker. The stack feeds it; it hands out events for the application and rows for the trace.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, TypeAlias

from unisono.errors import InvalidPolicy
from unisono.layers.skew import Skew
from unisono.model.events import Demanded, Notice, SlaCleared, SlaViolation, StackEvent, ViewChange
from unisono.model.grid import Grid
from unisono.model.metrics import MetricRow
from unisono.model.policy import Policy
from unisono.model.settings import Settings
from unisono.model.sla import Sla, SlaSet
from unisono.qos.adapter import Adapter
from unisono.qos.monitor import WINDOW_NS, Monitor
from unisono.qos.sla import Evaluation, Finding, collector
from unisono.wire.demand import decode_settings
from unisono.wire.frame import Frame

ROWS_KEPT = 65_536
"""Rows that nobody fetches are dropped, the oldest first, and counted."""

REPEAT_NS = 3_000_000_000
"""So often a demand is said again: somebody may have missed it, where gaps are possible."""

Listener: TypeAlias = Callable[[SlaViolation | SlaCleared], None]


class Adaptable(Protocol):
    """What adaptation does to a stack."""

    @property
    def grid(self) -> Grid:
        """The slots as they are."""

    def demand(self, now: int, settings: Settings) -> None:
        """Let everybody know which settings this member needs."""

    def turn(self, settings: Settings, slot: int) -> None:
        """Have these settings in force from a slot on."""

    def new_slot(self, now: int, theta_ns: int) -> None:
        """Ask the group for slots of another length."""


class Oversight:
    """Watches one stack."""

    def __init__(
        self,
        policy: Policy,
        parties: Sequence[str],
        skew: Skew,
        slas: SlaSet | None = None,
        stack: Adaptable | None = None,
    ) -> None:
        """`parties` are the stack's order and services; `stack` is what is adapted, where the agreements say so.

        Raises InvalidPolicy for agreements that it cannot judge, and knobs that it cannot turn.
        """
        self.events: list[StackEvent] = []
        self.due = 0
        """When to be woken."""
        self.dropped = 0
        self.latest: tuple[MetricRow, ...] = ()
        """The rows of the last interval."""
        window_ns = WINDOW_NS if slas is None else slas.collect_ns
        slots = None if stack is None else lambda: stack.grid
        self.monitor = Monitor(policy, parties, skew, window_ns, slots)
        agreed = () if slas is None else tuple(self._checked(sla) for sla in slas.slas)
        self.evaluation = Evaluation(agreed, policy.member)
        self._listeners: dict[str, list[Listener]] = {sla.name: [] for sla in agreed}
        self._rows: deque[MetricRow] = deque()
        self._stack = stack
        self._member = policy.member
        self._repeat_at = 0
        self._again = False
        """Whether this member's demand is to be said again: the group has changed."""
        self.adapter = None
        if slas is not None and slas.adapt:
            self.adapter = Adapter(policy, slas, agreed, self.monitor.parties[-2])
            for sla in agreed:
                for layer in sla.informs:
                    name = self.monitor.parties[1] if layer == "order" else layer
                    self.register(sla.name, self.adapter.informed(name))
        self.submitted = self.monitor.submitted
        self.arrived: Callable[[int, Frame, int], None] = self.monitor.arrived
        self.arrived_together = self.monitor.arrived_together
        self.raised = self.monitor.raised
        self.lowered = self.monitor.lowered
        self.departed = self.monitor.departed

    def delivered(self, now: int, events: Sequence[StackEvent]) -> None:
        """The order handed these to the application."""
        self.monitor.delivered(now, events)
        if self.adapter is not None:
            for event in events:
                if isinstance(event, ViewChange):
                    self.adapter.view(now, event.view.members)
                    self._again = True

    def _checked(self, sla: Sla) -> Sla:
        """The agreement with `order` read as the order's name; refuses parties and metrics that are not here."""
        parties = self.monitor.parties
        order = {"order": parties[1]}
        provider, consumer = order.get(sla.provider, sla.provider), order.get(sla.consumer, sla.consumer)
        for field, party in (("provider", provider), ("consumer", consumer)):
            if party not in parties:
                there = ", ".join(parties)
                raise InvalidPolicy(f"sla {sla.name!r}: {field}", f"{party} is not in this stack, which is {there}")
        if parties.index(provider) != parties.index(consumer) + 1:
            below = parties[parties.index(consumer) + 1] if consumer != parties[-1] else "nobody"
            raise InvalidPolicy(f"sla {sla.name!r}: provider", f"under {consumer} there is {below}, not {provider}")
        for layer in sla.informs:
            if layer not in {*parties, "order"}:
                there = ", ".join(parties)
                raise InvalidPolicy(f"sla {sla.name!r}: informs", f"{layer} is not in this stack, which is {there}")
        agreed = replace(sla, provider=provider, consumer=consumer)
        if not self.monitor.collects(*collector(agreed), agreed.metric):
            raise InvalidPolicy(
                f"sla {sla.name!r}: metric", f"{sla.metric} is not collected between {provider} and {consumer}"
            )
        return agreed

    # -- channels --------------------------------------------------------------------------------------------

    def register(self, sla: str, listener: Listener) -> None:
        """Call `listener` with each violation and clearance of one agreement: a layer's negotiation, for one."""
        if sla not in self._listeners:
            known = ", ".join(sorted(self._listeners)) or "none"
            raise InvalidPolicy("sla", f"there is no agreement {sla!r}; known here: {known}")
        self._listeners[sla].append(listener)

    # -- windows ---------------------------------------------------------------------------------------------

    def wake(self, now: int) -> None:
        """Close the interval if it is over, and judge what it ends."""
        rows = self.monitor.roll(now)
        self.due = self.monitor.due
        if not rows:
            return
        self.latest = tuple(rows)
        self._rows.extend(rows)
        while len(self._rows) > ROWS_KEPT:
            self._rows.popleft()
            self.dropped += 1
        until = rows[0].window_start_ns + rows[0].window_ns
        findings, events = self.evaluation.take(rows, until)
        for event in events:
            self.tell(event)
        if self.adapter is not None and self._stack is not None:
            self._adapt(self.adapter, self._stack, now, (rows, until, findings))

    # -- adaptation ------------------------------------------------------------------------------------------

    def _adapt(
        self,
        adapter: Adapter,
        stack: Adaptable,
        now: int,
        interval: tuple[list[MetricRow], int, list[Finding]],
    ) -> None:
        wanted, events = adapter.step(*interval)
        for event in events:
            self.tell(event)
        if wanted is None and (self._again or now >= self._repeat_at) and adapter.changed:
            wanted = adapter.wanted()
        if wanted is not None:
            self._again = False
            self._repeat_at = now + REPEAT_NS
            stack.demand(now, wanted)

    def demanded(self, now: int, demand: Demanded) -> None:
        """Everybody has delivered which settings a member needs."""
        settings = decode_settings(demand.demand)
        if self.adapter is None or self._stack is None or settings is None:
            return
        before = self.adapter.in_force
        in_force = self.adapter.demanded(demand.sender, settings)
        if in_force is None:
            return
        self._stack.turn(in_force, demand.slot)
        if in_force.theta_ns != before.theta_ns and in_force.theta_ns is not None and demand.sender == self._member:
            # Slots have an agreement of their own; whoever's demand led to it asks for it.
            self._stack.new_slot(now, in_force.theta_ns)
        text = f"from slot {demand.slot} on: {in_force.text()}; until then {before.text()}"
        self.tell(Notice("adapted", f"{text}; as member {demand.sender} demanded", self._member, demand.slot))

    def tell(self, event: SlaViolation | Notice | StackEvent) -> None:
        """To the application, and to whoever has registered for the agreement."""
        self.events.append(event)
        if isinstance(event, SlaViolation | SlaCleared):
            for listener in self._listeners.get(event.sla, ()):
                listener(event)

    def rows(self) -> list[MetricRow]:
        """The rows of the intervals that are over; handed out once."""
        rows = list(self._rows)
        self._rows.clear()
        return rows
