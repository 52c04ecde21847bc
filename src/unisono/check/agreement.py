"""Agreement (paper 002 §3.1): what one correct member delivers, or sends, all correct members deliver.

Uniform agreement is stronger: what any member delivers binds, also one that crashes right after. In a finite run a
message is due at a member when the bound has passed since it was first sent or delivered by somebody who binds.
"""

from __future__ import annotations

import numpy as np

from unisono.check.codes import message_at, message_codes, position_at
from unisono.check.member_runs import MemberRun, dropped_rows_reason, empty_trace_reason, incomplete_logs, member_runs
from unisono.check.verdict import Status, Verdict, Witness, kept
from unisono.trace.kinds import OBSERVER
from unisono.trace.table import Mask, Rows, Trace, concatenated

NAME = "agreement"
UNIFORM_NAME = "uniform_agreement"


def agreement(trace: Trace, *, until_ns: int | None = None, bound_ns: int | None = None) -> Verdict:
    """Every message that binds is delivered by every member that neither crashed nor left before it was due."""
    return _check_agreement(trace, NAME, until_ns=until_ns, bound_ns=bound_ns)


def uniform_agreement(trace: Trace, *, until_ns: int | None = None, bound_ns: int | None = None) -> Verdict:
    """The same, and deliveries of members that crashed bind too."""
    return _check_agreement(trace, UNIFORM_NAME, until_ns=until_ns, bound_ns=bound_ns)


def _check_agreement(trace: Trace, name: str, *, until_ns: int | None, bound_ns: int | None) -> Verdict:
    bound = (trace.meta.bound_ns if bound_ns is None else bound_ns) or 0
    end_ns = int(trace.real_ns.max(initial=0)) if until_ns is None else until_ns
    known = {run_id: member_run for run_id, member_run in member_runs(trace).items() if member_run.log is not None}
    sends, deliveries = trace.sends(), trace.deliveries()
    both = concatenated([sends, deliveries])
    binding = both.member != OBSERVER
    crashed = _from_crashed_members(both, known)
    # A crashed member's send binds nobody; its delivery does where delivery is uniform.
    binding &= ~crashed if name == NAME else ~(crashed & (np.arange(len(both)) < len(sends)))
    (message,) = message_codes(both)
    rows = np.flatnonzero(binding)
    rows = rows[np.lexsort((both.real_ns[rows], message[rows]))]
    _, first = np.unique(message[rows], return_index=True)
    required = rows[first]  # of each message that binds, the row that did so first
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
            doubtful.append(f"the log of member {member_run.member} is not whole")
        elif len(absent):
            missing.append((int(absent[np.argmin(both.real_ns[absent])]), member_run))
            count += len(absent)
    if missing:
        return Verdict(name, Status.VIOLATED, _witness(both, deliveries, *min(missing, key=lambda m: m[0])), count)
    doubt = incomplete_logs(doubtful) or dropped_rows_reason(trace) or empty_trace_reason(trace)
    return kept(name, doubt)


def _from_crashed_members(rows: Rows, member_runs: dict[tuple[int, int], MemberRun]) -> Mask:
    crashed: Mask = np.zeros(len(rows), dtype=bool)
    for member_run in member_runs.values():
        if member_run.crashed:
            crashed |= (rows.member == member_run.member) & (rows.recorder_incarnation == member_run.incarnation)
    return crashed


def _witness(sends_and_deliveries: Rows, deliveries: Rows, row: int, member_run: MemberRun) -> Witness:
    lost, binder = message_at(sends_and_deliveries, row), int(sends_and_deliveries.member[row])
    text = f"member {member_run.member} never delivered {lost}"
    sent_rows = len(sends_and_deliveries) - len(deliveries)
    if row < sent_rows:
        return Witness((lost,), (member_run.member, binder), (), f"{text}, which member {binder} sent")
    at = position_at(deliveries, row - sent_rows)
    return Witness(
        (lost,), (member_run.member, binder), (at,), f"{text}, member {binder} delivered it at index {at.index}"
    )
