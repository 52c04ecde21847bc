"""VBR total order without failures (paper 000 §5, errata 000-13 to 000-21).

Time is divided into slots of length Θ, numbered from the Unix epoch. A message belongs to the slot in which it was
submitted. Each sender closes every slot with an end-of-slot mark. A member delivers slot s when it has the mark of
every sender for s, sender by sender in member order. No agreement messages are needed, so latency is at most Δ+Γ+Θ for
any number of members (paper 000, Theorem 2).

Sending: `submit` packs messages into frames. Full frames leave at once; the rest waits in the packer and leaves as the
last frame of the slot, which is the end-of-slot mark. The mark is sent when the burst is used up or, from `wake`, when
the slot ends. A slot without messages ends with an empty mark, the paper's dummy.

Receiving: `from_below` stores frames per sender and slot. `_deliver_ready_slots` delivers every slot that is complete,
and `_finish_slot` moves on to the next one.

Names from the paper: the modes GetRate, DetRate and DeliverMessages; `current` and `count` for the sender being
delivered; Rqueue for the received frames. myCount and maxSend are in the pacer, and Squeue is the packer's held-back
rest. Every header carries the sender's burst, so a rate change needs no message (000-15, -16, -17). The slot length
can change while the group runs; `SlotSchedule` knows the length of every slot.

`failures.VbrGaps` extends this class for groups whose members may fail. The section "rules that differ where members
may fail" holds every decision that it makes differently, beside its own inputs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from itertools import accumulate

from unisono.errors import InvariantViolated
from unisono.model.events import (
    POSITIONS_PER_SENDER,
    Batch,
    PackedMessages,
    SettingsAgreed,
    TimingChange,
    View,
    ViewChange,
    Violation,
    ViolationKind,
)
from unisono.model.policy import Policy
from unisono.model.timing import SlotGrid, Throttle, Timing
from unisono.model.units import NS_PER_S, Rate, Reserver
from unisono.net.layer import NO_ROOM
from unisono.orders.contract import ACCEPTED_INPUTS, Input, Mode, VariableRateBase
from unisono.orders.packing import NO_MESSAGES, FramePayload, Packer, Rqueue, SlotFrames, checked_sizes
from unisono.orders.vbr.slots import SlotSchedule, check_slot_length
from unisono.wire.codec import message_in
from unisono.wire.control import MARK_REQUESTS, MarkRequests, SettingRequest
from unisono.wire.frame import (
    END_OF_SLOT,
    FIRST_FRAGMENT,
    FRAGMENT,
    LEAVING,
    MORE_FRAGMENTS,
    SETTING_REQUEST,
    Frame,
    Kind,
    ReassembledMessage,
)

HORIZON_NS = NS_PER_S
"""Refuse a frame if its slot is more than this time plus Γ ahead of this member's clock, and also more than
MAX_SLOTS_AHEAD slots ahead of the slot being delivered."""

MAX_SLOTS_AHEAD = 1 << 14
"""Accept every frame up to this many slots ahead of the slot being delivered: its sender may use shorter slots."""


def latency_bound_ns(timing: Timing) -> int:
    """The latency bound of VBR without failures: Δ+Γ+Θ (paper 000, Theorem 2)."""
    return timing.delta_ns + timing.gamma_ns + timing.theta_ns


class VbrOrder(VariableRateBase):
    """One member's automaton of the order `vbr`, for a group whose members do not fail."""

    gap_free = True
    keeps_sending_to_departed = False  # a departed member does not come back

    gap_stable_places = False
    """Whether a message's position in its slot comes from its sequence number, so that gaps do not shift it.

    Without gaps the position is the number of messages of the same sender and slot delivered before it.
    """

    def __init__(self, policy: Policy, reserver: Reserver) -> None:
        super().__init__(policy, allow_restarts=policy.failures, check_clocks=not policy.failures)
        self.schedule = SlotSchedule(policy, reserver)
        # Sending.
        self._packer = Packer(policy.max_frame)
        self._send_slot = 0
        self._next_frame_number = 0
        self._slot_closed = self._leaving = False
        self._sequence = 0
        self._undelivered_own_slots: deque[int] = deque()
        """Slots in which this member sent messages that it has not delivered yet."""
        # Delivering.
        self._rqueues = {member: Rqueue() for member in policy.view.members}
        self._final_slots: dict[int, int] = {}
        """By member that is leaving, its last slot."""
        self._bursts: dict[int, int] = {}
        self._deliver_slot = 0
        self._current = self._count = self._index = 0
        self._last_delivered_slot = self._last_delivered_sender = 0
        self.window_slots = self.schedule.window_slots(self._deliver_slot)
        # Reporting.
        self._reported_members: tuple[int, ...] = ()
        """The members that the application already knows of when delivery begins."""
        self._reported_timing = policy.timing
        """The timing that the application knows to be in effect."""
        self._late_reported = False
        self._throttle = Throttle()

    @property
    def grid(self) -> SlotGrid:
        """The slot schedule as this member knows it: the length of every slot."""
        return self.schedule.grid

    @property
    def settings_agreed(self) -> list[SettingsAgreed]:
        """The agreed settings to apply from the slot being entered on; the stack empties this list."""
        return self.schedule.settings_agreed

    # -- inputs ----------------------------------------------------------------------------------------------

    def submit(self, now: int, messages: Sequence[bytes]) -> int:
        """Accept as many messages, from the first on, as the current slot has room for (paper 000: app-mcast).

        Returns how many were accepted. Full frames leave at once, the rest with the end-of-slot mark.
        """
        messages_left, bytes_left = self.room(now)
        pacer, count = self.schedule.pacer, min(len(messages), messages_left)
        if count < len(messages):
            messages = messages[:count]
        sizes = checked_sizes(messages, self._policy.max_message)
        total = sum(sizes)
        if total > bytes_left:
            count = bisect_right(list(accumulate(sizes)), bytes_left)
            messages, sizes = messages[:count], sizes[:count]
            total = sum(sizes)
        if count == 0:
            return 0
        self._spend(count, total)
        if pacer.slot_messages > pacer.rate.burst or pacer.slot_bytes > pacer.burst_bytes:
            pacer.check(self._policy.member)
        payloads = self._packer.add(messages, sizes)
        # A slot whose burst is used up ends here: its last data frame is the mark, and the number of frames stays
        # within AppMaxBurst (Theorem 3).
        last = (self._packer.flush() or payloads.pop()) if pacer.is_full() else None
        for payload in payloads:
            self._send_frame(now, payload, 0)
        if last is not None:
            self._close_slot(now, last)
        self._deliver_ready_slots(now)
        return count

    def room(self, now: int) -> tuple[int, int]:
        """How many messages, and how many bytes of payload, the current slot can still take."""
        if not self._confirm_slots(now) or Input.SUBMIT not in ACCEPTED_INPUTS[self.mode] or self._leaving:
            return NO_ROOM
        self._close_ended_slots(now)
        # Delivery may have been waiting only for our own mark that has just left.
        self._deliver_ready_slots(now)
        if self._slot_closed or self._blocked() or now < self.grid.start_of(self._send_slot):
            return NO_ROOM
        pacer = self.schedule.pacer
        if pacer.slot_messages == 0 and len(self._undelivered_own_slots) >= self.window_slots:
            return NO_ROOM
        return pacer.messages_left(), pacer.bytes_left()

    def from_below(self, now: int, frame: Frame) -> None:
        """Process a frame that has arrived: a HELLO, or messages and marks of a slot."""
        if frame.kind is Kind.HELLO:
            self._on_hello(now, frame)
            return
        if frame.kind is not Kind.DATA:
            # The door admits the kinds of every order; a foreign frame must not occupy a frame number in a slot.
            self.ignored["kind of another order"] += 1
            return
        if Input.DATA not in ACCEPTED_INPUTS[self.mode]:
            self.ignored["data in mode " + self.mode] += 1
            return
        sender = frame.sender
        if frame.epoch != self._policy.epoch or self.exchange.incarnations.get(sender) != frame.incarnation:
            self.ignored["another incarnation or epoch"] += 1
        elif frame.slot < self._deliver_slot or frame.slot > self._final_slots.get(sender, frame.slot):
            self.ignored["slot already delivered"] += 1
        elif not self._rqueues[sender].add(frame):
            self.ignored["duplicate"] += 1
        elif frame.slot == self._deliver_slot and sender == self.view.members[self._current]:
            self._deliver_ready_slots(now)

    def _on_hello(self, now: int, frame: Frame) -> None:
        if Input.HELLO in ACCEPTED_INPUTS[self.mode]:
            self._receive_hello(now, frame)
            self._start_deliver(now)

    def wake(self, now: int) -> None:
        """Do what is due at `now`: form the group, end slots, deliver, and report late members."""
        if self.exchange.next_hello_at is not None:
            self._form(now)
        if self.mode is Mode.DELIVER_MESSAGES:
            self._catch_up(now)
            self._check_late(now)

    def wake_at(self) -> int | None:
        """When `wake` is due next; None if no timer is set.

        It is the earliest of: the next HELLO, the end of the slot being sent, when the slot being delivered is late.
        """
        due = self.exchange.next_hello_at
        if self.mode is Mode.DELIVER_MESSAGES:
            times = [] if due is None else [due]
            if self._policy.member not in self._final_slots and not self._blocked():
                times.append(self.grid.end_of(self._send_slot))
            if not self._late_reported:
                # An arrival at exactly that instant is still in time (erratum 000-22).
                times.append(self._late_at() + 1)
            due = min(times, default=None)
        return due

    def leave(self, now: int) -> None:
        """Leave the group after this slot, or after the next one if this slot's end-of-slot mark has been sent.

        If peers already expect this member's first slot, it sends that slot, which is its last one too.
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

    def change_rate(self, now: int, rate: Rate) -> None:
        """Use `rate` from the next slot on (paper 000: new-rate). Until then, reserve for the larger of both rates.

        Raises ReservationRefused, and changes nothing, if the network has no room for the new rate.
        """
        if Input.NEW_RATE in ACCEPTED_INPUTS[self.mode]:
            # A rate fits if one of the slot lengths carries it: the declared one, the present one or an agreed one.
            lengths = (self._policy.timing.theta_ns, *self.grid.lengths_from(self._send_slot))
            self._policy.check_rate(rate, min(lengths))
            self._catch_up(now)
            self.schedule.request_rate(rate)

    def change_slot(self, now: int, theta_ns: int, rate: Rate | None = None) -> None:
        """Ask the group for slots of another length, and reserve another rate of our own to go with them.

        A TimingChange event tells when the new slots are in effect. Until then, bandwidth for both the old and the new
        slots is reserved. If this raises InvalidOption or ReservationRefused, nothing has changed.
        """
        if Input.NEW_RATE in ACCEPTED_INPUTS[self.mode]:
            check_slot_length(theta_ns)
            if rate is not None:
                self._policy.check_rate(rate, theta_ns)
            self._catch_up(now)
            self.schedule.request_slot_length(theta_ns, rate, self._send_slot)

    def request_settings(self, now: int, content: bytes, member: int | None = None, *, keep: bool = False) -> None:
        """Tell the group which settings this member, or a departed `member`, needs.

        A newer request replaces one that is not sent yet, unless that one was made with `keep`.
        """
        if Input.NEW_RATE in ACCEPTED_INPUTS[self.mode]:
            self._catch_up(now)
            self.schedule.setting_requests.request(content, member, keep=keep)

    # -- starting and leaving --------------------------------------------------------------------------------

    def _start_deliver(self, now: int) -> None:
        """Start delivery if every member's rate and first slot are known (paper 000: start-deliver)."""
        if self.mode is Mode.DET_RATE and self.exchange.complete:
            self._begin_delivery(now, self.exchange.first_slot(), report_view=True)

    def _begin_delivery(self, now: int, first_slot: int, *, report_view: bool) -> None:
        self.mode = Mode.DELIVER_MESSAGES
        self._deliver_slot = first_slot
        for rqueue in self._rqueues.values():
            rqueue.forget_before(first_slot)
        self.view = View(self._policy.view.members, first_slot)
        if report_view:
            self._report_view()
        self._open_slot(first_slot)
        self._spend(*self._packer.held())
        self._catch_up(now)

    def _report_view(self) -> None:
        joined = tuple(member for member in self.view.members if member not in self._reported_members)
        self.events.append(ViewChange(self.view, joined=joined))
        self._report_timing()

    # -- sending ---------------------------------------------------------------------------------------------

    def _catch_up(self, now: int) -> None:
        """Do everything that is due at `now`."""
        self._close_ended_slots(now)
        self._deliver_ready_slots(now)

    def _close_ended_slots(self, now: int) -> None:
        """Send the end-of-slot mark of each slot that has ended by our clock, and open the next slot."""
        while self.mode is Mode.DELIVER_MESSAGES and self.grid.end_of(self._send_slot) <= now:
            if self._policy.member in self._final_slots or self._blocked():
                return
            if not self._slot_closed:
                self._close_slot(now)
            self._open_slot(self.grid.next_slot(self._send_slot))

    def _open_slot(self, slot: int) -> None:
        self._send_slot, self._next_frame_number, self._slot_closed = slot, 0, False
        self.schedule.enter_slot(slot)

    def _spend(self, messages: int, payload_bytes: int) -> None:
        """Count messages against the burst of the slot being sent."""
        pacer = self.schedule.pacer
        if messages and not pacer.slot_messages:
            self._undelivered_own_slots.append(self._send_slot)
        pacer.record_sent(messages, payload_bytes)

    def _close_slot(self, now: int, last: FramePayload | None = None) -> None:
        """Send the end-of-slot mark: on `last` if given, else on the messages held back, else on an empty frame.

        If there are requests to send, the mark carries them, and the messages leave in a frame before it.
        """
        flags, last = END_OF_SLOT | self._mark_flags(now), last or self._packer.flush()
        requests = self.schedule.requests_for_mark(self._send_slot)
        if requests is not None:
            if last is not None:
                self._send_frame(now, last, 0)
            last = FramePayload(body=MARK_REQUESTS.encode(requests), flags=SETTING_REQUEST, message=requests)
        if self._leaving:
            flags |= LEAVING
            self._final_slots[self._policy.member] = self._send_slot
        self._send_frame(now, last or NO_MESSAGES, flags)
        if requests is not None and self._policy.fec is None:
            # With loss_burst more copies, one arrives (§7).
            self.down.extend(self.down[-1:] * self._policy.loss_burst)
        self._slot_closed = True

    def _send_frame(self, now: int, payload: FramePayload, flags: int) -> None:
        """Send the next frame of the slot to all members, including this one."""
        if self._slot_closed:
            self.check_send()
        slot, number, burst = self._send_slot, self._next_frame_number, self.schedule.pacer.rate.burst
        frame = payload.data_frame(
            self._policy, now, slot, number, flags, burst=burst, sequence=self._sequence, multicast=self._multicast
        )
        self._next_frame_number += 1
        self._sequence += payload.messages_completed
        self.down.append(frame)
        self._rqueues[self._policy.member].add(frame)

    # -- delivering ------------------------------------------------------------------------------------------

    def _deliver_ready_slots(self, now: int) -> None:
        """Deliver until the next frame in the order has not arrived yet (paper 000: deliver, handle-dummy)."""
        if not self._confirm_slots(now):
            return
        while self.mode is Mode.DELIVER_MESSAGES:
            members = self.view.members
            if self._current == len(members):
                if not self._may_finish_slot(now):
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

    def _deliver(self, sender: int, frames: SlotFrames) -> None:
        """Deliver the frames of one sender and slot that follow each other without a gap, as one batch."""
        packed: list[PackedMessages] = []
        first_sequence = incarnation = -1
        last: Frame | None = None
        while (frame := frames.waiting.pop(frames.next_number, None)) is not None:
            frames.next_number += 1
            last = frame
            if frame.number == 0:
                self._bursts[sender] = frame.burst
            messages = frame.packed_messages
            if frame.flags & FRAGMENT:
                if frame.flags & FIRST_FRAGMENT or frames.fragments:
                    frames.fragments.append(frame.body)
                if frames.fragments and not frame.flags & MORE_FRAGMENTS:
                    messages = ReassembledMessage(frames.fragments)
                    frames.fragments = []
            if messages is not None:
                if not packed:
                    first_sequence, incarnation = frame.first_sequence, frame.incarnation
                packed.append(messages)
            if frame.flags & (LEAVING | SETTING_REQUEST):
                self._on_end_of_slot_mark(sender, frame)
        if not packed:
            if last is not None:
                self._record_sequence(sender, last.incarnation, last.first_sequence, 0)
            return
        if self._deliver_slot != self._last_delivered_slot or sender < self._last_delivered_sender:
            self.check_delivery(sender)
        self._last_delivered_sender = sender
        count = sum(messages.count for messages in packed)
        place = first_sequence % POSITIONS_PER_SENDER if self.gap_stable_places else self._count
        position = sender * POSITIONS_PER_SENDER + place
        slot, index = self._deliver_slot, self._index
        self._record_sequence(sender, incarnation, first_sequence, count)
        self.events.append(Batch(sender, incarnation, slot, first_sequence, position, index, count, packed))
        self._count += count
        self._index += count

    # -- invariants ------------------------------------------------------------------------------------------

    def check_send(self) -> None:
        """Raise InvariantViolated if a frame would follow the end-of-slot mark of its slot.

        Another member may have delivered that slot already.
        """
        if self._slot_closed:
            text = f"a frame leaves in slot {self._send_slot}, whose end-of-slot mark has already been sent"
            raise InvariantViolated("end of slot", self._policy.member, text, "an open slot", "a closed one")

    def check_delivery(self, sender: int) -> None:
        """Raise InvariantViolated unless deliveries go from slot to slot, and from member to member in each slot.

        It is called only for the first delivery of a slot, and for a sender that comes before the previous one.
        """
        slot, last_slot = self._deliver_slot, self._last_delivered_slot
        if slot <= last_slot:
            text = "a delivery comes after one of a later slot, or of a later member of the same slot"
            expected = f"at least slot {last_slot}, member {self._last_delivered_sender}"
            raise InvariantViolated("order", self._policy.member, text, expected, f"slot {slot}, member {sender}")
        self._last_delivered_slot = slot

    def _on_end_of_slot_mark(self, sender: int, mark: Frame) -> None:
        """Handle an end-of-slot mark that announces its sender's departure or carries requests."""
        if mark.flags & LEAVING:
            self._final_slots[sender] = mark.slot
        if mark.flags & SETTING_REQUEST:
            self._on_setting_requests(self.schedule.read_mark(sender, message_in(mark, MarkRequests)))

    def _on_setting_requests(self, requests: Sequence[SettingRequest]) -> None:
        # Without failures a request is never late: it takes effect beyond every slot that a member may be sending in
        # before it has delivered the request's origin.
        may_miss = self._policy.failures and self.mode is Mode.DELIVER_MESSAGES
        self.schedule.setting_requests.receive(requests, self._send_slot if may_miss else None)

    def _finish_slot(self, now: int) -> None:
        """Move on to the next slot and its view, after all messages of this slot are delivered."""
        slot = self._deliver_slot
        grid = self.schedule.slot_change.decide(slot, self.grid)
        if grid is not None:
            self._adopt_schedule(grid)
            self._send_schedule_to_newcomers(now, slot)
        self._deliver_slot, self._current, self._late_reported = self.grid.next_slot(slot), 0, False
        self._report_timing()
        # The frames stay until now, so that duplicates are recognized while the slot waits for later members.
        for member in self.view.members:
            self._rqueues[member].slots.pop(slot, None)
        if self.exchange.next_hello_at is not None:
            self.exchange.stop()
        while self._undelivered_own_slots and self._undelivered_own_slots[0] <= slot:
            self._undelivered_own_slots.popleft()
        self._close_ended_slots(now)
        departed = tuple(m for m in self.view.members if self._final_slots.get(m) == slot)
        if self._policy.member in departed:
            self._depart(slot)
        else:
            self._next_view(slot, departed)

    def _adopt_schedule(self, grid: SlotGrid) -> None:
        """Use the slot schedule `grid` from now on. Later HELLOs say how often the slot length has changed."""
        violation = self.schedule.adopt(grid)
        self.window_slots = self.schedule.window_slots(self._deliver_slot)
        if violation is not None:
            self.events.append(violation)
        self.exchange.slot_changes = grid.changes

    def _report_timing(self) -> None:
        """Report a new slot length before the first message of a slot of that length is delivered."""
        if self.grid.theta_of(self._deliver_slot) != self._reported_timing.theta_ns:
            self._reported_timing = timing = self.grid.timing_of(self._deliver_slot)
            self.window_slots = self.schedule.window_slots(self._deliver_slot)
            self.events.append(TimingChange(self._deliver_slot, timing, self.bound_ns()))

    def _late_at(self) -> int:
        """The time by our clock after which the slot being delivered is late: Δ+Γ after its end."""
        return self.grid.end_of(self._deliver_slot) + self.grid.delta_ns + self.grid.gamma_ns

    def _check_late(self, now: int) -> None:
        """Report the member that delivery waits for, once per slot: without failures no slot may be late."""
        if self.mode is not Mode.DELIVER_MESSAGES or self._late_reported or now <= self._late_at():
            return
        self._late_reported = True
        slot = self._deliver_slot
        sender = self.view.members[self._current]
        if not self._throttle.first_in_a_while(now, sender):
            return
        frames = self._rqueues[sender].slots.get(slot)
        missing = frames.missing() if frames is not None else []
        lacks = f"frames {missing} have" if missing else "its end-of-slot mark has"
        text = f"waiting for member {sender}: slot {slot} is late, {lacks} not arrived Δ+Γ after the end of the slot"
        self.events.append(Violation(ViolationKind.LATE, text, sender, slot))

    # -- rules that differ where members may fail -------------------------------------------------------------
    #
    # `failures.VbrGaps` replaces all of these. Here no member fails, joins late, or loses a frame for good.

    def _is_expected_by_peers(self) -> bool:
        """Whether peers wait for our first slot, so that we cannot leave without sending it."""
        return self.exchange.has_named_first_slot

    def _confirm_slots(self, now: int) -> bool:
        """Whether our slot schedule is known to be the group's: always, since HELLOs settled it before."""
        return True

    def _mark_flags(self, now: int) -> int:
        """The flags of an end-of-slot mark for members that join: none, since no member joins a running group."""
        return 0

    def _blocked(self) -> bool:
        """Whether this member must deliver more slots before it may end the slot that it sends in.

        An end-of-slot mark also says that its sender is not far behind with delivering. Without this rule queues would
        have no bound.
        """
        return self._send_slot >= self._deliver_slot + 2 * self.window_slots

    def _timed_out(self, now: int, sender: int) -> bool:
        """Whether delivery goes on without the rest of this sender's slot: never, since no member fails."""
        return False

    def _record_sequence(self, sender: int, incarnation: int, first_sequence: int, count: int) -> None:
        """Do nothing: no message is skipped, so that the sequence numbers show no gap."""

    def _may_finish_slot(self, now: int) -> bool:
        """Whether a slot that all members have ended may be finished: always, since no member joins a running group."""
        return True

    def _send_schedule_to_newcomers(self, now: int, requested_in: int) -> None:
        """Do nothing: no member joins a running group, so none needs to be sent an agreed slot schedule."""

    def _next_view(self, delivered_slot: int, departed: tuple[int, ...]) -> None:
        """Set the view of the next slot: without the members whose last slot has been delivered."""
        if departed:
            for member in departed:
                self.view = self.view.without(member, self._deliver_slot)
            self.events.append(ViewChange(self.view, left=departed))

    def bound_of(self, timing: Timing) -> int:
        """The latency bound for slots of this timing (paper 000, Theorem 2)."""
        return latency_bound_ns(timing)

    def latest_slot(self, now: int) -> int:
        """The last slot that a frame arriving now may belong to; frames of later slots are refused."""
        ahead = self.grid.slot_of(now + self.grid.gamma_ns + HORIZON_NS) + 1
        return max(ahead, self._deliver_slot + MAX_SLOTS_AHEAD)

    # -- questions -------------------------------------------------------------------------------------------

    def bound_ns(self) -> int:
        """The latency bound of all messages accepted or undelivered now: that of the longest slot they may be in."""
        lengths = self.grid.lengths_from(self._deliver_slot)
        return max(self.bound_of(Timing(self.grid.delta_ns, self.grid.gamma_ns, theta_ns)) for theta_ns in lengths)

    def done_slot(self) -> int:
        """The last slot that is completely delivered here."""
        return max(0, self._deliver_slot - 1)

    def complete_slot(self) -> int | None:
        """The last slot of which no message is delivered here any more; None before this member delivers."""
        return self._deliver_slot - 1 if self.running() else None

    def max_send(self) -> int:
        """Our burst in the slot being sent: maxSend in paper 000, Lemma 5.1."""
        return self.schedule.pacer.rate.burst

    def max_rate(self, member: int) -> int:
        """The burst of `member` in its last slot that was delivered here: maxRate in paper 000, Lemma 5.1."""
        return self._bursts[member]
