"""Two grades over a slot order: early as that order delivers, with gaps and on time; final as all agree, later.

Paper 000's conclusion asks for it: updates in time, and in the background reliable total order, so that the data become
consistent. Early deliveries are the order's own, untouched. Behind them members report to each other what they hold of
each slot, recover from one another what they lack, and agree by consensus on what a slot contains; that is then
delivered finally, in one sequence that is the same everywhere. Agreement is on extents, a sender's consecutive messages
in a slot: its cost is per slot and sender, many slots go into one instance, and no message travels twice unless lost.

What is final at one member becomes final at all that do not crash (uniform agreement), and what a member that does not
crash has delivered early becomes final: while a majority of the members is up and can talk. Without one nothing becomes
final; early deliveries go on, until so much waits that `submit` takes nothing more.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from unisono.agreement.membership.from_policy import heartbeat_interval_ns, retry_interval_ns
from unisono.agreement.paxos.consensus import Consensus
from unisono.agreement.paxos.decisions import ConsensusOutput, RestoredState
from unisono.model.durations import NS_PER_MS, duration_text, earliest
from unisono.model.events import Batch, LeaveComplete, StackEvent, Violation, ViolationKind
from unisono.model.grades import Grade
from unisono.model.message_range import MessageRange, SenderSlot
from unisono.model.policy import Policy
from unisono.model.rates import Rate
from unisono.model.stored_records import StoredRecords, Write
from unisono.orders.cbr.order import Cbr
from unisono.orders.final import messages as wire
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
    HOLDINGS_BYTES,
    MESSAGE_RANGE_BYTES,
    FinalLogValue,
    Holdings,
    RecoveryReply,
    RecoveryRequest,
    encode_value,
)
from unisono.orders.final.recovery import Recovery
from unisono.orders.vbr.order import Vbr
from unisono.wire.frame import HEADER_BYTES, Frame

ClockBasedOrder: TypeAlias = Cbr | Vbr

WINDOW = 16
"""Instances under way at once."""
COMPACT_EVERY_INSTANCES = 1024
"""So many instances are read between two cuts of the log."""
RETAINED_INSTANCES = 4096
"""So many decided instances are kept behind a cut, for members that lag."""
REPORT_FRAMES_MAX = 8
"""A report has no more frames than this, unless one slot needs more; what comes later waits."""
PENDING_BYTES_MAX = 16 << 20
"""So much payload that is not final may wait before nothing more is taken."""
RETAINED_BYTES_MAX, RETAINED_RANGES_MAX = 64 << 20, 1 << 17
"""So much is kept for members that are silent; who is away for longer is left behind."""
LEAVE_TIMEOUT_NS = 500 * NS_PER_MS


class FinalOrder:
    """The automaton of one member: the order below, and the agreement behind it."""

    def __init__(self, inner: ClockBasedOrder, policy: Policy, stored_records: StoredRecords | None = None) -> None:
        self.inner = inner
        self.down: list[Frame] = inner.down
        self.events: list[StackEvent] = []
        self.ignored: Counter[str] = inner.ignored
        self.window_slots = inner.window_slots
        self.now = 0
        """The clock at the last input."""
        self.has_left = False
        self.consensus = Consensus(
            policy.member,
            policy.view.members,
            every_ns=heartbeat_interval_ns(policy.timing),
            retry_ns=retry_interval_ns(policy.timing),
            max_frame=policy.max_frame,
            incarnation=policy.incarnation,
            epoch=policy.epoch,
            window=WINDOW,
            retain=RETAINED_INSTANCES,
            stored_records=stored_records,
            batch_replies=True,
        )
        self.writes: list[Write] = self.consensus.writes
        self.log = FinalLog()
        self.store = MessageStore()
        self.reports = MemberReports()
        self._policy = policy
        self._delivers_early = policy.grades == "both"
        self._incarnation = policy.incarnation
        self._pending_bytes: dict[SenderSlot, int] = {}
        """Where messages are held that are not final, and how much payload."""
        self._total_pending_bytes = 0
        self._undelivered: deque[AgreedRange] = deque()
        """What has its place and is not delivered yet."""
        self._retained: deque[tuple[int, MessageRange]] = deque()
        """By instance, what is final and kept for those that may lack it."""
        self._index = self._compacted_upto = 0
        self._recovery = Recovery(policy, self.store, self.log, self._send)
        self._proposer: FinalProposer | None = None
        self._leader_changes_seen = -1
        self._trusted: list[int] = []
        self._may_propose = True
        """Whether there may be something to propose."""
        self._may_lack_messages = self._may_drop_messages = False
        """Whether there may be something to ask for, or to keep no longer."""
        self._has_input = False
        self._report_outdated = True
        """Whether the last report is not how things stand any more."""
        self._report_every_ns = report_every_ns(policy.timing)
        self._retry_ns = retry_interval_ns(policy.timing) + self._report_every_ns
        self._reported_at: int | None = None
        self._reported_done_slot = self._last_done_slot = 0
        self._order_left: LeaveComplete | None = None
        self._leaving_since = 0
        self._last_progress_at = 0
        """When something last became final, or nothing was left to."""
        self._blocked_reported = False

    # -- inputs ----------------------------------------------------------------------------------------------

    def submit(self, now: int, messages: Sequence[bytes]) -> int:
        """What the order takes, unless too much waits to become final."""
        self.now, self._has_input = now, True
        return 0 if self._total_pending_bytes > PENDING_BYTES_MAX else self.inner.submit(now, messages)

    def change_rate(self, now: int, rate: Rate) -> None:
        """Renegotiate the order's rate."""
        self.now = now
        self.inner.change_rate(now, rate)

    def leave(self, now: int) -> None:
        """Depart from the order; what else there is to end follows from that."""
        self.now = now
        self.inner.leave(now)

    def from_below(self, now: int, frame: Frame) -> None:
        """net-receive."""
        if self.has_left:
            return
        self.now, self._has_input = now, True
        if frame.kind in self.consensus.kinds or frame.kind in self.consensus.detector.kinds:
            self.consensus.from_below(now, frame)
            return
        if frame.kind not in wire.DECODERS:
            self.inner.from_below(now, frame)
            return
        if frame.epoch != self._policy.epoch or frame.sender in self.consensus.storage_identity.lost_storage:
            self.ignored["not of this agreement"] += 1
            return
        match wire.DECODERS[frame.kind](bytes(frame.body)):
            case Holdings() as holdings:
                self._on_holdings(frame, holdings)
            case RecoveryRequest() as want:
                self._recovery.answer(now, frame.sender, want, self._was_dropped)
            case RecoveryReply() as give:
                self._on_recovery_reply(frame.sender, give)

    def _on_holdings(self, frame: Frame, holdings: Holdings) -> None:
        if not self.reports.receive(frame, holdings):
            return
        self._may_propose = self._may_drop_messages = True
        self._may_lack_messages = self._may_lack_messages or bool(holdings.message_ranges)
        if holdings.message_ranges and holdings.done_slot > self._reported_done_slot:
            self._report_outdated = True  # the leader waits for us, though we may have nothing of it

    def _on_recovery_reply(self, sender: int, reply: RecoveryReply) -> None:
        for cell, first, run in self._recovery.receive(sender, reply):
            if self.store.put(cell, first, run):
                self._may_propose = self._may_lack_messages = True
                if self.log.not_yet_final(MessageRange(*cell, first, run.count)):
                    self._add_pending(cell, run.payload_bytes)

    def wake(self, now: int) -> None:
        """Time has passed."""
        if self.has_left:
            return
        self.now, self._has_input = now, True
        self.inner.wake(now)
        self.consensus.wake(now)

    def wake_at(self) -> int | None:
        """The order's alarm, the agreement's, and when a report, a request or a departure is due."""
        if self.has_left:
            return None
        times = [self.inner.wake_at(), self.consensus.wake_at(), self._recovery.retry_at(), self._report_due_at()]
        if self._proposer is not None:
            times.append(self._proposer.retry_at)
        if self._order_left is not None:
            times.append(self._leaving_since + self._leave_timeout_ns())
        return earliest(times)

    # -- early -----------------------------------------------------------------------------------------------

    @property
    def has_pending_input(self) -> bool:
        """Whether anything has happened since the last `flush`."""
        return not self.has_left and bool(self._has_input or self.inner.events)

    def flush(self) -> None:
        """Say what there is to say to all that has happened since the last time."""
        if not self.has_pending_input:
            return
        self._has_input, now = False, self.now
        self._collect_early()
        self.window_slots = self.inner.window_slots
        moved = True
        while moved:
            self._propose(now)
            self.consensus.flush(now)
            decisions, self.consensus.decisions[:] = self.consensus.decisions[:], []
            moved = bool(decisions)
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
        """What the order has delivered is kept, and goes on to the application if it is to have it."""
        for event in self.inner.events:
            if isinstance(event, Batch):
                cell, number = (event.slot, event.sender, event.incarnation), event.first_sequence
                for run in event.packed_messages:
                    if self.store.put(cell, number, run) and self.log.not_yet_final(
                        MessageRange(*cell, number, run.count)
                    ):
                        self._add_pending(cell, run.payload_bytes)
                    number += run.count
                if self._delivers_early:
                    self.events.append(replace(event, grade=Grade.EARLY))
            elif isinstance(event, LeaveComplete):
                self._order_left, self._leaving_since = event, self.now
                self._report_outdated = True
            else:
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

    def _done_slot(self) -> int:
        """The last slot of which nothing more will be delivered early here."""
        return ALL_SLOTS_DONE if self._order_left is not None else self.inner.done_slot()

    # -- reports -----------------------------------------------------------------------------------------------

    def _report_due_at(self) -> int | None:
        if self._reported_at is None:
            return self.now
        if self._report_outdated:
            return self._reported_at + self._report_every_ns
        unsettled = self._pending_bytes or self._undelivered or not self.participates()
        return self._reported_at + self._retry_ns if unsettled else None

    def _report(self, now: int) -> None:
        """Tell everybody what this member holds that is not final, of slots that are over for it, oldest first."""
        room = (self._policy.max_frame - HEADER_BYTES - HOLDINGS_BYTES) // MESSAGE_RANGE_BYTES
        upto, extents = self._done_slot(), list[MessageRange]()
        for cell in sorted(self._pending_bytes):
            if cell[0] > upto:
                break
            if len(extents) >= room * REPORT_FRAMES_MAX and cell[0] > extents[-1].slot:
                upto = extents[-1].slot
                break
            for first, last in self.store.ranges(cell):
                extents += self.log.not_yet_final(MessageRange(*cell, first, last - first + 1))
        known, me = self._delivered_instance(), self._policy.member
        parts = [tuple(extents[at : at + room]) for at in range(0, len(extents), room)] or [()]
        for number, part in enumerate(parts):
            self._send(now, Holdings(upto, known, part), 0, number, len(parts))
        self.reports.by_member[me] = MemberReport(self._incarnation, upto, known, ranges_by_sender_slot(extents))
        self._reported_at, self._reported_done_slot, self._report_outdated, self._may_propose = now, upto, False, True

    def _delivered_instance(self) -> int:
        """The last instance all of which is delivered here."""
        return self._undelivered[0].k - 1 if self._undelivered else self.log.k

    def participates(self) -> bool:
        """Whether this member takes part in the final order, in this life."""
        return self.log.participants.get(self._policy.member) == self._incarnation

    # -- agreeing ----------------------------------------------------------------------------------------------

    def _propose(self, now: int) -> None:
        """As a leader: what can be final next, as many slots as there are, in as few instances as will do."""
        consensus = self.consensus
        if consensus.leader_changes != self._leader_changes_seen or not consensus.is_leader:
            self._leader_changes_seen, self._proposer = consensus.leader_changes, None
            self._may_propose = True
        if not consensus.is_leader:
            return
        if self._proposer is None:
            patience = max(map(consensus.detector.timeout_ns, consensus.peers), default=0) + self._retry_ns
            self._proposer = FinalProposer(self.reports, self.log, consensus.majority, patience)
        chooser = self._proposer
        trusted = [
            m for m in consensus.detector.trusted(consensus.members) if m not in consensus.storage_identity.lost_storage
        ]
        overdue = chooser.retry_at is not None and now >= chooser.retry_at
        if not (self._may_propose or overdue or trusted != self._trusted):
            return
        self._trusted, self._may_propose = trusted, False
        if consensus.next_free > consensus.decided + consensus.window:
            return
        chooser.forget_decided()
        entering = chooser.new_participants(trusted, ALL_SLOTS_DONE)
        room = (
            consensus.max_value_bytes - wire.COUNT_BYTES - wire.INCARNATION_BYTES * len(consensus.members)
        ) // MESSAGE_RANGE_BYTES
        free = consensus.decided + consensus.window - consensus.next_free + 1
        extents = chooser.next_ranges(now, trusted, room * free)
        while entering or extents:
            value = FinalLogValue(entering, tuple(extents[:room]))
            consensus.propose(now, consensus.next_free, encode_value(value))
            consensus.flush(now)
            entering, extents = {}, extents[room:]

    def _apply_decisions(self, decisions: Sequence[ConsensusOutput]) -> None:
        for decision in decisions:
            if isinstance(decision, RestoredState):
                if self.participates():
                    self._exclude_self("the log that was agreed on meanwhile is not kept any more")
                    return
                self.log.restore(decision)
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
        agreed = self.log.apply(k, value)
        if agreed is None:
            self.ignored["no value of the final order"] += 1
            return
        for one in agreed:
            self._retained.append((k, one.message_range))
            if self.participates():
                self._undelivered.append(one)
        for cell in dict.fromkeys(
            one.message_range.sender_slot for one in agreed if one.message_range.sender_slot in self._pending_bytes
        ):
            left = [self.log.not_yet_final(MessageRange(*cell, a, b - a + 1)) for a, b in self.store.ranges(cell)]
            if not any(left):
                self._total_pending_bytes -= self._pending_bytes.pop(cell)

    # -- final -------------------------------------------------------------------------------------------------

    def _deliver(self) -> None:
        """What has its place, for as long as the next is here."""
        while self._undelivered:
            one = self._undelivered[0]
            extent = one.message_range
            runs = self.store.packed_messages(extent)
            if runs is None:
                return
            self._undelivered.popleft()
            self._report_outdated = self._may_drop_messages = True
            self.events.append(
                Batch(
                    extent.sender,
                    extent.incarnation,
                    one.slot,
                    extent.first,
                    one.position,
                    self._index,
                    extent.length,
                    runs,
                    grade=Grade.FINAL,
                )
            )
            self._index += extent.length

    def _recover(self, now: int) -> None:
        """Ask for what others hold, or all have agreed on, and we lack."""
        if not self._may_lack_messages and not self._recovery.overdue(now):
            return
        self._may_lack_messages = False
        trusted = self.consensus.detector.trusted(self.consensus.peers)
        self._recovery.request_missing(now, self._undelivered, self.reports, trusted, self._done_slot())
        if self._undelivered and self._recovery.is_unrecoverable(
            self._undelivered[0].message_range, self.consensus.majority
        ):
            self._exclude_self("what was agreed on meanwhile is not kept any more")

    def _was_dropped(self, message_range: MessageRange) -> bool:
        """Whether this was delivered finally here; what is still to come, or was before this member, it never had."""
        coming = any(one.message_range.sender_slot == message_range.sender_slot for one in self._undelivered)
        return self.participates() and not coming and not self.log.not_yet_final(message_range)

    def _drop_delivered(self) -> None:
        """Keep nothing that everybody has; for who is silent, only so much."""
        if not self._may_drop_messages:
            return
        self._may_drop_messages = False
        known = self._delivered_instance()
        heard = self.consensus.detector.trusted(self.consensus.peers)
        needed = known
        for member, life in self.log.participants.items():
            if member in heard:
                report = self.reports.by_member.get(member)
                needed = min(
                    needed, report.delivered_instance if report is not None and report.incarnation == life else 0
                )
        silent = [member for member in self.log.participants if member not in heard and member != self._policy.member]
        while self._retained and self._retained[0][0] <= known:
            k, extent = self._retained[0]
            crowded = (
                self.store.payload_bytes - self._total_pending_bytes > RETAINED_BYTES_MAX
                or len(self._retained) > RETAINED_RANGES_MAX
            )
            if not crowded and (k > needed or silent):
                return
            self._retained.popleft()
            self.store.drop(extent)

    # -- the end -------------------------------------------------------------------------------------------------

    def _report_if_blocked(self, now: int) -> None:
        """Say so when nothing becomes final though it should."""
        if not (self._pending_bytes or self._undelivered):
            self._last_progress_at, self._blocked_reported = now, False
        if self._blocked_reported or now <= self._last_progress_at + 4 * self._retry_ns:
            return
        longest = max(map(self.consensus.detector.timeout_ns, self.consensus.peers), default=0)
        if now > self._last_progress_at + 2 * longest + self.bound_ns() + 2 * self._retry_ns:
            self._blocked_reported = True
            heard = self.consensus.detector.trusted(self.consensus.members)
            text = f"nothing becomes final; of {len(self.consensus.members)} members {len(heard)} are heard: {heard}"
            self.events.append(Violation(ViolationKind.BLOCKED, text, self._policy.member))

    def _depart_if_done(self, now: int) -> None:
        """Stay until all that is held here is final and everybody who is there knows, but not for ever."""
        if self._order_left is None:
            return
        settled = not (self._pending_bytes or self._undelivered)
        peers = self.consensus.detector.trusted(self.consensus.peers)
        known = all(
            self.reports.by_member[m].delivered_instance >= self.log.k for m in peers if m in self.reports.by_member
        )
        if not (settled and known) and now < self._leaving_since + self._leave_timeout_ns():
            return
        if not settled:
            count = len(self._pending_bytes) + len(self._undelivered)
            text = f"this member goes before all is final: of {count} slots of senders something is left"
            self.events.append(Violation(ViolationKind.UNSETTLED, text, self._policy.member))
        self._report(now)
        self.has_left = True
        self.events.append(self._order_left)

    def _leave_timeout_ns(self) -> int:
        return LEAVE_TIMEOUT_NS + 3 * self.bound_ns()

    def _exclude_self(self, reason: str) -> None:
        """This member has been away for too long: as if it had crashed."""
        away = duration_text(self._retry_ns)
        text = f"this member was silent for so long, far beyond {away}, that {reason}; it goes"
        self.events.append(Violation(ViolationKind.EXCLUDED, text, self._policy.member))
        self.events.append(LeaveComplete(self.inner.done_slot()))
        self.has_left = True

    def _send(self, now: int, message: wire.FinalsMessage, to: int, number: int = 0, total: int = 0) -> None:
        kind, body = wire.encode(message)
        me, epoch = self._policy.member, self._policy.epoch
        self.down.append(Frame(kind, me, self._incarnation, epoch, 0, number, 0, total, sent_ns=now, body=body, to=to))

    # -- questions ----

    def latest_slot(self, now: int) -> int:
        """The order's."""
        return self.inner.latest_slot(now)

    def bound_ns(self) -> int:
        """The order's, of early deliveries; none is promised of final ones."""
        return self.inner.bound_ns()

    def gap_free(self) -> bool:
        """Whether early deliveries are promised to be free of gaps; final ones are."""
        return self.inner.gap_free()

    def keeps_sending_to_departed(self) -> bool:
        """Whoever is silent may come back, and lacks what is final then."""
        return True

    def waiting_for(self) -> tuple[int, ...]:
        """Whom the order waits for."""
        return self.inner.waiting_for()

    def running(self) -> bool:
        """Whether early deliveries have begun; final ones begin when a majority is there."""
        return self.inner.running() and not self.has_left

    def peer_rate(self, peer: int) -> Rate | None:
        """What a peer declared."""
        return self.inner.peer_rate(peer)

    def by_multicast(self) -> bool:
        """Whether data goes by IP multicast; what is said about it goes to each member."""
        return self.inner.by_multicast()

    def why_not_formed(self) -> str:
        """The order's, and who does not count."""
        lost = sorted(self.consensus.storage_identity.lost_storage)
        return "; ".join(
            filter(None, (self.inner.why_not_formed(), f"members {lost} lost their storage" if lost else ""))
        )
