"""The priority order (paper 004) as the top of a stack: `insertion` over virtual synchrony, with back-pressure.

The application pulls: a message is delivered when it is consumed, and only then does it have its place in the order for
good. A sender may have `WINDOW` messages of each priority that somebody has not consumed; so a slow consumer holds its
senders back, and never the more urgent messages behind the less urgent.

A member that the others went on without comes back by itself: it was paused, or cut off in a minority, and learns of it
from anybody. It begins another life, in which it is given the state of a member, as any newcomer is.

There is no latency bound: how long a message stays in the queue is up to the consumers. `bound_ns` is what its way into
the queue takes while nobody fails (`priority_offer`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import assert_never

from unisono.agreement.membership.contract import (
    Happening,
    NewView,
    Out,
    Receive,
    StateGiven,
    StateWanted,
    Told,
    ViewSynchrony,
)
from unisono.agreement.membership.from_policy import views_of
from unisono.model.durations import NS_PER_MS
from unisono.model.events import (
    Batch,
    Left,
    NoticeKind,
    Rejoining,
    StackEvent,
    Step,
    ViewChange,
    Violation,
    ViolationKind,
)
from unisono.model.message_set import MessageSet
from unisono.model.policy import Policy
from unisono.model.rates import Rate, Reserver
from unisono.model.state_holder import StateHolder
from unisono.model.views import View
from unisono.net.pacer import Pacer
from unisono.orders.base.packing import reservation
from unisono.orders.priority.bounds import REPORT_EVERY, queue_bound_ns
from unisono.orders.priority.insertion import Form, Insertion, Received
from unisono.orders.priority.messages import Ack, Body, Unreadable, decode_body, encode_body
from unisono.orders.priority.state_messages import decode_handover, encode_handover
from unisono.wire.frame import Frame
from unisono.wire.packed_messages import OwnRun

WINDOW = 64
REST_NS = 200 * NS_PER_MS
"""So long such a member stays away: each return costs the others a view. No two incarnations are of one time."""


class Priority:
    """The order of one member."""

    def __init__(
        self,
        policy: Policy,
        reserver: Reserver,
        views: ViewSynchrony,
        *,
        form: Form = Form.ALL,
        window: int = WINDOW,
        again: Callable[[Policy], ViewSynchrony] | None = None,
    ) -> None:
        """`again` gives the views of another life, in which this member comes back if the others go on without it."""
        self.down: list[Frame] = views.down
        self.events: list[StackEvent] = []
        self.ignored: Counter[str] = Counter()
        self.window_slots = 1
        self.application: StateHolder | None = None
        """Whose state goes to newcomers with the order's."""
        self._form, self._again = form, again
        self._return_at: int | None = None
        """When this member comes back."""
        self._reserver = reserver
        self._views = views
        self._window = window
        self._pacer = Pacer(policy.rate, policy.timing.theta_ns, policy.max_message)
        self._slot = -1
        self._retry_at: int | None = None
        self._leaving = self._departing = self._out = False
        self._begin(policy)
        reserver.reserve(reservation(policy, policy.rate))

    def _begin(self, policy: Policy) -> None:
        """A life in which nothing has been sent, received or consumed."""
        self._policy = policy
        reports = min(REPORT_EVERY, max(1, self._window // 4))
        self.core = Insertion(policy.member, policy.incarnation, self._form, report_every=reports)
        self._sequence = 0
        self._outstanding: dict[int, int] = {}
        """By priority: how many messages of this member's somebody may not have consumed."""
        self._levels: dict[int, int] = {}
        """The priorities of these messages, by number."""
        self._refused = False
        self._members: tuple[int, ...] = ()
        self._view_id = self._index = self._steps = 0

    # -- sending ---------------------------------------------------------------------------------------------

    def submit(self, now: int, messages: Sequence[bytes]) -> int:
        """Take messages that are not urgent."""
        return self.submit_at(now, messages, 0)

    def submit_at(self, now: int, messages: Sequence[bytes], priority: int) -> int:
        """Take as many of the messages, from the first on, as the rate and the window of this priority allow."""
        if not self.running() or self._leaving:
            return 0
        slot = self._policy.timing.slot_of(now)
        if slot != self._slot:
            self._slot = slot
            self._pacer.open_slot(slot)
        taken = 0
        for message in messages:
            if self._outstanding.get(priority, 0) >= self._window:
                self._refused = True
                break
            if self._pacer.full() or self._pacer.bytes_left() < len(message):
                self._retry_at = self._policy.timing.end_of(slot)
                break
            self._pacer.spend(1, len(message))
            self._outstanding[priority] = self._outstanding.get(priority, 0) + 1
            self._levels[self._sequence] = priority
            self.core.send(self._sequence, priority, message)
            self._sequence += 1
            taken += 1
        if taken:
            self._settle(now)
        return taken

    # -- consuming -------------------------------------------------------------------------------------------

    def consumable(self) -> bool:
        """Whether `consume` would give a message.

        While a view change is under way it gives none: whoever is cut off from the majority must not go on alone.
        """
        first = self.core.queue.first
        ready = first is not None and not first.locks
        return ready and not self._leaving and not self._out and not self._views.blocked()

    def consume(self, now: int) -> Batch | None:
        """Figure 1: the first message of the queue, which is delivered by this; None if there is none to be had."""
        if not self.consumable() or (message := self.core.consume()) is None:
            return None
        ref = message.ref
        batch = Batch(
            ref.sender,
            ref.incarnation,
            slot=self.core.position - 1,
            first_sequence=ref.sequence,
            first_place=0,
            first_index=self._index,
            count=1,
            runs=[OwnRun([message.payload], uniform=True)],
            priority=message.priority,
        )
        self._index += 1
        self._settle(now)
        return batch

    # -- time and the network --------------------------------------------------------------------------------

    def from_below(self, now: int, frame: Frame) -> None:
        """A frame for virtual synchrony."""
        self._views.from_below(now, frame)
        self._settle(now)

    def wake(self, now: int) -> None:
        """The local clock has reached `now`."""
        if self._retry_at is not None and now >= self._retry_at:
            self._retry_at = None
        if self._return_at is not None and now >= self._return_at:
            self._come_back()
        self._views.wake(now)
        self._settle(now)

    def wake_at(self) -> int | None:
        """When something is due: below, or because a message that waits may have room, or to come back."""
        due = [at for at in (self._views.wake_at(), self._retry_at, self._return_at) if at is not None]
        return min(due, default=None)

    def _settle(self, now: int) -> None:
        """Carry what has happened up, and what there is to say down, until there is nothing of either."""
        if self._views.violations:
            self.events += self._views.violations
            self._views.violations.clear()
        stream, core = self._views.stream, self.core
        while stream or core.says or core.tells:
            says, core.says[:] = core.says[:], []
            for body in says:
                self._views.multicast(now, encode_body(body))
            tells, core.tells[:] = core.tells[:], []
            for to, ack in tells:
                self._views.tell(now, to, encode_body(ack))
            if stream:  # one by one: what is said about it is said in the view in which it came
                self._take(now, stream.pop(0))
                if self.core is not core:
                    return  # that life is over
                self._note_steps()

    def _take(self, now: int, happening: Happening) -> None:
        match happening:
            case Receive():
                self._receive(now, happening)
            case Told():
                self._hear(happening)
            case StateWanted():
                self._views.give_state(now, happening.view_id, self.give_state())
            case StateGiven():
                self.take_state(now, happening.state)
            case NewView():
                self._enter(now, happening)
            case Out():
                self._end(now, happening.reason)
            case _:
                assert_never(happening)

    def _receive(self, now: int, came: Receive) -> None:
        body = self._read(came.body)
        if body is None:
            return
        self._free(now, self.core.receive((came.sender, came.incarnation), body))
        if self.core.may_depart() and not self._departing:
            self._departing = True
            self._views.leave(now)

    def _hear(self, told: Told) -> None:
        body = self._read(told.body)
        if isinstance(body, Ack):
            self.core.told((told.sender, told.incarnation), body)

    def _read(self, data: bytes) -> Body | None:
        try:
            return decode_body(data)
        except Unreadable:
            self.ignored["unreadable"] += 1
            return None

    def _enter(self, now: int, view: NewView) -> None:
        me = self._policy.member
        joining = not self._members and view.view_id > 1
        first = not self._members
        self._members = view.members
        collected = self.core.new_view(view.view_id, zip(view.members, view.incarnations, strict=True), joining=joining)
        joined = tuple(sorted({*view.joined, me})) if first else view.joined
        self._view_id = view.view_id
        self.events.append(
            ViewChange(
                View(view.members, self.core.position),
                joined,
                view.left,
                view_id=view.view_id,
                lives=view.incarnations,
                gap_ns=view.gap_ns,
            )
        )
        self._free(now, collected)

    def _end(self, now: int, reason: str) -> None:
        me, last = self._policy.member, self.core.position - 1
        if not self._departing:
            self.events.append(Violation(ViolationKind.EXCLUDED, reason, me))
        if self._leaving or self._again is None:
            self._out = True
            self.events.append(Left(last))
            return
        life = self._policy.incarnation + 1
        text = f"member {me} joins again, as incarnation {life}; what it sent last may have reached nobody who goes on"
        self.events.append(Rejoining(NoticeKind.REJOINING, text, me, incarnation=life, final_slot=last))
        self._begin(replace(self._policy, incarnation=life))
        self._return_at = now + REST_NS

    def _come_back(self) -> None:
        if self._again is not None:
            self._return_at = None
            self._views = self._again(self._policy)
            self._views.down = self.down

    def _free(self, now: int, collected: MessageSet) -> None:
        """What everybody has consumed makes room in the windows."""
        for first, last in collected.ranges.get((self._policy.member, self._policy.incarnation), ()):
            for sequence in range(first, last + 1):
                self._outstanding[self._levels.pop(sequence)] -= 1
            if self._refused:
                self._refused, self._retry_at = False, now

    def _note_steps(self) -> None:
        for step in self.core.steps:
            ref = step.message.ref
            came = isinstance(step, Received) and not step.inherited
            self.events.append(
                Step(
                    not isinstance(step, Received),
                    *ref,
                    priority=step.message.priority,
                    number=self._steps,
                    consumed=self._index,
                    position=self.core.position,
                    detail=str(step.target_tail) if isinstance(step, Received) else str(step.point),
                    view=self._view_id if came else None,
                )
            )
            self._steps += 1
        self.core.steps.clear()

    # -- the state of a newcomer -----------------------------------------------------------------------------

    def give_state(self) -> bytes:
        """What a newcomer needs to go on from where this member is."""
        application = b"" if self.application is None else self.application.give_state()
        return encode_handover(self.core.state(), application)

    def take_state(self, now: int, state: bytes) -> None:
        """Go on from where the giver was; Unreadable if that cannot be read."""
        order, application = decode_handover(state)
        self.core.take(order)
        if self.application is not None:
            self.application.take_state(application)

    # -- what a stack asks of its order ----------------------------------------------------------------------

    @property
    def incarnation(self) -> int:
        """The life that this member is in."""
        return self._policy.incarnation

    def new_rate(self, now: int, rate: Rate) -> None:
        """From the next slot on; ReservationRefused leaves the old rate in force."""
        self._policy.check_rate(rate)
        self._reserver.reserve(reservation(self._policy, rate))
        self._slot = self._policy.timing.slot_of(now)
        self._pacer.open_slot(self._slot, rate)

    def leave(self, now: int) -> None:
        """Consume nothing more, say what was consumed, and go."""
        if self._leaving:
            return
        self._leaving = True
        if self.running():
            self.core.leave()
        elif self._return_at is None:
            self._departing = True
            self._views.leave(now)
        else:
            self._return_at, self._departing = None, True
            self._end(now, "it left before it came back")
        self._settle(now)

    def latest_slot(self, now: int) -> int:
        """Frames here belong to views, not to slots."""
        return 1 << 62

    def bound_ns(self) -> int:
        """Into the queue while nobody fails."""
        return queue_bound_ns(self._policy.timing, coordinated=self.core.form is Form.COORDINATOR)

    def reliable(self) -> bool:
        """Everybody who stays consumes everything."""
        return True

    def returning(self) -> bool:
        """Whoever is not in the view may come back into it."""
        return True

    def waiting_for(self) -> tuple[int, ...]:
        """Nobody is known to be missing before there is a view."""
        return () if self.running() else self._policy.view.members

    def running(self) -> bool:
        """Whether this member is in a view."""
        return bool(self._members) and not self._out

    def complaint(self) -> str:
        """Nothing is known here of why there is no view."""
        return ""

    def peer_rate(self, peer: int) -> Rate | None:
        """Peers do not declare their rates to one another."""
        return None

    def by_multicast(self) -> bool:
        """Frames go to each member."""
        return False


def over_views(policy: Policy, reserver: Reserver) -> Priority:
    """The order over membership, as a policy asks for it."""
    form = Form.COORDINATOR if policy.order == "priority_coordinator" else Form.ALL
    again = partial(views_of, founding=False) if policy.rejoin else None
    return Priority(policy, reserver, views_of(policy), form=form, again=again)
