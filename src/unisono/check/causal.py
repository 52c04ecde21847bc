"""Causal order (paper 002 §2.2): a member delivers a message only after all messages that its sender had delivered
when sending it.

Only the sender's own deliveries need checking: the dependencies of those messages are checked for them in turn.
"""

from __future__ import annotations

import numpy as np

from unisono.check.columns import dropped_rows_reason, empty_trace_reason, message_at, message_codes, position_at
from unisono.check.verdict import Status, Verdict, Witness, no_violation
from unisono.trace.table import Ints, Rows, Trace

NAME = "causal"
_NOT_DELIVERED = np.iinfo(np.int64).max


def causal(trace: Trace) -> Verdict:
    """Check causal order. A sent message depends on all messages that its sender had delivered earlier in real time.

    Each pair of a send and a delivery is checked on its own, so a long run can be checked in parts.
    """
    sends, deliveries = trace.sends(), trace.deliveries()
    sent, delivered = message_codes(sends, deliveries)
    logs = _rows_by_log(deliveries)
    found: list[tuple[int, Witness]] = []
    count = 0
    for sender, own in logs.items():
        own_sends = np.flatnonzero((sends.member == sender[0]) & (sends.recorder_incarnation == sender[1]))
        by_time = own[np.argsort(deliveries.real_ns[own], kind="stable")]
        # How many deliveries the sender had made before each send.
        before = np.searchsorted(deliveries.real_ns[by_time], sends.real_ns[own_sends], side="left")
        for log in logs.values():
            at = _positions(delivered[log], sent[own_sends])
            needed = np.maximum.accumulate(_positions(delivered[log], delivered[by_time]))
            depends = (at < _NOT_DELIVERED) & (before > 0)
            last = np.where(depends, needed[np.maximum(before - 1, 0)] if len(needed) else -1, -1)
            wrong = np.flatnonzero(depends & (last > at))
            count += len(wrong)
            if len(wrong):
                first = wrong[np.argmin(at[wrong])]
                row = int(log[at[first]])
                witness = _explain(deliveries, delivered, by_time[: before[first]], log, row)
                found.append((int(deliveries.index[row]), witness))
    if found:
        return Verdict(NAME, Status.VIOLATED, min(found, key=lambda f: f[0])[1], count)
    return no_violation(NAME, dropped_rows_reason(trace) or empty_trace_reason(trace))


def _rows_by_log(deliveries: Rows) -> dict[tuple[int, int], Ints]:
    """The delivery rows of each member run, in the order of delivery."""
    found = {}
    for member, incarnation in sorted(
        set(zip(deliveries.member.tolist(), deliveries.recorder_incarnation.tolist(), strict=True))
    ):
        rows = np.flatnonzero((deliveries.member == member) & (deliveries.recorder_incarnation == incarnation))
        found[member, incarnation] = rows[np.argsort(deliveries.index[rows], kind="stable")]
    return found


def _positions(log: Ints, messages: Ints) -> Ints:
    """The position in a log at which each message is first delivered, or _NOT_DELIVERED."""
    if len(log) == 0 or len(messages) == 0:
        return np.full(len(messages), _NOT_DELIVERED, dtype=np.int64)
    known, first = np.unique(log, return_index=True)
    at = np.minimum(np.searchsorted(known, messages), len(known) - 1)
    return np.where(known[at] == messages, first[at], _NOT_DELIVERED).astype(np.int64)


def _explain(deliveries: Rows, delivered: Ints, sender_deliveries: Ints, log: Ints, row: int) -> Witness:
    """The witness that a member delivered a message although a message on which it depends came later or never."""
    place = int(np.flatnonzero(log == row)[0])
    late = np.flatnonzero(_positions(delivered[log], delivered[sender_deliveries]) > place)[0]
    cause = int(sender_deliveries[late])
    message, earlier = message_at(deliveries, row), message_at(deliveries, cause)
    member = int(deliveries.member[row])
    there = int(_positions(delivered[log], delivered[[cause]])[0])
    when = "never" if there == _NOT_DELIVERED else f"only at index {deliveries.index[log[there]]}"
    text = (
        f"member {member} delivered {message} at index {deliveries.index[row]} and {earlier} {when}, although member "
        f"{message.sender} had delivered {earlier} when it sent {message}"
    )
    positions = [position_at(deliveries, cause), position_at(deliveries, row)]
    if there != _NOT_DELIVERED:
        positions.append(position_at(deliveries, int(log[there])))
    return Witness((earlier, message), (member, message.sender), tuple(positions), text)
