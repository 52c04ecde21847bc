"""Latency: the real time from a send to each of its deliveries is within the bound.

The bound is that of the order (paper 000, Theorems 1 and 2) or the negotiated one.

While slot lengths change, each message must keep the bound of its own slot. A run's bound is that of its longest slots.
In a slot order only Θ changes the bound, so the bound of a shorter slot is smaller by the difference in length. TIMING
rows say from which slot on a member used which length.
"""

from __future__ import annotations

import numpy as np

from unisono.check.columns import (
    dropped_rows_reason,
    empty_trace_reason,
    message_at,
    message_codes,
    position_at,
    unrecorded_sends,
)
from unisono.check.verdict import Doubt, Reason, Status, Verdict, Witness, no_violation
from unisono.trace.schema import ABSENT, EventKind
from unisono.trace.table import Ints, Rows, Trace

LATENCY = "latency"
NO_BOUND_PROMISED = Doubt(Reason.NO_BOUND, "the run promised no latency bound")


def latency(trace: Trace, *, bound_ns: int | None = None) -> Verdict:
    """Check that every delivery comes within `bound_ns` (by default the run's bound) of its send.

    The figures of the verdict are statistics of the latencies.
    """
    bound = trace.meta.bound_ns if bound_ns is None else bound_ns
    deliveries = trace.deliveries()
    matched, taken_ns = latencies(trace, deliveries)
    figures = _statistics(taken_ns, bound)
    if bound is not None and figures["late"]:
        late = np.flatnonzero(taken_ns > bound)
        first = late[np.argmin(deliveries.real_ns[matched[late]])]
        row = int(matched[first])
        message, member = message_at(deliveries, row), int(deliveries.member[row])
        text = (
            f"member {member} delivered {message} {taken_ns[first] / 1e6:.3f} ms after it was sent, "
            f"{(taken_ns[first] - bound) / 1e6:.3f} ms later than the bound of {bound / 1e6:.3f} ms"
        )
        witness = Witness((message,), (member,), (position_at(deliveries, row),), text)
        return Verdict(LATENCY, Status.VIOLATED, witness, figures["late"], figures=figures)
    doubt = NO_BOUND_PROMISED if bound is None else dropped_rows_reason(trace) or empty_trace_reason(trace)
    if doubt is None and len(matched) < len(deliveries):
        doubt = sends_not_recorded(unrecorded_sends(trace, deliveries))
    return no_violation(LATENCY, doubt, figures)


def sends_not_recorded(deliveries: int) -> Doubt | None:
    """Why deliveries without a recorded send leave a verdict unknown; None if their number is 0."""
    if not deliveries:
        return None
    return Doubt(Reason.SEND_NOT_RECORDED, f"the send of {deliveries} deliveries is not recorded")


def latencies(trace: Trace, deliveries: Rows) -> tuple[Ints, Ints]:
    """The row numbers of the deliveries whose send is recorded, and the latency of each."""
    sends = trace.sends()
    sent, delivered = message_codes(sends, deliveries)
    if len(sent) == 0:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    order = np.argsort(sent, kind="stable")
    at = np.minimum(np.searchsorted(sent[order], delivered), len(sent) - 1)
    matched = np.flatnonzero(sent[order][at] == delivered)
    return matched, deliveries.real_ns[matched] - sends.real_ns[order][at][matched]


def _statistics(latencies_ns: Ints, bound_ns: int | None) -> dict[str, int]:
    """The figures of a latency verdict; all 0 if there are no latencies. A percentile is a latency that occurred."""
    if len(latencies_ns) == 0:
        return dict.fromkeys(("deliveries", "late", "min_ns", "p50_ns", "p99_ns", "p999_ns", "max_ns"), 0)
    p50, p99, p999 = np.quantile(latencies_ns, (0.5, 0.99, 0.999), method="inverted_cdf")
    return {
        "deliveries": len(latencies_ns),
        "late": 0 if bound_ns is None else int((latencies_ns > bound_ns).sum()),
        "min_ns": int(latencies_ns.min()),
        "p50_ns": int(p50),
        "p99_ns": int(p99),
        "p999_ns": int(p999),
        "max_ns": int(latencies_ns.max()),
    }


LATENCY_IN_FORCE = "latency_in_force"


def latency_in_force(trace: Trace) -> Verdict:
    """Check that every delivery comes within the latency bound of its slot, in a run whose slot lengths change."""
    if trace.meta.bound_ns is None:
        return no_violation(LATENCY_IN_FORCE, NO_BOUND_PROMISED)
    deliveries = trace.deliveries()
    matched, taken_ns = latencies(trace, deliveries)
    lengths = _slot_lengths(trace, deliveries)
    longest = max(trace.meta.theta_ns, *(theta for _, theta in _slot_length_changes(trace)), 0)
    limits = trace.meta.bound_ns - (longest - lengths[matched])
    late = np.flatnonzero(taken_ns > limits)
    figures = {"deliveries": len(matched), "late": len(late)}
    if not len(late):
        return Verdict(LATENCY_IN_FORCE, Status.VALID, figures=figures)
    first = late[np.argmin(deliveries.real_ns[matched[late]])]
    row = int(matched[first])
    message, member = message_at(deliveries, row), int(deliveries.member[row])
    text = (
        f"member {member} delivered {message} {taken_ns[first] / 1e6:.3f} ms after it was sent, in a slot of "
        f"{lengths[row] / 1e6:.3f} ms whose bound is {limits[first] / 1e6:.3f} ms"
    )
    witness = Witness((message,), (member,), (position_at(deliveries, row),), text)
    return Verdict(LATENCY_IN_FORCE, Status.VIOLATED, witness, len(late), figures=figures)


def _slot_length_changes(trace: Trace) -> list[tuple[tuple[int, int, int], int]]:
    """The recorded slot lengths: sorted pairs of (member, incarnation, first slot) and the length from that slot on."""
    rows = trace.of_kind(EventKind.TIMING)
    rows = rows.select(rows.theta_ns != ABSENT)
    columns = (rows.member, rows.recorder_incarnation, rows.slot, rows.theta_ns)
    return sorted(
        ((member, incarnation, slot), theta)
        for member, incarnation, slot, theta in zip(*(column.tolist() for column in columns), strict=True)
    )


def _slot_lengths(trace: Trace, deliveries: Rows) -> Ints:
    """The length of each delivery's slot at the member that delivered it."""
    lengths = np.full(len(deliveries), trace.meta.theta_ns, dtype=np.int64)
    for (member, incarnation, slot), theta_ns in _slot_length_changes(trace):
        here = (
            (deliveries.member == member) & (deliveries.recorder_incarnation == incarnation) & (deliveries.slot >= slot)
        )
        lengths[here] = theta_ns
    return lengths
