"""VBR total order with failures, joins, loss and merges (paper 000 §6 and §7, errata 000-24 to 000-28).

As in `order`, the slot, the sender and the number within the slot decide the position of a message, and every member
delivers in that order. So no two members ever deliver two messages in different orders, whichever members crash, join,
leave or lose contact. The difference is that no member waits beyond Δ+Γ after a slot's end. A sender that has not ended
the slot by then times out, and the rest of its slot is a gap (paper 000, Definition 2). A membership change blocks
nothing, and latency is at most Δ+2Γ+Θ (paper 000, Theorem 5).

Joining (§6.3): a member names, by its clock, a first slot before which every member has its JOIN. In that slot it
expects all members, and the time-out removes the absent ones. Merging (§6.6): a member that receives frames of a member
outside its view asks for a merge. Each of the two adds the other at the slot that the other one names. Membership needs
no agreement.

Different schedules: every JOIN carries its sender's slot schedule. Where two members differ, the schedule that has
changed more often prevails. A member that learns of a change before it takes effect adopts it; a member that learns of
it later joins again. Slot numbers are never used twice: they continue from the higher of both schedules, and may skip
some.

Wrong clocks: a member whose clock is off by more than Γ is fenced: the others leave it out until it restarts.

Names: `_first_slot` is our own first slot, `_incarnations` the incarnation in which each member takes part, `_failed`
the members to remove from the next view.
"""

from __future__ import annotations

from unisono.model.events import ClockViolation, SlotSkipped, View, ViewChange, Violation, ViolationKind
from unisono.model.policy import Policy
from unisono.model.timing import Segment, SlotGrid, Timing
from unisono.model.units import NS_PER_S, Reserver, duration_text
from unisono.net.clock_check import ClockDifference
from unisono.orders.contract import ACCEPTED_INPUTS, Input, Mode
from unisono.orders.packing import Rqueue, SlotFrames
from unisono.orders.vbr.missing import MissingMessages
from unisono.orders.vbr.order import VbrOrder
from unisono.wire.codec import control_frame, message_in
from unisono.wire.control import Join, JoinStep
from unisono.wire.frame import END_OF_SLOT, SLOTS_MAY_DIFFER, Frame, Kind

TIMEOUTS_BEFORE_REPORT = 3
"""Report a member as unsteady after this many consecutive time-outs of it."""
CONSECUTIVE_WITHIN_BOUNDS = 10
"""Two time-outs of a member count as consecutive if they are at most this many times the latency bound apart."""
MAX_CHANGE_AHEAD_NS = 3600 * NS_PER_S
"""Ignore a JOIN whose slot schedule changes further in the future than this: no group agrees on such a change."""


def latency_bound_ns(timing: Timing) -> int:
    """The latency bound of VBR with failures: Δ+2Γ+Θ (paper 000, Theorem 5)."""
    return timing.delta_ns + 2 * timing.gamma_ns + timing.theta_ns


def _max_wait_for_numbers_ns(grid: SlotGrid) -> int:
    """How long a member that rejoins waits at most until the group reaches slot numbers that it has not used.

    If that would take longer, the member makes the group skip numbers instead.
    """
    return 2 * (grid.delta_ns + grid.gamma_ns) + 4 * grid.last_segment.theta_ns


class PendingJoins:
    """The joins to come, by member: from which slot on, and in which incarnation (paper 000 §6.3).

    A member may join, leave and return before the others have delivered the slot of its first join, since they deliver
    a slot up to Δ+Γ after its end. So several of its incarnations may be pending. If two name the same slot, the later
    one counts. Members refuse slots that are too far ahead of their clock, so few joins are pending at a time.
    """

    def __init__(self) -> None:
        self.pending: dict[int, list[tuple[int, int]]] = {}
        """By member, its joins to come as (slot, incarnation) pairs, ascending in both."""

    def add(self, member: int, slot: int, incarnation: int) -> None:
        """Add a member at `slot`; its earlier incarnations that would begin at `slot` or later never begin."""
        self.pending[member] = [join for join in self.pending.get(member, ()) if join[0] < slot] + [(slot, incarnation)]

    def latest_incarnation(self, member: int) -> int:
        """The latest incarnation of a member that waits for its first slot in the view; -1 if none waits."""
        return self.pending[member][-1][1] if member in self.pending else -1

    def incarnation_at(self, member: int, slot: int) -> int | None:
        """The pending incarnation that takes part in `slot`; None if no pending join begins by then."""
        return next((inc for first, inc in reversed(self.pending.get(member, ())) if first <= slot), None)

    def first_slot(self, member: int) -> int | None:
        """The slot of the first pending join of a member; None if no join is pending."""
        return self.pending[member][0][0] if member in self.pending else None

    def pop_due(self, slot: int) -> dict[int, int]:
        """Remove and return the joins that take effect by `slot`: the incarnation by member."""
        due = {
            member: incarnation
            for member in sorted(self.pending)
            if (incarnation := self.incarnation_at(member, slot)) is not None
        }
        for member in due:
            self._set_pending(member, [join for join in self.pending[member] if join[0] > slot])
        return due

    def cancel(self, member: int, incarnation: int) -> None:
        """Remove the pending joins of one incarnation of a member."""
        self._set_pending(member, [join for join in self.pending.get(member, ()) if join[1] != incarnation])

    def _set_pending(self, member: int, joins: list[tuple[int, int]]) -> None:
        self.pending.pop(member, None)
        if joins:
            self.pending[member] = joins


class VbrGaps(VbrOrder):
    """One member's automaton of the order `vbr`, for a group whose members may fail."""

    gap_free = False  # a crash may leave gaps (Definition 2)
    keeps_sending_to_departed = True  # a member that timed out may return, and needs our frames for that
    gap_stable_places = True

    def __init__(self, policy: Policy, reserver: Reserver) -> None:
        super().__init__(policy, reserver)
        # Membership.
        self._first_slot = 0
        self._incarnations: dict[int, int] = {policy.member: policy.incarnation}
        """The incarnation in which each member takes part; no entry for a member not heard of yet."""
        self._member_since_slot: dict[int, int] = {}
        """The slot from which on each member takes part; no entry for a member present since our first slot."""
        self._pending_joins = PendingJoins()
        self._merge_requested_until: dict[int, int] = {}
        """The clock reading before which each member is not asked for a merge again."""
        self._answered_request_ns: dict[int, int] = {}
        """By peer, when it sent the JOIN that we answered last, by its clock. Copies of that JOIN get no answer."""
        self._fenced: dict[int, int] = {}
        """By fenced member, the incarnation in which its clock was off by more than Γ."""
        # Schedule.
        self._slots_confirmed_at_ns: int | None = None
        """Until this clock reading, an answer to our JOIN may change our slot schedule; None if none can."""
        self._join_sent_ns = 0
        """The clock reading at which this member sent the JOIN that named its first slot."""
        self._last_slot_used = 0
        """The last slot that this member used in a slot schedule that it has given up."""
        # Time-outs.
        self._failed: list[int] = []
        self._last_wake_at = 0
        """The clock reading at the last `wake`. Only `wake` times members out: received frames are read before it."""
        self._latest_slot_heard = dict.fromkeys(policy.view.members, 0)
        """By member, the latest slot in which it sent a frame that has arrived; control messages count too."""
        self._latest_data_slot = dict.fromkeys(policy.view.members, 0)
        """By member, the latest slot of its received data. By FIFO order no data of earlier slots follows (000 §7)."""
        self._missing = MissingMessages()
        self._timeout_streaks: dict[int, tuple[int, int, int]] = {}
        """By member: its consecutive time-outs, its incarnation, and the start of the slot that timed out last."""

    # -- inputs ----------------------------------------------------------------------------------------------

    def from_below(self, now: int, frame: Frame) -> None:
        """Process a frame that has arrived: a HELLO, a JOIN, or messages."""
        if self.mode is Mode.LEFT:
            return
        sender, ahead_ns, gamma_ns = frame.sender, frame.sent_ns - now, self.grid.gamma_ns
        # A frame cannot arrive before it was sent, so its sender's clock is at least this far ahead of ours. The
        # sender cannot see that by itself, so the answer tells it.
        if ahead_ns > gamma_ns and self._fence(now, sender, frame.incarnation, ahead_ns):
            self._send_join(now, JoinStep.ANSWER, self.grid.smax(now), to=sender, answered_request_ns=frame.sent_ns)
        if frame.kind is Kind.DATA:
            if self._slots_confirmed_at_ns is not None and self._confirms_slots(frame):
                self._slots_confirmed_at_ns = min(self._slots_confirmed_at_ns, now)
            if Input.DATA in ACCEPTED_INPUTS[self.mode] and self._is_deliverable(now, frame):
                if not self._rqueues[sender].add(frame):
                    self.ignored["duplicate"] += 1
                    return
                self._on_new_data(now, sender, frame.slot)
        else:
            if ahead_ns <= gamma_ns and frame.incarnation >= self._incarnations.get(sender, 0):
                self._record_slot_heard(sender, self.grid.slot_of(frame.sent_ns))
            if frame.kind is Kind.JOIN:
                self._on_join(now, frame)
            elif frame.kind is Kind.HELLO:
                self._on_hello(now, frame)
            else:
                self.ignored["kind of another order"] += 1
        if self.schedule.setting_requests.missed:
            self._rejoin_if_settings_missed(now)

    def _on_new_data(self, now: int, sender: int, slot: int) -> None:
        if slot > self._latest_data_slot[sender]:
            self._latest_data_slot[sender] = slot
            self._record_slot_heard(sender, slot)
        if slot == self._deliver_slot or self._policy.loss_burst:
            members = self.view.members
            # Only a timer times members out, so a frame of another sender does not help the one we wait for.
            if self._current == len(members) or sender == members[self._current]:
                self._deliver_ready_slots(now)

    def wake(self, now: int) -> None:
        """Do what is due at `now`: join, end slots, deliver, and time out members."""
        self._last_wake_at = now
        if self.mode is Mode.LEFT:
            return
        if self.mode is Mode.GET_RATE:
            self.mode = Mode.DET_RATE
            self._join_at(now, self.grid.smax(now))
        self.exchange.wake(now)
        self._start_deliver(now)
        if self.mode is Mode.DELIVER_MESSAGES:
            self._catch_up(now)
        if self.schedule.setting_requests.missed:
            self._rejoin_if_settings_missed(now)

    def wake_at(self) -> int | None:
        """When `wake` is due next; None after this member has left.

        It is the earliest of: the next HELLO, the start of our first slot, the end of the slot being sent, and the
        time-out of the slot being delivered. If every member has ended the slot being delivered, its end counts instead
        of its time-out.
        """
        grid = self.grid
        if self.mode is Mode.GET_RATE:
            return 0
        if self.mode is Mode.LEFT:
            return None
        if self.mode is Mode.DET_RATE:
            at = grid.start_of(self._first_slot)
        else:
            all_ended = self._current == len(self.view.members)
            at = grid.end_of(self._deliver_slot) if all_ended else self._late_at()
            if self._slots_confirmed_at_ns is not None:
                at = self._slots_confirmed_at_ns
            if self._policy.member not in self._final_slots:
                at = min(at, grid.end_of(self._send_slot))
        due = self.exchange.next_hello_at
        return at if due is None else min(due, at)

    def on_clock_difference(self, now: int, difference: ClockDifference) -> None:
        """Fence a peer whose clock is off by more than Γ, and inform it, since it may not notice that by itself."""
        peer = difference.peer
        if self.mode is not Mode.LEFT and self._fence(now, peer, difference.incarnation, difference.difference_ns):
            self._send_join(now, JoinStep.FENCED, self._own_expected_slot(now), to=peer)

    # -- receiving -------------------------------------------------------------------------------------------

    def _is_deliverable(self, now: int, frame: Frame) -> bool:
        """Whether a frame comes from the present incarnation of a member, and its slot is not delivered yet."""
        sender, slot, incarnation = frame.sender, frame.slot, frame.incarnation
        # Fast path for nearly every frame: its sender is in the view and neither joins nor leaves.
        if (
            sender in self.view.members
            and sender in self._incarnations
            and self._incarnations[sender] == incarnation
            and sender not in self._pending_joins.pending
            and sender not in self._fenced
            and sender not in self._final_slots
            and slot >= self._deliver_slot >= self._first_slot
            and frame.epoch == self._policy.epoch
            and slot <= self.grid.slot_of(frame.sent_ns)
        ):
            return True
        if frame.epoch != self._policy.epoch or self._fenced.get(sender) == incarnation:
            self.ignored["another epoch, or fenced"] += 1
            return False
        if slot > self.grid.slot_of(frame.sent_ns):
            # Its sender has another schedule, or the frame makes no sense: ask.
            self.ignored["slot ahead of its own clock"] += 1
            self._request_merge(now, sender)
            return False
        if slot < self._first_slot:
            # It may be of an incarnation that has ended, which must not be taken for the present one.
            self.ignored["slot before our first one"] += 1
            return False
        known = self._pending_joins.incarnation_at(sender, slot)
        joins = known is not None
        if not joins and (self.mode is Mode.DET_RATE or sender in self.view.members):
            known = self._incarnations.setdefault(sender, incarnation)
        if known != incarnation:
            self.ignored["not in the list, or another incarnation"] += 1
            if sender not in self._pending_joins.pending and self.mode is Mode.DELIVER_MESSAGES:
                self._request_merge(now, sender)
            return False
        if slot < self._deliver_slot or (not joins and slot > self._final_slots.get(sender, slot)):
            self.ignored["slot already delivered"] += 1
            return False
        return True

    def _record_slot_heard(self, sender: int, slot: int) -> None:
        self._latest_slot_heard[sender] = max(self._latest_slot_heard[sender], slot)

    # -- joining and merging ---------------------------------------------------------------------------------

    def _join_at(self, now: int, first_slot: int) -> None:
        """Send a JOIN for `first_slot`, and learn from the answers if the group has another schedule.

        A member that has our JOIN also tells us of later changes in time. So an answer may come up to 2Δ+2Γ after the
        JOIN, and until then our slots may be wrong: the members that know the group's slots may be silent for all that
        time, since their slots may be longer than ours. We send empty marks in our slots, since others may count on
        these, but accept no messages, deliver nothing and report nothing. Messages of our first slot are due Δ+2Γ+Θ
        after that slot begins, which is later.

        If the slots never changed, a running member's mark says so (`_confirms_slots`). It arrives at most Δ+Γ+Θ after
        the JOIN, and our first slot begins by then too. So a joiner accepts messages when the paper promises it (000
        §6.3), unless no running member can confirm the slots.
        """
        self._first_slot, self._join_sent_ns = first_slot, now
        self._slots_confirmed_at_ns = now + 2 * (self.grid.delta_ns + self.grid.gamma_ns)
        self._send_join(now, JoinStep.JOIN, first_slot)

    def _confirms_slots(self, frame: Frame) -> bool:
        """Whether a mark shows that no answer to our JOIN changes our slots while such answers may arrive.

        Its sender knew of no change at clock reading c = `sent_ns`. A member knows of a change Δ+Γ after the end of the
        slot that carried the request, and the change takes effect 2Δ+2Γ later (`slots.effective_slot`), so after
        c+2Δ+2Γ. If c is not before our JOIN, the answer to the JOIN has arrived by then.

        A mark that leaves later than one slot after its slot comes from a member that stood still, and may lack news.
        """
        grid, flags = self.grid, frame.flags & (END_OF_SLOT | SLOTS_MAY_DIFFER)
        return (
            flags == END_OF_SLOT
            and not grid.changes
            and frame.sent_ns >= self._join_sent_ns
            and grid.slot_of(frame.sent_ns) - frame.slot in {0, 1}
            and frame.epoch == self._policy.epoch
            and self._fenced.get(frame.sender) != frame.incarnation
        )

    def _start_deliver(self, now: int) -> None:
        """Start delivery at the slot that our JOIN named, expecting all members; absent ones time out in that slot."""
        if self.mode is not Mode.DET_RATE or now < self.grid.start_of(self._first_slot):
            return
        for member in self._policy.view.members:
            self._record_slot_heard(member, self._first_slot - 1)
        self._begin_delivery(now, self._first_slot, report_view=self._slots_confirmed_at_ns is None)

    def _send_join(self, now: int, step: JoinStep, slot: int, to: int = 0, answered_request_ns: int = 0) -> None:
        """Send a JOIN that names the slot from which on peers may expect us.

        It is sent in as many copies as needed for one to arrive (paper 000 §7).

        The frame's sequence number, otherwise unused in a JOIN, carries the clock reading of the request answered.
        """
        policy, grid, rate = self._policy, self.grid, self.schedule.pacer.rate
        join = Join(
            policy.timing.theta_ns,
            grid.delta_ns,
            grid.gamma_ns,
            slot,
            rate.avg,
            rate.burst,
            rate.bytes_per_slot(policy.max_message),
            step,
            self._incarnations.get(to, 0),
            grid.changes,
            grid.segments,
            self.schedule.setting_requests.snapshot(),
        )
        frame = control_frame(
            join,
            policy.member,
            policy.incarnation,
            policy.epoch,
            slot=grid.slot_of(now),
            burst=rate.burst,
            first_sequence=answered_request_ns,
            sent_ns=now,
            to=to,
        )
        self.down.extend([frame] * policy.copies)

    def _request_merge(self, now: int, peer: int) -> None:
        """Ask a peer outside our view for a merge, unless an answer to an earlier request may still arrive (000-27)."""
        if now < self._merge_requested_until.get(peer, 0):
            return
        slot = self._own_expected_slot(now)
        self._merge_requested_until[peer] = self.grid.start_of(self.grid.smax(now)) + self.grid.delta_ns
        self._send_join(now, JoinStep.MERGE, slot, to=peer)

    def _on_join(self, now: int, frame: Frame) -> None:
        join, peer, grid = message_in(frame, Join), frame.sender, self.grid
        if self.mode in {Mode.GET_RATE, Mode.LEFT} or frame.epoch != self._policy.epoch:
            return
        if (join.delta_ns, join.gamma_ns) != (grid.delta_ns, grid.gamma_ns):
            return  # the plan exchange reports the difference
        if not join.slot_changes and not grid.changes and join.theta_ns != self._policy.timing.theta_ns:
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
        if join.step is JoinStep.ANSWER and frame.sent_ns + grid.gamma_ns < asked_ns <= now:
            # The answer was sent after our request, but by its sender's clock more than Γ before it.
            self._fence(now, peer, frame.incarnation, frame.sent_ns - asked_ns)
        if self._fenced.get(peer) == frame.incarnation:
            self._answer_join(now, frame, join)
        elif self._reconcile(now, frame, join):
            self._answer_join(now, frame, join)
            if join.step is JoinStep.JOIN:
                # A JOIN replaces the slot that its sender may have named before it knew the group's schedule.
                self._pending_joins.cancel(peer, frame.incarnation)
            self._expect(now, peer, frame.incarnation, join.slot)

    def _answer_join(self, now: int, frame: Frame, join: Join) -> None:
        """Answer a JOIN with our own first slot, if the peer asks for that slot or cannot know it."""
        if join.step is JoinStep.MERGE:
            slot = self._own_expected_slot(now)
        elif join.step is JoinStep.JOIN and self.mode is Mode.DET_RATE and join.slot < self._first_slot:
            # It begins before us, and may have started after our JOIN had reached its address (000-25).
            slot = self._first_slot
        else:
            return
        self._answer_once(now, frame, slot)

    def _answer_once(self, now: int, frame: Frame, slot: int) -> None:
        if self._answered_request_ns.get(frame.sender) != frame.sent_ns:
            self._answered_request_ns[frame.sender] = frame.sent_ns
            self._send_join(now, JoinStep.ANSWER, slot, to=frame.sender, answered_request_ns=frame.sent_ns)

    def _own_expected_slot(self, now: int) -> int:
        """The first slot in which a peer that learns of us now may expect us."""
        return max(self.grid.smax(now), self._first_slot)

    def _expect(self, now: int, peer: int, incarnation: int, slot: int) -> None:
        """Record that a peer takes part from the slot that it named on."""
        known = self._incarnations.get(peer, -1)
        if incarnation < known or self._pending_joins.latest_incarnation(peer) >= incarnation:
            return
        if slot > self.grid.smax(now + self.grid.gamma_ns + _max_wait_for_numbers_ns(self.grid)):
            self.ignored["join at an absurd slot"] += 1
            return
        in_view = peer in self.view.members and peer not in self._failed
        if slot <= self._first_slot and (self.mode is Mode.DET_RATE or (in_view and known < 0)):
            # We expect all members in our first slot; only a later join needs to be recorded.
            self._incarnations[peer] = incarnation
            return
        if in_view and known == incarnation and slot <= self._deliver_slot:
            return
        # A peer in the view may have paused and may be missing until this slot, so its join is recorded too.
        added = max(slot, self._deliver_slot + 1)
        if added > slot and self._throttle.first_in_a_while(now, ("join", peer)):
            text = f"member {peer} asked to join at slot {slot}, which is already delivered; it joins at slot {added}"
            self.events.append(Violation(ViolationKind.LATE_JOIN, text, peer, added))
        self._pending_joins.add(peer, added, incarnation)

    def _superseded(self, peer: int) -> None:
        me = self._policy.member
        text = f"member {peer} knows a later incarnation of member {me}: another process uses this member's number"
        self.events.append(Violation(ViolationKind.NUMBER_TAKEN, text, me))
        self._depart(self._deliver_slot - 1)

    # -- schedules that differ -------------------------------------------------------------------------------

    def _reconcile(self, now: int, frame: Frame, join: Join) -> bool:
        """Compare the sender's slot schedule with ours, and adopt it if it prevails.

        Returns whether the slot that the JOIN names is the same slot in our schedule.
        """
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
            # Up to the first difference, the slot that it names is the same in both schedules.
            until = ours.first_difference(theirs)
            return until is not None and join.slot <= until
        if self._policy.member in self._final_slots:
            return False  # we are leaving
        self._switch_schedule(now, theirs)
        return True

    def _switch_schedule(self, now: int, grid: SlotGrid) -> None:
        """Adopt the slot schedule `grid` if it differs from ours only in the future; otherwise join again with it."""
        running, until = self.mode is Mode.DELIVER_MESSAGES, grid.first_difference(self.grid)
        if until is not None and (self._send_slot < until if running else self._first_slot <= until):
            self._adopt_schedule(grid)
            if running:
                self._leave_skipped_slot()
            return
        self._rejoin(now, grid, f"a change of the slot length to {duration_text(grid.last_segment.theta_ns)}")

    def _leave_skipped_slot(self) -> None:
        """If the new schedule skips the number of the slot that we send in next, send in the slot that replaces it.

        After a pause that slot is in the future. It has only messages that were held back, and no frame of it was sent.
        """
        skipped = self._send_slot
        slot = self.grid.slot_of(self.grid.start_of(skipped))
        if slot == skipped:
            return
        if self._undelivered_own_slots and self._undelivered_own_slots[-1] == skipped:
            self._undelivered_own_slots.pop()
        self._open_slot(slot)
        self._spend(*self._packer.held())

    def _rejoin_if_settings_missed(self, now: int) -> None:
        """Join again if this member missed a change of settings, because it was cut off when the others made it."""
        missed = self.schedule.setting_requests.missed
        if not missed:
            return
        request = missed[-1]
        missed.clear()
        if self.mode is Mode.DELIVER_MESSAGES and self._policy.member not in self._final_slots:
            text = f"a settings change that member {request.member} requested in slot {request.origin_slot}"
            self._rejoin(now, self.grid, text)

    def _rejoin(self, now: int, grid: SlotGrid, missed: str) -> None:
        """Deliver all received messages, then join again with the schedule `grid` at a slot that we have not used."""
        if self.mode is Mode.DELIVER_MESSAGES and self._slots_confirmed_at_ns is None:
            self._end_participation(missed)
        # A member whose slots are not confirmed has sent only empty end-of-slot marks. Members with the group's
        # schedule refused those with higher numbers, since they were ahead of their own sender's clock there. So its
        # numbers need not continue from them.
        self._drop_received_frames()
        first, last_used = grid.smax(now), self._last_slot_used
        if first <= last_used:
            # Our numbers are higher. Make the group skip numbers if waiting for it to reach ours would take long.
            if grid.start_of(last_used + 1) > grid.start_of(first) + _max_wait_for_numbers_ns(grid):
                first = max(first, grid.last_segment.first_slot + 1)
                ahead = self.grid.slot_of(grid.start_of(first) + grid.gamma_ns) + 2
                grid = grid.renumbered(first, max(ahead, last_used + 1))
                first = grid.last_segment.first_slot
            else:
                first = last_used + 1
        self.schedule.slot_change.discard_requests()
        self._adopt_schedule(grid)
        for member, joins in self._pending_joins.pending.items():
            self._incarnations[member] = joins[-1][1]
        self._pending_joins, self._failed = PendingJoins(), []
        self._latest_slot_heard = dict.fromkeys(self._latest_slot_heard, 0)
        self._final_slots.clear()
        self._member_since_slot.clear()
        self.mode = Mode.DET_RATE
        self._join_at(now, first)

    def _end_participation(self, missed: str) -> None:
        """Deliver all received messages, and report a view of this member alone until it has joined again."""
        me = self._policy.member
        if self._index or self._sequence:
            # A member that has neither sent nor delivered a message has missed nothing.
            text = f"this member missed {missed}; it joins again, with a gap until then"
            self.events.append(Violation(ViolationKind.SLOTS, text, me, self._deliver_slot))
        self._deliver_received_frames()
        others = tuple(member for member in self.view.members if member != me)
        for member in others:
            self._missing.skip(member, self._deliver_slot)
        self._reported_members = (me,)
        self.view = View(self._reported_members, self._deliver_slot)
        self.events.append(ViewChange(self.view, left=others))
        self._last_slot_used = max(self._send_slot, self._deliver_slot - 1)

    def _deliver_received_frames(self) -> None:
        """Deliver every received frame, slot by slot, without waiting. The slot after the last one is then next."""
        last = max(self._deliver_slot, *(slot for rqueue in self._rqueues.values() for slot in rqueue.slots), 0)
        while self._deliver_slot <= last:
            for sender in self.view.members[self._current :]:
                frames = self._rqueues[sender].slots.pop(self._deliver_slot, None)
                if frames is not None:
                    self._deliver(sender, frames)
                if frames is None or not frames.ended():
                    self._skip_rest(sender, frames)
                self._count = 0
            self._deliver_slot, self._current = self._deliver_slot + 1, 0

    def _drop_received_frames(self) -> None:
        self._rqueues = {member: Rqueue() for member in self._rqueues}
        self._latest_data_slot = dict.fromkeys(self._latest_data_slot, 0)

    # -- wrong clocks ----------------------------------------------------------------------------------------

    def _fence(self, now: int, peer: int, incarnation: int, difference_ns: int) -> bool:
        """Leave out a member whose clock is off by more than Γ, until it restarts. False if it was fenced already.

        If most members' clocks seem wrong, it is our clock that is wrong, and this member leaves.
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
            text = (
                f"most members' clocks differ from ours by more than Γ = {bound}: ours is wrong, so this member leaves"
            )
            self.events.append(Violation(ViolationKind.OWN_CLOCK, text, self._policy.member))
            for other in self._policy.neighbours:
                self._send_join(now, JoinStep.FENCED, self._own_expected_slot(now), to=other)
            self._depart(self._deliver_slot - 1)
        return True

    # -- time-outs -------------------------------------------------------------------------------------------

    def _timed_out(self, now: int, sender: int) -> bool:
        """Whether delivery goes on without the rest of this sender's slot; if so, record the gap.

        That is the case Δ+Γ after the slot's end, or when FIFO order shows that no more of it arrives (paper 000 §7).
        """
        slot, lossy = self._deliver_slot, self._policy.loss_burst > 0
        if sender == self._policy.member:
            return self._send_slot > slot
        passed = lossy and self._latest_data_slot[sender] > slot
        if not passed and self._last_wake_at < self._late_at():
            return False
        self._skip_rest(sender, self._rqueues[sender].slots.get(slot))
        if not lossy or slot - self._latest_slot_heard[sender] > self._policy.loss_burst:
            # Members send a datagram in every slot, so more than this many silent slots are not just losses (000-28).
            self._failed.append(sender)
        return True

    def _skip_rest(self, sender: int, frames: SlotFrames | None) -> None:
        """Continue without the missing frames of a sender's slot, and deliver the received ones that follow them."""
        slot = self._deliver_slot
        self._missing.skip(sender, slot)
        if frames is not None:
            self._deliver_after_gap(sender, frames)
            if not frames.ended():
                self._missing.skip(sender, slot)
        self.events.append(SlotSkipped(sender, self._incarnations.get(sender, 0), slot))

    def _record_sequence(self, sender: int, incarnation: int, first_sequence: int, count: int) -> None:
        """Report a gap if the sequence numbers show that messages of the sender are missing here."""
        gap = self._missing.receive(sender, incarnation, first_sequence, count, self._deliver_slot)
        if gap is not None:
            self.events.append(gap)

    def _deliver_after_gap(self, sender: int, frames: SlotFrames) -> None:
        """Deliver a sender's frames that follow a gap, in order, except messages that lack a fragment (001-6)."""
        while frames.waiting:
            frames.next_number = min(frames.waiting)
            frames.fragments = []
            self._deliver(sender, frames)

    def _next_view(self, delivered_slot: int, departed: tuple[int, ...]) -> None:
        """Set the view of the next slot in one change: without departed and failed members, with joining ones.

        A group skips slot numbers that other members used while they were cut off from it. In the skipped slots this
        member is alone.
        """
        slot, me, listed = self._deliver_slot, self._policy.member, self.view.members
        numbers_skipped = slot > delivered_slot + 1
        if not (departed or self._failed or self._pending_joins.pending or numbers_skipped):
            return
        failed = {member for member in self._failed if member in listed} - set(departed)
        self._failed = []
        for member in sorted(failed):
            self._drop_queued_frames(member)
            self._record_timeout(member)
            self.events.append(self._missing.remove(member, self._incarnations.get(member, 0), slot))
        due = {m: incarnation for m, incarnation in self._pending_joins.pop_due(slot).items() if m != me}
        for member, incarnation in due.items():
            self._incarnations[member] = incarnation
            self._missing.begin(member, incarnation)
            self._member_since_slot[member] = slot
            self._final_slots.pop(member, None)
            self._record_slot_heard(member, slot - 1)
        left = tuple(sorted({*failed, *departed}))
        members = tuple(sorted({*listed, *due} - (set(left) - set(due))))
        joined = tuple(m for m in due if m in left or m not in listed)
        if numbers_skipped and len(listed) > 1:
            others = tuple(m for m in listed if m != me)
            for member in others:
                self._missing.skip(member, delivered_slot + 1)
            self.view = View((me,), delivered_slot + 1)
            self.events.append(ViewChange(self.view, left=others))
            left, joined = (), tuple(m for m in members if m != me)
        if left or joined:
            self.view = View(members, slot)
            self.events.append(ViewChange(self.view, joined=joined, left=left))
        if numbers_skipped:
            for member in self.view.members:
                self._record_slot_heard(member, slot - 1)  # no member was silent in slots that did not exist

    def _record_timeout(self, member: int) -> None:
        """Report a member whose present incarnation times out again and again, each time soon after it was added."""
        now, incarnation = self.grid.start_of(self._deliver_slot), self._incarnations.get(member, 0)
        if incarnation == self._fenced.get(member):
            return
        soon_ns = CONSECUTIVE_WITHIN_BOUNDS * self.bound_of(self.grid.timing_of(self._deliver_slot))
        count, last_incarnation, last_at = self._timeout_streaks.get(member, (0, incarnation, now))
        count = count + 1 if last_incarnation == incarnation and now - last_at <= soon_ns else 1
        self._timeout_streaks[member] = (count, incarnation, now)
        if count == TIMEOUTS_BEFORE_REPORT:
            text = f"member {member} timed out and was added again {count} times in a row"
            why = "the network is slower than Δ, the member's process pauses, or a clock is off by more than Γ"
            self.events.append(Violation(ViolationKind.UNSTEADY, f"{text}: {why}", member, self._deliver_slot))

    def _drop_queued_frames(self, member: int) -> None:
        """Drop a failed member's frames, except those of the incarnation in which it joins again (erratum 000-26)."""
        first = self._pending_joins.first_slot(member)
        kept = Rqueue()
        if first is not None:
            kept.slots = {s: f for s, f in self._rqueues[member].slots.items() if s >= first}
        self._rqueues[member] = kept

    # -- our own pauses --------------------------------------------------------------------------------------

    def _close_ended_slots(self, now: int) -> None:
        """Send the end-of-slot mark of each slot that has ended by our clock (paper 000: next-slot).

        If we paused for so much time that the others have timed us out, join again first. Messages that were held back
        then leave in the slot in which all members expect us.
        """
        grid, running = self.grid, self.mode is Mode.DELIVER_MESSAGES
        missed_ns = now - grid.end_of(self._send_slot)
        if running and missed_ns > grid.delta_ns + grid.gamma_ns and self._policy.member not in self._final_slots:
            text = f"this member stood still for {duration_text(missed_ns)}; it may lack messages that others delivered"
            self.events.append(Violation(ViolationKind.PAUSED, text, self._policy.member, self._send_slot))
            messages, payload_bytes = self._packer.held()
            slot = grid.smax(now)
            self._send_join(now, JoinStep.JOIN, slot)
            self._open_slot(slot)
            self._spend(messages, payload_bytes)
        super()._close_ended_slots(now)

    # -- rules that differ where members may fail -------------------------------------------------------------

    def _is_expected_by_peers(self) -> bool:
        """Always True: peers expect us because our JOIN has named our first slot."""
        return True

    def _confirm_slots(self, now: int) -> bool:
        """Whether an answer to our JOIN can no longer change our slots; reports our first view when that is so."""
        if (
            self._slots_confirmed_at_ns is not None
            and self.mode is Mode.DELIVER_MESSAGES
            and now >= self._slots_confirmed_at_ns
        ):
            self._slots_confirmed_at_ns = None
            self._report_view()
        return self._slots_confirmed_at_ns is None

    def _mark_flags(self, now: int) -> int:
        """The flag for joining members, if this member cannot confirm that slots and settings never changed.

        A change that was requested before our first slot is not in a slot that we deliver. Other members tell us of it
        up to 2Δ+2Γ after that slot begins.
        """
        grid = self.grid
        known_ns = grid.start_of(self._first_slot) + 2 * (grid.delta_ns + grid.gamma_ns)
        if grid.changes or self.schedule.setting_requests.knows_any or now < known_ns:
            return SLOTS_MAY_DIFFER
        return 0

    def _blocked(self) -> bool:
        """Always False: sending never waits for delivery, because a member that is far behind times out."""
        return False

    def _may_finish_slot(self, now: int) -> bool:
        """Whether our clock has passed the slot's end: until then a JOIN for the next slot may arrive (erratum 000-24).

        This matters when all members have used up their burst and ended the slot early.
        """
        return now >= self.grid.end_of(self._deliver_slot)

    def _send_schedule_to_newcomers(self, now: int, requested_in: int) -> None:
        """Send an agreed slot schedule to members that joined after slot `requested_in`, so did not see the request."""
        for peer in self._policy.view.members:
            if peer != self._policy.member and (
                self._pending_joins.first_slot(peer) is not None or self._member_since_slot.get(peer, 0) > requested_in
            ):
                self._send_join(now, JoinStep.ANSWER, self._own_expected_slot(now), to=peer)

    def bound_of(self, timing: Timing) -> int:
        """The latency bound for slots of this timing (paper 000, Theorem 5)."""
        return latency_bound_ns(timing)

    def latest_slot(self, now: int) -> int:
        """The largest possible slot number: no frame is refused as too far ahead.

        A member whose clock is wrong is reported instead.
        """
        return 2**63 - 1

    def waiting_for(self) -> tuple[int, ...]:
        """Always empty: this order waits for no member, since a member alone is a group."""
        return ()
