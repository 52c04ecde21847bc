"""Agreement, uniform agreement and causal order: planted violations, clean runs, logs that are not whole."""

from __future__ import annotations

from dataclasses import replace

import pytest

from unisono.check.causal import causal
from unisono.check.completeness import agreement, uniform_agreement
from unisono.check.suite import check_all
from unisono.check.verdict import MessageId, Status
from unisono.model.capabilities import CAPABILITIES, SERVICES
from unisono.trace.recorder import MemoryTrace
from unisono.trace.schema import OBSERVER, EventKind, RunMeta
from unisono.trace.table import MemberLog, Trace

MS = 1_000_000
BOUND = 10 * MS
END = 1000 * MS


class Run:
    """Written down step by step: who sends and who delivers, a millisecond apart."""

    def __init__(self, *members: int, order: str = "causal") -> None:
        self.memory = MemoryTrace("r", "g")
        self.recorders = {m: self.memory.recorder(m) for m in members}
        self.meta = RunMeta("r", "g", order, members, 2 * MS, 0, MS, BOUND, False, "simulator")
        self.now = 0
        self.sequences = dict.fromkeys(members, 0)
        self.indices = dict.fromkeys(members, 0)

    def send(self, member: int) -> tuple[int, int]:
        self.now += MS
        sequence = self.sequences[member]
        self.sequences[member] += 1
        self.recorders[member].sent(
            first_sequence=sequence, count=1, sizes=1, slot=0, first_place=0, real_ns=self.now, local_ns=0
        )
        self.deliver(member, (member, sequence), passing=0)
        return member, sequence

    def deliver(self, member: int, message: tuple[int, int], passing: int = MS) -> None:
        self.now += passing
        self.recorders[member].delivered(
            sender=message[0],
            sender_incarnation=0,
            first_sequence=message[1],
            count=1,
            sizes=1,
            slot=0,
            first_place=message[0] * 2**32 + message[1],
            first_index=self.indices[member],
            real_ns=self.now,
            local_ns=0,
        )
        self.indices[member] += 1

    def happened(self, kind: EventKind, member: int) -> None:
        self.now += MS
        recorder = self.memory.recorder(OBSERVER) if kind is EventKind.CRASH else self.recorders[member]
        recorder.event(kind, slot=0, real_ns=self.now, local_ns=0, subject=member, subject_incarnation=0)

    @property
    def trace(self) -> Trace:
        return self.memory.trace(self.meta)


# -- agreement -----------------------------------------------------------------------------------------------


def test_a_message_that_one_correct_member_has_and_another_lacks() -> None:
    run = Run(1, 2, 3)
    message = run.send(1)
    run.deliver(2, message)
    for check in (agreement, uniform_agreement):
        verdict = check(run.trace, until_ns=END)
        assert verdict.status is Status.VIOLATED
        assert verdict.count == 1
        assert verdict.witness is not None
        assert verdict.witness.messages == (MessageId(1, 0, 0),)
        assert 3 in verdict.witness.members
        assert "member 3 never delivered (1,0)" in verdict.witness.text


def test_a_crashed_senders_message_binds_only_if_a_correct_member_delivered_it() -> None:
    run = Run(1, 2, 3)
    message = run.send(1)
    run.happened(EventKind.CRASH, 1)
    assert agreement(run.trace, until_ns=END).status is Status.VALID
    run.deliver(2, message)
    verdict = agreement(run.trace, until_ns=END)
    assert verdict.status is Status.VIOLATED
    assert verdict.witness is not None
    assert "member 2 delivered it at index 0" in verdict.witness.text


def test_uniform_agreement_counts_deliveries_before_a_crash() -> None:
    run = Run(1, 2, 3)
    message = run.send(1)
    run.deliver(2, message)
    run.happened(EventKind.CRASH, 1)
    run.happened(EventKind.CRASH, 2)
    assert agreement(run.trace, until_ns=END).status is Status.VALID
    verdict = uniform_agreement(run.trace, until_ns=END)
    assert verdict.status is Status.VIOLATED
    assert verdict.witness is not None
    assert verdict.witness.members[0] == 3


def test_a_crashed_senders_send_obliges_no_other_member() -> None:
    run = Run(1, 2)
    run.now += MS
    run.recorders[1].sent(first_sequence=0, count=1, sizes=1, slot=0, first_place=0, real_ns=run.now, local_ns=0)
    run.happened(EventKind.CRASH, 1)
    assert uniform_agreement(run.trace, until_ns=END).status is Status.VALID


def test_a_message_that_is_not_due_yet_is_not_missing() -> None:
    run = Run(1, 2)
    run.send(1)
    assert agreement(run.trace, until_ns=MS + BOUND - 1).status is Status.VALID
    assert agreement(run.trace, until_ns=MS + BOUND).status is Status.VIOLATED
    assert agreement(run.trace, until_ns=MS + BOUND, bound_ns=2 * BOUND).status is Status.VALID


def test_a_member_that_left_owes_messages_due_before() -> None:
    run = Run(1, 2)
    run.send(1)
    run.happened(EventKind.LEAVE, 2)
    assert agreement(run.trace, until_ns=END).status is Status.VALID
    late = Run(1, 2)
    late.send(1)
    late.now += BOUND
    late.happened(EventKind.LEAVE, 2)
    assert agreement(late.trace, until_ns=END).status is Status.VIOLATED


def test_logs_that_are_not_whole_say_nothing() -> None:
    run = Run(1, 2)
    run.send(1)
    trace = run.trace
    cut = replace(
        trace,
        logs=tuple(MemberLog(log.member, log.incarnation, closed=log.member != 2, dropped=0) for log in trace.logs),
    )
    assert agreement(cut, until_ns=END).status is Status.UNKNOWN
    empty = Run(1, 2).trace
    assert agreement(empty, until_ns=END).status is Status.UNKNOWN
    assert causal(empty).status is Status.UNKNOWN


# -- causal --------------------------------------------------------------------------------------------------


def conversation() -> tuple[Run, tuple[int, int], tuple[int, int]]:
    """1 asks, 2 answers."""
    run = Run(1, 2, 3)
    question = run.send(1)
    run.deliver(2, question)
    answer = run.send(2)
    run.deliver(1, answer)
    return run, question, answer


def test_an_answer_before_its_question() -> None:
    run, question, answer = conversation()
    run.deliver(3, answer)
    run.deliver(3, question)
    verdict = causal(run.trace)
    assert (verdict.status, verdict.count) == (Status.VIOLATED, 1)
    assert verdict.witness is not None
    assert verdict.witness.messages == (MessageId(1, 0, 0), MessageId(2, 0, 0))
    assert "member 3 delivered (2,0) at index 0 and (1,0) only at index 1" in verdict.witness.text


def test_an_answer_without_its_question() -> None:
    run, _, answer = conversation()
    run.deliver(3, answer)
    verdict = causal(run.trace)
    assert verdict.status is Status.VIOLATED
    assert verdict.witness is not None
    assert "never" in verdict.witness.text


def test_a_chain_is_seen_through_its_links() -> None:
    """3 answered 2 without 4 having 1's: 4 has 2's answer and lacks what that depended on."""
    run = Run(1, 2, 3, 4)
    a = run.send(1)
    run.deliver(2, a)
    b = run.send(2)
    run.deliver(3, a)
    run.deliver(3, b)
    c = run.send(3)
    for message in (b, c, a):
        run.deliver(4, message)
    assert causal(run.trace).status is Status.VIOLATED
    assert causal(run.trace).count == 2


def test_concurrent_messages_may_come_in_any_order() -> None:
    run = Run(1, 2, 3, 4)
    a, b = run.send(1), run.send(2)
    for member, messages in {3: (a, b), 4: (b, a)}.items():
        for message in messages:
            run.deliver(member, message)
    assert causal(run.trace).status is Status.VALID


def test_a_delivery_at_the_instant_of_the_send_is_not_a_cause() -> None:
    run = Run(1, 2, 3)
    question = run.send(1)
    run.now += MS
    run.deliver(2, question, passing=0)
    run.now -= MS
    other = run.send(2)
    run.deliver(3, other)
    assert causal(run.trace).status is Status.VALID


def test_the_suite_checks_the_promises_of_a_service_and_no_total_order() -> None:
    for order in SERVICES:
        run, question, answer = conversation()
        run.meta = replace(run.meta, order=order)
        run.deliver(3, question)
        run.deliver(3, answer)
        verdicts = check_all(run.trace, until_ns=END)
        assert set(verdicts) == {"integrity", "latency", *CAPABILITIES[order].checks}
        assert {verdict.status for verdict in verdicts.values()} == {Status.VALID}


@pytest.mark.parametrize("order", sorted(SERVICES))
def test_the_suite_finds_a_planted_violation_of_each_promise(order: str) -> None:
    run, question, answer = conversation()
    run.meta = replace(run.meta, order=order)
    second = run.send(1)  # 2 never has it
    for message in (answer, second, question, question):
        run.deliver(3, message)
    verdicts = check_all(run.trace, until_ns=END)
    broken = {name for name, verdict in verdicts.items() if verdict.status is Status.VIOLATED}
    assert broken == {"integrity", *CAPABILITIES[order].checks}
