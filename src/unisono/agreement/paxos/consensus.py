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

from unisono.agreement.failure_detector import MISTAKES_PER_S, Detector
from unisono.agreement.paxos import messages as wire
from unisono.agreement.paxos.acceptor import Acceptor
from unisono.agreement.paxos.candidate import PATIENCE, STAGGER, Candidacy, Role, promises
from unisono.agreement.paxos.catch_up import CatchUp
from unisono.agreement.paxos.decisions import Decided, Decision, Offered, Restored
from unisono.agreement.paxos.follower import Following
from unisono.agreement.paxos.leader import Reign
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
from unisono.agreement.paxos.storage_identity import Remembering
from unisono.errors import InvalidPolicy
from unisono.model.durations import earliest
from unisono.model.ids import EVERYONE
from unisono.model.stored_records import Memory, Write
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
        detector: Detector | None = None,
        window: int = WINDOW,
        retain: int = RETAIN,
        memory: Memory | None = None,
        lazy: bool = False,
    ) -> None:
        """A leader shows itself each `every_ns`; what is not answered is said again after `retry_ns`, a round trip.
        A detector that is given is its giver's to drive; else there is one of our own, and its frames are among ours.
        When `lazy`, nothing is said before `flush`: what arrived together is answered together.
        """
        if me not in members:
            raise InvalidPolicy("member", f"member {me} is not among the members {tuple(members)}")
        if window < 1:
            raise InvalidPolicy("window", f"at least one instance is under way at a time, not {window}")
        self.me = me
        self.members = tuple(sorted(members))
        self.peers = tuple(member for member in self.members if member != me)
        self.majority = len(self.members) // 2 + 1
        self.window = window
        self.max_value = max_frame - HEADER_BYTES - wire.ACCEPT_BYTES
        self.down: list[Frame] = []
        self.decisions: list[Decided] = []
        self.offers: list[Offered] = []
        self.ignored: Counter[str] = Counter()
        self.role = Role.FOLLOWING
        self.leader: int | None = None
        self.reigns = 0
        self.detector = detector or Detector(
            me, members, every_ns=every_ns, mistakes_per_s=mistakes_per_s, incarnation=incarnation, epoch=epoch
        )
        self._own_detector = detector is None
        self._every_ns, self._retry_ns, self._incarnation, self._epoch = every_ns, retry_ns, incarnation, epoch
        self._memory = memory.number if memory is not None else incarnation
        self._acceptor = Acceptor(retain)
        self._acceptor.recover(memory.records if memory is not None else ())
        self.writes: list[Write] = self._acceptor.writes
        self.remembering = Remembering(self._acceptor, self._memory, self._say, retry_ns)
        self._lazy, self._owed = lazy, dict[int, None]()
        """Whom to tell how things stand."""
        self._catch_up = CatchUp(self._acceptor, self._say, self.max_value, retry_ns)
        self._proposals: dict[int, bytes] = {}
        self._told = self._acceptor.snapshot_at
        if self._told:
            self.decisions.append(Restored(self._told, self._acceptor.snapshot))
        self._tell()
        self._retry_at = self._heard_ns = 0
        self._following: Following | None = None
        self._wait_from: int | None = None
        """Since when there has been no leader, as far as patience goes; None until the first wake."""
        self._highest = self._acceptor.promised
        self._candidacy: Candidacy | None = None
        self._reign: Reign | None = None

    # -- what the owner does ---------------------------------------------------------------------------------

    @property
    def decided(self) -> int:
        """All instances up to this one are decided, as far as this member knows."""
        return self._acceptor.decided

    @property
    def leading(self) -> bool:
        """Whether this member leads, as far as it knows."""
        return self._reign is not None

    @property
    def next_free(self) -> int:
        """The first instance for which nothing has been accepted here: what a leader may propose next."""
        return self._acceptor.last + 1

    def known_by(self, members: Iterable[int]) -> bool:
        """To a leader: whether these members know all that is decided, and have said so."""
        knows = self._reign.knows if self._reign is not None else {}
        return all(knows.get(member, 0) >= self.decided for member in members)

    def propose(self, now: int, k: int, value: bytes) -> bool:
        """Propose(k, value). False if k is too far ahead of what is decided: say it again after some decisions.

        Of several values for one instance, one is decided; a member's first proposal for an instance stands.
        """
        if k < 1:
            raise InvalidPolicy("k", f"instances are numbered from 1, not {k}")
        if len(value) > self.max_value:
            raise InvalidPolicy("value", f"{len(value):,} bytes do not fit in a frame, {self.max_value:,} do: split it")
        if k > self.decided + self.window:
            return False
        if k > self.decided and k not in self._proposals:
            self._proposals[k] = value
            if self._reign is not None:
                self._reign.wanted.setdefault(k, value)
                self._settle(now)
            else:
                self._forward(now, (k,))
        return True

    def withdraw(self) -> None:
        """Propose nothing of what has not been placed yet."""
        self._proposals.clear()
        if self._reign is not None:
            self._reign.wanted.clear()

    def offer(self, now: int, value: bytes) -> None:
        """Send a value to the leader's caller, once; it may be lost."""
        if self.leading:
            self.offers.append(Offered(self.me, self._incarnation, value))
        elif self.leader is not None:
            self._say(now, Proposal(0, value), self.leader)

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
        if not self.remembering.listens(now, sender, frame.burst):
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
                self._catch_up.answer(now, sender, fetch)
            case Learn() | Snapshot() as past:
                self._on_past(now, sender, past, frame.number)
            case wire.Remembered() as remembered:
                self.remembering.hear(sender, remembered)
            case None:
                self.ignored["malformed"] += 1
        self._settle(now)

    def flush(self, now: int) -> None:
        """As a leader, propose and count; whoever we are, answer, and hand out what is decided."""
        if self._reign is not None:
            self._reign.place(self.window, self.majority)
            for accept, more in self._reign.news(self.max_value):
                self._say(now, accept, EVERYONE, more)
        if self._owed:
            promised, following = self._acceptor.promised, self._following
            upto = following.upto if following is not None and following.ballot == promised else 0
            for to in self._owed:
                self._say(now, Accepted(promised, upto, self.decided), to)
            self._owed.clear()
        self._tell()
        if self._own_detector and self.detector.down:
            self.down += self.detector.down
            self.detector.down.clear()

    def _settle(self, now: int) -> None:
        if not self._lazy:
            self.flush(now)

    def wake(self, now: int) -> None:
        """Time has passed."""
        if self._wait_from is None:
            self._wait_from = now
        if self._own_detector:
            self.detector.wake(now)
        self._look_after_leader(now)
        if self._reign is not None:
            self._rule(now, self._reign)
        elif self._candidacy is not None:
            if now >= self._candidacy.ends_at:
                self._follow_nobody(now)
            elif now >= self._retry_at:
                self._ask_for_promises(now, self._candidacy)
        elif self.leader is None:
            if now >= self._campaign_at():
                self._try(now)
        elif now >= self._retry_at:
            self._forward(now, self._proposals)
        self._catch_up.wake(now)
        self._settle(now)

    def wake_at(self) -> int | None:
        """The next sign of life, retry or candidacy."""
        if self._wait_from is None:
            return 0
        times = [self._catch_up.due()]
        if self._own_detector:
            times.append(self.detector.wake_at())
        if self._reign is not None:
            times += [self._reign.beat_at, self._retry_at if self._reign.unanswered() else None]
        elif self._candidacy is not None:
            times += [self._candidacy.ends_at, self._retry_at]
        elif self.leader is None:
            times.append(self._campaign_at())
        else:
            times += [self._heard_ns + self._patience_ns() + 1, self._retry_at if self._proposals else None]
        return earliest(times)

    # -- following -------------------------------------------------------------------------------------------

    def _on_prepare(self, now: int, sender: int, prepare: Prepare) -> None:
        acceptor = self._acceptor
        self._highest = max(self._highest, prepare.ballot)
        if prepare.ballot < acceptor.promised or owner_of(prepare.ballot) != sender:
            self._owed[sender] = None
            return
        # Who is too far behind, or wants to depose a leader that is heard, is told how things stand instead.
        behind = prepare.first <= acceptor.floor or acceptor.decided - prepare.first >= self.window
        if prepare.trial:
            if behind or self.leader not in {None, sender}:
                self._owed[sender] = None
            else:
                self._say(now, Promise(prepare.ballot, True, self.decided, prepare.first, 0, 0, ()), sender)
            return
        if prepare.ballot > acceptor.promised:
            acceptor.promise(prepare.ballot)
            self._follow_nobody(now + PATIENCE * self._retry_ns)
        if behind:
            self._owed[sender] = None
            return
        for promise in promises(acceptor, prepare, self.max_value):
            self._say(now, promise, sender)

    def _on_accept(self, now: int, sender: int, accept: Accept, asks: bool) -> None:
        ballot = accept.ballot
        self._highest = max(self._highest, ballot)
        if ballot < self._acceptor.promised or owner_of(ballot) != sender:
            self._owed[sender] = None
            return
        if ballot > self._acceptor.promised:
            self._acceptor.promise(ballot)
        following = self._following
        if self.leader != sender or following is None or ballot != following.ballot:
            following = self._follow(now, sender, accept)
        self._heard_ns = now
        following.take(accept, self.window)
        self._catch_up.hear(now, sender, accept.decided)
        if asks:
            self._owed[sender] = None

    def _follow(self, now: int, leader: int, accept: Accept) -> Following:
        self._follow_nobody(now)
        self.leader = leader
        self.reigns += 1
        self._forward(now, self._proposals)
        following = self._following = Following(self._acceptor, accept, two_decide=self.majority == 2)
        return following

    def _follow_nobody(self, wait_from: int) -> None:
        self.role, self._candidacy, self._reign, self.leader = Role.FOLLOWING, None, None, None
        self._wait_from = wait_from

    def _look_after_leader(self, now: int) -> None:
        silent = self.detector.suspected(self.leader or 0) or now > self._heard_ns + self._patience_ns()
        if self.leader not in {None, self.me} and silent:
            self._follow_nobody(now)

    def _patience_ns(self) -> int:
        """How long a leader may be silent: as long as its heartbeats, and one more of its signs."""
        return self.detector.timeout_ns(self.leader or self.me) + self._every_ns

    def _forward(self, now: int, instances: Iterable[int]) -> None:
        self._retry_at = now + max(self._retry_ns, self.detector.pace_ns())
        if self.leader is not None:
            for k in sorted(instances):
                self._say(now, Proposal(k, self._proposals[k]), self.leader)

    def _on_past(self, now: int, sender: int, past: Learn | Snapshot, more: int) -> None:
        # A leader's claim that k is decided speaks of its own proposal for k. If another leader has taken over, what
        # was decided may be something else; this one must not hear of it before it knows that it leads no more.
        if self.leading:
            return
        if isinstance(past, Learn):
            self._catch_up.learn(now, sender, past, more)
        elif (restored := self._catch_up.take(now, sender, past, more)) is not None:
            self._told = restored[0]
            self.decisions.append(Restored(*restored))

    # -- trying to lead --------------------------------------------------------------------------------------

    def _campaign_at(self) -> int:
        """When it is this member's turn: the first after the last leader that is not suspected goes first."""
        last = owner_of(self._highest)
        order = [m for m in self.members if m > last] + [m for m in self.members if m <= last]
        rank = self.detector.trusted(order).index(self.me)
        return (self._wait_from or 0) + rank * STAGGER * self._retry_ns

    def _try(self, now: int) -> None:
        self._highest = wire.ballot_after(self._highest, self.me)
        self.role = Role.TRYING
        candidacy = self._candidacy = Candidacy(self._highest, self.decided + 1, now + PATIENCE * self._retry_ns)
        candidacy.willing.add(self.me)
        self._ask_for_promises(now, candidacy)
        self._go_on(now, candidacy)

    def _ask_for_promises(self, now: int, candidacy: Candidacy) -> None:
        self._retry_at = now + self._retry_ns
        self._say(now, Prepare(candidacy.ballot, candidacy.first, self.role is Role.TRYING))

    def _on_promise(self, now: int, sender: int, promise: Promise) -> None:
        candidacy = self._candidacy
        if candidacy is None or promise.ballot != candidacy.ballot or promise.trial != (self.role is Role.TRYING):
            return
        self._catch_up.hear(now, sender, promise.decided)
        if promise.trial:
            candidacy.willing.add(sender)
        else:
            candidacy.add(sender, promise)
        self._go_on(now, candidacy)

    def _go_on(self, now: int, candidacy: Candidacy) -> None:
        """From the trial to the promises, from there to the lead."""
        acceptor = self._acceptor
        if self.role is Role.TRYING and len(candidacy.willing) >= self.majority:
            acceptor.promise(candidacy.ballot)
            candidacy.first, self.role = acceptor.decided + 1, Role.PREPARING
            for promise in promises(acceptor, Prepare(candidacy.ballot, candidacy.first, False), self.max_value):
                candidacy.add(self.me, promise)
            self._ask_for_promises(now, candidacy)
        if self.role is Role.PREPARING and candidacy.promised() >= self.majority:
            self._lead(now, candidacy)

    def _lead(self, now: int, candidacy: Candidacy) -> None:
        acceptor = self._acceptor
        for k, (ballot, value) in enumerate(candidacy.found(), candidacy.first):
            if k > acceptor.decided and ballot == wire.CHOSEN:
                acceptor.learn(value)
            elif k > acceptor.decided:
                acceptor.accept(k, candidacy.ballot, value)
        self.role, self._candidacy, self.leader = Role.LEADING, None, self.me
        self.reigns += 1
        wanted = {k: value for k, value in sorted(self._proposals.items()) if k > acceptor.last}
        self._reign = Reign(candidacy.ballot, acceptor, self.peers, now, wanted)
        self._retry_at = now + self._retry_ns

    # -- leading ---------------------------------------------------------------------------------------------

    def _on_proposal(self, sender: int, incarnation: int, proposal: Proposal) -> None:
        if self._reign is None:
            self.ignored["not the leader"] += 1
        elif proposal.k == 0:
            self.offers.append(Offered(sender, incarnation, proposal.value))
        elif self._acceptor.last < proposal.k <= self.decided + self.window and len(proposal.value) <= self.max_value:
            self._reign.wanted.setdefault(proposal.k, proposal.value)

    def _on_accepted(self, now: int, sender: int, accepted: Accepted) -> None:
        self._highest = max(self._highest, accepted.ballot)
        reign = self._reign
        if reign is None:
            self._catch_up.hear(now, sender, accepted.decided)
            if self._candidacy is not None and accepted.ballot > self._candidacy.ballot:
                self._follow_nobody(now)
        elif accepted.ballot == reign.ballot:
            reign.ack(sender, accepted.upto, accepted.decided, now)
        elif accepted.ballot > reign.ballot:
            # Somebody promised more to a candidate that has not come through: ask again with more than that.
            self._follow_nobody(now)
            self._try(now)

    def _rule(self, now: int, reign: Reign) -> None:
        """Show oneself, say again what was not answered, and step down without a majority."""
        if now >= reign.beat_at:
            timeout, every = self.detector.timeout_ns, self._every_ns
            silent = sum(now - at > timeout(member) + every for member, at in reign.answered_ns.items())
            if len(self.members) - silent < self.majority:
                self._follow_nobody(now)
                return
            reign.beat(now, every)
        if now >= self._retry_at:
            self._retry_at = now + max(self._retry_ns, self.detector.pace_ns())
            for member in self.detector.trusted(self.peers):
                for accept in reign.again(member, self.max_value):
                    self._say(now, accept, member)

    def _tell(self) -> None:
        if self._told == self.decided:
            return
        while self._told < self.decided:
            self._told += 1
            self.decisions.append(Decision(self._told, self._acceptor.value(self._told)))
        self._proposals = {k: value for k, value in self._proposals.items() if k > self.decided}

    def _say(self, now: int, message: wire.Message, to: int = EVERYONE, more: int = 0) -> None:
        kind, body = wire.encode(message)
        if to != EVERYONE or self.peers:
            me, life, memory = self.me, self._incarnation, self._memory
            self.down.append(Frame(kind, me, life, self._epoch, 0, more, 0, memory, sent_ns=now, body=body, to=to))
