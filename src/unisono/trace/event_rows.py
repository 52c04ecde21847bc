"""Turns a member's submissions and events into trace rows, for the simulator and the asyncio driver alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import assert_never

from unisono.model.events import (
    POSITIONS_PER_SENDER,
    Batch,
    Gap,
    LeaveComplete,
    Notice,
    QueueStep,
    Rejoining,
    SlotSkipped,
    StackEvent,
    TimingChange,
    ViewChange,
    Violation,
)
from unisono.trace.recorder import NOTHING_MORE, Extras, Recorder, report_extras, view_extras
from unisono.trace.schema import EventKind


class EventRecorder:
    """Records the submissions and events of one member in its trace, one incarnation after the other.

    `slot_of` returns the slot of a local time; `bound_ns` is the latency bound that the order declares, if any.
    """

    def __init__(
        self, recorder: Recorder, member: int, slot_of: Callable[[int], int], bound_ns: int | None = None
    ) -> None:
        self._recorder = recorder
        self._member = member
        self._slot_of = slot_of
        self._bound_ns = bound_ns
        self._last_send_slot = -1
        self._next_send_position = 0

    def record_sent(
        self,
        first_sequence: int,
        sizes: Sequence[int],
        *,
        real_ns: int,
        local_ns: int,
        priority: int | None = None,
        destinations: tuple[int, ...] | None = None,
    ) -> None:
        """Record that the stack accepted messages of these sizes."""
        slot = self._slot_of(local_ns)
        if slot != self._last_send_slot:
            self._last_send_slot, self._next_send_position = slot, self._member * POSITIONS_PER_SENDER
        self._recorder.sent(
            first_sequence=first_sequence,
            count=len(sizes),
            sizes=sizes,
            slot=slot,
            first_place=self._next_send_position,
            real_ns=real_ns,
            local_ns=local_ns,
            priority=priority,
            destinations=destinations,
        )
        self._next_send_position += len(sizes)

    def record_event(self, event: StackEvent, *, real_ns: int, local_ns: int) -> None:
        """Record an event that the stack reported."""
        match event:
            case Batch():
                self._record_batch(event, real_ns, local_ns)
            case ViewChange():
                self._record_view(event, real_ns, local_ns)
            case TimingChange():
                extras = Extras(theta_ns=event.timing.theta_ns, bound_ns=event.bound_ns)
                self._row(EventKind.TIMING, event.slot, real_ns, local_ns, extras)
            case Violation() | Notice():
                kind = EventKind.VIOLATION if isinstance(event, Violation) else EventKind.NOTICE
                slot = self._slot_of(local_ns) if event.slot is None else event.slot
                self._row(kind, slot, real_ns, local_ns, report_extras(event), subject=event.member)
                if isinstance(event, Rejoining):
                    self._begin_incarnation(event, real_ns, local_ns)
            case LeaveComplete():
                self._row(EventKind.LEAVE, event.final_slot + 1, real_ns, local_ns)
            case SlotSkipped():
                subject, incarnation = event.sender, event.incarnation
                self._row(EventKind.GAP, event.slot, real_ns, local_ns, subject=subject, incarnation=incarnation)
            case Gap():
                pass  # the rows of the skipped slots and of the views have recorded it
            case QueueStep():
                self._recorder.step(event, real_ns=real_ns, local_ns=local_ns)
            case _:
                assert_never(event)

    def _record_batch(self, batch: Batch, real_ns: int, local_ns: int) -> None:
        self._recorder.delivered(
            sender=batch.sender,
            sender_incarnation=batch.incarnation,
            first_sequence=batch.first_sequence,
            count=batch.count,
            sizes=batch.sizes(),
            slot=batch.slot,
            first_place=batch.first_position,
            first_index=batch.first_index,
            real_ns=real_ns,
            local_ns=local_ns,
            priority=batch.priority,
            grade=None if batch.grade is None else batch.grade.value,
        )

    def _record_view(self, change: ViewChange, real_ns: int, local_ns: int) -> None:
        first_slot = change.view.first_slot
        if self._member in change.joined:
            self._row(EventKind.START, first_slot, real_ns, local_ns, Extras(bound_ns=self._bound_ns))
        number = first_slot if change.view_id is None else change.view_id
        extras = view_extras(number, change.view.members, change.incarnations)
        self._row(EventKind.VIEW, first_slot, real_ns, local_ns, extras)

    def _begin_incarnation(self, event: Rejoining, real_ns: int, local_ns: int) -> None:
        """The member rejoins by itself: from now on its rows go to the recording of its next incarnation."""
        if self._recorder.new_incarnation is not None:
            self._row(EventKind.LEAVE, event.final_slot + 1, real_ns, local_ns)
            self._recorder = self._recorder.new_incarnation(event.incarnation)

    def _row(
        self,
        kind: EventKind,
        slot: int,
        real_ns: int,
        local_ns: int,
        extras: Extras = NOTHING_MORE,
        *,
        subject: int | None = None,
        incarnation: int | None = None,
    ) -> None:
        self._recorder.event(
            kind,
            slot=slot,
            real_ns=real_ns,
            local_ns=local_ns,
            subject=subject,
            subject_incarnation=incarnation,
            extras=extras,
        )
