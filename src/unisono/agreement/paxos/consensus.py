"""Consensus: one sequence of instances, in each of which the members decide one of the values proposed for it.

Paper 003 builds on `Propose(k, value)` and `Decide(k, value)`, decisions in the order of k; paper 002 §2.2 lists
consensus among the services of a group. This is Paxos with a stable leader: a ballot is prepared once and then used
for as long as its owner leads; instances are pipelined, `window` of them at once, and travel together in frames.

It is safe whatever the network and the clocks do: a value is decided once a majority has accepted it under one
ballot, what a member has promised or accepted is in `writes`, to be durable before its frames go out, and a new
leader proposes again what it may not replace. It is live when a majority can talk in time: a leader that falls
silent, or has no majority, is replaced by the next member that is not suspected. Before it raises a ballot, a
candidate asks whether a majority would follow (`trial`), so that who comes back from a pause disturbs nobody.

A member's frames name the memory that its promises are in. Without storage, that is its life: a member that comes
back with another memory than it was first heard with has forgotten what it promised, and is not listened to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from unisono.agreement.failure_detector import MISTAKES_PER_S, FailureDetector
from unisono.agreement.paxos import messages as wire
from unisono.agreement.paxos.acceptor import Acceptor
from unisono.agreement.paxos.candidate import CANDIDACY_RETRIES, STAGGER_RETRIES, Candidacy, Role, promise_parts
from unisono.agreement.paxos.catch_up import CatchUp
from unisono.agreement.paxos.decisions import ConsensusOutput, Decision, ForwardedValue, RestoredState
from unisono.agreement.paxos.follower import FollowerState
from unisono.agreement.paxos.leader import LeaderState
from unisono.agreement.paxos.messages import (
    Accept,
    Accepted,
    Fetch,
    Learn,
    Prepare,
    Promise,
    Proposal,
    Snapshot,
    owner_of,
)
from unisono.agreement.paxos.storage_identity import StorageIdentity
from unisono.errors import InvalidOption
from unisono.model.durations import earliest
from unisono.model.ids import EVERYONE
from unisono.model.stored_records import StoredRecords, Write
from unisono.wire.frame import HEADER_BYTES, Frame

WINDOW, RETAIN = 64, 1024


class Consensus:
    """The automaton of one member. Whoever owns it takes `writes` first, then `down`, `decisions` and `offers`."""

    kinds = frozenset(wire.DECODERS)

    def __init__(
        self,
        me: int,
        members: Sequence[int],
        *,
        every_ns: int,
        retry_ns: int,
        max_frame: int = 1400,
        incarnation: int = 1,
        epoch: int = 0,
        mistakes_per_s: float = MISTAKES_PER_S,
        detector: FailureDetector | None = None,
        window: int = WINDOW,
        retain: int = RETAIN,
        stored_records: StoredRecords | None = None,
        batch_replies: bool = False,
    ) -> None:
        """A leader shows itself each `every_ns`; what is not answered is said again after `retry_ns`, a round trip.
        A detector that is given is its giver's to drive; else there is one of our own, and its frames are among ours.
        When `lazy`, nothing is said before `flush`: what arrived together is answered together.
        """
        if me not in members:
            raise InvalidOption("member", f"member {me} is not among the members {tuple(members)}")
        if window < 1:
            raise InvalidOption("window", f"at least one instance is under way at a time, not {window}")
        self.me = me
        self.members = tuple(sorted(members))
        self.peers = tuple(member for member in self.members if member != me)
        self.majority = len(self.members) // 2 + 1
        self.window = window
        self.max_value_bytes = max_frame - HEADER_BYTES - wire.ACCEPT_BYTES
        self.down: list[Frame] = []
        self.decisions: list[ConsensusOutput] = []
        self.forwarded: list[ForwardedValue] = []
        self.ignored: Counter[str] = Counter()
        self.role = Role.FOLLOWER
        self.leader: int | None = None
        self.leader_changes = 0
        self.detector = detector or FailureDetector(
            me, members, every_ns=every_ns, mistakes_per_s=mistakes_per_s, incarnation=incarnation, epoch=epoch
        )
        self._own_detector = detector is None
        self._every_ns, self._retry_ns, self._incarnation, self._epoch = every_ns, retry_ns, incarnation, epoch
        self._storage_id = stored_records.storage_id if stored_records is not None else incarnation
        self._acceptor = Acceptor(retain)
        self._acceptor.recover(stored_records.records if stored_records is not None else ())
        self.writes: list[Write] = self._acceptor.writes
        self.storage_identity = StorageIdentity(self._acceptor, self._storage_id, self._send, retry_ns)
        self._batch_replies, self._reply_to = batch_replies, dict[int, None]()
        """Whom to tell how things stand."""
        self._catch_up = CatchUp(self._acceptor, self._send, self.max_value_bytes, retry_ns)
        self._proposals: dict[int, bytes] = {}
        self._reported = self._acceptor.snapshot_at
        if self._reported:
            self.decisions.append(RestoredState(self._reported, self._acceptor.snapshot))
        self._report_decisions()
        self._retry_at = self._leader_last_received_ns = 0
        self._follower_state: FollowerState | None = None
        self._wait_for_leader_from_ns: int | None = None
        """Since when there has been no leader, as far as patience goes; None until the first wake."""
        self._highest_ballot = self._acceptor.promised
        self._candidacy: Candidacy | None = None
        self._leader_state: LeaderState | None = None

    # -- what the owner does ---------------------------------------------------------------------------------

    @property
    def decided(self) -> int:
        """All instances up to this one are decided, as far as this member knows."""
        return self._acceptor.decided

    @property
    def is_leader(self) -> bool:
        """Whether this member leads, as far as it knows."""
        return self._leader_state is not None

    @property
    def next_free(self) -> int:
        """The first instance for which nothing has been accepted here: what a leader may propose next."""
        return self._acceptor.last_accepted + 1

    def decisions_known_by(self, members: Iterable[int]) -> bool:
        """To a leader: whether these members know all that is decided, and have said so."""
        knows = self._leader_state.known_decided if self._leader_state is not None else {}
        return all(knows.get(member, 0) >= self.decided for member in members)

    def propose(self, now: int, k: int, value: bytes) -> bool:
        """Propose(k, value). False if k is too far ahead of what is decided: say it again after some decisions.

        Of several values for one instance, one is decided; a member's first proposal for an instance stands.
        """
        if k < 1:
            raise InvalidOption("k", f"instances are numbered from 1, not {k}")
        if len(value) > self.max_value_bytes:
            raise InvalidOption(
                "value", f"{len(value):,} bytes do not fit in a frame, {self.max_value_bytes:,} do: split it"
            )
        if k > self.decided + self.window:
            return False
        if k > self.decided and k not in self._proposals:
            self._proposals[k] = value
            if self._leader_state is not None:
                self._leader_state.pending_values.setdefault(k, value)
                self._flush_unless_batched(now)
            else:
                self._forward_proposals(now, (k,))
        return True

    def withdraw(self) -> None:
        """Propose nothing of what has not been placed yet."""
        self._proposals.clear()
        if self._leader_state is not None:
            self._leader_state.pending_values.clear()

    def forward(self, now: int, value: bytes) -> None:
        """Send a value to the leader's caller, once; it may be lost."""
        if self.is_leader:
            self.forwarded.append(ForwardedValue(self.me, self._incarnation, value))
        elif self.leader is not None:
            self._send(now, Proposal(0, value), self.leader)

    def compact(self, k: int, state: bytes) -> None:
        """`state` contains all decisions up to k: forget them, but for some that members who lag may need."""
        self._acceptor.compact(k, state)

    def from_below(self, now: int, frame: Frame) -> None:
        """A frame has arrived."""
        if frame.kind in self.detector.kinds and self._own_detector:
            self.detector.from_below(now, frame)
            return
        sender = frame.sender
        if sender not in self.peers or frame.epoch != self._epoch or frame.kind not in self.kinds:
            self.ignored["not of this agreement"] += 1
            return
        if not self.storage_identity.accepts(now, sender, frame.burst):
            self.ignored["has lost its memory"] += 1
            return
        match wire.DECODERS[frame.kind](bytes(frame.body)):
            case Prepare() as prepare:
                self._on_prepare(now, sender, prepare)
            case Promise() as promise:
                self._on_promise(now, sender, promise)
            case Accept() as accept:
                self._on_accept(now, sender, accept, bool(accept.values or frame.number))
            case Accepted() as accepted:
                self._on_accepted(now, sender, accepted)
            case Proposal() as proposal:
                self._on_proposal(sender, frame.incarnation, proposal)
            case Fetch() as fetch:
                self._catch_up.answer_fetch(now, sender, fetch)
            case Learn() | Snapshot() as past:
                self._on_catch_up(now, sender, past, frame.number)
            case wire.StorageMismatch() as remembered:
                self.storage_identity.on_mismatch(sender, remembered)
            case None:
                self.ignored["malformed"] += 1
        self._flush_unless_batched(now)

    def flush(self, now: int) -> None:
        """As a leader, propose and count; whoever we are, answer, and hand out what is decided."""
        if self._leader_state is not None:
            self._leader_state.propose_pending(self.window, self.majority)
            for accept, more in self._leader_state.accepts_to_broadcast(self.max_value_bytes):
                self._send(now, accept, EVERYONE, more)
        if self._reply_to:
            promised, following = self._acceptor.promised, self._follower_state
            upto = following.accepted_upto if following is not None and following.ballot == promised else 0
            for to in self._reply_to:
                self._send(now, Accepted(promised, upto, self.decided), to)
            self._reply_to.clear()
        self._report_decisions()
        if self._own_detector and self.detector.down:
            self.down += self.detector.down
            self.detector.down.clear()

    def _flush_unless_batched(self, now: int) -> None:
        if not self._batch_replies:
            self.flush(now)

    def wake(self, now: int) -> None:
        """Time has passed."""
        if self._wait_for_leader_from_ns is None:
            self._wait_for_leader_from_ns = now
        if self._own_detector:
            self.detector.wake(now)
        self._check_leader(now)
        if self._leader_state is not None:
            self._act_as_leader(now, self._leader_state)
        elif self._candidacy is not None:
            if now >= self._candidacy.ends_at:
                self._become_leaderless(now)
            elif now >= self._retry_at:
                self._ask_for_promises(now, self._candidacy)
        elif self.leader is None:
            if now >= self._campaign_at():
                self._campaign(now)
        elif now >= self._retry_at:
            self._forward_proposals(now, self._proposals)
        self._catch_up.wake(now)
        self._flush_unless_batched(now)

    def wake_at(self) -> int | None:
        """The next sign of life, retry or candidacy."""
        if self._wait_for_leader_from_ns is None:
            return 0
        times = [self._catch_up.retry_at()]
        if self._own_detector:
            times.append(self.detector.wake_at())
        if self._leader_state is not None:
            times += [self._leader_state.heartbeat_at, self._retry_at if self._leader_state.has_unanswered() else None]
        elif self._candidacy is not None:
            times += [self._candidacy.ends_at, self._retry_at]
        elif self.leader is None:
            times.append(self._campaign_at())
        else:
            times += [
                self._leader_last_received_ns + self._leader_timeout_ns() + 1,
                self._retry_at if self._proposals else None,
            ]
        return earliest(times)

    # -- following -------------------------------------------------------------------------------------------

    def _on_prepare(self, now: int, sender: int, prepare: Prepare) -> None:
        acceptor = self._acceptor
        self._highest_ballot = max(self._highest_ballot, prepare.ballot)
        if prepare.ballot < acceptor.promised or owner_of(prepare.ballot) != sender:
            self._reply_to[sender] = None
            return
        # Who is too far behind, or wants to depose a leader that is heard, is told how things stand instead.
        behind = prepare.first <= acceptor.discarded_upto or acceptor.decided - prepare.first >= self.window
        if prepare.trial:
            if behind or self.leader not in {None, sender}:
                self._reply_to[sender] = None
            else:
                self._send(now, Promise(prepare.ballot, True, self.decided, prepare.first, 0, 0, ()), sender)
            return
        if prepare.ballot > acceptor.promised:
            acceptor.promise(prepare.ballot)
            self._become_leaderless(now + CANDIDACY_RETRIES * self._retry_ns)
        if behind:
            self._reply_to[sender] = None
            return
        for promise in promise_parts(acceptor, prepare, self.max_value_bytes):
            self._send(now, promise, sender)

    def _on_accept(self, now: int, sender: int, accept: Accept, wants_reply: bool) -> None:
        ballot = accept.ballot
        self._highest_ballot = max(self._highest_ballot, ballot)
        if ballot < self._acceptor.promised or owner_of(ballot) != sender:
            self._reply_to[sender] = None
            return
        if ballot > self._acceptor.promised:
            self._acceptor.promise(ballot)
        following = self._follower_state
        if self.leader != sender or following is None or ballot != following.ballot:
            following = self._follow(now, sender, accept)
        self._leader_last_received_ns = now
        following.accept_values(accept, self.window)
        self._catch_up.on_decided_upto(now, sender, accept.decided)
        if wants_reply:
            self._reply_to[sender] = None

    def _follow(self, now: int, leader: int, accept: Accept) -> FollowerState:
        self._become_leaderless(now)
        self.leader = leader
        self.leader_changes += 1
        self._forward_proposals(now, self._proposals)
        following = self._follower_state = FollowerState(self._acceptor, accept, two_are_majority=self.majority == 2)
        return following

    def _become_leaderless(self, wait_for_leader_from_ns: int) -> None:
        self.role, self._candidacy, self._leader_state, self.leader = Role.FOLLOWER, None, None, None
        self._wait_for_leader_from_ns = wait_for_leader_from_ns

    def _check_leader(self, now: int) -> None:
        silent = (
            self.detector.suspected(self.leader or 0) or now > self._leader_last_received_ns + self._leader_timeout_ns()
        )
        if self.leader not in {None, self.me} and silent:
            self._become_leaderless(now)

    def _leader_timeout_ns(self) -> int:
        """How long a leader may be silent: as long as its heartbeats, and one more of its signs."""
        return self.detector.timeout_ns(self.leader or self.me) + self._every_ns

    def _forward_proposals(self, now: int, instances: Iterable[int]) -> None:
        self._retry_at = now + max(self._retry_ns, self.detector.response_time_ns())
        if self.leader is not None:
            for k in sorted(instances):
                self._send(now, Proposal(k, self._proposals[k]), self.leader)

    def _on_catch_up(self, now: int, sender: int, answer: Learn | Snapshot, more: int) -> None:
        # A leader's claim that k is decided speaks of its own proposal for k. If another leader has taken over, what
        # was decided may be something else; this one must not hear of it before it knows that it leads no more.
        if self.is_leader:
            return
        if isinstance(answer, Learn):
            self._catch_up.receive_values(now, sender, answer, more)
        elif (restored := self._catch_up.receive_snapshot(now, sender, answer, more)) is not None:
            self._reported = restored[0]
            self.decisions.append(RestoredState(*restored))

    # -- trying to lead --------------------------------------------------------------------------------------

    def _campaign_at(self) -> int:
        """When it is this member's turn: the first after the last leader that is not suspected goes first."""
        last = owner_of(self._highest_ballot)
        order = [m for m in self.members if m > last] + [m for m in self.members if m <= last]
        rank = self.detector.trusted(order).index(self.me)
        return (self._wait_for_leader_from_ns or 0) + rank * STAGGER_RETRIES * self._retry_ns

    def _campaign(self, now: int) -> None:
        self._highest_ballot = wire.ballot_after(self._highest_ballot, self.me)
        self.role = Role.TRIAL
        candidacy = self._candidacy = Candidacy(
            self._highest_ballot, self.decided + 1, now + CANDIDACY_RETRIES * self._retry_ns
        )
        candidacy.would_promise.add(self.me)
        self._ask_for_promises(now, candidacy)
        self._advance_candidacy(now, candidacy)

    def _ask_for_promises(self, now: int, candidacy: Candidacy) -> None:
        self._retry_at = now + self._retry_ns
        self._send(now, Prepare(candidacy.ballot, candidacy.first, self.role is Role.TRIAL))

    def _on_promise(self, now: int, sender: int, promise: Promise) -> None:
        candidacy = self._candidacy
        if candidacy is None or promise.ballot != candidacy.ballot or promise.trial != (self.role is Role.TRIAL):
            return
        self._catch_up.on_decided_upto(now, sender, promise.decided)
        if promise.trial:
            candidacy.would_promise.add(sender)
        else:
            candidacy.add_promise_part(sender, promise)
        self._advance_candidacy(now, candidacy)

    def _advance_candidacy(self, now: int, candidacy: Candidacy) -> None:
        """From the trial to the promises, from there to the lead."""
        acceptor = self._acceptor
        if self.role is Role.TRIAL and len(candidacy.would_promise) >= self.majority:
            acceptor.promise(candidacy.ballot)
            candidacy.first, self.role = acceptor.decided + 1, Role.PREPARING
            for promise in promise_parts(
                acceptor, Prepare(candidacy.ballot, candidacy.first, False), self.max_value_bytes
            ):
                candidacy.add_promise_part(self.me, promise)
            self._ask_for_promises(now, candidacy)
        if self.role is Role.PREPARING and candidacy.complete_promises() >= self.majority:
            self._become_leader(now, candidacy)

    def _become_leader(self, now: int, candidacy: Candidacy) -> None:
        acceptor = self._acceptor
        for k, (ballot, value) in enumerate(candidacy.values_to_propose(), candidacy.first):
            if k > acceptor.decided and ballot == wire.CHOSEN:
                acceptor.learn(value)
            elif k > acceptor.decided:
                acceptor.accept(k, candidacy.ballot, value)
        self.role, self._candidacy, self.leader = Role.LEADER, None, self.me
        self.leader_changes += 1
        wanted = {k: value for k, value in sorted(self._proposals.items()) if k > acceptor.last_accepted}
        self._leader_state = LeaderState(candidacy.ballot, acceptor, self.peers, now, wanted)
        self._retry_at = now + self._retry_ns

    # -- leading ---------------------------------------------------------------------------------------------

    def _on_proposal(self, sender: int, incarnation: int, proposal: Proposal) -> None:
        if self._leader_state is None:
            self.ignored["not the leader"] += 1
        elif proposal.k == 0:
            self.forwarded.append(ForwardedValue(sender, incarnation, proposal.value))
        elif (
            self._acceptor.last_accepted < proposal.k <= self.decided + self.window
            and len(proposal.value) <= self.max_value_bytes
        ):
            self._leader_state.pending_values.setdefault(proposal.k, proposal.value)

    def _on_accepted(self, now: int, sender: int, accepted: Accepted) -> None:
        self._highest_ballot = max(self._highest_ballot, accepted.ballot)
        reign = self._leader_state
        if reign is None:
            self._catch_up.on_decided_upto(now, sender, accepted.decided)
            if self._candidacy is not None and accepted.ballot > self._candidacy.ballot:
                self._become_leaderless(now)
        elif accepted.ballot == reign.ballot:
            reign.on_accepted(sender, accepted.upto, accepted.decided, now)
        elif accepted.ballot > reign.ballot:
            # Somebody promised more to a candidate that has not come through: ask again with more than that.
            self._become_leaderless(now)
            self._campaign(now)

    def _act_as_leader(self, now: int, leader_state: LeaderState) -> None:
        """Show oneself, say again what was not answered, and step down without a majority."""
        if now >= leader_state.heartbeat_at:
            timeout, every = self.detector.timeout_ns, self._every_ns
            silent = sum(now - at > timeout(member) + every for member, at in leader_state.last_answer_ns.items())
            if len(self.members) - silent < self.majority:
                self._become_leaderless(now)
                return
            leader_state.heartbeat(now, every)
        if now >= self._retry_at:
            self._retry_at = now + max(self._retry_ns, self.detector.response_time_ns())
            for member in self.detector.trusted(self.peers):
                for accept in leader_state.accepts_to_retransmit(member, self.max_value_bytes):
                    self._send(now, accept, member)

    def _report_decisions(self) -> None:
        if self._reported == self.decided:
            return
        while self._reported < self.decided:
            self._reported += 1
            self.decisions.append(Decision(self._reported, self._acceptor.value(self._reported)))
        self._proposals = {k: value for k, value in self._proposals.items() if k > self.decided}

    def _send(self, now: int, message: wire.ConsensusMessage, to: int = EVERYONE, more: int = 0) -> None:
        kind, body = wire.encode(message)
        if to != EVERYONE or self.peers:
            me, life, memory = self.me, self._incarnation, self._storage_id
            self.down.append(Frame(kind, me, life, self._epoch, 0, more, 0, memory, sent_ns=now, body=body, to=to))
