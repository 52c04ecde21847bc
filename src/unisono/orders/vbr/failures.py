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
from unisono.model.events import Gap, ViewChange, Violation, ViolationKind
from unisono.model.policy import Policy
from unisono.model.rates import Reserver
from unisono.model.timing import Timing
from unisono.model.views import View
from unisono.orders.modes import ACCEPTED_INPUTS, Input, Mode
from unisono.orders.receive_queue import Rqueue, SlotFrames
from unisono.orders.vbr.joins import VbrJoins
from unisono.wire.control import JoinStep
from unisono.wire.frame import Frame, Kind

TIMEOUTS_BEFORE_REPORT = 3
"""Who is given up so often in a row is reported."""
CONSECUTIVE_WITHIN_BOUNDS = 10
"""Within so many latency bounds, given up twice is twice in a row."""


def latency_bound_ns(timing: Timing) -> int:
    """Theorem 5: Δ+2Γ+Θ."""
    return timing.delta_ns + 2 * timing.gamma_ns + timing.theta_ns


class VbrGaps(VbrJoins):
    """The automaton of one member that outlives others."""

    gap_stable_places = True
    """So that a gap here does not move what comes behind it."""

    def __init__(self, policy: Policy, reserver: Reserver) -> None:
        super().__init__(policy, reserver)
        self._last_delivered_slot = 0
        """The last slot that was delivered."""
        self._last_wake_at = 0
        """The clock reading of the last wake: only a timer gives anybody up, so that what has arrived is read first."""
        self._timeout_streaks: dict[int, tuple[int, int, int]] = {}
        """By member, how often in a row it was given up, in which life, and when last, by the slot's start."""
        self._latest_data_slot = dict.fromkeys(policy.view.members, 0)
        """The latest slot of which data has come from a member: by FIFO order nothing comes of an earlier one (§7)."""

    # -- inputs ----------------------------------------------------------------------------------------------

    def from_below(self, now: int, frame: Frame) -> None:
        """net-receive."""
        if self.mode is Mode.LEFT:
            return
        sender, ahead_ns = frame.sender, frame.sent_ns - now
        # What is here left no later than now: so far ahead of ours, or further, is its sender's clock. Let it know.
        if ahead_ns > self.grid.gamma_ns and self._fence(now, sender, frame.incarnation, ahead_ns):
            self._send_join(now, JoinStep.ANSWER, self.grid.smax(now), to=sender, answered_request_ns=frame.sent_ns)
        if frame.kind is not Kind.DATA:
            if ahead_ns <= self.grid.gamma_ns and frame.incarnation >= self._incarnations.get(sender, 0):
                self._record_slot_heard(sender, self.grid.slot_of(frame.sent_ns))
            if frame.kind is Kind.JOIN:
                self._on_join(now, frame)
            else:
                super().from_below(now, frame)
        elif Input.DATA in ACCEPTED_INPUTS[self.mode] and self._is_deliverable(now, frame):
            if not self._rqueues[sender].add(frame):
                self.ignored["duplicate"] += 1
                return
            slot = frame.slot
            if slot > self._latest_data_slot[sender]:
                self._latest_data_slot[sender] = slot
                self._record_slot_heard(sender, slot)
            if slot == self._deliver_slot or self._policy.loss_burst:
                members = self.view.members
                # Only a timer gives anybody up, so somebody else's frame changes nothing for who is waited for.
                if self._current == len(members) or sender == members[self._current]:
                    self._deliver_ready_slots(now)
        if self.setting_requests.missed:
            self._rejoin_if_settings_missed(now)

    def _is_deliverable(self, now: int, frame: Frame) -> bool:
        """Whether a frame is of a member, in its present life, and of a slot still to be delivered."""
        sender, slot, life = frame.sender, frame.slot, frame.incarnation
        # Nearly every frame: of somebody in the list who neither joins nor leaves.
        if (
            sender in self.view.members
            and sender in self._incarnations
            and self._incarnations[sender] == life
            and sender not in self._pending_joins.pending
            and sender not in self._fenced
            and sender not in self._final_slots
            and slot >= self._deliver_slot >= self._first_slot
            and frame.epoch == self._policy.epoch
            and slot <= self.grid.slot_of(frame.sent_ns)
        ):
            return True
        if frame.epoch != self._policy.epoch or self._fenced.get(sender) == life:
            self.ignored["another epoch, or fenced"] += 1
            return False
        if slot > self.grid.slot_of(frame.sent_ns):
            # Its slots are not ours, or it makes no sense: ask.
            self.ignored["slot ahead of its own clock"] += 1
            self._request_merge(now, sender)
            return False
        if slot < self._first_slot:
            # Of a slot before our first one there may be a life that has ended: it must not be taken for the present.
            self.ignored["slot before our first one"] += 1
            return False
        known = self._pending_joins.incarnation_at(sender, slot)
        joined = known is not None
        if not joined and (self.mode is Mode.DET_RATE or sender in self.view.members):
            known = self._incarnations.setdefault(sender, life)
        if known != life:
            self.ignored["not in the list, or another incarnation"] += 1
            if sender not in self._pending_joins.pending and self.mode is Mode.DELIVER_MESSAGES:
                self._request_merge(now, sender)
            return False
        if slot < self._deliver_slot or (not joined and slot > self._final_slots.get(sender, slot)):
            self.ignored["slot already delivered"] += 1
            return False
        return True

    def wake(self, now: int) -> None:
        """Time has passed."""
        self._last_wake_at = now
        if self.mode is Mode.GET_RATE:
            self.mode = Mode.DET_RATE
            self._join_at(now, self.grid.smax(now))
        super().wake(now)
        if self.setting_requests.missed:
            self._rejoin_if_settings_missed(now)

    def wake_at(self) -> int | None:
        """The end of the slot being sent, our first slot, a HELLO; and Δ+Γ after its end a slot is over for all."""
        timing = self.grid
        if self.mode is Mode.DELIVER_MESSAGES:
            done = self._current == len(self.view.members)
            at = timing.end_of(self._deliver_slot) if done else self._late_at()
            if self._slots_confirmed_at_ns is not None:
                at = self._slots_confirmed_at_ns
            if self._policy.member not in self._final_slots:
                at = min(at, timing.end_of(self._send_slot))
        elif self.mode is Mode.DET_RATE:
            at = timing.start_of(self._first_slot)
        else:
            return super().wake_at()
        due = self.exchange.wake_at()
        return at if due is None else min(due, at)

    def latest_slot(self, now: int) -> int:
        """Any slot: what is ahead of us by more than Γ shows a wrong clock, which is reported, not turned away."""
        return 2**63 - 1

    def _is_expected_by_peers(self) -> bool:
        return True

    # -- giving up -------------------------------------------------------------------------------------------

    def _slot_over(self, now: int) -> bool:
        """Not before our clock has passed it: until then a JOIN for the next slot may come (000-24).

        That matters when everybody has used up its burst and ended the slot early.
        """
        return now >= self.grid.end_of(self._deliver_slot)

    def _timed_out(self, now: int, sender: int) -> bool:
        """Go on without the rest: Δ+Γ after the slot's end, or when FIFO shows that there is no rest (§7)."""
        slot, lossy = self._deliver_slot, self._policy.loss_burst > 0
        if sender == self._policy.member:
            return self._send_slot > slot
        passed = lossy and self._latest_data_slot[sender] > slot
        if not passed and self._last_wake_at < self._late_at():
            return False
        frames = self._rqueues[sender].slots.get(slot)
        if frames is not None:
            self._deliver_after_gap(sender, frames)
        self.events.append(Gap(sender, self._incarnations.get(sender, 0), slot))
        if not lossy or slot - self._latest_slot_heard[sender] > self._policy.loss_burst:
            # A datagram is sent in every slot, so this many silent ones are more than can be lost in a row (000-28).
            self._failed.append(sender)
        return True

    def _deliver_after_gap(self, sender: int, frames: SlotFrames) -> None:
        """What came behind a gap, in its order (001-6); a message that lacks a piece is not delivered."""
        while frames.waiting:
            frames.next_number = min(frames.waiting)
            frames.fragments = []
            self._deliver(sender, frames)

    def _deliver_all(self) -> None:
        last = max(self._deliver_slot, *(slot for rqueue in self._rqueues.values() for slot in rqueue.slots), 0)
        while self._deliver_slot <= last:
            for sender in self.view.members[self._current :]:
                frames = self._rqueues[sender].slots.pop(self._deliver_slot, None)
                if frames is not None:
                    self._deliver(sender, frames)
                if frames is None or not frames.ended():
                    self.events.append(Gap(sender, self._incarnations.get(sender, 0), self._deliver_slot))
                if frames is not None:
                    self._deliver_after_gap(sender, frames)
                self._count = 0
            self._deliver_slot, self._current = self._deliver_slot + 1, 0

    def _drop_all(self) -> None:
        self._rqueues = {member: Rqueue() for member in self._rqueues}
        self._latest_data_slot = dict.fromkeys(self._latest_data_slot, 0)

    def _finish_slot(self, now: int) -> None:
        self._last_delivered_slot = self._deliver_slot
        super()._finish_slot(now)
        if self._deliver_slot > self._last_delivered_slot + 1:
            for member in self.view.members:
                self._record_slot_heard(
                    member, self._deliver_slot - 1
                )  # nobody was silent in the numbers that were left out

    def _next_view(self, departed: tuple[int, ...]) -> None:
        """The next slot's list, in one change: without who has left or failed, with who joins.

        Numbers are left out because others have gone by them elsewhere: in those we have nobody beside us.
        """
        slot, me, listed = self._deliver_slot, self._policy.member, self.view.members
        numbers_left_out = slot > self._last_delivered_slot + 1
        if not (self._failed or self._pending_joins.pending or numbers_left_out):
            super()._next_view(departed)
            return
        failed = {member for member in self._failed if member in listed} - set(departed)
        self._failed = []
        for member in sorted(failed):
            self._drop_queued_frames(member)
            self._record_timeout(member)
        due = {m: life for m, life in self._pending_joins.pop_due(slot).items() if m != me}
        for member, life in due.items():
            self._incarnations[member] = life
            self._member_since_slot[member] = slot
            self._final_slots.pop(member, None)
            self._record_slot_heard(member, slot - 1)
        left = tuple(sorted({*failed, *departed}))
        members = tuple(sorted({*listed, *due} - (set(left) - set(due))))
        joined = tuple(m for m in due if m in left or m not in listed)
        if numbers_left_out and len(listed) > 1:
            others = tuple(m for m in listed if m != me)
            self.view = View((me,), self._last_delivered_slot + 1)
            self.events.append(ViewChange(self.view, left=others))
            left, joined = (), tuple(m for m in members if m != me)
        if left or joined:
            self.view = View(members, slot)
            self.events.append(ViewChange(self.view, joined=joined, left=left))

    def _record_timeout(self, member: int) -> None:
        """Who is given up in the same life again and again, each time soon after it was taken back, is reported."""
        now, life = self.grid.start_of(self._deliver_slot), self._incarnations.get(member, 0)
        if life == self._fenced.get(member):
            return
        soon = CONSECUTIVE_WITHIN_BOUNDS * self.bound_of(self.grid.timing_of(self._deliver_slot))
        count, told_life, at = self._timeout_streaks.get(member, (0, life, now))
        count = count + 1 if told_life == life and now - at <= soon else 1
        self._timeout_streaks[member] = (count, life, now)
        if count == TIMEOUTS_BEFORE_REPORT:
            text = f"member {member} was given up and taken back {count} times in a row"
            why = "the network is slower than Δ, its process stands still, or a clock is off by more than Γ"
            self.events.append(Violation(ViolationKind.UNSTEADY, f"{text}: {why}", member, self._deliver_slot))

    def _drop_queued_frames(self, member: int) -> None:
        """Drop what is queued of a member that has failed, but not of the life in which it comes back (000-26)."""
        first = self._pending_joins.first_slot(member)
        kept = Rqueue()
        if first is not None:
            kept.slots = {s: f for s, f in self._rqueues[member].slots.items() if s >= first}
        self._rqueues[member] = kept

    def _check_late(self, now: int) -> None:
        """Nothing is late here: it is given up."""

    # -- our own pauses and clocks ---------------------------------------------------------------------------

    def _close_ended_slots(self, now: int) -> None:
        """next-slot; after a pause so long that the others have given us up, join again.

        What was held back for the missed slot leaves in the slot in which all expect us, and nothing before.
        """
        timing, running = self.grid, self.mode is Mode.DELIVER_MESSAGES
        missed = now - timing.end_of(self._send_slot)
        if running and missed > timing.delta_ns + timing.gamma_ns and self._policy.member not in self._final_slots:
            text = f"this member stood still for {duration_text(missed)}; what was delivered meanwhile may be missing"
            self.events.append(Violation(ViolationKind.PAUSED, text, self._policy.member, self._send_slot))
            messages, payload = self._packer.held()
            slot = timing.smax(now)
            self._send_join(now, JoinStep.JOIN, slot)
            self._open_slot(slot)
            self._spend(messages, payload)
        super()._close_ended_slots(now)

    def _blocked(self) -> bool:
        return False  # who is far behind is given up

    # -- questions -------------------------------------------------------------------------------------------

    def bound_of(self, timing: Timing) -> int:
        """Theorem 5."""
        return latency_bound_ns(timing)

    def keeps_sending_to_departed(self) -> bool:
        """Who was given up may be back, and has to hear us for that."""
        return True

    def gap_free(self) -> bool:
        """A crash may leave gaps (Definition 2)."""
        return False

    def waiting_for(self) -> tuple[int, ...]:
        """Nobody: a group of one is a group."""
        return ()
