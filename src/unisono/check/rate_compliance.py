"""Rate compliance (paper 000 §2): nobody sends more in a slot than the burst that it declared, nor more over time than
its average.

Judged from what was delivered, whose key says in which slot it was sent, for orders by slots (`SLOT_ORDERS`) whose
rates and slots stayed as they were. Over time means any k consecutive slots, with the k that the pacer holds it to
(`Rate.averaging_slots`). A range of slots shows what happened within it and, of its edges, how much there was in each
slot: windows that reach over an edge are judged where the ranges are joined.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from unisono.check.codes import group_starts, message_codes, packed, stream_codes
from unisono.check.member_runs import dropped_rows_reason, empty_trace_reason
from unisono.check.verdict import Doubt, MessageId, Status, Verdict, Witness, kept
from unisono.model.rates import Rate
from unisono.trace.kinds import EventKind
from unisono.trace.meta import RunMeta
from unisono.trace.table import Ints, Mask, Rows, Trace

NAME = "rate_compliance"
RATE_CHECKED_ORDERS = frozenset({"vbr"})
MAX_REPORTED = 100
"""How many excesses of a range are told one by one."""


@dataclass(frozen=True, slots=True)
class DeclaredRates:
    """What the members of a run have declared."""

    theta_ns: int
    rates: tuple[tuple[int, float, int], ...]
    """Member, average, burst."""

    def rate_of(self, member: int) -> Rate | None:
        """A member's rate, if it declared one."""
        return next((Rate(avg, burst) for declarer, avg, burst in self.rates if declarer == member), None)

    @property
    def longest_window(self) -> int:
        """The most slots over which an average is kept."""
        return max((Rate(avg, burst).averaging_slots(self.theta_ns) for _, avg, burst in self.rates), default=1)


@dataclass(frozen=True, slots=True)
class SlotUsage:
    """How many messages each sender had in each slot, by sender and slot; and the last of them."""

    sender: Ints
    incarnation: Ints
    slot: Ints
    count: Ints
    last: Ints

    def select(self, rows: Mask | Ints) -> SlotUsage:
        """Some of it."""
        return SlotUsage(*(getattr(self, name)[rows] for name in _FIELDS))


@dataclass(frozen=True, slots=True, order=True)
class RateViolation:
    """A sender had more than it declared in the slots up to this one; ordered by slot."""

    slot: int
    sender: int
    incarnation: int
    window_slots: int
    """1 for the burst, the window for the average."""
    sequence: int
    """Of its last message in the slot."""
    sent: int
    allowed: int


_FIELDS = ("sender", "incarnation", "slot", "count", "last")
NO_USAGE = SlotUsage(*(np.empty(0, dtype=np.int64) for _ in _FIELDS))


def declared_rates(meta: RunMeta) -> DeclaredRates | None:
    """What is to be judged of a run; None if nothing is."""
    if meta.order not in RATE_CHECKED_ORDERS or not meta.rates:
        return None
    return DeclaredRates(meta.theta_ns, meta.rates)


def is_checked(meta: RunMeta, events: Rows) -> bool:
    """Whether a run's rates are judged: they were declared, and no slot changed its length."""
    return declared_rates(meta) is not None and not (events.kind == EventKind.TIMING.code).any()


def slot_usage(deliveries: Rows, *, single_log: bool = False) -> SlotUsage:
    """What was sent in which slot, as far as it was delivered anywhere.

    `once` says that the rows are of one log, in the order of keys and each sender's numbers, which spares the sorting.
    """
    if len(deliveries) == 0:
        return NO_USAGE
    if single_log:
        rows = deliveries
        (stream,) = stream_codes(rows)
        order = np.argsort(stream.astype(np.int16) if int(stream.max()) < 1 << 15 else stream, kind="stable")
    else:
        _, first = np.unique(message_codes(deliveries)[0], return_index=True)
        rows = deliveries.select(first)
        order = np.lexsort((rows.sequence, rows.slot, rows.sender_incarnation, rows.sender))
    begins = np.flatnonzero(group_starts(packed(rows.sender, rows.sender_incarnation, rows.slot)[order]))
    ends = np.append(begins[1:], len(order)) - 1
    at = order[ends]
    return SlotUsage(rows.sender[at], rows.sender_incarnation[at], rows.slot[at], ends - begins + 1, rows.sequence[at])


def rate_violations(used: SlotUsage, promised: DeclaredRates) -> list[RateViolation]:
    """Where a burst or an average was passed, in the order of slots."""
    found: list[RateViolation] = []
    fresh = np.append(np.flatnonzero(group_starts(packed(used.sender, used.incarnation))), len(used.slot))
    for first, last in zip(fresh[:-1].tolist(), fresh[1:].tolist(), strict=True):
        rate = promised.rate_of(int(used.sender[first]))
        if rate is None:
            continue
        slot, count = used.slot[first:last], used.count[first:last]
        window = rate.averaging_slots(promised.theta_ns)
        total = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(count)])
        carried = total[1:] - total[np.searchsorted(slot, slot - window + 1)]
        for slots, amount, allowed in (
            (1, count, rate.burst),
            (window, carried, rate.allowance(promised.theta_ns)),
        ):
            for row in np.flatnonzero(amount > allowed).tolist():
                at = first + row
                stream_id = (int(used.sender[at]), int(used.incarnation[at]))
                found.append(
                    RateViolation(int(slot[row]), *stream_id, slots, int(used.last[at]), int(amount[row]), allowed)
                )
    return sorted(found)


def edge_usage(used: SlotUsage, first_slot: int, last_slot: int, promised: DeclaredRates) -> SlotUsage:
    """What windows that reach over an edge of the range can hold."""
    reach = promised.longest_window - 1
    return used.select((used.slot < first_slot + reach) | (used.slot > last_slot - reach))


def merge_usage(parts: Sequence[SlotUsage]) -> SlotUsage:
    """The usage of ranges that do not overlap."""
    whole = SlotUsage(*(np.concatenate([getattr(part, name) for part in (NO_USAGE, *parts)]) for name in _FIELDS))
    return whole.select(np.lexsort((whole.slot, whole.incarnation, whole.sender)))


def rate_compliance(trace: Trace) -> Verdict:
    """Judge a whole run."""
    promised = declared_rates(trace.meta)
    found = [] if promised is None else rate_violations(slot_usage(trace.deliveries()), promised)
    return rate_verdict(found, dropped_rows_reason(trace) or empty_trace_reason(trace))


def rate_verdict(violations: Iterable[RateViolation], incomplete_reason: Doubt | None) -> Verdict:
    """What the excesses come to; `hidden` says why there could be more."""
    told = sorted(set(violations))
    if not told:
        return kept(NAME, incomplete_reason)
    worst = told[0]
    message = MessageId(worst.sender, worst.incarnation, worst.sequence)
    where = (
        f"in slot {worst.slot}" if worst.window_slots == 1 else f"in the {worst.window_slots} slots up to {worst.slot}"
    )
    text = f"member {worst.sender} sent {worst.sent} messages {where}, {worst.allowed} at most were declared"
    return Verdict(NAME, Status.VIOLATED, Witness((message,), (worst.sender,), (), text), len(told))
