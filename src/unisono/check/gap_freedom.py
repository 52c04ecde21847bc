"""Gap freedom (paper 000, Definition 1, liveness), over a run that ended.

"Every message sent or delivered by some correct process is eventually delivered by every correct process." In a
finite run a message is due at a member if that member has delivered something later in the order, or if the
bound had passed when the run (or the member's part in it) ended. Members are held to their own interval of slots.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from unisono.check.codes import (
    Codes,
    group_starts,
    key_codes,
    log_codes,
    message_at,
    message_codes,
    packed,
    position_at,
    stream_codes,
)
from unisono.check.member_runs import (
    FOREVER,
    MemberRun,
    dropped_rows_reason,
    empty_trace_reason,
    incomplete_logs,
    member_runs,
)
from unisono.check.verdict import Status, Verdict, Witness, kept
from unisono.trace.kinds import OBSERVER
from unisono.trace.table import Mask, Rows, Trace, concatenated

NAME = "gap_freedom"


@dataclass(frozen=True, slots=True)
class _RequiredMessages:
    """Messages that correct members must deliver, one row each in the order of keys.

    A send row's slot and place say when the message was handed in; its key is that of its deliveries. `settled`
    tells the messages that somebody delivered: only those are known to be before or after another.
    """

    rows: Rows
    message: Codes
    key: Codes
    is_delivered: Mask


def gap_freedom(
    trace: Trace,
    *,
    until_slot: int | None = None,
    until_ns: int | None = None,
    bound_ns: int | None = None,
    dense_logs: bool | Collection[tuple[int, int]] = False,
    excused: Collection[tuple[int, int]] = (),
) -> Verdict:
    """Check slots up to `until_slot`; messages whose bound passed by `until_ns` (the run's last row) are due.

    `whole` says that the logs, or which of them, are known to be dense though this trace is only a part of them.
    Of the lives that are `excused` nothing is due: what they delivered is not here.
    """
    bound = trace.meta.bound_ns if bound_ns is None else bound_ns
    deliveries, sends = trace.deliveries(), trace.sends()
    known = {run_id: member_run for run_id, member_run in member_runs(trace).items() if member_run.log is not None}
    end_ns = int(trace.real_ns.max(initial=0)) if until_ns is None else until_ns
    message, key, required = _required_messages(known, sends, deliveries, until_slot)
    doubtful: list[str] = []
    missing: list[tuple[int, MemberRun]] = []
    count = 0
    for member_run in known.values():
        mine = (deliveries.member == member_run.member) & (deliveries.recorder_incarnation == member_run.incarnation)
        own, last_key = deliveries.select(mine), int(key[mine].max(initial=-1))
        if (member_run.member, member_run.incarnation) in excused:
            continue
        due = _due(member_run, required, own, last_key=last_key, end_ns=end_ns, bound_ns=bound)
        absent = np.flatnonzero(due & ~np.isin(required.message, message[mine]))
        if len(absent) == 0:
            continue
        known_dense = (
            dense_logs if isinstance(dense_logs, bool) else (member_run.member, member_run.incarnation) in dense_logs
        )
        if member_run.dropped_rows or not (known_dense or is_dense(own)):
            doubtful.append(
                f"the log of member {member_run.member} lacks rows and {len(absent)} deliveries that were due"
            )
            continue
        missing.append((int(absent[0]), member_run))
        count += len(absent)
    if missing:
        witness = _witness(required, deliveries, message, *min(missing, key=lambda found: found[0]))
        return Verdict(NAME, Status.VIOLATED, witness, count)
    cut = [member_run.member for member_run in known.values() if member_run.log_truncated and not member_run.crashed]
    if cut:
        doubtful.append(f"the log of member {cut[0]} was not closed, and no CRASH says why")
    doubt = incomplete_logs(doubtful) or dropped_rows_reason(trace) or empty_trace_reason(trace)
    return kept(NAME, doubt)


def _required_messages(
    member_runs: dict[tuple[int, int], MemberRun], sends: Rows, deliveries: Rows, until_slot: int | None
) -> tuple[Codes, Codes, _RequiredMessages]:
    """The deliveries' message and key codes, and what correct members sent or delivered, in the order of keys."""
    sends, settled = with_delivery_keys(sends, deliveries)
    held = []
    for rows in (sends, deliveries):
        end = np.full(len(rows), FOREVER)
        for member_run in member_runs.values():
            its = (rows.member == member_run.member) & (rows.recorder_incarnation == member_run.incarnation)
            # A crashed member is not correct: what it sent or delivered binds nobody.
            end[its] = -FOREVER if member_run.crashed else member_run.end_slot
        held.append((rows.slot < end) & (rows.member != OBSERVER))
        if until_slot is not None:
            held[-1] &= rows.slot <= until_slot
    both = concatenated([sends, deliveries])
    settled = np.append(settled, np.ones(len(deliveries), dtype=bool))
    (message,) = message_codes(both)
    key = key_codes(both)
    wanted = np.flatnonzero(np.concatenate(held))
    # Sends come first, so a message stands with its send's row where that is recorded.
    _, first = np.unique(message[wanted], return_index=True)
    chosen = wanted[first]
    chosen = chosen[np.argsort(key[chosen], kind="stable")]
    required = _RequiredMessages(both.select(chosen), message[chosen], key[chosen], settled[chosen])
    return message[len(sends) :], key[len(sends) :], required


def with_delivery_keys(sends: Rows, deliveries: Rows) -> tuple[Rows, Mask]:
    """The sends with the slot and place of their deliveries, and which of them have any."""
    sent, delivered = message_codes(sends, deliveries)
    messages, first = np.unique(delivered, return_index=True)
    if len(messages) == 0:
        return sends, np.zeros(len(sends), dtype=bool)
    at = np.minimum(np.searchsorted(messages, sent), len(messages) - 1)
    settled = messages[at] == sent
    slot = np.where(settled, deliveries.slot[first[at]], sends.slot)
    place = np.where(settled, deliveries.place[first[at]], sends.place)
    return replace(sends, slot=slot, place=place), settled


def _due(
    member_run: MemberRun,
    required: _RequiredMessages,
    own_deliveries: Rows,
    *,
    last_key: int,
    end_ns: int,
    bound_ns: int | None,
) -> Mask:
    rows = required.rows
    due: Mask = required.is_delivered & (required.key < last_key)
    if bound_ns is None:  # without a bound, what nobody delivered is due where a later message of its sender was
        due |= ~required.is_delivered & skipped_in_stream(rows, own_deliveries)
    elif (
        not member_run.log_truncated
    ):  # a log that was not closed may lack its end: only what it passed over is missing
        due |= rows.real_ns + bound_ns <= min(end_ns, member_run.end_ns)
    due &= (rows.slot >= member_run.first_slot) & (rows.slot < member_run.end_slot)
    if rows.destination_sets:
        meant = [member_run.member in destinations for destinations in rows.destination_sets]
        due &= np.array([*meant, True])[rows.destinations]
    return due


def skipped_in_stream(rows: Rows, own_deliveries: Rows) -> Mask:
    """Messages behind which, in their sender's numbering of their priority, `own` has a delivery."""
    streams, own_streams = stream_codes(rows, own_deliveries)
    if (own_deliveries.priority >= 0).any():  # where priorities decide the order, what is sent later may overtake
        levels = np.concatenate([rows.priority, own_deliveries.priority])
        both = packed(np.concatenate([streams, own_streams]), levels)
        streams, own_streams = both[: len(rows)], both[len(rows) :]
    last = {code: int(own_deliveries.sequence[own_streams == code].max()) for code in np.unique(own_streams).tolist()}
    reached = np.full(len(rows), -1, dtype=np.int64)
    for code, sequence in last.items():
        reached[streams == code] = sequence
    passed: Mask = rows.sequence < reached
    return passed


def is_dense(log_deliveries: Rows) -> bool:
    """Whether the deliveries of one log are all there, as far as they go."""
    return (
        bool((log_deliveries.index == np.arange(len(log_deliveries))).all())
        and int(group_starts(log_codes(log_deliveries)).sum()) <= 1
    )


def _witness(required: _RequiredMessages, deliveries: Rows, message: Codes, row: int, member_run: MemberRun) -> Witness:
    lost = message_at(required.rows, row)
    slot = int(required.rows.slot[row])
    text = f"member {member_run.member} never delivered {lost} of slot {slot}"
    elsewhere = np.flatnonzero(message == required.message[row])
    if len(elsewhere) == 0:
        return Witness((lost,), (member_run.member,), (), text + ", nor did anybody else")
    at = int(elsewhere[0])
    other = position_at(deliveries, at)
    return Witness(
        (lost,),
        (member_run.member, other.member),
        (other,),
        f"{text}, member {other.member} delivered it at index {other.index}",
    )
