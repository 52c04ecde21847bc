"""Total order by consensus: members agree on a log, value by value, and deliver it in its order.

The classic alternative to the orders of paper 000, and what paper 003 puts under each of its groups (§3). No clock
and no bound on delays is trusted for the order: whatever the network does there is one log, and it grows while
a majority can talk in time. With storage, members come back after a crash as the members that they were.

Messages travel to the leader in parcels, numbered by their sender; the leader puts whatever parcels it has into the
next instance, and has several instances under way. A parcel may reach the log twice, through two leaders: the first
counts, and each sender's parcels count only in their order, so deliveries are exactly once and FIFO.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice

from unisono.agreement.failure_detector import heartbeat_interval_ns, retry_interval_ns
from unisono.agreement.paxos.consensus import Consensus
from unisono.agreement.paxos.log import ConsensusOutput, ForwardedValue, RestoredState
from unisono.errors import MessageTooLarge
from unisono.model.durations import NS_PER_S
from unisono.model.events import LeaveComplete, Violation, ViolationKind
from unisono.model.policy import Policy
from unisono.model.rates import BandwidthReservation, Rate, Reserver
from unisono.model.stored_records import StoredRecords
from unisono.net.pacer import Pacer
from unisono.orders.leader.base import count_fitting_messages
from unisono.orders.log.bounds import consensus_latency_bound_ns
from unisono.orders.log.delivery import AgreedLog
from unisono.orders.modes import Mode
from unisono.orders.over_consensus import ConsensusOrderBase
from unisono.orders.packing import Packer, reservation
from unisono.wire.bundles import BUNDLE_OVERHEAD_BYTES, Bundle, decode_bundle, encode_bundle, encode_log_value
from unisono.wire.frame import FIRST_FRAGMENT, FRAGMENT, HEADER_BYTES, MORE_FRAGMENTS, UDP_IP_BYTES, Frame, Kind

WINDOW = 64
"""Instances under way at once."""
BUNDLES_MAX = 1 << 10
"""How many of a member's parcels may wait for their place."""
FORWARDED_MAX = 1 << 8
"""How many of them may be on their way to the leader."""
RETRANSMIT_AT_ONCE = 8
"""So many of these are sent again when nothing gets on: a leader keeps what came early."""
VALUE_TARGET_BYTES = 2048
"""Parcels are put together up to this size: beyond it, several instances travel together as well as one."""
COMPACT_EVERY_INSTANCES = 4096
"""So many instances are kept before the log is cut."""


class ConsensusOrder(ConsensusOrderBase):
    """The automaton of one member."""

    def __init__(self, policy: Policy, reserver: Reserver, stored_records: StoredRecords | None = None) -> None:
        consensus = Consensus(
            policy.member,
            policy.view.members,
            every_ns=heartbeat_interval_ns(policy.timing),
            retry_ns=retry_interval_ns(policy.timing),
            max_frame=policy.max_frame,
            incarnation=policy.incarnation,
            epoch=policy.epoch,
            window=WINDOW,
            retain=COMPACT_EVERY_INSTANCES,
            stored_records=stored_records,
            batch_replies=True,
        )
        super().__init__(policy, consensus)
        self.writes = consensus.writes
        self._reserver = reserver
        reserver.reserve(self._reservation(policy.rate))
        self._pacer = Pacer(policy.rate, policy.timing.theta_ns, policy.max_message)
        self._packer = Packer(self.consensus.max_value_bytes - BUNDLE_OVERHEAD_BYTES + HEADER_BYTES)
        self._pending_rate: Rate | None = None
        self._paced_slot = 0
        self.window_slots = -(-self.bound_ns() // self._timing.theta_ns) + 3
        # Sending.
        self._next_serial = self._next_sequence = 0
        self._undecided: deque[tuple[int, int, bytes]] = deque()
        """(serial, slot, parcel) of what has no place in the log yet."""
        self._forwarded = self._forwarded_at = 0
        """How many of these the leader has been offered, and when that last got on."""
        self._leaving_since: int | None = None
        # Leading.
        self._to_propose: deque[bytes] = deque()
        self._next_to_propose: dict[int, tuple[int, int]] = {}
        """By sender, its incarnation and its next parcel, as far as this leader has seen them."""
        self._out_of_order: dict[tuple[int, int], dict[int, bytes]] = {}
        self.log = AgreedLog()
        self._leader_changes_seen = 0

    def _reservation(self, rate: Rate) -> BandwidthReservation:
        """A leader's: everybody's frames, whose rates are taken to be like one's own, and a sign of life."""
        own = reservation(self._policy, rate)
        beat, times = HEADER_BYTES + 64 + UDP_IP_BYTES, len(self._policy.view.members)
        average = own.avg_bytes_per_s * times + 2 * beat * NS_PER_S // heartbeat_interval_ns(self._timing)
        return BandwidthReservation(average, own.burst_bytes_per_slot * times + 2 * beat, own.theta_ns)

    # -- inputs ----------------------------------------------------------------------------------------------

    def submit(self, now: int, messages: Sequence[bytes]) -> int:
        """Take what the declared rate has room for, unless too much waits for its place already."""
        sizes = list(map(len, messages))
        largest = max(sizes, default=0)
        if largest > self._policy.max_message:
            raise MessageTooLarge(largest, self._policy.max_message)
        if self.mode is not Mode.DELIVER_MESSAGES or self._leaving_since is not None or not sizes:
            return 0
        slot = self._timing.slot_of(now)
        if slot > self._paced_slot:
            self._paced_slot = slot
            self._pacer.open_slot(slot, self._pending_rate)
            if self._pending_rate is not None:
                self._reserver.reserve(self._reservation(self._pending_rate))
                self._pending_rate = None
        count = count_fitting_messages(self._pacer, sizes)
        if count == 0 or len(self._undecided) >= BUNDLES_MAX:
            return 0
        self._pacer.record_sent(count, sum(sizes[:count]))
        if not self._undecided:
            self._forwarded_at = now
        loads = self._packer.add(messages[:count], sizes[:count])
        rest = self._packer.flush()
        for load in loads if rest is None else [*loads, rest]:
            flags, body = 0, b""
            if load.packed_messages is not None:
                body = b"".join(load.packed_messages.parts())
            elif load.fragment is not None:
                body = bytes(load.fragment)
                flags = (
                    FRAGMENT
                    | (FIRST_FRAGMENT if load.is_first_fragment else 0)
                    | (MORE_FRAGMENTS if load.has_more_fragments else 0)
                )
            self._queue_bundle(slot, flags, body)
            self._next_sequence += load.messages_completed
        self.now, self.has_pending_input = now, True
        self._forward(now)
        return count

    def _queue_bundle(self, slot: int, flags: int, body: bytes) -> None:
        policy = self._policy
        parcel = encode_bundle(
            Bundle(policy.member, policy.incarnation, self._next_serial, self._next_sequence, flags, body)
        )
        self._undecided.append((self._next_serial, slot, parcel))
        self._next_serial += 1

    def from_below(self, now: int, frame: Frame) -> None:
        """net-receive."""
        if self.mode is not Mode.LEFT:
            if frame.kind is not Kind.HEARTBEAT:  # nothing follows from one before the next wake
                self.now, self.has_pending_input = now, True
            self.consensus.from_below(now, frame)

    def wake(self, now: int) -> None:
        """Time has passed."""
        if self.mode is Mode.LEFT:
            return
        if self.mode is Mode.GET_RATE:
            self.mode, self.leaderless_since = Mode.DET_RATE, now
        self.now, self.has_pending_input = now, True
        self.consensus.wake(now)
        self._retransmit_overdue(now)

    def wake_at(self) -> int | None:
        """The consensus's alarm, and one for parcels that are late."""
        if self.mode is Mode.LEFT:
            return None
        at = self.consensus.wake_at()
        times = [] if at is None else [at]
        if self._undecided and self.consensus.leader is not None:
            times.append(self._forwarded_at + self._forward_timeout_ns())
        return min(times, default=None)

    def change_rate(self, now: int, rate: Rate) -> None:
        """new-rate: in force from the next slot on; the larger of both rates is reserved until then."""
        self._policy.check_rate(rate)
        asked, held = self._reservation(rate), self._reservation(self._pacer.rate)
        larger = max(asked, held, key=lambda r: r.burst_bytes_per_slot)
        average = max(asked.avg_bytes_per_s, held.avg_bytes_per_s)
        self._reserver.reserve(BandwidthReservation(average, larger.burst_bytes_per_slot, asked.theta_ns))
        self._pending_rate = rate

    def leave(self, now: int) -> None:
        """Depart when all that was accepted has its place; those who stay still need a majority of all there were."""
        if self._leaving_since is None:
            self._leaving_since = self.now = now
            self.has_pending_input = True

    # -- the log ---------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Say what there is to say to all that has happened since the last time: what came together counts together."""
        now, consensus = self.now, self.consensus
        if self.mode is Mode.LEFT or not self.has_pending_input:
            return
        self.has_pending_input = False
        if consensus.leader_changes != self._leader_changes_seen:
            self._leader_changes_seen = consensus.leader_changes
            self._on_leader_change(now)
        moved = True
        while moved:
            if consensus.forwarded:
                self._accept_forwarded(consensus.forwarded)
                consensus.forwarded.clear()
            moved = consensus.is_leader and self._propose(now)
            consensus.flush(now)
            if consensus.decisions:
                decisions, consensus.decisions[:] = consensus.decisions[:], []
                self._apply_decisions(now, decisions)
                moved = True
        if consensus.down:
            self.down += consensus.down
            consensus.down.clear()
        if self._leaving_since is not None:
            self._depart_if_done(now)

    def _accept_forwarded(self, forwarded: Sequence[ForwardedValue]) -> None:
        """Parcels for the log, each sender's in order; one that comes before its turn waits for what is missing."""
        for offer in forwarded:
            parcel = decode_bundle(offer.value)
            if parcel is None or (parcel.sender, parcel.incarnation) != (offer.sender, offer.incarnation):
                self.ignored["malformed"] += 1
                continue
            sender, life = parcel.sender, parcel.incarnation
            placed, expected = max(
                self._next_to_propose.get(sender, (-1, 0)), (life, self.log.next_serial(sender, life))
            )
            if life < placed or not expected <= parcel.serial < expected + FORWARDED_MAX:
                self.ignored["out of order"] += 1
                continue
            early = self._out_of_order.setdefault((sender, life), {})
            early[parcel.serial] = offer.value
            while (following := early.pop(expected, None)) is not None:
                self._to_propose.append(following)
                expected += 1
            self._next_to_propose[sender] = (life, expected)

    def _propose(self, now: int) -> bool:
        """The next value: as many parcels as it holds."""
        consensus = self.consensus
        k = consensus.next_free
        if not self._to_propose or k > consensus.decided + consensus.window:
            return False
        room = min(consensus.max_value_bytes, VALUE_TARGET_BYTES) - BUNDLE_OVERHEAD_BYTES
        parcels: list[bytes] = []
        while self._to_propose and (not parcels or len(self._to_propose[0]) + 4 <= room):
            parcels.append(self._to_propose.popleft())
            room -= len(parcels[-1]) + 4
        return consensus.propose(now, k, encode_log_value(max(self.log.slot, self._timing.slot_of(now)), parcels))

    def _apply_decisions(self, now: int, decisions: Sequence[ConsensusOutput]) -> None:
        log, me = self.log, self._policy
        for decision in decisions:
            if isinstance(decision, RestoredState):
                log.restore(decision)
                if self.mode is Mode.DELIVER_MESSAGES:
                    text = f"what was decided up to {decision.k} is not kept any more: it is not delivered here"
                    self.events.append(Violation(ViolationKind.TOO_FAR_BEHIND, text, me.member, log.slot))
            elif not log.apply(decision.value):
                self.ignored["malformed"] += 1
            elif decision.k % COMPACT_EVERY_INSTANCES == 0:
                self.consensus.compact(decision.k, log.state())
        self.events += log.batches
        log.batches.clear()
        settled = log.next_serial(me.member, me.incarnation)
        while self._undecided and self._undecided[0][0] < settled:
            self._undecided.popleft()
            self._forwarded, self._forwarded_at = max(0, self._forwarded - 1), now
        self._forward(now)

    # -- leaders ---------------------------------------------------------------------------------------------

    def _on_leader_change(self, now: int) -> None:
        """Offer everything again; what an earlier leader had collected is void."""
        self.consensus.withdraw()
        self._to_propose.clear()
        self._next_to_propose.clear()
        self._out_of_order.clear()
        self.adopt_leader(now, self.log.first_slot)
        self._forwarded, self._forwarded_at = 0, now
        self._forward(now)

    def _forward(self, now: int) -> None:
        """As many parcels as may be on their way."""
        if self.consensus.leader is not None and self._forwarded < min(len(self._undecided), FORWARDED_MAX):
            for _, _, parcel in islice(self._undecided, self._forwarded, FORWARDED_MAX):
                self.consensus.forward(now, parcel)
            self._forwarded = min(len(self._undecided), FORWARDED_MAX)

    def _retransmit_overdue(self, now: int) -> None:
        consensus = self.consensus
        if self._undecided and consensus.leader is not None and now >= self._forwarded_at + self._forward_timeout_ns():
            self._forwarded_at = now
            for _, _, parcel in islice(self._undecided, min(self._forwarded, RETRANSMIT_AT_ONCE)):
                consensus.forward(now, parcel)
        self.report_consensus_problems(now)
        if self.is_refused():
            self.mode = Mode.LEFT
            self.events.append(LeaveComplete(self.log.slot))

    def _depart_if_done(self, now: int) -> None:
        """All is in its place; a leader stays until the others know, for as long as that can take."""
        overdue = now > (self._leaving_since or 0) + 4 * self.bound_ns()
        if self._undecided and self.mode is Mode.DELIVER_MESSAGES:
            return
        done = not self.consensus.is_leader or self.consensus.decisions_known_by(self.trusted())
        if self.mode is not Mode.LEFT and (overdue or done):
            self.mode = Mode.LEFT
            self.events.append(LeaveComplete(self.log.slot))

    def bound_ns(self) -> int:
        """While nobody fails and nothing is lost."""
        return consensus_latency_bound_ns(self._timing)
