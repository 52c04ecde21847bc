"""Timestamp leader (paper 000 §8.2): messages go to everybody at once, and a leader only says in which order.

The first message of a burst opens a request: its sender asks the leader for k stamps, k being what its rate allows
for a slot, and multicasts. The leader grants requests in the order in which they come, each a range of stamps, and
multicasts the grants. Members deliver grant by grant: order is decided per request. A request is open for Θ at
most; then one release gives back all stamps that were not used (erratum 000-31), by an empty last frame, unless the
burst was used up: then the last frame of the burst says so.

AppLatency is 2Δ+max(p, Θ): a request that takes Δ can be overtaken by one that was made Δ later and takes no time,
and whose last frame comes Θ and Δ after that (erratum 000-30). If every delay is Δ, only the leader's own requests
overtake; without those it is the paper's Δ+max(Δ+p, Θ). The request is closed Γ before Θ is over, for a clock that
strays by Γ meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

from unisono.model.durations import NS_PER_S, duration_text
from unisono.model.offers import Ask, Offer
from unisono.model.policy import Policy
from unisono.model.rates import BandwidthReservation, Rate, Reserver
from unisono.model.timing import Timing
from unisono.orders.leader.base import LeaderOrderBase, count_fitting_messages, leader_order_offer
from unisono.orders.leader.election import MAX_UNANSWERED_REQUESTS, MissingFrames
from unisono.orders.leader.messages import (
    ALL_REQUESTS,
    ORDERED_BYTES,
    EntryType,
    LastFrames,
    RetransmitRequest,
    StampRequest,
    decode_stamp_request,
    encode_stamp_request,
)
from unisono.orders.leader.stream import RETAINED_ENTRIES, StreamEntry
from unisono.orders.modes import Mode
from unisono.orders.packing import FramePayload, reservation
from unisono.orders.receive_queue import Rqueue, SlotFrames
from unisono.wire.frame import END_OF_SLOT, HEADER_BYTES, LEAVING, UDP_IP_BYTES, Frame, Kind

MAX_PENDING_REQUESTS = 1 << 10
"""How many requests of one member may wait for their stamps."""
MAX_RETRANSMITS_AT_ONCE = 64


def latency_bound_ns(timing: Timing, processing_ns: int) -> int:
    """§8.2 as erratum 000-30 corrects it: 2Δ+max(p, Θ)."""
    return 2 * timing.delta_ns + max(processing_ns, timing.theta_ns)


def constant_delay_bound_ns(timing: Timing, processing_ns: int) -> int:
    """§8.2 as published, true if every delay is exactly Δ: Δ+max(Δ+p, Θ)."""
    return timing.delta_ns + max(timing.delta_ns + processing_ns, timing.theta_ns)


def carries_data(frame: Frame) -> bool:
    """Whether a frame is more than the release of stamps."""
    return frame.packed_messages is not None or bool(frame.body) or bool(frame.flags & LEAVING)


@dataclass(slots=True)
class PendingRequest:
    """A request of this member's own that has not been granted, or not been delivered, yet."""

    request: int
    previous: int
    admitted_at: int
    stamps: int
    granted: bool = False


@dataclass(slots=True)
class PendingGrant:
    """A grant whose turn has not come, and how many of its frames count if its sender is gone."""

    entry: StreamEntry
    frame_limit: int | None = None
    stamps_used: int = 0


class TimestampLeader(LeaderOrderBase):
    """The automaton of one member."""

    blocks_on_any_crash = True  # a dead member may hold stamps

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
        """Frames of requests that were cut short while this member was taken for dead."""
        # Delivering.
        self._rqueues = {member: Rqueue() for member in members}
        self._last_delivered_request = dict.fromkeys(members, 0)
        self._pending_grants: deque[PendingGrant] = deque()
        self._retained_frames: deque[tuple[int, int, int, list[Frame]]] = deque()
        """(position, sender, request, frames) of what was delivered here, while somebody may lack it."""
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
        """§8.2, corrected."""
        return latency_bound_ns(self._timing, self._policy.processing_ns)

    # -- sending ---------------------------------------------------------------------------------------------

    def _accept_messages(self, now: int, messages: Sequence[bytes], sizes: list[int]) -> int:
        self._close_if_due(now)
        if self._request_closes_at is None and not self._open_request(now):
            return 0
        count = count_fitting_messages(self._pacer, sizes)
        if count == 0:
            return 0
        loads = self._pack(messages[:count], sizes[:count])
        full = self._pacer.is_full() or self._request_closes_at == now
        for load in loads[:-1]:
            self._send(now, load, 0)
        self._send(now, loads[-1], END_OF_SLOT if full else 0)
        return count

    def _open_request(self, now: int) -> bool:
        """Ask for as many stamps as the rate allows, if the last request was made Θ ago."""
        slot = self._timing.slot_of(now)
        if (
            now < self._next_request_at
            or slot <= self._current_request
            or len(self._pending_requests) >= MAX_PENDING_REQUESTS
            or self._frames_to_resend
        ):
            return False
        self._adopt_rate(slot)
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
        asked = PendingRequest(request, previous, self.election.membership.admitted_at[self._policy.member], stamps)
        if all(known.granted for known in self._pending_requests):
            self._last_requested_at = now
        self._pending_requests.append(asked)
        self._send_request(now, asked)

    def _send_request(self, now: int, pending: PendingRequest) -> None:
        policy, leader = self._policy, self.election.leader
        if leader is None:
            return
        body = encode_stamp_request(StampRequest(pending.previous, pending.admitted_at, pending.stamps))
        frame = Frame(
            Kind.STAMP_REQUEST,
            policy.member,
            policy.incarnation,
            policy.epoch,
            pending.request,
            0,
            sent_ns=now,
            body=body,
        )
        if leader == policy.member:
            self._on_request(now, frame)
        else:
            self.down.append(replace(frame, to=leader))

    def _send(self, now: int, payload: FramePayload | None, flags: int) -> None:
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
        """Θ is over: the release. In time for a message that is handed in at this very instant to open the next."""
        if self._request_closes_at is not None and now >= self._request_closes_at:
            self._send(now, None, END_OF_SLOT)

    def _send_leaving_frame(self, now: int) -> None:
        if self._request_closes_at is None:
            self._request_stamps(now, max(self._current_request + 1, self._timing.slot_of(now)), 1)
        self._send(now, None, END_OF_SLOT | LEAVING)

    def _oldest_pending_slot(self) -> int | None:
        return self._pending_requests[0].request if self._pending_requests else None

    # -- leading ---------------------------------------------------------------------------------------------

    def _on_frame(self, now: int, frame: Frame) -> None:
        if frame.kind is Kind.STAMP_REQUEST:
            self._on_request(now, frame)
        elif frame.kind is Kind.DATA:
            self._store_frame(frame)

    def _on_request(self, now: int, frame: Frame) -> None:
        sender, request = frame.sender, decode_stamp_request(bytes(frame.body))
        early = self._out_of_sequence[sender]
        if request is None or self.election.leader != self._policy.member:
            self.ignored["not the leader"] += 1
        elif (
            not self.election.membership.is_current_member(sender)
            or request.admitted_at != self.election.membership.admitted_at[sender]
        ):
            self.ignored["not on the roll"] += 1
        elif (
            frame.slot <= self._last_accepted_request[sender]
            or request.previous in early
            or len(early) >= MAX_PENDING_REQUESTS
        ):
            self.ignored["duplicate"] += 1
        else:
            early[request.previous] = frame
            while (following := early.pop(self._last_accepted_request[sender], None)) is not None:
                wanted = decode_stamp_request(bytes(following.body))
                self._ready_to_order.append(
                    (now + self._leader_hold_ns, replace(following, burst=wanted.count if wanted else 0))
                )
                self._last_accepted_request[sender] = following.slot

    def _order_and_retransmit(self, now: int) -> None:
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
        """Whatever was sent may be lost: ask again when it is late."""
        wait = self.bound_ns() + self._timing.gamma_ns
        waiting = [asked for asked in self._pending_requests if not asked.granted]
        if waiting and now > self._last_requested_at + wait:
            self._last_requested_at = now
            for asked in waiting:
                self._send_request(now, asked)
        if self._pending_grants:
            entry = self._pending_grants[0].entry
            on = (entry.position, self._frames_of(entry).next_number)
            if on != self._stuck_on:
                self._stuck_on, self._stuck_at, self._unanswered_requests = on, now, 0
            elif now > self._stuck_at + wait:
                self._stuck_at, self._unanswered_requests = now, self._unanswered_requests + 1
                if self._unanswered_requests > MAX_UNANSWERED_REQUESTS and self.election.leader not in {
                    None,
                    self._policy.member,
                }:
                    self.election.fence(entry.position)
                self._request_missing_frames(now)

    def _request_missing_frames(self, now: int) -> None:
        """Of all grants that wait, not of the first only: who was cut off lacks many."""
        for request, origin, number in self._missing_frames(
            [grant.entry for grant in islice(self._pending_grants, MAX_RETRANSMITS_AT_ONCE)]
        ):
            self.election.request_frames(now, origin, request, number)

    def _missing_frames(self, entries: Sequence[StreamEntry]) -> list[MissingFrames]:
        granted = [(entry, self._frames_of(entry)) for entry in entries if entry.entry_type is EntryType.GRANT]
        return [
            MissingFrames(e.request, e.origin, f.next_number)
            for e, f in granted
            if f.last_number is None or f.missing()
        ]

    def _send_copies(self, now: int, to: int, retransmit_request: RetransmitRequest) -> None:
        origin, request = retransmit_request.origin, retransmit_request.first
        queue = self._rqueues.get(origin)
        frames = [] if queue is None else list(queue.slots.get(request, SlotFrames()).waiting.values())
        for _, sender, of, kept in self._retained_frames:
            if (sender, of) == (origin, request):
                frames = [*kept, *frames]
        for frame in frames:
            self.election.frame_sender.send_copy(now, frame, self.election.promised_term, to)

    def _order_timer_at(self) -> int | None:
        times = (
            [self._ready_to_order[0][0]]
            if self._ready_to_order and self._leader_hold_ns and self.election.leading
            else []
        )
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
        """Grant by grant, as far as frames have come; rolls in between have their turn."""
        accepted = self.election.stream.accepted
        while accepted:
            entry = accepted.popleft()
            if entry.entry_type is EntryType.GRANT:
                self._last_granted[entry.origin] = entry.request
                if entry.origin == self._policy.member:
                    self._record_granted(now, entry.request)
            elif entry.entry_type is EntryType.MEMBER_LIST:
                for cut in entry.member_list().last_frames:
                    self._apply_last_frames(cut, entry.position)
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
        for asked in self._pending_requests:
            if asked.request == request:
                asked.granted = True
        self._last_requested_at = now

    def _deliver_grant(self, grant: PendingGrant) -> bool:
        """What has come of it; True if that was all."""
        entry, limit = grant.entry, grant.frame_limit
        sender, frames = entry.origin, self._frames_of(entry)
        if not self._retained_frames or self._retained_frames[-1][0] != entry.position:
            self._retained_frames.append((entry.position, sender, entry.request, []))
        ended = limit is not None and frames.next_number >= limit
        while not ended and (frame := frames.waiting.pop(frames.next_number, None)) is not None:
            frames.next_number += 1
            self._retained_frames[-1][3].append(frame)
            run = self._fragments.reassemble(sender, frame.flags, frame.packed_messages, frame.body)
            if run is not None:
                self._deliver(entry, entry.ordinal + grant.stamps_used, frame.first_sequence, run)
                grant.stamps_used += run.count
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
        end = min(self.election.stream.stable, self.election.stream.position - RETAINED_ENTRIES)
        while self._retained_frames and self._retained_frames[0][0] <= end:
            self._retained_frames.popleft()
        return True

    # -- members that go and come back -----------------------------------------------------------------------

    def _missing_frames_of(self, members: Sequence[int]) -> list[MissingFrames]:
        entries = [*(grant.entry for grant in self._pending_grants), *self.election.stream.accepted]
        return self._missing_frames([entry for entry in entries if entry.origin in members])[:MAX_RETRANSMITS_AT_ONCE]

    def _last_frames_of(self, member: int) -> LastFrames:
        """How far the frames of a member go that have come here: the others are to deliver as many."""
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
        if last_frames.request == ALL_REQUESTS:
            return
        for _, sender, request, frames in self._retained_frames:
            most = last_frames.number if request == last_frames.request else 0
            if (
                sender == last_frames.member
                and request >= last_frames.request
                and any(map(carries_data, frames[most:]))
            ):
                # More was delivered here than counts: only a network that loses frames can bring that about.
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
        """This member was taken for dead. What it has asked for since is void, and is asked for anew, in order."""
        own = self._rqueues[self._policy.member]
        self._request_closes_at, self._previous_request = None, self._last_granted[self._policy.member]
        for asked in [asked for asked in self._pending_requests if not asked.granted]:
            self._pending_requests.remove(asked)
            frames = own.slots.pop(asked.request, SlotFrames())
            self._frames_to_resend += [frames.waiting[number] for number in sorted(frames.waiting)]

    def _resend_frames(self, now: int) -> None:
        """Back on the roll, with all grants of the earlier life delivered: the rest gets stamps of its own."""
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
        """What a leader had collected of earlier reigns, or of members that come or go, is void; it is asked again."""
        changed = {member for member, at in self.election.membership.admitted_at.items() if at == entry.position}
        if entry.term != self._last_begun_term:
            self._last_begun_term, changed = entry.term, set(self._last_accepted_request)
        for member in changed:
            self._last_accepted_request[member] = self._last_granted[member]
            self._out_of_sequence[member].clear()
        self._ready_to_order = deque(waiting for waiting in self._ready_to_order if waiting[1].sender not in changed)
        self._reserve_as_leader()
        if self._policy.member in changed:
            for asked in self._pending_requests:
                if not asked.granted:
                    self._send_request(now, asked)


def stamping_reservation(policy: Policy, rate: Rate, *, leads: bool) -> BandwidthReservation:
    """A member's frames, a request, a release and a beat per slot; the leader's: a grant for each member besides."""
    own = reservation(policy, rate)
    small = HEADER_BYTES + ORDERED_BYTES + UDP_IP_BYTES
    extra = small * (2 + (len(policy.view.members) if leads else 0))
    return BandwidthReservation(
        own.avg_bytes_per_s + extra * NS_PER_S // policy.timing.theta_ns, own.burst_bytes_per_slot + extra, own.theta_ns
    )


def offer(ask: Ask) -> Offer:
    """What the timestamp leader gives."""
    timing, rate = ask.timing, ask.rate
    slots = NS_PER_S / timing.theta_ns
    bound, published = latency_bound_ns(timing, ask.processing_ns), constant_delay_bound_ns(timing, ask.processing_ns)
    delta, theta, p = (duration_text(ns) for ns in (timing.delta_ns, timing.theta_ns, ask.processing_ns))
    why = (
        f"latency 2Δ+max(p, Θ) = 2·{delta} + max({p}, {theta}) = {duration_text(bound)}, for any number of members",
        f"(if every delay were exactly Δ: Δ+max(Δ+p, Θ) = {duration_text(published)})",
        f"average {rate.avg:g}/s; per slot a request, a grant, one release of what was not used: 3·{slots:g}/s",
        f"and a beat per slot, {slots:g}/s: {rate.avg + 4 * slots:g}/s; the leader sends {ask.members} grants per slot",
        f"burst {rate.burst} + 2: a request and a grant, since a full burst needs no release; and a beat",
    )
    return leader_order_offer("timestamp", ask, bound, why, average=rate.avg + 4 * slots, burst=rate.burst + 3)
