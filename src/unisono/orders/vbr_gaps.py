"""The VBR order with failures, joins, leaves, loss and merges (paper 000 §6 and §7): total order with gaps.

As in `vbr`, the slot, the sender and the number in the slot decide a message's place, and every member delivers in that
order; so whatever members fail, come, go or lose touch, no two of them ever deliver two messages in different orders.
What changes is that nobody is waited for beyond Δ+Γ after a slot's end: who has not ended the slot by then is given up
(Definition 2 allows the gap). Nothing blocks while the membership changes, and latency is at most Δ+2Γ+Θ.

Membership needs no agreement. A joining member names, by its clock, a slot before which everyone has its JOIN; in that
slot it expects everybody and lets the time-out tell who is there. A member that hears somebody who is not in its list
asks for a merge, and each adds the other at the slot that the other names.
"""

from __future__ import annotations

from unisono.model.durations import duration_text
from unisono.model.events import PLACE_PER_SENDER, Batch, ViewChange, Violation
from unisono.model.policy import Policy
from unisono.model.rates import Reserver
from unisono.model.timing import Timing
from unisono.model.views import View
from unisono.orders.modes import TAKES, Input, Mode
from unisono.orders.rate_exchange import RateExchange
from unisono.orders.rqueue import Rqueue, SlotFrames
from unisono.orders.vbr import Vbr
from unisono.wire.control import Join, JoinStep, decode_join, encode_join
from unisono.wire.frame import Frame, Kind


def latency_bound_ns(timing: Timing) -> int:
    """Theorem 5: Δ+2Γ+Θ."""
    return timing.delta_ns + 2 * timing.gamma_ns + timing.theta_ns


class VbrGaps(Vbr):
    """The automaton of one member that outlives others."""

    def __init__(self, policy: Policy, reserver: Reserver) -> None:
        super().__init__(policy, reserver)
        self.exchange = RateExchange(policy, restarts=True)
        self.exchange.down = self.down
        self._first_slot = 0
        self._woken = 0
        """The clock reading of the last wake: only a timer gives anybody up, so that what has arrived is read first."""
        self._lives: dict[int, int] = {policy.member: policy.incarnation}
        """The incarnation in which each member takes part; absent where none has been heard."""
        self._joins: dict[int, tuple[int, int]] = {}
        """Members to be added: the slot, and the incarnation."""
        self._asked_until: dict[int, int] = {}
        """Members asked for a merge, and the clock reading before which they are not asked again."""
        self._answered: dict[int, int] = {}
        """When, by its clock, the request was sent that a member was last answered: copies of it are not."""
        self._reached: dict[int, int] = {}
        """The latest slot of which data has come from a member: by FIFO order nothing comes of an earlier one (§7)."""
        self._heard: dict[int, int] = {}
        """The latest slot in which a member sent anything that has come: control frames break a row of losses too."""
        self._failed: list[int] = []
        self._fenced: dict[int, int] = {}
        """Members whose clock cannot be relied on, in the incarnation that showed it."""

    # -- inputs ----------------------------------------------------------------------------------------------

    def from_below(self, now: int, frame: Frame) -> None:
        """net-receive."""
        if self.mode is Mode.LEFT:
            return
        sender, ahead_ns = frame.sender, frame.sent_ns - now
        # What is here left no later than now: so far ahead of ours, or further, is its sender's clock. Let it know.
        if ahead_ns > self._timing.gamma_ns and self._fence(sender, frame.incarnation, ahead_ns):
            self._say_join(now, JoinStep.ANSWER, self._timing.smax(now), to=sender, answers_ns=frame.sent_ns)
        if frame.kind is not Kind.DATA:
            if ahead_ns <= self._timing.gamma_ns and frame.incarnation >= self._lives.get(sender, 0):
                self._hear(sender, self._timing.slot_of(frame.sent_ns))
            if frame.kind is Kind.JOIN:
                self._on_join(now, frame)
            else:
                super().from_below(now, frame)
        elif Input.DATA in TAKES[self.mode] and self._belongs(now, frame):
            if not self._rqueues[sender].add(frame):
                self.ignored["duplicate"] += 1
                return
            slot = frame.slot
            if slot > self._reached.get(sender, 0):
                self._reached[sender] = slot
                self._hear(sender, slot)
            if slot == self._deliver_slot or self._policy.loss_burst:
                self._advance(now)

    def _hear(self, sender: int, slot: int) -> None:
        self._heard[sender] = max(slot, self._heard.get(sender, 0))

    def _belongs(self, now: int, frame: Frame) -> bool:
        """Whether a frame is of a member, in its present life, and of a slot still to be delivered."""
        sender, slot, life = frame.sender, frame.slot, frame.incarnation
        if frame.epoch != self._policy.epoch or self._fenced.get(sender) == life:
            self.ignored["another epoch, or fenced"] += 1
            return False
        if slot > self._timing.slot_of(frame.sent_ns) or slot < self._first_slot:
            # Of a slot before our first one there may be a life that has ended: it must not be taken for the present.
            self.ignored["slot ahead of its own clock, or before our first one"] += 1
            return False
        join, known = self._joins.get(sender), None
        joined = join is not None and slot >= join[0]
        if join is not None and joined:
            known = join[1]
        elif self.mode is Mode.DET_RATE or sender in self.view.members:
            known = self._lives.setdefault(sender, life)
        if known != life:
            self.ignored["not in the list, or another incarnation"] += 1
            if join is None and self.mode is Mode.DELIVER_MESSAGES:
                self._merge(now, sender)
            return False
        if slot < self._deliver_slot or (not joined and slot > self._final_slots.get(sender, slot)):
            self.ignored["slot already delivered"] += 1
            return False
        return True

    def wake(self, now: int) -> None:
        """Time has passed."""
        self._woken = now
        if self.mode is Mode.GET_RATE:
            self.mode = Mode.DET_RATE
            self._first_slot = self._timing.smax(now)
            self._say_join(now, JoinStep.JOIN, self._first_slot)
        super().wake(now)

    def wake_at(self) -> int | None:
        """The end of the slot being sent, our first slot, a HELLO; and Δ+Γ after its end a slot is over for all."""
        timing = self._timing
        if self.mode is Mode.DELIVER_MESSAGES:
            done = self._current == len(self.view.members)
            at = timing.end_of(self._deliver_slot) if done else self._late_at()
            if self._policy.member not in self._final_slots:
                at = min(at, timing.end_of(self._slot))
        elif self.mode is Mode.DET_RATE:
            at = timing.start_of(self._first_slot)
        else:
            return super().wake_at()
        due = self.exchange.wake_at()
        return at if due is None else min(due, at)

    def latest_slot(self, now: int) -> int:
        """Any slot: what is ahead of us by more than Γ shows a wrong clock, which is reported, not turned away."""
        return self._timing.slot_of(2**63 - 1)

    def _counted_on(self) -> bool:
        return True

    # -- joining and merging ---------------------------------------------------------------------------------

    def _start_deliver(self, now: int) -> None:
        """Begin at the slot that our JOIN named, expecting everybody; nobody is waited for beyond that slot."""
        if self.mode is not Mode.DET_RATE or now < self._timing.start_of(self._first_slot):
            return
        for member in self.view.members:
            self._hear(member, self._first_slot - 1)
        self._begin(now, self._first_slot)

    def _say_join(self, now: int, step: JoinStep, slot: int, to: int = 0, answers_ns: int = 0) -> None:
        """Name the slot from which on we are to be expected, so often that one arrives (§7).

        The frame's sequence, which a JOIN has no other use for, says to what reading of the asker's clock it answers.
        """
        policy, timing, rate = self._policy, self._timing, self._pacer.rate
        body = encode_join(
            Join(
                timing.theta_ns,
                timing.delta_ns,
                timing.gamma_ns,
                slot,
                rate.avg,
                rate.burst,
                rate.bytes_per_slot(policy.max_message),
                step,
                self._lives.get(to, 0),
            )
        )
        me, life, epoch, present = policy.member, policy.incarnation, policy.epoch, timing.slot_of(now)
        frame = Frame(Kind.JOIN, me, life, epoch, present, 0, 0, rate.burst, answers_ns, now, None, body, to)
        self.down.extend([frame] * (policy.loss_burst + 1))

    def _merge(self, now: int, peer: int) -> None:
        """We hear somebody who is not in our list: ask, once until the answer must be here (erratum 000-27)."""
        if now < self._asked_until.get(peer, 0):
            return
        slot = self._timing.smax(now)
        self._asked_until[peer] = self._timing.start_of(slot) + self._timing.delta_ns
        self._say_join(now, JoinStep.MERGE, slot, to=peer)

    def _on_join(self, now: int, frame: Frame) -> None:
        join, peer, timing = decode_join(bytes(frame.body)), frame.sender, self._timing
        if join is None or self.mode in {Mode.GET_RATE, Mode.LEFT} or frame.epoch != self._policy.epoch:
            return
        if (join.theta_ns, join.delta_ns, join.gamma_ns) != (timing.theta_ns, timing.delta_ns, timing.gamma_ns):
            return  # its HELLO says what differs
        if join.known > self._policy.incarnation:
            self._superseded(now, peer)
            return
        asked_ns = frame.first_sequence
        if join.step is JoinStep.ANSWER and frame.sent_ns + timing.gamma_ns < asked_ns <= now:
            # It was sent after we asked, and by its sender's clock more than Γ before.
            self._fence(peer, frame.incarnation, frame.sent_ns - asked_ns)
        self._answer(now, frame, join)
        if self._fenced.get(peer) != frame.incarnation:
            self._expect(now, peer, frame.incarnation, join.slot)

    def _answer(self, now: int, frame: Frame, join: Join) -> None:
        """Say where we begin, once per request, to who asks or cannot know."""
        if join.step is JoinStep.MERGE:
            slot = self._timing.smax(now)
        elif join.step is JoinStep.JOIN and self.mode is Mode.DET_RATE and join.slot < self._first_slot:
            # It begins before us and may have come up after our JOIN had passed it (000-25).
            slot = self._first_slot
        else:
            return
        if self._answered.get(frame.sender) != frame.sent_ns:
            self._answered[frame.sender] = frame.sent_ns
            self._say_join(now, JoinStep.ANSWER, slot, to=frame.sender, answers_ns=frame.sent_ns)

    def _expect(self, now: int, peer: int, life: int, slot: int) -> None:
        """Record that a peer is to be added at the slot that it names."""
        known = self._lives.get(peer, -1)
        if life < known or self._joins.get(peer, (0, -1))[1] >= life:
            return
        if slot > self._timing.smax(now + self._timing.gamma_ns):
            self.ignored["join at an absurd slot"] += 1
            return
        listed = peer in self.view.members and peer not in self._failed
        if slot <= self._first_slot and (self.mode is Mode.DET_RATE or (listed and known < 0)):
            # We expect everybody in our first slot; who joins later than that is added in its turn.
            self._lives[peer] = life
            return
        if listed and known == life and slot <= self._deliver_slot:
            return
        # Of one that is listed we note the slot all the same: it may have stood still, and be missing until then.
        added = max(slot, self._deliver_slot + 1)
        if added > slot:
            text = f"member {peer} asked to be added at slot {slot}, which is past: it is added at {added}"
            self.events.append(Violation("late join", text, peer, added))
        self._joins[peer] = (added, life)

    def _superseded(self, now: int, peer: int) -> None:
        text = f"member {peer} knows a later member {self._policy.member}: another process uses this number"
        self.events.append(Violation("number taken", text, self._policy.member))
        self._depart(self._timing.slot_of(now))

    # -- giving up -------------------------------------------------------------------------------------------

    def _slot_over(self, now: int) -> bool:
        """Not before our clock has passed it: until then a JOIN for the next slot may come (000-24).

        That matters when everybody has used up its burst and ended the slot early.
        """
        return now >= self._timing.end_of(self._deliver_slot)

    def _given_up(self, now: int, sender: int) -> bool:
        """Go on without the rest: Δ+Γ after the slot's end, or when FIFO shows that there is no rest (§7)."""
        slot, lossy = self._deliver_slot, self._policy.loss_burst > 0
        if sender == self._policy.member:
            return self._slot > slot
        passed = lossy and self._reached.get(sender, 0) > slot
        if not passed and self._woken < self._late_at():
            return False
        frames = self._rqueues[sender].slots.get(slot)
        if frames is not None:
            self._deliver_rest(sender, frames)
        if not lossy or slot - self._heard[sender] > self._policy.loss_burst:
            # A datagram is sent in every slot, so this many silent ones are more than can be lost in a row (000-28).
            self._failed.append(sender)
        return True

    def _deliver_rest(self, sender: int, frames: SlotFrames) -> None:
        """What came behind a gap, in its order (001-6); a message that lacks a piece is not delivered."""
        while frames.waiting:
            frames.next_number = min(frames.waiting)
            frames.pieces = []
            self._deliver(sender, frames)

    def _deliver(self, sender: int, frames: SlotFrames) -> None:
        """A message's number in its slot is its sequence, so that a gap here does not move what comes behind it."""
        before = len(self.events)
        super()._deliver(sender, frames)
        for batch in self.events[before:]:
            if isinstance(batch, Batch):
                batch.first_place = sender * PLACE_PER_SENDER + batch.first_sequence % PLACE_PER_SENDER

    def _finish_slot(self, now: int) -> None:
        """The next slot's list: without who has failed, with who joins."""
        super()._finish_slot(now)
        if self.mode is not Mode.DELIVER_MESSAGES:
            return
        slot = self._deliver_slot
        left = tuple(sorted({member for member in self._failed if member in self.view.members}))
        self._failed = []
        for member in left:
            self._forget(member)
        joined = tuple(m for m in sorted(self._joins) if self._joins[m][0] <= slot and m != self._policy.member)
        for member in joined:
            self._lives[member] = self._joins.pop(member)[1]
            self._final_slots.pop(member, None)
            self._hear(member, slot - 1)
        members = tuple(sorted({*self.view.members, *joined} - (set(left) - set(joined))))
        if left or members != self.view.members:
            joined = tuple(m for m in joined if m in left or m not in self.view.members)
            self.view = View(members, slot)
            self.events.append(ViewChange(self.view, joined=joined, left=left))

    def _forget(self, member: int) -> None:
        """Drop what is queued of a member that has failed, but not of the life in which it comes back (000-26)."""
        join = self._joins.get(member)
        kept = Rqueue()
        if join is not None:
            kept.slots = {s: f for s, f in self._rqueues[member].slots.items() if s >= join[0]}
        self._rqueues[member] = kept

    def _watch(self, now: int) -> None:
        """Nothing is late here: it is given up."""

    # -- our own pauses and clocks ---------------------------------------------------------------------------

    def _roll(self, now: int) -> None:
        """next-slot; after a pause so long that the others have given us up, join again.

        What was held back for the missed slot leaves in the slot in which all expect us, and nothing before.
        """
        timing, running = self._timing, self.mode is Mode.DELIVER_MESSAGES
        missed = now - timing.end_of(self._slot)
        if running and missed > timing.delta_ns + timing.gamma_ns and self._policy.member not in self._final_slots:
            text = f"this member stood still for {duration_text(missed)}; what was delivered meanwhile may be missing"
            self.events.append(Violation("paused", text, self._policy.member, self._slot))
            messages, payload = self._packer.held()
            slot = timing.smax(now)
            self._say_join(now, JoinStep.JOIN, slot)
            self._open(slot)
            self._spend(messages, payload)
        super()._roll(now)

    def _fence(self, peer: int, life: int, off_ns: int) -> bool:
        """A clock that is off by more than Γ: its member is left out until it comes back in another life.

        Whether this is new.
        """
        if self._fenced.get(peer, -1) >= life:
            return False
        self._fenced[peer] = life
        off, bound = duration_text(abs(off_ns)), duration_text(self._timing.gamma_ns)
        which = f"{off} {'ahead of' if off_ns > 0 else 'behind'} ours, more than Γ = {bound}"
        self.events.append(Violation("clock", f"member {peer}'s clock is {which}: it is left out", peer))
        if peer in self.view.members and self._lives.get(peer, life) == life:
            self._failed.append(peer)
        if self._joins.get(peer, (0, -1))[1] == life:
            del self._joins[peer]
        fenced = sum(self._lives.get(member, its) <= its for member, its in self._fenced.items())
        if fenced >= 2 and 2 * fenced > len(self._policy.view.members) - 1:
            text = f"most members' clocks differ from ours by more than Γ = {bound}: ours is wrong, and we leave"
            self.events.append(Violation("own clock", text, self._policy.member))
            self._depart(self._deliver_slot)
        return True

    def _blocked(self) -> bool:
        return False  # who is far behind is given up

    # -- questions -------------------------------------------------------------------------------------------

    def bound_ns(self) -> int:
        """Theorem 5."""
        return latency_bound_ns(self._timing)

    def returning(self) -> bool:
        """Who was given up may be back, and has to hear us for that."""
        return True

    def reliable(self) -> bool:
        """A crash may leave gaps (Definition 2)."""
        return False

    def waiting_for(self) -> tuple[int, ...]:
        """Nobody: a group of one is a group."""
        return ()
