"""One member in the world: its stack, its clock, its application, and what is written down about it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Protocol, assert_never, runtime_checkable

from unisono.errors import UnisonoError
from unisono.model.events import (
    PLACE_PER_SENDER,
    Batch,
    Gap,
    Left,
    Notice,
    StackEvent,
    Step,
    TimingChange,
    ViewChange,
    Violation,
)
from unisono.model.grades import Grade
from unisono.model.rates import Rate
from unisono.model.slot_schedule import Grid
from unisono.model.timing import Timing
from unisono.model.workloads import Offers, silent
from unisono.sim.clocks import Clock
from unisono.stack import Datagram
from unisono.trace.kinds import EventKind
from unisono.trace.recorder import NOTHING_MORE, Extras, Recorder, told_extras, view_extras

NEVER = 1 << 63
OFFERED_AT_ONCE = 1024
"""How many waiting messages an application hands to its stack in one call."""


class Machine(Protocol):
    """The five verbs of a stack, and the two requests an application can make besides."""

    def submit(self, now: int, messages: Sequence[bytes]) -> int: ...
    def receive(self, now: int, data: bytes) -> None: ...
    def wake(self, now: int) -> None: ...
    def wake_at(self) -> int | None: ...
    def outgoing(self) -> Sequence[Datagram]: ...
    def events(self) -> Sequence[StackEvent]: ...
    def new_rate(self, now: int, rate: Rate) -> None: ...
    def leave(self, now: int) -> None: ...


@runtime_checkable
class Slotted(Protocol):
    """A machine that knows what slots are now, and can be asked to change their length."""

    @property
    def grid(self) -> Grid: ...
    def new_slot(self, now: int, theta_ns: int) -> None: ...


class PayloadDiffers(UnisonoError):
    """A member delivered other bytes than were sent."""


class Agenda(Protocol):
    """What a node needs of the world."""

    payloads: dict[tuple[int, int], list[bytes]] | None
    """By sender and incarnation, all that its stack took, if deliveries are to be compared with it byte for byte."""
    send_until: int

    def later(self, at: int, act: Callable[[int, Any], None], what: object) -> None: ...
    def arrive_later(self, at: int, act: Callable[[int, bytes], None], data: bytes) -> None: ...
    def transmit(self, now: int, node: Node, datagrams: Sequence[Datagram]) -> None: ...


class Node:
    """Turns what happens to a member into its stack's verbs, at the readings of its own clock."""

    __slots__ = (
        "_agenda",
        "_alarm",
        "_alarm_number",
        "_began",
        "_delivered_slot",
        "_events",
        "_local",
        "_made",
        "_offers",
        "_outgoing",
        "_receive",
        "_send_place",
        "_send_slot",
        "_waiting",
        "_wake_at",
        "accepted",
        "bound_ns",
        "clock",
        "delivered",
        "finals",
        "life",
        "member",
        "notices",
        "recorder",
        "shut_until",
        "stack",
        "started_slot",
        "timing",
        "violations",
    )

    def __init__(
        self,
        agenda: Agenda,
        member: int,
        stack: Machine,
        clock: Clock,
        *,
        timing: Timing,
        offers: Offers | None = None,
        recorder: Recorder | None = None,
        life: int = 1,
    ) -> None:
        self.member = member
        self.bound_ns: int | None = None
        """The latency bound that its order declares, if it declares one."""
        self.life = life
        self.stack = stack
        self.clock = clock
        self.timing = timing
        self.recorder = recorder
        self.shut_until = NEVER
        """Until when nothing reaches it: the end of its pause, or NEVER before it starts and after it has gone."""
        self.accepted = 0
        """How many messages its stack has taken: the next one's sequence."""
        self.delivered = 0
        """How many messages it has delivered: early, where there are two grades."""
        self.finals = 0
        self.violations: list[Violation] = []
        self.notices: list[Notice] = []
        self.started_slot: int | None = None
        # Looked up once: these run for every datagram that arrives.
        self._local = clock.local
        self._receive, self._outgoing = stack.receive, stack.outgoing
        self._events, self._wake_at = stack.events, stack.wake_at
        self._agenda = agenda
        self._offers = offers or silent()
        self._began = 0
        self._waiting: deque[bytes] = deque()
        self._made = 0
        self._send_slot = -1
        self._send_place = 0
        self._delivered_slot: int | None = None
        self._alarm: int | None = None
        self._alarm_number = 0

    @property
    def up(self) -> bool:
        """Whether it takes part: it has started, has not crashed and has not left."""
        return self.shut_until < NEVER

    @property
    def waiting(self) -> int:
        """How many messages the application holds because its stack has not taken them."""
        return len(self._waiting)

    # -- what happens to the member --------------------------------------------------------------------------

    def start(self, now: int, _: object) -> None:
        """The member comes up."""
        self.shut_until = 0
        local = self.clock.local(now)
        self.stack.wake(local)
        self._settle(now, local, local + 1)

    def arrive(self, now: int, data: bytes) -> None:
        """A datagram arrives; one that finds nobody is gone, as with UDP."""
        if now < self.shut_until:
            if self.up:
                self._agenda.arrive_later(self.shut_until, self.arrive, data)
            return
        local = self._local(now)
        self._receive(local, data)
        # This is _settle(now, local, 0), written out: it runs for every datagram that arrives.
        datagrams = self._outgoing()
        if datagrams:
            self._agenda.transmit(now, self, datagrams)
        for event in self._events():
            self._note(now, local, event)
        at = self._wake_at()
        if at != self._alarm:
            self._set_alarm(now, at)

    def alarm(self, now: int, number: int) -> None:
        """The stack's alarm; an older number means that it has been set anew since."""
        if number != self._alarm_number or self._shut(now, self.alarm, number):
            return
        local = self.clock.local(now)
        self._alarm = None
        self.stack.wake(local)
        if self._waiting:
            self._submit(now, local)
        # A stack that is still not content is woken when its clock has moved on, so that the world always does.
        self._settle(now, local, local + 1)

    def offer(self, now: int, sizes: tuple[int, ...]) -> None:
        """The application hands in messages of these sizes."""
        if self._shut(now, self.offer, sizes):
            return
        self._waiting.extend(map(self._payload, sizes))
        local = self.clock.local(now)
        self._submit(now, local)
        self._settle(now, local, 0)

    def offer_next(self, now: int, sizes: tuple[int, ...]) -> None:
        """The workload's turn: this offer now, and the next one when it is due."""
        self.offer(now, sizes)
        self._plan_offer()

    def new_rate(self, now: int, rate: Rate) -> None:
        """The application renegotiates."""
        if self._shut(now, self.new_rate, rate):
            return
        local = self.clock.local(now)
        self.stack.new_rate(local, rate)
        self._settle(now, local, 0)

    def new_slot(self, now: int, theta_ns: int) -> None:
        """The application asks for slots of another length."""
        if self._shut(now, self.new_slot, theta_ns):
            return
        local = self.clock.local(now)
        if not isinstance(self.stack, Slotted):
            raise UnisonoError(f"member {self.member}'s machine knows no slots")
        self.stack.new_slot(local, theta_ns)
        self._settle(now, local, 0)

    def leave(self, now: int, _: object) -> None:
        """The application leaves."""
        if self._shut(now, self.leave, None):
            return
        local = self.clock.local(now)
        self.stack.leave(local)
        self._settle(now, local, 0)

    def crash(self, now: int, observer: Recorder | None) -> None:
        """The member stops; only an onlooker can say so."""
        if not self.up:
            return
        self.shut_until = NEVER
        if observer is not None:
            local = self.clock.local(now)
            # It may have delivered part of its last slot, and is not held to the rest.
            held_to = self._delivered_slot if self._delivered_slot is not None else self.started_slot
            slot = self._slot_of(local) if held_to is None else held_to
            observer.event(
                EventKind.CRASH, slot=slot, real_ns=now, local_ns=local, subject=self.member, incarnation=self.life
            )

    def reborn(self, stack: Machine, recorder: Recorder | None) -> Node:
        """The member as it comes back after a crash: the same clock and application, another life."""
        return Node(
            self._agenda,
            self.member,
            stack,
            self.clock,
            timing=self.timing,
            offers=self._offers,
            recorder=recorder,
            life=self.life + 1,
        )

    def pause(self, now: int, until: int) -> None:
        """The member stands still."""
        self.shut_until = max(self.shut_until, until)

    def _shut(self, now: int, act: Callable[[int, Any], None], what: object) -> bool:
        """Whether nothing reaches the member now; what meets a pause is planned for its end."""
        if now >= self.shut_until:
            return False
        if self.up:
            self._agenda.later(self.shut_until, act, what)
        return True

    # -- the application -------------------------------------------------------------------------------------

    def _payload(self, size: int) -> bytes:
        if self._agenda.payloads is None:
            return bytes(size)
        stamp = b"%d/%d " % (self.member, self._made)
        self._made += 1
        return (stamp * (size // len(stamp) + 1))[:size]

    def _plan_offer(self) -> None:
        due = next(self._offers, None)
        if due is not None and self._began + due[0] < self._agenda.send_until:
            self._agenda.later(self._began + due[0], self.offer_next, due[1])

    def _submit(self, now: int, local: int) -> None:
        """Hand in what waits; what the stack does not take goes on waiting, for the stack's next wake."""
        if now >= self._agenda.send_until:
            return
        while self._waiting:
            messages = list(islice(self._waiting, OFFERED_AT_ONCE))
            taken = self.stack.submit(local, messages)
            for _ in range(taken):
                self._waiting.popleft()
            if taken:
                self._note_sent(now, local, messages[:taken])
            if taken < len(messages):
                return

    def _slot_of(self, local: int) -> int:
        stack = self.stack
        return (stack.grid if isinstance(stack, Slotted) else self.timing).slot_of(local)

    # -- what the stack says ---------------------------------------------------------------------------------

    def _settle(self, now: int, local: int, floor: int) -> None:
        """Carry away what the stack has to say, and set its alarm."""
        datagrams = self._outgoing()
        if datagrams:
            self._agenda.transmit(now, self, datagrams)
        for event in self._events():
            self._note(now, local, event)
        at = self._wake_at()
        if at is not None and at < floor:
            at = floor
        if at != self._alarm:
            self._set_alarm(now, at)

    def _set_alarm(self, now: int, at: int | None) -> None:
        self._alarm = at
        self._alarm_number += 1
        if at is not None:
            self._agenda.later(max(now, self.clock.true_at(at)), self.alarm, self._alarm_number)

    def _note_sent(
        self,
        now: int,
        local: int,
        messages: list[bytes],
        priority: int | None = None,
        destinations: tuple[int, ...] | None = None,
    ) -> None:
        slot = self._slot_of(local)
        if slot != self._send_slot:
            self._send_slot, self._send_place = slot, 0
        if self.recorder is not None:
            self.recorder.sent(
                first_sequence=self.accepted,
                count=len(messages),
                sizes=[len(message) for message in messages],
                slot=slot,
                first_place=self.member * PLACE_PER_SENDER + self._send_place,
                real_ns=now,
                local_ns=local,
                priority=priority,
                destinations=destinations,
            )
        if self._agenda.payloads is not None:
            self._agenda.payloads.setdefault((self.member, self.life), []).extend(messages)
        self._send_place += len(messages)
        self.accepted += len(messages)

    def _note(self, now: int, local: int, event: StackEvent) -> None:
        match event:
            case Batch():
                self._note_batch(now, local, event)
            case ViewChange():
                self._note_view(now, local, event)
            case TimingChange():
                extras = Extras(theta_ns=event.timing.theta_ns, bound_ns=event.bound_ns)
                self._row(EventKind.TIMING, now, local, event.slot, extras)
            case Violation():
                self.violations.append(event)
                slot = self._slot_of(local) if event.slot is None else event.slot
                self._row(EventKind.VIOLATION, now, local, slot, told_extras(event), subject=event.member)
            case Notice():
                self.notices.append(event)
                slot = self._slot_of(local) if event.slot is None else event.slot
                self._row(EventKind.NOTICE, now, local, slot, told_extras(event), subject=event.member)
            case Left():
                self.shut_until = NEVER
                self._row(EventKind.LEAVE, now, local, event.final_slot + 1)
            case Gap():
                self._row(EventKind.GAP, now, local, event.slot, subject=event.sender, life=event.incarnation)
            case Step():
                if self.recorder is not None:
                    self.recorder.step(event, real_ns=now, local_ns=local)
            case _:
                assert_never(event)

    def _note_batch(self, now: int, local: int, batch: Batch) -> None:
        if batch.grade is Grade.FINAL:
            self.finals += batch.count
        else:
            self.delivered += batch.count
            self._delivered_slot = batch.slot
        if self._agenda.payloads is not None:
            sent = self._agenda.payloads.get((batch.sender, batch.incarnation), [])
            if sent[batch.first_sequence : batch.first_sequence + batch.count] != batch.messages:
                raise PayloadDiffers(f"member {self.member} delivered other bytes than were sent: {batch}")
        if self.recorder is not None:
            self.recorder.delivered(
                sender=batch.sender,
                incarnation=batch.incarnation,
                first_sequence=batch.first_sequence,
                count=batch.count,
                sizes=batch.sizes(),
                slot=batch.slot,
                first_place=batch.first_place,
                first_index=batch.first_index,
                real_ns=now,
                local_ns=local,
                priority=batch.priority,
                grade=None if batch.grade is None else batch.grade.value,
            )

    def _note_view(self, now: int, local: int, change: ViewChange) -> None:
        view = change.view
        if self.member in change.joined:
            self._row(EventKind.START, now, local, view.first_slot, Extras(bound_ns=self.bound_ns))
            if self.started_slot is None:  # else it comes back, and its application has gone on
                self._began = now
                self._plan_offer()
            self.started_slot = view.first_slot
        number = view.first_slot if change.view_id is None else change.view_id
        extras = view_extras(number, view.members, change.lives)
        self._row(EventKind.VIEW, now, local, view.first_slot, extras)

    def _row(
        self,
        kind: EventKind,
        now: int,
        local: int,
        slot: int,
        extras: Extras = NOTHING_MORE,
        *,
        subject: int | None = None,
        life: int | None = None,
    ) -> None:
        if self.recorder is not None:
            self.recorder.event(
                kind,
                slot=slot,
                real_ns=now,
                local_ns=local,
                subject=subject,
                incarnation=life,
                extras=extras,
            )
