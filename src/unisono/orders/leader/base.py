"""What every order with a leader is made of: its modes, its beginning and its end, its rate, and its succession.

A subclass says what becomes of messages that are taken (`_take`), of frames that arrive (`_arrived`), what a leader
does (`_work`) and how entries of the ordered stream are delivered (`_advance`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate

from unisono.errors import MessageTooLarge, ReservationRefused
from unisono.model.durations import duration_text, earliest
from unisono.model.events import Batch, LeaveComplete, PackedMessages, StackEvent, ViewChange, Violation, ViolationKind
from unisono.model.offers import Ask, Offer
from unisono.model.policy import Policy
from unisono.model.rates import BandwidthReservation, Rate, Reserver
from unisono.model.views import View
from unisono.net.pacer import Pacer
from unisono.orders.formation import RateExchange
from unisono.orders.leader.election import (
    LeaderElection,
    MissingFrames,
    leader_change_bound_ns,
    outage_ns,
    vote_wait_ns,
)
from unisono.orders.leader.messages import ORDERED_BYTES, LastFrames
from unisono.orders.leader.stream import StreamEntry
from unisono.orders.modes import ACCEPTED_INPUTS, Input, Mode
from unisono.orders.packing import FramePayload, Packer
from unisono.wire.frame import (
    FIRST_FRAGMENT,
    FRAGMENT,
    HEADER_BYTES,
    MORE_FRAGMENTS,
    UDP_IP_BYTES,
    Frame,
    Kind,
)
from unisono.wire.packed_messages import PACKED_HEADER_BYTES, ReassembledMessage

_ELECTION_KINDS = frozenset(
    {Kind.STREAM_HEARTBEAT, Kind.VOTE_REQUEST, Kind.VOTE, Kind.RETRANSMIT_REQUEST, Kind.ORDERED}
)


def count_fitting_messages(pacer: Pacer, sizes: list[int]) -> int:
    """How many messages of these sizes, from the first on, a slot still takes."""
    count = min(len(sizes), pacer.messages_left())
    if sum(sizes[:count]) <= pacer.bytes_left():
        return count
    return bisect_right(list(accumulate(sizes[:count])), pacer.bytes_left())


class FragmentAssembler:
    """Puts the frames of each sender back together into runs."""

    def __init__(self, members: Iterable[int]) -> None:
        self._fragments: dict[int, list[bytes | memoryview]] = {member: [] for member in members}

    def reassemble(
        self, sender: int, flags: int, packed_messages: PackedMessages | None, body: bytes | memoryview
    ) -> PackedMessages | None:
        """What a frame completes: its run, or the message whose last piece it is."""
        if not flags & FRAGMENT:
            return packed_messages
        pieces = self._fragments[sender]
        if flags & FIRST_FRAGMENT:
            pieces.clear()
        pieces.append(body)
        if flags & MORE_FRAGMENTS:
            return None
        self._fragments[sender] = []
        return ReassembledMessage(pieces)


class LeaderOrderBase(ABC):
    """The part of an order that does not depend on what the leader does for a message."""

    blocks_on_any_crash = False
    """Whether the order also stops for a member that dies without leading, until the leader removes it."""

    def __init__(self, policy: Policy, reserver: Reserver) -> None:
        self.down: list[Frame] = []
        self.events: list[StackEvent] = []
        self.ignored: Counter[str] = Counter()
        self.mode = Mode.GET_RATE
        self.view = policy.view
        self.exchange = RateExchange(policy)
        self.election = LeaderElection(
            policy,
            self.down,
            self.events,
            self.ignored,
            last_frames_of=self._last_frames_of,
            missing_frames_of=self._missing_frames_of,
        )
        self._policy = policy
        self._timing = policy.timing
        self._reserver = reserver
        self._reserved_as_leader = self.election.leading
        reserver.reserve(self._reservation(policy.rate))
        self._packer = Packer(policy.max_frame - ORDERED_BYTES)
        self._pacer = Pacer(policy.rate, policy.timing.theta_ns, policy.max_message)
        self._fragments = FragmentAssembler(policy.view.members)
        self._new_rate: Rate | None = None
        self._sequence = 0
        self._index = 0
        self._leaving = False
        self._late_reported_slot = -1
        self._last_begun_term = 0
        """The last reign whose roll has come."""
        self._leader_hold_ns = max(0, policy.processing_ns - policy.timing.gamma_ns)
        self.window_slots = -(-self.bound_ns() // self._timing.theta_ns) + 3

    # -- what the two orders differ in -----------------------------------------------------------------------

    @abstractmethod
    def _reservation(self, rate: Rate) -> BandwidthReservation: ...
    @abstractmethod
    def _accept_messages(self, now: int, messages: Sequence[bytes], sizes: list[int]) -> int: ...
    @abstractmethod
    def _on_frame(self, now: int, frame: Frame) -> None: ...
    @abstractmethod
    def _deliver_accepted(self, now: int) -> None: ...
    @abstractmethod
    def _order_and_retransmit(self, now: int) -> None: ...
    @abstractmethod
    def _order_timer_at(self) -> int | None: ...
    @abstractmethod
    def _send_leaving_frame(self, now: int) -> None: ...
    @abstractmethod
    def _oldest_pending_slot(self) -> int | None: ...
    @abstractmethod
    def _last_frames_of(self, member: int) -> LastFrames | None: ...
    @abstractmethod
    def _missing_frames_of(self, members: Sequence[int]) -> list[MissingFrames]: ...
    @abstractmethod
    def bound_ns(self) -> int:
        """AppLatency while nobody dies."""

    # -- inputs ----------------------------------------------------------------------------------------------

    def submit(self, now: int, messages: Sequence[bytes]) -> int:
        """Take what the declared rate has room for; it is on its way when this returns."""
        sizes = list(map(len, messages))
        largest = max(sizes, default=0)
        if largest > self._policy.max_message:
            raise MessageTooLarge(largest, self._policy.max_message)
        if Input.SUBMIT not in ACCEPTED_INPUTS[self.mode] or self._leaving or not sizes:
            return 0
        self.election.detect_own_pause(now)
        oldest = self._oldest_pending_slot()
        behind = oldest is not None and self._timing.slot_of(now) - oldest > self.window_slots
        taken = 0
        if self.election.membership.is_current_member(self._policy.member) and not behind:
            taken = self._accept_messages(now, messages, sizes)
        self._deliver_and_order(now)
        return taken

    def from_below(self, now: int, frame: Frame) -> None:
        """net-receive."""
        if frame.kind is Kind.HELLO:
            if Input.HELLO in ACCEPTED_INPUTS[self.mode]:
                violation = self.exchange.from_below(now, frame)
                self._send_hellos()
                if violation is not None:
                    self.events.append(violation)
                self.election.frame_sender.uses_multicast = self.exchange.reaches_all_by_multicast()
                self._start_deliver(now)
            return
        if Input.DATA not in ACCEPTED_INPUTS[self.mode]:
            self.ignored["data in mode " + self.mode] += 1
            return
        if frame.epoch != self._policy.epoch or self.exchange.incarnation(frame.sender) != frame.incarnation:
            self.ignored["another incarnation or epoch"] += 1
            return
        if frame.kind in _ELECTION_KINDS:
            self.election.from_below(now, frame)
        else:
            self.election.detect_own_pause(now)
            self._on_frame(now, frame)
        self._deliver_and_order(now)

    def change_rate(self, now: int, rate: Rate) -> None:
        """new-rate: in force from the next slot on; the larger of both rates is reserved until then."""
        if Input.NEW_RATE not in ACCEPTED_INPUTS[self.mode]:
            return
        self._policy.check_rate(rate)
        asked, held = self._reservation(rate), self._reservation(self._pacer.rate)
        self._reserver.reserve(
            BandwidthReservation(
                max(asked.avg_bytes_per_s, held.avg_bytes_per_s),
                max(asked.burst_bytes_per_slot, held.burst_bytes_per_slot),
                asked.theta_ns,
            )
        )
        self._new_rate = rate

    def leave(self, now: int) -> None:
        """Depart when all that was accepted is in its place; a leader hands over with its departure."""
        if self.mode in {Mode.GET_RATE, Mode.DET_RATE}:
            self._depart(self._timing.slot_of(now))
        elif self.mode is Mode.DELIVER_MESSAGES and not self._leaving:
            self._leaving = True
            if not self.election.membership.is_current_member(self._policy.member):
                self._depart(self._timing.slot_of(now))
                return
            self._send_leaving_frame(now)
            self._deliver_and_order(now)

    def wake(self, now: int) -> None:
        """Time has passed."""
        if self.mode is Mode.LEFT:
            return
        if self.mode is Mode.GET_RATE:
            self.mode = Mode.DET_RATE
        self.exchange.wake(now)
        self._send_hellos()
        self._start_deliver(now)
        if self.mode is Mode.DELIVER_MESSAGES:
            self.election.wake(now)
            self._deliver_and_order(now)
            self._check_late(now)

    def wake_at(self) -> int | None:
        """A HELLO, a beat, a suspicion, or something of the order's own."""
        if self.mode is Mode.GET_RATE:
            return 0
        if self.mode is Mode.LEFT:
            return None
        times = [self.exchange.wake_at()]
        if self.mode is Mode.DELIVER_MESSAGES:
            times += [self.election.wake_at(), self._order_timer_at()]
        return earliest(times)

    # -- shared steps ----------------------------------------------------------------------------------------

    def _send_hellos(self) -> None:
        self.down += self.exchange.down
        self.exchange.down.clear()

    def _start_deliver(self, now: int) -> None:
        """start-deliver: every rate is known. No slot is waited for, since no clock is trusted."""
        if self.mode is not Mode.DET_RATE or not self.exchange.complete:
            return
        first = self.exchange.first_slot()
        self.mode = Mode.DELIVER_MESSAGES
        self.view = View(self.view.members, first)
        self.events.append(ViewChange(self.view, joined=self.view.members))
        self.election.start(now, first)
        self._deliver_and_order(now)

    def _deliver_and_order(self, now: int) -> None:
        """Deliver what can be delivered and, as the leader, order what can be ordered, until nothing moves."""
        moved = -1
        while (
            self.mode is Mode.DELIVER_MESSAGES
            and moved != self.election.stream.position + self.election.stream.delivered_position
        ):
            moved = self.election.stream.position + self.election.stream.delivered_position
            if self.election.fenced:
                self._depart(self._timing.slot_of(now))
                return
            self._deliver_accepted(now)
            self.election.update_member_list(now)
            self._order_and_retransmit(now)
            self._deliver_accepted(now)
        if self.election.membership.leaving >= {*self.view.members}:
            # The last of all has nobody to tell.
            self._depart(self._timing.slot_of(now))

    def _depart(self, final_slot: int) -> None:
        if self.mode is not Mode.LEFT:
            self.mode = Mode.LEFT
            self.events.append(LeaveComplete(final_slot))

    def _apply_member_list(self, entry: StreamEntry) -> None:
        """The members change here, at the same place in the order everywhere."""
        old, new, me = self.view.members, entry.member_list().members, self._policy.member
        joined, left = tuple(m for m in new if m not in old), tuple(m for m in old if m not in new)
        self.view = View(new, entry.slot)
        self.exchange.stop()
        if joined or left:
            self.events.append(ViewChange(self.view, joined, left))
        if me in left and me in self.election.membership.leaving:
            self._depart(entry.slot)

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

    def _reserve_as_leader(self) -> None:
        """Who comes to lead needs more room; without it, it leads all the same, and says so."""
        if self.election.leading == self._reserved_as_leader:
            return
        self._reserved_as_leader = self.election.leading
        try:
            self._reserver.reserve(self._reservation(self._pacer.rate))
        except ReservationRefused as refused:
            self.events.append(
                Violation(ViolationKind.RESERVATION_REFUSED, f"leading without room: {refused}", self._policy.member)
            )

    def _adopt_rate(self, slot: int) -> None:
        """The pacer's slot; a new rate comes into force with it."""
        self._pacer.open_slot(slot, self._new_rate)
        if self._new_rate is not None:
            self._reserver.reserve(self._reservation(self._new_rate))
            self._new_rate = None

    def _data_frame(self, now: int, payload: FramePayload | None, *, slot: int, number: int, flags: int) -> Frame:
        run, body = None, b""  # type: PackedMessages | None, bytes | memoryview
        if payload is not None:
            run = payload.packed_messages
            if payload.fragment is not None:
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
            slot,
            number,
            flags,
            self._pacer.rate.burst,
            self._sequence,
            now,
            run,
            body,
        )
        if payload is not None:
            self._sequence += payload.messages_completed
        return frame

    def _pack(self, messages: Sequence[bytes], sizes: list[int]) -> list[FramePayload]:
        """All of these messages in frames: nothing is held back."""
        self._pacer.record_sent(len(sizes), sum(sizes))
        loads = self._packer.add(messages, sizes)
        rest = self._packer.flush()
        return loads if rest is None else [*loads, rest]

    def _check_late(self, now: int) -> None:
        """Own messages should have been delivered by now; if not, say so once."""
        oldest = self._oldest_pending_slot()
        if oldest is None or oldest <= self._late_reported_slot:
            return
        late = self._timing.end_of(oldest) + self.bound_ns() + self._timing.gamma_ns
        if now > late:
            self._late_reported_slot = self._timing.slot_of(now)
            leader = self.election.leader
            who = f"member {leader}, the leader" if leader is not None else "a new leader"
            text = f"waiting for {who}: what was sent in slot {oldest} is {(now - late) / 1e6:.3f} ms late"
            self.events.append(Violation(ViolationKind.LATE, text, leader, oldest))

    # -- questions -------------------------------------------------------------------------------------------

    def latest_slot(self, now: int) -> int:
        """Clocks are not compared, so any slot that a clock can show."""
        return ((1 << 63) - 1) // self._timing.theta_ns

    def keeps_sending_to_departed(self) -> bool:
        """Who was given up may be back, and has to hear us for that."""
        return True

    def gap_free(self) -> bool:
        """Survivors deliver all that survivors send, also when the leader dies (Definition 1)."""
        return True

    def waiting_for(self) -> tuple[int, ...]:
        """Members that the rate exchange still lacks."""
        return () if self.mode is Mode.DELIVER_MESSAGES else self.exchange.missing()

    def running(self) -> bool:
        """Whether the order is in DeliverMessages."""
        return self.mode is Mode.DELIVER_MESSAGES

    def why_not_formed(self) -> str:
        """What peers' HELLOs were refused for."""
        return "; ".join(f"member {peer} {problem}" for peer, problem in sorted(self.exchange.problems.items()))

    def peer_rate(self, peer: int) -> Rate | None:
        """What a peer declared at the start."""
        return self.exchange.rate(peer)

    def by_multicast(self) -> bool:
        """Whether every peer has heard this member by IP multicast."""
        return self.election.frame_sender.uses_multicast

    def leader_change_bound_ns(self) -> int:
        """How long nothing is ordered when the leader dies, at most."""
        return leader_change_bound_ns(self._timing)

    def outage_ns(self, died: Sequence[int]) -> int:
        """How much longer than the bound a message takes at most in a run in which these members die, in this order.

        The lowest that lives leads; who dies beside a leader may add a poll.
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
    """What any order with a leader gives: with failures there is the gap at a leader's death, and a majority."""
    gap, outage, against = leader_change_bound_ns(ask.timing), outage_ns(ask.timing, ask.processing_ns), []
    longest = bound_ns + ask.failures * outage
    if ask.failures and ask.deadline_ns is not None and bound_ns <= ask.deadline_ns < longest:
        worst, deadline = duration_text(longest), duration_text(ask.deadline_ns)
        times = "" if ask.failures == 1 else f" {ask.failures} times"
        text = f"when the leader dies{times} a message takes up to {worst}, more than the deadline of {deadline}"
        against.append(text)
    if 2 * ask.failures >= ask.members and ask.failures:
        against.append(f"a majority must survive, and {ask.failures} of {ask.members} is half or more")
    if ask.loss or ask.loss_burst or ask.fec is not None:
        against.append("a lost datagram is sent again, later than the bound")
    dies = f"when the leader dies nothing is ordered for Θ+5Δ+7Γ = {duration_text(gap)} at most"
    return Offer(
        order,
        not against,
        bound_ns,
        average,
        burst,
        HEADER_BYTES + PACKED_HEADER_BYTES + UDP_IP_BYTES + (ORDERED_BYTES if order == "leader" else 0),
        True,
        "what is lost is sent again, late",
        1.0,
        (*against, *why, dies),
        outage_ns=outage,
    )
