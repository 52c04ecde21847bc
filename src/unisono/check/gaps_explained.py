"""Gaps explained (paper 000, Definition 2, liveness), over a run that ended: gaps are allowed, but none for nothing.

"Every message that is sent by some correct process j and received by a correct process i, is eventually delivered by
i." What was received is not in a trace. What is there is each member's own account: its list of members (VIEW), and
every slot in which it went on without the rest of a sender's messages (GAP). A member that had a sender in its list
and noted no GAP has seen the end of that sender's slot with everything before it, so it has to deliver all of it.

A message is due at a member, in one of its lives, if
1. the member is held to the message's slot: from its START up to its LEAVE or CRASH;
2. the member's list has the message's sender in that slot: the last VIEW up to it says so, and the sender has not begun
   a later life by then (halves of a divided group number their slots apart once lengths change, so the next life may
   begin at a number that the last one had come past: the list has the sender in its new life);
3. the member noted no GAP of that sender in that slot;
4. the member came past it: it delivered something later in the order, or left in order, or was there when the bound
   had passed since the message was sent (not if the member or the sender said that it had stood still: then the
   bound does not bind it).

A message's slot is that of its deliveries. One that nobody delivered is due at its own sender, whose messages to itself
no network loses, in the slot in which it was handed in, unless the sender crashed. So a gap is explained by the
sender's crash, by the member's absence, by the sender's absence from the member's list, or by a GAP that the member
noted: what the network lost, or what came too late. The figures count the gaps: `failed` of senders that crashed or
stood still, and of the others `unlisted` and `given_up`, which are 0 while the network keeps its promises.

Not judged here: whether a member was right to give up another or to leave it out of its list. The rows cannot tell a
message that was lost from one that was never waited for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from unisono.check.codes import Codes, key_codes, message_at, message_codes, packed, position_at
from unisono.check.gap_freedom import is_dense, skipped_in_stream, with_delivery_keys
from unisono.check.member_runs import MemberRun, dropped_rows_reason, empty_trace_reason, incomplete_logs, member_runs
from unisono.check.verdict import Status, Verdict, Witness, kept
from unisono.model.events import ViolationKind
from unisono.trace.kinds import EventKind
from unisono.trace.table import Mask, Rows, Trace, concatenated

NAME = "gaps_explained"
MemberRunId = tuple[int, int]
"""A member in one of its lives."""
MemberLists = list[tuple[int, tuple[int, ...]]]
"""From which slot on a member had whom in its list."""


@dataclass(frozen=True, slots=True)
class _Messages:
    """Every message once, in the order of keys: with its send where that is recorded, in the slot of its delivery."""

    rows: Rows
    code: Codes
    key: Codes
    is_delivered: Mask
    """Whether anybody delivered it."""


@dataclass(frozen=True, slots=True)
class _MemberRecords:
    """What the members' own rows say."""

    member_runs: Mapping[MemberRunId, MemberRun]
    views: Mapping[MemberRunId, MemberLists]
    gaps: Rows
    paused: Collection[MemberRunId]


def gaps_explained(
    trace: Trace, *, until_ns: int | None = None, bound_ns: int | None = None, dense_logs: bool = False
) -> Verdict:
    """Check every life that has a log; messages whose bound passed by `until_ns` (the run's last row) are due.

    `whole` says that the logs are known to be dense though this trace is only a part of them.
    """
    bound = trace.meta.bound_ns if bound_ns is None else bound_ns
    end_ns = int(trace.real_ns.max(initial=0)) if until_ns is None else until_ns
    deliveries = trace.deliveries()
    messages, code, key = _messages(trace.sends(), deliveries)
    account = _MemberRecords(member_runs(trace), _views(trace), trace.of_kind(EventKind.GAP), _paused_runs(trace))
    missing: list[tuple[int, MemberRun]] = []
    doubtful: list[str] = []
    count, figures = 0, {"messages": len(messages.rows), "failed": 0, "unlisted": 0, "given_up": 0}
    failed, replaced = _from_failed_senders(account, messages.rows), _from_replaced_incarnations(account, messages.rows)
    for run_id, member_run in account.member_runs.items():
        if member_run.log is None or run_id not in account.views:
            continue
        mine = (deliveries.member == member_run.member) & (deliveries.recorder_incarnation == member_run.incarnation)
        own = deliveries.select(mine)
        came_past = _passed_by(account, run_id, messages, own, int(key[mine].max(initial=-1)))
        if bound is not None:
            came_past |= _bound_expired(account, run_id, messages, end_ns - bound, member_run.end_ns - bound)
        absent = _required_of(member_run, messages) & came_past & ~np.isin(messages.code, code[mine])
        listed = _sender_in_view(messages.rows, account.views[run_id]) & ~replaced
        noted = _gap_recorded(messages.rows, account.gaps, run_id)
        figures["failed"] += int((absent & failed & (noted | ~listed)).sum())
        figures["unlisted"] += int((absent & ~failed & ~listed).sum())
        figures["given_up"] += int((absent & ~failed & listed & noted).sum())
        lost = np.flatnonzero(absent & listed & ~noted)
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
        witness = _witness(messages, deliveries, code, *min(missing, key=lambda found: found[0]))
        return Verdict(NAME, Status.VIOLATED, witness, count, figures=figures)
    doubtful += _unchecked_reasons(account)
    doubt = incomplete_logs(doubtful) or dropped_rows_reason(trace) or empty_trace_reason(trace)
    return kept(NAME, doubt, figures)


# -- what the rows say ---------------------------------------------------------------------------------------


def _messages(sends: Rows, deliveries: Rows) -> tuple[_Messages, Codes, Codes]:
    """All messages, and the deliveries' message and key codes."""
    sends, settled = with_delivery_keys(sends, deliveries)
    both = concatenated([sends, deliveries])
    settled = np.append(settled, np.ones(len(deliveries), dtype=bool))
    (code,) = message_codes(both)
    key = key_codes(both)
    # Sends come first, so a message stands with its send's row where that is recorded.
    _, first = np.unique(code, return_index=True)
    chosen = first[np.argsort(key[first], kind="stable")]
    found = _Messages(both.select(chosen), code[chosen], key[chosen], settled[chosen])
    return found, code[len(sends) :], key[len(sends) :]


def _views(trace: Trace) -> dict[MemberRunId, MemberLists]:
    """By life, in the order of slots. Rows of one instant have no order, so of two for a slot what both have counts."""
    rows = trace.of_kind(EventKind.VIEW)
    found: dict[MemberRunId, dict[int, tuple[int, ...]]] = {}
    columns = (rows.member, rows.recorder_incarnation, rows.slot, np.arange(len(rows)))
    for member, incarnation, slot, row in sorted(zip(*(c.tolist() for c in columns), strict=True)):
        members, views = rows.listed(row), found.setdefault((member, incarnation), {})
        views[slot] = tuple(m for m in members if m in views.get(slot, members))
    return {run_id: list(views.items()) for run_id, views in found.items()}


def _paused_runs(trace: Trace) -> set[MemberRunId]:
    """Lives that say of themselves that they stood still."""
    rows = trace.of_kind(EventKind.VIOLATION)
    rows = rows.select(rows.with_token(ViolationKind.PAUSED) & (rows.sender == rows.member))
    return set(zip(rows.member.tolist(), rows.recorder_incarnation.tolist(), strict=True))


def _from_failed_senders(records: _MemberRecords, rows: Rows) -> Mask:
    """Messages of senders that crashed or stood still."""
    failed = np.zeros(len(rows), dtype=bool)
    for run_id, member_run in records.member_runs.items():
        if member_run.crashed or run_id in records.paused:
            failed |= _sent_by(rows, run_id)
    return failed


def _from_replaced_incarnations(records: _MemberRecords, rows: Rows) -> Mask:
    """Messages of slots at or after the first one of a later life of their sender."""
    replaced = np.zeros(len(rows), dtype=bool)
    for (member, number), member_run in records.member_runs.items():
        if member_run.started:
            replaced |= (
                (rows.sender == member) & (rows.sender_incarnation < number) & (rows.slot >= member_run.first_slot)
            )
    return replaced


# -- what is due ---------------------------------------------------------------------------------------------


def _required_of(member_run: MemberRun, messages: _Messages) -> Mask:
    rows = messages.rows
    held: Mask = (rows.slot >= member_run.first_slot) & (rows.slot < member_run.end_slot)
    # What nobody delivered is held against its own sender alone.
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
    """By what it delivered later in the order, or because it left in order."""
    member_run, settled = records.member_runs[run_id], messages.is_delivered
    past: Mask = settled & (messages.key < last_key)
    past |= ~settled & skipped_in_stream(messages.rows, own_deliveries)
    if member_run.ended_by is EventKind.LEAVE and not member_run.log_truncated:
        # Who stood still sent what it had accepted in a later slot than that in which it was handed in.
        past |= settled if run_id in records.paused else True
    return past


def _bound_expired(
    records: _MemberRecords, run_id: MemberRunId, messages: _Messages, last_ns: int, own_last_ns: int
) -> Mask:
    """Sent so early that the bound passed while the member was there; nobody of the two stood still."""
    member_run, rows = records.member_runs[run_id], messages.rows
    if member_run.log_truncated or member_run.crashed or run_id in records.paused:
        return np.zeros(len(rows), dtype=bool)
    due: Mask = rows.real_ns <= min(last_ns, own_last_ns)
    for sender in records.paused:
        due &= ~_sent_by(rows, sender)
    return due


def _sender_in_view(rows: Rows, views: MemberLists) -> Mask:
    """Whether the member had the sender in its list, in the message's slot. Rows are in the order of slots."""
    listed = np.zeros(len(rows), dtype=bool)
    ends = [*(slot for slot, _ in views[1:]), None]
    for (slot, members), end in zip(views, ends, strict=True):
        first = int(np.searchsorted(rows.slot, slot))
        last = len(rows) if end is None else int(np.searchsorted(rows.slot, end))
        listed[first:last] = np.isin(rows.sender[first:last], members)
    return listed


def _gap_recorded(rows: Rows, gaps: Rows, run_id: MemberRunId) -> Mask:
    """Whether the member noted a GAP of the message's sender in the message's slot."""
    own = gaps.select((gaps.member == run_id[0]) & (gaps.recorder_incarnation == run_id[1]))
    both = concatenated([own, rows])
    code = packed(both.sender, both.slot)
    return np.isin(code[len(own) :], code[: len(own)])


def _unchecked_reasons(records: _MemberRecords) -> list[str]:
    """Why lives could not be judged: their log was not closed, or it does not say whom they had in their lists."""
    found = []
    for run_id, member_run in records.member_runs.items():
        if member_run.log is None or member_run.crashed:
            continue
        if member_run.log_truncated:
            found.append(f"the log of member {member_run.member} was not closed, and no CRASH says why")
        elif run_id not in records.views and member_run.started:
            found.append(f"member {member_run.member} recorded no VIEW: whom it had in its list is not known")
    return found


def _witness(messages: _Messages, deliveries: Rows, code: Codes, row: int, member_run: MemberRun) -> Witness:
    lost, slot = message_at(messages.rows, row), int(messages.rows.slot[row])
    text = f"member {member_run.member} never delivered {lost} of slot {slot}"
    elsewhere = np.flatnonzero(code == messages.code[row])
    if len(elsewhere) == 0:
        return Witness((lost,), (member_run.member,), (), f"{text}, its own, nor did anybody else")
    other = position_at(deliveries, int(elsewhere[0]))
    return Witness(
        (lost,),
        (member_run.member, other.member),
        (other,),
        f"{text}, though it had member {lost.sender} in its list and noted no gap; member {other.member} delivered "
        f"it at index {other.index}",
    )
