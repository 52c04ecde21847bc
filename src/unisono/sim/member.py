"""One member in the simulated world: its stack, its clock, its application and its records.

There are three kinds: the application of a `SimulatedMember` gets deliveries as events, that of a `PullingMember` takes
messages from a queue (the priority orders), and that of a `RoutedMember` sends to several groups.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol, Self, assert_never, runtime_checkable

from unisono.errors import UnisonoError
from unisono.model.effects import Datagram, Effects, Write
from unisono.model.events import (
    Batch,
    Gap,
    Grade,
    LeaveComplete,
    Notice,
    QueueStep,
    Rejoining,
    SlotSkipped,
    StackEvent,
    TimingChange,
    TopologyChange,
    ViewChange,
    Violation,
)
from unisono.model.timing import SlotGrid, Timing
from unisono.model.units import Rate
from unisono.model.workloads import ScheduledSends, silent
from unisono.sim.clocks import Clock
from unisono.sim.disk import SimDisk
from unisono.stack import Stack, carry_out
from unisono.trace.event_rows import EventRecorder
from unisono.trace.recorder import Recorder
from unisono.trace.schema import EventKind

NEVER = 1 << 63
SUBMIT_BATCH_MESSAGES = 1024
"""How many waiting messages an application submits in one call."""
MAX_IMMEDIATE_WAKES = 10_000
"""How many times in a row a stack may ask, when it is woken, to be woken again at once."""


class Machine(Protocol):
    """A stack as a driver sees it: inputs with the time, and one step that returns all effects."""

    def submit(self, now: int, messages: Sequence[bytes]) -> int: ...
    def receive(self, now: int, data: bytes) -> None: ...
    def wake(self, now: int) -> None: ...
    def step(self) -> Effects: ...
    def change_rate(self, now: int, rate: Rate) -> None: ...
    def leave(self, now: int) -> None: ...


@runtime_checkable
class SlotAwareStack(Protocol):
    """A machine with slots whose length can change."""

    @property
    def grid(self) -> SlotGrid: ...
    def change_slot(self, now: int, theta_ns: int) -> None: ...


class PayloadMismatch(UnisonoError):
    """A member delivered bytes that differ from those sent."""


class WakesForever(UnisonoError):
    """A stack that is woken asks each time to be woken again at once, so that the simulation would never end."""

    def __init__(self, member: int, stack: Machine, local_ns: int, asked_ns: int) -> None:
        order = f"the order {stack.policy.order}" if isinstance(stack, Stack) else type(stack).__name__
        super().__init__(
            f"member {member}, which runs {order}, asked {MAX_IMMEDIATE_WAKES:,} times in a row to be woken again at "
            f"once: at {local_ns} ns on its clock it asks to be woken at {asked_ns} ns"
        )
        self.member = member


class Scheduler(Protocol):
    """The part of the simulated world that a member uses: it schedules events and transmits datagrams."""

    sent_payloads: dict[tuple[int, int], list[bytes]] | None
    """By sender and incarnation, all accepted messages, if deliveries are compared with them; else None."""
    send_until_ns: int

    def schedule(self, at: int, callback: Callable[[int, Any], None], argument: object) -> None: ...
    def schedule_arrival(self, at: int, callback: Callable[[int, bytes], None], data: bytes) -> None: ...
    def transmit(self, now: int, sender: SimulatedMember, datagrams: Sequence[Datagram]) -> None: ...


@dataclass(frozen=True, slots=True)
class MemberSetup:
    """The parts of a simulated member that survive a restart, such as its clock, its application and its storage."""

    member: int
    clock: Clock
    timing: Timing
    workload: ScheduledSends = field(default_factory=silent)
    bound_ns: int | None = None
    """The latency bound that its order declares, if any."""
    disk: SimDisk | None = None
    """Its stable storage, if its order is durable."""
    consume_ns: int = 0
    """Where the application pulls messages: how long it needs for each."""
    priorities: Sequence[int] = (0,)
    """Where the application pulls messages: the priorities of the messages it sends, in turn."""
    routes: Sequence[tuple[str, ...]] = ()
    """With several groups: the destinations of its messages, in turn."""


class SimulatedMember:
    """Turns the events of the simulation into inputs of the stack, at the readings of the member's own clock."""

    __slots__ = (
        "_alarm_at",
        "_alarm_number",
        "_earliest_alarm",
        "_immediate_wakes",
        "_last_delivered_slot",
        "_local_now",
        "_now",
        "_payloads_made",
        "_read_clock",
        "_receive",
        "_rows",
        "_scheduler",
        "_step",
        "_waiting",
        "_workload_start_ns",
        "accepted",
        "clock",
        "delivered",
        "delivered_final",
        "inactive_until_ns",
        "incarnation",
        "member",
        "notices",
        "setup",
        "stack",
        "started_slot",
        "violations",
    )

    def __init__(
        self, scheduler: Scheduler, setup: MemberSetup, stack: Machine, recorder: Recorder | None, incarnation: int
    ) -> None:
        self.member = setup.member
        self.clock = setup.clock
        self.setup = setup
        self.incarnation = incarnation
        self.stack = stack
        self.inactive_until_ns = NEVER
        """The member processes no event before this time: the end of a pause, or NEVER while it is not up."""
        self.accepted = 0
        """How many messages its stack has accepted: the sequence number of the next one."""
        self.delivered = 0
        """How many messages it has delivered; with two grades, the early deliveries."""
        self.delivered_final = 0
        self.violations: list[Violation] = []
        """What the member reported, in all its incarnations: a restart does not take a report back."""
        self.notices: list[Notice] = []
        self.started_slot: int | None = None
        # Looked up once, because they run for every arriving datagram.
        self._read_clock = setup.clock.local
        self._receive, self._step = stack.receive, stack.step
        self._rows = None if recorder is None else EventRecorder(recorder, setup.member, self._slot_of, setup.bound_ns)
        self._now = self._local_now = self._earliest_alarm = 0
        """True and local time of the step that is being carried out, and the earliest next wake-up."""
        self._scheduler = scheduler
        self._workload_start_ns = 0
        self._waiting: deque[bytes] = deque()
        self._payloads_made = 0
        self._last_delivered_slot: int | None = None
        self._alarm_at: int | None = None
        self._alarm_number = 0
        self._immediate_wakes = 0

    @property
    def up(self) -> bool:
        """Whether the member is up: it has started, has not crashed and has not left."""
        return self.inactive_until_ns < NEVER

    @property
    def waiting_count(self) -> int:
        """How many messages of the application the stack has not accepted yet."""
        return len(self._waiting)

    # -- events of the simulation ----------------------------------------------------------------------------

    def start(self, now: int, _: object) -> None:
        """Start the member: its stack begins to run."""
        self.inactive_until_ns = 0
        local = self.clock.local(now)
        self.stack.wake(local)
        self._flush(now, local, local + 1)

    def arrive(self, now: int, data: bytes) -> None:
        """A datagram arrives. If the member is paused, the datagram waits; if the member is not up, it is lost."""
        if now < self.inactive_until_ns:
            if self.up:
                self._scheduler.schedule_arrival(self.inactive_until_ns, self.arrive, data)
            return
        local = self._read_clock(now)
        self._receive(local, data)
        self._now, self._local_now, self._earliest_alarm = now, local, 0
        carry_out(self._step(), self)

    def on_alarm(self, now: int, number: int) -> None:
        """The stack's alarm fires. Nothing happens if the alarm has been set again since it got this `number`."""
        if number != self._alarm_number or self._defer_if_inactive(now, self.on_alarm, number):
            return
        local = self.clock.local(now)
        self._alarm_at = None
        self.stack.wake(local)
        if self._waiting:
            self._submit_waiting(now, local)
        # If the stack wants to wake again at once, it does so 1 ns later, so that time always advances.
        self._flush(now, local, local + 1)

    def submit(self, now: int, sizes: tuple[int, ...]) -> None:
        """The application submits messages of these sizes."""
        if self._defer_if_inactive(now, self.submit, sizes):
            return
        self._waiting.extend(map(self._payload, sizes))
        local = self.clock.local(now)
        self._submit_waiting(now, local)
        self._flush(now, local, 0)

    def submit_and_plan_next(self, now: int, sizes: tuple[int, ...]) -> None:
        """Submit messages of the workload now, and schedule its next messages."""
        self.submit(now, sizes)
        self._plan_next_submission()

    def change_rate(self, now: int, rate: Rate) -> None:
        """The application changes its rate."""
        if self._defer_if_inactive(now, self.change_rate, rate):
            return
        local = self.clock.local(now)
        self.stack.change_rate(local, rate)
        self._flush(now, local, 0)

    def change_slot(self, now: int, theta_ns: int) -> None:
        """The application asks for slots of another length."""
        if self._defer_if_inactive(now, self.change_slot, theta_ns):
            return
        local = self.clock.local(now)
        if not isinstance(self.stack, SlotAwareStack):
            raise UnisonoError(f"the order of member {self.member} has no slots whose length can change")
        self.stack.change_slot(local, theta_ns)
        self._flush(now, local, 0)

    def leave(self, now: int, _: object) -> None:
        """Let the application leave the group."""
        if self._defer_if_inactive(now, self.leave, None):
            return
        local = self.clock.local(now)
        self.stack.leave(local)
        self._flush(now, local, 0)

    def crash(self, now: int, observer: Recorder | None) -> None:
        """The member crashes; `observer` records that, because the member itself cannot."""
        if not self.up:
            return
        self.inactive_until_ns = NEVER
        if observer is not None:
            local = self.clock.local(now)
            # The member may have delivered only a part of its last slot, and need not deliver the rest.
            last_slot = self._last_delivered_slot if self._last_delivered_slot is not None else self.started_slot
            slot = self._slot_of(local) if last_slot is None else last_slot
            observer.event(
                EventKind.CRASH,
                slot=slot,
                real_ns=now,
                local_ns=local,
                subject=self.member,
                subject_incarnation=self.incarnation,
            )

    def restarted(self, stack: Machine, recorder: Recorder | None) -> Self:
        """The member after a crash: the same clock and application with a new stack, in the next incarnation."""
        restarted = type(self)(self._scheduler, self.setup, stack, recorder, self.incarnation + 1)
        restarted.violations, restarted.notices = self.violations, self.notices
        return restarted

    def pause(self, now: int, until: int) -> None:
        """Pause the member until the true time `until`."""
        self.inactive_until_ns = max(self.inactive_until_ns, until)

    def _defer_if_inactive(self, now: int, callback: Callable[[int, Any], None], argument: object) -> bool:
        """Return whether the member is inactive now. If it is paused, schedule the call for the end of the pause."""
        if now >= self.inactive_until_ns:
            return False
        if self.up:
            self._scheduler.schedule(self.inactive_until_ns, callback, argument)
        return True

    # -- the application -------------------------------------------------------------------------------------

    def _payload(self, size: int) -> bytes:
        if self._scheduler.sent_payloads is None:
            return bytes(size)
        stamp = b"%d/%d " % (self.member, self._payloads_made)
        self._payloads_made += 1
        return (stamp * (size // len(stamp) + 1))[:size]

    def _plan_next_submission(self) -> None:
        due = next(self.setup.workload, None)
        if due is not None and self._workload_start_ns + due[0] < self._scheduler.send_until_ns:
            self._scheduler.schedule(self._workload_start_ns + due[0], self.submit_and_plan_next, due[1])

    def _submit_waiting(self, now: int, local: int) -> None:
        """Submit waiting messages; those that the stack does not accept wait for its next wake-up."""
        if now >= self._scheduler.send_until_ns:
            return
        while self._waiting:
            messages = list(islice(self._waiting, SUBMIT_BATCH_MESSAGES))
            accepted = self.stack.submit(local, messages)
            for _ in range(accepted):
                self._waiting.popleft()
            if accepted:
                self._record_sent(now, local, messages[:accepted])
            if accepted < len(messages):
                return

    def _slot_of(self, local: int) -> int:
        stack = self.stack
        return (stack.grid if isinstance(stack, SlotAwareStack) else self.setup.timing).slot_of(local)

    # -- effects of the stack --------------------------------------------------------------------------------

    def _flush(self, now: int, local: int, earliest_alarm: int) -> None:
        """Carry out the effects of the inputs since the last step."""
        self._now, self._local_now, self._earliest_alarm = now, local, earliest_alarm
        carry_out(self._step(), self)

    def persist(self, records: Sequence[Write]) -> None:
        """Make records durable."""
        if self.setup.disk is not None:
            self.setup.disk.apply(records)

    def transmit(self, datagrams: Sequence[Datagram]) -> None:
        """Put datagrams on this member's links."""
        self._scheduler.transmit(self._now, self, datagrams)

    def set_alarm(self, at: int | None) -> None:
        """Schedule the stack's next wake-up, when the local clock shows `at`."""
        if at is not None and at < self._earliest_alarm:
            self._immediate_wakes += 1
            if self._immediate_wakes > MAX_IMMEDIATE_WAKES:
                raise WakesForever(self.member, self.stack, self._local_now, at)
            at = self._earliest_alarm
        elif self._earliest_alarm:
            self._immediate_wakes = 0
        if at == self._alarm_at:
            return
        self._alarm_at = at
        self._alarm_number += 1
        if at is not None:
            self._scheduler.schedule(max(self._now, self.clock.true_at(at)), self.on_alarm, self._alarm_number)

    def _record_sent(
        self,
        now: int,
        local: int,
        messages: list[bytes],
        priority: int | None = None,
        destinations: tuple[int, ...] | None = None,
    ) -> None:
        if self._rows is not None:
            sizes = [len(message) for message in messages]
            self._rows.record_sent(
                self.accepted, sizes, real_ns=now, local_ns=local, priority=priority, destinations=destinations
            )
        if self._scheduler.sent_payloads is not None:
            self._scheduler.sent_payloads.setdefault((self.member, self.incarnation), []).extend(messages)
        self.accepted += len(messages)

    def on_event(self, event: StackEvent) -> None:
        """Act on an event as the application would, and record it."""
        if self._rows is not None:
            self._rows.record_event(event, real_ns=self._now, local_ns=self._local_now)
        match event:
            case Batch():
                self._check_batch(event)
            case ViewChange():
                self._on_view(event)
            case Violation():
                self.violations.append(event)
            case Notice():
                self.notices.append(event)
            case LeaveComplete():
                self.inactive_until_ns = NEVER
            case TimingChange() | Gap() | SlotSkipped() | QueueStep():
                pass
            case _:
                assert_never(event)

    def _check_batch(self, batch: Batch) -> None:
        """Count a delivery, and compare its bytes with those that were sent."""
        if batch.grade is Grade.FINAL:
            self.delivered_final += batch.count
        else:
            self.delivered += batch.count
            self._last_delivered_slot = batch.slot
        if self._scheduler.sent_payloads is not None:
            sent = self._scheduler.sent_payloads.get((batch.sender, batch.incarnation), [])
            if sent[batch.first_sequence : batch.first_sequence + batch.count] != batch.messages:
                raise PayloadMismatch(f"member {self.member} delivered bytes that differ from those sent: {batch}")

    def _on_view(self, change: ViewChange) -> None:
        if self.member not in change.joined:
            return
        if self.started_slot is None:  # otherwise it rejoins, and its application has been running
            self._workload_start_ns = self._now
            self._plan_next_submission()
        self.started_slot = change.view.first_slot


class PullingMember(SimulatedMember):
    """A member whose application pulls (paper 004): it consumes a message when it has finished the previous one.

    It needs `setup.consume_ns` per message. Its own messages have the priorities of `setup.priorities`, in turn.
    """

    __slots__ = ("_consuming", "_pulled_stack")

    def __init__(
        self, scheduler: Scheduler, setup: MemberSetup, stack: Machine, recorder: Recorder | None, incarnation: int
    ) -> None:
        super().__init__(scheduler, setup, stack, recorder, incarnation)
        if not isinstance(stack, Stack):
            raise TypeError(f"member {setup.member} needs a stack of a priority order, not {stack!r}")
        self._pulled_stack, self._consuming = stack, False

    def arrive(self, now: int, data: bytes) -> None:
        """A datagram arrives, and may make a message consumable."""
        super().arrive(now, data)
        self._plan_consume(now)

    def _flush(self, now: int, local: int, earliest_alarm: int) -> None:
        super()._flush(now, local, earliest_alarm)
        self._plan_consume(now)

    def _plan_consume(self, now: int) -> None:
        if not self._consuming and self.up and self._pulled_stack.consumable():
            self._consuming = True
            self._scheduler.schedule(now + self.setup.consume_ns, self.consume, None)

    def consume(self, now: int, _: object) -> None:
        """The application has finished a message and consumes the next one."""
        if self._defer_if_inactive(now, self.consume, None):
            return
        self._consuming, local = False, self.clock.local(now)
        batch = self._pulled_stack.consume(local)
        if batch is not None:
            self._now, self._local_now = now, local
            self.on_event(batch)
        self._flush(now, local, 0)

    def _submit_waiting(self, now: int, local: int) -> None:
        """Submit waiting messages one by one, each with its priority; the rest waits for the stack's next wake-up."""
        while self._waiting and now < self._scheduler.send_until_ns:
            priority = self.setup.priorities[self.accepted % len(self.setup.priorities)]
            if not self._pulled_stack.submit(local, (self._waiting[0],), priority):
                return
            self._record_sent(now, local, [self._waiting.popleft()], priority)

    def on_event(self, event: StackEvent) -> None:
        """Handle an event. After a rejoin, number messages from 0 again, because the incarnation is new."""
        super().on_event(event)
        if isinstance(event, Rejoining):
            self.incarnation, self.accepted = event.incarnation, 0


@runtime_checkable
class MultigroupStack(Machine, Protocol):
    """A stack whose messages can go to several groups."""

    def submit_to(self, now: int, messages: Sequence[bytes], groups: Sequence[str]) -> int: ...
    def destinations(self, groups: Sequence[str]) -> tuple[int, ...]: ...
    def change_topology(self, now: int, sends: Sequence[str]) -> object: ...


class RoutedMember(SimulatedMember):
    """A member whose messages go to the groups in `setup.routes`: each message uses the next entry (paper 003).

    After a topology change the entries are new: first all groups that it may send to, then each of these groups alone.
    """

    __slots__ = ("_multigroup_stack", "_routes")

    def __init__(
        self, scheduler: Scheduler, setup: MemberSetup, stack: Machine, recorder: Recorder | None, incarnation: int
    ) -> None:
        super().__init__(scheduler, setup, stack, recorder, incarnation)
        if not isinstance(stack, MultigroupStack):
            raise UnisonoError(f"the order of member {setup.member} does not send to several groups")
        self._multigroup_stack, self._routes = stack, setup.routes

    def _submit_waiting(self, now: int, local: int) -> None:
        """Submit waiting messages, each to its destinations; the rest waits for the stack's next wake-up."""
        if not self._routes:
            self._waiting.clear()  # there is no group to send to, so the application sends nothing
        while self._waiting and now < self._scheduler.send_until_ns:
            groups = self._routes[self.accepted % len(self._routes)]
            count = len(self._waiting) if len(self._routes) == 1 else 1
            messages = [self._waiting[number] for number in range(count)]
            accepted = self._multigroup_stack.submit_to(local, messages, groups)
            if not accepted:
                return
            for _ in range(accepted):
                self._waiting.popleft()
            self._record_sent(now, local, messages[:accepted], destinations=self._multigroup_stack.destinations(groups))

    def change_topology(self, now: int, sends: tuple[str, ...]) -> None:
        """The application asks its group to send to these groups."""
        if self._defer_if_inactive(now, self.change_topology, sends):
            return
        local = self.clock.local(now)
        self._multigroup_stack.change_topology(local, sends)
        self._flush(now, local, 0)

    def on_event(self, event: StackEvent) -> None:
        """Handle an event. After a topology change, send in turn to all possible groups, and to each of them alone."""
        super().on_event(event)
        if isinstance(event, TopologyChange):
            single_groups = [(name,) for name in event.sends_to]
            self._routes = [event.sends_to, *single_groups] if len(single_groups) > 1 else single_groups
