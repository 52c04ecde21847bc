"""The priority-based total order of paper 004 §4.4, as one member runs it: lock phase, decision, insertion phase.

A message that is received locks its target tail, and the member says what it saw: the target tail and its consumed
history. When that is known of every member of the view, the common set (4) gives the provisional insertion point and
the histories give the history set (5); the message is inserted once all of the history set has been inserted here.
Messages of one sender and one priority stay in their order.

As corrected by the errata: insertion waits for the history set (004-1); an acknowledgment that comes before its message
is kept (004-2); no two messages are equally urgent (004-3, see `consumable_queue.urgency`); every member of the view
must have acknowledged, and what members said that have gone since still counts (004-4, see below); a message that
everybody has consumed leaves the histories and counts as inserted (004-9); a newcomer takes over queue, locks, history
and pending acknowledgments, and acknowledges what is pending (004-10). A member that leaves in order says what it has
consumed in the end, so that nothing is put before it: only a member that crashes may differ from the others (004-5).

Two forms. `ALL`: acknowledgments are multicast and everybody decides for itself (Figure 4). `COORDINATOR`: they go to
the message's sender, or to the first member of the view if the sender has gone; it decides and multicasts the decision
(§5). In a new view everybody acknowledges anew, to whoever coordinates then, what has not been inserted.

At the cut between two views those that go on have received the same messages, acknowledgments and decisions, so they
have inserted the same set I, in one order. Whatever was decided and is not in I is decided anew, and what somebody who
has gone acknowledged counts no more for some messages and not for others: what the gone had consumed is *bound*, it is
in the history set and not in the common set of every message that is decided from then on. Bound is what the decisions
of I rest on (their history sets), and what each of the gone said to all to have consumed, if all of that is in I.

Why that is enough. Every set in the binding was consumed by one member, so it is a beginning of the order of I, and so
is their union B. The group goes on like one of those that stay and of one more member that had inserted I and consumed
B when it received what waits, that acknowledges everything at once, and that never consumes again: a run without
crashes. What a member that stays had consumed may be in B too; that changes nothing: it names it itself, or the message
is behind something more urgent that was there before it. Histories of those that stay and B are parts of I, so that no
message waits for another after a view change until somebody consumes again. If one of the gone consumed something that
is not in I, then because it had heard what nobody who goes on has heard. It crashed, then, and what it consumed counts
as far as I rests on it: to bind the part that is in I could put that before something that it had consumed first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from unisono.model.message_set import NO_MESSAGES, MessageOrigin, MessageRef, MessageSet
from unisono.orders.priority.messages import (
    Ack,
    InsertionDecision,
    MessageBody,
    PriorityBody,
    PriorityState,
    Progress,
    QueueEntry,
)
from unisono.orders.priority.queue import TAIL, ConsumableQueue, PriorityMessage, QueuedMessage, urgency


class DecisionMode(Enum):
    """Who decides the insertion point."""

    ALL = "all"
    COORDINATOR = "coordinator"


@dataclass(frozen=True, slots=True)
class Received:
    """rec(m): the message has come, and has locked `target_tail`."""

    message: PriorityMessage
    target_tail: MessageSet
    inherited: bool = False
    """Whether it came with another member's state, and not by multicast."""


@dataclass(frozen=True, slots=True)
class Inserted:
    """queue(m): the message is in the queue, before `point`."""

    message: PriorityMessage
    insertion_point: MessageRef


class Insertion:
    """One member's part in the order; what it has to say is left in `says` (to all) and `tells` (to one)."""

    def __init__(self, member: int, incarnation: int, decision_mode: DecisionMode, *, report_every: int) -> None:
        self.decision_mode = decision_mode
        self.queue = ConsumableQueue()
        self.waiting: dict[MessageRef, PriorityMessage] = {}
        """W: received, not yet queued."""
        self.bags: dict[MessageRef, dict[MessageOrigin, Ack]] = {}
        """A: acknowledgments by message, created by whichever comes first (erratum 004-2)."""
        self.decisions: dict[MessageRef, InsertionDecision] = {}
        """What is decided, and waits for its history set."""
        self.history = NO_MESSAGES
        """H: consumed here, and not known to be consumed everywhere."""
        self.members: tuple[MessageOrigin, ...] = ()
        self.position = 0
        """How many messages of the agreed order lie behind this member, consumed here or by the giver of its state."""
        self.clock = 0
        self.to_multicast: list[PriorityBody] = []
        self.to_unicast: list[tuple[int, Ack]] = []
        self.steps: list[Received | Inserted] = []
        self._me: MessageOrigin = (member, incarnation)
        self._report_every = report_every
        self._unreported = 0
        self._next_sequences: dict[MessageOrigin, int] = {}
        """The sequence after the last one received, by origin."""
        self._own_acks: dict[MessageRef, Ack] = {}
        """What this member said about messages that wait."""
        self._consumed_by: dict[MessageOrigin, MessageSet] = {}
        """What each member of the view is known to have consumed, as far as not everybody has."""
        self._consumed_by_all = NO_MESSAGES
        """What everybody has consumed: it is in no history any more, but a late acknowledgment may still name it."""
        self._announced_decisions: set[MessageRef] = set()
        """Decisions of this member's own that are under way."""
        self._view_id = 0
        self._last_sequence_sent: dict[int, int] = {}
        self._leaving = False
        self._final_progress_received = False
        self._inserted_histories = NO_MESSAGES
        """The history sets of what has been inserted here."""
        self._fixed_prefix = NO_MESSAGES
        """What somebody is known to have consumed at the last cut: nothing is put before it any more."""

    # -- from the application --------------------------------------------------------------------------------

    def send(self, sequence: int, priority: int, payload: bytes) -> PriorityMessage:
        """Multicast a message of this member's."""
        self.clock += 1
        previous = self._last_sequence_sent.get(priority, sequence)
        self._last_sequence_sent[priority] = sequence
        message = PriorityMessage(MessageRef(*self._me, sequence), priority, self.clock, previous, payload)
        self.to_multicast.append(_to_body(message))
        return message

    def consume(self) -> PriorityMessage | None:
        """Figure 1; the message is delivered by this."""
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
        """Consume nothing more, and say what was consumed; `may_depart` tells when that is known."""
        if not self._leaving:
            self._leaving = True
            self.to_multicast.append(Progress(self.history, final=True))

    def may_depart(self) -> bool:
        """Whether everybody who goes on will know what this member consumed."""
        return self._leaving and self._final_progress_received

    # -- from virtual synchrony ------------------------------------------------------------------------------

    def receive(self, origin: MessageOrigin, body: PriorityBody) -> MessageSet:
        """A multicast has come, perhaps this member's own; gives what leaves the histories by it."""
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
            case Progress():
                self._final_progress_received |= body.final and origin == self._me
                return self._record_consumed(origin, body.history)
        return NO_MESSAGES

    def receive_ack(self, origin: MessageOrigin, ack: Ack) -> None:
        """An acknowledgment for this member as the coordinator."""
        self._put_in_bag(origin, ack)
        self._decide_if_complete(ack.ref)

    def new_view(self, view_id: int, members: Iterable[MessageOrigin], *, joining: bool) -> MessageSet:
        """The members from here on; gives what leaves the histories. `joining`: this member is new here."""
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
        """What the gone had consumed counts for every message alike."""
        self._fixed_prefix |= self._inserted_histories
        self._inserted_histories = NO_MESSAGES
        for gone in sorted(self._consumed_by.keys() - set(self.members)):
            if self._all_inserted(self._consumed_by[gone]):
                self._fixed_prefix |= self._consumed_by[gone]

    def _discard_decisions(self) -> None:
        """Decisions that wait are taken back; of the acknowledgments, those count that every member has, or will have.

        Whoever acknowledged a message that has not come by now has gone with it: it will never come.
        """
        self.decisions.clear()
        self._announced_decisions.clear()
        kept = set(self.members) if self.decision_mode is DecisionMode.ALL else set()
        self.bags = {ref: {o: ack for o, ack in self.bags[ref].items() if o in kept} for ref in self.waiting}

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
        """Who decides about a message: its sender, or the first member if the sender has gone."""
        return ref.origin if ref.origin in self.members else self.members[0]

    # -- the decision ----------------------------------------------------------------------------------------

    def _put_in_bag(self, origin: MessageOrigin, ack: Ack) -> None:
        if ack.ref in self.waiting or not self.was_received(ack.ref):
            self.bags.setdefault(ack.ref, {})[origin] = ack

    def all_acknowledged(self, bag: dict[MessageOrigin, Ack]) -> bool:
        """Whether every member of the view has acknowledged (erratum 004-4)."""
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
        """Equations (4) and (5), over all that was said: the common set and the history set."""
        acks = [bag[member] for member in sorted(bag)]
        common, history = acks[0].target_tail, acks[0].history
        for ack in acks[1:]:
            common &= ack.target_tail
            history |= ack.history
        return InsertionDecision(ref, self._view_id, common - self._fixed_prefix, history | self._fixed_prefix)

    # -- the insertion phase ---------------------------------------------------------------------------------

    def _accept_decision(self, decision: InsertionDecision) -> None:
        """Insert what is decided and may be inserted, until nothing changes."""
        self.decisions[decision.ref] = decision
        ready = [decision] if self.may_insert(decision) else []
        while ready:
            self._insert(ready[0])
            ready = [decision for decision in self.decisions.values() if self.may_insert(decision)]

    def may_insert(self, decision: InsertionDecision) -> bool:
        """Whether all of the history set has been inserted here (erratum 004-1, fix H), and what goes before it."""
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
        """Whether a message has been received here, or was by the member whose state was taken."""
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
        """Messages that every member of the view is known to have consumed leave the histories (§4.4)."""
        known = [self._consumed_by.get(member, NO_MESSAGES) for member in self.members]
        everywhere = known[0] if known else NO_MESSAGES
        for consumed in known[1:]:
            if not everywhere:
                break
            everywhere &= consumed
        if everywhere:
            self._consumed_by_all |= everywhere
            self._fixed_prefix -= everywhere
            self._inserted_histories -= everywhere
            self.history -= everywhere
            self._consumed_by = {member: consumed - everywhere for member, consumed in self._consumed_by.items()}
        return everywhere

    def _without_consumed_by_all(self, history: MessageSet) -> MessageSet:
        """What somebody said to have consumed, without what everybody is known to have consumed since."""
        if any(map(self._is_forgotten, history.ranges)):
            history = MessageSet({o: ranges for o, ranges in history.ranges.items() if not self._is_forgotten(o)})
        return history - self._consumed_by_all

    def _is_forgotten(self, origin: MessageOrigin) -> bool:
        """Whether everybody had consumed all of an origin's messages when it had gone (erratum 004-9).

        Of any other origin that has gone, and of which somebody consumed something, messages have come here.
        """
        return origin not in self._next_sequences and origin not in self.members

    def _forget_departed(self) -> None:
        """At a cut where nothing waits: origins that have gone, and whose messages everybody has consumed."""
        collected = self._consumed_by_all.ranges
        kept = {o: n for o, n in self._next_sequences.items() if o in self.members or collected.get(o) != ((0, n - 1),)}
        self._next_sequences = kept
        self._consumed_by_all = MessageSet({o: r for o, r in collected.items() if o in kept})

    # -- the state of a newcomer (erratum 004-10) ------------------------------------------------------------

    def state(self) -> PriorityState:
        """What a newcomer needs to go on from where this member is, in this member's place."""
        return PriorityState(
            position=self.position,
            clock=self.clock,
            next_sequences=tuple(sorted(self._next_sequences.items())),
            queue=tuple(QueueEntry(_to_body(item.message), item.ref.origin, tuple(item.locks)) for item in self.queue),
            tail_locks=tuple(self.queue.tail_locks),
            waiting=tuple(QueueEntry(_to_body(message), ref.origin, ()) for ref, message in self.waiting.items()),
            acks=tuple((origin, ack) for ref in self.waiting for origin, ack in sorted(self.bags[ref].items())),
            history=self.history,
            consumed_by=tuple(sorted(self._consumed_by.items())),
            consumed_by_all=self._consumed_by_all,
            fixed_prefix=self._fixed_prefix | self._inserted_histories,
        )

    def restore(self, state: PriorityState) -> None:
        """Become what the giver of the state was."""
        self.position, self.clock, self.history = state.position, state.clock, state.history
        self._consumed_by_all, self._fixed_prefix = state.consumed_by_all, state.fixed_prefix
        self._next_sequences, self._consumed_by = dict(state.next_sequences), dict(state.consumed_by)
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
