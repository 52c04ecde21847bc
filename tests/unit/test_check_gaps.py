"""Gaps explained (Definition 2): planted gaps first, then what explains one, then whole simulated runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from unisono.check.completeness import gaps_explained
from unisono.check.suite import check_all
from unisono.check.verdict import MessageId, Status, Verdict
from unisono.model.events import Violation, ViolationKind
from unisono.model.faults import Crash, Loss, Partition, Pause
from unisono.model.scenario import Scenario
from unisono.sim import run
from unisono.sim.swarm.vbr import churning
from unisono.trace.recorder import MemoryTrace, report_extras, view_extras
from unisono.trace.schema import OBSERVER, EventKind, RunMeta
from unisono.trace.table import Mask, MemberLog, Trace

SLOT_NS = 1_000_000
BOUND_NS = 5 * SLOT_NS
SLOTS = 8
META = RunMeta("r", "g", "vbr", (1, 2, 3), 2 * SLOT_NS, SLOT_NS, SLOT_NS, BOUND_NS, False, "simulator")
Message = tuple[int, int]
"""(sender, slot): everybody sends one message in each slot, so that its number is its slot."""


class Run:
    """Three members and what each says; the trace ends three slots after the last bound unless told."""

    def __init__(self) -> None:
        self.memory = MemoryTrace("r", "g")
        self.sent = [(sender, slot) for slot in range(SLOTS) for sender in META.members]
        self.dropped: set[tuple[int, Message]] = set()
        """(member, message): what a member does not deliver."""
        for member in META.members:
            self.happened(EventKind.START, member, 0)
            self.viewed(member, 0, META.members)

    def happened(self, kind: EventKind, member: int, slot: int, subject: int | None = None) -> None:
        by = OBSERVER if kind is EventKind.CRASH else member
        at, about = slot * SLOT_NS, subject if by else member
        self.memory.recorder(by).event(kind, slot=slot, real_ns=at, local_ns=at, subject=about, subject_incarnation=0)

    def stood_still(self, member: int, slot: int) -> None:
        paused = report_extras(Violation(ViolationKind.PAUSED, "this member stood still for 9 ms"))
        at = slot * SLOT_NS
        self.memory.recorder(member).event(EventKind.VIOLATION, slot=slot, real_ns=at, local_ns=at, extras=paused)

    def viewed(self, member: int, slot: int, members: Sequence[int]) -> None:
        self.memory.recorder(member).event(
            EventKind.VIEW, slot=slot, real_ns=slot * SLOT_NS, local_ns=0, extras=view_extras(slot, members)
        )

    def lacks(self, member: int, *messages: Message) -> None:
        self.dropped |= {(member, message) for message in messages}

    def trace(self, **changes: object) -> Trace:
        for sender, slot in self.sent:
            self.memory.recorder(sender).sent(
                first_sequence=slot,
                count=1,
                sizes=10,
                slot=slot,
                first_place=sender * 2**32,
                real_ns=slot * SLOT_NS,
                local_ns=0,
            )
        for member in META.members:
            got = [message for message in self.sent if (member, message) not in self.dropped]
            for index, (sender, slot) in enumerate(got):
                self.memory.recorder(member).delivered(
                    sender=sender,
                    sender_incarnation=0,
                    first_sequence=slot,
                    count=1,
                    sizes=10,
                    slot=slot,
                    first_place=sender * 2**32,
                    first_index=index,
                    real_ns=slot * SLOT_NS + BOUND_NS,
                    local_ns=0,
                )
        return self.memory.trace(replace(META, **changes))  # type: ignore[arg-type]

    def verdict(self, until_slot: int = SLOTS + 8) -> Verdict:
        return gaps_explained(self.trace(), until_ns=until_slot * SLOT_NS)


def violated(verdict: Verdict, member: int, message: Message, count: int) -> None:
    assert verdict.status is Status.VIOLATED
    assert verdict.witness is not None
    assert verdict.witness.messages == (MessageId(message[0], 0, message[1]),)
    assert verdict.witness.members[0] == member
    assert verdict.count == count


# -- planted gaps ------------------------------------------------------------------------------------------------


def test_a_message_dropped_at_one_member_is_named_with_a_member_that_delivered_it() -> None:
    lacking = Run()
    lacking.lacks(3, (2, 4))
    verdict = lacking.verdict()
    violated(verdict, 3, (2, 4), 1)
    assert verdict.witness is not None
    assert verdict.witness.text == (
        "member 3 never delivered (2,4) of slot 4, although it had member 2 in its list and recorded no gap; "
        "member 1 delivered it at index 13"
    )


def test_a_whole_slot_dropped_at_one_member_counts_every_message_and_names_the_first() -> None:
    lacking = Run()
    lacking.lacks(1, (1, 4), (2, 4), (3, 4))
    violated(lacking.verdict(), 1, (1, 4), 3)


def test_an_undelivered_message_is_due_at_its_sender() -> None:
    lacking = Run()
    for member in META.members:
        lacking.lacks(member, (2, 4))
    verdict = lacking.verdict()
    violated(verdict, 2, (2, 4), 1)
    assert verdict.witness is not None
    assert verdict.witness.text == "member 2 never delivered (2,4) of slot 4, its own message, nor did any other member"


@pytest.mark.parametrize(("until_slot", "status"), [(SLOTS + 5, Status.VIOLATED), (SLOTS + 3, Status.VALID)])
def test_the_last_message_is_due_once_its_bound_has_passed(until_slot: int, status: Status) -> None:
    lacking = Run()
    lacking.lacks(2, (3, SLOTS - 1))
    assert lacking.verdict(until_slot).status is status


def test_a_member_that_left_in_good_order_owes_all_of_its_slots() -> None:
    lacking = Run()
    lacking.lacks(2, (3, SLOTS - 1))
    lacking.happened(EventKind.LEAVE, 2, SLOTS)
    violated(lacking.verdict(until_slot=SLOTS), 2, (3, SLOTS - 1), 1)


def test_a_gap_of_another_slot_or_of_another_sender_or_at_another_member_explains_nothing() -> None:
    lacking = Run()
    lacking.lacks(3, (2, 4))
    lacking.happened(EventKind.GAP, 3, 5, subject=2)
    lacking.happened(EventKind.GAP, 3, 4, subject=1)
    lacking.happened(EventKind.GAP, 1, 4, subject=2)
    violated(lacking.verdict(), 3, (2, 4), 1)


def test_a_crash_does_not_explain_a_gap_in_a_slot_that_the_member_saw_end() -> None:
    lacking = Run()
    lacking.sent = [message for message in lacking.sent if message[0] != 2 or message[1] < 6]
    lacking.happened(EventKind.CRASH, 2, 6)
    lacking.lacks(3, (2, 4))
    violated(lacking.verdict(), 3, (2, 4), 1)


def test_a_list_that_has_the_sender_again_explains_no_gap_after_that() -> None:
    lacking = Run()
    lacking.viewed(3, 2, (1, 3))
    lacking.viewed(3, 4, (1, 2, 3))
    lacking.lacks(3, (2, 2), (2, 3), (2, 4))
    violated(lacking.verdict(), 3, (2, 4), 1)


def test_of_two_lists_for_one_slot_only_common_members_count() -> None:
    lacking = Run()
    lacking.viewed(3, 4, (1, 3))
    lacking.viewed(3, 4, (1, 2, 3))
    lacking.lacks(3, (2, 4), (1, 5))
    violated(lacking.verdict(), 3, (1, 5), 1)


# -- what explains a gap -----------------------------------------------------------------------------------------


def explained(planted: Run, **figures: int) -> None:
    verdict = planted.verdict()
    assert verdict.status is Status.VALID, verdict
    assert {name: verdict.figures[name] for name in ("failed", "unlisted", "given_up")} == {
        "failed": 0,
        "unlisted": 0,
        "given_up": 0,
        **figures,
    }


def test_nothing_is_missing() -> None:
    explained(Run())


def test_a_gap_that_the_member_noted() -> None:
    lacking = Run()
    lacking.happened(EventKind.GAP, 3, 4, subject=2)
    lacking.lacks(3, (2, 4))
    explained(lacking, given_up=1)


def test_a_sender_that_is_not_in_the_members_list() -> None:
    lacking = Run()
    lacking.viewed(3, 4, (1, 3))
    lacking.viewed(3, 6, (1, 2, 3))
    lacking.lacks(3, (2, 4), (2, 5))
    explained(lacking, unlisted=2)


def test_a_crash_of_the_sender_explains_an_undelivered_message() -> None:
    lacking = Run()
    lacking.happened(EventKind.CRASH, 2, 4)
    for member in META.members:
        lacking.lacks(member, *[(2, slot) for slot in range(4, SLOTS)])
    explained(lacking)


def test_a_crash_of_the_sender_with_a_gap_at_some() -> None:
    lacking = Run()
    lacking.happened(EventKind.CRASH, 2, 4)
    lacking.happened(EventKind.GAP, 3, 4, subject=2)
    lacking.viewed(3, 5, (1, 3))
    for member in META.members:
        lacking.lacks(member, *[(2, slot) for slot in range(4 + (member != 3), SLOTS)])
    lacking.lacks(3, (2, 4))
    explained(lacking, failed=1)


@pytest.mark.parametrize("end", [EventKind.LEAVE, EventKind.CRASH])
def test_a_departed_member_owes_nothing_more(end: EventKind) -> None:
    lacking = Run()
    lacking.sent = [message for message in lacking.sent if message[0] != 3 or message[1] < 5]
    lacking.happened(end, 3, 5)
    lacking.lacks(3, *[message for message in lacking.sent if message[1] >= 5])
    explained(lacking)


def test_a_member_owes_nothing_before_its_start() -> None:
    lacking = Run()
    lacking.happened(EventKind.START, 3, 3)
    lacking.sent = [message for message in lacking.sent if message[0] != 3 or message[1] >= 3]
    lacking.lacks(3, *[message for message in lacking.sent if message[1] < 3])
    explained(lacking)


def test_messages_of_an_old_incarnation_are_not_due_in_slots_of_the_next() -> None:
    def run(*lacked: Message) -> Run:
        lacking = Run()
        later, at_ns = lacking.memory.recorder(2, incarnation=1), SLOTS * SLOT_NS
        later.event(EventKind.START, slot=5, real_ns=at_ns, local_ns=0, subject=2, subject_incarnation=1)
        later.event(EventKind.VIEW, slot=5, real_ns=at_ns, local_ns=0, extras=view_extras(5, (2,)))
        lacking.lacks(3, *lacked)
        return lacking

    of_the_later_life = 3 * (SLOTS - 5)
    explained(run((2, 5), (2, 6)), unlisted=2 + of_the_later_life)
    violated(run((2, 4), (2, 5)).verdict(), 3, (2, 4), 1)
    violated(run((1, 5)).verdict(), 3, (1, 5), 1)


def test_a_paused_member_owes_messages_that_it_passed_but_not_the_bound() -> None:
    lacking = Run()
    lacking.stood_still(3, 6)
    lacking.lacks(3, *[message for message in lacking.sent if message[1] >= 6])
    explained(lacking)
    skipping = Run()
    skipping.stood_still(3, 6)
    skipping.lacks(3, (1, 5))
    violated(skipping.verdict(), 3, (1, 5), 1)


# -- what cannot be judged ---------------------------------------------------------------------------------------


def test_without_views_the_answer_is_unknown() -> None:
    memory = MemoryTrace("r", "g")
    memory.recorder(1).event(EventKind.START, slot=0, real_ns=0, local_ns=0)
    verdict = gaps_explained(memory.trace(META))
    assert verdict.status is Status.UNKNOWN
    assert "member 1 recorded no VIEW" in verdict.reason


def test_a_log_that_lacks_rows_makes_a_gap_unknown_and_nothing_else() -> None:
    lacking = Run()
    lacking.lacks(3, (2, 4))
    trace = lacking.trace()
    logs = tuple(replace(log, dropped=1) if log.member == 3 else log for log in trace.logs)
    verdict = gaps_explained(replace(trace, logs=logs))
    assert verdict.status is Status.UNKNOWN
    assert "the log of member 3 lacks rows and 1 deliveries that were due" in verdict.reason


def test_a_log_that_was_not_closed_owes_messages_that_it_passed() -> None:
    lacking = Run()
    lacking.lacks(3, (3, SLOTS - 1))
    trace = lacking.trace()
    logs = tuple(MemberLog(log.member, log.incarnation, closed=log.member != 3) for log in trace.logs)
    verdict = gaps_explained(replace(trace, logs=logs))
    assert verdict.status is Status.UNKNOWN
    assert "the log of member 3 was not closed, and no CRASH row explains it" in verdict.reason


# -- whole runs ----------------------------------------------------------------------------------------------------


def without(trace: Trace, gone: Mask) -> Trace:
    """The trace without some deliveries, as if their members had never made them: what follows moves up."""
    kept = trace.select(~gone)
    index = kept.index.copy()
    delivers = kept.kind == EventKind.DELIVER.code
    for log in trace.logs:
        own = delivers & (kept.member == log.member) & (kept.recorder_incarnation == log.incarnation)
        index[own] = np.arange(int(own.sum()))
    return replace(kept, index=index)


def lossless(seed: int) -> Scenario:
    """The scenario of a seed without what loses datagrams or makes members give each other up."""
    scenario = churning(seed)
    faults = tuple(fault for fault in scenario.faults if not isinstance(fault, Loss | Partition | Pause))
    return replace(scenario, faults=faults, loss_burst=0)


Plant = Callable[[Trace, int], Mask]


def one_message(trace: Trace, row: int) -> Mask:
    """One message at one member."""
    return np.asarray(np.arange(len(trace)) == row)


def its_slot(trace: Trace, row: int) -> Mask:
    """Everything of one slot at one member."""
    same = (
        (trace.member == trace.member[row])
        & (trace.recorder_incarnation == trace.recorder_incarnation[row])
        & (trace.slot == trace.slot[row])
    )
    return np.asarray(same & (trace.kind == EventKind.DELIVER.code))


def at_everyone(trace: Trace, row: int) -> Mask:
    """One message at everybody."""
    same = (trace.sender == trace.sender[row]) & (trace.sender_incarnation == trace.sender_incarnation[row])
    return np.asarray(same & (trace.sequence == trace.sequence[row]) & (trace.kind == EventKind.DELIVER.code))


@pytest.mark.parametrize("plant", [one_message, its_slot, at_everyone])
@pytest.mark.parametrize("seed", range(4))
def test_planted_in_a_run_with_crashes_joins_and_leaves_it_is_caught(plant: Plant, seed: int) -> None:
    """Only senders that are alive: a crashed sender's messages may never have left it."""
    result = run(lossless(seed))
    trace, until_ns = result.trace, result.until_ns
    assert gaps_explained(trace, until_ns=until_ns).status is Status.VALID
    crashes = trace.of_kind(EventKind.CRASH)
    crashed = set(zip(crashes.sender.tolist(), crashes.sender_incarnation.tolist(), strict=True))
    candidates = [
        row
        for row in np.flatnonzero(trace.kind == EventKind.DELIVER.code).tolist()
        if (int(trace.sender[row]), int(trace.sender_incarnation[row])) not in crashed
        and (int(trace.member[row]), int(trace.recorder_incarnation[row])) not in crashed
    ]
    assert len(candidates) > 20
    for row in candidates[:: len(candidates) // 10]:
        verdict = gaps_explained(without(trace, plant(trace, row)), until_ns=until_ns)
        assert verdict.status is Status.VIOLATED, (row, verdict)
        assert verdict.witness is not None
        if plant is one_message:
            named = MessageId(int(trace.sender[row]), int(trace.sender_incarnation[row]), int(trace.sequence[row]))
            assert verdict.witness.messages == (named,)
            assert verdict.witness.members[0] == int(trace.member[row])


@pytest.mark.parametrize("seed", range(4, 10))
def test_within_the_assumptions_only_failed_senders_leave_gaps(seed: int) -> None:
    result = run(lossless(seed))
    verdict = gaps_explained(result.trace, until_ns=result.until_ns)
    assert verdict.status is Status.VALID
    assert (verdict.figures["unlisted"], verdict.figures["given_up"]) == (0, 0)


def test_loss_and_crashes_do_leave_gaps_so_the_runs_are_not_tame() -> None:
    results = [run(churning(seed)) for seed in range(8)]
    figures = [gaps_explained(result.trace, until_ns=result.until_ns).figures for result in results]
    assert sum(found["given_up"] for found in figures) > 0
    assert sum(found["unlisted"] for found in figures) > 0


def test_runs_that_promised_no_gaps_use_gap_freedom_and_others_this_checker() -> None:
    calm, stormy = Run().trace(reliable=True), Run().trace()
    assert "gaps_explained" not in check_all(calm)
    assert "gap_freedom" not in check_all(stormy)
    assert check_all(stormy)["gaps_explained"].status is Status.VALID


def test_crashes_in_the_scenarios_are_really_there() -> None:
    assert any(isinstance(fault, Crash) for seed in range(6) for fault in lossless(seed).faults)
