"""Multicast without a total order (paper 002 §2.2): messages are delivered as the layers below pass them up.

This is the top of a stack of services. The layers below decide whether delivery is FIFO, causal or uniform
(net/services). The group forms as for the orders, and members declare and keep rates.

Sending: `submit` sends messages at once, as far as the declared rate allows. A member delivers its own messages when it
sends them, unless delivery is uniform: then they come back from below like those of its peers.
Receiving: `from_below` delivers each frame at once and reassembles fragmented messages.
Membership: a crashed member stays in the view, since no member waits for it. A member that leaves announces it with its
last frame.

The latency bound is Δ, the time in which reliable multicast reaches all members. If delivery waits for an earlier
message, that one was also sent earlier, so this adds nothing. Uniform delivery also waits for reports of which members
have the message; its bound is 2Δ+Θ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from unisono.model.capabilities import CAPABILITIES
from unisono.model.events import POSITIONS_PER_SENDER, Batch, View, ViewChange
from unisono.model.policy import Policy
from unisono.model.timing import earliest
from unisono.model.units import NS_PER_S, Rate, Reserver
from unisono.net.layer import NO_ROOM
from unisono.orders.contract import ACCEPTED_INPUTS, Input, Mode, VariableRateBase
from unisono.orders.packing import (
    NO_MESSAGES,
    FramePayload,
    Packer,
    ReservedPacer,
    checked_sizes,
    count_fitting_messages,
    reservation,
)
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
"""Refuse frames of slots that start more than this time plus Γ ahead of this member's clock."""
MAX_EARLY_FRAMES = 1 << 14
"""This many frames are kept at most that arrive before this member knows that the group has started."""
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
        """The message, put together from its fragments in order. All of them must have arrived."""
        return ReassembledMessage([self.bodies[number] for number in sorted(self.bodies)])


class Unordered(VariableRateBase):
    """One member's automaton for multicast without a total order."""

    gap_free = False  # there is no total order to be free of gaps; the checker checks agreement
    keeps_sending_to_departed = True  # a departed member may still broadcast copies that its peers need

    def __init__(self, policy: Policy, reserver: Reserver) -> None:
        super().__init__(policy)
        self._timing = policy.timing
        self._uniform = "uniform" in CAPABILITIES[policy.order].services
        # Sending.
        self._packer = Packer(policy.max_frame)
        self._pacer = ReservedPacer(policy, reserver, partial(reservation, policy))
        self._slot = self._next_frame_number = self._sequence = 0
        self._submissions_waiting = False
        """Whether the declared rate held back some submitted messages; the application submits them again later."""
        self._leaving = False
        # Delivering.
        self._index = 0
        self._early_frames: list[Frame] = []
        self._partial_messages: dict[int, dict[int, _PartialMessage]] = {member: {} for member in policy.view.members}
        """The incomplete messages, by sender and message number."""
        self.window_slots = -(-(self._timing.delta_ns + self._timing.gamma_ns) // self._timing.theta_ns) + 3

    # -- inputs ----------------------------------------------------------------------------------------------

    def submit(self, now: int, messages: Sequence[bytes]) -> int:
        """Send at once as many of the messages as the declared rate allows now. Returns how many were sent."""
        if Input.SUBMIT not in ACCEPTED_INPUTS[self.mode] or self._leaving:
            return 0
        sizes = checked_sizes(messages, self._policy.max_message)
        self._submissions_waiting = True
        if now < self._timing.start_of(self.view.first_slot):
            return 0
        self._open_current_slot(now)
        count = count_fitting_messages(self._pacer, sizes)
        if count == 0:
            return 0
        self._submissions_waiting = count < len(sizes)
        messages, sizes = messages[:count], sizes[:count]
        self._pacer.record_sent(count, sum(sizes))
        self._pacer.check(self._policy.member)
        *others, last = self._packer.pack_all(messages, sizes)
        for payload in others:
            self._send(now, payload, 0)
        self._send(now, last, END_OF_SLOT)
        return count

    def room(self, now: int) -> tuple[int, int]:
        """How many messages, and how many bytes of payload, the declared rate allows in the current slot."""
        if (
            Input.SUBMIT not in ACCEPTED_INPUTS[self.mode]
            or self._leaving
            or now < self._timing.start_of(self.view.first_slot)
        ):
            return NO_ROOM
        self._open_current_slot(now)
        return self._pacer.messages_left(), self._pacer.bytes_left()

    def from_below(self, now: int, frame: Frame) -> None:
        """Process a frame that has arrived: deliver its messages, or use its HELLO to form the group."""
        if frame.kind is Kind.HELLO:
            if Input.HELLO in ACCEPTED_INPUTS[self.mode]:
                self._receive_hello(now, frame)
                self._start_deliver(now)
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
        """Use a new rate from the next slot on.

        Until then, reserve enough for the larger of the old and the new rate.
        """
        if Input.NEW_RATE in ACCEPTED_INPUTS[self.mode]:
            self._pacer.change_rate(rate)

    def leave(self, now: int) -> None:
        """Leave the group: announce the departure with this member's last frame, after all its messages."""
        if self.mode in {Mode.GET_RATE, Mode.DET_RATE}:
            self._depart(self._timing.slot_of(now))
        elif self.mode is Mode.DELIVER_MESSAGES and not self._leaving:
            self._leaving = True
            self._open_current_slot(now)
            self._send(now, NO_MESSAGES, END_OF_SLOT | LEAVING)

    def wake(self, now: int) -> None:
        """Send HELLOs until the group starts; then let waiting messages use the rate of the current slot."""
        if self.exchange.next_hello_at is not None:
            self._form(now)
        if self.mode is Mode.DELIVER_MESSAGES:
            self._open_current_slot(now)
            self._submissions_waiting = False

    def wake_at(self) -> int | None:
        """When `wake` is due next; None if no timer is set.

        It is the earlier of the next HELLO and, if messages or a new rate wait for it, the start of the next slot.
        """
        next_slot_at = None
        if self.mode is Mode.DELIVER_MESSAGES and (self._submissions_waiting or self._pacer.next_rate is not None):
            next_slot_at = max(self._timing.end_of(self._slot), self._timing.start_of(self.view.first_slot))
        return earliest((self.exchange.next_hello_at, next_slot_at))

    # -- starting and leaving --------------------------------------------------------------------------------

    def _start_deliver(self, now: int) -> None:
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

    # -- sending ---------------------------------------------------------------------------------------------

    def _open_current_slot(self, now: int) -> None:
        slot = self._timing.slot_of(now)
        if slot <= self._slot:
            return
        self._slot, self._next_frame_number = slot, 0
        self._pacer.enter_slot(slot)

    def _send(self, now: int, payload: FramePayload, flags: int) -> None:
        slot, number, burst = self._slot, self._next_frame_number, self._pacer.rate.burst
        frame = payload.data_frame(
            self._policy, now, slot, number, flags, burst=burst, sequence=self._sequence, multicast=self._multicast
        )
        self._next_frame_number += 1
        self._sequence += payload.messages_completed
        self.down.append(frame)
        if not self._uniform:
            self._deliver(frame)

    # -- delivering ------------------------------------------------------------------------------------------

    def _receive_data(self, frame: Frame) -> None:
        if frame.epoch != self._policy.epoch or self.exchange.incarnations.get(frame.sender) != frame.incarnation:
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
        """The last slot that a frame arriving now may belong to; frames of later slots are refused."""
        return self._timing.slot_of(now + self._timing.gamma_ns + HORIZON_NS) + 1

    def bound_ns(self) -> int:
        """The latency bound: Δ, or 2Δ+Θ if delivery is uniform."""
        delta = self._timing.delta_ns
        return 2 * delta + self._timing.theta_ns if self._uniform else delta
