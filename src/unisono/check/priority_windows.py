"""Priority accounting and latency of a window: the messages delivered in some neighbouring ranges.

Windows are used only if all members consume one sequence. Then a slot says how far a member had consumed when it
received a message h, and R(h) is the latest of these slots over the members. For each message h, a window needs the
last earlier slot with a less urgent message: if that is R(h) or later, h should have overtaken that message, and
priority accounting (P2 of paper 004) is broken. From outside the window it needs the receptions of its messages, which
lie in few other ranges, and the last slot with a delivery of each priority.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from unisono.check.columns import MemberRunId, message_at, message_codes
from unisono.check.latency import latencies
from unisono.check.priority_summary import in_logs
from unisono.check.shard_summary import LatencySummary
from unisono.check.verdict import MessageId
from unisono.trace.schema import RunMeta
from unisono.trace.table import Ints, Mask, Rows, Trace, concatenated

BEFORE_ALL_SLOTS = -1 << 62
AFTER_ALL_SLOTS = 1 << 62
MAX_UNDECIDED = 100_000
"""A window reports at most this many overtaking constraints that it cannot decide."""
Matrix = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LogFacts:
    """Facts about the log of one member run, over the whole run."""

    run_id: MemberRunId
    first_slot: int
    """The slot of the member's START row; earlier messages do not concern this member."""
    begin_slot: int
    """The slot of the log's first delivery. `end_slot` is the slot after its last; both are equal if there are none."""
    end_slot: int
    is_accountable: bool
    """Whether the log's deliveries are checked: the member neither crashed nor was excluded."""
    regular_deliveries: int
    """How many deliveries of the log, from the first on, follow the common sequence; later ones diverge from it."""
    excluded_since_ns: Mapping[MemberRunId, int]
    """For each crashed member whose log lacks its end, the time since which this member is in views without it."""

    def slot_after_consuming(self, consumed: int) -> int:
        """The slot after the first `consumed` deliveries of the log. Only deliveries in the common sequence count."""
        return (
            self.begin_slot + min(consumed, self.regular_deliveries)
            if consumed and self.regular_deliveries
            else BEFORE_ALL_SLOTS
        )

    @property
    def slot_after_all(self) -> int:
        """The slot after all deliveries of the log that follow the common sequence."""
        return self.slot_after_consuming(self.end_slot - self.begin_slot)


@dataclass(frozen=True, slots=True)
class OvertakingConstraint:
    """A member received `urgent`, so it must deliver no less urgent message from `since_slot` up to `end_slot`."""

    run_id: MemberRunId
    urgent: MessageId
    priority: int
    since_slot: int
    end_slot: int


@dataclass(frozen=True, slots=True)
class BrokenConstraints:
    """How many messages a member delivered only after a less urgent one; `first` is for the smallest message id."""

    count: int
    first: OvertakingConstraint


@dataclass(frozen=True, slots=True)
class WindowEdge:
    """The message at an edge of a window: its slot, its first reception, and the member runs that continue after it."""

    slot: int
    first_received_ns: int
    continuing_runs: tuple[MemberRunId, ...]


@dataclass(frozen=True, slots=True)
class WindowFinding:
    """The result of checking one window, that is, neighbouring ranges of slots."""

    latencies: LatencySummary
    broken: dict[MemberRunId, BrokenConstraints] = field(default_factory=dict)
    undecided: tuple[OvertakingConstraint, ...] = ()
    """Overtaking constraints that this window cannot decide, because they depend on other windows."""
    overtakings: int = 0
    first_edge: WindowEdge | None = None
    last_edge: WindowEdge | None = None
    unknown_reason: str = ""
    """Why this window cannot decide priority accounting; empty if it can."""


def check_window(
    logs: Sequence[LogFacts] | None,
    last_slots_by_priority: Mapping[int, int],
    rows: tuple[Rows, Rows, Rows],
    meta: RunMeta,
    bound_ns: int | None,
) -> WindowFinding:
    """Check the `rows` of a window: its deliveries, and the receptions and sends of the delivered messages.

    `last_slots_by_priority` has the last slot before the window with a delivery of each priority. Without `logs`, only
    measures latencies.
    """
    deliveries, receptions, sends = rows
    trace = Trace.from_rows(concatenated([deliveries, sends]), meta, ())
    ordered = trace.deliveries()
    matched, taken_ns = latencies(trace, ordered)
    measured = LatencySummary()
    measured.add(taken_ns, bound_ns, ordered.select(matched))
    if logs is None or len(deliveries) == 0:
        return WindowFinding(measured)
    diverging: Mask = np.zeros(len(deliveries), dtype=bool)
    for log in logs:
        diverging |= in_logs(deliveries, [log.run_id]) & (deliveries.index >= log.regular_deliveries)
    deliveries = deliveries.select(~diverging)
    if len(deliveries) == 0:
        return WindowFinding(measured)
    window = _WindowMessages(logs, deliveries, receptions)
    if window.unknown_reason:
        return WindowFinding(measured, unknown_reason=window.unknown_reason)
    last_lower = window.last_lower(last_slots_by_priority)
    results = {
        log.run_id: _check_log(window, number, last_lower) for number, log in enumerate(logs) if log.is_accountable
    }
    undecided = [constraint for result in results.values() for constraint in result.undecided]
    continuing = tuple(run_id for run_id, result in results.items() if result.continues)
    return WindowFinding(
        measured,
        {run_id: result.broken for run_id, result in results.items() if result.broken},
        tuple(undecided[:MAX_UNDECIDED]),
        sum(result.overtakings for result in results.values()),
        WindowEdge(int(window.slots[0]), int(window.first_received_ns[0]), ()),
        WindowEdge(int(window.slots[-1]), int(window.first_received_ns[-1]), continuing),
        f"more than {MAX_UNDECIDED:,} received messages were not delivered" if len(undecided) > MAX_UNDECIDED else "",
    )


@dataclass(frozen=True, slots=True)
class _LogResult:
    """The result of checking one member in a window."""

    broken: BrokenConstraints | None
    undecided: list[OvertakingConstraint]
    overtakings: int
    continues: bool
    """Whether the member delivered the window's last message and a later one."""


def _check_log(window: _WindowMessages, log_number: int, last_lower: Ints) -> _LogResult:
    """Check the deliveries of one member. `last_lower` is the result of `_WindowMessages.last_lower`."""
    log = window.logs[log_number]
    decidable, delivered = window.decidable(log_number), window.delivered_by(log)
    since = np.maximum(window.consumed_up_to(log, delivered), log.begin_slot)
    broken = np.flatnonzero(decidable & delivered & (last_lower >= since))
    # A member that ended before the message is undecided only if a less urgent message comes before the message.
    undelivered = np.flatnonzero(decidable & ~delivered & ((window.slots < log.end_slot) | (last_lower >= since)))
    return _LogResult(
        BrokenConstraints(len(broken), window.constraint(log, window.smallest_message(broken), since))
        if len(broken)
        else None,
        [window.constraint(log, at, since) for at in undelivered.tolist()] if log.begin_slot < log.end_slot else [],
        window.count_overtakings(decidable & delivered, log),
        bool(decidable[-1] and delivered[-1] and window.slots[-1] + 1 < log.end_slot),
    )


class _WindowMessages:
    """The messages of a window by slot, with how far each member had consumed when it received them."""

    def __init__(self, logs: Sequence[LogFacts], deliveries: Rows, receptions: Rows) -> None:
        self.logs = logs
        self.slots, first = np.unique(deliveries.slot, return_index=True)
        self.messages = deliveries.select(first)
        window_codes, reception_codes = message_codes(self.messages, receptions)
        order = np.argsort(window_codes, kind="stable")
        at = np.minimum(np.searchsorted(window_codes[order], reception_codes), len(window_codes) - 1)
        known = window_codes[order][at] == reception_codes
        receptions, at = receptions.select(known), order[at][known]
        # Sort by log and step, so that the last of several rows of a message in a log counts.
        by_log_and_step = np.lexsort((receptions.place, receptions.recorder_incarnation, receptions.member))
        receptions, at = receptions.select(by_log_and_step), at[by_log_and_step]
        count = len(self.slots)
        self.priority = np.zeros(count, dtype=np.int64)
        self.priority[at] = receptions.priority
        self.first_received_ns = np.full(count, AFTER_ALL_SLOTS, dtype=np.int64)
        np.minimum.at(self.first_received_ns, at, receptions.real_ns)
        self.first_received_ns[self.first_received_ns == AFTER_ALL_SLOTS] = 0
        self.received: NDArray[np.bool_] = np.zeros((len(logs), count), dtype=bool)
        self.received_ns: Matrix = np.zeros((len(logs), count), dtype=np.int64)
        self._consumed_slots: Matrix = np.empty((len(logs), count), dtype=np.int64)
        """By member and message: the slot up to which the member had consumed when it received the message."""
        self._counts_for: NDArray[np.bool_] = np.empty((len(logs), count), dtype=bool)
        for number, log in enumerate(logs):
            own = np.flatnonzero(
                (receptions.member == log.run_id[0]) & (receptions.recorder_incarnation == log.run_id[1])
            )
            consumed = receptions.index[own]
            self.received[number, at[own]] = True
            self.received_ns[number, at[own]] = receptions.real_ns[own]
            self._consumed_slots[number] = log.slot_after_all
            self._consumed_slots[number, at[own]] = np.where(
                consumed > 0, log.begin_slot + np.minimum(consumed, log.regular_deliveries), BEFORE_ALL_SLOTS
            )
            if not log.regular_deliveries:
                self._consumed_slots[number] = BEFORE_ALL_SLOTS
            self._counts_for[number] = log.first_slot <= self.slots
        mismatched = np.flatnonzero(self.priority != self.messages.priority)
        self.unknown_reason = ""
        if len(mismatched):
            message = message_at(self.messages, int(mismatched[0]))
            self.unknown_reason = f"{message} was delivered with another priority than it was received with"

    def consumed_up_to(self, log: LogFacts, delivered: Mask) -> Ints:
        """R(h) for each message h: the slot up to which any member had consumed when it received h.

        Members that joined after the member of `log` had delivered h do not count.
        """
        concerned_logs = [number for number, other in enumerate(self.logs) if other.begin_slot < log.end_slot]
        if not concerned_logs:
            return np.full(len(self.slots), BEFORE_ALL_SLOTS, dtype=np.int64)
        concerned = self._counts_for[concerned_logs] | ~delivered
        consumed: Ints = np.where(concerned, self._consumed_slots[concerned_logs], BEFORE_ALL_SLOTS).max(axis=0)
        return consumed

    def last_lower(self, last_slots_by_priority: Mapping[int, int]) -> Ints:
        """For each message, the last earlier slot with a less urgent message."""
        result: Ints = np.full(len(self.slots), BEFORE_ALL_SLOTS, dtype=np.int64)
        for level in np.unique(self.priority).tolist():
            carried = max(
                (slot for other, slot in last_slots_by_priority.items() if other < level), default=BEFORE_ALL_SLOTS
            )
            highest = np.maximum.accumulate(np.where(self.priority < level, self.slots, BEFORE_ALL_SLOTS))
            before = np.maximum(np.append(BEFORE_ALL_SLOTS, highest[:-1]), carried)
            result = np.where(self.priority == level, before, result)
        return result

    def decidable(self, log_number: int) -> Mask:
        """A mask of the messages that a member received, if it is known how far every member had consumed by then."""
        decidable: Mask = self.received[log_number].copy()
        for other, log in enumerate(self.logs):
            if log.run_id in self.logs[log_number].excluded_since_ns:
                decidable &= self.received[other] | (
                    self.received_ns[log_number] >= self.logs[log_number].excluded_since_ns[log.run_id]
                )
        return decidable

    def delivered_by(self, log: LogFacts) -> Mask:
        """A mask of the window's messages that a member delivered."""
        inside: Mask = (self.slots >= log.begin_slot) & (self.slots < log.end_slot)
        return inside

    def smallest_message(self, rows: Ints) -> int:
        """The row, among `rows`, whose message has the smallest id."""
        columns = (self.messages.sequence, self.messages.sender_incarnation, self.messages.sender)
        return int(rows[np.lexsort([column[rows] for column in columns])[0]])

    def constraint(self, log: LogFacts, at: int, since: Ints) -> OvertakingConstraint:
        """The overtaking constraint that one message puts on one member, whether the member delivered it or not."""
        message = message_at(self.messages, at)
        end = int(self.slots[at]) if log.begin_slot <= self.slots[at] < log.end_slot else log.end_slot
        return OvertakingConstraint(log.run_id, message, int(self.priority[at]), int(since[at]), end)

    def count_overtakings(self, delivered: Mask, log: LogFacts) -> int:
        """How often a member consumed a message directly before one that had been received earlier."""
        follows = (np.diff(self.slots) == 1) & (self.slots[1:] < log.end_slot)
        return int((delivered[:-1] & follows & (self.first_received_ns[1:] < self.first_received_ns[:-1])).sum())
