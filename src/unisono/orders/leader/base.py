"""The part that both leader orders share: modes, start and departure, rate, delivery, and the election of a leader.

`LeaderBroadcast` (000 §8.1) and `TimestampLeader` (000 §8.2) differ in what the leader does for a message: it relays
the message, or it grants stamps for it. Both read one stream of ordered entries (`stream`), which the current leader
extends (`election`). After each input `_deliver_and_order` delivers the accepted entries and, at the leader, orders
what can be ordered, until nothing changes any more.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence
from typing import ClassVar

from unisono.errors import ReservationRefused
from unisono.model.events import Batch, PackedMessages, View, ViewChange, Violation, ViolationKind
from unisono.model.offers import Ask, Offer
from unisono.model.policy import Policy
from unisono.model.status import Standing
from unisono.model.timing import earliest
from unisono.model.units import BandwidthReservation, Rate, Reserver, duration_text
from unisono.net.layer import NO_ROOM
from unisono.orders.contract import ACCEPTED_INPUTS, Input, Mode, VariableRateBase
from unisono.orders.leader.election import (
    LeaderElection,
    MissingFrames,
    leader_change_bound_ns,
    outage_ns,
    vote_wait_ns,
)
from unisono.orders.leader.messages import ORDERED_BYTES, EntryType, LastFrames, Ordered
from unisono.orders.leader.stream import StreamEntry
from unisono.orders.packing import FramePayload, Packer, ReservedPacer, checked_sizes
from unisono.wire.frame import (
    FIRST_FRAGMENT,
    FRAGMENT,
    HEADER_BYTES,
    MORE_FRAGMENTS,
    PACKED_HEADER_BYTES,
    UDP_IP_BYTES,
    Frame,
    Kind,
    ReassembledMessage,
)

_ELECTION_KINDS = frozenset(
    {Kind.STREAM_HEARTBEAT, Kind.VOTE_REQUEST, Kind.VOTE, Kind.RETRANSMIT_REQUEST, Kind.ORDERED}
)


class FragmentAssembler:
    """Reassembles messages that their sender split over several frames."""

    def __init__(self, members: Iterable[int]) -> None:
        self._fragments: dict[int, list[bytes | memoryview]] = {member: [] for member in members}

    def reassemble(
        self, sender: int, flags: int, packed_messages: PackedMessages | None, body: bytes | memoryview
    ) -> PackedMessages | None:
        """The messages that this frame completes: its own, or the message whose last fragment it carries."""
        if not flags & FRAGMENT:
            return packed_messages
        fragments = self._fragments[sender]
        if flags & FIRST_FRAGMENT:
            fragments.clear()
        fragments.append(body)
        if flags & MORE_FRAGMENTS:
            return None
        self._fragments[sender] = []
        return ReassembledMessage(fragments)


class LeaderOrderBase(VariableRateBase):
    """One member's automaton of a leader order, except for the way in which the leader orders a message."""

    gap_free = True  # survivors deliver all messages of survivors, also if the leader crashes
    keeps_sending_to_departed = True  # a removed member may come back, and needs this member's frames for that
    entry_types: ClassVar[frozenset[EntryType]]
    """The types of entries in the stream of this order."""
    blocks_on_any_crash = False
    """Whether the crash of any member, not only of the leader, stops deliveries until the leader removes the member."""

    def __init__(self, policy: Policy, reserver: Reserver) -> None:
        super().__init__(policy)
        self.election = LeaderElection(
            policy,
            self.down,
            self.events,
            self.ignored,
            last_frames_of=self._last_frames_of,
            missing_frames_of=self._missing_frames_of,
        )
        self._timing = policy.timing
        self._reserved_as_leader = self.election.leading
        self._pacer = ReservedPacer(policy, reserver, self._reservation)
        self._packer = Packer(policy.max_frame - ORDERED_BYTES)
        self._fragments = FragmentAssembler(policy.view.members)
        self._sequence = 0
        self._index = 0
        self._leaving = False
        self._late_reported_slot = -1
        self._last_begun_term = 0
        """The last term whose first member list was delivered."""
        self._leader_hold_ns = max(0, policy.processing_ns - policy.timing.gamma_ns)
        """How long the leader keeps a frame before it orders it: p (the time it needs for one message) minus Γ.

        Γ is subtracted because the clock that measures this time may be wrong by Γ.
        """
        self._ready_to_order: deque[tuple[int, Frame]] = deque()
        """At the leader: frames or requests as they arrived, each with the time from which it may be ordered."""
        self._last_ordering_at = 0
        """When this member last tried to order frames or requests."""
        self.window_slots = -(-self.bound_ns() // self._timing.theta_ns) + 3

    # -- where the two orders differ -------------------------------------------------------------------------

    @abstractmethod
    def bound_ns(self) -> int:
        """The latency bound while no member crashes."""

    @abstractmethod
    def _reservation(self, rate: Rate) -> BandwidthReservation:
        """The bandwidth that this member needs at a rate; a leader needs more than a follower."""

    @abstractmethod
    def _accept_messages(self, now: int, messages: Sequence[bytes], sizes: list[int]) -> int:
        """Send the messages that the rate allows now; returns how many."""

    @abstractmethod
    def _room_by_rate(self, now: int) -> tuple[int, int]:
        """How many messages, and how many bytes of payload, `_accept_messages` sends at the same reading."""

    @abstractmethod
    def _send_leaving_frame(self, now: int) -> None:
        """Send this member's last frame, which says that it leaves the group."""

    @abstractmethod
    def _oldest_pending_slot(self) -> int | None:
        """The slot of this member's oldest frame or request that it has not delivered yet; None if there is none."""

    @abstractmethod
    def _on_frame(self, now: int, frame: Frame) -> None:
        """Process a frame that belongs neither to forming the group nor to the election."""

    @abstractmethod
    def _order_and_retransmit(self, now: int) -> None:
        """As the leader, order the frames or requests that have waited long enough. Retransmit the overdue ones."""

    @abstractmethod
    def _deliver_accepted(self, now: int) -> None:
        """Deliver the accepted entries of the stream as far as possible."""

    @abstractmethod
    def _last_frames_of(self, member: int) -> LastFrames | None:
        """The last frames of a removed member that the group still delivers; None if the stream itself shows them."""

    @abstractmethod
    def _missing_frames_of(self, members: Sequence[int]) -> list[MissingFrames]:
        """Frames of these members that the stream has ordered and that have not arrived."""

    # -- inputs ----------------------------------------------------------------------------------------------

    def submit(self, now: int, messages: Sequence[bytes]) -> int:
        """Accept as many messages as the declared rate allows; their frames leave at once. Returns how many."""
        sizes = checked_sizes(messages, self._policy.max_message)
        if Input.SUBMIT not in ACCEPTED_INPUTS[self.mode] or self._leaving or not sizes:
            return 0
        accepted = self._accept_messages(now, messages, sizes) if self._may_submit(now) else 0
        self._deliver_and_order(now)
        return accepted

    def room(self, now: int) -> tuple[int, int]:
        """How many messages, and how many bytes of payload, the declared rate allows now."""
        if Input.SUBMIT not in ACCEPTED_INPUTS[self.mode] or self._leaving or not self._may_submit(now):
            return NO_ROOM
        return self._room_by_rate(now)

    def _may_submit(self, now: int) -> bool:
        """Whether this member is a current member, and the order is not behind with its messages."""
        self.election.detect_own_pause(now)
        oldest = self._oldest_pending_slot()
        is_behind = oldest is not None and self._timing.slot_of(now) - oldest > self.window_slots
        return self.election.membership.is_current_member(self._policy.member) and not is_behind

    def from_below(self, now: int, frame: Frame) -> None:
        """Process a frame that has arrived: a HELLO, a frame of the election or of the stream, or a message."""
        if frame.kind is Kind.HELLO:
            if Input.HELLO in ACCEPTED_INPUTS[self.mode]:
                self._receive_hello(now, frame)
                self.election.frame_sender.uses_multicast = self._multicast
                self._start_deliver(now)
            return
        if Input.DATA not in ACCEPTED_INPUTS[self.mode]:
            self.ignored["data in mode " + self.mode] += 1
            return
        if frame.epoch != self._policy.epoch or self.exchange.incarnations.get(frame.sender) != frame.incarnation:
            self.ignored["another incarnation or epoch"] += 1
            return
        if isinstance(frame.message, Ordered) and frame.message.header.entry_type not in self.entry_types:
            self.ignored["entry type not used by this order"] += 1
            return
        if frame.kind in _ELECTION_KINDS:
            self.election.from_below(now, frame)
        else:
            self.election.detect_own_pause(now)
            self._on_frame(now, frame)
        self._deliver_and_order(now)

    def change_rate(self, now: int, rate: Rate) -> None:
        """Use a new rate from the next slot on.

        Until then, reserve enough for the larger of the old and the new rate.
        """
        if Input.NEW_RATE in ACCEPTED_INPUTS[self.mode]:
            self._pacer.change_rate(rate)

    def leave(self, now: int) -> None:
        """Depart when all accepted messages have their position. If a leader departs, an election follows."""
        if self._leaving:
            return
        if not self.running() or not self.election.membership.is_current_member(self._policy.member):
            self._depart(self._timing.slot_of(now))
            return
        self._leaving = True
        self._send_leaving_frame(now)
        self._deliver_and_order(now)

    def wake(self, now: int) -> None:
        """Handle the timers that are due."""
        if self.exchange.next_hello_at is not None:
            self._form(now)
        if self.mode is Mode.DELIVER_MESSAGES:
            self.election.wake(now)
            self._deliver_and_order(now)
            self._check_late(now)

    def wake_at(self) -> int | None:
        """The earliest time of the next HELLO, heartbeat, time-out and timer of the order itself."""
        times = [self.exchange.next_hello_at]
        if self.mode is Mode.DELIVER_MESSAGES:
            times += [self.election.wake_at(), self._order_timer_at()]
        return earliest(times)

    # -- start and departure ---------------------------------------------------------------------------------

    def _start_deliver(self, now: int) -> None:
        """Start the order once every rate is known, without waiting for the first slot: it compares no clocks."""
        if self.mode is not Mode.DET_RATE or not self.exchange.complete:
            return
        first = self.exchange.first_slot()
        self.mode = Mode.DELIVER_MESSAGES
        self.view = View(self.view.members, first)
        self.events.append(ViewChange(self.view, joined=self.view.members))
        self.election.start(now, first)
        self._deliver_and_order(now)

    def _deliver_and_order(self, now: int) -> None:
        """Deliver entries and, as the leader, order frames or requests, until neither is possible any more."""
        stream, progress = self.election.stream, -1
        while self.mode is Mode.DELIVER_MESSAGES and progress != stream.position + stream.delivered_position:
            progress = stream.position + stream.delivered_position
            if self.election.fenced:
                self._depart(self._timing.slot_of(now))
                return
            self._deliver_accepted(now)
            self.election.update_member_list(now)
            self._last_ordering_at = now
            self._order_and_retransmit(now)
            self._deliver_accepted(now)
        if self.election.membership.leaving >= {*self.view.members}:
            # Every member is leaving: no member remains that could remove the last one.
            self._depart(self._timing.slot_of(now))

    def _order_timer_at(self) -> int | None:
        """When the leader may order the next waiting frame or request; None if no timer is needed.

        If it may be ordered since an earlier time, the leader lacks a majority or room in its window. Only an input or
        the next heartbeat can change that.
        """
        if self._ready_to_order and self.election.leading and self._ready_to_order[0][0] > self._last_ordering_at:
            return self._ready_to_order[0][0]
        return None

    # -- sending ---------------------------------------------------------------------------------------------

    def _pack(self, messages: Sequence[bytes], sizes: list[int]) -> list[FramePayload]:
        """Pack all these messages into frames; the packer keeps nothing back."""
        self._pacer.record_sent(len(sizes), sum(sizes))
        self._pacer.check(self._policy.member)
        return self._packer.pack_all(messages, sizes)

    def _data_frame(self, now: int, payload: FramePayload, *, slot: int, number: int, flags: int) -> Frame:
        burst = self._pacer.rate.burst
        frame = payload.data_frame(self._policy, now, slot, number, flags, burst=burst, sequence=self._sequence)
        self._sequence += payload.messages_completed
        return frame

    def _reserve_as_leader(self) -> None:
        """Reserve the larger bandwidth of a new leader. If the network refuses, lead anyway and report a violation."""
        if self.election.leading == self._reserved_as_leader:
            return
        self._reserved_as_leader = self.election.leading
        try:
            self._pacer.reserve()
        except ReservationRefused as refused:
            text = f"this member leads without the bandwidth that a leader needs: {refused}"
            self.events.append(Violation(ViolationKind.RESERVATION_REFUSED, text, self._policy.member))

    # -- delivering ------------------------------------------------------------------------------------------

    def _deliver(self, entry: StreamEntry, ordinal: int, first_sequence: int, packed_messages: PackedMessages) -> None:
        self.events.append(
            Batch(
                entry.origin,
                entry.incarnation,
                entry.slot,
                first_sequence,
                ordinal,
                self._index,
                packed_messages.count,
                [packed_messages],
            )
        )
        self._index += packed_messages.count

    def _apply_member_list(self, entry: StreamEntry) -> None:
        """Change the view as a member list says. Every member does this at the same position of the order."""
        old, new, me = self.view.members, entry.member_list().members, self._policy.member
        joined, left = tuple(m for m in new if m not in old), tuple(m for m in old if m not in new)
        self.view = View(new, entry.slot)
        self.exchange.stop()
        if joined or left:
            self.events.append(ViewChange(self.view, joined, left))
        if me in left and me in self.election.membership.leaving:
            self._depart(entry.slot)

    def _check_late(self, now: int) -> None:
        """Report once if this member's own messages should have been delivered by now."""
        oldest = self._oldest_pending_slot()
        if oldest is None or oldest <= self._late_reported_slot:
            return
        due = self._timing.end_of(oldest) + self.bound_ns() + self._timing.gamma_ns
        if now > due:
            self._late_reported_slot = self._timing.slot_of(now)
            leader = self.election.leader
            awaited = f"member {leader}, the leader" if leader is not None else "a new leader"
            text = f"waiting for {awaited}: messages sent in slot {oldest} are {(now - due) / 1e6:.3f} ms late"
            self.events.append(Violation(ViolationKind.LATE, text, leader, oldest))

    # -- questions -------------------------------------------------------------------------------------------

    def standing(self, now: int) -> Standing:
        """The leader, and whether it has a majority."""
        return self.election.standing(now)

    def latest_slot(self, now: int) -> int:
        """The last slot that a frame may name: any that a clock can show, since the order compares no clocks."""
        return ((1 << 63) - 1) // self._timing.theta_ns

    def leader_change_bound_ns(self) -> int:
        """The longest time for which no message is ordered after the leader crashes."""
        return leader_change_bound_ns(self._timing)

    def outage_ns(self, died: Sequence[int]) -> int:
        """How much longer than the bound a message may take if these members crash, in the order of the list.

        The lowest live member leads. A member that crashes together with a leader may add one wait for votes.
        """
        alive, leaders = list(self._policy.view.members), 0
        for member in died:
            leaders += member == alive[0]
            alive.remove(member)
        stops = max(leaders, 1 if died and self.blocks_on_any_crash else 0)
        each_ns = outage_ns(self._timing, self._policy.processing_ns)
        return stops and stops * each_ns + (len(died) - stops) * vote_wait_ns(self._timing)


def leader_order_offer(
    order: str, ask: Ask, bound_ns: int, why: tuple[str, ...], *, average: float, burst: int
) -> Offer:
    """What a leader order offers for a request to the planner.

    After a crash of the leader messages are late by the time of the election, and a majority must survive.
    """
    gap, outage, against = leader_change_bound_ns(ask.timing), outage_ns(ask.timing, ask.processing_ns), []
    longest = bound_ns + ask.failures * outage
    if ask.failures and ask.deadline_ns is not None and bound_ns <= ask.deadline_ns < longest:
        worst, deadline = duration_text(longest), duration_text(ask.deadline_ns)
        times = "" if ask.failures == 1 else f" {ask.failures} times"
        against.append(
            f"when the leader crashes{times} a message takes up to {worst}, more than the deadline of {deadline}"
        )
    if 2 * ask.failures >= ask.members and ask.failures:
        against.append(f"a majority must survive, and {ask.failures} of {ask.members} is half or more")
    if ask.loss or ask.loss_burst or ask.fec is not None:
        against.append("a lost datagram is retransmitted, later than the bound")
    crash = f"when the leader crashes nothing is ordered for Θ+5Δ+7Γ = {duration_text(gap)} at most"
    return Offer(
        order,
        not against,
        bound_ns,
        average,
        burst,
        HEADER_BYTES + PACKED_HEADER_BYTES + UDP_IP_BYTES + (ORDERED_BYTES if order == "leader" else 0),
        True,
        "lost datagrams are retransmitted, late",
        1.0,
        (*against, *why, crash),
        outage_ns=outage,
    )
