"""The CBR order of paper 000 §4, as errata 000-1 to 000-12 correct it: reliable total order without failures.

Every member sends at a constant rate of its own: in a cycle (one second of absolute clock) a member of rate r has r
turns, turn k at clock = cycle + k/r, with the message that is queued or else a dummy. Everybody knows all rates, so
everybody knows in which order the turns of a cycle were sent by clocks without difference (Porder), and delivers in
that order. A message is delivered within Δ+Γ of its turn, whatever the rates (Theorem 1).

The paper's names are kept: Porder and `current`, the modes of figure 2, Squeue (which holds one message, since more
would wait for more than a period) and Rqueue. A rate holds for whole cycles; each frame's header declares the rate of
the next one, so renegotiation takes no turn (000-5) and needs no instant within a cycle (000-12). On the wire each
turn is a slot of its own; in deliveries the slot is that of Θ in which the turn was due, and the place is the number
of turns processed before: the k of Lemma 4.1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from unisono.errors import InvalidOption, MessageTooLarge
from unisono.model.durations import NS_PER_S
from unisono.model.events import Batch, LeaveComplete, PackedMessages, StackEvent, ViewChange, Violation, ViolationKind
from unisono.model.policy import Policy
from unisono.model.rates import Rate, Reserver
from unisono.model.timing import Timing
from unisono.model.views import View
from unisono.orders.cbr.bounds import latency_bound_ns, turn_bound_ns
from unisono.orders.cbr.modes import CBR_ACCEPTED_INPUTS, CBR_RUNNING, CBR_TRANSITIONS, CbrAction, CbrInput, CbrMode
from unisono.orders.cbr.rates import RateRenegotiation, frames_per_turn, whole_rate
from unisono.orders.cbr.turns import (
    CYCLE_NS,
    RATE_MAX,
    Porder,
    cycle_and_turn,
    due_ns,
    initial_porder,
    period_ns,
    turn_number,
    update_porder,
)
from unisono.orders.clock_reports import ClockReports
from unisono.orders.formation import RateExchange
from unisono.orders.packing import FramePayload, Packer
from unisono.orders.receive_queue import Rqueue, SlotFrames
from unisono.wire.control import decode_hello
from unisono.wire.frame import END_OF_SLOT, FIRST_FRAGMENT, FRAGMENT, LEAVING, MORE_FRAGMENTS, Frame, Kind
from unisono.wire.packed_messages import ReassembledMessage

HORIZON_NS = NS_PER_S
"""A frame from a turn further ahead of our clock than this, beyond Γ, is absurd."""


class Cbr(ClockReports):
    """The automaton of one member."""

    def __init__(self, policy: Policy, reserver: Reserver) -> None:
        for field, asked in (("failures", policy.failures), ("loss_burst", policy.loss_burst), ("fec", policy.fec)):
            if asked:
                raise InvalidOption(field, "the CBR order tolerates neither failures nor loss; choose vbr")
        super().__init__()
        self.down: list[Frame] = []
        self.events: list[StackEvent] = []
        self.ignored: Counter[str] = Counter()
        self.mode = CbrMode.GET_RATE
        self.view = policy.view
        timing = policy.timing
        # The exchange's slots are cycles: the group starts with a cycle, at the same one everywhere (000-7).
        cycles = Timing(timing.delta_ns, timing.gamma_ns, CYCLE_NS)
        self.exchange = RateExchange(replace(policy, timing=cycles), check_clocks=True)
        self.exchange.down = self.down
        self._policy = policy
        self._timing = timing
        frames_per_turn(policy)
        self._renegotiation = RateRenegotiation(policy, reserver, self.down)
        self._multicast = False
        # Sending.
        self._packer = Packer(policy.max_frame)
        self._squeue: bytes | None = None
        self._first_cycle_ns = 0
        self._send_cycle = 0
        self._send_turn = 0
        self._sending = False
        self._leaving = False
        self._sequence = 0
        # Delivering.
        self._rqueues = {member: Rqueue() for member in policy.view.members}
        self.rate: dict[int, int] = {}
        """rate[j] in the cycle being delivered, for each member in it."""
        self.porder: Porder = ()
        self.current = 0
        self.cycle = 0
        self.processed = 0
        """How many turns have been processed since the start."""
        self._turns_processed: dict[int, int] = {}
        self._declared_next_rates: dict[int, int] = {}
        """The rate that each member's last processed turn declared for the next cycle; 0 if it leaves."""
        self._index = 0
        self._late_reported = False
        self._late_checked_ns = 0
        self.window_slots = self._window_turns(self._renegotiation.rate)

    def _window_turns(self, rate: int) -> int:
        """How many turns a member may have sent that it has not delivered: those of Δ+Γ, and a few."""
        return -(-turn_bound_ns(self._timing) * rate // CYCLE_NS) + 3

    def _change_mode(self, action: CbrAction) -> None:
        self.mode = CBR_TRANSITIONS[self.mode, action]

    # -- inputs ----------------------------------------------------------------------------------------------

    def submit(self, now: int, messages: Sequence[bytes]) -> int:
        """Take the message of the next turn; a turn that is due at this very instant is the next one."""
        largest = max(map(len, messages), default=0)
        if largest > self._policy.max_message:
            raise MessageTooLarge(largest, self._policy.max_message)
        if CbrInput.SUBMIT not in CBR_ACCEPTED_INPUTS[self.mode] or self._leaving:
            return 0
        taken = 0
        for until in (now - 1, now):
            self._send_due_turns(now, until)
            if taken < len(messages) and self._has_room(now):
                self._squeue = messages[taken]
                taken += 1
        self._deliver_ready_turns()
        return taken

    def _has_room(self, now: int) -> bool:
        """One message at a time, at most a period before its turn, and none while own turns are not delivered."""
        return (
            self._squeue is None
            and self._own_turn_due_ns() - now <= period_ns(self._renegotiation.rate)
            and len(self._rqueues[self._policy.member].slots) < self._window_turns(self._renegotiation.rate)
        )

    def from_below(self, now: int, frame: Frame) -> None:
        """net-receive."""
        takes = CBR_ACCEPTED_INPUTS[self.mode]
        if frame.kind is Kind.HELLO:
            if CbrInput.HELLO in takes:
                self._on_hello(now, frame)
            return
        if (CbrInput.DATA if frame.kind is Kind.DATA else CbrInput.RESERVATION) not in takes:
            self.ignored[f"{frame.kind.name.lower()} in mode {self.mode}"] += 1
        elif frame.epoch != self._policy.epoch or self.exchange.incarnation(frame.sender) != frame.incarnation:
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
            self.ignored["a kind that this order does not have"] += 1

    def _on_hello(self, now: int, frame: Frame) -> None:
        hello = decode_hello(bytes(frame.body))
        if hello is not None and self.mode not in CBR_RUNNING:
            problem = None
            if hello.avg != int(hello.avg) or not 1 <= hello.avg <= RATE_MAX:
                problem = f"declares {hello.avg:g} messages per second; a whole number is needed, 1 to {RATE_MAX:,}"
            elif not self._renegotiation.reserve_first_rate(frame.sender, int(hello.avg)):
                problem = f"declares {hello.avg:g} messages per second, and there is no room to receive them"
            if problem is not None:
                if self.exchange.problems.get(frame.sender) != problem:
                    self.exchange.problems[frame.sender] = problem
                    self.events.append(
                        Violation(ViolationKind.RATE_REFUSED, f"member {frame.sender} {problem}", frame.sender)
                    )
                return
        violation = self.exchange.from_below(now, frame)
        if violation is not None:
            self.events.append(violation)
        self._multicast = self.exchange.reaches_all_by_multicast()
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
            self.ignored["no turn of this order"] += 1
        elif not self._rqueues[sender].add(frame):
            self.ignored["duplicate"] += 1
        else:
            self._deliver_ready_turns()

    def change_rate(self, now: int, rate: Rate) -> None:
        """new-rate: in force from a cycle's start on, the next one if this cycle's last turn is not sent yet."""
        if CbrInput.NEW_RATE not in CBR_ACCEPTED_INPUTS[self.mode]:
            return
        whole = whole_rate(rate)
        self._policy.check_rate(rate)
        self._send_due_turns(now, now)
        self._deliver_ready_turns()
        self._renegotiation.request_rate(whole)
        self._change_mode(CbrAction.NEW_RATE)
        if self.mode is CbrMode.RESERVE and now >= self._first_cycle_ns:
            self._renegotiation.send_requests(now)
        self._first_reserve()

    def leave(self, now: int) -> None:
        """End with this cycle, or with the next one if this cycle's last turn has been sent."""
        if self.mode in CBR_RUNNING:
            self._send_due_turns(now, now)
            self._leaving = True
            self._deliver_ready_turns()
        elif self.mode is not CbrMode.LEFT:
            self._depart(self._timing.slot_of(now))

    def wake(self, now: int) -> None:
        """Time has passed."""
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
        """The next turn's start, the moment at which the turn being delivered is late, or a HELLO."""
        if self.mode is CbrMode.GET_RATE:
            return 0
        if self.mode is CbrMode.LEFT:
            return None
        due = self.exchange.wake_at()
        times = [] if due is None else [due]
        if self.mode in CBR_RUNNING:
            if self._sending:
                times.append(self._own_turn_due_ns())
            if not self._late_reported:
                # An arrival at that very instant still counts (erratum 000-22).
                times.append(self._late_at() + 1)
        return min(times, default=None)

    # -- starting and leaving --------------------------------------------------------------------------------

    def _first_reserve(self) -> None:
        """reserve, as far as it can be done: by a receiver, when it has heard everybody's rate."""
        if self.mode is CbrMode.FIRST_RESERVE and self._renegotiation.are_first_rates_reserved():
            self._change_mode(CbrAction.RESERVE)

    def _start_deliver(self, now: int) -> None:
        """start-deliver: every rate is known."""
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
        return due_ns(self._send_cycle, self._send_turn, self._renegotiation.rate)

    def _send_due_turns(self, now: int, until: int) -> None:
        """net-mcast or dummy, for each turn that has begun; a clock that leapt may have begun several."""
        while self._sending and self.mode in CBR_RUNNING and self._own_turn_due_ns() <= until:
            self._send(now)

    def _send(self, now: int) -> None:
        """One turn: what is queued, else a dummy (000-6, 000-9)."""
        if self._send_turn == 0:
            self._renegotiation.send_requests(now)
        message, self._squeue = self._squeue, None
        loads: list[FramePayload | None] = [None]
        if message is not None:
            loads = [*self._packer.add([message], [len(message)]), self._packer.flush()]
            if loads[-1] is None:
                loads.pop()
        last = self._send_turn == self._renegotiation.rate - 1
        declared = self._renegotiation.decide_next_rate() if last else self._renegotiation.declared_rate()
        ends = END_OF_SLOT | (LEAVING if last and self._leaving else 0)
        for number, load in enumerate(loads):
            self._emit(now, number, load, ends if number == len(loads) - 1 else 0, declared)
        self._sequence += message is not None
        self._send_turn += 1
        if last:
            self._send_cycle, self._send_turn = self._send_cycle + 1, 0
            self._sending = not self._leaving
            if self._renegotiation.adopt_next_rate():
                self._change_mode(CbrAction.RESERVE)

    def _emit(self, now: int, number: int, payload: FramePayload | None, flags: int, declared: int) -> None:
        run = None if payload is None else payload.packed_messages
        body: bytes | memoryview = b""
        if payload is not None and payload.fragment is not None:
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
            turn_number(self._send_cycle, self._send_turn),
            number,
            flags,
            declared,
            self._sequence,
            now,
            run,
            body,
            multicast=self._multicast,
        )
        self.down.append(frame)
        self._rqueues[policy.member].add(frame)

    # -- delivering ------------------------------------------------------------------------------------------

    def _deliver_ready_turns(self) -> None:
        """deliver, handle-dummy, change-rate: go on for as long as the turn that is next has arrived."""
        while self.mode in CBR_RUNNING:
            if self.current == len(self.porder):
                self._finish_cycle()
                continue
            sender = self.porder[self.current]
            number = turn_number(self.cycle, self._turns_processed[sender])
            frames = self._rqueues[sender].slots.get(number)
            if frames is None or frames.last_number is None or len(frames.waiting) <= frames.last_number:
                return
            self._process(sender, frames)
            del self._rqueues[sender].slots[number]

    def _process(self, sender: int, frames: SlotFrames) -> None:
        """One turn of Porder."""
        arrived = [frames.waiting[number] for number in range(len(frames.waiting))]
        first, last = arrived[0], arrived[-1]
        run: PackedMessages | None = last.packed_messages
        if last.flags & FRAGMENT:
            run = ReassembledMessage([frame.body for frame in arrived])
        if run is not None:
            slot = self._timing.slot_of(due_ns(self.cycle, self._turns_processed[sender], self.rate[sender]))
            place = (self.processed, self._index)
            self.events.append(Batch(sender, first.incarnation, slot, first.first_sequence, *place, 1, [run]))
            self._index += 1
        self._declared_next_rates[sender] = 0 if last.flags & LEAVING else last.burst
        self._turns_processed[sender] += 1
        self.current += 1
        self.processed += 1
        self._late_reported = False

    def _finish_cycle(self) -> None:
        """change-rate: the next cycle has the rates that the last turns of this one declared."""
        self.exchange.stop()
        gone = tuple(member for member in self.rate if self._declared_next_rates[member] == 0)
        end = due_ns(self.cycle + 1, 0, 1)
        if self._policy.member in gone:
            self._depart(self._timing.slot_of(end - 1))
            return
        for member, rate in self._declared_next_rates.items():
            if rate != self.rate[member]:
                self.porder, _ = update_porder(self.porder, 0, self.rate, member, rate)
                self.rate[member] = rate
        self.cycle, self.current = self.cycle + 1, 0
        self.rate = {member: rate for member, rate in self.rate.items() if rate}
        for member in gone:
            self.view = self.view.without(member, self._timing.slot_of(end))
        self._turns_processed = dict.fromkeys(self.rate, 0)
        self._declared_next_rates = {}
        self._renegotiation.on_cycle_start(self.rate)
        self.window_slots = self._window_turns(max(self.rate.values()))
        if gone:
            self.events.append(ViewChange(self.view, left=gone))

    def _late_at(self) -> int:
        """When the turn being delivered is late: Δ+Γ after it was due, by our clock."""
        sender = self.porder[self.current]
        return due_ns(self.cycle, self._turns_processed[sender], self.rate[sender]) + turn_bound_ns(self._timing)

    def _check_late(self, now: int) -> None:
        """Without failures nothing may be later than that; if something is, say whom we wait for."""
        self._late_checked_ns = now
        if self.mode not in CBR_RUNNING or self._late_reported or now <= self._late_at():
            return
        self._late_reported = True
        sender = self.porder[self.current]
        turn = self._turns_processed[sender]
        slot = self._timing.slot_of(due_ns(self.cycle, turn, self.rate[sender]))
        what = f"its turn {turn} of cycle {self.cycle} has not come Δ+Γ after it was due"
        self._report_late(now, sender, slot, what)

    # -- questions -------------------------------------------------------------------------------------------

    def latest_slot(self, now: int) -> int:
        """The last turn that a right sender could be in."""
        return turn_number((now + self._timing.gamma_ns + HORIZON_NS) // CYCLE_NS + 2, 0) - 1

    def bound_ns(self) -> int:
        """Theorem 1, and a period of the slowest member known: AppLatency from submission, as rates are now."""
        known = [*self.rate.values(), self._renegotiation.rate, self._renegotiation.declared_rate()]
        return latency_bound_ns(self._timing, min(known))

    def keeps_sending_to_departed(self) -> bool:
        """Who has left has left."""
        return False

    def gap_free(self) -> bool:
        """Without failures there are no gaps (Definition 1)."""
        return True

    def waiting_for(self) -> tuple[int, ...]:
        """Members that the rate exchange still lacks."""
        return () if self.mode in CBR_RUNNING else self.exchange.missing()

    def running(self) -> bool:
        """Whether messages are taken and delivered."""
        return self.mode in CBR_RUNNING

    def peer_rate(self, peer: int) -> Rate | None:
        """What a peer declared last."""
        declared = self.exchange.rate(peer)
        return declared if declared is None else replace(declared, avg=self.rate.get(peer, declared.avg))

    def done_slot(self) -> int:
        """The last slot of which nothing more will be delivered here; while a turn is late, nothing at all will."""
        if self.mode not in CBR_RUNNING:
            return 0
        waits_ns = self._late_checked_ns if self._late_reported else self._late_at() - turn_bound_ns(self._timing)
        return max(0, self._timing.slot_of(waits_ns) - 1)

    def by_multicast(self) -> bool:
        """Whether every peer has heard this member by IP multicast."""
        return self._multicast
