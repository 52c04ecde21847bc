"""Total order by consensus: the members agree on one log of messages and deliver it in its order.

It is the classic alternative to the orders of paper 000, and the order that paper 003 (§3) assumes inside each of its
groups. The order rests on no clock and on no bound on delays: there is one log whatever the network does, and it grows
while a majority can communicate in time. With storage, a member that restarts after a crash keeps its promises.

Sending: `submit` packs messages into bundles, which carry a serial number per sender, and forwards them to the leader.
`flush` passes the frames on to the stack. A bundle stays in `_undecided` until it is in the log. It is forwarded again
when no own bundle gets decided for too long, and to each new leader.

Leading: the leader sorts forwarded bundles by serial number per sender, and puts as many as fit into the value of the
next instance. Several instances are in progress at a time.

Delivering: `flush` applies decided values to the `AgreedLog`. A bundle can be in the log twice, through two leaders:
the first one counts, and only after all earlier bundles of its sender. So each message is delivered exactly once, and
each sender's messages in FIFO order.

`ConsensusOrderBase` is what this order shares with the quasi-genuine order: forming the group, following its leader,
and reporting trouble. A subclass owns a log of messages that `Consensus` decides, and keeps this contract:

- Each input sets `now` and `has_pending_input`. The stack calls `flush` before it takes `writes`, `down` or `events`.
  `flush` calls `_on_leader_change`, `_propose`, `_apply_decisions` and `_finish_flush` of the subclass.
- On its first `wake` it enters the mode DET_RATE: it waits for a leader.
- `_on_leader_change` calls `adopt_leader`, which forms the group the first time.
- `wake` calls `report_consensus_problems`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice

from unisono.agreement.failure_detector import heartbeat_interval_ns, retry_interval_ns
from unisono.agreement.paxos.acceptor import CheckState, ConsensusOutput, Decision, ForwardedValue, RestoredState
from unisono.agreement.paxos.consensus import Consensus
from unisono.agreement.round_trip import RoundTrip
from unisono.errors import InvariantViolated, StorageError
from unisono.model.effects import StoredRecords, Write
from unisono.model.events import (
    Batch,
    LeaveComplete,
    PackedMessages,
    StackEvent,
    View,
    ViewChange,
    Violation,
    ViolationKind,
)
from unisono.model.policy import Policy
from unisono.model.status import Standing
from unisono.model.units import NS_PER_MS, NS_PER_S, BandwidthReservation, Rate, Reserver
from unisono.net.layer import NO_ROOM
from unisono.orders.consensus.bounds import consensus_latency_bound_ns
from unisono.orders.contract import Mode
from unisono.orders.packing import (
    BUNDLE_OVERHEAD_BYTES,
    Bundle,
    LogState,
    Packer,
    ReservedPacer,
    SenderState,
    checked_sizes,
    count_fitting_messages,
    decode_bundle,
    decode_log_state,
    decode_log_value,
    encode_bundle,
    encode_log_state,
    encode_log_value,
    reservation,
)
from unisono.wire.codec import Unreadable
from unisono.wire.frame import (
    FRAGMENT,
    HEADER_BYTES,
    MORE_FRAGMENTS,
    UDP_IP_BYTES,
    Frame,
    Kind,
    ReassembledMessage,
    read_packed_messages,
)


def build_consensus(
    policy: Policy,
    members: Sequence[int],
    stored_records: StoredRecords | None,
    *,
    window: int,
    retain: int,
    check_state: CheckState,
) -> Consensus:
    """Build the consensus among `members`, which continues from its stored records if there are any.

    Its time-outs follow from the timing of the policy. At most `window` instances are in progress at a time.
    """
    return Consensus(
        policy.member,
        members,
        every_ns=heartbeat_interval_ns(policy.timing),
        retry_ns=retry_interval_ns(policy.timing),
        max_frame=policy.max_frame,
        incarnation=policy.incarnation,
        epoch=policy.epoch,
        window=window,
        retain=retain,
        stored_records=stored_records,
        batch_replies=True,
        check_state=check_state,
    )


class ConsensusOrderBase(ABC):
    """One member of a group that agrees on a log; see the module docstring for the contract."""

    gap_free = True
    keeps_sending_to_departed = True  # a member that has failed may return

    def __init__(self, policy: Policy, consensus: Consensus, bound_ns: int) -> None:
        """`bound_ns` is the latency bound while no member fails and no frame is lost."""
        self.down: list[Frame] = []
        self.events: list[StackEvent] = []
        self.writes: list[Write] = []
        self.mode = Mode.GET_RATE
        self.now = 0
        """The time of the last input."""
        self.has_pending_input = True
        """Whether there was any input since the last `flush`."""
        self.view = policy.view
        self.consensus = consensus
        self.ignored: Counter[str] = consensus.ignored
        self._policy = policy
        self._timing = policy.timing
        self._bound_ns = bound_ns
        self.window_slots = -(-bound_ns // policy.timing.theta_ns) + 3
        self._leaving_since: int | None = None
        self._leader_changes_seen = 0
        self.leaderless_since: int | None = None
        self._last_leader: int | None = None
        self._blocked_reported = False
        self._reported_lost_storage: set[int] = set()
        self._reported_refused_by: set[int] = set()

    # -- batches of input ------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Process all input since the last call as one batch, and queue frames, records and deliveries."""
        now, consensus = self.now, self.consensus
        if self.mode is Mode.LEFT or not self.has_pending_input:
            return
        self.has_pending_input = False
        if consensus.leader_changes != self._leader_changes_seen:
            self._leader_changes_seen = consensus.leader_changes
            self._on_leader_change(now)
        progress = True
        while progress:
            progress = self._propose(now)
            consensus.flush(now)
            if consensus.decisions:
                decisions, consensus.decisions[:] = consensus.decisions[:], []
                self._apply_decisions(now, decisions)
                progress = True
        self._finish_flush(now)

    def room(self, now: int) -> tuple[int, int]:
        """What `submit` accepts for certain at the same reading: nothing, if the order cannot tell beforehand."""
        return NO_ROOM

    @abstractmethod
    def _on_leader_change(self, now: int) -> None:
        """React to the first leader or to a new one: call `adopt_leader`, and send undecided messages to the leader."""

    @abstractmethod
    def _propose(self, now: int) -> bool:
        """As the leader, propose the next value. False if there is none, or this member does not lead."""

    @abstractmethod
    def _apply_decisions(self, now: int, decisions: Sequence[ConsensusOutput]) -> None:
        """Apply decided values to the log."""

    @abstractmethod
    def _finish_flush(self, now: int) -> None:
        """At the end of `flush`, when there is nothing to propose or apply: queue outgoing frames, and leave if due."""

    def leave(self, now: int) -> None:
        """Leave when all submitted messages are in the log. The others still count this member for their majority."""
        if self._leaving_since is None:
            self._leaving_since = self.now = now
            self.has_pending_input = True

    # -- leaders ---------------------------------------------------------------------------------------------

    def adopt_leader(self, now: int, first_slot: int) -> None:
        """Follow the leader that consensus has.

        The first leader forms the group; a later one is reported as a change.
        """
        leader = self.consensus.leader
        if self.mode is Mode.DET_RATE:
            self.mode = Mode.DELIVER_MESSAGES
            self.view = View(self.view.members, first_slot)
            self.events.append(ViewChange(self.view, joined=self.view.members))
        elif self._last_leader is not None and leader != self._last_leader:
            leaderless_ms = (now - (self.leaderless_since or now)) / NS_PER_MS
            text = (
                f"member {leader} replaced member {self._last_leader} as the leader; the group had no leader for "
                f"{leaderless_ms:.3f} ms"
            )
            self.events.append(Violation(ViolationKind.LEADER_LOST, text, self._last_leader))
        self._last_leader, self.leaderless_since, self._blocked_reported = leader, None, False

    def trusted(self) -> list[int]:
        """The peers that the failure detector does not suspect."""
        return self.consensus.detector.trusted(self.consensus.peers)

    def _forward_timeout_ns(self) -> int:
        """How long to wait for a decision before messages are forwarded to the leader again."""
        return max(self._bound_ns, self.consensus.detector.response_time_ns()) + NS_PER_MS

    # -- trouble ---------------------------------------------------------------------------------------------

    def report_consensus_problems(self, now: int) -> None:
        """Report each member that lost its storage, and a group without a leader for too long.

        Each is reported once.
        """
        self._report_lost_storage()
        self._report_refusals()
        consensus = self.consensus
        if consensus.leader is not None:
            return
        self.leaderless_since = now if self.leaderless_since is None else self.leaderless_since
        longest = max((consensus.detector.timeout_ns(peer) for peer in consensus.peers), default=0)
        blocked = (
            self.mode is Mode.DELIVER_MESSAGES
            and now - self.leaderless_since > 2 * longest + self._forward_timeout_ns()
        )
        if blocked and not self._blocked_reported:
            self._blocked_reported = True
            self.events.append(Violation(ViolationKind.BLOCKED, self._why_no_leader(), self._policy.member))

    def _why_no_leader(self) -> str:
        consensus, storages = self.consensus, self.consensus.storage_identity
        reachable = consensus.detector.trusted(consensus.members)
        voters = [m for m in reachable if m not in storages.lost_storage and m not in storages.refused_by]
        listed = ", ".join(map(str, reachable))
        found = f"of {len(consensus.members)} members {len(reachable)} are reachable ({listed})"
        if len(reachable) < consensus.majority:
            return f"no leader has a majority: {found}, {consensus.majority} are needed"
        if len(voters) < consensus.majority:
            return (
                f"no leader has a majority: {found}, but only {len(voters)} of them can vote with the storage that "
                f"they have, and {consensus.majority} votes are needed"
            )
        return (
            f"this member has no leader, although {found}, a majority: they follow a leader whose messages do not "
            "arrive here, or messages of this member do not arrive there"
        )

    def _report_lost_storage(self) -> None:
        for member in sorted(self.consensus.storage_identity.lost_storage - self._reported_lost_storage):
            self._reported_lost_storage.add(member)
            text = (
                f"member {member} restarted without its storage, so its votes do not count. Restart it with the "
                "file that it used last, never with an older copy, or under a number of this group that no member has "
                "used yet"
            )
            self.events.append(Violation(ViolationKind.MEMORY_LOST, text, member))

    def _report_refusals(self) -> None:
        me = self._policy.member
        for member in sorted(self.consensus.storage_identity.refused_by - self._reported_refused_by):
            self._reported_refused_by.add(member)
            text = (
                f"the storage of member {me} does not match the one that member {member} recorded, so member {member} "
                "ignores it. Restart this member with the file that it used last, never with an older copy, or under a "
                "number of this group that no member has used yet"
            )
            self.events.append(Violation(ViolationKind.MEMORY_LOST, text, me))

    # -- questions of the stack ------------------------------------------------------------------------------

    def standing(self, now: int) -> Standing:
        """The leader, and whether a majority is reachable and follows one."""
        if not self.running():
            return Standing(led=True)
        found = self.consensus.standing()
        return replace(found, majority=False) if self._blocked_reported else found

    def bound_ns(self) -> int:
        """The latency bound while no member fails and no frame is lost."""
        return self._bound_ns

    def latest_slot(self, now: int) -> int:
        """The last slot that a frame may name: the largest one, because orders by consensus do not compare clocks."""
        return ((1 << 63) - 1) // self._timing.theta_ns

    def running(self) -> bool:
        """Whether the group is formed: it has had a leader."""
        return self.mode is Mode.DELIVER_MESSAGES

    def waiting_for(self) -> tuple[int, ...]:
        """While the group is not formed, the peers that have sent nothing yet."""
        received_from = self.consensus.detector.has_received_from
        return () if self.running() else tuple(peer for peer in self.consensus.peers if not received_from(peer))

    def peer_problems(self) -> Mapping[int, str]:
        """The members that do not count because they have lost their storage."""
        return self.consensus.storage_identity.peer_problems()

    def why_not_formed(self) -> str:
        """Always empty: this order only waits for a majority of members that count."""
        return ""

    def peer_rate(self, peer: int) -> Rate | None:
        """Always None: the members of this order do not exchange their rates."""
        return None

    def by_multicast(self) -> bool:
        """Always False: this order does not use IP multicast, because most frames go to one member."""
        return False


WINDOW = 64
"""At most this many instances are in progress at a time."""
BUNDLES_MAX = 1 << 10
"""At most this many bundles of a member may wait for their place in the log."""
UNDECIDED_BYTES_MAX = 2 << 20
"""A member accepts no messages while its waiting bundles have this many bytes or more."""
FORWARDED_MAX = 1 << 8
"""At most this many undecided bundles of a member are on their way to the leader at a time."""
RETRANSMIT_AT_ONCE = 8
"""Forward again at most this many bundles at a time. The leader has kept later ones that arrived early."""
VALUE_TARGET_BYTES = 2048
"""Fill log values up to this size. Larger values gain nothing, because one frame can carry several instances."""
COMPACT_EVERY_INSTANCES = 4096
"""Replace the log by a snapshot each time this many instances have been decided."""
COMPACT_EVERY_BYTES = 4 << 20
"""Replace the log by a snapshot also when the values decided since the last one have more bytes than this."""


class ConsensusOrder(ConsensusOrderBase):
    """One member's automaton of the order `consensus`."""

    def __init__(self, policy: Policy, reserver: Reserver, stored_records: StoredRecords | None = None) -> None:
        members, retain = policy.view.members, COMPACT_EVERY_INSTANCES
        consensus = build_consensus(
            policy, members, stored_records, window=WINDOW, retain=retain, check_state=decode_log_state
        )
        super().__init__(policy, consensus, consensus_latency_bound_ns(policy.timing))
        self.writes = consensus.writes  # the same list: this order writes nothing besides what consensus writes
        self.log = AgreedLog()
        self._applied_instance = 0
        # Sending.
        self._pacer = ReservedPacer(policy, reserver, self._reservation)
        self._packer = Packer(self.consensus.max_value_bytes - BUNDLE_OVERHEAD_BYTES + HEADER_BYTES)
        self._paced_slot = 0
        self._next_serial = self._next_sequence = 0
        self._uncompacted_bytes = self._undecided_bytes = 0
        self._undecided: deque[tuple[int, int, bytes]] = deque()
        """(serial, slot, encoded bundle) of own bundles that are not in the log yet."""
        self._forwarded = self._forwarded_at = 0
        """How many undecided bundles were forwarded to the present leader, and from when their time-out runs."""
        self._round_trip = RoundTrip()
        """Measures the time from forwarding an own bundle to its decision."""
        self._last_suspect = self._last_resent = -1
        """The last bundle that was forwarded before the last time-out, and the last one that was forwarded again."""
        # Leading.
        self._to_propose: deque[bytes] = deque()
        """Encoded bundles that a leader puts into the next values."""
        self._next_to_propose: dict[int, tuple[int, int]] = {}
        """At the leader: by sender, its incarnation and the serial number of its next bundle to propose."""
        self._out_of_order: dict[tuple[int, int], dict[int, bytes]] = {}
        """By sender and incarnation, the bundles that wait at the leader because an earlier bundle has not arrived."""

    def _reservation(self, rate: Rate) -> BandwidthReservation:
        """The bandwidth that a leader needs for all members' frames and for heartbeats.

        It assumes that the other members have the same rate as this one.
        """
        own = reservation(self._policy, rate)
        heartbeat_bytes, members = HEADER_BYTES + 64 + UDP_IP_BYTES, len(self._policy.view.members)
        heartbeats = 2 * heartbeat_bytes * NS_PER_S // heartbeat_interval_ns(self._timing)
        return own.scaled(members).with_extra(heartbeats, 2 * heartbeat_bytes)

    # -- inputs ----------------------------------------------------------------------------------------------

    def submit(self, now: int, messages: Sequence[bytes]) -> int:
        """Accept as many messages as the declared rate allows, or none if too many bundles are undecided."""
        sizes = checked_sizes(messages, self._policy.max_message)
        if self.room(now) == NO_ROOM:
            return 0
        slot, count = self._paced_slot, count_fitting_messages(self._pacer, sizes)
        if count == 0:
            return 0
        self._pacer.record_sent(count, sum(sizes[:count]))
        self._pacer.check(self._policy.member)
        if not self._undecided:
            self._forwarded_at = now
        for payload in self._packer.pack_all(messages[:count], sizes[:count]):
            self._queue_bundle(slot, payload.flags, payload.encoded())
            self._next_sequence += payload.messages_completed
        self.now, self.has_pending_input = now, True
        self._forward(now)
        return count

    def room(self, now: int) -> tuple[int, int]:
        """How many messages, and how many bytes of payload, the declared rate allows now."""
        if self.mode is not Mode.DELIVER_MESSAGES or self._leaving_since is not None:
            return NO_ROOM
        slot = self._timing.slot_of(now)
        if slot > self._paced_slot:
            self._paced_slot = slot
            self._pacer.enter_slot(slot)
        if len(self._undecided) >= BUNDLES_MAX or self._undecided_bytes >= UNDECIDED_BYTES_MAX:
            return NO_ROOM
        return self._pacer.messages_left(), self._pacer.bytes_left()

    def from_below(self, now: int, frame: Frame) -> None:
        """Process a frame that has arrived, of consensus or with forwarded bundles."""
        if self.mode is not Mode.LEFT:
            if frame.kind is not Kind.HEARTBEAT:  # a heartbeat has no effect before the next wake
                self.now, self.has_pending_input = now, True
            self.consensus.from_below(now, frame)

    def wake(self, now: int) -> None:
        """Handle the timers that are due: those of consensus, and the time-out of undecided bundles."""
        if self.mode is Mode.LEFT:
            return
        if self.mode is Mode.GET_RATE:
            self.mode, self.leaderless_since = Mode.DET_RATE, now
        self.now, self.has_pending_input = now, True
        self.consensus.wake(now)
        self._forward_again_if_overdue(now)
        self.report_consensus_problems(now)
        if self._is_refused():
            self._finish_leaving()

    def wake_at(self) -> int | None:
        """The earliest of: the next timer of consensus, and when undecided bundles are overdue."""
        if self.mode is Mode.LEFT:
            return None
        at = self.consensus.wake_at()
        times = [] if at is None else [at]
        if self._undecided and self.consensus.leader is not None:
            times.append(self._forward_again_at())
        return min(times, default=None)

    def change_rate(self, now: int, rate: Rate) -> None:
        """Use a new rate from the next slot on.

        Until then, reserve enough for the larger of the old and the new rate.
        """
        self._pacer.change_rate(rate)

    # -- parts of flush --------------------------------------------------------------------------------------

    def _finish_flush(self, now: int) -> None:
        """Pass on the frames of consensus, and leave if that is due."""
        if self.consensus.down:
            self.down += self.consensus.down
            self.consensus.down.clear()
        if self._leaving_since is not None:
            self._leave_if_done(now)

    def _on_leader_change(self, now: int) -> None:
        """Drop the bundles collected under the previous leader, and forward all own undecided ones to the new one."""
        self.consensus.withdraw()
        self._to_propose.clear()
        self._next_to_propose.clear()
        self._out_of_order.clear()
        self.adopt_leader(now, self.log.first_slot)
        self._forwarded, self._forwarded_at = 0, now
        self._round_trip.forget_item()
        self._last_suspect = -1
        self._forward(now)

    # -- sending: bundles to the leader ----------------------------------------------------------------------

    def _queue_bundle(self, slot: int, flags: int, body: bytes) -> None:
        policy = self._policy
        bundle = Bundle(policy.member, policy.incarnation, self._next_serial, self._next_sequence, flags, body)
        self._undecided.append((self._next_serial, slot, encode_bundle(bundle)))
        self._undecided_bytes += len(self._undecided[-1][2])
        self._next_serial += 1

    def _forward(self, now: int) -> None:
        """Forward further bundles to the leader, up to FORWARDED_MAX in total."""
        if self.consensus.leader is not None and self._forwarded < min(len(self._undecided), FORWARDED_MAX):
            if self._forwarded < RETRANSMIT_AT_ONCE and not self.consensus.is_behind:  # otherwise decisions are late
                self._round_trip.sent(now, self._undecided[self._forwarded][0])
            for _, _, bundle in islice(self._undecided, self._forwarded, FORWARDED_MAX):
                self.consensus.forward(now, bundle)
            self._forwarded = min(len(self._undecided), FORWARDED_MAX)

    def _forward_again_at(self) -> int:
        """When undecided bundles are overdue at the leader."""
        return self._forwarded_at + self._round_trip.wait_ns(self._forward_timeout_ns())

    def _forward_again_if_overdue(self, now: int) -> None:
        consensus = self.consensus
        if self._undecided and consensus.leader is not None and now >= self._forward_again_at():
            self._forwarded_at = now
            self._round_trip.sent_again(now, self._undecided[0][0])
            self._last_suspect = self._undecided[0][0] + self._forwarded - 1
            for serial, _, bundle in islice(self._undecided, min(self._forwarded, RETRANSMIT_AT_ONCE)):
                consensus.forward(now, bundle)
                self._last_resent = serial

    def _forward_next_missing(self, now: int) -> None:
        """After a time-out, forward the first undecided bundle again, unless that was done since the time-out.

        The leader has had the bundles before it decided. This one was forwarded with them, and it is probably missing.
        """
        if self._undecided and self._last_resent < self._undecided[0][0] <= self._last_suspect:
            self._last_resent = self._undecided[0][0]
            self.consensus.forward(now, self._undecided[0][2])

    # -- leading: bundles into values ------------------------------------------------------------------------

    def _accept_forwarded(self, forwarded: Sequence[ForwardedValue]) -> None:
        """Queue bundles for the log, each sender's in order. A bundle that arrives early waits for the missing ones."""
        for value in forwarded:
            try:
                bundle = decode_bundle(value.value)
            except Unreadable:
                self.ignored["malformed"] += 1
                continue
            if (bundle.sender, bundle.incarnation) != (value.sender, value.incarnation):
                self.ignored["malformed"] += 1
                continue
            sender, incarnation = bundle.sender, bundle.incarnation
            newest, expected = max(
                self._next_to_propose.get(sender, (-1, 0)), (incarnation, self.log.next_serial(sender, incarnation))
            )
            if incarnation < newest or not expected <= bundle.serial < expected + FORWARDED_MAX:
                self.ignored["out of order"] += 1
                continue
            early = self._out_of_order.setdefault((sender, incarnation), {})
            early[bundle.serial] = value.value
            while (following := early.pop(expected, None)) is not None:
                self._to_propose.append(following)
                expected += 1
            self._next_to_propose[sender] = (incarnation, expected)

    def _propose(self, now: int) -> bool:
        """Propose as many queued bundles as fit in one value, for the next instance. False if none can be proposed."""
        consensus = self.consensus
        if consensus.forwarded:
            self._accept_forwarded(consensus.forwarded)
            consensus.forwarded.clear()
        k = consensus.next_free
        if not self._to_propose or not consensus.may_propose_next(now):
            return False
        space = min(consensus.max_value_bytes, VALUE_TARGET_BYTES) - BUNDLE_OVERHEAD_BYTES
        bundles: list[bytes] = []
        while self._to_propose and (not bundles or len(self._to_propose[0]) + 4 <= space):
            bundles.append(self._to_propose.popleft())
            space -= len(bundles[-1]) + 4
        return consensus.propose(now, k, encode_log_value(max(self.log.slot, self._timing.slot_of(now)), bundles))

    # -- delivering ------------------------------------------------------------------------------------------

    def _apply_decisions(self, now: int, decisions: Sequence[ConsensusOutput]) -> None:
        """Deliver decided bundles, and drop own bundles that are in the log now."""
        log, policy = self.log, self._policy
        for decision in decisions:
            self.check_instance(decision)
            if isinstance(decision, RestoredState):
                log.restore(decision)
                if self.mode is Mode.DELIVER_MESSAGES:
                    text = (
                        f"this member was too far behind: the decisions up to instance {decision.k} are discarded at "
                        "the other members, so their messages are not delivered here"
                    )
                    self.events.append(Violation(ViolationKind.TOO_FAR_BEHIND, text, policy.member, log.slot))
                continue
            try:
                log.apply(decision.value)
            except Unreadable:
                self.ignored["malformed"] += 1
                continue
            self._uncompacted_bytes += len(decision.value)
            if decision.k % COMPACT_EVERY_INSTANCES == 0 or self._uncompacted_bytes > COMPACT_EVERY_BYTES:
                self._uncompacted_bytes = 0
                self.consensus.compact(decision.k, log.state())
        self.events += log.batches
        log.batches.clear()
        next_undecided = log.next_serial(policy.member, policy.incarnation)
        while self._undecided and self._undecided[0][0] < next_undecided:
            self._undecided_bytes -= len(self._undecided.popleft()[2])
            self._forwarded, self._forwarded_at = max(0, self._forwarded - 1), now
        self._round_trip.answered(now, next_undecided - 1)
        self._forward_next_missing(now)
        self._forward(now)

    def check_instance(self, decision: ConsensusOutput) -> None:
        """Raise InvariantViolated if a decided instance is not the next one; only a snapshot may skip instances."""
        expected = self._applied_instance + 1
        if decision.k != expected and (decision.k < expected or isinstance(decision, Decision)):
            text = "this member applies an instance of the log again, or skips one"
            raise InvariantViolated("log", self._policy.member, text, f"instance {expected}", str(decision.k))
        self._applied_instance = decision.k

    # -- leaving ---------------------------------------------------------------------------------------------

    def _leave_if_done(self, now: int) -> None:
        """Leave when all own bundles are in the log.

        A leader also waits until the others know all decisions, but no longer than four latency bounds.
        """
        overdue = now > (self._leaving_since or 0) + 4 * self.bound_ns()
        if self._undecided and self.mode is Mode.DELIVER_MESSAGES:
            return
        done = not self.consensus.is_leader or self.consensus.decisions_known_by(self.trusted())
        if self.mode is not Mode.LEFT and (overdue or done):
            self._finish_leaving()

    def _finish_leaving(self) -> None:
        self.mode = Mode.LEFT
        self.events.append(LeaveComplete(self.log.slot))

    def _is_refused(self) -> bool:
        """Whether the leader refuses this member's storage, or the members that do not refuse it are no majority."""
        consensus, refused_by = self.consensus, self.consensus.storage_identity.refused_by
        return consensus.leader in refused_by or len(consensus.members) - len(refused_by) < consensus.majority


class AgreedLog:
    """Turns decided values into deliveries. They are the same at all members, except for the delivery index."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.slot = 0
        """The slot of the last log value that was applied. It never decreases."""
        self.first_slot = 0
        """From this slot on this member delivers all messages."""
        self._next_serials: dict[int, tuple[int, int]] = {}
        """By sender, its incarnation and the serial number of its next bundle."""
        self._fragments: dict[int, list[bytes]] = {}
        self._message_count = self._index = 0

    def next_serial(self, sender: int, incarnation: int) -> int:
        """The serial number of the next bundle that the log accepts from this incarnation of a sender.

        If the log already has a later incarnation of the sender, the number is larger than any bundle has: the log
        accepts nothing more from this one.
        """
        known_incarnation, serial = self._next_serials.get(sender, (-1, 0))
        if known_incarnation < incarnation:
            return 0
        return serial if known_incarnation == incarnation else 1 << 63

    def apply(self, value: bytes) -> None:
        """Deliver the bundles of the next decided value; raises Unreadable if it is malformed."""
        slot, bundles = decode_log_value(value)
        self.slot = max(self.slot, slot)
        for bundle in bundles:
            if bundle.serial == self.next_serial(bundle.sender, bundle.incarnation):
                self._deliver(bundle)

    def _deliver(self, bundle: Bundle) -> None:
        sender, incarnation = bundle.sender, bundle.incarnation
        if bundle.serial == 0:
            self._fragments.pop(sender, None)
        self._next_serials[sender] = (incarnation, bundle.serial + 1)
        messages = self._packed_messages(bundle)
        if messages is not None:
            position, count = self._message_count, messages.count
            self.batches.append(
                Batch(sender, incarnation, self.slot, bundle.first_sequence, position, self._index, count, [messages])
            )
            self._message_count += count
            self._index += count

    def _packed_messages(self, bundle: Bundle) -> PackedMessages | None:
        """The messages that a bundle completes. For a fragment: None, unless it is the last one of its message."""
        if not bundle.flags & FRAGMENT:
            return read_packed_messages(bundle.body, 0, len(bundle.body))
        fragments = self._fragments.setdefault(bundle.sender, [])
        fragments.append(bundle.body)
        if bundle.flags & MORE_FRAGMENTS:
            return None
        del self._fragments[bundle.sender]
        return ReassembledMessage(fragments)

    def state(self) -> bytes:
        """A snapshot that replaces all values applied so far."""
        senders = tuple(
            SenderState(sender, incarnation, serial, b"".join(self._fragments.get(sender, ())))
            for sender, (incarnation, serial) in sorted(self._next_serials.items())
        )
        return encode_log_state(LogState(self._message_count, self.slot, senders))

    def restore(self, restored: RestoredState) -> None:
        """Replace the state of this log by a snapshot, and continue from there."""
        try:
            state = decode_log_state(restored.state)
        except Unreadable as error:
            raise StorageError(
                f"the snapshot of the log up to instance {restored.k} cannot be read: {error}. Check that all members "
                "use the same order and the same release of unisono, and that they wrote this member's storage file. "
                "Do not restore an older copy of the file: it lacks promises that this member made later"
            ) from error
        self._message_count, self.slot, self.first_slot = state.messages, state.slot, state.slot + 1
        self._next_serials = {its.member: (its.incarnation, its.next_serial) for its in state.senders}
        self._fragments = {its.member: [its.fragments] for its in state.senders if its.fragments}
