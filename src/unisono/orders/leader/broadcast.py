"""Leader broadcast (paper 000 §8.1): members send to a leader, and it multicasts the frames in the order of arrival.

The leader decides the order per frame. The latency bound is 2Δ+p: Δ to the leader, at most p there, and Δ to all
members. No clock is compared to another one. Timers fire Γ early, so that a clock that is wrong by Γ does not break the
bound.

Sending: `submit` packs messages into frames, and each frame goes to the leader at once (`_send_to_leader`). A frame
stays in `_pending_frames` until this member delivers it. The leader requests frames that it lacks, which it sees when
a later one arrives (`_request_missing_frames`). If no frame was delivered for too long, a member sends its last frame
again, so that the leader sees what it lacks. After a change of leader, a member sends all frames again. The leader
recognises frames that it has by their number.
Ordering: the leader keeps each frame for p and then appends it to the ordered stream (`_order_and_retransmit`).
Receiving: `election` accepts the entries of the stream in sequence; `_deliver_accepted` delivers them.

`base` has what both leader orders share; `election` replaces a leader that crashes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from unisono.model.offers import Ask, Offer
from unisono.model.policy import Policy
from unisono.model.timing import Timing
from unisono.model.units import NS_PER_S, BandwidthReservation, Rate, Reserver, duration_text
from unisono.net.layer import NO_ROOM
from unisono.orders.contract import Mode
from unisono.orders.leader.base import LeaderOrderBase, leader_order_offer
from unisono.orders.leader.election import MissingFrames
from unisono.orders.leader.messages import ORDERED_BYTES, EntryType, LastFrames, RetransmitRequest
from unisono.orders.leader.stream import RetransmitTimer, StreamEntry
from unisono.orders.packing import NO_MESSAGES, FramePayload, count_fitting_messages, reservation
from unisono.wire.frame import (
    END_OF_SLOT,
    HEADER_BYTES,
    LEAVING,
    UDP_IP_BYTES,
    Frame,
    Kind,
)

FRAME_NUMBER_MODULUS = 1 << 16
MAX_PENDING_FRAMES = 1 << 9
"""A member accepts no messages while this many of its frames are not delivered.

This also limits how far the frames of one member can fill the leader's receive buffer.
"""
MAX_PENDING_BYTES = 4 << 20
"""A member accepts no messages while its undelivered frames have this many bytes or more."""


def latency_bound_ns(timing: Timing, processing_ns: int) -> int:
    """The latency bound of leader broadcast: 2Δ+p (paper 000 §8.1)."""
    return 2 * timing.delta_ns + processing_ns


class LeaderBroadcast(LeaderOrderBase):
    """One member's automaton of the order `leader`."""

    entry_types = frozenset({EntryType.RELAY, EntryType.MEMBER_LIST})

    def __init__(self, policy: Policy, reserver: Reserver) -> None:
        super().__init__(policy, reserver)
        # Sending.
        self._paced_slot = -1
        self._next_number = 0
        self._pending_frames: deque[Frame] = deque()
        self._pending_bytes = 0
        self._pending_sent_at = 0
        # Delivering.
        self._next_ordered_number = dict.fromkeys(policy.view.members, 0)
        """By member, the number of its next frame in the stream."""
        # As the leader.
        self._next_expected_number = dict(self._next_ordered_number)
        """By member, the number of the next frame to put into `_ready_to_order`."""
        self._out_of_sequence: dict[int, dict[int, Frame]] = {member: {} for member in policy.view.members}
        self._frames_timers = {member: RetransmitTimer(policy.timing) for member in policy.view.members}
        self._checked_slot = -1
        """The last slot in which the leader looked for missing frames."""

    def bound_ns(self) -> int:
        """The latency bound while no member crashes: 2Δ+p (paper 000 §8.1)."""
        return latency_bound_ns(self._timing, self._policy.processing_ns)

    def _reservation(self, rate: Rate) -> BandwidthReservation:
        return relaying_reservation(self._policy, rate, leads=self.election.leading)

    # -- sending ---------------------------------------------------------------------------------------------

    def _accept_messages(self, now: int, messages: Sequence[bytes], sizes: list[int]) -> int:
        if self._room_by_rate(now) == NO_ROOM:
            return 0
        count = count_fitting_messages(self._pacer, sizes)
        if count == 0:
            return 0
        for payload in self._pack(messages[:count], sizes[:count]):
            self._send(now, payload, 0)
        return count

    def _room_by_rate(self, now: int) -> tuple[int, int]:
        slot = self._timing.slot_of(now)
        if slot > self._paced_slot:
            self._paced_slot = slot
            self._pacer.enter_slot(slot)
        if len(self._pending_frames) >= MAX_PENDING_FRAMES or self._pending_bytes >= MAX_PENDING_BYTES:
            return NO_ROOM
        return self._pacer.messages_left(), self._pacer.bytes_left()

    def _send_leaving_frame(self, now: int) -> None:
        self._send(now, NO_MESSAGES, END_OF_SLOT | LEAVING)

    def _send(self, now: int, payload: FramePayload, flags: int) -> None:
        frame = self._data_frame(
            now, payload, slot=self._timing.slot_of(now), number=self._next_number % FRAME_NUMBER_MODULUS, flags=flags
        )
        self._next_number += 1
        if not self._pending_frames:
            self._pending_sent_at = now
        self._pending_frames.append(frame)
        self._pending_bytes += frame.payload_bytes
        self._send_to_leader(now, frame)

    def _send_to_leader(self, now: int, frame: Frame) -> None:
        leader = self.election.leader
        if leader == self._policy.member:
            self._on_frame(now, frame)
        elif leader is not None:
            self.down.append(replace(frame, to=leader))

    def _resend_pending(self, now: int) -> None:
        """Send all undelivered frames again; the leader ignores those that it has."""
        self._pending_sent_at = now
        for frame in self._pending_frames:
            self._send_to_leader(now, frame)

    def _oldest_pending_slot(self) -> int | None:
        return self._pending_frames[0].slot if self._pending_frames else None

    # -- ordering, as the leader -----------------------------------------------------------------------------

    def _on_frame(self, now: int, frame: Frame) -> None:
        """As the leader, receive a member's frame and queue it in the sequence of the member's numbers."""
        sender = frame.sender
        if frame.kind is not Kind.DATA or self.election.leader != self._policy.member:
            self.ignored["not the leader"] += 1
            return
        self.election.record_follower_alive(now, sender)
        if not self.election.membership.is_current_member(sender):
            self.ignored["not a current member"] += 1
            return
        out_of_sequence, expected = self._out_of_sequence[sender], self._next_expected_number[sender]
        is_old = (frame.number - expected) % FRAME_NUMBER_MODULUS >= FRAME_NUMBER_MODULUS // 2
        if is_old or frame.number in out_of_sequence:
            self.ignored["duplicate"] += 1
        elif len(out_of_sequence) >= 2 * MAX_PENDING_FRAMES:
            self.ignored["too far ahead"] += 1
        else:
            out_of_sequence[frame.number] = frame
            while (following := out_of_sequence.pop(expected, None)) is not None:
                self._ready_to_order.append((now + self._leader_hold_ns, following))
                expected = (expected + 1) % FRAME_NUMBER_MODULUS
            self._next_expected_number[sender] = expected

    def _request_missing_frames(self, now: int) -> None:
        """As the leader, once per slot: request frames that are missing although later ones have arrived."""
        if self._timing.slot_of(now) == self._checked_slot or not self.election.leading:
            return
        self._checked_slot = self._timing.slot_of(now)
        for member, later in self._out_of_sequence.items():
            number, timer = self._next_expected_number[member], self._frames_timers[member]
            if timer.is_due(now, number if later else None):
                timer.record_asked(now)
                count = min((each - number) % FRAME_NUMBER_MODULUS for each in later)
                self.election.request_frames(now, MissingFrames(0, member, number, count))

    def _resend_requested(self, now: int, request: RetransmitRequest) -> None:
        """Send frames again that the leader lacks."""
        for frame in self._pending_frames:
            if (frame.number - request.number) % FRAME_NUMBER_MODULUS < request.count:
                self._send_to_leader(now, frame)

    def _order_and_retransmit(self, now: int) -> None:
        """As the leader, order frames that have waited for the processing time p, and request missing ones.

        As a follower, send frames again that the leader requests, or the last one if none was delivered for too long.
        """
        while self._ready_to_order and self._ready_to_order[0][0] <= now and self.election.may_order(now):
            _, frame = self._ready_to_order.popleft()
            if self.election.membership.is_current_member(frame.sender):
                self.election.append(now, EntryType.RELAY, frame)
        self._request_missing_frames(now)
        while self.election.frame_requests:
            sender, request = self.election.frame_requests.popleft()
            if sender == self.election.leader and request.origin == self._policy.member:
                self._resend_requested(now, request)
        wait = self.bound_ns() + self._timing.gamma_ns
        if self._pending_frames and now > self._pending_sent_at + wait and not self.election.leading:
            self._pending_sent_at = now
            self._send_to_leader(now, self._pending_frames[-1])

    # -- delivering ------------------------------------------------------------------------------------------

    def _deliver_accepted(self, now: int) -> None:
        stream = self.election.stream
        while stream.accepted and self.mode is Mode.DELIVER_MESSAGES:
            entry = stream.accepted.popleft()
            stream.delivered_position = entry.position
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
            self._pending_bytes -= self._pending_frames.popleft().payload_bytes
            self._pending_sent_at = now
        if entry.flags & LEAVING:
            self.election.membership.leaving.add(sender)
        packed_messages = self._fragments.reassemble(sender, entry.flags, entry.packed_messages, entry.payload)
        if packed_messages is not None:
            self._deliver(entry, entry.ordinal, entry.first_sequence, packed_messages)

    # -- a change of members or of the leader ----------------------------------------------------------------

    def _reset_after_member_change(self, now: int, entry: StreamEntry, changed: set[int]) -> None:
        """Drop frames that the leader collected in an earlier term, and frames of members just admitted or removed.

        Their senders send them again.
        """
        if entry.term != self._last_begun_term:
            self._last_begun_term, changed = entry.term, set(self._next_ordered_number)
        for member in changed:
            self._next_expected_number[member] = self._next_ordered_number[member]
            self._out_of_sequence[member].clear()
        self._ready_to_order = deque(ready for ready in self._ready_to_order if ready[1].sender not in changed)
        self._reserve_as_leader()
        if self._policy.member in changed:
            self._resend_pending(now)

    def _last_frames_of(self, member: int) -> LastFrames | None:
        """Always None: entries contain complete frames, so the stream itself shows which frames count."""
        return None

    def _missing_frames_of(self, members: Sequence[int]) -> list[MissingFrames]:
        """Always empty: no frame can be missing, because entries contain complete frames."""
        return []


def relaying_reservation(policy: Policy, rate: Rate, *, leads: bool) -> BandwidthReservation:
    """The bandwidth for a member's own frames and a heartbeat per slot; for the leader, for the frames of all members.

    The leader assumes the other members' rates to be equal to its own, so that it can reserve before it knows them.
    """
    own = reservation(policy, rate)
    heartbeat_bytes = HEADER_BYTES + ORDERED_BYTES + UDP_IP_BYTES
    times = len(policy.view.members) if leads else 1
    return own.scaled(times).with_extra(heartbeat_bytes * NS_PER_S // policy.timing.theta_ns, heartbeat_bytes)


def offer(ask: Ask) -> Offer:
    """What leader broadcast offers for a request to the planner: latency, rate and reasons."""
    timing, rate, n = ask.timing, ask.rate, ask.members
    heartbeats = NS_PER_S / timing.theta_ns
    bound = latency_bound_ns(timing, ask.processing_ns)
    delta, p, total = duration_text(timing.delta_ns), duration_text(ask.processing_ns), duration_text(bound)
    why = (
        f"latency 2Δ+p = 2·{delta} + {p} = {total}, for any number of members; independent of Γ and Θ",
        f"average: each message is sent twice, 2·{rate.avg:g}/s per member; and a heartbeat per slot, {heartbeats:g}/s",
        f"the leader itself sends for all {n} members: {rate.avg * n:g}/s",
        f"burst: the leader's, {rate.burst} from each of {n}, and a heartbeat; another member's is {rate.burst} + 1",
    )
    return leader_order_offer("leader", ask, bound, why, average=2 * rate.avg + heartbeats, burst=rate.burst * n + 1)
