"""What a running member does, written down: submissions and everything that its stack hands out, as rows of a trace."""

from __future__ import annotations

from unisono.model.events import (
    POSITIONS_PER_SENDER,
    Batch,
    Gap,
    LeaveComplete,
    Notice,
    QueueStep,
    Rejoining,
    StackEvent,
    TimingChange,
    ViewChange,
    Violation,
)
from unisono.runtime.clock import WallClock
from unisono.stack import Stack
from unisono.trace.recorder import Extras, Recorder, report_extras, view_extras
from unisono.trace.schema import EventKind


class DriverRecorder:
    """One member's."""

    def __init__(self, recorder: Recorder, stack: Stack, clock: WallClock) -> None:
        self._recorder = recorder
        self._stack = stack
        self._clock = clock
        self._last_send_slot = self._next_send_position = 0

    def record_sent(
        self, first_sequence: int, sizes: list[int], now: int, priority: int, groups: tuple[str, ...] | None = None
    ) -> None:
        """The stack took messages of these sizes."""
        slot = self._stack.grid.slot_of(now)
        if slot != self._last_send_slot:
            self._last_send_slot, self._next_send_position = slot, self._stack.policy.member * POSITIONS_PER_SENDER
        self._recorder.sent(
            first_sequence=first_sequence,
            count=len(sizes),
            sizes=sizes,
            slot=slot,
            first_place=self._next_send_position,
            real_ns=self._clock.system_ns(now),
            local_ns=now,
            priority=priority if priority or self._stack.application_pulls else None,
            destinations=None if groups is None else self._stack.destinations(groups),
        )
        self._next_send_position += len(sizes)

    def record_event(self, event: StackEvent, now: int) -> None:
        """The stack handed this out."""
        recorder, real = self._recorder, self._clock.system_ns(now)
        if isinstance(event, Batch):
            recorder.delivered(
                sender=event.sender,
                sender_incarnation=event.incarnation,
                first_sequence=event.first_sequence,
                count=event.count,
                sizes=event.sizes(),
                slot=event.slot,
                first_place=event.first_position,
                first_index=event.first_index,
                real_ns=real,
                local_ns=now,
                priority=event.priority,
                grade=None if event.grade is None else event.grade.value,
            )
        elif isinstance(event, QueueStep):
            recorder.step(event, real_ns=real, local_ns=now)
        elif isinstance(event, ViewChange):
            first = event.view.first_slot
            if self._stack.policy.member in event.joined:
                extras = Extras(bound_ns=self._stack.declared_bound_ns)
                recorder.event(EventKind.START, slot=first, real_ns=real, local_ns=now, extras=extras)
            view = first if event.view_id is None else event.view_id
            extras = view_extras(view, event.view.members, event.incarnations)
            recorder.event(EventKind.VIEW, slot=first, real_ns=real, local_ns=now, extras=extras)
        elif isinstance(event, TimingChange):
            extras = Extras(theta_ns=event.timing.theta_ns, bound_ns=event.bound_ns)
            recorder.event(EventKind.TIMING, slot=event.slot, real_ns=real, local_ns=now, extras=extras)
        elif isinstance(event, Violation | Notice):
            kind = EventKind.VIOLATION if isinstance(event, Violation) else EventKind.NOTICE
            slot = event.slot if event.slot is not None else self._stack.grid.slot_of(now)
            recorder.event(
                kind, slot=slot, real_ns=real, local_ns=now, subject=event.member, extras=report_extras(event)
            )
            if isinstance(event, Rejoining) and recorder.new_incarnation is not None:
                recorder.event(EventKind.LEAVE, slot=event.final_slot + 1, real_ns=real, local_ns=now)
                self._recorder = recorder.new_incarnation(event.incarnation)
        elif isinstance(event, Gap):
            recorder.event(
                EventKind.GAP,
                slot=event.slot,
                real_ns=real,
                local_ns=now,
                subject=event.sender,
                subject_incarnation=event.incarnation,
            )
        elif isinstance(event, LeaveComplete):
            recorder.event(EventKind.LEAVE, slot=event.final_slot + 1, real_ns=real, local_ns=now)
