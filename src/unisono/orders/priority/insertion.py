"""One member's part in the priority-based total order of paper 004 §4.4: lock phase, decision, insertion phase.

A received message locks its target tail. The member acknowledges the message; the acknowledgment contains that target
tail and the member's consumed history. When every member of the view has acknowledged, the target tails give the common
set (equation 4), and with it the provisional insertion point. The histories give the history set (equation 5). A member
inserts the message when it has inserted the whole history set. Messages of one sender and one priority keep their
order.

Corrections to the paper:

- Insertion waits for the history set (004-1).
- An acknowledgment that arrives before its message is kept (004-2).
- No two messages are equally urgent (004-3, see `consumable_queue.urgency`).
- Every member of the view must acknowledge. The histories of departed members still count (004-4, see below).
- Only a member that crashes may differ from the others. A member that leaves normally first reports its consumed
  history, and no message is put before a message in it (004-5).
- A message that every member has consumed leaves the histories and counts as inserted (004-9).
- A newcomer takes over the queue, locks, history and pending acknowledgments, and acknowledges the pending messages
  itself (004-10).

Decision modes. `ALL`: acknowledgments are multicast, and each member decides for itself (Figure 4). `COORDINATOR`:
acknowledgments go to the message's sender, or to the first member of the view if the sender has departed. That member
decides and multicasts the decision (§5). In a new view all members acknowledge the pending messages again, to the
coordinator of that view.

View changes. The members that continue into the next view have received the same messages, acknowledgments and
decisions. So they have inserted the same set of messages, called I, in one order. Decided messages that are not in I
are decided again. The history of a departed member must then count for all of these messages or for none. Therefore it
becomes part of the *fixed prefix*. Every later decision adds the fixed prefix to the history set and removes it from
the common set. The fixed prefix has two parts. One is the history sets of the decisions by which I was inserted. The
other is each history that a departed member reported to all members, if I contains all of it.

Why this is enough. One member consumed all of each set in the fixed prefix, so each set is a prefix of the order of I.
Their union, called B, is then a prefix too. The remaining group behaves like a group without crashes that has one more
member. That member had inserted I and consumed B when the pending messages arrived. It acknowledges everything at once,
and never consumes again. B may contain messages that a remaining member consumed. That changes nothing: the member
reports them itself, or they stand behind a more urgent message that was there before. B and the histories of the
remaining members are subsets of I. So after a view change no message waits for another one until a member consumes
again.

A departed member can have consumed a message outside I only if it crashed: no remaining member has the information that
this took. The history of such a member counts only as far as it is in the history sets by which I was inserted. If the
rest of it were fixed too, that rest could come before a message that the crashed member had consumed earlier.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from unisono.model.message_set import NO_MESSAGES, MessageOrigin, MessageRef, MessageSet
from unisono.orders.priority.consumable_queue import TAIL, ConsumableQueue, PriorityMessage, QueuedMessage, urgency
from unisono.orders.priority.messages import (
    Ack,
    ConsumedHistory,
    FinalProgress,
    InsertionDecision,
    MessageBody,
    PriorityBody,
    PriorityState,
    Progress,
    QueueEntry,
    ReceivedAck,
)


class DecisionMode(Enum):
    """Which members decide the insertion point of a message."""

    ALL = "all"
    """Each member decides, from acknowledgments that are multicast to all (paper 004, Figure 4)."""
    COORDINATOR = "coordinator"
    """One member, which collects the acknowledgments, decides for all (paper 004 §5)."""


@dataclass(frozen=True, slots=True)
class Received:
    """A step for the trace: a message has arrived and locked `target_tail`."""

    message: PriorityMessage
    target_tail: MessageSet
    inherited: bool = False
    """Whether the message arrived with another member's state instead of by multicast."""


@dataclass(frozen=True, slots=True)
class Inserted:
    """A step for the trace: a message was put into the queue before `insertion_point`."""

    message: PriorityMessage
    insertion_point: MessageRef


class Insertion:
    """One member's part in ordering messages: it locks, decides and inserts them, and consumes them.

    After every call, the owner sends the contents of `to_multicast` and `to_unicast` and empties them. It does the same
    with `steps`, which go to the trace.
    """

    def __init__(self, member: int, incarnation: int, decision_mode: DecisionMode, *, report_every: int) -> None:
        self.decision_mode = decision_mode
        self.queue = ConsumableQueue()
        self.waiting: dict[MessageRef, PriorityMessage] = {}
        """The joining messages: received and not yet in the queue (paper 004: W)."""
        self.bags: dict[MessageRef, dict[MessageOrigin, Ack]] = {}
        """By message, its bag: its acknowledgments, by sender (paper 004: A). They may precede the message (004-2)."""
        self.decisions: dict[MessageRef, InsertionDecision] = {}
        """By message, its decision, which waits until this member has inserted the history set."""
        self.history = NO_MESSAGES
        """The consumed history: messages consumed here and not known to be consumed by all (paper 004: H)."""
        self.members: tuple[MessageOrigin, ...] = ()
        self.position = 0
        """The number of messages consumed in the agreed order, here or by the member whose state was taken over."""
        self.clock = 0
        self.to_multicast: list[PriorityBody] = []
        self.to_unicast: list[tuple[int, Ack]] = []
        self.steps: list[Received | Inserted] = []
        self._me: MessageOrigin = (member, incarnation)
        self._report_every = report_every
        self._unreported = 0
        self._next_sequences: dict[MessageOrigin, int] = {}
        """By origin (a member and its incarnation), the sequence of the next message to receive from it."""
        self._own_acks: dict[MessageRef, Ack] = {}
        """This member's acknowledgments of the waiting messages."""
        self._consumed_by: dict[MessageOrigin, MessageSet] = {}
        """By member of the view, its consumed history as known here, without the messages that all have consumed."""
        self._consumed_by_all = NO_MESSAGES
        """Messages that all have consumed. No history here contains them; a late acknowledgment may still name them."""
        self._announced_decisions: set[MessageRef] = set()
        """Messages whose decision this member has multicast as their coordinator and not yet received."""
        self._view_id = 0
        self._last_sequence_sent: dict[int, int] = {}
        self._leaving = False
        self._final_progress_received = False
        self._inserted_histories = NO_MESSAGES
        """The union of the history sets of the messages inserted in this view."""
        self._fixed_prefix = NO_MESSAGES
        """Messages known to be consumed by some member when the view began: no message may be put before them."""

    # -- from the application --------------------------------------------------------------------------------

    def send(self, sequence: int, priority: int, payload: bytes) -> PriorityMessage:
        """Multicast a message of this member, and return it."""
        self.clock += 1
        previous = self._last_sequence_sent.get(priority, sequence)
        self._last_sequence_sent[priority] = sequence
        message = PriorityMessage(MessageRef(*self._me, sequence), priority, self.clock, previous, payload)
        self.to_multicast.append(_to_body(message))
        return message

    def consume(self) -> PriorityMessage | None:
        """Consume and return the first message of the queue (paper 004, Figure 1). None if it is locked or missing."""
        message = None if self._leaving else self.queue.consume()
        if message is None:
            return None
        self.history = self.history.plus(message.ref)
        self.position += 1
        self._unreported += 1
        if self._unreported >= self._report_every:
            self._unreported = 0
            self.to_multicast.append(Progress(self.history))
        return message

    def leave(self) -> None:
        """Consume nothing more, and multicast the final history. `may_depart` says when this member may leave."""
        if not self._leaving:
            self._leaving = True
            self.to_multicast.append(FinalProgress(self.history))

    def may_depart(self) -> bool:
        """Whether all remaining members are sure to learn this member's final history."""
        return self._leaving and self._final_progress_received

    # -- from virtual synchrony ------------------------------------------------------------------------------

    def receive(self, origin: MessageOrigin, body: PriorityBody) -> MessageSet:
        """Process a multicast, which may be this member's own. Returns the messages now known to be consumed by all."""
        match body:
            case MessageBody():
                self._receive_message(_from_body(origin, body))
            case Ack():
                self._put_in_bag(origin, body)
                self._decide_if_complete(body.ref)
                return self._record_consumed(origin, body.history)
            case InsertionDecision():
                if body.view_id == self._view_id and body.ref in self.waiting:
                    self._accept_decision(body)
            case Progress() | FinalProgress():
                self._final_progress_received |= isinstance(body, FinalProgress) and origin == self._me
                return self._record_consumed(origin, body.history)
        return NO_MESSAGES

    def receive_ack(self, origin: MessageOrigin, ack: Ack) -> None:
        """Process an acknowledgment that was sent to this member as the coordinator."""
        self._put_in_bag(origin, ack)
        self._decide_if_complete(ack.ref)

    def new_view(self, view_id: int, members: Iterable[MessageOrigin], *, joining: bool) -> MessageSet:
        """Install a view; if `joining`, as a newcomer. Returns the messages now known to be consumed by all."""
        self._view_id, self.members = view_id, tuple(sorted(members))
        self._fix_departed_histories()
        self._consumed_by = {member: self._consumed_by.get(member, NO_MESSAGES) for member in self.members}
        self._discard_decisions()
        if not self.waiting:
            self._forget_departed()
        if joining:
            for ref in self.waiting:
                self._acknowledge(ref, self.queue.locked_by(ref))
        elif self.decision_mode is DecisionMode.COORDINATOR:
            for ack in list(self._own_acks.values()):
                self._send_ack(ack)
        for ref in list(self.waiting):
            self._decide_if_complete(ref)
        return self._drop_consumed_by_all()

    def _fix_departed_histories(self) -> None:
        """Make the histories of departed members count for every message decided from now on."""
        self._fixed_prefix |= self._inserted_histories
        self._inserted_histories = NO_MESSAGES
        for departed in sorted(self._consumed_by.keys() - set(self.members)):
            if self._all_inserted(self._consumed_by[departed]):
                self._fixed_prefix |= self._consumed_by[departed]

    def _discard_decisions(self) -> None:
        """At a view change, discard the decisions not carried out, and the acknowledgments that no longer count.

        An acknowledgment no longer counts if its sender has departed, or if its message can no longer arrive because
        the sender of the message has departed. In mode COORDINATOR none counts any more: members send them again.
        """
        self.decisions.clear()
        self._announced_decisions.clear()
        counted = set(self.members) if self.decision_mode is DecisionMode.ALL else set()
        self.bags = {
            ref: {origin: ack for origin, ack in self.bags[ref].items() if origin in counted} for ref in self.waiting
        }

    # -- the lock phase --------------------------------------------------------------------------------------

    def _receive_message(self, message: PriorityMessage) -> None:
        ref = message.ref
        self._next_sequences[ref.origin] = ref.sequence + 1
        self.clock = max(self.clock, message.stamp)
        self.waiting[ref] = message
        self._open_bag(ref)
        tail = self.queue.lock(message)
        self._acknowledge(ref, tail)
        self.steps.append(Received(message, self._own_acks[ref].target_tail))

    def _open_bag(self, ref: MessageRef) -> None:
        self.bags.setdefault(ref, {})

    def _acknowledge(self, ref: MessageRef, tail: Iterable[MessageRef]) -> None:
        ack = self._own_acks[ref] = Ack(ref, MessageSet.of(tail), self.history)
        self._send_ack(ack)

    def _send_ack(self, ack: Ack) -> None:
        if self.decision_mode is DecisionMode.ALL:
            self._unreported = 0
            self.to_multicast.append(ack)
        elif (to := self.coordinator(ack.ref)) == self._me:
            self.receive_ack(self._me, ack)
        else:
            self.to_unicast.append((to[0], ack))

    def coordinator(self, ref: MessageRef) -> MessageOrigin:
        """The member that decides about a message: its sender, or the view's first member if the sender departed."""
        return ref.origin if ref.origin in self.members else self.members[0]

    # -- the decision ----------------------------------------------------------------------------------------

    def _put_in_bag(self, origin: MessageOrigin, ack: Ack) -> None:
        if ack.ref in self.waiting or not self.was_received(ack.ref):
            self.bags.setdefault(ack.ref, {})[origin] = ack

    def all_acknowledged(self, bag: dict[MessageOrigin, Ack]) -> bool:
        """Whether every member of the view has sent one of these acknowledgments of a message (erratum 004-4)."""
        return all(member in bag for member in self.members)

    def _decide_if_complete(self, ref: MessageRef) -> None:
        if ref not in self.waiting or ref in self.decisions or ref in self._announced_decisions:
            return
        bag = self.bags[ref]
        if not self.all_acknowledged(bag):
            return
        decision = self.decide(ref, bag)
        if self.decision_mode is DecisionMode.ALL:
            self._accept_decision(decision)
        else:
            self._announced_decisions.add(ref)
            self.to_multicast.append(decision)

    def decide(self, ref: MessageRef, bag: dict[MessageOrigin, Ack]) -> InsertionDecision:
        """Decide a message from its acknowledgments: its common set and history set (paper 004, equations 4 and 5)."""
        acks = [bag[member] for member in sorted(bag)]
        common, history = acks[0].target_tail, acks[0].history
        for ack in acks[1:]:
            common &= ack.target_tail
            history |= ack.history
        return InsertionDecision(ref, self._view_id, common - self._fixed_prefix, history | self._fixed_prefix)

    # -- the insertion phase ---------------------------------------------------------------------------------

    def _accept_decision(self, decision: InsertionDecision) -> None:
        """Store a decision, then insert all decided messages that may be inserted now."""
        self.decisions[decision.ref] = decision
        ready = [decision] if self.may_insert(decision) else []
        while ready:
            self._insert(ready[0])
            ready = [decision for decision in self.decisions.values() if self.may_insert(decision)]

    def may_insert(self, decision: InsertionDecision) -> bool:
        """Whether a decided message may be inserted into the queue here.

        Its history set (erratum 004-1) and its sender's previous message of the same priority must be inserted before.
        """
        history, predecessor = decision.history, self.waiting[decision.ref].predecessor
        if predecessor != decision.ref and predecessor in self.waiting:
            return False
        return self._all_inserted(history)

    def _all_inserted(self, history: MessageSet) -> bool:
        if any(ref in history for ref in self.waiting):
            return False
        return all(
            self._is_forgotten(origin) or ranges[-1][1] < self._next_sequences.get(origin, 0)
            for origin, ranges in history.ranges.items()
        )

    def was_received(self, ref: MessageRef) -> bool:
        """Whether a message was received here, or by the member whose state was taken over."""
        return ref.sequence < self._next_sequences.get(ref.origin, 0)

    def _insert(self, decision: InsertionDecision) -> None:
        ref = decision.ref
        message = self.waiting.pop(ref)
        del self.bags[ref], self.decisions[ref], self._own_acks[ref]
        self._announced_decisions.discard(ref)
        self._inserted_histories |= self._without_consumed_by_all(decision.history)
        provisional = self.queue.insertion_point(decision.common, message.predecessor)
        point = self.queue.insert(message, provisional, decision.history)
        self.steps.append(Inserted(message, point))

    # -- garbage collection of histories ---------------------------------------------------------------------

    def _record_consumed(self, member: MessageOrigin, history: MessageSet) -> MessageSet:
        self._consumed_by[member] = self._consumed_by.get(member, NO_MESSAGES) | self._without_consumed_by_all(history)
        return self._drop_consumed_by_all()

    def _drop_consumed_by_all(self) -> MessageSet:
        """Remove from the histories the messages that every member has consumed, and return these (paper 004 §4.4)."""
        histories = [self._consumed_by.get(member, NO_MESSAGES) for member in self.members]
        by_all = histories[0] if histories else NO_MESSAGES
        for consumed in histories[1:]:
            if not by_all:
                break
            by_all &= consumed
        if by_all:
            self._consumed_by_all |= by_all
            self._fixed_prefix -= by_all
            self._inserted_histories -= by_all
            self.history -= by_all
            self._consumed_by = {member: consumed - by_all for member, consumed in self._consumed_by.items()}
        return by_all

    def _without_consumed_by_all(self, history: MessageSet) -> MessageSet:
        """The reported history minus the messages known to be consumed by all."""
        if any(map(self._is_forgotten, history.ranges)):
            history = MessageSet({o: ranges for o, ranges in history.ranges.items() if not self._is_forgotten(o)})
        return history - self._consumed_by_all

    def _is_forgotten(self, origin: MessageOrigin) -> bool:
        """Whether this member incarnation has departed and all members have consumed all its messages (erratum 004-9).

        Of any other departed incarnation, this member still knows the next sequence number.
        """
        return origin not in self._next_sequences and origin not in self.members

    def _forget_departed(self) -> None:
        """Forget departed member incarnations whose messages all members have consumed. No message may be joining."""
        consumed = self._consumed_by_all.ranges
        kept = {
            origin: next_sequence
            for origin, next_sequence in self._next_sequences.items()
            if origin in self.members or consumed.get(origin) != ((0, next_sequence - 1),)
        }
        self._next_sequences = kept
        self._consumed_by_all = MessageSet({origin: ranges for origin, ranges in consumed.items() if origin in kept})

    # -- state transfer (erratum 004-10) ---------------------------------------------------------------------

    def state(self) -> PriorityState:
        """The state that a newcomer takes over, to continue as if it had been this member."""
        return PriorityState(
            position=self.position,
            clock=self.clock,
            next_messages=tuple(MessageRef(*origin, at) for origin, at in sorted(self._next_sequences.items())),
            queue=tuple(QueueEntry(_to_body(item.message), item.ref.origin, tuple(item.locks)) for item in self.queue),
            tail_locks=tuple(self.queue.tail_locks),
            waiting=tuple(QueueEntry(_to_body(message), ref.origin, ()) for ref, message in self.waiting.items()),
            acks=tuple(
                ReceivedAck(origin, ack) for ref in self.waiting for origin, ack in sorted(self.bags[ref].items())
            ),
            history=self.history,
            consumed_by=tuple(ConsumedHistory(*each) for each in sorted(self._consumed_by.items())),
            consumed_by_all=self._consumed_by_all,
            fixed_prefix=self._fixed_prefix | self._inserted_histories,
        )

    def restore(self, state: PriorityState) -> None:
        """Take over the state of another member."""
        self.position, self.clock, self.history = state.position, state.clock, state.history
        self._consumed_by_all, self._fixed_prefix = state.consumed_by_all, state.fixed_prefix
        self._next_sequences = {ref.origin: ref.sequence for ref in state.next_messages}
        self._consumed_by = dict(state.consumed_by)
        waiting = [_from_body(entry.origin, entry.message) for entry in state.waiting]
        self.waiting = {message.ref: message for message in waiting}
        levels = {ref: urgency(message) for ref, message in self.waiting.items()}
        items = []
        for entry in state.queue:
            message = _from_body(entry.origin, entry.message)
            items.append(QueuedMessage(message, urgency(message), {ref: levels[ref] for ref in entry.locks}))
        self.queue.restore(items, {ref: levels[ref] for ref in state.tail_locks})
        self.bags = {ref: {} for ref in self.waiting}
        for origin, ack in state.acks:
            self.bags[ack.ref][origin] = ack
        for item in items:
            self.steps += [Received(item.message, NO_MESSAGES, inherited=True), Inserted(item.message, TAIL)]
        for ref, message in self.waiting.items():
            self.steps.append(Received(message, MessageSet.of(self.queue.locked_by(ref)), inherited=True))


def _to_body(message: PriorityMessage) -> MessageBody:
    return MessageBody(
        message.ref.sequence, message.priority, message.stamp, message.previous_sequence, message.payload
    )


def _from_body(origin: MessageOrigin, body: MessageBody) -> PriorityMessage:
    ref = MessageRef(*origin, body.sequence)
    return PriorityMessage(ref, body.priority, body.stamp, body.previous_sequence, body.payload)
