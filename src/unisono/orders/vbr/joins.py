"""How members of the VBR order with failures come, come back and meet again, and get over a missed change of slots.

Paper 000 §6.3 and §6.6, errata 000-24, -25, -27.

Everything here is said in slots, so every JOIN says what slots are at its sender. Where two members differ the slots
that were changed more often prevail. Who learns of a change before it takes effect just has it too; who learns of it
later joins again. Numbers are never used twice: they go on from the higher of both, if need be by leaving some out.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from unisono.model.durations import NS_PER_S, duration_text
from unisono.model.events import ClockViolation, ViewChange, Violation, ViolationKind
from unisono.model.policy import Policy
from unisono.model.rates import Reserver
from unisono.model.slot_schedule import Grid, Segment
from unisono.model.views import View
from unisono.net.clock_check import Differs
from unisono.orders.base.formation import RateExchange
from unisono.orders.base.modes import Mode
from unisono.orders.vbr.expected_joins import Joins
from unisono.orders.vbr.order import Vbr
from unisono.wire.control import Join, JoinStep, decode_join, encode_join
from unisono.wire.frame import Frame, Kind

CHANGE_AHEAD_NS = 3600 * NS_PER_S
"""Nobody agrees on a change that is further ahead than this."""


def _patience_ns(grid: Grid) -> int:
    """How long a member whose numbers are ahead waits for the others' rather than have them leave some out."""
    return 2 * (grid.delta_ns + grid.gamma_ns) + 4 * grid.last.theta_ns


class VbrJoins(Vbr):
    """The part of the automaton that knows who takes part, since when, and in which life."""

    def __init__(self, policy: Policy, reserver: Reserver) -> None:
        super().__init__(policy, reserver)
        self.exchange = RateExchange(policy, restarts=True)
        self.exchange.down = self.down
        self._first_slot = 0
        self._lives: dict[int, int] = {policy.member: policy.incarnation}
        """The incarnation in which each member takes part; absent where none has been heard."""
        self._joins = Joins()
        self._asked_until: dict[int, int] = {}
        """Members asked for a merge, and the clock reading before which they are not asked again."""
        self._answered: dict[int, int] = {}
        """When, by its clock, the request was sent that a member was last answered: copies of it are not."""
        self._heard = dict.fromkeys(policy.view.members, 0)
        """The latest slot in which a member sent anything that has come: control frames break a row of losses too."""
        self._failed: list[int] = []
        self._fenced: dict[int, int] = {}
        """Members whose clock cannot be relied on, in the incarnation that showed it."""
        self._since: dict[int, int] = {}
        """From which slot on each member takes part here; absent where it did from our first one."""
        self._sure_at: int | None = None
        """While it is ahead somebody may still answer our JOIN that slots are others than we think."""
        self._used = 0
        """The last number that we have gone by in slots that were given up since."""

    def _hear(self, sender: int, slot: int) -> None:
        self._heard[sender] = max(self._heard[sender], slot)

    def _start_deliver(self, now: int) -> None:
        """Begin at the slot that our JOIN named, expecting everybody; nobody is waited for beyond that slot."""
        if self.mode is not Mode.DET_RATE or now < self.grid.start_of(self._first_slot):
            return
        for member in self._policy.view.members:
            self._hear(member, self._first_slot - 1)
        self._begin(now, self._first_slot)

    def _say_join(self, now: int, step: JoinStep, slot: int, to: int = 0, answers_ns: int = 0) -> None:
        """Name the slot from which on we are to be expected, so often that one arrives (§7).

        The frame's sequence, which a JOIN has no other use for, says to what reading of the asker's clock it answers.
        """
        policy, timing, rate = self._policy, self.grid, self._pacer.rate
        body = encode_join(
            Join(
                policy.timing.theta_ns,
                timing.delta_ns,
                timing.gamma_ns,
                slot,
                rate.avg,
                rate.burst,
                rate.bytes_per_slot(policy.max_message),
                step,
                self._lives.get(to, 0),
                timing.changes,
                timing.segments,
                self.demands.known(),
            )
        )
        me, life, epoch, present = policy.member, policy.incarnation, policy.epoch, timing.slot_of(now)
        frame = Frame(Kind.JOIN, me, life, epoch, present, 0, 0, rate.burst, answers_ns, now, None, body, to)
        self.down.extend([frame] * policy.copies)

    def _merge(self, now: int, peer: int) -> None:
        """We hear somebody who is not in our list: ask, once until the answer must be here (erratum 000-27)."""
        if now < self._asked_until.get(peer, 0):
            return
        slot = self._present_from(now)
        self._asked_until[peer] = self.grid.start_of(self.grid.smax(now)) + self.grid.delta_ns
        self._say_join(now, JoinStep.MERGE, slot, to=peer)

    def _on_join(self, now: int, frame: Frame) -> None:
        join, peer, timing = decode_join(bytes(frame.body)), frame.sender, self.grid
        if join is None or self.mode in {Mode.GET_RATE, Mode.LEFT} or frame.epoch != self._policy.epoch:
            return
        if (join.delta_ns, join.gamma_ns) != (timing.delta_ns, timing.gamma_ns):
            return  # its HELLO says what differs
        if not join.changes and not timing.changes and join.theta_ns != self._policy.timing.theta_ns:
            return
        if join.known > self._policy.incarnation:
            self._superseded(peer)
            return
        if join.step is JoinStep.FENCED:
            if join.known in {0, self._policy.incarnation}:
                self._fence(now, peer, frame.incarnation, 0)
            return
        self._hear_demands(join.demands)
        asked_ns = frame.first_sequence
        if join.step is JoinStep.ANSWER and frame.sent_ns + timing.gamma_ns < asked_ns <= now:
            # It was sent after we asked, and by its sender's clock more than Γ before.
            self._fence(now, peer, frame.incarnation, frame.sent_ns - asked_ns)
        if self._fenced.get(peer) == frame.incarnation:
            self._answer(now, frame, join)
        elif self._reconcile(now, frame, join):
            self._answer(now, frame, join)
            if join.step is JoinStep.JOIN:
                # It begins there and nowhere else, also if it had named another slot before it knew what slots are.
                self._joins.cancel(peer, frame.incarnation)
            self._expect(now, peer, frame.incarnation, join.slot)

    def _answer(self, now: int, frame: Frame, join: Join) -> None:
        """Say where we begin, once per request, to who asks or cannot know."""
        if join.step is JoinStep.MERGE:
            slot = self._present_from(now)
        elif join.step is JoinStep.JOIN and self.mode is Mode.DET_RATE and join.slot < self._first_slot:
            # It begins before us and may have come up after our JOIN had passed it (000-25).
            slot = self._first_slot
        else:
            return
        self._answer_once(now, frame, slot)

    def _answer_once(self, now: int, frame: Frame, slot: int) -> None:
        if self._answered.get(frame.sender) != frame.sent_ns:
            self._answered[frame.sender] = frame.sent_ns
            self._say_join(now, JoinStep.ANSWER, slot, to=frame.sender, answers_ns=frame.sent_ns)

    def _present_from(self, now: int) -> int:
        """The slot from which on somebody that hears of us now may expect us."""
        return max(self.grid.smax(now), self._first_slot)

    def _expect(self, now: int, peer: int, life: int, slot: int) -> None:
        """Record that a peer is to be added at the slot that it names."""
        known = self._lives.get(peer, -1)
        if life < known or self._joins.latest(peer) >= life:
            return
        if slot > self.grid.smax(now + self.grid.gamma_ns + _patience_ns(self.grid)):
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
            if self._stretches.begins(now, ("join", peer)):
                self.events.append(Violation(ViolationKind.LATE_JOIN, text, peer, added))
        self._joins.expect(peer, added, life)

    def _superseded(self, peer: int) -> None:
        text = f"member {peer} knows a later member {self._policy.member}: another process uses this number"
        self.events.append(Violation(ViolationKind.NUMBER_TAKEN, text, self._policy.member))
        self._depart(self._deliver_slot - 1)

    # -- slots that differ -----------------------------------------------------------------------------------

    def submit(self, now: int, messages: Sequence[bytes]) -> int:
        """Nothing is taken before we know that our slots are the group's, or that nobody is there to say otherwise."""
        return super().submit(now, messages) if self._sure(now) else 0

    def _ask_in(self, now: int, first: int) -> None:
        """Name our first slot, and be told by then or soon after if slots are others by now.

        Who has our JOIN tells us of later changes too, in time. So an answer may come up to 2Δ+2Γ after it, and until
        then our slots may be nobody's: we send marks in them, since others may count on these, and nothing else; we
        deliver nothing, and say nothing to the application. What is sent in our first slot is due Δ+2Γ+Θ after that
        slot's begin, which is later.
        """
        self._first_slot = first
        self._sure_at = now + 2 * (self.grid.delta_ns + self.grid.gamma_ns)
        self._say_join(now, JoinStep.JOIN, first)

    def _sure(self, now: int) -> bool:
        if self._sure_at is not None and self.mode is Mode.DELIVER_MESSAGES and now >= self._sure_at:
            self._sure_at = None
            super()._tell_view()
        return self._sure_at is None

    def _tell_view(self) -> None:
        if self._sure_at is None:
            super()._tell_view()

    def _advance(self, now: int) -> None:
        if self._sure(now):
            super()._advance(now)

    def _reconcile(self, now: int, frame: Frame, join: Join) -> bool:
        """Whether a JOIN speaks of slots as they are here, if need be after we have taken them over."""
        ours = self.grid
        segments = join.segments or (Segment(0, 0, join.theta_ns),)
        theirs = Grid(ours.delta_ns, ours.gamma_ns, segments, join.changes)
        if theirs.last.start_ns > now + CHANGE_AHEAD_NS:
            self.ignored["slots that change in the far future"] += 1
            return False
        if theirs.agrees(ours):
            return True
        if not theirs.prevails(ours, now):
            self._answer_once(now, frame, self._present_from(now))
            # Up to where the two part, a slot that it names is the one that we know.
            until = ours.same_until(theirs)
            return until is not None and join.slot <= until
        if self._policy.member in self._final_slots:
            return False  # we are on our way out
        self._take_over(now, theirs)
        return True

    def _take_over(self, now: int, grid: Grid) -> None:
        """Slots are others than we thought: go on with them, if we can; else join again."""
        running, until = self.mode is Mode.DELIVER_MESSAGES, grid.same_until(self.grid)
        if until is not None and (self._slot < until if running else self._first_slot <= until):
            self._agree(grid)
            return
        self._rejoin(now, grid, f"that slots are {duration_text(grid.last.theta_ns)} long now")

    def _heed_late(self, now: int) -> None:
        """Who has missed a change of settings was cut off when everybody made it: it is no part of that, so it leaves
        and comes back."""
        if not self.demands.late:
            return
        demand = self.demands.late[-1]
        self.demands.late.clear()
        if self.mode is Mode.DELIVER_MESSAGES and self._policy.member not in self._final_slots:
            self._rejoin(now, self.grid, f"what member {demand.member} has demanded since slot {demand.origin}")

    def _rejoin(self, now: int, grid: Grid, missed: str) -> None:
        """Deliver what is here, and begin anew at a slot that we have not been in."""
        if self.mode is Mode.DELIVER_MESSAGES and self._sure_at is None:
            if self._index or self._sequence:
                # Who has neither sent nor delivered anything has missed nothing.
                text = f"this member had missed {missed}; it joins again, with a gap until then"
                self.events.append(Violation(ViolationKind.SLOTS, text, self._policy.member, self._deliver_slot))
            self._deliver_all()
            others = tuple(member for member in self.view.members if member != self._policy.member)
            self._present = (self._policy.member,)
            self.view = View(self._present, self._deliver_slot)
            self.events.append(ViewChange(self.view, left=others))
            self._used = max(self._slot, self._deliver_slot - 1)
        # Of a newcomer there have been empty marks at most. Where its numbers were ahead of the group's nobody who has
        # the group's slots has taken one: it is of a slot ahead of its own clock there. So it need not go on from them.
        self._drop_all()
        first, after = grid.smax(now), self._used
        if first <= after:
            # Our numbers are ahead. Let the others' leave some out if waiting for them would take long.
            if grid.start_of(after + 1) > grid.start_of(first) + _patience_ns(grid):
                first = max(first, grid.last.first_slot + 1)
                ahead = self.grid.slot_of(grid.start_of(first) + grid.gamma_ns) + 2
                grid = grid.renumbered(first, max(ahead, after + 1))
                first = grid.last.first_slot
            else:
                first = after + 1
        self.change.forget()
        self._agree(grid)
        for member, joins in self._joins.waiting.items():
            self._lives[member] = joins[-1][1]
        self._joins, self._failed = Joins(), []
        self._heard = dict.fromkeys(self._heard, 0)
        self._final_slots.clear()
        self._since.clear()
        self.mode = Mode.DET_RATE
        self._ask_in(now, first)

    @abstractmethod
    def _deliver_all(self) -> None:
        """Deliver whatever has come, slot by slot, and wait for nothing; `_deliver_slot` is behind it then."""

    @abstractmethod
    def _drop_all(self) -> None:
        """Drop whatever has come."""

    def _tell_newcomers(self, now: int, wished_in: int) -> None:
        """Who began after the wish for a change was sent has not delivered it: say what slots will be."""
        for peer in self._policy.view.members:
            first = self._joins.first_slot(peer)
            if (first is not None or self._since.get(peer, 0) > wished_in) and peer != self._policy.member:
                self._say_join(now, JoinStep.ANSWER, self._present_from(now), to=peer)

    # -- wrong clocks ------------------------------------------------------------------------------------------

    def clock_differs(self, now: int, found: Differs) -> None:
        """A clock is off by more than Γ: its member may not see that by itself, so it is told."""
        peer = found.peer
        if self.mode is not Mode.LEFT and self._fence(now, peer, found.life, found.off_ns):
            self._say_join(now, JoinStep.FENCED, self._present_from(now), to=peer)

    def _fence(self, now: int, peer: int, life: int, off_ns: int) -> bool:
        """A clock that is off by more than Γ: its member is left out until it comes back in another life.

        Whether this is new.
        """
        if self._fenced.get(peer, -1) >= life:
            return False
        self._fenced[peer] = life
        self.events.append(ClockViolation.of(peer, off_ns, self.grid.gamma_ns, "it is left out"))
        if peer in self.view.members and self._lives.get(peer, life) == life:
            self._failed.append(peer)
        self._joins.cancel(peer, life)
        fenced = sum(self._lives.get(member, its) <= its for member, its in self._fenced.items())
        if fenced >= 2 and 2 * fenced > len(self._policy.view.members) - 1:
            bound = duration_text(self.grid.gamma_ns)
            text = f"most members' clocks differ from ours by more than Γ = {bound}: ours is wrong, and we leave"
            self.events.append(Violation(ViolationKind.OWN_CLOCK, text, self._policy.member))
            for other in self._policy.neighbours:
                self._say_join(now, JoinStep.FENCED, self._present_from(now), to=other)
            self._depart(self._deliver_slot - 1)
        return True
