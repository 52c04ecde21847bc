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

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from unisono.agreement.membership.from_policy import every_ns, retry_ns
from unisono.agreement.paxos.consensus import Consensus
from unisono.agreement.paxos.decisions import Decided, Restored
from unisono.model.durations import NS_PER_MS, duration_text, earliest
from unisono.model.events import Batch, Left, Violation, ViolationKind
from unisono.model.grades import Grade
from unisono.model.message_range import Cell, Extent
from unisono.model.policy import Policy
from unisono.model.stored_records import Memory, Write
from unisono.orders.base.over_order import OverOrder, SlotOrder
from unisono.orders.final import messages as wire
from unisono.orders.final.bounds import report_every_ns
from unisono.orders.final.log import Agreed, FinalLog
from unisono.orders.final.messages import EXTENT_BYTES, GONE, HOLDINGS_BYTES, Give, Holdings, Value, Want, encode_value
from unisono.orders.final.recovery import Recovery
from unisono.orders.final.reports import Chooser, Report, Reports, by_cell
from unisono.orders.final.store import Store
from unisono.wire.frame import HEADER_BYTES, Frame

WINDOW = 16
"""Instances under way at once."""
COMPACT_EVERY = 1024
"""So many instances are read between two cuts of the log."""
RETAIN = 4096
"""So many decided instances are kept behind a cut, for members that lag."""
PARTS_MOST = 8
"""A report has no more frames than this, unless one slot needs more; what comes later waits."""
WAITING_BYTES = 16 << 20
"""So much payload that is not final may wait before nothing more is taken."""
KEPT_BYTES, KEPT_EXTENTS = 64 << 20, 1 << 17
"""So much is kept for members that are silent; who is away for longer is left behind."""
LEAVE_PATIENCE_NS = 500 * NS_PER_MS


class Final(OverOrder):
    """The automaton of one member: the order below, and the agreement behind it."""

    def __init__(self, order: SlotOrder, policy: Policy, memory: Memory | None = None) -> None:
        super().__init__(order)
        self.consensus = Consensus(
            policy.member,
            policy.view.members,
            every_ns=every_ns(policy.timing),
            retry_ns=retry_ns(policy.timing),
            max_frame=policy.max_frame,
            incarnation=policy.incarnation,
            epoch=policy.epoch,
            window=WINDOW,
            retain=RETAIN,
            memory=memory,
            lazy=True,
        )
        self.writes: list[Write] = self.consensus.writes
        self.log = FinalLog()
        self.store = Store()
        self.reports = Reports()
        self._policy = policy
        self._both = policy.grades == "both"
        self._life = policy.incarnation
        self._open: dict[Cell, int] = {}
        """Where messages are held that are not final, and how much payload."""
        self._waiting_bytes = 0
        self._agreed: deque[Agreed] = deque()
        """What has its place and is not delivered yet."""
        self._kept: deque[tuple[int, Extent]] = deque()
        """By instance, what is final and kept for those that may lack it."""
        self._index = self._compacted = 0
        self._recovery = Recovery(policy, self.store, self.log, self._say)
        self._chooser: Chooser | None = None
        self._reigns = -1
        self._trusted: list[int] = []
        self._changed = True
        """Whether there may be something to propose."""
        self._lacking = self._crowded = False
        """Whether there may be something to ask for, or to keep no longer."""
        self._input = False
        self._unsaid = True
        """Whether the last report is not how things stand any more."""
        self._report_every_ns = report_every_ns(policy.timing)
        self._retry_ns = retry_ns(policy.timing) + self._report_every_ns
        self._reported_at: int | None = None
        self._said_upto = self._seen_done = 0
        self._left: Left | None = None
        self._leaving_since = 0
        self._moved_at = 0
        """When something last became final, or nothing was left to."""
        self._blocked_told = False

    # -- inputs ----------------------------------------------------------------------------------------------

    def complaint(self) -> str:
        """The order's, and who does not count."""
        lost = sorted(self.consensus.remembering.amnesiacs)
        return "; ".join(filter(None, (super().complaint(), f"members {lost} lost their storage" if lost else "")))

    def submit(self, now: int, messages: Sequence[bytes]) -> int:
        """What the order takes, unless too much waits to become final."""
        self.now, self._input = now, True
        return 0 if self._waiting_bytes > WAITING_BYTES else self.order.submit(now, messages)

    def from_below(self, now: int, frame: Frame) -> None:
        """net-receive."""
        if self.gone:
            return
        self.now, self._input = now, True
        if frame.kind in self.consensus.kinds or frame.kind in self.consensus.detector.kinds:
            self.consensus.from_below(now, frame)
            return
        if frame.kind not in wire.DECODERS:
            self.order.from_below(now, frame)
            return
        if frame.epoch != self._policy.epoch or frame.sender in self.consensus.remembering.amnesiacs:
            self.ignored["not of this agreement"] += 1
            return
        match wire.DECODERS[frame.kind](bytes(frame.body)):
            case Holdings() as holdings:
                self._on_holdings(frame, holdings)
            case Want() as want:
                self._recovery.give(now, frame.sender, want, self._forgotten)
            case Give() as give:
                self._on_give(frame.sender, give)

    def _on_holdings(self, frame: Frame, holdings: Holdings) -> None:
        if not self.reports.hear(frame, holdings):
            return
        self._changed = self._crowded = True
        self._lacking = self._lacking or bool(holdings.extents)
        if holdings.extents and holdings.upto > self._said_upto:
            self._unsaid = True  # the leader waits for us, though we may have nothing of it

    def _on_give(self, sender: int, give: Give) -> None:
        for cell, first, run in self._recovery.take(sender, give):
            if self.store.put(cell, first, run):
                self._changed = self._lacking = True
                if self.log.left(Extent(*cell, first, run.count)):
                    self._hold(cell, run.payload_bytes)

    def wake(self, now: int) -> None:
        """Time has passed."""
        if self.gone:
            return
        self.now, self._input = now, True
        self.order.wake(now)
        self.consensus.wake(now)

    def wake_at(self) -> int | None:
        """The order's alarm, the agreement's, and when a report, a request or a departure is due."""
        if self.gone:
            return None
        times = [self.order.wake_at(), self.consensus.wake_at(), self._recovery.due(), self._report_due()]
        if self._chooser is not None:
            times.append(self._chooser.retry_at)
        if self._left is not None:
            times.append(self._leaving_since + self._leave_patience_ns())
        return earliest(times)

    # -- early -----------------------------------------------------------------------------------------------

    @property
    def stirred(self) -> bool:
        """Whether anything has happened since the last `flush`."""
        return not self.gone and bool(self._input or self.order.events)

    def flush(self) -> None:
        """Say what there is to say to all that has happened since the last time."""
        if not self.stirred:
            return
        self._input, now = False, self.now
        self._take_early()
        self.window_slots = self.order.window_slots
        moved = True
        while moved:
            self._propose(now)
            self.consensus.flush(now)
            decisions, self.consensus.decisions[:] = self.consensus.decisions[:], []
            moved = bool(decisions)
            self._read(decisions)
        self._deliver()
        self._recover(now)
        self._forget()
        due = self._report_due()
        if due is not None and now >= due:
            self._report(now)
        self._watch(now)
        self._depart_if_done(now)
        if self.consensus.down:
            self.down += self.consensus.down
            self.consensus.down.clear()

    def _take_early(self) -> None:
        """What the order has delivered is kept, and goes on to the application if it is to have it."""
        for event in self.order.events:
            if isinstance(event, Batch):
                cell, number = (event.slot, event.sender, event.incarnation), event.first_sequence
                for run in event.runs:
                    if self.store.put(cell, number, run) and self.log.left(Extent(*cell, number, run.count)):
                        self._hold(cell, run.payload_bytes)
                    number += run.count
                if self._both:
                    self.events.append(replace(event, grade=Grade.EARLY))
            elif isinstance(event, Left):
                self._left, self._leaving_since = event, self.now
                self._unsaid = True
            else:
                self.events.append(event)
        self.order.events.clear()
        done = self._done()
        if done > self._seen_done:
            self._seen_done, self._lacking = done, True
            self._unsaid = self._unsaid or bool(self._open)

    def _hold(self, cell: Cell, payload: int) -> None:
        self._open[cell] = self._open.get(cell, 0) + payload
        self._waiting_bytes += payload
        self._unsaid = self._changed = True

    def _done(self) -> int:
        """The last slot of which nothing more will be delivered early here."""
        return GONE if self._left is not None else self.order.done_slot()

    # -- reports -----------------------------------------------------------------------------------------------

    def _report_due(self) -> int | None:
        if self._reported_at is None:
            return self.now
        if self._unsaid:
            return self._reported_at + self._report_every_ns
        unsettled = self._open or self._agreed or not self.entered()
        return self._reported_at + self._retry_ns if unsettled else None

    def _report(self, now: int) -> None:
        """Tell everybody what this member holds that is not final, of slots that are over for it, oldest first."""
        room = (self._policy.max_frame - HEADER_BYTES - HOLDINGS_BYTES) // EXTENT_BYTES
        upto, extents = self._done(), list[Extent]()
        for cell in sorted(self._open):
            if cell[0] > upto:
                break
            if len(extents) >= room * PARTS_MOST and cell[0] > extents[-1].slot:
                upto = extents[-1].slot
                break
            for first, last in self.store.ranges(cell):
                extents += self.log.left(Extent(*cell, first, last - first + 1))
        known, me = self._known(), self._policy.member
        parts = [tuple(extents[at : at + room]) for at in range(0, len(extents), room)] or [()]
        for number, part in enumerate(parts):
            self._say(now, Holdings(upto, known, part), 0, number, len(parts))
        self.reports.of[me] = Report(self._life, upto, known, by_cell(extents))
        self._reported_at, self._said_upto, self._unsaid, self._changed = now, upto, False, True

    def _known(self) -> int:
        """The last instance all of which is delivered here."""
        return self._agreed[0].k - 1 if self._agreed else self.log.k

    def entered(self) -> bool:
        """Whether this member takes part in the final order, in this life."""
        return self.log.entered.get(self._policy.member) == self._life

    # -- agreeing ----------------------------------------------------------------------------------------------

    def _propose(self, now: int) -> None:
        """As a leader: what can be final next, as many slots as there are, in as few instances as will do."""
        consensus = self.consensus
        if consensus.reigns != self._reigns or not consensus.leading:
            self._reigns, self._chooser = consensus.reigns, None
            self._changed = True
        if not consensus.leading:
            return
        if self._chooser is None:
            patience = max(map(consensus.detector.timeout_ns, consensus.peers), default=0) + self._retry_ns
            self._chooser = Chooser(self.reports, self.log, consensus.majority, patience)
        chooser = self._chooser
        trusted = [m for m in consensus.detector.trusted(consensus.members) if m not in consensus.remembering.amnesiacs]
        overdue = chooser.retry_at is not None and now >= chooser.retry_at
        if not (self._changed or overdue or trusted != self._trusted):
            return
        self._trusted, self._changed = trusted, False
        if consensus.next_free > consensus.decided + consensus.window:
            return
        chooser.settle()
        entering = chooser.entering(trusted, GONE)
        room = (consensus.max_value - wire.COUNT_BYTES - wire.LIFE_BYTES * len(consensus.members)) // EXTENT_BYTES
        free = consensus.decided + consensus.window - consensus.next_free + 1
        extents = chooser.extents(now, trusted, room * free)
        while entering or extents:
            value = Value(entering, tuple(extents[:room]))
            consensus.propose(now, consensus.next_free, encode_value(value))
            consensus.flush(now)
            entering, extents = {}, extents[room:]

    def _read(self, decisions: Sequence[Decided]) -> None:
        for decision in decisions:
            if isinstance(decision, Restored):
                if self.entered():
                    self._left_behind("the log that was agreed on meanwhile is not kept any more")
                    return
                self.log.restore(decision)
                self._compacted = decision.k
            else:
                self._place(decision.k, decision.value)
        if decisions:
            self._unsaid = self._changed = self._lacking = True
            self._moved_at, self._blocked_told = self.now, False
            if self.log.k - self._compacted >= COMPACT_EVERY:
                self._compacted = self.log.k
                self.consensus.compact(self.log.k, self.log.state())

    def _place(self, k: int, value: bytes) -> None:
        agreed = self.log.take(k, value)
        if agreed is None:
            self.ignored["no value of the final order"] += 1
            return
        for one in agreed:
            self._kept.append((k, one.extent))
            if self.entered():
                self._agreed.append(one)
        for cell in dict.fromkeys(one.extent.cell for one in agreed if one.extent.cell in self._open):
            left = [self.log.left(Extent(*cell, a, b - a + 1)) for a, b in self.store.ranges(cell)]
            if not any(left):
                self._waiting_bytes -= self._open.pop(cell)

    # -- final -------------------------------------------------------------------------------------------------

    def _deliver(self) -> None:
        """What has its place, for as long as the next is here."""
        while self._agreed:
            one = self._agreed[0]
            extent = one.extent
            runs = self.store.runs(extent)
            if runs is None:
                return
            self._agreed.popleft()
            self._unsaid = self._crowded = True
            self.events.append(
                Batch(
                    extent.sender,
                    extent.incarnation,
                    one.slot,
                    extent.first,
                    one.place,
                    self._index,
                    extent.length,
                    runs,
                    grade=Grade.FINAL,
                )
            )
            self._index += extent.length

    def _recover(self, now: int) -> None:
        """Ask for what others hold, or all have agreed on, and we lack."""
        if not self._lacking and not self._recovery.overdue(now):
            return
        self._lacking = False
        trusted = self.consensus.detector.trusted(self.consensus.peers)
        self._recovery.ask(now, self._agreed, self.reports, trusted, self._done())
        if self._agreed and self._recovery.hopeless(self._agreed[0].extent, self.consensus.majority):
            self._left_behind("what was agreed on meanwhile is not kept any more")

    def _forgotten(self, extent: Extent) -> bool:
        """Whether this was delivered finally here; what is still to come, or was before this member, it never had."""
        coming = any(one.extent.cell == extent.cell for one in self._agreed)
        return self.entered() and not coming and not self.log.left(extent)

    def _forget(self) -> None:
        """Keep nothing that everybody has; for who is silent, only so much."""
        if not self._crowded:
            return
        self._crowded = False
        known = self._known()
        heard = self.consensus.detector.trusted(self.consensus.peers)
        needed = known
        for member, life in self.log.entered.items():
            if member in heard:
                report = self.reports.of.get(member)
                needed = min(needed, report.known if report is not None and report.life == life else 0)
        silent = [member for member in self.log.entered if member not in heard and member != self._policy.member]
        while self._kept and self._kept[0][0] <= known:
            k, extent = self._kept[0]
            crowded = self.store.bytes - self._waiting_bytes > KEPT_BYTES or len(self._kept) > KEPT_EXTENTS
            if not crowded and (k > needed or silent):
                return
            self._kept.popleft()
            self.store.drop(extent)

    # -- the end -------------------------------------------------------------------------------------------------

    def _watch(self, now: int) -> None:
        """Say so when nothing becomes final though it should."""
        if not (self._open or self._agreed):
            self._moved_at, self._blocked_told = now, False
        if self._blocked_told or now <= self._moved_at + 4 * self._retry_ns:
            return
        longest = max(map(self.consensus.detector.timeout_ns, self.consensus.peers), default=0)
        if now > self._moved_at + 2 * longest + self.bound_ns() + 2 * self._retry_ns:
            self._blocked_told = True
            heard = self.consensus.detector.trusted(self.consensus.members)
            text = f"nothing becomes final; of {len(self.consensus.members)} members {len(heard)} are heard: {heard}"
            self.events.append(Violation(ViolationKind.BLOCKED, text, self._policy.member))

    def _depart_if_done(self, now: int) -> None:
        """Stay until all that is held here is final and everybody who is there knows, but not for ever."""
        if self._left is None:
            return
        settled = not (self._open or self._agreed)
        peers = self.consensus.detector.trusted(self.consensus.peers)
        known = all(self.reports.of[m].known >= self.log.k for m in peers if m in self.reports.of)
        if not (settled and known) and now < self._leaving_since + self._leave_patience_ns():
            return
        if not settled:
            count = len(self._open) + len(self._agreed)
            text = f"this member goes before all is final: of {count} slots of senders something is left"
            self.events.append(Violation(ViolationKind.UNSETTLED, text, self._policy.member))
        self._report(now)
        self.gone = True
        self.events.append(self._left)

    def _leave_patience_ns(self) -> int:
        return LEAVE_PATIENCE_NS + 3 * self.bound_ns()

    def _left_behind(self, why: str) -> None:
        """This member has been away for too long: as if it had crashed."""
        away = duration_text(self._retry_ns)
        text = f"this member was silent for so long, far beyond {away}, that {why}; it goes"
        self.events.append(Violation(ViolationKind.EXCLUDED, text, self._policy.member))
        self.events.append(Left(self.order.done_slot()))
        self.gone = True

    def _say(self, now: int, message: wire.Message, to: int, number: int = 0, total: int = 0) -> None:
        kind, body = wire.encode(message)
        me, epoch = self._policy.member, self._policy.epoch
        self.down.append(Frame(kind, me, self._life, epoch, 0, number, 0, total, sent_ns=now, body=body, to=to))
