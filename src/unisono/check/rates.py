"""Rate compliance: every sender keeps its declared rate (paper 000 §2).

No sender has more messages in a slot than its declared burst, nor more over time than its declared average. "Over time"
means any k consecutive slots, with the k of the sender's pacer (`Rate.averaging_slots`). A delivered message's key says
in which slot it was sent, so deliveries are enough. The check applies to slot orders (`Capabilities.rate_checked`) in
runs whose rates and slot lengths did not change. A range of slots can be checked on its own; averaging windows that
cross its edges are checked where ranges are joined, from the usage near the edges.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from unisono.check.columns import (
    dropped_rows_reason,
    empty_trace_reason,
    group_starts,
    message_codes,
    packed,
    stream_codes,
)
from unisono.check.verdict import Doubt, MessageId, Status, Verdict, Witness, no_violation
from unisono.model.capabilities import recorded_capabilities
from unisono.model.units import Rate
from unisono.trace.schema import EventKind, RunMeta
from unisono.trace.table import Ints, Mask, Rows, Trace

RATE_COMPLIANCE = "rate_compliance"
MAX_REPORTED = 100
"""How many rate violations a range reports individually."""


@dataclass(frozen=True, slots=True)
class DeclaredRates:
    """The rates that the members of a run declared."""

    theta_ns: int
    rates: tuple[tuple[int, float, int], ...]
    """For each member: its number, its average in messages per second, and its burst in messages per slot."""

    def rate_of(self, member: int) -> Rate | None:
        """The rate that a member declared; None if it declared none."""
        return next((Rate(avg, burst) for declarer, avg, burst in self.rates if declarer == member), None)

    @property
    def longest_window(self) -> int:
        """The largest number of averaging slots among the rates that the members declared."""
        return max((Rate(avg, burst).averaging_slots(self.theta_ns) for _, avg, burst in self.rates), default=1)


@dataclass(frozen=True, slots=True)
class SlotUsage:
    """How many messages each sender has in each slot, and the sequence number of the last.

    The entries are sorted by sender and slot.
    """

    sender: Ints
    incarnation: Ints
    slot: Ints
    count: Ints
    last: Ints

    def select(self, rows: Mask | Ints) -> SlotUsage:
        """The part of this usage that a mask or an array of row numbers selects."""
        return SlotUsage(*(getattr(self, name)[rows] for name in _USAGE_COLUMNS))


@dataclass(frozen=True, slots=True, order=True)
class RateViolation:
    """A sender exceeded its declared rate in the slots up to `slot`. Violations compare by slot."""

    slot: int
    sender: int
    incarnation: int
    window_slots: int
    """The number of slots over which the limit holds: 1 for the burst, the averaging slots for the average."""
    sequence: int
    """The sequence number of the sender's last message in the slot."""
    sent: int
    allowed: int


_USAGE_COLUMNS = ("sender", "incarnation", "slot", "count", "last")
NO_USAGE = SlotUsage(*(np.empty(0, dtype=np.int64) for _ in _USAGE_COLUMNS))


def declared_rates(meta: RunMeta) -> DeclaredRates | None:
    """The rates to check a run against; None if the check does not apply."""
    if not recorded_capabilities(meta.order).rate_checked or not meta.rates:
        return None
    return DeclaredRates(meta.theta_ns, meta.rates)


def is_checked(meta: RunMeta, events: Rows) -> bool:
    """Whether the check applies: the run declared rates, and its slot length did not change."""
    return declared_rates(meta) is not None and not (events.kind == EventKind.TIMING.code).any()


def slot_usage(deliveries: Rows, *, single_log: bool = False) -> SlotUsage:
    """How many messages each sender has in each slot, counting messages that some member delivered.

    `single_log` says that the rows are of one log, sorted by key, with growing sequence numbers of each sender. This
    saves a sort.
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
    """All violations of a declared burst or average, sorted by slot."""
    found: list[RateViolation] = []
    fresh = np.append(np.flatnonzero(group_starts(packed(used.sender, used.incarnation))), len(used.slot))
    for first, last in zip(fresh[:-1].tolist(), fresh[1:].tolist(), strict=True):
        rate = promised.rate_of(int(used.sender[first]))
        if rate is None:
            continue
        slot, count = used.slot[first:last], used.count[first:last]
        window = rate.averaging_slots(promised.theta_ns)
        total = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(count)])
        in_window = total[1:] - total[np.searchsorted(slot, slot - window + 1)]
        for slots, amount, allowed in (
            (1, count, rate.burst),
            (window, in_window, rate.allowance(promised.theta_ns)),
        ):
            for row in np.flatnonzero(amount > allowed).tolist():
                at = first + row
                stream_id = (int(used.sender[at]), int(used.incarnation[at]))
                found.append(
                    RateViolation(int(slot[row]), *stream_id, slots, int(used.last[at]), int(amount[row]), allowed)
                )
    return sorted(found)


def edge_usage(used: SlotUsage, first_slot: int, last_slot: int, promised: DeclaredRates) -> SlotUsage:
    """The slot usage near the edges of a range: the slots that an averaging window across an edge can contain."""
    reach = promised.longest_window - 1
    return used.select((used.slot < first_slot + reach) | (used.slot > last_slot - reach))


def merge_usage(parts: Sequence[SlotUsage]) -> SlotUsage:
    """Join the slot usage of ranges that do not overlap."""
    whole = SlotUsage(
        *(np.concatenate([getattr(part, name) for part in (NO_USAGE, *parts)]) for name in _USAGE_COLUMNS)
    )
    return whole.select(np.lexsort((whole.slot, whole.incarnation, whole.sender)))


def rate_compliance(trace: Trace) -> Verdict:
    """Check the declared rates of a whole run."""
    promised = declared_rates(trace.meta)
    found = [] if promised is None else rate_violations(slot_usage(trace.deliveries()), promised)
    return rate_verdict(found, dropped_rows_reason(trace) or empty_trace_reason(trace))


def rate_verdict(violations: Iterable[RateViolation], incomplete_reason: Doubt | None) -> Verdict:
    """The verdict for these violations; `incomplete_reason` says why there could be more."""
    distinct = sorted(set(violations))
    if not distinct:
        return no_violation(RATE_COMPLIANCE, incomplete_reason)
    first = distinct[0]
    message = MessageId(first.sender, first.incarnation, first.sequence)
    where = (
        f"in slot {first.slot}" if first.window_slots == 1 else f"in the {first.window_slots} slots up to {first.slot}"
    )
    text = f"member {first.sender} sent {first.sent} messages {where}, but declared at most {first.allowed}"
    return Verdict(RATE_COMPLIANCE, Status.VIOLATED, Witness((message,), (first.sender,), (), text), len(distinct))
