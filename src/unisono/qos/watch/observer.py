"""QoS management of one member's stack: measure, evaluate SLAs, report violations, adapt (paper 002 §2.4, §4.2).

This is the paper's measurement service, its evaluation and violation detection service and its event channels, in one
process and without a broker. The stack calls the observer for everything that crosses a layer boundary and wakes it at
the end of each collecting interval. The observer emits events for the application and metric rows for the trace.

Adaptation: each member requests the settings that it needs. Requests are ordered like messages, so all members agree on
them at the same slot (`settings_agreed`), compute the same settings and apply them from that slot on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Protocol, TypeAlias

from unisono.errors import InvalidOption, SlaError
from unisono.model.events import (
    Notice,
    NoticeKind,
    SettingsAgreed,
    SlaCleared,
    SlaVerdict,
    SlaViolation,
    StackEvent,
    ViewChange,
)
from unisono.model.policy import Policy, Settings
from unisono.model.sla import MetricRow, Sla, SlaSet
from unisono.model.timing import SlotGrid
from unisono.net.clock_check import ClockCheck
from unisono.qos.adapt.controller import Adapter
from unisono.qos.adapt.estimate import Estimate
from unisono.qos.watch.meters import WINDOW_NS, Monitor
from unisono.qos.watch.sla_evaluation import Finding, MemberEvaluation, collector_of
from unisono.wire.control import decode_settings_with_verdict
from unisono.wire.frame import Frame

ROWS_KEPT = 65_536
"""Keep this many metric rows until `pop_rows` is called; older rows are dropped and counted."""

REPEAT_INTERVAL_NS = 3_000_000_000
"""Repeat requests for settings at this interval: where gaps are possible, a member may have missed one."""

REPEATS = 3
"""How many times to repeat a verdict about the whole group, because a member may have missed it."""
VERDICTS_REMEMBERED_MAX = 1024
"""Remember the ids of this many verdicts about SLAs, to ignore repetitions."""

Listener: TypeAlias = Callable[[SlaVerdict], None]


class AdaptableStack(Protocol):
    """The parts of a stack that adaptation uses."""

    @property
    def grid(self) -> SlotGrid:
        """The current slot schedule."""

    def request_settings(
        self, now: int, settings: Settings, verdict: SlaVerdict | None = None, member: int | None = None
    ) -> None:
        """Broadcast the settings that `member` needs (by default this one), with the SLA verdict behind them."""

    def apply_settings(self, settings: Settings, slot: int) -> None:
        """Use these settings from a slot on."""

    def change_slot(self, now: int, theta_ns: int) -> None:
        """Request another slot length from the group."""


class QosObserver:
    """Observes one member's stack: collects metrics, evaluates SLAs, reports violations and adapts settings."""

    def __init__(
        self,
        policy: Policy,
        layers: Sequence[str],
        skew: ClockCheck,
        slas: SlaSet | None = None,
        stack: AdaptableStack | None = None,
    ) -> None:
        """`layers` are the stack's order and services; `stack` is adapted if `slas` names settings to adapt.

        Raises SlaError for an SLA that this stack cannot evaluate, or a setting that it cannot adapt.
        """
        self.events: list[StackEvent] = []
        self.due = 0
        """The time at which to call `wake` next."""
        self.dropped = 0
        self.latest: tuple[MetricRow, ...] = ()
        """The metric rows of the last collecting interval."""
        window_ns = WINDOW_NS if slas is None else slas.collect_interval_ns
        slots = None if stack is None else lambda: stack.grid
        self.monitor = Monitor(policy, layers, skew, window_ns, slots)
        self._members = policy.view.members
        agreed = () if slas is None else tuple(self._check_sla(slas, number) for number in range(len(slas.slas)))
        self.evaluation = MemberEvaluation(agreed, policy.member)
        self._listeners: dict[str, list[Listener]] = {sla.name: [] for sla in agreed}
        self._rows: deque[MetricRow] = deque()
        self._stack = stack
        self._member = policy.member
        self._repeat_at = 0
        self._repeat_own_request = False
        """Whether to repeat this member's request, because the group changed."""
        self._evaluated_by_members = slas is None or slas.evaluated_by_members
        self._verdicts_seen: dict[str, None] = {}
        self._announced: dict[str, tuple[SlaVerdict, int]] = {}
        """By SLA: the last verdict that this member announced to the group, and how often to repeat it."""
        self.adapter = None
        if slas is not None and slas.adaptable_settings:
            self.adapter = Adapter(policy, slas, agreed, self.monitor.layer_names[-2])
            for sla in agreed:
                for layer in sla.informs:
                    name = self.monitor.layer_names[1] if layer == "order" else layer
                    self.register(sla.name, self.adapter.on_violation(name))
        self.submitted = self.monitor.submitted
        self.arrived: Callable[[int, Frame, int], None] = self.monitor.arrived
        self.arrived_in_batch = self.monitor.arrived_in_batch
        self.passed_up = self.monitor.passed_up
        self.passed_down = self.monitor.passed_down
        self.datagrams_sent = self.monitor.datagrams_sent

    def delivered(self, now: int, events: Sequence[StackEvent]) -> None:
        """The order delivered these events to the application."""
        self.monitor.delivered(now, events)
        if self.adapter is not None:
            for event in events:
                if isinstance(event, ViewChange):
                    self.adapter.on_view(now, event.view.members)
                    self._repeat_own_request = True

    def _check_sla(self, slas: SlaSet, number: int) -> Sla:
        """The SLA with `order` replaced by the order's name; raises SlaError for unknown layers, links and metrics."""
        layers, sla = self.monitor.layer_names, slas.slas[number]
        order = {"order": layers[1]}
        provider, consumer = order.get(sla.provider, sla.provider), order.get(sla.consumer, sla.consumer)

        def error(field: str, problem: str) -> SlaError:
            return slas.error(f"sla[{number + 1}].{field}", f"{problem} ({sla.name!r})")

        for field, layer in (("provider", provider), ("consumer", consumer)):
            if layer not in layers:
                raise error(field, f"there is no layer {layer} in this stack; its layers are {', '.join(layers)}")
        if layers.index(provider) != layers.index(consumer) + 1:
            below = layers[layers.index(consumer) + 1] if consumer != layers[-1] else "nothing"
            raise error("provider", f"the layer below {consumer} is {below}, not {provider}")
        for layer in sla.informs:
            if layer not in {*layers, "order"}:
                raise error("informs", f"there is no layer {layer} in this stack; its layers are {', '.join(layers)}")
        unknown_members = sorted(set(sla.links).difference(self._members))
        if unknown_members:
            members = ", ".join(map(str, self._members))
            raise error("links", f"there is no member {unknown_members[0]} in this group; its members are {members}")
        agreed = replace(sla, provider=provider, consumer=consumer)
        if not self.monitor.collects(*collector_of(agreed), agreed.metric):
            raise error("metric", f"{sla.metric} is not collected between {provider} and {consumer}")
        return agreed

    # -- channels --------------------------------------------------------------------------------------------

    def register(self, sla: str, listener: Listener) -> None:
        """Call `listener` with each violation and clearance of one SLA."""
        if sla not in self._listeners:
            known = ", ".join(sorted(self._listeners)) or "none"
            raise InvalidOption("sla", f"there is no SLA {sla!r}; the SLAs of this group are: {known}")
        self._listeners[sla].append(listener)

    # -- windows ---------------------------------------------------------------------------------------------

    def wake(self, now: int) -> None:
        """If the collecting interval is over, close it and evaluate the windows that end with it."""
        rows = self.monitor.close_window(now)
        self.due = self.monitor.window_end_ns
        if not rows:
            return
        self.latest = tuple(rows)
        self._rows.extend(rows)
        while len(self._rows) > ROWS_KEPT:
            self._rows.popleft()
            self.dropped += 1
        until = rows[0].window_start_ns + rows[0].window_ns
        self._repeat_announced(now)
        findings, events = self.evaluation.add_rows(rows, until)
        for event in events:
            self.publish(event)
        if self.adapter is not None and self._stack is not None:
            self._adapt(self.adapter, self._stack, now, (rows, until, findings))

    # -- adaptation ------------------------------------------------------------------------------------------

    def _adapt(
        self,
        adapter: Adapter,
        stack: AdaptableStack,
        now: int,
        interval: tuple[list[MetricRow], int, list[Finding]],
    ) -> None:
        wanted, events = adapter.step(*interval) if self._evaluated_by_members else (None, [])
        for event in events:
            self.publish(event)
        if wanted is None and (self._repeat_own_request or now >= self._repeat_at) and adapter.has_changed:
            wanted = adapter.own_request()
        if wanted is not None:
            self._repeat_own_request = False
            self._repeat_at = now + REPEAT_INTERVAL_NS
            stack.request_settings(now, wanted)
        for member in adapter.departed_with_request(now):
            stack.request_settings(now, adapter.declared, member=member)

    def settings_agreed(self, now: int, agreed: Sequence[SettingsAgreed]) -> None:
        """Apply settings that all members agreed on. Requests that take effect at the same slot make one change."""
        for slot, together in groupby(agreed, lambda request: request.slot):
            self._apply_requests(now, slot, tuple(together))

    def _apply_requests(self, now: int, slot: int, agreed: Sequence[SettingsAgreed]) -> None:
        commands = [(request.sender, decode_settings_with_verdict(request.request)) for request in agreed]
        for _, command in commands:
            if command is not None and command[1] is not None:
                self._on_verdict(command[1], slot)
        if self.adapter is None or self._stack is None:
            return
        before, senders = self.adapter.in_force, []
        for sender, command in commands:
            if command is not None and self.adapter.on_request(sender, command[0]) is not None:
                senders.append(sender)
        in_force = self.adapter.in_force
        if in_force == before:
            return
        self._stack.apply_settings(in_force, slot)
        if in_force.theta_ns != before.theta_ns and in_force.theta_ns is not None and any(map(self._acts_for, senders)):
            # Slot lengths are agreed on separately; the member whose request changed Θ asks for the new length.
            self._stack.change_slot(now, in_force.theta_ns)
        text = f"from slot {slot} on: {in_force.text()}; until then {before.text()}"
        if agreed[0].local_slot > slot:
            text += f"; this member rejoined and keeps the old settings until slot {agreed[0].local_slot}"
        requesters = f"member{'s' if len(senders) > 1 else ''} {' and '.join(map(str, senders))}"
        self.publish(Notice(NoticeKind.ADAPTED, f"{text}; requested by {requesters}", self._member, slot))

    def _acts_for(self, member: int) -> bool:
        return member == self._member or (self.adapter is not None and self.adapter.has_departed(member))

    # -- verdicts on the whole group -------------------------------------------------------------------------

    def announce(self, now: int, network: Estimate | None, verdicts: Sequence[SlaVerdict]) -> None:
        """Broadcast the findings of the measurement service through the order.

        Each verdict carries the settings that the network needs, so all members learn of it and adapt at the same slot.
        """
        if self._stack is None:
            return
        wanted = None
        if self.adapter is not None and network is not None:
            wanted, events = self.adapter.update(network)
            for event in events:
                self.publish(event)
        for verdict in verdicts:
            self._stack.request_settings(now, self._own_request(), verdict)
            self._announced[verdict.sla] = verdict, REPEATS
        if wanted is not None and not verdicts:
            self._stack.request_settings(now, wanted)
        if wanted is not None or verdicts:
            self._repeat_at = now + REPEAT_INTERVAL_NS

    def _own_request(self) -> Settings:
        return Settings() if self.adapter is None else self.adapter.own_request()

    def _repeat_announced(self, now: int) -> None:
        """Repeat announced verdicts: where gaps are possible, a member may have missed one."""
        if self._stack is None or now < self._repeat_at:
            return
        for sla, (verdict, times) in list(self._announced.items()):
            self._stack.request_settings(now, self._own_request(), verdict)
            self._repeat_at = now + REPEAT_INTERVAL_NS
            if times > 1:
                self._announced[sla] = verdict, times - 1
            else:
                del self._announced[sla]

    def _on_verdict(self, verdict: SlaVerdict, slot: int) -> None:
        """Publish a verdict that all members receive at this slot; ignore repetitions of it."""
        if verdict.id in self._verdicts_seen:
            return
        self._verdicts_seen[verdict.id] = None
        if len(self._verdicts_seen) > VERDICTS_REMEMBERED_MAX:
            del self._verdicts_seen[next(iter(self._verdicts_seen))]
        self.publish(replace(verdict, slot=slot))

    def publish(self, event: SlaViolation | Notice | StackEvent) -> None:
        """Pass an event to the application and to the listeners of its SLA."""
        self.events.append(event)
        if isinstance(event, SlaViolation | SlaCleared):
            for listener in self._listeners.get(event.sla, ()):
                listener(event)

    def pop_rows(self) -> list[MetricRow]:
        """Return the metric rows of finished collecting intervals and clear the list."""
        rows = list(self._rows)
        self._rows.clear()
        return rows
