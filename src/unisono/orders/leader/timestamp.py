"""Timestamp leader (paper 000 §8.2, errata 000-30 and 000-31): members multicast messages, a leader only orders them.

Sending: the first message of a burst opens a request. Its sender asks the leader for k stamps, as many as its rate
allows per slot, and multicasts the messages as DATA frames of this request. A request is open for at most Θ. Then one
release gives all unused stamps back (erratum 000-31): an empty last frame. If the burst is used up, the last DATA frame
ends the request and no release is needed.
Ordering: the leader grants requests in the order of arrival, each a range of stamps, and multicasts the grants in the
ordered stream. The order is decided per request.
Receiving: `_store_frame` stores DATA frames per sender and request; `_deliver_accepted` delivers grant by grant, and
waits for all frames of a grant before it starts the next one.

AppLatency is 2Δ+max(p, Θ). A request that takes Δ can be overtaken by a request that is made Δ later and takes no time;
the last frame of the second one arrives Θ+Δ after that (erratum 000-30). If every delay is exactly Δ, only the leader's
own requests can overtake; without those the paper's bound Δ+max(Δ+p, Θ) holds. A sender closes its request Γ before Θ
is over, so that a clock that is wrong by Γ does not break the bound.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

from unisono.model.offers import Ask, Offer
from unisono.model.policy import Policy
from unisono.model.timing import Timing
from unisono.model.units import NS_PER_S, BandwidthReservation, Rate, Reserver, duration_text
from unisono.net.layer import NO_ROOM
from unisono.orders.contract import Mode
from unisono.orders.leader.base import LeaderOrderBase, leader_order_offer
from unisono.orders.leader.election import MAX_UNANSWERED_REQUESTS, MissingFrames
from unisono.orders.leader.messages import (
    ALL_REQUESTS,
    ORDERED_BYTES,
    EntryType,
    LastFrames,
    RetransmitRequest,
    StampRequest,
)
from unisono.orders.leader.stream import RETAINED_BYTES, RETAINED_ENTRIES, StreamEntry
from unisono.orders.packing import NO_MESSAGES, FramePayload, Rqueue, SlotFrames, count_fitting_messages, reservation
from unisono.wire.codec import control_frame
from unisono.wire.frame import END_OF_SLOT, HEADER_BYTES, LEAVING, UDP_IP_BYTES, Frame, Kind

MAX_PENDING_REQUESTS = 1 << 10
"""A member has at most this many requests without stamps."""
MAX_RETRANSMITS_AT_ONCE = 64
"""Request the missing frames of at most this many grants at a time."""


def latency_bound_ns(timing: Timing, processing_ns: int) -> int:
    """The latency bound of the timestamp leader: 2Δ+max(p, Θ) (paper 000 §8.2, corrected by erratum 000-30)."""
    return 2 * timing.delta_ns + max(processing_ns, timing.theta_ns)


def constant_delay_bound_ns(timing: Timing, processing_ns: int) -> int:
    """The bound that paper 000 §8.2 states: Δ+max(Δ+p, Θ). It holds if every delay is exactly Δ."""
    return timing.delta_ns + max(timing.delta_ns + processing_ns, timing.theta_ns)


def carries_data(frame: Frame) -> bool:
    """Whether a frame carries messages; otherwise it only gives unused stamps back."""
    return frame.packed_messages is not None or bool(frame.body) or bool(frame.flags & LEAVING)


@dataclass(slots=True)
class PendingRequest:
    """A stamp request of this member that is not granted or not delivered yet."""

    request: int
    previous: int
    admitted_at: int
    stamps: int
    granted: bool = False


@dataclass(slots=True)
class PendingGrant:
    """A grant or member list in the stream that this member has accepted and not delivered completely."""

    entry: StreamEntry
    frame_limit: int | None = None
    """Frames from this number on do not count, because the leader removed their sender. None if all frames count."""
    stamps_used: int = 0


class TimestampLeader(LeaderOrderBase):
    """One member's automaton of the order `timestamp`."""

    entry_types = frozenset({EntryType.GRANT, EntryType.MEMBER_LIST, EntryType.COPY})
    blocks_on_any_crash = True  # a crashed member may hold stamps

    def __init__(self, policy: Policy, reserver: Reserver) -> None:
        super().__init__(policy, reserver)
        members = policy.view.members
        # Sending.
        self._current_request = self._previous_request = 0
        self._next_number = 0
        self._request_closes_at: int | None = None
        self._next_request_at = 0
        self._pending_requests: deque[PendingRequest] = deque()
        self._last_requested_at = 0
        self._frames_to_resend: list[Frame] = []
        """Frames that did not count because the leader had removed this member."""
        # Delivering.
        self._rqueues = {member: Rqueue() for member in members}
        self._last_delivered_request = dict.fromkeys(members, 0)
        self._pending_grants: deque[PendingGrant] = deque()
        self._retained_frames: deque[tuple[int, int, int, list[Frame]]] = deque()
        """(position, sender, request, frames) of delivered grants that another member may lack."""
        self._retained_bytes = 0
        self._stuck_at = self._unanswered_requests = 0
        self._stuck_on: tuple[int, int] | None = None
        # As the leader.
        self._last_granted = dict.fromkeys(members, 0)
        self._last_accepted_request = dict.fromkeys(members, 0)
        self._out_of_sequence: dict[int, dict[int, Frame]] = {member: {} for member in members}
        self._ready_to_order: deque[tuple[int, Frame]] = deque()

    def _reservation(self, rate: Rate) -> BandwidthReservation:
        return stamping_reservation(self._policy, rate, leads=self.election.leading)

    def bound_ns(self) -> int:
        """The latency bound while no member crashes: 2Δ+max(p, Θ) (paper 000 §8.2, erratum 000-30)."""
        return latency_bound_ns(self._timing, self._policy.processing_ns)

    # -- sending ---------------------------------------------------------------------------------------------

    def _accept_messages(self, now: int, messages: Sequence[bytes], sizes: list[int]) -> int:
        self._close_if_due(now)
        if self._request_closes_at is None and not self._open_request(now):
            return 0
        count = count_fitting_messages(self._pacer, sizes)
        if count == 0:
            return 0
        payloads = self._pack(messages[:count], sizes[:count])
        is_last = self._pacer.is_full() or self._request_closes_at == now
        for payload in payloads[:-1]:
            self._send(now, payload, 0)
        self._send(now, payloads[-1], END_OF_SLOT if is_last else 0)
        return count

    def _room_by_rate(self, now: int) -> tuple[int, int]:
        if self._timing.theta_ns <= self._timing.gamma_ns:
            return NO_ROOM  # a request that opens here would be closed before `submit`
        self._close_if_due(now)
        if self._request_closes_at is None and not self._open_request(now):
            return NO_ROOM
        return self._pacer.messages_left(), self._pacer.bytes_left()

    def _open_request(self, now: int) -> bool:
        """Request as many stamps as the rate allows. False if the last request is less than Θ old."""
        slot = self._timing.slot_of(now)
        if (
            now < self._next_request_at
            or slot <= self._current_request
            or len(self._pending_requests) >= MAX_PENDING_REQUESTS
            or self._frames_to_resend
        ):
            return False
        self._pacer.enter_slot(slot)
        stamps = self._pacer.messages_left()
        if stamps == 0:
            return False
        self._request_stamps(now, slot, stamps)
        self._request_closes_at = now + max(0, self._timing.theta_ns - self._timing.gamma_ns)
        return True

    def _request_stamps(self, now: int, request: int, stamps: int) -> None:
        previous, self._previous_request = self._previous_request, request
        self._current_request, self._next_number = request, 0
        self._next_request_at = now + self._timing.theta_ns
        admitted_at = self.election.membership.admitted_at[self._policy.member]
        pending = PendingRequest(request, previous, admitted_at, stamps)
        if all(other.granted for other in self._pending_requests):
            self._last_requested_at = now
        self._pending_requests.append(pending)
        self._send_request(now, pending)

    def _send_request(self, now: int, pending: PendingRequest) -> None:
        policy, leader = self._policy, self.election.leader
        if leader is None:
            return
        request = StampRequest(pending.previous, pending.admitted_at, pending.stamps)
        frame = control_frame(
            request,
            policy.member,
            policy.incarnation,
            policy.epoch,
            slot=pending.request,
            sent_ns=now,
            to=leader,
        )
        if leader == policy.member:
            self._on_request(now, frame, request)
        else:
            self.down.append(frame)

    def _send(self, now: int, payload: FramePayload, flags: int) -> None:
        self._multicast_frame(
            self._data_frame(now, payload, slot=self._current_request, number=self._next_number, flags=flags)
        )

    def _multicast_frame(self, frame: Frame) -> None:
        self._next_number = frame.number + 1
        frame.multicast = self.election.frame_sender.uses_multicast
        self.down.append(frame)
        self._rqueues[frame.sender].add(frame)
        if frame.flags & END_OF_SLOT:
            self._request_closes_at = None

    def _close_if_due(self, now: int) -> None:
        """Close a request that has been open for Θ, and release its unused stamps.

        A later message opens the next one.
        """
        if self._request_closes_at is not None and now >= self._request_closes_at:
            self._send(now, NO_MESSAGES, END_OF_SLOT)

    def _send_leaving_frame(self, now: int) -> None:
        if self._request_closes_at is None:
            self._request_stamps(now, max(self._current_request + 1, self._timing.slot_of(now)), 1)
        self._send(now, NO_MESSAGES, END_OF_SLOT | LEAVING)

    def _oldest_pending_slot(self) -> int | None:
        return self._pending_requests[0].request if self._pending_requests else None

    # -- ordering, as the leader -----------------------------------------------------------------------------

    def _on_frame(self, now: int, frame: Frame) -> None:
        if isinstance(frame.message, StampRequest):
            self._on_request(now, frame, frame.message)
        elif frame.kind is Kind.DATA:
            self._store_frame(frame)

    def _on_request(self, now: int, frame: Frame, request: StampRequest) -> None:
        """As the leader, receive a request and queue it in the sequence of its sender's requests."""
        sender, out_of_sequence = frame.sender, self._out_of_sequence[frame.sender]
        if self.election.leader != self._policy.member:
            self.ignored["not the leader"] += 1
        elif (
            not self.election.membership.is_current_member(sender)
            or request.admitted_at != self.election.membership.admitted_at[sender]
        ):
            self.ignored["not a current member"] += 1
        elif (
            frame.slot <= self._last_accepted_request[sender]
            or request.previous in out_of_sequence
            or len(out_of_sequence) >= MAX_PENDING_REQUESTS
        ):
            self.ignored["duplicate"] += 1
        else:
            out_of_sequence[request.previous] = frame
            while (following := out_of_sequence.pop(self._last_accepted_request[sender], None)) is not None:
                self._ready_to_order.append((now + self._leader_hold_ns, following))
                self._last_accepted_request[sender] = following.slot

    def _order_and_retransmit(self, now: int) -> None:
        """As the leader, grant stamp requests that have waited for the processing time p.

        As any member, answer requests of others for frames, and repeat own overdue requests.
        """
        while self._ready_to_order and self._ready_to_order[0][0] <= now and self.election.may_order(now):
            _, frame = self._ready_to_order.popleft()
            if self.election.membership.is_current_member(frame.sender):
                self.election.append(now, EntryType.GRANT, frame)
        while self.election.received_copies:
            copy = self.election.received_copies.popleft()
            if copy.sender != self._policy.member:
                self._store_frame(copy)
                self._deliver_accepted(now)
        while self.election.frame_requests:
            self._send_copies(now, *self.election.frame_requests.popleft())
        self._close_if_due(now)
        self._resend_frames(now)
        self._retransmit_overdue(now)

    def _retransmit_overdue(self, now: int) -> None:
        """Repeat requests for stamps and for frames that have not been answered in time."""
        wait = self.bound_ns() + self._timing.gamma_ns
        not_granted = [pending for pending in self._pending_requests if not pending.granted]
        if not_granted and now > self._last_requested_at + wait:
            self._last_requested_at = now
            for pending in not_granted:
                self._send_request(now, pending)
        if self._pending_grants:
            entry = self._pending_grants[0].entry
            next_frame = (entry.position, self._frames_of(entry).next_number)
            if next_frame != self._stuck_on:
                self._stuck_on, self._stuck_at, self._unanswered_requests = next_frame, now, 0
            elif now > self._stuck_at + wait:
                self._stuck_at, self._unanswered_requests = now, self._unanswered_requests + 1
                if self._unanswered_requests > MAX_UNANSWERED_REQUESTS and self.election.leader not in {
                    None,
                    self._policy.member,
                }:
                    self.election.fence(entry.position)
                self._request_missing_frames(now)

    def _request_missing_frames(self, now: int) -> None:
        """Request the missing frames of all waiting grants at once: a member that was cut off lacks many."""
        entries = [grant.entry for grant in islice(self._pending_grants, MAX_RETRANSMITS_AT_ONCE)]
        for missing in self._missing_frames(entries):
            self.election.request_frames(now, missing)

    def _missing_frames(self, entries: Sequence[StreamEntry]) -> list[MissingFrames]:
        missing = []
        for entry in entries:
            if entry.entry_type is EntryType.GRANT:
                frames = self._frames_of(entry)
                if frames.last_number is None or frames.missing():
                    missing.append(MissingFrames(entry.request, entry.origin, frames.next_number))
        return missing

    def _send_copies(self, now: int, to: int, retransmit_request: RetransmitRequest) -> None:
        """Retransmit the frames of a request, delivered or not, to a member that lacks them."""
        origin, request = retransmit_request.origin, retransmit_request.first
        queue = self._rqueues.get(origin)
        frames = [] if queue is None else list(queue.slots.get(request, SlotFrames()).waiting.values())
        for _, sender, delivered_request, retained in self._retained_frames:
            if (sender, delivered_request) == (origin, request):
                frames = [*retained, *frames]
        for frame in frames:
            self.election.frame_sender.send_copy(now, frame, self.election.promised_term, to)

    def _order_timer_at(self) -> int | None:
        times = []
        if self._ready_to_order and self._leader_hold_ns and self.election.leading:
            times.append(self._ready_to_order[0][0])
        if self._request_closes_at is not None:
            times.append(self._request_closes_at)
        return min(times, default=None)

    # -- delivering ------------------------------------------------------------------------------------------

    def _store_frame(self, frame: Frame) -> None:
        queue = self._rqueues[frame.sender]
        if frame.slot <= self._last_delivered_request[frame.sender]:
            self.ignored["request already delivered"] += 1
        elif len(queue.slots) >= MAX_PENDING_REQUESTS or not queue.add(frame):
            self.ignored["duplicate"] += 1

    def _frames_of(self, entry: StreamEntry) -> SlotFrames:
        return self._rqueues[entry.origin].slots.setdefault(entry.request, SlotFrames())

    def _deliver_accepted(self, now: int) -> None:
        """Deliver grant by grant as far as frames have arrived, and apply member lists at their position."""
        accepted = self.election.stream.accepted
        while accepted:
            entry = accepted.popleft()
            if entry.entry_type is EntryType.GRANT:
                self._last_granted[entry.origin] = entry.request
                if entry.origin == self._policy.member:
                    self._record_granted(now, entry.request)
            elif entry.entry_type is EntryType.MEMBER_LIST:
                for last_frames in entry.member_list().last_frames:
                    self._apply_last_frames(last_frames, entry.position)
                self._reset_after_member_change(now, entry)
            self._pending_grants.append(PendingGrant(entry))
        while self._pending_grants and self.mode is Mode.DELIVER_MESSAGES:
            grant = self._pending_grants[0]
            if grant.entry.entry_type is EntryType.MEMBER_LIST:
                self._apply_member_list(grant.entry)
            elif not self._deliver_grant(grant):
                return
            self._pending_grants.popleft()
            self.election.stream.delivered_position = grant.entry.position

    def _record_granted(self, now: int, request: int) -> None:
        for pending in self._pending_requests:
            if pending.request == request:
                pending.granted = True
        self._last_requested_at = now

    def _deliver_grant(self, grant: PendingGrant) -> bool:
        """Deliver the frames of a grant that have arrived. True if the grant is complete."""
        entry, limit = grant.entry, grant.frame_limit
        sender, frames = entry.origin, self._frames_of(entry)
        if not self._retained_frames or self._retained_frames[-1][0] != entry.position:
            self._retained_frames.append((entry.position, sender, entry.request, []))
        ended = limit is not None and frames.next_number >= limit
        while not ended and (frame := frames.waiting.pop(frames.next_number, None)) is not None:
            frames.next_number += 1
            self._retained_frames[-1][3].append(frame)
            self._retained_bytes += frame.payload_bytes
            packed_messages = self._fragments.reassemble(sender, frame.flags, frame.packed_messages, frame.body)
            if packed_messages is not None:
                self._deliver(entry, entry.ordinal + grant.stamps_used, frame.first_sequence, packed_messages)
                grant.stamps_used += packed_messages.count
            if frame.flags & LEAVING:
                self.election.membership.leaving.add(sender)
            ended = bool(frame.flags & END_OF_SLOT) or frames.next_number == limit
        if not ended:
            return False
        if sender == self._policy.member:
            if limit is not None:
                self._frames_to_resend += [frames.waiting[number] for number in sorted(frames.waiting)]
            if self._pending_requests and self._pending_requests[0].request == entry.request:
                self._pending_requests.popleft()
        self._last_delivered_request[sender] = entry.request
        self._rqueues[sender].forget_before(entry.request + 1)
        self._drop_retained_frames()
        return True

    def _drop_retained_frames(self) -> None:
        """Drop frames that all members have, except for those of RETAINED_ENTRIES grants and RETAINED_BYTES."""
        stream, retained = self.election.stream, self._retained_frames
        while retained and retained[0][0] <= stream.stable:
            if retained[0][0] > stream.position - RETAINED_ENTRIES and self._retained_bytes <= RETAINED_BYTES:
                return
            self._retained_bytes -= sum(frame.payload_bytes for frame in retained.popleft()[3])

    # -- members that are removed and come back --------------------------------------------------------------

    def _missing_frames_of(self, members: Sequence[int]) -> list[MissingFrames]:
        entries = [*(grant.entry for grant in self._pending_grants), *self.election.stream.accepted]
        return self._missing_frames([entry for entry in entries if entry.origin in members])[:MAX_RETRANSMITS_AT_ONCE]

    def _last_frames_of(self, member: int) -> LastFrames:
        """The frames of a removed member that have arrived here, at the leader. All members deliver exactly these."""
        for grant in self._pending_grants:
            entry = grant.entry
            if entry.entry_type is EntryType.GRANT and entry.origin == member:
                frames = self._frames_of(entry)
                number = frames.next_number
                while number in frames.waiting:
                    number += 1
                if frames.last_number is None or number <= frames.last_number:
                    return LastFrames(member, entry.request, number)
        return LastFrames(member, self._last_granted[member] + 1, 0)

    def _apply_last_frames(self, last_frames: LastFrames, position: int) -> None:
        """Limit the grants of a removed member to the frames that count."""
        if last_frames.request == ALL_REQUESTS:
            return
        for _, sender, request, frames in self._retained_frames:
            limit = last_frames.number if request == last_frames.request else 0
            if (
                sender == last_frames.member
                and request >= last_frames.request
                and any(map(carries_data, frames[limit:]))
            ):
                # This member delivered frames that do not count. That happens only if the network loses frames.
                self.election.fence(position)
        for grant in self._pending_grants:
            if (
                grant.entry.entry_type is EntryType.GRANT
                and grant.entry.origin == last_frames.member
                and grant.frame_limit is None
            ):
                if grant.entry.request == last_frames.request:
                    grant.frame_limit = last_frames.number
                elif grant.entry.request > last_frames.request:
                    grant.frame_limit = 0
        if last_frames.member == self._policy.member:
            self._void_pending_requests()

    def _void_pending_requests(self) -> None:
        """The leader had removed this member, so its requests without stamps are void. Their frames are sent again."""
        own = self._rqueues[self._policy.member]
        self._request_closes_at, self._previous_request = None, self._last_granted[self._policy.member]
        for pending in [pending for pending in self._pending_requests if not pending.granted]:
            self._pending_requests.remove(pending)
            frames = own.slots.pop(pending.request, SlotFrames())
            self._frames_to_resend += [frames.waiting[number] for number in sorted(frames.waiting)]

    def _resend_frames(self, now: int) -> None:
        """Request new stamps for the frames that did not count.

        This happens once the leader has admitted this member again and its earlier grants are delivered.
        """
        me = self._policy.member
        if (
            not self._frames_to_resend
            or not self.election.membership.is_current_member(me)
            or self._pending_requests
            or self.election.leader is None
        ):
            return
        frames = sorted(self._frames_to_resend, key=lambda frame: (frame.first_sequence, frame.slot, frame.number))
        frames = [frame for frame in frames if carries_data(frame)]
        self._frames_to_resend = []
        if not frames:
            return
        stamps = sum(1 if frame.packed_messages is None else frame.packed_messages.count for frame in frames)
        self._request_stamps(now, max(self._current_request + 1, self._timing.slot_of(now)), stamps)
        for number, frame in enumerate(frames):
            flags = frame.flags & ~END_OF_SLOT | (END_OF_SLOT if number == len(frames) - 1 else 0)
            self._multicast_frame(replace(frame, slot=self._current_request, number=number, flags=flags, sent_ns=now))

    def _reset_after_member_change(self, now: int, entry: StreamEntry) -> None:
        """Drop requests that the leader collected in an earlier term, and requests of members just admitted or removed.

        Their senders repeat them.
        """
        changed = {member for member, at in self.election.membership.admitted_at.items() if at == entry.position}
        if entry.term != self._last_begun_term:
            self._last_begun_term, changed = entry.term, set(self._last_accepted_request)
        for member in changed:
            self._last_accepted_request[member] = self._last_granted[member]
            self._out_of_sequence[member].clear()
        self._ready_to_order = deque(ready for ready in self._ready_to_order if ready[1].sender not in changed)
        self._reserve_as_leader()
        if self._policy.member in changed:
            for pending in self._pending_requests:
                if not pending.granted:
                    self._send_request(now, pending)


def stamping_reservation(policy: Policy, rate: Rate, *, leads: bool) -> BandwidthReservation:
    """The bandwidth for a member's frames and, per slot, a request, a release and a heartbeat.

    The leader also needs room for one grant per member and slot.
    """
    own = reservation(policy, rate)
    control_bytes = HEADER_BYTES + ORDERED_BYTES + UDP_IP_BYTES
    extra = control_bytes * (2 + (len(policy.view.members) if leads else 0))
    return BandwidthReservation(
        own.avg_bytes_per_s + extra * NS_PER_S // policy.timing.theta_ns, own.burst_bytes_per_slot + extra, own.theta_ns
    )


def offer(ask: Ask) -> Offer:
    """What the timestamp leader offers for a request to the planner: latency, rate and reasons."""
    timing, rate = ask.timing, ask.rate
    slots = NS_PER_S / timing.theta_ns
    bound, published = latency_bound_ns(timing, ask.processing_ns), constant_delay_bound_ns(timing, ask.processing_ns)
    delta, theta, p = (duration_text(ns) for ns in (timing.delta_ns, timing.theta_ns, ask.processing_ns))
    why = (
        f"latency 2Δ+max(p, Θ) = 2·{delta} + max({p}, {theta}) = {duration_text(bound)}, for any number of members",
        f"(if every delay were exactly Δ: Δ+max(Δ+p, Θ) = {duration_text(published)})",
        f"average {rate.avg:g}/s; per slot a request, a grant and one release of unused stamps: 3·{slots:g}/s; and",
        f"a heartbeat, {slots:g}/s: {rate.avg + 4 * slots:g}/s; the leader sends {ask.members} grants per slot",
        f"burst {rate.burst} + 2: a request and a grant, since a full burst needs no release; and a heartbeat",
    )
    return leader_order_offer("timestamp", ask, bound, why, average=rate.avg + 4 * slots, burst=rate.burst + 3)
