"""Multi-Paxos: the members of a group decide one value for each of the instances 1, 2, 3, …

Paper 003 builds on `Propose(k, value)` and `Decide(k, value)`, with decisions in the order of k; paper 002 §2.2 lists
consensus among the services of a group. This is Paxos with a stable leader:

1. Prepare, promise. A member that hears no leader becomes a candidate. It first asks whether a majority would promise
   (a *trial*, which changes nothing, so a member that returns from a pause does not disturb a working leader). Then it
   sends PREPARE with a new ballot. A member that answers PROMISE accepts no lower ballot from then on, and reports all
   that it has accepted. With the promises of a majority the candidate leads.
2. Accept, accepted. The leader sends its values in ACCEPT frames, up to `window` undecided instances at a time. First
   come the values that may be decided under an earlier leader: for each instance, the reported value with the highest
   ballot. A follower stores them and answers ACCEPTED.
3. Learn. A value is decided when a majority, the leader included, has accepted it under one ballot. The leader's next
   ACCEPT announces how far instances are decided. A member that lags fetches decided values, or a snapshot, with
   FETCH (`acceptor.py`). In a group of two or three a follower does not wait for the announcement: see `FollowerState`.

Sending: `propose` stores a value and either proposes it (leader) or forwards it to the leader. `flush` creates the
ACCEPT and ACCEPTED frames and reports decisions. Receiving: `from_below` handles one frame. Unless `batch_replies` is
set, every input flushes by itself.

Safety needs no assumption about delays or clocks: every promise and accepted value is in `writes`, which the owner
makes durable before it sends any frame. Progress needs a majority that can communicate in time. A leader that becomes
unresponsive or loses its majority is replaced: the next member that is not suspected becomes a candidate.

Each frame names the storage that holds its sender's promises: the storage id, or the incarnation if the member has no
storage. A member that returns with another storage than before has forgotten its promises, so its frames are ignored
(`StorageIdentity`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum

from unisono.agreement.failure_detector import MISTAKES_PER_S, FailureDetector
from unisono.agreement.paxos.acceptor import (
    Acceptor,
    CatchUp,
    CheckState,
    ConsensusOutput,
    Decision,
    ForwardedValue,
    RestoredState,
)
from unisono.agreement.paxos.messages import (
    ACCEPT_BYTES,
    CHOSEN,
    SPECS,
    Accept,
    Accepted,
    ConsensusMessage,
    Fetch,
    Learn,
    Prepare,
    Promise,
    Proposal,
    Snapshot,
    StorageMismatch,
)
from unisono.agreement.round_trip import RoundTrip
from unisono.errors import InvalidOption
from unisono.model.effects import StoredRecords, Write
from unisono.model.status import Standing
from unisono.model.timing import earliest
from unisono.model.units import EVERYONE, MEMBER_MAX
from unisono.wire.codec import control_frame
from unisono.wire.frame import HEADER_BYTES, Frame

WINDOW = 64
"""Default number of instances that may be undecided at a time."""
RETAIN = 1024
"""Default number of decided values to keep behind a snapshot, for members that lag."""
STAGGER_RETRIES = 3
"""Each further candidate waits this many retry intervals longer before it starts, so that the first can succeed."""
CANDIDACY_RETRIES = 8
"""A candidate gives up after this many retry intervals."""
RETRANSMIT_FRAMES_MAX = 8
"""Retransmit at most this many ACCEPT frames to one member at a time."""
MAX_LAG_BYTES = 6 << 20
"""A leader proposes nothing while a peer that answers lacks more than this: less than members retain."""
_NOT_ACCEPTED = (0, b"")


def ballot_after(ballot: int, member: int) -> int:
    """The lowest ballot of a member that is above another ballot."""
    return ((ballot >> 16) + 1) << 16 | member


def owner_of(ballot: int) -> int:
    """The member that may use a ballot; 0 for ballot 0, which belongs to no member."""
    return ballot & MEMBER_MAX


class Role(StrEnum):
    """The role of a member: follower, candidate (first in TRIAL, then PREPARING) or leader."""

    FOLLOWER = "following"
    TRIAL = "trying"
    PREPARING = "preparing"
    LEADER = "leading"


class Consensus:
    """The consensus automaton of one member.

    The owner must make `writes` durable before it uses `down`, `decisions` and `forwarded`.
    """

    kinds = frozenset(SPECS)

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
        check_state: CheckState = bytes,
    ) -> None:
        """Start member `me`, from `stored_records` if it has storage.

        A leader sends a heartbeat every `every_ns`. Frames are retransmitted after a round trip, `retry_ns` at most.
        If the caller passes a `detector`, the caller also drives it; otherwise this automaton owns one and sends its
        heartbeats. With `batch_replies`, inputs do not flush by themselves: the owner calls `flush` after several of
        them, so that one reply answers all frames that arrived together. `check_state` raises Unreadable for the state
        of another member's snapshot that the owner cannot read; such a snapshot is dropped.
        """
        if me not in members:
            raise InvalidOption("member", f"member {me} is not among the members {tuple(members)}; add it to the list")
        if window < 1:
            raise InvalidOption("window", f"expected at least 1 undecided instance at a time, not {window}")
        self.me = me
        self.members = tuple(sorted(members))
        self.peers = tuple(member for member in self.members if member != me)
        self.majority = len(self.members) // 2 + 1
        self.window = window
        self.max_value_bytes = max_frame - HEADER_BYTES - ACCEPT_BYTES
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
        acceptor = self._acceptor = Acceptor(me, retain)
        acceptor.recover(stored_records.records if stored_records is not None else ())
        self.storage_identity = StorageIdentity(acceptor, self._storage_id, self._send, retry_ns)
        self._round_trips = {peer: RoundTrip() for peer in self.peers}
        self._proposal_round_trip = RoundTrip()  # from a proposal of this member to the decision of its instance
        self._catch_up = CatchUp(
            acceptor, self._send, self.max_value_bytes, self._round_trips, longest_ns=retry_ns, check_state=check_state
        )
        self._batch_replies = batch_replies
        self._reply_to = dict[int, None]()  # the members that the next flush sends an ACCEPTED to, in order
        self._proposals: dict[int, bytes] = {}  # this member's own values for undecided instances
        self._reported = self._acceptor.snapshot_at
        if self._reported:
            self.decisions.append(RestoredState(self._reported, self._acceptor.snapshot))
        self._report_decisions()
        self._retry_at = self._leader_last_received_ns = 0
        self._wait_for_leader_from_ns: int | None = None  # None until the first wake
        self._highest_ballot = self._acceptor.promised
        self._follower_state: FollowerState | None = None
        self._candidate_state: CandidateState | None = None
        self._leader_state: LeaderState | None = None

    # -- state that the owner reads --------------------------------------------------------------------------

    @property
    def writes(self) -> list[Write]:
        """Records that must be durable before any frame in `down` is sent."""
        return self._acceptor.writes

    @property
    def decided(self) -> int:
        """The last instance up to which all instances are decided, as far as this member knows."""
        return self._acceptor.decided

    @property
    def is_leader(self) -> bool:
        """Whether this member leads, as far as it knows."""
        return self._leader_state is not None

    @property
    def is_behind(self) -> bool:
        """Whether another member has announced decisions that this member lacks."""
        return self._catch_up.is_behind()

    @property
    def next_free(self) -> int:
        """The first instance for which this member has accepted no value: the next one that a leader may use."""
        return self._acceptor.last_accepted + 1

    def may_propose_next(self, now: int) -> bool:
        """For a leader: whether it may propose a value for instance `next_free` now.

        It must wait while `window` instances are undecided, and while a peer that answers lacks more than
        MAX_LAG_BYTES. A peer that falls further behind would find the values discarded.
        """
        if self._leader_state is None or self.next_free > self.decided + self.window:
            return False
        timeout_ns = self.detector.timeout_ns
        answering = [
            peer
            for peer, last_answer_ns in self._leader_state.last_answer_ns.items()
            if now - last_answer_ns <= timeout_ns(peer) + self._every_ns
        ]
        return not self._leader_state.is_any_too_far_behind(answering)

    def decisions_known_by(self, members: Iterable[int]) -> bool:
        """For a leader: whether all these members have acknowledged every decision."""
        known_decided = self._leader_state.known_decided if self._leader_state is not None else {}
        return all(known_decided.get(member, 0) >= self.decided for member in members)

    def standing(self) -> Standing:
        """The leader, whether a majority is reachable, and the members that the failure detector suspects."""
        suspected = tuple(peer for peer in self.peers if self.detector.suspected(peer))
        leading = self._leader_state
        known = {} if leading is None else leading.known_decided
        behind = {peer: max(0, self.decided - upto) for peer, upto in known.items()}
        return Standing(True, self.leader, len(self.members) - len(suspected) >= self.majority, suspected, behind)

    # -- inputs ----------------------------------------------------------------------------------------------

    def propose(self, now: int, k: int, value: bytes) -> bool:
        """Propose a value for instance k. Return False if too many instances before k are undecided: try again later.

        If several values are proposed for one instance, one of them is decided. Only the first proposal of a member
        for an instance counts.
        """
        if k < 1:
            raise InvalidOption("k", f"expected an instance number of 1 or more, not {k}")
        if len(value) > self.max_value_bytes:
            raise InvalidOption(
                "value",
                f"the value has {len(value):,} bytes, but a frame holds at most {self.max_value_bytes:,}; split it",
            )
        if k > self.decided + self.window:
            return False
        if k > self.decided and k not in self._proposals:
            self._proposals[k] = value
            if self._leader_state is not None:
                # The leader's own value replaces a forwarded one, which may be a late value of a previous leader. Its
                # caller takes a value that was proposed for a free instance as ordered and does not propose it again.
                self._leader_state.pending_values[k] = value
                self._flush_unless_batched(now)
            else:
                self._forward_proposals(now, (k,))
        return True

    def withdraw(self) -> None:
        """Drop all values of this member that no leader has proposed yet."""
        self._proposals.clear()
        if self._leader_state is not None:
            self._leader_state.pending_values.clear()

    def forward(self, now: int, value: bytes) -> None:
        """Send a value to the owner of the leader's automaton, once. It may be lost."""
        if self.is_leader:
            self.forwarded.append(ForwardedValue(self.me, self._incarnation, value))
        elif self.leader is not None:
            self._send(now, Proposal(0, value), self.leader)

    def compact(self, k: int, state: bytes) -> None:
        """Replace the decisions up to k by `state`, but keep the last `retain` of them for members that lag."""
        self._acceptor.compact(k, state)

    def from_below(self, now: int, frame: Frame) -> None:
        """Handle one frame that has arrived from another member."""
        if frame.kind in self.detector.kinds and self._own_detector:
            self.detector.from_below(now, frame)
            return
        sender = frame.sender
        if sender not in self.peers or frame.epoch != self._epoch or frame.kind not in self.kinds:
            self.ignored["not for this group"] += 1
            return
        if not self.storage_identity.accepts(now, sender, frame.burst):
            self.ignored["lost storage"] += 1
            return
        match frame.message:
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
            case Learn() | Snapshot() as answer:
                self._on_catch_up(now, sender, answer, frame.number)
            case StorageMismatch() as mismatch:
                self.storage_identity.on_mismatch(sender, mismatch)
        self._flush_unless_batched(now)

    def wake(self, now: int) -> None:
        """Do what is due at `now`: heartbeats, retransmissions, a candidacy."""
        if self._wait_for_leader_from_ns is None:
            self._wait_for_leader_from_ns = now
        if self._own_detector:
            self.detector.wake(now)
        self._check_leader(now)
        if self._leader_state is not None:
            self._act_as_leader(now, self._leader_state)
        elif self._candidate_state is not None:
            if now >= self._candidate_state.ends_at:
                self._become_leaderless(now)
            elif now >= self._retry_at:
                self._send_prepare(now, self._candidate_state)
        elif self.leader is None:
            if now >= self._campaign_at():
                self._campaign(now)
        elif self._proposals and now >= self._retry_at:
            self._proposal_round_trip.sent_again(now, self.decided + 1)
            self._forward_proposals(now, self._proposals)
        self._catch_up.wake(now)
        self._flush_unless_batched(now)

    def wake_at(self) -> int | None:
        """The time to call `wake`: the earliest of the next heartbeat, retry and candidacy. None if nothing is due."""
        if self._wait_for_leader_from_ns is None:
            return 0
        times = [self._catch_up.retry_at()]
        if self._own_detector:
            times.append(self.detector.wake_at())
        if self._leader_state is not None:
            times += [self._leader_state.heartbeat_at, self._leader_state.retransmit_at(self._longest_wait_ns())]
        elif self._candidate_state is not None:
            times += [self._candidate_state.ends_at, self._retry_at]
        elif self.leader is None:
            times.append(self._campaign_at())
        else:
            times += [
                self._leader_last_received_ns + self._leader_timeout_ns() + 1,
                self._retry_at if self._proposals else None,
            ]
        return earliest(times)

    # -- output ----------------------------------------------------------------------------------------------

    def flush(self, now: int) -> None:
        """Create the frames that the input since the last flush calls for, and report new decisions."""
        if self._leader_state is not None:
            self._leader_state.propose_pending(self.window, self.majority)
            for accept, wants_reply in self._leader_state.accepts_to_broadcast(now, self.max_value_bytes):
                self._send(now, accept, EVERYONE, wants_reply)
        if self._reply_to:
            promised, following = self._acceptor.promised, self._follower_state
            upto = following.accepted_upto if following is not None and following.ballot == promised else 0
            for member in self._reply_to:
                self._send(now, Accepted(promised, upto, self.decided), member)
            self._reply_to.clear()
            if self.leader in self._round_trips:
                self._catch_up.await_decisions(now, self.leader, upto)
        if self._reported != self.decided:
            self._catch_up.on_progress(now)
            self._proposal_round_trip.answered(now, self.decided)
            self._report_decisions()
        if self._own_detector and self.detector.down:
            self.down += self.detector.down
            self.detector.down.clear()

    def _flush_unless_batched(self, now: int) -> None:
        if not self._batch_replies:
            self.flush(now)

    def _report_decisions(self) -> None:
        while self._reported < self.decided:
            self._reported += 1
            self.decisions.append(Decision(self._reported, self._acceptor.value(self._reported)))
        self._proposals = {k: value for k, value in self._proposals.items() if k > self.decided}

    def _send(self, now: int, message: ConsensusMessage, to: int = EVERYONE, number: int = 0) -> None:
        """Queue a frame. `number` is 1 in an ACCEPT that wants a reply.

        In a part of an answer, `number` is how many parts follow.
        """
        if to != EVERYONE or self.peers:
            header = (self.me, self._incarnation, self._epoch)
            burst = self._storage_id  # consensus frames have no burst; this field tells the sender's storage
            self.down.append(control_frame(message, *header, number=number, burst=burst, sent_ns=now, to=to))

    # -- phase 1: prepare, promise ---------------------------------------------------------------------------

    def _campaign_at(self) -> int:
        """When this member may become a candidate. Trusted members take turns, beginning after the last leader."""
        last = owner_of(self._highest_ballot)
        order = [m for m in self.members if m > last] + [m for m in self.members if m <= last]
        rank = self.detector.trusted(order).index(self.me)
        return (self._wait_for_leader_from_ns or 0) + rank * STAGGER_RETRIES * self._retry_ns

    def _campaign(self, now: int) -> None:
        """Become a candidate: first ask, in a trial, whether a majority would promise."""
        self._highest_ballot = ballot_after(self._highest_ballot, self.me)
        self.role = Role.TRIAL
        candidate = self._candidate_state = CandidateState(
            self._highest_ballot, self.decided + 1, now + CANDIDACY_RETRIES * self._retry_ns
        )
        candidate.would_promise.add(self.me)
        self._send_prepare(now, candidate)
        self._advance_candidacy(now, candidate)

    def _send_prepare(self, now: int, candidate: CandidateState) -> None:
        self._retry_at = now + self._retry_ns
        self._send(now, Prepare(candidate.ballot, candidate.first, self.role is Role.TRIAL))

    def _on_prepare(self, now: int, sender: int, prepare: Prepare) -> None:
        acceptor = self._acceptor
        self._highest_ballot = max(self._highest_ballot, prepare.ballot)
        if prepare.ballot < acceptor.promised or owner_of(prepare.ballot) != sender:
            self._reply_to[sender] = None
            return
        # A candidate that lags too far behind, or a trial against a working leader, gets an ACCEPTED in reply: from it
        # the candidate learns how far instances are decided.
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
        for promise in _promise_parts(acceptor, prepare, self.max_value_bytes):
            self._send(now, promise, sender)

    def _on_promise(self, now: int, sender: int, promise: Promise) -> None:
        candidate = self._candidate_state
        if candidate is None or promise.ballot != candidate.ballot or promise.trial != (self.role is Role.TRIAL):
            return
        self._catch_up.on_decided_upto(now, sender, promise.decided)
        if promise.trial:
            candidate.would_promise.add(sender)
        else:
            candidate.add_promise_part(sender, promise)
        self._advance_candidacy(now, candidate)

    def _advance_candidacy(self, now: int, candidate: CandidateState) -> None:
        """With a majority, go from the trial to the real PREPARE, and from there to leading."""
        acceptor = self._acceptor
        if self.role is Role.TRIAL and len(candidate.would_promise) >= self.majority:
            acceptor.promise(candidate.ballot)
            candidate.first, self.role = acceptor.decided + 1, Role.PREPARING
            own_prepare = Prepare(candidate.ballot, candidate.first, False)
            for promise in _promise_parts(acceptor, own_prepare, self.max_value_bytes):
                candidate.add_promise_part(self.me, promise)
            self._send_prepare(now, candidate)
        if self.role is Role.PREPARING and candidate.complete_promises() >= self.majority:
            self._become_leader(now, candidate)

    def _become_leader(self, now: int, candidate: CandidateState) -> None:
        acceptor = self._acceptor
        for k, (ballot, value) in enumerate(candidate.values_to_propose(), candidate.first):
            if k > acceptor.decided and ballot == CHOSEN:
                acceptor.learn(value)
            elif k > acceptor.decided:
                acceptor.accept(k, candidate.ballot, value)
        self.role, self._candidate_state, self.leader = Role.LEADER, None, self.me
        self.leader_changes += 1
        own_values = {k: value for k, value in sorted(self._proposals.items()) if k > acceptor.last_accepted}
        self._leader_state = LeaderState(candidate.ballot, acceptor, self._round_trips, now, own_values)

    # -- phase 2, leader: propose, accept --------------------------------------------------------------------

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
        leading = self._leader_state
        if leading is None:
            self._catch_up.on_decided_upto(now, sender, accepted.decided)
            if self._candidate_state is not None and accepted.ballot > self._candidate_state.ballot:
                self._become_leaderless(now)
        elif accepted.ballot == leading.ballot:
            leading.on_accepted(sender, accepted.upto, accepted.decided, now)
        elif accepted.ballot > leading.ballot:
            # The sender has promised a higher ballot to a candidate that did not succeed. Campaign with a higher one.
            self._become_leaderless(now)
            self._campaign(now)

    def _act_as_leader(self, now: int, leading: LeaderState) -> None:
        """Send heartbeats and retransmissions when they are due. Step down if no majority answers."""
        if now >= leading.heartbeat_at:
            timeout, every = self.detector.timeout_ns, self._every_ns
            silent = sum(now - at > timeout(member) + every for member, at in leading.last_answer_ns.items())
            if len(self.members) - silent < self.majority:
                self._become_leaderless(now)
                return
            leading.heartbeat(now, every)
        for member in leading.overdue(now, self._longest_wait_ns()):
            for accept, wants_reply in leading.accepts_to_retransmit(now, member, self.max_value_bytes):
                if not self.detector.suspected(member):
                    self._send(now, accept, member, wants_reply)

    def _longest_wait_ns(self) -> int:
        """The longest time to wait for an answer: a round trip by the declared delays, or longer under overload."""
        return max(self._retry_ns, self.detector.response_time_ns())

    # -- phase 2, follower: accepted -------------------------------------------------------------------------

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
        self.role, self._candidate_state, self._leader_state, self.leader = Role.FOLLOWER, None, None, None
        self._wait_for_leader_from_ns = wait_for_leader_from_ns
        self._catch_up.stop_awaiting()
        for round_trip in self._round_trips.values():
            round_trip.forget_item()

    def _check_leader(self, now: int) -> None:
        silent = (
            self.detector.suspected(self.leader or 0) or now > self._leader_last_received_ns + self._leader_timeout_ns()
        )
        if self.leader not in {None, self.me} and silent:
            self._become_leaderless(now)

    def _leader_timeout_ns(self) -> int:
        """How long a follower waits for an ACCEPT of its leader: the leader's heartbeat time-out plus one interval."""
        return self.detector.timeout_ns(self.leader or self.me) + self._every_ns

    def _forward_proposals(self, now: int, instances: Iterable[int]) -> None:
        self._retry_at = now + self._proposal_round_trip.wait_ns(self._longest_wait_ns())
        if self.leader is not None:
            for k in sorted(instances):
                self._proposal_round_trip.sent(now, k)
                self._send(now, Proposal(k, self._proposals[k]), self.leader)

    # -- learn -----------------------------------------------------------------------------------------------

    def _on_catch_up(self, now: int, sender: int, answer: Learn | Snapshot, more_frames: int) -> None:
        # When a leader announces that k is decided, it means its own value for k. If another leader has taken over,
        # another value may have been decided. So a leader learns nothing until it knows that it leads no longer.
        if self.is_leader:
            return
        if isinstance(answer, Learn):
            self._catch_up.receive_values(now, sender, answer, more_frames)
        elif (restored := self._catch_up.receive_snapshot(now, sender, answer, more_frames)) is not None:
            self._reported = restored.k
            self.decisions.append(restored)
        elif self._catch_up.unreadable_snapshots:
            self.ignored["unreadable snapshot"] = self._catch_up.unreadable_snapshots


def _promise_parts(acceptor: Acceptor, prepare: Prepare, max_bytes: int) -> Iterator[Promise]:
    """The PROMISE frames that report all values accepted from `prepare.first` on; at least one frame."""
    at, last = prepare.first, acceptor.last_accepted
    while at <= last or at == prepare.first:
        values = acceptor.values_that_fit(at, last, max_bytes)
        entries = tuple((acceptor.entry(k)[0], value) for k, value in enumerate(values, at))
        yield Promise(prepare.ballot, False, acceptor.decided, prepare.first, last, at, entries)
        at += max(1, len(values))


class CandidateState:
    """The promises that a candidate has received. A promise may come in several frames, in any order."""

    def __init__(self, ballot: int, first: int, ends_at: int) -> None:
        self.ballot = ballot
        self.first = first
        self.ends_at = ends_at
        self.would_promise: set[int] = set()
        """The members that answered the trial with yes."""
        self._last_accepted: dict[int, int] = {}
        self._entries: dict[int, dict[int, tuple[int, bytes]]] = {}

    def add_promise_part(self, member: int, promise: Promise) -> None:
        """Add one frame of a member's promise."""
        if promise.first != self.first:
            return
        # A member that has promised accepts nothing below this ballot. But it may still learn decided values, so a
        # repeated promise can report more instances than the first one.
        self._last_accepted[member] = max(promise.last, self._last_accepted.get(member, 0))
        entries = self._entries.setdefault(member, {})
        entries.update(enumerate(promise.entries, promise.at))

    def complete_promises(self) -> int:
        """How many members' promises have arrived completely."""
        return sum(map(self._is_complete, self._last_accepted))

    def values_to_propose(self) -> list[tuple[int, bytes]]:
        """For each instance from `first` on: the highest ballot under which a value was accepted, and that value.

        Every value that may have been decided is in this list: any majority contains a member that accepted it, and no
        other value was accepted under a higher ballot. An instance before a decided one is decided too, even if the
        frame that reports it is older and does not say so. Its ballot is CHOSEN here.
        """
        complete = [self._entries[member] for member in self._last_accepted if self._is_complete(member)]
        highest = [
            max((entries[k] for entries in complete if k in entries), key=lambda entry: entry[0])
            for k in range(self.first, self.first + max(map(len, complete), default=0))
        ]
        chosen = max((at for at, (ballot, _) in enumerate(highest, 1) if ballot == CHOSEN), default=0)
        return [(CHOSEN, value) for _, value in highest[:chosen]] + highest[chosen:]

    def _is_complete(self, member: int) -> bool:
        return len(self._entries[member]) >= self._last_accepted[member] - self.first + 1


class LeaderState:
    """The values that a leader proposes under its ballot from instance `base` on, and how far each peer has accepted.

    All instances before `base` were decided before this member became the leader.
    """

    def __init__(
        self,
        ballot: int,
        acceptor: Acceptor,
        round_trips: Mapping[int, RoundTrip],
        now: int,
        pending_values: Mapping[int, bytes],
    ) -> None:
        peers = tuple(round_trips)
        self.ballot = ballot
        self.base = acceptor.decided + 1
        self.pending_values = dict(pending_values)
        """Values that are not proposed yet, by instance."""
        self.last_answer_ns = dict.fromkeys(peers, now)
        self.known_decided = dict.fromkeys(peers, 0)
        """For each peer, the last decided instance that it has acknowledged."""
        self.heartbeat_at = now
        self._acceptor = acceptor
        self._sent_upto = acceptor.decided
        self._announced_decided = -1
        """The last decided instance announced to the peers; -1 forces an announcement, which serves as a heartbeat."""
        self._accepted_upto = dict.fromkeys(peers, acceptor.decided)
        self._round_trips = round_trips
        self._waiting_since: dict[int, int] = {}
        """For each peer that has not accepted all values sent: when it was sent values or accepted some, at last."""

    def on_accepted(self, member: int, upto: int, decided: int, now: int) -> None:
        """Record that a member has accepted all values up to `upto` and knows the decisions up to `decided`."""
        self.last_answer_ns[member] = now
        self.known_decided[member] = max(self.known_decided[member], decided)
        accepted = min(upto, self._acceptor.last_accepted)
        if accepted <= self._accepted_upto[member]:
            return
        self._accepted_upto[member] = accepted
        self._round_trips[member].answered(now, accepted)
        if accepted >= self._sent_upto:
            self._waiting_since.pop(member, None)
        else:
            self._waiting_since[member] = now

    def is_any_too_far_behind(self, peers: Iterable[int]) -> bool:
        """Whether one of these peers lacks more than MAX_LAG_BYTES of values.

        A peer that lacks discarded values does not count: it needs a snapshot in any case. The cost grows with the
        number of values that the slowest of the peers lacks, so the caller leaves out those that do not answer.
        """
        acceptor = self._acceptor
        known = [k for k in map(self.known_decided.__getitem__, peers) if k >= acceptor.discarded_upto]
        first = min(known, default=acceptor.last_accepted) + 1
        return acceptor.first_within(first, acceptor.last_accepted, MAX_LAG_BYTES) > first

    def retransmit_at(self, longest_wait_ns: int) -> int | None:
        """When the first answer is overdue; None if all peers have accepted all values sent."""
        return min((self._due_at(member, longest_wait_ns) for member in self._waiting_since), default=None)

    def overdue(self, now: int, longest_wait_ns: int) -> list[int]:
        """The peers whose answer is overdue."""
        return [member for member in self._waiting_since if now >= self._due_at(member, longest_wait_ns)]

    def _due_at(self, member: int, longest_wait_ns: int) -> int:
        return self._waiting_since[member] + self._round_trips[member].wait_ns(longest_wait_ns)

    def heartbeat(self, now: int, interval_ns: int) -> None:
        """Make the next `accepts_to_broadcast` send a frame in any case."""
        self.heartbeat_at, self._announced_decided = now + interval_ns, -1

    def propose_pending(self, window: int, majority: int) -> None:
        """Count decided instances. Then propose pending values while fewer than `window` instances are undecided."""
        acceptor, proposed = self._acceptor, False
        self._count_decided(majority)
        while acceptor.last_accepted < acceptor.decided + window:
            value = self.pending_values.pop(acceptor.last_accepted + 1, None)
            if value is None:
                break
            acceptor.accept(acceptor.last_accepted + 1, self.ballot, value)
            proposed = True
        if proposed:
            self._count_decided(majority)

    def _count_decided(self, majority: int) -> None:
        """Decide the instances that a majority has accepted under this ballot. The leader itself has accepted all."""
        counted = sorted([self._acceptor.last_accepted, *self._accepted_upto.values()], reverse=True)[majority - 1]
        if counted > self._acceptor.decided:
            self._acceptor.decide(counted)

    def accepts_to_broadcast(self, now: int, max_bytes: int) -> list[tuple[Accept, int]]:
        """The ACCEPT frames for all peers, each with 1 if it wants a reply, else 0.

        They carry the new values. If there are none, one frame announces new decisions or serves as a heartbeat.
        """
        frames = [(accept, 1) for accept in self._accepts_from(self._sent_upto + 1, max_bytes, len(self._acceptor.log))]
        if not frames and self._announced_decided != self._acceptor.decided:
            frames = [(Accept(self.ballot, self.base, self._acceptor.decided, 0, ()), int(self._announced_decided < 0))]
        self._announced_decided = self._acceptor.decided
        if self._sent_upto < self._acceptor.last_accepted:
            self._sent_upto = self._acceptor.last_accepted
            for member, round_trip in self._round_trips.items():
                self._waiting_since.setdefault(member, now)
                round_trip.sent(now, self._sent_upto)
        return frames

    def accepts_to_retransmit(self, now: int, member: int, max_bytes: int) -> list[tuple[Accept, int]]:
        """The ACCEPT frames for a member whose answer is overdue, each with 1 if it wants a reply, else 0.

        They repeat undecided values. A member that lacks only decided values gets an announcement, and fetches them.
        """
        self._waiting_since[member] = now
        self._round_trips[member].sent_again(now, self._accepted_upto[member] + 1)
        first = max(self._accepted_upto[member], self._acceptor.decided) + 1
        frames = [(accept, 1) for accept in self._accepts_from(first, max_bytes, RETRANSMIT_FRAMES_MAX)]
        return frames or [(Accept(self.ballot, self.base, self._acceptor.decided, 0, ()), 1)]

    def _accepts_from(self, first: int, max_bytes: int, max_frames: int) -> list[Accept]:
        frames: list[Accept] = []
        while first <= self._acceptor.last_accepted and len(frames) < max_frames:
            values = self._acceptor.values_that_fit(first, self._acceptor.last_accepted, max_bytes)
            frames.append(Accept(self.ballot, self.base, self._acceptor.decided, first, values))
            first += len(values)
        return frames


class FollowerState:
    """The values that a follower has accepted under its leader's ballot. Up to `accepted_upto` there is no gap.

    In a group of two or three, two members are a majority. The leader accepted a value before it sent it, so the value
    is decided as soon as a follower accepts it too. The follower does not wait until the leader announces the decision,
    which would take two more message delays. In a larger group it waits.
    """

    def __init__(self, acceptor: Acceptor, accept: Accept, *, two_are_majority: bool) -> None:
        self.ballot = accept.ballot
        self.accepted_upto = accept.base - 1
        self._acceptor, self._two_are_majority = acceptor, two_are_majority
        self._early: dict[int, bytes] = {}

    def accept_values(self, accept: Accept, window: int) -> None:
        """Accept the values of an ACCEPT in instance order, and decide as far as possible."""
        acceptor, ballot = self._acceptor, self.ballot
        for k, value in enumerate(accept.values, accept.first):
            if k <= acceptor.last_accepted + 1:
                if k > acceptor.decided and acceptor.log.get(k, _NOT_ACCEPTED)[0] != ballot:
                    acceptor.accept(k, ballot, value)
            elif k <= acceptor.last_accepted + window:
                self._early[k] = value
        while (early := self._early.pop(acceptor.last_accepted + 1, None)) is not None:
            acceptor.accept(acceptor.last_accepted + 1, ballot, early)
        # A decided value counts as accepted: no ballot can have another value for its instance.
        self.accepted_upto = max(self.accepted_upto, acceptor.decided)
        while acceptor.log.get(self.accepted_upto + 1, _NOT_ACCEPTED)[0] == ballot:
            self.accepted_upto += 1
        decided = self.accepted_upto if self._two_are_majority else min(accept.decided, self.accepted_upto)
        # Only accepted values are decided. The base of a correct leader never makes this smaller.
        decided = min(decided, acceptor.last_accepted)
        # A value below the leader's base may come from an earlier leader and differ from the decided one. If such an
        # instance is undecided here, this member decides nothing and fetches the decided values (`CatchUp`).
        if acceptor.decided >= accept.base - 1 and decided > acceptor.decided:
            acceptor.decide(decided)


SendTo = Callable[[int, ConsensusMessage, int], None]
"""Sends a consensus message; called with (now, message, receiver)."""


class StorageIdentity:
    """Recognises members that returned without their storage, and so have lost their promises.

    It ignores such a member and tells it so with a STORAGE_MISMATCH, at most once per `report_interval_ns`.
    """

    def __init__(self, acceptor: Acceptor, storage_id: int, send: SendTo, report_interval_ns: int) -> None:
        self.lost_storage: set[int] = set()
        """Members that returned with another storage than before. Their votes do not count."""
        self.refused_by: set[int] = set()
        """Members that recorded another storage for this member, and ignore it."""
        self._acceptor, self._storage_id, self._send = acceptor, storage_id, send
        self._report_interval_ns = report_interval_ns
        self._next_report_ns: dict[int, int] = {}

    def accepts(self, now: int, sender: int, storage_id: int) -> bool:
        """Whether to accept a frame from this sender with this storage."""
        if self._acceptor.storage_id_matches(sender, storage_id):
            return True
        self.lost_storage.add(sender)
        if now >= self._next_report_ns.get(sender, now):
            self._next_report_ns[sender] = now + self._report_interval_ns
            self._send(now, StorageMismatch(self._acceptor.recorded_storage_id(sender)), sender)
        return False

    def peer_problems(self) -> dict[int, str]:
        """By peer, that it has lost its storage, or that it ignores this member because of this member's storage."""
        problems = dict.fromkeys(self.refused_by, "ignores this member, because it knows another storage of it")
        return problems | dict.fromkeys(self.lost_storage, "has lost its storage")

    def on_mismatch(self, sender: int, mismatch: StorageMismatch) -> None:
        """Handle a member's report of the storage id that it recorded for this member.

        If the id is that of the present storage, the frame was meant for an earlier incarnation and is ignored.
        """
        if mismatch.recorded_storage_id != self._storage_id:
            self.refused_by.add(sender)
