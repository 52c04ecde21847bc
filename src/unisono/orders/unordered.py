"""Multicast without a total order (paper 002 §2.2): messages are delivered as the layers below pass them up.

This is the top of a stack of services. The layers below decide whether delivery is FIFO, causal or uniform
(net/services). The group forms as for the orders, and members declare and keep rates.

Sending: `submit` sends messages at once, as far as the declared rate allows. A member delivers its own messages when it
sends them, unless delivery is uniform: then they come back from below like those of its peers.
Receiving: `from_below` delivers each frame at once and reassembles fragmented messages.
Membership: a crashed member stays in the view, since no member waits for it. A member that leaves announces it with its
last frame.

AppLatency is Δ, the time in which reliable multicast reaches all members; an earlier message that delivery waits for
was also sent earlier. Uniform delivery also waits for reports of which members have the message, so it is 2Δ+Θ.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from unisono.errors import MessageTooLarge
from unisono.model.capabilities import CAPABILITIES
from unisono.model.events import POSITIONS_PER_SENDER, Batch, LeaveComplete, StackEvent, View, ViewChange
from unisono.model.policy import Policy
from unisono.model.units import NS_PER_S, BandwidthReservation, Rate, Reserver
from unisono.orders.contract import ACCEPTED_INPUTS, Input, Mode
from unisono.orders.formation import RateExchange
from unisono.orders.packing import FramePayload, Pacer, Packer, reservation
from unisono.wire.frame import (
    END_OF_SLOT,
    FIRST_FRAGMENT,
    FRAGMENT,
    LEAVING,
    MORE_FRAGMENTS,
    Frame,
    Kind,
    ReassembledMessage,
)

HORIZON_NS = NS_PER_S
"""Refuse frames of slots that are more than this and Γ ahead of our clock."""
MAX_EARLY_FRAMES = 1 << 14
"""How many frames are kept that arrive before this member knows that the group has started."""
MAX_PARTIAL_MESSAGES = 1 << 10
"""How many incomplete messages are kept per sender; beyond that the oldest one is dropped."""


@dataclass(slots=True)
class _PartialMessage:
    """The fragments of a message that have arrived, by frame number."""

    bodies: dict[int, bytes | memoryview] = field(default_factory=dict)
    first_number: int | None = None
    last_number: int | None = None

    def add(self, frame: Frame) -> bool:
        """Store a fragment. Returns True if the message is complete."""
        self.bodies[frame.number] = frame.body
        if frame.flags & FIRST_FRAGMENT:
            self.first_number = frame.number
        if not frame.flags & MORE_FRAGMENTS:
            self.last_number = frame.number
        return (
            self.first_number is not None
            and self.last_number is not None
            and len(self.bodies) == self.last_number - self.first_number + 1
        )

    def assemble(self) -> ReassembledMessage:
        """The complete message."""
        return ReassembledMessage([self.bodies[number] for number in sorted(self.bodies)])


class Unordered:
    """The automaton of one member."""

    def __init__(self, policy: Policy, reserver: Reserver) -> None:
        self.down: list[Frame] = []
        self.events: list[StackEvent] = []
        self.ignored: Counter[str] = Counter()
        self.mode = Mode.GET_RATE
        self.view = policy.view
        self.exchange = RateExchange(policy)
        self.exchange.down = self.down
        self._policy = policy
        self._timing = policy.timing
        self._reserver = reserver
        reserver.reserve(reservation(policy, policy.rate))
        self._uniform = "uniform" in CAPABILITIES[policy.order].services
        self._multicast = False
        # Sending.
        self._packer = Packer(policy.max_frame)
        self._pacer = Pacer(policy.rate, policy.timing.theta_ns, policy.max_message)
        self._new_rate: Rate | None = None
        self._slot = self._next_frame_number = self._sequence = 0
        self._submissions_waiting = False
        """Whether messages were refused that the application will submit again in the next slot."""
        self._leaving = False
        # Delivering.
        self._index = 0
        self._early_frames: list[Frame] = []
        self._partial_messages: dict[int, dict[int, _PartialMessage]] = {member: {} for member in policy.view.members}
        """The incomplete messages, by sender and message number."""
        self.window_slots = -(-(self._timing.delta_ns + self._timing.gamma_ns) // self._timing.theta_ns) + 3

    # -- inputs ----------------------------------------------------------------------------------------------

    def submit(self, now: int, messages: Sequence[bytes]) -> int:
        """app-mcast: send as many of the messages at once as the declared rate allows now. Returns how many."""
        if Input.SUBMIT not in ACCEPTED_INPUTS[self.mode] or self._leaving:
            return 0
        sizes = list(map(len, messages))
        if max(sizes, default=0) > self._policy.max_message:
            raise MessageTooLarge(max(sizes), self._policy.max_message)
        self._submissions_waiting = True
        if now < self._timing.start_of(self.view.first_slot):
            return 0
        self._open_current_slot(now)
        count = min(len(sizes), self._pacer.messages_left())
        count = min(count, bisect_right(list(accumulate(sizes[:count])), self._pacer.bytes_left()))
        if count == 0:
            return 0
        self._submissions_waiting = count < len(sizes)
        messages, sizes = messages[:count], sizes[:count]
        self._pacer.record_sent(count, sum(sizes))
        self._pacer.check(self._policy.member)
        payloads: list[FramePayload] = self._packer.add(messages, sizes)
        rest = self._packer.flush()
        if rest is not None:
            payloads.append(rest)
        for position, payload in enumerate(payloads):
            self._emit(now, payload, END_OF_SLOT if position == len(payloads) - 1 else 0)
        return count

    def from_below(self, now: int, frame: Frame) -> None:
        """net-receive."""
        if frame.kind is Kind.HELLO:
            if Input.HELLO in ACCEPTED_INPUTS[self.mode]:
                violation = self.exchange.from_below(now, frame)
                if violation is not None:
                    self.events.append(violation)
                self._multicast = self.exchange.reaches_all_by_multicast()
                self._start_delivery()
            return
        if frame.kind is not Kind.DATA:
            self.ignored["frame kind not used by this order"] += 1
        elif self.mode is Mode.DELIVER_MESSAGES:
            self._receive_data(frame)
        elif self.mode is Mode.DET_RATE and len(self._early_frames) < MAX_EARLY_FRAMES:
            self._early_frames.append(frame)
        else:
            self.ignored["data in mode " + self.mode] += 1

    def change_rate(self, now: int, rate: Rate) -> None:
        """new-rate: in force from the next slot on. Until then the larger of both rates is reserved."""
        if Input.NEW_RATE not in ACCEPTED_INPUTS[self.mode]:
            return
        self._policy.check_rate(rate)
        new, old = reservation(self._policy, rate), reservation(self._policy, self._pacer.rate)
        self._reserver.reserve(
            BandwidthReservation(
                max(new.avg_bytes_per_s, old.avg_bytes_per_s),
                max(new.burst_bytes_per_slot, old.burst_bytes_per_slot),
                new.theta_ns,
            )
        )
        self._new_rate = rate

    def leave(self, now: int) -> None:
        """Announce the departure, after all messages."""
        if self.mode in {Mode.GET_RATE, Mode.DET_RATE}:
            self._depart(self._timing.slot_of(now))
        elif self.mode is Mode.DELIVER_MESSAGES and not self._leaving:
            self._leaving = True
            self._open_current_slot(now)
            self._emit(now, None, END_OF_SLOT | LEAVING)

    def wake(self, now: int) -> None:
        """Send HELLOs until the group starts, and open the current slot."""
        if self.mode is Mode.LEFT:
            return
        if self.mode is Mode.GET_RATE:
            self.mode = Mode.DET_RATE
        self.exchange.wake(now)
        self._start_delivery()
        if self.mode is Mode.DELIVER_MESSAGES:
            self._open_current_slot(now)
            self._submissions_waiting = False

    def wake_at(self) -> int | None:
        """When the next HELLO is due, or the next slot if messages or a new rate wait for it."""
        if self.mode is Mode.GET_RATE:
            return 0
        if self.mode is Mode.LEFT:
            return None
        due = self.exchange.wake_at()
        times = [] if due is None else [due]
        if self.mode is Mode.DELIVER_MESSAGES and (self._submissions_waiting or self._new_rate is not None):
            times.append(max(self._timing.end_of(self._slot), self._timing.start_of(self.view.first_slot)))
        return min(times, default=None)

    # -- starting and leaving --------------------------------------------------------------------------------

    def _start_delivery(self) -> None:
        """Start when the rates of all members are known, and deliver the frames that arrived before."""
        if self.mode is not Mode.DET_RATE or not self.exchange.complete:
            return
        self.mode = Mode.DELIVER_MESSAGES
        self.view = View(self.view.members, self.exchange.first_slot())
        self.events.append(ViewChange(self.view, joined=self.view.members))
        self._submissions_waiting = True
        early, self._early_frames = self._early_frames, []
        for frame in early:
            self._receive_data(frame)

    def _depart(self, final_slot: int) -> None:
        self.mode = Mode.LEFT
        self.events.append(LeaveComplete(final_slot))

    # -- sending ---------------------------------------------------------------------------------------------

    def _open_current_slot(self, now: int) -> None:
        slot = self._timing.slot_of(now)
        if slot <= self._slot:
            return
        self._slot, self._next_frame_number = slot, 0
        self._pacer.open_slot(slot, self._new_rate)
        if self._new_rate is not None:
            self._reserver.reserve(reservation(self._policy, self._new_rate))
            self._new_rate = None

    def _emit(self, now: int, payload: FramePayload | None, flags: int) -> None:
        body: bytes | memoryview = b""
        if payload is not None and payload.fragment is not None:
            body = payload.fragment
            flags |= FRAGMENT
            flags |= FIRST_FRAGMENT if payload.is_first_fragment else 0
            flags |= MORE_FRAGMENTS if payload.has_more_fragments else 0
        policy = self._policy
        frame = Frame(
            Kind.DATA,
            policy.member,
            policy.incarnation,
            policy.epoch,
            self._slot,
            self._next_frame_number,
            flags,
            self._pacer.rate.burst,
            self._sequence,
            now,
            None if payload is None else payload.packed_messages,
            body,
            multicast=self._multicast,
        )
        self._next_frame_number += 1
        if payload is not None:
            self._sequence += payload.messages_completed
        self.down.append(frame)
        if not self._uniform:
            self._deliver(frame)

    # -- delivering ------------------------------------------------------------------------------------------

    def _receive_data(self, frame: Frame) -> None:
        if frame.epoch != self._policy.epoch or self.exchange.incarnation(frame.sender) != frame.incarnation:
            self.ignored["another incarnation or epoch"] += 1
            return
        self._deliver(frame)

    def _deliver(self, frame: Frame) -> None:
        sender, packed = frame.sender, frame.packed_messages
        if frame.flags & FRAGMENT:
            partial_messages = self._partial_messages[sender]
            partial = partial_messages.setdefault(frame.first_sequence, _PartialMessage())
            if partial.add(frame):
                packed = partial_messages.pop(frame.first_sequence).assemble()
            elif len(partial_messages) > MAX_PARTIAL_MESSAGES:
                del partial_messages[min(partial_messages)]
        if packed is not None:
            sequence = frame.first_sequence
            position = sender * POSITIONS_PER_SENDER + sequence % POSITIONS_PER_SENDER
            self.events.append(
                Batch(sender, frame.incarnation, frame.slot, sequence, position, self._index, packed.count, [packed])
            )
            self._index += packed.count
        if frame.flags & LEAVING:
            self._on_departure(sender, frame.slot)

    def _on_departure(self, sender: int, slot: int) -> None:
        if sender == self._policy.member:
            self._depart(slot)
            return
        self.view = self.view.without(sender, self.view.first_slot)
        self.events.append(ViewChange(self.view, left=(sender,)))

    # -- questions -------------------------------------------------------------------------------------------

    def latest_slot(self, now: int) -> int:
        """The last slot that a frame arriving now may belong to."""
        return self._timing.slot_of(now + self._timing.gamma_ns + HORIZON_NS) + 1

    def bound_ns(self) -> int:
        """AppLatency: Δ, or 2Δ+Θ if delivery is uniform."""
        delta = self._timing.delta_ns
        return 2 * delta + self._timing.theta_ns if self._uniform else delta

    def keeps_sending_to_departed(self) -> bool:
        """Yes: a departed member cannot come back, but it may still broadcast copies that its peers need."""
        return True

    def gap_free(self) -> bool:
        """No: there is no total order to be free of gaps. The checker checks agreement."""
        return False

    def waiting_for(self) -> tuple[int, ...]:
        """The members that the rate exchange still waits for."""
        return () if self.mode is Mode.DELIVER_MESSAGES else self.exchange.missing()

    def running(self) -> bool:
        """Whether the order accepts and delivers messages."""
        return self.mode is Mode.DELIVER_MESSAGES

    def why_not_formed(self) -> str:
        """Why HELLOs of peers were refused; empty if none was."""
        return "; ".join(f"member {peer} {problem}" for peer, problem in sorted(self.exchange.problems.items()))

    def peer_rate(self, peer: int) -> Rate | None:
        """The rate that a peer declared at the start, or None."""
        return self.exchange.rate(peer)

    def by_multicast(self) -> bool:
        """Whether every peer has received this member's HELLO by IP multicast."""
        return self._multicast
