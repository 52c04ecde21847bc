"""The priority order (paper 004) as the top of a stack: `Insertion` over virtual synchrony, with back-pressure.

Sending: `submit_with_priority` accepts messages while the rate allows it and fewer than `WINDOW` of the sender's
messages of that priority are unconsumed at some member. So a slow consumer slows the senders down, and urgent messages
never wait for capacity that less urgent ones occupy.

Receiving: frames go to virtual synchrony. `_flush` passes its events to `Insertion` and multicasts the replies.

Delivering: the application pulls. `consume` delivers the first message of the queue; only then is the position of that
message in the order final.

Rejoining: a member that was paused or partitioned into a minority learns from the others that they installed a view
without it. It starts a new incarnation and receives the state of another member, as every newcomer does.

There is no latency bound, because the consumers decide how long a message stays in the queue. `bound_ns` is the time
into the queue while no member fails (`bounds.queue_bound_ns`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import assert_never

from unisono.agreement.membership.multicast import Receive, ReceiveUnicast
from unisono.agreement.membership.views import (
    NewView,
    NoLongerMember,
    StateReceived,
    StateRequested,
    ViewEvent,
    ViewSynchrony,
    membership_of,
)
from unisono.model.events import (
    Batch,
    LeaveComplete,
    NoticeKind,
    QueueStep,
    Rejoining,
    StackEvent,
    View,
    ViewChange,
    Violation,
    ViolationKind,
)
from unisono.model.message_set import MessageSet
from unisono.model.policy import Policy, StateHolder
from unisono.model.status import Standing
from unisono.model.units import NS_PER_MS, Rate, Reserver
from unisono.net.layer import NO_ROOM
from unisono.orders.packing import Pacer, reservation
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
from unisono.wire.frame import Frame, OutgoingMessages

WINDOW = 64
"""Of each priority, a sender may have at most this many messages that some member has not consumed."""
REJOIN_DELAY_NS = 200 * NS_PER_MS
"""An excluded member waits this long before it rejoins, because every return costs the others a view change."""


class PriorityOrder:
    """One member's automaton of the priority order."""

    gap_free = True  # every member that stays consumes every message
    keeps_sending_to_departed = True  # a member outside the view may return

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
        """`views_for_rejoin` makes the virtual synchrony of a new incarnation. If None, an excluded member leaves."""
        self.down: list[Frame] = []
        self.events: list[StackEvent] = []
        self.ignored: Counter[str] = Counter()
        self.window_slots = 1
        self.application: StateHolder | None = None
        """The application whose state newcomers receive together with the order's."""
        self._decision_mode, self._views_for_rejoin = decision_mode, views_for_rejoin
        self._rejoin_at: int | None = None
        """When this member rejoins after it was excluded; None if it does not wait to rejoin."""
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
        """Start an incarnation that has sent, received and consumed nothing."""
        self._policy = policy
        report_every = min(REPORT_EVERY_MESSAGES, max(1, self._window // 4))
        self.insertion = Insertion(policy.member, policy.incarnation, self._decision_mode, report_every=report_every)
        self._next_sequence = 0
        self._outstanding: dict[int, int] = {}
        """By priority, the number of this member's messages that some member may not have consumed."""
        self._priorities: dict[int, int] = {}
        """By sequence, the priority of each message of this member that some member may not have consumed."""
        self._window_was_full = False
        self._members: tuple[int, ...] = ()
        self._view_id = self._index = self._next_step_number = 0

    # -- sending ---------------------------------------------------------------------------------------------

    def submit(self, now: int, messages: Sequence[bytes]) -> int:
        """Accept messages with priority 0, as far as the rate allows. Returns how many were accepted."""
        return self.submit_with_priority(now, messages, 0)

    def room(self, now: int) -> tuple[int, int]:
        """Nothing for certain: what is accepted depends on the priority, and on what the members have consumed."""
        return NO_ROOM

    def submit_with_priority(self, now: int, messages: Sequence[bytes], priority: int) -> int:
        """Accept messages with this priority, from the first on, and return how many were accepted.

        The rate limits them, and so does the number of this member's messages of that priority that some member has not
        consumed.
        """
        if not self.running() or self._leaving:
            return 0
        slot = self._policy.timing.slot_of(now)
        if slot != self._paced_slot:
            self._paced_slot = slot
            self._pacer.open_slot(slot)
        accepted = 0
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
            accepted += 1
        if accepted:
            self._pacer.check(self._policy.member)
            self._flush(now)
        return accepted

    # -- consuming -------------------------------------------------------------------------------------------

    def consumable(self) -> bool:
        """Whether `consume` would return a message.

        During a view change `consume` returns None: a member that is cut off from the majority must not continue alone.
        """
        first = self.insertion.queue.first
        ready = first is not None and not first.locks
        return ready and not self._leaving and not self._has_left and not self._views.blocked()

    def consume(self, now: int) -> Batch | None:
        """Deliver the first message of the queue (paper 004, Figure 1).

        Returns None if the queue is empty, its first message is locked, or a view change is in progress.
        """
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
        """Pass a received frame to virtual synchrony."""
        self._views.from_below(now, frame)
        self._flush(now)

    def wake(self, now: int) -> None:
        """Do what is due at `now`: the work of virtual synchrony, messages that waited for the rate, a rejoin."""
        if self._retry_at is not None and now >= self._retry_at:
            self._retry_at = None
        if self._rejoin_at is not None and now >= self._rejoin_at:
            self._rejoin()
        self._views.wake(now)
        self._flush(now)

    def wake_at(self) -> int | None:
        """When virtual synchrony, a waiting sender or a rejoin needs `wake` next; None if none of them does."""
        due = [at for at in (self._views.wake_at(), self._retry_at, self._rejoin_at) if at is not None]
        return min(due, default=None)

    def _flush(self, now: int) -> None:
        """Process the events of virtual synchrony and send the replies to them, until neither is left."""
        if self._views.violations:
            self.events += self._views.violations
            self._views.violations.clear()
        stream, insertion = self._views.stream, self.insertion
        while stream or insertion.to_multicast or insertion.to_unicast:
            self._send_bodies(now)
            if stream:  # one event at a time: the replies to a message are sent in the view in which it arrived
                self._on_view_event(now, stream.pop(0))
                if self.insertion is not insertion:
                    break  # a new incarnation has started
                self._report_queue_steps()
        self.down += self._views.down
        self._views.down.clear()

    def _send_bodies(self, now: int) -> None:
        insertion = self.insertion
        bodies, insertion.to_multicast[:] = insertion.to_multicast[:], []
        for body in bodies:
            self._views.multicast(now, encode_body(body))
        acks, insertion.to_unicast[:] = insertion.to_unicast[:], []
        for to, ack in acks:
            self._views.unicast(now, to, encode_body(ack))

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
        first_view = not self._members
        joining = first_view and view.view_id > 1
        self._members = view.members
        consumed_by_all = self.insertion.new_view(
            view.view_id, zip(view.members, view.incarnations, strict=True), joining=joining
        )
        joined = tuple(sorted({*view.joined, me})) if first_view else view.joined
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
        self._release_window(now, consumed_by_all)

    def _on_out_of_view(self, now: int, reason: str) -> None:
        me, last = self._policy.member, self.insertion.position - 1
        if not self._departing:
            self.events.append(Violation(ViolationKind.EXCLUDED, reason, me))
        if self._leaving or self._views_for_rejoin is None:
            self._has_left = True
            self.events.append(LeaveComplete(last))
            return
        incarnation = self._policy.incarnation + 1
        text = f"member {me} rejoins as incarnation {incarnation}; the messages that it sent last may be lost"
        self.events.append(Rejoining(NoticeKind.REJOINING, text, me, incarnation=incarnation, final_slot=last))
        self._start_incarnation(replace(self._policy, incarnation=incarnation))
        self._rejoin_at = now + REJOIN_DELAY_NS

    def _rejoin(self) -> None:
        if self._views_for_rejoin is not None:
            self._rejoin_at = None
            self._views = self._views_for_rejoin(self._policy)

    def _release_window(self, now: int, consumed_by_all: MessageSet) -> None:
        """Stop counting this member's messages that every member has consumed, so that it may send more (`WINDOW`)."""
        for first, last in consumed_by_all.ranges.get((self._policy.member, self._policy.incarnation), ()):
            for sequence in range(first, last + 1):
                self._outstanding[self._priorities.pop(sequence)] -= 1
            if self._window_was_full:
                self._window_was_full, self._retry_at = False, now

    def _report_queue_steps(self) -> None:
        for step in self.insertion.steps:
            ref = step.message.ref
            by_multicast = isinstance(step, Received) and not step.inherited
            self.events.append(
                QueueStep(
                    not isinstance(step, Received),
                    *ref,
                    priority=step.message.priority,
                    number=self._next_step_number,
                    consumed=self._index,
                    position=self.insertion.position,
                    detail=str(step.target_tail) if isinstance(step, Received) else str(step.insertion_point),
                    view=self._view_id if by_multicast else None,
                )
            )
            self._next_step_number += 1
        self.insertion.steps.clear()

    # -- state transfer --------------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """The state from which a newcomer continues in the order: the order's own and the application's."""
        application = b"" if self.application is None else self.application.snapshot()
        return encode_handover(self.insertion.state(), application)

    def restore(self, now: int, state: bytes) -> None:
        """Take over the state of another member; raises Unreadable if it is malformed."""
        order, application = decode_handover(state)
        self.insertion.restore(order)
        if self.application is not None:
            self.application.restore(application)

    # -- questions and commands of the stack -----------------------------------------------------------------

    @property
    def incarnation(self) -> int:
        """This member's current incarnation."""
        return self._policy.incarnation

    def change_rate(self, now: int, rate: Rate) -> None:
        """Change this member's rate. If this raises ReservationRefused, the old rate stays in force."""
        self._policy.check_rate(rate)
        self._reserver.reserve(reservation(self._policy, rate))
        self._paced_slot = self._policy.timing.slot_of(now)
        self._pacer.open_slot(self._paced_slot, rate)

    def leave(self, now: int) -> None:
        """Stop consuming, report the consumed history to all, and leave the group."""
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
            self._on_out_of_view(now, "the member left before it had rejoined")
        self._flush(now)

    def latest_slot(self, now: int) -> int:
        """The last slot that a frame may name: any, because frames of this order belong to views, not to slots."""
        return 1 << 62

    def bound_ns(self) -> int:
        """The time until a message is in all queues, while no member fails."""
        return queue_bound_ns(self._policy.timing, coordinated=self.insertion.decision_mode is DecisionMode.COORDINATOR)

    def waiting_for(self) -> tuple[int, ...]:
        """While this member is in no view, the other members from which nothing has arrived yet."""
        return () if self.running() else self._views.not_heard()

    def running(self) -> bool:
        """Whether this member is in a view."""
        return bool(self._members) and not self._has_left

    def peer_problems(self) -> Mapping[int, str]:
        """Always empty: this order refuses no peer before it forms."""
        return {}

    def why_not_formed(self) -> str:
        """Why this member is in no view although others are heard; empty if it is in a view, or hears no other one."""
        if self.running():
            return ""
        peers, not_heard = [m for m in self._policy.view.members if m != self._policy.member], self._views.not_heard()
        heard = [peer for peer in peers if peer not in not_heard]
        if not heard:
            return ""
        return f"this member hears member {', '.join(map(str, heard))}, but no view that includes it is agreed"

    def standing(self, now: int) -> Standing:
        """Whether a majority of the view is reachable. This order has no leader: each message may have a coordinator.

        Views exclude failed members, so that a later majority may be smaller than half of the first members.
        """
        if not self.running():
            return Standing()
        suspected = tuple(member for member in self._members if member not in self._views.reachable())
        return Standing(majority=2 * len(suspected) < len(self._members), suspected=suspected)

    def peer_rate(self, peer: int) -> Rate | None:
        """Always None: members of this order do not declare their rates to one another."""
        return None

    def by_multicast(self) -> bool:
        """Always False: frames go to each member separately, without IP multicast."""
        return False


def build_priority_order(policy: Policy, reserver: Reserver) -> PriorityOrder:
    """Build the priority order that `policy` declares, on top of virtual synchrony."""
    mode = DecisionMode.COORDINATOR if policy.order == "priority_coordinator" else DecisionMode.ALL
    rejoin = partial(membership_of, founding=False) if policy.rejoin else None
    return PriorityOrder(policy, reserver, membership_of(policy), decision_mode=mode, views_for_rejoin=rejoin)
