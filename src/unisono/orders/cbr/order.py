"""CBR: total order without failures, at constant rates (paper 000 §4, errata 000-1 to 000-12).

Time is divided into cycles of one second, numbered from the Unix epoch. Each member declares a rate of its own. A
member of rate r has r turns per cycle and sends one message or one dummy in each. Turn k is due at the start of the
cycle plus k/r. Every member knows all rates, and so the order in which perfect clocks would send the turns of a cycle:
Porder (turns.py). All members deliver in that order. A message is delivered within Δ+Γ of its turn (paper 000, Theorem
1).

Sending: `submit` queues the message of the next turn; `_send_due_turns` sends each turn when it is due, from `wake`.
Receiving: `from_below` stores frames per sender and turn; `_deliver_ready_turns` delivers every turn that is next in
Porder and complete.
Rates: a rate holds for whole cycles. Each frame header declares the sender's rate of the next cycle, so a rate change
takes no turn of its own (000-5) and happens only between cycles (000-12). `_finish_cycle` switches to the declared
rates.

The names are the paper's: Porder, `current`, the modes of figure 2, Squeue and Rqueue. Squeue holds a single message,
since a second one would wait for more than a period. On the wire the slot field holds the turn number. In deliveries,
the slot is the slot of length Θ in which the turn was due. The position is the number of turns processed before, the k
of paper 000, Lemma 4.1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum

from unisono.errors import InvalidOption, InvariantViolated
from unisono.model.events import Batch, LeaveComplete, PackedMessages, View, ViewChange, Violation, ViolationKind
from unisono.model.policy import Policy
from unisono.model.timing import Throttle, Timing
from unisono.model.units import NS_PER_S, Rate, Reserver
from unisono.orders.cbr.bounds import latency_bound_ns, turn_bound_ns
from unisono.orders.cbr.turns import (
    CYCLE_NS,
    RATE_MAX,
    Porder,
    RateRenegotiation,
    cycle_and_turn,
    due_ns,
    frames_per_turn,
    initial_porder,
    period_ns,
    turn_number,
    update_porder,
    whole_rate,
)
from unisono.orders.contract import OrderBase
from unisono.orders.packing import NO_MESSAGES, FramePayload, Packer, Rqueue, SlotFrames, checked_sizes
from unisono.wire.codec import message_in
from unisono.wire.control import Hello
from unisono.wire.frame import END_OF_SLOT, FRAGMENT, LEAVING, Frame, Kind, ReassembledMessage

HORIZON_NS = NS_PER_S
"""Refuse frames of turns that are due more than this time plus Γ ahead of this member's clock."""

# -- the modes: figure 2 as a table ----------------------------------------------------------------------------------


class CbrMode(StrEnum):
    """The modes of the CBR order (paper 000, figure 2), and LEFT, which the paper leaves out."""

    GET_RATE = "GetRate"
    FIRST_RESERVE = "FirstReserve"
    DET_ORDER = "DetOrder"
    DELIVER_MESSAGES = "DeliverMessages"
    RESERVE = "Reserve"
    LEFT = "Left"


class CbrAction(StrEnum):
    """The actions that change the mode of the CBR order."""

    INIT_RATE = "init-rate"
    RESERVE = "reserve"
    NEW_RATE = "new-rate"
    START_DELIVER = "start-deliver"
    LEAVE = "leave"


CBR_TRANSITIONS: dict[tuple[CbrMode, CbrAction], CbrMode] = {
    (CbrMode.GET_RATE, CbrAction.INIT_RATE): CbrMode.FIRST_RESERVE,
    (CbrMode.GET_RATE, CbrAction.NEW_RATE): CbrMode.GET_RATE,
    (CbrMode.FIRST_RESERVE, CbrAction.RESERVE): CbrMode.DET_ORDER,
    # 000-8: as in DetOrder, Porder is not known yet.
    (CbrMode.FIRST_RESERVE, CbrAction.NEW_RATE): CbrMode.FIRST_RESERVE,
    (CbrMode.DET_ORDER, CbrAction.NEW_RATE): CbrMode.FIRST_RESERVE,
    (CbrMode.DET_ORDER, CbrAction.START_DELIVER): CbrMode.DELIVER_MESSAGES,
    (CbrMode.DELIVER_MESSAGES, CbrAction.NEW_RATE): CbrMode.RESERVE,
    (CbrMode.RESERVE, CbrAction.NEW_RATE): CbrMode.RESERVE,
    (CbrMode.RESERVE, CbrAction.RESERVE): CbrMode.DELIVER_MESSAGES,
    **{(mode, CbrAction.LEAVE): CbrMode.LEFT for mode in CbrMode if mode is not CbrMode.LEFT},
}
"""By mode and action, the mode after that action (paper 000, figure 2).

The mode RESERVE lasts until a new rate is in force; deliveries continue in it.
"""


class CbrInput(StrEnum):
    """The inputs of the CBR automaton whose effect depends on its mode."""

    SUBMIT = "app-mcast"
    HELLO = "rate received"
    DATA = "net-receive"
    RESERVATION = "new-rate or reservation received"
    NEW_RATE = "new-rate"
    LEAVE = "leave"


CBR_ACCEPTED_INPUTS: dict[CbrMode, frozenset[CbrInput]] = {
    CbrMode.GET_RATE: frozenset({CbrInput.HELLO, CbrInput.NEW_RATE, CbrInput.LEAVE}),
    CbrMode.FIRST_RESERVE: frozenset({CbrInput.HELLO, CbrInput.NEW_RATE, CbrInput.LEAVE}),
    CbrMode.DET_ORDER: frozenset({CbrInput.HELLO, CbrInput.DATA, CbrInput.NEW_RATE, CbrInput.LEAVE}),
    CbrMode.DELIVER_MESSAGES: frozenset(CbrInput),
    CbrMode.RESERVE: frozenset(CbrInput),
    CbrMode.LEFT: frozenset(),
}
"""By mode, the inputs that have an effect in it. Others are ignored; submissions then stay with the application."""

CBR_RUNNING = frozenset({CbrMode.DELIVER_MESSAGES, CbrMode.RESERVE})
"""The modes in which members send and deliver turns."""

# -- the automaton ---------------------------------------------------------------------------------------------------


class CbrOrder(OrderBase):
    """One member's automaton of the order `cbr`."""

    gap_free = True
    keeps_sending_to_departed = False  # a member that has left cannot come back

    def __init__(self, policy: Policy, reserver: Reserver) -> None:
        for field, asked in (("failures", policy.failures), ("loss_burst", policy.loss_burst), ("fec", policy.fec)):
            if asked:
                raise InvalidOption(field, "the CBR order tolerates neither failures nor loss; use the order vbr")
        timing = policy.timing
        # The slots of the rate exchange are cycles, so all members start with the same cycle (000-7).
        cycles = Timing(timing.delta_ns, timing.gamma_ns, CYCLE_NS)
        super().__init__(replace(policy, timing=cycles), check_clocks=True)
        self.mode = CbrMode.GET_RATE
        self.view = policy.view
        self._policy = policy
        self._timing = timing
        frames_per_turn(policy)
        self._renegotiation = RateRenegotiation(policy, reserver, self.down)
        # Sending.
        self._packer = Packer(policy.max_frame)
        self._squeue: bytes | None = None
        self._first_cycle_ns = 0
        self._send_cycle = 0
        self._send_turn_index = 0
        self._sending = False
        self._leaving = False
        self._sequence = 0
        # Delivering.
        self._rqueues = {member: Rqueue() for member in policy.view.members}
        self.rate: dict[int, int] = {}
        """By member, its rate in the cycle being delivered (paper 000: rate[j])."""
        self.porder: Porder = ()
        self.current = 0
        """The position in Porder of the next turn to process."""
        self.cycle = 0
        """The number of the cycle whose turns are being delivered."""
        self.processed = 0
        """The number of turns, of all members, processed since the group started."""
        self._turns_processed: dict[int, int] = {}
        """By sender, how many of its turns in the present cycle have been processed."""
        self._declared_next_rates: dict[int, int] = {}
        """The rate that each member's last processed turn declared for the next cycle; 0 if the member leaves."""
        self._index = 0
        self._late_reported = False
        self._late_checked_ns = 0
        self._throttle = Throttle()
        self.window_slots = self._window_turns(self._renegotiation.rate)

    def _window_turns(self, rate: int) -> int:
        """How many of its own turns a member may have sent and not delivered: those of a time Δ+Γ, and three more."""
        return -(-turn_bound_ns(self._timing) * rate // CYCLE_NS) + 3

    def _change_mode(self, action: CbrAction) -> None:
        self.mode = CBR_TRANSITIONS[self.mode, action]

    # -- inputs ----------------------------------------------------------------------------------------------

    def submit(self, now: int, messages: Sequence[bytes]) -> int:
        """Queue the first message for this member's next turn, and a second one if that turn is due right now.

        Returns how many messages were accepted.
        """
        checked_sizes(messages, self._policy.max_message)
        if CbrInput.SUBMIT not in CBR_ACCEPTED_INPUTS[self.mode] or self._leaving:
            return 0
        accepted = 0
        for until in (now - 1, now):
            self._send_due_turns(now, until)
            if accepted < len(messages) and self._has_room(now):
                self._squeue = messages[accepted]
                accepted += 1
        self._deliver_ready_turns()
        return accepted

    def _has_room(self, now: int) -> bool:
        """Whether this member may accept a message for its next turn.

        It may if no message is queued, the turn is at most a period away, and few of its own turns are undelivered.
        """
        return (
            self._squeue is None
            and self._own_turn_due_ns() - now <= period_ns(self._renegotiation.rate)
            and len(self._rqueues[self._policy.member].slots) < self._window_turns(self._renegotiation.rate)
        )

    def from_below(self, now: int, frame: Frame) -> None:
        """Process a frame that has arrived: a HELLO, a turn, or a message about rates."""
        accepted_inputs = CBR_ACCEPTED_INPUTS[self.mode]
        if frame.kind is Kind.HELLO:
            if CbrInput.HELLO in accepted_inputs:
                self._on_hello(now, frame)
            return
        if (CbrInput.DATA if frame.kind is Kind.DATA else CbrInput.RESERVATION) not in accepted_inputs:
            self.ignored[f"{frame.kind.name.lower()} in mode {self.mode}"] += 1
        elif frame.epoch != self._policy.epoch or self.exchange.incarnations.get(frame.sender) != frame.incarnation:
            self.ignored["another incarnation or epoch"] += 1
        elif self.mode in CBR_RUNNING and frame.sender not in self.rate:
            self.ignored["sender has left"] += 1
        elif frame.kind is Kind.DATA:
            self._on_data(frame)
        elif frame.kind in {Kind.NEW_RATE, Kind.RESERVED}:
            violation = self._renegotiation.receive(now, frame)
            if violation is not None:
                self.events.append(violation)
                self._change_mode(CbrAction.RESERVE)
        else:
            self.ignored["frame kind not used by this order"] += 1

    def _on_hello(self, now: int, frame: Frame) -> None:
        hello = message_in(frame, Hello)
        if self.mode not in CBR_RUNNING:
            problem = None
            if hello.avg != int(hello.avg) or not 1 <= hello.avg <= RATE_MAX:
                problem = (
                    f"declares {hello.avg:g} messages per second; the CBR order needs a whole number, 1 to {RATE_MAX:,}"
                )
            elif not self._renegotiation.reserve_first_rate(frame.sender, int(hello.avg)):
                problem = f"declares {hello.avg:g} messages per second; this member has no bandwidth to receive them"
            if problem is not None:
                if self.exchange.problems.get(frame.sender) != problem:
                    self.exchange.problems[frame.sender] = problem
                    self.events.append(
                        Violation(ViolationKind.RATE_REFUSED, f"member {frame.sender} {problem}", frame.sender)
                    )
                return
        self._receive_hello(now, frame)
        self._start_deliver(now)

    def _on_data(self, frame: Frame) -> None:
        sender = frame.sender
        _, turn = cycle_and_turn(frame.slot)
        if frame.slot < turn_number(self.cycle, self._turns_processed.get(sender, 0)):
            self.ignored["turn already delivered"] += 1
        elif (
            turn >= RATE_MAX
            or not 1 <= frame.burst <= RATE_MAX
            or (frame.packed_messages is not None and frame.packed_messages.count != 1)
        ):
            self.ignored["not a turn of this order"] += 1
        elif not self._rqueues[sender].add(frame):
            self.ignored["duplicate"] += 1
        else:
            self._deliver_ready_turns()

    def change_rate(self, now: int, rate: Rate) -> None:
        """Request another rate for this member (paper 000: new-rate).

        It is in force from the next cycle at the earliest; if this cycle's last turn has been sent, from the one after.
        """
        if CbrInput.NEW_RATE not in CBR_ACCEPTED_INPUTS[self.mode]:
            return
        whole = whole_rate(rate)
        self._policy.check_message_fits(rate)
        self._send_due_turns(now, now)
        self._deliver_ready_turns()
        self._renegotiation.request_rate(whole)
        self._change_mode(CbrAction.NEW_RATE)
        if self.mode is CbrMode.RESERVE and now >= self._first_cycle_ns:
            self._renegotiation.send_requests(now)
        self._first_reserve()

    def leave(self, now: int) -> None:
        """Leave at the end of this cycle, or of the next one if this cycle's last turn has been sent."""
        if self.mode in CBR_RUNNING:
            self._send_due_turns(now, now)
            self._leaving = True
            self._deliver_ready_turns()
        elif self.mode is not CbrMode.LEFT:
            self._depart(self._timing.slot_of(now))

    def wake(self, now: int) -> None:
        """Send the turns that are due, and report a turn that is late."""
        if self.mode is CbrMode.LEFT:
            return
        if self.mode is CbrMode.GET_RATE:
            self._change_mode(CbrAction.INIT_RATE)
            self._first_reserve()
        self.exchange.wake(now)
        self._start_deliver(now)
        self._send_due_turns(now, now)
        self._deliver_ready_turns()
        self._check_late(now)

    def wake_at(self) -> int | None:
        """When `wake` is due next; None if no timer is set.

        It is the earliest of: this member's next turn, the next HELLO, and when the next turn in Porder becomes late.
        """
        if self.mode is CbrMode.GET_RATE:
            return 0
        if self.mode is CbrMode.LEFT:
            return None
        due = self.exchange.next_hello_at
        times = [] if due is None else [due]
        if self.mode in CBR_RUNNING:
            if self._sending:
                times.append(self._own_turn_due_ns())
            if not self._late_reported:
                # An arrival at that very instant is still on time (erratum 000-22).
                times.append(self._late_at() + 1)
        return min(times, default=None)

    # -- starting and leaving --------------------------------------------------------------------------------

    def _first_reserve(self) -> None:
        """Complete the first reservation (paper 000: reserve).

        Under receiver-based reservation, this member must have reserved for the rates of all peers first.
        """
        if self.mode is CbrMode.FIRST_RESERVE and self._renegotiation.are_first_rates_reserved():
            self._change_mode(CbrAction.RESERVE)

    def _start_deliver(self, now: int) -> None:
        """Start delivery if the rates of all members are known (paper 000: start-deliver)."""
        self._first_reserve()
        if self.mode is not CbrMode.DET_ORDER or not self.exchange.complete:
            return
        self._change_mode(CbrAction.START_DELIVER)
        for member in self.view.members:
            declared = self.exchange.rate(member)
            self.rate[member] = self._renegotiation.rate if declared is None else int(declared.avg)
        self.porder = initial_porder(self.rate)
        self.cycle = self._send_cycle = self.exchange.first_slot()
        self._sending = True
        self._first_cycle_ns = due_ns(self.cycle, 0, 1)
        self._turns_processed = dict.fromkeys(self.rate, 0)
        self.window_slots = self._window_turns(max(self.rate.values()))
        for rqueue in self._rqueues.values():
            rqueue.forget_before(turn_number(self.cycle, 0))
        self.view = View(self.view.members, self._timing.slot_of(self._first_cycle_ns))
        self.events.append(ViewChange(self.view, joined=self.view.members))
        if self._renegotiation.requested_rate is not None:
            self._change_mode(CbrAction.NEW_RATE)
        self._send_due_turns(now, now)
        self._deliver_ready_turns()

    def _depart(self, final_slot: int) -> None:
        self._change_mode(CbrAction.LEAVE)
        self.events.append(LeaveComplete(final_slot))

    # -- sending ---------------------------------------------------------------------------------------------

    def _own_turn_due_ns(self) -> int:
        return due_ns(self._send_cycle, self._send_turn_index, self._renegotiation.rate)

    def _send_due_turns(self, now: int, until: int) -> None:
        """Send each own turn that is due by `until`; these are several if the clock has jumped."""
        while self._sending and self.mode in CBR_RUNNING and self._own_turn_due_ns() <= until:
            self._send_turn(now)

    def _send_turn(self, now: int) -> None:
        """Send this member's next turn: the queued message, or a dummy without one (errata 000-6, 000-9)."""
        if self._send_turn_index == 0:
            self._renegotiation.send_requests(now)
        message, self._squeue = self._squeue, None
        payloads = [NO_MESSAGES] if message is None else self._packer.pack_all([message], [len(message)])
        last = self._send_turn_index == self._renegotiation.rate - 1
        declared = self._renegotiation.decide_next_rate() if last else self._renegotiation.declared_rate()
        last_flags = END_OF_SLOT | (LEAVING if last and self._leaving else 0)
        for number, payload in enumerate(payloads):
            self._send_frame(now, number, payload, last_flags if number == len(payloads) - 1 else 0, declared)
        self._send_turn_index += 1
        if last:
            self._send_cycle, self._send_turn_index = self._send_cycle + 1, 0
            self._sending = not self._leaving
            if self._renegotiation.adopt_next_rate():
                self._change_mode(CbrAction.RESERVE)

    def _send_frame(self, now: int, number: int, payload: FramePayload, flags: int, declared: int) -> None:
        turn = turn_number(self._send_cycle, self._send_turn_index)
        frame = payload.data_frame(
            self._policy, now, turn, number, flags, burst=declared, sequence=self._sequence, multicast=self._multicast
        )
        self._sequence += payload.messages_completed
        self.down.append(frame)
        self._rqueues[self._policy.member].add(frame)

    # -- delivering ------------------------------------------------------------------------------------------

    def _deliver_ready_turns(self) -> None:
        """Process turns in Porder until the next one is not complete (paper 000: deliver, handle-dummy)."""
        while self.mode in CBR_RUNNING:
            if self.current == len(self.porder):
                self._finish_cycle()
                continue
            sender = self.porder[self.current]
            number = turn_number(self.cycle, self._turns_processed[sender])
            frames = self._rqueues[sender].slots.get(number)
            if frames is None or frames.last_number is None or len(frames.waiting) <= frames.last_number:
                return
            self._process_turn(sender, frames)
            del self._rqueues[sender].slots[number]

    def _process_turn(self, sender: int, frames: SlotFrames) -> None:
        """Deliver the message of one turn, if it has one, and record the rate that the turn declares."""
        arrived = [frames.waiting[number] for number in range(len(frames.waiting))]
        first, last = arrived[0], arrived[-1]
        packed: PackedMessages | None = last.packed_messages
        if last.flags & FRAGMENT:
            packed = ReassembledMessage([frame.body for frame in arrived])
        if packed is not None:
            slot = self._timing.slot_of(due_ns(self.cycle, self._turns_processed[sender], self.rate[sender]))
            position = (self.processed, self._index)
            self.events.append(Batch(sender, first.incarnation, slot, first.first_sequence, *position, 1, [packed]))
            self._index += 1
        self._declared_next_rates[sender] = 0 if last.flags & LEAVING else last.burst
        self._turns_processed[sender] += 1
        self.current += 1
        self.processed += 1
        self._late_reported = False

    def _finish_cycle(self) -> None:
        """Enter the next cycle with the rates that the members' last turns declared (paper 000: change-rate)."""
        self.exchange.stop()
        departed = tuple(member for member in self.rate if self._declared_next_rates[member] == 0)
        end = due_ns(self.cycle + 1, 0, 1)
        if self._policy.member in departed:
            self._depart(self._timing.slot_of(end - 1))
            return
        for member, rate in self._declared_next_rates.items():
            if rate != self.rate[member]:
                self.porder, _ = update_porder(self.porder, 0, self.rate, member, rate)
                self.rate[member] = rate
        self.cycle, self.current = self.cycle + 1, 0
        self.rate = {member: rate for member, rate in self.rate.items() if rate}
        for member in departed:
            self.view = self.view.without(member, self._timing.slot_of(end))
        self.check_porder()
        self._turns_processed = dict.fromkeys(self.rate, 0)
        self._declared_next_rates = {}
        self._renegotiation.on_cycle_start(self.rate)
        self.window_slots = self._window_turns(max(self.rate.values()))
        if departed:
            self.events.append(ViewChange(self.view, left=departed))

    def check_porder(self) -> None:
        """Raise InvariantViolated if Porder of a new cycle does not give each member as many turns as its rate."""
        turns, expected = Counter(self.porder), Counter(self.rate)
        if turns != expected:
            text = f"Porder of cycle {self.cycle} does not give each member as many turns as its rate"
            raise InvariantViolated("porder", self._policy.member, text, str(dict(expected)), str(dict(turns)))

    def _late_at(self) -> int:
        """The last clock reading at which the next turn is on time: Δ+Γ after it was due."""
        sender = self.porder[self.current]
        return due_ns(self.cycle, self._turns_processed[sender], self.rate[sender]) + turn_bound_ns(self._timing)

    def _check_late(self, now: int) -> None:
        """Report the member whose turn is late. Late turns break the assumption that no member fails."""
        self._late_checked_ns = now
        if self.mode not in CBR_RUNNING or self._late_reported or now <= self._late_at():
            return
        self._late_reported = True
        sender = self.porder[self.current]
        turn = self._turns_processed[sender]
        slot = self._timing.slot_of(due_ns(self.cycle, turn, self.rate[sender]))
        text = f"its turn {turn} of cycle {self.cycle} has not arrived Δ+Γ after it was due"
        if self._throttle.first_in_a_while(now, sender):
            self.events.append(Violation(ViolationKind.LATE, f"waiting for member {sender}: {text}", sender, slot))

    # -- questions -------------------------------------------------------------------------------------------

    def latest_slot(self, now: int) -> int:
        """The number of the last turn that a frame arriving now may belong to; frames of later turns are refused."""
        return turn_number((now + self._timing.gamma_ns + HORIZON_NS) // CYCLE_NS + 2, 0) - 1

    def bound_ns(self) -> int:
        """The latency bound from submission, at the present rates: Δ+Γ plus the slowest member's 1/rate."""
        known = [*self.rate.values(), self._renegotiation.rate, self._renegotiation.declared_rate()]
        return latency_bound_ns(self._timing, min(known))

    def running(self) -> bool:
        """Whether the order accepts and delivers messages."""
        return self.mode in CBR_RUNNING

    def peer_rate(self, peer: int) -> Rate | None:
        """The rate that a peer declared last, or None if it is not known yet."""
        declared = self.exchange.rate(peer)
        return declared if declared is None else replace(declared, avg=self.rate.get(peer, declared.avg))

    def done_slot(self) -> int:
        """The last slot that counts as finished here: normally, all its messages are delivered.

        While this member waits for a late turn, it delivers nothing. Then all slots before the last check for late
        turns count as finished, although the late turn may still arrive.
        """
        if self.mode not in CBR_RUNNING:
            return 0
        next_turn_ns = self._late_checked_ns if self._late_reported else self._late_at() - turn_bound_ns(self._timing)
        return max(0, self._timing.slot_of(next_turn_ns) - 1)

    def complete_slot(self) -> int | None:
        """The last slot of which no turn is delivered here any more; None before this member delivers."""
        if self.mode not in CBR_RUNNING:
            return None
        return self._timing.slot_of(self._late_at() - turn_bound_ns(self._timing)) - 1
