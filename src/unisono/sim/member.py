"""One member in the world: its stack, its clock, its application, and what is written down about it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Protocol, assert_never, runtime_checkable

from unisono.errors import UnisonoError
from unisono.model.events import (
    POSITIONS_PER_SENDER,
    Batch,
    Gap,
    LeaveComplete,
    Notice,
    QueueStep,
    StackEvent,
    TimingChange,
    ViewChange,
    Violation,
)
from unisono.model.grades import Grade
from unisono.model.rates import Rate
from unisono.model.slot_schedule import SlotGrid
from unisono.model.timing import Timing
from unisono.model.workloads import ScheduledSends, silent
from unisono.sim.clocks import Clock
from unisono.stack import Datagram
from unisono.trace.recorder import NOTHING_MORE, Extras, Recorder, report_extras, view_extras
from unisono.trace.schema import EventKind

NEVER = 1 << 63
SUBMIT_BATCH_MESSAGES = 1024
"""How many waiting messages an application hands to its stack in one call."""


class Machine(Protocol):
    """The five verbs of a stack, and the two requests an application can make besides."""

    def submit(self, now: int, messages: Sequence[bytes]) -> int: ...
    def receive(self, now: int, data: bytes) -> None: ...
    def wake(self, now: int) -> None: ...
    def wake_at(self) -> int | None: ...
    def outgoing(self) -> Sequence[Datagram]: ...
    def events(self) -> Sequence[StackEvent]: ...
    def change_rate(self, now: int, rate: Rate) -> None: ...
    def leave(self, now: int) -> None: ...


@runtime_checkable
class SlotAwareStack(Protocol):
    """A machine that knows what slots are now, and can be asked to change their length."""

    @property
    def grid(self) -> SlotGrid: ...
    def change_slot(self, now: int, theta_ns: int) -> None: ...


class PayloadMismatch(UnisonoError):
    """A member delivered other bytes than were sent."""


class Scheduler(Protocol):
    """What a node needs of the world."""

    sent_payloads: dict[tuple[int, int], list[bytes]] | None
    """By sender and incarnation, all that its stack took, if deliveries are to be compared with it byte for byte."""
    send_until_ns: int

    def schedule(self, at: int, callback: Callable[[int, Any], None], argument: object) -> None: ...
    def schedule_arrival(self, at: int, callback: Callable[[int, bytes], None], data: bytes) -> None: ...
    def transmit(self, now: int, sender: SimulatedMember, datagrams: Sequence[Datagram]) -> None: ...


class SimulatedMember:
    """Turns what happens to a member into its stack's verbs, at the readings of its own clock."""

    __slots__ = (
        "_alarm_at",
        "_alarm_number",
        "_events",
        "_last_delivered_slot",
        "_last_send_slot",
        "_next_send_position",
        "_outgoing",
        "_payloads_made",
        "_read_clock",
        "_receive",
        "_scheduler",
        "_waiting",
        "_wake_at",
        "_workload",
        "_workload_start_ns",
        "accepted",
        "bound_ns",
        "clock",
        "delivered",
        "delivered_final",
        "inactive_until_ns",
        "incarnation",
        "member",
        "notices",
        "recorder",
        "stack",
        "started_slot",
        "timing",
        "violations",
    )

    def __init__(
        self,
        scheduler: Scheduler,
        member: int,
        stack: Machine,
        clock: Clock,
        *,
        timing: Timing,
        workload: ScheduledSends | None = None,
        recorder: Recorder | None = None,
        incarnation: int = 1,
    ) -> None:
        self.member = member
        self.bound_ns: int | None = None
        """The latency bound that its order declares, if it declares one."""
        self.incarnation = incarnation
        self.stack = stack
        self.clock = clock
        self.timing = timing
        self.recorder = recorder
        self.inactive_until_ns = NEVER
        """Until when nothing reaches it: the end of its pause, or NEVER before it starts and after it has gone."""
        self.accepted = 0
        """How many messages its stack has taken: the next one's sequence."""
        self.delivered = 0
        """How many messages it has delivered: early, where there are two grades."""
        self.delivered_final = 0
        self.violations: list[Violation] = []
        self.notices: list[Notice] = []
        self.started_slot: int | None = None
        # Looked up once: these run for every datagram that arrives.
        self._read_clock = clock.local
        self._receive, self._outgoing = stack.receive, stack.outgoing
        self._events, self._wake_at = stack.events, stack.wake_at
        self._scheduler = scheduler
        self._workload = workload or silent()
        self._workload_start_ns = 0
        self._waiting: deque[bytes] = deque()
        self._payloads_made = 0
        self._last_send_slot = -1
        self._next_send_position = 0
        self._last_delivered_slot: int | None = None
        self._alarm_at: int | None = None
        self._alarm_number = 0

    @property
    def up(self) -> bool:
        """Whether it takes part: it has started, has not crashed and has not left."""
        return self.inactive_until_ns < NEVER

    @property
    def waiting_count(self) -> int:
        """How many messages the application holds because its stack has not taken them."""
        return len(self._waiting)

    # -- what happens to the member --------------------------------------------------------------------------

    def start(self, now: int, _: object) -> None:
        """The member comes up."""
        self.inactive_until_ns = 0
        local = self.clock.local(now)
        self.stack.wake(local)
        self._flush(now, local, local + 1)

    def arrive(self, now: int, data: bytes) -> None:
        """A datagram arrives; one that finds nobody is gone, as with UDP."""
        if now < self.inactive_until_ns:
            if self.up:
                self._scheduler.schedule_arrival(self.inactive_until_ns, self.arrive, data)
            return
        local = self._read_clock(now)
        self._receive(local, data)
        # This is _settle(now, local, 0), written out: it runs for every datagram that arrives.
        datagrams = self._outgoing()
        if datagrams:
            self._scheduler.transmit(now, self, datagrams)
        for event in self._events():
            self._record(now, local, event)
        at = self._wake_at()
        if at != self._alarm_at:
            self._set_alarm(now, at)

    def on_alarm(self, now: int, number: int) -> None:
        """The stack's alarm; an older number means that it has been set anew since."""
        if number != self._alarm_number or self._defer_if_inactive(now, self.on_alarm, number):
            return
        local = self.clock.local(now)
        self._alarm_at = None
        self.stack.wake(local)
        if self._waiting:
            self._submit_waiting(now, local)
        # A stack that is still not content is woken when its clock has moved on, so that the world always does.
        self._flush(now, local, local + 1)

    def submit(self, now: int, sizes: tuple[int, ...]) -> None:
        """The application hands in messages of these sizes."""
        if self._defer_if_inactive(now, self.submit, sizes):
            return
        self._waiting.extend(map(self._payload, sizes))
        local = self.clock.local(now)
        self._submit_waiting(now, local)
        self._flush(now, local, 0)

    def submit_and_plan_next(self, now: int, sizes: tuple[int, ...]) -> None:
        """The workload's turn: this offer now, and the next one when it is due."""
        self.submit(now, sizes)
        self._plan_next_submission()

    def change_rate(self, now: int, rate: Rate) -> None:
        """The application renegotiates."""
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
            raise UnisonoError(f"member {self.member}'s machine knows no slots")
        self.stack.change_slot(local, theta_ns)
        self._flush(now, local, 0)

    def leave(self, now: int, _: object) -> None:
        """The application leaves."""
        if self._defer_if_inactive(now, self.leave, None):
            return
        local = self.clock.local(now)
        self.stack.leave(local)
        self._flush(now, local, 0)

    def crash(self, now: int, observer: Recorder | None) -> None:
        """The member stops; only an onlooker can say so."""
        if not self.up:
            return
        self.inactive_until_ns = NEVER
        if observer is not None:
            local = self.clock.local(now)
            # It may have delivered part of its last slot, and is not held to the rest.
            held_to = self._last_delivered_slot if self._last_delivered_slot is not None else self.started_slot
            slot = self._slot_of(local) if held_to is None else held_to
            observer.event(
                EventKind.CRASH,
                slot=slot,
                real_ns=now,
                local_ns=local,
                subject=self.member,
                subject_incarnation=self.incarnation,
            )

    def restarted(self, stack: Machine, recorder: Recorder | None) -> SimulatedMember:
        """The member as it comes back after a crash: the same clock and application, another life."""
        return SimulatedMember(
            self._scheduler,
            self.member,
            stack,
            self.clock,
            timing=self.timing,
            workload=self._workload,
            recorder=recorder,
            incarnation=self.incarnation + 1,
        )

    def pause(self, now: int, until: int) -> None:
        """The member stands still."""
        self.inactive_until_ns = max(self.inactive_until_ns, until)

    def _defer_if_inactive(self, now: int, callback: Callable[[int, Any], None], argument: object) -> bool:
        """Whether nothing reaches the member now; what meets a pause is planned for its end."""
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
        due = next(self._workload, None)
        if due is not None and self._workload_start_ns + due[0] < self._scheduler.send_until_ns:
            self._scheduler.schedule(self._workload_start_ns + due[0], self.submit_and_plan_next, due[1])

    def _submit_waiting(self, now: int, local: int) -> None:
        """Hand in what waits; what the stack does not take goes on waiting, for the stack's next wake."""
        if now >= self._scheduler.send_until_ns:
            return
        while self._waiting:
            messages = list(islice(self._waiting, SUBMIT_BATCH_MESSAGES))
            taken = self.stack.submit(local, messages)
            for _ in range(taken):
                self._waiting.popleft()
            if taken:
                self._record_sent(now, local, messages[:taken])
            if taken < len(messages):
                return

    def _slot_of(self, local: int) -> int:
        stack = self.stack
        return (stack.grid if isinstance(stack, SlotAwareStack) else self.timing).slot_of(local)

    # -- what the stack says ---------------------------------------------------------------------------------

    def _flush(self, now: int, local: int, earliest_alarm: int) -> None:
        """Carry away what the stack has to say, and set its alarm."""
        datagrams = self._outgoing()
        if datagrams:
            self._scheduler.transmit(now, self, datagrams)
        for event in self._events():
            self._record(now, local, event)
        at = self._wake_at()
        if at is not None and at < earliest_alarm:
            at = earliest_alarm
        if at != self._alarm_at:
            self._set_alarm(now, at)

    def _set_alarm(self, now: int, at: int | None) -> None:
        self._alarm_at = at
        self._alarm_number += 1
        if at is not None:
            self._scheduler.schedule(max(now, self.clock.true_at(at)), self.on_alarm, self._alarm_number)

    def _record_sent(
        self,
        now: int,
        local: int,
        messages: list[bytes],
        priority: int | None = None,
        destinations: tuple[int, ...] | None = None,
    ) -> None:
        slot = self._slot_of(local)
        if slot != self._last_send_slot:
            self._last_send_slot, self._next_send_position = slot, 0
        if self.recorder is not None:
            self.recorder.sent(
                first_sequence=self.accepted,
                count=len(messages),
                sizes=[len(message) for message in messages],
                slot=slot,
                first_place=self.member * POSITIONS_PER_SENDER + self._next_send_position,
                real_ns=now,
                local_ns=local,
                priority=priority,
                destinations=destinations,
            )
        if self._scheduler.sent_payloads is not None:
            self._scheduler.sent_payloads.setdefault((self.member, self.incarnation), []).extend(messages)
        self._next_send_position += len(messages)
        self.accepted += len(messages)

    def _record(self, now: int, local: int, event: StackEvent) -> None:
        match event:
            case Batch():
                self._record_batch(now, local, event)
            case ViewChange():
                self._record_view(now, local, event)
            case TimingChange():
                extras = Extras(theta_ns=event.timing.theta_ns, bound_ns=event.bound_ns)
                self._record_event(EventKind.TIMING, now, local, event.slot, extras)
            case Violation():
                self.violations.append(event)
                slot = self._slot_of(local) if event.slot is None else event.slot
                self._record_event(EventKind.VIOLATION, now, local, slot, report_extras(event), subject=event.member)
            case Notice():
                self.notices.append(event)
                slot = self._slot_of(local) if event.slot is None else event.slot
                self._record_event(EventKind.NOTICE, now, local, slot, report_extras(event), subject=event.member)
            case LeaveComplete():
                self.inactive_until_ns = NEVER
                self._record_event(EventKind.LEAVE, now, local, event.final_slot + 1)
            case Gap():
                self._record_event(
                    EventKind.GAP, now, local, event.slot, subject=event.sender, subject_incarnation=event.incarnation
                )
            case QueueStep():
                if self.recorder is not None:
                    self.recorder.step(event, real_ns=now, local_ns=local)
            case _:
                assert_never(event)

    def _record_batch(self, now: int, local: int, batch: Batch) -> None:
        if batch.grade is Grade.FINAL:
            self.delivered_final += batch.count
        else:
            self.delivered += batch.count
            self._last_delivered_slot = batch.slot
        if self._scheduler.sent_payloads is not None:
            sent = self._scheduler.sent_payloads.get((batch.sender, batch.incarnation), [])
            if sent[batch.first_sequence : batch.first_sequence + batch.count] != batch.messages:
                raise PayloadMismatch(f"member {self.member} delivered other bytes than were sent: {batch}")
        if self.recorder is not None:
            self.recorder.delivered(
                sender=batch.sender,
                sender_incarnation=batch.incarnation,
                first_sequence=batch.first_sequence,
                count=batch.count,
                sizes=batch.sizes(),
                slot=batch.slot,
                first_place=batch.first_position,
                first_index=batch.first_index,
                real_ns=now,
                local_ns=local,
                priority=batch.priority,
                grade=None if batch.grade is None else batch.grade.value,
            )

    def _record_view(self, now: int, local: int, change: ViewChange) -> None:
        view = change.view
        if self.member in change.joined:
            self._record_event(EventKind.START, now, local, view.first_slot, Extras(bound_ns=self.bound_ns))
            if self.started_slot is None:  # else it comes back, and its application has gone on
                self._workload_start_ns = now
                self._plan_next_submission()
            self.started_slot = view.first_slot
        number = view.first_slot if change.view_id is None else change.view_id
        extras = view_extras(number, view.members, change.incarnations)
        self._record_event(EventKind.VIEW, now, local, view.first_slot, extras)

    def _record_event(
        self,
        kind: EventKind,
        now: int,
        local: int,
        slot: int,
        extras: Extras = NOTHING_MORE,
        *,
        subject: int | None = None,
        subject_incarnation: int | None = None,
    ) -> None:
        if self.recorder is not None:
            self.recorder.event(
                kind,
                slot=slot,
                real_ns=now,
                local_ns=local,
                subject=subject,
                subject_incarnation=subject_incarnation,
                extras=extras,
            )
