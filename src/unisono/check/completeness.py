"""Completeness: every delivery was sent, and every message that is due was delivered.

- Integrity (paper 000, Definition 1): a message is delivered only if it was sent, and at most once per member.
- Agreement (paper 002 §3.1): messages sent or delivered by one correct member are delivered by all correct members.
  Uniform agreement also counts the deliveries of members that crash afterwards.
- Gap freedom (paper 000, Definition 1, liveness): "Every message sent or delivered by some correct process is
  eventually delivered by every correct process."
- Gaps explained (paper 000, Definition 2, liveness): gaps are allowed, but each needs a recorded cause.

A run is finite, so "eventually" becomes "when it is due". For agreement a message is due when the bound has passed
since a correct member first sent or delivered it. For uniform agreement, deliveries at members that crashed count too.
For gap freedom a message is also due at a member that has delivered a message later in the order. A member has to
deliver only messages of the slots between its start and its end.

For gaps explained the paper says: "Every message that is sent by some correct process j and received by a correct
process i, is eventually delivered by i." A trace does not record receptions. It records each member's list of members
(VIEW), and every slot in which the member continued without the rest of a sender's messages (GAP). A member that had a
sender in its list and recorded no GAP has received all messages of that sender's slot, so it must deliver them. A
message is due at a member run if all of these hold:
1. The message's slot lies between the member's START and its LEAVE or CRASH.
2. The member's list contains the sender in that slot: the last VIEW up to it says so, and the sender has not started a
   later incarnation by then. (Halves of a partitioned group number their slots independently once slot lengths change,
   so the next incarnation may begin at a slot that the previous one had already passed.)
3. The member recorded no GAP of that sender in that slot.
4. The member passed the message: it delivered a message later in the order, or left without a crash, or was still there
   when the bound had passed since the send. The bound does not apply if the member or the sender reported a pause.

A message's slot is that of its deliveries. An undelivered message is due at its own sender only, in the slot in which
it was submitted, unless the sender crashed: no network loses a message that a member sends to itself. So a gap is
explained by the sender's crash, by the member's absence, by the sender's absence from the member's list, or by a GAP
row for messages that were lost or late. The figures of the verdict count the gaps. `failed` counts messages of senders
that crashed or paused. Of the other senders, `unlisted` counts messages of senders that were not in the member's list,
and `given_up` those for which it recorded a GAP. Both are 0 while the network keeps its promises.

Not checked: whether a member was right to time out another or to leave it out of its list. The rows cannot tell a lost
message from one that the member never waited for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np

from unisono.check.columns import (
    FOREVER,
    Codes,
    LastLogged,
    MemberRun,
    MemberRunId,
    SendStatus,
    dropped_rows_reason,
    empty_trace_reason,
    group_starts,
    incomplete_logs,
    key_codes,
    log_codes,
    member_runs,
    message_at,
    message_codes,
    packed,
    position_at,
    send_statuses,
    stream_codes,
)
from unisono.check.verdict import Reason, Status, Verdict, Witness, no_violation, unknown
from unisono.model.events import ViolationKind
from unisono.trace.schema import OBSERVER, EventKind
from unisono.trace.table import Ints, Mask, Rows, Trace, concatenated

INTEGRITY = "integrity"


def integrity(trace: Trace, last_logged: LastLogged | None = None) -> Verdict:
    """Check that the senders' logs show every delivered message, and that no member delivered a message twice.

    A member that crashed may have lost the end of its log. Whether it sent messages after that end is unknown. Their
    deliveries do not count as violations; the reason says how many there are. `last_logged` is as in `send_statuses`.
    """
    deliveries = trace.deliveries()
    statuses = send_statuses(trace, deliveries, last_logged)
    never_sent = np.flatnonzero(statuses == SendStatus.NEVER_SENT)
    repeats, previous = _repeated(deliveries)
    if len(never_sent) or len(repeats):
        witness = _integrity_witness(deliveries, never_sent, repeats, previous)
        return Verdict(INTEGRITY, Status.VIOLATED, witness, len(never_sent) + len(repeats))
    not_recorded = np.flatnonzero(statuses == SendStatus.NOT_RECORDED)
    if len(not_recorded):
        message = message_at(deliveries, int(not_recorded[0]))
        reason = (
            f"the log of member {message.sender} is incomplete: it does not show the sends of {len(not_recorded)} "
            f"deliveries, the first of {message}"
        )
        return unknown(INTEGRITY, Reason.LOG_NOT_WHOLE, reason)
    doubt = dropped_rows_reason(trace) or empty_trace_reason(trace)
    if doubt is not None:
        return no_violation(INTEGRITY, doubt)
    after_end = int((statuses == SendStatus.AFTER_LOG_END).sum())
    if not after_end:
        return no_violation(INTEGRITY, None)
    reason = f"{after_end} deliveries are of messages that a crashed sender did not log in time"
    return Verdict(INTEGRITY, Status.VALID, reason=reason, token=Reason.AFTER_CRASH)


def _repeated(deliveries: Rows) -> tuple[Ints, Ints]:
    """The rows in which a member delivers a message again, and for each of them the row of the previous delivery."""
    (message,) = message_codes(deliveries)
    both = packed(log_codes(deliveries), message)
    order = np.argsort(both, kind="stable")
    at = np.flatnonzero(~group_starts(both[order]))
    return order[at], order[at - 1]


def _integrity_witness(deliveries: Rows, never_sent: Ints, repeats: Ints, previous: Ints) -> Witness:
    candidates = [(int(deliveries.index[row]), int(row), -1) for row in never_sent]
    candidates += [
        (int(deliveries.index[row]), int(row), int(first)) for row, first in zip(repeats, previous, strict=True)
    ]
    index, row, first = min(candidates)
    message, member = message_at(deliveries, row), int(deliveries.member[row])
    if first < 0:
        text = f"member {member} delivered {message} at index {index}, which member {message.sender} never sent"
        return Witness((message,), (member, message.sender), (position_at(deliveries, row),), text)
    text = f"member {member} delivered {message} twice, at indices {deliveries.index[first]} and {index}"
    positions = (position_at(deliveries, first), position_at(deliveries, row))
    return Witness((message,), (member,), positions, text)


AGREEMENT = "agreement"
UNIFORM_AGREEMENT = "uniform_agreement"


def agreement(trace: Trace, *, until_ns: int | None = None, bound_ns: int | None = None) -> Verdict:
    """Check that messages sent or delivered by correct members are delivered by all correct members.

    A member need not deliver a message if it crashed, or left before the message was due.
    """
    return _check_agreement(trace, AGREEMENT, until_ns=until_ns, bound_ns=bound_ns)


def uniform_agreement(trace: Trace, *, until_ns: int | None = None, bound_ns: int | None = None) -> Verdict:
    """Check agreement as `agreement` does, but also count the deliveries of members that crashed."""
    return _check_agreement(trace, UNIFORM_AGREEMENT, until_ns=until_ns, bound_ns=bound_ns)


def _check_agreement(trace: Trace, name: str, *, until_ns: int | None, bound_ns: int | None) -> Verdict:
    bound = (trace.meta.bound_ns if bound_ns is None else bound_ns) or 0
    end_ns = int(trace.real_ns.max(initial=0)) if until_ns is None else until_ns
    known = {run_id: member_run for run_id, member_run in member_runs(trace).items() if member_run.log is not None}
    sends, deliveries = trace.sends(), trace.deliveries()
    both = concatenated([sends, deliveries])
    binding = both.member != OBSERVER
    crashed = _from_crashed_members(both, known)
    # A crashed member's send obliges no other member; its delivery does if delivery is uniform.
    binding &= ~crashed if name == AGREEMENT else ~(crashed & (np.arange(len(both)) < len(sends)))
    (message,) = message_codes(both)
    rows = np.flatnonzero(binding)
    rows = rows[np.lexsort((both.real_ns[rows], message[rows]))]
    _, first = np.unique(message[rows], return_index=True)
    required = rows[first]  # for each message that is owed, the first row that obliges the others
    delivered = message[len(sends) :]
    missing: list[tuple[int, MemberRun]] = []
    doubtful: list[str] = []
    count = 0
    for member_run in known.values():
        if member_run.crashed:
            continue
        mine = (deliveries.member == member_run.member) & (deliveries.recorder_incarnation == member_run.incarnation)
        due = both.real_ns[required] + bound <= min(end_ns, member_run.end_ns)
        absent = required[due & ~np.isin(message[required], delivered[mine])]
        if member_run.log_truncated or member_run.dropped_rows:
            doubtful.append(f"the log of member {member_run.member} is incomplete")
        elif len(absent):
            missing.append((int(absent[np.argmin(both.real_ns[absent])]), member_run))
            count += len(absent)
    if missing:
        return Verdict(
            name, Status.VIOLATED, _agreement_witness(both, deliveries, *min(missing, key=lambda m: m[0])), count
        )
    doubt = incomplete_logs(doubtful) or dropped_rows_reason(trace) or empty_trace_reason(trace)
    return no_violation(name, doubt)


def _from_crashed_members(rows: Rows, member_runs: dict[tuple[int, int], MemberRun]) -> Mask:
    crashed: Mask = np.zeros(len(rows), dtype=bool)
    for member_run in member_runs.values():
        if member_run.crashed:
            crashed |= (rows.member == member_run.member) & (rows.recorder_incarnation == member_run.incarnation)
    return crashed


def _agreement_witness(sends_and_deliveries: Rows, deliveries: Rows, row: int, member_run: MemberRun) -> Witness:
    lost, obliging = message_at(sends_and_deliveries, row), int(sends_and_deliveries.member[row])
    text = f"member {member_run.member} never delivered {lost}"
    sent_rows = len(sends_and_deliveries) - len(deliveries)
    if row < sent_rows:
        return Witness((lost,), (member_run.member, obliging), (), f"{text}, which member {obliging} sent")
    at = position_at(deliveries, row - sent_rows)
    return Witness(
        (lost,), (member_run.member, obliging), (at,), f"{text}; member {obliging} delivered it at index {at.index}"
    )


GAP_FREEDOM = "gap_freedom"


@dataclass(frozen=True, slots=True)
class _RequiredMessages:
    """Messages that correct members must deliver, one row each, sorted by key.

    A message's key is the slot and place of its deliveries. A message that no member delivered (`is_delivered` is
    False) has the slot and place of its send, and no known position in the order.
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
    """Check gap freedom in the slots up to `until_slot`.

    A message is due if its bound has passed by `until_ns`, which is by default the time of the last row. If the trace
    is only a part of a run, `dense_logs` says which logs have all indices from 0 on in the whole run. Member runs in
    `excused` need not deliver anything, and their deliveries are not in the trace.
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
        witness = _gap_witness(required, deliveries, message, *min(missing, key=lambda found: found[0]))
        return Verdict(GAP_FREEDOM, Status.VIOLATED, witness, count)
    cut = [member_run.member for member_run in known.values() if member_run.log_truncated and not member_run.crashed]
    if cut:
        doubtful.append(f"the log of member {cut[0]} was not closed, and no CRASH row explains it")
    doubt = incomplete_logs(doubtful) or dropped_rows_reason(trace) or empty_trace_reason(trace)
    return no_violation(GAP_FREEDOM, doubt)


def _required_messages(
    member_runs: dict[tuple[int, int], MemberRun], sends: Rows, deliveries: Rows, until_slot: int | None
) -> tuple[Codes, Codes, _RequiredMessages]:
    """The message code and the key code of each delivery, and the messages that correct members sent or delivered."""
    sends, is_delivered = with_delivery_keys(sends, deliveries)
    held = []
    for rows in (sends, deliveries):
        end = np.full(len(rows), FOREVER)
        for member_run in member_runs.values():
            its = (rows.member == member_run.member) & (rows.recorder_incarnation == member_run.incarnation)
            # A crashed member is not correct: its sends and deliveries oblige no other member.
            end[its] = -FOREVER if member_run.crashed else member_run.end_slot
        held.append((rows.slot < end) & (rows.member != OBSERVER))
        if until_slot is not None:
            held[-1] &= rows.slot <= until_slot
    both = concatenated([sends, deliveries])
    is_delivered = np.append(is_delivered, np.ones(len(deliveries), dtype=bool))
    (message,) = message_codes(both)
    key = key_codes(both)
    wanted = np.flatnonzero(np.concatenate(held))
    # Sends come first, so each message is represented by its send's row if that is recorded.
    _, first = np.unique(message[wanted], return_index=True)
    chosen = wanted[first]
    chosen = chosen[np.argsort(key[chosen], kind="stable")]
    required = _RequiredMessages(both.select(chosen), message[chosen], key[chosen], is_delivered[chosen])
    return message[len(sends) :], key[len(sends) :], required


def with_delivery_keys(sends: Rows, deliveries: Rows) -> tuple[Rows, Mask]:
    """The sends with the slot and place of their deliveries, and a mask of the sends that have deliveries."""
    sent, delivered = message_codes(sends, deliveries)
    messages, first = np.unique(delivered, return_index=True)
    if len(messages) == 0:
        return sends, np.zeros(len(sends), dtype=bool)
    at = np.minimum(np.searchsorted(messages, sent), len(messages) - 1)
    is_delivered = messages[at] == sent
    slot = np.where(is_delivered, deliveries.slot[first[at]], sends.slot)
    place = np.where(is_delivered, deliveries.place[first[at]], sends.place)
    return replace(sends, slot=slot, place=place), is_delivered


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
    if bound_ns is None:
        # Without a bound, an undelivered message is due at a member that delivered a later message of its sender.
        due |= ~required.is_delivered & skipped_in_stream(rows, own_deliveries)
    elif not member_run.log_truncated:
        # A log that was not closed may lack its end, so there only skipped messages count as missing.
        due |= rows.real_ns + bound_ns <= min(end_ns, member_run.end_ns)
    due &= (rows.slot >= member_run.first_slot) & (rows.slot < member_run.end_slot)
    if rows.destination_sets:
        meant = [member_run.member in destinations for destinations in rows.destination_sets]
        due &= np.array([*meant, True])[rows.destinations]
    return due


def skipped_in_stream(rows: Rows, own_deliveries: Rows) -> Mask:
    """A mask of the messages for which `own_deliveries` has a later message of the same sender and priority."""
    streams, own_streams = stream_codes(rows, own_deliveries)
    if (own_deliveries.priority >= 0).any():  # in the priority order, a later message may overtake
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
    """Whether the deliveries are of one log and have all indices from 0 up to the last."""
    return (
        bool((log_deliveries.index == np.arange(len(log_deliveries))).all())
        and int(group_starts(log_codes(log_deliveries)).sum()) <= 1
    )


def _gap_witness(
    required: _RequiredMessages, deliveries: Rows, message: Codes, row: int, member_run: MemberRun
) -> Witness:
    lost = message_at(required.rows, row)
    slot = int(required.rows.slot[row])
    text = f"member {member_run.member} never delivered {lost} of slot {slot}"
    elsewhere = np.flatnonzero(message == required.message[row])
    if len(elsewhere) == 0:
        return Witness((lost,), (member_run.member,), (), text + ", nor did any other member")
    at = int(elsewhere[0])
    other = position_at(deliveries, at)
    return Witness(
        (lost,),
        (member_run.member, other.member),
        (other,),
        f"{text}; member {other.member} delivered it at index {other.index}",
    )


GAPS_EXPLAINED = "gaps_explained"
MemberLists = list[tuple[int, tuple[int, ...]]]
"""A member's lists of members, each with the first slot from which it applies."""


@dataclass(frozen=True, slots=True)
class _Messages:
    """One row for every message, sorted by key: its send with the slot and place of its deliveries, else a delivery."""

    rows: Rows
    code: Codes
    key: Codes
    is_delivered: Mask
    """A mask of the messages that some member delivered."""


@dataclass(frozen=True, slots=True)
class _MemberRecords:
    """What the members recorded about each other: their lists of members, their gaps and their pauses."""

    member_runs: Mapping[MemberRunId, MemberRun]
    views: Mapping[MemberRunId, MemberLists]
    gaps: Rows
    paused: Collection[MemberRunId]


def gaps_explained(
    trace: Trace, *, until_ns: int | None = None, bound_ns: int | None = None, dense_logs: bool = False
) -> Verdict:
    """Check that every gap has a recorded cause, at every member run that has a log.

    A message is due if its bound has passed by `until_ns`, which is by default the time of the last row. If the trace
    is only a part of a run, `dense_logs` says that all logs have all indices from 0 on in the whole run.
    """
    bound = trace.meta.bound_ns if bound_ns is None else bound_ns
    end_ns = int(trace.real_ns.max(initial=0)) if until_ns is None else until_ns
    deliveries = trace.deliveries()
    messages, code, key = _messages(trace.sends(), deliveries)
    records = _MemberRecords(member_runs(trace), _views(trace), trace.of_kind(EventKind.GAP), _paused_runs(trace))
    missing: list[tuple[int, MemberRun]] = []
    doubtful: list[str] = []
    count, figures = 0, {"messages": len(messages.rows), "failed": 0, "unlisted": 0, "given_up": 0}
    failed, replaced = _from_failed_senders(records, messages.rows), _from_replaced_incarnations(records, messages.rows)
    for run_id, member_run in records.member_runs.items():
        if member_run.log is None or run_id not in records.views:
            continue
        mine = (deliveries.member == member_run.member) & (deliveries.recorder_incarnation == member_run.incarnation)
        own = deliveries.select(mine)
        passed = _passed_by(records, run_id, messages, own, int(key[mine].max(initial=-1)))
        if bound is not None:
            passed |= _bound_expired(records, run_id, messages, end_ns - bound, member_run.end_ns - bound)
        absent = _required_of(member_run, messages) & passed & ~np.isin(messages.code, code[mine])
        listed = _sender_in_view(messages.rows, records.views[run_id]) & ~replaced
        has_gap_row = _gap_recorded(messages.rows, records.gaps, run_id)
        figures["failed"] += int((absent & failed & (has_gap_row | ~listed)).sum())
        figures["unlisted"] += int((absent & ~failed & ~listed).sum())
        figures["given_up"] += int((absent & ~failed & listed & has_gap_row).sum())
        lost = np.flatnonzero(absent & listed & ~has_gap_row)
        if len(lost) == 0:
            continue
        if member_run.dropped_rows or not (dense_logs or is_dense(own)):
            doubtful.append(
                f"the log of member {member_run.member} lacks rows and {len(lost)} deliveries that were due"
            )
            continue
        missing.append((int(lost[0]), member_run))
        count += len(lost)
    if missing:
        witness = _unexplained_gap_witness(messages, deliveries, code, *min(missing, key=lambda found: found[0]))
        return Verdict(GAPS_EXPLAINED, Status.VIOLATED, witness, count, figures=figures)
    doubtful += _unchecked_reasons(records)
    doubt = incomplete_logs(doubtful) or dropped_rows_reason(trace) or empty_trace_reason(trace)
    return no_violation(GAPS_EXPLAINED, doubt, figures)


def _messages(sends: Rows, deliveries: Rows) -> tuple[_Messages, Codes, Codes]:
    """All messages of a run, and for each delivery the codes of its message and of its key."""
    sends, is_delivered = with_delivery_keys(sends, deliveries)
    both = concatenated([sends, deliveries])
    is_delivered = np.append(is_delivered, np.ones(len(deliveries), dtype=bool))
    (code,) = message_codes(both)
    key = key_codes(both)
    # Sends come first, so each message is represented by its send's row if that is recorded.
    _, first = np.unique(code, return_index=True)
    chosen = first[np.argsort(key[first], kind="stable")]
    found = _Messages(both.select(chosen), code[chosen], key[chosen], is_delivered[chosen])
    return found, code[len(sends) :], key[len(sends) :]


def _views(trace: Trace) -> dict[MemberRunId, MemberLists]:
    """The lists of members that each member run recorded, sorted by slot.

    If a member recorded two lists for one slot, only members in both count: the order of the two rows is unknown.
    """
    rows = trace.of_kind(EventKind.VIEW)
    found: dict[MemberRunId, dict[int, tuple[int, ...]]] = {}
    columns = (rows.member, rows.recorder_incarnation, rows.slot, np.arange(len(rows)))
    for member, incarnation, slot, row in sorted(zip(*(c.tolist() for c in columns), strict=True)):
        members, views = rows.listed(row), found.setdefault((member, incarnation), {})
        views[slot] = tuple(m for m in members if m in views.get(slot, members))
    return {run_id: list(views.items()) for run_id, views in found.items()}


def _paused_runs(trace: Trace) -> set[MemberRunId]:
    """The member runs that reported a pause of their own."""
    rows = trace.of_kind(EventKind.VIOLATION)
    rows = rows.select(rows.with_token(ViolationKind.PAUSED) & (rows.sender == rows.member))
    return set(zip(rows.member.tolist(), rows.recorder_incarnation.tolist(), strict=True))


def _from_failed_senders(records: _MemberRecords, rows: Rows) -> Mask:
    """A mask of the messages of senders that crashed or paused."""
    failed = np.zeros(len(rows), dtype=bool)
    for run_id, member_run in records.member_runs.items():
        if member_run.crashed or run_id in records.paused:
            failed |= _sent_by(rows, run_id)
    return failed


def _from_replaced_incarnations(records: _MemberRecords, rows: Rows) -> Mask:
    """A mask of the messages in slots at or after the first slot of a later incarnation of their sender."""
    replaced = np.zeros(len(rows), dtype=bool)
    for (member, number), member_run in records.member_runs.items():
        if member_run.started:
            replaced |= (
                (rows.sender == member) & (rows.sender_incarnation < number) & (rows.slot >= member_run.first_slot)
            )
    return replaced


def _required_of(member_run: MemberRun, messages: _Messages) -> Mask:
    rows = messages.rows
    held: Mask = (rows.slot >= member_run.first_slot) & (rows.slot < member_run.end_slot)
    # Only its own sender owes an undelivered message.
    held &= messages.is_delivered | _sent_by(rows, (member_run.member, member_run.incarnation))
    if rows.destination_sets:
        meant = [member_run.member in destinations for destinations in rows.destination_sets]
        held &= np.array([*meant, True])[rows.destinations]
    return held


def _sent_by(rows: Rows, run_id: MemberRunId) -> Mask:
    mask: Mask = (rows.sender == run_id[0]) & (rows.sender_incarnation == run_id[1])
    return mask


def _passed_by(
    records: _MemberRecords, run_id: MemberRunId, messages: _Messages, own_deliveries: Rows, last_key: int
) -> Mask:
    """A mask of the messages that the member passed: it delivered a later message, or left without a crash."""
    member_run, is_delivered = records.member_runs[run_id], messages.is_delivered
    passed: Mask = is_delivered & (messages.key < last_key)
    passed |= ~is_delivered & skipped_in_stream(messages.rows, own_deliveries)
    if member_run.ended_by is EventKind.LEAVE and not member_run.log_truncated:
        # A member that paused sent the messages that it had accepted in a later slot than that of their submission.
        passed |= is_delivered if run_id in records.paused else True
    return passed


def _bound_expired(
    records: _MemberRecords, run_id: MemberRunId, messages: _Messages, last_ns: int, own_last_ns: int
) -> Mask:
    """A mask of the messages whose bound passed while the member was there, if neither it nor the sender paused."""
    member_run, rows = records.member_runs[run_id], messages.rows
    if member_run.log_truncated or member_run.crashed or run_id in records.paused:
        return np.zeros(len(rows), dtype=bool)
    due: Mask = rows.real_ns <= min(last_ns, own_last_ns)
    for sender in records.paused:
        due &= ~_sent_by(rows, sender)
    return due


def _sender_in_view(rows: Rows, views: MemberLists) -> Mask:
    """A mask of the messages whose sender is in the member's list in the message's slot; rows are sorted by slot."""
    listed = np.zeros(len(rows), dtype=bool)
    ends = [*(slot for slot, _ in views[1:]), None]
    for (slot, members), end in zip(views, ends, strict=True):
        first = int(np.searchsorted(rows.slot, slot))
        last = len(rows) if end is None else int(np.searchsorted(rows.slot, end))
        listed[first:last] = np.isin(rows.sender[first:last], members)
    return listed


def _gap_recorded(rows: Rows, gaps: Rows, run_id: MemberRunId) -> Mask:
    """A mask of the messages for whose sender and slot the member recorded a GAP."""
    own = gaps.select((gaps.member == run_id[0]) & (gaps.recorder_incarnation == run_id[1]))
    both = concatenated([own, rows])
    code = packed(both.sender, both.slot)
    return np.isin(code[len(own) :], code[: len(own)])


def _unchecked_reasons(records: _MemberRecords) -> list[str]:
    """Why some member runs cannot be checked: their log was not closed, or lacks their list of members."""
    found = []
    for run_id, member_run in records.member_runs.items():
        if member_run.log is None or member_run.crashed:
            continue
        if member_run.log_truncated:
            found.append(f"the log of member {member_run.member} was not closed, and no CRASH row explains it")
        elif run_id not in records.views and member_run.started:
            found.append(f"member {member_run.member} recorded no VIEW, so its list of members is unknown")
    return found


def _unexplained_gap_witness(
    messages: _Messages, deliveries: Rows, code: Codes, row: int, member_run: MemberRun
) -> Witness:
    lost, slot = message_at(messages.rows, row), int(messages.rows.slot[row])
    text = f"member {member_run.member} never delivered {lost} of slot {slot}"
    elsewhere = np.flatnonzero(code == messages.code[row])
    if len(elsewhere) == 0:
        return Witness((lost,), (member_run.member,), (), f"{text}, its own message, nor did any other member")
    other = position_at(deliveries, int(elsewhere[0]))
    return Witness(
        (lost,),
        (member_run.member, other.member),
        (other,),
        f"{text}, although it had member {lost.sender} in its list and recorded no gap; member {other.member} "
        f"delivered it at index {other.index}",
    )
