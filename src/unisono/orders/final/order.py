"""Two grades over a slot order (paper 000 §9): early on time and possibly with gaps, final later and agreed by all.

The paper's conclusion asks for updates in time, and for reliable total order in the background that makes the data
consistent. Early deliveries are those of the inner order (CBR or VBR), unchanged.

Sending: `submit` passes messages to the inner order. It accepts nothing while too much waits to become final.
Receiving: `from_below` passes frames to the inner order, to consensus, or to this class.
Becoming final, all in `flush`: each member reports the messages that it holds (`_report`) and recovers missing ones
from the others (`_recover`). The consensus leader proposes message ranges that a majority holds (`_propose`). The
decided ranges are delivered finally in one sequence that is the same at all members (`_deliver`). A range is a sender's
consecutive messages in a slot. The cost is therefore per slot and sender, one instance decides many slots, and no
message is sent twice unless it was lost.

Guarantees, while a majority of the members is up and can communicate: A message that is final at one member becomes
final at all members that do not crash (uniform agreement). An early delivery of a member that does not crash becomes
final. Without a majority nothing becomes final; early deliveries continue until PENDING_BYTES_MAX wait.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from unisono.agreement.failure_detector import retry_interval_ns
from unisono.agreement.paxos.acceptor import ConsensusOutput, RestoredState
from unisono.errors import InvariantViolated
from unisono.model.effects import StoredRecords, Write
from unisono.model.events import Batch, Gap, Grade, LeaveComplete, StackEvent, Violation, ViolationKind
from unisono.model.message_set import MessageRange, SenderSlot
from unisono.model.policy import Policy
from unisono.model.status import Standing
from unisono.model.timing import earliest
from unisono.model.units import EVERYONE, NS_PER_MS, Rate, duration_text
from unisono.net.layer import NO_ROOM
from unisono.orders.cbr.order import CbrOrder
from unisono.orders.consensus.order import build_consensus
from unisono.orders.final.agreement import (
    AgreedRange,
    FinalLog,
    FinalProposer,
    MemberReport,
    MemberReports,
    MessageStore,
    ranges_by_sender_slot,
)
from unisono.orders.final.bounds import report_every_ns
from unisono.orders.final.messages import (
    ALL_SLOTS_DONE,
    COUNT_BYTES,
    HOLDINGS_BYTES,
    INCARNATION_BYTES,
    MESSAGE_RANGE_BYTES,
    SPECS,
    FinalLogValue,
    FinalsMessage,
    Holdings,
    RecoveryReply,
    RecoveryRequest,
    decode_state,
    encode_value,
)
from unisono.orders.final.recovery import Recovery
from unisono.orders.vbr.order import VbrOrder
from unisono.wire.codec import Unreadable, control_frame
from unisono.wire.frame import HEADER_BYTES, Frame

ClockBasedOrder: TypeAlias = CbrOrder | VbrOrder

WINDOW = 16
"""Propose at most this many instances that are not decided."""
COMPACT_EVERY_INSTANCES = 1024
"""Replace the log by a snapshot after this many instances."""
RETAINED_INSTANCES = 4096
"""Keep this many decided instances before a snapshot, for members that lag."""
REPORT_FRAMES_MAX = 8
"""A report has at most this many frames, unless a single slot needs more; later slots wait for the next one."""
PENDING_BYTES_MAX = 16 << 20
"""`submit` accepts nothing while more payload than this is not final."""
RETAINED_BYTES_MAX, RETAINED_RANGES_MAX = 64 << 20, 1 << 17
"""Keep at most these bytes and message ranges for unresponsive members; one that misses more is excluded."""
LEAVE_TIMEOUT_NS = 500 * NS_PER_MS
"""A leaving member waits this long, and three latency bounds, for its messages to become final."""


class FinalOrder:
    """The automaton of one member: the inner order, and the agreement on its deliveries."""

    keeps_sending_to_departed = True  # an unresponsive member may come back, and then lacks final messages

    def __init__(self, inner: ClockBasedOrder, policy: Policy, stored_records: StoredRecords | None = None) -> None:
        self.inner = inner
        self.down: list[Frame] = inner.down
        """Frames to send. The inner order uses the same list, so that frames of both leave in the order of creation."""
        self.events: list[StackEvent] = []
        self.ignored: Counter[str] = inner.ignored
        self.window_slots = inner.window_slots
        self.gap_free = inner.gap_free
        """Whether early deliveries are guaranteed to have no gaps; final ones always are."""
        self.now = 0
        """The time of the last input."""
        self.has_left = False
        members, retain = policy.view.members, RETAINED_INSTANCES
        self.consensus = build_consensus(
            policy, members, stored_records, window=WINDOW, retain=retain, check_state=decode_state
        )
        self.writes: list[Write] = self.consensus.writes
        self.log = FinalLog()
        self.store = MessageStore()
        self.reports = MemberReports()
        self._policy = policy
        self._delivers_early = policy.grades == "both"
        self._incarnation = policy.incarnation
        self._pending_bytes: dict[SenderSlot, int] = {}
        """By sender slot, the payload of held messages that are not final."""
        self._total_pending_bytes = 0
        self._undelivered: deque[AgreedRange] = deque()
        """Agreed message ranges that this member has not delivered yet."""
        self._retained: deque[tuple[int, MessageRange]] = deque()
        """(instance, range) of final messages that another member may lack."""
        self._index = self._compacted_upto = 0
        self._next_position: int | None = None
        self._final_slot = 0
        """The slot of the last final delivery here. All final messages of earlier slots that follow are late."""
        """The position of the next message that becomes final; None before the first one after a snapshot."""
        self._recovery = Recovery(policy, self.store, self.log, self._send)
        self._proposer: FinalProposer | None = None
        self._leader_changes_seen = -1
        self._trusted: list[int] = []
        # Whether something has changed since the last attempt, so that another one may succeed.
        self._may_propose = True
        self._may_lack_messages = self._may_drop_messages = False
        self._has_input = False
        self._report_outdated = True
        """Whether the next report would differ from the last one."""
        self._report_every_ns = report_every_ns(policy.timing)
        self._retry_ns = retry_interval_ns(policy.timing) + self._report_every_ns
        self._reported_at: int | None = None
        self._reported_done_slot = self._last_done_slot = 0
        self._order_left: LeaveComplete | None = None
        self._leaving_since = 0
        self._last_progress_at = 0
        """When something last became final, or nothing was pending."""
        self._blocked_reported = False

    # -- inputs ----------------------------------------------------------------------------------------------

    def submit(self, now: int, messages: Sequence[bytes]) -> int:
        """Submit to the inner order, unless too much waits to become final."""
        self.now, self._has_input = now, True
        return 0 if self._total_pending_bytes > PENDING_BYTES_MAX else self.inner.submit(now, messages)

    def room(self, now: int) -> tuple[int, int]:
        """The room of the inner order, unless too much waits to become final."""
        self.now, self._has_input = now, True
        return NO_ROOM if self._total_pending_bytes > PENDING_BYTES_MAX else self.inner.room(now)

    def change_rate(self, now: int, rate: Rate) -> None:
        """Change the rate of the inner order."""
        self.now = now
        self.inner.change_rate(now, rate)

    def leave(self, now: int) -> None:
        """Leave the inner order; `_depart_if_done` completes the departure."""
        self.now = now
        self.inner.leave(now)

    def from_below(self, now: int, frame: Frame) -> None:
        """Process a frame that has arrived: of the inner order, of consensus, or of the agreement on final messages."""
        if self.has_left:
            return
        self.now, self._has_input = now, True
        if frame.kind in self.consensus.kinds or frame.kind in self.consensus.detector.kinds:
            self.consensus.from_below(now, frame)
            return
        if frame.kind not in SPECS:
            self.inner.from_below(now, frame)
            return
        if frame.epoch != self._policy.epoch or frame.sender in self.consensus.storage_identity.lost_storage:
            self.ignored["another epoch or lost storage"] += 1
            return
        match frame.message:
            case Holdings() as holdings:
                self._on_holdings(frame, holdings)
            case RecoveryRequest() as request:
                self._recovery.answer(now, frame.sender, request, self._was_dropped)
            case RecoveryReply() as reply:
                self._on_recovery_reply(frame.sender, reply)

    def _on_holdings(self, frame: Frame, holdings: Holdings) -> None:
        if not self.reports.receive(frame, holdings):
            return
        self._may_propose = self._may_drop_messages = True
        self._may_lack_messages = self._may_lack_messages or bool(holdings.message_ranges)
        if holdings.message_ranges and holdings.done_slot > self._reported_done_slot:
            self._report_outdated = True  # the leader waits for this member, even if it holds none of these messages

    def _on_recovery_reply(self, sender: int, reply: RecoveryReply) -> None:
        for sender_slot, first, messages in self._recovery.receive(sender, reply):
            if self.store.put(sender_slot, first, messages):
                self._may_propose = self._may_lack_messages = True
                if self.log.not_yet_final(MessageRange(*sender_slot, first, messages.count)):
                    self._add_pending(sender_slot, messages.payload_bytes)

    def wake(self, now: int) -> None:
        """Handle the timers that are due."""
        if self.has_left:
            return
        self.now, self._has_input = now, True
        self.inner.wake(now)
        self.consensus.wake(now)

    def wake_at(self) -> int | None:
        """The earliest timer of the inner order, consensus, reports, recovery requests, proposals and a departure."""
        if self.has_left:
            return None
        times = [self.inner.wake_at(), self.consensus.wake_at(), self._recovery.retry_at(), self._report_due_at()]
        if self._proposer is not None:
            times.append(self._proposer.retry_at)
        if self._order_left is not None:
            times.append(self._leaving_since + self._leave_timeout_ns())
        return earliest(times)

    # -- processing the input --------------------------------------------------------------------------------

    @property
    def has_pending_input(self) -> bool:
        """Whether there was any input since the last `flush`."""
        return not self.has_left and bool(self._has_input or self.inner.events)

    def flush(self) -> None:
        """Process all input since the last call as one batch, and queue the resulting frames and events."""
        if not self.has_pending_input:
            return
        self._has_input, now = False, self.now
        self._collect_early()
        self.window_slots = self.inner.window_slots
        decided = True
        while decided:
            self._propose(now)
            self.consensus.flush(now)
            decisions, self.consensus.decisions[:] = self.consensus.decisions[:], []
            decided = bool(decisions)
            self._apply_decisions(decisions)
        self._deliver()
        self._recover(now)
        self._drop_delivered()
        due = self._report_due_at()
        if due is not None and now >= due:
            self._report(now)
        self._report_if_blocked(now)
        self._depart_if_done(now)
        if self.consensus.down:
            self.down += self.consensus.down
            self.consensus.down.clear()

    def _collect_early(self) -> None:
        """Store the deliveries of the inner order, and pass them on if the application wants early deliveries."""
        for event in self.inner.events:
            if isinstance(event, Batch):
                sender_slot, number = (event.slot, event.sender, event.incarnation), event.first_sequence
                for messages in event.packed_messages:
                    message_range = MessageRange(*sender_slot, number, messages.count)
                    if self.store.put(sender_slot, number, messages) and self.log.not_yet_final(message_range):
                        self._add_pending(sender_slot, messages.payload_bytes)
                    number += messages.count
                if self._delivers_early:
                    self.events.append(replace(event, grade=Grade.EARLY))
            elif isinstance(event, LeaveComplete):
                self._order_left, self._leaving_since = event, self.now
                self._report_outdated = True
            elif self._delivers_early or not isinstance(event, Gap):
                self.events.append(event)
        self.inner.events.clear()
        done = self._done_slot()
        if done > self._last_done_slot:
            self._last_done_slot, self._may_lack_messages = done, True
            self._report_outdated = self._report_outdated or bool(self._pending_bytes)

    def _add_pending(self, sender_slot: SenderSlot, payload_bytes: int) -> None:
        self._pending_bytes[sender_slot] = self._pending_bytes.get(sender_slot, 0) + payload_bytes
        self._total_pending_bytes += payload_bytes
        self._report_outdated = self._may_propose = True

    def complete_slot(self, *, early: bool) -> int | None:
        """The last slot whose messages are all delivered here in this grade, except late ones; None before the first.

        The final log decides which messages are late, so this mark is agreed: a message is late at all members if a
        message of a later slot precedes it in the log.
        """
        if early:
            return self.inner.complete_slot()
        return self._final_slot - 1 if self._final_slot else None

    def _done_slot(self) -> int:
        """The last slot for which this member has finished its early deliveries."""
        return ALL_SLOTS_DONE if self._order_left is not None else self.inner.done_slot()

    # -- reports ---------------------------------------------------------------------------------------------

    def _report_due_at(self) -> int | None:
        if self._reported_at is None:
            return self.now
        if self._report_outdated:
            return self._reported_at + self._report_every_ns
        repeat = self._pending_bytes or self._undelivered or not self.participates()
        return self._reported_at + self._retry_ns if repeat else None

    def _report(self, now: int) -> None:
        """Report the messages that this member holds and that are not final, in slots that are done, oldest first."""
        ranges_per_frame = (self._policy.max_frame - HEADER_BYTES - HOLDINGS_BYTES) // MESSAGE_RANGE_BYTES
        done_slot, held = self._done_slot(), list[MessageRange]()
        for sender_slot in sorted(self._pending_bytes):
            if sender_slot[0] > done_slot:
                break
            if len(held) >= ranges_per_frame * REPORT_FRAMES_MAX and sender_slot[0] > held[-1].slot:
                done_slot = held[-1].slot
                break
            for first, last in self.store.ranges(sender_slot):
                held += self.log.not_yet_final(MessageRange(*sender_slot, first, last - first + 1))
        delivered_instance = self._delivered_instance()
        parts = [tuple(held[at : at + ranges_per_frame]) for at in range(0, len(held), ranges_per_frame)] or [()]
        for number, part in enumerate(parts):
            self._send(now, Holdings(done_slot, delivered_instance, part), EVERYONE, number, len(parts))
        self.reports.by_member[self._policy.member] = MemberReport(
            self._incarnation, done_slot, delivered_instance, ranges_by_sender_slot(held)
        )
        self._reported_at, self._reported_done_slot = now, done_slot
        self._report_outdated, self._may_propose = False, True

    def _delivered_instance(self) -> int:
        """The last instance whose messages are all delivered here."""
        return self._undelivered[0].k - 1 if self._undelivered else self.log.k

    def participates(self) -> bool:
        """Whether the log admits this incarnation of this member to the final order."""
        return self.log.participants.get(self._policy.member) == self._incarnation

    # -- agreement -------------------------------------------------------------------------------------------

    def _propose(self, now: int) -> None:
        """As the leader, propose the messages that can become final next, in as few instances as possible."""
        consensus = self.consensus
        if consensus.leader_changes != self._leader_changes_seen or not consensus.is_leader:
            self._leader_changes_seen, self._proposer = consensus.leader_changes, None
            self._may_propose = True
        if not consensus.is_leader:
            return
        if self._proposer is None:
            hole_timeout_ns = max(map(consensus.detector.timeout_ns, consensus.peers), default=0) + self._retry_ns
            self._proposer = FinalProposer(self.reports, self.log, consensus.majority, hole_timeout_ns)
        proposer = self._proposer
        trusted = [
            m for m in consensus.detector.trusted(consensus.members) if m not in consensus.storage_identity.lost_storage
        ]
        overdue = proposer.retry_at is not None and now >= proposer.retry_at
        if not (self._may_propose or overdue or trusted != self._trusted):
            return
        self._trusted, self._may_propose = trusted, False
        if consensus.next_free > consensus.decided + consensus.window:
            return
        proposer.forget_decided()
        new_participants = proposer.new_participants(trusted, ALL_SLOTS_DONE)
        participants_bytes = COUNT_BYTES + INCARNATION_BYTES * len(consensus.members)
        ranges_per_value = (consensus.max_value_bytes - participants_bytes) // MESSAGE_RANGE_BYTES
        free_instances = consensus.decided + consensus.window - consensus.next_free + 1
        message_ranges = proposer.next_ranges(now, trusted, ranges_per_value * free_instances)
        while new_participants or message_ranges:
            value = FinalLogValue(new_participants, tuple(message_ranges[:ranges_per_value]))
            consensus.propose(now, consensus.next_free, encode_value(value))
            consensus.flush(now)
            new_participants, message_ranges = {}, message_ranges[ranges_per_value:]

    def _apply_decisions(self, decisions: Sequence[ConsensusOutput]) -> None:
        for decision in decisions:
            if isinstance(decision, RestoredState):
                if self.participates():
                    self._exclude_self("the others no longer keep the part of the agreed log that it lacks")
                    return
                self.log.restore(decision)
                self._next_position = None
                self._compacted_upto = decision.k
            else:
                self._apply_decision(decision.k, decision.value)
        if decisions:
            self._report_outdated = self._may_propose = self._may_lack_messages = True
            self._last_progress_at, self._blocked_reported = self.now, False
            if self.log.k - self._compacted_upto >= COMPACT_EVERY_INSTANCES:
                self._compacted_upto = self.log.k
                self.consensus.compact(self.log.k, self.log.state())

    def _apply_decision(self, k: int, value: bytes) -> None:
        try:
            agreed = self.log.apply(k, value)
        except Unreadable:
            self.ignored["malformed value of the final order"] += 1
            return
        for agreed_range in agreed:
            self._retained.append((k, agreed_range.message_range))
            if self.participates():
                self.check_position(agreed_range)
                self._undelivered.append(agreed_range)
        for sender_slot in dict.fromkeys(agreed_range.message_range.sender_slot for agreed_range in agreed):
            if sender_slot in self._pending_bytes:
                held = [MessageRange(*sender_slot, a, b - a + 1) for a, b in self.store.ranges(sender_slot)]
                if not any(map(self.log.not_yet_final, held)):
                    self._total_pending_bytes -= self._pending_bytes.pop(sender_slot)

    # -- final deliveries and recovery -----------------------------------------------------------------------

    def _deliver(self) -> None:
        """Deliver agreed ranges in order, as far as their messages are held."""
        while self._undelivered:
            agreed = self._undelivered[0]
            message_range = agreed.message_range
            packed_messages = self.store.packed_messages(message_range)
            if packed_messages is None:
                return
            self._undelivered.popleft()
            self._report_outdated = self._may_drop_messages = True
            self.events.append(
                Batch(
                    message_range.sender,
                    message_range.incarnation,
                    agreed.slot,
                    message_range.first,
                    agreed.position,
                    self._index,
                    message_range.length,
                    packed_messages,
                    grade=Grade.FINAL,
                    late=agreed.late,
                )
            )
            self._final_slot = agreed.slot
            self._index += message_range.length

    def check_position(self, agreed: AgreedRange) -> None:
        """Raise InvariantViolated unless messages become final at consecutive positions, except after a snapshot."""
        if agreed.position != self._next_position and self._next_position is not None:
            text = "a message becomes final at a position that is taken, or after a gap"
            expected = f"position {self._next_position}"
            raise InvariantViolated("final", self._policy.member, text, expected, str(agreed.position))
        self._next_position = agreed.position + agreed.message_range.length

    def _recover(self, now: int) -> None:
        """Request messages that are agreed on, or that a peer holds, and that are missing here."""
        if not self._may_lack_messages and not self._recovery.overdue(now):
            return
        self._may_lack_messages = False
        trusted = self.consensus.detector.trusted(self.consensus.peers)
        self._recovery.request_missing(now, self._undelivered, self.reports, trusted, self._done_slot())
        if self._undelivered and self._recovery.is_unrecoverable(
            self._undelivered[0].message_range, self.consensus.majority
        ):
            self._exclude_self("the others no longer keep the agreed messages that it lacks")

    def _was_dropped(self, message_range: MessageRange) -> bool:
        """Whether this member has delivered these messages finally and dropped them.

        False if it has not delivered them yet, or if they became final before it took part.
        """
        undelivered = any(agreed.message_range.sender_slot == message_range.sender_slot for agreed in self._undelivered)
        return self.participates() and not undelivered and not self.log.not_yet_final(message_range)

    def _drop_delivered(self) -> None:
        """Drop messages that all members have delivered; for unresponsive members, keep only a limited amount."""
        if not self._may_drop_messages:
            return
        self._may_drop_messages = False
        delivered_here = delivered_by_all = self._delivered_instance()
        responsive = self.consensus.detector.trusted(self.consensus.peers)
        for member, incarnation in self.log.participants.items():
            if member in responsive:
                report = self.reports.by_member.get(member)
                if report is None or report.incarnation != incarnation:
                    delivered_by_all = 0
                else:
                    delivered_by_all = min(delivered_by_all, report.delivered_instance)
        unresponsive = [m for m in self.log.participants if m not in responsive and m != self._policy.member]
        while self._retained and self._retained[0][0] <= delivered_here:
            k, message_range = self._retained[0]
            over_limit = (
                self.store.payload_bytes - self._total_pending_bytes > RETAINED_BYTES_MAX
                or len(self._retained) > RETAINED_RANGES_MAX
            )
            if not over_limit and (k > delivered_by_all or unresponsive):
                return
            self._retained.popleft()
            self.store.drop(message_range)

    # -- blocking and departure ------------------------------------------------------------------------------

    def _report_if_blocked(self, now: int) -> None:
        """Report a violation, once, if messages wait to become final but none has become final for too long."""
        if not (self._pending_bytes or self._undelivered):
            self._last_progress_at, self._blocked_reported = now, False
        if self._blocked_reported or now <= self._last_progress_at + 4 * self._retry_ns:
            return
        longest = max(map(self.consensus.detector.timeout_ns, self.consensus.peers), default=0)
        if now > self._last_progress_at + 2 * longest + self.bound_ns() + 2 * self._retry_ns:
            self._blocked_reported = True
            reachable = self.consensus.detector.trusted(self.consensus.members)
            count = len(self.consensus.members)
            text = f"nothing becomes final: {len(reachable)} of {count} members are reachable: {reachable}"
            self.events.append(Violation(ViolationKind.BLOCKED, text, self._policy.member))

    def _depart_if_done(self, now: int) -> None:
        """Leave when all held messages are final and all reachable members know it, or at a time-out."""
        if self._order_left is None:
            return
        all_final = not (self._pending_bytes or self._undelivered)
        peers = self.consensus.detector.trusted(self.consensus.peers)
        all_know = all(
            self.reports.by_member[m].delivered_instance >= self.log.k for m in peers if m in self.reports.by_member
        )
        if not (all_final and all_know) and now < self._leaving_since + self._leave_timeout_ns():
            return
        if not all_final:
            count = len(self._pending_bytes) + len(self._undelivered)
            text = f"this member leaves before all messages are final: messages of {count} sender slots are not"
            self.events.append(Violation(ViolationKind.UNSETTLED, text, self._policy.member))
        self._report(now)
        self.has_left = True
        self.events.append(self._order_left)

    def _leave_timeout_ns(self) -> int:
        return LEAVE_TIMEOUT_NS + 3 * self.bound_ns()

    def _exclude_self(self, reason: str) -> None:
        """Leave as if crashed: this member was away for too long."""
        text = f"this member was away for too long, far beyond {duration_text(self._retry_ns)}: {reason}; it leaves"
        self.events.append(Violation(ViolationKind.EXCLUDED, text, self._policy.member))
        self.events.append(LeaveComplete(self.inner.done_slot()))
        self.has_left = True

    def _send(self, now: int, message: FinalsMessage, to: int, number: int = 0, total: int = 0) -> None:
        me, epoch = self._policy.member, self._policy.epoch
        self.down.append(
            control_frame(message, me, self._incarnation, epoch, number=number, burst=total, sent_ns=now, to=to)
        )

    # -- questions -------------------------------------------------------------------------------------------

    def standing(self, now: int) -> Standing:
        """The leader of the agreement on final deliveries, and whether it has a majority. Early ones need none."""
        if not self.running():
            return Standing(led=True)
        found = self.consensus.standing()
        return replace(found, majority=False) if self._blocked_reported else found

    def latest_slot(self, now: int) -> int:
        """The latest slot that the inner order accepts."""
        return self.inner.latest_slot(now)

    def bound_ns(self) -> int:
        """The latency bound of early deliveries; final deliveries have none."""
        return self.inner.bound_ns()

    def waiting_for(self) -> tuple[int, ...]:
        """The members that the inner order waits for."""
        return self.inner.waiting_for()

    def running(self) -> bool:
        """Whether early deliveries have started; final ones start when a majority is up."""
        return self.inner.running() and not self.has_left

    def peer_rate(self, peer: int) -> Rate | None:
        """The rate that a peer declared, or None if it is not known yet."""
        return self.inner.peer_rate(peer)

    def by_multicast(self) -> bool:
        """Whether data frames use IP multicast; reports and votes are sent to each member."""
        return self.inner.by_multicast()

    def peer_problems(self) -> Mapping[int, str]:
        """By peer, why the inner order refuses it, or that it has lost its storage."""
        return {**self.consensus.storage_identity.peer_problems(), **self.inner.peer_problems()}

    def why_not_formed(self) -> str:
        """Why the inner order has not formed; may be empty."""
        return self.inner.why_not_formed()
