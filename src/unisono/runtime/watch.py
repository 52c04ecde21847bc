"""Watches one member for its operator: writes log lines and counts what `Status` reports.

The driver reports events with `on_event`, calls `check` about once per second, and reports its end with `on_closed`.
The watch reads the stack and changes nothing. It calls its `on_majority_lost` listeners when the order finds that it
has no majority.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from unisono.model.capabilities import capabilities_of
from unisono.model.events import (
    Batch,
    Gap,
    Grade,
    LateDeliveries,
    QueueStep,
    Rejoining,
    StackEvent,
    TimingChange,
    ViewChange,
    Violation,
    ViolationKind,
)
from unisono.model.status import SeenViolations, Standing
from unisono.model.units import NS_PER_S, duration_text
from unisono.runtime.log_lines import GroupLog, line_of, members_text
from unisono.runtime.timers import LocalClock
from unisono.stack import Stack
from unisono.wire.door import Refusal

CHECK_INTERVAL_NS: Final = NS_PER_S
"""How often the driver calls `check`."""
LATE_REPEAT_NS: Final = NS_PER_S
"""Late deliveries give at most one event per sender in this time."""
REFUSED_REPEAT_NS: Final = 10 * NS_PER_S
"""Refused datagrams give at most one line per reason in this time."""
REPAIRS_PER_S: Final = 100
"""More repaired frames than this in a second are a repair storm."""
_REPAIR_COUNTERS: Final = ("recovered", "repaired", "retransmitted", "taken_over")
"""The names of the counters of layers that count repaired frames, such as "fec.recovered"."""
_BLOCKED: Final = frozenset({ViolationKind.BLOCKED, ViolationKind.NO_MAJORITY})
_EARLY, _FINAL = Grade.EARLY, Grade.FINAL  # read once: reading a member of an enumeration is slow


@dataclass(slots=True)
class _LateMessages:
    """The late deliveries of one sender that were not reported yet, and when the last report was."""

    slot: int = 0
    count: int = 0
    late_by_ns: int = 0
    reported_ns: int | None = None


class Watch:
    """Watches one member. All counts are from the time when the member joined."""

    def __init__(self, stack: Stack, clock: LocalClock, log: GroupLog, deadline_ns: int | None) -> None:
        self.log = log
        self.violations: dict[ViolationKind, SeenViolations] = {}
        self.late = 0
        """The deliveries that were certainly later than the deadline, or than the bound if there is no deadline."""
        self.on_majority_lost: list[Callable[[str], None]] = []
        """Functions to call, with the reason, when the order finds that it has no majority."""
        self._stack, self._clock = stack, clock
        self._deadline_ns = deadline_ns
        self._member = stack.policy.member
        self.own_delivered = 0
        """The messages of this incarnation that were delivered here, in the final grade."""
        self._sent_elsewhere = 0
        """The messages of this incarnation that go to other groups only."""
        capabilities = capabilities_of(stack.policy.order)
        # In the other orders the slot of a delivery does not say when its message was sent.
        self._knows_lateness = capabilities.total_order and not capabilities.pulled and not capabilities.routed
        self._late_after_ns = self._late_limit_ns()
        self._late_logged = self._latest_ns = 0
        self.late_to_report: dict[int, _LateMessages] = {}
        """By sender, late deliveries for `late_reports`."""
        self._formed = False
        self._view_members = stack.policy.view.members
        self._blocked_since_ns: int | None = None
        self._refused_logged: dict[Refusal, tuple[int, int]] = {}
        """By reason, how many refused datagrams the last line counted, and when it was written."""
        self._repairs = 0

    # -- events ------------------------------------------------------------------------------------------------

    def on_event(self, event: StackEvent) -> None:
        """Count an event, and write its line."""
        match event:
            case Batch():
                self._on_batch(event)
                return
            case QueueStep():
                if event.queued and event.sender == self._member:
                    self.own_delivered += 1
                return
            case TimingChange():
                self._late_after_ns = self._late_limit_ns()
            case Rejoining():
                self.own_delivered = self._sent_elsewhere = 0
            case Violation():
                self.on_violation(event)
                return
            case _:
                pass
        line = line_of(event)
        if line is None:
            return
        level, text = line
        if isinstance(event, ViewChange):
            self._view_members = event.view.members
            text = text if self._formed else self._formed_text(text)
            self._formed = True
        self.log.write(self._clock.now(), level, text, ("gap", event.sender) if isinstance(event, Gap) else None)

    def _formed_text(self, view_text: str) -> str:
        leader = self._stack.standing(self._clock.now()).leader
        return f"the group has formed: {view_text}" + ("" if leader is None else f"; member {leader} leads")

    def on_violation(self, violation: Violation) -> None:
        """Count a violation of the stack or of the driver, and write its line."""
        self._count_violation(violation)
        now, line = self._clock.now(), line_of(violation)
        if violation.kind in _BLOCKED and self._stack.standing(now).majority is False:
            self._begin_block(now, violation.text)
        elif line is not None:
            self.log.write(now, *line, (violation.kind, violation.member))

    def _count_violation(self, violation: Violation) -> None:
        seen = self.violations.get(violation.kind)
        self.violations[violation.kind] = SeenViolations(1 if seen is None else seen.count + 1, violation.text)

    def on_sent_elsewhere(self, count: int) -> None:
        """Count accepted messages that go to other groups only, so that this member does not deliver them."""
        self._sent_elsewhere += count

    def _on_batch(self, batch: Batch) -> None:
        is_own = batch.sender == self._member and batch.incarnation == self._stack.policy.incarnation
        if is_own and batch.grade is not _EARLY:
            self.own_delivered += batch.count
        if self._knows_lateness and batch.grade is not _FINAL:
            passed_ns = self._clock.now() - self._stack.grid.end_of(batch.slot)
            if passed_ns > self._late_after_ns:
                self.late += batch.count
                self._latest_ns = max(self._latest_ns, passed_ns)
                if self._deadline_ns is not None:
                    self._add_late(batch, passed_ns - self._late_after_ns)

    def _add_late(self, batch: Batch, late_by_ns: int) -> None:
        late = self.late_to_report.setdefault(batch.sender, _LateMessages())
        if not late.count:
            late.slot, late.late_by_ns = batch.slot, 0
        late.count += batch.count
        late.late_by_ns = max(late.late_by_ns, late_by_ns)

    def late_reports(self) -> list[LateDeliveries]:
        """The reports about late deliveries that are due: at most one per sender and second."""
        now, reports = self._clock.now(), []
        for sender, late in self.late_to_report.items():
            is_due = late.reported_ns is None or now - late.reported_ns >= LATE_REPEAT_NS
            if late.count and is_due:
                reports.append(LateDeliveries.of(sender, late.slot, late.count, late.late_by_ns))
                self._count_violation(reports[-1])
                late.count, late.reported_ns = 0, now
        return reports

    def _late_limit_ns(self) -> int:
        """A message is late if its slot has ended for longer than this: the sender's clock may be off by Γ."""
        limit = self._stack.bound_ns() if self._deadline_ns is None else self._deadline_ns
        return limit + self._stack.policy.timing.gamma_ns

    # -- checks ------------------------------------------------------------------------------------------------

    def check(self, now: int) -> None:
        """Write lines about conditions that are not events."""
        if not self._stack.running():
            missing = self._stack.waiting_for()
            if missing and not self._formed:
                self.log.write(now, logging.INFO, f"waits for member {members_text(missing)}", "forming")
            return
        self._check_majority(now)
        self._check_refused(now)
        self._check_repairs(now)
        if self.late > self._late_logged:
            level = logging.INFO if self._deadline_ns is None else logging.WARNING
            word = "bound" if self._deadline_ns is None else "deadline"
            text = f"{self.late - self._late_logged} deliveries were later than the {word}, the latest by at least "
            late_by_ns = self._latest_ns - self._late_after_ns
            self.log.write(now, level, text + duration_text(late_by_ns))
            self._late_logged, self._latest_ns = self.late, 0

    def standing(self, now: int) -> Standing:
        """The order's standing. A majority that a caller sees here ends the block, so its next loss is reported."""
        standing = self._stack.standing(now)
        if standing.majority and self._blocked_since_ns is not None:
            lasted = duration_text(now - self._blocked_since_ns)
            self._blocked_since_ns = None
            leads = "" if standing.leader is None else f"; member {standing.leader} leads"
            self.log.write(now, logging.WARNING, f"this member has a majority again, after {lasted}{leads}")
        return standing

    def _check_majority(self, now: int) -> None:
        standing, members = self.standing(now), self._stack.policy.view.members
        if standing.majority is False:
            up = members_text(member for member in self._view_members if member not in standing.suspected)
            text = f"this member has no majority: of the members {members_text(members)} it reaches {up}"
            self._begin_block(now, f"{text}; nothing can be agreed on until it reaches more members")

    def _begin_block(self, now: int, text: str) -> None:
        if self._blocked_since_ns is None:
            self._blocked_since_ns = now
            self.log.write(now, logging.WARNING, f"blocked: {text}")
            for listener in list(self.on_majority_lost):
                listener(text)

    def _check_refused(self, now: int) -> None:
        for reason, count in self._stack.refused.items():
            logged, at = self._refused_logged.get(reason, (0, now - REFUSED_REPEAT_NS))
            if reason is not Refusal.OWN_DATAGRAM and count > logged and now - at >= REFUSED_REPEAT_NS:
                self._refused_logged[reason] = count, now
                text = f"refused {count - logged} datagrams: {reason}; check the addresses and settings of the senders"
                self.log.write(now, logging.WARNING, text)

    def _check_repairs(self, now: int) -> None:
        counters = self._stack.counters()
        repairs = sum(n for name, n in counters.items() if name.rpartition(".")[2] in _REPAIR_COUNTERS)
        if repairs - self._repairs > REPAIRS_PER_S:
            text = f"repair storm: {repairs - self._repairs} lost frames were repaired in the last second"
            self.log.write(now, logging.WARNING, f"{text}; the network loses many datagrams", "repairs")
        self._repairs = repairs

    # -- the application ---------------------------------------------------------------------------------------

    def on_paused(self, waiting: int) -> None:
        """Report that the driver stops reading, because the application does not keep up."""
        text = f"{waiting} messages wait for the application; this member stops receiving until it takes them"
        self.log.write(self._clock.now(), logging.WARNING, text, "paused")

    def on_resumed(self) -> None:
        """Report that the driver reads again."""
        self.log.write(self._clock.now(), logging.INFO, "this member receives again", "resumed")

    # -- the end -----------------------------------------------------------------------------------------------

    def undelivered(self, sent: int) -> int:
        """How many of the `sent` messages of this incarnation this member has accepted and not delivered to itself."""
        return max(0, sent - self._sent_elsewhere - self.own_delivered)

    def on_closed(self, sent: int, waiting: int, failure: BaseException | None) -> None:
        """Report the messages that are lost, or may be, because this member stops."""
        now = self._clock.now()
        if failure is not None:
            self.log.write(now, logging.ERROR, f"this member stops because of an error: {failure!r}")
        undelivered = self.undelivered(sent)
        if undelivered:
            text = f"this member stops with {undelivered} undelivered messages of the {sent} that it accepted"
            delivered = self.own_delivered
            last = f"; it delivered the first {delivered}" if delivered and not self._sent_elsewhere else ""
            self.log.write(now, logging.WARNING, f"{text}{last}; the other members may deliver them")
        if waiting:
            text = f"this member stops while {waiting} messages wait to be sent; they are not sent"
            self.log.write(now, logging.WARNING, text)
