"""Leader broadcast (paper 000 §8.1): members send to a leader, and it multicasts what arrives, in that order.

A frame goes to the leader at once and whole, and from there to everybody with another header: order is decided per
frame. It takes Δ to the leader, at most p there and Δ to everyone: AppLatency = 2Δ+p, with no clock compared to
another. Timers are set Γ short, so that a clock that strays by Γ meanwhile does no harm to the bound.

`led` is what every order with a leader is made of; `election` is how the leader is replaced.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from unisono.model.durations import NS_PER_S, duration_text
from unisono.model.offers import Ask, Offer
from unisono.model.policy import Policy
from unisono.model.rates import BandwidthReservation, Rate, Reserver
from unisono.model.timing import Timing
from unisono.orders.leader.base import LeaderOrderBase, count_fitting_messages, leader_order_offer
from unisono.orders.leader.election import MissingFrames
from unisono.orders.leader.messages import ORDERED_BYTES, EntryType, LastFrames
from unisono.orders.leader.stream import StreamEntry
from unisono.orders.modes import Mode
from unisono.orders.packing import FramePayload, reservation
from unisono.wire.frame import (
    END_OF_SLOT,
    HEADER_BYTES,
    LEAVING,
    UDP_IP_BYTES,
    Frame,
    Kind,
)

FRAME_NUMBER_MODULUS = 1 << 16
MAX_PENDING_FRAMES = 1 << 12
"""How many frames of its own a member may have on the way to their place."""


def latency_bound_ns(timing: Timing, processing_ns: int) -> int:
    """§8.1: 2Δ+p."""
    return 2 * timing.delta_ns + processing_ns


class LeaderBroadcast(LeaderOrderBase):
    """The automaton of one member."""

    def __init__(self, policy: Policy, reserver: Reserver) -> None:
        super().__init__(policy, reserver)
        self._paced_slot = -1
        self._next_number = 0
        self._pending_frames: deque[Frame] = deque()
        self._pending_sent_at = 0
        self._next_ordered_number = dict.fromkeys(policy.view.members, 0)
        """By member, the number of its next frame in the order."""
        # As the leader.
        self._next_expected_number = dict(self._next_ordered_number)
        self._out_of_sequence: dict[int, dict[int, Frame]] = {member: {} for member in policy.view.members}
        self._ready_to_order: deque[tuple[int, Frame]] = deque()

    def _reservation(self, rate: Rate) -> BandwidthReservation:
        return relaying_reservation(self._policy, rate, leads=self.election.leading)

    def bound_ns(self) -> int:
        """§8.1."""
        return latency_bound_ns(self._timing, self._policy.processing_ns)

    # -- sending ---------------------------------------------------------------------------------------------

    def _accept_messages(self, now: int, messages: Sequence[bytes], sizes: list[int]) -> int:
        slot = self._timing.slot_of(now)
        if slot > self._paced_slot:
            self._paced_slot = slot
            self._adopt_rate(slot)
        count = count_fitting_messages(self._pacer, sizes)
        if count == 0 or len(self._pending_frames) >= MAX_PENDING_FRAMES:
            return 0
        for load in self._pack(messages[:count], sizes[:count]):
            self._send(now, load, 0)
        return count

    def _send_leaving_frame(self, now: int) -> None:
        self._send(now, None, END_OF_SLOT | LEAVING)

    def _send(self, now: int, payload: FramePayload | None, flags: int) -> None:
        frame = self._data_frame(
            now, payload, slot=self._timing.slot_of(now), number=self._next_number % FRAME_NUMBER_MODULUS, flags=flags
        )
        self._next_number += 1
        if not self._pending_frames:
            self._pending_sent_at = now
        self._pending_frames.append(frame)
        self._send_to_leader(now, frame)

    def _send_to_leader(self, now: int, frame: Frame) -> None:
        leader = self.election.leader
        if leader == self._policy.member:
            self._on_frame(now, frame)
        elif leader is not None:
            self.down.append(replace(frame, to=leader))

    def _resend_pending(self, now: int) -> None:
        """Whatever has no place yet; the leader knows by its number what it has seen."""
        self._pending_sent_at = now
        for frame in self._pending_frames:
            self._send_to_leader(now, frame)

    def _oldest_pending_slot(self) -> int | None:
        return self._pending_frames[0].slot if self._pending_frames else None

    # -- leading ---------------------------------------------------------------------------------------------

    def _on_frame(self, now: int, frame: Frame) -> None:
        sender = frame.sender
        if frame.kind is not Kind.DATA or self.election.leader != self._policy.member:
            self.ignored["not the leader"] += 1
            return
        early = self._out_of_sequence[sender]
        if not self.election.membership.is_current_member(sender):
            self.ignored["not on the roll"] += 1
        elif (
            frame.number - self._next_expected_number[sender]
        ) % FRAME_NUMBER_MODULUS >= FRAME_NUMBER_MODULUS // 2 or frame.number in early:
            self.ignored["duplicate"] += 1
        elif len(early) >= 2 * MAX_PENDING_FRAMES:
            self.ignored["too far ahead"] += 1
        else:
            early[frame.number] = frame
            while (following := early.pop(self._next_expected_number[sender], None)) is not None:
                self._ready_to_order.append((now + self._leader_hold_ns, following))
                self._next_expected_number[sender] = (self._next_expected_number[sender] + 1) % FRAME_NUMBER_MODULUS

    def _order_and_retransmit(self, now: int) -> None:
        """Multicast what has been here for p, in the order in which it came."""
        while self._ready_to_order and self._ready_to_order[0][0] <= now and self.election.may_order(now):
            _, frame = self._ready_to_order.popleft()
            if self.election.membership.is_current_member(frame.sender):
                self.election.append(now, EntryType.RELAY, frame)
        wait = self.bound_ns() + self._timing.gamma_ns
        if self._pending_frames and now > self._pending_sent_at + wait and not self.election.leading:
            self._resend_pending(now)

    def _order_timer_at(self) -> int | None:
        return (
            self._ready_to_order[0][0]
            if self._ready_to_order and self._leader_hold_ns and self.election.leading
            else None
        )

    # -- delivering ------------------------------------------------------------------------------------------

    def _deliver_accepted(self, now: int) -> None:
        succession = self.election
        while succession.stream.accepted and self.mode is Mode.DELIVER_MESSAGES:
            entry = succession.stream.accepted.popleft()
            succession.stream.delivered_position = entry.position
            if entry.entry_type is EntryType.RELAY:
                self._on_relayed_entry(now, entry)
            else:
                changed = {*self.view.members} ^ {*entry.member_list().members}
                self._apply_member_list(entry)
                self._reset_after_member_change(now, entry, changed)

    def _on_relayed_entry(self, now: int, entry: StreamEntry) -> None:
        sender = entry.origin
        self._next_ordered_number[sender] = (entry.number + 1) % FRAME_NUMBER_MODULUS
        if sender == self._policy.member and self._pending_frames:
            self._pending_frames.popleft()
            self._pending_sent_at = now
        if entry.flags & LEAVING:
            self.election.membership.leaving.add(sender)
        run = self._fragments.reassemble(sender, entry.flags, entry.packed_messages, entry.payload)
        if run is not None:
            self._deliver(entry, entry.ordinal, entry.first_sequence, run)

    def _last_frames_of(self, member: int) -> LastFrames | None:
        """Never needed: the leader relays whole frames, so the stream itself has all that count."""
        return None

    def _missing_frames_of(self, members: Sequence[int]) -> list[MissingFrames]:
        """Always empty, for the same reason."""
        return []

    def _reset_after_member_change(self, now: int, entry: StreamEntry, changed: set[int]) -> None:
        """What a leader had collected of earlier reigns, or of members that come or go, is void; it is sent again."""
        if entry.term != self._last_begun_term:
            self._last_begun_term, changed = entry.term, set(self._next_ordered_number)
        for member in changed:
            self._next_expected_number[member] = self._next_ordered_number[member]
            self._out_of_sequence[member].clear()
        self._ready_to_order = deque(waiting for waiting in self._ready_to_order if waiting[1].sender not in changed)
        self._reserve_as_leader()
        if self._policy.member in changed:
            self._resend_pending(now)


def relaying_reservation(policy: Policy, rate: Rate, *, leads: bool) -> BandwidthReservation:
    """A member's own frames and a beat per slot; the leader's as many times that as there are members.

    The others' rates are taken to be like one's own, so that a leader can reserve before it has heard them.
    """
    own = reservation(policy, rate)
    beat = HEADER_BYTES + ORDERED_BYTES + UDP_IP_BYTES
    times = len(policy.view.members) if leads else 1
    return BandwidthReservation(
        own.avg_bytes_per_s * times + beat * NS_PER_S // policy.timing.theta_ns,
        own.burst_bytes_per_slot * times + beat,
        own.theta_ns,
    )


def offer(ask: Ask) -> Offer:
    """What leader broadcast gives."""
    timing, rate, n = ask.timing, ask.rate, ask.members
    beats = NS_PER_S / timing.theta_ns
    bound = latency_bound_ns(timing, ask.processing_ns)
    delta, p, sums = duration_text(timing.delta_ns), duration_text(ask.processing_ns), duration_text(bound)
    why = (
        f"latency 2Δ+p = 2·{delta} + {p} = {sums}, whatever the number of members; Γ and Θ do not enter",
        f"average: each message is sent twice, 2·{rate.avg:g}/s per member; and a beat per slot, {beats:g}/s",
        f"the leader itself sends for all {n} members: {rate.avg * n:g}/s",
        f"burst: the leader's, {rate.burst} from each of {n}, and a beat; another member's is {rate.burst} + 1",
    )
    return leader_order_offer("leader", ask, bound, why, average=2 * rate.avg + beats, burst=rate.burst * n + 1)
