"""Membership with virtual synchrony (paper 004 §3.2, paper 002 §2.2): agreed views, and messages received within them.

A view is a numbered list of members, each with its incarnation. The members of a view decide by one instance of
consensus on the next view, and on the last message of each member in the present one. So there is one sequence of
views: a partition with a majority of the last view continues, a minority delivers nothing and reports that it is
blocked.

A member receives one `stream` of events: the messages of its view, and between them the views. The guarantees:

1. **View-atomic.** If two members both go from view v to view v+1, they have received the same messages in v. A message
   is received in the view in which its sender multicast it, or by no member that goes on to the next view. The sender
   receives its own messages through the same stream, and all of them if it goes on.
2. **FIFO.** The messages of one incarnation of a sender are received in the order in which it multicast them, each at
   most once. There is no order between senders: an acknowledgment may arrive before the message that it acknowledges
   (erratum 004-1).
3. **One sequence of views.** Members that go on install the same views, with the same members, in the same order.
4. **State transfer.** When a view brings newcomers, each member that stays gets `StateRequested` after the last message
   of the old view and before the new view, and must answer at once. A newcomer gets one of these states as
   `StateReceived` before its first view. The founders of a group begin without a state.

A view change starts when a member is suspected, asks to join or asks to leave. The first survivor, a member of both
this view and the next, coordinates it:

1. It sends FLUSH to the survivors. Each of them stops delivering and answers FLUSHED with what it has received.
2. It sends LAST_MESSAGES: for each member, the last message that any survivor has. Each survivor fetches what it lacks
   and answers FLUSHED again.
3. When all are ready, it proposes the next view. On the decision each survivor delivers exactly up to the last messages
   and installs the view.

A member left out of the next view learns this from any member that it contacts; `NoLongerMember` is its last event. It
may join again as another incarnation. A member that returns this way is in `left` and `joined` of some views, perhaps
of the same one.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from unisono.agreement.failure_detector import (
    MISTAKES_PER_S,
    FailureDetector,
    heartbeat_interval_ns,
    retry_interval_ns,
)
from unisono.agreement.membership import messages as wire
from unisono.agreement.membership.messages import (
    Acks,
    Flush,
    Flushed,
    LastMessage,
    LastMessages,
    MembershipRequest,
    MessageRequest,
    Multicast,
    NextView,
    NextViewDecided,
    Relayed,
    StateChunk,
    Unicast,
    Vector,
)
from unisono.agreement.membership.multicast import (
    WAITING_MAX,
    Receive,
    ReceiveUnicast,
    StateReceiver,
    StateSender,
    ViewMulticast,
    encode_view_description,
)
from unisono.agreement.paxos.acceptor import Decision
from unisono.agreement.paxos.consensus import Consensus
from unisono.errors import InvariantViolated, UnisonoError
from unisono.model.delays import Histogram
from unisono.model.events import Blocked, Violation, ViolationKind
from unisono.model.policy import Policy
from unisono.model.timing import earliest
from unisono.model.units import EVERYONE, NS_PER_MS
from unisono.net.layer import Timed
from unisono.wire.codec import control_frame
from unisono.wire.frame import HEADER_BYTES, Frame

JOIN_REQUEST_TIMEOUTS = 8
"""Forget a newcomer that has not repeated its request for this many time-outs."""
DECISIONS_KEPT = 16
"""Keep the decisions of this many past views, for members that missed them."""
REPORT_AFTER_TIMEOUTS = 3
"""Report a member as blocked after this many failure-detection times without a new view."""


# -- the contract: what an order over virtual synchrony uses -------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NewView:
    """A new view begins: from here on these are the members, in ascending order, each with its incarnation.

    The first view of a group has number 1.
    """

    view_id: int
    members: tuple[int, ...]
    incarnations: tuple[int, ...]
    joined: tuple[int, ...] = ()
    left: tuple[int, ...] = ()
    blocked_ns: int = 0
    """How long this member delivered nothing because of the view change."""


@dataclass(frozen=True, slots=True)
class StateRequested:
    """View `view_id` brings newcomers: call `provide_state` before you handle the next event of the stream."""

    view_id: int


@dataclass(frozen=True, slots=True)
class StateReceived:
    """For a newcomer, just before view `view_id`: the state of a member at the end of the previous view."""

    view_id: int
    state: bytes


@dataclass(frozen=True, slots=True)
class NoLongerMember:
    """This member is in no view any more: it left, or the others installed a view without it. No event follows."""

    reason: str


ViewEvent: TypeAlias = Receive | ReceiveUnicast | NewView | StateRequested | StateReceived | NoLongerMember


class ViewSynchrony(Timed, Protocol):
    """Virtual synchrony as an order uses it. `Membership` implements it; the module docstring lists the guarantees."""

    down: list[Frame]
    """Frames for the network. The stack drains the list."""
    stream: list[ViewEvent]
    """Events in the order in which they happened here. The order drains the list."""
    violations: list[Violation]
    """Violations to report to the application. The order drains the list."""

    def multicast(self, now: int, body: bytes) -> None:
        """Send a message to all members of the view, this one included. While `blocked`, it waits for the next view."""

    def unicast(self, now: int, to: int, body: bytes) -> None:
        """Send to one other member.

        Unicast messages between two members arrive in order. They are lost if one of the two leaves or a new view
        begins first: a sender that needs an answer sends again in the new view.
        """

    def blocked(self) -> bool:
        """Whether a view change is in progress, so that multicasts wait."""

    def not_heard(self) -> tuple[int, ...]:
        """The other members of the list from which no heartbeat has arrived yet."""

    def reachable(self) -> tuple[int, ...]:
        """The members of the view that this member does not suspect to have failed, itself included."""

    def provide_state(self, now: int, view_id: int, state: bytes) -> None:
        """Answer the event `StateRequested`: `state` is this member's state at the end of the view before `view_id`."""

    def from_below(self, now: int, frame: Frame) -> None:
        """Process a frame that has arrived."""

    def leave(self, now: int) -> None:
        """Ask to be left out of the next view. `NoLongerMember` follows when that is done.

        All members that go on receive the messages that this member has received so far, unless it crashes first.
        """


# -- the automaton -------------------------------------------------------------------------------------------------


class Membership:
    """The membership automaton of one incarnation of a member. Implements `ViewSynchrony`."""

    kinds = frozenset({*wire.SPECS, *Consensus.kinds, *FailureDetector.kinds})

    def __init__(
        self,
        me: int,
        founders: Sequence[int],
        *,
        incarnation: int,
        every_ns: int,
        retry_ns: int,
        max_frame: int = 1400,
        mistakes_per_s: float = MISTAKES_PER_S,
        founding: bool = True,
    ) -> None:
        """Start a member. If `founding`, it may create the group, together with a majority of the `founders`.

        Otherwise it joins a group that exists.

        Members send a heartbeat every `every_ns`, and retransmit after `retry_ns`, a round trip.
        """
        self.down: list[Frame] = []
        self.stream: list[ViewEvent] = []
        self.violations: list[Violation] = []
        self.ignored = Counter[str]()
        self.blocked_time = BlockedTime()
        self.me, self.incarnation = me, incarnation
        self.view_id = 0
        self.incarnations: dict[int, int] = dict.fromkeys(founders, 0)
        """The members of the view, each with its incarnation; before the first view, the founders."""
        self.ended = False
        self._every_ns, self._retry_ns, self._max_frame = every_ns, retry_ns, max_frame
        self._max_body_bytes = max_frame - HEADER_BYTES - wire.OVERHEAD_BYTES
        self.detector = FailureDetector(
            me, founders, every_ns=every_ns, mistakes_per_s=mistakes_per_s, incarnation=incarnation
        )
        self._consensus: Consensus | None = self._new_consensus(founders) if founding and me in founders else None
        self._view_multicast: ViewMulticast | None = None
        self._before_first_view: deque[bytes] = deque()
        self._state_receiver: StateReceiver | None = StateReceiver()
        self._state_sender, self._past_views = StateSender(0, b""), PastViews()
        self._requests = MembershipRequests(self.detector)
        self._leaving = False
        self._attempt: ViewChangeAttempt | None = None
        self._attempts = self._retry_at = self._ack_at = 0
        self._started_ns: int | None = None

    def _new_consensus(self, members: Sequence[int]) -> Consensus:
        """Start the consensus on the next view: it has one instance, and the present view's number as its epoch."""
        return Consensus(
            self.me,
            members,
            every_ns=self._every_ns,
            retry_ns=self._retry_ns,
            max_frame=self._max_frame,
            incarnation=self.incarnation,
            epoch=self.view_id,
            detector=self.detector,
            window=1,
        )

    # -- inputs of the owner ---------------------------------------------------------------------------------

    def free_capacity(self) -> int:
        """How many more messages `multicast` accepts before it raises an error."""
        return WAITING_MAX - len(self._waiting_messages())

    def multicast(self, now: int, body: bytes) -> None:
        """Send a message to every member of the view, this one included.

        During a view change the message waits for the next view.
        """
        if self.free_capacity() <= 0:
            raise UnisonoError(
                f"{WAITING_MAX:,} messages are waiting already; check free_capacity() before multicasting"
            )
        if self._view_multicast is None:
            self._before_first_view.append(body)
        else:
            self._view_multicast.multicast(now, body)
            self._flush(now)

    def unicast(self, now: int, to: int, body: bytes) -> None:
        """Send a message to one other member of the view."""
        if self._view_multicast is not None and not self.blocked():
            self._view_multicast.unicast(now, to, body)

    def blocked(self) -> bool:
        """Whether a view change is in progress, or there is no view yet."""
        return self._view_multicast is None or self._view_multicast.frozen

    def not_heard(self) -> tuple[int, ...]:
        """The other members of the list from which no heartbeat has arrived yet."""
        received_from = self.detector.has_received_from
        return tuple(member for member in self.incarnations if member != self.me and not received_from(member))

    def reachable(self) -> tuple[int, ...]:
        """The members of the view that this member does not suspect to have failed, itself included."""
        return tuple(self.detector.trusted(tuple(self.incarnations)))

    def provide_state(self, now: int, view_id: int, state: bytes) -> None:
        """Answer the event `StateRequested`: `state` is this member's state at the end of the view before `view_id`."""
        self._state_sender.set_state(view_id, state)

    def leave(self, now: int) -> None:
        """Leave the group when all members have what this member has sent and received.

        Before its first view this member leaves at once.
        """
        self._leaving = True
        if self._view_multicast is None:
            self._leave_group("it left before its first view")

    # -- receiving -------------------------------------------------------------------------------------------

    def from_below(self, now: int, frame: Frame) -> None:
        """Process a frame that has arrived."""
        if self.ended:
            return
        if frame.kind in FailureDetector.kinds:
            self.detector.from_below(now, frame)
        elif frame.kind in Consensus.kinds:
            self._on_consensus_frame(now, frame)
        else:
            match frame.message:
                case MembershipRequest() as request:
                    self._on_membership_request(now, frame, request)
                case NextViewDecided() as decided:
                    self._on_next_view_decided(now, decided)
                case StateChunk() as chunk:
                    self._on_state_chunk(now, chunk)
                case message if self._is_of_this_view(now, frame):
                    self._on_message(now, frame.sender, message)
        self._flush(now)

    def _is_of_this_view(self, now: int, frame: Frame) -> bool:
        """Whether a frame belongs to this view. A sender in an earlier view gets the decision that ended that view."""
        if frame.epoch < self.view_id:
            self._send(
                now, self._past_views.decision_for_member_in(frame.epoch, self.view_id, self.incarnations), frame.sender
            )
            self.ignored["of an earlier view"] += 1
            return False
        if frame.epoch > self.view_id:
            # Any frame of this view makes the sender answer with the decision that this member has missed.
            self._send(now, None if self._view_multicast is None else self._view_multicast.acks(), frame.sender)
            self.ignored["of a later view"] += 1
            return False
        if self._view_multicast is None or self.incarnations.get(frame.sender) != frame.incarnation:
            self.ignored["not in the view"] += 1
            return False
        return True

    def _on_consensus_frame(self, now: int, frame: Frame) -> None:
        forming = self._view_multicast is None and frame.epoch == 0
        if (forming or self._is_of_this_view(now, frame)) and self._consensus is not None:
            self._consensus.from_below(now, frame)

    def _installed_view(self) -> ViewMulticast:
        if self._view_multicast is None:
            text = "this member processes a message of a view before it has installed any view"
            raise InvariantViolated("view", self.me, text, "an installed view", "none")
        return self._view_multicast

    def _on_message(self, now: int, sender: int, message: object) -> None:
        view_multicast = self._installed_view()
        match message:
            case Multicast():
                view_multicast.on_multicast(now, sender, message)
            case Relayed() if message.member in self.incarnations:
                view_multicast.on_multicast(now, message.member, Multicast(message.number, message.flags, message.body))
            case Unicast():
                view_multicast.on_unicast(now, sender, message)
            case Acks():
                view_multicast.on_acks(now, sender, message)
            case MessageRequest():
                view_multicast.answer_request(now, sender, message)
            case Flush():
                self._block(now)
                self._send(now, Flushed(message.attempt, False, dict(view_multicast.received)), sender)
            case LastMessages():
                self._block(now)
                if view_multicast.lacks(message.received):
                    view_multicast.request_missing(now, message.received, message.holders)
                else:
                    self._send(now, Flushed(message.attempt, True, {}), sender)
            case Flushed():
                # Without an attempt of our own, it answers a coordinator that has failed since. The members that it
                # stopped now wait for this member to coordinate, so it must start an attempt.
                self._block(now)
                if self._attempt is not None:
                    self._attempt.on_flushed(sender, message)
            case _:
                self.ignored["unexpected"] += 1

    def _on_membership_request(self, now: int, frame: Frame, request: MembershipRequest) -> None:
        sender, incarnation = frame.sender, frame.incarnation
        if request.leaving:
            if self.incarnations.get(sender) == incarnation and request.view_id == self.view_id:
                self._requests.leaving.add(sender)
            return
        if self._view_multicast is not None and self.incarnations.get(sender) == incarnation:
            self._send_state(now, sender, request)
        elif self._view_multicast is None or incarnation > self.incarnations.get(sender, -1):
            self._requests.request_join(now, self.incarnations, sender, incarnation)
            self._send(now, self._past_views.latest(), sender)

    # -- time ------------------------------------------------------------------------------------------------

    def wake(self, now: int) -> None:
        """Do what is due at `now`: heartbeats, acknowledgments, retransmissions, and steps of a view change."""
        if self.ended:
            return
        if self._started_ns is None:
            self._started_ns = now
        self.detector.wake(now)
        if self._consensus is not None:
            self._consensus.wake(now)
        view_multicast = self._view_multicast
        if now >= self._retry_at:
            self._retry_at = now + max(self._retry_ns, self.detector.response_time_ns())
            self._retransmit(now)
        if (
            view_multicast is not None
            and now >= self._ack_at
            and (view_multicast.ack_due or view_multicast.has_unstable())
        ):
            self._ack_at = now + (self._retry_ns // 4 if view_multicast.ack_due else self._every_ns)
            view_multicast.ack_due = False
            self._send(now, view_multicast.acks())
        self._flush(now)

    def wake_at(self) -> int | None:
        """The time to call `wake`: the earliest of the next heartbeat, acknowledgment and retry, or None."""
        if self.ended:
            return None
        times: list[int | None] = [self.detector.wake_at(), self._retry_at]
        if self._consensus is not None:
            times.append(self._consensus.wake_at())
        if self._view_multicast is not None and (self._view_multicast.ack_due or self._view_multicast.has_unstable()):
            times.append(self._ack_at)
        return earliest(times)

    def _retransmit(self, now: int) -> None:
        view_multicast = self._view_multicast
        if self._state_receiver is not None:
            self._send(now, self._state_receiver.next_request())
        if view_multicast is None:
            return
        view_multicast.retransmit(now, self.detector.trusted(view_multicast.peers))
        if self._leaving and (self.me in self._requests.leaving or view_multicast.all_acknowledged()):
            self._send(now, MembershipRequest(True, 0, self.view_id, 0, 0))
            self._requests.leaving.add(self.me)
        if self._attempt is not None:
            self._ask_survivors(now, self._attempt)
        elif view_multicast.frozen:
            coordinator = min(self.detector.trusted(view_multicast.members))
            self._send(now, Flushed(0, False, dict(view_multicast.received)), coordinator)
        self._requests.expire(now, self._retry_ns)

    # -- founding the group ----------------------------------------------------------------------------------

    def _found_group_if_ready(self, now: int) -> None:
        """Propose the first view when messages of all founders have arrived.

        After a time limit, a majority of the founders is enough.
        """
        consensus = self._consensus
        if self._view_multicast is not None or consensus is None or not consensus.is_leader or self._started_ns is None:
            return
        present = {self.me: self.incarnation}
        for member in self.incarnations:
            incarnation = self._requests.joining_incarnation(member)
            if incarnation is not None:
                present[member] = incarnation
        waits_for_all = now < self._started_ns + 4 * self.detector.timeout_ns(self.me)
        # A member that returns to a running group hears of it during this time, and does not found another one.
        has_listened = now >= self._started_ns + 2 * self._every_ns
        all_present = has_listened and len(present) == len(self.incarnations)
        if all_present or (not waits_for_all and len(present) >= consensus.majority):
            consensus.propose(now, 1, wire.encode_next_view(NextView(present, {})))

    # -- view change: flush, last messages, proposal ---------------------------------------------------------

    def _change_view_if_needed(self, now: int) -> None:
        """As the coordinator, start an attempt at the next view, or take the present attempt one step further."""
        view_multicast = self._view_multicast
        if view_multicast is None or (not view_multicast.frozen and self._requests.no_change_needed()):
            return
        wanted = self._requests.next_members(self.incarnations)
        if wanted == self.incarnations and not view_multicast.frozen:
            return
        if not wanted:
            self._leave_group("it left, as the last member")
            return
        survivors = tuple(m for m, incarnation in self.incarnations.items() if wanted.get(m) == incarnation)
        if self._attempt is not None and self._attempt.proposed:
            return
        if min(survivors, default=0) != self.me:
            self._attempt = None
            return
        if self._attempt is None or self._attempt.members != wanted:
            self._attempts += 1
            self._attempt = ViewChangeAttempt(self._attempts, wanted, survivors)
            self._block(now)
            self._ask_survivors(now, self._attempt)
        self._advance_attempt(now, self._attempt)

    def _ask_survivors(self, now: int, attempt: ViewChangeAttempt) -> None:
        question, unanswered = attempt.open_question()
        for member in unanswered:
            if member != self.me:
                self._send(now, question, member)
            elif isinstance(question, LastMessages) and self._view_multicast is not None:
                self._view_multicast.request_missing(now, question.received, question.holders)

    def _advance_attempt(self, now: int, attempt: ViewChangeAttempt) -> None:
        """As the coordinator, answer FLUSH and LAST_MESSAGES for this member; propose the view when all are ready."""
        view_multicast = self._installed_view()
        question, unanswered = attempt.open_question()
        if self.me in unanswered and isinstance(question, Flush):
            attempt.on_flushed(self.me, Flushed(attempt.number, False, dict(view_multicast.received)))
            question, unanswered = attempt.open_question()
        if isinstance(question, LastMessages) and not attempt.last_messages_requested:
            attempt.last_messages_requested = True
            self._ask_survivors(now, attempt)
        if self.me in unanswered and isinstance(question, LastMessages) and not view_multicast.lacks(question.received):
            attempt.on_flushed(self.me, Flushed(attempt.number, True, {}))
        next_view = attempt.next_view()
        # A member that leaves by itself still votes on the next view. An unreachable one cannot.
        voters = {*attempt.survivors, *self._requests.leaving}
        if next_view is not None and self._consensus is not None and len(voters) >= self._consensus.majority:
            attempt.proposed = True
            self._consensus.propose(now, 1, wire.encode_next_view(next_view))

    def _block(self, now: int) -> None:
        if self._view_multicast is not None and not self._view_multicast.frozen:
            self._view_multicast.frozen = True
            self.blocked_time.begin(now)

    # -- the decision: install the next view -----------------------------------------------------------------

    def _on_next_view_decided(self, now: int, decided: NextViewDecided) -> None:
        """Handle another member's report of the decision that ended a view."""
        if decided.view_id == self.view_id:
            self._on_decision(now, decided.value)
        elif self._view_multicast is None:
            self._consensus = None  # the group exists already, so this member must not found one
        elif decided.view_id > self.view_id:
            next_view = wire.decode_next_view(decided.value)
            if next_view is not None and next_view.members.get(self.me) != self.incarnation:
                self._leave_group()

    def _on_decision(self, now: int, value: bytes) -> None:
        next_view = wire.decode_next_view(value)
        if next_view is None:
            self.ignored["malformed"] += 1
            return
        is_member = next_view.members.get(self.me) == self.incarnation
        if self._view_multicast is None:
            self._consensus = None
            if is_member:
                self._install_next_view(now, 1, next_view, value)
        elif is_member:
            self._view_multicast.close_view(next_view.last_messages)
            self._collect_received()
            self._install_next_view(now, self.view_id + 1, next_view, value)
        else:
            self._send(now, NextViewDecided(self.view_id, value))
            self._leave_group()

    def _install_next_view(self, now: int, view_id: int, next_view: NextView, decided: bytes) -> None:
        """Install a view as a survivor of the previous one, or as a founder."""
        self._past_views.record(view_id - 1, decided)
        before, waiting = (self.incarnations if self._view_multicast is not None else {}), self._waiting_messages()
        joined = tuple(m for m, incarnation in sorted(next_view.members.items()) if before.get(m) != incarnation)
        left = tuple(m for m, incarnation in sorted(before.items()) if next_view.members.get(m) != incarnation)
        self._begin_view(now, view_id, next_view.members)
        if before and joined:
            self._state_sender = StateSender(view_id, encode_view_description(next_view.members, joined, left, decided))
            self.stream.append(StateRequested(view_id))
        self._announce(now, joined, left, waiting)

    def check_view(self, view_id: int, members: Vector) -> None:
        """Raise InvariantViolated unless the view follows this member's last view and has this member in it."""
        if self._view_multicast is not None and view_id != self.view_id + 1:
            text = "this member installs a view that does not follow its last view"
            raise InvariantViolated("view", self.me, text, f"view {self.view_id + 1}", str(view_id))
        if members.get(self.me) != self.incarnation:
            text = f"this member installs view {view_id}, but is not in it"
            raise InvariantViolated("view", self.me, text, f"incarnation {self.incarnation}", str(members.get(self.me)))

    def _begin_view(self, now: int, view_id: int, members: Vector) -> None:
        self.check_view(view_id, members)
        self.view_id, self.incarnations = view_id, dict(sorted(members.items()))
        self._view_multicast = ViewMulticast(self.me, self.incarnations, view_id, self._send, self._max_body_bytes)
        self._consensus = self._new_consensus(tuple(self.incarnations))
        self._state_receiver = self._attempt = None
        self._requests.start_view(now, self.incarnations)
        self._retry_at = now

    def _announce(self, now: int, joined: tuple[int, ...], left: tuple[int, ...], waiting: Sequence[bytes]) -> None:
        """Report the view, then multicast the messages that waited for it."""
        blocked_ns = self.blocked_time.end(now)
        self.stream.append(
            NewView(self.view_id, tuple(self.incarnations), tuple(self.incarnations.values()), joined, left, blocked_ns)
        )
        self._before_first_view.clear()
        for body in waiting:
            self.multicast(now, body)

    def _waiting_messages(self) -> Sequence[bytes]:
        return tuple(self._before_first_view if self._view_multicast is None else self._view_multicast.waiting)

    def _leave_group(self, reason: str = "") -> None:
        if not self.ended:
            self.ended = True
            default = "it left" if self._leaving else "the others went on without this member"
            self.stream.append(NoLongerMember(reason or default))

    # -- state transfer to newcomers -------------------------------------------------------------------------

    def _send_state(self, now: int, to: int, request: MembershipRequest) -> None:
        """Answer a newcomer of this view that requests its state. Each attempt selects another member as the source.

        A founder of the first view needs no state, only the decision.
        """
        if self.view_id == 1:
            self._send(now, self._past_views.decision_after(0), to)
        sources = [m for m in self.incarnations if m != to and not self.detector.suspected(m)]
        if request.source == self.me or (sources and sources[request.attempt % len(sources)] == self.me):
            for chunk in self._state_sender.chunks_for(self.me, self.view_id, request, self._max_body_bytes):
                self._send(now, chunk, to)

    def _on_state_chunk(self, now: int, chunk: StateChunk) -> None:
        if self._state_receiver is None:
            return
        transferred = self._state_receiver.receive(chunk)
        if transferred is not None and transferred.members.get(self.me) == self.incarnation:
            waiting = self._waiting_messages()
            self._begin_view(now, transferred.view_id, transferred.members)
            self._past_views.record(transferred.view_id - 1, transferred.decided)
            self._state_sender = StateSender(transferred.view_id, transferred.description, transferred.state)
            self.stream.append(StateReceived(transferred.view_id, transferred.state))
            self._announce(now, transferred.joined, transferred.left, waiting)
        elif self._state_receiver.wants_next_chunk():
            self._send(now, self._state_receiver.next_request(), chunk.source)

    # -- output ----------------------------------------------------------------------------------------------

    def _flush(self, now: int) -> None:
        """After each input: advance view changes, apply decisions, and collect frames and events."""
        if self.ended:
            return
        self._found_group_if_ready(now)
        self._change_view_if_needed(now)
        consensus = self._consensus
        if consensus is not None:
            self.down += consensus.down
            consensus.down.clear()
            consensus.writes.clear()
            decisions = consensus.decisions[:]
            consensus.decisions.clear()
            for decision in decisions:
                if isinstance(decision, Decision) and decision.k == 1 and self._consensus is consensus:
                    self._on_decision(now, decision.value)
        if self.detector.down:
            self.down += self.detector.down
            self.detector.down.clear()
        self._collect_received()
        if self.blocked_time.is_overdue(now, self._longest_timeout_ns()):
            self.violations.append(self._blocked_violation(now))

    def _longest_timeout_ns(self) -> int:
        return max((self.detector.timeout_ns(peer) for peer in self.incarnations if peer != self.me), default=0)

    def _blocked_violation(self, now: int) -> Blocked:
        reachable = self.reachable()
        ended = f"view {self.view_id} ended {self.blocked_time.present_ns(now) / NS_PER_MS:.0f} ms ago"
        text = f"{ended} and no next view is decided: {self._view_change_obstacle(reachable)}"
        return Blocked(ViolationKind.BLOCKED, text, self.me, view_id=self.view_id, reachable=reachable)

    def _view_change_obstacle(self, reachable: tuple[int, ...]) -> str:
        """What the view change waits for, in words."""
        majority = len(self.incarnations) // 2 + 1
        if len(reachable) < majority:
            members = tuple(self.incarnations)
            return f"of its members {members} only {reachable} are reachable, and a majority of {majority} is needed"
        wanted = self._requests.next_members(self.incarnations)
        survivors = [m for m, incarnation in self.incarnations.items() if wanted.get(m) == incarnation]
        if self._attempt is None:
            coordinator = min(survivors, default=self.me)
            return f"member {coordinator}, which coordinates the change, has not completed it"
        if self._attempt.proposed:
            return "this member proposed it, but has not heard that a majority accepted it"
        _, unanswered = self._attempt.open_question()
        listed = ", ".join(map(str, unanswered)) or "no other member"
        return f"this member coordinates the change and waits for an answer of member {listed}"

    def _collect_received(self) -> None:
        if self._view_multicast is not None:
            self.stream += self._view_multicast.received_events
            self._view_multicast.received_events.clear()

    def _send(self, now: int, message: wire.MembershipMessage | None, to: int = EVERYONE) -> None:
        if message is None:
            return
        self.down.append(control_frame(message, self.me, self.incarnation, self.view_id, sent_ns=now, to=to))


# -- parts of the automaton ----------------------------------------------------------------------------------------


class MembershipRequests:
    """Requests to join and to leave, and the next view that follows from them and from the failure detector."""

    def __init__(self, detector: FailureDetector) -> None:
        self.leaving: set[int] = set()
        self._detector = detector
        self._joining: dict[int, tuple[int, int]] = {}
        """By member that asks to join: its incarnation and the time of its last request."""

    def request_join(self, now: int, incarnations: Vector, member: int, incarnation: int) -> None:
        """Record that a newcomer, or a new incarnation of a member, asks to join."""
        self._joining[member] = (incarnation, now)
        self._detector.set_peers(now, {*incarnations, *self._joining})

    def joining_incarnation(self, member: int) -> int | None:
        """The incarnation with which a member asks to join; None if it has not asked."""
        return self._joining[member][0] if member in self._joining else None

    def no_change_needed(self) -> bool:
        """Whether no member joins, leaves or is suspected."""
        return not self.leaving and not self._joining and not self._detector.suspects_any()

    def next_members(self, incarnations: Vector) -> dict[int, int]:
        """The next view: the present members that are neither suspected nor leaving, and the newcomers."""
        suspected = self._detector.suspected
        wanted = {
            member: incarnation
            for member, incarnation in incarnations.items()
            if not suspected(member) and member not in self.leaving
        }
        for member, (incarnation, _) in self._joining.items():
            if incarnation > incarnations.get(member, -1) and not suspected(member):
                wanted[member] = incarnation
        return dict(sorted(wanted.items()))

    def start_view(self, now: int, incarnations: Vector) -> None:
        """Drop the requests that a new view fulfils, and all requests to leave.

        A member that still wants to leave asks again when the members of the new view have all that it has received.
        """
        self.leaving = set()
        self._joining = {m: request for m, request in self._joining.items() if request[0] > incarnations.get(m, -1)}
        self._detector.set_peers(now, {*incarnations, *self._joining})

    def expire(self, now: int, retry_ns: int) -> None:
        """Forget newcomers that have stopped asking."""
        for member, (_, asked_ns) in list(self._joining.items()):
            if now - asked_ns > JOIN_REQUEST_TIMEOUTS * max(retry_ns, self._detector.timeout_ns(member)):
                del self._joining[member]


class ViewChangeAttempt:
    """A coordinator's attempt to bring the survivors from this view to the next.

    It proposes the view only when every survivor has all messages up to the last ones. So if a member crashes after
    that, the others can still install the view: none of them waits for a message that only the crashed member had.
    """

    def __init__(self, number: int, members: Vector, survivors: tuple[int, ...]) -> None:
        self.number = number
        self.members = dict(members)
        self.survivors = survivors
        """The members of both this view and the next."""
        self.proposed = self.last_messages_requested = False
        self._received: dict[int, Vector] = {}
        self._ready: set[int] = set()
        self._last_messages: LastMessages | None = None

    def on_flushed(self, member: int, flushed: Flushed) -> None:
        """Record a survivor's answer to FLUSH or to LAST_MESSAGES."""
        if flushed.attempt != self.number or member not in self.survivors:
            return
        if flushed.ready:
            self._ready.add(member)
        elif self._last_messages is None:
            self._received[member] = flushed.received
            if len(self._received) == len(self.survivors):
                self._last_messages = self._find_last_messages()

    def _find_last_messages(self) -> LastMessages:
        """For each member, the last of its messages that any survivor has received, and that survivor."""
        last: dict[int, int] = {}
        holders: dict[int, int] = {}
        for survivor in self.survivors:
            for member, number in self._received[survivor].items():
                if number > last.get(member, -1):
                    last[member], holders[member] = number, survivor
        return LastMessages(self.number, tuple(LastMessage(m, n, holders[m]) for m, n in last.items()))

    def open_question(self) -> tuple[Flush | LastMessages, list[int]]:
        """The coordinator's open question, FLUSH or LAST_MESSAGES, and the survivors that have not answered it."""
        if self._last_messages is None:
            return Flush(self.number, self.members), [m for m in self.survivors if m not in self._received]
        return self._last_messages, [m for m in self.survivors if m not in self._ready]

    def next_view(self) -> NextView | None:
        """The next view, once every survivor has all last messages of this view; None until then."""
        if self._last_messages is None or len(self._ready) < len(self.survivors):
            return None
        return NextView(self.members, self._last_messages.received)


class PastViews:
    """The decisions that ended past views. Members that are still in a past view, or were left out, ask for them."""

    def __init__(self) -> None:
        self._decided: dict[int, bytes] = {}
        """By the view that ended, the decision of its members."""

    def record(self, view_id: int, value: bytes) -> None:
        """Keep the decision that ended a view."""
        self._decided[view_id] = value
        self._decided.pop(view_id - DECISIONS_KEPT, None)

    def decision_after(self, view_id: int) -> NextViewDecided | None:
        """The decision that ended view `view_id`, or None if this member does not have it."""
        value = self._decided.get(view_id)
        return None if value is None else NextViewDecided(view_id, value)

    def latest(self) -> NextViewDecided | None:
        """The decision that ended the last past view, or None if there is none."""
        return self.decision_after(max(self._decided, default=-1))

    def decision_for_member_in(self, in_view: int, view_id: int, incarnations: Vector) -> NextViewDecided | None:
        """The decision to send to a member that is still in view `in_view`, while this member is in `view_id`.

        An incarnation is in a view only if it was in the previous one or has just joined. So a member that is two or
        more views behind has been left out. If this member has discarded the decision that the other one missed, it
        reports the members of the present view, and that is enough.
        """
        known = self.decision_after(in_view)
        if known is None and in_view < view_id - 1:
            return NextViewDecided(view_id - 1, wire.encode_next_view(NextView(incarnations, {})))
        return known


class BlockedTime:
    """Measures how long view changes keep this member from delivering, and reports one that takes too long."""

    def __init__(self) -> None:
        self.durations = Histogram()
        """The duration of each view change, in nanoseconds."""
        self.last_ns = 0
        self._since: int | None = None
        self._reported = False

    def begin(self, now: int) -> None:
        """Record that a view change begins, so this member stops delivering."""
        self._since = now if self._since is None else self._since

    def end(self, now: int) -> int:
        """Record that the next view begins. Returns for how many nanoseconds this member delivered nothing."""
        lasted = 0
        if self._since is not None:
            lasted = self.last_ns = now - self._since
            self.durations.add(lasted)
        self._since, self._reported = None, False
        return lasted

    def present_ns(self, now: int) -> int:
        """How long the present view change has taken so far; 0 if there is none."""
        return 0 if self._since is None else now - self._since

    def is_overdue(self, now: int, timeout_ns: int) -> bool:
        """Whether the view change takes too long, with this failure-detection time; True once per view change."""
        if self._reported or self.present_ns(now) <= REPORT_AFTER_TIMEOUTS * timeout_ns:
            return False
        self._reported = True
        return True


# -- construction from a policy ------------------------------------------------------------------------------------


def membership_of(policy: Policy, *, founding: bool = True) -> Membership:
    """The membership automaton for a policy. If `founding`, it may create the group with a majority of the members."""
    return Membership(
        policy.member,
        policy.view.members,
        incarnation=policy.incarnation,
        every_ns=heartbeat_interval_ns(policy.timing),
        retry_ns=retry_interval_ns(policy.timing),
        max_frame=policy.max_frame,
        founding=founding,
    )
