"""Membership with virtual synchrony (paper 004 §3.2; paper 002 §2.2): agreed views, and messages that keep to them.

The members of a view agree on the next one, and on the cut that ends this one, by one instance of consensus among
themselves. So there is one sequence of views: a partition that has the majority of the last view goes on, a minority
stops handing out messages and says so.

A view changes when a member is suspected, wants to come or wants to go. Whoever coordinates (the first that is not
suspected) asks those who go on to stop and to say what they have received; then that everybody who goes on fetches
what one of them has; then it proposes. Whoever has stopped hands nothing out until the decision, and then exactly the
cut: all who install the next view have received the same messages in this one. A newcomer is given the state of a
member at that cut. A member that the others went on without learns it from anybody, and is out; it may come back in
another incarnation.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from functools import partial

from unisono.agreement.failure_detector import MISTAKES_PER_S, FailureDetector
from unisono.agreement.membership import messages as wire
from unisono.agreement.membership.blocked_time import BlockedTime
from unisono.agreement.membership.contract import NewView, NoLongerMember, StateReceived, StateRequested, ViewEvent
from unisono.agreement.membership.flush import ViewChangeAttempt
from unisono.agreement.membership.messages import (
    Acks,
    Flush,
    Flushed,
    LastMessages,
    MembershipRequest,
    MessageRequest,
    Multicast,
    NextView,
    NextViewDecided,
    Relayed,
    StateChunk,
    Unicast,
)
from unisono.agreement.membership.multicast import WAITING_MAX, ViewMulticast
from unisono.agreement.membership.past_views import PastViews
from unisono.agreement.membership.requests import MembershipRequests
from unisono.agreement.membership.state_transfer import StateReceiver, StateSender, encode_view_description
from unisono.agreement.paxos.consensus import Consensus
from unisono.agreement.paxos.log import Decision
from unisono.errors import UnisonoError
from unisono.model.durations import earliest
from unisono.model.events import Violation
from unisono.model.ids import EVERYONE
from unisono.wire.frame import HEADER_BYTES, Frame


class Membership:
    """The automaton of one member in one incarnation; keeps `view_contract.ViewSynchrony`."""

    kinds = frozenset({*wire.DECODERS, *Consensus.kinds, *FailureDetector.kinds})

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
        """A majority of the `founders` may begin the group, if this member is `founding`; all others join."""
        self.down: list[Frame] = []
        self.stream: list[ViewEvent] = []
        self.violations: list[Violation] = []
        self.ignored = Counter[str]()
        self.blocked_time = BlockedTime()
        """How long view changes kept messages from being handed out here."""
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
        agree = partial(Consensus, self.me, members, every_ns=self._every_ns, retry_ns=self._retry_ns, window=1)
        life, frame, epoch = self.incarnation, self._max_frame, self.view_id
        return agree(max_frame=frame, incarnation=life, epoch=epoch, detector=self.detector)

    # -- what the owner does ---------------------------------------------------------------------------------

    def free_capacity(self) -> int:
        """How many more messages may wait here; whoever multicasts more than that is refused."""
        return WAITING_MAX - len(self._waiting_messages())

    def multicast(self, now: int, body: bytes) -> None:
        """To every member of the view, this one included; while a view changes it waits for the next."""
        if self.free_capacity() <= 0:
            raise UnisonoError(f"{WAITING_MAX:,} messages wait already; ask room() before multicasting")
        if self._view_multicast is None:
            self._before_first_view.append(body)
        else:
            self._view_multicast.multicast(now, body)
            self._flush(now)

    def unicast(self, now: int, to: int, body: bytes) -> None:
        """To one other member of the view."""
        if self._view_multicast is not None and not self.blocked():
            self._view_multicast.unicast(now, to, body)

    def blocked(self) -> bool:
        """Whether a view change is under way, or there is no view."""
        return self._view_multicast is None or self._view_multicast.frozen

    def provide_state(self, now: int, view_id: int, state: bytes) -> None:
        """The answer to StateWanted."""
        self._state_sender.set_state(view_id, state)

    def leave(self, now: int) -> None:
        """Go when everybody has what this member multicast, and what it had; before the first view, at once."""
        self._leaving = True
        if self._view_multicast is None:
            self._leave_group("it left before its first view")

    # -- what happens ----------------------------------------------------------------------------------------

    def from_below(self, now: int, frame: Frame) -> None:
        """A frame has arrived."""
        if self.ended:
            return
        if frame.kind in FailureDetector.kinds:
            self.detector.from_below(now, frame)
        elif frame.kind in Consensus.kinds:
            self._on_consensus_frame(now, frame)
        else:
            message = wire.DECODERS[frame.kind](bytes(frame.body))
            if isinstance(message, MembershipRequest):
                self._on_membership_request(now, frame, message)
            elif isinstance(message, NextViewDecided):
                self._on_next_view_decided(now, message)
            elif isinstance(message, StateChunk):
                self._on_state_chunk(now, message)
            elif message is not None and self._is_of_this_view(now, frame):
                self._on_message(now, frame.sender, message)
        self._flush(now)

    def _is_of_this_view(self, now: int, frame: Frame) -> bool:
        """Whether a frame counts; whoever is in an earlier view is told what its members agreed on."""
        if frame.epoch < self.view_id:
            self._send(
                now, self._past_views.decision_for_member_in(frame.epoch, self.view_id, self.incarnations), frame.sender
            )
            self.ignored["of an earlier view"] += 1
            return False
        if frame.epoch > self.view_id:
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

    def _on_message(self, now: int, sender: int, message: wire.MembershipMessage) -> None:
        messages = self._view_multicast
        assert messages is not None
        match message:
            case Multicast():
                messages.on_multicast(now, sender, message)
            case Relayed() if message.member in self.incarnations:
                messages.on_multicast(now, message.member, Multicast(message.number, message.flags, message.body))
            case Unicast():
                messages.on_unicast(now, sender, message)
            case Acks():
                messages.on_acks(now, sender, message)
            case MessageRequest():
                messages.answer_request(now, sender, message)
            case Flush():
                self._block(now)
                self._send(now, Flushed(message.attempt, False, messages.received), sender)
            case LastMessages():
                self._block(now)
                if messages.lacks(message.received):
                    messages.request_missing(now, message.received, message.holders)
                else:
                    self._send(now, Flushed(message.attempt, True, {}), sender)
            case Flushed():
                # Without an attempt of ours it was somebody else's, who is gone: those who stopped wait for us.
                self._block(now)
                if self._attempt is not None:
                    self._attempt.on_flushed(sender, message)
            case _:
                self.ignored["out of place"] += 1

    def _on_membership_request(self, now: int, frame: Frame, request: MembershipRequest) -> None:
        sender, life = frame.sender, frame.incarnation
        if request.leaving:
            if self.incarnations.get(sender) == life and request.view_id == self.view_id:
                self._requests.leaving.add(sender)
            return
        if self._view_multicast is not None and self.incarnations.get(sender) == life:
            self._send_state(now, sender, request)
        elif self._view_multicast is None or life > self.incarnations.get(sender, -1):
            self._requests.request_join(now, self.incarnations, sender, life)
            self._send(now, self._past_views.latest(), sender)

    def wake(self, now: int) -> None:
        """Time has passed."""
        if self.ended:
            return
        if self._started_ns is None:
            self._started_ns = now
        self.detector.wake(now)
        if self._consensus is not None:
            self._consensus.wake(now)
        messages = self._view_multicast
        if now >= self._retry_at:
            self._retry_at = now + max(self._retry_ns, self.detector.response_time_ns())
            self._retransmit(now)
        if messages is not None and now >= self._ack_at and (messages.ack_due or messages.has_unstable()):
            self._ack_at = now + (self._retry_ns // 4 if messages.ack_due else self._every_ns)
            messages.ack_due = False
            self._send(now, messages.acks())
        self._flush(now)

    def wake_at(self) -> int | None:
        """The next heartbeat, acknowledgment or retry."""
        if self.ended:
            return None
        times: list[int | None] = [self.detector.wake_at(), self._retry_at]
        if self._consensus is not None:
            times.append(self._consensus.wake_at())
        if self._view_multicast is not None and (self._view_multicast.ack_due or self._view_multicast.has_unstable()):
            times.append(self._ack_at)
        return earliest(times)

    def _retransmit(self, now: int) -> None:
        messages = self._view_multicast
        if self._state_receiver is not None:
            self._send(now, self._state_receiver.next_request())
        if messages is None:
            return
        messages.retransmit(now, self.detector.trusted(messages.peers))
        if self._leaving and (self.me in self._requests.leaving or messages.all_acknowledged()):
            self._send(now, MembershipRequest(True, 0, self.view_id, 0, 0))
            self._requests.leaving.add(self.me)
        if self._attempt is not None:
            self._ask_survivors(now, self._attempt)
        elif messages.frozen:
            self._send(now, Flushed(0, False, messages.received), min(self.detector.trusted(messages.members)))
        self._requests.expire(now, self._retry_ns)

    # -- the change of views ---------------------------------------------------------------------------------

    def _change_if_wanted(self, now: int) -> None:
        messages = self._view_multicast
        if messages is None or (not messages.frozen and self._requests.no_change_needed()):
            return
        wanted = self._requests.next_members(self.incarnations)
        if wanted == self.incarnations and not messages.frozen:
            return
        if not wanted:
            self._leave_group("it left, the last of all")
            return
        survivors = tuple(m for m, life in self.incarnations.items() if wanted.get(m) == life)
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
        question, missing = attempt.open_question()
        for member in missing:
            if member != self.me:
                self._send(now, question, member)
            elif isinstance(question, LastMessages) and self._view_multicast is not None:
                self._view_multicast.request_missing(now, question.received, question.holders)

    def _advance_attempt(self, now: int, attempt: ViewChangeAttempt) -> None:
        """Answer oneself, and propose when everybody is ready."""
        messages = self._view_multicast
        assert messages is not None
        question, missing = attempt.open_question()
        if self.me in missing and isinstance(question, Flush):
            attempt.on_flushed(self.me, Flushed(attempt.number, False, dict(messages.received)))
            question, missing = attempt.open_question()
        if isinstance(question, LastMessages) and not attempt.last_messages_requested:
            attempt.last_messages_requested = True
            self._ask_survivors(now, attempt)
        if self.me in missing and isinstance(question, LastMessages) and not messages.lacks(question.received):
            attempt.on_flushed(self.me, Flushed(attempt.number, True, {}))
        following = attempt.next_view()
        # Those who go of their own will have a say in who stays; those who are cut off do not.
        voices = {*attempt.survivors, *self._requests.leaving}
        enough = self._consensus is not None and len(voices) >= self._consensus.majority
        if following is not None and enough and self._consensus is not None:
            attempt.proposed = True
            self._consensus.propose(now, 1, wire.encode_next_view(following))

    def _block(self, now: int) -> None:
        if self._view_multicast is not None and not self._view_multicast.frozen:
            self._view_multicast.frozen = True
            self.blocked_time.begin(now)

    def _on_next_view_decided(self, now: int, decided: NextViewDecided) -> None:
        if decided.view_id == self.view_id:
            self._on_decision(now, decided.value)
        elif self._view_multicast is None:
            self._consensus = None  # there is a group: it is not for us to begin one
        elif decided.view_id > self.view_id:
            following = wire.decode_next_view(decided.value)
            if following is not None and following.members.get(self.me) != self.incarnation:
                self._leave_group()

    def _on_decision(self, now: int, value: bytes) -> None:
        following = wire.decode_next_view(value)
        if following is None:
            self.ignored["malformed"] += 1
            return
        inside = following.members.get(self.me) == self.incarnation
        if self._view_multicast is None:
            self._consensus = None
            if inside:
                self._install_next_view(now, 1, following, value)
        elif inside:
            self._view_multicast.close_view(following.last_messages)
            self._collect_received()
            self._install_next_view(now, self.view_id + 1, following, value)
        else:
            self._send(now, NextViewDecided(self.view_id, value))
            self._leave_group()

    def _install_next_view(self, now: int, view_id: int, following: NextView, decided: bytes) -> None:
        """The next view begins, for somebody who was in the last one or founded the group."""
        self._past_views.record(view_id - 1, decided)
        before, waiting = (self.incarnations if self._view_multicast is not None else {}), self._waiting_messages()
        joined = tuple(m for m, life in sorted(following.members.items()) if before.get(m) != life)
        left = tuple(m for m, life in sorted(before.items()) if following.members.get(m) != life)
        self._begin_view(now, view_id, following.members)
        if before and joined:
            self._state_sender = StateSender(view_id, encode_view_description(following.members, joined, left, decided))
            self.stream.append(StateRequested(view_id))
        self._announce(now, joined, left, waiting)

    def _begin_view(self, now: int, view_id: int, members: wire.Vector) -> None:
        self.view_id, self.incarnations = view_id, dict(sorted(members.items()))
        self._view_multicast = ViewMulticast(self.me, self.incarnations, view_id, self._send, self._max_body_bytes)
        self._consensus = self._new_consensus(tuple(self.incarnations))
        self._state_receiver = self._attempt = None
        self._requests.start_view(now, self.incarnations)
        self._retry_at = now

    def _announce(self, now: int, joined: tuple[int, ...], left: tuple[int, ...], waiting: Sequence[bytes]) -> None:
        gap_ns = self.blocked_time.end(now)
        self.stream.append(
            NewView(self.view_id, tuple(self.incarnations), tuple(self.incarnations.values()), joined, left, gap_ns)
        )
        self._before_first_view.clear()
        for body in waiting:
            self.multicast(now, body)

    def _waiting_messages(self) -> Sequence[bytes]:
        return tuple(self._before_first_view if self._view_multicast is None else self._view_multicast.waiting)

    def _leave_group(self, reason: str = "") -> None:
        if not self.ended:
            self.ended, unless_told = True, "it left" if self._leaving else "the others went on without this member"
            self.stream.append(NoLongerMember(reason or unless_told))

    # -- newcomers -------------------------------------------------------------------------------------------

    def _send_state(self, now: int, to: int, request: MembershipRequest) -> None:
        """A newcomer asks for its state, another giver each turn; in the first view it needs only to be told."""
        if self.view_id == 1:
            self._send(now, self._past_views.decision_after(0), to)
        givers = [m for m in self.incarnations if m != to and not self.detector.suspected(m)]
        if request.source == self.me or (givers and givers[request.attempt % len(givers)] == self.me):
            for state in self._state_sender.chunks_for(self.me, self.view_id, request, self._max_body_bytes):
                self._send(now, state, to)

    def _on_state_chunk(self, now: int, chunk: StateChunk) -> None:
        if self._state_receiver is None:
            return
        entry = self._state_receiver.receive(chunk)
        if entry is not None and entry.members.get(self.me) == self.incarnation:
            waiting = self._waiting_messages()
            self._begin_view(now, entry.view_id, entry.members)
            self._past_views.record(entry.view_id - 1, entry.decided)
            self._state_sender = StateSender(entry.view_id, entry.description, entry.state)
            self.stream.append(StateReceived(entry.view_id, entry.state))
            self._announce(now, entry.joined, entry.left, waiting)
        elif self._state_receiver.wants_next_chunk():
            self._send(now, self._state_receiver.next_request(), chunk.source)

    # -- settling --------------------------------------------------------------------------------------------

    def _flush(self, now: int) -> None:
        if self.ended:
            return
        self._found_group_if_ready(now)
        self._change_if_wanted(now)
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
        complaint = self.blocked_time.overdue_violation(now, self.me, self.view_id, self.incarnations, self.detector)
        if complaint is not None:
            self.violations.append(complaint)

    def _found_group_if_ready(self, now: int) -> None:
        """The founders agree on the first view when all have come, or a majority and the patience is over."""
        consensus = self._consensus
        if self._view_multicast is not None or consensus is None or not consensus.is_leader or self._started_ns is None:
            return
        come = {self.me: self.incarnation}
        come |= {m: life for m in self.incarnations if (life := self._requests.joining_incarnation(m)) is not None}
        patient = now < self._started_ns + 4 * self.detector.timeout_ns(self.me)
        # Whoever comes back to a running group hears of it meanwhile, and does not begin another.
        listened = now >= self._started_ns + 2 * self._every_ns
        if (listened and len(come) == len(self.incarnations)) or (not patient and len(come) >= consensus.majority):
            consensus.propose(now, 1, wire.encode_next_view(NextView(come, {})))

    def _collect_received(self) -> None:
        if self._view_multicast is not None:
            self.stream += self._view_multicast.received_events
            self._view_multicast.received_events.clear()

    def _send(self, now: int, message: wire.MembershipMessage | None, to: int = EVERYONE) -> None:
        if message is None:
            return
        kind, body = wire.encode(message)
        self.down.append(Frame(kind, self.me, self.incarnation, self.view_id, 0, 0, sent_ns=now, body=body, to=to))
