"""The latency bound while slot lengths change: each message must keep the bound of its own slot.

A run's bound is that of its longest slots. In a slot order only Θ changes the bound, so the bound of a shorter slot is
smaller by the difference in length. TIMING rows say from which slot on a member used which length.
"""

from __future__ import annotations

import numpy as np

from unisono.check.columns import message_at, position_at
from unisono.check.timing import NO_BOUND_PROMISED, latencies
from unisono.check.verdict import Status, Verdict, Witness, no_violation
from unisono.trace.schema import ABSENT, EventKind
from unisono.trace.table import Ints, Rows, Trace

NAME = "latency_in_force"


def latency_in_force(trace: Trace) -> Verdict:
    """Every delivery comes within the bound of its slot."""
    if trace.meta.bound_ns is None:
        return no_violation(NAME, NO_BOUND_PROMISED)
    deliveries = trace.deliveries()
    matched, taken_ns = latencies(trace, deliveries)
    lengths = _slot_lengths(trace, deliveries)
    longest = max(trace.meta.theta_ns, *(theta for _, theta in _slot_length_changes(trace)), 0)
    limits = trace.meta.bound_ns - (longest - lengths[matched])
    late = np.flatnonzero(taken_ns > limits)
    figures = {"deliveries": len(matched), "late": len(late)}
    if not len(late):
        return Verdict(NAME, Status.VALID, figures=figures)
    first = late[np.argmin(deliveries.real_ns[matched[late]])]
    row = int(matched[first])
    message, member = message_at(deliveries, row), int(deliveries.member[row])
    text = (
        f"member {member} delivered {message} {taken_ns[first] / 1e6:.3f} ms after it was sent, in a slot of "
        f"{lengths[row] / 1e6:.3f} ms whose bound is {limits[first] / 1e6:.3f} ms"
    )
    witness = Witness((message,), (member,), (position_at(deliveries, row),), text)
    return Verdict(NAME, Status.VIOLATED, witness, len(late), figures=figures)


def _slot_length_changes(trace: Trace) -> list[tuple[tuple[int, int, int], int]]:
    """(member, incarnation, first slot) and length, sorted."""
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
