"""Runs one stack under asyncio: moves bytes, time and events between the stack, the socket and the application.

No protocol decision is made here. The driver's own duties are order (what arrived is taken in before timers fire,
erratum 000-22), bounds (an application that does not consume stops the reading of the socket and the sending of
end-of-slot marks: without failures that holds the whole group back instead of losing anything, with them the others go
on without this member) and the trace.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from unisono.errors import (
    DestinationNotAllowed,
    GroupClosed,
    Infeasible,
    InvalidOption,
    MessageTooLarge,
    StorageError,
    UnisonoError,
)
from unisono.model.durations import NS_PER_S, duration_text
from unisono.model.effects import Datagram
from unisono.model.events import (
    Batch,
    Gap,
    LeaveComplete,
    Notice,
    QueueStep,
    Rejoining,
    SlaVerdict,
    StackEvent,
    TimingChange,
    ViewChange,
    Violation,
    ViolationKind,
)
from unisono.model.metrics import MetricRow
from unisono.model.rates import Rate
from unisono.model.stored_records import Write
from unisono.qos.adapt.estimate import Estimate
from unisono.qos.watch.observer import QosObserver
from unisono.runtime.clock import LocalClock
from unisono.runtime.environment import Environment, Transport
from unisono.runtime.storage import Storage
from unisono.runtime.submissions import Submission, Submissions
from unisono.stack import Stack, carry_out
from unisono.trace.event_rows import EventRecorder
from unisono.trace.recorder import Recorder

DriverEvent = Batch | ViewChange | TimingChange | Violation | Notice
"""What the application sees."""

_CLOCK_CHECK_INTERVAL_NS = NS_PER_S
_MIN_SUBMIT_MESSAGES = 256


class Driver:
    """One member's stack, running."""

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
        queue_bytes: int = 256 * 1024 * 1024,
        deadline_ns: int | None = None,
    ) -> None:
        """`on_metrics` is given the rows that `oversight` collects, interval by interval; it must not block."""
        self.stack = stack
        self.transport = transport
        self.clock = clock
        self.delivered = 0
        self.sent = self._sent_in_past_incarnations = 0
        """How many messages the stack has taken; and how many of them in lives that are over."""
        self.left: LeaveComplete | None = None
        self.view = stack.policy.view
        self._loop = asyncio.get_running_loop()
        self.alarm = environment.open_alarm(stack.policy.member, clock, self._on_alarm)
        self._rows = None
        if recorder is not None:
            self._rows = EventRecorder(recorder, stack.policy.member, stack.slot_of, stack.declared_bound_ns)
        self.qos_observer = stack.observer = qos_observer
        self._on_metrics = on_metrics
        self._storage = storage
        self._queue_limits = (queue_messages, queue_bytes)
        self._deadline_ns = deadline_ns
        self._queue: deque[DriverEvent] = deque()
        self._queued_messages = 0
        self._queued_bytes = 0
        self._paused = self._leaving = False
        self._submissions = Submissions()
        self._slot_change_waiters: list[tuple[int, asyncio.Future[None]]] = []
        """Slot lengths that were asked for, and who waits for them."""
        # No slot takes more than a burst, so a long submission is offered in pieces of about that size.
        self._max_submit_messages = max(stack.policy.rate.burst, _MIN_SUBMIT_MESSAGES)
        self._next_clock_check_ns = 0
        self._clock_step_reported = False
        self._loss_reported = False
        self._failure: BaseException | None = None
        self._closed = False
        self._changed = asyncio.Event()
        transport.attach(self._loop, self._on_datagrams, self._flush)

    def start(self) -> None:
        """Wake the stack for the first time."""
        self.stack.wake(self.clock.now())
        self._flush()

    # -- from the machine ------------------------------------------------------------------------------------

    def _on_datagrams(self, data: bytes, start: int, end: int, segment: int, multicast: bool) -> None:
        try:
            self.stack.receive_segments(self.clock.now(), data, start, end, segment, multicast=multicast)
        except Exception as error:  # noqa: BLE001 - a defect of ours must end this group loudly, not the event loop
            self._fail(error)

    def _on_alarm(self) -> None:
        if self._closed or self._paused:
            return
        self.transport.drain()
        try:
            now = self.clock.now()
            if now >= self._next_clock_check_ns:
                self._next_clock_check_ns = now + _CLOCK_CHECK_INTERVAL_NS
                self._check_clock_and_losses()
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

    def _check_clock_and_losses(self) -> None:
        """Slew toward the system's clock; when somebody has set that, say so once. Likewise for lost datagrams."""
        lost = self.transport.dropped() + sum(self.transport.errors.values())
        if lost and not self._loss_reported:
            self._loss_reported = True
            text = (
                f"this member's own sockets have lost datagrams: {self.transport.dropped()} arrived when the receive "
                f"buffer was full, errors in sending: {dict(self.transport.errors) or 'none'}"
            )
            self.report_violation(Violation(ViolationKind.SOCKET, text, self.stack.policy.member))
        ahead = self.clock.slew_toward_system()
        if ahead and not self._clock_step_reported:
            way = "ahead of" if ahead > 0 else "behind"
            text = (
                f"this machine's clock was set: it is {duration_text(abs(ahead))} {way} the time that this member "
                "keeps; members that join from now on do not agree with it"
            )
            self.report_violation(Violation(ViolationKind.CLOCK, text, self.stack.policy.member))
        self._clock_step_reported = bool(ahead)

    def _flush(self) -> None:
        """After any input: carry out its effects, then submit waiting messages, for which there may be room now."""
        if self._closed:
            return
        try:
            self._carry_out_step()
            if self._submissions.first is not None and self._submit_waiting():
                self._carry_out_step()
        except Exception as error:  # noqa: BLE001 - as above; an alarm that is never set again would be a silent end
            self._fail(error)
            return
        if self.left is not None:
            self._changed.set()  # a leaving application waits for the last datagrams to go out
            if not self._leaving and self.transport.writable():
                self.close()  # excluded: the reason is in the queue, which can still be read

    def _carry_out_step(self) -> None:
        effects = self.stack.step()
        carry_out(effects, self)
        if effects.events:
            self._changed.set()
            if self._queued_messages > self._queue_limits[0] or self._queued_bytes > self._queue_limits[1]:
                self._pause_input()

    def persist(self, records: Sequence[Write]) -> None:
        """Make records durable, if this member has storage."""
        if self._storage is not None:
            self._storage.apply(records)

    def transmit(self, datagrams: Sequence[Datagram]) -> None:
        """Send datagrams."""
        self.transport.send(datagrams)

    def set_alarm(self, at: int | None) -> None:
        """Set the alarm; while input is paused there is none, so that no slot ends."""
        if not self._paused:
            self.alarm.set(at)

    def on_event(self, event: StackEvent) -> None:
        """Record an event, and queue it for the application."""
        if isinstance(event, Batch):
            self.delivered += event.count
        if self._rows is not None:
            now = self.clock.now()
            self._rows.record_event(event, real_ns=self.clock.system_ns(now), local_ns=now)
        match event:
            case LeaveComplete():
                self.left = event
            case Gap() | QueueStep():
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
        text = f"the group changed its slot length: its bound is now {bound}, more than the deadline of {deadline}"
        self.report_violation(Violation(ViolationKind.DEADLINE, text, self.stack.policy.member, change.slot))

    # -- to and from the application -------------------------------------------------------------------------

    async def submit(self, messages: Sequence[bytes], priority: int = 0, groups: tuple[str, ...] | None = None) -> None:
        """Give messages to the stack; returns when all have been taken: back-pressure, never loss.

        Of those that wait, the ones of higher priority are offered first.
        """
        self.raise_if_closed()
        largest, limit = max(map(len, messages), default=0), self.stack.policy.max_message
        if largest > limit:
            raise MessageTooLarge(largest, limit)  # now, and not when the part before it has been sent
        if groups is not None:
            self.stack.destinations(groups)  # refused now, if it is
        done = self._loop.create_future()
        if self._submissions.put(Submission(messages, done, priority, groups=groups)):
            self._flush_submissions()
        await done

    def _flush_submissions(self) -> None:
        try:
            if self._submit_waiting():
                self._carry_out_step()
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(error)

    def _submit_waiting(self) -> bool:
        """Submit waiting messages, from the first on, until one does not fit; whether any was accepted."""
        before = self.sent
        while (first := self._submissions.first) is not None:
            while not first.done.done():
                piece = first.messages[first.accepted_count : first.accepted_count + self._max_submit_messages]
                try:
                    taken = self._submit_to_stack(piece, first.priority, first.groups)
                except DestinationNotAllowed as error:  # the topology has changed while it waited
                    first.done.set_exception(error)
                    break
                first.accepted_count += taken
                if first.accepted_count == len(first.messages):
                    first.done.set_result(None)
                elif taken < len(piece):
                    return self.sent > before
            self._submissions.pop()
        return self.sent > before

    def _submit_to_stack(self, messages: Sequence[bytes], priority: int, groups: tuple[str, ...] | None) -> int:
        # Taking a message may end slots; while held, no slot may end, or the others would go on without limit.
        if self._paused or not self.transport.writable():
            return 0
        now = self.clock.now()
        if groups is not None:
            taken = self.stack.submit_to(now, messages, groups)
        else:
            taken = self.stack.submit(now, messages, priority) if priority else self.stack.submit(now, messages)
        if taken:
            if self._rows is not None:
                self._rows.record_sent(
                    self.sent - self._sent_in_past_incarnations,
                    list(map(len, messages[:taken])),
                    real_ns=self.clock.system_ns(now),
                    local_ns=now,
                    priority=priority if priority or self.stack.application_pulls else None,
                    destinations=None if groups is None else self.stack.destinations(groups),
                )
            self.sent += taken
        return taken

    def _enqueue(self, event: DriverEvent) -> None:
        messages, size = _queue_cost(event)
        self._queued_messages += messages
        self._queued_bytes += size
        self._queue.append(event)

    def pop(self) -> DriverEvent | None:
        """The next happening for the application, if there is one."""
        if not self._queue:
            return None
        event = self._queue.popleft()
        messages, size = _queue_cost(event)
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
        """In the priority order: the next message, which is delivered by this; None if there is none to be had now."""
        if self._closed:
            return None
        now = self.clock.now()
        batch = self.stack.consume(now)
        if batch is not None:
            self.delivered += batch.count
            if self._rows is not None:
                self._rows.record_event(batch, real_ns=self.clock.system_ns(now), local_ns=now)
            self._flush()
        return batch

    async def wait_for_change(self) -> None:
        """Wait until something happens to the group: an event, its end."""
        self.raise_if_failed()
        if not self._closed:
            self._changed.clear()
            await self._changed.wait()

    def report_violation(self, violation: Violation) -> None:
        """Tell the application of something that the driver's surroundings do not hold."""
        self._enqueue(violation)
        self._changed.set()

    def last_violation_text(self) -> str:
        """What was said last of what does not hold."""
        return next(
            (event.text for event in reversed(self._queue) if isinstance(event, Violation)), "no reason is known"
        )

    @property
    def closed(self) -> bool:
        """Whether nothing more will happen."""
        return self._closed

    # -- holding back ----------------------------------------------------------------------------------------

    def _pause_input(self) -> None:
        """The application does not keep up: read nothing and end no slot until it does."""
        if not self._paused and not self._leaving:
            self._paused = True
            self.transport.pause_reading()
            self.alarm.set(None)

    def _resume_input(self) -> None:
        self._paused = False
        self.transport.resume_reading()
        self._loop.call_soon(self._on_alarm)

    # -- control and the end ---------------------------------------------------------------------------------

    def change_rate(self, rate: Rate) -> None:
        """Renegotiate; ReservationRefused leaves the old rate in force."""
        self.raise_if_closed()
        self.stack.change_rate(self.clock.now(), rate)
        self._max_submit_messages = max(rate.burst, _MIN_SUBMIT_MESSAGES)
        self._flush()

    def change_slot(self, theta_ns: int, rate: Rate | None) -> asyncio.Future[None]:
        """Ask the group for slots of another length; done when this member's have it."""
        self.raise_if_closed()
        now, grid = self.clock.now(), self.stack.grid
        bound_ns = self.stack.bound_ns() + theta_ns - grid.last_segment.theta_ns
        if self._deadline_ns is not None and self._exceeds_deadline(bound_ns):
            why = f"slots of {duration_text(theta_ns)} make the bound {duration_text(bound_ns)}"
            raise Infeasible(self._deadline_ns, self.stack.bound_ns(), why)
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
        """Tell the group, at one place in its order, of verdicts on it as a whole and of the settings it needs."""
        self.raise_if_closed()
        if self.qos_observer is None:
            raise InvalidOption("sla", "this group was joined without service level agreements")
        now = self.clock.now()
        self.qos_observer.announce(now, network, verdicts)
        self.stack.wake(now)
        self._flush()

    def _resolve_slot_waiters(self, theta_ns: int) -> None:
        for awaited_ns, done in self._slot_change_waiters:
            if awaited_ns == theta_ns and not done.done():
                done.set_result(None)
        self._slot_change_waiters = [wait for wait in self._slot_change_waiters if not wait[1].done()]

    async def change_topology(self, sends: Sequence[str]) -> None:
        """Ask the own group to send to these groups, and wait until all that it concerns follow."""
        self.raise_if_closed()
        done = self.stack.change_topology(self.clock.now(), sends)
        self._flush()
        while not done():
            self.raise_if_closed()
            await self.wait_for_change()

    def leave(self) -> None:
        """Depart in order; `left` is set when it is done. An application that leaves need not consume any more."""
        if self._closed:
            return
        self._leaving = True
        if self._paused:
            self._resume_input()
        self.stack.leave(self.clock.now())
        self._flush()

    def close(self) -> None:
        """Stop at once; submissions that still wait fail."""
        if self._closed:
            return
        self._closed = True
        self.alarm.close()
        self.transport.close()
        if self._storage is not None:
            self._storage.close()
        for waiting in self._submissions.pop_all():
            if not waiting.done.done():
                waiting.done.set_exception(
                    self._failure_error() or GroupClosed("the group was left before this was sent")
                )
        for _, done in self._slot_change_waiters:
            if not done.done():
                done.set_exception(self._failure_error() or GroupClosed("the group was left before its slots changed"))
                done.exception()  # nobody has to await it
        self._slot_change_waiters.clear()
        self._changed.set()

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self.close()

    def _failure_error(self) -> UnisonoError | None:
        if self._failure is None or isinstance(self._failure, StorageError):
            return self._failure
        error = UnisonoError(f"the group's driver stopped: {self._failure!r}")
        error.__cause__ = self._failure
        return error

    def raise_if_failed(self) -> None:
        """Raise what ended the driver, if it was a failure."""
        error = self._failure_error()
        if error is not None:
            raise error

    def raise_if_closed(self) -> None:
        """Raise if nothing can be sent any more."""
        self.raise_if_failed()
        if self._closed or self.left is not None:
            raise GroupClosed("this group has been left")


def _queue_cost(event: DriverEvent) -> tuple[int, int]:
    """What an event counts for in the queue: messages and bytes."""
    return (event.count, event.payload_bytes) if isinstance(event, Batch) else (1, 0)
