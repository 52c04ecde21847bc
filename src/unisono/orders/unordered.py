"""Multicast without a total order (paper 002 §2.2): delivered as the service below passes it up.

The group forms as for the orders, rates are declared and kept, a message leaves at once. What order there is, FIFO or
causal, and whether delivery is uniform, is the layers' matter; this is the top that gives it to the application. A
member's own messages are delivered to it as they are taken, unless the service is uniform: then they come back up like
everybody's. A member that crashes stays in the list, since nobody waits for it; one that leaves says so last.

AppLatency is Δ, the time within which reliable multicast reaches everyone; an earlier message that has to be waited
for was sent earlier. A uniform delivery also takes the news of who has the message: 2Δ+Θ.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from unisono.errors import MessageTooLarge
from unisono.model.capabilities import CAPABILITIES
from unisono.model.durations import NS_PER_S
from unisono.model.events import POSITIONS_PER_SENDER, Batch, LeaveComplete, StackEvent, ViewChange
from unisono.model.policy import Policy
from unisono.model.rates import BandwidthReservation, Rate, Reserver
from unisono.model.views import View
from unisono.net.pacer import Pacer
from unisono.orders.formation import RateExchange
from unisono.orders.modes import ACCEPTED_INPUTS, Input, Mode
from unisono.orders.packing import FramePayload, Packer, reservation
from unisono.wire.frame import END_OF_SLOT, FIRST_FRAGMENT, FRAGMENT, LEAVING, MORE_FRAGMENTS, Frame, Kind
from unisono.wire.packed_messages import ReassembledMessage

HORIZON_NS = NS_PER_S
"""A frame from a slot further ahead of our clock than this, beyond Γ, is absurd."""
MAX_EARLY_FRAMES = 1 << 14
"""How many frames are kept that come before this member knows that the group has begun."""
MAX_PARTIAL_MESSAGES = 1 << 10
"""How many messages of one sender may lack pieces; beyond that the oldest one is given up."""


@dataclass(slots=True)
class _PartialMessage:
    """A message that has come in part, by the numbers of its frames."""

    bodies: dict[int, bytes | memoryview] = field(default_factory=dict)
    first_number: int | None = None
    last_number: int | None = None

    def add(self, frame: Frame) -> bool:
        """Whether the message is whole now."""
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
        """Whether messages were turned away, to be offered again in the next slot."""
        self._leaving = False
        # Delivering.
        self._index = 0
        self._early_frames: list[Frame] = []
        self._partial_messages: dict[int, dict[int, _PartialMessage]] = {member: {} for member in policy.view.members}
        """By sender and the message's number."""
        self.window_slots = -(-(self._timing.delta_ns + self._timing.gamma_ns) // self._timing.theta_ns) + 3

    # -- inputs ----------------------------------------------------------------------------------------------

    def submit(self, now: int, messages: Sequence[bytes]) -> int:
        """Take what the declared rate has room for now; it is on its way when this returns."""
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
        loads: list[FramePayload] = self._packer.add(messages, sizes)
        rest = self._packer.flush()
        if rest is not None:
            loads.append(rest)
        for at, load in enumerate(loads):
            self._emit(now, load, END_OF_SLOT if at == len(loads) - 1 else 0)
        return count

    def from_below(self, now: int, frame: Frame) -> None:
        """A frame has been passed up."""
        if frame.kind is Kind.HELLO:
            if Input.HELLO in ACCEPTED_INPUTS[self.mode]:
                violation = self.exchange.from_below(now, frame)
                if violation is not None:
                    self.events.append(violation)
                self._multicast = self.exchange.reaches_all_by_multicast()
                self._start_delivery()
            return
        if frame.kind is not Kind.DATA:
            self.ignored["kind of another order"] += 1
        elif self.mode is Mode.DELIVER_MESSAGES:
            self._receive_data(frame)
        elif self.mode is Mode.DET_RATE and len(self._early_frames) < MAX_EARLY_FRAMES:
            self._early_frames.append(frame)
        else:
            self.ignored["data in mode " + self.mode] += 1

    def change_rate(self, now: int, rate: Rate) -> None:
        """new-rate: in force from the next slot on; the larger of both rates is reserved until then."""
        if Input.NEW_RATE not in ACCEPTED_INPUTS[self.mode]:
            return
        self._policy.check_rate(rate)
        asked, held = reservation(self._policy, rate), reservation(self._policy, self._pacer.rate)
        self._reserver.reserve(
            BandwidthReservation(
                max(asked.avg_bytes_per_s, held.avg_bytes_per_s),
                max(asked.burst_bytes_per_slot, held.burst_bytes_per_slot),
                asked.theta_ns,
            )
        )
        self._new_rate = rate

    def leave(self, now: int) -> None:
        """Say so, behind all that was sent."""
        if self.mode in {Mode.GET_RATE, Mode.DET_RATE}:
            self._depart(self._timing.slot_of(now))
        elif self.mode is Mode.DELIVER_MESSAGES and not self._leaving:
            self._leaving = True
            self._open_current_slot(now)
            self._emit(now, None, END_OF_SLOT | LEAVING)

    def wake(self, now: int) -> None:
        """Time has passed."""
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
        """A HELLO, or the slot in which there is room again."""
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
        """Every rate is known: what has come already is delivered."""
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
            self._slot,
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
        if not self._uniform:
            self._deliver(frame)

    # -- delivering ------------------------------------------------------------------------------------------

    def _receive_data(self, frame: Frame) -> None:
        if frame.epoch != self._policy.epoch or self.exchange.incarnation(frame.sender) != frame.incarnation:
            self.ignored["another incarnation or epoch"] += 1
            return
        self._deliver(frame)

    def _deliver(self, frame: Frame) -> None:
        sender, run = frame.sender, frame.packed_messages
        if frame.flags & FRAGMENT:
            pieced = self._partial_messages[sender]
            pieces = pieced.setdefault(frame.first_sequence, _PartialMessage())
            if pieces.add(frame):
                run = pieced.pop(frame.first_sequence).assemble()
            elif len(pieced) > MAX_PARTIAL_MESSAGES:
                del pieced[min(pieced)]
        if run is not None:
            place = sender * POSITIONS_PER_SENDER + frame.first_sequence % POSITIONS_PER_SENDER
            self.events.append(
                Batch(sender, frame.incarnation, frame.slot, frame.first_sequence, place, self._index, run.count, [run])
            )
            self._index += run.count
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
        """The last slot that a right sender could be in."""
        return self._timing.slot_of(now + self._timing.gamma_ns + HORIZON_NS) + 1

    def bound_ns(self) -> int:
        """Δ, or 2Δ+Θ where delivery is uniform."""
        delta = self._timing.delta_ns
        return 2 * delta + self._timing.theta_ns if self._uniform else delta

    def keeps_sending_to_departed(self) -> bool:
        """Who has left has left; but its peers may still need copies of what it has."""
        return True

    def gap_free(self) -> bool:
        """No total order is promised, so none without gaps; agreement is what is checked."""
        return False

    def waiting_for(self) -> tuple[int, ...]:
        """Members that the rate exchange still lacks."""
        return () if self.mode is Mode.DELIVER_MESSAGES else self.exchange.missing()

    def running(self) -> bool:
        """Whether messages are being taken and delivered."""
        return self.mode is Mode.DELIVER_MESSAGES

    def why_not_formed(self) -> str:
        """What peers' HELLOs were refused for."""
        return "; ".join(f"member {peer} {problem}" for peer, problem in sorted(self.exchange.problems.items()))

    def peer_rate(self, peer: int) -> Rate | None:
        """What a peer declared at the start."""
        return self.exchange.rate(peer)

    def by_multicast(self) -> bool:
        """Whether every peer has heard this member by IP multicast."""
        return self._multicast
