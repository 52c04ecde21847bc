"""The promises of multicast to several groups (paper 003 §3), over a run that ended.

- Validity: a message from a correct member is delivered by a correct destination (erratum 003-16: the sender is
  correct).
- Uniform agreement: a message that any member delivers, crashed or not, is delivered by every correct destination.
- Destined: members deliver only messages addressed to them.
- Genuineness: two groups exchange datagrams only if they are related: one of them may send to the other.

Total order and FIFO are checked as for one group: those checkers compare only messages that two members share, and look
for cycles.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from unisono.check.columns import (
    Codes,
    MemberRun,
    dropped_rows_reason,
    empty_trace_reason,
    member_runs,
    message_at,
    message_codes,
    position_at,
)
from unisono.check.verdict import Doubt, MessageId, Reason, Status, Verdict, Witness, no_violation
from unisono.model.topology import Topology
from unisono.model.units import NS_PER_MS
from unisono.trace.schema import ABSENT, EventKind
from unisono.trace.table import Ints, Mask, Rows, Trace

VALIDITY = "validity"
UNIFORM_AGREEMENT = "uniform_agreement"
DESTINED = "destined"
GENUINENESS = "genuineness"
GRACE_DELAYS = 4
"""For this many delays after two groups may no longer send to each other, members still answer messages in transit."""


@dataclass(frozen=True, slots=True)
class _MulticastRun:
    """The sends and deliveries of a run, with a code for each message, and the member runs."""

    member_runs: Mapping[tuple[int, int], MemberRun]
    sends: Rows
    deliveries: Rows
    sent_codes: Codes
    delivered_codes: Codes


def multigroup_agreement(
    trace: Trace, *, until_ns: int | None = None, bound_ns: int | None = None
) -> dict[str, Verdict]:
    """Check validity, uniform agreement and destinations; a message is due when its bound has passed."""
    bound = (trace.meta.bound_ns if bound_ns is None else bound_ns) or 0
    end_ns = int(trace.real_ns.max(initial=0)) if until_ns is None else until_ns
    sends, deliveries = trace.sends(), trace.deliveries()
    sent, delivered = message_codes(sends, deliveries)
    known = {run_id: member_run for run_id, member_run in member_runs(trace).items() if member_run.log is not None}
    run = _MulticastRun(known, sends, deliveries, sent, delivered)
    found = {
        VALIDITY: _validity(run, end_ns - bound),
        UNIFORM_AGREEMENT: _agreement(run, end_ns - bound),
        DESTINED: _destined(run),
    }
    doubt = _incomplete_reason(trace, known)
    return {
        name: verdict if verdict.status is Status.VIOLATED or doubt is None else no_violation(name, doubt)
        for name, verdict in found.items()
    }


def _incomplete_reason(trace: Trace, member_runs: Mapping[tuple[int, int], MemberRun]) -> Doubt | None:
    cut = [
        member_run.member
        for member_run in member_runs.values()
        if (member_run.log_truncated and not member_run.crashed) or member_run.dropped_rows
    ]
    if cut:
        return Doubt(Reason.LOG_NOT_WHOLE, f"the log of member {cut[0]} is incomplete")
    return dropped_rows_reason(trace) or empty_trace_reason(trace)


def _validity(run: _MulticastRun, due_ns: int) -> Verdict:
    sends, deliveries = run.sends, run.deliveries
    by_correct = np.zeros(len(deliveries), dtype=bool)
    bound = np.zeros(len(sends), dtype=bool)
    for member_run in run.member_runs.values():
        if not member_run.crashed:
            by_correct |= (deliveries.member == member_run.member) & (
                deliveries.recorder_incarnation == member_run.incarnation
            )
            bound |= (sends.member == member_run.member) & (sends.recorder_incarnation == member_run.incarnation)
    lost = np.flatnonzero(bound & (sends.real_ns <= due_ns) & ~np.isin(run.sent_codes, run.delivered_codes[by_correct]))
    if len(lost) == 0:
        return Verdict(VALIDITY, Status.VALID)
    message = message_at(sends, int(lost[np.argmin(sends.real_ns[lost])]))
    text = f"no correct destination delivered {message}, although its sender, member {message.sender}, did not crash"
    return Verdict(VALIDITY, Status.VIOLATED, Witness((message,), (message.sender,), (), text), len(lost))


def _agreement(run: _MulticastRun, due_ns: int) -> Verdict:
    """Check uniform agreement: a message that any member delivers is delivered by all correct destinations present."""
    deliveries, delivered = run.deliveries, run.delivered_codes
    order = np.lexsort((deliveries.real_ns, delivered))
    codes, first = np.unique(delivered[order], return_index=True)
    rows = order[first]
    meant = _destination_filter(run.sends, run.sent_codes, codes)
    missing: list[tuple[int, int, MemberRun]] = []
    count = 0
    for member_run in run.member_runs.values():
        if member_run.crashed:
            continue
        mine = (deliveries.member == member_run.member) & (deliveries.recorder_incarnation == member_run.incarnation)
        due = (deliveries.real_ns[rows] <= min(due_ns, member_run.end_ns)) & (
            deliveries.slot[rows] >= member_run.first_slot
        )
        due &= meant(member_run.member)
        absent = rows[due & ~np.isin(codes, delivered[mine])]
        if len(absent):
            at = int(absent[np.argmin(deliveries.real_ns[absent])])
            missing.append((int(deliveries.real_ns[at]), at, member_run))
            count += len(absent)
    if not missing:
        return Verdict(UNIFORM_AGREEMENT, Status.VALID)
    _, row, member_run = min(missing, key=lambda found: found[:2])
    message, there = message_at(deliveries, row), position_at(deliveries, row)
    text = (
        f"member {member_run.member} never delivered {message}, which is addressed to it; member {there.member} "
        f"delivered it at index {there.index}"
    )
    return Verdict(
        UNIFORM_AGREEMENT,
        Status.VIOLATED,
        Witness((message,), (member_run.member, there.member), (there,), text),
        count,
    )


class _DestinationFilter:
    """Finds the messages addressed to a member. A message without a recorded send is addressed to no member."""

    def __init__(self, destination_sets: tuple[tuple[int, ...], ...], set_numbers: Ints) -> None:
        self._destination_sets, self._set_numbers = destination_sets, set_numbers

    def __call__(self, member: int) -> Mask:
        among = np.array([*(member in meant for meant in self._destination_sets), False])
        mask: Mask = among[self._set_numbers]
        return mask


def _destination_filter(sends: Rows, sent: Codes, codes: Codes) -> _DestinationFilter:
    if len(sent) == 0:
        return _DestinationFilter((), np.full(len(codes), -1))
    order = np.argsort(sent, kind="stable")
    at = np.minimum(np.searchsorted(sent[order], codes), len(sent) - 1)
    which = np.where(sent[order][at] == codes, sends.destinations[order][at], -1)
    return _DestinationFilter(sends.destination_sets, which)


def _destined(run: _MulticastRun) -> Verdict:
    deliveries, delivered = run.deliveries, run.delivered_codes
    meant = _destination_filter(run.sends, run.sent_codes, delivered)
    wrong = np.zeros(len(deliveries), dtype=bool)
    recorded = np.isin(delivered, run.sent_codes)
    for member in np.unique(deliveries.member).tolist():
        wrong |= (deliveries.member == member) & recorded & ~meant(member)
    rows = np.flatnonzero(wrong)
    if len(rows) == 0:
        return Verdict(DESTINED, Status.VALID)
    row = int(rows[np.argmin(deliveries.real_ns[rows])])
    message, at = message_at(deliveries, row), position_at(deliveries, row)
    text = f"member {at.member} delivered {message} at index {at.index}, which was not addressed to it"
    return Verdict(DESTINED, Status.VIOLATED, Witness((message,), (at.member,), (at,), text), len(rows))


class _TopologyHistory:
    """The groups that each member exchanges datagrams with over time, from the TOPOLOGY notices of its group."""

    def __init__(self, topology: Topology, trace: Trace) -> None:
        declared = {member: frozenset(topology.neighbours(topology.group_of(member))) for member in topology.members}
        self._topology = topology
        self._neighbours_since: dict[int, tuple[list[int], list[frozenset[str]]]] = {
            member: ([0], [groups]) for member, groups in declared.items()
        }
        self._first_crash_ns: dict[int, int] = {}
        """The time of the first crash of each member that restarted."""
        last_incarnations = {
            member: int(trace.recorder_incarnation[trace.member == member].max(initial=0))
            for member in topology.members
        }
        events = trace.of_kind(EventKind.NOTICE, EventKind.CRASH)
        for row in np.argsort(events.real_ns, kind="stable").tolist():
            talks, when = int(events.talks_with[row]), int(events.real_ns[row])
            if events.kind[row] == EventKind.CRASH.code:
                member = int(events.sender[row])
                self._record(member, when, self._possible_neighbours(member))
                if last_incarnations[member] > events.sender_incarnation[row]:
                    self._first_crash_ns.setdefault(member, when)
            elif talks != ABSENT:
                self._record(int(events.member[row]), when, frozenset(events.talk_lists[talks]))

    def _possible_neighbours(self, member: int) -> frozenset[str]:
        """All groups with which a restarted member may exchange datagrams while it reads its log.

        It starts with the declared topology and repeats all later changes.
        """
        home = self._topology.groups[self._topology.group_of(member)]
        return frozenset(group for peer in home for talks in self._neighbours_since[peer][1] for group in talks)

    def _record(self, member: int, at_ns: int, neighbours: frozenset[str]) -> None:
        times, groups = self._neighbours_since[member]
        if times[-1] == at_ns:
            # A restarted member makes several changes in one instant, and a trace does not record their order.
            groups[-1] |= neighbours
        else:
            times.append(at_ns)
            groups.append(neighbours)

    def related(self, sender: int, receiver: int, from_ns: int, to_ns: int) -> bool:
        """Whether one of the two members regards their groups as related at some time from `from_ns` to `to_ns`.

        Groups are related if one may send to the other. Other members of these groups count too if they restarted after
        a crash: such a member starts with the old topology, and members answer its whole group.
        """
        one, other = self._topology.group_of(sender), self._topology.group_of(receiver)
        returned = [member for member, at in self._first_crash_ns.items() if at <= to_ns]
        return any(
            group in talks
            for home, group in ((one, other), (other, one))
            for member in self._topology.groups[home]
            if member in (sender, receiver) or member in returned
            for talks in self._neighbours_between(member, from_ns, to_ns)
        )

    def _neighbours_between(self, member: int, from_ns: int, to_ns: int) -> list[frozenset[str]]:
        times, groups = self._neighbours_since[member]
        return groups[max(bisect_right(times, from_ns) - 1, 0) : bisect_right(times, to_ns)]


def genuineness_over_time(
    topology: Topology, trace: Trace, send_times_ns: Mapping[tuple[int, int], Sequence[int]], max_pause_ns: int = 0
) -> Verdict:
    """Check, for a topology that changes, that only related groups exchange datagrams.

    Two groups are related if one of them may send to the other. `send_times_ns` has the times at which datagrams were
    sent, by sender and receiver. At that time, or a little earlier, the sender or the receiver must have known the two
    groups as related. "A little earlier" is some network delays plus `max_pause_ns`, the longest pause of a member:
    members still answer messages that were in transit when the topology changed.
    """
    grace_ns = max_pause_ns + GRACE_DELAYS * (trace.meta.delta_ns + trace.meta.gamma_ns)
    talks, wrong = _TopologyHistory(topology, trace), []
    for (sender, receiver), times in sorted(send_times_ns.items()):
        if receiver == 0:
            wrong.append((times[0], sender, receiver))
            continue
        home, there = topology.group_of(sender), topology.group_of(receiver)
        for when in () if home == there else times:
            if not talks.related(sender, receiver, when - grace_ns, when + NS_PER_MS):
                wrong.append((when, sender, receiver))
                break
    if not wrong:
        return Verdict(GENUINENESS, Status.VALID)
    when, sender, receiver = min(wrong)
    if receiver == 0:
        text = f"member {sender} sent to all members at {when} ns, without choosing groups that it may send to"
    else:
        text = (
            f"member {sender} of {topology.group_of(sender)!r} sent to member {receiver} of "
            f"{topology.group_of(receiver)!r} at {when} ns, when neither group was allowed to send to the other"
        )
    nothing: tuple[MessageId, ...] = ()
    return Verdict(GENUINENESS, Status.VIOLATED, Witness(nothing, (sender, receiver), (), text), len(wrong))


def genuineness(topology: Topology, datagram_counts: Mapping[tuple[int, int], int]) -> Verdict:
    """Check that two groups exchange datagrams only if one of them may send to the other.

    `datagram_counts` has the number of datagrams by (sender, receiver); receiver 0 stands for all members.
    """
    wrong = []
    for sender, receiver in sorted(datagram_counts):
        home = topology.group_of(sender)
        if receiver == 0 or not topology.connected(home, topology.group_of(receiver)):
            wrong.append((sender, receiver))
    if not wrong:
        return Verdict(GENUINENESS, Status.VALID, figures={"datagrams": sum(datagram_counts.values())})
    sender, receiver = wrong[0]
    text = f"member {sender} of {topology.group_of(sender)!r} sent {datagram_counts[wrong[0]]} datagrams to "
    if receiver == 0:
        text += "all members, without choosing groups that it may send to"
    else:
        text += (
            f"member {receiver} of {topology.group_of(receiver)!r}, but neither of these groups may send to the other"
        )
    nothing: tuple[MessageId, ...] = ()
    return Verdict(GENUINENESS, Status.VIOLATED, Witness(nothing, (sender, receiver), (), text), len(wrong))
