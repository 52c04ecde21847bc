"""The checkers, on planted violations first, then on clean runs and on logs that are not whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from unisono.check.completeness import gap_freedom, integrity
from unisono.check.latency import latency
from unisono.check.suite import check_all
from unisono.check.total_order import fifo, total_order
from unisono.check.verdict import MessageId, Status, Verdict, overall
from unisono.trace.recorder import MemoryTrace
from unisono.trace.schema import OBSERVER, EventKind, RunMeta
from unisono.trace.table import MemberLog, Trace

SLOT_NS = 1_000_000
BOUND_NS = 5 * SLOT_NS
Message = tuple[int, int]
"""(sender, sequence)."""


def meta(members: Sequence[int], **changes: object) -> RunMeta:
    made = RunMeta(
        run="r",
        group="g",
        order="vbr",
        members=tuple(members),
        delta_ns=2 * SLOT_NS,
        gamma_ns=SLOT_NS,
        theta_ns=SLOT_NS,
        bound_ns=BOUND_NS,
        reliable=True,
        source="simulator",
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def key(message: Message) -> tuple[int, int]:
    """Two messages per sender and slot; in a slot, sender after sender."""
    sender, sequence = message
    return sequence // 2, sender * 2**32 + sequence % 2


class Run:
    """A run whose members deliver what the test says, in the order that the test says."""

    def __init__(self, members: Sequence[int] = (1, 2, 3), sequences: int = 8) -> None:
        self.members = members
        self.sent = [(sender, sequence) for sender in members for sequence in range(sequences)]
        self.delivered = {member: sorted(self.sent, key=key) for member in members}
        self.key: Callable[[Message], tuple[int, int]] = key
        self.keys_by_index = False
        self.took_ns: dict[tuple[int, Message], int] = {}
        self.memory = MemoryTrace("r", "g")

    def trace(self, **changes: object) -> Trace:
        for member in self.members:
            self.memory.recorder(member)
        for sender, sequence in self.sent:
            slot, place = self.key((sender, sequence))
            self.memory.recorder(sender).sent(
                first_sequence=sequence,
                count=1,
                sizes=10,
                slot=slot,
                first_place=place,
                real_ns=slot * SLOT_NS,
                local_ns=slot * SLOT_NS,
            )
        for member, messages in self.delivered.items():
            recorder = self.memory.recorder(member)
            for index, message in enumerate(messages):
                slot, place = self.key(sorted(self.sent, key=key)[index] if self.keys_by_index else message)
                real_ns = key(message)[0] * SLOT_NS + self.took_ns.get((member, message), BOUND_NS)
                recorder.delivered(
                    sender=message[0],
                    sender_incarnation=0,
                    first_sequence=message[1],
                    count=1,
                    sizes=10,
                    slot=slot,
                    first_place=place,
                    first_index=index,
                    real_ns=real_ns,
                    local_ns=real_ns,
                )
        return self.memory.trace(meta(self.members, **changes))

    def happened(self, kind: EventKind, member: int, slot: int) -> None:
        self.memory.recorder(OBSERVER).event(
            kind, slot=slot, real_ns=slot * SLOT_NS, local_ns=slot * SLOT_NS, subject=member, subject_incarnation=0
        )


def swap(messages: list[Message], one: Message, other: Message) -> None:
    at, there = messages.index(one), messages.index(other)
    messages[at], messages[there] = other, one


def ids(verdict: Verdict) -> set[Message]:
    assert verdict.witness is not None
    return {(message.sender, message.sequence) for message in verdict.witness.messages}


def statuses(trace: Trace) -> dict[str, str]:
    return {name: verdict.status.value for name, verdict in check_all(trace).items()}


@pytest.mark.parametrize("keys_by_index", [False, True])
def test_two_swapped_messages_are_named_with_both_members(keys_by_index: bool) -> None:
    run = Run()
    run.keys_by_index = keys_by_index
    swap(run.delivered[2], (1, 3), (2, 2))
    verdict = total_order(run.trace())
    assert verdict.status is Status.VIOLATED
    assert verdict.witness is not None
    assert verdict.witness.text == "member 1 delivered (1,3) before (2,2), member 2 after it"
    assert verdict.witness.messages == (MessageId(1, 0, 3), MessageId(2, 0, 2))
    assert verdict.witness.members == (1, 2)
    assert [(at.member, at.index) for at in verdict.witness.positions] == [(1, 7), (1, 8), (2, 7), (2, 8)]
    assert json.loads(json.dumps(verdict.to_json()))["witness"]["members"] == [1, 2]


def test_earliest_of_several_disagreements_is_the_witness() -> None:
    run = Run()
    swap(run.delivered[2], (1, 7), (2, 6))
    swap(run.delivered[3], (2, 1), (3, 0))
    verdict = total_order(run.trace())
    assert ids(verdict) == {(2, 1), (3, 0)}
    assert verdict.count > 1


def test_swap_in_a_slot_that_one_member_does_not_share_is_found_through_the_others() -> None:
    run = Run()
    run.delivered[1] = [m for m in run.delivered[1] if m not in {(1, 3), (2, 2)}]
    swap(run.delivered[3], (1, 3), (2, 2))
    verdict = total_order(run.trace())
    assert verdict.witness is not None
    assert verdict.witness.members == (2, 3)


def test_three_cycle_without_shared_pairs_has_no_one_order() -> None:
    a, b, c = (1, 0), (2, 0), (3, 0)
    for by_index in (False, True):
        run = Run(sequences=1)
        run.keys_by_index = by_index
        run.delivered = {1: [a, b], 2: [b, c], 3: [c, a]}
        verdict = total_order(run.trace())
        assert verdict.status is Status.VIOLATED
        assert ids(verdict) == {a, b, c}
        assert verdict.witness is not None
        assert verdict.witness.members == (1, 2, 3)
        assert "no two disagree" in verdict.reason
        assert verdict.witness.text.endswith("member 3 delivered (3,0) before (1,0)")


def test_keys_that_contradict_each_other_without_a_disagreement_are_violated() -> None:
    run = Run(sequences=1)
    run.keys_by_index = True
    run.delivered = {1: [(1, 0)], 2: [(2, 0)], 3: []}
    verdict = total_order(run.trace())
    assert verdict.status is Status.VIOLATED
    assert "no two members disagree" in verdict.reason
    assert verdict.witness is not None
    assert "key (slot 0, place" in verdict.witness.text


def test_message_moved_to_a_key_at_which_others_have_gaps() -> None:
    """SPARK notes, condition 3: per member the keys increase, and each key has one message."""
    run = Run(members=(1, 2), sequences=4)
    order = sorted(run.sent, key=key)
    moved = order[1]
    run.delivered = {1: order[:-1], 2: [*(m for m in order[:-1] if m != moved), moved]}
    run.keys_by_index = False
    trace = run.trace()
    last = (trace.member == 2) & (trace.index == len(order) - 2)
    trace.slot[last] = 99
    verdict = total_order(trace)
    assert verdict.status is Status.VIOLATED
    assert moved in ids(verdict)


def test_duplicate_delivery() -> None:
    run = Run()
    run.delivered[3].insert(5, run.delivered[3][2])
    twice = run.delivered[3][2]
    trace = run.trace()
    verdict = integrity(trace)
    assert verdict.status is Status.VIOLATED
    assert verdict.witness is not None
    assert verdict.witness.text == f"member 3 delivered ({twice[0]},{twice[1]}) twice, at indices 2 and 5"
    assert total_order(trace).status is Status.VALID


def test_message_that_was_never_sent() -> None:
    run = Run()
    run.delivered[2].append((3, 9))
    verdict = integrity(run.trace())
    assert verdict.status is Status.VIOLATED
    assert verdict.witness is not None
    assert verdict.witness.text == "member 2 delivered (3,9) at index 24, which member 3 never sent"


def test_message_of_a_stranger_was_never_sent() -> None:
    run = Run()
    run.delivered[2].append((9, 9))
    assert integrity(run.trace()).status is Status.VIOLATED


def test_missing_message_is_a_gap_and_no_disorder() -> None:
    run = Run()
    run.delivered[3].remove((1, 4))
    trace = run.trace()
    verdict = gap_freedom(trace)
    assert verdict.status is Status.VIOLATED
    assert verdict.count == 1
    assert verdict.witness is not None
    assert verdict.witness.text.startswith("member 3 never delivered (1,4) of slot 2; member 1 delivered it")
    assert total_order(trace).status is Status.VALID


def test_member_that_stops_delivering_is_caught_by_the_bound() -> None:
    run = Run()
    del run.delivered[3][6:]
    verdict = gap_freedom(run.trace())
    assert verdict.status is Status.VIOLATED
    assert gap_freedom(run.trace(), until_slot=0).status is Status.VALID


def test_a_message_younger_than_the_bound_at_the_end_is_not_due() -> None:
    run = Run()
    for messages in run.delivered.values():
        del messages[-6:]
    assert gap_freedom(run.trace()).status is Status.VALID


def test_key_of_a_message_is_that_of_its_delivery_not_of_its_send() -> None:
    """The runtime notes when a message was handed in; the order may carry it in a later slot."""
    run = Run()
    for messages in run.delivered.values():
        del messages[-6:]
    trace = run.trace()
    handed_in = trace.kind == EventKind.SEND.code
    trace.slot[handed_in] -= 1
    trace.place[handed_in] = 0
    assert gap_freedom(trace).status is Status.VALID


def test_an_undelivered_message_is_a_gap() -> None:
    run = Run()
    for messages in run.delivered.values():
        messages.remove((1, 4))
    for bound_ns in (BOUND_NS, None):
        run.memory = MemoryTrace("r", "g")
        verdict = gap_freedom(run.trace(bound_ns=bound_ns))
        assert verdict.status is Status.VIOLATED
        assert verdict.count == 3
        assert verdict.witness is not None
        assert verdict.witness.text == "member 1 never delivered (1,4) of slot 2, nor did any other member"


def test_a_crashed_members_message_is_due_once_a_correct_member_delivered_it() -> None:
    run = Run()
    run.happened(EventKind.CRASH, 3, slot=2)
    run.sent = [m for m in run.sent if m[0] != 3 or m[1] < 4]
    order = sorted(run.sent, key=key)
    nobody = [m for m in order if m != (3, 3)]
    run.delivered = {1: nobody, 2: list(nobody), 3: nobody[:4]}
    assert gap_freedom(run.trace()).status is Status.VALID
    run = Run()
    run.happened(EventKind.CRASH, 3, slot=2)
    run.sent = [m for m in run.sent if m[0] != 3 or m[1] < 4]
    run.delivered = {1: order, 2: nobody, 3: nobody[:4]}
    verdict = gap_freedom(run.trace())
    assert verdict.status is Status.VIOLATED
    assert ids(verdict) == {(3, 3)}


def test_joining_and_leaving_members_are_held_to_their_interval() -> None:
    run = Run()
    run.happened(EventKind.START, 3, slot=2)
    run.happened(EventKind.LEAVE, 2, slot=3)
    run.sent = [m for m in run.sent if not (m[0] == 3 and m[1] < 4) and not (m[0] == 2 and m[1] >= 6)]
    run.sent = [(s, q - 4) if s == 3 else (s, q) for s, q in run.sent]
    run.key = lambda message: key((3, message[1] + 4)) if message[0] == 3 else key(message)
    order = sorted(run.sent, key=run.key)
    run.delivered = {
        1: order,
        2: [m for m in order if run.key(m)[0] < 3],
        3: [m for m in order if run.key(m)[0] >= 2],
    }
    assert gap_freedom(run.trace()).status is Status.VALID
    run.memory = MemoryTrace("r", "g")
    assert gap_freedom(run.trace()).status is Status.VIOLATED


def test_message_is_due_only_at_its_destinations() -> None:
    for wanted, status in (((1, 2), Status.VALID), ((1, 2, 3), Status.VIOLATED)):
        memory = MemoryTrace("r", "g")
        memory.recorder(3)
        memory.recorder(1).sent(
            first_sequence=0, count=1, sizes=1, slot=0, first_place=0, real_ns=0, local_ns=0, destinations=wanted
        )
        for member in (1, 2):
            memory.recorder(member).delivered(
                sender=1,
                sender_incarnation=0,
                first_sequence=0,
                count=1,
                sizes=1,
                slot=0,
                first_place=0,
                first_index=0,
                real_ns=BOUND_NS,
                local_ns=0,
            )
        assert gap_freedom(memory.trace(meta((1, 2, 3)))).status is status


def test_fifo_inversion_is_named() -> None:
    run = Run()
    for messages in run.delivered.values():
        swap(messages, (2, 4), (2, 5))
    trace = run.trace()
    verdict = fifo(trace)
    assert verdict.status is Status.VIOLATED
    assert verdict.count == 3
    assert verdict.witness is not None
    assert verdict.witness.text.startswith("member 1 delivered (2,4) after (2,5)")


def test_one_order_that_is_not_fifo_is_still_one_order() -> None:
    run = Run()
    for messages in run.delivered.values():
        swap(messages, (2, 4), (2, 5))
    run.key = lambda message: key({(2, 4): (2, 5), (2, 5): (2, 4)}.get(message, message))
    trace = run.trace()
    assert fifo(trace).status is Status.VIOLATED
    assert total_order(trace).status is Status.VALID


def test_late_delivery() -> None:
    run = Run()
    run.took_ns[2, (1, 3)] = BOUND_NS + 250_000
    verdict = latency(run.trace())
    assert verdict.status is Status.VIOLATED
    assert verdict.count == 1
    assert verdict.witness is not None
    assert verdict.witness.text == (
        "member 2 delivered (1,3) 5.250 ms after it was sent, 0.250 ms later than the bound of 5.000 ms"
    )
    assert verdict.figures["late"] == 1
    assert verdict.to_json()["figures"]["max_ms"] == 5.25
    assert latency(run.trace(), bound_ns=2 * BOUND_NS).status is Status.VALID


def test_latency_statistics_are_latencies_that_occurred() -> None:
    run = Run()
    for number, message in enumerate(sorted(run.sent, key=key)):
        for member in run.members:
            run.took_ns[member, message] = number + 1
    figures = latency(run.trace()).figures
    assert (figures["deliveries"], figures["min_ns"], figures["max_ns"]) == (72, 1, 24)
    assert (figures["p50_ns"], figures["p999_ns"]) == (12, 24)


def test_clean_run_is_valid_in_every_respect() -> None:
    verdicts = check_all(Run().trace())
    assert set(verdicts) == {"total_order", "integrity", "fifo", "gap_freedom", "latency"}
    assert overall(verdicts) is Status.VALID
    assert all(v.witness is None and v.count == 0 for v in verdicts.values())


def test_only_promises_are_checked() -> None:
    assert set(check_all(Run().trace(reliable=False, bound_ns=None))) == {
        "total_order",
        "integrity",
        "fifo",
        "gaps_explained",
    }


def test_nothing_recorded_is_unknown_and_silence_is_valid() -> None:
    run = Run(sequences=0)
    assert overall(check_all(run.trace())) is Status.UNKNOWN
    run.happened(EventKind.START, 1, 0)
    assert overall(check_all(run.trace())) is Status.VALID
    assert overall({}) is Status.UNKNOWN


def test_dropped_rows_make_every_valid_verdict_unknown() -> None:
    trace = Run().trace()
    trace = replace(trace, logs=(MemberLog(1, 0), MemberLog(2, 0, dropped=7), MemberLog(3, 0)))
    assert set(statuses(trace).values()) == {"unknown"}
    assert check_all(trace)["fifo"].reason == "rows were dropped while recording (member 2 7)"


def test_dropped_rows_do_not_excuse_a_violation_that_is_seen() -> None:
    run = Run()
    swap(run.delivered[2], (1, 3), (2, 2))
    trace = replace(run.trace(), logs=(MemberLog(1, 0), MemberLog(2, 0, dropped=7), MemberLog(3, 0)))
    assert total_order(trace).status is Status.VIOLATED


def test_dropped_rows_are_not_taken_for_missing_or_unsent_messages() -> None:
    trace = Run().trace()
    trace = trace.select(~((trace.member == 2) & (trace.sequence == 3)))
    trace = replace(trace, logs=(MemberLog(1, 0), MemberLog(2, 0, dropped=4), MemberLog(3, 0)))
    assert set(statuses(trace).values()) == {"unknown"}


def test_hole_in_a_log_is_unknown() -> None:
    trace = Run().trace()
    verdict = total_order(trace.select(~((trace.member == 2) & (trace.index == 4))))
    assert verdict.status is Status.UNKNOWN
    assert "index 4 is missing, 5 follows" in verdict.reason


def test_index_given_twice_is_unknown_where_the_order_depends_on_it() -> None:
    run = Run()
    swap(run.delivered[2], (1, 3), (2, 2))
    trace = run.trace()
    trace.index[(trace.member == 2) & (trace.index == 8)] = 7
    assert total_order(trace).status is Status.UNKNOWN


@pytest.mark.parametrize("crash_seen", [False, True])
def test_cut_log_of_a_killed_member(crash_seen: bool) -> None:
    """Its last sends are not in its log; others delivered them. With a CRASH that is no fault, without it is."""
    run = Run()
    run.sent = [m for m in run.sent if m[0] != 3 or m[1] < 6]
    if crash_seen:
        run.happened(EventKind.CRASH, 3, slot=4)
    run.delivered[3] = run.delivered[3][:10]
    trace = run.trace()
    trace = replace(
        trace, logs=(MemberLog(OBSERVER, 0), MemberLog(1, 0), MemberLog(2, 0), MemberLog(3, 0, closed=False))
    )
    expected = "valid" if crash_seen else "unknown"
    found = statuses(trace)
    assert found["integrity"] == expected
    assert found["latency"] == expected
    assert found["gap_freedom"] == expected
    assert found["total_order"] == "valid"
    if crash_seen:
        assert integrity(trace).reason == "4 deliveries are of messages that a crashed sender did not log in time"


def test_restarted_member_begins_to_count_again() -> None:
    memory = MemoryTrace("r", "g")
    for life in (0, 5):
        recorder = memory.recorder(1, incarnation=life)
        recorder.sent(first_sequence=0, count=3, sizes=1, slot=life, first_place=0, real_ns=life, local_ns=0)
        recorder.delivered(
            sender=1,
            sender_incarnation=life,
            first_sequence=0,
            count=3,
            sizes=1,
            slot=life,
            first_place=0,
            first_index=0,
            real_ns=life,
            local_ns=0,
        )
    memory.recorder(OBSERVER).event(EventKind.CRASH, slot=3, real_ns=3, local_ns=3, subject=1, subject_incarnation=0)
    memory.recorder(OBSERVER).event(EventKind.START, slot=5, real_ns=5, local_ns=5, subject=1, subject_incarnation=5)
    assert overall(check_all(memory.trace(meta((1,))))) is Status.VALID


def test_grades_are_checked_one_by_one() -> None:
    memory = MemoryTrace("r", "g")
    memory.recorder(1).sent(first_sequence=0, count=2, sizes=1, slot=0, first_place=0, real_ns=0, local_ns=0)
    for grade in ("early", "final"):
        memory.recorder(1).delivered(
            sender=1,
            sender_incarnation=0,
            first_sequence=0,
            count=2,
            sizes=1,
            slot=0,
            first_place=0,
            first_index=0,
            real_ns=1,
            local_ns=0,
            grade=grade,
        )
    verdicts = check_all(memory.trace(meta((1,))))
    assert "total_order[early]" in verdicts
    assert overall(verdicts) is Status.VALID
