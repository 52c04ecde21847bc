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
    NewView,
    NoLongerMember,
    Receive,
    ReceiveUnicast,
    StateReceived,
    StateRequested,
    ViewEvent,
    ViewSynchrony,
)
from unisono.agreement.membership.from_policy import membership_of
from unisono.model.durations import NS_PER_MS
from unisono.model.events import (
    Batch,
    LeaveComplete,
    NoticeKind,
    QueueStep,
    Rejoining,
    StackEvent,
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
from unisono.orders.packing import reservation
from unisono.orders.priority.bounds import REPORT_EVERY_MESSAGES, queue_bound_ns
from unisono.orders.priority.insertion import DecisionMode, Insertion, Received
from unisono.orders.priority.messages import (
    Ack,
    PriorityBody,
    decode_body,
    decode_handover,
    encode_body,
    encode_handover,
)
from unisono.wire.codec import Unreadable
from unisono.wire.frame import Frame
from unisono.wire.packed_messages import OutgoingMessages

WINDOW = 64
REJOIN_DELAY_NS = 200 * NS_PER_MS
"""So long such a member stays away: each return costs the others a view. No two incarnations are of one time."""


class PriorityOrder:
    """The order of one member."""

    def __init__(
        self,
        policy: Policy,
        reserver: Reserver,
        views: ViewSynchrony,
        *,
        decision_mode: DecisionMode = DecisionMode.ALL,
        window: int = WINDOW,
        views_for_rejoin: Callable[[Policy], ViewSynchrony] | None = None,
    ) -> None:
        """`again` gives the views of another life, in which this member comes back if the others go on without it."""
        self.down: list[Frame] = views.down
        self.events: list[StackEvent] = []
        self.ignored: Counter[str] = Counter()
        self.window_slots = 1
        self.application: StateHolder | None = None
        """Whose state goes to newcomers with the order's."""
        self._decision_mode, self._views_for_rejoin = decision_mode, views_for_rejoin
        self._rejoin_at: int | None = None
        """When this member comes back."""
        self._reserver = reserver
        self._views = views
        self._window = window
        self._pacer = Pacer(policy.rate, policy.timing.theta_ns, policy.max_message)
        self._paced_slot = -1
        self._retry_at: int | None = None
        self._leaving = self._departing = self._has_left = False
        self._start_incarnation(policy)
        reserver.reserve(reservation(policy, policy.rate))

    def _start_incarnation(self, policy: Policy) -> None:
        """A life in which nothing has been sent, received or consumed."""
        self._policy = policy
        reports = min(REPORT_EVERY_MESSAGES, max(1, self._window // 4))
        self.insertion = Insertion(policy.member, policy.incarnation, self._decision_mode, report_every=reports)
        self._next_sequence = 0
        self._outstanding: dict[int, int] = {}
        """By priority: how many messages of this member's somebody may not have consumed."""
        self._priorities: dict[int, int] = {}
        """The priorities of these messages, by number."""
        self._window_was_full = False
        self._members: tuple[int, ...] = ()
        self._view_id = self._index = self._next_step_number = 0

    # -- sending ---------------------------------------------------------------------------------------------

    def submit(self, now: int, messages: Sequence[bytes]) -> int:
        """Take messages that are not urgent."""
        return self.submit_with_priority(now, messages, 0)

    def submit_with_priority(self, now: int, messages: Sequence[bytes], priority: int) -> int:
        """Take as many of the messages, from the first on, as the rate and the window of this priority allow."""
        if not self.running() or self._leaving:
            return 0
        slot = self._policy.timing.slot_of(now)
        if slot != self._paced_slot:
            self._paced_slot = slot
            self._pacer.open_slot(slot)
        taken = 0
        for message in messages:
            if self._outstanding.get(priority, 0) >= self._window:
                self._window_was_full = True
                break
            if self._pacer.is_full() or self._pacer.bytes_left() < len(message):
                self._retry_at = self._policy.timing.end_of(slot)
                break
            self._pacer.record_sent(1, len(message))
            self._outstanding[priority] = self._outstanding.get(priority, 0) + 1
            self._priorities[self._next_sequence] = priority
            self.insertion.send(self._next_sequence, priority, message)
            self._next_sequence += 1
            taken += 1
        if taken:
            self._flush(now)
        return taken

    # -- consuming -------------------------------------------------------------------------------------------

    def consumable(self) -> bool:
        """Whether `consume` would give a message.

        While a view change is under way it gives none: whoever is cut off from the majority must not go on alone.
        """
        first = self.insertion.queue.first
        ready = first is not None and not first.locks
        return ready and not self._leaving and not self._has_left and not self._views.blocked()

    def consume(self, now: int) -> Batch | None:
        """Figure 1: the first message of the queue, which is delivered by this; None if there is none to be had."""
        if not self.consumable() or (message := self.insertion.consume()) is None:
            return None
        ref = message.ref
        batch = Batch(
            ref.sender,
            ref.incarnation,
            slot=self.insertion.position - 1,
            first_sequence=ref.sequence,
            first_position=0,
            first_index=self._index,
            count=1,
            packed_messages=[OutgoingMessages([message.payload], same_size=True)],
            priority=message.priority,
        )
        self._index += 1
        self._flush(now)
        return batch

    # -- time and the network --------------------------------------------------------------------------------

    def from_below(self, now: int, frame: Frame) -> None:
        """A frame for virtual synchrony."""
        self._views.from_below(now, frame)
        self._flush(now)

    def wake(self, now: int) -> None:
        """The local clock has reached `now`."""
        if self._retry_at is not None and now >= self._retry_at:
            self._retry_at = None
        if self._rejoin_at is not None and now >= self._rejoin_at:
            self._rejoin()
        self._views.wake(now)
        self._flush(now)

    def wake_at(self) -> int | None:
        """When something is due: below, or because a message that waits may have room, or to come back."""
        due = [at for at in (self._views.wake_at(), self._retry_at, self._rejoin_at) if at is not None]
        return min(due, default=None)

    def _flush(self, now: int) -> None:
        """Carry what has happened up, and what there is to say down, until there is nothing of either."""
        if self._views.violations:
            self.events += self._views.violations
            self._views.violations.clear()
        stream, core = self._views.stream, self.insertion
        while stream or core.to_multicast or core.to_unicast:
            says, core.to_multicast[:] = core.to_multicast[:], []
            for body in says:
                self._views.multicast(now, encode_body(body))
            tells, core.to_unicast[:] = core.to_unicast[:], []
            for to, ack in tells:
                self._views.unicast(now, to, encode_body(ack))
            if stream:  # one by one: what is said about it is said in the view in which it came
                self._on_view_event(now, stream.pop(0))
                if self.insertion is not core:
                    return  # that life is over
                self._report_queue_steps()

    def _on_view_event(self, now: int, view_event: ViewEvent) -> None:
        match view_event:
            case Receive():
                self._on_multicast(now, view_event)
            case ReceiveUnicast():
                self._on_unicast(view_event)
            case StateRequested():
                self._views.provide_state(now, view_event.view_id, self.snapshot())
            case StateReceived():
                self.restore(now, view_event.state)
            case NewView():
                self._on_new_view(now, view_event)
            case NoLongerMember():
                self._on_out_of_view(now, view_event.reason)
            case _:
                assert_never(view_event)

    def _on_multicast(self, now: int, received: Receive) -> None:
        body = self._decode(received.body)
        if body is None:
            return
        self._release_window(now, self.insertion.receive((received.sender, received.incarnation), body))
        if self.insertion.may_depart() and not self._departing:
            self._departing = True
            self._views.leave(now)

    def _on_unicast(self, received: ReceiveUnicast) -> None:
        body = self._decode(received.body)
        if isinstance(body, Ack):
            self.insertion.receive_ack((received.sender, received.incarnation), body)

    def _decode(self, data: bytes) -> PriorityBody | None:
        try:
            return decode_body(data)
        except Unreadable:
            self.ignored["unreadable"] += 1
            return None

    def _on_new_view(self, now: int, view: NewView) -> None:
        me = self._policy.member
        joining = not self._members and view.view_id > 1
        first = not self._members
        self._members = view.members
        collected = self.insertion.new_view(
            view.view_id, zip(view.members, view.incarnations, strict=True), joining=joining
        )
        joined = tuple(sorted({*view.joined, me})) if first else view.joined
        self._view_id = view.view_id
        self.events.append(
            ViewChange(
                View(view.members, self.insertion.position),
                joined,
                view.left,
                view_id=view.view_id,
                incarnations=view.incarnations,
                blocked_ns=view.blocked_ns,
            )
        )
        self._release_window(now, collected)

    def _on_out_of_view(self, now: int, reason: str) -> None:
        me, last = self._policy.member, self.insertion.position - 1
        if not self._departing:
            self.events.append(Violation(ViolationKind.EXCLUDED, reason, me))
        if self._leaving or self._views_for_rejoin is None:
            self._has_left = True
            self.events.append(LeaveComplete(last))
            return
        life = self._policy.incarnation + 1
        text = f"member {me} joins again, as incarnation {life}; what it sent last may have reached nobody who goes on"
        self.events.append(Rejoining(NoticeKind.REJOINING, text, me, incarnation=life, final_slot=last))
        self._start_incarnation(replace(self._policy, incarnation=life))
        self._rejoin_at = now + REJOIN_DELAY_NS

    def _rejoin(self) -> None:
        if self._views_for_rejoin is not None:
            self._rejoin_at = None
            self._views = self._views_for_rejoin(self._policy)
            self._views.down = self.down

    def _release_window(self, now: int, collected: MessageSet) -> None:
        """What everybody has consumed makes room in the windows."""
        for first, last in collected.ranges.get((self._policy.member, self._policy.incarnation), ()):
            for sequence in range(first, last + 1):
                self._outstanding[self._priorities.pop(sequence)] -= 1
            if self._window_was_full:
                self._window_was_full, self._retry_at = False, now

    def _report_queue_steps(self) -> None:
        for step in self.insertion.steps:
            ref = step.message.ref
            came = isinstance(step, Received) and not step.inherited
            self.events.append(
                QueueStep(
                    not isinstance(step, Received),
                    *ref,
                    priority=step.message.priority,
                    number=self._next_step_number,
                    consumed=self._index,
                    position=self.insertion.position,
                    detail=str(step.target_tail) if isinstance(step, Received) else str(step.insertion_point),
                    view=self._view_id if came else None,
                )
            )
            self._next_step_number += 1
        self.insertion.steps.clear()

    # -- the state of a newcomer -----------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """What a newcomer needs to go on from where this member is."""
        application = b"" if self.application is None else self.application.snapshot()
        return encode_handover(self.insertion.state(), application)

    def restore(self, now: int, state: bytes) -> None:
        """Go on from where the giver was; Unreadable if that cannot be read."""
        order, application = decode_handover(state)
        self.insertion.restore(order)
        if self.application is not None:
            self.application.restore(application)

    # -- what a stack asks of its order ----------------------------------------------------------------------

    @property
    def incarnation(self) -> int:
        """The life that this member is in."""
        return self._policy.incarnation

    def change_rate(self, now: int, rate: Rate) -> None:
        """From the next slot on; ReservationRefused leaves the old rate in force."""
        self._policy.check_rate(rate)
        self._reserver.reserve(reservation(self._policy, rate))
        self._paced_slot = self._policy.timing.slot_of(now)
        self._pacer.open_slot(self._paced_slot, rate)

    def leave(self, now: int) -> None:
        """Consume nothing more, say what was consumed, and go."""
        if self._leaving:
            return
        self._leaving = True
        if self.running():
            self.insertion.leave()
        elif self._rejoin_at is None:
            self._departing = True
            self._views.leave(now)
        else:
            self._rejoin_at, self._departing = None, True
            self._on_out_of_view(now, "it left before it came back")
        self._flush(now)

    def latest_slot(self, now: int) -> int:
        """Frames here belong to views, not to slots."""
        return 1 << 62

    def bound_ns(self) -> int:
        """Into the queue while nobody fails."""
        return queue_bound_ns(self._policy.timing, coordinated=self.insertion.decision_mode is DecisionMode.COORDINATOR)

    def gap_free(self) -> bool:
        """Everybody who stays consumes everything."""
        return True

    def keeps_sending_to_departed(self) -> bool:
        """Whoever is not in the view may come back into it."""
        return True

    def waiting_for(self) -> tuple[int, ...]:
        """Nobody is known to be missing before there is a view."""
        return () if self.running() else self._policy.view.members

    def running(self) -> bool:
        """Whether this member is in a view."""
        return bool(self._members) and not self._has_left

    def why_not_formed(self) -> str:
        """Nothing is known here of why there is no view."""
        return ""

    def peer_rate(self, peer: int) -> Rate | None:
        """Peers do not declare their rates to one another."""
        return None

    def by_multicast(self) -> bool:
        """Frames go to each member."""
        return False


def build_priority_order(policy: Policy, reserver: Reserver) -> PriorityOrder:
    """The order over membership, as a policy asks for it."""
    form = DecisionMode.COORDINATOR if policy.order == "priority_coordinator" else DecisionMode.ALL
    again = partial(membership_of, founding=False) if policy.rejoin else None
    return PriorityOrder(policy, reserver, membership_of(policy), decision_mode=form, views_for_rejoin=again)
