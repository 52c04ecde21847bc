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
from unisono.model.slot_schedule import Segment, SlotGrid
from unisono.model.views import View
from unisono.net.clock_check import ClockDifference
from unisono.orders.formation import RateExchange
from unisono.orders.modes import Mode
from unisono.orders.vbr.expected_joins import PendingJoins
from unisono.orders.vbr.order import Vbr
from unisono.wire.control import Join, JoinStep, decode_join, encode_join
from unisono.wire.frame import Frame, Kind

MAX_CHANGE_AHEAD_NS = 3600 * NS_PER_S
"""Nobody agrees on a change that is further ahead than this."""


def _max_wait_for_numbers_ns(grid: SlotGrid) -> int:
    """How long a member whose numbers are ahead waits for the others' rather than have them leave some out."""
    return 2 * (grid.delta_ns + grid.gamma_ns) + 4 * grid.last_segment.theta_ns


class VbrJoins(Vbr):
    """The part of the automaton that knows who takes part, since when, and in which life."""

    def __init__(self, policy: Policy, reserver: Reserver) -> None:
        super().__init__(policy, reserver)
        self.exchange = RateExchange(policy, allow_restarts=True)
        self.exchange.down = self.down
        self._first_slot = 0
        self._incarnations: dict[int, int] = {policy.member: policy.incarnation}
        """The incarnation in which each member takes part; absent where none has been heard."""
        self._pending_joins = PendingJoins()
        self._merge_requested_until: dict[int, int] = {}
        """Members asked for a merge, and the clock reading before which they are not asked again."""
        self._answered_request_ns: dict[int, int] = {}
        """When, by its clock, the request was sent that a member was last answered: copies of it are not."""
        self._latest_slot_heard = dict.fromkeys(policy.view.members, 0)
        """The latest slot in which a member sent anything that has come: control frames break a row of losses too."""
        self._failed: list[int] = []
        self._fenced: dict[int, int] = {}
        """Members whose clock cannot be relied on, in the incarnation that showed it."""
        self._member_since_slot: dict[int, int] = {}
        """From which slot on each member takes part here; absent where it did from our first one."""
        self._slots_confirmed_at_ns: int | None = None
        """While it is ahead somebody may still answer our JOIN that slots are others than we think."""
        self._last_slot_used = 0
        """The last number that we have gone by in slots that were given up since."""

    def _record_slot_heard(self, sender: int, slot: int) -> None:
        self._latest_slot_heard[sender] = max(self._latest_slot_heard[sender], slot)

    def _start_deliver(self, now: int) -> None:
        """Begin at the slot that our JOIN named, expecting everybody; nobody is waited for beyond that slot."""
        if self.mode is not Mode.DET_RATE or now < self.grid.start_of(self._first_slot):
            return
        for member in self._policy.view.members:
            self._record_slot_heard(member, self._first_slot - 1)
        self._begin_delivery(now, self._first_slot)

    def _send_join(self, now: int, step: JoinStep, slot: int, to: int = 0, answered_request_ns: int = 0) -> None:
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
                self._incarnations.get(to, 0),
                timing.changes,
                timing.segments,
                self.setting_requests.snapshot(),
            )
        )
        me, life, epoch, present = policy.member, policy.incarnation, policy.epoch, timing.slot_of(now)
        frame = Frame(Kind.JOIN, me, life, epoch, present, 0, 0, rate.burst, answered_request_ns, now, None, body, to)
        self.down.extend([frame] * policy.copies)

    def _request_merge(self, now: int, peer: int) -> None:
        """We hear somebody who is not in our list: ask, once until the answer must be here (erratum 000-27)."""
        if now < self._merge_requested_until.get(peer, 0):
            return
        slot = self._own_expected_slot(now)
        self._merge_requested_until[peer] = self.grid.start_of(self.grid.smax(now)) + self.grid.delta_ns
        self._send_join(now, JoinStep.MERGE, slot, to=peer)

    def _on_join(self, now: int, frame: Frame) -> None:
        join, peer, timing = decode_join(bytes(frame.body)), frame.sender, self.grid
        if join is None or self.mode in {Mode.GET_RATE, Mode.LEFT} or frame.epoch != self._policy.epoch:
            return
        if (join.delta_ns, join.gamma_ns) != (timing.delta_ns, timing.gamma_ns):
            return  # its HELLO says what differs
        if not join.slot_changes and not timing.changes and join.theta_ns != self._policy.timing.theta_ns:
            return
        if join.receiver_incarnation > self._policy.incarnation:
            self._superseded(peer)
            return
        if join.step is JoinStep.FENCED:
            if join.receiver_incarnation in {0, self._policy.incarnation}:
                self._fence(now, peer, frame.incarnation, 0)
            return
        self._on_setting_requests(join.setting_requests)
        asked_ns = frame.first_sequence
        if join.step is JoinStep.ANSWER and frame.sent_ns + timing.gamma_ns < asked_ns <= now:
            # It was sent after we asked, and by its sender's clock more than Γ before.
            self._fence(now, peer, frame.incarnation, frame.sent_ns - asked_ns)
        if self._fenced.get(peer) == frame.incarnation:
            self._answer_join(now, frame, join)
        elif self._reconcile(now, frame, join):
            self._answer_join(now, frame, join)
            if join.step is JoinStep.JOIN:
                # It begins there and nowhere else, also if it had named another slot before it knew what slots are.
                self._pending_joins.cancel(peer, frame.incarnation)
            self._expect(now, peer, frame.incarnation, join.slot)

    def _answer_join(self, now: int, frame: Frame, join: Join) -> None:
        """Say where we begin, once per request, to who asks or cannot know."""
        if join.step is JoinStep.MERGE:
            slot = self._own_expected_slot(now)
        elif join.step is JoinStep.JOIN and self.mode is Mode.DET_RATE and join.slot < self._first_slot:
            # It begins before us and may have come up after our JOIN had passed it (000-25).
            slot = self._first_slot
        else:
            return
        self._answer_once(now, frame, slot)

    def _answer_once(self, now: int, frame: Frame, slot: int) -> None:
        if self._answered_request_ns.get(frame.sender) != frame.sent_ns:
            self._answered_request_ns[frame.sender] = frame.sent_ns
            self._send_join(now, JoinStep.ANSWER, slot, to=frame.sender, answered_request_ns=frame.sent_ns)

    def _own_expected_slot(self, now: int) -> int:
        """The slot from which on somebody that hears of us now may expect us."""
        return max(self.grid.smax(now), self._first_slot)

    def _expect(self, now: int, peer: int, incarnation: int, slot: int) -> None:
        """Record that a peer is to be added at the slot that it names."""
        known = self._incarnations.get(peer, -1)
        if incarnation < known or self._pending_joins.latest_incarnation(peer) >= incarnation:
            return
        if slot > self.grid.smax(now + self.grid.gamma_ns + _max_wait_for_numbers_ns(self.grid)):
            self.ignored["join at an absurd slot"] += 1
            return
        listed = peer in self.view.members and peer not in self._failed
        if slot <= self._first_slot and (self.mode is Mode.DET_RATE or (listed and known < 0)):
            # We expect everybody in our first slot; who joins later than that is added in its turn.
            self._incarnations[peer] = incarnation
            return
        if listed and known == incarnation and slot <= self._deliver_slot:
            return
        # Of one that is listed we note the slot all the same: it may have stood still, and be missing until then.
        added = max(slot, self._deliver_slot + 1)
        if added > slot:
            text = f"member {peer} asked to be added at slot {slot}, which is past: it is added at {added}"
            if self._throttle.first_in_a_while(now, ("join", peer)):
                self.events.append(Violation(ViolationKind.LATE_JOIN, text, peer, added))
        self._pending_joins.add(peer, added, incarnation)

    def _superseded(self, peer: int) -> None:
        text = f"member {peer} knows a later member {self._policy.member}: another process uses this number"
        self.events.append(Violation(ViolationKind.NUMBER_TAKEN, text, self._policy.member))
        self._depart(self._deliver_slot - 1)

    # -- slots that differ -----------------------------------------------------------------------------------

    def submit(self, now: int, messages: Sequence[bytes]) -> int:
        """Nothing is taken before we know that our slots are the group's, or that nobody is there to say otherwise."""
        return super().submit(now, messages) if self._are_slots_confirmed(now) else 0

    def _join_at(self, now: int, first_slot: int) -> None:
        """Name our first slot, and be told by then or soon after if slots are others by now.

        Who has our JOIN tells us of later changes too, in time. So an answer may come up to 2Δ+2Γ after it, and until
        then our slots may be nobody's: we send marks in them, since others may count on these, and nothing else; we
        deliver nothing, and say nothing to the application. What is sent in our first slot is due Δ+2Γ+Θ after that
        slot's begin, which is later.
        """
        self._first_slot = first_slot
        self._slots_confirmed_at_ns = now + 2 * (self.grid.delta_ns + self.grid.gamma_ns)
        self._send_join(now, JoinStep.JOIN, first_slot)

    def _are_slots_confirmed(self, now: int) -> bool:
        if (
            self._slots_confirmed_at_ns is not None
            and self.mode is Mode.DELIVER_MESSAGES
            and now >= self._slots_confirmed_at_ns
        ):
            self._slots_confirmed_at_ns = None
            super()._report_view()
        return self._slots_confirmed_at_ns is None

    def _report_view(self) -> None:
        if self._slots_confirmed_at_ns is None:
            super()._report_view()

    def _deliver_ready_slots(self, now: int) -> None:
        if self._are_slots_confirmed(now):
            super()._deliver_ready_slots(now)

    def _reconcile(self, now: int, frame: Frame, join: Join) -> bool:
        """Whether a JOIN speaks of slots as they are here, if need be after we have taken them over."""
        ours = self.grid
        segments = join.segments or (Segment(0, 0, join.theta_ns),)
        theirs = SlotGrid(ours.delta_ns, ours.gamma_ns, segments, join.slot_changes)
        if theirs.last_segment.start_ns > now + MAX_CHANGE_AHEAD_NS:
            self.ignored["slots that change in the far future"] += 1
            return False
        if theirs.has_same_slots(ours):
            return True
        if not theirs.prevails_over(ours, now):
            self._answer_once(now, frame, self._own_expected_slot(now))
            # Up to where the two part, a slot that it names is the one that we know.
            until = ours.first_difference(theirs)
            return until is not None and join.slot <= until
        if self._policy.member in self._final_slots:
            return False  # we are on our way out
        self._switch_schedule(now, theirs)
        return True

    def _switch_schedule(self, now: int, grid: SlotGrid) -> None:
        """Slots are others than we thought: go on with them, if we can; else join again."""
        running, until = self.mode is Mode.DELIVER_MESSAGES, grid.first_difference(self.grid)
        if until is not None and (self._send_slot < until if running else self._first_slot <= until):
            self._adopt_schedule(grid)
            return
        self._rejoin(now, grid, f"that slots are {duration_text(grid.last_segment.theta_ns)} long now")

    def _rejoin_if_settings_missed(self, now: int) -> None:
        """Who has missed a change of settings was cut off when everybody made it: it is no part of that, so it leaves
        and comes back."""
        if not self.setting_requests.missed:
            return
        demand = self.setting_requests.missed[-1]
        self.setting_requests.missed.clear()
        if self.mode is Mode.DELIVER_MESSAGES and self._policy.member not in self._final_slots:
            self._rejoin(now, self.grid, f"what member {demand.member} has demanded since slot {demand.origin_slot}")

    def _rejoin(self, now: int, grid: SlotGrid, missed: str) -> None:
        """Deliver what is here, and begin anew at a slot that we have not been in."""
        if self.mode is Mode.DELIVER_MESSAGES and self._slots_confirmed_at_ns is None:
            if self._index or self._sequence:
                # Who has neither sent nor delivered anything has missed nothing.
                text = f"this member had missed {missed}; it joins again, with a gap until then"
                self.events.append(Violation(ViolationKind.SLOTS, text, self._policy.member, self._deliver_slot))
            self._deliver_all()
            others = tuple(member for member in self.view.members if member != self._policy.member)
            self._reported_members = (self._policy.member,)
            self.view = View(self._reported_members, self._deliver_slot)
            self.events.append(ViewChange(self.view, left=others))
            self._last_slot_used = max(self._send_slot, self._deliver_slot - 1)
        # Of a newcomer there have been empty marks at most. Where its numbers were ahead of the group's nobody who has
        # the group's slots has taken one: it is of a slot ahead of its own clock there. So it need not go on from them.
        self._drop_all()
        first, after = grid.smax(now), self._last_slot_used
        if first <= after:
            # Our numbers are ahead. Let the others' leave some out if waiting for them would take long.
            if grid.start_of(after + 1) > grid.start_of(first) + _max_wait_for_numbers_ns(grid):
                first = max(first, grid.last_segment.first_slot + 1)
                ahead = self.grid.slot_of(grid.start_of(first) + grid.gamma_ns) + 2
                grid = grid.renumbered(first, max(ahead, after + 1))
                first = grid.last_segment.first_slot
            else:
                first = after + 1
        self.slot_change.discard_requests()
        self._adopt_schedule(grid)
        for member, joins in self._pending_joins.pending.items():
            self._incarnations[member] = joins[-1][1]
        self._pending_joins, self._failed = PendingJoins(), []
        self._latest_slot_heard = dict.fromkeys(self._latest_slot_heard, 0)
        self._final_slots.clear()
        self._member_since_slot.clear()
        self.mode = Mode.DET_RATE
        self._join_at(now, first)

    @abstractmethod
    def _deliver_all(self) -> None:
        """Deliver whatever has come, slot by slot, and wait for nothing; `_deliver_slot` is behind it then."""

    @abstractmethod
    def _drop_all(self) -> None:
        """Drop whatever has come."""

    def _send_schedule_to_newcomers(self, now: int, requested_in: int) -> None:
        """Who began after the wish for a change was sent has not delivered it: say what slots will be."""
        for peer in self._policy.view.members:
            first = self._pending_joins.first_slot(peer)
            if (
                first is not None or self._member_since_slot.get(peer, 0) > requested_in
            ) and peer != self._policy.member:
                self._send_join(now, JoinStep.ANSWER, self._own_expected_slot(now), to=peer)

    # -- wrong clocks ------------------------------------------------------------------------------------------

    def on_clock_difference(self, now: int, difference: ClockDifference) -> None:
        """A clock is off by more than Γ: its member may not see that by itself, so it is told."""
        peer = difference.peer
        if self.mode is not Mode.LEFT and self._fence(now, peer, difference.incarnation, difference.difference_ns):
            self._send_join(now, JoinStep.FENCED, self._own_expected_slot(now), to=peer)

    def _fence(self, now: int, peer: int, incarnation: int, difference_ns: int) -> bool:
        """A clock that is off by more than Γ: its member is left out until it comes back in another life.

        Whether this is new.
        """
        if self._fenced.get(peer, -1) >= incarnation:
            return False
        self._fenced[peer] = incarnation
        self.events.append(ClockViolation.of(peer, difference_ns, self.grid.gamma_ns, "it is left out"))
        if peer in self.view.members and self._incarnations.get(peer, incarnation) == incarnation:
            self._failed.append(peer)
        self._pending_joins.cancel(peer, incarnation)
        fenced = sum(self._incarnations.get(member, its) <= its for member, its in self._fenced.items())
        if fenced >= 2 and 2 * fenced > len(self._policy.view.members) - 1:
            bound = duration_text(self.grid.gamma_ns)
            text = f"most members' clocks differ from ours by more than Γ = {bound}: ours is wrong, and we leave"
            self.events.append(Violation(ViolationKind.OWN_CLOCK, text, self._policy.member))
            for other in self._policy.neighbours:
                self._send_join(now, JoinStep.FENCED, self._own_expected_slot(now), to=other)
            self._depart(self._deliver_slot - 1)
        return True
