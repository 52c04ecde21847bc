"""Runs one stack under asyncio: moves bytes, time and events between the stack, the socket and the application.

The driver makes no protocol decision. It has three duties of its own:

- It reads all datagrams that have arrived before it fires a timer (erratum 000-22).
- It limits the application's event queue. If the application does not keep up, the driver stops reading the socket and
  sending end-of-slot marks. Without failures this slows the whole group down and loses nothing. With failures the
  other members continue without this one.
- It records the trace.

Sending: `send` takes messages on `credit` that the stack has granted, and the driver submits them together before any
other input, at the latest at the end of the turn (`turn`). Without credit, `submit` queues messages by priority until
the stack accepts them. Receiving: `_on_datagrams` gives datagrams to the stack, `_flush` carries out the effects of the
inputs, and `pop` and `consume` give events to the application.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import TypeVar

from unisono.errors import (
    DestinationNotAllowed,
    GroupClosed,
    Infeasible,
    InvalidOption,
    InvariantViolated,
    MessageTooLarge,
    StorageError,
    UnisonoError,
    WrongEventLoop,
)
from unisono.model.effects import Datagram, Write
from unisono.model.events import (
    Batch,
    Gap,
    LeaveComplete,
    Notice,
    QueueStep,
    Rejoining,
    Sending,
    SlaVerdict,
    SlotSkipped,
    StackEvent,
    TimingChange,
    ViewChange,
    Violation,
    ViolationKind,
)
from unisono.model.policy import PRIORITY_MAX
from unisono.model.sla import MetricRow
from unisono.model.units import NS_PER_S, Rate, duration_text
from unisono.qos.adapt.estimate import Estimate
from unisono.qos.watch.observer import QosObserver
from unisono.runtime.environment import Environment, Transport
from unisono.runtime.log_lines import GroupLog
from unisono.runtime.storage import Storage
from unisono.runtime.timers import LocalClock
from unisono.runtime.turn import Credit, Turn
from unisono.runtime.watch import Watch
from unisono.stack import Stack, carry_out
from unisono.trace.event_rows import EventRecorder
from unisono.trace.recorder import Recorder

DriverEvent = Batch | ViewChange | TimingChange | Gap | Violation | Notice
"""An event in the driver's queue for the application."""

_CLOCK_CHECK_INTERVAL_NS = NS_PER_S
_MIN_SUBMIT_MESSAGES = 256
_LOGGER = logging.getLogger("unisono")
_Argument = TypeVar("_Argument")
STALE_CREDIT_NS = 5_000_000
"""Messages taken longer ago than this are submitted with the present clock reading: this process stood still."""
QUEUE_BYTES = 32 << 20
"""The size of the events that may wait for the application, at most."""
_EVENT_BYTES = 512
"""What an event needs besides its messages, roughly."""


class Driver:
    """Runs one member's stack on a transport, a clock and an alarm, and queues its events for the application."""

    def __init__(
        self,
        stack: Stack,
        transport: Transport,
        clock: LocalClock,
        environment: Environment,
        *,
        recorder: Recorder | None = None,
        qos_observer: QosObserver | None = None,
        on_metrics: Callable[[Sequence[MetricRow]], None] | None = None,
        storage: Storage | None = None,
        queue_messages: int = 1_000_000,
        queue_bytes: int = QUEUE_BYTES,
        deadline_ns: int | None = None,
        log: GroupLog,
    ) -> None:
        """The driver calls `on_metrics`, which must not block, with the metric rows of each collecting interval."""
        self.stack = stack
        self.transport = transport
        self.clock = clock
        self.delivered = 0
        self.sent = self._sent_in_past_incarnations = 0
        """How many messages the stack has accepted, and how many of these in earlier incarnations of this member."""
        self.left: LeaveComplete | None = None
        self.view = stack.policy.view
        self._loop = asyncio.get_running_loop()
        self.alarm = environment.open_alarm(stack.policy.member, clock, self._on_alarm)
        self._rows = None
        if recorder is not None:
            self._rows = EventRecorder(recorder, stack.policy.member, stack.slot_of, stack.declared_bound_ns)
        self.qos_observer = stack.observer = qos_observer
        self._on_metrics = None if on_metrics is None else self.logging_errors(on_metrics, "the function for metrics")
        self._storage = storage
        self._queue_limits = (queue_messages, queue_bytes)
        self._deadline_ns = deadline_ns
        self.watch = Watch(stack, clock, log, deadline_ns)
        """Writes log lines, and counts events for `Status`."""
        self._queue: deque[DriverEvent] = deque()
        self._queued_messages = 0
        self._queued_bytes = 0
        self._paused = self._leaving = False
        self._submissions = Submissions()
        self._slot_change_waiters: list[tuple[int, asyncio.Future[None]]] = []
        """The slot lengths in ns that callers of `change_slot` wait for, each with the caller's future."""
        # No slot accepts more than a burst, so the driver submits many messages in parts of about that size.
        self._max_submit_messages = max(stack.policy.rate.burst, _MIN_SUBMIT_MESSAGES)
        self._next_clock_check_ns = 0
        self._clock_step_reported = False
        self._loss_reported = False
        self._failure: BaseException | None = None
        self._closed = False
        self._changed = asyncio.Event()
        self._input_done = asyncio.Event()
        """Set after each input to the stack, and when the driver stops."""
        self.close_with: list[Callable[[], None]] = []
        """Functions that close what belongs to this member, to call when the driver stops."""
        self.turn = Turn(self._loop, self._on_turn_end)
        """The time that the calls of the application may use before the event loop has its next turn."""
        self.credit = Credit(self._loop, stack.policy.max_message)
        """The messages that were sent in this turn, and how many more the declared rate allows."""
        self._accepted_early: Submission | None = None
        """Messages that `send` had accepted before this process stood still, and that wait since then."""
        self._step_is_due = False
        """Whether the stack has such messages whose effects were not carried out yet."""
        transport.attach(self._loop, self._on_datagrams, self._flush)

    def start(self) -> None:
        """Wake the stack for the first time, and carry out its effects."""
        self.stack.wake(self.clock.now())
        self._flush()

    # -- datagrams and time ----------------------------------------------------------------------------------

    def _on_datagrams(self, data: bytes, start: int, end: int, segment: int, multicast: bool) -> None:
        try:
            self.stack.receive_segments(self._input_time(), data, start, end, segment, multicast=multicast)
        except Exception as error:  # noqa: BLE001 - a defect must close this group with an error, not end the event loop
            self._fail(error)

    def _on_alarm(self) -> None:
        if self._closed or self._paused:
            return
        self.transport.drain()
        try:
            now = self._input_time()
            if now >= self._next_clock_check_ns:
                self._next_clock_check_ns = now + _CLOCK_CHECK_INTERVAL_NS
                self._check_clock_and_losses()
                self.watch.check(now)
                self._report_late()
            self.stack.wake(now)
            if (
                self._on_metrics is not None
                and self.qos_observer is not None
                and (rows := self.qos_observer.pop_rows())
            ):
                self._on_metrics(rows)
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(error)
        self._flush()

    def logging_errors(self, callback: Callable[[_Argument], None], name: str) -> Callable[[_Argument], None]:
        """A function that calls the application's `callback` and logs its exceptions: they must not end the group."""

        def call(argument: _Argument) -> None:
            try:
                callback(argument)
            except Exception:
                text = "group %r, member %d: %s raised an exception; the group continues"
                _LOGGER.exception(text, self.stack.policy.group, self.stack.policy.member, name)

        return call

    def _check_clock_and_losses(self) -> None:
        """Slew toward the system's clock. Report once if that clock was set, and once if datagrams were lost."""
        lost = self.transport.dropped() + sum(self.transport.errors.values())
        if lost and not self._loss_reported:
            self._loss_reported = True
            text = (
                f"this member's own sockets lost datagrams: the kernel dropped {self.transport.dropped()} because the "
                f"receive buffer was full; socket errors: {dict(self.transport.errors) or 'none'}"
            )
            self.report_violation(Violation(ViolationKind.SOCKET, text, self.stack.policy.member))
        ahead = self.clock.slew_toward_system()
        if ahead and not self._clock_step_reported:
            direction = "ahead of" if ahead > 0 else "behind"
            text = (
                f"this machine's clock was set: it is {duration_text(abs(ahead))} {direction} the time of this member; "
                "members that join from now on will not agree with this member's time"
            )
            self.report_violation(Violation(ViolationKind.CLOCK, text, self.stack.policy.member))
        self._clock_step_reported = bool(ahead)

    def _flush(self) -> None:
        """After an input to the stack: carry out its effects, then submit waiting messages, which may fit now."""
        self._input_done.set()
        if self._closed:
            return
        try:
            if self.credit.taken:
                self._submit_taken()
            self._carry_out_step()
            if self._submissions.first is not None and self._submit_waiting():
                self._carry_out_step()
        except Exception as error:  # noqa: BLE001 - as above; without an alarm the group would end silently
            self._fail(error)
            return
        if self.left is not None:
            self._changed.set()  # `leave` waits until the last datagrams are out
            if not self._leaving and self.transport.writable():
                self.close()  # the group excluded this member; the application can still read the reason from the queue

    def _carry_out_step(self) -> None:
        self._step_is_due = False
        effects = self.stack.step()
        carry_out(effects, self)
        if effects.events:
            if self.watch.late_to_report:
                self._report_late()
            self._changed.set()
            if self._queued_messages > self._queue_limits[0] or self._queued_bytes > self._queue_limits[1]:
                self._pause_input()

    def persist(self, records: Sequence[Write]) -> None:
        """Write these records to this member's storage. Does nothing if the member has no storage."""
        if self._storage is not None:
            self._storage.apply(records)

    def transmit(self, datagrams: Sequence[Datagram]) -> None:
        """Pass datagrams to the transport, which sends them or keeps them until the socket has room."""
        self.transport.send(datagrams)

    def set_alarm(self, at: int | None) -> None:
        """Set the alarm that wakes the stack. Does nothing while input is paused: no slot may end then."""
        if not self._paused:
            self.alarm.set(at)

    def on_event(self, event: StackEvent) -> None:
        """Record an event of the stack in the trace, and queue it for the application."""
        if isinstance(event, Batch):
            self.delivered += event.count
        if self._rows is not None:
            now = self.clock.now()
            self._rows.record_event(event, real_ns=self.clock.system_ns(now), local_ns=now)
        self.watch.on_event(event)
        match event:
            case LeaveComplete():
                self.left = event
            case SlotSkipped() | QueueStep():
                pass
            case TimingChange():
                self._resolve_slot_waiters(event.timing.theta_ns)
                self._enqueue(event)
                if self._exceeds_deadline(event.bound_ns):
                    self._report_missed_deadline(event)
            case _:
                if isinstance(event, ViewChange):
                    self.view = event.view
                elif isinstance(event, Rejoining):
                    self._sent_in_past_incarnations = self.sent
                self._enqueue(event)

    def _report_missed_deadline(self, change: TimingChange) -> None:
        bound, deadline = duration_text(change.bound_ns), duration_text(self._deadline_ns or 0)
        text = (
            f"the group changed its slot length: the latency bound is now {bound}, more than the deadline of {deadline}"
        )
        self.report_violation(Violation(ViolationKind.DEADLINE, text, self.stack.policy.member, change.slot))

    def _report_late(self) -> None:
        """Queue and record the reports about late deliveries that are due."""
        for report in self.watch.late_reports():
            if self._rows is not None:
                now = self.clock.now()
                self._rows.record_event(report, real_ns=self.clock.system_ns(now), local_ns=now)
            self._enqueue(report)
            self._changed.set()

    # -- to and from the application -------------------------------------------------------------------------

    async def submit(
        self,
        messages: Sequence[bytes],
        priority: int = 0,
        groups: tuple[str, ...] | None = None,
        sending: Sending | None = None,
    ) -> None:
        """Submit messages; wait until the stack has accepted all of them (back-pressure).

        Waiting messages of higher priority are submitted first. `sending` counts the accepted messages.
        """
        self.check_event_loop()
        self.raise_if_closed()
        largest, limit = max(map(len, messages), default=0), self.stack.policy.max_message
        if largest > limit:
            raise MessageTooLarge(largest, limit)  # before any message of this call is sent
        if groups is not None:
            self.stack.destinations(groups)  # raises DestinationNotAllowed
        done = self._loop.create_future()
        submission = Submission(messages, done, priority, groups=groups)
        is_first = self._submissions.put(submission)
        must_wait = self.turn.is_over() or len(self.credit.taken) >= self.turn.messages_left
        if must_wait or not is_first:
            self.credit.stop()  # the messages wait until `_on_turn_end`, and later ones must not overtake them
        else:
            self.turn.messages_left -= len(messages)
            self._flush_submissions()
        try:
            await done
        except BaseException as error:  # a cancelled call tells the number too
            accepted = submission.accepted_count
            error.add_note(f"{accepted} of {len(messages)} messages were accepted; the others are not sent")
            raise
        finally:
            if sending is not None:
                sending.accepted += submission.accepted_count

    def _flush_submissions(self) -> None:
        try:
            if self.credit.taken:
                self._submit_taken()
            if self._submit_waiting():
                self._carry_out_step()
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(error)

    def take_first(self, message: bytes) -> bool:
        """Take one message and grant credit for more of them in this turn; False if that is not possible now.

        It is possible if no other message waits and the declared rate has room. Messages taken in one turn of the event
        loop go to the stack together, which costs far less per message than `submit`. After False the caller must
        `submit` the message.
        """
        if (
            self.credit.taken
            or self._submissions.first is not None
            or self._closed
            or self.left is not None
            or self._paused
            or not self.transport.writable()
            or self.turn.is_over()
        ):
            return False
        now = self.clock.now()
        try:
            messages_left, bytes_left = self.stack.room(now)
        except Exception as error:  # noqa: BLE001 - as above; `submit` raises the error to the caller
            self._fail(error)
            return False
        self.credit.grant(now, min(messages_left, self.turn.messages_left), bytes_left, self.turn.ends_at or 0.0)
        if self.credit.take(message):
            return True
        self.credit.stop()
        return False

    def _on_turn_end(self) -> None:
        if self.credit.taken or self._step_is_due or self._submissions.first is not None:
            self._flush()

    def _input_time(self) -> int:
        """The clock reading for the next input to the stack. Messages taken before it go to the stack first."""
        if self.credit.taken:
            self._submit_taken()
        return self.clock.now()

    def _submit_taken(self) -> None:
        """Submit the messages that `take` has taken. The stack has promised to accept them at that clock reading.

        If the process has stood still since then, the promise is void: the stack must notice the pause first. Then the
        messages that it does not accept wait, ahead of all others.
        """
        granted_ns, messages = self.credit.granted_ns, self.credit.settle()
        self._step_is_due = True
        self.turn.messages_left -= len(messages)
        now = self.clock.now()
        is_stale = now - granted_ns > STALE_CREDIT_NS
        try:
            if not is_stale:
                now = granted_ns
            accepted = self.stack.submit(now, messages)
            self._record_sent(now, messages[:accepted], 0, None)
            if is_stale:
                self._put_first(messages[accepted:])
            else:
                self.check_room(len(messages), accepted)
        except Exception as error:
            self._fail(error)  # `send` has accepted these messages: without them this member must not go on
            raise

    def _put_first(self, messages: Sequence[bytes]) -> None:
        """Let messages that `send` has accepted wait ahead of all others."""
        if messages:
            done = self._loop.create_future()
            done.add_done_callback(_retrieve_exception)  # no caller waits for it
            self._accepted_early = Submission(tuple(messages), done, 0)
            self._submissions.put(self._accepted_early, PRIORITY_MAX + 1)

    def check_room(self, promised: int, accepted: int) -> None:
        """Raise InvariantViolated unless the stack has accepted all messages for which it had promised room."""
        if accepted < promised:
            text = "the stack did not accept all messages for which it had promised room"
            raise InvariantViolated("room", self.stack.policy.member, text, str(promised), str(accepted))

    def _submit_waiting(self) -> bool:
        """Submit waiting messages until one does not fit; return whether the stack accepted any."""
        before = self.sent
        while (first := self._submissions.first) is not None:
            while not first.done.done():
                part = first.messages[first.accepted_count : first.accepted_count + self._max_submit_messages]
                try:
                    accepted = self._submit_to_stack(part, first.priority, first.groups)
                except DestinationNotAllowed as error:  # the topology changed while the messages waited
                    first.done.set_exception(error)
                    break
                first.accepted_count += accepted
                if first.accepted_count == len(first.messages):
                    first.done.set_result(None)
                elif accepted < len(part):
                    return self.sent > before
            self._submissions.pop()
        return self.sent > before

    def _submit_to_stack(self, messages: Sequence[bytes], priority: int, groups: tuple[str, ...] | None) -> int:
        # Submitting a message may end slots. While input is paused no slot may end, so that the group waits.
        if self._paused or not self.transport.writable():
            return 0
        now = self.clock.now()
        if groups is not None:
            accepted = self.stack.submit_to(now, messages, groups)
        else:
            accepted = self.stack.submit(now, messages, priority) if priority else self.stack.submit(now, messages)
        if accepted:
            self._record_sent(now, messages[:accepted], priority, groups)
            if groups is not None and self.stack.policy.member not in self.stack.destinations(groups):
                self.watch.on_sent_elsewhere(accepted)
        return accepted

    def _record_sent(self, now: int, messages: Sequence[bytes], priority: int, groups: tuple[str, ...] | None) -> None:
        if self._rows is not None:
            self._rows.record_sent(
                self.sent - self._sent_in_past_incarnations,
                list(map(len, messages)),
                real_ns=self.clock.system_ns(now),
                local_ns=now,
                priority=priority if priority or self.stack.application_pulls else None,
                destinations=None if groups is None else self.stack.destinations(groups),
            )
        self.sent += len(messages)

    def _enqueue(self, event: DriverEvent) -> None:
        messages, size = queue_cost(event)
        self._queued_messages += messages
        self._queued_bytes += size
        self._queue.append(event)

    def waiting_events(self) -> Iterable[DriverEvent]:
        """The events that the application has not taken yet, in order."""
        return self._queue

    def pop(self) -> DriverEvent | None:
        """Take the next event for the application; None if there is none."""
        if not self._queue:
            return None
        event = self._queue.popleft()
        messages, size = queue_cost(event)
        self._queued_messages -= messages
        self._queued_bytes -= size
        if (
            self._paused
            and self._queued_messages * 2 < self._queue_limits[0]
            and self._queued_bytes * 2 < self._queue_limits[1]
        ):
            self._resume_input()
        return event

    def consume(self) -> Batch | None:
        """In the priority order: deliver the next message; None if no message can be delivered now."""
        self.check_event_loop()
        if self._closed:
            return None
        now = self._input_time()
        try:
            batch = self.stack.consume(now)
        except InvariantViolated as error:
            self._fail(error)
            raise
        if batch is not None:
            self.delivered += batch.count
            if self._rows is not None:
                self._rows.record_event(batch, real_ns=self.clock.system_ns(now), local_ns=now)
            self._flush()
        return batch

    @property
    def queue_messages(self) -> int:
        """How many deliveries may wait for the application."""
        return self._queue_limits[0]

    @property
    def queue_bytes(self) -> int:
        """The size of the events that may wait for the application, at most."""
        return self._queue_limits[1]

    def announce_change(self) -> None:
        """Wake the calls that wait for a change."""
        self._changed.set()

    async def next_turn(self) -> None:
        """Wait until the event loop has had its next turn."""
        await asyncio.sleep(0)

    async def wait_for_change(self) -> None:
        """Wait until there is an event for the application, or the driver has stopped."""
        self.check_event_loop()
        self.raise_if_failed()
        if not self._closed:
            self._changed.clear()
            await self._changed.wait()

    async def wait_for_input(self) -> None:
        """Wait until the stack has had its next input, such as datagrams or a timer, or the driver has stopped."""
        self._input_done.clear()
        await self._input_done.wait()

    def report_violation(self, violation: Violation) -> None:
        """Queue a violation that the driver itself has found."""
        self.watch.on_violation(violation)
        self._enqueue(violation)
        self._changed.set()

    @property
    def sent_by_this_incarnation(self) -> int:
        """How many messages the stack has accepted in the present incarnation of this member."""
        return self.sent - self._sent_in_past_incarnations

    @property
    def accepted_by_this_incarnation(self) -> int:
        """How many messages this incarnation has accepted for sending, those of the present turn included."""
        return self.sent_by_this_incarnation + len(self.credit.taken) + self._accepted_and_waiting()

    def _accepted_and_waiting(self) -> int:
        """How many messages wait although `send` has accepted them."""
        early = self._accepted_early
        return 0 if early is None or early.done.done() else len(early.messages) - early.accepted_count

    def queue_lengths(self) -> tuple[int, int]:
        """How many messages wait to be sent, and how many deliveries and other events wait for the application."""
        waiting = self._submissions.waiting_messages() + len(self.credit.taken)
        return waiting, self._queued_messages + self.stack.queued()

    def counters(self) -> dict[str, int]:
        """All counters of the stack, the storage and the transport, by names such as "storage.syncs"."""
        found = self.stack.counters()
        found |= {f"transport.{name}": count for name, count in self.transport.counters().items()}
        if self._storage is not None:
            found |= {f"storage.{name}": count for name, count in self._storage.counters().items()}
        return found

    def last_violation_text(self) -> str:
        """The text of the newest violation that the application has not taken yet, or "no reason is known"."""
        return next(
            (event.text for event in reversed(self._queue) if isinstance(event, Violation)), "no reason is known"
        )

    @property
    def accepted(self) -> int:
        """How many messages this member has accepted for sending, those of the present turn included."""
        return self.sent + len(self.credit.taken) + self._accepted_and_waiting()

    @property
    def closed(self) -> bool:
        """Whether the driver has stopped: it sends and receives no more."""
        return self._closed

    # -- back-pressure ---------------------------------------------------------------------------------------

    def _pause_input(self) -> None:
        """Stop reading the socket and ending slots until the application has taken enough events from the queue."""
        if not self._paused and not self._leaving:
            self._paused = True
            self.watch.on_paused(self._queued_messages)
            self.transport.pause_reading()
            self.alarm.set(None)

    def _resume_input(self) -> None:
        self._paused = False
        self.watch.on_resumed()
        self.transport.resume_reading()
        self._loop.call_soon(self._on_alarm)

    # -- control and the end ---------------------------------------------------------------------------------

    def change_rate(self, rate: Rate) -> None:
        """Change this member's rate. If this raises ReservationRefused, the old rate stays in force."""
        self.check_event_loop()
        self.raise_if_closed()
        with self._stops_if_violated():
            self.stack.change_rate(self._input_time(), rate)
        self._max_submit_messages = max(rate.burst, _MIN_SUBMIT_MESSAGES)
        self._flush()

    def change_slot(self, theta_ns: int, rate: Rate | None) -> asyncio.Future[None]:
        """Ask the group for slots of length `theta_ns`. The future is done when this member uses that slot length."""
        self.check_event_loop()
        self.raise_if_closed()
        now, grid = self._input_time(), self.stack.grid
        bound_ns = self.stack.bound_ns() + theta_ns - grid.last_segment.theta_ns
        if self._deadline_ns is not None and self._exceeds_deadline(bound_ns):
            why = f"with slots of {duration_text(theta_ns)} the latency bound would be {duration_text(bound_ns)}"
            raise Infeasible(self._deadline_ns, self.stack.bound_ns(), why)
        with self._stops_if_violated():
            self.stack.change_slot(now, theta_ns, rate)
        if rate is not None:
            self._max_submit_messages = max(rate.burst, _MIN_SUBMIT_MESSAGES)
        done = self._loop.create_future()
        if theta_ns == grid.last_segment.theta_ns and grid.slot_of(now) >= grid.last_segment.first_slot:
            done.set_result(None)
        else:
            self._slot_change_waiters.append((theta_ns, done))
        self._flush()
        return done

    def _exceeds_deadline(self, bound_ns: int) -> bool:
        return self._deadline_ns is not None and bound_ns > self._deadline_ns

    def announce_verdicts(self, network: Estimate | None, verdicts: Sequence[SlaVerdict]) -> None:
        """Multicast SLA verdicts about the whole group, and the settings that it needs.

        All members receive both at the same point of the order.
        """
        self.check_event_loop()
        self.raise_if_closed()
        if self.qos_observer is None:
            raise InvalidOption("sla", "this group has no agreements; join with observe=Observe(sla=…)")
        now = self._input_time()
        with self._stops_if_violated():
            self.qos_observer.announce(now, network, verdicts)
            self.stack.wake(now)
        self._flush()

    def _resolve_slot_waiters(self, theta_ns: int) -> None:
        for awaited_ns, done in self._slot_change_waiters:
            if awaited_ns == theta_ns and not done.done():
                done.set_result(None)
        self._slot_change_waiters = [wait for wait in self._slot_change_waiters if not wait[1].done()]

    async def change_topology(self, sends: Sequence[str]) -> None:
        """Ask this member's group to send to these groups, and wait until all groups concerned have made the change."""
        self.check_event_loop()
        self.raise_if_closed()
        with self._stops_if_violated():
            done = self.stack.change_topology(self._input_time(), sends)
        self._flush()
        while not done():
            self.raise_if_closed()
            await self.wait_for_change()

    def leave(self) -> None:
        """Start to leave the group; `left` is set when this is done. The application need not take events any more."""
        if self._closed:
            return
        self._leaving = True
        if self._paused:
            self._resume_input()
        with self._stops_if_violated():
            self.stack.leave(self._input_time())
        self._flush()

    def close(self) -> None:
        """Stop at once. Callers that still wait in `submit` or for a slot change get an error."""
        if self._closed:
            return
        self._closed = True
        taken = len(self.credit.settle()) + self._accepted_and_waiting()
        self.alarm.close()
        self.transport.close()
        for close in self.close_with:
            try:
                close()
            except Exception:
                _LOGGER.exception("group %r: cannot close what belongs to this member", self.stack.policy.group)
        if self._storage is not None:
            self._storage.close()
        accepted = self.sent_by_this_incarnation + taken
        self.watch.on_closed(accepted, self._submissions.waiting_messages(), self._failure)
        for waiting in self._submissions.pop_all():
            if not waiting.done.done():
                waiting.done.set_exception(
                    self._failure_error() or GroupClosed("this member left the group before these messages were sent")
                )
        for _, done in self._slot_change_waiters:
            if not done.done():
                done.set_exception(
                    self._failure_error() or GroupClosed("this member left the group before the slot length changed")
                )
                done.exception()  # so that asyncio does not warn if the caller never awaits the future
        self._slot_change_waiters.clear()
        self._changed.set()
        self._input_done.set()

    def _fail(self, error: BaseException) -> None:
        """Stop at once because of an error. Only the first error is kept: later ones may be its consequences."""
        if self._failure is None:
            self._failure = error
        self.close()

    @contextmanager
    def _stops_if_violated(self) -> Iterator[None]:
        """Stop this member if the block raises InvariantViolated, and raise the error again."""
        try:
            yield
        except InvariantViolated as error:
            self._fail(error)
            raise

    def _failure_error(self) -> UnisonoError | None:
        """A new error for each caller, because each call adds its own note; None if the driver has not failed."""
        if self._failure is None:
            return None
        if isinstance(self._failure, StorageError | InvariantViolated):
            own = copy(self._failure).with_traceback(self._failure.__traceback__)
            own.__cause__ = self._failure.__cause__
            return own
        error = UnisonoError(f"the group's driver stopped: {self._failure!r}")
        error.__cause__ = self._failure
        return error

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop in which the driver runs."""
        return self._loop

    def check_event_loop(self) -> None:
        """Raise WrongEventLoop unless the caller runs in the driver's event loop: the driver has no locks."""
        try:
            running: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is not self._loop:
            raise WrongEventLoop

    def raise_if_failed(self) -> None:
        """Raise the error that stopped the driver, if there was one."""
        error = self._failure_error()
        if error is not None:
            raise error

    def raise_if_closed(self) -> None:
        """Raise the error that stopped the driver, or GroupClosed if this member has left the group."""
        self.raise_if_failed()
        if self._closed or self.left is not None:
            raise GroupClosed("this member has left the group")


def _retrieve_exception(done: asyncio.Future[None]) -> None:
    """Keep asyncio from warning about an exception for which no caller waits."""
    if not done.cancelled():
        done.exception()


def queue_cost(event: DriverEvent) -> tuple[int, int]:
    """How many messages and how many bytes an event counts for against the limits of the event queue."""
    return (event.count, event.payload_bytes + _EVENT_BYTES) if isinstance(event, Batch) else (1, _EVENT_BYTES)


@dataclass(slots=True)
class Submission:
    """The messages of one call of `submit`, which wait until the stack accepts them."""

    messages: Sequence[bytes]
    done: asyncio.Future[None]
    priority: int = 0
    accepted_count: int = 0
    """How many of the messages, counted from the first, the stack has accepted."""
    groups: tuple[str, ...] | None = None
    """The groups to send to, in an order over several groups; None in other orders."""


class Submissions:
    """Messages that the stack has not accepted yet: one queue per priority, first come first served in each.

    In every order but the priority orders, this is the only place where a priority counts: waiting messages of higher
    priority go first. Accepted messages are ordered as if they had no priority. Messages of a low priority wait while
    those of higher priorities fill this member's slots.
    """

    __slots__ = ("_levels", "_queues", "first")

    def __init__(self) -> None:
        self._queues: dict[int, deque[Submission]] = {}
        self._levels: list[int] = []
        """The priorities for which messages wait, ascending."""
        self.first: Submission | None = None
        """The submission to pass to the stack next: the oldest of the highest priority; None if none waits."""

    def put(self, submission: Submission, level: int | None = None) -> bool:
        """Add a submission; return whether it is the next one to pass to the stack. `level` is its priority here."""
        level = submission.priority if level is None else level
        queue = self._queues.get(level)
        if queue is None:
            queue = self._queues[level] = deque()
            insort(self._levels, level)
        queue.append(submission)
        self._find_first()
        return self.first is submission

    def pop(self) -> None:
        """Remove the submission in `first`, and set `first` to the next one."""
        level = self._levels[-1]
        self._queues[level].popleft()
        if not self._queues[level]:
            del self._queues[level], self._levels[-1]
        self._find_first()

    def waiting_messages(self) -> int:
        """How many messages wait, of callers that still wait for them."""
        waiting = (each for queue in self._queues.values() for each in queue if not each.done.done())
        return sum(len(each.messages) - each.accepted_count for each in waiting)

    def pop_all(self) -> list[Submission]:
        """Remove and return all submissions."""
        waiting = [submission for level in reversed(self._levels) for submission in self._queues[level]]
        self._queues.clear()
        self._levels.clear()
        self.first = None
        return waiting

    def _find_first(self) -> None:
        self.first = self._queues[self._levels[-1]][0] if self._levels else None
