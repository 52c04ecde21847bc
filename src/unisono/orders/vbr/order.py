"""The VBR order of paper 000 §5, as errata 000-13 to 000-21 correct it: reliable total order without failures.

Time is cut into slots of length Θ that count from the Unix epoch. A message is sent in the slot in which it was
submitted; each slot ends with a mark. Members deliver slot by slot, and within a slot sender by sender in member
order. No message is needed to agree on anything, so latency is at most Δ+Γ+Θ however many members there are.

The paper's names are kept: modes GetRate, DetRate, DeliverMessages; `current` and `count` for the sender being
delivered; myCount and maxSend live in the pacer; Squeue is the packer's held-back rest; the dummy is a last frame
without a body. The burst travels in every header, so a rate change takes no message of the burst (000-15, -16, -17).
The slot's length changes for all at once, by a wish that a mark carries: see `slot_change`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Sequence
from itertools import accumulate

from unisono.errors import MessageTooLarge
from unisono.model.durations import NS_PER_S
from unisono.model.events import POSITIONS_PER_SENDER, Batch, LeaveComplete, PackedMessages, ViewChange
from unisono.model.policy import Policy
from unisono.model.rates import Rate, Reserver
from unisono.model.slot_schedule import SlotGrid
from unisono.model.timing import Timing
from unisono.model.views import View
from unisono.orders.clock_reports import ClockReports
from unisono.orders.formation import RateExchange
from unisono.orders.modes import ACCEPTED_INPUTS, Input, Mode
from unisono.orders.packing import FramePayload, Packer
from unisono.orders.receive_queue import Rqueue, SlotFrames
from unisono.orders.vbr.slots import SlotOrderBase
from unisono.wire.frame import (
    END_OF_SLOT,
    FIRST_FRAGMENT,
    FRAGMENT,
    LEAVING,
    MORE_FRAGMENTS,
    SETTING_REQUEST,
    Frame,
    Kind,
)
from unisono.wire.packed_messages import ReassembledMessage

HORIZON_NS = NS_PER_S
"""A frame from a slot further ahead of our clock than this, beyond Γ, is absurd."""

MAX_SLOTS_AHEAD = 1 << 14
"""So many slots ahead of what is delivered here nobody is absurd: it may have changed to shorter ones before us."""


def latency_bound_ns(timing: Timing) -> int:
    """Theorem 2: Δ+Γ+Θ."""
    return timing.delta_ns + timing.gamma_ns + timing.theta_ns


class Vbr(SlotOrderBase, ClockReports):
    """The automaton of one member."""

    gap_stable_places = False
    """Whether a message's place in its slot is its sequence, in place of how many were delivered before it."""

    def __init__(self, policy: Policy, reserver: Reserver) -> None:
        super().__init__(policy, reserver)
        ClockReports.__init__(self)
        self.down: list[Frame] = []
        self.ignored: Counter[str] = Counter()
        self.view = policy.view
        self.exchange = RateExchange(policy, check_clocks=True)
        self.exchange.down = self.down
        self._multicast = False
        # Sending.
        self._packer = Packer(policy.max_frame)
        self._next_frame_number = 0
        self._slot_closed = self._leaving = False
        self._sequence = 0
        # Delivering.
        self._rqueues = {member: Rqueue() for member in policy.view.members}
        self._final_slots: dict[int, int] = {}
        self._bursts: dict[int, int] = {}
        self._current = self._count = self._index = 0
        self._late_reported = False
        self._reported_members: tuple[int, ...] = ()  # whom the application knows to be there when we begin
        self._undelivered_own_slots: deque[int] = deque()
        """Slots in which we sent messages that we have not delivered ourselves yet."""

    # -- inputs ----------------------------------------------------------------------------------------------

    def submit(self, now: int, messages: Sequence[bytes]) -> int:
        """Take what the slot that `now` lies in has room for."""
        if Input.SUBMIT not in ACCEPTED_INPUTS[self.mode] or self._leaving:
            return 0
        self._close_ended_slots(now)
        # A mark that left just now may have been all that a delivery waited for, whether or not anything is taken.
        self._deliver_ready_slots(now)
        if self._slot_closed or self._blocked() or now < self.grid.start_of(self._send_slot):
            return 0
        if self._pacer.slot_messages == 0 and len(self._undelivered_own_slots) >= self.window_slots:
            return 0
        count = min(len(messages), self._pacer.messages_left())
        if count < len(messages):
            messages = messages[:count]
        sizes = list(map(len, messages))
        largest = max(sizes, default=0)
        if largest > self._policy.max_message:
            raise MessageTooLarge(largest, self._policy.max_message)
        total = sum(sizes)
        if total > self._pacer.bytes_left():
            count = bisect_right(list(accumulate(sizes)), self._pacer.bytes_left())
            messages, sizes = messages[:count], sizes[:count]
            total = sum(sizes)
        if count == 0:
            return 0
        self._spend(count, total)
        loads = self._packer.add(messages, sizes)
        # With the burst used up the mark needs no frame of its own, and the burst stays AppMaxBurst (Theorem 3).
        last = (self._packer.flush() or loads.pop()) if self._pacer.is_full() else None
        for load in loads:
            self._emit(now, load, 0)
        if last is not None:
            self._close_slot(now, last)
        self._deliver_ready_slots(now)
        return count

    def from_below(self, now: int, frame: Frame) -> None:
        """net-receive."""
        if frame.kind is Kind.HELLO:
            if Input.HELLO in ACCEPTED_INPUTS[self.mode]:
                violation = self.exchange.from_below(now, frame)
                if violation is not None:
                    self.events.append(violation)
                self._multicast = self.exchange.reaches_all_by_multicast()
                self._start_deliver(now)
            return
        if frame.kind is not Kind.DATA:
            # The door knows every order's kinds; what is not this order's must not take a frame's number in a slot.
            self.ignored["kind of another order"] += 1
            return
        if Input.DATA not in ACCEPTED_INPUTS[self.mode]:
            self.ignored["data in mode " + self.mode] += 1
            return
        sender = frame.sender
        if frame.epoch != self._policy.epoch or self.exchange.incarnation(sender) != frame.incarnation:
            self.ignored["another incarnation or epoch"] += 1
        elif frame.slot < self._deliver_slot or frame.slot > self._final_slots.get(sender, frame.slot):
            self.ignored["slot already delivered"] += 1
        elif not self._rqueues[sender].add(frame):
            self.ignored["duplicate"] += 1
        elif frame.slot == self._deliver_slot and sender == self.view.members[self._current]:
            self._deliver_ready_slots(now)

    def leave(self, now: int) -> None:
        """End with this slot, or with the next one if this slot's mark has been sent.

        Once others count on a first slot of ours, that slot has to come: it is our last too.
        """
        if self.mode is Mode.DET_RATE and self._is_expected_by_peers():
            self._leaving = True
        elif self.mode in {Mode.GET_RATE, Mode.DET_RATE}:
            self._depart(self.grid.slot_of(now))
        elif self.mode is Mode.DELIVER_MESSAGES and not self._leaving:
            self._close_ended_slots(now)
            self._leaving = True
            if not self._slot_closed and now >= self.grid.start_of(self._send_slot):
                self._close_slot(now)
            self._deliver_ready_slots(now)

    def wake(self, now: int) -> None:
        """Time has passed."""
        if self.mode is Mode.LEFT:
            return
        if self.mode is Mode.GET_RATE:
            self.mode = Mode.DET_RATE
        self.exchange.wake(now)
        self._start_deliver(now)
        if self.mode is Mode.DELIVER_MESSAGES:
            self._close_ended_slots(now)
            self._deliver_ready_slots(now)
            self._check_late(now)

    def wake_at(self) -> int | None:
        """The end of the slot being sent, the moment at which the slot being delivered is late, or a HELLO."""
        if self.mode is Mode.GET_RATE:
            return 0
        if self.mode is Mode.LEFT:
            return None
        due = self.exchange.wake_at()
        if self.mode is Mode.DELIVER_MESSAGES:
            times = [] if due is None else [due]
            if self._policy.member not in self._final_slots and not self._blocked():
                times.append(self.grid.end_of(self._send_slot))
            if not self._late_reported:
                # An arrival at that very instant still counts (erratum 000-22).
                times.append(self._late_at() + 1)
            due = min(times, default=None)
        return due

    # -- starting and leaving --------------------------------------------------------------------------------

    def _start_deliver(self, now: int) -> None:
        """start-deliver: every rate is known."""
        if self.mode is not Mode.DET_RATE or not self.exchange.complete:
            return
        self._begin_delivery(now, self.exchange.first_slot())

    def _begin_delivery(self, now: int, first_slot: int) -> None:
        self.mode = Mode.DELIVER_MESSAGES
        self._deliver_slot = first_slot
        for rqueue in self._rqueues.values():
            rqueue.forget_before(first_slot)
        self.view = View(self._policy.view.members, first_slot)
        self._report_view()
        self._open_slot(first_slot)
        self._spend(*self._packer.held())
        self._close_ended_slots(now)
        self._deliver_ready_slots(now)

    def _report_view(self) -> None:
        joined = tuple(member for member in self.view.members if member not in self._reported_members)
        self.events.append(ViewChange(self.view, joined=joined))
        self._report_timing()

    def _is_expected_by_peers(self) -> bool:
        return self.exchange.has_named_first_slot

    def _depart(self, final_slot: int) -> None:
        self.mode = Mode.LEFT
        self.events.append(LeaveComplete(final_slot))

    # -- sending ---------------------------------------------------------------------------------------------

    def _close_ended_slots(self, now: int) -> None:
        """next-slot, for each slot that is over."""
        while self.mode is Mode.DELIVER_MESSAGES and self.grid.end_of(self._send_slot) <= now:
            if self._policy.member in self._final_slots or self._blocked():
                return
            if not self._slot_closed:
                self._close_slot(now)
            self._open_slot(self.grid.next_slot(self._send_slot))

    def _catch_up(self, now: int) -> None:
        self._close_ended_slots(now)
        self._deliver_ready_slots(now)

    def _blocked(self) -> bool:
        """Whether this slot has to wait: a mark also says that its sender is not far behind, or queues had no bound."""
        return self._send_slot >= self._deliver_slot + 2 * self.window_slots

    def _open_slot(self, slot: int) -> None:
        self._send_slot, self._next_frame_number, self._slot_closed = slot, 0, False
        self._enter_slot(slot)

    def _spend(self, messages: int, payload: int) -> None:
        if messages and not self._pacer.slot_messages:
            self._undelivered_own_slots.append(self._send_slot)
        self._pacer.record_sent(messages, payload)

    def _close_slot(self, now: int, last: FramePayload | None = None) -> None:
        """The slot's last frame: `last`, or what was held back, or the dummy; or behind those a wish."""
        flags, last = END_OF_SLOT, last or self._packer.flush()
        wish = self._requests_for_mark()
        if wish is not None:
            if last is not None:
                self._emit(now, last, 0)
            last, flags = None, flags | SETTING_REQUEST
        if self._leaving:
            flags |= LEAVING
            self._final_slots[self._policy.member] = self._send_slot
        self._emit(now, last, flags, wish or b"")
        if wish is not None and self._policy.fec is None:
            # So often in a row that one arrives (§7).
            self.down.extend(self.down[-1:] * self._policy.loss_burst)
        self._slot_closed = True

    def _emit(self, now: int, payload: FramePayload | None, flags: int, body: bytes | memoryview = b"") -> None:
        run: PackedMessages | None = None
        if payload is not None:
            run = payload.packed_messages
            if payload.fragment is not None:
                body, flags = (
                    payload.fragment,
                    flags
                    | FRAGMENT
                    | (FIRST_FRAGMENT if payload.is_first_fragment else 0)
                    | (MORE_FRAGMENTS if payload.has_more_fragments else 0),
                )
        policy = self._policy
        frame = Frame(
            Kind.DATA,
            policy.member,
            policy.incarnation,
            policy.epoch,
            self._send_slot,
            self._next_frame_number,
            flags,
            self._pacer.rate.burst,
            self._sequence,
            now,
            run,
            body,
            multicast=self._multicast,
        )
        self._next_frame_number += 1
        if payload is not None:
            self._sequence += payload.messages_completed
        self.down.append(frame)
        self._rqueues[policy.member].add(frame)

    # -- delivering ------------------------------------------------------------------------------------------

    def _deliver_ready_slots(self, now: int) -> None:
        """deliver, handle-dummy: go on for as long as what is next has arrived."""
        while self.mode is Mode.DELIVER_MESSAGES:
            members = self.view.members
            if self._current == len(members):
                if not self._slot_over(now):
                    return
                self._finish_slot(now)
                continue
            sender = members[self._current]
            frames = self._rqueues[sender].slots.get(self._deliver_slot)
            if frames is not None and frames.waiting:
                self._deliver(sender, frames)
            if (frames is None or not frames.ended()) and not self._timed_out(now, sender):
                return
            self._current += 1
            self._count = 0

    def _adopt_schedule(self, grid: SlotGrid) -> None:
        super()._adopt_schedule(grid)
        self.exchange.slot_changes = grid.changes

    def _send_schedule_to_newcomers(self, now: int, requested_in: int) -> None:
        pass  # nobody joins, so all have delivered the wish

    def _slot_over(self, now: int) -> bool:
        return True  # everyone has ended it

    def _timed_out(self, now: int, sender: int) -> bool:
        return False  # nobody fails, so nobody is gone on without

    def _deliver(self, sender: int, frames: SlotFrames) -> None:
        runs: list[PackedMessages] = []
        first_sequence = incarnation = -1
        while (frame := frames.waiting.pop(frames.next_number, None)) is not None:
            frames.next_number += 1
            if frame.number == 0:
                self._bursts[sender] = frame.burst
            run = frame.packed_messages
            if frame.flags & FRAGMENT:
                if frame.flags & FIRST_FRAGMENT or frames.fragments:
                    frames.fragments.append(frame.body)
                if frames.fragments and not frame.flags & MORE_FRAGMENTS:
                    run = ReassembledMessage(frames.fragments)
                    frames.fragments = []
            if run is not None:
                if not runs:
                    first_sequence, incarnation = frame.first_sequence, frame.incarnation
                runs.append(run)
            if frame.flags & (LEAVING | SETTING_REQUEST):
                self._on_end_of_slot_mark(sender, frame)
        if not runs:
            return
        count = sum(run.count for run in runs)
        behind = first_sequence % POSITIONS_PER_SENDER if self.gap_stable_places else self._count
        place = sender * POSITIONS_PER_SENDER + behind
        slot, index = self._deliver_slot, self._index
        self.events.append(Batch(sender, incarnation, slot, first_sequence, place, index, count, runs))
        self._count += count
        self._index += count

    def _on_end_of_slot_mark(self, sender: int, mark: Frame) -> None:
        if mark.flags & LEAVING:
            self._final_slots[sender] = mark.slot
        if mark.flags & SETTING_REQUEST:
            self._on_mark_requests(sender, mark.body)

    def _finish_slot(self, now: int) -> None:
        """All members' messages of this slot are delivered: who left in it is gone from the next one on."""
        slot = self._deliver_slot
        if self._decide_slot_change(slot):
            self._send_schedule_to_newcomers(now, slot)
        self._deliver_slot, self._current, self._late_reported = self.grid.next_slot(slot), 0, False
        self._report_timing()
        # Kept until now, so that a duplicate is known for one while the slot waits for later members.
        for member in self.view.members:
            self._rqueues[member].slots.pop(slot, None)
        self.exchange.stop()
        while self._undelivered_own_slots and self._undelivered_own_slots[0] <= slot:
            self._undelivered_own_slots.popleft()
        self._close_ended_slots(now)
        gone = tuple(m for m in self.view.members if self._final_slots.get(m) == slot)
        if self._policy.member in gone:
            self._depart(slot)
        else:
            self._next_view(gone)

    def _next_view(self, departed: tuple[int, ...]) -> None:
        """The list for the next slot: without who has left."""
        if departed:
            for member in departed:
                self.view = self.view.without(member, self._deliver_slot)
            self.events.append(ViewChange(self.view, left=departed))

    def _late_at(self) -> int:
        """When the slot being delivered is late: Δ+Γ after its end, by our clock."""
        return self.grid.end_of(self._deliver_slot) + self.grid.delta_ns + self.grid.gamma_ns

    def _check_late(self, now: int) -> None:
        """Without failures nothing may be later than that; if something is, say whom we wait for."""
        if self.mode is not Mode.DELIVER_MESSAGES or self._late_reported or now <= self._late_at():
            return
        self._late_reported = True
        slot = self._deliver_slot
        sender = self.view.members[self._current]
        frames = self._rqueues[sender].slots.get(slot)
        missing = frames.missing() if frames is not None else []
        what = f"frames {missing} of slot {slot} are missing" if missing else f"slot {slot} has not ended"
        self._report_late(now, sender, slot, f"{what} Δ+Γ after its end")

    # -- questions -------------------------------------------------------------------------------------------

    def latest_slot(self, now: int) -> int:
        """The last slot that a right sender could be in."""
        ahead = self.grid.slot_of(now + self.grid.gamma_ns + HORIZON_NS) + 1
        return max(ahead, self._deliver_slot + MAX_SLOTS_AHEAD)

    def bound_of(self, timing: Timing) -> int:
        """Theorem 2."""
        return latency_bound_ns(timing)

    def keeps_sending_to_departed(self) -> bool:
        """Who has left has left."""
        return False

    def gap_free(self) -> bool:
        """Without failures there are no gaps (Definition 1)."""
        return True

    def waiting_for(self) -> tuple[int, ...]:
        """Members that the rate exchange still lacks."""
        return () if self.mode is Mode.DELIVER_MESSAGES else self.exchange.missing()

    def running(self) -> bool:
        """Whether the order is in DeliverMessages."""
        return self.mode is Mode.DELIVER_MESSAGES

    def peer_rate(self, peer: int) -> Rate | None:
        """What a peer declared at the start."""
        return self.exchange.rate(peer)

    def by_multicast(self) -> bool:
        """Whether every peer has heard this member by IP multicast."""
        return self._multicast

    def done_slot(self) -> int:
        """The last slot of which nothing more will be delivered here."""
        return max(0, self._deliver_slot - 1)

    def max_rate(self, member: int) -> int:
        """maxRate[member]: the burst of the last slot of `member` delivered here (Lemma 5.1)."""
        return self._bursts[member]
